//! Random task sets in a discrete-event simulation: no set that the analysis admits misses a deadline, and no job
//! takes longer than its bound.
//!
//! The simulation knows one CPU, preemption, first in first out within a priority, critical sections under an
//! immediate priority ceiling, sections of the kernel without preemption, release jitter, receive processing in
//! bursts, senders of messages that are not punctual, and tasks that exceed their budgets. It asks the executive when
//! jobs begin and what an overrun leads to, and shares no code with the analysis. As on Linux, a job begins when the
//! thread of its task first has the CPU.
//!
//! `TAUTLINE_TASK_SETS=1000000` simulates more sets than the usual 20,000 (`make task-sets`);
//! `TAUTLINE_TASK_SEED=17` simulates one again.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::panic;
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline_exec::{
    Action, Activation, Analysis, Executive, HealthRecord, Job, Machine, OverrunPolicy, Receive,
    Scheduling, Table, Task, TaskSet,
};

const SETS_DEFAULT: u64 = 20_000;
/// Periods in microseconds. Their least common multiple is 40 ms, so a run sees all of their phases.
const PERIODS_US: [u64; 8] = [1_000, 2_000, 4_000, 5_000, 8_000, 10_000, 20_000, 40_000];
/// Two hyperperiods: the first begins with the phases, the second repeats.
const SPAN_US: u64 = 80_000;
/// Priority of critical sections and of the kernel's: above all tasks.
const CEILING: u32 = 200;
/// Priority of receive processing in interrupts.
const INTERRUPT: u32 = 300;
/// Priority of what runs in the background.
const BACKGROUND: u32 = 0;

#[test]
fn no_admitted_set_misses_a_deadline() {
    let number = |name| {
        let text = env::var(name).ok()?;
        Some(text.parse().expect("a number"))
    };
    let seeds = match number("TAUTLINE_TASK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TAUTLINE_TASK_SETS").unwrap_or(SETS_DEFAULT),
    };
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        let run = panic::catch_unwind(|| one_set(seed));
        let one = run.unwrap_or_else(|cause| {
            let cause = cause.downcast_ref::<String>().cloned();
            panic!(
                "set {seed}: {}\nagain: TAUTLINE_TASK_SEED={seed} cargo test -p tautline-exec --test user",
                cause.unwrap_or_else(|| "panic".to_owned())
            )
        });
        one.0
            .into_iter()
            .for_each(|(event, number)| tally.add(event, number));
    }
    println!("sets {seeds:?}: {tally:?}");
    if seeds.end - seeds.start >= SETS_DEFAULT {
        tally.assert_that_everything_happened();
    }
}

/// Tables that were found, run window by window: each job has windows of its own between release and deadline, long
/// enough for all that may delay it.
#[test]
fn no_admitted_table_misses_a_deadline() {
    const TABLES: u64 = 5_000;
    let mut admitted = 0;
    for seed in 0..TABLES {
        let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(seed));
        let set = random_table(&mut random);
        let analysis = Analysis::of(&set, "").unwrap();
        if analysis.is_admitted(&set) {
            admitted += 1;
            look_at_table(&set, &analysis, seed);
            VirtualTable::new(&set, &analysis, &mut random).run(seed);
        }
    }
    println!("{admitted} of {TABLES} tables admitted");
    assert!((TABLES / 10..TABLES).contains(&admitted), "{admitted}");
}

/// Earliest deadline first, with deadlines that the kernel counts from each wake-up: no admitted set misses a deadline,
/// and most refused ones without jitter do.
#[test]
fn no_set_admitted_for_earliest_deadlines_misses_one() {
    const SETS: u64 = 5_000;
    let (mut admitted, mut refused, mut missed) = (0, 0, 0);
    for seed in 0..SETS {
        let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(seed));
        let is_exact = random.one_in(2);
        let Some(set) = random_deadlines(&mut random, is_exact) else {
            continue; // a deadline that is too short for the kernel
        };
        let analysis = Analysis::of(&set, "").unwrap();
        if analysis.is_admitted(&set) {
            admitted += 1;
            for is_worst in [true, false] {
                let late = run_by_deadline(&set, &mut random, is_worst);
                assert_eq!(late, None, "set {seed}: {set:#?}");
            }
        } else if is_exact {
            refused += 1;
            missed += u64::from(run_by_deadline(&set, &mut random, true).is_some());
        }
    }
    println!("{admitted} of {SETS} sets admitted; {missed} of {refused} refused ones missed");
    // A clock that is not slewed leaves 500 ppm more.
    assert!(missed * 100 > refused * 95, "{missed} of {refused}");
    assert!(
        admitted > SETS / 10 && refused > SETS / 20,
        "{admitted} {refused}"
    );
}

fn random_deadlines(random: &mut Random, is_exact: bool) -> Option<TaskSet> {
    let set = random_set(random, is_exact);
    let mut tasks = set.tasks().to_vec();
    for task in &mut tasks {
        task.priority = None;
        task.critical_section = Duration::ZERO;
        task.accept = None;
        let phase = us(0);
        task.activation = Activation::Time { phase };
    }
    let machine = Machine {
        blocking: Duration::ZERO,
        ..*set.machine()
    };
    let scheduling = Scheduling::EarliestDeadline;
    TaskSet::declare(scheduling, machine, Vec::new(), Vec::new(), tasks).ok()
}

/// Runs a set with all first releases together. In the worst case each job takes all of its time, and the first one of
/// each task is as late as it may be, the others not at all. Returns a task that missed its deadline.
fn run_by_deadline(set: &TaskSet, random: &mut Random, is_worst: bool) -> Option<usize> {
    let span = SPAN_US * 1_000;
    let jitter = |task: usize| ns(set.machine().release_jitter + set.tasks()[task].release_jitter);
    let count = set.tasks().len();
    // In the worst case the late first jobs become ready at one moment.
    let longest = (0..count).map(jitter).max().unwrap_or(0);
    let mut activation: Vec<u64> = (0..count)
        .map(|task| {
            if is_worst {
                longest - jitter(task)
            } else {
                random.to(5_000_000)
            }
        })
        .collect();
    let mut delay = |task: usize| match is_worst {
        true => jitter(task),
        false => random.to(jitter(task)),
    };
    let released = activation.iter().enumerate();
    let mut ready: Vec<u64> = released.map(|(task, at)| at + delay(task)).collect();
    // The kernel's deadline, that of the task, time left, task.
    let mut jobs: Vec<(u64, u64, u64, usize)> = Vec::new();
    let mut now = 0;
    while now < span {
        for task in 0..count {
            while ready[task] <= now {
                let declared = &set.tasks()[task];
                let whole = ns(declared.charged() + set.machine().overhead);
                let time = if is_worst {
                    whole
                } else {
                    1 + random.to(whole - 1)
                };
                // By the kernel's rule: from the wake-up.
                let due = ready[task] + ns(set.kernel_deadline(task));
                jobs.push((due, activation[task] + ns(declared.deadline), time, task));
                activation[task] += ns(declared.period);
                let late = if is_worst { 0 } else { random.to(jitter(task)) };
                ready[task] = activation[task] + late;
            }
        }
        let next = *ready.iter().min().expect("a task");
        let first = (0..jobs.len()).min_by_key(|job| jobs[*job].0);
        let Some(first) = first else {
            now = next;
            continue;
        };
        let until = next.min(now + jobs[first].2);
        jobs[first].2 -= until - now;
        now = until;
        let (_, deadline, left, task) = jobs[first];
        if now > deadline {
            return Some(task);
        }
        if left == 0 {
            jobs.swap_remove(first);
        }
    }
    None
}

fn random_table(random: &mut Random) -> TaskSet {
    let set = random_set(random, false);
    let mut tasks = set.tasks().to_vec();
    for task in &mut tasks {
        task.priority = None;
        let phase = us(1_000 * random.to(ns(task.period) / 1_000_000 - 1));
        task.activation = Activation::Time { phase };
        // Tables use less of a CPU: whole jobs go into frames of a millisecond.
        task.worst_case = (task.worst_case / 4).max(us(1));
        task.budget = None;
        task.critical_section = Duration::ZERO;
    }
    let (machine, receive) = (*set.machine(), set.receive().to_vec());
    TaskSet::declare(Scheduling::Table, machine, receive, Vec::new(), tasks).unwrap()
}

fn look_at_table(set: &TaskSet, analysis: &Analysis, seed: u64) {
    let table = analysis.table.as_ref().expect("a table");
    let (major, minor) = (ns(table.major_frame), ns(table.minor_frame));
    let mut until = 0;
    for window in &table.windows {
        let (start, end) = (ns(window.offset), ns(window.end()));
        assert!(
            start >= until && start / minor == (end - 1) / minor,
            "table {seed}"
        );
        until = end;
    }
    assert!(until <= major, "table {seed}");
    for (task, declared) in set.tasks().iter().enumerate() {
        let own = || {
            table
                .windows
                .iter()
                .filter(move |window| window.task == task)
        };
        let jobs = major / ns(declared.period);
        assert_eq!(
            own().count() as u64,
            jobs,
            "table {seed}: a window for each job"
        );
        let bound = bounds(set, analysis)[task].unwrap();
        assert!(bound <= ns(declared.deadline));
        for job in 0..jobs {
            let release = ns(declared.phase()) + job * ns(declared.period);
            let again = own().flat_map(|window| [(window, 0), (window, major)]);
            let within = again.filter(|(window, shift)| {
                ns(window.offset) + shift >= release && ns(window.end()) + shift <= release + bound
            });
            assert!(within.count() >= 1, "table {seed}: task {task}, job {job}");
        }
        for window in own() {
            let frames = set.receive().iter().map(|one| {
                let meanwhile = ns(window.duration) / (1_000_000_000 / u64::from(one.rate));
                (u64::from(one.burst) + meanwhile) * ns(one.worst_case)
            });
            let machine = set.machine();
            let delays = machine.release_jitter + declared.release_jitter + machine.blocking;
            let needed = ns(delays + machine.overhead + declared.charged()) + frames.sum::<u64>();
            assert!(ns(window.duration) >= needed, "table {seed}: task {task}");
        }
    }
}

/// The executive on virtual time with a table and one CPU. Some tasks never return; the others take as long as their
/// windows allow. The machine wakes each task late, up to the declared jitter.
struct VirtualTable<'a> {
    set: &'a TaskSet,
    table: &'a Table,
    executive: Executive,
    random: &'a mut Random,
    /// By task: whether its jobs never end.
    is_endless: Vec<bool>,
    /// By task: the job that runs, with the time that it still needs.
    jobs: Vec<Option<(Job, u64)>>,
    /// By task: the time at which it wakes up.
    wakes: Vec<Option<u64>>,
    now: u64,
}

impl<'a> VirtualTable<'a> {
    fn new(set: &'a TaskSet, analysis: &'a Analysis, random: &'a mut Random) -> Self {
        let count = set.tasks().len();
        VirtualTable {
            set,
            table: analysis.table.as_ref().expect("a table"),
            executive: Executive::new(set, us(500)),
            is_endless: (0..count).map(|_| random.one_in(4)).collect(),
            random,
            jobs: vec![None; count],
            wakes: vec![None; count],
            now: 0,
        }
    }

    fn run(mut self, seed: u64) {
        let end = ns(us(500)) + 2 * ns(self.table.major_frame);
        let mut ended = 0;
        while self.now < end {
            let now = Duration::from_nanos(self.now);
            for task in 0..self.jobs.len() {
                self.look(task, now, seed);
            }
            let running = || (0..self.jobs.len()).filter(|task| self.jobs[*task].is_some());
            let mut above = running().filter(|task| !self.executive.is_below(*task, now));
            let chosen = above.next();
            assert_eq!(above.next(), None, "table {seed}: two windows at once");
            let chosen = chosen.or_else(|| running().next());
            let boundary = self.executive.next_boundary(now).map(ns);
            let wakes = self.wakes.iter().flatten().copied();
            let done = chosen.and_then(|task| Some(self.now + self.jobs[task]?.1));
            let next = wakes
                .chain(boundary)
                .chain(done)
                .min()
                .expect("a table goes on");
            assert!(next > self.now, "table {seed}: time goes on");
            let passed = next - self.now;
            self.now = next;
            if let Some(task) = chosen
                && let Some((job, left)) = &mut self.jobs[task]
            {
                *left -= passed;
                if *left == 0 {
                    let job = *job;
                    self.jobs[task] = None;
                    let now = Duration::from_nanos(next);
                    assert_eq!(
                        self.executive.finish(task, now, us(1)),
                        None,
                        "table {seed}"
                    );
                    assert!(now <= job.deadline, "table {seed}: task {task}, {job:?}");
                    ended += 1;
                }
            }
        }
        let of_endless = |record: &HealthRecord| self.is_endless[record.task];
        assert!(
            self.executive.monitor().records().all(of_endless),
            "table {seed}"
        );
        assert!(ended > 0 || self.is_endless.iter().all(|endless| *endless));
    }

    /// Looks at the job of a task, or begins one that is due.
    fn look(&mut self, task: usize, now: Duration, seed: u64) {
        if self.jobs[task].is_some() {
            self.executive.check(task, now, us(1));
            return;
        }
        if self.wakes[task].is_none() {
            let next = self.executive.next_release(task, now).map(ns);
            let jitter = self.set.machine().release_jitter + self.set.tasks()[task].release_jitter;
            let late = self.random.to(ns(jitter));
            self.wakes[task] = next.map(|next| next + late);
        }
        if self.wakes[task].is_none_or(|wake| wake > self.now) {
            return;
        }
        self.wakes[task] = None;
        let job = self.executive.begin(task, now).expect("it is due");
        let begin = ns(job.ready) - ns(us(500));
        let offset = Duration::from_nanos(begin % ns(self.table.major_frame));
        let mut own = self
            .table
            .windows
            .iter()
            .filter(|window| window.task == task);
        let window = own.find(|window| window.offset == offset);
        let window = window.unwrap_or_else(|| panic!("table {seed}: {job:?} begins in no window"));
        let needed = match self.is_endless[task] {
            true => u64::MAX / 2,
            // The window has room for all delays; here the job itself takes that time.
            false => ns(window.duration) - (self.now - ns(job.ready)),
        };
        self.jobs[task] = Some((job, needed));
    }
}

/// Events of the runs by name, so that no promise holds only because nothing happened.
#[derive(Debug, Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, event: &'static str, has_happened: bool) {
        self.add(event, has_happened.into());
    }

    fn add(&mut self, event: &'static str, number: u64) {
        *self.0.entry(event).or_default() += number;
    }

    fn assert_that_everything_happened(&self) {
        for event in [
            "admitted",
            "refused",
            "preemptions",
            "jobs that took their whole bound, to the nanosecond",
            "refused sets that missed a deadline",
            "demoted",
            "overruns",
            "in the background",
            "blocked",
            "frames",
            "messages released after their arrival",
            "jobs of messages begun while another one waited",
        ] {
            let count = self.0.get(event).copied().unwrap_or_default();
            assert!(count >= 1_000, "{event}: {count}");
        }
    }
}

fn one_set(seed: u64) -> Tally {
    let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(seed));
    // Every fourth set is as bad as it can be, without jitter, blocking and frames: there the bounds are exact.
    let is_exact = seed.is_multiple_of(4);
    let set = random_set(&mut random, is_exact);
    let analysis = Analysis::of(&set, "").unwrap();
    let mut tally = Tally::default();
    if analysis.is_admitted(&set) {
        tally.count("admitted", true);
        let bounds = bounds(&set, &analysis);
        let missed =
            Simulation::new(&set, &mut random, is_exact, &mut tally).run(&bounds, is_exact);
        assert!(!missed, "an admitted set missed a deadline: {set:#?}");
    } else {
        tally.count("refused", true);
        if is_exact {
            let mut ignored = Tally::default();
            let none = vec![None; set.tasks().len()];
            let missed = Simulation::new(&set, &mut random, true, &mut ignored).run(&none, true);
            assert!(
                missed,
                "a set without jitter and blocking was refused and holds: {set:#?}"
            );
            tally.count("refused sets that missed a deadline", true);
        }
    }
    tally
}

fn bounds(set: &TaskSet, analysis: &Analysis) -> Vec<Option<u64>> {
    let mut bounds = vec![None; set.tasks().len()];
    for one in &analysis.responses {
        bounds[one.task] = one.response.map(ns);
    }
    bounds
}

struct Random(Xoshiro256PlusPlus);

impl Random {
    /// From 0 to `max`.
    fn to(&mut self, max: u64) -> u64 {
        self.0.next_u64() % (max + 1)
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.to(number - 1) == 0
    }

    fn share(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn us(number: u64) -> Duration {
    Duration::from_micros(number)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

fn random_set(random: &mut Random, is_exact: bool) -> TaskSet {
    let count = match random.to(49) {
        0 => 9 + random.to(55),
        _ => 1 + random.to(7),
    };
    let scheduling = match random.to(2) {
        0 => Scheduling::RateMonotonic,
        1 => Scheduling::DeadlineMonotonic,
        _ => Scheduling::Declared,
    };
    let mut left = 0.3 + 0.7 * random.share();
    let tasks = (0..count).map(|index| {
        // UUniFast (Bini and Buttazzo): shares of a given sum, equally likely.
        let rest = count - index - 1;
        let next = if rest == 0 {
            0.0
        } else {
            left * random.share().powf(1.0 / rest as f64)
        };
        let share = left - next;
        left = next;
        random_task(random, index, share, scheduling, is_exact)
    });
    let tasks: Vec<Task> = tasks.collect();
    let machine = if is_exact {
        Machine::default()
    } else {
        Machine {
            release_jitter: us(random.to(50)),
            blocking: us(random.to(30)),
            overhead: us(random.to(3)),
        }
    };
    let has_receive = !is_exact && random.one_in(2);
    let receive = Receive {
        name: "eth0".to_owned(),
        rate: 1 + random.to(9_999) as u32,
        burst: 1 + random.to(7) as u32,
        worst_case: us(1 + random.to(9)),
        priority: random.one_in(2).then(|| 60 + random.to(38) as u8),
    };
    let receive = if has_receive {
        vec![receive]
    } else {
        Vec::new()
    };
    TaskSet::declare(scheduling, machine, receive, Vec::new(), tasks).unwrap()
}

fn random_task(
    random: &mut Random,
    index: u64,
    share: f64,
    scheduling: Scheduling,
    is_exact: bool,
) -> Task {
    let period = PERIODS_US[random.to(7) as usize];
    let worst_case = ((period as f64 * share) as u64).clamp(1, period);
    let mut task = Task::periodic(&format!("task-{index}"), us(period), us(worst_case));
    if random.one_in(2) {
        task.deadline = us(worst_case + random.to(period - worst_case));
    }
    if scheduling == Scheduling::Declared {
        // Distinct in exact sets; elsewhere many are equal.
        let priority = match (is_exact, random.one_in(2)) {
            (true, _) => 98 - index,
            (false, true) => 60 + random.to(1),
            (false, false) => 60 + random.to(20),
        };
        task.priority = Some(priority as u8);
    }
    if is_exact {
        return task;
    }
    task.overrun = match random.to(2) {
        0 => OverrunPolicy::Skip,
        1 => OverrunPolicy::CatchUp { jobs_max: 3 },
        _ => OverrunPolicy::Stop,
    };
    if random.one_in(3) {
        let room = ns(task.deadline) / 1_000 - worst_case;
        task.budget = Some(us(worst_case + random.to(room.min(worst_case))));
    }
    if random.one_in(4) {
        task.critical_section = us(random.to(worst_case / 4));
    }
    if random.one_in(4) {
        task.release_jitter = us(random.to(100)).min(task.deadline);
    }
    match random.to(4) {
        0 => {
            task.activation = Activation::Message {
                port: "command".to_owned(),
            }
        }
        1 => {
            let phase = us(random.to(period - 1));
            task.activation = Activation::Time { phase };
        }
        _ => {}
    }
    task
}

/// Work on the CPU: a job, a frame, or a section of the kernel.
#[derive(Clone, Debug)]
struct Work {
    /// Task of a job.
    task: Option<usize>,
    priority: u32,
    /// Time from which it competes for the CPU, and its place among equals.
    ready: u64,
    order: u64,
    /// The job, once its thread has had the CPU.
    job: Option<Job>,
    done: u64,
    total: u64,
    /// Part of the execution under the priority ceiling.
    critical: (u64, u64),
    is_background: bool,
}

impl Work {
    fn effective_priority(&self) -> u32 {
        if (self.critical.0..self.critical.1).contains(&self.done) {
            CEILING
        } else if self.is_background {
            BACKGROUND
        } else {
            self.priority
        }
    }
}

/// Messages of one task.
#[derive(Default)]
struct Sender {
    /// Most by which a message is later than the sender's clock says.
    jitter: u64,
    /// Time of the next message by that clock.
    nominal: u64,
    /// Its arrival.
    next: u64,
    /// Arrivals of messages that wait.
    waiting: VecDeque<u64>,
    /// Least release of the next job by the rule.
    earliest: u64,
}

struct Simulation<'a> {
    set: &'a TaskSet,
    random: &'a mut Random,
    tally: &'a mut Tally,
    executive: Executive,
    /// Tasks that exceed their budgets, and are promised nothing.
    misbehaves: Vec<bool>,
    is_worst: bool,
    /// By task.
    senders: Vec<Sender>,
    /// By task: whether it has had a job.
    has_begun: Vec<bool>,
    /// Time from which the next frame of each receive entry may come, and frames left of its burst.
    frames: Vec<(u64, u32)>,
    work: Vec<Work>,
    order: u64,
    now: u64,
    missed: bool,
}

impl<'a> Simulation<'a> {
    fn new(set: &'a TaskSet, random: &'a mut Random, is_exact: bool, tally: &'a mut Tally) -> Self {
        let count = set.tasks().len();
        // In half of the sets everything takes as long as it may.
        let is_worst = is_exact || random.one_in(2);
        let misbehaves = set
            .tasks()
            .iter()
            .map(|task| task.budget.is_some() && random.one_in(3));
        let misbehaves = misbehaves.collect();
        let senders = set.tasks().iter().map(|task| {
            let first = if is_worst { 0 } else { random.to(5_000_000) };
            // Up to three messages come together.
            let jitter = if random.one_in(2) {
                0
            } else {
                random.to(3 * ns(task.period))
            };
            Sender {
                jitter,
                nominal: first,
                next: first,
                ..Sender::default()
            }
        });
        Simulation {
            senders: senders.collect(),
            has_begun: vec![false; count],
            misbehaves,
            is_worst,
            frames: set.receive().iter().map(|one| (0, one.burst)).collect(),
            executive: Executive::new(set, Duration::ZERO),
            set,
            random,
            tally,
            work: Vec::new(),
            order: 0,
            now: 0,
            missed: false,
        }
    }

    /// Returns whether a task that behaves missed a deadline. `bounds` are asserted where they are given.
    fn run(mut self, bounds: &[Option<u64>], is_exact: bool) -> bool {
        let mut last = None;
        while self.now < SPAN_US * 1_000 {
            self.arrive();
            let next = self.next_arrival();
            let Some(index) = self.chosen() else {
                last = None;
                // Linux runs, and sometimes is in a section without preemption when the next job arrives.
                let blocking = ns(self.set.machine().blocking);
                if blocking > 0 && self.random.one_in(3) {
                    self.now = next - 1;
                    let total = 1 + self.random.to(blocking - 1);
                    self.push_work(None, CEILING, self.now, total);
                } else {
                    self.now = next;
                }
                continue;
            };
            if self.begin(index) {
                // The job may go on in the background.
                continue;
            }
            let order = self.work[index].order;
            let preempts = last.is_some_and(|last| last != order);
            self.tally.count("preemptions", preempts);
            last = self.execute(index, next).then_some(order);
            if last.is_none() {
                self.end(index, bounds, is_exact);
            }
        }
        self.missed
    }

    /// Lets everything arrive that is due.
    fn arrive(&mut self) {
        for task in 0..self.set.tasks().len() {
            self.send(task);
            if let Some(due) = self.due(task).filter(|due| *due <= self.now) {
                self.wake(task, due);
            }
        }
        for index in 0..self.frames.len() {
            let one = self.set.receive()[index].clone();
            while self.frames[index].0 <= self.now {
                let (time, left) = self.frames[index];
                let distance = 1_000_000_000 / u64::from(one.rate);
                let (from, burst) = match left.saturating_sub(1) {
                    0 => (self.now.max(time) + distance, 1),
                    left => (time, left),
                };
                self.frames[index] = (from, burst);
                let priority = one.priority.map_or(INTERRUPT, u32::from);
                self.push_work(None, priority, self.now, ns(one.worst_case));
                self.tally.count("frames", true);
            }
        }
    }

    /// Lets the messages of a task arrive that are due.
    fn send(&mut self, task: usize) {
        let declared = &self.set.tasks()[task];
        if !declared.is_by_message() {
            return;
        }
        let sender = &mut self.senders[task];
        while sender.next <= self.now {
            sender.waiting.push_back(sender.next);
            let pause = if self.is_worst {
                0
            } else {
                self.random.to(3_000_000)
            };
            sender.nominal += ns(declared.period) + pause;
            let late = self.random.to(sender.jitter);
            sender.next = sender.next.max(sender.nominal + late);
        }
    }

    /// Time at which the thread of a task wakes up; `None` while it has work, and without a message.
    fn due(&self, task: usize) -> Option<u64> {
        if self.work.iter().any(|work| work.task == Some(task)) {
            return None;
        }
        let earliest = ns(self.executive.next_release(task, us(0))?);
        match self.set.tasks()[task].is_by_message() {
            true => Some(earliest.max(*self.senders[task].waiting.front()?)),
            false => Some(earliest),
        }
    }

    fn next_arrival(&self) -> u64 {
        let tasks = 0..self.set.tasks().len();
        let messages = tasks
            .clone()
            .filter(|task| self.set.tasks()[*task].is_by_message());
        let messages = messages.map(|task| self.senders[task].next);
        let wakes = tasks.filter_map(|task| self.due(task));
        let frames = self.frames.iter().map(|(time, _)| *time);
        let ready = self.work.iter().map(|work| work.ready);
        let all = messages.chain(wakes).chain(frames).chain(ready);
        let next = all.filter(|time| *time > self.now).min();
        next.unwrap_or(u64::MAX)
            .min(SPAN_US * 1_000)
            .max(self.now + 1)
    }

    /// Wakes the thread of a task, which should have been awake since `due`.
    fn wake(&mut self, task: usize, due: u64) {
        let declared = &self.set.tasks()[task];
        let up_to = |most: u64, random: &mut Random, is_worst| {
            if is_worst { most } else { random.to(most) }
        };
        let jitter = ns(declared.release_jitter + self.set.machine().release_jitter);
        // Jitter at its worst: late the first time, and in time from then on.
        let jitter = match self.is_worst {
            true if self.has_begun[task] => 0,
            worst => up_to(jitter, self.random, worst),
        };
        let overhead = ns(self.set.machine().overhead);
        let total = if self.misbehaves[task] {
            let budget = ns(declared.charged());
            budget + self.random.to(2 * ns(declared.period))
        } else {
            up_to(ns(declared.worst_case), self.random, self.is_worst)
        };
        self.push_work(
            Some(task),
            u32::from(self.set.priority(task).unwrap()),
            self.now.max(due + jitter),
            total + overhead,
        );
        let section = ns(declared.critical_section);
        let room = ns(declared.worst_case).min(total).saturating_sub(section);
        // A job takes a lock by running, so not before it has run.
        let from = 1 + self.random.to(room);
        let work = self.work.last_mut().expect("just pushed");
        work.critical = (from, (from + section).min(total));
    }

    /// Begins the job of a thread that has the CPU for the first time since it woke up. Returns whether it did.
    fn begin(&mut self, index: usize) -> bool {
        let work = &self.work[index];
        let Some(task) = work.task.filter(|_| work.job.is_none()) else {
            return false;
        };
        let now = Duration::from_nanos(self.now);
        let declared = &self.set.tasks()[task];
        let job = match declared.is_by_message() {
            true => {
                let sender = &mut self.senders[task];
                let arrival = sender.waiting.pop_front().expect("a message woke it");
                let arrived = Duration::from_nanos(arrival);
                let job = self.executive.begin_message(task, arrived, now);
                let job = job.expect("it is due");
                let release = arrival.max(sender.earliest);
                assert!(
                    ns(job.release) == release || self.misbehaves[task],
                    "{job:?}"
                );
                sender.earliest = ns(job.release) + ns(declared.period);
                let is_delayed = release > arrival;
                let is_queued = !sender.waiting.is_empty();
                let tally = &mut self.tally;
                tally.count("messages released after their arrival", is_delayed);
                tally.count("jobs of messages begun while another one waited", is_queued);
                job
            }
            false => self.executive.begin(task, now).expect("it is due"),
        };
        self.has_begun[task] = true;
        self.tally.count("in the background", job.is_background);
        let work = &mut self.work[index];
        work.is_background = job.is_background;
        work.job = Some(job);
        true
    }

    fn push_work(&mut self, task: Option<usize>, priority: u32, ready: u64, total: u64) {
        self.order += 1;
        self.work.push(Work {
            task,
            priority,
            ready,
            order: self.order,
            job: None,
            done: 0,
            total: total.max(1),
            critical: (0, 0),
            is_background: false,
        });
    }

    /// The most urgent ready work; among equals the one that was ready first. A section of the kernel that has
    /// begun is not preempted by anything but interrupts.
    fn chosen(&self) -> Option<usize> {
        let ready = self
            .work
            .iter()
            .enumerate()
            .filter(|(_, work)| work.ready <= self.now);
        let key = |work: &Work| {
            (
                work.effective_priority(),
                std::cmp::Reverse((work.ready, work.order)),
            )
        };
        ready
            .max_by_key(|(_, work)| key(work))
            .map(|(index, _)| index)
    }

    /// Runs work until something may change. Returns whether it is not done.
    fn execute(&mut self, index: usize, next: u64) -> bool {
        let others: Vec<u32> = self
            .work
            .iter()
            .filter(|work| work.ready <= self.now)
            .map(|work| work.priority)
            .collect();
        let work = &mut self.work[index];
        let is_critical = work.effective_priority() == CEILING;
        let mut others = others.into_iter();
        let blocks =
            is_critical && others.any(|other| other > work.priority && work.priority < CEILING);
        self.tally.count("blocked", blocks);
        let mut until = (next - self.now).min(work.total - work.done);
        for edge in [work.critical.0, work.critical.1] {
            if edge > work.done {
                until = until.min(edge - work.done);
            }
        }
        // The overhead comes first, and counts for no budget.
        let overhead = ns(self.set.machine().overhead);
        let budget = work.task.and_then(|task| self.set.tasks()[task].budget);
        let limit = budget
            .map(|budget| ns(budget) + overhead)
            .filter(|limit| *limit > work.done && !work.is_background);
        until = limit.map_or(until, |limit| until.min(limit - work.done));
        work.done += until;
        self.now += until;
        if limit == Some(work.done) && work.done < work.total {
            let task = work.task.expect("only tasks have budgets");
            let used = Duration::from_nanos(work.done - overhead);
            let action = self
                .executive
                .check(task, Duration::from_nanos(self.now), used);
            if action == Some(Action::Demoted) {
                work.is_background = true;
                self.tally.count("demoted", true);
            }
        }
        self.work[index].done < self.work[index].total
    }

    fn end(&mut self, index: usize, bounds: &[Option<u64>], is_exact: bool) {
        let work = self.work.remove(index);
        let Some(task) = work.task else { return };
        self.tally.count("jobs", true);
        let now = Duration::from_nanos(self.now);
        let action = self
            .executive
            .finish(task, now, Duration::from_nanos(work.done));
        self.tally.count("overruns", action.is_some());
        if self.misbehaves[task] {
            return;
        }
        let job = work.job.expect("it has begun");
        self.missed |= now > job.deadline;
        if let Some(bound) = bounds[task] {
            let response = ns(now - job.release);
            let latency = ns(now - job.arrival);
            assert!(
                latency <= bound + self.senders[task].jitter
                    || !self.set.tasks()[task].is_by_message(),
                "task {task}: {latency} from the arrival, bound {bound}: {:#?}",
                self.set
            );
            assert!(
                response <= bound,
                "task {task}: a job took {response}, bound {bound}: {:#?}",
                self.set
            );
            let is_at_it = is_exact && response == bound;
            self.tally.count(
                "jobs that took their whole bound, to the nanosecond",
                is_at_it,
            );
            assert!(
                !is_exact || !job.release.is_zero() || response == bound,
                "task {task}: all released together, and the bound {bound} is not reached: {response}"
            );
        }
    }
}
