//! The bus that is attacked, and the attacker's tools.

use std::fs;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant as Clock};

use crate::common::readers::{role, with_group};
use crate::common::unprivileged::become_user;
use crate::common::{PATIENCE, bus, child, port};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tautline::config::BusConfig;
use tautline::port::QueuingOptions;
use tautline::{Node, NodeConfig, Priority, QueuingPort, Wait, bus_neighbour, now};
use tautline_shm::vbus::handshake::{MESSAGE_BYTES, Message, Step};

// The attacker: a user without rights, in the group of the bus.
pub(crate) use crate::common::readers::STRANGER;
/// A user without rights who is attacked.
pub(crate) const VICTIM: u32 = 65533;

/// A bus of a test, whose directory goes with it.
pub(crate) struct OwnBus(pub(crate) BusConfig);

impl Deref for OwnBus {
    type Target = BusConfig;

    fn deref(&self) -> &BusConfig {
        &self.0
    }
}

impl Drop for OwnBus {
    fn drop(&mut self) {
        // The rest of a failed test does no harm.
        let _left = fs::remove_dir_all(&self.0.name);
    }
}

/// A bus for root and the stranger's group.
pub(crate) fn shared_bus(test: &str) -> OwnBus {
    OwnBus(with_group(bus(test)))
}

pub(crate) fn is_root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    println!("SKIPPED: {test} needs root to act as two users");
    false
}

pub(crate) fn try_open(config: &BusConfig, name: &str) -> Result<Node, tautline::OpenError> {
    let mut config = config.clone();
    config.node = name.parse().unwrap();
    let neighbours = ["victim", "honest", "stranger"].into_iter();
    let others = neighbours.filter(|other| *other != name);
    let config = others.fold(NodeConfig::vbus(config), |config, other| {
        config
            .with_neighbour(bus_neighbour(other.parse().unwrap()))
            .unwrap()
    });
    Node::open(config)
}

pub(crate) fn open(config: &BusConfig, name: &str) -> Node {
    try_open(config, name).unwrap()
}

pub(crate) fn queuing(node: &Node, number: u16) -> QueuingPort {
    let options = QueuingOptions {
        depth: 8,
        message_bytes_max: 64,
        ..QueuingOptions::default()
    };
    node.queuing(port(number)).options(&options).open().unwrap()
}

/// A shared bus with the node that is attacked, and its queuing port 7.
pub(crate) fn shared_bus_with_victim(test: &str) -> (OwnBus, Node, QueuingPort) {
    let config = shared_bus(test);
    let node = open(&config, "victim");
    let port = queuing(&node, 7);
    (config, node, port)
}

/// The stranger's part of a test: its role, and the bus that it attacks.
pub(crate) fn attacker() -> Option<(String, BusConfig)> {
    let (what, config) = role()?;
    Some((what, with_group(config)))
}

pub(crate) fn attack(test: &str, what: &str, config: &BusConfig) -> child::Helper {
    child::Helper::start(test, &format!("{what}:{}", config.name))
}

/// Another node's message to port 7 of the victim arrives.
pub(crate) fn assert_served(config: &BusConfig, victim: &mut QueuingPort) {
    let node = open(config, "honest");
    let mut honest = queuing(&node, 1);
    let to = honest.destination("victim", victim.number()).unwrap();
    let started = Clock::now();
    while let Err(error) = honest.send(to, Priority::HIGHEST, b"honest") {
        assert!(started.elapsed() < PATIENCE, "not served: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut buffer = [0; 64];
    loop {
        let message = victim
            .receive_into(&mut buffer, Wait::Until(now() + PATIENCE))
            .unwrap();
        let length = message.expect("the message does not arrive").length;
        if &buffer[..length] == b"honest" {
            return;
        }
    }
}

/// Does something that must not hang.
pub(crate) fn in_time<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    let result = wait.recv_timeout(PATIENCE);
    result.unwrap_or_else(|_| panic!("{what} hangs"))
}

// The attacker's tools.

/// A connection to a port.
pub(crate) fn dial(bus: &str, node: &str, number: u16) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let path = Path::new(bus).join(node).join(number.to_string());
    rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    socket
}

/// A listener in place of a port's.
pub(crate) fn listen(bus: &str, node: &str, number: u16) -> OwnedFd {
    let path = Path::new(bus).join(node).join(number.to_string());
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    socket
}

/// Lets this process have that many descriptors.
pub(crate) fn limit_descriptors(most: u64) {
    let limit = rustix::process::Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
}

/// The answer to a connect of port 3 of a node to a port. Descriptors in it are cut off.
pub(crate) fn answer_to(as_node: &str, socket: &OwnedFd, number: u16) -> Step {
    let connect = message(Step::Connect, as_node, number);
    rustix::net::send(socket, &connect.to_bytes(), SendFlags::NOSIGNAL).unwrap();
    let mut buffer = [0; MESSAGE_BYTES];
    let (bytes, _) = rustix::net::recv(socket, &mut buffer, RecvFlags::empty()).unwrap();
    Message::from_bytes(&buffer[..bytes]).unwrap().step
}

/// A message of port 3 of a node to a port.
pub(crate) fn message(step: Step, as_node: &str, number: u16) -> Message {
    let name: tautline::NodeName = as_node.parse().unwrap();
    let mut node = [0; 32];
    node[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
    Message {
        peer_port: number,
        ..Message::new(step, node, 3, std::process::id())
    }
}

pub(crate) fn as_stranger() {
    become_user(STRANGER);
}
