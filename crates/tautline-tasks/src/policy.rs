//! Scheduling that the threads and programs of a set have in the kernel.
//!
//! Under earliest deadline first each has SCHED_DEADLINE with one time as runtime, deadline and period. With such
//! parameters the kernel counts a new deadline from each wake-up, whatever came before: a thread is never held back
//! until its next period, and a late wake-up makes no later one late. The time is that of the analysis
//! ([`TaskSet::kernel_deadline`]). The kernel's test of admission would count all of the CPU for each thread, so it
//! has to be off, as in a partition; the analysis has admitted the set. Budgets are kept by the watchdog.

use std::time::Duration;

use tautline_exec::{Scheduling, TaskSet};

use crate::shared::Shared;
use crate::sys::{self, Policy};

/// Priority of all tasks of a table: its windows decide which of them runs. Lower: other real-time threads of the CPU
/// keep a window's task waiting.
const TABLE_PRIORITY: u8 = tautline_exec::task::PRIORITY_MAX;
/// Priority above all tasks.
const TOP_PRIORITY: u8 = 99;
/// Deadline above all tasks: the shortest that the kernel takes. A job that is due sooner goes first.
const TOP_DEADLINE: Duration = tautline_exec::KERNEL_DEADLINE_MIN;

/// Scheduling of the thread and of the process of a task that is a program.
pub(crate) fn of_program(set: &TaskSet, task: usize) -> (Policy, Policy) {
    let of_process = policy(set, task);
    let of_thread = match of_process {
        Policy::Deadline(_) => Policy::Deadline(set.relay_deadline(task)),
        Policy::Fifo(_) => of_process,
    };
    (of_thread, of_process)
}

/// Scheduling of whatever does the jobs of a task.
pub(crate) fn policy(set: &TaskSet, task: usize) -> Policy {
    match set.scheduling() {
        Scheduling::EarliestDeadline => Policy::Deadline(set.kernel_deadline(task)),
        _ => Policy::Fifo(set.priority(task).unwrap_or(TABLE_PRIORITY)),
    }
}

/// Puts the calling thread, the watchdog, above all tasks.
pub(crate) fn rise_above_tasks(shared: &Shared) {
    let policy = match shared.set.scheduling() {
        Scheduling::EarliestDeadline => Policy::Deadline(TOP_DEADLINE),
        _ => Policy::Fifo(TOP_PRIORITY),
    };
    // SCHED_FIFO is refused as it is for the tasks, which report it.
    if let Err(error) = sys::schedule(sys::own_number(), Some(policy))
        && let Policy::Deadline(_) = policy
    {
        shared.limit(format!(
            "budgets are looked after below all tasks ({error}): set sched_deadline_period_min_us to 100"
        ));
    }
}
