//! Vectors and rotations. The world's axes are east, north, up; the craft's are forward, left, up.
//!
//! The functions of `libm` give the same digits on every machine, so a flight repeats everywhere.

use core::ops::{Add, AddAssign, Mul, Neg, Sub};

use libm::{acos, asin, atan2, cos, sin, sqrt};
use serde::{Deserialize, Serialize};

/// Three numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vector {
    /// East, or forward.
    pub x: f64,
    /// North, or left.
    pub y: f64,
    /// Up.
    pub z: f64,
}

/// A vector.
pub const fn vector(x: f64, y: f64, z: f64) -> Vector {
    Vector { x, y, z }
}

impl Vector {
    /// Nothing.
    pub const ZERO: Vector = vector(0.0, 0.0, 0.0);
    /// One upwards.
    pub const UP: Vector = vector(0.0, 0.0, 1.0);

    /// Scalar product.
    pub fn dot(self, other: Vector) -> f64 {
        self.x * other.x + self.y * other.y + self.z * other.z
    }

    /// Vector product.
    pub fn cross(self, other: Vector) -> Vector {
        vector(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )
    }

    /// Products of the coordinates.
    pub fn scale(self, other: Vector) -> Vector {
        vector(self.x * other.x, self.y * other.y, self.z * other.z)
    }

    /// Length.
    pub fn length(self) -> f64 {
        sqrt(self.dot(self))
    }

    /// The same direction, no longer than this.
    pub fn limited(self, length_max: f64) -> Vector {
        let length = self.length();
        if length > length_max {
            self * (length_max / length)
        } else {
            self
        }
    }

    /// Each coordinate within plus and minus this.
    pub fn clamped(self, max: f64) -> Vector {
        vector(
            self.x.clamp(-max, max),
            self.y.clamp(-max, max),
            self.z.clamp(-max, max),
        )
    }

    /// The part without height.
    pub fn level(self) -> Vector {
        vector(self.x, self.y, 0.0)
    }

    /// Whether all coordinates are numbers.
    pub fn is_finite(self) -> bool {
        self.x.is_finite() && self.y.is_finite() && self.z.is_finite()
    }
}

impl Add for Vector {
    type Output = Vector;
    fn add(self, other: Vector) -> Vector {
        vector(self.x + other.x, self.y + other.y, self.z + other.z)
    }
}

impl AddAssign for Vector {
    fn add_assign(&mut self, other: Vector) {
        *self = *self + other;
    }
}

impl Sub for Vector {
    type Output = Vector;
    fn sub(self, other: Vector) -> Vector {
        self + -other
    }
}

impl Neg for Vector {
    type Output = Vector;
    fn neg(self) -> Vector {
        self * -1.0
    }
}

impl Mul<f64> for Vector {
    type Output = Vector;
    fn mul(self, factor: f64) -> Vector {
        vector(self.x * factor, self.y * factor, self.z * factor)
    }
}

/// A rotation from the craft's axes to the world's, as a quaternion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// Scalar part.
    pub w: f64,
    /// Vector part.
    pub v: Vector,
}

impl Default for Rotation {
    fn default() -> Rotation {
        Rotation::NONE
    }
}

impl Rotation {
    /// No rotation.
    pub const NONE: Rotation = Rotation {
        w: 1.0,
        v: Vector::ZERO,
    };

    /// Roll to the right, then pitch nose up, then yaw to the left, in radians.
    pub fn from_euler(roll: f64, pitch: f64, yaw: f64) -> Rotation {
        let about = |axis: Vector, angle: f64| Rotation::from_vector(axis * angle);
        let yaw = about(Vector::UP, yaw);
        // Nose up is a negative rotation about the axis to the left.
        let pitch = about(vector(0.0, 1.0, 0.0), -pitch);
        yaw * pitch * about(vector(1.0, 0.0, 0.0), roll)
    }

    /// Rotation about this vector by its length in radians.
    pub fn from_vector(vector: Vector) -> Rotation {
        let angle = vector.length();
        // Below this, the sine is its argument to all digits, and a division by zero is near.
        if angle < 1e-9 {
            return Rotation {
                w: 1.0,
                v: vector * 0.5,
            };
        }
        Rotation {
            w: cos(angle / 2.0),
            v: vector * (sin(angle / 2.0) / angle),
        }
    }

    /// The opposite rotation.
    pub fn inverse(self) -> Rotation {
        Rotation {
            w: self.w,
            v: -self.v,
        }
    }

    /// The same rotation with length one.
    pub fn normalised(self) -> Rotation {
        let factor = 1.0 / sqrt(self.w * self.w + self.v.dot(self.v));
        Rotation {
            w: self.w * factor,
            v: self.v * factor,
        }
    }

    /// A vector of the craft in the world's axes.
    pub fn rotate(self, inner: Vector) -> Vector {
        let twice = self.v.cross(inner) * 2.0;
        inner + twice * self.w + self.v.cross(twice)
    }

    /// Direction of the craft's upward axis in the world.
    pub fn up(self) -> Vector {
        self.rotate(Vector::UP)
    }

    /// Angle between the craft's upward axis and the vertical.
    pub fn tilt(self) -> f64 {
        acos(self.up().z.clamp(-1.0, 1.0))
    }

    /// Roll, pitch and yaw, as in [`Rotation::from_euler`].
    pub fn euler(self) -> (f64, f64, f64) {
        let (w, Vector { x, y, z }) = (self.w, self.v);
        let roll = atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y));
        let pitch = -asin((2.0 * (w * y - z * x)).clamp(-1.0, 1.0));
        let yaw = atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z));
        (roll, pitch, yaw)
    }

    /// Rotation about the vertical that is left without roll and pitch.
    pub fn heading(self) -> Rotation {
        Rotation::from_vector(Vector::UP * self.euler().2)
    }

    /// Shortest way to another rotation, in the axes of this one: its direction by its angle, for small ones.
    pub fn error_to(self, wanted: Rotation) -> Vector {
        let error = self.inverse() * wanted;
        error.v * if error.w < 0.0 { -2.0 } else { 2.0 }
    }
}

impl Mul for Rotation {
    type Output = Rotation;
    fn mul(self, other: Rotation) -> Rotation {
        Rotation {
            w: self.w * other.w - self.v.dot(other.v),
            v: other.v * self.w + self.v * other.w + self.v.cross(other.v),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_come_back_and_have_the_signs_of_pilots() {
        for (roll, pitch, yaw) in [(0.3, -0.2, 2.0), (-0.5, 0.4, -3.0), (0.0, 0.0, 0.0)] {
            let (r, p, y) = Rotation::from_euler(roll, pitch, yaw).euler();
            assert!((r - roll).abs() < 1e-12 && (p - pitch).abs() < 1e-12);
            assert!((y - yaw).abs() < 1e-12);
        }
        // Roll to the right: the left side, y, goes up. Pitch nose up: x goes up.
        assert!(
            Rotation::from_euler(0.1, 0.0, 0.0)
                .rotate(vector(0.0, 1.0, 0.0))
                .z
                > 0.0
        );
        assert!(
            Rotation::from_euler(0.0, 0.1, 0.0)
                .rotate(vector(1.0, 0.0, 0.0))
                .z
                > 0.0
        );
    }

    #[test]
    fn the_way_to_another_rotation_leads_there() {
        let from = Rotation::from_euler(0.2, 0.1, 1.0);
        let step = vector(0.01, -0.02, 0.03);
        let error = from.error_to(from * Rotation::from_vector(step));
        assert!((error - step).length() < 1e-5);
    }
}
