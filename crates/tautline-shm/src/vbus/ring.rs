//! Messages from one producer to one consumer: eight rings, one for each priority.
//!
//! A slot at position `p` (counted without end) of a class holds a message once its turn is `p + 1`.
//! The turn lies in the first cache line of the message, so a message of up to 40 bytes and
//! its announcement travel as one line. The consumer says how far it has come in its own memory;
//! the producer looks there only when its last look leaves no room, once a turn of the ring at
//! the most often, and so neither side waits for a line of the other's while messages flow.
//!
//! Where many read ([`Producer::next_for_all`]), the producer does not wait for room: it fills the slots of a class in
//! turn, and counts what it has published. A reader ([`Follower`]) copies the message at its position, and then looks
//! how far the producer has come: the copy is whole if fewer messages than the ring has slots were published since that
//! position. A reader that is slower than that has been lapped. It counts the messages that it has lost, goes on with
//! the oldest that are still whole, and harms itself alone.
//!
//! Progress: both sides are wait-free. Positions are of 32 bits and wrap; they are compared for
//! equality and by their distance, which is at most the depth.

use super::layout::{CLASS_COUNT, MessageHead, PerClassLine, ProducerHead, Slot, Slots, TakenLine};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::fence;

/// How many messages ahead of the one that is staged the producer asks for the slot, which the consumer's reads have
/// taken from it. Lower: each store waits for its line. Higher: no gain (8 and 12 were tried).
const STAGE_AHEAD: u32 = 4;

/// Attempts of one look to copy a message that many read. After each that fails, the reader leaves half as many
/// messages of the ring behind the producer. Lower: a reader about as fast as the producer finds nothing in more looks.
/// Higher: a look takes longer.
const FOLLOW_ATTEMPTS: u32 = 4;

/// The class has no free slot. Counted by the caller that gives up; see [`Producer::give_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The producer's place in the eight rings.
#[derive(Debug)]
pub struct Producer {
    next: [u32; CLASS_COUNT],
    /// The consumer's positions, as they were when last looked at.
    taken: [u32; CLASS_COUNT],
    depth: u32,
}

impl Producer {
    /// The producer of rings of `depth` slots that nothing has been published in.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        debug_assert!(depth.is_power_of_two());
        Self {
            next: [0; CLASS_COUNT],
            taken: [0; CLASS_COUNT],
            depth,
        }
    }

    /// The slot for the next message of a class. It is the producer's until published; not publishing
    /// it changes nothing.
    ///
    /// # Errors
    /// [`Full`].
    #[inline]
    pub fn next<'m>(
        &mut self,
        slots: Slots<'m>,
        consumer: &TakenLine,
        class: usize,
    ) -> Result<Slot<'m>, Full> {
        let position = self.next[class];
        if position.wrapping_sub(self.taken[class]) >= self.depth {
            // Acquire: partner is the Release in `Consumer::release`; the consumer's reads of the
            // slot are done. A position that makes no sense counts as no room.
            self.taken[class] = consumer.taken[class].load(Acquire);
            if position.wrapping_sub(self.taken[class]) >= self.depth {
                return Err(Full);
            }
        }
        Ok(slots.slot(class, position))
    }

    /// Publishes the slot that [`Producer::next`] gave last for this class, with its payload in it.
    /// Afterwards ask [`crate::vbus::wait::Kicker::wanted`].
    #[inline]
    pub fn publish(&mut self, own: &ProducerHead, slots: Slots<'_>, message: &MessageHead) {
        let class = message.class as usize % CLASS_COUNT;
        let slot = slots.slot(class, self.next[class]);
        slot.describe(message);
        let after = self.next[class].wrapping_add(1);
        self.next[class] = after;
        // Release: partner is the Acquire in `Consumer::peek`.
        slot.head.turn.store(after, Release);
        add(&own.published, class, 1);
    }

    /// The slot for the next message of a class with many readers: the slots in turn, without regard to readers.
    #[inline]
    pub fn next_for_all<'m>(&self, slots: Slots<'m>, class: usize) -> Slot<'m> {
        // Partner: the fence in `Follower::copy`. A reader that sees a later write into the slot sees that the message
        // before was published.
        fence(Release);
        slots.slot(class, self.next[class])
    }

    /// Publishes the slot that [`Producer::next_for_all`] gave last for this class, with its payload in it. Afterwards
    /// ask [`crate::vbus::wait::Kicker::wanted_by_one`] for each reader.
    #[inline]
    pub fn publish_for_all(&mut self, own: &ProducerHead, slots: Slots<'_>, message: &MessageHead) {
        let class = message.class as usize % CLASS_COUNT;
        let slot = slots.slot(class, self.next[class]);
        slot.describe(message);
        let after = self.next[class].wrapping_add(1);
        self.next[class] = after;
        // Release: partner is the Acquire in `Slot::turn`.
        slot.head.turn.store(after, Release);
        let count = &own.published.count[class];
        let published = count.load(Relaxed).wrapping_add(1);
        // Release: partner is the Acquire in `Follower::copy`.
        count.store(published, Release);
    }

    /// Like [`Producer::publish`], but the consumer does not see the message yet. What is staged in a class
    /// must be shown by [`Producer::publish_staged`] before anything is published there.
    #[inline]
    pub fn stage(&mut self, slots: Slots<'_>, slot: Slot<'_>, message: &MessageHead) {
        let class = message.class as usize % CLASS_COUNT;
        let position = self.next[class];
        slots
            .slot(class, position.wrapping_add(STAGE_AHEAD))
            .prefetch_to_write();
        slot.describe(message);
        self.next[class] = position.wrapping_add(1);
    }

    /// Publishes the `count` messages that were staged in a class, the last one first: a consumer that waits sees the
    /// oldest when all are there, and takes them without a wait in between. One by one, it would look at each slot
    /// while that is being filled, and each look takes the line away from the producer.
    #[inline]
    pub fn publish_staged(
        &mut self,
        own: &ProducerHead,
        slots: Slots<'_>,
        class: usize,
        count: u32,
    ) {
        debug_assert!(count <= self.depth);
        for back in 0..count {
            let after = self.next[class].wrapping_sub(back);
            let slot = slots.slot(class, after.wrapping_sub(1));
            // Release: partner is the Acquire in `Consumer::peek`.
            slot.head.turn.store(after, Release);
        }
        add(&own.published, class, count);
    }

    /// Counts a message that there was no room for.
    pub fn give_up(&self, own: &ProducerHead, class: usize) {
        add(&own.dropped_full, class, 1);
    }
}

/// One writer, so a plain addition.
#[inline]
fn add(line: &PerClassLine, class: usize, count: u32) {
    let before = line.count[class].load(Relaxed);
    let after = before.wrapping_add(count.into());
    line.count[class].store(after, Relaxed);
}

/// The consumer's place in the eight rings of one producer.
#[derive(Debug)]
pub struct Consumer {
    next: [u32; CLASS_COUNT],
}

impl Consumer {
    /// The consumer of rings that nothing has been taken from.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next: [0; CLASS_COUNT],
        }
    }

    /// The oldest message of a class. It stays until [`Consumer::release`].
    #[inline]
    #[must_use]
    pub fn peek<'m>(&self, slots: Slots<'m>, class: usize) -> Option<Slot<'m>> {
        let position = self.next[class];
        let slot = slots.slot(class, position);
        // Acquire: partner is the Release in `Producer::publish`.
        (slot.head.turn.load(Acquire) == position.wrapping_add(1)).then_some(slot)
    }

    /// The slot in which the next message of a class will be, to look at ahead of time.
    #[inline]
    #[must_use]
    pub fn expected<'m>(&self, slots: Slots<'m>, class: usize) -> Slot<'m> {
        slots.slot(class, self.next[class])
    }

    /// Gives the slot of the oldest message of a class back to the producer.
    #[inline]
    pub fn release(&mut self, own: &TakenLine, class: usize) {
        let after = self.next[class].wrapping_add(1);
        self.next[class] = after;
        // Release: partner is the Acquire in `Producer::next`.
        own.taken[class].store(after, Release);
    }
}

impl Default for Consumer {
    fn default() -> Self {
        Self::new()
    }
}

/// One of many readers of what a producer publishes for all.
#[derive(Debug)]
pub struct Follower {
    /// Position of the next message to take, per class.
    next: [u64; CLASS_COUNT],
    depth: u32,
}

/// Result of [`Follower::copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Head of the message, whose length may be anything; `None` if there is none, or if each that was looked at had
    /// been replaced by the time that it was copied.
    pub message: Option<MessageHead>,
    /// Messages of this class that were replaced before the reader came to them. It has moved on behind them.
    pub overwritten: u64,
}

impl Follower {
    /// The reader of rings of `depth` slots in which these counts of messages had been published before it came.
    #[must_use]
    pub fn new(depth: u32, published: [u64; CLASS_COUNT]) -> Self {
        debug_assert!(depth.is_power_of_two() && depth > 1);
        let next = published;
        Self { next, depth }
    }

    /// Whether a message of a class has been published that the reader has not taken.
    #[inline]
    #[must_use]
    pub fn has_next(&self, producer: &ProducerHead, class: usize) -> bool {
        // Acquire: partner is the Release in `Producer::publish_for_all`.
        producer.published.count[class].load(Acquire) != self.next[class]
    }

    /// Copies the oldest message of a class that is there into `out`, at most `limit` bytes of it; whole words, so
    /// `out` must hold `limit` rounded up to 8 (what it does not hold is left out). It stays the next until
    /// [`Follower::release`].
    pub fn copy(
        &mut self,
        producer: &ProducerHead,
        slots: Slots<'_>,
        class: usize,
        limit: u32,
        out: &mut [u64],
    ) -> Followed {
        let count = &producer.published.count[class];
        let depth = u64::from(self.depth);
        let mut overwritten = 0_u64;
        for attempt in 0..FOLLOW_ATTEMPTS {
            // Acquire: partner is the Release in `Producer::publish_for_all`.
            let ahead = count.load(Acquire).wrapping_sub(self.next[class]);
            if ahead == 0 {
                break;
            }
            if ahead >= depth {
                // The producer may be writing into the slot. A count that goes backwards comes here, too.
                let lost = ahead - ((depth - 1) >> attempt).max(1);
                overwritten = overwritten.wrapping_add(lost);
                self.next[class] = self.next[class].wrapping_add(lost);
            }
            let slot = slots.slot(class, self.next[class] as u32);
            let message = slot.message();
            slot.copy_racing(message.length.min(limit) as usize, out);
            // Partner: the fence in `Producer::next_for_all`. If anything of what was read belonged to a later message
            // in this slot, the load below sees that the one before that has been published.
            fence(Acquire);
            let since = count.load(Relaxed).wrapping_sub(self.next[class]);
            if since < depth {
                let message = Some(message);
                return Followed {
                    message,
                    overwritten,
                };
            }
        }
        Followed {
            message: None,
            overwritten,
        }
    }

    /// The message that was copied last in this class has been taken. `own` is for watchers.
    #[inline]
    pub fn release(&mut self, own: &TakenLine, class: usize) {
        self.next[class] = self.next[class].wrapping_add(1);
        self.show(own, class);
    }

    /// Shows watchers how far the reader has come in a class.
    #[inline]
    pub fn show(&self, own: &TakenLine, class: usize) {
        own.taken[class].store(self.next[class] as u32, Relaxed);
    }
}
