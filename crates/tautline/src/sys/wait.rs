//! Sleeping until a descriptor is readable or a time has come.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::check_size;

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

/// Sleeps until one of `fds` is readable or `timeout` is over (for ever if `None`); which are readable. Allocates
/// nothing.
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

/// One descriptor that is readable when any of `members` is.
pub(crate) fn either(members: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for member in members {
        let nothing_to_tell = epoll::EventData::new_u64(0);
        epoll::add(&set, member, nothing_to_tell, epoll::EventFlags::IN)?;
    }
    Ok(set)
}

/// Sleeps until the descriptors of an epoll have events or `timeout` is over (for ever if `None`); their tokens, none
/// after a signal.
///
/// By a system call with all its arguments. The one of rustix leaves the last as it finds it: the kernel does not read
/// it, but valgrind reports it in our users' programs. And a preloaded program replaces the C library's function.
pub(crate) fn tokens<'a>(
    epoll: BorrowedFd<'_>,
    place: &'a mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<impl Iterator<Item = u64> + use<'a>> {
    let places = place.len().try_into().unwrap_or(libc::c_int::MAX);
    // Rounded up: an early end would be asked again, with no time left, until the time has come.
    let limit_ms = timeout.map_or(-1, |timeout| {
        let limit_ms = timeout.as_nanos().div_ceil(1_000_000);
        limit_ms.try_into().unwrap_or(libc::c_int::MAX)
    });
    let no_signals = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the kernel writes at most `places` events.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            epoll.as_raw_fd(),
            place.as_mut_ptr(),
            places,
            limit_ms,
            no_signals,
            0usize,
        )
    };
    let happened = match check_size(result as isize) {
        Ok(happened) => &place[..happened],
        Err(error) if error.kind() == io::ErrorKind::Interrupted => &[],
        Err(error) => return Err(error),
    };
    Ok(happened.iter().map(|event| event.u64))
}

/// Place for so many events.
pub(crate) const fn places<const N: usize>() -> [libc::epoll_event; N] {
    [libc::epoll_event { events: 0, u64: 0 }; N]
}
