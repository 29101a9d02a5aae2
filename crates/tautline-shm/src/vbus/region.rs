//! Lays the layout over mapped memory.
#![allow(unsafe_code)] // The one place where bytes become the structures of `layout`.

use super::layout::{
    ConnectionEntry, ConsumerHead, FIRST_CONNECTION, PRODUCERS_MAX, ProducerHead, Slots,
};
use super::shape::Shape;

/// A producer's memory.
#[derive(Clone, Copy)]
pub struct ProducerMemory<'m> {
    /// Head of the memory.
    pub head: &'m ProducerHead,
    /// Slots or cells.
    pub slots: Slots<'m>,
}

impl ProducerMemory<'_> {
    /// The memory that starts at `base`.
    ///
    /// # Safety
    /// `base` is the start of at least `shape.producer_bytes()` mapped bytes, aligned to a page, that
    /// stay for the life of the result and are accessed in this process only through it. In the
    /// owner's process they are writable. Anybody else's process may write them at any time.
    #[inline]
    #[must_use]
    pub unsafe fn at(base: *mut u8, shape: Shape) -> Self {
        // SAFETY: the caller promises size, alignment and life; every bit pattern is a valid
        // atomic integer; `Slots::at` asks for the same.
        unsafe {
            Self {
                head: &*base.cast::<ProducerHead>(),
                slots: Slots::at(base, shape),
            }
        }
    }
}

/// A consumer's memory.
#[derive(Clone, Copy)]
pub struct ConsumerMemory<'m> {
    /// Head of the memory.
    pub head: &'m ConsumerHead,
    /// One entry for each producer that there can be.
    pub connections: &'m [ConnectionEntry; PRODUCERS_MAX],
}

impl ConsumerMemory<'_> {
    /// The memory that starts at `base`.
    ///
    /// # Safety
    /// Those of [`ProducerMemory::at`], with [`super::shape::consumer_bytes`] bytes.
    #[inline]
    #[must_use]
    pub unsafe fn at(base: *mut u8) -> Self {
        // SAFETY: the caller promises size, alignment and life; every bit pattern is a valid atomic integer.
        unsafe {
            Self {
                head: &*base.cast::<ConsumerHead>(),
                connections: &*base.add(FIRST_CONNECTION).cast(),
            }
        }
    }
}
