//! The bus that is attacked, and the attacker's tools.

use std::fs::{self, Permissions};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant as Clock};

use crate::common::readers::{role, with_group};
use crate::common::unprivileged::become_user;
use crate::common::{PATIENCE, bus, child, port};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{Node, NodeConfig, Priority, QueuingPort, SamplingPort, Wait, bus_neighbour, now};
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

pub(crate) fn sampling(node: &Node, number: u16) -> SamplingPort {
    let options = SamplingOptions {
        value_bytes_max: 64,
        ..SamplingOptions::default()
    };
    node.sampling(port(number))
        .options(&options)
        .open()
        .unwrap()
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

/// Where the socket of a port may be.
pub(crate) fn places(bus: &str, node: &str, number: u16) -> [PathBuf; 2] {
    let bus = Path::new(bus);
    [
        bus.join(node).join(number.to_string()),
        bus.join(format!("{node}.{number}")),
    ]
}

pub(crate) fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

pub(crate) fn dial(bus: &str, node: &str, number: u16) -> Option<OwnedFd> {
    let socket = seqpacket();
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&socket, flags).unwrap();
    let mut places = places(bus, node, number).into_iter();
    let connected = places.any(|path| {
        let address = SocketAddrUnix::new(&path).unwrap();
        rustix::net::connect(&socket, &address).is_ok()
    });
    rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::empty()).unwrap();
    connected.then_some(socket)
}

pub(crate) fn listen(path: &Path) -> OwnedFd {
    let socket = seqpacket();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
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

/// Sends a message with descriptors; whether the kernel took it.
pub(crate) fn send(socket: &OwnedFd, message: &Message, descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let bytes = message.to_bytes();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).is_ok()
}

/// The next message within a second.
pub(crate) fn answer(socket: &OwnedFd) -> Option<Message> {
    let (message, descriptors) = answer_with_descriptors(socket)?;
    // Kept by the attacker.
    std::mem::forget(descriptors);
    Some(message)
}

/// The same with its descriptors.
pub(crate) fn answer_with_descriptors(socket: &OwnedFd) -> Option<(Message, Vec<OwnedFd>)> {
    let second = rustix::event::Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut polled = [rustix::event::PollFd::new(
        socket,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut polled, Some(&second)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0; MESSAGE_BYTES];
    let flags = RecvFlags::DONTWAIT;
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags);
    let bytes = received.ok()?.bytes;
    let descriptors = ancillary.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights.collect::<Vec<OwnedFd>>()),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    Some((Message::from_bytes(&buffer[..bytes]).ok()?, descriptors))
}

pub(crate) fn connect_message(as_node: &str, number: u16) -> Message {
    message(Step::Connect, as_node, number)
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

/// Leaves lingering sockets to the side that has them in flight. The side that closes last blocks: if the other side
/// has been faster, that is a thread of ours. Kept if the kernel did not take them.
pub(crate) fn give_up(descriptors: Vec<OwnedFd>, taken: bool) {
    if taken {
        for descriptor in descriptors {
            std::thread::spawn(move || drop(descriptor));
        }
    } else {
        std::mem::forget(descriptors);
    }
}

pub(crate) fn as_stranger() {
    become_user(STRANGER);
}
