//! Cells, gateways and foreign participants for the tests.
#![allow(dead_code)] // each test program uses what it needs

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline::{
    BusConfig, Destination, Node, NodeConfig, Priority, QueuingOptions, QueuingPort,
    SamplingOptions, SamplingPort, SendError, bus_neighbour,
};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};
use tautline_testbed::python;

/// Packages of the foreign participant.
const PACKAGES: [&str; 1] = ["eclipse-zenoh==1.10.2"];
/// A program that writes pictures of a fleet, and the newest of them.
pub(crate) struct Watcher {
    child: Child,
    lines: Receiver<Value>,
    newest: RefCell<Value>,
}

impl Watcher {
    pub(crate) fn start(network: &Network, host: Host, mode: &str) -> Self {
        let mut command = network.watcher(host, mode, "fleet");
        let mut child = command
            .args(["--interval-ms", "200"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a watcher");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                let picture = serde_json::from_str(&line).expect("a picture");
                if sender.send(picture).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            newest: RefCell::default(),
        }
    }

    /// The newest picture.
    pub(crate) fn picture(&self) -> Value {
        let mut newest = self.newest.borrow_mut();
        if let Some(last) = self.lines.try_iter().last() {
            *newest = last;
        }
        newest.clone()
    }

    /// Presence of a gateway; empty if it is not in the picture.
    pub(crate) fn presence(&self, gateway: &str) -> String {
        presence(&self.picture(), gateway)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The line of a gateway in a picture.
pub(crate) fn line_of(picture: &Value, gateway: &str) -> Value {
    let mut cells = picture["cells"].as_array().into_iter().flatten();
    let found = cells.find(|cell| cell["gateway"] == gateway);
    found.cloned().unwrap_or_default()
}

/// Presence of a gateway in a picture.
pub(crate) fn presence(picture: &Value, gateway: &str) -> String {
    let line = line_of(picture, gateway);
    line["presence"].as_str().unwrap_or_default().to_owned()
}

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

/// Bytes that were written as digits, as text.
pub(crate) fn text_of(digits: &str) -> String {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    String::from_utf8((0..digits.len()).step_by(2).map(byte).collect()).expect("text")
}

/// An attachment as a gateway writes it (docs/gateway.md), in digits.
pub(crate) fn origin(cell: u64, term: u32, sequence: u32, published_ns: u64) -> String {
    let mut bytes = b"TLG1".to_vec();
    bytes.extend([3, 0, 0, 0]);
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(term.to_le_bytes());
    bytes.extend(cell.to_le_bytes());
    bytes.extend(cell.to_le_bytes());
    bytes.extend(u64::from(sequence).to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(published_ns.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
            files: TemporaryDirectory::make("taut-gateway-test").expect("a directory"),
        })
    }

    fn address(&self, host: Host) -> String {
        format!("tcp/{}:7447", self.hosts.end(host, 0).address())
    }

    /// Configuration of a participant: `peer` at A listens, at B connects there; `client` connects to a router at B,
    /// `client-of-a` to who listens at A.
    fn zenoh(&self, mode: &str, host: Host) -> String {
        if let Some(certificate) = mode.strip_prefix("tls-") {
            return self.zenoh_over_tls(certificate, host);
        }
        let scouting = "scouting: { multicast: { enabled: false } }";
        let (listen, connect) = match (mode, host) {
            ("router", _) | ("peer", Host::A) => {
                (format!("\"{}\"", self.address(host)), String::new())
            }
            ("client", _) => (String::new(), format!("\"{}\"", self.address(Host::B))),
            _ => (String::new(), format!("\"{}\"", self.address(Host::A))),
        };
        let mode = if mode == "client-of-a" {
            "client"
        } else {
            mode
        };
        format!(
            "{{ mode: \"{mode}\", listen: {{ endpoints: [{listen}] }}, connect: {{ endpoints: [{connect}] }}, {scouting} }}"
        )
    }

    fn zenoh_over_tls(&self, certificate: &str, host: Host) -> String {
        let end = format!("\"tls/{}:7447\"", self.hosts.end(Host::A, 0).address());
        let (listen, connect) = match host {
            Host::A => (end, String::new()),
            Host::B => (String::new(), end),
        };
        let file = |name: &str| self.files.path().join(name).display().to_string();
        let (authority, key) = (file("authority.pem"), file("host.key"));
        let certificate = file(&format!("{certificate}.pem"));
        format!(
            "{{ mode: \"peer\", listen: {{ endpoints: [{listen}] }}, connect: {{ endpoints: [{connect}] }}, \
             scouting: {{ multicast: {{ enabled: false }} }}, transport: {{ link: {{ tls: {{ \
             root_ca_certificate: \"{authority}\", listen_private_key: \"{key}\", \
             listen_certificate: \"{certificate}\" }} }} }} }}"
        )
    }

    /// Makes certificates for host A, `valid.pem` and `expired.pem`, of one authority; or says why not.
    pub(crate) fn certify(&self) -> Option<()> {
        let script = format!(
            "set -e; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'\n\
             openssl req -x509 $new -keyout authority.key -out authority.pem -subj /CN=authority -days 2\n\
             openssl req $new -keyout host.key -out host.csr -subj /CN=host\n\
             echo 'subjectAltName=IP:{}' >names\n\
             for one in valid:2 expired:-1; do openssl x509 -req -in host.csr -CA authority.pem -CAkey authority.key \
             -CAcreateserial -days ${{one#*:}} -extfile names -out ${{one%:*}}.pem; done",
            self.hosts.end(Host::A, 0).address()
        );
        let made = Command::new("sh")
            .args(["-c", &script])
            .current_dir(self.files.path())
            .output();
        let made = made.expect("a shell");
        if !made.status.success() {
            println!(
                "SKIPPED: no certificates: {}",
                String::from_utf8_lossy(&made.stderr).trim()
            );
            return None;
        }
        Some(())
    }

    /// Starts a gateway of a cell on a host; `mode` is that of Zenoh, `peer` if empty.
    #[allow(clippy::too_many_arguments)] // each test names what it is about
    pub(crate) fn gateway(
        &self,
        cell: &Cell,
        name: &str,
        host: Host,
        prefix: &str,
        ports: &str,
        entries: &str,
        mode: &str,
    ) -> Gateway<'_> {
        let mode = if mode.is_empty() { "peer" } else { mode };
        let unique = format!("{name}-{}", cell.name);
        let write = |end: &str, text: String| {
            let path = self.files.path().join(format!("{unique}.{end}"));
            fs::write(&path, text).expect("a file");
            path
        };
        let neighbours = ["motor", "one", "two"]
            .into_iter()
            .filter(|other| *other != name);
        let neighbours: String = neighbours
            .map(|other| format!("[[neighbour]]\nname = \"{other}\"\n"))
            .collect();
        let bus = cell.bus.display();
        write(
            "node.toml",
            format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"{name}\"\n{neighbours}{ports}"),
        );
        write("zenoh.json5", self.zenoh(mode, host));
        let config = write(
            "toml",
            format!(
                "name = \"{name}\"\nprefix = \"{prefix}\"\nnode = \"{unique}.node.toml\"\n\
                 [zenoh]\nconfig = \"{unique}.zenoh.json5\"\n{entries}"
            ),
        );
        let mut command = self.hosts.command(host, env!("CARGO_BIN_EXE_taut-gateway"));
        let child = command
            .args(["run", "--config"])
            .arg(config)
            .spawn()
            .expect("a gateway");
        Gateway {
            network: self,
            host,
            name: name.to_owned(),
            child,
        }
    }

    /// The program at a host, with a configuration of Zenoh for a watcher there.
    pub(crate) fn watcher(&self, host: Host, mode: &str, word: &str) -> Command {
        let zenoh = self.watcher_file(host, mode);
        let mut command = self.hosts.command(host, env!("CARGO_BIN_EXE_taut-gateway"));
        command.arg(word).arg("--zenoh").arg(zenoh);
        command
    }

    /// The command `taut` at a host, which finds the gateway that is tested; or says why not. The variable
    /// `TAUTLINE_TAUT` names it, which `scripts/test.sh gateway` builds.
    pub(crate) fn taut(&self, host: Host) -> Option<Command> {
        let Some(taut) = std::env::var_os("TAUTLINE_TAUT") else {
            println!("SKIPPED: TAUTLINE_TAUT does not name the command taut");
            return None;
        };
        let mut command = self
            .hosts
            .command(host, taut.to_str().expect("a path in UTF-8"));
        let gateway = Path::new(env!("CARGO_BIN_EXE_taut-gateway")).parent()?;
        let mut path = gateway.as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command.env("PATH", path);
        Some(command)
    }

    /// Runs something as a program at a host does.
    pub(crate) fn inside<T: Send>(&self, host: Host, work: impl FnOnce() -> T + Send) -> T {
        self.hosts.inside(host, work).expect("a thread")
    }

    /// Configuration of Zenoh for a watcher at a host, as `mode` has it.
    pub(crate) fn watcher_file(&self, host: Host, mode: &str) -> PathBuf {
        let zenoh = self.files.path().join(format!("watcher-{mode}.json5"));
        fs::write(&zenoh, self.zenoh(mode, host)).expect("a file");
        zenoh
    }

    /// A picture of the fleet, seen from a host.
    pub(crate) fn fleet(&self, host: Host, mode: &str) -> Value {
        let output = self.watcher(host, mode, "fleet").arg("--once").output();
        let text = String::from_utf8(output.expect("an answer").stdout).expect("text");
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// A place for a file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// State of all gateways of a host.
    pub(crate) fn status(&self, host: Host) -> Vec<Value> {
        let text = self.ask(host, &["status", "--json"]);
        serde_json::from_str(&text).expect("a status")
    }

    /// The same as a person reads it.
    pub(crate) fn show(&self, host: Host) -> String {
        self.ask(host, &["status"])
    }

    fn ask(&self, host: Host, arguments: &[&str]) -> String {
        let mut command = self.hosts.command(host, env!("CARGO_BIN_EXE_taut-gateway"));
        let output = command.args(arguments).output().expect("an answer");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// A running gateway.
pub(crate) struct Gateway<'n> {
    network: &'n Network,
    host: Host,
    name: String,
    child: Child,
}

impl Gateway<'_> {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Its state; null while it does not answer.
    pub(crate) fn status(&self) -> Value {
        let all = self.network.status(self.host);
        let own = all
            .into_iter()
            .find(|one| one["process"] == self.child.id());
        own.unwrap_or_default()
    }

    pub(crate) fn state(&self) -> String {
        self.status()["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state() == "active"
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.status()["connections"].as_u64().unwrap_or(0) > 0
    }

    pub(crate) fn knows_others(&self) -> bool {
        self.status()["gateways_standing_by"].as_u64().unwrap_or(0) > 0
    }

    /// A counter of the publication of a port, or of the subscription of a key.
    pub(crate) fn count(&self, of: &str, counter: &str) -> u64 {
        let status = self.status();
        let in_list = |list: &str, name: &str| {
            let all = status[list].as_array()?;
            all.iter().find(|one| one[name] == of)?[counter].as_u64()
        };
        in_list("publications", "port")
            .or_else(|| in_list("subscriptions", "key"))
            .unwrap_or(0)
    }

    /// Its state as a person reads it.
    pub(crate) fn show(&self) -> String {
        self.network.show(self.host)
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

impl Drop for Gateway<'_> {
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

    /// A program of the cell, in this process.
    pub(crate) fn program(&self, name: &str) -> Program {
        program(&self.bus.display().to_string(), name)
    }

    /// A node of the cell with one queuing port, which keeps a thousand messages.
    pub(crate) fn receiver(&self, name: &str, number: u16) -> (Node, QueuingPort) {
        let config = NodeConfig::vbus(BusConfig::new(
            &self.bus.display().to_string(),
            name.parse().unwrap(),
        ));
        let node = Node::open(config).expect("a node");
        let options = QueuingOptions {
            depth: 1024,
            ..QueuingOptions::default()
        };
        let port = node.queuing_port(number.try_into().unwrap(), &options);
        (node, port.expect("a port"))
    }

    /// Directory of its bus.
    pub(crate) fn bus(&self) -> &Path {
        &self.bus
    }

    /// A program of the cell in a process of its own: a test that knows by a variable that it is that.
    pub(crate) fn program_apart(&self, name: &str, test: &str, variable: &str) -> Apart {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        tautline_testbed::child::tie(&mut command, None);
        let child = command
            .args([test, "--exact"])
            .env(variable, &self.bus)
            .stdout(Stdio::null());
        let apart = Apart(child.spawn().expect("a program"));
        let port = self.bus.join(name).join("8");
        eventually("its ports are open", || port.exists());
        apart
    }
}

/// A program in a process of its own.
pub(crate) struct Apart(Child);

impl Apart {
    pub(crate) fn stop(&self) {
        signal(self.0.id(), rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        signal(self.0.id(), rustix::process::Signal::CONT);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// A program on a bus.
pub(crate) fn program(bus: &str, name: &str) -> Program {
    let config = NodeConfig::vbus(BusConfig::new(bus, name.parse().unwrap()));
    let others = ["one", "two", "far"]
        .into_iter()
        .filter(|other| *other != name);
    let others = others.map(|other| bus_neighbour(other.parse().unwrap()));
    let config = others.fold(config, |config, other| {
        config.with_neighbour(other).unwrap()
    });
    let node = Node::open(config).expect("a node");
    let sampling =
        |number: u16| node.sampling_port(number.try_into().unwrap(), &SamplingOptions::default());
    let queuing =
        |number: u16| node.queuing_port(number.try_into().unwrap(), &QueuingOptions::default());
    let mut state = sampling(5).unwrap();
    let readers = state.readers().unwrap();
    Program {
        readers,
        state,
        said: queuing(6).unwrap(),
        value: sampling(7).unwrap(),
        messages: queuing(8).unwrap(),
        _node: node,
    }
}

/// A program of a cell: ports 5 and 6 send, 7 and 8 receive.
pub(crate) struct Program {
    state: SamplingPort,
    readers: Destination,
    said: QueuingPort,
    value: SamplingPort,
    messages: QueuingPort,
    _node: Node,
}

impl Program {
    /// Sends a value to a port of the gateway `one`, if it is there.
    pub(crate) fn publish(&mut self, port: u16, value: &[u8]) {
        let _absent = self.try_publish(port, value);
    }

    pub(crate) fn try_publish(&mut self, port: u16, value: &[u8]) -> Result<(), SendError> {
        let to = self.state.destination("one", port.try_into().unwrap());
        self.state.send(
            to.map_err(|_| SendError::PeerGone)?,
            Priority::NORMAL,
            value,
        )
    }

    /// Publishes a value for all that follow port 5.
    pub(crate) fn broadcast(&mut self, value: &[u8]) {
        self.state
            .send(self.readers, Priority::NORMAL, value)
            .expect("a send");
    }

    /// Sends a message to a port of the gateway `one`.
    pub(crate) fn say(&mut self, port: u16, priority: Priority, message: &[u8]) {
        self.try_say(port, priority, message)
            .expect("a gateway that takes it");
    }

    /// The same; the gateway may not be there.
    pub(crate) fn try_say(
        &mut self,
        port: u16,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let to = self.said.destination("one", port.try_into().unwrap());
        self.said
            .send(to.map_err(|_| SendError::PeerGone)?, priority, message)
    }

    /// The last value of port 7.
    pub(crate) fn value(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; self.value.value_bytes_max()];
        let sample = self.value.read(&mut buffer).expect("a read")?;
        Some(buffer[..sample.length].to_vec())
    }

    /// The next message of port 8.
    pub(crate) fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut buffer = vec![0; self.messages.message_bytes_max()];
        let message = self.messages.receive(&mut buffer).expect("a read")?;
        Some((message.priority.get(), buffer[..message.length].to_vec()))
    }
}

/// A participant of Zenoh that nobody here wrote.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    said: Receiver<Value>,
    heard: RefCell<Vec<Value>>,
}

impl Peer {
    /// Starts it, or says why not.
    pub(crate) fn start(network: &Network, host: Host, mode: &str) -> Option<Self> {
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let python = match python::environment(scratch, &PACKAGES) {
            Ok(python) => python,
            Err(reason) => {
                println!("SKIPPED: no eclipse-zenoh from PyPI: {reason}");
                return None;
            }
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer.py");
        let mut command = network.hosts.command(host, python.to_str().unwrap());
        let mut child = command
            .arg(script)
            .arg(network.zenoh(mode, host))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a participant");
        let (sender, said) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let what = serde_json::from_str(&line).expect("an object");
                if sender.send(what).is_err() {
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
        peer.wait_for("a session", |what| what["opened"] == true);
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
            heard.extend(self.said.try_iter());
            let Some(place) = heard.iter().position(&is_it) else {
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
