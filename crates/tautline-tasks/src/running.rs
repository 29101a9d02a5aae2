//! A set that runs: its figures, its modes, and its end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::partition::Partition;
use tautline_exec::{Action, HealthRecord};

use crate::error::RunError;
use crate::executive::{by_message, index_of};
use crate::file::TaskGuest;
use crate::run_file::{self, TaskView};
use crate::shared::Shared;
use crate::summary::{Summary, TaskSummary};
use crate::sys;

/// Time for a thread to end whose program was killed. Lower: on a busy machine it is left behind. Higher: nothing is
/// gained.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// Distance of looks at threads that end.
const END_LOOK: Duration = Duration::from_millis(1);

/// A set that runs. Dropped, it stops without waiting.
///
/// It belongs to the process that started it. In a child of fork(2) its calls are refused or do nothing, and dropping
/// it there leaves the parent's tasks alone.
pub struct Running {
    pub(crate) shared: Arc<Shared>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// Time of the first release.
    pub(crate) start: Duration,
    pub(crate) watchdog: Option<JoinHandle<()>>,
    pub(crate) idle: Option<JoinHandle<()>>,
    /// Put back after the threads have ended.
    pub(crate) _partition: Option<Box<Partition>>,
}

/// Activates one task by a message; for the thread that receives it.
#[derive(Clone)]
pub struct Trigger {
    shared: Arc<Shared>,
    task: usize,
}

impl Trigger {
    /// Activates the task once, by a message that arrives now. Messages are counted while the task runs. Those that
    /// come sooner than its period allows wait until it is over. Takes a lock for some instructions, whose holder
    /// inherits the priority of those who wait for it. Does nothing in a process that was forked from the set's.
    pub fn fire(&self) {
        if !self.shared.process.is_current() {
            return;
        }
        let arrival = sys::monotonic();
        let mut decisions = self.shared.decisions.lock();
        let arrivals = &mut decisions.triggered[self.task];
        let is_first = arrivals.first().is_none();
        arrivals.push(arrival);
        drop(decisions);
        // While others wait, the task is awake or sleeps until its next release.
        if is_first {
            self.shared.signals[self.task].wake();
        }
    }
}

impl Running {
    /// Settings that were asked for and could not be had, each with the reason and the remedy.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let limits = self.shared.limits.lock();
        limits.unwrap_or_else(|error| error.into_inner()).clone()
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
    /// A mode that the set does not have, [`RunError::OtherProcess`].
    pub fn request_mode(&self, mode: &str) -> Result<(), RunError> {
        self.shared.process.check()?;
        let now = sys::monotonic();
        {
            let mut decisions = self.shared.decisions.lock();
            decisions.executive.request_mode(mode)?;
            self.shared.switch(&mut decisions, now);
        }
        self.shared.wake_all();
        Ok(())
    }

    /// Tells the health monitor that a guest has ended that a task works with. The set goes to its safe mode if the
    /// file says so.
    pub fn guest_ended(&self, guest: &TaskGuest) -> Action {
        let now = sys::monotonic();
        let action = {
            let mut decisions = self.shared.decisions.lock();
            let executive = &mut decisions.executive;
            let action = executive.partner_ended(guest.task, now, guest.is_grave);
            self.shared.switch(&mut decisions, now);
            action
        };
        self.shared.wake_all();
        action
    }

    /// Trigger of a task that messages activate.
    ///
    /// # Errors
    /// [`RunError::UnknownTask`], [`RunError::NotByMessage`], [`RunError::OtherProcess`].
    pub fn trigger(&self, task: &str) -> Result<Trigger, RunError> {
        self.shared.process.check()?;
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
        Ok(run_file::view(self.shared.run_file.figures(index)))
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
    /// return is left to itself, below all others. In a process that was forked from the set's, nothing is stopped and
    /// the summary is empty.
    #[must_use]
    pub fn stop(mut self, patience: Duration) -> Summary {
        if !self.shared.process.is_current() {
            return Summary::empty(self.start);
        }
        self.shared.stop();
        self.wait(patience);
        let is_left: Vec<bool> = self.threads.iter().map(|one| !one.is_finished()).collect();
        if is_left.contains(&true) {
            // A program that does not answer can be killed; code cannot.
            let left = (0..self.threads.len()).filter(|task| is_left[*task]);
            let killed = left.filter(|task| self.shared.kill_program(*task));
            if killed.count() > 0 {
                self.wait(KILL_PATIENCE);
            }
        }
        for thread in [self.watchdog.take(), self.idle.take()] {
            // It cannot panic in a way that matters here: the tasks have ended.
            let _ = thread.map(JoinHandle::join);
        }
        let decisions = self.shared.decisions.lock();
        let tasks = self.shared.set.tasks().iter().zip(is_left).enumerate();
        let summary = tasks.map(|(index, (task, is_left))| {
            let figures = self.shared.run_file.figures(index);
            let view = run_file::view(figures);
            TaskSummary {
                name: task.name.clone(),
                jobs: view.jobs,
                missed: view.missed,
                lateness: view.lateness,
                response: view.response,
                latency: task.is_by_message().then_some(view.latency),
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
        if !self.shared.process.is_current() {
            // Threads that this process does not have, and that the C library must not be asked about.
            std::mem::forget(std::mem::take(&mut self.threads));
            std::mem::forget((self.watchdog.take(), self.idle.take()));
            return;
        }
        self.shared.stop();
    }
}
