//! A control process and its clients, each a process of its own: what the tests of both share.

use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use serde_json::Value;
use tautline::config::{ServiceConfig, Vlan};
use tautline::control::Server;
use tautline::{Node, NodeConfig, PortKey, Priority, Wait, status};
use tautline_testbed::hosts::{Host, Hosts};

use super::child::{self, Helper, READY};
use super::{PATIENCE, Side, Take, port};

/// A user that owns nothing and is in no group: the one that Linux keeps for that.
pub const NOBODY: u32 = 65_534;
/// Another that no entry is for.
pub const STRANGER: u32 = 65_533;

/// Value of `role` for a child that is the control process; the configuration follows.
const CONTROL: &str = "control\n";

/// If this process was started by [`start_control`]: serves until the parent says so or dies.
pub fn served(role: &str) -> bool {
    let Some(config) = role.strip_prefix(CONTROL) else {
        return false;
    };
    let config: ServiceConfig = config.parse().unwrap();
    match Server::open(config) {
        Ok(mut server) => {
            println!("taken over: {}", server.taken_over());
            println!("{}", server.confine(false));
            println!("{READY}");
            if let Err(error) = server.run(std::io::stdin()) {
                println!("ended: {error}");
            }
        }
        Err(error) => {
            println!("not opened: {error}");
            println!("{READY}");
        }
    }
    true
}

/// A control process that is none: a thread of this one.
pub struct Thread {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Serves the second host's first cable, set up as one side of a pair.
    pub fn start(hosts: &Hosts, side: Side) -> Self {
        let config = super::config(hosts, Host::B, side);
        let mut server = hosts
            .inside(Host::B, || {
                Server::open(ServiceConfig::new(config)).unwrap()
            })
            .unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let namespace = hosts.namespace(Host::B);
        let thread = std::thread::spawn(move || {
            tautline_testbed::child::enter(&namespace).unwrap();
            server.run(&stopped).unwrap();
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Starts a control process for the second host's first cable.
pub fn start_control(hosts: &Hosts, test: &str, allow: &str) -> Helper {
    let role = format!("{CONTROL}interface = \"taut0\"\n{allow}");
    hosts
        .inside(Host::B, || Helper::start(test, &role))
        .unwrap()
}

/// An `[[allow]]` entry for [`NOBODY`].
pub fn allow(ports: &str, rest: &str) -> String {
    format!("[[allow]]\nuser = \"{NOBODY}\"\nports = [{ports}]\n{rest}\n")
}

/// Starts a client in the second host.
pub fn start_client(hosts: &Hosts, test: &str, role: &str) -> Helper {
    hosts.inside(Host::B, || Helper::start(test, role)).unwrap()
}

/// The node of a client: the caller becomes `user` first, without any capability, and is killed
/// by the kernel if it makes a bpf() call.
pub fn client_node(user: u32) -> Result<Node, tautline::OpenError> {
    forbid_and_open(user, &mut false)
}

/// The same in a VLAN.
pub fn client_node_in(vlan: Vlan, user: u32) -> Result<Node, tautline::OpenError> {
    forbid_and_open_in(vlan, user, &mut false)
}

/// The same for one that tries again, which has become that user already.
pub fn forbid_and_open(user: u32, forbidden: &mut bool) -> Result<Node, tautline::OpenError> {
    forbid_and_open_in(Vlan::NONE, user, forbidden)
}

fn forbid_and_open_in(
    vlan: Vlan,
    user: u32,
    forbidden: &mut bool,
) -> Result<Node, tautline::OpenError> {
    if !*forbidden {
        super::unprivileged::become_user(user);
        super::unprivileged::forbid_bpf();
        *forbidden = true;
    }
    let mut config = NodeConfig::on("taut0");
    config.link = Some(tautline::LinkKind::Xdp);
    config.vlan = vlan;
    Node::open(config)
}

/// Answers every message on `number` until the parent is gone.
pub fn echo_for_ever(node: &Node, number: u16) {
    let port = node.queuing(port(number)).open().unwrap();
    child::answer_for_ever(port, 1484, |port, message, bytes| {
        let answer = &bytes[..message.length];
        port.reply(message.source, message.priority, answer)
            .unwrap();
    });
}

/// Whether an echo answers on `number` of the second host.
pub fn answers(hosts: &Hosts, node: &Node, number: u16) -> bool {
    let ask = || {
        let mut port = node.queuing(super::port(4001)).open().unwrap();
        let to = port.destination("peer", super::port(number)).unwrap();
        let mut buffer = [0; 1484];
        port.send(to, Priority::HIGHEST, b"are you there?").unwrap();
        let deadline = tautline::now() + Duration::from_millis(500);
        port.look(&mut buffer, Wait::Until(deadline))
            .is_some_and(|message| &buffer[..message.length] == b"are you there?")
    };
    hosts.inside(Host::A, ask).unwrap()
}

/// Status that the control process of the second host publishes.
pub fn control_status(hosts: &Hosts) -> Value {
    let (states, _) = hosts.inside(Host::B, || status::nodes().unwrap()).unwrap();
    let of_control = |state: &Value| state.get("control").is_some();
    states.into_iter().find(of_control).unwrap_or_default()
}

/// The ports that it has given out.
pub fn ports_given(hosts: &Hosts) -> Vec<u64> {
    given(hosts, |key| match key {
        PortKey::Message(number) => Some(number.get()),
        _ => None,
    })
}

/// Those of plain UDP.
pub fn udp_ports_given(hosts: &Hosts) -> Vec<u64> {
    given(hosts, |key| match key {
        PortKey::Udp(port) => Some(port.get()),
        _ => None,
    })
}

/// The EtherTypes of raw ports.
pub fn ethertypes_given(hosts: &Hosts) -> Vec<u64> {
    given(hosts, |key| match key {
        PortKey::Raw(ethertype) => Some(ethertype.get()),
        _ => None,
    })
}

fn given(hosts: &Hosts, of_kind: fn(PortKey) -> Option<u16>) -> Vec<u64> {
    let status = control_status(hosts);
    let clients = status["control"]["clients"].as_array().cloned();
    let ports = clients.unwrap_or_default().into_iter().flat_map(|client| {
        let ports = client["ports"].as_array().cloned().unwrap_or_default();
        ports.into_iter().filter_map(move |port| {
            let key = port["key"].as_str()?.parse().ok()?;
            of_kind(key).map(u64::from)
        })
    });
    let mut ports: Vec<u64> = ports.collect();
    ports.sort_unstable();
    ports
}

/// Ports of an entry outlive the control process, are taken over by the next one, and free when their client has died.
/// `reach` is told when it is called; `given` are the keys of the kind that have been given out.
pub fn outlives_control(
    (hosts, test, rules): (&Hosts, &str, &str),
    (given, key): (fn(&Hosts) -> Vec<u64>, u16),
    mut reach: impl FnMut(&str),
) {
    let control = start_control(hosts, test, rules);
    let client = start_client(hosts, test, "client");
    reach("with its control process");
    assert_eq!(given(hosts), [u64::from(key)]);
    control.kill();
    reach("without a control process");
    let mut successor = start_control(hosts, test, rules);
    reach("with another one");
    assert_eq!(given(hosts), [u64::from(key)]);
    client.kill();
    eventually("a dead client's port is free", || given(hosts).is_empty());
    let _next = start_client(hosts, test, "client");
    reach("after the next one has the port");
    successor.let_go();
}

/// Waits until something is so; fails if it does not come to be.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what} does not come to be");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The program on the second host's cable, at whichever hook a demux can be.
pub fn program_of_demux(hosts: &Hosts) -> Option<ProgramInfo> {
    let at_tc = || SchedClassifier::query_tcx("taut0", TcAttachType::Ingress);
    // Kernels before 6.6 have no such hook.
    let at_tc = hosts.inside(Host::B, at_tc).unwrap().ok();
    let first = at_tc.and_then(|(_, programs)| programs.into_iter().next());
    first.or_else(|| {
        let mut command = hosts.command(Host::B, "ip");
        let output = command.args(["-j", "link", "show", "taut0"]).output();
        let links: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let id = links[0]["xdp"]["prog"]["id"].as_u64()?;
        let mut loaded = aya::programs::loaded_programs().filter_map(Result::ok);
        loaded.find(|program| u64::from(program.id()) == id)
    })
}

/// Whether there is one.
pub fn attached(hosts: &Hosts) -> bool {
    program_of_demux(hosts).is_some()
}
