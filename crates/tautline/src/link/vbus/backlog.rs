//! The memory of a sender as watchers see it: messages that wait, times of publication, and the newest value. The
//! sender may write there what it likes, and may write now.

use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};

use tautline_shm::vbus::layout::{CELL_COUNT, CLASS_COUNT, ConnectionEntry, Slot};
use tautline_shm::vbus::region::ProducerMemory;
use tautline_shm::vbus::shape::Kind;

/// Backlog of one connection. Times are of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Messages that wait, per class.
    pub(super) queued: [u32; CLASS_COUNT],
    /// Publication of the newest message or value.
    pub(super) newest_ns: Option<u64>,
    /// Publication of the message that has waited longest.
    pub(super) oldest_waiting_ns: Option<u64>,
}

impl Backlog {
    /// The backlog of one connection of a receiver of this kind; `is_for_many`: its peer publishes for others, too.
    pub(super) fn of(
        kind: Kind,
        is_for_many: bool,
        memory: ProducerMemory<'_>,
        entry: &ConnectionEntry,
    ) -> Self {
        let mut backlog = Self {
            newest_ns: newest_stamp(kind, memory),
            ..Self::default()
        };
        let Kind::Queuing { depth } = kind else {
            return backlog;
        };
        for class in 0..CLASS_COUNT {
            let published = memory.head.published.count[class].load(Relaxed) as u32;
            let taken = entry.taken.taken[class].load(Relaxed);
            let waiting = published.wrapping_sub(taken);
            backlog.queued[class] = match is_for_many {
                // The port may have been lapped.
                true => waiting.min(depth - 1),
                // Either word may be of a moment later, or anything.
                false if waiting <= depth => waiting,
                false => 0,
            };
            if (1..=depth).contains(&waiting) {
                let oldest = stamp(memory.slots.slot(class, taken));
                backlog.oldest_waiting_ns = earlier(backlog.oldest_waiting_ns, Some(oldest));
            }
        }
        backlog
    }
}

/// When the newest message or value in the memory of a sender was published.
pub(super) fn newest_stamp(kind: Kind, memory: ProducerMemory<'_>) -> Option<u64> {
    if kind == Kind::Sampling {
        let word = memory.head.latest.latest.load(Acquire);
        return (word != 0).then(|| stamp(newest_cell(memory, word)));
    }
    let newest_of = |class: usize| {
        let published = memory.head.published.count[class].load(Relaxed);
        (published > 0).then(|| stamp(memory.slots.slot(class, (published as u32).wrapping_sub(1))))
    };
    (0..CLASS_COUNT).filter_map(newest_of).max()
}

pub(super) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn stamp(slot: Slot<'_>) -> u64 {
    slot.message().arrival_ns
}

/// Attempts to copy a value that is being replaced all the time. Each that fails means that at least one newer value
/// has come, so a few suffice.
const ATTEMPTS: u32 = 8;

/// Copies the newest value by `copy`, unless it is that of the writer's word `seen`. The word of the value that was
/// copied, and the copy; `None` if there is no other value, or if it was replaced during each attempt.
pub(super) fn copy_newest<T>(
    memory: ProducerMemory<'_>,
    seen: u64,
    mut copy: impl FnMut(Slot<'_>) -> T,
) -> Option<(u64, T)> {
    let latest = &memory.head.latest.latest;
    for _ in 0..ATTEMPTS {
        let word = latest.load(Acquire);
        if word == seen {
            return None;
        }
        let copied = copy(newest_cell(memory, word));
        // The writer never writes the newest cell: it is whole if it still is the newest.
        fence(Acquire);
        if latest.load(Relaxed) == word {
            return Some((word, copied));
        }
    }
    None
}

/// The cell of the newest value, by the writer's word.
fn newest_cell(memory: ProducerMemory<'_>, word: u64) -> Slot<'_> {
    let pair = (word & 1) as u32;
    let index = (word >> (1 + pair)) as u32 & 1;
    memory.slots.slot(0, (pair * 2 + index) % CELL_COUNT as u32)
}
