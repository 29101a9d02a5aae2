//! Two sites and a wide area between them: a craft flies in the cell of one site, and is watched and sent about from
//! the other, by two gateways and a router of Zenoh. Meanwhile the cable to the second site is cut and joined again,
//! and two real-time threads in the first site's cell measure whether they notice anything of it, and a participant of
//! ROS 2 hears joint states of an arm in that cell. At the end, the craft's gateway is killed and the fleet is looked
//! at once more.
//!
//! `make demo-fleet` runs it, as root. Arguments: the command `taut`. The parts are processes of their own: this
//! program again with the name of a role, `taut`, and `taut-gateway`, which lies beside this program's directory.

mod ros;
#[path = "../../gateway/tests/sites/mod.rs"]
mod sites;

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sites::Sites;
use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{Node, NodeConfig, Priority, QueuingPort, SamplingPort, Spin, bus_neighbour, now};
use tautline_state::TemporaryDirectory;
use tautline_testbed::interrupt::interrupted;
use tautline_testbed::sys;
use zenoh::Wait;

type Failure = Box<dyn Error + Send + Sync>;

/// Sites: the craft's and the desk's; 0 is the wide area with the router.
const CRAFT: usize = 1;
const DESK: usize = 2;
/// Way-points that the desk sends, metres east, north and up.
const WAYPOINTS: [[f64; 3]; 6] = [
    [4.0, 0.0, 3.0],
    [4.0, 4.0, 3.0],
    [0.0, 4.0, 4.0],
    [-4.0, 0.0, 3.0],
    [0.0, 0.0, 2.5],
    [2.0, -2.0, 3.0],
];
/// Time between two way-points: the longest way between two takes four seconds.
const WAYPOINT_PERIOD: Duration = Duration::from_secs(6);
/// The cable is cut while the second way-point is under way, for so long.
const CUT_AFTER: Duration = Duration::from_millis(8_500);
const CUT: Duration = Duration::from_secs(3);
/// Time between two lines of the desk.
const LINE_PERIOD: Duration = Duration::from_millis(500);
/// Values in a line that count as a steady stream; the gateway publishes at most 25.
const STEADY_VALUES: u64 = 15;
/// A craft is at its way-point if it is not farther away, metres.
const NEAR: f64 = 1.0;
/// Age from which a value at the desk counts as missing.
const GAP: Duration = Duration::from_millis(250);
/// Round trips of each round in the cell, the time between two, and the rounds of each kind.
const TRIPS: usize = 2_500;
const WARM_UP: usize = 500;
const TRIP_PERIOD_NS: u64 = 1_000_000;
/// Length of a part's start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Highest ratio of the cell's round trips beside and without gateway that the verdict allows.
const RATIO_MAX: f64 = 1.1;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["router", config] => router(config).map(|()| true),
        ["desk", bus] => desk(bus).map(|()| true),
        ["arm", bus] => ros::arm(bus).map(|()| true),
        ["ping", bus] => ping(bus).map(|()| true),
        ["echo", bus] => echo(bus).map(|()| true),
        [taut] => show(Path::new(taut)),
        _ => Err("expected the path of the command taut".into()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo-fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

// The show.

/// Places of everything.
struct Stage {
    sites: Sites,
    files: TemporaryDirectory,
    taut: PathBuf,
    gateway: PathBuf,
}

/// A part of the show; it ends with this.
struct Part(&'static str, Child);

impl Part {
    /// Says if it has ended, which none should.
    fn check(&mut self) -> Result<(), Failure> {
        match self.1.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the {} has ended: {status}", self.0).into()),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _gone = self.1.kill();
        let _gone = self.1.wait();
    }
}

/// A line of the table.
struct Line {
    what: String,
    figure: String,
    wanted: String,
    holds: Option<bool>,
}

fn show(taut: &Path) -> Result<bool, Failure> {
    if !tautline_testbed::hosts::may_create() {
        println!("SKIPPED: making network namespaces needs root");
        return Ok(true);
    }
    let own = std::env::current_exe()?;
    let beside = own.parent().and_then(Path::parent).ok_or("no directory")?;
    let stage = Stage {
        sites: Sites::create(2)?,
        files: TemporaryDirectory::make("taut-demo-fleet")?,
        taut: fs::canonicalize(taut)?,
        gateway: beside.join("taut-gateway"),
    };
    println!("{}\n", machine());
    let mut craft = stage.craft()?;
    let without = stage.trips()?;
    craft.check()?;
    println!("round trips in the cell without gateway: done; the gateways start");
    // Before the desk, whose flight does not wait for it.
    let mut hearing = ros::Hearing::start(&stage);
    stop_if_asked()?;
    if let Err(why) = &hearing {
        println!("no participant of ROS 2: {why}");
    }
    let mut parts = vec![
        stage.role("router", 0, &stage.zenoh(0, "router"))?,
        stage.gateway("gateway of the craft", CRAFT)?,
        stage.gateway("gateway of the desk", DESK)?,
    ];
    let (desk_part, said) = stage.desk()?;
    parts.push(desk_part);
    parts.push(craft);
    let mut told = Vec::new();
    await_state(&said, &mut told, &mut parts)?;
    if let Ok(hearing) = &mut hearing {
        hearing.begin()?;
    }
    let is_over = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        let trips = scope.spawn(|| stage.trips_for_flight(&is_over));
        let flown = fly(&stage, &said, &mut told, &mut parts);
        is_over.store(true, Relaxed);
        let trips = trips.join().expect("no thread panics");
        flown.and(trips)
    })?;
    let heard = hearing.and_then(|mut hearing| hearing.line());
    let fleet_alive = stage.fleet()?;
    drop(parts.remove(1));
    println!("\nthe craft's gateway is killed; the fleet, seen from the desk:");
    thread::sleep(Duration::from_millis(1_500));
    let fleet_after = stage.fleet()?;
    print!("{}", stage.fleet_text()?);
    let mut lines = flight_lines(&told);
    lines.extend(fleet_lines(&fleet_alive, &fleet_after));
    lines.push(heard.unwrap_or_else(|why| ros::missing(&why)));
    lines.extend(trip_lines(&without, &beside));
    Ok(print_table(&lines))
}

/// Waits until the desk hears of the craft.
fn await_state(
    said: &Receiver<Value>,
    told: &mut Vec<Value>,
    parts: &mut [Part],
) -> Result<(), Failure> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        parts.iter_mut().try_for_each(Part::check)?;
        stop_if_asked()?;
        if let Ok(line) = said.recv_timeout(Duration::from_millis(100)) {
            let is_heard = line["values"].as_u64() > Some(0);
            told.push(line);
            if is_heard {
                told.clear();
                return Ok(());
            }
        }
    }
    Err("the desk hears nothing of the craft".into())
}

/// Prints what the desk says, and cuts and joins the cable.
fn fly(
    stage: &Stage,
    said: &Receiver<Value>,
    told: &mut Vec<Value>,
    parts: &mut [Part],
) -> Result<(), Failure> {
    let began = Instant::now();
    let length = WAYPOINT_PERIOD * (WAYPOINTS.len() as u32 + 1);
    let (mut is_cut, mut is_joined) = (false, false);
    while began.elapsed() < length {
        stop_if_asked()?;
        parts.iter_mut().try_for_each(Part::check)?;
        if !is_cut && began.elapsed() >= CUT_AFTER {
            stage.sites.cut(DESK, true)?;
            println!("          the cable to the desk is cut");
            is_cut = true;
        }
        if !is_joined && began.elapsed() >= CUT_AFTER + CUT {
            stage.sites.cut(DESK, false)?;
            println!("          the cable is joined again");
            is_joined = true;
        }
        if let Ok(mut line) = said.recv_timeout(Duration::from_millis(50)) {
            // Before the cut, cut, and some time after which Zenoh has certainly come back.
            line["cut"] = (is_cut && !is_joined).into();
            println!("{}", desk_line(&line));
            told.push(line);
        }
    }
    Ok(())
}

fn desk_line(line: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let position: Vec<String> = line["position"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| format!("{:6.2}", number(one)))
        .collect();
    format!(
        "{:7.1} s  craft at {} m, way-point {}, {:2} values in 0.5 s, age {:.0} ms",
        number(&line["seconds"]),
        position.join(" "),
        line["waypoint"],
        line["values"].as_u64().unwrap_or(0),
        number(&line["age_ms"]),
    )
}

fn stop_if_asked() -> Result<(), Failure> {
    match interrupted() {
        Some(_) => Err("ended by a signal".into()),
        None => Ok(()),
    }
}

impl Stage {
    fn bus(&self, site: usize) -> String {
        self.files
            .path()
            .join(format!("bus-{site}"))
            .display()
            .to_string()
    }

    fn zenoh(&self, site: usize, mode: &str) -> String {
        let (listen, connect) = match site {
            0 => ("\"tcp/0.0.0.0:7447\"", String::new()),
            _ => ("", format!("\"tcp/10.79.{site}.1:7447\"")),
        };
        format!(
            "{{ mode: \"{mode}\", listen: {{ endpoints: [{listen}] }}, connect: {{ endpoints: [{connect}] }}, \
             scouting: {{ multicast: {{ enabled: false }} }} }}"
        )
    }

    fn role(&self, role: &'static str, site: usize, argument: &str) -> Result<Part, Failure> {
        let own = std::env::current_exe()?;
        let mut command = self
            .sites
            .command(site, own.to_str().ok_or("a path in UTF-8")?);
        Ok(Part(role, command.args([role, argument]).spawn()?))
    }

    fn craft(&self) -> Result<Part, Failure> {
        let taut = self.taut.to_str().ok_or("a path in UTF-8")?;
        let mut command = self.sites.command(CRAFT, taut);
        let bus = self.bus(CRAFT);
        let part = command
            .args(["flight", "cell", "--bus", &bus])
            .stdout(Stdio::null())
            .spawn()?;
        let port = Path::new(&bus).join("craft").join("7");
        let began = Instant::now();
        let mut part = Part("craft", part);
        while !port.exists() {
            part.check()?;
            stop_if_asked()?;
            if began.elapsed() > PATIENCE {
                return Err("the craft does not open its ports".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(part)
    }

    fn desk(&self) -> Result<(Part, Receiver<Value>), Failure> {
        let own = std::env::current_exe()?;
        let mut command = self
            .sites
            .command(DESK, own.to_str().ok_or("a path in UTF-8")?);
        let mut child = command
            .args(["desk", &self.bus(DESK)])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let (sender, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_default();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok((Part("desk", child), said))
    }

    /// A gateway of a site, with its files.
    fn gateway(&self, what: &'static str, site: usize) -> Result<Part, Failure> {
        let bus = self.bus(site);
        let (name, peer, ports, entries) = match site {
            CRAFT => ("north", "craft", CRAFT_PORTS, CRAFT_ENTRIES),
            _ => ("desk", "program", DESK_PORTS, DESK_ENTRIES),
        };
        let file = |end: &str| self.files.path().join(format!("{name}{end}"));
        fs::write(
            file(".node.toml"),
            format!(
                "link = \"vbus\"\nbus = \"{bus}\"\nnode = \"gateway\"\n[[neighbour]]\nname = \"{peer}\"\n{ports}"
            ),
        )?;
        fs::write(file(".json5"), self.zenoh(site, "client"))?;
        fs::write(
            file(".toml"),
            format!(
                "name = \"{name}\"\nprefix = \"plant/{name}\"\nnode = \"{name}.node.toml\"\n\
                 [zenoh]\nconfig = \"{name}.json5\"\n[fleet]\nprefix = \"plant/fleet\"\nperiod_ms = 500\n{entries}"
            ),
        )?;
        let program = self.gateway.to_str().ok_or("a path in UTF-8")?;
        let mut command = self.sites.command(site, program);
        let command = command.args(["run", "--config"]).arg(file(".toml"));
        Ok(Part(what, command.stderr(Stdio::null()).spawn()?))
    }

    fn fleet_command(&self) -> Result<Command, Failure> {
        let taut = self.taut.to_str().ok_or("a path in UTF-8")?;
        let mut command = self.sites.command(DESK, taut);
        let path = self.gateway.parent().ok_or("a directory")?;
        command
            .env("PATH", path)
            .args(["status", "--fleet", "--config"])
            .arg(self.files.path().join("desk.toml"));
        Ok(command)
    }

    /// The fleet, as `taut status` shows it at the desk's site.
    fn fleet(&self) -> Result<Value, Failure> {
        let output = self.fleet_command()?.arg("--json").output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn fleet_text(&self) -> Result<String, Failure> {
        Ok(String::from_utf8(self.fleet_command()?.output()?.stdout)?)
    }

    /// p50 and p99 of a round of round trips in the craft's cell, nanoseconds.
    fn trips(&self) -> Result<Trips, Failure> {
        let mut all = Trips::default();
        for _ in 0..3 {
            all.add(self.trip_round()?);
        }
        Ok(all)
    }

    /// The same for as long as the flight takes.
    fn trips_for_flight(&self, is_over: &AtomicBool) -> Result<Trips, Failure> {
        let mut all = Trips::default();
        while !is_over.load(Relaxed) {
            all.add(self.trip_round()?);
        }
        Ok(all)
    }

    fn trip_round(&self) -> Result<(f64, f64), Failure> {
        let own = std::env::current_exe()?;
        let own = own.to_str().ok_or("a path in UTF-8")?;
        let bus = self.bus(CRAFT);
        let mut echo = self.sites.command(CRAFT, own);
        let mut ping = self.sites.command(CRAFT, own);
        let last = thread::available_parallelism().map_or(0, |count| count.get() as u32 - 1);
        sys::pin_command(&mut echo, last);
        sys::pin_command(&mut ping, last);
        let _echo = Part("echo", echo.args(["echo", &bus]).spawn()?);
        let output = ping.args(["ping", &bus]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let figures: Vec<f64> = text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        match figures[..] {
            [p50, p99] => Ok((p50, p99)),
            _ => Err("the round trips were not measured".into()),
        }
    }
}

const CRAFT_PORTS: &str = "[[type]]\nname = \"CraftState\"\nfields = [\"time_us: u64\", \"position: f64[3]\", \
    \"velocity: f64[3]\", \"target: f64[3]\", \"waypoint: u32\", \"refused: u32\", \"phase: u32\", \"alarms: u32\"]\n\
    [[type]]\nname = \"WayPoint\"\nfields = [\"position: f64[3]\", \"number: u64\"]\n\
    [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"CraftState\"\nfollow = [\"craft.5\"]\n\
    refresh_period_us = 200000\n\
    [[port]]\nname = \"waypoints\"\nnumber = 2\nkind = \"queuing\"\nsends = \"WayPoint\"\n";
const CRAFT_ENTRIES: &str = "[[publish]]\nport = \"state\"\nperiod_min_ms = 20\n\
    [[subscribe]]\nkey = \"plant/desk/waypoints\"\nport = \"waypoints\"\nto = [\"craft.7\"]\nrate = 10\n\
    validity_ms = 1000\npriority_max = 3\n";
const DESK_PORTS: &str = "[[type]]\nname = \"CraftState\"\nfields = [\"time_us: u64\", \"position: f64[3]\", \
    \"velocity: f64[3]\", \"target: f64[3]\", \"waypoint: u32\", \"refused: u32\", \"phase: u32\", \"alarms: u32\"]\n\
    [[type]]\nname = \"WayPoint\"\nfields = [\"position: f64[3]\", \"number: u64\"]\n\
    [[port]]\nname = \"waypoints\"\nnumber = 1\nkind = \"queuing\"\ntype = \"WayPoint\"\n\
    [[port]]\nname = \"craft\"\nnumber = 2\nkind = \"sampling\"\nsends = \"CraftState\"\n";
const DESK_ENTRIES: &str = "[[publish]]\nport = \"waypoints\"\nvalidity_ms = 1000\n\
    [[subscribe]]\nkey = \"plant/north/state\"\nport = \"craft\"\nto = [\"program.8\"]\nvalidity_ms = 250\n";

// The table.

/// Round trips of some rounds.
#[derive(Default)]
struct Trips {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Trips {
    fn add(&mut self, (p50, p99): (f64, f64)) {
        self.p50.push(p50);
        self.p99.push(p99);
    }
}

/// Lines about the flight, from what the desk said.
fn flight_lines(told: &[Value]) -> Vec<Line> {
    let whole = told.iter().filter(|line| line["cut"] == false);
    let values: Vec<u64> = whole.filter_map(|line| line["values"].as_u64()).collect();
    // Zenoh comes back some seconds after the cable.
    let steady = values
        .iter()
        .filter(|count| **count >= STEADY_VALUES)
        .count();
    let silent = told.iter().filter(|line| line["values"] == 0).count();
    let (mut reached, mut sent) = (0, 0);
    for number in 1..=WAYPOINTS.len() {
        let of_number = |line: &&Value| line["sent"] == number;
        sent += usize::from(told.iter().any(|line| of_number(&line)));
        let is_near = |line: &Value| {
            let place = line["position"].as_array().map_or(&[][..], |one| one);
            let apart = place.iter().zip(WAYPOINTS[number - 1]).map(|(one, other)| {
                let apart = one.as_f64().unwrap_or(f64::NAN) - other;
                apart * apart
            });
            let apart: f64 = apart.sum();
            apart.sqrt() < NEAR && line["waypoint"] == number
        };
        reached += usize::from(told.iter().filter(of_number).any(is_near));
    }
    let line = |what: &str, figure: String, wanted: String, holds| Line {
        what: what.to_owned(),
        figure,
        wanted,
        holds: Some(holds),
    };
    vec![
        line(
            "way-points sent from the desk that the craft flew to",
            format!("{reached} of {sent}"),
            "all".to_owned(),
            sent == WAYPOINTS.len() && reached == sent,
        ),
        line(
            "half seconds with 15 values or more, while the cable is joined",
            format!("{steady} of {}", values.len()),
            "9 of 10".to_owned(),
            steady * 10 >= values.len() * 9,
        ),
        line(
            "half seconds without a value, about the cut",
            format!("{silent}"),
            "1 or more".to_owned(),
            silent > 0,
        ),
    ]
}

/// Lines about the fleet before and after the craft's gateway was killed.
fn fleet_lines(before: &Value, after: &Value) -> Vec<Line> {
    let of = |picture: &Value, gateway: &str| {
        let cells = picture["cells"].as_array().into_iter().flatten();
        let mut found = cells.filter(|cell| cell["gateway"] == gateway);
        found.next().cloned().unwrap_or_default()
    };
    let presence = |cell: &Value| cell["presence"].as_str().unwrap_or("not there").to_owned();
    let (north, gone) = (of(before, "north"), of(after, "north"));
    let totals = &north["report"]["totals"];
    vec![
        Line {
            what: "the craft's cell in the fleet; after its gateway was killed".to_owned(),
            figure: format!("{}; {}", presence(&north), presence(&gone)),
            wanted: "alive; vanished".to_owned(),
            holds: Some(presence(&north) == "alive" && presence(&gone) == "vanished"),
        },
        Line {
            what: "deadlines that the craft's task missed, of its jobs".to_owned(),
            figure: format!("{} of {}", totals["missed"], totals["jobs"]),
            wanted: "seen".to_owned(),
            holds: Some(totals["jobs"].as_u64() > Some(0)),
        },
    ]
}

/// Lines about the cell's own round trips.
fn trip_lines(without: &Trips, beside: &Trips) -> Vec<Line> {
    let median = |all: &[f64]| {
        let mut all = all.to_vec();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2] / 1e3
    };
    let line = |name: &str, without: &[f64], beside: &[f64], is_judged: bool| {
        let (without, beside) = (median(without), median(beside));
        let ratio = beside / without;
        Line {
            what: format!("round trip in the cell, {name}: without, beside, ratio"),
            figure: format!("{without:.1} us, {beside:.1} us, {ratio:.2}"),
            wanted: if is_judged {
                format!("at most {RATIO_MAX}")
            } else {
                "–".to_owned()
            },
            holds: is_judged.then_some(ratio <= RATIO_MAX),
        }
    };
    vec![
        line("p50", &without.p50, &beside.p50, false),
        line("p99", &without.p99, &beside.p99, true),
    ]
}

/// Prints the table and the verdict; returns whether all holds.
fn print_table(lines: &[Line]) -> bool {
    println!("\n| | found | wanted | |\n|---|---|---|---|");
    for line in lines {
        let holds = match line.holds {
            None => "",
            Some(true) => "holds",
            Some(false) => "MISSED",
        };
        println!(
            "| {} | {} | {} | {holds} |",
            line.what, line.figure, line.wanted
        );
    }
    let missed = lines
        .iter()
        .filter(|line| line.holds == Some(false))
        .count();
    match missed {
        0 => println!(
            "\nverdict: the craft was flown from another site, and its cell did not notice"
        ),
        count => println!("\nverdict: {count} of the lines above missed what is wanted"),
    }
    missed == 0
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = read("/proc/loadavg");
    format!(
        "{} CPUs, {}, Linux {}, load average {}",
        thread::available_parallelism().map_or(0, usize::from),
        model.map_or("unknown", |(_, model)| model),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or_default(),
    )
}

// The roles.

fn router(config: &str) -> Result<(), Failure> {
    let _session = zenoh::open(zenoh::Config::from_json5(config)?).wait()?;
    loop {
        thread::park();
    }
}

/// The desk: hears the craft's state, sends way-points, and says once in a while what it heard.
fn desk(bus: &str) -> Result<(), Failure> {
    let config = NodeConfig::vbus(BusConfig::new(bus, "program".parse()?));
    let node = Node::open(config.with_neighbour(bus_neighbour("gateway".parse()?))?)?;
    let mut state: SamplingPort = node.sampling(8).open()?;
    let mut waypoints: QueuingPort = node.queuing(6).open()?;
    let patience = now() + PATIENCE;
    let to = waypoints.destination_until("gateway", 1, patience)?;
    let mut buffer = vec![0; state.value_bytes_max()];
    let (mut values, mut sent) = (0_u64, 0_usize);
    let (mut position, mut waypoint, mut time_us) = ([0.0; 3], 0, 0);
    let mut heard: Option<Instant> = None;
    let mut began: Option<Instant> = None;
    let mut next_line = Instant::now() + LINE_PERIOD;
    let mut pending: Option<(usize, Instant)> = None;
    loop {
        let soon = now() + Duration::from_millis(20);
        if let Some(sample) = state.next_into(&mut buffer, tautline::Wait::Until(soon))? {
            let bytes = &buffer[..sample.length];
            let double = |at: usize| {
                let found = bytes.get(at..at + 8).and_then(|one| one.try_into().ok());
                found.map_or(f64::NAN, f64::from_le_bytes)
            };
            let word = |at: usize| {
                let found = bytes.get(at..at + 4).and_then(|one| one.try_into().ok());
                found.map_or(0, u32::from_le_bytes)
            };
            time_us = bytes
                .first_chunk()
                .map_or(0, |one| u64::from_le_bytes(*one));
            position = [double(8), double(16), double(24)];
            (waypoint, values, heard) = (word(80), values + 1, Some(Instant::now()));
            // The craft waits in the air: the flight begins.
            if began.is_none() && word(88) == 3 {
                began = Some(Instant::now());
            }
        }
        let elapsed = began.map_or(Duration::ZERO, |began| began.elapsed());
        if began.is_some() && sent < WAYPOINTS.len() && elapsed >= WAYPOINT_PERIOD * sent as u32 {
            sent += 1;
            pending = Some((sent, Instant::now()));
        }
        // Sent again until the craft says that it has taken it: a cut cable loses what was under way.
        if let Some((number, due)) = pending {
            if waypoint as usize == number {
                pending = None;
            } else if due <= Instant::now() {
                let mut message = Vec::with_capacity(32);
                WAYPOINTS[number - 1]
                    .iter()
                    .for_each(|one| message.extend(one.to_le_bytes()));
                message.extend((number as u64).to_le_bytes());
                let _full = waypoints.send(to, Priority::NORMAL, &message);
                pending = Some((number, Instant::now() + Duration::from_millis(500)));
            }
        }
        if Instant::now() >= next_line {
            next_line += LINE_PERIOD;
            let age = heard.map_or(GAP, |heard| heard.elapsed());
            let line = json!({
                "seconds": time_us as f64 / 1e6,
                "position": position,
                "waypoint": waypoint,
                "sent": sent,
                "values": values,
                "age_ms": age.as_millis() as u64,
            });
            // Nobody reads any more: the show is over.
            if writeln!(std::io::stdout().lock(), "{line}").is_err() {
                return Ok(());
            }
            values = 0;
        }
    }
}

/// Two real-time threads of the cell that sleep, and answer each other.
fn open(bus: &str, name: &str, peer: &str) -> Result<(Node, QueuingPort), Failure> {
    let config = NodeConfig::vbus(BusConfig::new(bus, name.parse()?));
    let node = Node::open(config.with_neighbour(bus_neighbour(peer.parse()?))?)?;
    let options = QueuingOptions {
        spin: Spin::from(Duration::ZERO),
        ..QueuingOptions::default()
    };
    let port = node.queuing(8).options(&options).open()?;
    Ok((node, port))
}

fn ping(bus: &str) -> Result<(), Failure> {
    let (_node, mut port) = open(bus, "ping", "echo")?;
    let to = port.destination_until("echo", 8, now() + PATIENCE)?;
    tautline_state::memory::lock_all()?;
    sys::set_fifo(50)?;
    let mut trips = Vec::with_capacity(WARM_UP + TRIPS);
    let mut buffer = [0; 1484];
    while trips.len() < WARM_UP + TRIPS {
        let sent = now();
        let _full = port.send(to, Priority::NORMAL, &sent.as_nanos().to_le_bytes());
        let next = tautline::Instant::from_nanos(sent.as_nanos() + TRIP_PERIOD_NS);
        while let Some(message) = port.receive_into(&mut buffer, tautline::Wait::Until(next))? {
            let sent = buffer[..message.length]
                .first_chunk()
                .map_or(0, |one| u64::from_le_bytes(*one));
            trips.push(now().as_nanos().saturating_sub(sent));
        }
    }
    trips.drain(..WARM_UP);
    trips.sort_unstable();
    let at = |share: usize| trips[trips.len() * share / 100];
    println!("{} {}", at(50), at(99));
    Ok(())
}

fn echo(bus: &str) -> Result<(), Failure> {
    let (_node, mut port) = open(bus, "echo", "ping")?;
    let to = port.destination_until("ping", 8, now() + PATIENCE)?;
    tautline_state::memory::lock_all()?;
    sys::set_fifo(51)?;
    let mut buffer = [0; 1484];
    loop {
        let message = port.receive_into(&mut buffer, tautline::Wait::Forever)?;
        if let Some(message) = message {
            let _full = port.send(to, message.priority, &buffer[..message.length]);
        }
    }
}
