//! A ROS 2 participant that nobody here wrote, one cable away from the craft's site: Cyclone DDS from PyPI (the
//! participant of `ros/tests`). It hears the joint states of an arm in the craft's cell, which `taut-ros` publishes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tautline::config::BusConfig;
use tautline::{Node, NodeConfig, Priority, SamplingPort, bus_neighbour, now};
use tautline_testbed::{python, sys};

use super::{CRAFT, Failure, Line, PATIENCE, Part, Sites, Stage, stop_if_asked};

/// Packages of the participant.
const PACKAGES: [&str; 1] = ["cyclonedds==11.0.1"];
/// Topic as DDS has it.
const TOPIC: &str = "rt/joint_states";
/// Joint states a second.
const RATE: u64 = 1_000;
/// Share of them that must be heard, percent.
const HEARD_PERCENT: f64 = 95.0;

const NODE: &str = "[[neighbour]]\nname = \"arm\"\n[[type]]\nname = \"State\"\n\
    fields = [\"time_ns: u64\", \"position: f64[6]\", \"velocity: f64[6]\"]\n\
    [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\n";
const ENTRIES: &str = "name = \"arm\"\nnode = \"ros.node.toml\"\n[[publish]]\nport = \"state\"\n\
    topic = \"/joint_states\"\nmessage = \"sensor_msgs/msg/JointState\"\n\
    fields = { \"header.stamp\" = \"time_ns\", position = \"position\", velocity = \"velocity\" }\n\
    constants = { name = [\"joint0\", \"joint1\", \"joint2\", \"joint3\", \"joint4\", \"joint5\"] }\n";

/// The participant while it hears, and the parts that it hears of.
pub(crate) struct Hearing {
    parts: [Part; 3],
    commands: ChildStdin,
    said: Receiver<Value>,
    began: Instant,
}

impl Hearing {
    /// Starts all parts, and waits until joint states are heard.
    ///
    /// # Errors
    /// The thing that is missing, or the part that has failed.
    pub(crate) fn start(stage: &Stage) -> Result<Self, Failure> {
        let beside = stage.gateway.parent().ok_or("no directory")?;
        let program = beside.join("taut-ros");
        if !program.exists() {
            return Err("taut-ros is not built: `make ros`".into());
        }
        let directory = beside.parent().ok_or("no directory")?.join("tmp");
        let python = python::environment(&directory, &PACKAGES)
            .map_err(|why| format!("no Cyclone DDS: {why}"))?;
        let ros = publisher(stage, &program)?;
        let arm = stage.role("arm", CRAFT, &stage.bus(CRAFT))?;
        let (peer, commands, said) = participant(stage, &python)?;
        let mut hearing = Self {
            parts: [ros, arm, peer],
            commands,
            said,
            began: Instant::now(),
        };
        let options = json!({ "verbose": false });
        hearing.tell(&json!(["hear", TOPIC, "JointState", options]))?;
        let began = Instant::now();
        while hearing.counts()?["count"].as_u64() == Some(0) {
            if began.elapsed() > PATIENCE {
                return Err("Cyclone DDS hears nothing of the arm".into());
            }
            thread::sleep(Duration::from_millis(100));
        }
        hearing.began = Instant::now();
        Ok(hearing)
    }

    /// Forgets what was heard until now.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        self.counts()?;
        self.began = Instant::now();
        Ok(())
    }

    /// The line about what was heard since.
    pub(crate) fn line(&mut self) -> Result<Line, Failure> {
        let counts = self.counts()?;
        let number = |name: &str| counts[name].as_f64().unwrap_or(f64::NAN);
        let rate = number("count") / self.began.elapsed().as_secs_f64();
        let (p50_us, p99_us) = (number("p50_us"), number("p99_us"));
        Ok(Line {
            figure: format!(
                "{rate:.0} a second, {:.0} missing, {p50_us:.0} us, {p99_us:.0} us",
                number("missing")
            ),
            wanted: format!("{HEARD_PERCENT:.0} % of {RATE} a second"),
            holds: Some(rate >= RATE as f64 * HEARD_PERCENT / 100.0),
            ..what()
        })
    }

    fn tell(&mut self, command: &Value) -> Result<(), Failure> {
        writeln!(self.commands, "{command}")?;
        Ok(())
    }

    fn counts(&mut self) -> Result<Value, Failure> {
        self.tell(&json!(["count", TOPIC]))?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            self.parts.iter_mut().try_for_each(Part::check)?;
            stop_if_asked()?;
            match self.said.recv_timeout(Duration::from_millis(100)) {
                Ok(said) if said["counted"] == TOPIC => return Ok(said),
                _ => {}
            }
        }
        Err("Cyclone DDS does not answer".into())
    }
}

/// The line if nothing was heard, with the reason.
pub(crate) fn missing(why: &Failure) -> Line {
    Line {
        figure: why.to_string(),
        wanted: "–".to_owned(),
        holds: None,
        ..what()
    }
}

fn what() -> Line {
    Line {
        what: "joint states that Cyclone DDS heard during the flight; way p50, p99".to_owned(),
        figure: String::new(),
        wanted: String::new(),
        holds: None,
    }
}

/// Starts `taut-ros` at the craft's site.
fn publisher(stage: &Stage, program: &Path) -> Result<Part, Failure> {
    let file = |name: &str| stage.files.path().join(name);
    let bus = stage.bus(CRAFT);
    let head = format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"ros\"\n");
    fs::write(file("ros.node.toml"), head + NODE)?;
    fs::write(file("ros.toml"), ENTRIES)?;
    let program = program.to_str().ok_or("a path in UTF-8")?;
    let mut command = stage.sites.command(CRAFT, program);
    let command = command.args(["run", "--config"]).arg(file("ros.toml"));
    Ok(Part("taut-ros", command.stderr(Stdio::null()).spawn()?))
}

/// Starts the participant where the craft's cable ends.
fn participant(
    stage: &Stage,
    python: &Path,
) -> Result<(Part, ChildStdin, Receiver<Value>), Failure> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ros/tests/peer.py");
    // That place has two cables.
    let interfaces = format!("<NetworkInterface address=\"{}\"/>", Sites::address(0));
    let general = format!("<General><Interfaces>{interfaces}</Interfaces></General>");
    let mut command: Command = stage
        .sites
        .command(0, python.to_str().ok_or("a path in UTF-8")?);
    command
        .env(
            "CYCLONEDDS_URI",
            format!("<CycloneDDS><Domain>{general}</Domain></CycloneDDS>"),
        )
        .arg(script)
        .arg("0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let (output, commands) = (child.stdout.take(), child.stdin.take());
    let (sender, said) = channel();
    let output = BufReader::new(output.ok_or("no output")?);
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or_default();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let part = Part("participant of ROS 2", child);
    Ok((part, commands.ok_or("no input")?, said))
}

/// The arm: publishes its joints, numbered, with the wall clock.
pub(crate) fn arm(bus: &str) -> Result<(), Failure> {
    let config = NodeConfig::vbus(BusConfig::new(bus, "arm".parse()?));
    let node = Node::open(config.with_neighbour(bus_neighbour("ros".parse()?))?)?;
    let mut port: SamplingPort = node.sampling(5).open()?;
    let to = port.destination_until("ros", 1, now() + PATIENCE)?;
    let began_ns = sys::monotonic_ns();
    for number in 0_u64.. {
        sys::sleep_until(began_ns + number * 1_000_000_000 / RATE);
        let mut value = sys::realtime_ns().to_le_bytes().to_vec();
        value.extend((number as f64).to_le_bytes());
        value.resize(104, 0);
        let _full = port.send(to, Priority::NORMAL, &value);
    }
    Ok(())
}
