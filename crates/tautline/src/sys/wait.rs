//! Sleeping until a descriptor is readable or a time has come.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Sleeps until `fd` is readable; at most `timeout`, for ever if `None`. A signal ends it early.
pub(crate) fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one valid pollfd, a valid or null timespec, no signal mask.
    match super::check(unsafe { libc::ppoll(&raw mut poll, 1, limit, std::ptr::null()) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// One descriptor that is readable when any of `members` is.
pub(crate) fn either(members: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    // SAFETY: a call without pointers; the descriptor that it returns is ours.
    let epoll =
        unsafe { OwnedFd::from_raw_fd(super::check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
    for member in members {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: two valid descriptors and a valid event, which the kernel copies.
        super::check(unsafe {
            libc::epoll_ctl(
                epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                member.as_raw_fd(),
                &raw mut event,
            )
        })?;
    }
    Ok(epoll)
}
