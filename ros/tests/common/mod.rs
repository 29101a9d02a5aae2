//! Cells, the program and foreign participants for the tests and the benchmark.

// The benchmark and the tests use different parts.
#![allow(dead_code)]

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
pub(crate) use tautline_bridge::testing::{Cell, Peer, Program, eventually};
use tautline_bridge::testing::{Running, Signal, python_with};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

/// Packages of the foreign participant.
const PACKAGES: [&str; 1] = ["cyclonedds==11.0.1"];
/// ROS 2 Jazzy. Where there are no wheels for the version of Python or the processor, its tests are skipped.
const ROS_PACKAGES: &str = include_str!("../ros2-packages.txt");

/// Two hosts with a cable, and a place for files.
pub(crate) struct Network {
    hosts: Hosts,
    files: TemporaryDirectory,
}

impl Network {
    /// Makes both, or says why not.
    pub(crate) fn create() -> Option<Self> {
        if !may_create() {
            println!("SKIPPED: making network namespaces needs root");
            return None;
        }
        let hosts = Hosts::create(&HostsOptions::default()).expect("hosts");
        // Fast DDS takes the interfaces that run when it starts. That a new cable does, the kernel tells up to a second
        // late, unless it is asked for that one.
        for host in [Host::A, Host::B] {
            let interface = hosts.end(host, 0).interface();
            let mut look = hosts.command(host, "ip");
            let looked = look.args(["link", "show", "dev", &interface]).output();
            assert!(looked.expect("ip").status.success());
        }
        Some(Self {
            hosts,
            files: TemporaryDirectory::make("taut-ros-test").expect("a directory"),
        })
    }

    /// Address of a host.
    pub(crate) fn address(&self, host: Host) -> Ipv4Addr {
        self.hosts.end(host, 0).address()
    }

    /// Command that runs on a host.
    pub(crate) fn command(&self, host: Host, program: &str) -> Command {
        self.hosts.command(host, program)
    }

    /// Starts the program on a host, as node `ros` of a cell.
    pub(crate) fn ros(&self, cell: &Cell, host: Host, ports: &str, entries: &str) -> Ros<'_> {
        self.ros_on(None, cell, host, ports, entries)
    }

    /// The same, on one CPU.
    pub(crate) fn ros_on(
        &self,
        cpu: Option<u32>,
        cell: &Cell,
        host: Host,
        ports: &str,
        entries: &str,
    ) -> Ros<'_> {
        let node = node_on_bus("ros", cell, &["motor"], ports);
        self.start(
            cpu,
            &cell.name,
            host,
            &node,
            &format!("name = \"arm\"\n{entries}"),
        )
    }

    /// Starts the program on a host as one of the nodes `one` and `two` of a cell, each of which knows the other and
    /// `motor`.
    pub(crate) fn ros_named(
        &self,
        own: &str,
        cell: &Cell,
        host: Host,
        ports: &str,
        entries: &str,
    ) -> Ros<'_> {
        let mut neighbours = vec!["motor", "one", "two"];
        neighbours.retain(|other| *other != own);
        let node = node_on_bus(own, cell, &neighbours, ports);
        let unique = format!("{own}-{}", cell.name);
        let entries = format!("name = \"{own}\"\n{entries}");
        self.start(None, &unique, host, &node, &entries)
    }

    /// Starts the program with files of a name that no other has: the node's, and its own but for the key `node`.
    pub(crate) fn start(
        &self,
        cpu: Option<u32>,
        unique: &str,
        host: Host,
        node: &str,
        entries: &str,
    ) -> Ros<'_> {
        let file = |name: &str| self.files.path().join(format!("{unique}.{name}"));
        fs::write(file("node.toml"), node).expect("a file");
        let head = format!("node = \"{unique}.node.toml\"\n");
        fs::write(file("toml"), format!("{head}{entries}")).expect("a file");
        let mut command = self.command(host, env!("CARGO_BIN_EXE_taut-ros"));
        tautline_testbed::child::tie(&mut command, None);
        if let Some(cpu) = cpu {
            tautline_testbed::sys::pin_command(&mut command, cpu);
        }
        let command = command.args(["run", "--config"]).arg(file("toml"));
        let child = command.spawn().expect("a program");
        let ros = Ros {
            network: self,
            host,
            running: Running(child),
        };
        eventually("the program answers", || !ros.status().is_null());
        ros
    }

    /// Output of the program with arguments, on a host.
    pub(crate) fn ask(&self, host: Host, arguments: &[&str]) -> String {
        let mut command = self.command(host, env!("CARGO_BIN_EXE_taut-ros"));
        let output = command.args(arguments).output().expect("an answer");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// The program, running.
pub(crate) struct Ros<'n> {
    network: &'n Network,
    host: Host,
    running: Running,
}

/// File of a node on a cell's bus.
fn node_on_bus(own: &str, cell: &Cell, neighbours: &[&str], ports: &str) -> String {
    let bus = cell.bus().display();
    let neighbours = neighbours.iter();
    let neighbours: String = neighbours
        .map(|other| format!("[[neighbour]]\nname = \"{other}\"\n"))
        .collect();
    format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"{own}\"\n{neighbours}{ports}")
}

impl Ros<'_> {
    /// Its state; null while it does not answer.
    pub(crate) fn status(&self) -> Value {
        let text = self.network.ask(self.host, &["status", "--json"]);
        let told: Value = serde_json::from_str(&text).expect("a status");
        let mut own = told["programs"].as_array().expect("a list").iter().cloned();
        own.find(|one| one["process"] == self.running.0.id())
            .unwrap_or_default()
    }

    /// A counter of the publication or the subscription of a topic.
    pub(crate) fn count(&self, topic: &str, counter: &str) -> u64 {
        let status = self.status();
        let in_list = |list: &str| {
            let all = status[list].as_array()?;
            all.iter().find(|one| one["topic"] == topic)?[counter].as_u64()
        };
        in_list("publications")
            .or_else(|| in_list("subscriptions"))
            .unwrap_or(0)
    }

    /// Its state as a person reads it.
    pub(crate) fn show(&self) -> String {
        self.network.ask(self.host, &["status"])
    }

    /// `active`, `standing by` or `listening`; empty while it does not answer.
    pub(crate) fn state(&self) -> String {
        let status = self.status();
        status["state"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state() == "active"
    }

    /// Whether it hears the other one.
    pub(crate) fn knows_the_other(&self) -> bool {
        self.status()["peers_heard"] == 1
    }

    pub(crate) fn stop(&self) {
        self.running.stop();
    }

    pub(crate) fn go_on(&self) {
        self.running.go_on();
    }

    /// Number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.running.0.id()
    }

    pub(crate) fn kill(&self) {
        self.running.kill();
    }

    /// Asks it to end, and waits until it has; whether it ended in order.
    pub(crate) fn end(mut self) -> bool {
        self.running.signal(Signal::TERM);
        self.running.0.wait().expect("a status").success()
    }
}

/// A program of a cell, in this process: node `motor`, which sends to `ros`.
pub(crate) fn program(cell: &Cell) -> Program {
    Program::open(cell.bus(), "motor", &["ros"])
}

/// Starts a participant of DDS that nobody here wrote, on a host, or says why not.
pub(crate) fn participant(network: &Network, host: Host) -> Option<Peer> {
    participant_on(None, network, host)
}

/// The same, on one CPU.
pub(crate) fn participant_on(cpu: Option<u32>, network: &Network, host: Host) -> Option<Peer> {
    let python = python_with(env!("CARGO_TARGET_TMPDIR"), &PACKAGES)?;
    let mut command = network.command(host, python.to_str().unwrap());
    tautline_testbed::child::tie(&mut command, None);
    if let Some(cpu) = cpu {
        tautline_testbed::sys::pin_command(&mut command, cpu);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer.py");
    command.arg(script).arg("0");
    Some(Peer::start(command))
}

/// Starts a node of ROS 2 on a host, or says why not.
pub(crate) fn ros_node(network: &Network, host: Host) -> Option<Peer> {
    let packages: Vec<&str> = ROS_PACKAGES.lines().collect();
    let python = python_with(env!("CARGO_TARGET_TMPDIR"), &packages)?;
    let mut command = network.command(host, "unshare");
    tautline_testbed::child::tie(&mut command, None);
    // Shared memory of its own: that of Fast DDS and of ROS's tracing stays when their process is killed.
    let own_memory = "mount -t tmpfs none /dev/shm && exec \"$0\" \"$@\"";
    command
        .env("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp")
        .args(["--mount", "sh", "-c", own_memory]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node.py");
    command.arg(python).arg(script).arg("0");
    Some(Peer::start(command))
}

/// Starts a participant of Fast DDS on a host, or says why not. `words` are the arguments of `fastdds.cpp` after the
/// domain.
pub(crate) fn fast_dds(network: &Network, host: Host, words: &[&str]) -> Option<Peer> {
    let mut command = network.command(host, compiled()?.to_str()?);
    tautline_testbed::child::tie(&mut command, None);
    command.arg("0").args(words);
    Some(Peer::start(command))
}

/// Compiles the participant of Fast DDS, once, or says why not.
fn compiled() -> Option<&'static Path> {
    static COMPILED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fastdds.cpp");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fastdds");
        let compiler = |arguments: &[&str]| {
            let mut command = Command::new("g++");
            command.arg("-std=c++17").args(arguments).output()
        };
        // Version 3 has other names for its headers and its library.
        let looked = compiler(&[
            "-fsyntax-only",
            "-include",
            "fastrtps/config.h",
            "-x",
            "c++",
            "/dev/null",
        ]);
        if !looked.is_ok_and(|looked| looked.status.success()) {
            println!("SKIPPED: no g++, or no Fast DDS 2 (Debian: libfastrtps-dev)");
            return None;
        }
        let (from, to) = (source.to_str()?, program.to_str()?);
        let arguments = [
            "-Wall",
            "-Wextra",
            from,
            "-o",
            to,
            "-lfastrtps",
            "-lfastcdr",
        ];
        let built = compiler(&arguments).expect("a compiler");
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{said}");
        Some(program)
    };
    COMPILED.get_or_init(compile).as_deref()
}

/// Counts of a topic since a participant was asked for them last.
pub(crate) fn counts(peer: &mut Peer, topic: &str) -> Value {
    peer.tell(serde_json::json!(["count", topic]));
    peer.wait_for("counts", |what| what["counted"] == topic)
}
