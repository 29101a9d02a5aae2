//! A peer that answers: how long after one's own send the next arrival comes.

use super::track::Track;
use super::{PERIOD_NS_MAX, Stamp};

/// Errors assumed before any was seen.
const FIRST_ERROR_NS: i64 = 20_000;
/// Smallest distance from the usual delay that still counts as the same: more than a wake-up takes.
const TOLERANCE_NS_MIN: i64 = 150_000;
/// Answers after which the delay is believed: later than a rhythm is found and tried, which is sharper where a server
/// awaits requests.
const LEARNED_MIN: u8 = 48;

/// Delay of answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    sent_ns: Option<i64>,
    delay_ns: i64,
    learned: u8,
    pub(super) track: Track,
}

impl Answer {
    pub(super) const fn new() -> Self {
        Self {
            sent_ns: None,
            delay_ns: 0,
            learned: 0,
            track: Track::new(-FIRST_ERROR_NS, FIRST_ERROR_NS),
        }
    }

    pub(super) const fn sent(&mut self, at_ns: i64) {
        self.sent_ns = Some(at_ns);
    }

    /// When the answer to the last send is expected, if one is.
    pub(super) fn next_ns(&self) -> Option<i64> {
        (self.learned >= LEARNED_MIN)
            .then_some(self.sent_ns)
            .flatten()
            .map(|sent| sent + self.delay_ns)
    }

    /// Whether answers are looked for.
    pub(super) fn next_is_known(&self) -> bool {
        self.learned >= LEARNED_MIN && self.track.is_good()
    }

    pub(super) const fn delay_ns(&self) -> i64 {
        self.delay_ns
    }

    /// Moves all its times.
    pub(super) fn shift(&mut self, by_ns: i64) {
        self.delay_ns = (self.delay_ns + by_ns).max(0);
        self.track.shift(by_ns);
    }

    /// Takes the first arrival after a send: how much later than usual it came.
    pub(super) fn takes(&mut self, at_ns: i64, stamp: Stamp) -> Option<i64> {
        let delay_ns = at_ns - self.sent_ns.take()?;
        if stamp == Stamp::Before || !(0..=PERIOD_NS_MAX).contains(&delay_ns) {
            return None;
        }
        if self.learned < LEARNED_MIN {
            self.learned += 1;
            let share = i64::from(self.learned.min(4));
            self.delay_ns += (delay_ns - self.delay_ns) / share;
            return None;
        }
        let error_ns = delay_ns - self.delay_ns;
        if error_ns.abs() > (self.delay_ns / 4).max(TOLERANCE_NS_MIN) {
            self.track.missed(1);
            if self.track.is_over() {
                *self = Self::new();
            }
            return None;
        }
        self.delay_ns += self.track.came(error_ns, stamp);
        Some(error_ns)
    }
}
