//! Errors of a declaration: where, the fault, and the remedy.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::limits::{HYPERPERIOD_MAX, JOBS_MAX, KERNEL_DEADLINE_MIN, NAME_BYTES_MAX};

/// Location of a declaration, with the key of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A key of the whole set.
    Set(&'static str),
    /// A key of the machine.
    Machine(&'static str),
    /// Index among the entries of receive processing, and key.
    Receive(usize, &'static str),
    /// Index among the tasks, and key.
    Task(usize, &'static str),
    /// Index among the windows of a table, and key.
    Window(usize, &'static str),
}

impl Location {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Location::Set(key)
            | Location::Machine(key)
            | Location::Receive(_, key)
            | Location::Task(_, key)
            | Location::Window(_, key) => key,
        }
    }
}

/// Fault of a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing is there where at least one is needed.
    Empty,
    /// More than the limit.
    TooMany {
        /// Number that was declared.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// Not a name, or too long.
    BadName,
    /// Stands there already.
    Repeated,
    /// A time is out of range.
    TimeOutOfRange {
        /// Time that was declared.
        value: Duration,
        /// Least.
        from: Duration,
        /// Greatest.
        to: Duration,
    },
    /// A number is out of range.
    NumberOutOfRange {
        /// Number that was declared.
        value: u64,
        /// Least.
        from: u64,
        /// Greatest.
        to: u64,
    },
    /// Declared priorities are asked for and this task has none.
    PriorityAbsent,
    /// Priorities are found by themselves, or there are none, and this task declares one.
    PriorityUnused,
    /// Activation by a message in a table, whose windows are fixed.
    MessageInTable,
    /// A deadline that leaves the kernel's scheduler too little time after a late wake-up.
    DeadlineTooShort {
        /// Time that is left.
        left: Duration,
    },
    /// A critical section under earliest deadline first. The kernel lends the holder of a lock no deadline: a task
    /// that waits for it also waits for all tasks whose deadlines lie between.
    SectionByDeadline,
    /// The set has no such mode.
    UnknownMode {
        /// The mode.
        mode: String,
    },
    /// The periods have no short common multiple.
    HyperperiodTooLong,
    /// More jobs in a hyperperiod than can be looked at.
    TooManyJobs {
        /// Number of jobs.
        jobs: u64,
    },
    /// The set has no such task.
    UnknownTask,
    /// The minor frame does not divide the hyperperiod.
    MinorFrameUneven {
        /// The hyperperiod.
        hyperperiod: Duration,
    },
    /// A window reaches into the next minor frame.
    WindowCrossesFrame {
        /// The minor frame.
        minor: Duration,
    },
    /// Two windows overlap.
    WindowsOverlap {
        /// End of the window before.
        until: Duration,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Empty => write!(formatter, "at least one is needed"),
            Fault::TooMany { count, max } => {
                write!(formatter, "{count} are too many (at most {max})")
            }
            Fault::BadName => write!(
                formatter,
                "not a name: letters, digits, `_`, `-` and `.`, at most {NAME_BYTES_MAX} bytes"
            ),
            Fault::Repeated => write!(formatter, "this name is taken already"),
            Fault::TimeOutOfRange { value, from, to } => {
                write!(formatter, "{value:?} is out of range ({from:?} to {to:?})")
            }
            Fault::NumberOutOfRange { value, from, to } => {
                write!(formatter, "{value} is out of range ({from} to {to})")
            }
            Fault::PriorityAbsent => {
                write!(formatter, "declared priorities, and this task has none")
            }
            Fault::PriorityUnused => {
                write!(formatter, "has no effect unless priorities are declared")
            }
            Fault::MessageInTable => {
                write!(
                    formatter,
                    "a table has fixed windows, and messages come at any time"
                )
            }
            Fault::DeadlineTooShort { left } => write!(
                formatter,
                "leaves {left:?} after a late wake-up, and SCHED_DEADLINE takes {KERNEL_DEADLINE_MIN:?} or more"
            ),
            Fault::SectionByDeadline => write!(
                formatter,
                "a lock's holder inherits no deadline under SCHED_DEADLINE, so the wait for it has no bound"
            ),
            Fault::UnknownMode { mode } => write!(formatter, "no mode is called `{mode}`"),
            Fault::HyperperiodTooLong => write!(
                formatter,
                "the hyperperiod, the least common multiple of the periods, is longer than {HYPERPERIOD_MAX:?}"
            ),
            Fault::TooManyJobs { jobs } => {
                write!(
                    formatter,
                    "{jobs} jobs in a hyperperiod are too many (at most {JOBS_MAX})"
                )
            }
            Fault::UnknownTask => write!(formatter, "the set has no such task"),
            Fault::MinorFrameUneven { hyperperiod } => {
                write!(
                    formatter,
                    "does not divide the hyperperiod, which is {hyperperiod:?}"
                )
            }
            Fault::WindowCrossesFrame { minor } => {
                write!(formatter, "the window crosses a minor frame of {minor:?}")
            }
            Fault::WindowsOverlap { until } => {
                write!(formatter, "the window before lasts until {until:?}")
            }
        }
    }
}

/// A declaration that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetError {
    /// Location of the fault.
    pub location: Location,
    /// The fault.
    pub fault: Fault,
}

impl SetError {
    pub(crate) fn new(location: Location, fault: Fault) -> SetError {
        SetError { location, fault }
    }

    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match (&self.fault, self.location.key()) {
            (Fault::Empty, "overrun") => "let it catch up with at least one job",
            (Fault::Empty, "modes") => "give each mode at least one task, or remove the mode",
            (Fault::Empty, _) => "declare at least one task",
            (Fault::TooMany { .. }, _) => "spread them over several CPUs, with a file each",
            (Fault::BadName, _) => "choose a short name without blanks, such as `control`",
            (Fault::Repeated, _) => "give each a name of its own",
            (Fault::TimeOutOfRange { .. }, "deadline") => "use a deadline within the period",
            (Fault::TimeOutOfRange { .. }, "worst_case") => {
                "a job that takes longer than its deadline never holds it: measure it again, or split the task"
            }
            (Fault::TimeOutOfRange { .. }, "budget") => {
                "use a budget from the worst case to the deadline"
            }
            (Fault::TimeOutOfRange { .. } | Fault::NumberOutOfRange { .. }, _) => {
                "use a value within the limits"
            }
            (Fault::PriorityAbsent, _) => {
                "give every task a priority, or leave `schedule` out to have them found"
            }
            (Fault::PriorityUnused, _) => "remove it, or write schedule = \"fixed\"",
            (Fault::MessageInTable, _) => "poll the port in a task with a period",
            (Fault::DeadlineTooShort { .. }, _) => {
                "use a longer deadline, a shorter release_jitter, or fixed priorities"
            }
            (Fault::SectionByDeadline, _) => {
                "use fixed priorities, or exchange the data without a lock, as sampling ports do"
            }
            (Fault::UnknownMode { .. }, _) => "name it in `modes` at the top of the file",
            (Fault::HyperperiodTooLong, _) => {
                "choose periods that divide each other, such as 1, 2, 5 and 10 ms"
            }
            (Fault::TooManyJobs { .. }, _) => {
                "choose a shorter longest period, or put slow tasks elsewhere"
            }
            (Fault::UnknownTask, _) => "name a task of the file",
            (Fault::MinorFrameUneven { .. }, _) => {
                "leave it out for the greatest common divisor of the periods"
            }
            (Fault::WindowCrossesFrame { .. }, _) => {
                "cut the window in two, or lengthen the minor frame"
            }
            (Fault::WindowsOverlap { .. }, _) => "move the window behind the one before",
        }
    }
}

impl fmt::Display for SetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.location.key(), self.fault)
    }
}

impl core::error::Error for SetError {}
