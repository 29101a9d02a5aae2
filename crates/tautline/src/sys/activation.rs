//! A socket that a service manager has bound and listens on for this process (sd_listen_fds(3)).

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;

/// Whether it has been taken: a descriptor has one owner.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The socket, once; `None` if none was handed over to this process.
///
/// # Errors
/// `ErrorKind::InvalidInput` if it is not exactly one, or not open.
pub(crate) fn take() -> io::Result<Option<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    match number("LISTEN_FDS") {
        None | Some(0) => return Ok(None),
        Some(1) => {}
        Some(_) => return Err(invalid("more than one socket was handed over")),
    }
    if TAKEN.swap(true, Relaxed) {
        return Ok(None);
    }
    // SAFETY: it is looked at for the length of this call only, and may be closed.
    let handed_over = unsafe { BorrowedFd::borrow_raw(FIRST) };
    let flags = rustix::io::fcntl_getfd(handed_over)
        .map_err(|_| invalid("the socket that was handed over is not open"))?;
    rustix::io::fcntl_setfd(handed_over, flags | rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and the service manager says that it is for this process, which takes it once.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST) }))
}
