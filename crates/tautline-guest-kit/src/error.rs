//! Reasons why a guest does not run its tasks.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use tautline_exec::SetError;
use tautline_shm::vbus::shape::LayoutError;

/// The guest cannot run as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestError {
    /// The virtual machine has no window, or one of another version.
    NoWindow(LayoutError),
    /// Linux has listed no such port (`taut guest run --window`).
    NoPort(u16),
    /// The set is declared wrongly.
    Set(SetError),
    /// A task can miss its deadline, and does not say why that is acceptable.
    Refused {
        /// Name of the task.
        task: String,
        /// Time by which it can be late at the least; `None` if there is no bound.
        by: Option<Duration>,
    },
    /// The set has no task of this name.
    UnknownTask(String),
    /// The task has code already.
    BodyRepeated(String),
    /// The task has no code.
    NoBody(String),
}

impl fmt::Display for GuestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestError::NoWindow(error) => write!(formatter, "there is no window: {error:?}"),
            GuestError::NoPort(port) => write!(formatter, "Linux lists no port {port}"),
            GuestError::Set(error) => write!(formatter, "{error}"),
            GuestError::Refused { task, by: Some(by) } => {
                write!(
                    formatter,
                    "`{task}` can miss its deadline by {by:?} or more"
                )
            }
            GuestError::Refused { task, by: None } => {
                write!(formatter, "`{task}` can miss its deadline")
            }
            GuestError::UnknownTask(task) => write!(formatter, "the set has no task `{task}`"),
            GuestError::BodyRepeated(task) => {
                write!(formatter, "task `{task}` has its code already")
            }
            GuestError::NoBody(task) => write!(formatter, "task `{task}` has no code"),
        }
    }
}

impl core::error::Error for GuestError {}

impl From<SetError> for GuestError {
    fn from(error: SetError) -> Self {
        GuestError::Set(error)
    }
}
