//! Clocks.

use tautline_proto::time::Instant;

/// CLOCK_MONOTONIC, the clock of every time in this library that does not name another.
#[inline]
pub(crate) fn monotonic() -> Instant {
    Instant::from_nanos(read(libc::CLOCK_MONOTONIC))
}

/// Offset from CLOCK_REALTIME nanoseconds to CLOCK_MONOTONIC ones, at this moment.
/// Wrong by a few tens of nanoseconds, the time between the two readings.
#[inline]
pub(crate) fn realtime_to_monotonic_ns() -> i64 {
    let realtime = read(libc::CLOCK_REALTIME) as i64;
    read(libc::CLOCK_MONOTONIC) as i64 - realtime
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill; both clocks exist on every Linux, so
    // the call cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
