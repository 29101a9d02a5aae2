//! The real-time executive on Linux: the tasks of a set as threads that keep their deadlines.
//!
//! An [`Executive`] takes a [`TaskSet`](tautline_exec::TaskSet) and the code of each task, refuses a set whose
//! analysis finds a missed deadline, and runs the rest: each task in a thread at its priority under SCHED_FIFO, woken
//! at absolute times, with memory locked and the stack resident before the first job. A job that uses up its budget
//! goes on below all others, and so does one of a table outside of its windows; overruns are handled as each task
//! declares; a task that panics stops alone and goes to its safe state. Records of all that are kept, as ARINC 653's
//! health monitor does.
//!
//! ```
//! use std::time::Duration;
//! use tautline_exec::{Task, TaskSet};
//! use tautline_tasks::{Executive, Options};
//!
//! let ms = Duration::from_millis;
//! let set = TaskSet::new(vec![
//!     Task::periodic("control", ms(2), Duration::from_micros(100)),
//!     Task::periodic("log", ms(10), ms(1)),
//! ])?;
//! let mut executive = Executive::new(set)?;
//! let mut position = 0.0;
//! executive.task("control", move |_job: &tautline_exec::Job| position += 0.1)?;
//! executive.task("log", |job: &tautline_exec::Job| assert!(job.number > 0))?;
//! let running = executive.start(&Options::default())?;
//! std::thread::sleep(ms(50));
//! let summary = running.stop(ms(1_000));
//! assert!(summary.tasks[0].jobs > 1);
//! println!("{summary}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is not
//!
//! It is not the analysis, which is that of `tautline-exec`, and it sets CPUs aside only where the set names a
//! partition. Settings that are refused are no errors: the tasks run without them, and [`Running::limits`] names each
//! with its remedy.

mod error;
mod execution;
mod executive;
mod figures;
pub mod file;
mod idle;
mod message;
mod options;
pub mod partition;
mod policy;
mod program;
mod run_file;
mod running;
mod shared;
mod summary;
mod sys;
mod thread;
mod watchdog;

pub use error::RunError;
pub use executive::Executive;
pub use figures::{Interval, TaskState, Times, TracedJob};
pub use message::{MessageHead, MessageSource, OnMessage};
pub use options::Options;
pub use program::Program;
pub use run_file::{Description, Look, TaskDescription, TaskView, View, runs};
pub use running::{Running, Trigger};
pub use summary::{Summary, TaskSummary};
pub use thread::{TaskBody, WithSafeState};
