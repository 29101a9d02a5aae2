//! The day on which all variants fly: way-points, the door, wind, the pilot, and which sensors fall silent. And the
//! laps of a craft that flies until it is told to stop.

use serde::{Deserialize, Serialize};
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

/// Height at which a lap leads back over the wall.
const OVER: f64 = 5.5;
/// Way-points of a lap: the same, and back over the wall. The camera looks to the east alone, so that the craft would
/// not see the door on its way back.
const LAP: [Vector; 6] = [
    WAYPOINTS[0],
    WAYPOINTS[1],
    WAYPOINTS[2],
    WAYPOINTS[3],
    vector(11.5, 0.0, OVER),
    vector(2.0, 0.0, OVER),
];

/// Course of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Course {
    /// Once, with the faults of the schedule.
    Schedule,
    /// A lap; the pilot orders the next one.
    Laps,
}

impl Course {
    /// The mission.
    pub(crate) fn mission(self) -> Mission {
        match self {
            Course::Schedule => mission(),
            Course::Laps => with_door(&LAP, DOOR_WAYPOINTS),
        }
    }

    /// The world.
    pub(crate) fn scene(self, seed: u64) -> Scene {
        let scene = scene(seed);
        match self {
            Course::Schedule => scene,
            Course::Laps => Scene {
                gusts: Vec::new(),
                silences: Vec::new(),
                ..scene
            },
        }
    }
}

/// The wall as it stands.
pub(crate) fn wall() -> Wall {
    Wall::with_door(PLANNED + PLAN_ERROR)
}

/// The mission, with a plan of the door that is wrong.
pub(crate) fn mission() -> Mission {
    with_door(&WAYPOINTS, DOOR_WAYPOINTS)
}

fn with_door(waypoints: &[Vector], (from, until): (u32, u32)) -> Mission {
    let door = Door {
        place: PLANNED,
        ..wall().door
    };
    Mission::new(waypoints).through(DoorPlan { door, from, until })
}

/// Strongest gust that a page offers, metres a second. Higher: the craft is blown against the frame of the door.
pub(crate) const GUST_SPEED_MAX: f64 = 5.0;
/// Turn from one gust to the next, radians: the golden angle, so that they come from everywhere.
const GUST_TURN: f64 = 2.399_963;

/// A gust of this speed from a moment on; each number has a direction of its own.
pub(crate) fn live_gust(at: f64, number: u64, speed: f64) -> Gust {
    let direction = number as f64 * GUST_TURN;
    Gust {
        at,
        length: 1.2,
        peak: vector(speed * direction.cos(), speed * direction.sin(), 0.0),
    }
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
    fn laps_lead_through_the_door_and_back_over_the_wall_in_strong_gusts() {
        for seed in 1..=6 {
            let mut flight =
                Flight::new(Course::Laps.scene(seed), Course::Laps.mission()).with_eyes();
            let (mut laps, mut next_gust) = (0, 3.0);
            while flight.world.seconds() < 120.0 && flight.world.crash().is_none() {
                flight.step();
                let at = flight.world.seconds();
                if flight.status.phase == Phase::Hold
                    && flight.status.waypoint as usize >= LAP.len()
                {
                    flight.world.order(Order::Mission);
                    flight.run_until(at + 0.1);
                    laps += 1;
                }
                if at >= next_gust {
                    flight
                        .world
                        .blow(live_gust(at, (next_gust / 3.0) as u64, GUST_SPEED_MAX));
                    next_gust += 3.0;
                }
            }
            let end = (flight.world.crash(), flight.world.body().position);
            println!("seed {seed}: {laps} laps, {end:?}");
            assert_eq!(end.0, None, "seed {seed}, after {laps} laps");
            assert!(laps >= 2, "seed {seed}: {laps} laps");
        }
    }

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
