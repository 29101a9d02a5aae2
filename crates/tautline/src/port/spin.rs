//! When a wait spins: before a message that is expected, and before it sleeps where that pays.

use std::sync::Arc;
use std::time::Duration;

use tautline_awake::cpu;
use tautline_awake::flow::{Flow, Seen, Window};
use tautline_awake::wait::earliest;
use tautline_proto::time::Instant;

use crate::limits::SPIN_ADAPTIVE_MAX;
use crate::link::ArrivalClock;
use crate::statistics::{Counter, Statistics};

use super::owner::PortOwner;

/// Consecutive misses after which every wait still spins. Lower: a port whose messages come in pairs, one late and one
/// soon, sleeps for those that come soon. Higher: a port whose messages all come late spins longer for nothing.
const MISSES_FREE: u32 = 2;
/// After so many misses more, waits between two spins grow no further: one wait in 1,024 spins. Lower: a port for which
/// spinning is hopeless spins more often. Higher: a port for which it begins to pay notices that later.
const BACKOFF_MAX: u32 = 10;

/// How a wait spins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Where the sender has a rhythm, the wait sleeps until shortly before the next message and spins from there, a
    /// tenth of the thread's time at most. Otherwise it spins up to [`SPIN_ADAPTIVE_MAX`] before it sleeps, in waits
    /// for which [`AdaptiveSpin`] expects that it pays.
    #[default]
    Adaptive,
    /// So long in each wait. With zero a wait sleeps at once.
    For(Duration),
}

impl From<Duration> for Spin {
    fn from(time: Duration) -> Self {
        Self::For(time)
    }
}

/// Decides from earlier waits whether the next one spins: a wait that ends while it spins spares a wake-up, tens of
/// microseconds, and one that does not has used the processor for nothing.
///
/// Every wait spins while at least one in three ends in its spin. After more misses in a row the next 1, 3, 7, … waits
/// sleep at once, 1,023 at most; then one tries again. So a receiver of answers spins, and a receiver whose messages
/// come once a millisecond, or from a thread that needs the same processor, sleeps.
///
/// Ports do this by themselves ([`Spin::Adaptive`]). This is for callers that wait in another way.
///
/// ```
/// use tautline::port::AdaptiveSpin;
///
/// let mut adaptive = AdaptiveSpin::default();
/// assert!(!adaptive.begin().is_zero());
/// adaptive.end(true);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdaptiveSpin {
    /// Spins in a row in which nothing came.
    misses: u32,
    /// Waits that sleep at once before the next that spins.
    skipped: u32,
}

impl AdaptiveSpin {
    /// Time for which the wait that begins now spins: [`SPIN_ADAPTIVE_MAX`] or zero.
    pub fn begin(&mut self) -> Duration {
        if self.skipped == 0 {
            return SPIN_ADAPTIVE_MAX;
        }
        self.skipped -= 1;
        Duration::ZERO
    }

    /// The spin is over: something came in it, or nothing did in all its time. A spin that a deadline has ended early
    /// says nothing, and needs no call.
    pub fn end(&mut self, found: bool) {
        if found {
            *self = Self::default();
            return;
        }
        self.misses = self.misses.saturating_add(1);
        let backoff = self.misses.saturating_sub(MISSES_FREE).min(BACKOFF_MAX);
        self.skipped = (1 << backoff) - 1;
    }
}

#[derive(Clone, Debug)]
pub(super) struct Spinner {
    setting: Spin,
    adaptive: AdaptiveSpin,
    flow: Flow,
    /// Whether the process may spend time on looking for them.
    predicts: bool,
    /// Counts wake-ups and looks.
    statistics: Arc<Statistics>,
}

impl Spinner {
    /// For a port of this node. Nothing on virtual time, which spinning does not move.
    pub(super) fn new(node: &dyn PortOwner, setting: Spin, statistics: &Arc<Statistics>) -> Self {
        let setting = match node.link().capabilities().arrival_clock {
            ArrivalClock::Virtual => Spin::For(Duration::ZERO),
            _ => setting,
        };
        Self::of(setting, Arc::clone(statistics))
    }

    pub(super) fn of(setting: Spin, statistics: Arc<Statistics>) -> Self {
        Self {
            setting,
            adaptive: AdaptiveSpin::default(),
            flow: Flow::new(),
            predicts: setting == Spin::Adaptive && !cpu::is_limited(),
            statistics,
        }
    }

    pub(super) fn setting(&self) -> Spin {
        self.setting
    }

    /// When the wait should be awake for a message that is expected.
    pub(super) fn window(&mut self, now: Instant) -> Option<Window> {
        if !self.predicts || !self.flow.has_rhythm() {
            return None;
        }
        earliest(&mut [Some(&mut self.flow)], now).map(|(_, window)| window)
    }

    /// A message came; `now` is asked for where that teaches anything. Messages that are there before a wait begins
    /// cost nothing where no rhythm is known.
    pub(super) fn arrived(&mut self, seen: Seen, now: impl FnOnce() -> Instant) {
        let teaches = seen == Seen::Asleep || self.flow.has_rhythm();
        if self.predicts && teaches {
            self.flow.arrived(now(), seen);
        }
    }

    /// The thread spun for a message that was expected.
    pub(super) fn looked(&mut self, began: Instant, ended: Instant, found: bool) {
        let time = self.flow.looked(began, ended, found);
        self.statistics.awake_ns.add(time.as_nanos() as u64);
    }

    /// Counts the sleeps of a wait that end.
    pub(super) fn wakeups(&self) -> &Counter {
        &self.statistics.wakeups
    }

    pub(super) fn begin(&mut self) -> Duration {
        match self.setting {
            Spin::Adaptive => self.adaptive.begin(),
            Spin::For(time) => time,
        }
    }

    /// The spin is over: [`AdaptiveSpin::end`].
    pub(super) fn end(&mut self, found: bool) {
        if self.setting == Spin::Adaptive {
            self.adaptive.end(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spins among `waits` waits, whose spins find what `finds` says for their number.
    fn spins(waits: u32, mut finds: impl FnMut(u32) -> bool) -> u32 {
        let (mut adaptive, mut spins) = (AdaptiveSpin::default(), 0);
        for wait in 0..waits {
            let time = adaptive.begin();
            assert!(time.is_zero() || time == SPIN_ADAPTIVE_MAX);
            if !time.is_zero() {
                adaptive.end(finds(wait));
                spins += 1;
            }
        }
        spins
    }

    #[test]
    fn spins_that_find_go_on() {
        assert_eq!(spins(10_000, |_| true), 10_000);
        // One late message for each that comes soon, and two for each.
        assert_eq!(spins(10_000, |wait| wait % 2 == 1), 10_000);
        assert_eq!(spins(9_999, |wait| wait % 3 == 2), 9_999);
    }

    #[test]
    fn hopeless_spins_become_rare_and_stay_so() {
        // Two that are free, and then one after 1, 3, 7, … 1,023.
        assert_eq!(spins(2_000, |_| false), 12);
        assert_eq!(spins(102_400, |_| false), 12 + 98);
    }

    #[test]
    fn a_spin_that_finds_again_is_noticed() {
        let mut adaptive = AdaptiveSpin::default();
        (0..40).for_each(|_| adaptive.end(false));
        let asleep = (0..2_000).take_while(|_| adaptive.begin().is_zero());
        assert_eq!(asleep.count(), 1_023);
        adaptive.end(true);
        assert!((0..100).all(|_| !adaptive.begin().is_zero()));
    }
}
