//! The core of the real-time executive: task sets, their analysis, and the decisions about each job.
//!
//! No function here reads a clock or makes a system call; `now` is an argument, a time since the zero of the caller's
//! clock. So the same code runs in a program on Linux, in a guest without an operating system and in a simulation,
//! and a failure in simulation repeats from its seed. There is no unsafe code. Memory is taken when a set is
//! declared or analysed and when an [`Executive`] is made; its decisions take none.
//!
//! # A tour
//!
//! A [`TaskSet`] holds what an engineer declares of the tasks of one CPU; [`Analysis`] says whether every task holds
//! its deadline, before any of them has run:
//!
//! ```
//! use core::time::Duration;
//! use tautline_exec::{Action, Analysis, Executive, Task, TaskSet};
//!
//! let (ms, us) = (Duration::from_millis, Duration::from_micros);
//! let mut control = Task::periodic("control", ms(1), us(200));
//! control.budget = Some(us(300));
//! let set = TaskSet::new(vec![control, Task::periodic("vision", ms(10), ms(4))])?;
//! let analysis = Analysis::of(&set, "")?;
//! assert!(analysis.is_admitted(&set));
//! assert_eq!(analysis.responses[1].response, Some(us(5_800)));
//! assert_eq!(analysis.headroom_permille(&set), 1_428);
//!
//! // The runtime asks the executive about each job.
//! let mut executive = Executive::new(&set, ms(100));
//! assert_eq!(executive.next_release(0, ms(100)), Some(ms(100)));
//! let job = executive.begin(0, ms(100)).expect("the first job is due");
//! assert_eq!(job.deadline, ms(101));
//! // It has run for 310 µs, more than its budget: from now on no other job waits for it.
//! let used = us(310);
//! assert_eq!(executive.check(0, ms(100) + used, used), Some(Action::Demoted));
//! # Ok::<(), tautline_exec::SetError>(())
//! ```
//!
//! * [`task`]: declarations and their limits; [`error`]: what is wrong with one, where, and the remedy.
//! * [`analysis`]: admission; [`response`]: the recurrence of fixed priorities (earliest deadline first is analysed by
//!   demand); [`table`]: static cyclic tables.
//! * [`executive`]: releases, overruns, budgets and modes at run time; [`monitor`]: events and
//!   reactions.
//!
//! # What it is not
//!
//! It starts no thread and measures nothing. A set is the tasks of one CPU: tasks that move between CPUs are not
//! analysed.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod analysis;
mod demand;
mod early;
pub mod error;
pub mod executive;
mod limits;
pub mod monitor;
mod plan;
pub mod response;
pub mod table;
pub mod task;
mod windows;

pub use analysis::Analysis;
pub use early::EARLY_MAX;
pub use error::{Fault, Location, SetError};
pub use executive::{Executive, Job};
pub use limits::{HYPERPERIOD_MAX, JOBS_MAX, KERNEL_DEADLINE_MIN, NAME_BYTES_MAX};
pub use monitor::{Action, Event, HealthMonitor, HealthRecord};
pub use plan::{TablePlan, Window};
pub use response::TaskResponse;
pub use table::Table;
pub use task::{
    Activation, BUDGET_STEP, Machine, OverrunPolicy, Receive, Scheduling, Task, TaskSet,
};
