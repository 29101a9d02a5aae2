//! Cells, the program and foreign participants for the tests and the benchmark.

// The benchmark and the tests use different parts.
#![allow(dead_code)]

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline::{
    BusConfig, Node, NodeConfig, Priority, QueuingOptions, QueuingPort, SamplingOptions,
    SamplingPort, SendError, bus_neighbour,
};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};
use tautline_testbed::python;

/// Packages of the foreign participant.
const PACKAGES: [&str; 1] = ["cyclonedds==11.0.1"];
/// Time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(25));
    }
}

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
        Some(Self {
            hosts: Hosts::create(&HostsOptions::default()).expect("hosts"),
            files: TemporaryDirectory::make("taut-ros-test").expect("a directory"),
        })
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
        let file = |name: &str| self.files.path().join(format!("{}.{name}", cell.name));
        let bus = cell.bus.display();
        let neighbours = "[[neighbour]]\nname = \"motor\"\n";
        let node = format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"ros\"\n{neighbours}{ports}");
        fs::write(file("node.toml"), node).expect("a file");
        let head = format!("name = \"arm\"\nnode = \"{}.node.toml\"\n", cell.name);
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
            child,
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
    child: Child,
}

impl Ros<'_> {
    /// Its state; null while it does not answer.
    pub(crate) fn status(&self) -> Value {
        let text = self.network.ask(self.host, &["status", "--json"]);
        let all: Vec<Value> = serde_json::from_str(&text).expect("a status");
        let mut own = all.into_iter();
        own.find(|one| one["process"] == self.child.id())
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

    /// Number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&self) {
        signal(self.child.id(), rustix::process::Signal::KILL);
    }

    /// Asks it to end, and waits until it has; whether it ended in order.
    pub(crate) fn end(mut self) -> bool {
        signal(self.child.id(), rustix::process::Signal::TERM);
        self.child.wait().expect("a status").success()
    }
}

impl Drop for Ros<'_> {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn signal(process: u32, signal: rustix::process::Signal) {
    tautline_testbed::sys::signal_process(process, signal);
}

/// A cell: a bus.
pub(crate) struct Cell {
    bus: PathBuf,
    name: String,
    _files: TemporaryDirectory,
}

impl Cell {
    pub(crate) fn new() -> Self {
        let files = TemporaryDirectory::make("taut-cell").expect("a directory");
        Self {
            bus: files.path().join("bus"),
            name: files.path().file_name().unwrap().display().to_string(),
            _files: files,
        }
    }

    /// Directory of its bus.
    pub(crate) fn bus(&self) -> String {
        self.bus.display().to_string()
    }

    /// A node on the bus that knows `others`.
    pub(crate) fn node(&self, name: &str, others: &[&str]) -> Node {
        let config = NodeConfig::vbus(BusConfig::new(&self.bus(), name.parse().unwrap()));
        let others = others
            .iter()
            .map(|other| bus_neighbour(other.parse().unwrap()));
        let config = others.fold(config, |config, other| {
            config.with_neighbour(other).unwrap()
        });
        Node::open(config).expect("a node")
    }

    /// A program of the cell, in this process: node `motor`.
    pub(crate) fn program(&self) -> Program {
        let node = self.node("motor", &["ros"]);
        let sampling = |number: u16| {
            node.sampling_port(number.try_into().unwrap(), &SamplingOptions::default())
        };
        let queuing =
            |number: u16| node.queuing_port(number.try_into().unwrap(), &QueuingOptions::default());
        Program {
            state: sampling(5).unwrap(),
            said: queuing(6).unwrap(),
            value: sampling(7).unwrap(),
            messages: queuing(8).unwrap(),
            _node: node,
        }
    }
}

/// A program of a cell: ports 5 and 6 send, 7 and 8 receive.
pub(crate) struct Program {
    state: SamplingPort,
    said: QueuingPort,
    value: SamplingPort,
    messages: QueuingPort,
    _node: Node,
}

impl Program {
    /// Sends a value to a port of `ros`.
    pub(crate) fn publish(&mut self, port: u16, value: &[u8]) -> Result<(), SendError> {
        let to = self.state.destination("ros", port.try_into().unwrap());
        let to = to.map_err(|_| SendError::PeerGone)?;
        self.state.send(to, Priority::NORMAL, value)
    }

    /// Sends a message to a port of `ros`.
    pub(crate) fn say(&mut self, port: u16, message: &[u8]) -> Result<(), SendError> {
        let to = self.said.destination("ros", port.try_into().unwrap());
        let to = to.map_err(|_| SendError::PeerGone)?;
        self.said.send(to, Priority::NORMAL, message)
    }

    /// The last value of port 7, if it is valid.
    pub(crate) fn value(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; self.value.value_bytes_max()];
        let sample = self.value.read(&mut buffer).expect("a read")?;
        buffer.truncate(sample.length);
        Some(buffer)
    }

    /// The next message of port 8: its priority and its bytes.
    pub(crate) fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut buffer = vec![0; self.messages.message_bytes_max()];
        let message = self.messages.receive(&mut buffer).expect("a receive")?;
        buffer.truncate(message.length);
        Some((message.priority.get(), buffer))
    }
}

/// A participant that nobody here wrote.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    said: Receiver<Value>,
    heard: RefCell<Vec<Value>>,
}

impl Peer {
    /// Starts one on a host, or says why not.
    pub(crate) fn start(network: &Network, host: Host) -> Option<Self> {
        Self::start_on(None, network, host)
    }

    /// The same, on one CPU.
    pub(crate) fn start_on(cpu: Option<u32>, network: &Network, host: Host) -> Option<Self> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let python = match python::environment(directory, &PACKAGES) {
            Ok(python) => python,
            Err(why) => {
                println!("SKIPPED: no foreign participant: {why}");
                return None;
            }
        };
        let mut command = network.command(host, python.to_str().unwrap());
        tautline_testbed::child::tie(&mut command, None);
        if let Some(cpu) = cpu {
            tautline_testbed::sys::pin_command(&mut command, cpu);
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer.py");
        let command = command.arg(script).arg("0");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a participant");
        let output = child.stdout.take().unwrap();
        let (sender, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let said = serde_json::from_str(&line).expect("JSON");
                if sender.send(said).is_err() {
                    return;
                }
            }
        });
        let peer = Self {
            commands: child.stdin.take().unwrap(),
            child,
            said,
            heard: RefCell::default(),
        };
        peer.wait_for("a participant", |what| what["opened"] == true);
        Some(peer)
    }

    /// Has it do something.
    pub(crate) fn tell(&mut self, command: Value) {
        writeln!(self.commands, "{command}").expect("a participant");
    }

    /// Waits for something that it says, and forgets that and all before it.
    pub(crate) fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        eventually(what, || {
            let mut heard = self.heard.borrow_mut();
            let is_gone = loop {
                match self.said.try_recv() {
                    Ok(said) => heard.push(said),
                    Err(gone) => break gone == TryRecvError::Disconnected,
                }
            };
            let Some(place) = heard.iter().position(&is_it) else {
                assert!(!is_gone, "the participant has ended, waited for: {what}");
                return false;
            };
            found = heard.drain(..=place).next_back().unwrap();
            true
        });
        found
    }

    /// Whether it has said something that is not forgotten.
    pub(crate) fn has(&self, is_it: impl Fn(&Value) -> bool) -> bool {
        let mut heard = self.heard.borrow_mut();
        heard.extend(self.said.try_iter());
        heard.iter().any(is_it)
    }

    /// Counts of a topic since they were asked for last.
    pub(crate) fn counts(&mut self, topic: &str) -> Value {
        self.tell(serde_json::json!(["count", topic]));
        self.wait_for("counts", |what| what["counted"] == topic)
    }

    pub(crate) fn kill(&self) {
        signal(self.child.id(), rustix::process::Signal::KILL);
    }

    pub(crate) fn stop(&self) {
        signal(self.child.id(), rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        signal(self.child.id(), rustix::process::Signal::CONT);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
