//! The place where the craft should be now: a point that moves no faster than the craft can follow.

use libm::sqrt;

use crate::vector::Vector;

/// Fastest move by the sticks, metres a second.
const STICKS: f64 = 2.5;
/// Largest acceleration of the point, metres per second squared.
const ACCELERATION: f64 = 2.5;
/// Distance at which the way to the next way-point begins. Lower: the craft stops at each. Higher: it cuts corners.
const TURN_DISTANCE: f64 = 0.4;
/// Fastest rise and landing, metres a second.
const RISE: f64 = 1.5;
const SINK: f64 = 0.9;
/// Slower below this height, because the ground is known to some decimetres.
const SLOW_HEIGHT: f64 = 0.8;
const SINK_SLOWLY: f64 = 0.5;

/// A moving point.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub(super) position: Vector,
    pub(super) velocity: Vector,
}

impl Track {
    /// Begins anew where the craft is.
    pub(super) fn begin(&mut self, position: Vector) {
        (self.position, self.velocity) = (position, Vector::ZERO);
    }

    /// Moves towards a place; returns whether the next one may follow.
    pub(super) fn approach(&mut self, place: Vector, speed_max: f64, seconds: f64) -> bool {
        let way = place - self.position;
        let distance = way.length();
        let speed = sqrt(2.0 * ACCELERATION * 0.5 * distance).min(speed_max);
        let wanted = way * (speed / distance.max(1e-6));
        self.velocity += (wanted - self.velocity).limited(ACCELERATION * seconds);
        self.position += self.velocity * seconds;
        distance < TURN_DISTANCE
    }

    /// Rises to a height.
    pub(super) fn rise(&mut self, height: f64, seconds: f64) -> bool {
        self.approach(self.position.level() + Vector::UP * height, RISE, seconds)
    }

    /// Stops as fast as it can.
    pub(super) fn stop(&mut self, seconds: f64) {
        let slower = -self.velocity.limited(ACCELERATION * seconds);
        self.velocity += slower;
        self.position += self.velocity * seconds;
    }

    /// Sinks, below the ground if need be.
    pub(super) fn sink(&mut self, height: f64, seconds: f64) {
        let speed = if height < SLOW_HEIGHT {
            SINK_SLOWLY
        } else {
            SINK
        };
        let wanted = Vector::UP * -speed;
        self.velocity += (wanted - self.velocity).limited(ACCELERATION * seconds);
        self.position += self.velocity * seconds;
    }

    /// Follows a velocity that the pilot wants.
    pub(super) fn follow(&mut self, wanted: Vector, seconds: f64) {
        self.velocity += (wanted.limited(STICKS) - self.velocity).limited(ACCELERATION * seconds);
        self.position += self.velocity * seconds;
    }
}
