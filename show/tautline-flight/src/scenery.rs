//! Scenery: a wall with a door, as the world has it, and as the mission's plan says.

use serde::{Deserialize, Serialize};

use crate::vector::{Vector, vector};

/// Half of the craft's width with its rotors, metres.
pub const CRAFT_RADIUS: f64 = 0.27;

/// A wall from south to north across the way, with a door in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wall {
    /// Metres east of the start.
    pub east: f64,
    /// Southern and northern end, metres north of the start.
    pub ends: (f64, f64),
    /// Height, metres.
    pub height: f64,
    /// Door.
    pub door: Door,
}

/// A door, which stands open and reaches down to the ground.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Door {
    /// Middle of the threshold, metres from the start.
    pub place: Vector,
    /// Width, metres.
    pub width: f64,
    /// Height, metres.
    pub height: f64,
}

impl Wall {
    /// A wall of 15 m with a door in the middle third, 1.4 m wide and 2.2 m high.
    pub fn with_door(place: Vector) -> Wall {
        Wall {
            east: place.x,
            ends: (place.y - 8.0, place.y + 7.0),
            height: 4.0,
            door: Door {
                place,
                width: 1.4,
                height: 2.2,
            },
        }
    }

    /// Whether a point of the wall's plane belongs to the wall or its door.
    pub fn covers(&self, north: f64, up: f64) -> bool {
        (self.ends.0..self.ends.1).contains(&north) && (0.0..self.height).contains(&up)
    }

    /// Whether a craft at this place touches the wall.
    pub fn is_touched(&self, place: Vector) -> bool {
        let is_near = (place.x - self.east).abs() < CRAFT_RADIUS;
        is_near && self.covers(place.y, place.z) && !self.door.lets_through(place)
    }
}

impl Door {
    /// Whether a craft fits through here.
    fn lets_through(&self, place: Vector) -> bool {
        let off = (place.y - self.place.y).abs();
        off < self.width / 2.0 - CRAFT_RADIUS && place.z < self.height
    }
}

/// Plan of a mission that leads through a door. The plan may be wrong by a metre.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoorPlan {
    /// Door as it was drawn.
    pub door: Door,
    /// Way-points, from 0, that are meant relative to the door: the first one, and the one after the last.
    pub from: u32,
    /// End of those way-points.
    pub until: u32,
}

/// The door as the camera sees it from a craft that looks to the east.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sighting {
    /// Pictures with a door so far.
    pub count: u32,
    /// Time of the picture, microseconds of the world.
    pub time_us: u64,
    /// Tangent of the bearing of its middle, to the left of east.
    pub left: f64,
    /// Its width, for a door that is a metre away.
    pub width: f64,
}

impl Sighting {
    /// Way to a door of known width, without height.
    pub fn way(&self, width: f64) -> Vector {
        let east = width / self.width;
        vector(east, east * self.left, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_craft_fits_through_the_door_and_nowhere_else() {
        let wall = Wall::with_door(vector(5.0, 1.0, 0.0));
        for (place, touches) in [
            (vector(5.0, 1.0, 1.2), false),
            (vector(5.1, 1.4, 1.2), false),
            (vector(5.0, 1.5, 1.2), true),
            (vector(5.0, 1.0, 2.3), true),
            (vector(4.7, 3.0, 1.2), false),
            (vector(5.2, 3.0, 3.9), true),
            (vector(5.0, 3.0, 4.1), false),
            (vector(5.0, -8.0, 1.0), false),
        ] {
            assert_eq!(wall.is_touched(place), touches, "{place:?}");
        }
    }

    #[test]
    fn a_sighting_gives_the_way() {
        let sighting = Sighting {
            left: 0.5,
            width: 0.35,
            ..Sighting::default()
        };
        assert!((sighting.way(1.4) - vector(4.0, 2.0, 0.0)).length() < 1e-12);
    }
}
