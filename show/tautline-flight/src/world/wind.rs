//! Wind: a steady part, turbulence, and gusts at moments that are set.

use libm::cos;

use crate::vector::{Vector, vector};

use super::noise::{Noise, Wander};

/// A gust with the shape of a cosine that rises and falls once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gust {
    /// Seconds from the world's start.
    pub at: f64,
    /// Duration in seconds.
    pub length: f64,
    /// Strongest wind, metres a second.
    pub peak: Vector,
}

/// Standard deviations of the turbulence along each axis, metres a second: a fresh breeze near the ground.
const TURBULENCE: Vector = vector(0.8, 0.8, 0.4);
/// Time constant of the turbulence, seconds: eddies of some metres that pass with the wind.
const TURBULENCE_SECONDS: f64 = 1.2;
/// The steady part, metres a second.
const STEADY: Vector = vector(2.0, 1.0, 0.0);

/// The air's movement at the craft.
#[derive(Clone, Debug)]
pub(super) struct Wind {
    turbulence: Wander,
    is_on: bool,
}

impl Wind {
    pub(super) fn new(noise: Noise, is_on: bool) -> Wind {
        Wind {
            turbulence: Wander::new(noise, TURBULENCE, TURBULENCE_SECONDS),
            is_on,
        }
    }

    /// Wind at a moment; moves the turbulence on by a step. The gusts are the same whatever the craft does.
    pub(super) fn step(&mut self, gusts: &[Gust], at: f64, seconds: f64) -> Vector {
        self.turbulence.step(seconds);
        if !self.is_on {
            return Vector::ZERO;
        }
        let gust = |gust: &Gust| {
            let share = (at - gust.at) / gust.length;
            match (0.0..1.0).contains(&share) {
                true => gust.peak * ((1.0 - cos(core::f64::consts::TAU * share)) / 2.0),
                false => Vector::ZERO,
            }
        };
        let gusts = gusts.iter().map(gust);
        gusts.fold(STEADY + self.turbulence.value, |sum, gust| sum + gust)
    }
}
