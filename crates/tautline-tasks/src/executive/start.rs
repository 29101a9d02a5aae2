//! Starting a set: its partition, its threads and programs, and the first release that all of them wait for.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_awake::cpu;

use crate::partition::{Partition, PartitionConfig, PartitionError};
use tautline_exec::TaskSet;
use tautline_state::fork::OwnerProcess;

use super::Executive;
use crate::error::RunError;
use crate::execution::{Body, Worker};
use crate::idle;
use crate::message::{Arrivals, MessageSource};
use crate::options::Options;
use crate::policy::policy;
use crate::run_file::{Description, RunFile, TaskDescription};
use crate::running::Running;
use crate::shared::{Decisions, Ready, Shared, Signal};
use crate::sys::{Policy, PriorityMutex};
use crate::thread::{self, TaskThread};
use crate::watchdog;

/// Start of a set that is not ready, far beyond any clock and within what the kernel takes.
const OUT_OF_REACH: Duration = Duration::from_secs(1 << 40);
/// Stack of a task. Lower: ordinary code overflows it. Higher: 64 tasks lock memory without use.
const STACK_BYTES: usize = 512 * 1024;

impl Executive {
    /// Starts all tasks together, in the first mode. Puts a hook before the process's panic hook, by which a task
    /// that panics loses its priority before its message is written.
    ///
    /// # Errors
    /// [`RunError::NoBody`], [`RunError::Partition`], [`RunError::Program`], [`RunError::DeadlineRefused`],
    /// [`RunError::System`].
    pub fn start(self, options: &Options) -> Result<Running, RunError> {
        if let Some(task) = self.bodies.iter().position(Option::is_none) {
            let task = self.set.tasks()[task].name.clone();
            return Err(RunError::NoBody { task });
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
        thread::demote_on_panic();
        if options.lock_memory
            && let Err(error) = tautline_state::memory::lock_all()
        {
            limits.push(format!(
                "memory is not locked ({error}): raise the limit (ulimit -l unlimited) or grant CAP_IPC_LOCK"
            ));
        }
        let (run_file, refused) = RunFile::new(&self.description())?;
        limits.extend(refused);
        let shared = Arc::new(shared(self.set, &self.sources, run_file, limits)?);
        let mut running = Running {
            threads: Vec::new(),
            watchdog: None,
            idle: None,
            start: Duration::ZERO,
            shared: shared.clone(),
            _partition: partition.map(Box::new),
        };
        let bodies = self.bodies.into_iter().flatten().zip(self.sources);
        let workers = start_threads(&mut running, bodies, options)?;
        if self.is_awake {
            running.idle = idle::start(&shared, options)?;
        }
        let (watchdog, start) = watchdog::start(&shared, workers, options)?;
        (running.watchdog, running.start) = (Some(watchdog), start);
        Ok(running)
    }

    fn description(&self) -> Description {
        let tasks = self.set.tasks().iter().enumerate();
        let describe = |(index, task): (usize, &tautline_exec::Task)| TaskDescription {
            name: task.name.clone(),
            priority: match policy(&self.set, index) {
                Policy::Fifo(priority) => priority,
                Policy::Deadline(_) => 0,
            },
            period: task.period,
            deadline: task.deadline,
            worst_case: task.worst_case,
            bound: self.bounds[index],
            is_by_message: task.is_by_message(),
        };
        Description {
            name: self.name.clone(),
            process: std::process::id(),
            modes: self.set.mode_names().map(str::to_owned).collect(),
            tasks: tasks.map(describe).collect(),
        }
    }
}

/// Moves this process into the partition of the set, and returns the partition if it had to be made.
fn enter(
    config: &PartitionConfig,
    limits: &mut Vec<String>,
) -> Result<Option<Partition>, PartitionError> {
    let partition = match Partition::create(config) {
        Err(PartitionError::Exists(name)) => {
            let found = crate::partition::find(&name)?;
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

/// Of a set that has not begun.
fn shared(
    set: TaskSet,
    sources: &[Option<MessageSource>],
    run_file: RunFile,
    limits: Vec<String>,
) -> Result<Shared, RunError> {
    let count = set.tasks().len();
    let mut by_urgency: Vec<usize> = (0..count).collect();
    by_urgency.sort_by_key(|task| (Reverse(set.priority(*task)), set.tasks()[*task].deadline));
    Ok(Shared {
        decisions: PriorityMutex::new(Decisions {
            executive: tautline_exec::Executive::new(&set, OUT_OF_REACH),
            jobs: vec![None; count],
            triggered: (0..count).map(|_| Arrivals::new()).collect(),
            wakes_watchdog: false,
        })?,
        signals: sources.iter().map(Signal::of).collect::<Result<_, _>>()?,
        by_urgency,
        watchdog: Signal::default(),
        idle: Signal::default(),
        releases_ns: (0..count).map(|_| AtomicU64::new(0)).collect(),
        is_stopping: AtomicBool::new(false),
        limits: Mutex::new(limits),
        programs: Mutex::new((0..count).map(|_| None).collect()),
        run_file,
        process: OwnerProcess::current(),
        set,
    })
}

/// A thread for each task, and the programs that they started. No task begins before all have their settings: until
/// then the first release is out of reach.
fn start_threads(
    running: &mut Running,
    bodies: impl Iterator<Item = (Body, Option<MessageSource>)>,
    options: &Options,
) -> Result<Vec<(usize, Worker)>, RunError> {
    let shared = running.shared.clone();
    let ready = Arc::new(Ready::new());
    for (index, (body, source)) in bodies.enumerate() {
        let thread = TaskThread {
            shared: shared.clone(),
            index,
            options: options.clone(),
            early: match options.real_time && !cpu::is_limited() {
                true => shared.set.early(index),
                false => Duration::ZERO,
            },
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
    let count = shared.set.tasks().len();
    let mut workers = Vec::with_capacity(count);
    for (task, started) in ready.wait_for(count) {
        match started {
            Ok(worker) => workers.push((task, worker)),
            Err(error) => {
                shared.stop();
                return Err(error);
            }
        }
    }
    Ok(workers)
}
