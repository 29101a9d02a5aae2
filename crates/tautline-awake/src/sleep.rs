//! Sleeps that end on time: the timer goes off early by a wake-up, and the thread spins to the end.

use std::time::Duration;

use libc::clockid_t;
use tautline_proto::time::Instant;

use crate::cpu::{self, LOOK_MIN, Looker};
use crate::{raw, thread};

/// Part of a sleep that is slept at least. A thread that only looked would not learn how long wake-ups take.
const SLEPT_DIVISOR: u32 = 2;

/// When the timer of a sleep until `end` on `clock` should go off. `None`: sleep as ever, because the sleep is short or
/// the share is spent.
pub fn timer_for(clock: clockid_t, end: Instant) -> Option<Instant> {
    let left = end.saturating_duration_since(raw::now_of(clock)?);
    let now = raw::now();
    // No more than the share when the timer goes off: after a share that ends before the sleep does, the rest is slept,
    // and the thread is late by another wake-up.
    let available = cpu::available(now + left / SLEPT_DIVISOR);
    let waking = thread::waking(now + left)?;
    let early = early(left, waking.min(available))?;
    thread::begin();
    Some(Instant::from_nanos(
        end.as_nanos().saturating_sub(early.as_nanos() as u64),
    ))
}

/// How long before the end of a sleep the timer goes off. Where a wake-up is assumed to take longer than the sleep, the
/// sleep ends awake all the same: only such wake-ups correct the assumption.
fn early(left: Duration, waking: Duration) -> Option<Duration> {
    let early = waking.min(left / SLEPT_DIVISOR);
    (early >= LOOK_MIN).then_some(early)
}

/// Spins until `end` on `clock`, after the timer that was set to `due`. How late the thread is then.
pub fn to_the_end(clock: clockid_t, due: Instant, end: Instant) -> Duration {
    let woken = raw::now_of(clock).unwrap_or(Instant::FAR_FUTURE);
    thread::woke(due, woken);
    let began = raw::now();
    let longest = end.saturating_duration_since(woken);
    rest(clock, end, Looker::begin(began, began + longest), began)
}

/// Spins until `end` for as long as the looker may, and sleeps the rest. There is no looker where another thread looks
/// on this CPU or the share is spent. How late the thread is then.
fn rest(clock: clockid_t, end: Instant, looker: Option<Looker>, began: Instant) -> Duration {
    let read = || raw::now_of(clock).unwrap_or(Instant::FAR_FUTURE);
    if let Some(looker) = looker {
        while read() < end && looker.goes_on(raw::now()) {
            std::hint::spin_loop();
        }
        let ended = raw::now();
        looker.end(ended);
        thread::spend(began, ended);
    }
    let left = end.saturating_duration_since(read());
    if !left.is_zero() {
        raw::sleep_until(raw::now() + left);
    }
    read().saturating_duration_since(end)
}

/// Sleeps until an instant on CLOCK_MONOTONIC, and is awake then. How late it was. Signals do not end the sleep; where
/// a cgroup limits the CPU time it is an ordinary one.
pub fn until(end: Instant) -> Duration {
    let due = match cpu::is_limited() {
        true => None,
        false => timer_for(libc::CLOCK_MONOTONIC, end),
    };
    raw::sleep_until(due.unwrap_or(end));
    match due {
        Some(due) => to_the_end(libc::CLOCK_MONOTONIC, due, end),
        None => raw::now().saturating_duration_since(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_that_is_shorter_than_wake_ups_is_tried() {
        let micros = Duration::from_micros;
        let early_us = |left, waking| {
            let early = early(micros(left), micros(waking));
            early.map(|early| early.as_micros())
        };
        assert_eq!(early_us(900, 60), Some(60));
        assert_eq!(early_us(100, 60), Some(50));
        assert_eq!(early_us(100, 200), Some(50));
        assert_eq!(early_us(900, 2), None);
        assert_eq!(early_us(5, 60), None);
    }

    #[test]
    fn what_is_slept_is_not_charged() {
        let began = raw::now();
        thread::spend(began, began); // Brings the share up to date.
        let before = thread::available(began);
        let end = began + Duration::from_millis(5);
        rest(libc::CLOCK_MONOTONIC, end, None, began);
        assert_eq!(thread::available(began), before);
    }
}
