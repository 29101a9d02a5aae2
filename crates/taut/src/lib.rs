//! The command `taut`, as a library so that its parts can be tested.
//!
//! Not an interface for others: it changes with the command.

// Both panic when their reader has gone: `cli::print`, `cli::show` and `say!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// Writes a line to standard error. A reader that has gone is no error.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::cli::say(format_args!($($part)*))
    };
}

pub mod cli;
pub mod commands;
pub mod doctor;
pub mod firewall;
pub mod lab;
pub mod leftovers;
pub mod task;
pub mod tune;
pub mod units;
