//! Messages and values that are looked at where they lie: on a bus in the sender's memory, elsewhere in the receiving
//! port's own.
#![allow(unsafe_code)] // Views of memory that has one owner at a time.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_shm::layout::{SLOT_PAYLOAD_BYTES, Slot};
use tautline_shm::vbus::layout::{Slot as BusSlot, WORDS_BYTES_MAX};

use crate::address::Source;

/// Bytes of a message where they lie. Over a bus they are the sender's memory: one that keeps the rules
/// does not change them while we look, but nothing can make it, hence no slice without `unsafe` there.
#[derive(Clone, Copy)]
pub struct LentBytes<'m> {
    start: *const u8,
    length: usize,
    foreign: bool,
    memory: PhantomData<&'m u8>,
}

/// Bytes of a message without the lifetime of their memory, for a holder that keeps that memory itself.
#[derive(Clone, Copy)]
pub(crate) struct DetachedBytes {
    start: *const u8,
    length: usize,
    foreign: bool,
}

impl DetachedBytes {
    /// The bytes again.
    ///
    /// # Safety
    /// For `'m`, their memory stays mapped and the message's own, as it was when they were detached.
    #[inline(always)]
    pub(crate) unsafe fn attach<'m>(self) -> LentBytes<'m> {
        LentBytes {
            start: self.start,
            length: self.length,
            foreign: self.foreign,
            memory: PhantomData,
        }
    }
}

impl<'m> LentBytes<'m> {
    #[inline(always)]
    pub(crate) fn detach(self) -> DetachedBytes {
        DetachedBytes {
            start: self.start,
            length: self.length,
            foreign: self.foreign,
        }
    }

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
    pub(crate) fn of_slot(slot: &'m Slot, offset: usize, length: usize) -> Self {
        assert!(offset + length <= SLOT_PAYLOAD_BYTES);
        Self {
            start: slot.payload().wrapping_add(offset),
            length,
            foreign: false,
            memory: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn of_slice(bytes: &'m [u8]) -> Self {
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
        // port's producer, in this process or the kernel, which does not touch a slot before it is given back. (A
        // control process has the port's memory too; what it could do there, it could do to this whole process.)
        (!self.foreign).then(|| unsafe { std::slice::from_raw_parts(self.start, self.length) })
    }

    /// The bytes as a slice, on every link.
    ///
    /// # Safety
    /// Over a bus, the sender must keep the rules: not write to a message that it has published and that has not been
    /// given back. That holds for this library and for the C header, not for a hostile process.
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

/// A value where it lies: where its sender has put it on a bus, if it is more than 256 bytes and for this port alone;
/// in the port's own memory otherwise. It stays there, whatever comes meanwhile, until the port is used again.
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
