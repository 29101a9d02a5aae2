//! The credit bucket of SS-RTUDP (section 3.2.2, figure 5), under the paper's names.
//!
//! A frame of other traffic takes one credit, and waits if there is none. A real-time frame is not held, and takes a
//! credit all the same. After each refresh period `RP` up to `CBD` credits are replenished. `RP` doubles after a period
//! in which packets were lost, at most to `RPmax`, and shrinks by `ΔRP` after one without a loss, at least to `RPmin`.
//!
//! This repeats the paper's measurement; Tautline's own smoother works by grants. The bucket needs no agreement with
//! the receiver. It cannot prevent loss: loss is the signal by which it slows down.
//!
//! The figure in the paper sets `RP = RP0` whenever a frame has to wait. A sender whose frames always wait would then
//! never leave `RP0` and the rule below would have no effect. Here `RP0` is the first value only.

use std::time::Duration;

use tautline_proto::time::Instant;

/// Parameters of a [`CreditBucket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreditConfig {
    /// `CBD`, the depth of the bucket, in frames.
    pub(super) depth: u32,
    /// `RP0`, the first refresh period.
    period_first: Duration,
    /// `RPmin`.
    period_min: Duration,
    /// `RPmax`.
    period_max: Duration,
    /// `ΔRP`, by which the period shrinks after one without a loss.
    period_step: Duration,
}

impl CreditConfig {
    /// Parameters of the paper's table 3.
    pub(super) const PAPER: Self = Self {
        depth: 40,
        period_first: Duration::from_millis(10),
        period_min: Duration::from_millis(5),
        period_max: Duration::from_millis(100),
        period_step: Duration::from_millis(2),
    };
}

/// The bucket of one sender.
#[derive(Clone, Debug)]
pub(super) struct CreditBucket {
    config: CreditConfig,
    /// `CNS`. Real-time frames take it below zero.
    credits: i64,
    /// `RP`.
    period: Duration,
    refresh_time: Instant,
}

impl CreditBucket {
    /// A full bucket.
    ///
    /// # Panics
    ///
    /// If `period_min` is 0 or above `period_max`.
    pub(super) fn new(config: CreditConfig, now: Instant) -> Self {
        assert!(config.period_min > Duration::ZERO && config.period_min <= config.period_max);
        let period = config
            .period_first
            .clamp(config.period_min, config.period_max);
        Self {
            config,
            credits: config.depth.into(),
            period,
            refresh_time: now + period,
        }
    }

    /// Takes a credit for a frame of other traffic; `false` if it has to wait.
    pub(super) fn take(&mut self) -> bool {
        let there_is_one = self.credits > 0;
        self.credits -= i64::from(there_is_one);
        there_is_one
    }

    /// Takes a credit for a real-time frame, which is not held.
    pub(super) fn take_real_time(&mut self) {
        // More than a bucket of debt would hold other traffic for longer than one period for it.
        self.credits = (self.credits - 1).max(-i64::from(self.config.depth));
    }

    /// When the next credits come.
    pub(super) const fn refresh_time(&self) -> Instant {
        self.refresh_time
    }

    /// Replenishes the bucket if it is time, and returns whether it was. `lost`: a packet of this sender was lost since
    /// the last time.
    pub(super) fn refresh(&mut self, now: Instant, lost: bool) -> bool {
        if now < self.refresh_time {
            return false;
        }
        self.period = if lost {
            (self.period * 2).min(self.config.period_max)
        } else {
            let shorter = self.period.saturating_sub(self.config.period_step);
            shorter.max(self.config.period_min)
        };
        let depth = i64::from(self.config.depth);
        self.credits = (self.credits + depth).min(depth);
        self.refresh_time = now + self.period;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_doubles_on_loss_and_shrinks_by_steps() {
        let mut bucket = CreditBucket::new(CreditConfig::PAPER, Instant::ZERO);
        let mut periods = [0; 9];
        for (index, period) in periods.iter_mut().enumerate() {
            let lost = (2..6).contains(&index);
            assert!(bucket.refresh(bucket.refresh_time(), lost));
            *period = bucket.period.as_millis();
        }
        assert_eq!(periods, [8, 6, 12, 24, 48, 96, 94, 92, 90]);
        for _ in 0..9 {
            bucket.refresh(bucket.refresh_time(), true);
        }
        assert_eq!(bucket.period.as_millis(), 100);
        for _ in 0..99 {
            bucket.refresh(bucket.refresh_time(), false);
        }
        assert_eq!(bucket.period.as_millis(), 5);
    }

    #[test]
    fn real_time_frames_pass_and_take_credits() {
        let mut bucket = CreditBucket::new(CreditConfig::PAPER, Instant::ZERO);
        for _ in 0..50 {
            bucket.take_real_time();
        }
        assert!(!bucket.take());
        bucket.refresh(bucket.refresh_time(), false);
        let sent = (0..100).filter(|_| bucket.take()).count();
        assert_eq!(sent, 30, "ten were owed");
        for _ in 0..1000 {
            bucket.take_real_time();
        }
        bucket.refresh(bucket.refresh_time(), false);
        bucket.refresh(bucket.refresh_time(), false);
        assert!(bucket.take(), "debt is bounded");
    }
}
