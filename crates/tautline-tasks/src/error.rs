//! Reasons why a set is not run, each with its remedy.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::partition::PartitionError;
use tautline_exec::SetError;
use tautline_state::fork::OtherProcess;

use crate::file::FileError;

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
    /// The program of a task could not be started, or did not prepare itself.
    #[error("task `{task}`: {reason}")]
    Program {
        /// Name of the task.
        task: String,
        /// Cause.
        reason: String,
    },
    /// The kernel does not give a task SCHED_DEADLINE.
    #[error("task `{task}`: SCHED_DEADLINE is refused ({error})")]
    DeadlineRefused {
        /// Name of the task.
        task: String,
        /// Answer of the kernel.
        error: io::Error,
    },
    /// The partition of the set could not be made.
    #[error("{0}")]
    Partition(#[from] PartitionError),
    /// The set was started by the process that this one was forked from.
    #[error("the set was started by another process")]
    OtherProcess,
    /// A thread or a mutex could not be made.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl From<OtherProcess> for RunError {
    fn from(_: OtherProcess) -> Self {
        Self::OtherProcess
    }
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
            RunError::Program { .. } => {
                "check the path in `exec`; the program must answer job 0 (docs/reference/executive.md, \"Tasks that are programs\")"
            }
            RunError::DeadlineRefused { .. } => {
                "run the set as root in a partition (`[partition]` in its file), which sets sched_rt_runtime_us to -1, \
                 or use fixed priorities"
            }
            RunError::Partition(error) => error.remedy(),
            RunError::OtherProcess => "start it after fork",
            RunError::System(_) => "raise the limits of threads and memory (ulimit -a)",
        }
    }
}
