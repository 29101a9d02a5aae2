//! Signalling an event that a stranger made, without ever waiting for it.
//!
//! A write to an event whose counter is full waits, unless `O_NONBLOCK` is set, and that flag belongs to the open file,
//! which the stranger shares and can clear. An event cannot be opened a second time (`ENXIO`), and its write knows no
//! `RWF_NOWAIT`. But the kernel signals the event of an asynchronous read that has completed (`aio_resfd`), and there
//! it never waits: a counter that is full stays full (`eventfd_signal` in fs/eventfd.c). So a signal is a read of no
//! bytes from an empty file of our own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::fs::MemfdFlags;

/// Reads that may be under way at once; each is over when its call returns, and the kernel gives some more than are
/// asked for, for its CPUs. Lower is refused. Higher takes more of `fs.aio-max-nr`, which all users share.
const REQUESTS_MAX: libc::c_long = 1;
/// `AIO_RING_MAGIC` of fs/aio.c.
const RING_MAGIC: u32 = 0xa10a_10a1;
/// `IOCB_CMD_PREAD` and `IOCB_FLAG_RESFD` of linux/aio_abi.h.
const READ: u16 = 0;
const WITH_EVENT: u32 = 1;

/// `struct iocb` of linux/aio_abi.h, which not every C library has.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    /// Key and flags, in an order that depends on the machine.
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

const _: () = assert!(size_of::<Request>() == 64, "as the kernel has it");

/// Head of the ring of completed reads (`struct aio_ring` of fs/aio.c), which the kernel maps into this process.
#[repr(C)]
struct Ring {
    id: u32,
    length: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible_features: u32,
    incompatible_features: u32,
    header_bytes: u32,
}

/// The means to signal events of others. Any thread may use it.
#[derive(Debug)]
pub(crate) struct Signaller {
    ring: NonNull<Ring>,
    empty: OwnedFd,
}

// SAFETY: the ring's head and tail are atomics, the rest of it is only read, and the kernel takes requests for it from
// any thread of the process.
unsafe impl Send for Signaller {}
// SAFETY: as above.
unsafe impl Sync for Signaller {}

impl Signaller {
    /// # Errors
    /// The kernel's: `EAGAIN` if `fs.aio-max-nr` is reached, `ENOSYS` without asynchronous I/O.
    pub(crate) fn new() -> io::Result<Self> {
        let empty = rustix::fs::memfd_create(c"taut-empty", MemfdFlags::CLOEXEC)?;
        // The kernel's name for a context is the address of its ring.
        let mut ring: *mut Ring = std::ptr::null_mut();
        // SAFETY: it writes the context's address to where it is pointed to, which is zero before.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS_MAX, &raw mut ring) };
        super::check_size(made as isize)?;
        let ring = NonNull::new(ring).ok_or(io::ErrorKind::Unsupported)?;
        let signaller = Self { ring, empty };
        let head = signaller.ring();
        if head.magic != RING_MAGIC || head.incompatible_features != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(signaller)
    }

    fn ring(&self) -> &Ring {
        // SAFETY: the kernel mapped the ring, page by page and larger than its head, until `io_destroy` in `drop`. It
        // writes head and tail only, which are atomics here.
        unsafe { self.ring.as_ref() }
    }

    /// Makes the event readable. Does nothing if the descriptor is no event.
    pub(crate) fn signal(&self, event: BorrowedFd<'_>) {
        let mut request = Request {
            opcode: READ,
            file: self.empty.as_raw_fd() as u32,
            flags: WITH_EVENT,
            event: event.as_raw_fd() as u32,
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        // SAFETY: one request, which lives through the call; a read of no bytes from memory is over when it returns.
        unsafe {
            let context = self.ring.as_ptr();
            libc::syscall(libc::SYS_io_submit, context, 1, requests.as_mut_ptr());
        }
        // Takes what has completed out of the ring, which nobody reads. Threads that do this at once may put back a
        // few of the others'; the next signal takes them out.
        let ring = self.ring();
        // Acquire: partner is the kernel's release of the tail in `aio_complete`.
        ring.head.store(ring.tail.load(Acquire), Relaxed);
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: our context, which nobody uses any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.ring.as_ptr()) };
    }
}

/// The event by which a peer is woken.
#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// Of a peer who could stop this process anyway: written to, which takes half the time.
    Trusted(super::event::Event),
    /// Of another user.
    Stranger(OwnedFd, std::sync::Arc<Signaller>),
}

impl PeerEvent {
    /// Whether the peer could stop this process anyway.
    pub(crate) fn is_trusted(&self) -> bool {
        matches!(self, Self::Trusted(_))
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        match self {
            Self::Trusted(event) => event.ring(),
            Self::Stranger(event, signaller) => signaller.signal(event.as_fd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(count: u64) -> OwnedFd {
        // An event that blocks, and whose counter is written to.
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        if count > 0 {
            assert_eq!(rustix::io::write(&event, &count.to_ne_bytes()), Ok(8));
        }
        event
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(event, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn each_signal_counts_as_often_as_it_is_given() {
        let signaller = Signaller::new().unwrap();
        let event = event(0);
        // More than the ring has places.
        for _ in 0..100_000 {
            signaller.signal(event.as_fd());
        }
        assert_eq!(count(&event), 100_000);
    }

    #[test]
    fn a_full_counter_holds_nobody_up() {
        let signaller = Signaller::new().unwrap();
        let full = event(u64::MAX - 1);
        for _ in 0..1_000 {
            signaller.signal(full.as_fd());
        }
        assert_eq!(count(&full), u64::MAX);
        // Only events are signalled.
        signaller.signal(signaller.empty.as_fd());
        let other = event(0);
        signaller.signal(other.as_fd());
        assert_eq!(count(&other), 1);
    }

    #[test]
    fn threads_share_one() {
        let signaller = Signaller::new().unwrap();
        let events: Vec<_> = (0..4).map(|_| event(0)).collect();
        std::thread::scope(|scope| {
            for event in &events {
                let signaller = &signaller;
                scope.spawn(move || (0..20_000).for_each(|_| signaller.signal(event.as_fd())));
            }
        });
        let counts: Vec<_> = events.iter().map(count).collect();
        assert_eq!(counts, [20_000; 4]);
    }
}
