//! A descriptor that one thread makes readable for another (eventfd).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// The descriptor.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Whether a descriptor of another process is an event: what else is written to could block, or be a file that this
    /// process should not write.
    pub(crate) fn check(descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let shown = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        match rustix::fs::readlink(shown, Vec::new())?.to_bytes() {
            b"anon_inode:[eventfd]" => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Makes it readable. Waits if another holder has filled its counter and lets writes wait.
    pub(crate) fn ring(&self) {
        // SAFETY: a valid descriptor. It fails only where the counter is full, and then it is readable.
        let _readable = unsafe { libc::eventfd_write(self.0.as_raw_fd(), 1) };
    }

    /// Makes it unreadable again.
    pub(crate) fn quiet(&self) {
        let mut count = 0;
        // SAFETY: a valid descriptor, and room for the count. It fails where it was not rung.
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
