//! Starting and stopping a set.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use tautline_exec::{
    Activation, Analysis, HealthRecord, Job, Scheduling, SetError, TaskResponse, TaskSet,
};
use tautline_partition::{Partition, PartitionConfig, PartitionError};

use crate::file::{self, FileError, TaskFile};
use crate::lint::{Lint, Tally};
use crate::logical::{self, Exchanged, Home, Logical};
use crate::message::{self, MessageSource};
use crate::program::{self, Program};
use crate::segment::{self, Description, Segment, TaskDescription, TaskView};
use crate::summary::{Summary, TaskSummary};
use crate::sys::{self, PriorityMutex, Urgency};
use crate::thread::{self, Body, Started, TaskBody, TaskThread, Worker};
use crate::watchdog;

/// Time from the last thread's being ready to the first release. Lower: on a busy machine the first jobs are late.
/// Higher: programs start later.
const START_DELAY: Duration = Duration::from_millis(5);
/// Start of a set that is not ready, far beyond any clock and within what the kernel takes.
const OUT_OF_REACH: Duration = Duration::from_secs(1 << 40);
/// Stack of a task. Lower: ordinary code overflows it. Higher: 64 tasks lock memory that nobody uses.
const STACK_BYTES: usize = 512 * 1024;
/// Time for a thread to end whose program was killed. Lower: on a busy machine it is left behind. Higher: nothing is
/// gained.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// Distance of looks at threads that end.
const END_LOOK: Duration = Duration::from_millis(1);

/// The set could not be run.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A task can miss its deadline, and does not say why that is acceptable.
    #[error("`{task}` can miss its deadline{}", by.map_or(String::new(), |by| format!(" by {by:?} or more")))]
    Refused {
        /// Name of the task.
        task: String,
        /// Time by which it can be late at the least; `None` if there is no bound.
        by: Option<Duration>,
    },
    /// The set's file has a mistake.
    #[error("{0}")]
    File(#[from] FileError),
    /// The set is declared wrongly.
    #[error("{0}")]
    Set(#[from] SetError),
    /// The set has no such task.
    #[error("the set has no task `{task}`")]
    UnknownTask {
        /// Name that was given.
        task: String,
    },
    /// A task has no code.
    #[error("task `{task}` has no code")]
    NoBody {
        /// Name of the task.
        task: String,
    },
    /// The task has code already.
    #[error("task `{task}` has its code already")]
    BodyRepeated {
        /// Name of the task.
        task: String,
    },
    /// The task is activated by time.
    #[error("task `{task}` is activated by time and not by messages")]
    NotByMessage {
        /// Name of the task.
        task: String,
    },
    /// The task is activated by messages.
    #[error("task `{task}` is activated by messages and not by time")]
    NotByTime {
        /// Name of the task.
        task: String,
    },
    /// The program of a task could not be started, or did not prepare itself.
    #[error("task `{task}`: {reason}")]
    Program {
        /// Name of the task.
        task: String,
        /// Cause.
        reason: String,
    },
    /// The kernel does not let threads of this process have SCHED_DEADLINE.
    #[error("SCHED_DEADLINE is refused: {0}")]
    DeadlineRefused(io::Error),
    /// A program would need a share of the CPU of its own beside that of its task.
    #[error("task `{task}` is a program, and SCHED_DEADLINE is for code")]
    ProgramByDeadline {
        /// Name of the task.
        task: String,
    },
    /// The partition of the set could not be made.
    #[error("{0}")]
    Partition(#[from] PartitionError),
    /// A thread or a mutex could not be made.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Message and remedy: this is how a program shows the error that it returns from `main`.
impl fmt::Debug for RunError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}\n  what to do: {}", self.remedy())
    }
}

impl RunError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &str {
        match self {
            RunError::Refused { .. } => {
                "see `taut task check`; shorten what takes long, or give the task a reason to accept it"
            }
            RunError::File(error) => &error.remedy,
            RunError::Set(error) => error.remedy(),
            RunError::UnknownTask { .. } => "use a name of the set",
            RunError::NoBody { .. } => "give each task its code with Executive::task",
            RunError::BodyRepeated { .. } => "give each task its code once",
            RunError::NotByMessage { .. } => {
                "messages activate tasks with Activation::Message, or `port` in a file"
            }
            RunError::NotByTime { .. } => {
                "logical execution time needs releases that are known ahead: poll the port in a task with a period"
            }
            RunError::Program { .. } => {
                "check the path in `exec`; the program must answer job 0 (docs/executive.md, \"Tasks that are programs\")"
            }
            RunError::DeadlineRefused(_) => {
                "run the set as root in a partition of one CPU (`[partition]` in its file), or use fixed priorities"
            }
            RunError::ProgramByDeadline { .. } => {
                "use fixed priorities or a table for sets with programs"
            }
            RunError::Partition(error) => error.remedy(),
            RunError::System(_) => "raise the limits of threads and memory (ulimit -a)",
        }
    }
}

/// Settings of a run. The default asks for all that makes tasks punctual; what is refused is reported.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The only CPU that the tasks may run on; the analysis expects one. `None` takes the first CPU of
    /// the partition; without a partition it leaves that to the kernel.
    pub cpu: Option<usize>,
    /// Whether the tasks run under SCHED_FIFO at their priorities.
    pub real_time: bool,
    /// Whether all memory of the process is locked. It stays locked afterwards.
    pub lock_memory: bool,
    /// Whether jobs are watched for allocations, page faults and blocking: two system calls for each job. In debug
    /// builds, if not said otherwise.
    pub lint: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cpu: None,
            real_time: true,
            lock_memory: true,
            lint: cfg!(debug_assertions),
        }
    }
}

impl Options {
    /// The same on one CPU.
    #[must_use]
    pub fn with_cpu(self, cpu: usize) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }

    /// The same, with jobs watched or not.
    #[must_use]
    pub fn with_lint(self, lint: bool) -> Self {
        Self { lint, ..self }
    }

    /// The same with the scheduling that threads have by themselves, and memory that can be paged out.
    #[must_use]
    pub fn without_real_time(self) -> Self {
        Self {
            real_time: false,
            lock_memory: false,
            ..self
        }
    }
}

/// A set with the code of its tasks, before it runs.
pub struct Executive {
    set: TaskSet,
    partition: Option<PartitionConfig>,
    /// For who looks at the run from outside.
    name: String,
    /// Longest response times by the analysis.
    bounds: Vec<Option<Duration>>,
    bodies: Vec<Option<Body>>,
    /// By task.
    sources: Vec<Option<MessageSource>>,
    /// File of the node whose ports activate tasks.
    node: Option<PathBuf>,
    /// Tasks with logical execution time.
    logical: Vec<(usize, Arc<dyn Exchanged>)>,
    home: Home,
}

impl Executive {
    /// Admits a set.
    ///
    /// # Errors
    /// [`RunError::Refused`]; [`RunError::Set`] for a table with wrong windows.
    pub fn new(set: TaskSet) -> Result<Executive, RunError> {
        let modes = Analysis::of_all(&set)?;
        for analysis in &modes {
            if let Some(refused) = analysis.refusals(&set).next() {
                return Err(RunError::Refused {
                    task: set.tasks()[refused.task].name.clone(),
                    by: TaskResponse::excess(refused),
                });
            }
        }
        Ok(Executive {
            name: own_name(),
            bounds: (0..set.tasks().len())
                .map(|task| bound(&modes, task))
                .collect(),
            bodies: set.tasks().iter().map(|_| None).collect(),
            sources: set.tasks().iter().map(|_| None).collect(),
            node: None,
            logical: Vec::new(),
            home: Home::default(),
            partition: None,
            set,
        })
    }

    /// Admits the set of a file, the one that `taut task check` analyses.
    ///
    /// # Errors
    /// [`RunError::File`], [`RunError::Refused`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Executive, RunError> {
        let TaskFile {
            set,
            programs,
            partition,
            node,
        } = file::read(path.as_ref())?;
        let mut executive = Executive::new(set)?;
        executive.partition = partition;
        executive.node = node;
        let text = path.as_ref().to_string_lossy();
        executive.name = text.chars().take(NAME_CHARS_MAX).collect();
        for (body, program) in executive.bodies.iter_mut().zip(programs) {
            *body = program.map(Body::Program);
        }
        Ok(executive)
    }

    /// Runs the set in a partition, which is made at the start and removed at the end. One of that name that is there
    /// already is entered, and stays.
    #[must_use]
    pub fn in_partition(self, partition: PartitionConfig) -> Executive {
        Executive {
            partition: Some(partition),
            ..self
        }
    }

    /// The partition in which the set will run, if there is one.
    #[must_use]
    pub fn partition(&self) -> Option<&PartitionConfig> {
        self.partition.as_ref()
    }

    /// The set.
    #[must_use]
    pub fn set(&self) -> &TaskSet {
        &self.set
    }

    /// Names of the tasks that have neither code nor a program yet.
    pub fn without_code(&self) -> impl Iterator<Item = &str> {
        let tasks = self.set.tasks().iter().zip(&self.bodies);
        tasks
            .filter(|(_, body)| body.is_none())
            .map(|(task, _)| task.name.as_str())
    }

    /// Gives a task its code: a closure that is called for each job, or anything that implements [`TaskBody`].
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::BodyRepeated`].
    pub fn task(&mut self, name: &str, body: impl TaskBody + 'static) -> Result<(), RunError> {
        self.give(name, Body::Code(Box::new(body)))
    }

    /// Gives a task its code with logical execution time: inputs are read at the release of each job, and its outputs
    /// are written at its deadline. Outputs of a job that ends after its deadline are left out.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tautline_exec::{Job, Task, TaskSet};
    /// use tautline_tasks::{Executive, Logical, Options};
    ///
    /// let ms = Duration::from_millis;
    /// let mut executive = Executive::new(TaskSet::new(vec![Task::periodic("control", ms(5), ms(1))])?)?;
    /// executive.logical_task("control", Logical {
    ///     read: |position: &mut f64| *position = 0.5,           // a sampling port
    ///     run: |_: &Job, position: &f64, force: &mut f64| *force = -100.0 * position,
    ///     write: |force: &f64| assert!(*force == -50.0),        // another one
    ///     safe_state: || {},
    /// })?;
    /// let running = executive.start(&Options::default())?;
    /// std::thread::sleep(ms(20));
    /// assert!(running.stop(ms(1_000)).tasks[0].jobs > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::BodyRepeated`], [`RunError::NotByTime`], [`RunError::System`].
    pub fn logical_task<I, O, R, J, W, S>(
        &mut self,
        name: &str,
        parts: Logical<R, J, W, S>,
    ) -> Result<(), RunError>
    where
        I: Default + Send + 'static,
        O: Default + Send + 'static,
        R: FnMut(&mut I) + Send + 'static,
        J: FnMut(&Job, &I, &mut O) + Send + 'static,
        W: FnMut(&O) + Send + 'static,
        S: FnMut() + Send + 'static,
    {
        let index = index_of(&self.set, name)?;
        if by_message(&self.set, name).is_ok() {
            let task = name.to_owned();
            return Err(RunError::NotByTime { task });
        }
        let (body, values) = logical::sides(parts, self.home.clone())?;
        self.task(name, body)?;
        self.logical.push((index, values));
        Ok(())
    }

    /// Gives a task a program, whose process does its jobs; `exec` in a file does the same.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::BodyRepeated`].
    pub fn program(&mut self, name: &str, program: Program) -> Result<(), RunError> {
        self.give(name, Body::Program(program))
    }

    /// Has a port's messages activate a task: a job for each, not sooner than the task's period allows. The task's
    /// thread takes them, and waits for them by the descriptor. A source that was given before gives way.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::NotByMessage`].
    pub fn messages(&mut self, task: &str, source: MessageSource) -> Result<(), RunError> {
        let index = by_message(&self.set, task)?;
        self.sources[index] = Some(source);
        Ok(())
    }

    /// File of the node whose ports activate tasks, if the set's file names one. The caller opens it: this crate knows
    /// no ports.
    #[must_use]
    pub fn node(&self) -> Option<&Path> {
        self.node.as_deref()
    }

    fn give(&mut self, name: &str, body: Body) -> Result<(), RunError> {
        let body_of_task = &mut self.bodies[index_of(&self.set, name)?];
        if body_of_task.is_some() {
            return Err(RunError::BodyRepeated {
                task: name.to_owned(),
            });
        }
        *body_of_task = Some(body);
        Ok(())
    }

    /// Starts all tasks together, in the first mode. Puts a hook before the process's panic hook, by which a task
    /// that panics loses its priority before its message is written.
    ///
    /// # Errors
    /// [`RunError::NoBody`], [`RunError::Partition`], [`RunError::Program`], [`RunError::System`].
    pub fn start(self, options: &Options) -> Result<Running, RunError> {
        if let Some(task) = self.bodies.iter().position(Option::is_none) {
            return Err(RunError::NoBody {
                task: self.set.tasks()[task].name.clone(),
            });
        }
        let is_program = |body: &Option<Body>| matches!(body, Some(Body::Program(_)));
        if self.set.scheduling() == Scheduling::EarliestDeadline
            && let Some(task) = self.bodies.iter().position(is_program)
        {
            return Err(RunError::ProgramByDeadline {
                task: self.set.tasks()[task].name.clone(),
            });
        }
        let mut limits = Vec::new();
        let mut options = options.clone();
        let partition = match &self.partition {
            None => None,
            Some(config) => {
                let first = config.cpus.iter().next().map(|cpu| cpu as usize);
                options.cpu = options.cpu.or(first);
                enter(config, &mut limits)?
            }
        };
        let options = &options;
        if self.set.scheduling() == Scheduling::EarliestDeadline && options.real_time {
            try_deadline(&self.set, options.cpu)?;
        }
        thread::demote_on_panic();
        if options.lock_memory
            && let Err(error) = tautline_state::memory::lock_all()
        {
            limits.push(format!(
                "memory is not locked ({error}): raise the limit (ulimit -l unlimited) or grant CAP_IPC_LOCK"
            ));
        }
        let count = self.set.tasks().len();
        let (segment, refused) = Segment::new(&self.description())?;
        limits.extend(refused);
        let shared = Arc::new(Shared {
            decisions: PriorityMutex::new(Decisions {
                executive: tautline_exec::Executive::new(&self.set, OUT_OF_REACH),
                jobs: vec![None; count],
            })?,
            signals: self
                .sources
                .iter()
                .map(Signal::of)
                .collect::<Result<_, _>>()?,
            watchdog: Signal::default(),
            exchange: Signal::default(),
            is_stopping: AtomicBool::new(false),
            limits: Mutex::new(limits),
            programs: Mutex::new((0..count).map(|_| None).collect()),
            lints: Mutex::new(vec![Tally::default(); count]),
            segment,
            set: self.set,
        });
        // Nobody else has set it.
        let _ = self.home.set(Arc::downgrade(&shared));
        let mut running = Running {
            threads: Vec::new(),
            watchdog: None,
            exchange: None,
            start: Duration::ZERO,
            shared: shared.clone(),
            _partition: partition.map(Box::new),
        };
        // Nobody begins before all have their settings: until then the first release is out of reach.
        let ready = Arc::new(Ready::default());
        let bodies = self.bodies.into_iter().flatten().zip(self.sources);
        for (index, (body, source)) in bodies.enumerate() {
            let thread = TaskThread {
                shared: shared.clone(),
                index,
                options: options.clone(),
                ready: ready.clone(),
            };
            let name: String = shared.set.tasks()[index].name.chars().take(15).collect();
            let builder = std::thread::Builder::new()
                .name(name)
                .stack_size(STACK_BYTES);
            let started = builder.spawn(move || thread.run(body, source));
            running
                .threads
                .push(started.inspect_err(|_| shared.stop())?);
        }
        let mut workers: Vec<(usize, Worker)> = Vec::with_capacity(count);
        for (task, started) in ready.wait_for(count) {
            match started {
                Ok(worker) => workers.push((task, worker)),
                Err(reason) => {
                    shared.stop();
                    return Err(RunError::Program {
                        task: shared.set.tasks()[task].name.clone(),
                        reason,
                    });
                }
            }
        }
        let start = sys::monotonic() + START_DELAY;
        running.start = start;
        {
            let mut decisions = shared.decisions.lock();
            decisions.executive.start_at(start);
        }
        shared.wake_all();
        running.watchdog = Some(watchdog::start(&shared, workers, options)?);
        if !self.logical.is_empty() {
            running.exchange = Some(logical::start(&shared, self.logical, options)?);
        }
        Ok(running)
    }

    fn description(&self) -> Description {
        let tasks = self.set.tasks().iter().enumerate();
        let describe = |(index, task): (usize, &tautline_exec::Task)| TaskDescription {
            name: task.name.clone(),
            priority: match urgency(&self.set, index) {
                Urgency::Fifo(priority) => priority,
                Urgency::Deadline { .. } => 0,
            },
            period: task.period,
            deadline: task.deadline,
            worst_case: task.worst_case,
            bound: self.bounds[index],
        };
        Description {
            name: self.name.clone(),
            process: std::process::id(),
            modes: self.set.mode_names().map(str::to_owned).collect(),
            tasks: tasks.map(describe).collect(),
        }
    }
}

/// Priority of all tasks of a table: its windows decide which of them runs. Lower: other real-time threads of the CPU
/// keep a window's task waiting.
const TABLE_PRIORITY: u8 = tautline_exec::task::PRIORITY_MAX;

/// Scheduling of a task's thread.
pub(crate) fn urgency(set: &TaskSet, task: usize) -> Urgency {
    let declared = &set.tasks()[task];
    match set.scheduling() {
        Scheduling::EarliestDeadline => Urgency::Deadline {
            runtime: (declared.charged() + set.machine().overhead).min(declared.deadline),
            deadline: declared.deadline,
            period: declared.period,
        },
        _ => Urgency::Fifo(set.priority(task).unwrap_or(TABLE_PRIORITY)),
    }
}

/// Tries whether threads of this process may have SCHED_DEADLINE where the tasks will run.
fn try_deadline(set: &TaskSet, cpu: Option<usize>) -> Result<(), RunError> {
    let urgency = urgency(set, 0);
    let tried = std::thread::spawn(move || {
        if let Some(cpu) = cpu {
            sys::stay_on(cpu);
        }
        sys::schedule(sys::own_number(), Some(urgency))
    });
    let tried = tried
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("no answer")));
    tried.map_err(RunError::DeadlineRefused)
}

/// Moves this process into the partition of the set, and returns the partition if it had to be made.
fn enter(
    config: &PartitionConfig,
    limits: &mut Vec<String>,
) -> Result<Option<Partition>, PartitionError> {
    let partition = match Partition::create(config) {
        Err(PartitionError::Exists(name)) => {
            let found = tautline_partition::find(&name)?;
            found.enter(std::process::id())?;
            return Ok(None);
        }
        made => made?,
    };
    partition.enter(std::process::id())?;
    if !partition.form().keeps_others_away() {
        limits.push(format!(
            "partition `{}` is {}: run as root, or in a group with a delegated cpuset",
            config.name,
            partition.form().text()
        ));
    }
    Ok(Some(partition))
}

/// Longest name of a run. Lower: paths of files are cut. Higher: lists of runs have long lines.
const NAME_CHARS_MAX: usize = 64;

/// Name of this program.
fn own_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy()
        .chars()
        .take(NAME_CHARS_MAX)
        .collect()
}

/// Longest response time of a task over all modes; `None` if one has no bound.
fn bound(modes: &[Analysis], task: usize) -> Option<Duration> {
    let of_task = modes.iter().flat_map(|mode| &mode.responses);
    let responses = of_task.filter(|one| one.task == task);
    responses
        .map(|one| one.response)
        .try_fold(Duration::ZERO, |longest, one| Some(longest.max(one?)))
}

fn index_of(set: &TaskSet, name: &str) -> Result<usize, RunError> {
    let found = set.tasks().iter().position(|task| task.name == name);
    found.ok_or_else(|| RunError::UnknownTask {
        task: name.to_owned(),
    })
}

/// Index of a task that messages activate.
fn by_message(set: &TaskSet, task: &str) -> Result<usize, RunError> {
    let index = index_of(set, task)?;
    match set.tasks()[index].activation {
        Activation::Message { .. } => Ok(index),
        Activation::Time { .. } => Err(RunError::NotByMessage {
            task: task.to_owned(),
        }),
    }
}

/// Threads that have made their settings, or failed to. Each tells once.
#[derive(Default)]
pub(crate) struct Ready {
    told: Mutex<Vec<(usize, Started)>>,
    changed: Condvar,
}

impl Ready {
    pub(crate) fn tell(&self, task: usize, started: Started) {
        let mut told = self.told.lock().unwrap_or_else(|error| error.into_inner());
        told.push((task, started));
        self.changed.notify_one();
    }

    fn wait_for(&self, count: usize) -> Vec<(usize, Started)> {
        let told = self.told.lock().unwrap_or_else(|error| error.into_inner());
        let all = self.changed.wait_while(told, |told| told.len() < count);
        std::mem::take(&mut *all.unwrap_or_else(|error| error.into_inner()))
    }
}

/// State that all threads of a run share.
pub(crate) struct Shared {
    pub(crate) set: TaskSet,
    pub(crate) decisions: PriorityMutex<Decisions>,
    /// By task.
    pub(crate) signals: Vec<Signal>,
    pub(crate) watchdog: Signal,
    /// Wakes the exchange of tasks with logical execution time.
    pub(crate) exchange: Signal,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) limits: Mutex<Vec<String>>,
    /// Handles of the tasks' processes, by task.
    pub(crate) programs: Mutex<Vec<Option<OwnedFd>>>,
    /// Findings about the code of tasks, by task.
    pub(crate) lints: Mutex<Vec<Tally>>,
    pub(crate) segment: Segment,
}

/// The executive's core, and the jobs that run.
pub(crate) struct Decisions {
    pub(crate) executive: tautline_exec::Executive,
    pub(crate) jobs: Vec<Option<RunningJob>>,
}

/// A job that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningJob {
    /// Execution time of the worker when the job began.
    pub(crate) cpu_time: Duration,
    /// Whether the worker is below all others.
    pub(crate) is_demoted: bool,
}

/// Wakes one thread: a futex whose value changes with each signal.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    value: AtomicU32,
    /// Messages that activate the task and have not yet done so.
    pub(crate) messages: AtomicU32,
    /// Wakes a thread that waits for messages of a source.
    pub(crate) bell: Option<OwnedFd>,
}

impl Signal {
    /// Signal of a task with a source of messages, or without one.
    fn of(source: &Option<MessageSource>) -> io::Result<Signal> {
        Ok(Signal {
            bell: source.as_ref().map(|_| message::bell()).transpose()?,
            ..Signal::default()
        })
    }

    /// Value to look at before deciding to wait.
    pub(crate) fn value(&self) -> u32 {
        // Pairs with `wake`: what was written before a signal is seen by who sees its value.
        self.value.load(Ordering::Acquire)
    }

    /// Waits for a signal after `seen`, or for an absolute time.
    pub(crate) fn wait(&self, seen: u32, until: Option<Duration>) {
        let until = until.map(|until| rustix::thread::futex::Timespec {
            tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: until.subsec_nanos().into(),
        });
        let flags = futex::Flags::PRIVATE;
        let all = std::num::NonZeroU32::MAX;
        // A signal, the time, or an interruption: the caller looks again in each case.
        let _ = futex::wait_bitset(&self.value, flags, seen, until.as_ref(), all);
    }

    pub(crate) fn wake(&self) {
        // Pairs with `value`.
        self.value.fetch_add(1, Ordering::Release);
        // A wake-up of nobody is no error, and no other is possible: the address is valid.
        let _ = futex::wake(&self.value, futex::Flags::PRIVATE, 1);
        if let Some(bell) = &self.bell {
            message::ring(bell);
        }
    }
}

impl Shared {
    /// Wakes all threads, to look at what has changed.
    pub(crate) fn wake_all(&self) {
        for signal in &self.signals {
            signal.wake();
        }
        self.watchdog.wake();
        self.exchange.wake();
    }

    /// Lets a requested mode take effect, if nothing stands against it. The caller wakes all threads if it does, once
    /// the decisions are no longer locked.
    pub(crate) fn switch(&self, decisions: &mut Decisions, now: Duration) -> bool {
        let has_switched = decisions.executive.switch(now).is_some();
        if has_switched {
            self.segment.set_mode(decisions.executive.mode());
        }
        has_switched
    }

    /// Kills the process of a task, or code's nothing.
    pub(crate) fn kill_program(&self, task: usize) {
        let programs = self.programs.lock();
        let programs = programs.unwrap_or_else(|error| error.into_inner());
        programs[task].iter().for_each(program::kill);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // Pairs with `stop`; nothing else is published by it.
        self.is_stopping.load(Ordering::Acquire)
    }

    fn stop(&self) {
        // Pairs with `is_stopping`.
        self.is_stopping.store(true, Ordering::Release);
        self.wake_all();
    }

    pub(crate) fn limit(&self, text: String) {
        // A thread that panicked while it held the list left it whole: a push does not panic halfway.
        let mut limits = self
            .limits
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        if !limits.contains(&text) {
            limits.push(text);
        }
    }
}

/// A set that runs. Dropped, it stops without waiting.
pub struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Time of the first release.
    start: Duration,
    watchdog: Option<JoinHandle<()>>,
    exchange: Option<JoinHandle<()>>,
    /// Put back after the threads have ended.
    _partition: Option<Box<Partition>>,
}

/// Activates one task by a message; for the thread that receives it.
#[derive(Clone)]
pub struct Trigger {
    shared: Arc<Shared>,
    task: usize,
}

impl Trigger {
    /// Activates the task once. Wait-free; messages are counted while the task runs. Those that come sooner than its
    /// period allows wait until it is over.
    pub fn fire(&self) {
        let signal = &self.shared.signals[self.task];
        signal.messages.fetch_add(1, Ordering::Release); // pairs with the load before a job begins
        signal.wake();
    }
}

impl Running {
    /// Settings that were asked for and could not be had, each with the reason and the remedy.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let limits = self.shared.limits.lock();
        limits.unwrap_or_else(|error| error.into_inner()).clone()
    }

    /// Findings about the code of tasks, where [`Options::lint`] asks for them.
    #[must_use]
    pub fn lints(&self) -> Vec<Lint> {
        let lints = self.shared.lints.lock();
        let lints = lints.unwrap_or_else(|error| error.into_inner());
        lints.iter().flat_map(Tally::lints).cloned().collect()
    }

    /// Name of the mode that runs; empty if the set has none.
    #[must_use]
    pub fn mode(&self) -> String {
        let mode = self.shared.decisions.lock().executive.mode();
        let mut names = self.shared.set.mode_names();
        names.nth(mode).unwrap_or_default().to_owned()
    }

    /// Asks for another mode. It takes effect when the jobs that run have ended.
    ///
    /// # Errors
    /// A mode that the set does not have.
    pub fn request_mode(&self, mode: &str) -> Result<(), RunError> {
        let now = sys::monotonic();
        {
            let mut decisions = self.shared.decisions.lock();
            decisions.executive.request_mode(mode, now)?;
            self.shared.switch(&mut decisions, now);
        }
        self.shared.wake_all();
        Ok(())
    }

    /// Trigger of a task that messages activate.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::NotByMessage`].
    pub fn trigger(&self, task: &str) -> Result<Trigger, RunError> {
        Ok(Trigger {
            task: by_message(&self.shared.set, task)?,
            shared: self.shared.clone(),
        })
    }

    /// Figures of a task.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`].
    pub fn task(&self, name: &str) -> Result<TaskView, RunError> {
        let index = index_of(&self.shared.set, name)?;
        Ok(segment::view(self.shared.segment.figures(index)))
    }

    /// Health records that are kept, the oldest first. Holds the tasks up for a microsecond or two.
    #[must_use]
    pub fn records(&self) -> Vec<HealthRecord> {
        // Memory first: the tasks wait while the records are copied.
        let mut records = Vec::with_capacity(tautline_exec::monitor::RECORDS_MAX);
        let decisions = self.shared.decisions.lock();
        records.extend(decisions.executive.monitor().records().copied());
        records
    }

    /// Stops all tasks after the jobs that run, and waits for that at most so long. A thread whose job does not
    /// return is left to itself, below all others.
    #[must_use]
    pub fn stop(mut self, patience: Duration) -> Summary {
        self.shared.stop();
        self.wait(patience);
        let is_left: Vec<bool> = self.threads.iter().map(|one| !one.is_finished()).collect();
        if is_left.contains(&true) {
            // A program that does not answer can be killed; code cannot.
            (0..self.threads.len()).for_each(|task| self.shared.kill_program(task));
            self.wait(KILL_PATIENCE);
        }
        for thread in [self.watchdog.take(), self.exchange.take()] {
            // It cannot panic in a way that matters here: the tasks have ended.
            let _ = thread.map(JoinHandle::join);
        }
        let decisions = self.shared.decisions.lock();
        let tasks = self.shared.set.tasks().iter().zip(is_left).enumerate();
        let summary = tasks.map(|(index, (task, is_left))| {
            let figures = self.shared.segment.figures(index);
            let view = segment::view(figures);
            TaskSummary {
                name: task.name.clone(),
                jobs: view.jobs,
                missed: view.missed,
                lateness: view.lateness,
                response: view.response,
                execution: view.execution,
                worst_case: task.worst_case,
                trace: figures.trace(0).0,
                is_stopped: decisions.executive.is_stopped(index),
                is_left,
            }
        });
        Summary {
            tasks: summary.collect(),
            start: self.start,
            records: decisions.executive.monitor().records().copied().collect(),
            records_total: decisions.executive.monitor().total(),
            limits: self.limits(),
            lints: self.lints(),
        }
    }

    /// Waits until all threads have ended, at most so long.
    fn wait(&self, patience: Duration) {
        let start = Instant::now();
        while !self.threads.iter().all(JoinHandle::is_finished) && start.elapsed() < patience {
            std::thread::sleep(END_LOOK);
        }
    }

    /// Whether every task was stopped, so that nothing more will happen.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let decisions = self.shared.decisions.lock();
        (0..self.shared.set.tasks().len()).all(|task| decisions.executive.is_stopped(task))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
    }
}
