//! When messages in the memory of a sender were published. A peer writes there what it likes, and may write now: the
//! stamps are for people to look at, and may be of a moment later.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use tautline_shm::vbus::layout::{CLASS_COUNT, ConnectionEntry, Slot};
use tautline_shm::vbus::region::ProducerMemory;
use tautline_shm::vbus::shape::Kind;

use super::newest::newest_cell;

/// Times of publication, CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps {
    /// Of the newest message or value.
    pub(super) newest_ns: Option<u64>,
    /// Of the message that has waited longest.
    pub(super) oldest_waiting_ns: Option<u64>,
}

impl Stamps {
    /// Stamps of one connection of a receiver of this kind.
    pub(super) fn of(kind: Kind, memory: ProducerMemory<'_>, entry: &ConnectionEntry) -> Self {
        let Kind::Queuing { depth } = kind else {
            let word = memory.head.latest.latest.load(Acquire);
            return Self {
                newest_ns: (word != 0).then(|| stamp(newest_cell(memory, word))),
                oldest_waiting_ns: None,
            };
        };
        let mut stamps = Self::default();
        for class in 0..CLASS_COUNT {
            let published = memory.head.published.count[class].load(Relaxed);
            let after = published as u32;
            if published > 0 {
                let newest = stamp(memory.slots.slot(class, after.wrapping_sub(1)));
                stamps.newest_ns = stamps.newest_ns.max(Some(newest));
            }
            let taken = entry.taken.taken[class].load(Relaxed);
            if (1..=depth).contains(&after.wrapping_sub(taken)) {
                let oldest = stamp(memory.slots.slot(class, taken));
                stamps.oldest_waiting_ns = earlier(stamps.oldest_waiting_ns, Some(oldest));
            }
        }
        stamps
    }
}

/// The earlier of two times, if there is any.
pub(super) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn stamp(slot: Slot<'_>) -> u64 {
    slot.message().arrival_ns
}
