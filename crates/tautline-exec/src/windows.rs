//! Windows of a table at run time: the window of a task that is open, and the one that opens next.
//!
//! All times are since the start of the mode, in nanoseconds.

use alloc::vec;
use alloc::vec::Vec;

use crate::table::Table;
use crate::task::ns;

/// Windows of one mode, by task. Looking one up takes a bisection.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    major: u64,
    /// Start and end of each, in order, within the major frame.
    by_task: Vec<Vec<(u64, u64)>>,
}

/// A window at its place in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) start: u64,
    /// The first moment after it.
    pub(crate) end: u64,
}

impl Windows {
    pub(crate) fn of(table: &Table, task_count: usize) -> Windows {
        let mut by_task = vec![Vec::new(); task_count];
        for window in &table.windows {
            by_task[window.task].push((ns(window.offset), ns(window.end())));
        }
        Windows {
            major: ns(table.major_frame).max(1),
            by_task,
        }
    }

    /// The window that is open at a time.
    pub(crate) fn open_at(&self, task: usize, time: u64) -> Option<Opening> {
        let windows = &self.by_task[task];
        let within = time % self.major;
        let opened = windows.partition_point(|(start, _)| *start <= within);
        let window = windows[..opened].last()?;
        let found = self.place(time, *window);
        (time < found.end).then_some(found)
    }

    /// The first window that opens at this time or later. `None` for a task without windows.
    pub(crate) fn opening(&self, task: usize, from: u64) -> Option<Opening> {
        let windows = &self.by_task[task];
        let within = from % self.major;
        let passed = windows.partition_point(|(start, _)| *start < within);
        match windows.get(passed) {
            Some(window) => Some(self.place(from, *window)),
            None => Some(self.place(from + self.major, *windows.first()?)),
        }
    }

    /// The window that a job of this release may use at `now`: one that opened at the release or later, and is open
    /// or opens next.
    pub(crate) fn usable(&self, task: usize, release: u64, now: u64) -> Option<Opening> {
        let open = self.open_at(task, now);
        match open.filter(|open| open.start >= release) {
            Some(open) => Some(open),
            None => self.opening(task, release.max(now)),
        }
    }

    /// A window in the major frame of a time.
    fn place(&self, time: u64, (start, end): (u64, u64)) -> Opening {
        let frame = time - time % self.major;
        Opening {
            start: frame + start,
            end: frame + end,
        }
    }
}
