//! Numbers of a real craft.

use serde::{Deserialize, Serialize};

use crate::vector::{Vector, vector};

/// Free fall, metres per second squared.
pub const GRAVITY: f64 = 9.81;

/// Parameters of a quadcopter. Rotors are numbered from front left clockwise: front left, front right, rear right,
/// rear left; the first and third push the craft to the left about the vertical.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Craft {
    /// Kilograms.
    pub mass: f64,
    /// Moments of inertia, kilogram square metres.
    pub inertia: Vector,
    /// Distance of a rotor's hub from the centre, metres.
    pub arm: f64,
    /// Thrust: newtons for the square of a rotor's speed in radians a second.
    pub thrust: f64,
    /// Torque about the vertical: newton metres for the square of a rotor's speed.
    pub torque: f64,
    /// Drag of a rotor: newtons for its speed and its hub's air speed, along each axis.
    pub rotor_drag: Vector,
    /// Lift that a rotor gains: newtons for the square of its hub's air speed across.
    pub lift: f64,
    /// Drag of the frame: newtons for the square of the air speed, along each axis.
    pub frame_drag: Vector,
    /// Time constant of a motor, seconds.
    pub motor_lag: f64,
    /// Fastest rotor at the battery's nominal voltage, radians a second.
    pub rotor_speed_max: f64,
    /// Nominal voltage of the battery.
    pub battery_volts: f64,
    /// Charge of the battery, ampere seconds.
    pub battery_charge: f64,
    /// Inner resistance of the battery, ohms.
    pub battery_resistance: f64,
}

impl Craft {
    /// The AscTec Hummingbird. Mass, inertia, geometry, thrust, torque, drag, and motor lag as RotorPy publishes them
    /// (`hummingbird_params.py`), which names as its sources a thesis
    /// (<https://digitalrepository.unm.edu/ece_etds/1189>) and Svacha, Mohta and Kumar, "Improving quadrotor trajectory
    /// tracking by compensating for aerodynamic effects", ICUAS 2017. The battery is the maker's: three cells, 2.1 Ah;
    /// its resistance is that of an ordinary one.
    pub const HUMMINGBIRD: Craft = Craft {
        mass: 0.5,
        inertia: vector(3.65e-3, 3.68e-3, 7.03e-3),
        arm: 0.17,
        thrust: 5.57e-6,
        torque: 1.36e-7,
        rotor_drag: vector(1.19e-4, 1.19e-4, 2.32e-4),
        lift: 3.39e-3,
        frame_drag: vector(0.5e-2, 0.5e-2, 1e-2),
        motor_lag: 0.005,
        rotor_speed_max: 1_500.0,
        battery_volts: 11.1,
        battery_charge: 2.1 * 3_600.0,
        battery_resistance: 0.05,
    };

    /// Place of a rotor's hub.
    pub fn hub(&self, rotor: usize) -> Vector {
        let side = self.arm * core::f64::consts::FRAC_1_SQRT_2;
        let (forward, left) = [(1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0)][rotor];
        vector(forward * side, left * side, 0.0)
    }

    /// Sense of a rotor's torque: 1 turns the craft to the left.
    pub fn sense(rotor: usize) -> f64 {
        if rotor.is_multiple_of(2) { 1.0 } else { -1.0 }
    }

    /// Speed of all rotors at which they carry the craft.
    pub fn hover_speed(&self) -> f64 {
        libm::sqrt(self.mass * GRAVITY / (4.0 * self.thrust))
    }
}
