//! Scheduling that the tasks of a set have in the kernel.

use std::io;

use tautline_exec::{Scheduling, TaskSet};

use crate::error::RunError;
use crate::sys::{self, Urgency};

/// Priority of all tasks of a table: its windows decide which of them runs. Lower: other real-time threads of the CPU
/// keep a window's task waiting.
const TABLE_PRIORITY: u8 = tautline_exec::task::PRIORITY_MAX;

/// Scheduling of a task's thread.
pub(crate) fn urgency(set: &TaskSet, task: usize) -> Urgency {
    let declared = &set.tasks()[task];
    match set.scheduling() {
        Scheduling::EarliestDeadline => Urgency::Deadline {
            runtime: (declared.charged() + set.machine().overhead).min(declared.deadline),
            deadline: declared.deadline,
            period: declared.period,
        },
        _ => Urgency::Fifo(set.priority(task).unwrap_or(TABLE_PRIORITY)),
    }
}

/// Tries whether threads of this process may have SCHED_DEADLINE where the tasks will run.
pub(crate) fn try_deadline(set: &TaskSet, cpu: Option<usize>) -> Result<(), RunError> {
    let urgency = urgency(set, 0);
    let tried = std::thread::spawn(move || {
        if let Some(cpu) = cpu {
            sys::stay_on(cpu);
        }
        sys::schedule(sys::own_number(), Some(urgency))
    });
    let tried = tried
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("no answer")));
    tried.map_err(RunError::DeadlineRefused)
}
