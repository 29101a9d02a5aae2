//! The door as a landmark: with satellites its place is learned, without them it tells where the craft is.

use crate::scenery::{DoorPlan, Sighting};
use crate::vector::Vector;

use super::place::Place;

/// Share of an error by which a picture corrects the door's place. Lower: the door is known late. Higher: the noise of
/// a far door moves the way-points.
const LEARNING: f64 = 0.06;
/// Farthest that a door may be from its plan, metres: beyond, something else was taken for it.
const PLAN_ERROR_MAX: f64 = 1.8;
/// Oldest picture that counts, microseconds. Lower: a busy Linux makes the craft blind. Higher: the way since then is
/// guessed.
const AGE_US_MAX: u64 = 400_000;

/// The door, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Landmark {
    place: Option<Vector>,
}

impl Landmark {
    /// Place of the door, once it was seen.
    pub(super) fn place(&self) -> Option<Vector> {
        self.place
    }

    /// Takes a new sighting of this age.
    pub(super) fn look(
        &mut self,
        sighting: &Sighting,
        age_us: u64,
        plan: &DoorPlan,
        craft: &mut Place,
        has_gps: bool,
    ) {
        let way = sighting.way(plan.door.width);
        if age_us > AGE_US_MAX || !way.is_finite() {
            return;
        }
        // The craft has moved since.
        let since = craft.velocity.level() * (age_us as f64 * 1e-6);
        let seen = (craft.position + way - since).level();
        if (seen - plan.door.place.level()).length() > PLAN_ERROR_MAX {
            return;
        }
        match &mut self.place {
            None => self.place = Some(seen),
            Some(place) if has_gps => *place += (seen - *place) * LEARNING,
            Some(place) => craft.hear_landmark(*place - seen),
        }
    }

    /// Distance of a way-point from where it was drawn, if it is one of those that are meant relative to the door.
    pub(super) fn shift(&self, waypoint: usize, plan: &Option<DoorPlan>) -> Vector {
        let (Some(place), Some(plan)) = (self.place, plan) else {
            return Vector::ZERO;
        };
        match (plan.from..plan.until).contains(&(waypoint as u32)) {
            true => place - plan.door.place.level(),
            false => Vector::ZERO,
        }
    }
}
