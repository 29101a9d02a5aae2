//! The command `taut`, as a library: its parts can be tested, and the programs beside it (`taut-lab`, `taut-flight`)
//! share errors, output, times and sizes with it.
//!
//! Not an interface for others: it changes with the command.

// Both panic when their reader has gone: `cli::print`, `cli::show` and `say!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// Writes a line to standard error. A reader that has gone is no error.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {
        $crate::cli::say(format_args!($($part)*))
    };
}

pub mod cli;
pub mod commands;
pub mod doctor;
pub mod external;
pub mod firewall;
pub mod help;
mod iptables;
pub mod leftovers;
pub mod namespaces;
mod stand_in;
pub mod task;
pub mod tune;
pub mod units;
