//! The newest value in the memory of a sender, for watchers. The sender may write there what it likes, and
//! may write now.

use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};

use tautline_shm::vbus::layout::{CELL_COUNT, Slot};
use tautline_shm::vbus::region::ProducerMemory;

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
pub(super) fn newest_cell(memory: ProducerMemory<'_>, word: u64) -> Slot<'_> {
    let pair = (word & 1) as u32;
    let index = (word >> (1 + pair)) as u32 & 1;
    memory.slots.slot(0, (pair * 2 + index) % CELL_COUNT as u32)
}
