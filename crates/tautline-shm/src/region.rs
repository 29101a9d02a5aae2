//! Lays the layout over raw memory: a mapped BPF array, memory of this process, later a file that two processes map.
#![allow(unsafe_code)] // The one place where bytes become the structures of `layout`.

use core::ptr::NonNull;

use crate::deliver::PortRef;
use crate::layout::{
    CELL_COUNT, CLASS_COUNT, Control, FIRST_PEER, FIRST_SLOT, KIND_QUEUING, KIND_SAMPLING, MAGIC,
    PEER_COUNT, Peer, SLOT_BYTES, Slot, VERSION,
};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::{queue, sample};

/// Capacity of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A queuing port with this many slots in each of the eight classes, a power of two.
    Queuing {
        /// Slots a class.
        depth: u32,
    },
    /// A sampling port.
    Sampling {
        /// Sources that have cells of their own, 1 to [`PEER_COUNT`]; 1: all share one set.
        sources: u32,
    },
}

impl Shape {
    /// Elements of [`SLOT_BYTES`] that such a port needs.
    #[must_use]
    pub const fn elements(self) -> usize {
        FIRST_SLOT
            + match self {
                Self::Queuing { depth } => depth as usize * CLASS_COUNT,
                Self::Sampling { sources } => sources as usize * CELL_COUNT,
            }
    }

    /// Kind, depth and sources as the identity tells them.
    const fn words(self) -> (u16, u32, u32) {
        match self {
            Self::Queuing { depth } => (KIND_QUEUING, depth, 1),
            Self::Sampling { sources } => (KIND_SAMPLING, CELL_COUNT as u32, sources),
        }
    }

    /// Bytes that such a port needs.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.elements() * SLOT_BYTES
    }
}

/// Memory that holds one port.
///
/// # Safety
/// `base` must return, for the whole life of the value, the same address: the start of at least `shape().bytes()` bytes
/// that are mapped, writable, aligned to 64 bytes, and in this process accessed only through the atomics of
/// [`crate::layout`]. (Another process or the kernel may write there at any time.)
pub unsafe trait PortMemory {
    /// Start of the memory.
    fn base(&self) -> NonNull<u8>;
    /// Capacity that the memory was made for. Kept outside the memory: nothing in it is trusted.
    fn shape(&self) -> Shape;

    /// The structures in the memory.
    #[inline]
    fn port(&self) -> PortRef<'_> {
        let base = self.base().as_ptr();
        let slots = self.shape().elements() - FIRST_SLOT;
        // SAFETY: the implementor guarantees size, alignment, life time, and that everybody in
        // this process goes through atomics; every bit pattern is a valid atomic integer. The
        // element offsets are within `shape().bytes()`.
        unsafe {
            PortRef {
                control: &*base.cast::<Control>(),
                peers: core::slice::from_raw_parts(
                    base.add(FIRST_PEER * SLOT_BYTES).cast::<Peer>(),
                    PEER_COUNT,
                ),
                slots: core::slice::from_raw_parts(
                    base.add(FIRST_SLOT * SLOT_BYTES).cast::<Slot>(),
                    slots,
                ),
            }
        }
    }

    /// Makes zeroed memory a port. Before any producer can see it.
    fn initialise(&self, port: u16) {
        let PortRef { control, slots, .. } = self.port();
        match self.shape() {
            Shape::Queuing { .. } => queue::initialise(slots),
            Shape::Sampling { .. } => sample::initialise(control),
        }
        let (kind, depth, sources) = self.shape().words();
        let identity = &control.identity;
        identity.version.store(VERSION, Relaxed);
        identity.kind.store(kind, Relaxed);
        identity.depth.store(depth, Relaxed);
        identity.port.store(u32::from(port), Relaxed);
        identity.sources.store(sources, Relaxed);
        // Release: partner is the Acquire in `recognised`.
        identity.magic.store(MAGIC, Release);
    }

    /// Whether the memory holds a port of this layout and of the shape that we believe.
    fn recognised(&self) -> bool {
        let identity = &self.port().control.identity;
        let (kind, depth, sources) = self.shape().words();
        identity.magic.load(Acquire) == MAGIC
            && identity.version.load(Relaxed) == VERSION
            && identity.kind.load(Relaxed) == kind
            && identity.depth.load(Relaxed) == depth
            && identity.sources.load(Relaxed) == sources
    }
}
