//! Shared memory with the layout laid over it once, and not at each message.
#![allow(unsafe_code)] // Holds what points into the mapping beside it.

use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::shape::{Shape, consumer_bytes};

use crate::sys::shared::SharedMemory;

pub(crate) type ProducerView = View<ProducerMemory<'static>>;
pub(crate) type ConsumerView = View<ConsumerMemory<'static>>;

/// A mapping, and the structures in it.
pub(crate) struct View<S> {
    /// Points into `mapping`; handed out for as long as `self` is borrowed, never longer.
    structures: S,
    mapping: SharedMemory,
}

// SAFETY: the structures are atomics and pointers into the mapping, which any thread may use; who may
// write what is the business of the protocol.
unsafe impl<S> Send for View<S> {}
// SAFETY: as above.
unsafe impl<S> Sync for View<S> {}

impl<S> std::fmt::Debug for View<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.mapping.fmt(formatter)
    }
}

impl<S> View<S> {
    pub(crate) fn mapping(&self) -> &SharedMemory {
        &self.mapping
    }

    pub(crate) fn into_mapping(self) -> SharedMemory {
        self.mapping
    }
}

impl ProducerView {
    pub(crate) fn producer(mapping: SharedMemory, shape: Shape) -> Self {
        assert!(
            mapping.bytes() >= shape.producer_bytes(),
            "mapped as it was asked for"
        );
        // SAFETY: there are as many bytes as the shape needs, page-aligned, which stay where they are until `mapping`
        // is dropped and are accessed through this alone; `'static` is a promise that `memory` takes back: what it
        // hands out ends with the borrow of `self`, and so before the mapping.
        let structures = unsafe { ProducerMemory::at(mapping.base().as_ptr(), shape) };
        Self {
            structures,
            mapping,
        }
    }

    #[inline]
    pub(crate) fn memory(&self) -> ProducerMemory<'_> {
        self.structures
    }
}

impl ConsumerView {
    pub(crate) fn consumer(mapping: SharedMemory) -> Self {
        assert!(
            mapping.bytes() >= consumer_bytes(),
            "mapped as it was asked for"
        );
        // SAFETY: as in `producer`.
        let structures = unsafe { ConsumerMemory::at(mapping.base().as_ptr()) };
        Self {
            structures,
            mapping,
        }
    }

    #[inline]
    pub(crate) fn memory(&self) -> ConsumerMemory<'_> {
        self.structures
    }
}
