//! Lays the layout over raw memory: a mapped BPF array, memory of this process, later a file that
//! two processes map.
#![allow(unsafe_code)] // The one place where bytes become the structures of `layout`.

use core::ptr::NonNull;

use crate::deliver::PortRef;
use crate::layout::{
    CELL_COUNT, CLASS_COUNT, Control, FIRST_SLOT, KIND_QUEUING, KIND_SAMPLING, MAGIC, PeerTable,
    SLOT_BYTES, Slot, VERSION,
};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::{queue, sample};

/// What a port is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A queuing port with this many slots in each of the eight classes, a power of two.
    Queuing {
        /// Slots a class.
        depth: u32,
    },
    /// A sampling port.
    Sampling,
}

impl Shape {
    /// Elements of [`SLOT_BYTES`] that such a port needs.
    #[must_use]
    pub const fn elements(self) -> usize {
        FIRST_SLOT
            + match self {
                Self::Queuing { depth } => depth as usize * CLASS_COUNT,
                Self::Sampling => CELL_COUNT,
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
/// `base` must return, for the whole life of the value, the same address: the start of at least
/// `shape().bytes()` bytes that are mapped, writable, aligned to 64 bytes, and accessed by nobody
/// in this process except through the atomics of [`crate::layout`]. (Another process or the kernel
/// may write there at any time.)
pub unsafe trait PortMemory {
    /// Start of the memory.
    fn base(&self) -> NonNull<u8>;
    /// What the memory was made for. Kept outside the memory: nothing in it is trusted.
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
                peers: &*base.add(SLOT_BYTES).cast::<PeerTable>(),
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
        let (kind, depth) = match self.shape() {
            Shape::Queuing { depth } => {
                queue::initialise(slots);
                (KIND_QUEUING, depth)
            }
            Shape::Sampling => {
                sample::initialise(control);
                (KIND_SAMPLING, CELL_COUNT as u32)
            }
        };
        let identity = &control.identity;
        identity.version.store(VERSION, Relaxed);
        identity.kind.store(kind, Relaxed);
        identity.depth.store(depth, Relaxed);
        identity.port.store(u32::from(port), Relaxed);
        // Release: partner is the Acquire in `recognised`.
        identity.magic.store(MAGIC, Release);
    }

    /// Whether the memory holds a port of this layout and of the shape that we believe.
    fn recognised(&self) -> bool {
        let identity = &self.port().control.identity;
        let (kind, depth) = match self.shape() {
            Shape::Queuing { depth } => (KIND_QUEUING, depth),
            Shape::Sampling => (KIND_SAMPLING, CELL_COUNT as u32),
        };
        identity.magic.load(Acquire) == MAGIC
            && identity.version.load(Relaxed) == VERSION
            && identity.kind.load(Relaxed) == kind
            && identity.depth.load(Relaxed) == depth
    }
}
