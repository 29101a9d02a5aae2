//! A descriptor that one thread makes readable for another (eventfd).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

    /// Makes it readable. Never waits.
    pub fn ring(&self) {
        // Full: it has been rung, and was not read yet.
        let _rung = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again. Returns how often it has been rung since.
    pub fn quiet(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            // Empty: it has not been rung.
            Err(_) => 0,
        }
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
