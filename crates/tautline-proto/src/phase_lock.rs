//! Phase lock of a cycle to the values of a peer: each cycle begins a fixed time after the arrival of its value,
//! although the clocks of both hosts drift and arrivals jitter.
//!
//! [`PhaseLock`] is a second-order phase-locked loop. It takes the stamps of arrivals and answers with the time at
//! which the value of each cycle is expected; the caller adds its phase and sleeps. The expected time moves by at most
//! [`SLEW_DIVISOR`]th of a period a cycle. While values are lost it goes on with the period that it has learned.
//!
//! ```
//! use core::time::Duration;
//! use tautline_proto::phase_lock::{LockState, PhaseLock};
//! use tautline_proto::time::Instant;
//!
//! let ms = Duration::from_millis(1);
//! let mut lock = PhaseLock::new(ms, 1, Instant::ZERO);
//! for k in 1..=200 {
//!     lock.advance(1);
//!     lock.arrived(Instant::from_nanos(1_000_100 * k + 300_000)); // 100 ppm slow, at another phase
//! }
//! assert_eq!(lock.state(), LockState::Locked);
//! let expected = lock.advance(1);
//! let arrival = Instant::from_nanos(1_000_100 * 201 + 300_000);
//! assert!(expected.saturating_duration_since(arrival) < Duration::from_micros(1));
//! ```
//!
//! Not here: clocks, sleeping, and which value a cycle reads.

use core::time::Duration;

use crate::time::Instant;

/// Part of a period, as a divisor, by which the expected time moves in a cycle at most. Lower: cycles follow jitter.
/// Higher: a phase that is wrong by half a period is corrected more slowly.
pub const SLEW_DIVISOR: i64 = 100;
/// Part of the nominal period, as a divisor, by which the learned one may differ. Lower: a rate that was declared
/// wrongly is followed. Higher: an oscillator outside of its specification is not.
const PERIOD_DIVISOR: i64 = 200;
/// Bits of a period below the nanosecond. Fewer: the phase drifts in holdover. More: an hour does not fit.
const FRACTION_BITS: u32 = 16;
/// Values in a row near their expected time after which the loop is locked. Lower: chance locks it. Higher: it takes
/// longer.
const LOCK_AFTER: u32 = 32;
/// Values in a row far from their expected time after which the loop takes their phase. Lower: a stall of the network
/// does. Higher: a peer that was restarted is followed later.
const UNLOCK_AFTER: u32 = 32;
/// Values near their expected time are within this part of a period, as a divisor.
const NEAR_DIVISOR: i64 = 4;
/// An error counts up to this part of a period, as a divisor, once the loop is locked. Lower: large jitter biases the
/// phase. Higher: one late value moves it by more.
const CLAMP_DIVISOR: i64 = 8;
/// Longest holdover. A period that was learned to a millionth moves the phase by 30 µs in this time.
const HOLDOVER_NS_MAX: u64 = 30_000_000_000;

/// State of a phase lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Cycles have the nominal period, or the loop still approaches the peer's phase.
    Free,
    /// Cycles follow the values.
    Locked,
    /// The last cycles had no value; they go on with the learned period.
    Holdover,
}

/// Phase-locked loop of one flow of values with a period. Nothing is allocated; each call takes some nanoseconds.
#[derive(Clone, Debug)]
pub struct PhaseLock {
    /// Of the values, in nanoseconds and their fractions.
    period: i64,
    nominal: i64,
    values_per_cycle: i64,
    /// Expected arrival of the value of the current cycle, and its fraction of a nanosecond.
    expected_ns: u64,
    expected_fraction: i64,
    state: LockState,
    /// Whether a phase was taken from a value.
    has_phase: bool,
    was_locked: bool,
    near_in_a_row: u32,
    far_in_a_row: u32,
    cycles_without_value: u64,
    slips: u64,
}

impl PhaseLock {
    /// A loop for cycles of this period, from 10 µs to an hour, of which each has so many values; at least one. The
    /// first cycle begins one period after `now`, until a value gives the phase.
    #[must_use]
    pub fn new(period: Duration, values_per_cycle: u32, now: Instant) -> Self {
        let values_per_cycle = i64::from(values_per_cycle.max(1));
        let period_ns = period.as_nanos().clamp(10_000, 3_600_000_000_000) as i64;
        let nominal = (period_ns << FRACTION_BITS) / values_per_cycle;
        Self {
            period: nominal,
            nominal,
            values_per_cycle,
            expected_ns: now.as_nanos(),
            expected_fraction: 0,
            state: LockState::Free,
            has_phase: false,
            was_locked: false,
            near_in_a_row: 0,
            far_in_a_row: 0,
            cycles_without_value: 0,
            slips: 0,
        }
    }

    /// Goes on by so many cycles, usually one. Returns when the value of the cycle reached is expected.
    pub fn advance(&mut self, cycles: u64) -> Instant {
        let cycle = self.period * self.values_per_cycle;
        self.shift(cycle.saturating_mul(i64::try_from(cycles).unwrap_or(i64::MAX)));
        self.cycles_without_value = self.cycles_without_value.saturating_add(cycles);
        let period_ns = (self.period >> FRACTION_BITS) as u64 * self.values_per_cycle as u64;
        let held_ns = self.cycles_without_value.saturating_mul(period_ns);
        match self.state {
            LockState::Locked if self.cycles_without_value > 2 => self.state = LockState::Holdover,
            LockState::Holdover if held_ns > HOLDOVER_NS_MAX => {
                self.state = LockState::Free;
                self.has_phase = false;
            }
            _ => {}
        }
        self.expected()
    }

    /// A value came, of this cycle or another one. Returns how much later it came than expected, in nanoseconds: at
    /// most half a period of the values, for the nearest one is meant.
    pub fn arrived(&mut self, at: Instant) -> i64 {
        let late_ns = at.as_nanos().wrapping_sub(self.expected_ns) as i64;
        let period_ns = self.period >> FRACTION_BITS;
        let error_ns = late_ns.saturating_add(period_ns / 2).rem_euclid(period_ns) - period_ns / 2;
        self.cycles_without_value = 0;
        if !self.has_phase {
            self.take_phase(error_ns);
            return error_ns;
        }
        if error_ns.abs() <= period_ns / NEAR_DIVISOR {
            self.far_in_a_row = 0;
            self.near_in_a_row = self.near_in_a_row.saturating_add(1);
            if self.near_in_a_row >= LOCK_AFTER || self.state == LockState::Holdover {
                self.state = LockState::Locked;
                self.was_locked = true;
            }
            self.follow(error_ns, period_ns);
        } else {
            self.near_in_a_row = 0;
            self.far_in_a_row += 1;
            if self.far_in_a_row >= UNLOCK_AFTER {
                self.take_phase(error_ns);
            }
        }
        error_ns
    }

    /// When the value of the current cycle is expected.
    #[must_use]
    pub fn expected(&self) -> Instant {
        Instant::from_nanos(self.expected_ns)
    }

    /// State of the loop.
    #[must_use]
    pub fn state(&self) -> LockState {
        self.state
    }

    /// Period of the cycles as learned, rounded down.
    #[must_use]
    pub fn period(&self) -> Duration {
        let ns = (self.period * self.values_per_cycle) >> FRACTION_BITS;
        Duration::from_nanos(ns.unsigned_abs())
    }

    /// Times that the loop gave up its phase for that of later values: a cycle was longer or shorter by up to half a
    /// period.
    #[must_use]
    pub fn slips(&self) -> u64 {
        self.slips
    }

    /// Corrects phase and period: fast while the loop approaches, slowly once it is locked. Both pairs of gains give a
    /// loop that does not overshoot.
    fn follow(&mut self, error_ns: i64, period_ns: i64) {
        let (phase_shift, period_shift) = match self.state {
            LockState::Free => (4, 10),
            LockState::Locked | LockState::Holdover => (6, 14),
        };
        let clamp = period_ns / CLAMP_DIVISOR;
        let error = error_ns.clamp(-clamp, clamp) << FRACTION_BITS;
        let slew = self.period / SLEW_DIVISOR;
        self.shift((error >> phase_shift).clamp(-slew, slew));
        let span = self.nominal / PERIOD_DIVISOR;
        self.period =
            (self.period + (error >> period_shift)).clamp(self.nominal - span, self.nominal + span);
    }

    /// Takes the phase of a value in one step, and forgets nothing else.
    fn take_phase(&mut self, error_ns: i64) {
        self.shift(error_ns << FRACTION_BITS);
        self.has_phase = true;
        self.state = LockState::Free;
        self.slips += u64::from(self.was_locked);
        self.was_locked = false;
        (self.near_in_a_row, self.far_in_a_row) = (1, 0);
    }

    /// Moves the expected time by a part of it.
    fn shift(&mut self, by: i64) {
        let sum = self.expected_fraction.saturating_add(by);
        self.expected_ns = self.expected_ns.saturating_add_signed(sum >> FRACTION_BITS);
        self.expected_fraction = sum & ((1 << FRACTION_BITS) - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    const PERIOD: Duration = Duration::from_millis(1);

    /// Clock of a peer whose values have jitter and are lost now and then.
    struct Peer {
        random: Xoshiro256PlusPlus,
        /// Times are in 1/1,000 ns.
        period: u64,
        first_ns: u64,
        jitter_ns: u64,
        lost_per_mille: u64,
        /// Values that are lost from now on.
        gap: u64,
    }

    impl Peer {
        fn new(ppm: i64, seed: u64) -> Self {
            Self {
                random: Xoshiro256PlusPlus::seed_from_u64(seed),
                period: (1_000_000_000 + ppm * 1_000).unsigned_abs(),
                first_ns: 1_370_000,
                jitter_ns: 100_000,
                lost_per_mille: 10,
                gap: 0,
            }
        }

        /// The middle of the times at which a value can arrive.
        fn middle_ns(&self, k: u64) -> u64 {
            self.first_ns + k * self.period / 1_000 + self.jitter_ns / 2
        }

        fn arrival(&mut self, k: u64) -> Option<Instant> {
            if self.gap == 0 && self.random.next_u64().is_multiple_of(100_000) {
                self.gap = self.random.next_u64() % 2_000;
            }
            let jitter_ns = self.random.next_u64() % (self.jitter_ns + 1);
            let is_lost = self.random.next_u64() % 1_000 < self.lost_per_mille || self.gap > 0;
            self.gap = self.gap.saturating_sub(1);
            let at = self.middle_ns(k) - self.jitter_ns / 2 + jitter_ns;
            (!is_lost).then(|| Instant::from_nanos(at))
        }
    }

    /// Each cycle has its own value: cycle `k` is expected where value `k` is, however long it goes on.
    #[test]
    fn no_cycle_is_added_or_dropped_within_ten_million() {
        for (ppm, seed) in [(200, 1), (-200, 2)] {
            let mut peer = Peer::new(ppm, seed);
            let mut lock = PhaseLock::new(PERIOD, 1, Instant::ZERO);
            let mut locked_at = None;
            let mut worst_ns = 0;
            for k in 0..5_000_000u64 {
                let expected = lock.advance(1);
                if locked_at.is_some() {
                    let error_ns = expected.as_nanos().abs_diff(peer.middle_ns(k));
                    worst_ns = error_ns.max(worst_ns);
                }
                let Some(at) = peer.arrival(k) else { continue };
                lock.arrived(at);
                if locked_at.is_none() && lock.state() == LockState::Locked {
                    locked_at = Some(k);
                }
            }
            assert!(locked_at.is_some_and(|k| k < 1_000), "{ppm}: {locked_at:?}");
            assert_eq!(lock.slips(), 0, "{ppm}");
            assert!(worst_ns < 100_000, "{ppm}: {worst_ns}");
        }
    }

    #[test]
    fn the_expected_time_moves_by_a_hundredth_of_the_period_a_cycle_at_most() {
        let mut peer = Peer::new(200, 3);
        let mut lock = PhaseLock::new(PERIOD, 1, Instant::ZERO);
        let mut before = Instant::ZERO;
        for k in 0..100_000 {
            let expected = lock.advance(1);
            let length = expected.saturating_duration_since(before);
            if k > 2 {
                // The learned period may differ by half of a hundredth.
                assert!(
                    length.abs_diff(PERIOD) <= PERIOD * 15 / 1_000,
                    "{k}: {length:?}"
                );
            }
            before = expected;
            // Late values, which would pull it.
            let late = Duration::from_micros(if k % 50 == 49 { 240 } else { 0 });
            if let Some(at) = peer.arrival(k) {
                lock.arrived(at + late);
            }
        }
        assert_eq!(lock.slips(), 0);
    }

    #[test]
    fn a_holdover_of_seconds_keeps_the_phase() {
        let mut peer = Peer::new(-200, 4);
        peer.jitter_ns = 10_000;
        let mut lock = PhaseLock::new(PERIOD, 1, Instant::ZERO);
        for k in 0..30_000u64 {
            let expected = lock.advance(1);
            if (20_000..25_000).contains(&k) {
                let state = if k < 20_003 {
                    lock.state()
                } else {
                    LockState::Holdover
                };
                assert_eq!(lock.state(), state);
                let error_ns = expected.as_nanos().abs_diff(peer.middle_ns(k));
                assert!(error_ns < 20_000, "{k}: {error_ns}");
            } else if let Some(at) = peer.arrival(k) {
                lock.arrived(at);
            }
        }
        assert_eq!((lock.state(), lock.slips()), (LockState::Locked, 0));
    }

    #[test]
    fn a_peer_that_starts_again_is_a_slip_and_is_followed() {
        let mut peer = Peer::new(50, 5);
        let mut lock = PhaseLock::new(PERIOD, 1, Instant::ZERO);
        for k in 0..10_000 {
            if k == 5_000 {
                peer.first_ns += 480_000;
            }
            lock.advance(1);
            if let Some(at) = peer.arrival(k) {
                lock.arrived(at);
            }
        }
        assert_eq!((lock.state(), lock.slips()), (LockState::Locked, 1));
        let error_ns = lock.expected().as_nanos().abs_diff(peer.middle_ns(9_999));
        assert!(error_ns < 60_000, "{error_ns}");
    }

    #[test]
    fn every_fourth_value_begins_a_cycle() {
        let mut peer = Peer::new(100, 6);
        let mut lock = PhaseLock::new(PERIOD * 4, 4, Instant::ZERO);
        let mut next_value = 0;
        for _ in 0..5_000u64 {
            let expected = lock.advance(1);
            // All values that have come by then.
            while peer.middle_ns(next_value) < expected.as_nanos() + 500_000 {
                if let Some(at) = peer.arrival(next_value) {
                    lock.arrived(at);
                }
                next_value += 1;
            }
        }
        assert_eq!((lock.state(), lock.slips()), (LockState::Locked, 0));
        assert!(lock.period().abs_diff(PERIOD * 4) < Duration::from_micros(2));
    }

    #[test]
    fn stamps_from_anywhere_do_no_harm() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut lock = PhaseLock::new(PERIOD, 1, Instant::from_nanos(1 << 62));
        for _ in 0..100_000 {
            lock.arrived(Instant::from_nanos(random.next_u64()));
            lock.advance(1);
        }
    }
}
