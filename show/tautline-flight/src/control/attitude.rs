//! The attitude loop, 500 times a second: keeps the estimate of the attitude, and turns the craft to where it should.
//!
//! The estimate is a complementary filter: gyroscopes in the short run; on the ground the accelerometer, and in the
//! air what the navigator learns from satellites, in the long run.

use crate::message::{Attitude, AttitudeTarget, RateTarget, Turned};
use crate::vector::{Rotation, Vector, vector};
use crate::world::GRAVITY;

use super::Freshness;

/// Turn rate for an error of the attitude, each second, for roll, pitch and yaw.
const PROPORTIONAL: Vector = vector(9.0, 9.0, 3.0);
/// Fastest turn, radians a second.
const RATE_MAX: f64 = 4.0;
/// Rate at which the estimate follows the accelerometer on the ground, each second.
const LEVELLING: f64 = 8.0;
/// Without a target for so long, the craft levels itself and sinks. Lower: a navigator that is late once loses the
/// craft. Higher: a craft that leans flies away.
const TARGET_SECONDS_MAX: f64 = 0.3;
/// Share of the hovering thrust while it sinks like that: the rotors' drag makes it half a metre a second.
const SINKING_SHARE: f64 = 0.96;
/// Longest time to sink; then the motors stop. Higher: they run on the ground.
const SINKING_SECONDS_MAX: f64 = 30.0;
/// Time constant of the estimate of the hovering thrust, seconds.
const HOVER_SECONDS: f64 = 1.0;

/// The attitude loop.
#[derive(Clone, Debug, Default)]
pub struct AttitudeLoop {
    before: Turned,
    target: Freshness,
    rotation: Rotation,
    gained: Vector,
    seconds: f64,
    /// Thrust that carries the craft, newtons.
    hover: f64,
    counts: u32,
    attitude: Attitude,
}

impl AttitudeLoop {
    /// One job; so many seconds have passed since the one before.
    pub fn step(
        &mut self,
        turned: &Turned,
        target: &AttitudeTarget,
        seconds: f64,
    ) -> (RateTarget, Attitude) {
        self.target.look(target.count, seconds);
        if turned.count != self.before.count {
            self.estimate(turned, target);
        }
        self.counts = self.counts.wrapping_add(1);
        (self.command(target, seconds), self.attitude)
    }

    fn estimate(&mut self, turned: &Turned, target: &AttitudeTarget) {
        let passed = turned.seconds - self.before.seconds;
        let turn = turned.turn - self.before.turn;
        let push = turned.push - self.before.push;
        self.before = *turned;
        // Half-way through the turn is where the push was felt on average.
        let half = self.rotation * Rotation::from_vector(turn * 0.5);
        let felt = half.rotate(push);
        self.gained += felt - Vector::UP * (GRAVITY * passed);
        self.seconds += passed;
        let correction = match target.is_armed {
            true => target.correction * passed,
            false => felt.cross(Vector::UP) * (LEVELLING / GRAVITY),
        };
        let turned_now = self.rotation * Rotation::from_vector(turn);
        self.rotation = (Rotation::from_vector(correction) * turned_now).normalised();
        self.attitude = Attitude {
            count: self.attitude.count.wrapping_add(1),
            rotation: self.rotation,
            gained: self.gained,
            seconds: self.seconds,
            is_calibrated: turned.is_calibrated,
            is_spare: turned.is_spare,
        };
    }

    fn command(&mut self, target: &AttitudeTarget, seconds: f64) -> RateTarget {
        let is_lost = self.target.age() > TARGET_SECONDS_MAX;
        let (wanted, thrust) = match is_lost {
            true => (target.wanted.heading(), self.hover * SINKING_SHARE),
            false => (target.wanted, target.thrust),
        };
        if !is_lost {
            let carried = target.thrust * self.rotation.up().z;
            self.hover += (carried - self.hover) * (seconds / HOVER_SECONDS).min(1.0);
        }
        let error = self.rotation.error_to(wanted);
        RateTarget {
            count: self.counts,
            rates: PROPORTIONAL.scale(error).clamped(RATE_MAX),
            thrust,
            is_armed: target.is_armed && self.target.age() < SINKING_SECONDS_MAX,
            wanted,
        }
    }
}
