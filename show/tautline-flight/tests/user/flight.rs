//! Flights in virtual time: a mission, and a flight for each thing that can fall silent.

use tautline_flight::flight::{Flight, Stalls};
use tautline_flight::message::{Mission, Order, Phase};
use tautline_flight::vector::vector;
use tautline_flight::world::{Gust, Scene, Sensor, Silence};

/// Way-points of all flights here: a rectangle that ends above the start.
fn mission() -> Mission {
    Mission::new(&[
        vector(4.0, 0.0, 2.0),
        vector(4.0, 3.0, 2.5),
        vector(0.0, 3.0, 2.5),
        vector(0.0, 0.0, 2.0),
    ])
}

/// A windy day with a pilot who arms, takes off and starts the mission.
fn scene(seed: u64) -> Scene {
    let gust = |at, x, y| Gust {
        at,
        length: 1.5,
        peak: vector(x, y, 0.0),
    };
    Scene {
        seed,
        gusts: vec![gust(5.0, 3.0, -2.0), gust(8.0, -4.0, 1.0)],
        orders: vec![
            (1.0, Order::Arm),
            (1.2, Order::TakeOff),
            (1.3, Order::Mission),
        ],
        ..Scene::default()
    }
}

fn silent(sensor: Sensor, from: f64, until: f64) -> Scene {
    Scene {
        silences: vec![Silence {
            sensor,
            from,
            until,
        }],
        ..scene(7)
    }
}

fn start(scene: Scene) -> Flight {
    Flight::new(scene, mission())
}

/// Runs until the craft has landed by itself, and returns how far it was when it began to.
fn landed_by_itself(flight: &mut Flight, seconds_max: f64) {
    flight.run_until(seconds_max);
    assert_eq!(flight.world.crash(), None);
    assert_eq!(flight.status.phase, Phase::Disarmed, "{:?}", flight.status);
    assert!(flight.world.body().position.z < 0.01);
}

#[test]
fn a_mission_is_flown_and_ends_on_the_ground() {
    for seed in 1..=5 {
        let mut scene = scene(seed);
        scene.orders.push((20.0, Order::Land));
        let mut flight = start(scene);
        flight.run_until(1.19);
        assert_eq!(flight.status.phase, Phase::Armed);
        flight.run_until(3.0);
        assert!(flight.world.body().position.z > 1.0);
        let (mut worst, mut squares, mut count) = (0f64, 0.0, 0);
        let mut passed = [false; 4];
        while flight.world.seconds() < 19.9 {
            flight.step();
            assert_eq!(flight.world.crash(), None, "seed {seed}");
            let position = flight.world.body().position;
            let error = (flight.status.target - position).length();
            worst = worst.max(error);
            (squares, count) = (squares + error * error, count + 1);
            for (passed, place) in passed.iter_mut().zip(mission().points()) {
                *passed |= (*place - position).length() < 1.0;
            }
        }
        let rms = (squares / f64::from(count)).sqrt();
        println!("seed {seed}: position error {rms:.3} m RMS, {worst:.3} m at most");
        assert!(
            passed.iter().all(|passed| *passed),
            "seed {seed}: {passed:?}"
        );
        assert!(rms < 0.7 && worst < 1.5, "seed {seed}: {rms} {worst}");
        assert_eq!(flight.status.phase, Phase::Hold);
        landed_by_itself(&mut flight, 26.0);
    }
}

#[test]
fn two_runs_of_one_seed_are_the_same_bytes() {
    let run = || {
        let mut flight = start(scene(3));
        let mut text = String::new();
        for second in 1..=10 {
            flight.run_until(f64::from(second));
            text += &serde_json::to_string(&flight.status).unwrap();
            text += &format!("{:?}", flight.world.body());
        }
        text
    };
    assert_eq!(run(), run());
    let mut other = start(scene(4));
    other.run_until(1.0);
    assert!(!run().starts_with(&serde_json::to_string(&other.status).unwrap()));
}

#[test]
fn the_estimate_is_near_the_truth() {
    let mut flight = start(scene(2));
    flight.run_until(3.0);
    while flight.world.seconds() < 15.0 {
        flight.step();
        let (truth, status) = (flight.world.body(), &flight.status);
        let tilt = status.attitude.error_to(truth.attitude);
        let off = (truth.position - status.position).length();
        let slip = (truth.velocity - status.velocity).length();
        let at = flight.world.seconds();
        assert!(vector(tilt.x, tilt.y, 0.0).length() < 0.1, "{at}: {tilt:?}");
        assert!(off < 0.8 && slip < 0.6, "{at}: {off} m, {slip} m/s");
    }
}

#[test]
fn an_order_that_makes_no_sense_is_refused() {
    let mut flight = start(Scene::default());
    flight.run_until(1.0);
    for (count, order, is_accepted) in [
        (1, Order::TakeOff, false),
        (2, Order::Arm, true),
        (3, Order::Mission, false),
        (4, Order::Disarm, true),
        (5, Order::Land, false),
    ] {
        (flight.companion.order_count, flight.companion.order) = (count, order);
        flight.run_until(1.0 + 0.1 * f64::from(count));
        let reply = flight.status.reply;
        assert_eq!(
            (reply.order_count, reply.is_accepted),
            (count, is_accepted),
            "{order:?}"
        );
    }
}

#[test]
fn nothing_is_armed_before_the_gyroscopes_are_known() {
    let orders = vec![(0.1, Order::Arm), (0.2, Order::TakeOff)];
    let mut flight = start(Scene { orders, ..scene(1) });
    flight.run_until(2.0);
    assert_eq!(flight.status.phase, Phase::Disarmed);
}

#[test]
fn a_remote_control_that_comes_back_costs_a_wait() {
    let mut flight = start(silent(Sensor::Remote, 4.0, 6.0));
    flight.run_until(5.8);
    assert!(flight.status.alarms.remote);
    assert_eq!(flight.status.phase, Phase::Mission);
    let waits_at = flight.status.target;
    flight.run_until(5.9);
    assert!((flight.status.target - waits_at).length() < 0.01);
    flight.run_until(20.0);
    assert!(!flight.status.alarms.remote);
    assert_eq!(flight.status.phase, Phase::Hold);
    assert!((flight.world.body().position - vector(0.0, 0.0, 2.0)).length() < 1.0);
}

#[test]
fn a_remote_control_that_is_gone_ends_in_a_landing() {
    let mut flight = start(silent(Sensor::Remote, 4.0, f64::MAX));
    flight.run_until(6.9);
    assert_eq!(flight.status.phase, Phase::Mission);
    flight.run_until(7.2);
    assert_eq!(flight.status.phase, Phase::Landing);
    landed_by_itself(&mut flight, 12.0);
}

#[test]
fn each_sensor_that_falls_silent_is_named_and_the_craft_lands() {
    for (sensor, name) in [
        (Sensor::Gps, "GPS silent"),
        (Sensor::Barometer, "barometer silent"),
        (Sensor::Imu(0), "first inertial unit silent"),
    ] {
        let mut flight = start(silent(sensor, 5.0, f64::MAX));
        flight.run_until(6.2);
        let named: Vec<&str> = flight.status.alarms.names().collect();
        assert_eq!(named, [name], "{sensor:?}");
        assert_eq!(flight.status.phase, Phase::Landing, "{sensor:?}");
        landed_by_itself(&mut flight, 12.0);
    }
}

#[test]
fn without_a_sonar_the_barometer_is_enough_to_land() {
    let mut scene = silent(Sensor::Sonar, 4.0, f64::MAX);
    scene.orders.push((9.0, Order::Land));
    let mut flight = start(scene);
    flight.run_until(6.0);
    let named: Vec<&str> = flight.status.alarms.names().collect();
    assert_eq!(named, ["sonar silent"]);
    assert_eq!(flight.status.phase, Phase::Mission);
    landed_by_itself(&mut flight, 16.0);
}

#[test]
fn the_spare_inertial_unit_alone_is_no_reason_to_land() {
    let mut flight = start(silent(Sensor::Imu(1), 4.0, f64::MAX));
    flight.run_until(15.0);
    assert_eq!(flight.status.alarms.names().count(), 0);
    assert_eq!(flight.status.phase, Phase::Hold);
}

#[test]
fn without_any_gyroscope_the_motors_stop() {
    let mut scene = silent(Sensor::Imu(0), 4.0, f64::MAX);
    let second = Silence {
        sensor: Sensor::Imu(1),
        ..scene.silences[0]
    };
    scene.silences.push(second);
    let mut flight = start(scene);
    flight.run_until(4.3);
    assert!(flight.world.body().rotors.iter().all(|speed| *speed < 1.0));
    assert!(flight.status.alarms.attitude);
    flight.run_until(8.0);
    assert!(
        flight.world.crash().is_some(),
        "nothing can fly without a gyroscope"
    );
}

#[test]
fn a_linux_that_stops_ends_in_a_landing() {
    let mut flight = start(scene(1));
    flight.run_until(5.0);
    flight.stalls.companion = true;
    flight.run_until(5.9);
    let named: Vec<&str> = flight.status.alarms.names().collect();
    assert_eq!(
        (named, flight.status.phase),
        (vec!["Linux silent"], Phase::Landing)
    );
    landed_by_itself(&mut flight, 12.0);
}

#[test]
fn an_empty_battery_ends_in_a_landing() {
    let mut flight = start(Scene {
        charge: 0.415,
        ..scene(1)
    });
    while flight.status.phase != Phase::Landing {
        flight.step();
        assert!(flight.world.seconds() < 60.0);
    }
    assert!(flight.status.alarms.battery);
    let at = flight.world.seconds();
    assert!(at > 4.0, "{at}");
    landed_by_itself(&mut flight, at + 6.0);
}

/// Stalls loops from the fifth second on, for so long.
fn stalled(stalls: Stalls, seconds: f64) -> Flight {
    let mut flight = start(scene(1));
    flight.run_until(5.0);
    flight.stalls = stalls;
    flight.run_until(5.0 + seconds);
    flight.stalls = Stalls::default();
    flight
}

#[test]
fn a_navigator_that_overruns_leaves_the_craft_in_the_air() {
    let stalls = Stalls {
        navigator: true,
        ..Stalls::default()
    };
    for seconds in [0.1, 1.0] {
        let mut flight = stalled(stalls, seconds);
        let height = flight.world.body().position.z;
        assert!(
            flight.world.crash().is_none() && height > 0.5,
            "{seconds} s: {height}"
        );
        flight.run_until(20.0);
        assert_eq!(flight.status.phase, Phase::Hold, "{seconds} s");
        assert!((flight.world.body().position - vector(0.0, 0.0, 2.0)).length() < 1.0);
    }
    let mut gone = stalled(stalls, 40.0);
    gone.run_until(46.0);
    assert!(gone.world.crash().is_none());
    assert_eq!(gone.status.phase, Phase::Disarmed);
    let body = gone.world.body();
    assert!(body.position.z < 0.01, "{body:?}");
    assert!(body.rotors.iter().all(|speed| *speed < 1.0));
}

#[test]
fn a_rate_loop_that_is_late_flies_and_one_that_stops_falls() {
    let stalls = Stalls {
        rate: true,
        ..Stalls::default()
    };
    for (seconds, flies) in [(0.005, true), (0.02, true), (1.0, false)] {
        let mut flight = stalled(stalls, seconds);
        flight.run_until(15.0);
        assert_eq!(flight.world.crash().is_none(), flies, "{seconds} s");
    }
}
