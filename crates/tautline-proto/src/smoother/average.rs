//! Moving average of a rate.

use core::time::Duration;

/// Rate of a cumulative count of bytes, averaged over a time constant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    bps: u64,
    time_ns: u64,
    total_bytes: Option<u64>,
}

impl Average {
    pub(super) const fn over(time: Duration) -> Self {
        Self {
            bps: 0,
            time_ns: time.as_nanos() as u64,
            total_bytes: None,
        }
    }

    /// Takes the count after another `elapsed`. A count that went backwards begins anew.
    pub(super) fn update(&mut self, total_bytes: u64, elapsed: Duration) -> u64 {
        let before = self.total_bytes.replace(total_bytes);
        let new_bytes = before.and_then(|before| total_bytes.checked_sub(before));
        let elapsed_ns = elapsed.as_nanos();
        if let Some(new_bytes) = new_bytes
            && elapsed_ns > 0
        {
            let now_bps = u128::from(new_bytes) * 8_000_000_000 / elapsed_ns;
            let now_bps = now_bps.min(u128::from(RATE_BPS_MAX));
            // The share of the new value, at most all of it.
            let elapsed_ns = elapsed_ns.min(u128::from(self.time_ns));
            let old_ns = u128::from(self.time_ns) - elapsed_ns;
            let sum = now_bps * elapsed_ns + u128::from(self.bps) * old_ns;
            self.bps = (sum / u128::from(self.time_ns)) as u64;
        }
        self.bps
    }

    pub(super) const fn bps(&self) -> u64 {
        self.bps
    }
}

/// Highest rate that is believed, a terabit a second: sums of such rates fit 64 bits whatever a node reports.
pub(super) const RATE_BPS_MAX: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(5);

    #[test]
    fn follows_a_rate_within_its_time_constant() {
        let mut average = Average::over(Duration::from_millis(20));
        let mut total = 0;
        average.update(total, STEP);
        for _ in 0..40 {
            total += 6250; // 10 Mbit/s
            average.update(total, STEP);
        }
        assert!(
            (9_990_000..=10_000_000).contains(&average.bps()),
            "{average:?}"
        );
    }

    #[test]
    fn a_count_that_goes_back_or_leaps_is_no_rate() {
        let mut average = Average::over(STEP);
        assert_eq!(average.update(1 << 60, STEP), 0, "the first count");
        assert_eq!(average.update(0, STEP), 0, "a restart");
        assert_eq!(average.update(u64::MAX, STEP), RATE_BPS_MAX);
        assert_eq!(
            average.update(u64::MAX, Duration::ZERO),
            RATE_BPS_MAX,
            "no time"
        );
        assert_eq!(average.update(u64::MAX, Duration::MAX), 0);
    }
}
