//! Cycles that are locked to the values of a peer: where they begin, and how the values came.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
pub use tautline_proto::phase_lock::LockState;
use tautline_proto::phase_lock::PhaseLock;
use tautline_proto::time::Instant;

/// State and counters of a locked cycle since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockStatistics {
    /// Whether the cycle follows the values.
    #[serde(serialize_with = "state_text")]
    pub state: LockState,
    /// Period as learned from the values, in nanoseconds.
    pub period_ns: u64,
    /// Values that [`Cycle::arrived`](super::Cycle::arrived) was told of.
    pub values: u64,
    /// Values of them that came later than the beginning of their cycle.
    pub late: u64,
    /// Cycles without a value before the next one began: it was late, or lost.
    pub missing: u64,
    /// Times that the loop gave up its phase for that of later values: a cycle was longer or shorter by up to half a
    /// period.
    pub slips: u64,
}

impl fmt::Display for LockStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} at {:?}: {} values, {} late, {} cycles without one, {} slips",
            text(self.state),
            Duration::from_nanos(self.period_ns),
            self.values,
            self.late,
            self.missing,
            self.slips
        )
    }
}

fn text(state: LockState) -> &'static str {
    match state {
        LockState::Free => "free",
        LockState::Locked => "locked",
        LockState::Holdover => "holdover",
    }
}

fn state_text<S: serde::Serializer>(state: &LockState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text(*state))
}

/// Lock of a cycle.
#[derive(Debug)]
pub(super) struct Lock {
    lock: PhaseLock,
    phase: Duration,
    values: u64,
    late: u64,
    missing: u64,
    /// Whether the current cycle has had a value; the one before the first counts as one that has.
    has_value: bool,
}

impl Lock {
    pub(super) fn new(
        period: Duration,
        phase: Duration,
        values_per_cycle: u32,
        now: Instant,
    ) -> Self {
        Self {
            lock: PhaseLock::new(period, values_per_cycle, now),
            phase,
            values: 0,
            late: 0,
            missing: 0,
            has_value: true,
        }
    }

    /// Goes on by so many cycles. Returns when the last of them begins.
    pub(super) fn advance(&mut self, cycles: u64) -> Instant {
        if !self.has_value && self.values > 0 {
            self.missing += 1;
        }
        self.has_value = false;
        self.lock.advance(cycles) + self.phase
    }

    pub(super) fn arrived(&mut self, at: Instant) {
        let error_ns = self.lock.arrived(at);
        self.values += 1;
        self.has_value = true;
        if self.lock.state() != LockState::Free && error_ns > self.phase.as_nanos() as i64 {
            self.late += 1;
        }
    }

    pub(super) fn state(&self) -> LockState {
        self.lock.state()
    }

    pub(super) fn period_ns(&self) -> u64 {
        self.lock.period().as_nanos() as u64
    }

    pub(super) fn statistics(&self) -> LockStatistics {
        LockStatistics {
            state: self.lock.state(),
            period_ns: self.period_ns(),
            values: self.values,
            late: self.late,
            missing: self.missing,
            slips: self.lock.slips(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_lost_values_are_counted_apart() {
        const US: u64 = 1_000;
        let us = Duration::from_micros;
        let mut lock = Lock::new(us(1_000), us(50), 1, Instant::ZERO);
        let value = |k: u64, late_us: u64| Instant::from_nanos((300 + 1_000 * k + late_us) * US);
        let mut begins = Instant::ZERO;
        for k in 1..=200 {
            begins = lock.advance(1);
            lock.arrived(value(k, 0));
        }
        // The first cycles found their phase.
        let first = lock.statistics();
        assert_eq!(
            (first.state, first.late, first.slips),
            (LockState::Locked, 0, 0)
        );
        let due = value(200, 50);
        assert!(
            begins.saturating_duration_since(due) < us(2),
            "{begins:?} {due:?}"
        );
        // The value of cycle 201 is lost; that of 202 comes 70 µs late, and is read in the next cycle with its value.
        lock.advance(1);
        lock.advance(1);
        lock.advance(1);
        lock.arrived(value(202, 70));
        lock.arrived(value(203, 0));
        lock.advance(1);
        let after = lock.statistics();
        assert_eq!(after.missing - first.missing, 2);
        assert_eq!((after.late, after.values), (1, 202));
        assert_eq!((after.state, after.slips), (LockState::Locked, 0));
    }
}
