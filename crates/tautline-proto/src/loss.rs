//! Counting what a peer sent and we did not get, from sequence numbers alone.
//!
//! The rule is RFC 3550's (appendix A.3): expected = highest - first + 1, lost = expected - received. Two things are
//! added. A window over the last 64 numbers tells a frame that comes late from one that comes twice, so a duplicate
//! cannot hide a loss. And a jump back begins a new run, because a peer that restarts counts from 0 again.
//!
//! Frame `s` is counted as follows, with `ahead = s - highest` and `behind = highest - s`, both modulo 2^32:
//!
//! | case | condition | what changes |
//! |---|---|---|
//! | first | nothing received yet | a run begins at `s` |
//! | advance | 1 <= ahead < 2^31 | expected += ahead, received += 1, highest = `s` |
//! | reordered | behind < 64 and not yet seen | received += 1; expected grows if `s` precedes the run's first |
//! | restart | otherwise, if `s` = 0 or behind > 1024 | restarts += 1, a run begins at `s` |
//! | duplicate | otherwise | duplicates += 1 |
//!
//! "A run begins at `s`" means: expected += 1, received += 1, highest = `s`, and only `s` has been
//! seen. A worked example:
//!
//! | frame | case | highest | expected | received | lost | duplicates | restarts |
//! |---|---|---|---|---|---|---|---|
//! | 5 | first | 5 | 1 | 1 | 0 | 0 | 0 |
//! | 6 | advance | 6 | 2 | 2 | 0 | 0 | 0 |
//! | 9 | advance by 3 | 9 | 5 | 3 | 2 | 0 | 0 |
//! | 8 | reordered | 9 | 5 | 4 | 1 | 0 | 0 |
//! | 8 | duplicate | 9 | 5 | 4 | 1 | 1 | 0 |
//! | 4 | reordered, before the first | 9 | 6 | 5 | 1 | 1 | 0 |
//! | 90 | advance by 81 | 90 | 87 | 6 | 81 | 1 | 0 |
//! | 0 | restart | 0 | 88 | 7 | 81 | 1 | 1 |
//! | 1 | advance | 1 | 89 | 8 | 81 | 1 | 1 |
//!
//! Limits of such a count:
//!
//! - A frame more than 63 behind that comes late after all stays counted as lost, and is counted as a duplicate.
//! - A second copy of frame 0 that the network made counts as a restart, and up to 63 frames that arrived between the
//!   two copies as lost. Programs that send a few frames and start again are the commoner case.
//! - A peer that restarts within 1,024 frames of its first and whose frame 0 is then lost is taken
//!   for duplicates until it passes its old highest number; one that restarts within 64 frames, of
//!   which frame 0 was never seen, is taken for reordered.
//! - Frames lost before the first one received or after the last one are not expected.

/// A frame further behind than this begins a new run.
///
/// Lower takes a long delay for a restart; higher leaves a restart unseen for longer where frame 0 was lost.
pub const RESTART_BEHIND: u32 = 1024;

/// Numbers behind the highest for which it is known whether they have been seen.
///
/// One machine word. Lower would count frames that overtook each other as lost; higher needs more state.
pub const WINDOW: u32 = u64::BITS;

/// Verdict on a frame's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// The first of this flow.
    First,
    /// The next, or a later one: `missing` frames before it have not arrived yet.
    Advance {
        /// Numbers skipped.
        missing: u32,
    },
    /// Overtaken by later ones, seen for the first time.
    Reordered,
    /// Seen before, or too far behind to tell.
    Duplicate,
    /// The peer began to count anew.
    Restart,
}

/// The sequence numbers of one flow. 48 bytes, no allocation, a handful of integer operations a frame.
///
/// The fields are open because a port's memory keeps them where the demux can write them. Any values
/// are safe to go on from: the arithmetic wraps, as the demux's does.
///
/// ```
/// use tautline_proto::loss::{Arrival, LossTracker};
///
/// let mut tracker = LossTracker::new();
/// for sequence in [0, 1, 4, 3] {
///     tracker.record(sequence);
/// }
/// assert_eq!((tracker.received(), tracker.lost()), (4, 1));
/// assert_eq!(tracker.record(4), Arrival::Duplicate);
/// assert_eq!(tracker.lost(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossTracker {
    /// The highest number of the current run.
    pub highest: u32,
    /// Numbers from the run's first to `highest`, at most [`WINDOW`]: what the window says something about.
    pub span: u32,
    /// Bit i: number `highest - i` has been seen.
    pub window: u64,
    /// See [`expected`](Self::expected).
    pub expected: u64,
    /// See [`received`](Self::received).
    pub received: u64,
    /// See [`duplicates`](Self::duplicates).
    pub duplicates: u64,
    /// See [`restarts`](Self::restarts).
    pub restarts: u32,
}

const _: () = assert!(size_of::<LossTracker>() == 48);

impl LossTracker {
    /// A flow of which nothing has arrived.
    pub const fn new() -> Self {
        Self {
            highest: 0,
            span: 0,
            window: 0,
            expected: 0,
            received: 0,
            duplicates: 0,
            restarts: 0,
        }
    }

    /// Takes the sequence number of a frame, in the order of arrival.
    #[inline]
    pub fn record(&mut self, sequence: u32) -> Arrival {
        let ahead = sequence.wrapping_sub(self.highest);
        let behind = self.highest.wrapping_sub(sequence);
        if self.received == 0 {
            self.begin_run(sequence);
            Arrival::First
        } else if ahead != 0 && ahead <= i32::MAX as u32 {
            self.advance(sequence, ahead);
            Arrival::Advance { missing: ahead - 1 }
        } else if behind < WINDOW && self.window >> behind & 1 == 0 {
            self.fill(behind);
            Arrival::Reordered
        } else if sequence == 0 || behind > RESTART_BEHIND {
            self.restarts = self.restarts.wrapping_add(1);
            self.begin_run(sequence);
            Arrival::Restart
        } else {
            self.duplicates = self.duplicates.wrapping_add(1);
            Arrival::Duplicate
        }
    }

    /// Frames received, duplicates not counted.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Frames that the peer sent between the first and the last that arrived.
    pub const fn expected(&self) -> u64 {
        self.expected
    }

    /// Frames that have not arrived, up to now; one that is only late is taken off again when it comes.
    pub const fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }

    /// Frames seen before, or too far behind to tell.
    pub const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// How often the peer began to count anew.
    pub const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// The highest number of the current run, `None` before the first frame.
    pub const fn highest(&self) -> Option<u32> {
        if self.received == 0 {
            None
        } else {
            Some(self.highest)
        }
    }

    #[inline]
    fn begin_run(&mut self, sequence: u32) {
        self.highest = sequence;
        self.span = 1;
        self.window = 1;
        self.expected = self.expected.wrapping_add(1);
        self.received = self.received.wrapping_add(1);
    }

    #[inline]
    fn advance(&mut self, sequence: u32, ahead: u32) {
        self.highest = sequence;
        self.span = self.span.saturating_add(ahead).min(WINDOW);
        self.window = self.window.checked_shl(ahead).unwrap_or(0) | 1;
        self.expected = self.expected.wrapping_add(ahead.into());
        self.received = self.received.wrapping_add(1);
    }

    #[inline]
    fn fill(&mut self, behind: u32) {
        let span = self.span.max(behind + 1);
        self.expected = self.expected.wrapping_add((span - self.span).into());
        self.span = span;
        self.window |= 1 << behind;
        self.received = self.received.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the module's documentation.
    #[test]
    fn worked_example() {
        let mut tracker = LossTracker::new();
        for (sequence, arrival, expected, received, lost, duplicates, restarts) in [
            (5, Arrival::First, 1, 1, 0, 0, 0),
            (6, Arrival::Advance { missing: 0 }, 2, 2, 0, 0, 0),
            (9, Arrival::Advance { missing: 2 }, 5, 3, 2, 0, 0),
            (8, Arrival::Reordered, 5, 4, 1, 0, 0),
            (8, Arrival::Duplicate, 5, 4, 1, 1, 0),
            (4, Arrival::Reordered, 6, 5, 1, 1, 0),
            (90, Arrival::Advance { missing: 80 }, 87, 6, 81, 1, 0),
            (0, Arrival::Restart, 88, 7, 81, 1, 1),
            (1, Arrival::Advance { missing: 0 }, 89, 8, 81, 1, 1),
        ] {
            assert_eq!(tracker.record(sequence), arrival, "{sequence}");
            assert_eq!(
                (
                    tracker.expected(),
                    tracker.received(),
                    tracker.lost(),
                    tracker.duplicates(),
                    tracker.restarts()
                ),
                (expected, received, lost, duplicates, restarts),
                "{sequence}"
            );
        }
        assert_eq!(tracker.highest(), Some(1));
    }

    #[test]
    fn any_state_can_be_gone_on_from() {
        for value in [0, u64::MAX] {
            for sequence in [0, 1, 63, 64, 1 << 31, u32::MAX] {
                let mut tracker = LossTracker {
                    highest: value as u32,
                    span: value as u32,
                    window: !value,
                    expected: value,
                    received: u64::MAX,
                    duplicates: u64::MAX,
                    restarts: u32::MAX,
                };
                tracker.record(sequence);
                tracker.record(sequence);
                assert!(tracker.lost() <= tracker.expected());
            }
        }
    }
}
