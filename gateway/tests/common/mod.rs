//! Cells, gateways and foreign participants for the tests.
#![allow(dead_code)] // each test program uses what it needs

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};
pub(crate) use tautline_bridge::testing::Peer as Foreign;
use tautline_bridge::testing::python_with;
pub(crate) use tautline_bridge::testing::{Cell, Program, Running, eventually};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

/// Packages of the foreign participant.
const PACKAGES: [&str; 1] = ["eclipse-zenoh==1.10.2"];
/// A program that writes pictures of a fleet, and the newest of them.
pub(crate) struct Watcher {
    _running: Running,
    lines: Receiver<Value>,
    newest: RefCell<Value>,
}

impl Watcher {
    pub(crate) fn start(network: &Network, host: Host, mode: &str) -> Self {
        let mut command = network.watcher(host, mode, "fleet");
        let mut child = command
            .args(["--interval", "200ms"])
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
            _running: Running(child),
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

/// A result of the lab about a machine, of which most is left out.
pub(crate) fn lab_result(outcome: &str, max_ns: u64) -> String {
    json!({
        "format": "tautline-lab", "version": 1, "label": "robot", "started_unix_s": 1_795_696_892,
        "machine": { "kernel_release": "6.18.44" },
        "verdict": {
            "class": { "deadline": 250_000 }, "deadline_ns": 250_000,
            "judgements": [{
                "state": "untouched", "outcome": outcome, "samples": 5_000, "max_ns": max_ns, "strength": "weak"
            }],
            "about_hardware": true, "subject": "this machine", "linuxcnc_grade": "usable (up to 50 \u{b5}s)",
        },
    })
    .to_string()
}

/// Bytes that were written as digits, as text.
pub(crate) fn text_of(digits: &str) -> String {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    String::from_utf8((0..digits.len()).step_by(2).map(byte).collect()).expect("text")
}

/// An attachment as a gateway writes it (docs/reference/gateway.md), in digits.
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
        let command = self.gateway_command(cell, name, host, prefix, ports, entries, mode);
        self.started(name, host, command)
    }

    /// Starts a gateway by its command.
    pub(crate) fn started(&self, name: &str, host: Host, mut command: Command) -> Gateway<'_> {
        Gateway {
            network: self,
            host,
            name: name.to_owned(),
            running: Running(command.spawn().expect("a gateway")),
        }
    }

    /// The command of [`gateway`](Self::gateway).
    #[allow(clippy::too_many_arguments)] // as there
    pub(crate) fn gateway_command(
        &self,
        cell: &Cell,
        name: &str,
        host: Host,
        prefix: &str,
        ports: &str,
        entries: &str,
        mode: &str,
    ) -> Command {
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
        let bus = cell.bus().display();
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
        command.args(["run", "--config"]).arg(config);
        command
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
        let mut told: Value = serde_json::from_str(&text).expect("a status");
        serde_json::from_value(told["gateways"].take()).expect("a list")
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
    pub(crate) running: Running,
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
            .find(|one| one["process"] == self.running.0.id());
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

    /// A counter of the publication or the requests of a port, or of the subscription or the answers of a key.
    pub(crate) fn count(&self, of: &str, counter: &str) -> u64 {
        let status = self.status();
        let in_list = |list: &str, name: &str| {
            let all = status[list].as_array()?;
            all.iter().find(|one| one[name] == of)?[counter].as_u64()
        };
        in_list("publications", "port")
            .or_else(|| in_list("subscriptions", "key"))
            .or_else(|| in_list("answers", "key"))
            .or_else(|| in_list("asks", "port"))
            .unwrap_or(0)
    }

    /// Its state as a person reads it.
    pub(crate) fn show(&self) -> String {
        self.network.show(self.host)
    }
}

/// Neighbours of a program of a cell; it sends to the first of them.
const OTHERS: [&str; 3] = ["one", "two", "far"];

/// A program of a cell, in this process.
pub(crate) fn program(cell: &Cell, name: &str) -> Program {
    program_at(cell.bus(), name)
}

/// The same on a bus.
pub(crate) fn program_at(bus: &Path, name: &str) -> Program {
    Program::open(bus, name, &OTHERS)
}

/// A program of a cell in a process of its own: a test that knows by a variable that it is that.
pub(crate) fn program_apart(cell: &Cell, name: &str, test: &str, variable: &str) -> Running {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    tautline_testbed::child::tie(&mut command, None);
    let child = command
        .args([test, "--exact"])
        .env(variable, cell.bus())
        .stdout(Stdio::null());
    let apart = Running(child.spawn().expect("a program"));
    let port = cell.bus().join(name).join("8");
    eventually("its ports are open", || port.exists());
    apart
}

/// Starts a participant of Zenoh that nobody here wrote, or says why not.
pub(crate) fn participant(network: &Network, host: Host, mode: &str) -> Option<Foreign> {
    let python = python_with(env!("CARGO_TARGET_TMPDIR"), &PACKAGES)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer.py");
    let mut command = network.hosts.command(host, python.to_str().unwrap());
    command.arg(script).arg(network.zenoh(mode, host));
    Some(Foreign::start(command))
}
