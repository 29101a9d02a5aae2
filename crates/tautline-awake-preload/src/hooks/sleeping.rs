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

hooks! {
    /// clock_nanosleep(2).
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int {
        // A relative sleep on CLOCK_REALTIME is not moved when that clock is set (clock_nanosleep(2)).
        let kept = match (clock, flags) {
            (CLOCK_REALTIME, 0) => CLOCK_MONOTONIC,
            _ => clock,
        };
        let Some(end) = end_of(kept, flags, time) else {
            return next::clock_nanosleep(clock, flags, time, left);
        };
        let result = until(kept, end);
        if result == libc::EINTR && flags == 0 {
            write_left(kept, end, left);
        }
        result
    }

    /// nanosleep(2).
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
        let Some(end) = end_of(CLOCK_MONOTONIC, 0, time) else {
            return next::nanosleep(time, left);
        };
        match until(CLOCK_MONOTONIC, end) {
            0 => 0,
            error => {
                if error == libc::EINTR {
                    write_left(CLOCK_MONOTONIC, end, left);
                }
                *libc::__errno_location() = error;
                -1
            }
        }
    }

    /// usleep(3).
    usleep(microseconds: useconds_t) -> c_int {
        if options::is_off() {
            return next::usleep(microseconds);
        }
        let time = raw::timespec_of(Duration::from_micros(microseconds.into()));
        nanosleep(&raw const time, std::ptr::null_mut())
    }
}
