//! Bounded share of a processor: time that may be spent looking, saved up while nothing is spent. A look that took
//! longer than was saved leaves a debt, which is earned before the next one: otherwise many short looks, each longer
//! than its budget, would take the whole processor.

use core::time::Duration;

use crate::time::Instant;

/// Time saved up at most, in spans of the share's own reckoning. Lower: a loop of 4 Hz cannot look once for long
/// enough. Higher: after a quiet time a thread may look at a stretch for longer than others on its CPU should wait.
pub const SAVED_MAX: Duration = Duration::from_millis(2);

/// Largest debt. Lower: looks that exceed their budget are not paid for. Higher: after one look during which another
/// program had the processor, no thread looks for long.
const DEBT_MAX: Duration = SAVED_MAX;

/// An account that fills with `percent` of the time that passes.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    percent: u64,
    /// Below zero while there is a debt.
    saved_ns: i64,
    filled_at: Instant,
}

impl Share {
    /// An account of `percent` of the time, empty at first.
    pub const fn new(percent: u64) -> Self {
        Self {
            percent,
            saved_ns: 0,
            filled_at: Instant::ZERO,
        }
    }

    /// Time that may be spent now.
    #[inline]
    pub fn available(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.filled_at);
        // A minute earns the most that can be saved; the multiplication below cannot overflow.
        let passed_ns = passed.min(Duration::from_secs(60)).as_nanos() as u64;
        let earned = passed_ns * self.percent / 100;
        if earned > 0 {
            self.saved_ns = (self.saved_ns + earned as i64).min(SAVED_MAX.as_nanos() as i64);
            self.filled_at = now;
        }
        Duration::from_nanos(self.saved_ns.max(0) as u64)
    }

    /// Takes time that was spent out of the account. More than was there leaves a debt of at most [`SAVED_MAX`].
    #[inline]
    pub fn spend(&mut self, time: Duration) {
        let ns = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let lowest = -(DEBT_MAX.as_nanos() as i64);
        self.saved_ns = self.saved_ns.saturating_sub(ns).max(lowest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_spent_than_the_share() {
        let mut share = Share::new(10);
        let mut now = Instant::from_nanos(1_000_000_000);
        share.available(now);
        let began = now;
        let mut spent = Duration::ZERO;
        while now.saturating_duration_since(began) < Duration::from_secs(10) {
            now = now + Duration::from_micros(700);
            let look = share.available(now).min(Duration::from_micros(200));
            share.spend(look);
            spent += look;
            now = now + look;
        }
        let allowed = now.saturating_duration_since(began) / 10 + SAVED_MAX;
        assert!(spent <= allowed, "{spent:?} of {allowed:?}");
        assert!(spent * 10 > allowed * 9, "{spent:?} of {allowed:?}");
    }

    /// A poll takes longer than the share that was earned since the last one.
    #[test]
    fn looks_that_exceed_their_budget_are_paid_for() {
        let poll = Duration::from_micros(2);
        let mut share = Share::new(10);
        let began = Instant::from_nanos(1_000_000_000);
        let mut now = began;
        share.available(now);
        let mut spent = Duration::ZERO;
        while now.saturating_duration_since(began) < Duration::from_secs(1) {
            now = now + Duration::from_micros(1);
            if !share.available(now).is_zero() {
                share.spend(poll);
                spent += poll;
                now = now + poll;
            }
        }
        let allowed = now.saturating_duration_since(began) / 10 + SAVED_MAX + poll;
        assert!(spent <= allowed, "{spent:?} of {allowed:?}");
    }

    #[test]
    fn a_debt_is_bounded() {
        let mut share = Share::new(10);
        let now = Instant::from_nanos(1_000_000_000);
        share.available(now);
        share.spend(Duration::from_secs(3));
        assert!(share.available(now + SAVED_MAX * 9).is_zero());
        let paid = now + DEBT_MAX * 10 + SAVED_MAX * 11;
        assert!(!share.available(paid).is_zero());
    }

    #[test]
    fn what_is_saved_is_bounded() {
        let mut share = Share::new(50);
        share.available(Instant::from_nanos(1));
        assert_eq!(share.available(Instant::FAR_FUTURE), SAVED_MAX);
        share.spend(Duration::MAX);
        assert_eq!(share.available(Instant::FAR_FUTURE), Duration::ZERO);
    }
}
