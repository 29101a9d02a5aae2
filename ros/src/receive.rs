//! The C library's `recvmsg` as this program has it: threads of `rustdds` get no datagram that [`Datagrams`] refuses.
//! `rustdds` offers no place for a check of what it receives; it receives by this function (0.15.1).

#![allow(unsafe_code)] // a function of the C library is replaced

use std::cell::RefCell;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use crate::datagrams::Datagrams;

/// Datagrams that were refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Check of this thread's datagrams, if it is one of `rustdds`.
    static CHECK: Option<RefCell<Datagrams>> = {
        let thread = thread::current();
        let is_of_rustdds = thread.name().is_some_and(|name| name.starts_with("RustDDS"));
        is_of_rustdds.then(RefCell::default)
    };
}

/// Datagrams that were refused since the program started.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Relaxed)
}

/// Receives a message, as the C library's function of this name does.
///
/// # Safety
/// `message` points to a header of a message whose pointers are valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(
    descriptor: libc::c_int,
    message: *mut libc::msghdr,
    flags: libc::c_int,
) -> libc::ssize_t {
    // SAFETY: the caller's promise; an invalid pointer is the kernel's EFAULT, and is not read here.
    let receive = || unsafe { libc::syscall(libc::SYS_recvmsg, descriptor, message, flags) };
    let received = CHECK.try_with(|check| {
        let mut check = check.as_ref()?.try_borrow_mut().ok()?;
        // SAFETY: the caller's promise. The kernel changes the lengths, which are put back for the next datagram.
        let before = unsafe { message.read() };
        loop {
            let count = receive();
            let Ok(bytes) = usize::try_from(count) else {
                return Some(count);
            };
            // SAFETY: the caller's promise: a first buffer, into which the kernel has written at most its length.
            let is_admitted = unsafe {
                let buffer = before.msg_iov.read();
                let bytes = bytes.min(buffer.iov_len);
                let datagram = slice::from_raw_parts(buffer.iov_base.cast::<u8>(), bytes);
                before.msg_iovlen != 1 || check.admits(datagram, Instant::now())
            };
            if is_admitted {
                return Some(count);
            }
            REFUSED.fetch_add(1, Relaxed);
            // SAFETY: as above.
            unsafe { message.write(before) };
        }
    });
    let received = received.ok().flatten().unwrap_or_else(receive);
    #[allow(clippy::cast_possible_truncation)] // the same width on every target
    {
        received as libc::ssize_t
    }
}
