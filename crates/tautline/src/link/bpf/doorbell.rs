//! The doorbell of a port: a BPF ring buffer, because epoll understands it. What is in its records is
//! of no interest, only that there are any; so it is read without the loader's library, which asks bpf()
//! about every map, and works in a process that may not call that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys::memory::{Mapping, page_bytes};

/// Bytes of a doorbell's ring: a ring for each time that the consumer went to sleep, and it empties it
/// when it wakes, so one record would do. The kernel wants a power of two and whole pages.
pub(in crate::link) const BYTES: usize = 4096;

/// One end of a doorbell: its reader's.
#[derive(Debug)]
pub(in crate::link) struct Doorbell {
    ring: OwnedFd,
    /// The first page: how far has been read.
    consumed: Mapping,
    /// The second: how far has been written. For the kernel to write only.
    produced: Mapping,
}

impl Doorbell {
    /// Maps the two positions of a ring buffer (Documentation/bpf/ringbuf.rst).
    pub(in crate::link) fn new(ring: OwnedFd) -> io::Result<Self> {
        let page = page_bytes();
        Ok(Self {
            consumed: Mapping::shared(ring.as_fd(), page, 0)?,
            produced: Mapping::shared_read_only(ring.as_fd(), page, page)?,
            ring,
        })
    }

    /// Forgets what has rung so far. A record that is still being written is forgotten too: the thread that
    /// writes it has published a message before, which the look that follows will find.
    pub(in crate::link) fn quiet(&self) {
        // Acquire: partner is the kernel's release of the position in `bpf_ringbuf_reserve`. Release:
        // partner is the kernel's acquire where it looks for room.
        let produced = self.produced.load(0, Acquire);
        if self.consumed.load(0, Relaxed) != produced {
            self.consumed.store(0, produced, Release);
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
