//! The gateway's speed, beside plain Zenoh between the same two hosts, and what the cell notices of it. Prints a table.
//!
//! `make bench-gateway` runs it, as root. The measured sides are processes of their own: this program again, with the
//! name of a role.

#[path = "../src/threads.rs"]
#[allow(dead_code)] // a program chooses for itself
mod threads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{Node, NodeConfig, Priority, QueuingPort, Spin, bus_neighbour, now};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};
use tautline_testbed::sys;
use zenoh::Wait;
use zenoh::qos::CongestionControl;

/// Bytes of each message.
const MESSAGE_BYTES: usize = 64;
/// Round trips of a round.
const TRIPS: usize = 1_000;
/// Rounds of round trips. Each has all ways in turn, and a ratio compares two ways of one round: a shared machine is
/// twice as slow some minutes later.
const TRIP_ROUNDS: usize = 11;
/// Rounds of the floods, and of the cell's own round trips.
const ROUNDS: usize = 5;
/// Round trips before those that count: sides start, lock their memory and connect.
const WARM_UP: usize = 500;
/// Time between two round trips.
const PERIOD: Duration = Duration::from_millis(1);
/// Length of a flood.
const FLOOD: Duration = Duration::from_secs(3);
/// Length of a round of the cell's own round trips.
const CELL_TRIPS: usize = 4_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure(true),
        ["cell"] => measure(false),
        ["zenoh-ping", config] => zenoh_ping(config),
        ["zenoh-echo", config] => zenoh_echo(config),
        ["zenoh-ping-waiting", config] => zenoh_ping_waiting(config),
        ["zenoh-echo-waiting", config] => zenoh_echo_waiting(config),
        ["zenoh-flood", config] => zenoh_flood(config, true),
        ["zenoh-flood-in-batches", config] => zenoh_flood(config, false),
        ["zenoh-count", config] => zenoh_count(config),
        ["port-ping", bus] => port_ping(bus),
        ["port-echo", bus] => port_echo(bus),
        ["port-flood", bus] => port_flood(bus),
        ["port-count", bus] => port_count(bus),
        ["port-sink", bus] => port_sink(bus),
        ["cell-ping", bus] => cell_ping(bus),
        ["cell-echo", bus] => cell_echo(bus),
        _ => Err(format!("unknown role: {words:?}").into()),
    }
}

// The table.

struct Bed {
    hosts: Hosts,
    files: TemporaryDirectory,
    gateway: PathBuf,
}

/// Measures both ways, unless only the cell is asked for, and the cell.
fn measure(ways: bool) -> Result<(), Failure> {
    let bed = Bed {
        hosts: Hosts::create(&HostsOptions::default())?,
        files: TemporaryDirectory::make("taut-gateway-speed")?,
        gateway: Path::new(env!("CARGO_BIN_EXE_taut-gateway")).to_owned(),
    };
    println!("{}", machine());
    if ways {
        both_ways(&bed)?;
    }
    let (mut without, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(bed.cell(false)?);
        beside.push(bed.cell(true)?);
    }
    println!("\nround trips in the cell, SCHED_FIFO on CPU 1; gateways and flood on CPU 0\n");
    println!("| | without | beside | ratio | wanted |\n|---|---|---|---|---|");
    line("p50, us", &without, &beside, 0, 1e3, "–");
    line("p99, us", &without, &beside, 1, 1e3, "at most 1.1");
    Ok(())
}

/// A way between the two hosts' programs.
struct Way {
    name: &'static str,
    /// Roles of a round trip, of which the first measures, and of a flood.
    trip: Option<(&'static str, &'static str)>,
    flood: Option<(&'static str, &'static str)>,
    /// Zenoh's threads, if not those that it has by default: `ZENOH_RUNTIME`.
    threads: Option<&'static str>,
    parts: Parts,
}

/// Parts of a way.
#[derive(Clone, Copy)]
enum Parts {
    /// Two programs with Zenoh.
    Zenoh,
    /// Two programs with ports, and a gateway for each.
    Gateways,
    /// Two `ddsperf` of Cyclone DDS, over UDP; roles are their arguments.
    Cyclone,
}

/// The first is the one that the others are compared with.
const WAYS: [Way; 7] = [
    Way {
        name: "plain Zenoh, callbacks",
        trip: Some(("zenoh-ping", "zenoh-echo")),
        flood: Some(("zenoh-count", "zenoh-flood")),
        threads: None,
        parts: Parts::Zenoh,
    },
    Way {
        name: "plain Zenoh, programs that wait",
        trip: Some(("zenoh-ping-waiting", "zenoh-echo-waiting")),
        flood: None,
        threads: None,
        parts: Parts::Zenoh,
    },
    Way {
        name: "plain Zenoh, callbacks, a gateway's threads",
        trip: Some(("zenoh-ping", "zenoh-echo")),
        flood: Some(("zenoh-count", "zenoh-flood")),
        threads: Some(threads::GROUPS),
        parts: Parts::Zenoh,
    },
    Way {
        name: "plain Zenoh, callbacks, in batches",
        trip: None,
        flood: Some(("zenoh-count", "zenoh-flood-in-batches")),
        threads: None,
        parts: Parts::Zenoh,
    },
    Way {
        name: "two gateways, Zenoh's own threads",
        trip: Some(("port-ping", "port-echo")),
        flood: Some(("port-count", "port-flood")),
        threads: Some("()"),
        parts: Parts::Gateways,
    },
    Way {
        name: "two gateways",
        trip: Some(("port-ping", "port-echo")),
        flood: Some(("port-count", "port-flood")),
        threads: None,
        parts: Parts::Gateways,
    },
    Way {
        name: "Cyclone DDS (ddsperf)",
        trip: Some(("-D 4 ping 1kHz size 64", "pong")),
        flood: Some(("-D 5 sub", "pub size 64")),
        threads: None,
        parts: Parts::Cyclone,
    },
];
/// Figures of all rounds of a way.
type Rounds = Vec<Vec<f64>>;

/// The ways whose programs are there.
fn ways() -> &'static [Way] {
    let has_cyclone = Command::new("ddsperf").arg("help").output().is_ok();
    if has_cyclone {
        return &WAYS;
    }
    println!("Cyclone DDS is left out: ddsperf is missing (Debian: cyclonedds-tools)\n");
    &WAYS[..WAYS.len() - 1]
}

/// Plain Zenoh beside the way through two gateways.
fn both_ways(bed: &Bed) -> Result<(), Failure> {
    println!(
        "two hosts, {MESSAGE_BYTES} bytes, TCP, express; median (range) of {TRIP_ROUNDS} rounds of {TRIPS} round trips, \
         all ways in turn; ratio to the first way of the same round, its median and quartiles\n"
    );
    let ways = ways();
    println!("| | p50, us | ratio | p99, us | ratio |\n|---|---|---|---|---|");
    let trips = bed.rounds(ways, TRIP_ROUNDS, |way| way.trip)?;
    let measured = ways.iter().zip(&trips);
    for (way, rounds) in measured.filter(|(_, rounds)| !rounds.is_empty()) {
        let [p50, p99] = [0, 1].map(|figure| cells(&trips[0], rounds, figure, 1e3));
        println!("| {} | {p50} | {p99} |", way.name);
    }
    println!("\nwanted: p50 and p99 of two gateways at most 1.2 of the first line\n");
    println!("| | messages a second | ratio |\n|---|---|---|");
    let floods = bed.rounds(ways, ROUNDS, |way| way.flood)?;
    let measured = ways.iter().zip(&floods);
    for (way, rounds) in measured.filter(|(_, rounds)| !rounds.is_empty()) {
        println!("| {} | {} |", way.name, cells(&floods[0], rounds, 0, 1.0));
    }
    println!("\nwanted: two gateways at least 0.8 of the first line");
    Ok(())
}

/// Median and range of a figure, and its ratio to that of the first way in the same rounds.
fn cells(first: &Rounds, rounds: &Rounds, figure: usize, unit: f64) -> String {
    let figures = sorted(rounds.iter().map(|round| round[figure] / unit));
    let pairs = rounds.iter().zip(first);
    let ratios = sorted(pairs.map(|(round, first)| round[figure] / first[figure]));
    let last = ratios.len() - 1;
    format!(
        "{:.1} ({:.1}–{:.1}) | {:.2} ({:.2}–{:.2})",
        figures[last / 2],
        figures[0],
        figures[last],
        ratios[last / 2],
        ratios[last / 4],
        ratios[last - last / 4],
    )
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = figures.collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Medians and ranges of one figure of the rounds, and the ratio of the medians.
fn line(
    name: &str,
    first: &[Vec<f64>],
    second: &[Vec<f64>],
    figure: usize,
    unit: f64,
    wanted: &str,
) {
    let [first, second] = [first, second].map(|rounds| {
        let all = sorted(rounds.iter().map(|round| round[figure] / unit));
        [all[all.len() / 2], all[0], all[all.len() - 1]]
    });
    let text = |[median, least, most]: [f64; 3]| format!("{median:.1} ({least:.1}–{most:.1})");
    println!(
        "| {name} | {} | {} | {:.2} | {wanted} |",
        text(first),
        text(second),
        second[0] / first[0]
    );
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let model = model.map_or("unknown", |(_, model)| model);
    format!("{count} CPUs, {model}, Linux {}", kernel.trim())
}

impl Bed {
    fn zenoh(&self, host: Host) -> String {
        let end = |host| format!("\"tcp/{}:7447\"", self.hosts.end(host, 0).address());
        let (listen, connect) = match host {
            Host::A => (end(Host::A), String::new()),
            Host::B => (String::new(), end(Host::A)),
        };
        format!(
            "{{ mode: \"peer\", listen: {{ endpoints: [{listen}] }}, connect: {{ endpoints: [{connect}] }}, \
             scouting: {{ multicast: {{ enabled: false }} }} }}"
        )
    }

    fn role(&self, host: Host, role: &str, argument: &str) -> Result<Command, Failure> {
        let own = std::env::current_exe()?;
        let mut command = self
            .hosts
            .command(host, own.to_str().ok_or("a path in UTF-8")?);
        command.args([role, argument]).stdout(Stdio::piped());
        Ok(command)
    }

    /// Rounds of all ways in turn, as far as they have such roles.
    fn rounds(
        &self,
        ways: &[Way],
        count: usize,
        roles: impl Fn(&Way) -> Option<(&'static str, &'static str)>,
    ) -> Result<Vec<Rounds>, Failure> {
        let mut all = vec![Rounds::new(); ways.len()];
        for _ in 0..count {
            for (way, rounds) in ways.iter().zip(&mut all) {
                if let Some(roles) = roles(way) {
                    rounds.push(self.round(way, roles)?);
                }
            }
        }
        Ok(all)
    }

    /// A round of a way. The first role measures, at A.
    fn round(&self, way: &Way, roles: (&str, &str)) -> Result<Vec<f64>, Failure> {
        match way.parts {
            Parts::Zenoh => self.plain(way, roles),
            Parts::Gateways => self.through(way, roles),
            Parts::Cyclone => self.cyclone(roles),
        }
    }

    /// Cyclone DDS on the same path: medians of the figures of each second but the first.
    fn cyclone(&self, (measuring, other): (&str, &str)) -> Result<Vec<f64>, Failure> {
        let start = |host, words: &str, output: Stdio| {
            let mut command = self.hosts.command(host, "ddsperf");
            let command = command.args(words.split(' ')).stderr(Stdio::null());
            command.stdout(output).spawn()
        };
        let mut other = start(Host::B, other, Stdio::null())?;
        let output = start(Host::A, measuring, Stdio::piped())?.wait_with_output();
        let _gone = other.kill();
        let _gone = other.wait();
        let text = String::from_utf8(output?.stdout)?;
        // It halves round trips.
        let wanted: &[(&str, &str, f64)] = match measuring.contains("ping") {
            true => &[("50%", "us", 2e3), ("99%", "us", 2e3)],
            false => &[("rate", "", 1e3)],
        };
        let figures = wanted.iter().map(|(name, unit, factor)| {
            let after = text.lines().filter_map(|line| {
                let mut words = line.split_whitespace().skip_while(|word| word != name);
                words.nth(1)?.strip_suffix(unit)?.parse::<f64>().ok()
            });
            let all = sorted(after.skip(1).map(|figure| figure * factor));
            all.get(all.len() / 2).copied()
        });
        let figures: Option<Vec<f64>> = figures.collect();
        figures.ok_or_else(|| format!("ddsperf did not measure: {text}").into())
    }

    fn plain(&self, way: &Way, (measuring, other): (&str, &str)) -> Result<Vec<f64>, Failure> {
        let start = |host, role| -> Result<Child, Failure> {
            let mut command = self.role(host, role, &self.zenoh(host))?;
            Ok(with_threads(&mut command, way).spawn()?)
        };
        let measuring = start(Host::A, measuring)?;
        figures(measuring, vec![start(Host::B, other)?])
    }

    fn through(&self, way: &Way, (measuring, other): (&str, &str)) -> Result<Vec<f64>, Failure> {
        let (near, far) = (self.bus()?, self.bus()?);
        let mut others = Vec::new();
        for (host, bus, site, other) in [(Host::A, &near, "a", "b"), (Host::B, &far, "b", "a")] {
            let mut command = self.gateway(host, bus, site, other)?;
            others.push(with_threads(&mut command, way).spawn()?);
        }
        let measuring = self.role(Host::A, measuring, &near)?.spawn()?;
        others.push(self.role(Host::B, other, &far)?.spawn()?);
        figures(measuring, others)
    }

    fn cell(&self, beside: bool) -> Result<Vec<f64>, Failure> {
        let (near, far, own) = (self.bus()?, self.bus()?, self.bus()?);
        let mut others = Vec::new();
        if beside {
            for mut command in [
                self.gateway(Host::A, &near, "a", "b")?,
                self.gateway(Host::B, &far, "b", "a")?,
                self.role(Host::A, "port-sink", &near)?,
                self.role(Host::B, "port-flood", &far)?,
            ] {
                sys::pin_command(&mut command, 0);
                others.push(command.spawn()?);
            }
            thread::sleep(Duration::from_secs(1));
        }
        let mut echo = self.role(Host::A, "cell-echo", &own)?;
        let mut ping = self.role(Host::A, "cell-ping", &own)?;
        sys::pin_command(&mut echo, 1);
        sys::pin_command(&mut ping, 1);
        others.push(echo.spawn()?);
        figures(ping.spawn()?, others)
    }

    /// A new bus.
    fn bus(&self) -> Result<String, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        Ok(self
            .files
            .path()
            .join(format!("bus-{number}"))
            .display()
            .to_string())
    }

    fn gateway(&self, host: Host, bus: &str, site: &str, other: &str) -> Result<Command, Failure> {
        let name = Path::new(bus)
            .file_name()
            .ok_or("a name")?
            .display()
            .to_string();
        let file = |end: &str| self.files.path().join(format!("{name}.{end}"));
        fs::write(
            file("node.toml"),
            format!(
                "link = \"vbus\"\nbus = \"{bus}\"\nnode = \"gateway\"\n[[neighbour]]\nname = \"program\"\n\
                 [[port]]\nname = \"out\"\nnumber = 2\nkind = \"queuing\"\ndepth = 1024\n\
                 [[port]]\nname = \"in\"\nnumber = 3\nkind = \"queuing\"\n"
            ),
        )?;
        fs::write(file("json5"), self.zenoh(host))?;
        fs::write(
            file("toml"),
            format!(
                "name = \"{site}\"\nprefix = \"site/{site}\"\nnode = \"{name}.node.toml\"\n\
                 [zenoh]\nconfig = \"{name}.json5\"\n[[publish]]\nport = \"out\"\nkey = \"messages\"\n\
                 [[subscribe]]\nkey = \"site/{other}/messages\"\nport = \"in\"\nto = [\"program.8\"]\n\
                 rate = 10000000\nburst = 1000000\nvalidity_ms = 60000\npriority_max = 7\n"
            ),
        )?;
        let mut command = self
            .hosts
            .command(host, self.gateway.to_str().ok_or("a path in UTF-8")?);
        command
            .args(["run", "--config"])
            .arg(file("toml"))
            .stderr(Stdio::null());
        Ok(command)
    }
}

fn with_threads<'c>(command: &'c mut Command, way: &Way) -> &'c mut Command {
    match way.threads {
        Some(threads) => command.env("ZENOH_RUNTIME", threads),
        None => command.env_remove("ZENOH_RUNTIME"),
    }
}

/// Waits for the one who measures, ends the others.
fn figures(measuring: Child, others: Vec<Child>) -> Result<Vec<f64>, Failure> {
    let output = measuring.wait_with_output();
    for mut other in others {
        let _gone = other.kill();
        let _gone = other.wait();
    }
    let text = String::from_utf8(output?.stdout)?;
    let figures = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<Vec<f64>, _>>()?;
    (!figures.is_empty())
        .then_some(figures)
        .ok_or_else(|| "a side did not measure".into())
}

/// Prints p50 and p99 of all but the first trips.
fn print_trips(mut trips: Vec<u64>) {
    trips.drain(..WARM_UP);
    trips.sort_unstable();
    let at = |share: usize| trips[trips.len() * share / 100];
    println!("{} {}", at(50), at(99));
}

// Plain Zenoh.

fn session(config: &str) -> Result<zenoh::Session, Failure> {
    zenoh::open(zenoh::Config::from_json5(config)?).wait()
}

fn publisher(
    session: &zenoh::Session,
    key: &'static str,
    express: bool,
) -> Result<zenoh::pubsub::Publisher<'static>, Failure> {
    session
        .declare_publisher(key)
        .congestion_control(CongestionControl::Drop)
        .express(express)
        .wait()
}

fn stamped() -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&now().as_nanos().to_le_bytes());
    message
}

fn age_of(message: &[u8]) -> u64 {
    let sent = message[..8].try_into().map_or(0, u64::from_le_bytes);
    now().as_nanos().saturating_sub(sent)
}

fn zenoh_ping(config: &str) -> Result<(), Failure> {
    let session = session(config)?;
    let trips = Arc::new(Mutex::new(Vec::with_capacity(WARM_UP + TRIPS)));
    let noted = Arc::clone(&trips);
    let _pong = session
        .declare_subscriber("pong")
        .callback(move |sample| {
            let mut trips = noted.lock().expect("nobody panics");
            if trips.len() < WARM_UP + TRIPS {
                trips.push(age_of(&sample.payload().to_bytes()));
            }
        })
        .wait()?;
    let ping = publisher(&session, "ping", true)?;
    while trips.lock().expect("nobody panics").len() < WARM_UP + TRIPS {
        ping.put(stamped()).wait()?;
        thread::sleep(PERIOD);
    }
    print_trips(std::mem::take(&mut trips.lock().expect("nobody panics")));
    Ok(())
}

fn zenoh_echo(config: &str) -> Result<(), Failure> {
    let session = session(config)?;
    let pong = publisher(&session, "pong", true)?;
    let _ping = session
        .declare_subscriber("ping")
        .callback(move |sample| {
            let _dropped = pong.put(sample.payload().clone()).wait();
        })
        .wait()?;
    forever()
}

/// The same by a program that waits for what comes on a thread of its own, as programs with ports do.
fn zenoh_ping_waiting(config: &str) -> Result<(), Failure> {
    let session = session(config)?;
    let mut trips = Vec::with_capacity(WARM_UP + TRIPS);
    let pong = session.declare_subscriber("pong").wait()?;
    let ping = publisher(&session, "ping", true)?;
    while trips.len() < WARM_UP + TRIPS {
        let next = Instant::now() + PERIOD;
        ping.put(stamped()).wait()?;
        while let Ok(Some(sample)) = pong.recv_deadline(next) {
            trips.push(age_of(&sample.payload().to_bytes()));
        }
    }
    print_trips(trips);
    Ok(())
}

fn zenoh_echo_waiting(config: &str) -> Result<(), Failure> {
    let session = session(config)?;
    let pong = publisher(&session, "pong", true)?;
    let ping = session.declare_subscriber("ping").wait()?;
    loop {
        let sample = ping.recv()?;
        let _dropped = pong.put(sample.payload().clone()).wait();
    }
}

fn zenoh_flood(config: &str, express: bool) -> Result<(), Failure> {
    let session = session(config)?;
    let flood = publisher(&session, "flood", express)?;
    loop {
        flood.put([0; MESSAGE_BYTES]).wait()?;
    }
}

fn zenoh_count(config: &str) -> Result<(), Failure> {
    let session = session(config)?;
    let count = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&count);
    let _flood = session
        .declare_subscriber("flood")
        .callback(move |_| {
            counting.fetch_add(1, Relaxed);
        })
        .wait()?;
    while count.load(Relaxed) == 0 {
        thread::sleep(PERIOD);
    }
    thread::sleep(Duration::from_millis(500));
    let (began, before) = (Instant::now(), count.load(Relaxed));
    thread::sleep(FLOOD);
    let more = count.load(Relaxed) - before;
    println!("{}", more as f64 / began.elapsed().as_secs_f64());
    Ok(())
}

fn forever() -> ! {
    loop {
        thread::park();
    }
}

// Ports: 6 sends, 8 receives.

struct Program {
    sends: QueuingPort,
    receives: QueuingPort,
    _node: Node,
}

impl Program {
    fn open(bus: &str, name: &str, peer: &str, spin: Spin) -> Result<Self, Failure> {
        let config = NodeConfig::vbus(BusConfig::new(bus, name.parse()?));
        let node = Node::open(config.with_neighbour(bus_neighbour(peer.parse()?))?)?;
        let options = QueuingOptions {
            depth: 1024,
            spin,
            ..QueuingOptions::default()
        };
        Ok(Self {
            sends: node.queuing(6).options(&options).open()?,
            receives: node.queuing(8).options(&options).open()?,
            _node: node,
        })
    }

    fn destination(&mut self, peer: &str, port: u16) -> Result<tautline::Destination, Failure> {
        let deadline = tautline::Instant::from_nanos(now().as_nanos() + 20_000_000_000);
        Ok(self.sends.destination_until(peer, port, deadline)?)
    }

    fn ping(&mut self, to: tautline::Destination, count: usize) -> Result<(), Failure> {
        let mut buffer = [0; 1484];
        let mut trips = Vec::with_capacity(WARM_UP + count);
        while trips.len() < WARM_UP + count {
            let _full = self.sends.send(to, Priority::NORMAL, &stamped());
            let next = tautline::Instant::from_nanos(now().as_nanos() + 1_000_000);
            // Until the next is due.
            while let Some(message) = self
                .receives
                .receive_into(&mut buffer, tautline::Wait::Until(next))?
            {
                trips.push(age_of(&buffer[..message.length]));
            }
        }
        print_trips(trips);
        Ok(())
    }

    fn echo(&mut self, to: tautline::Destination) -> Result<(), Failure> {
        let mut buffer = [0; 1484];
        loop {
            let message = self
                .receives
                .receive_into(&mut buffer, tautline::Wait::Forever)?;
            if let Some(message) = message {
                let _full = self
                    .sends
                    .send(to, message.priority, &buffer[..message.length]);
            }
        }
    }
}

fn port_ping(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "program", "gateway", Spin::Adaptive)?;
    let to = program.destination("gateway", 2)?;
    program.ping(to, TRIPS)
}

fn port_echo(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "program", "gateway", Spin::Adaptive)?;
    let to = program.destination("gateway", 2)?;
    program.echo(to)
}

fn port_flood(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "program", "gateway", Spin::Adaptive)?;
    let to = program.destination("gateway", 2)?;
    loop {
        // A full port is no reason to spin: the gateway needs the CPU.
        if program
            .sends
            .send(to, Priority::NORMAL, &[0; MESSAGE_BYTES])
            .is_err()
        {
            thread::yield_now();
        }
    }
}

fn port_count(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "program", "gateway", Spin::Adaptive)?;
    let mut buffer = [0; 1484];
    program
        .receives
        .receive_into(&mut buffer, tautline::Wait::Forever)?;
    let warm = Instant::now() + Duration::from_millis(500);
    let until = |end: Instant, program: &mut Program, buffer: &mut [u8]| -> Result<u64, Failure> {
        let mut count = 0;
        while Instant::now() < end {
            let soon = tautline::Instant::from_nanos(now().as_nanos() + 100_000_000);
            count += u64::from(
                program
                    .receives
                    .receive_into(buffer, tautline::Wait::Until(soon))?
                    .is_some(),
            );
        }
        Ok(count)
    };
    until(warm, &mut program, &mut buffer)?;
    let began = Instant::now();
    let count = until(began + FLOOD, &mut program, &mut buffer)?;
    println!("{}", count as f64 / began.elapsed().as_secs_f64());
    Ok(())
}

/// Takes what comes, for as long as others measure.
fn port_sink(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "program", "gateway", Spin::Adaptive)?;
    let mut buffer = [0; 1484];
    loop {
        program
            .receives
            .receive_into(&mut buffer, tautline::Wait::Forever)?;
    }
}

// The cell's own round trips: two real-time threads that sleep.

fn cell_ping(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "ping", "echo", Spin::from(Duration::ZERO))?;
    let to = program.destination("echo", 8)?;
    tautline_state::memory::lock_all()?;
    sys::set_fifo(50)?;
    program.ping(to, CELL_TRIPS)
}

fn cell_echo(bus: &str) -> Result<(), Failure> {
    let mut program = Program::open(bus, "echo", "ping", Spin::from(Duration::ZERO))?;
    let to = program.destination("ping", 8)?;
    tautline_state::memory::lock_all()?;
    sys::set_fifo(51)?;
    program.echo(to)
}
