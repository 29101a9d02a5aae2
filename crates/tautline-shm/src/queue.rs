//! The queuing discipline: a bounded ring per class, several producers, one consumer.
//!
//! Each slot carries a *turn*. A slot at position `p` (counted without wrapping) may be filled when its turn is `p`;
//! filling it makes the turn `p + 1`; taking it makes the turn `p + depth`, which is the position at which the slot is
//! filled next. So a message and the word that announces it lie in one cache line, and producer and consumer share no
//! index. (The scheme is Dmitry Vyukov's bounded queue, with one consumer.)
//!
//! Progress: the consumer is wait-free. A producer is wait-free too, because it gives up after
//! [`CLAIM_ATTEMPTS`] collisions and counts the frame as contended. A producer that is interrupted
//! between claiming and publishing delays what comes after it in that class, and only there.

use crate::layout::{CLASS_COUNT, Control, RecordHead, Slot};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Attempts of a producer to claim a slot while others claim too. Lower: frames are given up when a few CPUs deliver to
/// one class at the same time. Higher: the bound on the work per frame grows (and the BPF verifier unrolls it).
pub const CLAIM_ATTEMPTS: usize = 8;

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The class has no free slot.
    Full,
    /// Too many producers at once.
    Contended,
}

/// Prepares the slots of a queuing port. Before any producer sees them.
pub fn initialise(slots: &[Slot]) {
    for (position, row) in slots.chunks(CLASS_COUNT).enumerate() {
        for slot in row {
            slot.turn.store(position as u64, Relaxed);
        }
    }
}

/// Where the slot of a class for a position lies. Slots of one position in all classes lie side by
/// side, so that the eight words that a waiting consumer looks at fall into different sets of its
/// cache; class after class they would all fall into one.
#[inline]
fn slot_index(class: usize, position: u64, depth: usize) -> usize {
    (position as usize & (depth - 1)) * CLASS_COUNT + class
}

/// Producer: puts one message into `class`. `slots` are all slots of the port.
///
/// # Errors
/// [`PushError`], already counted in `control`.
pub fn push(
    control: &Control,
    slots: &[Slot],
    class: usize,
    head: &RecordHead,
    payload: &[u8],
) -> Result<(), PushError> {
    let depth = slots.len() / CLASS_COUNT;
    let line = &control.class[class];
    let mut position = line.head.load(Relaxed);
    for _ in 0..CLAIM_ATTEMPTS {
        let slot = &slots[slot_index(class, position, depth)];
        // Acquire: partner is the consumer's release of the slot.
        let turn = slot.turn.load(Acquire);
        if turn == position {
            match line
                .head
                .compare_exchange(position, position + 1, AcqRel, Relaxed)
            {
                Ok(_) => {
                    slot.write_head(head);
                    slot.write_payload(payload);
                    // Release: partner is the consumer's Acquire in `Consumer::peek`.
                    slot.turn.store(position + 1, Release);
                    return Ok(());
                }
                Err(now) => position = now,
            }
        } else if turn < position {
            line.dropped_full.fetch_add(1, Relaxed);
            return Err(PushError::Full);
        } else {
            position = line.head.load(Relaxed);
        }
    }
    control.producer.contended.fetch_add(1, Relaxed);
    Err(PushError::Contended)
}

/// Slots of a class that are free; for the only producer, so many that it can push. The consumer may free more
/// at any time.
#[must_use]
pub fn room(control: &Control, slots: &[Slot], class: usize) -> usize {
    let depth = slots.len() / CLASS_COUNT;
    let head = control.class[class].head.load(Relaxed);
    let taken = control.taken.taken[class].load(Relaxed);
    depth.saturating_sub(head.saturating_sub(taken) as usize)
}

/// When the message arrived that has waited longest, CLOCK_MONOTONIC nanoseconds. For observers: what is read may be of
/// a moment later.
#[must_use]
pub fn oldest_arrival_ns(control: &Control, slots: &[Slot]) -> Option<u64> {
    let depth = slots.len() / CLASS_COUNT;
    let oldest = |class: usize| {
        let position = control.taken.taken[class].load(Relaxed);
        let slot = &slots[slot_index(class, position, depth)];
        // Acquire: partner is the producer's publishing store.
        (slot.turn.load(Acquire) == position.wrapping_add(1)).then(|| slot.head().arrival_ns)
    };
    (0..CLASS_COUNT).filter_map(oldest).min()
}

/// The consumer's place in the eight rings.
#[derive(Debug)]
pub struct Consumer {
    next: [u64; CLASS_COUNT],
    depth: usize,
}

/// A message that lies in its slot until [`Consumer::release`].
#[derive(Clone, Copy)]
pub struct Record<'m> {
    /// The slot. No producer touches it before it is released.
    pub slot: &'m Slot,
    class: usize,
}

impl Record<'_> {
    /// The class that the message is in.
    #[inline]
    #[must_use]
    pub fn class(&self) -> usize {
        self.class
    }
}

impl Consumer {
    /// A consumer of a port of `depth` slots a class, from which nothing has been consumed.
    #[must_use]
    pub fn new(depth: usize) -> Self {
        debug_assert!(depth.is_power_of_two());
        Self {
            next: [0; CLASS_COUNT],
            depth,
        }
    }

    /// The most urgent message, oldest first within its class; it stays until released.
    /// Wait-free: at most one look at each class.
    #[inline]
    pub fn peek<'m>(&self, slots: &'m [Slot]) -> Option<Record<'m>> {
        (0..CLASS_COUNT)
            .rev()
            .find_map(|class| self.oldest(slots, class))
    }

    /// The oldest message of a class, as [`peek`](Self::peek) finds it.
    #[inline]
    pub fn oldest<'m>(&self, slots: &'m [Slot], class: usize) -> Option<Record<'m>> {
        let position = self.next[class];
        let slot = &slots[slot_index(class, position, self.depth)];
        // Acquire: partner is the producer's publishing store.
        (slot.turn.load(Acquire) == position + 1).then_some(Record { slot, class })
    }

    /// Gives the slot back to the producers.
    #[inline]
    pub fn release(&mut self, control: &Control, record: Record<'_>) {
        let position = self.next[record.class];
        self.next[record.class] = position + 1;
        control.taken.taken[record.class].store(position + 1, Relaxed);
        // Release: partner is the producer's Acquire in `push`; our reads are done before.
        record
            .slot
            .turn
            .store(position + self.depth as u64, Release);
    }
}
