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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Window;
    use core::time::Duration;

    fn windows() -> Windows {
        let window = |task, offset, duration| Window {
            task,
            offset: Duration::from_nanos(offset),
            duration: Duration::from_nanos(duration),
        };
        let table = Table {
            major_frame: Duration::from_nanos(100),
            windows: vec![window(0, 0, 10), window(1, 10, 5), window(0, 50, 20)],
            ..Table::default()
        };
        Windows::of(&table, 3)
    }

    fn at(start: u64, end: u64) -> Option<Opening> {
        Some(Opening { start, end })
    }

    #[test]
    fn a_window_is_open_from_its_start_until_before_its_end() {
        let windows = windows();
        assert_eq!(windows.open_at(0, 0), at(0, 10));
        assert_eq!(windows.open_at(0, 9), at(0, 10));
        assert_eq!(windows.open_at(0, 10), None);
        assert_eq!(windows.open_at(0, 369), at(350, 370));
        assert_eq!(windows.open_at(1, 9), None);
        assert_eq!(windows.open_at(2, 0), None);
    }

    #[test]
    fn the_next_window_may_be_in_the_next_major_frame() {
        let windows = windows();
        assert_eq!(windows.opening(0, 0), at(0, 10));
        assert_eq!(windows.opening(0, 1), at(50, 70));
        assert_eq!(windows.opening(0, 51), at(100, 110));
        assert_eq!(windows.opening(1, 211), at(310, 315));
        assert_eq!(windows.opening(2, 0), None);
    }

    #[test]
    fn a_window_that_opened_before_the_release_is_not_usable() {
        let windows = windows();
        assert_eq!(
            windows.usable(0, 50, 55),
            at(50, 70),
            "open, and late in it"
        );
        assert_eq!(windows.usable(0, 51, 55), at(100, 110), "opened too early");
        assert_eq!(
            windows.usable(0, 0, 30),
            at(50, 70),
            "the first one has passed"
        );
        assert_eq!(windows.usable(0, 130, 20), at(150, 170), "not released yet");
    }
}
