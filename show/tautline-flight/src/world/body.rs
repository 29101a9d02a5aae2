//! Motion of the craft: a rigid body with four rotors in moving air, integrated by the classic Runge-Kutta method.

use crate::vector::{Rotation, Vector};

use super::craft::{Craft, GRAVITY};

/// Where the craft is and how it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Body {
    /// Metres from the start, east, north, up.
    pub position: Vector,
    /// Metres a second.
    pub velocity: Vector,
    /// Attitude.
    pub attitude: Rotation,
    /// Rates of turn about the craft's axes, radians a second.
    pub rates: Vector,
    /// Speed of each rotor, radians a second.
    pub rotors: [f64; 4],
}

struct Change {
    position: Vector,
    velocity: Vector,
    attitude: Rotation,
    rates: Vector,
    rotors: [f64; 4],
}

impl Body {
    /// Moves on by so many seconds, with rotors that follow the commands in moving air.
    pub fn step(&mut self, craft: &Craft, commands: [f64; 4], wind: Vector, seconds: f64) {
        let change = |body: &Body| body.change(craft, commands, wind);
        let first = change(self);
        let second = change(&self.moved(&first, seconds / 2.0));
        let third = change(&self.moved(&second, seconds / 2.0));
        let fourth = change(&self.moved(&third, seconds));
        for (change, weight) in [
            (first, 1.0 / 6.0),
            (second, 1.0 / 3.0),
            (third, 1.0 / 3.0),
            (fourth, 1.0 / 6.0),
        ] {
            *self = self.moved(&change, seconds * weight);
        }
        self.attitude = self.attitude.normalised();
    }

    fn moved(&self, change: &Change, seconds: f64) -> Body {
        let mut rotors = self.rotors;
        for (speed, change) in rotors.iter_mut().zip(change.rotors) {
            *speed += change * seconds;
        }
        Body {
            position: self.position + change.position * seconds,
            velocity: self.velocity + change.velocity * seconds,
            attitude: Rotation {
                w: self.attitude.w + change.attitude.w * seconds,
                v: self.attitude.v + change.attitude.v * seconds,
            },
            rates: self.rates + change.rates * seconds,
            rotors,
        }
    }

    fn change(&self, craft: &Craft, commands: [f64; 4], wind: Vector) -> Change {
        let air = self.attitude.inverse().rotate(self.velocity - wind);
        let (force, torque) = self.force_and_torque(craft, air);
        let inertia = craft.inertia;
        let spin = torque - self.rates.cross(inertia.scale(self.rates));
        let turn = Rotation {
            w: 0.0,
            v: self.rates * 0.5,
        };
        let mut rotors = [0.0; 4];
        for (change, (speed, command)) in rotors.iter_mut().zip(self.rotors.iter().zip(commands)) {
            *change = (command - speed) / craft.motor_lag;
        }
        Change {
            position: self.velocity,
            velocity: self.attitude.rotate(force) * (1.0 / craft.mass) - Vector::UP * GRAVITY,
            attitude: self.attitude * turn,
            rates: Vector {
                x: spin.x / inertia.x,
                y: spin.y / inertia.y,
                z: spin.z / inertia.z,
            },
            rotors,
        }
    }

    fn force_and_torque(&self, craft: &Craft, air: Vector) -> (Vector, Vector) {
        let mut force = air.scale(craft.frame_drag) * -air.length();
        let mut torque = Vector::ZERO;
        for (rotor, speed) in self.rotors.into_iter().enumerate() {
            let hub = craft.hub(rotor);
            let at_hub = air + self.rates.cross(hub);
            let across = at_hub.level();
            let thrust = craft.thrust * speed * speed + craft.lift * across.dot(across);
            let pull = Vector::UP * thrust - at_hub.scale(craft.rotor_drag) * speed;
            force += pull;
            torque += hub.cross(pull);
            torque.z += Craft::sense(rotor) * craft.torque * speed * speed;
        }
        (force, torque)
    }
}
