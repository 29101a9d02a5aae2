//! Clocks.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use tautline_proto::time::Instant;

/// CLOCK_MONOTONIC, the clock of every time in this library that does not name another.
#[inline]
pub(crate) fn monotonic() -> Instant {
    Instant::from_nanos(read(libc::CLOCK_MONOTONIC))
}

/// Whether CLOCK_MONOTONIC is shifted for this process (time_namespaces(7)). Programs in the kernel stamp with the
/// clock that is not, and so do processes outside.
pub(crate) fn is_shifted() -> bool {
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let mut of_monotonic = offsets
        .lines()
        .filter_map(|line| line.strip_prefix("monotonic"));
    of_monotonic.any(|offset| offset.split_whitespace().any(|part| part != "0"))
}

/// Readings of both clocks that find the offset between them. Lower: a thread that is preempted in each of them dates a
/// frame late by as much. Higher: a frame costs more after CLOCK_REALTIME was set.
const ATTEMPTS: u32 = 4;
/// Time between two readings of one clock that were not disturbed. Lower: slow machines use all attempts. Higher: the
/// offset is less exact.
const UNDISTURBED_NS: i64 = 200;

/// Offset from CLOCK_REALTIME nanoseconds to CLOCK_MONOTONIC ones, at this moment. Wait-free.
///
/// The offset is constant until CLOCK_REALTIME is set, but no thread can read both clocks at once: a thread that is
/// preempted between the two readings would date a frame milliseconds late, behind frames that came after it. So the
/// offset that was found last is used for as long as it lies between two readings of CLOCK_MONOTONIC.
#[inline]
pub(crate) fn realtime_to_monotonic_ns() -> i64 {
    /// Partner: the same atomic in other threads. Each value is right by itself, so no order is needed.
    static FOUND: AtomicI64 = AtomicI64::new(i64::MIN);
    offset_ns(&FOUND, |clock| read(clock) as i64)
}

#[inline]
fn offset_ns(found: &AtomicI64, mut read: impl FnMut(libc::clockid_t) -> i64) -> i64 {
    let known = found.load(Relaxed);
    let (mut offset, mut width) = (0, i64::MAX);
    for _ in 0..ATTEMPTS {
        let before = read(libc::CLOCK_MONOTONIC);
        let realtime = read(libc::CLOCK_REALTIME);
        let after = read(libc::CLOCK_MONOTONIC);
        if (before - realtime..=after - realtime).contains(&known) {
            return known;
        }
        if after - before < width {
            width = after - before;
            offset = before + width / 2 - realtime;
        }
        if width <= UNDISTURBED_NS {
            break;
        }
    }
    found.store(offset, Relaxed);
    offset
}

/// CLOCK_REALTIME: nanoseconds since 1970, as they were set.
#[inline]
pub(crate) fn realtime_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
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

#[cfg(test)]
mod tests {
    use super::*;

    const APART: i64 = 1_700_000_000_000_000_000;

    /// Clocks that move by `steps`, in turn, between two readings.
    fn clocks(steps: &'static [i64], apart: i64) -> impl FnMut(libc::clockid_t) -> i64 {
        let (mut now, mut steps) = (1_000_000, steps.iter().cycle());
        move |clock| {
            now += steps.next().expect("for ever");
            match clock {
                libc::CLOCK_REALTIME => now + apart,
                _ => now,
            }
        }
    }

    #[test]
    fn a_disturbed_reading_does_not_move_the_offset() {
        let found = AtomicI64::new(i64::MIN);
        let exact = offset_ns(&found, clocks(&[20], APART));
        assert_eq!(exact, -APART);
        // Two milliseconds between the readings, before the second or before the third.
        for steps in [&[20, 2_000_000, 20][..], &[20, 20, 2_000_000][..]] {
            assert_eq!(offset_ns(&found, clocks(steps, APART)), exact);
        }
    }

    #[test]
    fn the_least_disturbed_of_the_first_readings_counts() {
        let found = AtomicI64::new(i64::MIN);
        let steps = &[20, 500_000, 20, 20, 300, 100, 20, 90_000, 20];
        let offset = offset_ns(&found, clocks(steps, APART));
        assert!((offset + APART).abs() <= 200, "{offset}");
    }

    #[test]
    fn a_clock_that_was_set_is_followed() {
        let found = AtomicI64::new(i64::MIN);
        offset_ns(&found, clocks(&[20], APART));
        let set = APART - 3_600_000_000_000;
        assert_eq!(offset_ns(&found, clocks(&[20], set)), -set);
    }

    #[test]
    fn an_inexact_offset_gives_way_to_a_better_one() {
        let found = AtomicI64::new(i64::MIN);
        let first = offset_ns(&found, clocks(&[150, 10], APART));
        assert_ne!(first, -APART);
        assert_eq!(offset_ns(&found, clocks(&[10], APART)), -APART);
    }

    #[test]
    fn the_real_clocks_have_an_offset() {
        let before = monotonic().as_nanos() as i64;
        let realtime = read(libc::CLOCK_REALTIME) as i64;
        let moved = realtime + realtime_to_monotonic_ns();
        let after = monotonic().as_nanos() as i64;
        // An offset from disturbed readings may be off by as much as they were apart, which has no bound here.
        let second = 1_000_000_000;
        assert!((before - second..=after + second).contains(&moved));
    }
}
