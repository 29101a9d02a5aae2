//! Task sets: what an engineer declares of the tasks of one CPU, checked against the limits.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{Fault, Location, SetError};
use crate::limits::{HYPERPERIOD_MAX, JOBS_MAX, NAME_BYTES_MAX};
use crate::plan::TablePlan;

/// Most tasks of a set. Lower: 64 tasks at mixed rates on one CPU are a goal of the project. Higher: the priorities
/// of SCHED_FIFO no longer suffice for one each, and the analysis takes noticeable time.
pub const TASKS_MAX: usize = 64;
/// Most modes. Lower: a vehicle has a handful already. Higher: each mode is analysed by itself.
pub const MODES_MAX: usize = 16;
/// Most entries of receive processing. Lower: a machine with some interfaces does not fit. Higher: more steps of the
/// analysis for interfaces that no machine has.
pub const RECEIVE_MAX: usize = 16;
/// Shortest period. Lower: less than a wake-up of Linux takes. Higher: fast current loops (20 kHz) do not fit.
pub const PERIOD_MIN: Duration = Duration::from_micros(10);
/// Longest period. Lower: a supervisor that looks once a minute does not fit. Higher: sums of periods in 64 bits of
/// nanoseconds could overflow.
pub const PERIOD_MAX: Duration = Duration::from_secs(3_600);
/// Lowest priority, that of SCHED_FIFO.
pub const PRIORITY_MIN: u8 = 1;
/// Highest priority of a task. Lower: a set of [`TASKS_MAX`] tasks beside others is cramped. Higher: nothing could
/// run above a task that does not end, for SCHED_FIFO ends at 99.
pub const PRIORITY_MAX: u8 = 98;
/// Most frames a second of receive processing, what 10 Gbit/s of the smallest frames are. Higher: two frames could
/// come in less time than a nanosecond can tell apart after rounding.
pub const RECEIVE_RATE_MAX: u32 = 14_880_952;
/// Shortest distance of two looks at the budget of a program. A job can exceed its budget by as much, and the analysis
/// charges it. Lower: near the end of a budget the watchdog takes the CPU again and again. Higher: tasks are charged
/// for more than they take.
pub const BUDGET_STEP: Duration = Duration::from_micros(20);
/// Looks of the watchdog at a job of a program with a budget: when the budget can be used up at the earliest, when it
/// is used up, and once a job beyond it has ended.
const LOOKS_PER_JOB: u64 = 3;
/// Looks that a job causes by delaying a job of a program with a budget: the planned one finds time left, and another
/// follows when the delay is over.
const LOOKS_PER_DELAY: u32 = 2;
/// Switches to a program and back: to the executive's thread, to the program, and to the thread again.
const PROGRAM_SWITCHES: u32 = 3;

/// How priorities, or the moments of execution, are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// Fixed priorities by period: the shorter, the more urgent.
    RateMonotonic,
    /// Fixed priorities by deadline: the shorter, the more urgent. The best fixed priorities for tasks without
    /// blocking and jitter.
    #[default]
    DeadlineMonotonic,
    /// Fixed priorities that each task declares.
    Declared,
    /// Earliest deadline first: of the jobs that are ready, the one runs whose deadline comes first.
    EarliestDeadline,
    /// A static cyclic table of windows, as in ARINC 653: no task preempts another.
    Table,
}

/// Event that activates a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The clock: at the phase, and then once a period.
    Time {
        /// First release after the start of the mode; less than the period.
        phase: Duration,
    },
    /// A message at a port of this name. The period is the least distance of two activations.
    Message {
        /// Name of the port.
        port: String,
    },
}

/// Reaction to a job that still runs when the next one of its task is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverrunPolicy {
    /// Releases that have passed are left out; the task goes on at its next one.
    #[default]
    Skip,
    /// Releases that have passed are run at once, one after the other; beyond so many, the oldest are left out.
    CatchUp {
        /// Most releases that are made up for, at least 1.
        jobs_max: u32,
    },
    /// The task is stopped, and its outputs go to their safe values.
    Stop,
    /// The whole set goes to its safe mode.
    SafeMode,
}

/// One task, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Name, unique in the set.
    pub name: String,
    /// Event that activates it.
    pub activation: Activation,
    /// Time from one activation to the next; the least one for messages. [`PERIOD_MIN`] to [`PERIOD_MAX`].
    pub period: Duration,
    /// Time from an activation by which the job must be done; at most the period.
    pub deadline: Duration,
    /// Longest execution time of a job on a CPU of its own.
    pub worst_case: Duration,
    /// Execution time after which no other job waits for this one; at least the worst case.
    pub budget: Option<Duration>,
    /// Priority, [`PRIORITY_MIN`] to [`PRIORITY_MAX`], the highest most urgent; for [`Scheduling::Declared`] alone.
    pub priority: Option<u8>,
    /// Longest time for which a job keeps more urgent tasks waiting: under a lock, or without preemption.
    pub critical_section: Duration,
    /// Longest delay from activation to readiness of this task, beside that of the machine.
    pub release_jitter: Duration,
    /// Modes in which the task runs; all if empty.
    pub modes: Vec<String>,
    /// Reaction to an overrun.
    pub overrun: OverrunPolicy,
    /// Reason why the set is run although this task can miss its deadline.
    pub accept: Option<String>,
    /// Whether a program does the jobs: a process that a thread of the executive wakes and waits for.
    pub is_program: bool,
}

impl Task {
    /// A task activated by time, with its deadline at the end of the period.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tautline_exec::Task;
    ///
    /// let task = Task::periodic("control", Duration::from_millis(1), Duration::from_micros(150));
    /// assert_eq!(task.deadline, Duration::from_millis(1));
    /// ```
    #[must_use]
    pub fn periodic(name: &str, period: Duration, worst_case: Duration) -> Task {
        Task {
            name: name.to_owned(),
            activation: Activation::Time {
                phase: Duration::ZERO,
            },
            period,
            deadline: period,
            worst_case,
            budget: None,
            priority: None,
            critical_section: Duration::ZERO,
            release_jitter: Duration::ZERO,
            modes: Vec::new(),
            overrun: OverrunPolicy::Skip,
            accept: None,
            is_program: false,
        }
    }

    /// Execution time that others must reckon with: the budget where there is one, which is enforced, and otherwise
    /// the declared worst case.
    #[must_use]
    pub fn charged(&self) -> Duration {
        self.budget.unwrap_or(self.worst_case)
    }

    /// Whether the watchdog enforces a budget of a program.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.is_program && self.budget.is_some()
    }

    /// First release after the start of a mode; zero for messages.
    #[must_use]
    pub fn phase(&self) -> Duration {
        match self.activation {
            Activation::Time { phase } => phase,
            Activation::Message { .. } => Duration::ZERO,
        }
    }

    /// Whether messages activate the task.
    #[must_use]
    pub fn is_by_message(&self) -> bool {
        matches!(self.activation, Activation::Message { .. })
    }

    /// Whether the task runs in a mode.
    #[must_use]
    pub fn runs_in(&self, mode: &str) -> bool {
        self.modes.is_empty() || self.modes.iter().any(|one| one == mode)
    }
}

/// Processing of received frames, which interrupts tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Name, such as that of the interface.
    pub name: String,
    /// Frames a second in the long run, at least 1.
    pub rate: u32,
    /// Frames at once after a pause, at least 1.
    pub burst: u32,
    /// Execution time for each frame.
    pub worst_case: Duration,
    /// Priority of the thread that does it; `None` for interrupts, which are above all tasks.
    pub priority: Option<u8>,
}

impl Receive {
    /// Time that the processing takes away in a window, in nanoseconds: the burst, and the frames that come meanwhile.
    pub(crate) fn time(&self, window: u64) -> u64 {
        let frames = u64::from(self.burst).saturating_add(window / self.distance_ns());
        frames.saturating_mul(ns(self.worst_case))
    }

    /// Distance of two frames in the long run, rounded down, so that no frame is forgotten.
    pub(crate) fn distance_ns(&self) -> u64 {
        const SECOND_NS: u64 = 1_000_000_000;
        SECOND_NS / u64::from(self.rate)
    }
}

/// Properties of the machine, which all tasks suffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Longest time from the moment at which a timer is due until the task is ready: `taut lab` measures it.
    pub release_jitter: Duration,
    /// Longest section of the kernel without preemption.
    pub blocking: Duration,
    /// Time for each job that goes into switching to the task and back.
    pub overhead: Duration,
}

/// A set of tasks that share one CPU. What it holds is within the limits of this module.
///
/// ```
/// use core::time::Duration;
/// use tautline_exec::{Task, TaskSet};
///
/// let ms = Duration::from_millis;
/// let set = TaskSet::new(vec![
///     Task::periodic("slow", ms(10), ms(3)),
///     Task::periodic("fast", ms(1), Duration::from_micros(200)),
/// ])?;
/// assert!(set.priority(1) > set.priority(0), "the shorter deadline is more urgent");
/// # Ok::<(), tautline_exec::SetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSet {
    scheduling: Scheduling,
    machine: Machine,
    receive: Vec<Receive>,
    modes: Vec<String>,
    tasks: Vec<Task>,
    /// Priorities in the order of the tasks; empty for a table and with earliest deadline first.
    priorities: Vec<u8>,
    plan: TablePlan,
    safe_mode: Option<String>,
    /// Task that is awake before its releases, and by how much at most.
    pub(crate) early: Option<(usize, Duration)>,
}

impl TaskSet {
    /// A set with deadline-monotonic priorities, one mode, and a machine that takes no time.
    ///
    /// # Errors
    /// A declaration beyond the limits; see [`SetError`].
    pub fn new(tasks: Vec<Task>) -> Result<TaskSet, SetError> {
        TaskSet::declare(
            Scheduling::default(),
            Machine::default(),
            Vec::new(),
            Vec::new(),
            tasks,
        )
    }

    /// A set with everything declared. Without names of modes it has one mode, which has none.
    ///
    /// # Errors
    /// A declaration beyond the limits; see [`SetError`].
    pub fn declare(
        scheduling: Scheduling,
        machine: Machine,
        receive: Vec<Receive>,
        modes: Vec<String>,
        tasks: Vec<Task>,
    ) -> Result<TaskSet, SetError> {
        check_counts(&receive, &modes, &tasks)?;
        check_machine(&machine)?;
        for (index, one) in receive.iter().enumerate() {
            check_receive(index, one)?;
        }
        for (index, task) in tasks.iter().enumerate() {
            check_task(index, task, scheduling, &modes)?;
            if tasks[..index].iter().any(|one| one.name == task.name) {
                return Err(at_task(index, "name", Fault::Repeated));
            }
        }
        let priorities = priorities(scheduling, &tasks);
        let set = TaskSet {
            scheduling,
            machine,
            receive,
            modes,
            tasks,
            priorities,
            plan: TablePlan::default(),
            safe_mode: None,
            early: None,
        };
        for mode in set.mode_names() {
            if set.members(mode).next().is_none() {
                return Err(SetError::new(Location::Set("modes"), Fault::Empty));
            }
        }
        if scheduling == Scheduling::Table {
            set.check_table()?;
        }
        for task in 0..set.tasks.len() {
            set.check_kernel_deadline(task)?;
        }
        Ok(set)
    }

    /// Sets a program that does the jobs of a task.
    ///
    /// # Errors
    /// Under earliest deadline first, a deadline that is too short for it.
    pub fn with_program(mut self, task: usize) -> Result<TaskSet, SetError> {
        self.tasks[task].is_program = true;
        self.check_kernel_deadline(task)?;
        Ok(self)
    }

    /// Sets declarations for its table.
    ///
    /// # Errors
    /// A window of a task that the set does not have.
    pub fn with_table(self, plan: TablePlan) -> Result<TaskSet, SetError> {
        for (index, window) in plan.windows.iter().enumerate() {
            if window.task >= self.tasks.len() {
                let fault = Fault::UnknownTask;
                return Err(SetError::new(Location::Window(index, "task"), fault));
            }
        }
        Ok(TaskSet { plan, ..self })
    }

    /// Sets the mode for [`OverrunPolicy::SafeMode`]. Without one, such an overrun leaves releases out.
    ///
    /// # Errors
    /// A mode that the set does not have.
    pub fn with_safe_mode(self, mode: &str) -> Result<TaskSet, SetError> {
        if !self.modes.iter().any(|one| one == mode) {
            let mode = mode.to_owned();
            let fault = Fault::UnknownMode { mode };
            return Err(SetError::new(Location::Set("safe_mode"), fault));
        }
        Ok(TaskSet {
            safe_mode: Some(mode.to_owned()),
            ..self
        })
    }

    /// Mode for [`OverrunPolicy::SafeMode`].
    #[must_use]
    pub fn safe_mode(&self) -> Option<&str> {
        self.safe_mode.as_deref()
    }

    /// Declarations for the table.
    #[must_use]
    pub fn plan(&self) -> &TablePlan {
        &self.plan
    }

    /// This set with all execution times multiplied by a factor in thousandths: worst cases, budgets and critical
    /// sections. Not for running: they may be beyond the deadlines.
    pub(crate) fn scaled(&self, permille: u64) -> TaskSet {
        let scale = |time: Duration| {
            let scaled = u128::from(ns(time)) * u128::from(permille) / 1_000;
            Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
        };
        let mut set = self.clone();
        for task in &mut set.tasks {
            task.worst_case = scale(task.worst_case);
            task.budget = task.budget.map(scale);
            task.critical_section = scale(task.critical_section);
        }
        set
    }

    /// How priorities, or the moments of execution, are found.
    #[must_use]
    pub fn scheduling(&self) -> Scheduling {
        self.scheduling
    }

    /// Properties of the machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Processing of received frames.
    #[must_use]
    pub fn receive(&self) -> &[Receive] {
        &self.receive
    }

    /// The tasks, in the order in which they were declared.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Execution time of a job that others must reckon with, with the overhead.
    #[must_use]
    pub fn charged(&self, task: usize) -> Duration {
        self.tasks[task].charged() + self.overhead(task)
    }

    /// Time beside the execution of a job: the machine's overhead for each switch to it and for each look of the
    /// watchdog that it causes, and the time by which its budget can be exceeded.
    pub(crate) fn overhead(&self, task: usize) -> Duration {
        let own = &self.tasks[task];
        let switches = match self.scheduling {
            // Each switch is analysed by itself.
            Scheduling::EarliestDeadline => 1,
            _ if own.is_program => PROGRAM_SWITCHES,
            _ => 1,
        };
        let is_below = |other: usize| self.priority(other) <= self.priority(task);
        let mut others = (0..self.tasks.len()).filter(|other| *other != task);
        let looks = match others.any(|other| self.tasks[other].is_watched() && is_below(other)) {
            true => LOOKS_PER_DELAY,
            false => 0,
        };
        let step = match own.is_watched() {
            true => BUDGET_STEP,
            false => Duration::ZERO,
        };
        self.machine.overhead * (switches + looks) + step
    }

    /// Tasks whose budgets the watchdog enforces on the CPU of the tasks, above all of them.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.is_watched())
    }

    /// Time that the looks at a job of a program with a budget take, in nanoseconds.
    pub(crate) fn look_ns(&self) -> u64 {
        LOOKS_PER_JOB * ns(self.machine.overhead)
    }

    /// Time that all work above all tasks takes away in a window: receive processing in interrupts, and looks.
    pub(crate) fn time_above(&self, window: u64) -> u64 {
        let receive = self.receive.iter().filter(|one| one.priority.is_none());
        let receive = receive.map(|one| one.time(window));
        // Deadlines are within periods: two jobs more than periods that fit.
        let jobs = self.watched().map(|task| window / ns(task.period) + 2);
        let looks = jobs.map(|jobs| jobs.saturating_mul(self.look_ns()));
        receive.chain(looks).fold(0, u64::saturating_add)
    }

    /// Time that all work above all tasks, and receive processing in threads of this priority and above, take away in a
    /// window; without a priority, in all threads.
    pub(crate) fn time_from(&self, least: Option<u8>, window: u64) -> u64 {
        let threads = self
            .receive
            .iter()
            .filter(|one| one.priority.is_some() && one.priority >= least);
        let threads = threads.map(|one| one.time(window));
        threads.fold(self.time_above(window), u64::saturating_add)
    }

    /// Longest delay from an activation until the task is ready: its own and the machine's.
    pub(crate) fn release_jitter(&self, task: usize) -> Duration {
        self.tasks[task].release_jitter + self.machine.release_jitter
    }

    /// Priority of a task; `None` in a table and with earliest deadline first.
    #[must_use]
    pub fn priority(&self, task: usize) -> Option<u8> {
        self.priorities.get(task).copied()
    }

    /// The modes; one empty name if none were declared. The set starts in the first.
    pub fn mode_names(&self) -> impl Iterator<Item = &str> {
        let unnamed = self.modes.is_empty().then_some("");
        unnamed
            .into_iter()
            .chain(self.modes.iter().map(String::as_str))
    }

    /// Indices of the tasks that run in a mode.
    pub fn members<'a>(&'a self, mode: &'a str) -> impl Iterator<Item = usize> + 'a {
        let all = self.tasks.iter().enumerate();
        all.filter_map(move |(index, task)| task.runs_in(mode).then_some(index))
    }

    /// Least common multiple of the periods of a mode; `None` if it is longer than [`HYPERPERIOD_MAX`] and than the
    /// longest period. Tasks activated by messages have no fixed phase, so theirs count only where there are no others.
    #[must_use]
    pub fn hyperperiod(&self, mode: &str) -> Option<Duration> {
        let by_time =
            |index: &usize| matches!(self.tasks[*index].activation, Activation::Time { .. });
        let mut members: Vec<usize> = self.members(mode).filter(by_time).collect();
        if members.is_empty() {
            members = self.members(mode).collect();
            members.sort_by_key(|index| core::cmp::Reverse(self.tasks[*index].period));
            members.truncate(1);
        }
        let periods = || members.iter().map(|index| ns(self.tasks[*index].period));
        // One task alone may have a long period: its hyperperiod has one job.
        let max = periods().max()?.max(ns(HYPERPERIOD_MAX));
        let multiple = periods().try_fold(1, |multiple: u64, period| {
            let next = (multiple / divisor(multiple, period)).checked_mul(period)?;
            (next <= max).then_some(next)
        });
        multiple.map(Duration::from_nanos)
    }

    /// Whether the tables of all modes have windows in a number that can be looked at.
    fn check_table(&self) -> Result<(), SetError> {
        for mode in self.mode_names() {
            let longest = self
                .members(mode)
                .max_by_key(|index| self.tasks[*index].period);
            let refused = |fault| at_task(longest.unwrap_or(0), "period", fault);
            let span = self.hyperperiod(mode);
            let span = ns(span.ok_or(refused(Fault::HyperperiodTooLong))?);
            let jobs = self
                .members(mode)
                .map(|index| span / ns(self.tasks[index].period))
                .sum();
            if jobs > JOBS_MAX {
                return Err(refused(Fault::TooManyJobs { jobs }));
            }
        }
        Ok(())
    }
}

/// Nanoseconds of a time within the limits of a set.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Greatest common divisor of two times.
pub(crate) fn common_divisor(one: Duration, other: Duration) -> Duration {
    Duration::from_nanos(divisor(ns(one), ns(other)))
}

fn priorities(scheduling: Scheduling, tasks: &[Task]) -> Vec<u8> {
    let key = |index: &usize| match scheduling {
        Scheduling::RateMonotonic => (tasks[*index].period, tasks[*index].deadline),
        _ => (tasks[*index].deadline, tasks[*index].period),
    };
    match scheduling {
        Scheduling::Table | Scheduling::EarliestDeadline => return Vec::new(),
        Scheduling::Declared => return tasks.iter().filter_map(|task| task.priority).collect(),
        Scheduling::RateMonotonic | Scheduling::DeadlineMonotonic => {}
    }
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(key);
    let mut priorities = alloc::vec![PRIORITY_MIN; tasks.len()];
    for (index, priority) in order.into_iter().zip((PRIORITY_MIN..=PRIORITY_MAX).rev()) {
        priorities[index] = priority;
    }
    priorities
}

fn check_counts(receive: &[Receive], modes: &[String], tasks: &[Task]) -> Result<(), SetError> {
    let at = |key, fault| Err(SetError::new(Location::Set(key), fault));
    let most = |count: usize, max: usize| (count > max).then_some(Fault::TooMany { count, max });
    if tasks.is_empty() {
        return at("task", Fault::Empty);
    }
    if let Some(fault) = most(tasks.len(), TASKS_MAX) {
        return at("task", fault);
    }
    if let Some(fault) = most(receive.len(), RECEIVE_MAX) {
        return at("receive", fault);
    }
    if let Some(fault) = most(modes.len(), MODES_MAX) {
        return at("modes", fault);
    }
    for (index, mode) in modes.iter().enumerate() {
        if !is_name(mode) {
            return at("modes", Fault::BadName);
        }
        if modes[..index].contains(mode) {
            return at("modes", Fault::Repeated);
        }
    }
    Ok(())
}

fn check_machine(machine: &Machine) -> Result<(), SetError> {
    for (key, value) in [
        ("release_jitter", machine.release_jitter),
        ("blocking", machine.blocking),
        ("overhead", machine.overhead),
    ] {
        within(value, Duration::ZERO, PERIOD_MAX)
            .map_err(|fault| SetError::new(Location::Machine(key), fault))?;
    }
    Ok(())
}

fn check_receive(index: usize, one: &Receive) -> Result<(), SetError> {
    let at = |key, fault| SetError::new(Location::Receive(index, key), fault);
    let count = |value: u32, to: u32| {
        let in_range = (1..=to).contains(&value);
        in_range.then_some(()).ok_or(Fault::NumberOutOfRange {
            value: u64::from(value),
            from: 1,
            to: u64::from(to),
        })
    };
    if !is_name(&one.name) {
        return Err(at("name", Fault::BadName));
    }
    count(one.rate, RECEIVE_RATE_MAX).map_err(|fault| at("rate", fault))?;
    count(one.burst, RECEIVE_RATE_MAX).map_err(|fault| at("burst", fault))?;
    within(one.worst_case, Duration::from_nanos(1), PERIOD_MAX)
        .map_err(|fault| at("worst_case", fault))?;
    one.priority
        .map_or(Ok(()), check_priority)
        .map_err(|fault| at("priority", fault))
}

fn check_task(
    index: usize,
    task: &Task,
    scheduling: Scheduling,
    modes: &[String],
) -> Result<(), SetError> {
    let at = |key: &'static str| move |fault| at_task(index, key, fault);
    if !is_name(&task.name) {
        return Err(at("name")(Fault::BadName));
    }
    let least = Duration::from_nanos(1);
    within(task.period, PERIOD_MIN, PERIOD_MAX).map_err(at("period"))?;
    within(task.deadline, least, task.period).map_err(at("deadline"))?;
    within(task.worst_case, least, task.deadline).map_err(at("worst_case"))?;
    if let Some(budget) = task.budget {
        within(budget, task.worst_case, task.deadline).map_err(at("budget"))?;
    }
    within(task.critical_section, Duration::ZERO, task.charged())
        .map_err(at("critical_section"))?;
    within(task.release_jitter, Duration::ZERO, task.deadline).map_err(at("release_jitter"))?;
    within(task.phase(), Duration::ZERO, task.period - least).map_err(at("phase"))?;
    if let OverrunPolicy::CatchUp { jobs_max: 0 } = task.overrun {
        return Err(at("overrun")(Fault::Empty));
    }
    match (scheduling, task.priority) {
        (Scheduling::Declared, None) => return Err(at("priority")(Fault::PriorityAbsent)),
        (Scheduling::Declared, Some(priority)) => {
            check_priority(priority).map_err(at("priority"))?
        }
        (_, Some(_)) => return Err(at("priority")(Fault::PriorityUnused)),
        (_, None) => {}
    }
    if scheduling == Scheduling::Table && task.is_by_message() {
        return Err(at("port")(Fault::MessageInTable));
    }
    match task.modes.iter().find(|mode| !modes.contains(mode)) {
        Some(mode) => Err(at("modes")(Fault::UnknownMode { mode: mode.clone() })),
        None => Ok(()),
    }
}

fn check_priority(priority: u8) -> Result<(), Fault> {
    let in_range = (PRIORITY_MIN..=PRIORITY_MAX).contains(&priority);
    in_range.then_some(()).ok_or(Fault::NumberOutOfRange {
        value: u64::from(priority),
        from: u64::from(PRIORITY_MIN),
        to: u64::from(PRIORITY_MAX),
    })
}

fn within(value: Duration, from: Duration, to: Duration) -> Result<(), Fault> {
    let in_range = (from..=to).contains(&value);
    in_range
        .then_some(())
        .ok_or(Fault::TimeOutOfRange { value, from, to })
}

fn at_task(index: usize, key: &'static str, fault: Fault) -> SetError {
    SetError::new(Location::Task(index, key), fault)
}

/// Names end up in tables, file names and threads: no blanks, no control characters.
fn is_name(name: &str) -> bool {
    let allowed = |one: char| one.is_alphanumeric() || matches!(one, '_' | '-' | '.');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed)
}
