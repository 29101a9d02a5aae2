//! Quantile of a stream of times, without a history: one number that a value above pulls up and a value below pulls
//! down, with the strengths in the ratio of the quantile.

/// A quantile of signed times in nanoseconds.
///
/// Each value moves the estimate by at most its step, so that a single wild value cannot carry it away. The step
/// follows the distance of the values, so the estimate converges from anywhere in some dozens of values.
#[derive(Clone, Copy, Debug)]
pub struct Quantile {
    value_ns: i64,
    step_ns: i64,
    per_mille: i64,
}

/// Smallest step. Lower: the estimate creeps after a change. Higher: it trembles by that much on a quiet machine.
const STEP_NS_MIN: i64 = 50;
/// Largest step. Lower: it takes long to follow a machine that became slow. Higher: a burst of outliers is believed.
const STEP_NS_MAX: i64 = 20_000;

impl Quantile {
    /// The quantile `per_mille` (0 to 1,000) of values that begin near `value_ns`.
    pub const fn new(per_mille: i64, value_ns: i64) -> Self {
        Self {
            value_ns,
            step_ns: 2_000,
            per_mille,
        }
    }

    /// Takes a value into account.
    #[inline]
    pub fn add(&mut self, value_ns: i64) {
        let distance = value_ns.saturating_sub(self.value_ns);
        // An eighth of the usual distance, itself a moving average.
        let wanted = distance.saturating_abs() / 8;
        self.step_ns =
            (self.step_ns + (wanted - self.step_ns) / 16).clamp(STEP_NS_MIN, STEP_NS_MAX);
        self.value_ns += match distance > 0 {
            true => (self.step_ns * self.per_mille / 1_000).max(1),
            false => -(self.step_ns * (1_000 - self.per_mille) / 1_000).max(1),
        };
    }

    /// The estimate.
    #[inline]
    pub const fn value_ns(&self) -> i64 {
        self.value_ns
    }

    /// Moves the estimate: the origin of the values has moved by as much.
    pub fn shift(&mut self, by_ns: i64) {
        self.value_ns = self.value_ns.saturating_add(by_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    #[test]
    fn converges_on_the_quantile_of_uniform_values() {
        for (per_mille, from, to) in [
            (20, -3_000, 6_000),
            (500, 40_000, 60_000),
            (980, 94_000, 103_000),
        ] {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
            let mut quantile = Quantile::new(per_mille, 0);
            for _ in 0..5_000 {
                quantile.add((random.next_u64() % 100_000) as i64);
            }
            let value = quantile.value_ns();
            assert!((from..=to).contains(&value), "{per_mille}: {value}");
        }
    }

    #[test]
    fn one_wild_value_moves_it_by_a_step_only() {
        let mut quantile = Quantile::new(980, 1_000);
        for _ in 0..1_000 {
            quantile.add(1_000);
        }
        let before = quantile.value_ns();
        quantile.add(i64::MAX);
        assert!(quantile.value_ns() - before <= STEP_NS_MAX);
    }
}
