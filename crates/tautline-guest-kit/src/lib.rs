//! Programs in Rust as guests of `taut guest run`: the executive's core on a processor of its own, and ports to Linux.
//!
//! A guest declares its tasks as a program on Linux does, by `tautline-exec`, and has them admitted by the same
//! analysis. `Executive` runs them: each task has a stack of its own, and the guest's timer and doorbell preempt
//! whatever runs, so that priorities, budgets, modes and tables hold as they do on Linux. [`Window`] and [`Port`] are
//! the guest's side of V-Bus.
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//! use core::time::Duration;
//! use tautline_guest_kit::{Executive, GuestError, Job, Task, TaskSet, println};
//!
//! tautline_guest_kit::program!(main);
//!
//! fn main() -> Result<(), GuestError> {
//!     let ms = Duration::from_millis;
//!     let mut executive = Executive::new(TaskSet::new(vec![Task::periodic("blink", ms(100), ms(1))])?)?;
//!     executive.task("blink", |job: &Job| println!("job {}", job.number))?;
//!     executive.run()
//! }
//! ```
//!
//! * [`window`]: the window and its ports. [`dispatch`]: which task runs, and until when; it reads no clock.
//! * `board` (guests alone): start, clock, console, memory, and the change from one task's stack to another's. Start
//!   code and devices are those of the kit in C (`bindings/guest`), with which a program is linked.
//!
//! # What it is not
//!
//! There is one processor. On x86-64 there is no floating point. Memory is taken and hardly ever given back: take it
//! before the tasks run.
#![no_std]

extern crate alloc;

#[cfg(target_os = "none")]
mod board;
pub mod dispatch;
mod error;
pub mod window;

#[cfg(target_os = "none")]
pub use board::{
    Console, Executive, SharedValue, fail, join, main, now, off, request_mode, reset, with_monitor,
};
pub use error::GuestError;
pub use tautline_exec::{
    Activation, Analysis, HealthMonitor, Job, OverrunPolicy, Scheduling, Task, TaskSet,
};
pub use window::{Address, Message, Port, Window};

/// Makes a function `fn() -> Result<(), GuestError>` the program. When it returns, the guest switches itself off; an
/// error goes to the console, and the guest has failed.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn guest_main() {
            $crate::main($main);
        }
    };
}

/// Writes a line to the console.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {{
        use ::core::fmt::Write as _;
        // The console takes everything.
        let _ = ::core::writeln!($crate::Console, $($argument)*);
    }};
}
