//! A sender with a period: its period and phase, followed from arrival to arrival, and how they are found.

use super::track::Track;
use super::{PERIOD_NS_MAX, PERIOD_NS_MIN, Stamp};

/// Bits of times below the nanosecond: a period is followed to a sixteenth of one. Fewer: the phase runs away between
/// two arrivals far apart. More: times end before a machine's clock does (18 years).
const FRACTION_BITS: u32 = 4;
/// Arrivals within this part of a period around their expected time belong to a rhythm.
const TOLERANCE_DIVISOR: i64 = 8;

/// Arrivals that are found asleep and looking differ by a wake-up. Both belong to the rhythm, whatever its period.
const WAKING_NS: i64 = 60_000;

/// Period and phase of one sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    period: i64,
    next: i64,
    pub(super) track: Track,
}

impl Rhythm {
    pub(super) const fn period_ns(&self) -> i64 {
        self.period >> FRACTION_BITS
    }

    pub(super) const fn next_ns(&self) -> i64 {
        self.next >> FRACTION_BITS
    }

    fn tolerance_ns(&self) -> i64 {
        let period = self.period_ns();
        (period / TOLERANCE_DIVISOR).max(WAKING_NS.min(period / 3))
    }

    /// Passes over the arrivals that are overdue at `now_ns`, by the tolerance.
    pub(super) fn advance(&mut self, now_ns: i64) {
        let overdue = now_ns - self.tolerance_ns() - self.next_ns();
        if overdue > 0 {
            let passed = overdue / self.period_ns() + 1;
            self.next += passed * self.period;
            self.track.missed(passed);
        }
    }

    /// How much later than expected this arrival came, if it is the rhythm's; learns from it then.
    pub(super) fn takes(&mut self, at_ns: i64, stamp: Stamp) -> Option<i64> {
        self.advance(at_ns);
        let error_ns = at_ns - self.next_ns();
        if error_ns < -2 * self.period_ns() {
            // The clock went back.
            self.track.missed(2);
        }
        let is_own = match stamp {
            // It came at an unknown time before.
            Stamp::Before => error_ns >= 0,
            _ => error_ns.abs() <= self.tolerance_ns(),
        };
        if is_own {
            let moved_ns = self.track.came(error_ns, stamp);
            self.next += (moved_ns << FRACTION_BITS) + self.period;
            // A second-order loop: a thirty-second part of the correction goes to the period.
            self.period = (self.period + (moved_ns << FRACTION_BITS) / 32).clamp(
                PERIOD_NS_MIN << FRACTION_BITS,
                PERIOD_NS_MAX << FRACTION_BITS,
            );
        }
        is_own.then_some(error_ns)
    }

    /// Moves all its times.
    pub(super) fn shift(&mut self, by_ns: i64) {
        self.next += by_ns << FRACTION_BITS;
        self.track.shift(by_ns);
    }

    /// Finds a rhythm in arrivals, oldest first: the shortest period at whose multiples enough of them lie.
    pub(super) fn find(arrivals: &[i64]) -> Option<Self> {
        // Neighbours at a distance of one are of the same sender; of two and three, where senders take turns.
        // The newest arrivals may be late ones, from which no period can be reckoned.
        let but_newest = |newer| &arrivals[..arrivals.len() - newer];
        (1..=3).find_map(|lag| (0..3).find_map(|newer| Self::fit(but_newest(newer), lag)))
    }

    fn fit(arrivals: &[i64], lag: usize) -> Option<Self> {
        let guess_ns = median_gap(arrivals, lag)?;
        if !(PERIOD_NS_MIN..=PERIOD_NS_MAX).contains(&guess_ns) {
            return None;
        }
        let (last, earlier) = arrivals.split_last()?;
        let period = refined(*last, earlier, guess_ns);
        let tolerance = (period >> FRACTION_BITS) / TOLERANCE_DIVISOR;
        let offset = |at: i64| offset_ns(*last, at, period).1;
        // The newest arrival has an error of its own: the errors' median is the phase.
        let mut errors = [0; ARRIVALS_MAX];
        let mut count = 0;
        for error in arrivals.iter().map(|at| offset(*at)) {
            if error.abs() <= 2 * tolerance {
                errors[count] = error;
                count += 1;
            }
        }
        let errors = &mut errors[..count];
        errors.sort_unstable();
        let phase = *errors.get(count / 2)?;
        // Half of what belongs to a rhythm that is known: chance fills a wider band too often.
        let explained = |error: &i64| (error - phase).abs() <= tolerance / 2;
        let spanned = offset_ns(*last, arrivals[0], period).0 + 1;
        let found = multiples(arrivals, period, |at| explained(&offset(at)));
        let wanted = if lag == 1 {
            spanned * 3 / 4
        } else {
            spanned * 7 / 8
        };
        if found < FOUND_MIN.max(wanted) {
            return None;
        }
        let early = *errors.iter().find(|error| explained(error))? - phase;
        let late = *errors.iter().rfind(|error| explained(error))? - phase;
        Some(Self {
            period,
            next: ((last + phase) << FRACTION_BITS) + period,
            track: Track::new(early, late),
        })
    }

    /// Whether an arrival lies where this rhythm, found in the same arrivals, has one.
    pub(super) fn explains(&self, at_ns: i64) -> bool {
        offset_ns(self.next_ns(), at_ns, self.period).1.abs() <= self.tolerance_ns()
    }
}

/// Arrivals that a rhythm is found in. Lower: jitter passes for a rhythm. Higher: it takes longer to find one.
pub(super) const ARRIVALS_MAX: usize = 32;
/// Multiples of the period that must have an arrival; three quarters of them all, or seven eighths where senders take
/// turns and chance has more ways.
const FOUND_MIN: i64 = 10;

/// How many multiples of the period have an arrival that lies near them.
fn multiples(arrivals: &[i64], period: i64, is_near: impl Fn(i64) -> bool) -> i64 {
    let newest = arrivals.last().copied().unwrap_or_default();
    let near = arrivals.iter().filter(|at| is_near(**at));
    let mut counts = near.map(|at| offset_ns(newest, *at, period).0);
    let Some(mut before) = counts.next() else {
        return 0;
    };
    let mut distinct = 1;
    for count in counts {
        distinct += i64::from(count != before);
        before = count;
    }
    distinct
}

/// Number of periods between two arrivals, and how much later than that multiple `at` came.
fn offset_ns(last: i64, at: i64, period: i64) -> (i64, i64) {
    let distance = (last - at) << FRACTION_BITS;
    let count = (distance + period / 2).div_euclid(period);
    (count, (count * period - distance) >> FRACTION_BITS)
}

/// Goes back from the newest arrival, and makes the period better with each one that fits.
fn refined(last: i64, earlier: &[i64], guess_ns: i64) -> i64 {
    let mut period = guess_ns << FRACTION_BITS;
    for at in earlier.iter().rev() {
        let (count, error) = offset_ns(last, *at, period);
        if count > 0 && error.abs() <= (period >> FRACTION_BITS) / TOLERANCE_DIVISOR * 2 {
            period -= (error << FRACTION_BITS) / count / 2;
        }
    }
    period
}

fn median_gap(arrivals: &[i64], lag: usize) -> Option<i64> {
    let mut gaps = [0; ARRIVALS_MAX];
    let pairs = arrivals.iter().zip(arrivals.get(lag..)?);
    let mut count = 0;
    for (gap, (before, after)) in gaps.iter_mut().zip(pairs) {
        *gap = after - before;
        count += 1;
    }
    gaps[..count].sort_unstable();
    gaps[..count].get(count / 2).copied()
}
