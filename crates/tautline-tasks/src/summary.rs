//! Figures of a run that has ended.

use std::fmt;
use std::time::Duration;

use tautline_exec::HealthRecord;

use crate::figures::{Times, TracedJob};

/// Figures of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskSummary {
    /// Its name.
    pub name: String,
    /// Jobs that ended.
    pub jobs: u64,
    /// Jobs that ended after their deadline.
    pub missed: u64,
    /// Time from the release of a job, or in a table from the start of its window, until it began to run.
    pub lateness: Times,
    /// Time from the release of a job until it ended.
    pub response: Times,
    /// Time from the arrival of a message until its job ended; `None` for a task that time activates.
    pub latency: Option<Times>,
    /// Execution time of a job.
    pub execution: Times,
    /// Worst case that the set declares.
    pub worst_case: Duration,
    /// The last jobs, the oldest first.
    pub trace: Vec<TracedJob>,
    /// Whether the task was stopped, by its overrun policy or because it failed.
    pub is_stopped: bool,
    /// Whether its thread did not end in time, because a job did not return. It goes on below all others.
    pub is_left: bool,
}

impl TaskSummary {
    /// Whether a job executed for longer than the set declares, so that the analysis does not hold.
    #[must_use]
    pub fn exceeded(&self) -> bool {
        self.execution.max > self.worst_case
    }
}

/// Figures of a run, and the last health records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// In the order of the set.
    pub tasks: Vec<TaskSummary>,
    /// Time of the first release, on `CLOCK_MONOTONIC`.
    pub start: Duration,
    /// Records that are kept, the oldest first.
    pub records: Vec<HealthRecord>,
    /// Records since the start.
    pub records_total: u64,
    /// Settings that could not be had and faults of programs, each with reason and remedy.
    pub limits: Vec<String>,
}

impl Summary {
    /// Summary without tasks, of a set that began at `start`.
    pub(crate) fn empty(start: Duration) -> Self {
        Self {
            tasks: Vec::new(),
            start,
            records: Vec::new(),
            records_total: 0,
            limits: Vec::new(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for task in &self.tasks {
            write!(
                formatter,
                "{}: {} jobs, {} missed, response p50 {:?} p99 {:?} max {:?}, execution max {:?}",
                task.name,
                task.jobs,
                task.missed,
                task.response.p50,
                task.response.p99,
                task.response.max,
                task.execution.max
            )?;
            if let Some(latency) = task.latency {
                write!(
                    formatter,
                    ", from the arrival p50 {:?} p99 {:?} max {:?}",
                    latency.p50, latency.p99, latency.max
                )?;
            }
            if task.exceeded() {
                write!(formatter, ", more than the declared {:?}", task.worst_case)?;
            }
            if task.is_stopped {
                write!(formatter, ", stopped")?;
            }
            if task.is_left {
                write!(formatter, ", its job did not return")?;
            }
            writeln!(formatter)?;
        }
        write!(formatter, "{} health records", self.records_total)
    }
}
