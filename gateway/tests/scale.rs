//! Many cells: three sites behind routers, ten gateways, a thousand simulated nodes, and everything between them that
//! fails. The nodes of a cell are ports of one process, a port for each, as many as a cell has; routers are sessions of
//! Zenoh in processes of this program.
//!
//! `TAUTLINE_FLEET_ROUNDS` sets how many parts are killed at random (`make fleet-faults` is the long form), and
//! `TAUTLINE_FLEET_SEED` repeats the choice.

mod common;
mod sites;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::eventually;
use serde_json::{Value, json};
use sites::Sites;
use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{Node, NodeConfig, Priority, bus_neighbour};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::may_create;
use zenoh::Wait;

/// Gateways, by site; and simulated nodes behind each.
const GATEWAYS: [usize; 3] = [4, 3, 3];
const NODES: usize = 100;
/// Nodes that send to one port of their gateway: a port of a bus has 32 senders at most.
const NODES_AT_PORT: usize = 25;
/// Time between two messages of a node.
const NODE_PERIOD: Duration = Duration::from_millis(500);
/// Memory that a gateway may take beyond what it had when all was well: allocators keep some of what Zenoh's queues
/// took.
const GROWTH_BYTES_MAX: u64 = 48 << 20;
/// Environment: makes a test a part, with this argument.
const ROLE: &str = "TAUTLINE_FLEET_ROLE";

/// A part of the bed that may be killed and started again.
struct Part {
    name: String,
    site: usize,
    start: Box<dyn Fn(&Sites) -> Child>,
    child: Child,
}

impl Part {
    fn new(
        sites: &Sites,
        name: String,
        site: usize,
        start: impl Fn(&Sites) -> Child + 'static,
    ) -> Self {
        Self {
            child: start(sites),
            start: Box::new(start),
            name,
            site,
        }
    }

    fn kill(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }

    fn start_again(&mut self, sites: &Sites) {
        self.child = (self.start)(sites);
    }

    /// Bytes of memory that the process has.
    fn resident(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}

/// This program as a part, at a site.
fn role(sites: &Sites, site: usize, words: &Value) -> Command {
    let own = std::env::current_exe().expect("this program");
    let mut command = sites.command(site, own.to_str().expect("a path in UTF-8"));
    command
        .args(["a_part_of_the_bed", "--exact", "--nocapture"])
        .env(ROLE, words.to_string());
    command
}

/// Runs as a part where the environment says so.
#[test]
fn a_part_of_the_bed() {
    let Ok(words) = std::env::var(ROLE) else {
        return;
    };
    let words: Value = serde_json::from_str(&words).expect("a role");
    let text = |key: &str| words[key].as_str().expect("a text").to_owned();
    match words["role"].as_str() {
        Some("router") => {
            let config = zenoh::Config::from_json5(&text("zenoh")).expect("a configuration");
            let _session = zenoh::open(config).wait().expect("a router");
            loop {
                thread::park();
            }
        }
        Some("nodes") => play_nodes(words["buses"].as_array().expect("buses")),
        Some("desk") => listen(&text("zenoh")),
        other => panic!("no such role: {other:?}"),
    }
}

/// The nodes of some cells: each a port that sends twice a second, whether somebody takes it or not.
fn play_nodes(buses: &[Value]) {
    let options = QueuingOptions {
        depth: 2,
        message_bytes_max: 16,
        ..QueuingOptions::default()
    };
    let mut cells = Vec::new();
    for bus in buses {
        let bus = bus.as_str().expect("a directory");
        let config = NodeConfig::vbus(BusConfig::new(bus, "nodes".parse().unwrap()));
        let config = config.with_neighbour(bus_neighbour("gateway".parse().unwrap()));
        let node = Node::open(config.unwrap()).expect("a node");
        let numbers = 1..=NODES as u16;
        let ports: Vec<_> = numbers
            .map(|number| {
                let port = node.queuing(number).options(&options).open();
                (port.expect("a port"), None)
            })
            .collect();
        cells.push((node, ports));
    }
    let mut turn = 0_u32;
    loop {
        for (_, ports) in &mut cells {
            for (number, (port, known)) in (1_u32..).zip(ports.iter_mut()) {
                // One that is not there takes a moment to be looked for: the first looks, and the others after it.
                if known.is_none() && number == 1 {
                    *known = port.destination("gateway", gateway_port(number)).ok();
                }
                let Some(to) = *known else { continue };
                let mut message = [0; 8];
                message[..4].copy_from_slice(&number.to_le_bytes());
                message[4..].copy_from_slice(&turn.to_le_bytes());
                if let Err(tautline::SendError::PeerGone) =
                    port.send(to, Priority::NORMAL, &message)
                {
                    *known = None;
                }
            }
        }
        for (_, ports) in &mut cells {
            if ports[0].1.is_some() {
                for (number, (port, known)) in (1_u32..).zip(ports.iter_mut()) {
                    if known.is_some() {
                        continue;
                    }
                    *known = port.destination("gateway", gateway_port(number)).ok();
                }
            }
        }
        turn += 1;
        thread::sleep(NODE_PERIOD);
    }
}

/// Port of the gateway that a node sends to.
fn gateway_port(number: u32) -> tautline::PortNumber {
    let port = 1 + (number - 1) / NODES_AT_PORT as u32;
    u16::try_from(port).unwrap().try_into().unwrap()
}

/// Counts what the gateways publish, and says it once in a while.
fn listen(config: &str) {
    let config = zenoh::Config::from_json5(config).expect("a configuration");
    let session = zenoh::open(config).wait().expect("a session");
    let heard = Arc::new(Mutex::new((HashSet::new(), [0_u64; 3])));
    let noting = Arc::clone(&heard);
    let _all = session
        .declare_subscriber("plant/*/*/*")
        .callback(move |sample| {
            let key = sample.key_expr().to_string();
            let site: usize = key
                .split('/')
                .nth(1)
                .and_then(|one| one.parse().ok())
                .unwrap_or(1);
            let bytes = sample.payload().to_bytes();
            let number = bytes
                .first_chunk()
                .map_or(0, |one| u32::from_le_bytes(*one));
            let mut heard = noting.lock().expect("nobody panics");
            heard.0.insert((key, number));
            heard.1[(site - 1).min(2)] += 1;
        })
        .wait()
        .expect("a subscription");
    loop {
        thread::sleep(Duration::from_millis(200));
        let (nodes, counts) = {
            let heard = heard.lock().expect("nobody panics");
            (heard.0.len(), heard.1)
        };
        println!("{}", json!({ "nodes": nodes, "counts": counts }));
    }
}

/// The whole bed.
struct Bed {
    // Parts before the sites: they end first.
    parts: Vec<Part>,
    said: Receiver<Value>,
    newest: Value,
    files: TemporaryDirectory,
    sites: Sites,
}

fn zenoh(mode: &str, listens: bool, connect: &str) -> String {
    let listen = if listens { "\"tcp/0.0.0.0:7447\"" } else { "" };
    let connect = match connect {
        "" => String::new(),
        address => format!("\"tcp/{address}:7447\""),
    };
    format!(
        "{{ mode: \"{mode}\", listen: {{ endpoints: [{listen}] }}, connect: {{ endpoints: [{connect}], \
         timeout_ms: -1, exit_on_failure: false, retry: {{ period_init_ms: 200, period_max_ms: 1000 }} }}, \
         scouting: {{ multicast: {{ enabled: false }} }} }}"
    )
}

impl Bed {
    fn make() -> Self {
        let sites = Sites::create(GATEWAYS.len() + 1).expect("sites");
        let files = TemporaryDirectory::make("taut-fleet-scale").expect("a directory");
        let mut parts = Vec::new();
        for site in 0..=GATEWAYS.len() {
            let connect = if site == 0 {
                String::new()
            } else {
                format!("10.79.{site}.1")
            };
            let words = json!({ "role": "router", "zenoh": zenoh("router", true, &connect) });
            parts.push(Part::new(
                &sites,
                format!("router {site}"),
                site,
                move |sites| {
                    let mut command = role(sites, site, &words);
                    command.stdout(Stdio::null()).spawn().expect("a router")
                },
            ));
        }
        for (place, count) in GATEWAYS.iter().enumerate() {
            let site = place + 1;
            let mut buses = Vec::new();
            for number in 0..*count {
                let name = format!("gateway-{site}-{number}");
                let bus = files.path().join(format!("{name}.bus"));
                buses.push(bus.display().to_string());
                let config = write_gateway(files.path(), &name, site, number, &bus);
                parts.push(Part::new(&sites, name, site, move |sites| {
                    let mut command = sites.command(site, env!("CARGO_BIN_EXE_taut-gateway"));
                    let command = command.args(["run", "--config", &config]);
                    command.stderr(Stdio::null()).spawn().expect("a gateway")
                }));
            }
            let words = json!({ "role": "nodes", "buses": buses });
            parts.push(Part::new(
                &sites,
                format!("nodes {site}"),
                site,
                move |sites| {
                    let mut command = role(sites, site, &words);
                    command.stdout(Stdio::null()).spawn().expect("nodes")
                },
            ));
        }
        // The desk is a site of its own, at the wide area's router.
        let site = GATEWAYS.len() + 1;
        let words =
            json!({ "role": "desk", "zenoh": zenoh("client", false, &format!("10.79.{site}.1")) });
        let mut desk = role(&sites, site, &words);
        let mut child = desk.stdout(Stdio::piped()).spawn().expect("a desk");
        let (sender, said) = channel();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            let lines = output.map_while(Result::ok);
            for line in lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        parts.push(Part {
            name: "desk".to_owned(),
            site,
            start: Box::new(|_| unreachable!("it is not killed")),
            child,
        });
        Self {
            parts,
            said,
            newest: Value::Null,
            files,
            sites,
        }
    }

    /// Nodes that the desk has heard, and messages from each site.
    fn heard(&mut self) -> (u64, [u64; 3]) {
        if let Some(last) = self.said.try_iter().filter(|one| one.is_object()).last() {
            self.newest = last;
        }
        let count = |place: usize| self.newest["counts"][place].as_u64().unwrap_or(0);
        let nodes = self.newest["nodes"].as_u64().unwrap_or(0);
        (nodes, [count(0), count(1), count(2)])
    }

    /// Waits until messages of these sites come.
    fn flows(&mut self, what: &str, sites: &[usize]) {
        let (_, before) = self.heard();
        eventually(what, || {
            let (_, now) = self.heard();
            sites
                .iter()
                .all(|site| now[site - 1] > before[site - 1] + NODES as u64)
        });
    }

    /// The fleet, as it is seen from the desk.
    fn fleet(&self) -> Value {
        let site = GATEWAYS.len() + 1;
        let file = self.files.path().join("watcher.json5");
        fs::write(&file, zenoh("client", false, &format!("10.79.{site}.1"))).expect("a file");
        let mut command = self.sites.command(site, env!("CARGO_BIN_EXE_taut-gateway"));
        let command = command.args(["fleet", "--once", "--prefix", "plant/fleet", "--zenoh"]);
        let output = command.arg(file).output().expect("a picture");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn with(&self, presence: &str) -> Vec<String> {
        let picture = self.fleet();
        let cells = picture["cells"].as_array().into_iter().flatten();
        let found = cells.filter(|cell| cell["presence"] == presence);
        found
            .map(|cell| cell["gateway"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Gateways that are connected; on a busy machine their reports may be late.
    fn connected(&self) -> usize {
        let picture = self.fleet();
        let cells = picture["cells"].as_array().into_iter().flatten();
        cells.filter(|cell| cell["presence"] != "vanished").count()
    }

    /// Messages that the ports of a site's gateways have handed out, and those that its gateways count, as published
    /// or by the reason for which they are not.
    fn handed_out(&self, site: usize) -> (u64, u64) {
        let picture = self.fleet();
        let prefix = format!("plant/{site}/");
        let cells = picture["cells"].as_array().into_iter().flatten();
        let of_site = cells.filter(|cell| {
            let cell_prefix = cell["prefix"].as_str().unwrap_or_default();
            cell["presence"] == "alive" && cell_prefix.starts_with(&prefix)
        });
        let (mut received, mut counted) = (0, 0);
        for cell in of_site {
            let total = |name: &str| cell["report"]["totals"][name].as_u64().unwrap_or(0);
            // Each tells the sum of all ports of the site.
            received = received.max(total("received"));
            counted += total("published") + total("dropped");
        }
        (received, counted)
    }

    fn gateways(&self) -> impl Iterator<Item = &Part> {
        self.parts
            .iter()
            .filter(|part| part.name.starts_with("gateway"))
    }

    fn part(&mut self, name: &str) -> &mut Part {
        let mut parts = self.parts.iter_mut();
        parts.find(|part| part.name == name).expect("a part")
    }

    fn restart(&mut self, name: &str) {
        let place = self
            .parts
            .iter()
            .position(|part| part.name == name)
            .expect("a part");
        let Self { parts, sites, .. } = self;
        parts[place].start_again(sites);
    }
}

fn write_gateway(files: &Path, name: &str, site: usize, number: usize, bus: &Path) -> String {
    let write = |end: &str, text: String| {
        let path = files.join(format!("{name}.{end}"));
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let bus = bus.display();
    let numbers = 1..=NODES / NODES_AT_PORT;
    let ports = numbers.clone().map(|port| {
        format!(
            "[[port]]\nname = \"events{port}\"\nnumber = {port}\nkind = \"queuing\"\ndepth = 64\n\
             message_bytes_max = 16\n"
        )
    });
    let ports: String = ports.collect();
    write(
        "node.toml",
        format!(
            "link = \"vbus\"\nbus = \"{bus}\"\nnode = \"gateway\"\n[[neighbour]]\nname = \"nodes\"\n{ports}"
        ),
    );
    let publish =
        numbers.map(|port| format!("[[publish]]\nport = \"events{port}\"\nvalidity_ms = 2000\n"));
    let publish: String = publish.collect();
    write("json5", zenoh("client", false, "127.0.0.1"));
    write(
        "toml",
        format!(
            "name = \"{name}\"\nprefix = \"plant/{site}/{number}\"\nnode = \"{name}.node.toml\"\n\
             [zenoh]\nconfig = \"{name}.json5\"\n[fleet]\nprefix = \"plant/fleet\"\nperiod_ms = 3000\n{publish}"
        ),
    )
}

/// A small generator: the choice is repeated by its seed.
struct Choice(u64);

impl Choice {
    fn below(&mut self, count: usize) -> usize {
        // Xorshift (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }
}

fn number_of(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn a_thousand_nodes_behind_ten_gateways_and_what_fails_between_them() {
    if !may_create() {
        println!("SKIPPED: making network namespaces needs root");
        return;
    }
    let mut bed = Bed::make();
    let all: usize = GATEWAYS.iter().sum();
    eventually("all nodes are heard", || {
        bed.heard().0 == (all * NODES) as u64
    });
    eventually("all gateways are in the fleet", || bed.connected() == all);
    let before: Vec<(String, u64)> = bed
        .gateways()
        .map(|part| (part.name.clone(), part.resident()))
        .collect();

    // A cut cable: the others go on, and it comes back.
    bed.sites.cut(1, true).expect("a cut");
    bed.flows("the other sites go on beside a cut", &[2, 3]);
    bed.sites.cut(1, false).expect("a cable");
    bed.flows("the site comes back", &[1, 2, 3]);

    // A slow cable: what does not fit is dropped, and no queue grows without bound.
    bed.sites.slow(2, Some("64kbit")).expect("a rate");
    bed.flows("the other sites go on beside a slow one", &[1, 3]);
    eventually("the slow cable is in the way", || {
        sites::held_back(&bed.sites, 2) > 0
    });
    bed.sites.slow(2, None).expect("a rate");
    bed.flows("the slow site comes back", &[1, 2, 3]);

    // The router in the middle, killed and started again.
    bed.part("router 0").kill();
    thread::sleep(Duration::from_millis(500));
    bed.restart("router 0");
    // Zenoh's own client, the desk, comes back with it.
    bed.flows("all sites come back after the router", &[1, 2, 3]);

    // Parts killed at random; each vanishes alone and comes back.
    let seed = number_of("TAUTLINE_FLEET_SEED", u64::from(std::process::id()) + 1);
    println!("seed {seed}");
    let mut choice = Choice(seed);
    let rounds = number_of("TAUTLINE_FLEET_ROUNDS", 3);
    for _ in 0..rounds {
        let candidates: Vec<String> = bed
            .parts
            .iter()
            .filter(|part| part.name != "desk")
            .map(|part| part.name.clone())
            .collect();
        let name = candidates[choice.below(candidates.len())].clone();
        println!("killed: {name}");
        bed.part(&name).kill();
        let site = bed.part(&name).site;
        let others: Vec<usize> = (1..=3).filter(|one| *one != site && site != 0).collect();
        bed.flows("the other sites go on", &others);
        if name.starts_with("gateway") {
            eventually("it has vanished, and no other", || {
                bed.with("vanished") == [name.clone()]
            });
        }
        bed.restart(&name);
        bed.flows("all sites are there again", &[1, 2, 3]);
        eventually("all gateways are there again", || bed.connected() == all);
    }

    // Nobody sends any more: every message that came to a gateway's port stands in one of its counters.
    for site in 1..=GATEWAYS.len() {
        bed.part(&format!("nodes {site}")).kill();
        let (mut received, mut counted) = (0, 0);
        eventually("all messages of the site are counted", || {
            (received, counted) = bed.handed_out(site);
            received > 0 && received == counted
        });
        println!("site {site}: {received} messages received, all counted");
    }

    println!("memory of the gateways, KiB before and after:");
    for (name, before) in before {
        let after = bed.part(&name).resident();
        println!("  {name}: {} {}", before >> 10, after >> 10);
        assert!(
            after <= before + GROWTH_BYTES_MAX,
            "{name} grew from {before} to {after} bytes"
        );
    }
}
