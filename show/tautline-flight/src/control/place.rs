//! Estimate of position and velocity: accelerations in the short run, satellites, pressure and sound in the long run.

use crate::message::{Attitude, Sensors};
use crate::vector::Vector;

/// Shares of an error by which a new value of GPS corrects position and velocity.
const GPS_POSITION: f64 = 0.15;
const GPS_VELOCITY: f64 = 0.3;
/// Share of a position's error that corrects the velocity, each second.
const GPS_POSITION_TO_VELOCITY: f64 = 0.1;
/// Turn of the estimated attitude for an error of the velocity, radians a second for metres a second. Lower: an
/// error of the attitude lasts for longer. Higher: noise of GPS tilts the craft.
const VELOCITY_TO_TILT: f64 = 0.05;
/// Shares of an error by which a picture of a landmark corrects position and velocity, 30 times a second. Lower: the
/// velocity of the last moment with satellites stays wrong. Higher: the picture's noise shakes the craft.
const LANDMARK_POSITION: f64 = 0.1;
const LANDMARK_VELOCITY: f64 = 0.12;
/// The same for the height: of sound, which is good near the ground, and of pressure.
const SONAR_POSITION: f64 = 0.4;
const SONAR_VELOCITY: f64 = 1.0;
const BAROMETER_POSITION: f64 = 0.05;
const BAROMETER_VELOCITY: f64 = 0.04;
/// Share of the difference between pressure and sound that is taken for the barometer's drift.
const BAROMETER_DRIFT: f64 = 0.1;
/// Largest error of the sonar that is believed, metres: beyond, it hears something else.
const SONAR_ERROR_MAX: f64 = 1.0;

/// Where the craft is, as far as is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) position: Vector,
    pub(super) velocity: Vector,
    /// Turn that corrects the attitude, radians a second in the world's axes.
    pub(super) correction: Vector,
    gained: Vector,
    seconds: f64,
    barometer_drift: f64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gps: u32,
    barometer: u32,
    sonar: u32,
}

impl Place {
    /// Takes what is new. On the ground nothing moves.
    pub(super) fn update(&mut self, sensors: &Sensors, attitude: &Attitude, is_on_ground: bool) {
        let passed = attitude.seconds - self.seconds;
        self.velocity += attitude.gained - self.gained;
        self.position += self.velocity * passed;
        (self.gained, self.seconds) = (attitude.gained, attitude.seconds);
        self.hear_satellites(sensors);
        self.hear_height(sensors);
        if is_on_ground {
            (self.velocity, self.correction, self.position.z) = (Vector::ZERO, Vector::ZERO, 0.0);
        }
    }

    fn hear_satellites(&mut self, sensors: &Sensors) {
        let gps = &sensors.gps;
        if gps.count == self.counts.gps {
            return;
        }
        let is_first = self.counts.gps == 0;
        self.counts.gps = gps.count;
        if is_first {
            self.position = gps.position.level() + Vector::UP * self.position.z;
        }
        let off = (gps.position - self.position).level();
        let slip = gps.velocity - self.velocity;
        self.position += off * GPS_POSITION;
        self.velocity += slip * GPS_VELOCITY + off * (GPS_POSITION_TO_VELOCITY * 0.1);
        // A velocity that runs away tells that gravity is felt where there is none: the attitude is wrong.
        self.correction = Vector::UP.cross(slip.level()) * VELOCITY_TO_TILT;
    }

    /// Takes the place that follows from a landmark, in the satellites' stead.
    pub(super) fn hear_landmark(&mut self, off: Vector) {
        self.position += off * LANDMARK_POSITION;
        self.velocity += off * LANDMARK_VELOCITY;
    }

    /// Without satellites the last correction would go on for ever.
    pub(super) fn forget_correction(&mut self) {
        self.correction = Vector::ZERO;
    }

    fn hear_height(&mut self, sensors: &Sensors) {
        let (barometer, sonar) = (&sensors.barometer, &sensors.sonar);
        if sonar.count != self.counts.sonar {
            self.counts.sonar = sonar.count;
            let error = sonar.value - self.position.z;
            if error.abs() < SONAR_ERROR_MAX {
                self.correct_height(error, SONAR_POSITION, SONAR_VELOCITY);
                let drift = barometer.value - sonar.value;
                self.barometer_drift += (drift - self.barometer_drift) * BAROMETER_DRIFT;
            }
        }
        if barometer.count != self.counts.barometer {
            self.counts.barometer = barometer.count;
            let error = barometer.value - self.barometer_drift - self.position.z;
            self.correct_height(error, BAROMETER_POSITION, BAROMETER_VELOCITY);
        }
    }

    fn correct_height(&mut self, error: f64, position: f64, velocity: f64) {
        self.position.z += error * position;
        self.velocity.z += error * velocity;
    }
}
