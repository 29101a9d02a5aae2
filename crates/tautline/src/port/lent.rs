//! Messages that are filled in place, and looked at where they lie. Over a bus that is the sender's
//! memory, on both sides; on the other links a message is filled in a buffer of the node's pool, and looked
//! at in the receiving port's own memory.
#![allow(unsafe_code)] // Views of memory that has one owner at a time.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_shm::layout::{Control, SLOT_PAYLOAD_BYTES, Slot};
use tautline_shm::queue::{Consumer, Record};
use tautline_shm::vbus::layout::{Slot as BusSlot, WORDS_BYTES_MAX};

use super::Destination;
use super::outbox::Outbox;
use super::queuing::Message;
use crate::address::Source;
use crate::error::SendError;
use crate::link::PortLink;
use crate::link::vbus::{BusPort, Found, FoundAt, Outlet};
use crate::send_pool::SendPool;
use crate::statistics::Statistics;

/// The place of a message that has not been sent: fill it, and [`send`](Loan::send) it. Dropped
/// without that, it is as if it had never been asked for. What stands there at first is what an earlier
/// message has left.
pub struct Loan<'p> {
    /// The place: `length` bytes that only we can write, in memory that `way` holds.
    start: *mut u8,
    length: usize,
    way: LoanWay<'p>,
    statistics: &'p Statistics,
    priority: Priority,
}

/// How a loan is sent, and who holds its memory. Nothing here is dropped but by [`Loan`]'s own few instructions: with
/// more, the compiler keeps every loan in memory, and copying it from there costs more than all the rest of a send
/// over a bus.
enum LoanWay<'p> {
    /// A slot that the receiver will look into.
    Bus {
        outlet: &'p mut Outlet,
        sequence: &'p mut u32,
    },
    /// A buffer that frames leave from; it is in the outbox.
    Pool {
        outbox: &'p mut Outbox,
        link: &'p mut dyn PortLink,
        to: Destination,
    },
}

impl<'p> Loan<'p> {
    #[inline(always)]
    pub(crate) fn on_bus(
        outlet: &'p mut Outlet,
        sequence: &'p mut u32,
        statistics: &'p Statistics,
        priority: Priority,
        length: usize,
    ) -> Result<Self, SendError> {
        let start = match outlet.lend(priority, length) {
            Ok(start) => start,
            Err(error) => {
                statistics.send_errors.add(1);
                return Err(error);
            }
        };
        Ok(Self {
            start,
            length,
            way: LoanWay::Bus { outlet, sequence },
            statistics,
            priority,
        })
    }

    #[inline(never)]
    pub(super) fn of_pool(
        (pool, length): (&Arc<SendPool>, usize),
        outbox: &'p mut Outbox,
        link: &'p mut dyn PortLink,
        statistics: &'p Statistics,
        (to, priority): (Destination, Priority),
    ) -> Result<Self, SendError> {
        let buffer = pool
            .lend(length)
            .inspect_err(|_| statistics.send_errors.add(1))?;
        let start = outbox.keep_lent(buffer).as_mut_ptr();
        Ok(Self {
            start,
            length,
            way: LoanWay::Pool { outbox, link, to },
            statistics,
            priority,
        })
    }

    /// Sends what has been filled in.
    ///
    /// # Errors
    /// As [`QueuingPort::send`](crate::QueuingPort::send).
    #[inline(always)]
    pub fn send(mut self) -> Result<(), SendError> {
        let (statistics, priority) = (self.statistics, self.priority);
        let result = match &mut self.way {
            LoanWay::Bus { outlet, sequence } => {
                let number = **sequence;
                **sequence = number.wrapping_add(1);
                outlet.publish_lent(priority, self.length, number)
            }
            LoanWay::Pool { outbox, link, to } => {
                return outbox.send_kept(*link, statistics, *to, priority);
            }
        };
        match result {
            Ok(()) => statistics.sent.add(1),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }
}

impl Drop for Loan<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let LoanWay::Pool { outbox, .. } = &mut self.way {
            outbox.forget_lent();
        }
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` begins `length` initialised bytes that stay while the loan does: of a slot of our own
        // memory (`Outlet::lend`), mapped while the outlet is borrowed, which nobody but us can write, since it is
        // sealed (the peer does not read it before it is published, and its reads could not harm us); or of the
        // buffer that the outbox keeps for this loan (`Outbox::keep_lent`), and that is not touched otherwise while
        // the outbox is borrowed.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl DerefMut for Loan<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the loan is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl std::fmt::Debug for Loan<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Loan")
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}

/// Bytes of a message where they lie. Over a bus they are the sender's memory: one that keeps the rules
/// does not change them while we look, but nothing can make it, hence no slice without `unsafe` there.
#[derive(Clone, Copy)]
pub struct LentBytes<'m> {
    start: *const u8,
    length: usize,
    /// Whether another process can write them.
    foreign: bool,
    memory: PhantomData<&'m u8>,
}

impl<'m> LentBytes<'m> {
    /// In the memory of a sender on a bus.
    #[inline]
    pub(crate) fn on_bus(slot: BusSlot<'m>, length: usize) -> Self {
        debug_assert!(length <= slot.capacity());
        Self {
            start: slot.payload(),
            length,
            foreign: true,
            memory: PhantomData,
        }
    }

    /// In a port's copy of a value.
    #[inline]
    pub(crate) fn of_copy(copy: &'m [u64], length: usize) -> Self {
        assert!(length <= size_of_val(copy));
        Self {
            start: copy.as_ptr().cast(),
            length,
            foreign: false,
            memory: PhantomData,
        }
    }

    /// In a slot that the calling port owns until it gives it back, which it does not do during `'m`.
    #[inline]
    pub(super) fn of_slot(slot: &'m Slot, offset: usize, length: usize) -> Self {
        assert!(offset + length <= SLOT_PAYLOAD_BYTES);
        Self {
            start: slot.payload().wrapping_add(offset),
            length,
            foreign: false,
            memory: PhantomData,
        }
    }

    /// In memory of this process.
    #[inline]
    fn of_slice(bytes: &'m [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            length: bytes.len(),
            foreign: false,
            memory: PhantomData,
        }
    }

    /// How many they are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes out, from `offset` on, as many as `out` takes and there are; how many they were.
    #[inline(always)]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> usize {
        let bytes = self.length.saturating_sub(offset).min(out.len());
        let from = self.start.wrapping_add(offset.min(self.length));
        let words = from.cast::<AtomicU64>();
        if bytes > WORDS_BYTES_MAX || !words.is_aligned() {
            // SAFETY: `offset + bytes` is within `length`, which is within the mapped bytes (the
            // constructors); `out` has at least `bytes` of ours. A sender on a bus may write meanwhile if it
            // breaks the rules: then what we get is torn.
            unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), bytes) };
            return bytes;
        }
        let (whole, rest) = out[..bytes].as_chunks_mut::<8>();
        for (place, word) in whole.iter_mut().enumerate() {
            // SAFETY: aligned, as was seen, and within `length`, as above; an atomic load may race with whatever a
            // sender on a bus does.
            *word = unsafe { &*words.add(place) }.load(Relaxed).to_ne_bytes();
        }
        for (place, byte) in rest.iter_mut().enumerate() {
            // SAFETY: within `length`, as above.
            *byte = unsafe { from.add(whole.len() * 8 + place).read() };
        }
        bytes
    }

    /// Where they begin: readable only, for as long as this value lives. Aligned to 8 bytes, unless the
    /// message came [merged](crate::QueuingPort::merge) with others.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// The bytes as a slice, where no other process can write them: on all links but `vbus`, and there
    /// of a small value, which the port has copied.
    #[inline]
    #[must_use]
    pub fn slice(&self) -> Option<&'m [u8]> {
        // SAFETY: the bytes are mapped for `'m`, initialised, and not written during it: who could is the
        // port's producer, in this process or the kernel, which does not touch a slot before it is
        // given back. (A control process has the port's memory too; what it could do there, it could do to
        // this whole process.)
        (!self.foreign).then(|| unsafe { std::slice::from_raw_parts(self.start, self.length) })
    }

    /// The bytes as a slice, on every link.
    ///
    /// # Safety
    /// Over a bus, the sender must keep the rules: not write to a message that it has published and that
    /// has not been given back. That holds for this library and for the C header, not for a hostile
    /// process.
    #[inline]
    #[must_use]
    pub unsafe fn as_slice(&self) -> &'m [u8] {
        // SAFETY: the bytes are there for `'m`, initialised (memory of a file, or our own copy), and by the caller's
        // promise not written.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl std::fmt::Debug for LentBytes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LentBytes({})", self.length)
    }
}

/// A message where it lies: where its sender has put it on a bus, in the port's own memory elsewhere. It
/// is given back when this value is dropped; until then its place is taken, and nothing is written there.
pub struct LentMessage<'p> {
    /// The message's bytes, in memory that `keeper` holds, or that stays until the port is used again.
    start: *const u8,
    length: usize,
    foreign: bool,
    keeper: Keeper<'p>,
    /// Its priority.
    pub priority: Priority,
    /// Sender of the message.
    pub source: Source,
    /// When it was published on a bus; elsewhere when its last frame arrived.
    pub arrival: Instant,
    /// Its sequence number; of a message in frames, that of the first.
    pub sequence: u32,
}

/// Ring that gets a message back. As [`LoanWay`], without anything to drop.
enum Keeper<'p> {
    /// Its sender, on a bus.
    Bus {
        bus: &'p mut BusPort,
        place: FoundAt,
    },
    /// The port's producers: no more messages are in the slot.
    Slot {
        consumer: &'p mut Consumer,
        control: &'p Control,
        record: Record<'p>,
    },
    /// Nobody yet. It stays until the port is used again.
    Nobody,
}

// SAFETY: `start` is read only, through `bytes`; what is there belongs to the message, whichever thread has it; and the
// keeper may change threads itself.
unsafe impl Send for LentMessage<'_> {}
// SAFETY: as above; with a shared reference the bytes can only be read.
unsafe impl Sync for LentMessage<'_> {}

impl std::fmt::Debug for LentMessage<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LentMessage")
            .field("bytes", &self.bytes())
            .field("priority", &self.priority)
            .field("source", &self.source)
            .field("arrival", &self.arrival)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl<'p> LentMessage<'p> {
    /// In the memory of its sender on a bus.
    #[inline(always)]
    pub(crate) fn on_bus(bus: &'p mut BusPort, Found { head, place }: Found) -> Self {
        let LentBytes {
            start,
            length,
            foreign,
            ..
        } = LentBytes::on_bus(bus.inlet.slot(place), head.length as usize);
        Self {
            start,
            length,
            foreign,
            priority: Priority::ALL[place.class],
            source: bus.inlet.sender(place),
            arrival: Instant::from_nanos(head.arrival_ns),
            sequence: head.sequence,
            keeper: Keeper::Bus { bus, place },
        }
    }

    /// In a slot of the port, from `offset` on. It is given back if `is_last`.
    #[inline]
    pub(super) fn in_slot(
        consumer: &'p mut Consumer,
        control: &'p Control,
        record: Record<'p>,
        (offset, is_last): (usize, bool),
        message: &Message,
    ) -> Self {
        let bytes = LentBytes::of_slot(record.slot, offset, message.length);
        let keeper = if is_last {
            Keeper::Slot {
                consumer,
                control,
                record,
            }
        } else {
            Keeper::Nobody
        };
        Self::of(bytes, keeper, message)
    }

    /// Where its fragments were put together.
    pub(super) fn collected(bytes: &'p [u8], message: &Message) -> Self {
        Self::of(LentBytes::of_slice(bytes), Keeper::Nobody, message)
    }

    #[inline]
    fn of(bytes: LentBytes<'p>, keeper: Keeper<'p>, message: &Message) -> Self {
        Self {
            start: bytes.start,
            length: bytes.length,
            foreign: bytes.foreign,
            keeper,
            priority: message.priority,
            source: message.source,
            arrival: message.arrival,
            sequence: message.sequence,
        }
    }

    /// The message's bytes.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> LentBytes<'_> {
        LentBytes {
            start: self.start,
            length: self.length,
            foreign: self.foreign,
            memory: PhantomData,
        }
    }
}

impl Drop for LentMessage<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match &mut self.keeper {
            Keeper::Bus { bus, place } => bus.give_back(*place),
            Keeper::Slot {
                consumer,
                control,
                record,
            } => give_back(consumer, control, *record),
            Keeper::Nobody => {}
        }
    }
}

/// A slot of a port's ring that is looked at. Dropping it gives it back to the producers, unless more
/// messages are in it.
pub(crate) struct LentSlot<'p> {
    consumer: &'p mut Consumer,
    control: &'p Control,
    record: Record<'p>,
    offset: usize,
    is_last: bool,
}

impl<'p> LentSlot<'p> {
    /// The bytes from `offset` on; `is_last` if the slot holds no more messages.
    #[inline]
    pub(super) fn new(
        consumer: &'p mut Consumer,
        control: &'p Control,
        record: Record<'p>,
        (offset, is_last): (usize, bool),
    ) -> Self {
        Self {
            consumer,
            control,
            record,
            offset,
            is_last,
        }
    }

    /// The message in it.
    #[inline]
    pub(super) fn bytes(&self, length: usize) -> LentBytes<'_> {
        LentBytes::of_slot(self.record.slot, self.offset, length)
    }
}

impl Drop for LentSlot<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_last {
            give_back(self.consumer, self.control, self.record);
        }
    }
}

/// Out of line, so that dropping a message is a few instructions. See [`LoanWay`].
#[inline(never)]
fn give_back(consumer: &mut Consumer, control: &Control, record: Record<'_>) {
    consumer.release(control, record);
}

impl std::fmt::Debug for LentSlot<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LentSlot")
            .field("class", &self.record.class())
            .field("offset", &self.offset)
            .field("is_last", &self.is_last)
            .finish_non_exhaustive()
    }
}

/// A value where it lies: where its sender has put it on a bus, if it is more than 256 bytes; in the port's own memory
/// otherwise. It stays there, whatever comes meanwhile, until the port is used again.
#[derive(Clone, Copy, Debug)]
pub struct LentSample<'p> {
    /// The value's bytes.
    pub bytes: LentBytes<'p>,
    /// Its priority.
    pub priority: Priority,
    /// Sender of the value.
    pub source: Source,
    /// When it was published on a bus; elsewhere when it arrived. Its age is what has passed since; that is
    /// not measured here, because reading the clock takes longer than all the rest.
    pub arrival: Instant,
    /// Its sequence number.
    pub sequence: u32,
    /// Values of this source that came and were replaced since the last that was read.
    pub overwritten: u64,
    /// Whether this read is the first to see it.
    pub new: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_bytes_are_copied_from_anywhere_to_anywhere() {
        let pattern: Vec<u8> = (0..100).collect();
        for start in 0..9 {
            for length in 0..=70 {
                let lent = LentBytes::of_slice(&pattern[start..start + length]);
                for (offset, wanted) in [(0, 100), (0, 8), (3, 17), (8, 70), (71, 5)] {
                    let mut out = [0xee; 100];
                    let copied = lent.copy_out(offset, &mut out[..wanted]);
                    assert_eq!(copied, length.saturating_sub(offset).min(wanted));
                    assert_eq!(out[..copied], pattern[start + offset..][..copied]);
                    assert!(out[copied..].iter().all(|byte| *byte == 0xee));
                }
            }
        }
    }
}
