//! The two clocks of a decision: one stands still while the machine is suspended, the other one goes on.

use rustix::time::{ClockId, clock_gettime};
use tautline::{Instant, now};

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// CLOCK_MONOTONIC, by which messages arrive and the silence of others is counted: a suspended machine
    /// hears no peer.
    pub monotonic: Instant,
    /// CLOCK_BOOTTIME, by which a lease ends: others go on while this machine is suspended.
    pub boottime: Instant,
}

impl Moment {
    /// Reads both.
    #[must_use]
    pub fn now() -> Self {
        // In this order a lease begins too early rather than too late.
        let boottime = boottime();
        Self {
            monotonic: now(),
            boottime,
        }
    }
}

/// CLOCK_BOOTTIME now; read without a system call.
#[must_use]
pub fn boottime() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    let nanoseconds = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
    Instant::from_nanos(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_that_goes_on_is_never_behind_the_other() {
        let before = Moment::now();
        let after = Moment::now();
        assert!(after.boottime >= before.boottime && after.monotonic >= before.monotonic);
        assert!(after.boottime >= before.monotonic);
    }
}
