//! Seeded noise. Each user has a generator of its own, so that one more draw of one changes nothing for another.

use libm::{cos, exp, log, sqrt};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::vector::{Vector, vector};

/// Normally distributed numbers.
#[derive(Clone, Debug)]
pub(super) struct Noise(Xoshiro256PlusPlus);

impl Noise {
    /// The generator of one user.
    pub(super) fn new(seed: u64, user: u64) -> Noise {
        // An odd factor keeps the users' seeds apart, whatever the seed.
        Noise(Xoshiro256PlusPlus::seed_from_u64(
            seed ^ user.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ))
    }

    /// A number with mean 0 and standard deviation 1 (Box and Muller).
    pub(super) fn normal(&mut self) -> f64 {
        let mut uniform = || ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (radius, angle) = (uniform(), uniform());
        sqrt(-2.0 * log(radius)) * cos(core::f64::consts::TAU * angle)
    }

    /// Three of them.
    pub(super) fn vector(&mut self) -> Vector {
        vector(self.normal(), self.normal(), self.normal())
    }
}

/// Noise that forgets: each value is near the one before (a Gauss-Markov process).
#[derive(Clone, Debug)]
pub(super) struct Wander {
    noise: Noise,
    deviation: Vector,
    seconds: f64,
    pub(super) value: Vector,
}

impl Wander {
    /// From zero, with these standard deviations after a while and this time constant.
    pub(super) fn new(noise: Noise, deviation: Vector, seconds: f64) -> Wander {
        Wander {
            noise,
            deviation,
            seconds,
            value: Vector::ZERO,
        }
    }

    /// Moves on.
    pub(super) fn step(&mut self, seconds: f64) {
        let kept = exp(-seconds / self.seconds);
        let fresh = self.noise.vector().scale(self.deviation) * sqrt(1.0 - kept * kept);
        self.value = self.value * kept + fresh;
    }
}
