//! The rate loop, 1,000 times a second: gyroscopes in, motor speeds out.

use libm::sqrt;

use crate::message::{Imu, Inertial, Motors, RateTarget, Turned};
use crate::vector::{Vector, vector};
use crate::world::{Craft, GRAVITY};

use super::Freshness;

/// Gains for roll, pitch and yaw, each second: angular acceleration for an error of the rate. Lower: gusts tip the
/// craft. Higher: with the motors' lag and the period's delay it swings.
const PROPORTIONAL: Vector = vector(28.0, 28.0, 8.0);
/// Gains of the sum of the errors, each second squared.
const INTEGRAL: Vector = vector(40.0, 40.0, 8.0);
/// Largest sum of errors, radians. Higher: a craft held on the ground jumps when it is let go.
const INTEGRAL_MAX: f64 = 0.5;
/// An inertial unit that has said nothing for so long is silent. Lower: a late job takes it for dead. Higher: the
/// craft turns unseen.
const IMU_SECONDS_MAX: f64 = 0.005;
/// Time that the motors go on without any gyroscope. Higher: a craft that has tipped over climbs sideways.
const BLIND_SECONDS_MAX: f64 = 0.1;
/// Without a target for so long, the craft is kept from turning.
const TARGET_SECONDS_MAX: f64 = 0.05;
/// Slowest rotor of a craft that is armed, radians a second.
const IDLE_SPEED: f64 = 120.0;
/// Share of a rotor's greatest thrust that is used, for a battery that is not full.
const THRUST_SHARE: f64 = 0.8;
/// Largest torque about the vertical, newton metres: rotors have little of it.
const YAW_TORQUE_MAX: f64 = 0.06;
/// Time on the ground, without motion, in which the gyroscopes' errors are found.
const CALIBRATION_SECONDS: f64 = 0.4;
/// Fastest turn that may be an error of the gyroscope, radians a second.
const STILL_RATE_MAX: f64 = 0.2;
/// Longest time between two measurements that is summed up. Longer ones are gaps, about which nothing is known.
const GAP_SECONDS_MAX: f64 = 0.05;

/// One inertial unit as the loop sees it.
#[derive(Clone, Debug, Default)]
struct Watched {
    freshness: Freshness,
    bias: Vector,
    still_seconds: f64,
}

impl Watched {
    /// Improves the estimate of the error while the craft stands.
    fn calibrate(&mut self, value: &Inertial, seconds: f64) {
        let is_still = value.rates.length() < STILL_RATE_MAX
            && (value.force.length() - GRAVITY).abs() < GRAVITY / 10.0;
        if !is_still {
            self.still_seconds = 0.0;
        } else {
            // The mean so far, and after the time of calibration one that forgets.
            self.still_seconds = (self.still_seconds + seconds).min(2.0 * CALIBRATION_SECONDS);
            self.bias += (value.rates - self.bias) * (seconds / self.still_seconds);
        }
    }
}

/// The rate loop.
#[derive(Clone, Debug)]
pub struct RateLoop {
    craft: Craft,
    units: [Watched; 2],
    target: Freshness,
    sum: Vector,
    last_us: u64,
    turned: Turned,
    motors: Motors,
}

impl RateLoop {
    /// The loop of a craft.
    pub fn new(craft: Craft) -> RateLoop {
        RateLoop {
            craft,
            units: Default::default(),
            target: Freshness::default(),
            sum: Vector::ZERO,
            last_us: 0,
            turned: Turned::default(),
            motors: Motors::default(),
        }
    }

    /// One job; so many seconds have passed since the one before.
    pub fn step(&mut self, imu: &Imu, target: &RateTarget, seconds: f64) -> (Motors, Turned) {
        let measured = imu.time_us.saturating_sub(self.last_us) as f64 * 1e-6;
        self.last_us = imu.time_us;
        let measured = measured.min(GAP_SECONDS_MAX);
        for (unit, value) in self.units.iter_mut().zip(&imu.units) {
            let is_new = unit.freshness.look(value.count, seconds);
            if is_new && !target.is_armed {
                unit.calibrate(value, measured);
            }
        }
        self.target.look(target.count, seconds);
        let speaks = |unit: &Watched| unit.freshness.age() <= IMU_SECONDS_MAX;
        let chosen = self.units.iter().position(speaks);
        self.motors.wanted = target.wanted;
        self.motors.count = self.motors.count.wrapping_add(1);
        match chosen {
            Some(index) => {
                let value = &imu.units[index];
                let rates = value.rates - self.units[index].bias;
                self.sum_up(rates, value.force, measured, index);
                self.motors.speeds = self.speeds(rates, target, seconds);
            }
            None => self.go_blind(),
        }
        (self.motors, self.turned)
    }

    fn sum_up(&mut self, rates: Vector, force: Vector, seconds: f64, index: usize) {
        let calibrated = |unit: &Watched| unit.still_seconds >= CALIBRATION_SECONDS;
        let turned = &mut self.turned;
        turned.count = turned.count.wrapping_add(1);
        turned.turn += rates * seconds;
        turned.push += force * seconds;
        turned.seconds += seconds;
        turned.is_spare = index > 0;
        turned.is_calibrated = self.units.iter().all(calibrated);
    }

    /// Without a gyroscope nothing can be steered: the craft keeps its thrust for a moment, and then stops.
    fn go_blind(&mut self) {
        let ages = self.units.iter().map(|unit| unit.freshness.age());
        let mean = self.motors.speeds.iter().sum::<f64>() / 4.0;
        self.motors.speeds = match ages.fold(f64::MAX, f64::min) < BLIND_SECONDS_MAX {
            true => [mean; 4],
            false => [0.0; 4],
        };
    }

    fn speeds(&mut self, rates: Vector, target: &RateTarget, seconds: f64) -> [f64; 4] {
        if !target.is_armed {
            self.sum = Vector::ZERO;
            return [0.0; 4];
        }
        let is_stale = self.target.age() > TARGET_SECONDS_MAX;
        let wanted = if is_stale { Vector::ZERO } else { target.rates };
        let error = wanted - rates;
        self.sum = (self.sum + error * seconds).clamped(INTEGRAL_MAX);
        let turn = PROPORTIONAL.scale(error) + INTEGRAL.scale(self.sum);
        self.mix(target.thrust, turn.scale(self.craft.inertia))
    }

    /// Speeds that give this thrust and these torques. Where a rotor cannot, thrust gives way to torque.
    fn mix(&self, thrust: f64, torque: Vector) -> [f64; 4] {
        let craft = &self.craft;
        let yaw = torque.z.clamp(-YAW_TORQUE_MAX, YAW_TORQUE_MAX) * craft.thrust / craft.torque;
        let forces = [0, 1, 2, 3].map(|rotor| {
            let hub = craft.hub(rotor);
            let lever = 1.0 / (hub.x * hub.x);
            (thrust + (hub.y * torque.x - hub.x * torque.y) * lever + Craft::sense(rotor) * yaw)
                / 4.0
        });
        let force_max = craft.thrust * craft.rotor_speed_max * craft.rotor_speed_max * THRUST_SHARE;
        let force_min = craft.thrust * IDLE_SPEED * IDLE_SPEED;
        let most = forces.into_iter().fold(f64::MIN, f64::max);
        let least = forces.into_iter().fold(f64::MAX, f64::min);
        let shift = (force_max - most).min(0.0).max(force_min - least);
        forces.map(|force| sqrt((force + shift).clamp(force_min, force_max) / craft.thrust))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixer_gives_the_thrust_and_the_torques_that_were_asked_for() {
        let craft = Craft::HUMMINGBIRD;
        let asked = vector(0.05, -0.03, 0.01);
        let speeds = RateLoop::new(craft).mix(5.0, asked);
        let (mut thrust, mut torque) = (0.0, Vector::ZERO);
        for (rotor, speed) in speeds.into_iter().enumerate() {
            let force = craft.thrust * speed * speed;
            thrust += force;
            torque += craft.hub(rotor).cross(Vector::UP * force);
            torque.z += Craft::sense(rotor) * craft.torque * speed * speed;
        }
        assert!((thrust - 5.0).abs() < 1e-9 && (torque - asked).length() < 1e-9);
    }

    #[test]
    fn a_rotor_at_its_limit_costs_thrust_and_no_torque() {
        let craft = Craft::HUMMINGBIRD;
        let speeds = RateLoop::new(craft).mix(100.0, vector(0.1, 0.0, 0.0));
        let forces = speeds.map(|speed| craft.thrust * speed * speed);
        let roll: f64 = (0..4).map(|rotor| craft.hub(rotor).y * forces[rotor]).sum();
        assert!((roll - 0.1).abs() < 1e-9, "{roll}");
    }
}
