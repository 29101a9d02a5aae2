//! Which task has the processor, and until when. Reads no clock: `now` is an argument, as in `tautline-exec`.
//!
//! The guest asks after each interrupt and each end of a job. The answer follows from the executive's core alone:
//! of the jobs that may run, the one with the highest priority or the first deadline runs; in a table, the one whose
//! window is open. A job that has used up its budget, or is outside of its windows, runs below all others.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use tautline_exec::{Executive, HealthMonitor, Job, Scheduling, SetError, Task, TaskSet};

/// The tasks of a set, and the job that each has at the moment.
#[derive(Debug)]
pub struct Dispatcher {
    set: TaskSet,
    executive: Executive,
    jobs: Vec<Option<Current>>,
    /// By task: the time since which messages may wait for its next job.
    called: Vec<Option<Duration>>,
    /// The task that has the processor, and the time up to which that is charged.
    running: Option<usize>,
    charged_until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    job: Job,
    used: Duration,
}

/// Task that is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The task; `None`: no task has anything to do.
    pub task: Option<usize>,
    /// Time at which to ask again at the latest; `None`: not before the next end of a job, or message.
    pub until: Option<Duration>,
}

impl Dispatcher {
    /// The tasks of a set, released from `start` on. Tasks that messages activate are called once at the start: their
    /// ports may have got messages before.
    #[must_use]
    pub fn new(set: TaskSet, start: Duration) -> Dispatcher {
        let called = |task: &Task| task.is_by_message().then_some(start);
        Dispatcher {
            executive: Executive::new(&set, start),
            jobs: vec![None; set.tasks().len()],
            called: set.tasks().iter().map(called).collect(),
            running: None,
            charged_until: start,
            set,
        }
    }

    /// The job that a task has at the moment.
    #[must_use]
    pub fn job(&self, task: usize) -> Option<Job> {
        self.jobs[task].map(|current| current.job)
    }

    /// Records of what happened.
    #[must_use]
    pub fn monitor(&self) -> &HealthMonitor {
        self.executive.monitor()
    }

    /// Asks for another mode.
    ///
    /// # Errors
    /// A mode that the set does not have.
    pub fn request_mode(&mut self, mode: &str) -> Result<(), SetError> {
        self.executive.request_mode(mode)
    }

    /// A doorbell has rung: messages may have come for every task that they activate.
    pub fn call(&mut self, now: Duration) {
        for (called, task) in self.called.iter_mut().zip(self.set.tasks()) {
            if task.is_by_message() {
                called.get_or_insert(now);
            }
        }
    }

    /// The job of the task that runs has ended.
    pub fn end(&mut self, now: Duration) {
        self.charge(now);
        if let Some(task) = self.running.take()
            && let Some(ended) = self.jobs[task].take()
        {
            self.executive.finish(task, now, ended.used);
        }
    }

    /// Begins the jobs that are due, and returns the task that runs from `now` on.
    pub fn choose(&mut self, now: Duration) -> Choice {
        self.charge(now);
        for (task, current) in self.jobs.iter().enumerate() {
            if let Some(current) = current {
                self.executive.check(task, now, current.used);
            }
        }
        self.executive.switch(now);
        for task in 0..self.jobs.len() {
            self.begin(task, now);
        }
        let ready = (0..self.jobs.len()).filter_map(|task| Some((self.urgency(task, now)?, task)));
        self.running = ready.min().map(|(_, task)| task);
        Choice {
            task: self.running,
            until: self.next_event(now),
        }
    }

    fn charge(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.charged_until);
        self.charged_until = now;
        if let Some(task) = self.running
            && let Some(current) = &mut self.jobs[task]
        {
            current.used += passed;
        }
    }

    /// Whether a task waits for a message.
    fn waits(&self, task: usize) -> bool {
        self.set.tasks()[task].is_by_message() && self.called[task].is_none()
    }

    fn begin(&mut self, task: usize, now: Duration) {
        if self.jobs[task].is_some() || self.waits(task) {
            return;
        }
        let arrival = self.called[task].unwrap_or(now);
        if let Some(job) = self.executive.begin_message(task, arrival, now) {
            self.called[task] = None;
            self.jobs[task] = Some(Current {
                job,
                used: Duration::ZERO,
            });
        }
    }

    /// Order among the jobs that may run, the least first: within their budgets, then by priority or deadline, then by
    /// release.
    fn urgency(&self, task: usize, now: Duration) -> Option<(bool, Duration, Duration)> {
        let job = self.jobs[task]?.job;
        let order = match self.set.scheduling() {
            Scheduling::EarliestDeadline => job.deadline,
            Scheduling::Table => job.ready,
            // A higher priority is less.
            _ => Duration::from_secs((u8::MAX - self.set.priority(task).unwrap_or(0)).into()),
        };
        Some((self.executive.is_below(task, now), order, job.release))
    }

    /// The next time after `now` at which the answer may be another one.
    fn next_event(&self, now: Duration) -> Option<Duration> {
        let after = Duration::from_nanos(1);
        let events = (0..self.jobs.len()).flat_map(|task| match self.jobs[task] {
            // Its budget counts while it runs; its deadline always.
            Some(current) => {
                let budget = self.set.tasks()[task].budget;
                let left = budget.filter(|_| self.running == Some(task));
                [
                    left.map(|budget| now + budget.saturating_sub(current.used)),
                    Some(current.job.deadline + after),
                ]
            }
            None if self.waits(task) => [None, None],
            None => [self.executive.next_release(task, now), None],
        });
        let boundary = self.executive.next_boundary(now);
        events
            .flatten()
            .chain(boundary)
            .filter(|at| *at > now)
            .min()
    }
}

#[cfg(test)]
mod tests;
