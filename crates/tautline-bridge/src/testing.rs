//! Cells, and third-party participants, for the tests of programs that carry ports to another network.
//!
//! # Panics
//! Everything here does, where a test can only fail.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{
    Destination, Node, NodeConfig, Priority, QueuingPort, SamplingPort, SendError, Wait,
    bus_neighbour,
};
use tautline_state::TemporaryDirectory;
use tautline_testbed::python;
use tautline_testbed::sys::signal_process;

/// Signals that tests send.
pub use rustix::process::Signal;

/// Time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(25));
    }
}

/// Output of a program that is to `check` a file, and finds nothing wrong; with a key that there is none, it does.
pub fn checked(program: &str, file: &Path, more: &[&str]) -> String {
    let mut command = Command::new(program);
    let command = command.args(["check", "--config"]).arg(file).args(more);
    let output = command.output().expect("a program of this workspace");
    assert!(output.status.success(), "{output:?}");
    let right = fs::read_to_string(file).expect("a file");
    fs::write(file, format!("nonsense = 1\n{right}")).expect("written");
    let wrong = command.output().expect("a program of this workspace");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        said.contains("nonsense") && said.contains("what to do"),
        "{said}"
    );
    fs::write(file, right).expect("written");
    String::from_utf8(output.stdout).expect("text")
}

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        signal_process(self.0.id(), signal);
    }

    /// Kills it; its owner need not be told.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Has it stand still.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// A cell: a bus in a directory of its own.
#[derive(Debug)]
pub struct Cell {
    bus: PathBuf,
    /// A name that no other cell of this machine has.
    pub name: String,
    _files: TemporaryDirectory,
}

impl Cell {
    /// Makes the directory.
    #[must_use]
    #[allow(clippy::new_without_default)] // it makes a directory
    pub fn new() -> Self {
        let files = TemporaryDirectory::make("taut-cell").expect("a directory");
        let name = files.path().file_name().expect("its own name");
        Self {
            bus: files.path().join("bus"),
            name: name.display().to_string(),
            _files: files,
        }
    }

    /// Directory of its bus.
    #[must_use]
    pub fn bus(&self) -> &Path {
        &self.bus
    }

    /// A node that knows `others`.
    #[must_use]
    pub fn node(&self, name: &str, others: &[&str]) -> Node {
        node(&self.bus, name, others)
    }

    /// A node with one queuing port, which keeps a thousand messages.
    #[must_use]
    pub fn receiver(&self, name: &str, number: u16) -> (Node, QueuingPort) {
        let node = self.node(name, &[]);
        let options = QueuingOptions {
            depth: 1024,
            ..QueuingOptions::default()
        };
        let port = node.queuing(number).options(&options).open();
        (node, port.expect("a port"))
    }
}

fn node(bus: &Path, name: &str, others: &[&str]) -> Node {
    let bus = bus.display().to_string();
    let config = NodeConfig::vbus(BusConfig::new(&bus, name.parse().expect("a name")));
    let others = others
        .iter()
        .filter(|other| **other != name)
        .map(|other| bus_neighbour(other.parse().expect("a name")));
    let config = others.fold(config, |config, other| {
        config.with_neighbour(other).expect("a neighbour")
    });
    Node::open(config).expect("a node")
}

/// A program of a cell, in this process: ports 5 and 6 send, 7 and 8 receive.
#[derive(Debug)]
pub struct Program {
    to: String,
    state: SamplingPort,
    readers: Destination,
    said: QueuingPort,
    value: SamplingPort,
    messages: QueuingPort,
    _node: Node,
}

impl Program {
    /// Opens node `name` on a bus. It knows `others`, and sends to the first of them.
    #[must_use]
    pub fn open(bus: &Path, name: &str, others: &[&str]) -> Self {
        let node = node(bus, name, others);
        let sampling = |number: u16| {
            let port = node.sampling(number).open();
            port.expect("a port")
        };
        let queuing = |number: u16| {
            let port = node.queuing(number).open();
            port.expect("a port")
        };
        let mut state = sampling(5);
        Self {
            to: others.first().copied().unwrap_or_default().to_owned(),
            readers: state.readers().expect("readers"),
            state,
            said: queuing(6),
            value: sampling(7),
            messages: queuing(8),
            _node: node,
        }
    }

    /// Sends a value to a port of its peer, if that is there.
    pub fn publish(&mut self, port: u16, value: &[u8]) {
        let _absent = self.try_publish(port, value);
    }

    /// Sends a value to a port of its peer.
    ///
    /// # Errors
    /// The peer is absent, or does not take it.
    pub fn try_publish(&mut self, port: u16, value: &[u8]) -> Result<(), SendError> {
        let to = self.state.destination(&self.to, port);
        let to = to.map_err(|_| SendError::PeerGone)?;
        self.state.send(to, Priority::NORMAL, value)
    }

    /// Publishes a value for all that follow port 5.
    pub fn broadcast(&mut self, value: &[u8]) {
        let sent = self.state.send(self.readers, Priority::NORMAL, value);
        sent.expect("a send");
    }

    /// Sends a message to a port of its peer, which is there.
    pub fn say(&mut self, port: u16, priority: Priority, message: &[u8]) {
        let said = self.try_say(port, priority, message);
        said.expect("a peer that takes it");
    }

    /// Sends a message to a port of its peer.
    ///
    /// # Errors
    /// The peer is absent, or does not take it.
    pub fn try_say(
        &mut self,
        port: u16,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let to = self.said.destination(&self.to, port);
        let to = to.map_err(|_| SendError::PeerGone)?;
        self.said.send(to, priority, message)
    }

    /// The last value of port 7.
    pub fn value(&mut self) -> Option<Vec<u8>> {
        let value = self.value.read().expect("a read")?;
        Some(value.to_vec())
    }

    /// The next message of port 8: its priority and its bytes.
    pub fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let message = self.messages.receive(Wait::Poll).expect("a receive")?;
        Some((message.priority().get(), message.to_vec()))
    }
}

/// A Python with packages from PyPI, kept in `scratch`; or says why there is none.
#[must_use]
pub fn python_with(scratch: &str, packages: &[&str]) -> Option<PathBuf> {
    match python::environment(Path::new(scratch), packages) {
        Ok(python) => Some(python),
        Err(reason) => {
            let first = packages.first().copied().unwrap_or_default();
            let more = match packages.len() {
                0 | 1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            println!("SKIPPED: no {first}{more} from PyPI: {reason}");
            None
        }
    }
}

/// A third-party participant, behind a script that takes commands and reports events, a line of JSON each. The first
/// report is `{"opened": true}`.
#[derive(Debug)]
pub struct Peer {
    running: Running,
    commands: ChildStdin,
    said: Receiver<Value>,
    heard: RefCell<Vec<Value>>,
}

impl Peer {
    /// Starts the script, and waits until it has opened its session.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a participant");
        let output = child.stdout.take().expect("a pipe");
        let (sender, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let what = serde_json::from_str(&line).expect("an object");
                if sender.send(what).is_err() {
                    return;
                }
            }
        });
        let peer = Self {
            commands: child.stdin.take().expect("a pipe"),
            running: Running(child),
            said,
            heard: RefCell::default(),
        };
        peer.wait_for("a session", |what| what["opened"] == true);
        peer
    }

    /// Its process.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Has it do something.
    pub fn tell(&mut self, command: Value) {
        writeln!(self.commands, "{command}").expect("a participant");
    }

    /// Waits for something that it says, and forgets that and all before it.
    pub fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        eventually(what, || {
            let is_gone = self.hear();
            let mut heard = self.heard.borrow_mut();
            let Some(place) = heard.iter().position(&is_it) else {
                assert!(!is_gone, "the participant has ended, waited for: {what}");
                return false;
            };
            found = heard.drain(..=place).next_back().expect("what was found");
            true
        });
        found
    }

    /// Whether it has said something that is not forgotten.
    pub fn has(&self, is_it: impl Fn(&Value) -> bool) -> bool {
        self.hear();
        self.heard.borrow().iter().any(is_it)
    }

    /// Everything that it has said and that is not forgotten; forgets it.
    pub fn take(&self) -> Vec<Value> {
        self.hear();
        self.heard.borrow_mut().drain(..).collect()
    }

    /// Takes what it has said; whether it has ended.
    fn hear(&self) -> bool {
        let mut heard = self.heard.borrow_mut();
        loop {
            match self.said.try_recv() {
                Ok(said) => heard.push(said),
                Err(gone) => return gone == TryRecvError::Disconnected,
            }
        }
    }
}
