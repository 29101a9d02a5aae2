//! Task sets in threads: what happens, to whom, what is done. Nothing here says how fast.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tautline_exec::{
    Action, Activation, Event, Job, Machine, OverrunPolicy, Scheduling, TablePlan, Task, TaskSet,
    Window,
};
use tautline_state::TemporaryDirectory;
use tautline_tasks::{
    Executive, Logical, MessageSource, OnMessage, Options, Program, RunError, Running, Summary,
    TaskState, WithSafeState,
};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn us(number: u64) -> Duration {
    Duration::from_micros(number)
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(ms(1));
    }
}

/// The scheduling that may be had; without privileges, that of ordinary threads.
fn options() -> Options {
    Options::default()
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A counter, and a task that counts its jobs.
fn counter() -> (Arc<AtomicU64>, impl FnMut(&Job) + Send) {
    let count = Arc::new(AtomicU64::new(0));
    let jobs = count.clone();
    (count, move |_: &Job| {
        jobs.fetch_add(1, Ordering::Relaxed);
    })
}

fn task(name: &str, period: Duration) -> Task {
    Task::periodic(name, period, us(50))
}

fn count_of(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn stopped(running: Running) -> Summary {
    let summary = running.stop(PATIENCE);
    println!("{summary}");
    summary
}

#[test]
fn tasks_run_once_a_period_and_are_counted() {
    let set = TaskSet::new(vec![task("fast", ms(2)), task("slow", ms(10))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let last = Arc::new(AtomicU64::new(0));
    let seen = last.clone();
    let fast = move |job: &Job| {
        let before = seen.swap(job.number, Ordering::Relaxed);
        assert!(job.number > before && job.deadline - job.release == ms(2));
    };
    let (slow, body) = counter();
    executive.task("fast", fast).unwrap();
    executive.task("slow", body).unwrap();
    let running = executive.start(&options()).unwrap();
    for limit in running.limits() {
        println!("limited: {limit}");
    }
    wait_until(|| count_of(&slow) >= 20);
    let summary = stopped(running);
    assert_eq!(summary.tasks[1].jobs, count_of(&slow));
    assert!(summary.tasks[0].jobs > summary.tasks[1].jobs);
    assert!(summary.tasks[0].response.max >= summary.tasks[0].lateness.max);
    assert!(
        !summary
            .tasks
            .iter()
            .any(|task| task.is_stopped || task.is_left)
    );
}

#[test]
fn a_panicking_task_stops_alone_and_goes_to_its_safe_state() {
    let set = TaskSet::new(vec![task("bad", ms(2)), task("good", ms(2))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let is_safe = Arc::new(AtomicBool::new(false));
    let safe = is_safe.clone();
    let run = |job: &Job| assert!(job.number < 3, "the third job fails");
    let body = WithSafeState(run, move || safe.store(true, Ordering::Relaxed));
    executive.task("bad", body).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| is_safe.load(Ordering::Relaxed));
    let before = count_of(&good);
    wait_until(|| count_of(&good) > before + 10);
    let failed = |record: &&tautline_exec::HealthRecord| record.event == Event::Failed;
    let records = running.records();
    let record = records.iter().find(failed).unwrap();
    assert_eq!((record.task, record.action), (0, Action::Stopped));
    let summary = stopped(running);
    assert!(summary.tasks[0].is_stopped && !summary.tasks[1].is_stopped);
}

/// Scheduling policy of the calling thread, field 41 of proc(5) stat; 0 is SCHED_OTHER, 1 is SCHED_FIFO.
fn policy() -> u32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name
        .split_whitespace()
        .nth(38)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn a_panicking_task_has_no_priority_while_it_unwinds() {
    struct Unwound(Arc<AtomicU64>);

    impl Drop for Unwound {
        fn drop(&mut self) {
            self.0.store(100 + u64::from(policy()), Ordering::Relaxed);
        }
    }

    let mut executive = Executive::new(TaskSet::new(vec![task("bad", ms(2))]).unwrap()).unwrap();
    let policies = Arc::new([AtomicU64::new(0), AtomicU64::new(0)].map(Arc::new));
    let seen = policies.clone();
    let body = move |_: &Job| {
        seen[0].store(100 + u64::from(policy()), Ordering::Relaxed);
        let _unwound = Unwound(seen[1].clone());
        panic!("on purpose");
    };
    executive.task("bad", body).unwrap();
    let running = executive.start(&options()).unwrap();
    let is_refused = running
        .limits()
        .iter()
        .any(|limit| limit.contains("SCHED_FIFO"));
    wait_until(|| count_of(&policies[1]) > 0);
    stopped(running);
    assert_eq!(count_of(&policies[1]), 100);
    if is_refused {
        println!("SKIPPED: SCHED_FIFO needs CAP_SYS_NICE");
    } else {
        assert_eq!(count_of(&policies[0]), 101, "before");
    }
}

#[test]
fn an_integer_division_by_zero_stops_its_task_alone() {
    let set = TaskSet::new(vec![task("divide", ms(2)), task("good", ms(2))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let divide = |job: &Job| {
        let zero = std::hint::black_box(job.number) - job.number;
        std::hint::black_box(1 / zero);
    };
    executive.task("divide", divide).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&good) > 10);
    assert!(stopped(running).tasks[0].is_stopped);
}

#[test]
fn a_job_without_budget_left_is_demoted_and_the_others_go_on() {
    let mut greedy = Task::periodic("greedy", ms(5), us(500));
    greedy.budget = Some(ms(1));
    let set = TaskSet::new(vec![greedy, task("good", ms(20))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.task("greedy", |_: &Job| compute(ms(12))).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| count_of(&good) >= 10);
    let summary = stopped(running);
    let demoted = |record: &tautline_exec::HealthRecord| {
        matches!(record.event, Event::BudgetExceeded { used } if used >= ms(1))
            && record.action == Action::Demoted
            && record.task == 0
    };
    assert!(summary.records.iter().any(demoted), "{:?}", summary.records);
    let skipped =
        |record: &tautline_exec::HealthRecord| matches!(record.action, Action::Skipped { .. });
    assert!(summary.records.iter().any(skipped));
    assert!(summary.tasks[0].exceeded(), "it is named: {summary}");
}

#[test]
fn a_job_that_never_returns_is_left_and_the_others_stop() {
    let mut endless = Task::periodic("endless", ms(5), us(500));
    endless.budget = Some(ms(1));
    let set = TaskSet::new(vec![endless, task("good", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let body = move |_: &Job| {
        while !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    executive.task("endless", body).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| count_of(&good) >= 10);
    let summary = running.stop(ms(50));
    is_over.store(true, Ordering::Relaxed);
    assert!(summary.tasks[0].is_left && !summary.tasks[1].is_left);
    assert!(summary.to_string().contains("endless: 0 jobs"), "{summary}");
    assert!(
        summary.to_string().contains("its job did not return"),
        "{summary}"
    );
}

#[test]
fn an_overrun_stops_a_task_or_brings_the_safe_mode() {
    let mut stops = Task::periodic("stops", ms(4), us(100));
    stops.overrun = OverrunPolicy::Stop;
    stops.modes = vec!["run".into()];
    let mut safe = Task::periodic("safe", ms(4), us(100));
    safe.modes = vec!["safe".into()];
    let mut leads = Task::periodic("leads", ms(4), us(100));
    leads.overrun = OverrunPolicy::SafeMode;
    leads.modes = vec!["run".into()];
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["run".into(), "safe".into()],
        vec![stops, safe, leads],
    );
    let set = set.unwrap().with_safe_mode("safe").unwrap();
    let mut executive = Executive::new(set).unwrap();
    let late_in_the_third = |job: &Job| {
        if job.number == 3 {
            std::thread::sleep(ms(9));
        }
    };
    executive.task("stops", late_in_the_third).unwrap();
    let (safe, body) = counter();
    executive.task("safe", body).unwrap();
    let late_in_the_tenth = |job: &Job| {
        if job.number >= 10 {
            std::thread::sleep(ms(9));
        }
    };
    executive.task("leads", late_in_the_tenth).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&safe) >= 5);
    assert_eq!(running.mode(), "safe");
    let summary = stopped(running);
    assert!(summary.tasks[0].is_stopped);
    let actions: Vec<Action> = summary.records.iter().map(|record| record.action).collect();
    assert!(
        actions.contains(&Action::SafeMode) && actions.contains(&Action::Stopped),
        "{actions:?}"
    );
}

#[test]
fn a_mode_is_requested_and_its_tasks_start() {
    let mut ground = task("ground", ms(2));
    ground.modes = vec!["ground".into()];
    let mut flight = task("flight", ms(2));
    flight.modes = vec!["flight".into()];
    let set = TaskSet::declare(
        Scheduling::default(),
        Machine::default(),
        Vec::new(),
        vec!["ground".into(), "flight".into()],
        vec![ground, flight],
    );
    let mut executive = Executive::new(set.unwrap()).unwrap();
    let (on_ground, body) = counter();
    executive.task("ground", body).unwrap();
    let (in_flight, body) = counter();
    executive.task("flight", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&on_ground) >= 5);
    assert_eq!(count_of(&in_flight), 0);
    assert!(running.request_mode("orbit").is_err());
    running.request_mode("flight").unwrap();
    wait_until(|| count_of(&in_flight) >= 5);
    let landed = count_of(&on_ground);
    wait_until(|| count_of(&in_flight) >= 10);
    assert_eq!(count_of(&on_ground), landed);
    assert_eq!(running.mode(), "flight");
    stopped(running);
}

#[test]
fn messages_activate_and_keep_their_distance() {
    let mut command = task("command", ms(20));
    command.activation = Activation::Message {
        port: "command".into(),
    };
    let set = TaskSet::new(vec![command, task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    let jobs = begun.clone();
    let body = move |job: &Job| jobs.lock().unwrap().push(job.release);
    executive.task("command", body).unwrap();
    executive.task("other", |_: &Job| {}).unwrap();
    let running = executive.start(&options()).unwrap();
    assert!(matches!(
        running.trigger("other"),
        Err(RunError::NotByMessage { .. })
    ));
    let trigger = running.trigger("command").unwrap();
    std::thread::sleep(ms(30));
    assert!(begun.lock().unwrap().is_empty(), "no message, no job");
    for _ in 0..3 {
        trigger.fire();
    }
    wait_until(|| begun.lock().unwrap().len() == 3);
    stopped(running);
    let begun = begun.lock().unwrap();
    assert!(
        begun.windows(2).all(|pair| pair[1] - pair[0] >= ms(20)),
        "{begun:?}"
    );
}

/// `CLOCK_MONOTONIC`, as the executive reads it.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Inputs and outputs of a task with logical execution time, as a test saw them.
#[derive(Default)]
struct Flow {
    reads: Vec<u64>,
    jobs: Vec<(Job, u64)>,
    writes: Vec<(Duration, u64)>,
}

#[test]
fn outputs_are_written_at_the_deadline_and_never_before() {
    let mut control = task("control", ms(10));
    control.deadline = ms(5);
    let set = TaskSet::new(vec![control, task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let flow = Arc::new(std::sync::Mutex::new(Flow::default()));
    let (reads, jobs, writes) = (flow.clone(), flow.clone(), flow.clone());
    let parts = Logical {
        read: move |input: &mut u64| {
            let mut flow = reads.lock().unwrap();
            *input = flow.reads.len() as u64 + 100;
            flow.reads.push(*input);
        },
        run: move |job: &Job, input: &u64, output: &mut u64| {
            if job.number.is_multiple_of(4) {
                std::thread::sleep(ms(6)); // beyond the deadline
            }
            *output = *input;
            jobs.lock().unwrap().jobs.push((*job, *input));
        },
        write: move |output: &u64| {
            writes.lock().unwrap().writes.push((now(), *output));
        },
        safe_state: || {},
    };
    executive.logical_task("control", parts).unwrap();
    executive.task("other", |_: &Job| {}).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| flow.lock().unwrap().writes.len() >= 12);
    stopped(running);
    let flow = flow.lock().unwrap();
    assert!(flow.reads.is_sorted());
    for (at, output) in &flow.writes {
        let (job, _) = flow.jobs.iter().find(|(_, input)| input == output).unwrap();
        assert!(
            *at >= job.deadline,
            "written before the deadline of {job:?}"
        );
        assert!(!job.number.is_multiple_of(4), "{job:?} was late");
    }
    let written: Vec<u64> = flow.writes.iter().map(|(_, output)| *output).collect();
    assert!(written.is_sorted_by(|one, next| one < next), "{written:?}");
}

#[test]
fn nothing_is_written_over_the_safe_values_of_a_task() {
    let mut control = task("control", ms(10));
    control.deadline = ms(9);
    let mut executive = Executive::new(TaskSet::new(vec![control]).unwrap()).unwrap();
    let output = Arc::new(AtomicU64::new(0));
    let (written, safe) = (output.clone(), output.clone());
    let parts = Logical {
        read: |_: &mut u64| {},
        run: |job: &Job, _: &u64, output: &mut u64| {
            assert!(job.number < 3, "the third job fails");
            *output = job.number;
        },
        write: move |output: &u64| written.store(*output, Ordering::Relaxed),
        safe_state: move || safe.store(1_000, Ordering::Relaxed),
    };
    executive.logical_task("control", parts).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| count_of(&output) == 1_000);
    std::thread::sleep(ms(30));
    assert_eq!(count_of(&output), 1_000);
    assert!(stopped(running).tasks[0].is_stopped);
}

#[test]
fn values_that_cannot_be_exchanged_stop_their_task_alone() {
    let set = TaskSet::new(vec![task("bad", ms(5)), task("good", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let reads = AtomicU64::new(0);
    let parts = Logical {
        read: move |_: &mut u64| assert!(reads.fetch_add(1, Ordering::Relaxed) < 3, "no sensor"),
        run: |_: &Job, _: &u64, _: &mut u64| {},
        write: |_: &u64| {},
        safe_state: || {},
    };
    executive.logical_task("bad", parts).unwrap();
    let good_writes = Arc::new(AtomicU64::new(0));
    let written = good_writes.clone();
    let parts = Logical {
        read: |_: &mut u64| {},
        run: |_: &Job, _: &u64, _: &mut u64| {},
        write: move |_: &u64| {
            written.fetch_add(1, Ordering::Relaxed);
        },
        safe_state: || {},
    };
    executive.logical_task("good", parts).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| running.task("bad").unwrap().state == TaskState::Stopped);
    let before = count_of(&good_writes);
    wait_until(|| count_of(&good_writes) > before + 5);
    assert!(!stopped(running).tasks[1].is_stopped);
}

#[test]
fn logical_execution_time_is_for_tasks_with_known_releases() {
    let set = TaskSet::new(vec![by_messages("command", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let parts = Logical {
        read: |_: &mut u64| {},
        run: |_: &Job, _: &u64, _: &mut u64| {},
        write: |_: &u64| {},
        safe_state: || {},
    };
    let refused = executive.logical_task("command", parts);
    assert!(matches!(refused, Err(RunError::NotByTime { .. })));
}

#[test]
fn earliest_deadlines_are_refused_with_a_reason_where_they_cannot_be_had() {
    let set = || {
        let tasks = vec![task("one", ms(10)), task("two", ms(20))];
        let scheduling = Scheduling::EarliestDeadline;
        TaskSet::declare(
            scheduling,
            Machine::default(),
            Vec::new(),
            Vec::new(),
            tasks,
        )
        .unwrap()
    };
    let mut executive = Executive::new(set()).unwrap();
    executive.task("one", |_: &Job| {}).unwrap();
    executive.task("two", |_: &Job| {}).unwrap();
    // A thread that is pinned to one CPU of several.
    if std::thread::available_parallelism().unwrap().get() > 1 {
        let refused = executive.start(&options().with_cpu(0)).err().unwrap();
        assert!(matches!(refused, RunError::DeadlineRefused(_)), "{refused}");
        assert!(refused.remedy().contains("partition of one CPU"));
    }
    let mut executive = Executive::new(set()).unwrap();
    let (_place, program) = script("answers.sh", ANSWERS);
    executive.program("one", program).unwrap();
    executive.task("two", |_: &Job| {}).unwrap();
    let refused = executive.start(&options()).err().unwrap();
    assert!(
        matches!(refused, RunError::ProgramByDeadline { .. }),
        "{refused}"
    );
}

/// In a process of its own: the partition is entered with the whole process.
#[test]
fn earliest_deadlines_run_under_sched_deadline() {
    let file = TemporaryDirectory::make("tautline-tasks-test").unwrap();
    let path = file.path().join("deadlines.toml");
    let name = format!("taut-edf-{}", std::process::id());
    let cpu = std::thread::available_parallelism().unwrap().get() - 1;
    let text = format!(
        "schedule = \"earliest-deadline\"\n[partition]\nname = \"{name}\"\ncpus = \"{cpu}\"\n\
         [[task]]\nname = \"one\"\nperiod = \"10ms\"\nworst_case = \"1ms\"\n"
    );
    std::fs::write(&path, text).unwrap();
    const CHILD: &str = "TAUTLINE_TEST_DEADLINES";
    if let Some(path) = std::env::var_os(CHILD) {
        let mut executive = Executive::from_file(path).unwrap();
        let policies = Arc::new(AtomicU64::new(0));
        let seen = policies.clone();
        let body = move |_: &Job| seen.store(100 + u64::from(policy()), Ordering::Relaxed);
        executive.task("one", body).unwrap();
        match executive.start(&options()) {
            Ok(running) => {
                wait_until(|| count_of(&policies) > 0);
                let limits = running.limits().join("; ");
                assert!(stopped(running).tasks[0].jobs > 0);
                // 6 is SCHED_DEADLINE.
                assert_eq!(count_of(&policies), 106, "{limits}");
                println!("ran under SCHED_DEADLINE");
            }
            Err(error) => println!("SKIPPED: {error}"),
        }
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "earliest_deadlines_run_under_sched_deadline",
        "--nocapture",
    ]);
    let output = child.env(CHILD, &path).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    let line = |start: &str| {
        shown
            .lines()
            .find(|line| line.contains(start))
            .map(str::to_owned)
    };
    println!("{}", line("SKIPPED").or(line("ran under")).unwrap());
}

/// A receiver and a sender of datagrams, and a source of what the receiver gets.
fn datagrams() -> (UnixDatagram, MessageSource) {
    let (receiver, sender) = UnixDatagram::pair().unwrap();
    receiver.set_nonblocking(true).unwrap();
    let descriptor = receiver.try_clone().unwrap();
    let take = move |buffer: &mut [u8]| receiver.recv(buffer).ok();
    (sender, MessageSource::new(descriptor, 64, take).unwrap())
}

fn by_messages(name: &str, distance: Duration) -> Task {
    let mut command = task(name, distance);
    command.activation = Activation::Message { port: name.into() };
    command
}

#[test]
fn each_message_of_a_source_activates_one_job_with_its_bytes() {
    let set = TaskSet::new(vec![by_messages("command", ms(2)), task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (sender, source) = datagrams();
    sender.send(b"before the start").unwrap();
    let (_, wrong) = datagrams();
    assert!(matches!(
        executive.messages("other", wrong),
        Err(RunError::NotByMessage { .. })
    ));
    executive.messages("command", source).unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let jobs = seen.clone();
    let body = OnMessage(move |job: &Job, message: &[u8]| {
        let text = String::from_utf8(message.to_vec()).unwrap();
        jobs.lock().unwrap().push((job.release, text));
    });
    executive.task("command", body).unwrap();
    executive.task("other", |_: &Job| {}).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| seen.lock().unwrap().len() == 1);
    for number in 0..5 {
        sender.send(format!("{number}").as_bytes()).unwrap();
    }
    wait_until(|| seen.lock().unwrap().len() == 6);
    // The two ways of activation do not disturb each other.
    running.trigger("command").unwrap().fire();
    wait_until(|| seen.lock().unwrap().len() == 7);
    sender.send(b"last").unwrap();
    wait_until(|| seen.lock().unwrap().len() == 8);
    let summary = stopped(running);
    assert!(!summary.tasks[0].is_left, "it waited, and was woken");
    let seen = seen.lock().unwrap();
    let texts: Vec<&str> = seen.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(
        texts,
        ["before the start", "0", "1", "2", "3", "4", "", "last"]
    );
    assert!(
        seen.windows(2).all(|pair| pair[1].0 - pair[0].0 >= ms(2)),
        "{seen:?}"
    );
}

#[test]
fn a_descriptor_that_is_readable_without_a_message_does_not_take_the_cpu() {
    let set = TaskSet::new(vec![by_messages("broken", ms(2)), task("good", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (sender, _unused) = datagrams();
    let (receiver, far) = UnixDatagram::pair().unwrap();
    far.send(b"never taken").unwrap();
    let looks = Arc::new(AtomicU64::new(0));
    let counted = looks.clone();
    let take = move |_: &mut [u8]| {
        counted.fetch_add(1, Ordering::Relaxed);
        None
    };
    let source = MessageSource::new(receiver, 64, take).unwrap();
    executive.messages("broken", source).unwrap();
    executive.task("broken", |_: &Job| {}).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| count_of(&good) >= 20);
    let summary = stopped(running);
    assert!(!summary.tasks[0].is_left);
    // A loop without a pause would look some hundred thousand times in these 100 ms.
    assert!(count_of(&looks) < 10_000, "{}", count_of(&looks));
    drop(sender);
}

#[test]
fn sets_that_cannot_run_are_refused() {
    let overloaded = || {
        let vision = Task::periodic("vision", ms(10), us(4_400));
        vec![Task::periodic("control", ms(1), us(600)), vision]
    };
    let refused = Executive::new(TaskSet::new(overloaded()).unwrap())
        .err()
        .unwrap();
    assert_eq!(
        refused.to_string(),
        "`vision` can miss its deadline by 1ms or more"
    );
    let mut accepted = overloaded();
    accepted[1].accept = Some("a late picture is no harm".into());
    let mut executive = Executive::new(TaskSet::new(accepted).unwrap()).unwrap();
    assert!(matches!(
        executive.task("radar", |_: &Job| {}),
        Err(RunError::UnknownTask { .. })
    ));
    executive.task("control", |_: &Job| {}).unwrap();
    assert!(matches!(
        executive.task("control", |_: &Job| {}),
        Err(RunError::BodyRepeated { .. })
    ));
    assert!(matches!(
        executive.start(&options()).err(),
        Some(RunError::NoBody { .. })
    ));
    let overlap = TablePlan {
        minor_frame: None,
        windows: vec![window_at(0, us(0), us(100)), window_at(0, us(50), us(100))],
    };
    let table = table_of(vec![task("a", ms(1))], Vec::new(), overlap);
    let refused = Executive::new(table).err().unwrap();
    assert!(matches!(&refused, RunError::Set(_)), "{refused}");
}

fn table_of(tasks: Vec<Task>, modes: Vec<String>, plan: TablePlan) -> TaskSet {
    let machine = Machine::default();
    TaskSet::declare(Scheduling::Table, machine, Vec::new(), modes, tasks)
        .and_then(|set| set.with_table(plan))
        .unwrap()
}

fn window_at(task: usize, offset: Duration, duration: Duration) -> Window {
    Window {
        task,
        offset,
        duration,
    }
}

#[test]
fn a_table_runs_each_job_in_its_window() {
    let plan = TablePlan {
        minor_frame: None,
        windows: vec![
            window_at(0, ms(0), ms(4)),
            window_at(1, ms(5), ms(4)),
            window_at(0, ms(10), ms(4)),
        ],
    };
    let tasks = vec![task("fast", ms(10)), task("slow", ms(20))];
    let mut executive = Executive::new(table_of(tasks, Vec::new(), plan)).unwrap();
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    for name in ["fast", "slow"] {
        let jobs = begun.clone();
        let body = move |job: &Job| jobs.lock().unwrap().push((name, *job));
        executive.task(name, body).unwrap();
    }
    let running = executive.start(&options()).unwrap();
    wait_until(|| begun.lock().unwrap().len() >= 30);
    let summary = stopped(running);
    let begun = begun.lock().unwrap();
    for (name, job) in begun.iter() {
        let since_start = job.ready - summary.start;
        let offset = since_start.as_nanos() % ms(20).as_nanos();
        match *name {
            "fast" => assert!(job.ready == job.release && offset.is_multiple_of(ms(10).as_nanos())),
            _ => assert!(job.ready == job.release + ms(5) && offset == ms(5).as_nanos()),
        }
    }
    let jobs: Vec<u64> = summary.tasks.iter().map(|task| task.jobs).collect();
    assert!(jobs[0] > jobs[1] && jobs[1] > 5, "{jobs:?}");
    for (task, jobs) in summary.tasks.iter().zip(jobs) {
        assert_eq!(task.trace.len() as u64, jobs);
        assert!(task.lateness.max <= task.response.max);
    }
}

#[test]
fn a_job_of_a_table_that_never_returns_keeps_its_window_and_no_other() {
    let plan = TablePlan {
        minor_frame: None,
        windows: vec![window_at(0, ms(0), ms(4)), window_at(1, ms(4), ms(5))],
    };
    for policy in [OverrunPolicy::Skip, OverrunPolicy::Stop] {
        let mut endless = task("endless", ms(10));
        endless.overrun = policy;
        let tasks = vec![endless, task("good", ms(10))];
        let set = table_of(tasks, Vec::new(), plan.clone());
        let mut executive = Executive::new(set).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let body = move |_: &Job| {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        executive.task("endless", body).unwrap();
        let (good, body) = counter();
        executive.task("good", body).unwrap();
        let running = executive.start(&options().with_cpu(0)).unwrap();
        wait_until(|| count_of(&good) >= 20);
        let action = match policy {
            OverrunPolicy::Stop => Action::Stopped,
            _ => Action::Demoted,
        };
        let records = running.records();
        let used_up = |record: &&tautline_exec::HealthRecord| {
            matches!(record.event, Event::WindowsExceeded { .. }) && record.action == action
        };
        let found: Vec<_> = records.iter().filter(used_up).collect();
        assert!(found.len() == 1 && found[0].task == 0, "{records:?}");
        let state = running.task("endless").unwrap().state;
        assert_eq!(state == TaskState::Stopped, policy == OverrunPolicy::Stop);
        is_over.store(true, Ordering::Relaxed);
        let summary = stopped(running);
        assert!(!summary.tasks[0].is_left && !summary.tasks[1].is_stopped);
        assert_eq!(summary.tasks[0].is_stopped, policy == OverrunPolicy::Stop);
    }
}

#[test]
fn a_mode_of_a_table_has_windows_of_its_own_and_the_safe_mode_comes_at_once() {
    let mut endless = task("endless", ms(10));
    endless.modes = vec!["run".into()];
    endless.overrun = OverrunPolicy::SafeMode;
    let mut safe = task("safe", ms(10));
    safe.modes = vec!["safe".into()];
    let modes = vec!["run".to_owned(), "safe".to_owned()];
    let set = table_of(vec![endless, safe], modes, TablePlan::default());
    let mut executive = Executive::new(set.with_safe_mode("safe").unwrap()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let body = move |_: &Job| {
        while !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    executive.task("endless", body).unwrap();
    let (safe, body) = counter();
    executive.task("safe", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    // The job that runs does not hold the change up.
    wait_until(|| count_of(&safe) >= 5);
    assert_eq!(running.mode(), "safe");
    is_over.store(true, Ordering::Relaxed);
    let summary = stopped(running);
    assert!(!summary.tasks[0].is_left);
}

#[test]
fn a_program_of_a_table_that_uses_up_its_window_is_killed_if_its_policy_is_to_stop() {
    let spins = "read number rest; echo $number; read number rest; while :; do :; done";
    let (place, mut spins) = script("spins.sh", spins);
    spins.safe_words = Some(["touch", "is-safe"].map(str::to_owned).to_vec());
    let mut task = of_shells("table-spins");
    task.overrun = OverrunPolicy::Stop;
    let set = table_of(
        vec![task, of_shells("good")],
        Vec::new(),
        TablePlan::default(),
    );
    let mut executive = Executive::new(set).unwrap();
    executive.program("table-spins", spins).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| place.path().join("is-safe").exists());
    let before = count_of(&good);
    wait_until(|| count_of(&good) > before + 5);
    let summary = stopped(running);
    assert!(summary.tasks[0].is_stopped && !summary.tasks[0].is_left);
}

#[test]
fn the_example_runs_the_set_of_its_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program = profile.join("examples/three_rates");
    if !program.exists() {
        // Where this test was built alone.
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "-p",
            "tautline-tasks",
            "--example",
            "three_rates",
            "--target-dir",
        ]);
        let status = build
            .arg(profile.parent().unwrap())
            .current_dir(&root)
            .status();
        assert!(status.unwrap().success());
    }
    let mut example = Command::new(program);
    let output = example
        .arg(root.join("examples/three_rates.toml"))
        .arg("300")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    assert!(
        shown.contains("control: ") && shown.contains("health records"),
        "{shown}"
    );
    let missing = Executive::from_file("/nonexistent.toml").err().unwrap();
    let message = format!("{missing:?}");
    assert!(
        message.contains("cannot read /nonexistent.toml"),
        "{message}"
    );
    assert!(
        message.contains("what to do: name a file with a task set"),
        "{message}"
    );
}

#[test]
fn sixty_four_tasks_start_and_stop() {
    let tasks: Vec<Task> = (0..64)
        .map(|index| Task::periodic(&format!("task-{index}"), ms(20 << (index % 3)), us(50)))
        .collect();
    let mut executive = Executive::new(TaskSet::new(tasks).unwrap()).unwrap();
    let counts: Vec<Arc<AtomicU64>> = (0..64)
        .map(|index| {
            let (count, body) = counter();
            executive.task(&format!("task-{index}"), body).unwrap();
            count
        })
        .collect();
    let running = executive.start(&options().without_real_time()).unwrap();
    wait_until(|| counts.iter().all(|count| count_of(count) >= 2));
    assert_eq!(stopped(running).tasks.len(), 64);
}

/// A script in a directory of its own, and the program that it is.
fn script(name: &str, text: &str) -> (TemporaryDirectory, Program) {
    let directory = TemporaryDirectory::make("tautline-tasks-test").unwrap();
    std::fs::write(directory.path().join(name), text).unwrap();
    let program = Program {
        words: vec!["sh".to_owned(), name.to_owned()],
        safe_words: None,
        directory: directory.path().to_owned(),
    };
    (directory, program)
}

const ANSWERS: &str = "while read number release deadline; do echo $number; done";

/// Long enough for a shell on a busy machine.
fn of_shells(name: &str) -> Task {
    Task::periodic(name, ms(20), ms(5))
}

#[test]
fn programs_do_the_jobs_of_tasks_and_one_that_dies_stops_alone() {
    let (place, good) = script("good.sh", ANSWERS);
    let dies = "while read number rest; do [ $number = 3 ] && kill -9 $$; echo $number; done";
    std::fs::write(place.path().join("dies.sh"), dies).unwrap();
    let dies = Program {
        words: vec!["sh".to_owned(), "dies.sh".to_owned()],
        safe_words: Some(["touch", "is-safe"].map(str::to_owned).to_vec()),
        directory: place.path().to_owned(),
    };
    let set = TaskSet::new(vec![of_shells("dies"), of_shells("good")]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.program("dies", dies).unwrap();
    executive.program("good", good).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| place.path().join("is-safe").exists());
    let before = running.records().len();
    std::thread::sleep(ms(200));
    let summary = stopped(running);
    assert!(before > 0);
    assert!(summary.tasks[0].is_stopped && !summary.tasks[1].is_stopped);
    assert_eq!(summary.tasks[0].jobs, 3, "the third one failed");
    assert!(summary.tasks[1].jobs > 5 && summary.tasks[1].execution.max > Duration::ZERO);
    let told = summary
        .limits
        .iter()
        .any(|limit| limit == "`dies`: its program ended, and it was stopped");
    assert!(told, "{:?}", summary.limits);
}

#[test]
fn a_program_beyond_its_budget_goes_on_below_all_others_and_is_ended_with_the_set() {
    let spins = "read number rest; echo $number; read number rest; while :; do :; done";
    let (_place, spins) = script("spins.sh", spins);
    let mut task = of_shells("spins");
    task.budget = Some(ms(6));
    let set = TaskSet::new(vec![task, of_shells("good")]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.program("spins", spins).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options()).unwrap();
    let demoted = |record: &tautline_exec::HealthRecord| record.action == Action::Demoted;
    wait_until(|| running.records().iter().any(demoted));
    let before = count_of(&good);
    wait_until(|| count_of(&good) > before + 5);
    let own: Vec<_> = tautline_tasks::runs()
        .into_iter()
        .filter(|run| run.description().process == std::process::id())
        .filter(|run| run.description().tasks[0].name == "spins")
        .collect();
    for mut run in own {
        let first = run.look().unwrap().tasks().next().unwrap();
        assert_eq!(first.state, TaskState::Demoted);
        assert!(first.running_since.is_some());
    }
    let summary = running.stop(ms(100));
    assert!(summary.tasks[0].is_left, "it did not answer in time");
}

#[test]
fn a_program_that_does_not_begin_is_an_error_with_its_task() {
    let set = || TaskSet::new(vec![of_shells("a")]).unwrap();
    for (words, reason) in [
        (["./none", ""], "No such file"),
        (["true", ""], "its program ended"),
    ] {
        let mut executive = Executive::new(set()).unwrap();
        let program = Program {
            words: words.map(str::to_owned).to_vec(),
            safe_words: None,
            directory: std::path::PathBuf::new(),
        };
        executive.program("a", program).unwrap();
        let error = executive.start(&options()).err().unwrap();
        assert!(error.to_string().contains(reason), "{error}");
        assert!(error.to_string().contains("task `a`"), "{error}");
    }
}

#[test]
fn a_run_is_seen_from_outside_with_its_jobs() {
    let set = TaskSet::new(vec![task("seen-from-outside", ms(2))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive.task("seen-from-outside", |_: &Job| {}).unwrap();
    let running = executive.start(&options()).unwrap();
    if running
        .limits()
        .iter()
        .any(|limit| limit.contains("does not see"))
    {
        println!("SKIPPED: {:?}", running.limits());
        return;
    }
    let is_own =
        |run: &tautline_tasks::View| run.description().tasks[0].name == "seen-from-outside";
    let mut run = tautline_tasks::runs().into_iter().find(is_own).unwrap();
    wait_until(|| run.look().unwrap().tasks().next().unwrap().jobs > 20);
    let look = run.look().unwrap();
    let (jobs, seen) = look.trace(0, 5);
    assert_eq!(jobs.len() as u64, seen - 5);
    for job in &jobs {
        assert!(job.begin >= job.release && job.end >= job.begin, "{job:?}");
    }
    let summary = stopped(running);
    assert_eq!(summary.tasks[0].trace.len() as u64, summary.tasks[0].jobs);
    assert!(!tautline_tasks::runs().iter().any(is_own));
}
