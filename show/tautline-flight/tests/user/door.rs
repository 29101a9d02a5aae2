//! Flights through a door, by the pictures of the craft's own camera: the plan of the wall is wrong, and near the wall
//! there are no satellites.

use tautline_flight::flight::Flight;
use tautline_flight::message::{Mission, Order, Phase};
use tautline_flight::scenery::{Door, DoorPlan, Wall};
use tautline_flight::vector::{Vector, vector};
use tautline_flight::world::{Scene, Sensor, Silence};

/// Door of the plan; the real one is [`OFF`] from it.
const PLANNED: Vector = vector(7.0, 1.0, 0.0);
const OFF: Vector = vector(0.2, 0.75, 0.0);
/// Time without satellites: from some metres before the wall to some behind it.
const SHADOW: (f64, f64) = (3.6, 7.3);

fn scene(seed: u64, is_shadowed: bool) -> Scene {
    let silence = Silence {
        sensor: Sensor::Gps,
        from: SHADOW.0,
        until: SHADOW.1,
    };
    Scene {
        seed,
        orders: vec![
            (0.6, Order::Arm),
            (0.7, Order::TakeOff),
            (0.8, Order::Mission),
        ],
        silences: is_shadowed.then_some(silence).into_iter().collect(),
        wall: Some(Wall::with_door(PLANNED + OFF)),
        ..Scene::default()
    }
}

fn start(scene: Scene) -> Flight {
    let points = [
        vector(2.0, 1.0, 1.2),
        vector(9.5, 1.0, 1.2),
        vector(10.0, 3.0, 2.0),
    ];
    let door = Door {
        place: PLANNED,
        ..scene.wall.unwrap().door
    };
    let plan = DoorPlan {
        door,
        from: 0,
        until: 2,
    };
    Flight::new(scene, Mission::new(&points).through(plan))
}

#[test]
fn with_the_mapping_the_craft_flies_through_the_door_without_satellites() {
    for seed in 1..=5 {
        let mut flight = start(scene(seed, true)).with_eyes();
        let mut by_door = 0.0;
        while flight.world.seconds() < 14.0 {
            flight.run_until(flight.world.seconds() + 0.1);
            by_door += if flight.status.is_by_door { 0.1 } else { 0.0 };
            assert_eq!(flight.world.crash(), None, "seed {seed}");
        }
        let passage = flight.world.passage().unwrap();
        println!(
            "seed {seed}: through the door at {:.2} s, {:+.2} m off, {by_door:.1} s by the door",
            passage.at, passage.off
        );
        assert!(
            (SHADOW.0..SHADOW.1).contains(&passage.at),
            "seed {seed}: {passage:?}"
        );
        assert!(passage.off.abs() < 0.43, "seed {seed}: {passage:?}");
        assert!(by_door > 1.5, "seed {seed}: {by_door} s");
        assert_eq!(flight.status.phase, Phase::Hold, "seed {seed}");
    }
}

#[test]
fn without_the_mapping_the_door_is_missed() {
    for seed in 1..=5 {
        // Nothing tells where the craft is: it lands before the wall.
        let mut blind = start(scene(seed, true));
        blind.run_until(5.0);
        assert!(blind.status.alarms.gps, "seed {seed}");
        blind.run_until(14.0);
        assert_eq!(blind.world.passage(), None, "seed {seed}");
        assert_eq!(blind.world.crash(), None, "seed {seed}");
        assert_eq!(blind.status.phase, Phase::Disarmed, "seed {seed}");
        // By satellites and the plan alone, the way leads into the wall beside the door.
        let mut by_plan = start(scene(seed, false));
        by_plan.run_until(14.0);
        let crash = by_plan.world.crash().unwrap();
        assert!(crash.is_wall && crash.speed > 1.0, "seed {seed}: {crash:?}");
    }
}

#[test]
fn a_mapping_that_dies_on_the_way_ends_in_a_landing() {
    let mut flight = start(scene(1, true)).with_eyes();
    flight.run_until(4.8);
    assert!(flight.status.is_by_door);
    assert_eq!(flight.status.phase, Phase::Mission);
    flight.close_eyes();
    flight.run_until(4.8 + 1.7);
    assert_eq!(flight.status.phase, Phase::Landing);
}

#[test]
fn a_door_that_is_far_from_the_plan_is_another_one() {
    let mut scene = scene(1, false);
    scene.wall = Some(Wall::with_door(PLANNED + vector(0.0, 2.5, 0.0)));
    let mut flight = start(scene).with_eyes();
    flight.run_until(4.0);
    assert_eq!(flight.status.door, None);
}
