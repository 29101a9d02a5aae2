//! A descriptor that one thread makes readable for another (eventfd).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The descriptor.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a call without pointers; the descriptor that it returns is ours.
        let fd = unsafe {
            let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
            OwnedFd::from_raw_fd(super::check(libc::eventfd(0, flags))?)
        };
        Ok(Self(fd))
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        // SAFETY: a valid descriptor. It fails only where the counter is full, and then it is readable.
        let _readable = unsafe { libc::eventfd_write(self.0.as_raw_fd(), 1) };
    }

    /// Makes it unreadable again.
    pub(crate) fn quiet(&self) {
        let mut count = 0;
        // SAFETY: a valid descriptor, and room for the count. It fails where nobody has rung.
        let _quiet = unsafe { libc::eventfd_read(self.0.as_raw_fd(), &raw mut count) };
    }
}

impl From<OwnedFd> for Event {
    /// One that another process has made.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
