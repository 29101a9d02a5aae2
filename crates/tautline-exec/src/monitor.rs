//! The health monitor, as in ARINC 653: events, their tasks, and the reactions.

use alloc::collections::VecDeque;
use core::time::Duration;

/// Records that are kept. Lower: one overload displaces the record of its cause. Higher: more memory.
pub const RECORDS_MAX: usize = 256;

/// Event that concerns a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A job was not done by its deadline.
    DeadlineMissed,
    /// A job used up its budget before it ended.
    BudgetExceeded {
        /// Execution time when that was noticed.
        used: Duration,
    },
    /// A job of a table still ran when its last window before the next release had ended.
    WindowsExceeded {
        /// Execution time when that was noticed.
        used: Duration,
    },
    /// A job still ran when later ones were released.
    Overrun {
        /// Number of those releases.
        releases: u64,
    },
    /// Messages activate a task more often than its period allows, and wait ever longer for their release.
    MessagesTooFast {
        /// Mean distance of the messages since the last one that was released at once.
        distance: Duration,
        /// Time from the arrival of a message to its release.
        behind: Duration,
    },
    /// The task panicked, or its process ended.
    Failed,
    /// Something that the task works with, outside the set, has ended: a guest, for one.
    PartnerEnded,
}

/// Reaction of the executive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Nothing beyond the record.
    Recorded,
    /// The job goes on below all tasks that are within their budgets, until it ends.
    Demoted,
    /// Releases were left out.
    Skipped {
        /// Number of them.
        releases: u64,
    },
    /// Releases are made up for at once, after some were left out.
    CatchingUp {
        /// Number of releases that are made up for.
        releases: u64,
        /// Number of releases left out.
        skipped: u64,
    },
    /// The task is stopped, and its outputs go to their safe values.
    Stopped,
    /// The set goes to its safe mode.
    SafeMode,
}

/// Entry of the health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthRecord {
    /// Time on the caller's clock.
    pub at: Duration,
    /// Index of the task in its set.
    pub task: usize,
    /// The event.
    pub event: Event,
    /// The reaction to it.
    pub action: Action,
}

/// The last [`RECORDS_MAX`] records. All memory is taken when it is made.
///
/// ```
/// use core::time::Duration;
/// use tautline_exec::{Action, Event, HealthMonitor, HealthRecord};
///
/// let mut monitor = HealthMonitor::new();
/// monitor.record(HealthRecord {
///     at: Duration::from_millis(3),
///     task: 0,
///     event: Event::DeadlineMissed,
///     action: Action::Recorded,
/// });
/// assert_eq!(monitor.total(), 1);
/// assert_eq!(monitor.records().next().map(|record| record.task), Some(0));
/// ```
#[derive(Clone, Debug)]
pub struct HealthMonitor {
    records: VecDeque<HealthRecord>,
    total: u64,
}

impl Default for HealthMonitor {
    fn default() -> Self {
        Self::new()
    }
}

impl HealthMonitor {
    /// An empty monitor.
    #[must_use]
    pub fn new() -> Self {
        Self {
            records: VecDeque::with_capacity(RECORDS_MAX),
            total: 0,
        }
    }

    /// Keeps a record. The oldest gives way if there is no room.
    pub fn record(&mut self, record: HealthRecord) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
        self.total += 1;
    }

    /// Records that are kept, the oldest first.
    pub fn records(&self) -> impl Iterator<Item = &HealthRecord> {
        self.records.iter()
    }

    /// Records since the start.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way_and_is_counted() {
        let mut monitor = HealthMonitor::new();
        for task in 0..RECORDS_MAX + 3 {
            monitor.record(HealthRecord {
                at: Duration::ZERO,
                task,
                event: Event::Failed,
                action: Action::Stopped,
            });
        }
        assert_eq!(monitor.total(), RECORDS_MAX as u64 + 3);
        assert_eq!(monitor.records().next().unwrap().task, 3);
        assert_eq!(monitor.records().count(), RECORDS_MAX);
    }
}
