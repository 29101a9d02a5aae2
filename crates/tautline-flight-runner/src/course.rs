//! The day on which all variants fly: way-points, the door, wind, the pilot, and which sensors fall silent.

use tautline_flight::message::{Mission, Order};
use tautline_flight::scenery::{Door, DoorPlan, Wall};
use tautline_flight::vector::{Vector, vector};
use tautline_flight::world::{Gust, Scene, Sensor, Silence};

/// Way-points. The second and third lead through the door.
pub(crate) const WAYPOINTS: [Vector; 5] = [
    vector(1.5, -1.0, 2.0),
    vector(2.5, 1.0, 1.3),
    vector(10.5, 1.0, 1.3),
    vector(11.5, 3.0, 1.6),
    vector(11.5, 0.0, 1.6),
];
const DOOR_WAYPOINTS: (u32, u32) = (1, 3);
/// Door of the mission's plan, and error of that plan.
const PLANNED: Vector = vector(8.0, 1.0, 0.0);
const PLAN_ERROR: Vector = vector(0.2, 0.75, 0.0);

/// Seconds from the world's start in which the remote control, the sonar and GPS are silent.
pub(crate) const REMOTE_SILENT: (f64, f64) = (3.4, 5.4);
pub(crate) const SONAR_SILENT: (f64, f64) = (4.0, 6.2);
pub(crate) const GPS_SILENT: (f64, f64) = (6.6, 10.3);

/// The wall as it stands.
pub(crate) fn wall() -> Wall {
    Wall::with_door(PLANNED + PLAN_ERROR)
}

/// The mission, with a plan of the door that is wrong.
pub(crate) fn mission() -> Mission {
    let door = Door {
        place: PLANNED,
        ..wall().door
    };
    let (from, until) = DOOR_WAYPOINTS;
    Mission::new(&WAYPOINTS).through(DoorPlan { door, from, until })
}

/// World of that day.
pub(crate) fn scene(seed: u64) -> Scene {
    let gust = |at, x, y| Gust {
        at,
        length: 1.2,
        peak: vector(x, y, 0.0),
    };
    let silence = |sensor, (from, until)| Silence {
        sensor,
        from,
        until,
    };
    Scene {
        seed,
        gusts: vec![
            gust(2.2, 3.0, -2.0),
            gust(4.6, -3.0, 3.0),
            gust(7.0, 2.0, 3.0),
            gust(10.6, 4.0, 1.0),
        ],
        silences: vec![
            silence(Sensor::Remote, REMOTE_SILENT),
            silence(Sensor::Sonar, SONAR_SILENT),
            silence(Sensor::Gps, GPS_SILENT),
        ],
        orders: vec![
            (0.6, Order::Arm),
            (0.7, Order::TakeOff),
            (0.8, Order::Mission),
        ],
        wall: Some(wall()),
        ..Scene::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::RUNAWAY_AT;
    use tautline_flight::flight::Flight;
    use tautline_flight::message::Phase;

    #[test]
    fn the_course_leads_through_the_door_without_satellites_on_many_days() {
        for seed in 1..=6 {
            let mut flight = Flight::new(scene(seed), mission()).with_eyes();
            flight.run_until(RUNAWAY_AT);
            assert_eq!(flight.world.crash(), None, "seed {seed}");
            let passage = flight.world.passage().unwrap();
            let (from, until) = GPS_SILENT;
            assert!(
                (from..until).contains(&passage.at),
                "seed {seed}: {passage:?}"
            );
            // The runaway meets a craft in the air.
            assert_eq!(flight.status.phase, Phase::Mission, "seed {seed}");
        }
    }
}
