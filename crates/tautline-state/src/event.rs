//! A descriptor that one thread makes readable for another (eventfd).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A counter that wakes the threads that poll it.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// One that is not readable.
    ///
    /// # Errors
    /// The process or the machine has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Whether a descriptor of another process is an event: what else is written to could block, or be a file that this
    /// process should not write.
    ///
    /// # Errors
    /// `ErrorKind::InvalidData` if it is none.
    pub fn check(descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let shown = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        match rustix::fs::readlink(shown, Vec::new())?.to_bytes() {
            b"anon_inode:[eventfd]" => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Makes it readable. Never waits, unless it is another process's that has filled its counter and lets writes wait.
    #[inline]
    pub fn ring(&self) {
        // Full: it has been rung, and was not read yet.
        let _rung = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again. Returns how often it has been rung since.
    #[inline]
    pub fn quiet(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            // Empty: it has not been rung.
            Err(_) => 0,
        }
    }
}

impl From<OwnedFd> for Event {
    /// One that another process has made.
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_counted_until_it_is_quiet() {
        let event = Event::new().unwrap();
        assert_eq!(event.quiet(), 0);
        (0..3).for_each(|_| event.ring());
        assert_eq!([event.quiet(), event.quiet()], [3, 0]);
    }
}
