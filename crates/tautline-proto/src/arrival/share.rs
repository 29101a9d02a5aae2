//! Bounded share of a processor: time that may be spent looking, saved up while nothing is spent.

use core::time::Duration;

use crate::time::Instant;

/// Time saved up at most, in spans of the share's own reckoning. Lower: a loop of 4 Hz cannot look once for long
/// enough. Higher: after a quiet time a thread may look at a stretch for longer than others on its CPU should wait.
pub const SAVED_MAX: Duration = Duration::from_millis(2);

/// An account that fills with `percent` of the time that passes.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    percent: u64,
    saved_ns: u64,
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
            self.saved_ns = (self.saved_ns + earned).min(SAVED_MAX.as_nanos() as u64);
            self.filled_at = now;
        }
        Duration::from_nanos(self.saved_ns)
    }

    /// Takes time that was spent out of the account. More than was there leaves it empty.
    #[inline]
    pub fn spend(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.saved_ns = self.saved_ns.saturating_sub(ns);
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

    #[test]
    fn what_is_saved_is_bounded() {
        let mut share = Share::new(50);
        share.available(Instant::from_nanos(1));
        assert_eq!(share.available(Instant::FAR_FUTURE), SAVED_MAX);
        share.spend(Duration::MAX);
        assert_eq!(share.available(Instant::FAR_FUTURE), Duration::ZERO);
    }
}
