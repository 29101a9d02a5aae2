//! Joint states at 1 kHz from a port to Cyclone DDS on another host, beside Cyclone DDS alone on the same path, and
//! what the cell notices of it. Prints tables.
//!
//! `make bench-ros` runs it, as root. The measured sides are processes of their own: this program again, with the name
//! of a role, and the participant of the tests (`tests/peer.py`).

#[path = "../tests/common/mod.rs"]
mod common;

use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use common::{Cell, Network, eventually};
use serde_json::{Value, json};
use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{
    Destination, Node, NodeConfig, Priority, QueuingPort, Spin, Wait, bus_neighbour, now,
};
use tautline_testbed::hosts::Host::{A, B};
use tautline_testbed::sys;

/// Joint states of a round.
const STATES: u64 = 5_000;
/// Joint states a second.
const RATE: u64 = 1_000;
/// Rounds of each measurement; those of the two ways alternate. The table has the median.
const ROUNDS: usize = 5;
/// Round trips in the cell: those before the ones that count, and those.
const TRIPS: (usize, usize) = (1_000, 4_000);

const PORTS: &str = "[[type]]\nname = \"State\"\n\
    fields = [\"time_ns: u64\", \"position: f64[6]\", \"velocity: f64[6]\"]\n\
    [[type]]\nname = \"Speed\"\nfields = [\"linear: f64[3]\", \"turn: f32\"]\n\
    [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\n\
    [[port]]\nname = \"command\"\nnumber = 2\nkind = \"sampling\"\ntype = \"Speed\"\n";
const ENTRIES: &str = "[[publish]]\nport = \"state\"\ntopic = \"/joint_states\"\n\
    message = \"sensor_msgs/msg/JointState\"\n\
    fields = { \"header.stamp\" = \"time_ns\", position = \"position\", velocity = \"velocity\" }\n\
    constants = { name = [\"joint0\", \"joint1\", \"joint2\", \"joint3\", \"joint4\", \"joint5\"] }\n\
    [[subscribe]]\ntopic = \"/cmd_vel\"\nport = \"command\"\nto = [\"motor.7\"]\n\
    message = \"geometry_msgs/msg/Twist\"\nfields = { linear = \"linear\", \"angular.z\" = \"turn\" }\n";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let words = std::env::args().skip(1).filter(|word| word != "--bench");
    let words: Vec<String> = words.collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure(),
        ["stream", bus, count] => stream(bus, count.parse()?),
        ["ping", bus] => ping(bus),
        ["echo", bus] => echo(bus),
        _ => Err(format!("unknown role: {words:?}").into()),
    }
}

fn measure() -> Result<(), Failure> {
    let Some(network) = Network::create() else {
        return Ok(());
    };
    println!("{}\n", machine());
    let (mut plain, mut through) = (Vec::new(), Vec::new());
    let (mut without, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(alone(&network).ok_or("no foreign participant")?);
        through.push(from_port(&network)?);
        without.push(trips(&network, false)?);
        beside.push(trips(&network, true)?);
    }
    println!(
        "JointState of 6 joints, {RATE} a second, best effort, from host A to Cyclone DDS in Python at host B; median \
         (range) of {ROUNDS} rounds of {STATES}, in turn\n"
    );
    println!("| | Cyclone DDS in Python | port, `taut ros` |\n|---|---|---|");
    line("heard a second", &plain, &through, 0);
    line("missing", &plain, &through, 1);
    line("written to heard p50, us", &plain, &through, 2);
    line("p99, us", &plain, &through, 3);
    println!(
        "\nround trips in the cell, SCHED_FIFO on CPU 1; `taut ros`, 1 kHz and a flood of 10 kHz on CPU 0\n"
    );
    println!("| | without | beside |\n|---|---|---|");
    line("p50, us", &without, &beside, 0);
    line("p99, us", &without, &beside, 1);
    Ok(())
}

/// Medians and ranges of one figure of the rounds, and the ratio of the medians.
fn line(name: &str, first: &[Vec<f64>], second: &[Vec<f64>], figure: usize) {
    let [first, second] = [first, second].map(|rounds| {
        let mut all: Vec<f64> = rounds.iter().map(|round| round[figure]).collect();
        all.sort_by(f64::total_cmp);
        [all[all.len() / 2], all[0], all[all.len() - 1]]
    });
    let text = |[median, least, most]: [f64; 3]| format!("{median:.1} ({least:.1}–{most:.1})");
    println!("| {name} | {} | {} |", text(first), text(second));
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = thread::available_parallelism().map_or(0, usize::from);
    let model = model.map_or("unknown", |(_, model)| model);
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("?");
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{count} CPUs, {model}, Linux {}, load {load}",
        kernel.trim()
    )
}

/// Rate, loss and delays of what was heard, in `seconds`.
fn heard(counts: &Value, seconds: f64) -> Vec<f64> {
    let number = |name: &str| counts[name].as_f64().unwrap_or(f64::NAN);
    vec![
        number("count") / seconds,
        number("missing"),
        number("p50_us"),
        number("p99_us"),
    ]
}

#[allow(clippy::cast_precision_loss)] // a few thousand
fn stream_seconds() -> f64 {
    STATES as f64 / RATE as f64
}

/// Cyclone DDS alone.
fn alone(network: &Network) -> Option<Vec<f64>> {
    let mut sender = common::participant(network, A)?;
    let mut hearer = common::participant(network, B)?;
    hearer.tell(json!(["hear", "rt/alone", "JointState", { "verbose": false }]));
    sender.tell(json!(["stream", "rt/alone", STATES, RATE]));
    let streamed = sender.wait_for("a stream", |what| what["streamed"].is_u64());
    thread::sleep(Duration::from_millis(500));
    let seconds = streamed["seconds"].as_f64().unwrap_or(f64::NAN);
    Some(heard(&common::counts(&mut hearer, "rt/alone"), seconds))
}

/// A port that becomes a topic.
fn from_port(network: &Network) -> Result<Vec<f64>, Failure> {
    let cell = Cell::new();
    let ros = network.ros(&cell, A, PORTS, ENTRIES);
    let mut hearer = common::participant(network, B).ok_or("no foreign participant")?;
    hearer.tell(json!(["hear", "rt/joint_states", "JointState", { "verbose": false }]));
    eventually("it listens", || ros.count("/joint_states", "readers") == 1);
    let status = role(network, &["stream", &text(cell.bus()), &STATES.to_string()])?.wait()?;
    if !status.success() {
        return Err("no stream".into());
    }
    thread::sleep(Duration::from_millis(500));
    Ok(heard(
        &common::counts(&mut hearer, "rt/joint_states"),
        stream_seconds(),
    ))
}

/// Round trips in a cell of its own, alone or beside a program that publishes and is flooded.
fn trips(network: &Network, beside: bool) -> Result<Vec<f64>, Failure> {
    let (cell, own) = (Cell::new(), Cell::new());
    let mut others = Vec::new();
    let mut beside_it = None;
    if beside {
        let ros = network.ros_on(Some(0), &cell, A, PORTS, ENTRIES);
        let _sink = common::program(&cell);
        let mut peer =
            common::participant_on(Some(0), network, B).ok_or("no foreign participant")?;
        peer.tell(json!(["hear", "rt/joint_states", "JointState", { "verbose": false }]));
        eventually("it listens", || ros.count("/joint_states", "readers") == 1);
        others.push(role_on(
            0,
            network,
            &["stream", &text(cell.bus()), "1000000"],
        )?);
        let flood = json!({ "count": 1_000_000, "rate": 10_000 });
        let twist = json!([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]);
        peer.tell(json!(["write", "rt/cmd_vel", "Twist", [twist], flood]));
        eventually("the flood arrives", || {
            ros.count("/cmd_vel", "policed") > 100
        });
        beside_it = Some((ros, _sink, peer));
    }
    others.push(role_on(1, network, &["echo", &text(own.bus())])?);
    let measured = role_on(1, network, &["ping", &text(own.bus())])?.wait_with_output();
    for mut other in others {
        let _gone = other.kill();
        let _gone = other.wait();
    }
    drop(beside_it);
    let text = String::from_utf8(measured?.stdout)?;
    let figures = text.split_whitespace().map(str::parse);
    Ok(figures.collect::<Result<Vec<f64>, _>>()?)
}

fn command(network: &Network, words: &[&str]) -> Result<Command, Failure> {
    let own = std::env::current_exe()?;
    let mut command = network.command(A, own.to_str().ok_or("a path in UTF-8")?);
    tautline_testbed::child::tie(&mut command, None);
    command.args(words).stdout(Stdio::piped());
    Ok(command)
}

/// A path as an argument.
fn text(path: &std::path::Path) -> String {
    path.display().to_string()
}

fn role(network: &Network, words: &[&str]) -> Result<Child, Failure> {
    Ok(command(network, words)?.spawn()?)
}

fn role_on(cpu: u32, network: &Network, words: &[&str]) -> Result<Child, Failure> {
    let mut command = command(network, words)?;
    sys::pin_command(&mut command, cpu);
    Ok(command.spawn()?)
}

// The sides.

fn node(bus: &str, name: &str, peer: &str) -> Result<Node, Failure> {
    let config = NodeConfig::vbus(BusConfig::new(bus, name.parse()?));
    Ok(Node::open(
        config.with_neighbour(bus_neighbour(peer.parse()?))?,
    )?)
}

fn soon() -> tautline::Instant {
    tautline::Instant::from_nanos(now().as_nanos() + 20_000_000_000)
}

/// Publishes states at the rate, numbered, with the wall clock.
#[allow(clippy::cast_precision_loss)] // numbers of messages
fn stream(bus: &str, count: u64) -> Result<(), Failure> {
    let node = node(bus, "arm", "ros")?;
    let mut port = node.sampling(5).open()?;
    let to = port.destination_until("ros", 1, soon())?;
    let began_ns = sys::monotonic_ns();
    for number in 0..count {
        sys::sleep_until(began_ns + number * 1_000_000_000 / RATE);
        let mut value = sys::realtime_ns().to_le_bytes().to_vec();
        value.extend((number as f64).to_le_bytes());
        value.resize(104, 0);
        let _full = port.send(to, Priority::NORMAL, &value);
    }
    Ok(())
}

/// A port that sends and receives, and the way to the other side's.
fn side(bus: &str, name: &str, peer: &str) -> Result<(Node, QueuingPort, Destination), Failure> {
    let node = node(bus, name, peer)?;
    let options = QueuingOptions {
        spin: Spin::from(Duration::ZERO),
        ..QueuingOptions::default()
    };
    let mut port = node.queuing(8).options(&options).open()?;
    let to = port.destination_until(peer, 8, soon())?;
    tautline_state::memory::lock_all()?;
    Ok((node, port, to))
}

#[allow(clippy::cast_precision_loss)] // nanoseconds of a round trip
fn ping(bus: &str) -> Result<(), Failure> {
    let (_node, mut port, to) = side(bus, "ping", "echo")?;
    sys::set_fifo(50)?;
    let mut buffer = [0; 1484];
    let mut trips_ns = Vec::with_capacity(TRIPS.0 + TRIPS.1);
    while trips_ns.len() < TRIPS.0 + TRIPS.1 {
        let began_ns = now().as_nanos();
        let next = tautline::Instant::from_nanos(began_ns + 1_000_000);
        port.send(to, Priority::NORMAL, &[0; 64])?;
        if port.receive_into(&mut buffer, Wait::Until(next))?.is_some() {
            trips_ns.push(now().as_nanos() - began_ns);
        }
        sys::sleep_until(next.as_nanos());
    }
    trips_ns.drain(..TRIPS.0);
    trips_ns.sort_unstable();
    let at_us = |share: usize| trips_ns[trips_ns.len() * share / 100] as f64 / 1e3;
    println!("{} {}", at_us(50), at_us(99));
    Ok(())
}

fn echo(bus: &str) -> Result<(), Failure> {
    let (_node, mut port, to) = side(bus, "echo", "ping")?;
    sys::set_fifo(51)?;
    let mut buffer = [0; 1484];
    loop {
        let forever = tautline::Instant::FAR_FUTURE;
        if let Some(message) = port.receive_into(&mut buffer, Wait::Until(forever))? {
            let _full = port.send(to, message.priority, &buffer[..message.length]);
        }
    }
}
