//! Declarations of a set for its table.

use core::time::Duration;

use alloc::vec::Vec;

/// Window of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the task in the set.
    pub task: usize,
    /// Start, from the start of the major frame.
    pub offset: Duration,
    /// Length.
    pub duration: Duration,
}

impl Window {
    /// End, from the start of the major frame.
    #[must_use]
    pub fn end(&self) -> Duration {
        self.offset + self.duration
    }
}

/// Declarations for a table. The default leaves everything to be found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePlan {
    /// Minor frame; `None` takes the greatest common divisor of periods and phases, or the shortest other one with
    /// which every deadline holds.
    pub minor_frame: Option<Duration>,
    /// Windows by start; none are found if there are any. Each mode takes those of its tasks.
    pub windows: Vec<Window>,
}
