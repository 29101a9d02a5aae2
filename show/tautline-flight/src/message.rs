//! Messages between world, loops and ground, each a value that replaces the one before: for sampling ports.
//!
//! Counts tell whether a value is new, and whether one in between was never seen. They wrap.

use serde::{Deserialize, Serialize};

use crate::scenery::DoorPlan;
use crate::vector::{Rotation, Vector};

/// Room for the bytes of any message. Lower: the mission of [`WAYPOINTS_MAX`] way-points does not fit. Higher: each
/// port takes more memory.
pub const MESSAGE_BYTES_MAX: usize = 1_024;
/// Way-points of a mission. Lower: real missions do not fit. Higher: a mission is larger than a message.
pub const WAYPOINTS_MAX: usize = 32;

/// Bytes of a message, at the start of the buffer. They fit if the buffer has [`MESSAGE_BYTES_MAX`] bytes.
pub fn encode<'a, M: Serialize>(message: &M, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    postcard::to_slice(message, buffer).ok().map(|used| &*used)
}

/// The message of these bytes, which may come from anybody.
pub fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Option<M> {
    postcard::from_bytes(bytes).ok()
}

/// One inertial unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inertial {
    /// Measurements so far. It stands still when the unit is silent.
    pub count: u32,
    /// Gyroscope, radians a second about the craft's axes.
    pub rates: Vector,
    /// Accelerometer, metres per second squared along the craft's axes; at rest, gravity upwards.
    pub force: Vector,
}

/// Both inertial units, 2,000 times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Imu {
    /// World's time, microseconds.
    pub time_us: u64,
    /// The first one is the better one.
    pub units: [Inertial; 2],
}

/// A value that is measured now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Measurements so far.
    pub count: u32,
    /// The newest one.
    pub value: f64,
}

/// Satellite navigation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gps {
    /// Measurements so far.
    pub count: u32,
    /// Metres east and north of the start.
    pub position: Vector,
    /// Metres a second.
    pub velocity: Vector,
}

/// Order to the craft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Nothing.
    #[default]
    None,
    /// Start the motors.
    Arm,
    /// Stop the motors; on the ground only.
    Disarm,
    /// Rise to the height of a take-off.
    TakeOff,
    /// Stay, or follow the sticks.
    Hold,
    /// Fly the mission from its first way-point.
    Mission,
    /// Land here.
    Land,
}

/// Remote control, 50 times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remote {
    /// Frames so far.
    pub count: u32,
    /// Orders so far.
    pub order_count: u32,
    /// The newest one.
    pub order: Order,
    /// Sticks: forward, left, up, each from -1 to 1.
    pub sticks: Vector,
}

/// Sensors that are slower than the inertial units, and the receiver of the remote control, 100 times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sensors {
    /// World's time, microseconds.
    pub time_us: u64,
    /// Height by the air's pressure, metres above the start.
    pub barometer: Reading,
    /// Height by sound, metres; counts only where there is an echo.
    pub sonar: Reading,
    /// Satellite navigation.
    pub gps: Gps,
    /// Voltage of the battery.
    pub battery_volts: f64,
    /// Remote control.
    pub remote: Remote,
}

/// Speeds for the motors, and how much to believe them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Motors {
    /// Commands so far.
    pub count: u32,
    /// Radians a second.
    pub speeds: [f64; 4],
    /// Attitude that the craft should have, for the record.
    pub wanted: Rotation,
}

/// Turns and forces as the rate loop has summed them up, so that the attitude loop misses none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turned {
    /// Values so far; it stands still while no inertial unit speaks.
    pub count: u32,
    /// Sum of the turns about the craft's axes, radians.
    pub turn: Vector,
    /// Sum of the forces by time, metres a second in the craft's axes.
    pub push: Vector,
    /// Seconds over which both were summed.
    pub seconds: f64,
    /// Whether the gyroscopes' errors are known well enough to fly.
    pub is_calibrated: bool,
    /// Whether the first inertial unit is silent.
    pub is_spare: bool,
}

/// Turn rates for the rate loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateTarget {
    /// Values so far.
    pub count: u32,
    /// Radians a second about the craft's axes.
    pub rates: Vector,
    /// Sum of the rotors' thrust, newtons.
    pub thrust: f64,
    /// Whether the motors run.
    pub is_armed: bool,
    /// Attitude behind these rates.
    pub wanted: Rotation,
}

/// Estimate of the attitude loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attitude {
    /// Values so far.
    pub count: u32,
    /// Attitude.
    pub rotation: Rotation,
    /// Sum of the accelerations by time, metres a second in the world's axes.
    pub gained: Vector,
    /// Seconds over which it was summed.
    pub seconds: f64,
    /// Whether the gyroscopes' errors are known well enough to fly.
    pub is_calibrated: bool,
    /// Whether the first inertial unit is silent.
    pub is_spare: bool,
}

/// Target of the attitude loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttitudeTarget {
    /// Values so far.
    pub count: u32,
    /// Attitude that the craft should have.
    pub wanted: Rotation,
    /// Sum of the rotors' thrust, newtons.
    pub thrust: f64,
    /// Turn by which the estimate is to be corrected, radians a second in the world's axes.
    pub correction: Vector,
    /// Whether the motors run.
    pub is_armed: bool,
}

/// Linux beside the flight controller: a sign of life, and orders of the ground.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Companion {
    /// Signs of life so far.
    pub count: u32,
    /// Orders so far.
    pub order_count: u32,
    /// The newest one.
    pub order: Order,
}

/// Way-points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mission {
    /// Missions so far.
    pub count: u32,
    /// Way-points that are used.
    pub length: u32,
    /// Metres from the start, east, north, up.
    pub waypoints: [Vector; WAYPOINTS_MAX],
    /// Door on the way.
    pub door: Option<DoorPlan>,
}

impl Default for Mission {
    fn default() -> Mission {
        Mission::new(&[])
    }
}

impl Mission {
    /// A mission; way-points beyond [`WAYPOINTS_MAX`] are left out.
    pub fn new(points: &[Vector]) -> Mission {
        let mut waypoints = [Vector::ZERO; WAYPOINTS_MAX];
        let length = points.len().min(WAYPOINTS_MAX);
        waypoints[..length].copy_from_slice(&points[..length]);
        Mission {
            count: 1,
            length: length as u32,
            waypoints,
            door: None,
        }
    }

    /// The same mission with a door on its way.
    #[must_use]
    pub fn through(self, plan: DoorPlan) -> Mission {
        Mission {
            door: Some(plan),
            ..self
        }
    }

    /// The way-points that are used.
    pub fn points(&self) -> &[Vector] {
        &self.waypoints[..(self.length as usize).min(WAYPOINTS_MAX)]
    }
}

/// Phase of a flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// On the ground, motors off.
    #[default]
    Disarmed,
    /// On the ground, motors on.
    Armed,
    /// Rising to the height of a take-off.
    TakeOff,
    /// At its place, or where the sticks lead.
    Hold,
    /// On the way to a way-point.
    Mission,
    /// Sinking until the ground is felt.
    Landing,
}

/// Faults that the controller has noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarms {
    /// No frame of the remote control.
    pub remote: bool,
    /// No position from satellites.
    pub gps: bool,
    /// No pressure.
    pub barometer: bool,
    /// No echo, though there should be one.
    pub sonar: bool,
    /// The first inertial unit is silent, and the second one flies.
    pub spare_imu: bool,
    /// No attitude.
    pub attitude: bool,
    /// No sign of life from Linux.
    pub companion: bool,
    /// Too little charge to go on.
    pub battery: bool,
}

impl Alarms {
    /// Names of those that are set.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.remote, "remote control silent"),
            (self.gps, "GPS silent"),
            (self.barometer, "barometer silent"),
            (self.sonar, "sonar silent"),
            (self.spare_imu, "first inertial unit silent"),
            (self.attitude, "no attitude"),
            (self.companion, "Linux silent"),
            (self.battery, "battery low"),
        ];
        all.into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, name)| name)
    }
}

/// Reply to an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Number of the order.
    pub order_count: u32,
    /// Whether it was accepted.
    pub is_accepted: bool,
}

/// State of the flight, for the ground and the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Values so far.
    pub count: u32,
    /// Sensors' time, microseconds.
    pub time_us: u64,
    /// Phase.
    pub phase: Phase,
    /// Alarms that are set.
    pub alarms: Alarms,
    /// Estimated position, metres.
    pub position: Vector,
    /// Estimated velocity, metres a second.
    pub velocity: Vector,
    /// Estimated attitude.
    pub attitude: Rotation,
    /// Place where the craft should be now.
    pub target: Vector,
    /// Way-point under way, from 0.
    pub waypoint: u32,
    /// Voltage of the battery.
    pub battery_volts: f64,
    /// Reply to the newest order of the companion.
    pub reply: Reply,
    /// Place of the door as far as it was seen.
    pub door: Option<Vector>,
    /// Whether the door takes the satellites' place.
    pub is_by_door: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::vector;

    #[test]
    fn the_largest_message_fits_and_comes_back() {
        let mission =
            Mission::new(&[vector(1.0, -2.0, 3.0); WAYPOINTS_MAX + 1]).through(DoorPlan::default());
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = encode(&mission, &mut buffer).unwrap();
        assert_eq!(decode::<Mission>(bytes), Some(mission));
        assert_eq!(decode::<Mission>(&bytes[..bytes.len() - 1]), None);
        assert_eq!(mission.points().len(), WAYPOINTS_MAX);
    }

    #[test]
    fn a_length_from_a_stranger_is_no_index() {
        let mission = Mission {
            length: u32::MAX,
            ..Mission::default()
        };
        assert_eq!(mission.points().len(), WAYPOINTS_MAX);
    }
}
