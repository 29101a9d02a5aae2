//! The navigator, 100 times a second: position, height, phases of a flight, and reactions to whatever falls silent.

use libm::{atan2, tan};

use crate::message::{
    Alarms, Attitude, AttitudeTarget, Companion, Mission, Order, Phase, Reply, Sensors, Status,
};
use crate::scenery::Sighting;
use crate::vector::{Rotation, Vector, vector};
use crate::world::{Craft, GRAVITY};

use super::Freshness;
use super::landmark::Landmark;
use super::place::Place;
use super::track::Track;

/// Velocity for an error of the position, each second.
const POSITION: Vector = vector(1.4, 1.4, 2.0);
/// Acceleration for an error of the velocity, each second.
const VELOCITY: Vector = vector(3.5, 3.5, 5.0);
/// Acceleration for the sum of the velocity's errors, each second squared: holds against steady wind.
const WIND: Vector = vector(1.2, 1.2, 1.5);
/// Largest acceleration against the wind, metres per second squared.
const WIND_MAX: f64 = 3.0;
/// Farthest error of the position that is followed at once, metres.
const ERROR_MAX: f64 = 2.0;
/// Steepest attitude, radians. Higher: the sonar is deaf, and height is lost in turns.
const TILT_MAX: f64 = 0.5;
/// Least and largest thrust beside the weight.
const THRUST_SHARES: (f64, f64) = (0.3, 1.8);
/// Fastest move by the sticks, metres a second.
const STICK_SPEED: f64 = 2.0;
/// The remote control is silent after so long, and the craft stays where it is.
const REMOTE_SECONDS: f64 = 0.5;
/// It lands after so long. Lower: a bend of the antenna ends a flight. Higher: it hangs in the air without a pilot.
const REMOTE_SECONDS_MAX: f64 = 3.0;
/// Longest silence of GPS, barometer and sonar: ten, fifty and twenty values.
const GPS_SECONDS_MAX: f64 = 1.0;
const BAROMETER_SECONDS_MAX: f64 = 1.0;
const SONAR_SECONDS_MAX: f64 = 1.0;
/// Below this height, and this angle, the sonar should have an echo.
const SONAR_HEIGHT: f64 = 3.0;
const SONAR_TILT: f64 = 0.4;
/// Longest silence of the attitude loop.
const ATTITUDE_SECONDS_MAX: f64 = 0.05;
/// Longest silence of Linux, which gives twenty signs of life a second. Lower: a busy Linux is taken for dead.
/// Higher: the craft flies on for longer without it.
const COMPANION_SECONDS_MAX: f64 = 0.7;
/// Without GPS for so long, three values of it, the door tells the place.
const GPS_SECONDS_SHORT: f64 = 0.3;
/// Time without GPS for which the inertial units are enough to brake, and to land where the craft is. Lower: it drifts
/// with the wind from a greater height. Higher: it follows a velocity that is wrong.
const RECKONING_SECONDS_MAX: f64 = 4.0;
/// Longest time without a new picture of the door in which it still tells the place. Lower: the craft, which sees no
/// door while it passes through, lands in it. Higher: it drifts for longer before it lands.
const DOOR_SECONDS_MAX: f64 = 1.5;
/// Longest time without a job of the navigator's own after which a flight goes on: the attitude loop has sunk since.
const OWN_SECONDS_MAX: f64 = 1.5;
/// Share of the nominal voltage below which the craft lands.
const BATTERY_SHARE: f64 = 0.84;
/// Time constant of the voltage: a gust that needs thrust for a moment is no empty battery.
const BATTERY_SECONDS: f64 = 2.0;
/// The ground is felt when the craft has not sunk for so long though it should have.
const TOUCH_SECONDS: f64 = 0.3;
const TOUCH_SPEED: f64 = 0.15;
const TOUCH_LAG: f64 = 0.25;

/// Settings that a ground station may change in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Height of a take-off, metres.
    pub take_off_height: f64,
    /// Fastest way between way-points, metres a second.
    pub cruise: f64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            take_off_height: 2.0,
            cruise: 2.5,
        }
    }
}

/// Newest values of everything that the navigator reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Sensors and remote control.
    pub sensors: Sensors,
    /// Attitude.
    pub attitude: Attitude,
    /// Linux.
    pub companion: Companion,
    /// Way-points.
    pub mission: Mission,
    /// Settings.
    pub tuning: Tuning,
    /// The door in the camera's picture.
    pub sighting: Sighting,
}

#[derive(Clone, Debug, Default)]
struct Ages {
    remote: Freshness,
    gps: Freshness,
    barometer: Freshness,
    sonar: Freshness,
    attitude: Freshness,
    companion: Freshness,
    sighting: Freshness,
}

/// The navigator.
#[derive(Clone, Debug)]
pub struct Navigator {
    craft: Craft,
    place: Place,
    landmark: Landmark,
    track: Track,
    ages: Ages,
    phase: Phase,
    alarms: Alarms,
    heading: Rotation,
    wind: Vector,
    waypoint: usize,
    is_door_new: bool,
    /// Whether the mission follows the take-off.
    is_mission_next: bool,
    remote_orders: u32,
    companion_orders: u32,
    touch_seconds: f64,
    volts: f64,
    target: AttitudeTarget,
    status: Status,
}

impl Navigator {
    /// The navigator of a craft on the ground.
    pub fn new(craft: Craft) -> Navigator {
        Navigator {
            craft,
            place: Place::default(),
            landmark: Landmark::default(),
            track: Track::default(),
            ages: Ages::default(),
            phase: Phase::default(),
            alarms: Alarms::default(),
            heading: Rotation::NONE,
            wind: Vector::ZERO,
            waypoint: 0,
            is_door_new: false,
            is_mission_next: false,
            remote_orders: 0,
            companion_orders: 0,
            touch_seconds: 0.0,
            volts: 0.0,
            target: AttitudeTarget::default(),
            status: Status::default(),
        }
    }

    /// One job; so many seconds have passed since the one before.
    pub fn step(&mut self, seen: &Seen, seconds: f64) -> (AttitudeTarget, Status) {
        self.listen(seen, seconds);
        let is_on_ground = matches!(self.phase, Phase::Disarmed | Phase::Armed);
        self.place
            .update(&seen.sensors, &seen.attitude, is_on_ground);
        self.look_for_door(seen);
        if self.alarms.gps {
            self.place.forget_correction();
        }
        self.obey(seen);
        self.fail_safe(seconds);
        self.advance(seen, seconds);
        self.steer(seen, seconds);
        self.status = Status {
            count: self.status.count.wrapping_add(1),
            time_us: seen.sensors.time_us,
            phase: self.phase,
            alarms: self.alarms,
            position: self.place.position,
            velocity: self.place.velocity,
            attitude: seen.attitude.rotation,
            target: self.track.position,
            waypoint: self.waypoint as u32,
            battery_volts: seen.sensors.battery_volts,
            reply: self.status.reply,
            door: self.landmark.place(),
            is_by_door: !self.has_gps() && self.has_door(),
        };
        (self.target, self.status)
    }

    fn has_gps(&self) -> bool {
        self.ages.gps.age() < GPS_SECONDS_SHORT
    }

    /// Whether the door was seen not long ago.
    fn has_door(&self) -> bool {
        self.landmark.place().is_some() && self.ages.sighting.age() < DOOR_SECONDS_MAX
    }

    /// Whether nothing tells where the craft is.
    fn is_lost(&self) -> bool {
        self.alarms.gps && !self.has_door()
    }

    fn look_for_door(&mut self, seen: &Seen) {
        let (true, Some(plan)) = (self.is_door_new, &seen.mission.door) else {
            return;
        };
        let age_us = seen.sensors.time_us.saturating_sub(seen.sighting.time_us);
        let has_gps = self.has_gps();
        self.landmark
            .look(&seen.sighting, age_us, plan, &mut self.place, has_gps);
    }

    /// Notices who is silent.
    fn listen(&mut self, seen: &Seen, seconds: f64) {
        let (ages, sensors) = (&mut self.ages, &seen.sensors);
        ages.remote.look(sensors.remote.count, seconds);
        ages.gps.look(sensors.gps.count, seconds);
        ages.barometer.look(sensors.barometer.count, seconds);
        ages.attitude.look(seen.attitude.count, seconds);
        ages.companion.look(seen.companion.count, seconds);
        self.is_door_new = ages.sighting.look(seen.sighting.count, seconds);
        let expects_echo =
            self.place.position.z < SONAR_HEIGHT && seen.attitude.rotation.tilt() < SONAR_TILT;
        let silent_seconds = if expects_echo { seconds } else { 0.0 };
        ages.sonar.look(sensors.sonar.count, silent_seconds);
        let share = (seconds / BATTERY_SECONDS).min(1.0);
        match self.volts {
            0.0 => self.volts = sensors.battery_volts,
            before => self.volts += (sensors.battery_volts - before) * share,
        }
        let volts_min = self.craft.battery_volts * BATTERY_SHARE;
        self.alarms = Alarms {
            remote: ages.remote.age() > REMOTE_SECONDS,
            gps: ages.gps.age() > GPS_SECONDS_MAX,
            barometer: ages.barometer.age() > BAROMETER_SECONDS_MAX,
            sonar: ages.sonar.age() > SONAR_SECONDS_MAX,
            spare_imu: seen.attitude.is_spare,
            attitude: ages.attitude.age() > ATTITUDE_SECONDS_MAX,
            companion: ages.companion.has_spoken() && ages.companion.age() > COMPANION_SECONDS_MAX,
            battery: self.volts > 0.0 && self.volts < volts_min,
        };
    }

    /// Takes orders of the pilot, and of the ground.
    fn obey(&mut self, seen: &Seen) {
        let remote = &seen.sensors.remote;
        if remote.order_count != self.remote_orders {
            self.remote_orders = remote.order_count;
            self.order(remote.order, seen);
        }
        let companion = &seen.companion;
        if companion.order_count != self.companion_orders {
            self.companion_orders = companion.order_count;
            self.status.reply = Reply {
                order_count: companion.order_count,
                is_accepted: self.order(companion.order, seen),
            };
        }
    }

    /// Carries an order out; returns whether it is possible.
    fn order(&mut self, order: Order, seen: &Seen) -> bool {
        let is_flying = matches!(self.phase, Phase::TakeOff | Phase::Hold | Phase::Mission);
        let has_mission = !seen.mission.points().is_empty();
        match (order, self.phase) {
            (Order::None, _) => {}
            (Order::Arm, Phase::Disarmed) if self.is_ready(seen) => {
                self.heading = seen.attitude.rotation.heading();
                self.phase = Phase::Armed;
            }
            (Order::Disarm, Phase::Armed) => self.phase = Phase::Disarmed,
            (Order::TakeOff, Phase::Armed) => {
                self.track.begin(self.place.position);
                self.is_mission_next = false;
                self.phase = Phase::TakeOff;
            }
            (Order::Mission, Phase::TakeOff) if has_mission => self.is_mission_next = true,
            (Order::Mission, Phase::Hold | Phase::Mission) if has_mission => self.begin_mission(),
            (Order::Hold, _) if is_flying => self.phase = Phase::Hold,
            (Order::Land, _) if is_flying => self.land(),
            (Order::Land, Phase::Landing) => {}
            _ => return false,
        }
        true
    }

    /// Whether everything that a flight needs has spoken.
    fn is_ready(&self, seen: &Seen) -> bool {
        let ages = &self.ages;
        let needed = [&ages.gps, &ages.barometer, &ages.sonar, &ages.remote];
        needed.iter().all(|one| one.has_spoken())
            && seen.attitude.is_calibrated
            && self.alarms == Alarms::default()
    }

    fn begin_mission(&mut self) {
        (self.phase, self.waypoint) = (Phase::Mission, 0);
    }

    fn land(&mut self) {
        self.phase = Phase::Landing;
        self.touch_seconds = 0.0;
    }

    /// Lands if the flight cannot go on.
    fn fail_safe(&mut self, seconds: f64) {
        let alarms = &self.alarms;
        let must_land = seconds > OWN_SECONDS_MAX
            || self.is_lost()
            || alarms.barometer
            || alarms.spare_imu
            || alarms.companion
            || alarms.battery
            || self.ages.remote.age() > REMOTE_SECONDS_MAX;
        match self.phase {
            Phase::Armed if must_land => self.phase = Phase::Disarmed,
            Phase::TakeOff | Phase::Hold | Phase::Mission if must_land => self.land(),
            _ => {}
        }
    }

    /// Moves the place where the craft should be.
    fn advance(&mut self, seen: &Seen, seconds: f64) {
        let is_waiting = self.alarms.remote;
        match self.phase {
            Phase::Disarmed | Phase::Armed => self.track.begin(self.place.position),
            Phase::TakeOff => {
                if self.track.rise(seen.tuning.take_off_height, seconds) {
                    match self.is_mission_next {
                        true => self.begin_mission(),
                        false => self.phase = Phase::Hold,
                    }
                }
            }
            Phase::Hold if is_waiting => self.track.stop(seconds),
            Phase::Hold => {
                let wanted = self
                    .heading
                    .rotate(seen.sensors.remote.sticks * STICK_SPEED);
                self.track.follow(wanted, seconds);
            }
            // Without a remote control it waits: the mission goes on when the pilot is back.
            Phase::Mission if is_waiting => self.track.stop(seconds),
            Phase::Mission => self.fly_mission(seen, seconds),
            Phase::Landing => {
                self.track.sink(self.place.position.z, seconds);
                self.feel_ground(seconds);
            }
        }
    }

    fn fly_mission(&mut self, seen: &Seen, seconds: f64) {
        match seen.mission.points().get(self.waypoint) {
            Some(place) => {
                let shift = self.landmark.shift(self.waypoint, &seen.mission.door);
                let place = *place + shift;
                let is_there = self.track.approach(place, seen.tuning.cruise, seconds);
                self.waypoint += usize::from(is_there);
            }
            None => self.phase = Phase::Hold,
        }
    }

    fn feel_ground(&mut self, seconds: f64) {
        let is_held = self.place.velocity.z.abs() < TOUCH_SPEED
            && self.place.position.z - self.track.position.z > TOUCH_LAG;
        self.touch_seconds = if is_held {
            self.touch_seconds + seconds
        } else {
            0.0
        };
        if self.touch_seconds > TOUCH_SECONDS {
            self.phase = Phase::Disarmed;
        }
    }

    /// Attitude and thrust that lead the craft to its place.
    fn steer(&mut self, seen: &Seen, seconds: f64) {
        let is_armed = self.phase != Phase::Disarmed;
        let is_on_ground = matches!(self.phase, Phase::Disarmed | Phase::Armed);
        let mut acceleration = Vector::ZERO;
        if is_on_ground {
            self.wind = Vector::ZERO;
        } else {
            let error = (self.track.position - self.place.position).limited(ERROR_MAX);
            let wanted = self.track.velocity + POSITION.scale(error);
            let slip = wanted - self.place.velocity;
            self.wind = (self.wind + WIND.scale(slip) * seconds).clamped(WIND_MAX);
            acceleration = VELOCITY.scale(slip) + self.wind;
        }
        if self.is_lost() && self.ages.gps.age() > RECKONING_SECONDS_MAX {
            // Its drift is unknown: it stays level.
            acceleration = Vector::UP * acceleration.z;
        }
        let weight = self.craft.mass * GRAVITY;
        let (least, most) = THRUST_SHARES;
        let up = (acceleration.z + GRAVITY).clamp(least * GRAVITY, most * GRAVITY);
        let pull = acceleration.level().limited(up * tan(TILT_MAX)) + Vector::UP * up;
        let wanted = leaning(pull) * self.heading;
        let thrust = self.craft.mass * pull.dot(seen.attitude.rotation.up());
        self.target = AttitudeTarget {
            count: self.target.count.wrapping_add(1),
            wanted,
            thrust: match is_on_ground {
                true => 0.0,
                false => thrust.clamp(least * weight, most * weight),
            },
            correction: self.place.correction,
            is_armed,
        };
    }
}

/// Rotation that tilts the upward axis into this direction.
fn leaning(direction: Vector) -> Rotation {
    let axis = Vector::UP.cross(direction);
    let across = axis.length();
    if across < 1e-9 {
        return Rotation::NONE;
    }
    Rotation::from_vector(axis * (atan2(across, direction.z) / across))
}
