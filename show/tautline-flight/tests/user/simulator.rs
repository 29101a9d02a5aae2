//! The craft's motion held against RotorPy, a simulator that others wrote: the same commands, the same path.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tautline_flight::flight::Flight;
use tautline_flight::message::{Mission, Order};
use tautline_flight::vector::{Vector, vector};
use tautline_flight::world::{Body, Craft, STEP_SECONDS, Scene};
use tautline_testbed::python;

/// Packages of the environment; RotorPy's motion needs no others.
const PACKAGES: [&str; 3] = ["rotorpy==3.0.0", "numpy==2.4.6", "scipy==1.17.1"];
/// Steps for which a command is held: 20 ms.
const HOLD_STEPS: u32 = 80;
/// Commands of a run: 10 s.
const COMMANDS: usize = 500;
/// Largest difference of the positions, as a share of the way that the craft has flown so far.
const SHARE_MAX: f64 = 0.01;

/// A state, and the commands that the flight controller gave from there on in calm air.
fn recorded() -> (Body, Vec<[f64; 4]>) {
    let orders = vec![
        (1.0, Order::Arm),
        (1.2, Order::TakeOff),
        (1.3, Order::Mission),
    ];
    let scene = Scene {
        is_windy: false,
        orders,
        ..Scene::default()
    };
    let points = [
        vector(6.0, 0.0, 3.0),
        vector(6.0, 6.0, 5.0),
        vector(-4.0, 6.0, 2.0),
        vector(0.0, -6.0, 6.0),
    ];
    let mut flight = Flight::new(scene, Mission::new(&points));
    flight.run_until(3.0);
    let first = *flight.world.body();
    let commands = (0..COMMANDS).map(|_| {
        let held = flight.motors.speeds;
        (0..HOLD_STEPS).for_each(|_| flight.step());
        held
    });
    let commands = commands.collect();
    (first, commands)
}

fn ours(mut body: Body, commands: &[[f64; 4]], wind: Vector) -> Vec<Vector> {
    let positions = commands.iter().map(|held| {
        for _ in 0..HOLD_STEPS {
            body.step(&Craft::HUMMINGBIRD, *held, wind, STEP_SECONDS);
        }
        body.position
    });
    positions.collect()
}

fn theirs(interpreter: &Path, body: &Body, commands: &[[f64; 4]], wind: Vector) -> Vec<Vector> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/fly.py");
    let mut child = Command::new(interpreter)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let state = serde_json::json!({
        "position": body.position, "velocity": body.velocity, "attitude": body.attitude, "rates": body.rates,
        "rotors": body.rotors, "wind": wind,
    });
    let mut input = format!(
        "{}\n{state}\n",
        serde_json::to_string(&Craft::HUMMINGBIRD).unwrap()
    );
    for [a, b, c, d] in commands {
        input += &format!("{a:e} {b:e} {c:e} {d:e}\n");
    }
    let mut pipe = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let numbers: Vec<f64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        vector(numbers[0], numbers[1], numbers[2])
    };
    text.lines().map(line).collect()
}

#[test]
fn the_craft_moves_as_rotorpy_says() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let interpreter = match python::environment(directory, &PACKAGES) {
        Ok(interpreter) => interpreter,
        Err(reason) => return println!("SKIPPED: RotorPy is not to be had: {reason}"),
    };
    let (body, commands) = recorded();
    let wind = vector(1.5, -1.0, 0.2);
    let ours = ours(body, &commands, wind);
    let theirs = theirs(&interpreter, &body, &commands, wind);
    assert_eq!((ours.len(), theirs.len()), (COMMANDS, COMMANDS));
    let (mut way, mut worst, mut worst_share) = (0.0, 0f64, 0f64);
    let mut before = body.position;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        way += (*theirs - before).length();
        before = *theirs;
        let off = (*ours - *theirs).length();
        worst = worst.max(off);
        // The first centimetres of the way say nothing.
        if way > 0.1 {
            worst_share = worst_share.max(off / way);
        }
    }
    println!("{way:.2} m flown, {worst:.2e} m apart at most, a share of {worst_share:.2e}");
    assert!(way > 10.0, "the craft has hardly moved: {way} m");
    assert!(worst_share < SHARE_MAX, "{worst_share}");
}
