//! Sensors, with the errors of ordinary parts.
//!
//! | sensor | model |
//! |---|---|
//! | gyroscope, accelerometer | noise densities of the Bosch BMI088's data sheet, offsets, and the rotors' vibration |
//! | second inertial unit | the same, three times as noisy |
//! | barometer | noise of a Bosch BMP388 in its fast mode, and a drift |
//! | GPS | velocity noise as u-blox states for the M8; position relative to the start, with a slow drift |
//! | sonar | an echo below 4 m, while the craft does not lean much |

use crate::message::{Gps, Imu, Inertial, Reading, Sensors};
use crate::vector::{Vector, vector};

use super::body::Body;
use super::noise::{Noise, Wander};
use super::{STEP_SECONDS, Sensor};

/// 0.014 degrees a second for each root of hertz, over 1 kHz.
const GYROSCOPE_NOISE: f64 = 0.007_7;
/// Largest offset: half a degree a second.
const GYROSCOPE_BIAS: f64 = 0.009;
/// 175 micro-g for each root of hertz, over 1 kHz.
const ACCELEROMETER_NOISE: f64 = 0.055;
/// Standard deviation of the offset.
const ACCELEROMETER_BIAS: f64 = 0.05;
/// Of the rotors, metres per second squared at hovering speed.
const VIBRATION: f64 = 0.4;
/// Range of the accelerometer: 16 g.
const FORCE_MAX: f64 = 157.0;
/// Noise of the second unit, beside the first.
const SPARE_FACTOR: f64 = 3.0;
const BAROMETER_NOISE: f64 = 0.08;
const BAROMETER_DRIFT: f64 = 0.15;
const GPS_POSITION_NOISE: f64 = 0.05;
const GPS_POSITION_DRIFT: f64 = 0.3;
const GPS_VELOCITY_NOISE: f64 = 0.05;
const SONAR_NOISE: f64 = 0.02;
/// Farthest echo, metres.
const SONAR_RANGE: f64 = 4.0;
/// Beyond this angle the echo does not come back.
const SONAR_TILT_MAX: f64 = 0.5;
/// Time constants of the drifts, seconds.
const DRIFT_SECONDS: f64 = 60.0;

/// Steps of the world between two values of a sensor.
pub(super) const IMU_STEPS: u64 = 2;
const BAROMETER_STEPS: u64 = 80;
const GPS_STEPS: u64 = 400;
const SONAR_STEPS: u64 = 200;

/// An inertial unit.
#[derive(Clone, Debug)]
struct Unit {
    noise: Noise,
    factor: f64,
    gyroscope_bias: Vector,
    accelerometer_bias: Vector,
}

impl Unit {
    fn new(seed: u64, user: u64, factor: f64) -> Unit {
        let mut noise = Noise::new(seed, user);
        Unit {
            gyroscope_bias: (noise.vector() * 0.5).clamped(1.0) * GYROSCOPE_BIAS,
            accelerometer_bias: noise.vector() * ACCELEROMETER_BIAS,
            factor,
            noise,
        }
    }

    fn measure(&mut self, count: u32, body: &Body, force: Vector, vibration: f64) -> Inertial {
        let rates = self.noise.vector() * (GYROSCOPE_NOISE * self.factor);
        let shake = self.noise.vector() * (ACCELEROMETER_NOISE * self.factor + vibration);
        Inertial {
            count,
            rates: body.rates + self.gyroscope_bias + rates,
            force: (force + self.accelerometer_bias + shake).clamped(FORCE_MAX),
        }
    }
}

/// All sensors of a craft.
#[derive(Clone, Debug)]
pub(super) struct SensorSet {
    units: [Unit; 2],
    noise: Noise,
    drift: Wander,
    imu: Imu,
    sensors: Sensors,
    /// Sum of the forces since the last value of the inertial units.
    push: Vector,
}

impl SensorSet {
    pub(super) fn new(seed: u64) -> SensorSet {
        let deviation = vector(GPS_POSITION_DRIFT, GPS_POSITION_DRIFT, BAROMETER_DRIFT);
        SensorSet {
            units: [Unit::new(seed, 2, 1.0), Unit::new(seed, 3, SPARE_FACTOR)],
            noise: Noise::new(seed, 4),
            drift: Wander::new(Noise::new(seed, 5), deviation, DRIFT_SECONDS),
            imu: Imu::default(),
            sensors: Sensors::default(),
            push: Vector::ZERO,
        }
    }

    pub(super) fn imu(&self) -> Imu {
        self.imu
    }

    pub(super) fn sensors(&self) -> &Sensors {
        &self.sensors
    }

    pub(super) fn sensors_mut(&mut self) -> &mut Sensors {
        &mut self.sensors
    }

    /// Takes note of a step, at whose end the body is as given; `force` is felt in the craft's axes.
    pub(super) fn step(
        &mut self,
        number: u64,
        body: &Body,
        force: Vector,
        hover_share: f64,
        is_silent: impl Fn(Sensor) -> bool,
    ) {
        let time_us = (number as f64 * STEP_SECONDS * 1e6) as u64;
        self.push += force;
        if number.is_multiple_of(IMU_STEPS) {
            let force = self.push * (1.0 / IMU_STEPS as f64);
            self.push = Vector::ZERO;
            self.imu.time_us = time_us;
            let units = self.units.iter_mut().zip(&mut self.imu.units);
            for (index, (unit, value)) in units.enumerate() {
                let measured = unit.measure(value.count + 1, body, force, VIBRATION * hover_share);
                if !is_silent(Sensor::Imu(index)) {
                    *value = measured;
                }
            }
        }
        self.sensors.time_us = time_us;
        if number.is_multiple_of(BAROMETER_STEPS) {
            self.drift.step(BAROMETER_STEPS as f64 * STEP_SECONDS);
            let error = self.noise.normal() * BAROMETER_NOISE + self.drift.value.z;
            let height = body.position.z + error;
            measure(
                &mut self.sensors.barometer,
                height,
                is_silent(Sensor::Barometer),
            );
        }
        if number.is_multiple_of(SONAR_STEPS) {
            let height = body.position.z + self.noise.normal() * SONAR_NOISE;
            let has_echo = height < SONAR_RANGE && body.attitude.tilt() < SONAR_TILT_MAX;
            let is_silent = is_silent(Sensor::Sonar) || !has_echo;
            measure(&mut self.sensors.sonar, height.max(0.0), is_silent);
        }
        if number.is_multiple_of(GPS_STEPS) {
            let position = self.noise.vector() * GPS_POSITION_NOISE + self.drift.value;
            let velocity = self.noise.vector() * GPS_VELOCITY_NOISE;
            if !is_silent(Sensor::Gps) {
                self.sensors.gps = Gps {
                    count: self.sensors.gps.count + 1,
                    position: (body.position + position).level(),
                    velocity: body.velocity + velocity,
                };
            }
        }
    }
}

fn measure(reading: &mut Reading, value: f64, is_silent: bool) {
    if !is_silent {
        *reading = Reading {
            count: reading.count + 1,
            value,
        };
    }
}
