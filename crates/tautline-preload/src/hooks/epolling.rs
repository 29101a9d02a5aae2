//! epoll_ctl(2), epoll_wait(2), epoll_pwait(2), epoll_pwait2(2).
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::c_int;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};

use crate::errno::Kept;
use crate::{memory, next, waiting, watched};

/// epoll_ctl(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { next::epoll_ctl(epoll, operation, fd, event) };
    if result == 0 {
        let _kept = Kept::new();
        let event = match event.is_null() {
            true => None,
            false => memory::read(event.cast_const()),
        };
        watched::controlled(epoll, operation, fd, event);
    }
    result
}

fn timeout_of(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// How many events a call has room for, if it concerns taken sockets.
#[inline]
fn taken_count(epoll: c_int, count: c_int) -> Option<usize> {
    if !watched::has_taken(epoll) {
        return None;
    }
    usize::try_from(count).ok().filter(|count| *count > 0)
}

/// epoll_wait(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    match taken_count(epoll, count) {
        // SAFETY: the caller's promise.
        None => unsafe { next::epoll_wait(epoll, events, count, timeout_ms) },
        Some(count) => {
            let deadline = waiting::deadline_after(timeout_of(timeout_ms));
            watched::wait(epoll, events, count, deadline, std::ptr::null())
        }
    }
}

/// epoll_pwait(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    match taken_count(epoll, count) {
        // SAFETY: the caller's promise.
        None => unsafe { next::epoll_pwait(epoll, events, count, timeout_ms, mask) },
        Some(count) => {
            let deadline = waiting::deadline_after(timeout_of(timeout_ms));
            watched::wait(epoll, events, count, deadline, mask)
        }
    }
}

/// epoll_pwait2(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    match (
        taken_count(epoll, count),
        waiting::time_of_or_never(timeout),
    ) {
        (Some(count), Some(time)) => {
            watched::wait(epoll, events, count, waiting::deadline_after(time), mask)
        }
        // SAFETY: the caller's promise.
        _ => unsafe { next::epoll_pwait2(epoll, events, count, timeout, mask) },
    }
}
