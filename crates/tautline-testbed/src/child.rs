//! Child processes that do not outlive us, and threads moved into a network namespace.
//!
//! The only unsafe code here: what runs between fork and exec.
#![allow(unsafe_code)] // pre_exec has no safe form

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Signal, setpriority_process};
use tautline_state::child::end_with_thread;
pub use tautline_state::cpus::{allowed_cpus, pin, restrict};
pub use tautline_state::enter_network_namespace as enter;

/// Makes `command` run in `namespace` (if one is given) and die with the thread that starts it,
/// however that ends: start it from a thread that lives as long as the child is wanted.
pub fn tie(command: &mut Command, namespace: Option<Arc<File>>) -> &mut Command {
    tie_by(command, namespace, Signal::KILL)
}

/// Ties a child to its parent by a signal of the caller's choice: SIGTERM lets the process put back its changes.
pub fn tie_by(command: &mut Command, namespace: Option<Arc<File>>, signal: Signal) -> &mut Command {
    end_with_thread(command, signal);
    let Some(namespace) = namespace else {
        return command;
    };
    // SAFETY: after fork only async-signal-safe calls are allowed. The closure makes the system call setns and neither
    // allocates nor locks: rustix passes arguments straight through, and an `io::Error` from an errno is not boxed.
    unsafe { command.pre_exec(move || enter(&namespace)) }
}

/// Gives `command` the policy SCHED_FIFO with this priority from its first instruction on, where this process may give
/// it: beside loads, a program of ordinary priority can take many seconds to start.
pub fn start_at_fifo(command: &mut Command, priority: u8) -> &mut Command {
    let between_fork_and_exec = move || {
        // Without the right it starts as it is.
        let _ = schedule_fifo(priority);
        Ok(())
    };
    // SAFETY: after fork only async-signal-safe calls are allowed. The closure makes the system call
    // sched_setscheduler and neither allocates nor locks: an `io::Error` from an errno is not boxed.
    unsafe { command.pre_exec(between_fork_and_exec) }
}

/// Gives `command` this nice value from its first instruction on, where this process may give it.
pub fn start_at_nice(command: &mut Command, nice: i32) -> &mut Command {
    let between_fork_and_exec = move || {
        // Without the right it starts as it is.
        let _ = setpriority_process(None, nice);
        Ok(())
    };
    // SAFETY: after fork only async-signal-safe calls are allowed. The closure makes the system call setpriority and
    // neither allocates nor locks: rustix passes arguments straight through.
    unsafe { command.pre_exec(between_fork_and_exec) }
}

/// Gives the calling thread the policy SCHED_FIFO with this priority (1 to 99).
pub fn schedule_fifo(priority: u8) -> io::Result<()> {
    schedule_fifo_of(0, priority)
}

/// Gives a thread, which may be the kernel's, the policy SCHED_FIFO with this priority. Number 0 is the calling one.
pub fn schedule_fifo_of(thread: i32, priority: u8) -> io::Result<()> {
    crate::sys::set_fifo_of(thread, priority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_fifo_priority_is_one() {
        assert!(schedule_fifo(0).is_err());
        assert!(schedule_fifo(100).is_err());
    }
}
