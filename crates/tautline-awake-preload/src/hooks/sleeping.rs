//! nanosleep(2), clock_nanosleep(2), usleep(3).
#![allow(unsafe_code)] // Exported functions with the C library's names.

use std::ffi::c_int;
use std::time::Duration;

use libc::{
    CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_TAI, TIMER_ABSTIME, clockid_t, timespec,
    useconds_t,
};
use tautline_awake::{raw, sleep};
use tautline_proto::time::Instant;

use crate::{next, options, report};

/// Sleeps until `end` on `clock`. The error of clock_nanosleep(2), 0 for none.
fn until(clock: clockid_t, end: Instant) -> c_int {
    let due = match options::is_awake() {
        true => sleep::timer_for(clock, end),
        false => None,
    };
    let timer = raw::timespec_at(due.unwrap_or(end));
    // SAFETY: a time; nothing is written back for an absolute one.
    let result = unsafe {
        next::clock_nanosleep(clock, TIMER_ABSTIME, &raw const timer, std::ptr::null_mut())
    };
    if result == 0 {
        let late = match due {
            Some(due) => sleep::to_the_end(clock, due, end),
            None => {
                raw::now_of(clock).map_or(Duration::ZERO, |now| now.saturating_duration_since(end))
            }
        };
        report::slept(late);
    }
    result
}

/// The end of a sleep, on a clock that this library reads; `None` for what the kernel must judge.
///
/// # Safety
/// Null, or readable.
unsafe fn end_of(clock: clockid_t, flags: c_int, time: *const timespec) -> Option<Instant> {
    let is_known = matches!(
        clock,
        CLOCK_MONOTONIC | CLOCK_REALTIME | CLOCK_BOOTTIME | CLOCK_TAI
    );
    if options::is_off() || !is_known || time.is_null() || flags & !TIMER_ABSTIME != 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let time = raw::instant_of(unsafe { &*time })?;
    match flags {
        0 => raw::now_of(clock)?.checked_add(Duration::from_nanos(time.as_nanos())),
        _ => Some(time),
    }
}

/// Writes the rest of an interrupted sleep, for the program.
///
/// # Safety
/// Null, or writable.
unsafe fn write_left(clock: clockid_t, end: Instant, left: *mut timespec) {
    if let (Some(now), false) = (raw::now_of(clock), left.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { *left = raw::timespec_of(end.saturating_duration_since(now)) };
    }
}

/// clock_nanosleep(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(end) = (unsafe { end_of(clock, flags, time) }) else {
        // SAFETY: the caller's promise.
        return unsafe { next::clock_nanosleep(clock, flags, time, left) };
    };
    // A relative sleep on CLOCK_REALTIME is not moved when that clock is set (clock_nanosleep(2)).
    let (clock, end) = match (clock, flags) {
        (CLOCK_REALTIME, 0) => {
            // SAFETY: the caller's promise.
            match unsafe { end_of(CLOCK_MONOTONIC, flags, time) } {
                Some(end) => (CLOCK_MONOTONIC, end),
                None => (clock, end),
            }
        }
        _ => (clock, end),
    };
    let result = until(clock, end);
    if result == libc::EINTR && flags == 0 {
        // SAFETY: the caller's promise.
        unsafe { write_left(clock, end, left) };
    }
    result
}

/// nanosleep(2).
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: the caller's promise.
    let Some(end) = (unsafe { end_of(CLOCK_MONOTONIC, 0, time) }) else {
        // SAFETY: the caller's promise.
        return unsafe { next::nanosleep(time, left) };
    };
    match until(CLOCK_MONOTONIC, end) {
        0 => 0,
        error => {
            if error == libc::EINTR {
                // SAFETY: the caller's promise.
                unsafe { write_left(CLOCK_MONOTONIC, end, left) };
            }
            // SAFETY: a thread's own errno.
            unsafe { *libc::__errno_location() = error };
            -1
        }
    }
}

/// usleep(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn usleep(microseconds: useconds_t) -> c_int {
    if options::is_off() {
        // SAFETY: no pointers.
        return unsafe { next::usleep(microseconds) };
    }
    let time = raw::timespec_of(Duration::from_micros(microseconds.into()));
    // SAFETY: a time; nothing is written back.
    unsafe { nanosleep(&raw const time, std::ptr::null_mut()) }
}
