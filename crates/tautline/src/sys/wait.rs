//! Sleeping until a descriptor is readable or a time has come.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// Sleeps until `fd` is readable; at most `timeout`, for ever if `None`. A signal ends it early.
pub(crate) fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // A time that the kernel's type cannot hold is for ever.
    let limit = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether `fd` is readable at this moment.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    matches!(which_of([fd], Some(Duration::ZERO)), Ok([true]))
}

/// As [`which_readable`], of a number that is known: nothing is allocated.
pub(crate) fn which_of<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let limit = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) => Ok(polled.map(|one| !one.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

/// Sleeps until one of `fds` is readable or `timeout` is over (for ever if `None`); which are readable.
pub(crate) fn which_readable(
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let polled = fds.iter();
    let mut polled: Vec<_> = polled
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let limit = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}

/// One descriptor that is readable when any of `members` is.
pub(crate) fn either(members: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for member in members {
        let nothing_to_tell = epoll::EventData::new_u64(0);
        epoll::add(&set, member, nothing_to_tell, epoll::EventFlags::IN)?;
    }
    Ok(set)
}
