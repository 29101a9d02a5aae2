//! Mappings with the layout laid over them once, and not at each message.
#![allow(unsafe_code)] // Holds what points into the mapping beside it.

use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::shape::{Shape, consumer_bytes};

use crate::sys::shared::{OwnMemory, PeerMemory};

/// Memory that a layout can be laid over.
///
/// # Safety
/// The memory stays where it is, mapped, until the value is dropped, even if the value is moved; it is
/// accessed through [`View`] alone.
pub(crate) unsafe trait Mapped {
    /// Its beginning, aligned to a page, and its bytes.
    fn span(&self) -> (*mut u8, usize);
}

// SAFETY: a mapping of its own that is unmapped when dropped.
unsafe impl Mapped for OwnMemory {
    fn span(&self) -> (*mut u8, usize) {
        (self.base().as_ptr(), self.bytes())
    }
}

// SAFETY: as above.
unsafe impl Mapped for PeerMemory {
    fn span(&self) -> (*mut u8, usize) {
        (self.base().as_ptr(), self.bytes())
    }
}

/// A producer's memory: ours as [`OwnMemory`], a peer's as [`PeerMemory`].
pub(crate) type ProducerView<M> = View<M, ProducerMemory<'static>>;
/// A consumer's.
pub(crate) type ConsumerView<M> = View<M, ConsumerMemory<'static>>;

/// A mapping, and the structures in it.
pub(crate) struct View<M, S> {
    /// Points into `mapping`; handed out for as long as `self` is borrowed, never longer.
    structures: S,
    mapping: M,
}

// SAFETY: the structures are atomics and pointers into the mapping, which any thread may use; who may
// write what is the business of the protocol.
unsafe impl<M: Send, S> Send for View<M, S> {}
// SAFETY: as above.
unsafe impl<M: Sync, S> Sync for View<M, S> {}

impl<M: std::fmt::Debug, S> std::fmt::Debug for View<M, S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.mapping.fmt(formatter)
    }
}

impl<M, S> View<M, S> {
    /// The mapping.
    pub(crate) fn mapping(&self) -> &M {
        &self.mapping
    }
}

impl<M: Mapped> View<M, ProducerMemory<'static>> {
    /// A producer's memory of this shape.
    pub(crate) fn producer(mapping: M, shape: Shape) -> Self {
        let (base, bytes) = mapping.span();
        assert!(
            bytes >= shape.producer_bytes(),
            "mapped as it was asked for"
        );
        // SAFETY: there are as many bytes as the shape needs, page-aligned; `'static` is a promise
        // that `memory` takes back: what it hands out ends with the borrow of `self`, and so before the
        // mapping.
        let structures = unsafe { ProducerMemory::at(base, shape) };
        Self {
            structures,
            mapping,
        }
    }

    /// The structures.
    #[inline]
    pub(crate) fn memory(&self) -> ProducerMemory<'_> {
        self.structures
    }
}

impl<M: Mapped> View<M, ConsumerMemory<'static>> {
    /// A consumer's memory.
    pub(crate) fn consumer(mapping: M) -> Self {
        let (base, bytes) = mapping.span();
        assert!(bytes >= consumer_bytes(), "mapped as it was asked for");
        // SAFETY: as in `producer`.
        let structures = unsafe { ConsumerMemory::at(base) };
        Self {
            structures,
            mapping,
        }
    }

    /// The structures.
    #[inline]
    pub(crate) fn memory(&self) -> ConsumerMemory<'_> {
        self.structures
    }
}
