//! Frames written by hand onto a cable, and the vectors of the wire format.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use serde_json::Value;
use tautline::link::NodeCounters;
use tautline::{MacAddress, Node, Priority, QueuingPort, Wait};
use tautline_proto::wire::{ETHERTYPE_DEFAULT, Header, ethernet};
use tautline_testbed::hosts::{Host, Hosts};

use super::Take;
use super::port;

/// A packet socket that sends whatever it is given.
pub struct Wire {
    socket: OwnedFd,
}

impl Wire {
    /// On the first cable of a host.
    pub fn on(hosts: &Hosts, host: Host) -> Self {
        let interface = hosts.end(host, 0).interface();
        hosts.inside(host, || Self::open(&interface)).unwrap()
    }

    /// On an interface of this name in a host.
    pub fn on_named(hosts: &Hosts, host: Host, interface: &str) -> Self {
        hosts.inside(host, || Self::open(interface)).unwrap()
    }

    /// Watches the first cable of a host.
    pub fn watch(hosts: &Hosts, host: Host) -> Watch {
        let open = || {
            let (family, kind) = (AddressFamily::Packet, SockType::Raw);
            // The host has this one cable, and loopback, on which nothing passes.
            let all = SockProtocol::EthAll;
            let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, all).unwrap();
            let limit = TimeVal::new(super::PATIENCE.as_secs() as _, 0);
            setsockopt(&socket, ReceiveTimeout, &limit).unwrap();
            Watch { socket }
        };
        hosts.inside(host, open).unwrap()
    }

    fn open(interface: &str) -> Self {
        let address = getifaddrs()
            .unwrap()
            .filter(|entry| entry.interface_name == interface)
            .find_map(|entry| entry.address?.as_link_addr().copied())
            .expect("every interface has a link address");
        let (family, kind) = (AddressFamily::Packet, SockType::Raw);
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(socket.as_raw_fd(), &address).unwrap();
        Self { socket }
    }

    /// Whether the kernel took the frame; it takes none without an Ethernet header, and none above the MTU.
    pub fn send(&self, frame: &[u8]) -> bool {
        match send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
            Ok(_) => true,
            Err(Errno::EINVAL | Errno::EMSGSIZE) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A packet socket that sees what passes an interface, both ways.
pub struct Watch {
    socket: OwnedFd,
}

impl Watch {
    /// The next frame that `wanted` takes; fails if none comes.
    pub fn next(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut frame = vec![0; 2048];
        loop {
            let bytes = recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty());
            let bytes = bytes.expect("a frame passes in time");
            if wanted(&frame[..bytes]) {
                frame.truncate(bytes);
                return frame;
            }
        }
    }
}

/// A frame of the Ethernet form.
pub fn frame(to: MacAddress, from: MacAddress, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADERS_BYTES + payload.len()];
    let (headers, rest) = frame.split_at_mut(ethernet::HEADERS_BYTES);
    let headers = headers.try_into().expect("as long as asked for");
    ethernet::emit_header(headers, to, from, ETHERTYPE_DEFAULT, header);
    rest.copy_from_slice(payload);
    frame
}

/// A port behind the frames under test: what arrives there was sent after them, so they have been through the demux.
pub struct Fence {
    port: QueuingPort,
    mac: MacAddress,
    sequence: u32,
}

impl Fence {
    /// Opens the port on `node`, in the calling thread's namespace.
    pub fn open(node: &Node) -> Self {
        Self {
            port: node.queuing(port(4000)).open().unwrap(),
            mac: node.report().mac.as_deref().unwrap().parse().unwrap(),
            sequence: 0,
        }
    }

    /// Waits until everything that `wire` has sent is through.
    pub fn pass(&mut self, wire: &Wire) {
        self.pass_at(wire, Duration::ZERO);
    }

    /// Passes until frames carry the time of their arrival. The kernel begins with packet timestamps a moment after
    /// a socket asked for the first; a frame that came before counts as arrived when it is read, after later frames.
    pub fn pass_until_stamped(&mut self, wire: &Wire) {
        let deadline = tautline::now() + super::PATIENCE * super::slowness();
        loop {
            let (arrival, looked) = self.pass_at(wire, Duration::from_millis(1));
            if arrival < looked {
                return;
            }
            assert!(tautline::now() < deadline, "no frame is stamped");
        }
    }

    /// The arrival of a frame, and the moment of the look at it, `pause` after it was sent.
    fn pass_at(&mut self, wire: &Wire, pause: Duration) -> (tautline::Instant, tautline::Instant) {
        let header = Header::whole(port(4000), port(4000), Priority::HIGHEST, 4, self.sequence);
        let from = MacAddress([2, 0, 0, 0, 0xfe, 0xce]);
        let payload = self.sequence.to_be_bytes();
        assert!(wire.send(&frame(self.mac, from, &header, &payload)));
        std::thread::sleep(pause);
        let looked = tautline::now();
        let mut buffer = [0; 1484];
        let deadline = looked + super::PATIENCE * super::slowness();
        let passed = self.port.look(&mut buffer, Wait::Until(deadline));
        let passed = passed.expect("passes");
        assert_eq!(passed.sequence, self.sequence);
        assert_eq!(buffer[..4], payload);
        self.sequence += 1;
        (passed.arrival, looked)
    }
}

/// Counters between two moments.
pub fn since(before: &NodeCounters, after: &NodeCounters) -> NodeCounters {
    let mut difference = *after;
    for (after, before) in difference.malformed.iter_mut().zip(before.malformed) {
        *after -= before;
    }
    difference.no_port -= before.no_port;
    difference
}

/// The objects in a file of vectors, one a line.
pub fn vectors(file: &str) -> Vec<Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors/wire");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The bytes of a hexadecimal text.
pub fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap())
        .collect()
}
