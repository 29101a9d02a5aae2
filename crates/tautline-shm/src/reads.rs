//! The last reads of a port: when each message arrived, and when the application read it. One writer, the port's
//! thread, overwrites the oldest; an observer copies those that it has not seen, and counts those that it missed.
//!
//! Progress: both are wait-free.

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, fence};

/// Reads that are kept. Lower: a port that is read ten thousand times a second, and looked at ten times a second,
/// misses some. Higher: each port that is looked at takes more memory, now 16 KiB.
#[cfg(not(loom))]
pub const READS: usize = 1_024;
/// In a loom model.
#[cfg(loom)]
pub const READS: usize = 2;

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// When the message arrived, CLOCK_MONOTONIC nanoseconds.
    pub arrival_ns: u64,
    /// When it was read, by the same clock.
    pub read_ns: u64,
}

/// The last reads of a port.
#[derive(Debug)]
pub struct Reads {
    places: [[AtomicU64; 2]; READS],
    /// Reads so far.
    count: AtomicU64,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            places: zeroed(),
            count: AtomicU64::new(0),
        }
    }
}

fn zeroed() -> [[AtomicU64; 2]; READS] {
    core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0)))
}

impl Reads {
    /// Writer: notes a read.
    #[inline]
    pub fn note(&self, read: Read) {
        let count = self.count.load(Relaxed);
        // Partner is the fence of `since`: a reader that sees a part of this read sees that it was begun.
        fence(Release);
        let [arrival, at] = &self.places[count as usize % READS];
        arrival.store(read.arrival_ns, Relaxed);
        at.store(read.read_ns, Relaxed);
        // Release: partner is the Acquire of `since`.
        self.count.store(count.wrapping_add(1), Release);
    }

    /// Hands out the reads from number `seen` on, the oldest first. Returns the number of the next one; those between
    /// that were overwritten are missing, and the first of `each` is the number of the read.
    pub fn since(&self, seen: u64, mut each: impl FnMut(u64, Read)) -> u64 {
        let until = self.count.load(Acquire);
        let oldest = until.saturating_sub(READS as u64);
        for number in seen.max(oldest)..until {
            let [arrival, at] = &self.places[number as usize % READS];
            let read = Read {
                arrival_ns: arrival.load(Relaxed),
                read_ns: at.load(Relaxed),
            };
            // The read of number `count` is being written, over that of `count - READS`.
            fence(Acquire);
            let begun = self.count.load(Relaxed);
            if number + READS as u64 > begun {
                each(number, read);
            }
        }
        until
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_reads_are_kept_in_their_order() {
        let reads = Reads::default();
        let note = |from: u64, until: u64| {
            for number in from..until {
                reads.note(Read {
                    arrival_ns: number,
                    read_ns: number + 5,
                });
            }
        };
        let since = |seen| {
            let mut found = Vec::new();
            let next = reads.since(seen, |number, read| {
                assert_eq!((read.arrival_ns, read.read_ns), (number, number + 5));
                found.push(number);
            });
            (found, next)
        };
        assert_eq!(since(0), (vec![], 0));
        note(0, 3);
        assert_eq!(since(0), (vec![0, 1, 2], 3));
        assert_eq!(since(2), (vec![2], 3));
        let many = 3 * READS as u64;
        note(3, many);
        let (found, next) = since(3);
        assert_eq!(next, many);
        // The place of the next one may be written at any moment.
        assert_eq!(found.first(), Some(&(many - READS as u64 + 1)));
        assert_eq!(found.len(), READS - 1);
    }
}
