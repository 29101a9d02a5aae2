//! The world: a craft in moving air, its sensors, its battery, the ground, and the pilot with the remote control.
//!
//! [`World::step`] moves all of it on by [`STEP_SECONDS`]. Noise, wind and faults come from the seed and the script,
//! never from the craft's behaviour, so that two controllers meet the same gusts.

use alloc::vec::Vec;

use libm::exp;

use crate::message::{Imu, Motors, Order, Remote, Sensors};
use crate::scenery::Wall;
use crate::vector::{Rotation, Vector};

mod body;
mod craft;
mod noise;
mod sensors;
mod wind;

pub use body::Body;
pub use craft::{Craft, GRAVITY};
pub use wind::Gust;

use noise::Noise;
use sensors::SensorSet;
use wind::Wind;

/// Length of a step: 4,000 in a second. Longer: the motors' lag of 5 ms is resolved badly. Shorter: a machine that
/// must keep up has no time for anything else.
pub const STEP_SECONDS: f64 = 1.0 / 4_000.0;
/// Steps between two values of the inertial units.
pub const IMU_STEPS: u64 = sensors::IMU_STEPS;
/// Steps between two messages with the slower sensors.
pub const SENSORS_STEPS: u64 = 40;
/// Steps between two frames of the remote control.
const REMOTE_STEPS: u64 = 80;
/// A motor's controller stops when no new command comes for so long, as ordinary ones do.
const COMMAND_SECONDS_MAX: f64 = 0.25;
/// Fastest touch-down that landing gear survives, metres a second.
const IMPACT_MAX: f64 = 2.5;
/// Steepest attitude in which the ground is touched unharmed, radians.
const IMPACT_TILT_MAX: f64 = 0.8;
/// Rates at which the ground takes away sliding and turning, each second.
const SLIDING: f64 = 20.0;
const TURNING: f64 = 60.0;
/// Power that the electronics take, and share of the motors' power that reaches the air.
const ELECTRONICS_WATTS: f64 = 5.0;
const MOTOR_EFFICIENCY: f64 = 0.6;
/// Share of the voltage that is left when the battery is empty.
const EMPTY_SHARE: f64 = 0.8;

/// A sensor that can fall silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sensor {
    /// An inertial unit, 0 or 1.
    Imu(usize),
    /// Barometer.
    Barometer,
    /// Sonar.
    Sonar,
    /// Satellite navigation.
    Gps,
    /// Receiver of the remote control.
    Remote,
}

/// Time in which a sensor is silent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Silence {
    /// Which.
    pub sensor: Sensor,
    /// Seconds from the world's start.
    pub from: f64,
    /// End, in seconds from the world's start.
    pub until: f64,
}

/// Settings of a world.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Seed of noise and wind.
    pub seed: u64,
    /// The craft.
    pub craft: Craft,
    /// Whether there is any wind.
    pub is_windy: bool,
    /// Gusts.
    pub gusts: Vec<Gust>,
    /// Sensors that fall silent.
    pub silences: Vec<Silence>,
    /// Orders of the pilot, with the seconds at which they are given, in order.
    pub orders: Vec<(f64, Order)>,
    /// Charge of the battery at the start, 0 to 1.
    pub charge: f64,
    /// Wall across the way.
    pub wall: Option<Wall>,
}

impl Default for Scene {
    fn default() -> Scene {
        Scene {
            seed: 1,
            craft: Craft::HUMMINGBIRD,
            is_windy: true,
            gusts: Vec::new(),
            silences: Vec::new(),
            orders: Vec::new(),
            charge: 1.0,
            wall: None,
        }
    }
}

/// The world.
#[derive(Clone, Debug)]
pub struct World {
    scene: Scene,
    body: Body,
    sensors: SensorSet,
    wind: Wind,
    air: Vector,
    steps: u64,
    /// Ampere seconds that were used.
    used: f64,
    volts: f64,
    /// Count of the newest command, and the step in which it came.
    command: (u32, u64),
    crash: Option<Crash>,
    remote: Remote,
    /// Newest frame of a pilot outside; without one, the script of the scene is the pilot.
    heard: Option<Remote>,
    has_flown: bool,
    passage: Option<Passage>,
}

/// End of a craft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crash {
    /// Seconds from the world's start.
    pub at: f64,
    /// Speed towards the ground or the wall, metres a second.
    pub speed: f64,
    /// Angle to the vertical, radians.
    pub tilt: f64,
    /// Whether it was the wall.
    pub is_wall: bool,
}

/// Moment at which the craft came through the door.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passage {
    /// Seconds from the world's start.
    pub at: f64,
    /// Metres to the left of the door's middle.
    pub off: f64,
}

impl World {
    /// A craft on the ground.
    pub fn new(scene: Scene) -> World {
        World {
            body: Body::default(),
            sensors: SensorSet::new(scene.seed),
            wind: Wind::new(Noise::new(scene.seed, 1), scene.is_windy),
            air: Vector::ZERO,
            steps: 0,
            used: scene.craft.battery_charge * (1.0 - scene.charge),
            volts: scene.craft.battery_volts,
            command: (0, 0),
            crash: None,
            remote: Remote::default(),
            heard: None,
            has_flown: false,
            passage: None,
            scene,
        }
    }

    /// Moves on by a step, under the newest command that has arrived.
    pub fn step(&mut self, motors: &Motors) {
        self.steps += 1;
        let Body {
            velocity: before,
            position: place,
            ..
        } = self.body;
        self.air = self
            .wind
            .step(&self.scene.gusts, self.seconds(), STEP_SECONDS);
        if self.crash.is_none() {
            let commands = self.commands(motors);
            let craft = &self.scene.craft;
            self.body.step(craft, commands, self.air, STEP_SECONDS);
            self.discharge();
            self.touch_ground();
            self.touch_wall(place);
        }
        let change = (self.body.velocity - before) * (1.0 / STEP_SECONDS);
        let force = self
            .body
            .attitude
            .inverse()
            .rotate(change + Vector::UP * GRAVITY);
        let hover_share = self.body.rotors[0] / self.scene.craft.hover_speed();
        let (now, silences) = (self.seconds(), &self.scene.silences);
        let is_silent = |sensor| {
            let mut all = silences.iter();
            all.any(|one| one.sensor == sensor && (one.from..one.until).contains(&now))
        };
        self.sensors
            .step(self.steps, &self.body, force, hover_share, is_silent);
        if let Some(heard) = self.heard {
            if !is_silent(Sensor::Remote) {
                self.remote = heard;
            }
        } else if self.steps.is_multiple_of(REMOTE_STEPS) && !is_silent(Sensor::Remote) {
            let due = self.scene.orders.iter().filter(|(at, _)| *at <= now);
            let (order_count, order) = due.fold((0, Order::None), |(count, _), (_, order)| {
                (count + 1, *order)
            });
            self.remote = Remote {
                count: self.remote.count + 1,
                order_count,
                order,
                sticks: Vector::ZERO,
            };
        }
        let (volts, remote) = (self.volts, self.remote);
        let sensors = self.sensors.sensors_mut();
        (sensors.battery_volts, sensors.remote) = (volts, remote);
    }

    /// Speeds that the motors' controllers apply.
    fn commands(&mut self, motors: &Motors) -> [f64; 4] {
        if motors.count != self.command.0 {
            self.command = (motors.count, self.steps);
        }
        let age = (self.steps - self.command.1) as f64 * STEP_SECONDS;
        let craft = &self.scene.craft;
        let speed_max = craft.rotor_speed_max * self.volts / craft.battery_volts;
        motors.speeds.map(|speed| match speed.is_finite() {
            true if age < COMMAND_SECONDS_MAX => speed.clamp(0.0, speed_max),
            _ => 0.0,
        })
    }

    fn discharge(&mut self) {
        let craft = &self.scene.craft;
        let cube = |speed: f64| speed * speed * speed;
        let power: f64 = self
            .body
            .rotors
            .iter()
            .map(|speed| craft.torque * cube(*speed))
            .sum();
        let amperes = (ELECTRONICS_WATTS + power / MOTOR_EFFICIENCY) / self.volts;
        self.used += amperes * STEP_SECONDS;
        let left = (1.0 - self.used / craft.battery_charge).max(0.0);
        let idle = craft.battery_volts * (EMPTY_SHARE + (1.0 - EMPTY_SHARE) * left);
        self.volts = idle - amperes * craft.battery_resistance;
    }

    fn touch_ground(&mut self) {
        let body = &mut self.body;
        if body.position.z > 0.0 {
            self.has_flown = true;
            return;
        }
        let (speed, tilt) = (-body.velocity.z, body.attitude.tilt());
        body.position.z = 0.0;
        if self.has_flown && (speed > IMPACT_MAX || tilt > IMPACT_TILT_MAX) {
            self.end(speed, false);
            return;
        }
        let kept = exp(-SLIDING * STEP_SECONDS);
        body.velocity = body.velocity.level() * kept + Vector::UP * body.velocity.z.max(0.0);
        let kept = exp(-TURNING * STEP_SECONDS);
        body.rates = body.rates * kept;
        // The landing gear is level.
        let upright = body.attitude.error_to(body.attitude.heading());
        body.attitude =
            (body.attitude * Rotation::from_vector(upright * (1.0 - kept))).normalised();
    }

    /// Looks whether the craft has hit the wall, or come through its door since it was at the place before.
    fn touch_wall(&mut self, before: Vector) {
        let Some(wall) = self.scene.wall else {
            return;
        };
        let body = &self.body;
        if wall.is_touched(body.position) {
            self.end(body.velocity.x.abs(), true);
        } else if before.x < wall.east && body.position.x >= wall.east {
            self.passage = Some(Passage {
                at: self.seconds(),
                off: body.position.y - wall.door.place.y,
            });
        }
    }

    fn end(&mut self, speed: f64, is_wall: bool) {
        let body = &mut self.body;
        self.crash = Some(Crash {
            at: self.steps as f64 * STEP_SECONDS,
            speed,
            tilt: body.attitude.tilt(),
            is_wall,
        });
        (body.velocity, body.rates, body.rotors) = (Vector::ZERO, Vector::ZERO, [0.0; 4]);
    }

    /// Takes a frame of a pilot outside, who replaces that of the scene from now on.
    pub fn hear(&mut self, remote: Remote) {
        self.heard = Some(remote);
    }

    /// Has the pilot give an order now.
    pub fn order(&mut self, order: Order) {
        self.scene.orders.push((self.seconds(), order));
    }

    /// Has a gust blow; those that are over are forgotten.
    pub fn blow(&mut self, gust: Gust) {
        let now = self.seconds();
        let gusts = &mut self.scene.gusts;
        gusts.retain(|one| one.at + one.length > now);
        gusts.push(gust);
    }

    /// Puts the craft somewhere, for comparisons with other models.
    pub fn place(&mut self, body: Body) {
        self.body = body;
        self.has_flown = true;
    }

    /// The craft as it is, which no controller knows.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Settings of the world.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Wind at the craft, metres a second.
    pub fn wind(&self) -> Vector {
        self.air
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.steps as f64 * STEP_SECONDS
    }

    /// Steps since the start.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The crash, if there was one.
    pub fn crash(&self) -> Option<Crash> {
        self.crash
    }

    /// The newest way through the door, if there was one. A flight over or around the wall is one too, far from the
    /// door's middle.
    pub fn passage(&self) -> Option<Passage> {
        self.passage
    }

    /// Newest values of the inertial units; new ones every [`IMU_STEPS`].
    pub fn imu(&self) -> Imu {
        self.sensors.imu()
    }

    /// Newest values of the other sensors.
    pub fn sensors(&self) -> Sensors {
        *self.sensors.sensors()
    }
}
