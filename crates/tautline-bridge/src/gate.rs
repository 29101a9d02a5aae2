//! Choice of the values that are published: on change, one in so many, at most so often. Never reads a clock.

use std::time::Duration;

use tautline::Instant;

/// Rules of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Only values that differ from the last published one.
    pub on_change: bool,
    /// An unchanged value is published again after this time all the same.
    pub repeat: Option<Duration>,
    /// One value in so many.
    pub every: u32,
    /// Time between two publications at least.
    pub period_min: Duration,
}

/// Fate of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Publish it now, and tell the gate with [`Gate::published`].
    Publish,
    /// It is not the one in so many.
    Decimated,
    /// It is the last published one.
    Unchanged,
    /// Too early: publish it at that time, unless a newer one has come.
    Later(Instant),
}

/// State of a publication. Only values that were published count, so one that could not be sent is judged anew when it
/// comes again.
#[derive(Debug)]
pub struct Gate {
    rules: Rules,
    seen: u32,
    last: Vec<u8>,
    last_at: Option<Instant>,
}

impl Gate {
    /// Takes the memory for the last value.
    #[must_use]
    pub fn new(rules: Rules, value_bytes_max: usize) -> Self {
        let remembered = if rules.on_change { value_bytes_max } else { 0 };
        Self {
            rules,
            seen: 0,
            last: Vec::with_capacity(remembered),
            last_at: None,
        }
    }

    /// Judges a value that has just come.
    pub fn offer(&mut self, now: Instant, value: &[u8]) -> Decision {
        let turn = self.seen;
        self.seen = (turn + 1) % self.rules.every.max(1);
        if turn != 0 {
            return Decision::Decimated;
        }
        self.judge(now, value)
    }

    fn judge(&self, now: Instant, value: &[u8]) -> Decision {
        if let Some(last_at) = self.last_at {
            let elapsed = now.saturating_duration_since(last_at);
            let repeats = self.rules.repeat.is_some_and(|repeat| elapsed >= repeat);
            if self.rules.on_change && self.last == value && !repeats {
                return Decision::Unchanged;
            }
            let due = last_at.checked_add(self.rules.period_min);
            if let Some(due) = due.filter(|due| *due > now) {
                return Decision::Later(due);
            }
        }
        Decision::Publish
    }

    /// Notes a value that was published.
    pub fn published(&mut self, now: Instant, value: &[u8]) {
        self.last_at = Some(now);
        if self.rules.on_change {
            self.last.clear();
            self.last.extend_from_slice(value);
        }
    }

    /// Forgets what was published: the next value is the first.
    pub fn reset(&mut self) {
        self.last_at = None;
        self.seen = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Instant {
        Instant::from_nanos(number * 1_000_000)
    }

    /// Offers a value, and publishes it if it is chosen.
    fn offer(gate: &mut Gate, at_ms: u64, value: &[u8]) -> Decision {
        let decision = gate.offer(ms(at_ms), value);
        if decision == Decision::Publish {
            gate.published(ms(at_ms), value);
        }
        decision
    }

    #[test]
    fn without_rules_everything_is_published() {
        let mut gate = Gate::new(Rules::default(), 8);
        for number in 0..3 {
            assert_eq!(offer(&mut gate, number, b"a"), Decision::Publish);
        }
    }

    #[test]
    fn on_change_holds_the_same_value_back_until_it_is_to_be_repeated() {
        let rules = Rules {
            on_change: true,
            repeat: Some(Duration::from_millis(10)),
            ..Rules::default()
        };
        let mut gate = Gate::new(rules, 8);
        assert_eq!(offer(&mut gate, 0, b"a"), Decision::Publish);
        assert_eq!(offer(&mut gate, 9, b"a"), Decision::Unchanged);
        assert_eq!(offer(&mut gate, 10, b"a"), Decision::Publish);
        assert_eq!(offer(&mut gate, 11, b"b"), Decision::Publish);
        gate.reset();
        assert_eq!(offer(&mut gate, 12, b"b"), Decision::Publish);
    }

    #[test]
    fn at_most_so_often_the_newest_waits_for_its_time() {
        let rules = Rules {
            period_min: Duration::from_millis(10),
            ..Rules::default()
        };
        let mut gate = Gate::new(rules, 8);
        assert_eq!(offer(&mut gate, 0, b"a"), Decision::Publish);
        assert_eq!(offer(&mut gate, 3, b"b"), Decision::Later(ms(10)));
        assert_eq!(offer(&mut gate, 10, b"c"), Decision::Publish);
        assert_eq!(offer(&mut gate, 19, b"d"), Decision::Later(ms(20)));
    }

    #[test]
    fn one_in_so_many() {
        let rules = Rules {
            every: 3,
            ..Rules::default()
        };
        let mut gate = Gate::new(rules, 8);
        let published = (0..9).filter(|n| offer(&mut gate, *n, b"a") == Decision::Publish);
        assert_eq!(published.collect::<Vec<_>>(), [0, 3, 6]);
    }
}
