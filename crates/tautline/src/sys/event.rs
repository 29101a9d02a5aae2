//! A descriptor that one thread makes readable for another (eventfd), and one that stands for several such.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;

use super::wait::{places, tokens};

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

/// Events that are looked at in one go; what is more keeps the descriptor readable. Lower than the peers of a port,
/// and one who rings all the time could keep it so.
const HEARD_MAX: usize = 64;

/// One descriptor for the events of several others and one of our own. An event that others hold is written, read and
/// filled up as they please, without an effect on the rest: what counts is that it was written to (edge-triggered), and
/// nothing is read from it.
#[derive(Debug)]
pub(crate) struct Bells {
    epoll: OwnedFd,
    own: Event,
}

impl Bells {
    pub(crate) fn new() -> io::Result<Self> {
        let bells = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            own: Event::new()?,
        };
        bells.listen(&bells.own)?;
        Ok(bells)
    }

    fn listen(&self, event: &Event) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, event, epoll::EventData::new_u64(0), flags)?;
        Ok(())
    }

    /// A new event, for another to ring.
    pub(crate) fn add(&self) -> io::Result<Event> {
        let event = Event::new()?;
        self.listen(&event)?;
        Ok(event)
    }

    /// Listens to an event no longer, whichever process still holds it.
    pub(crate) fn remove(&self, event: &Event) {
        // It fails only for one that is not there.
        let _removed = epoll::delete(&self.epoll, event);
    }

    /// Makes the descriptor readable.
    pub(crate) fn ring(&self) {
        self.own.ring();
    }

    /// Makes it unreadable until one of the bells rings again.
    pub(crate) fn quiet(&self) {
        let mut heard = places::<HEARD_MAX>();
        // Should it fail, the descriptor stays readable, which costs a look.
        let _heard = tokens(self.as_fd(), &mut heard, Some(Duration::ZERO));
    }
}

impl AsFd for Bells {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn is_readable(bells: &Bells) -> bool {
        let mut poll = libc::pollfd {
            fd: bells.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn each_ring_makes_it_readable_until_it_is_quieted() {
        let bells = Bells::new().unwrap();
        let (one, other) = (bells.add().unwrap(), bells.add().unwrap());
        assert!(!is_readable(&bells));
        for event in [&one, &other, &bells.own] {
            for _ in 0..3 {
                event.ring();
                assert!(is_readable(&bells) && is_readable(&bells));
                bells.quiet();
                assert!(!is_readable(&bells));
            }
        }
        // A process that empties its own.
        one.ring();
        other.ring();
        one.quiet();
        assert!(is_readable(&bells));
        bells.quiet();
        bells.remove(&one);
        one.ring();
        assert!(!is_readable(&bells), "not listened to any more");
        super::super::wait::readable(bells.as_fd(), Some(Duration::ZERO)).unwrap();
    }
}
