//! Scheduling that the tasks of a set have in the kernel.

use std::io;
use std::time::Duration;

use tautline_exec::{Scheduling, TaskSet};

use crate::error::RunError;
use crate::sys::{self, Urgency};

/// Priority of all tasks of a table: its windows decide which of them runs. Lower: other real-time threads of the CPU
/// keep a window's task waiting.
const TABLE_PRIORITY: u8 = tautline_exec::task::PRIORITY_MAX;

/// Shortest share of the thread that waits for a program under SCHED_DEADLINE. Lower: the kernel throttles the thread
/// before it has read the answer, which then comes a period late. Higher: sets are refused for want of it.
pub(crate) const RELAY_MIN: Duration = Duration::from_micros(50);

/// Scheduling of the thread and of the process of a task that is a program. Under SCHED_DEADLINE each has a share of
/// its own: the thread that of the machine's overhead, the process that of its jobs. Together they are the share that
/// the analysis reckons with.
pub(crate) fn of_program(set: &TaskSet, task: usize) -> (Urgency, Urgency) {
    let whole = urgency(set, task);
    let Urgency::Deadline {
        deadline, period, ..
    } = whole
    else {
        return (whole, whole);
    };
    let share = |runtime: Duration| Urgency::Deadline {
        runtime: runtime.min(deadline),
        deadline,
        period,
    };
    let charged = set.tasks()[task].charged();
    (share(set.machine().overhead), share(charged))
}

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
