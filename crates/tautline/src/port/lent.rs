//! Messages that are filled in place, and looked at where they lie: link `vbus` lends its memory
//! ([`Capabilities::lends`](crate::link::Capabilities::lends)).
#![allow(unsafe_code)] // The receiver's view is raw: its bytes are the sender's to change.

use std::ops::{Deref, DerefMut};

use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_shm::vbus::layout::Slot;

use crate::address::Source;
use crate::error::SendError;
use crate::link::vbus::{BusPort, Outlet};
use crate::statistics::Statistics;

/// The place of a message that has not been sent: fill it, and [`send`](Loan::send) it. Dropped
/// without that, it is as if it had never been asked for. What stands there at first is what an earlier
/// message has left.
pub struct Loan<'p> {
    outlet: &'p mut Outlet,
    sequence: &'p mut u32,
    statistics: &'p Statistics,
    priority: Priority,
    /// The place, within memory that the outlet holds, and that only we can write.
    start: *mut u8,
    length: usize,
}

impl<'p> Loan<'p> {
    pub(crate) fn new(
        outlet: &'p mut Outlet,
        sequence: &'p mut u32,
        statistics: &'p Statistics,
        priority: Priority,
        length: usize,
    ) -> Result<Self, SendError> {
        let start = outlet
            .lend(priority, length)
            .inspect_err(|_| statistics.send_errors.add(1))?;
        Ok(Self {
            outlet,
            sequence,
            statistics,
            priority,
            start,
            length,
        })
    }

    /// Sends what has been filled in.
    ///
    /// # Errors
    /// [`SendError::PeerGone`] if the peer went meanwhile.
    #[inline]
    pub fn send(self) -> Result<(), SendError> {
        let sequence = *self.sequence;
        *self.sequence = sequence.wrapping_add(1);
        let result = self
            .outlet
            .publish_lent(self.priority, self.length, sequence);
        match result {
            Ok(()) => self.statistics.sent.add(1),
            Err(_) => self.statistics.send_errors.add(1),
        }
        result
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` begins `length` bytes of a slot of our own memory (`Outlet::lend`), which
        // stays mapped while the outlet is borrowed. Nobody but us can write it: it is sealed. The peer
        // does not read it before it is published, and its reads could not harm us.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl DerefMut for Loan<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the loan is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl std::fmt::Debug for Loan<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Loan")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Bytes where their sender has put them. They are the sender's memory: one that keeps the rules does
/// not change them while we look, but nothing can make it, hence no slice without `unsafe`.
#[derive(Clone, Copy)]
pub struct LentBytes<'m> {
    slot: Slot<'m>,
    length: usize,
}

impl<'m> LentBytes<'m> {
    #[inline]
    pub(crate) fn new(slot: Slot<'m>, length: usize) -> Self {
        debug_assert!(length <= slot.capacity());
        Self { slot, length }
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
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> usize {
        let bytes = self.length.saturating_sub(offset).min(out.len());
        // SAFETY: `offset + bytes` is within `length`, which is within the slot's mapped bytes; `out`
        // has at least `bytes` of ours. The sender may write meanwhile if it breaks the rules: then
        // what we get is torn.
        unsafe {
            let from = self.slot.payload().add(offset.min(self.length));
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), bytes);
        }
        bytes
    }

    /// Where they begin: aligned to 8 bytes, readable only, for as long as this value lives.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.slot.payload()
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// The sender must keep the rules: not write to a message that it has published and that has not been
    /// given back. That holds for this library and for the C header, not for a hostile process.
    #[inline]
    #[must_use]
    pub unsafe fn as_slice(&self) -> &'m [u8] {
        // SAFETY: the bytes are mapped for `'m`, initialised (memory of a file), and by the caller's
        // promise not written.
        unsafe { std::slice::from_raw_parts(self.slot.payload(), self.length) }
    }
}

impl std::fmt::Debug for LentBytes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LentBytes({})", self.length)
    }
}

/// A message where its sender has put it. It is given back when this value is dropped.
#[derive(Debug)]
pub struct LentMessage<'p> {
    pub(crate) bus: &'p mut BusPort,
    pub(crate) place: (usize, usize),
    /// Its priority.
    pub priority: Priority,
    /// Who sent it.
    pub source: Source,
    /// When it was published.
    pub arrival: Instant,
    /// Its sequence number.
    pub sequence: u32,
    pub(crate) length: usize,
}

impl LentMessage<'_> {
    /// The message's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> LentBytes<'_> {
        LentBytes::new(self.bus.inlet.slot(self.place), self.length)
    }
}

impl Drop for LentMessage<'_> {
    #[inline]
    fn drop(&mut self) {
        self.bus.inlet.release(self.place);
    }
}

/// A value where its sender has put it. It stays there, whatever comes meanwhile, until the port is used
/// again.
#[derive(Clone, Copy, Debug)]
pub struct LentSample<'p> {
    /// The value's bytes.
    pub bytes: LentBytes<'p>,
    /// Its priority.
    pub priority: Priority,
    /// Who sent it.
    pub source: Source,
    /// When it was published. Its age is what has passed since; that is not measured here, because
    /// reading the clock takes longer than all the rest.
    pub arrival: Instant,
    /// Its sequence number.
    pub sequence: u32,
    /// Values of this source that came and were replaced since the last that was read.
    pub overwritten: u64,
    /// Whether this read is the first to see it.
    pub new: bool,
}
