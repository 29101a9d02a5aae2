//! A port of plain UDP and a kernel socket that meet, and frames with UDP made by hand.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use tautline::port::{Datagram, QueuingOptions};
use tautline::{MacAddress, Node, Priority, UdpPort, Wait};
use tautline_proto::ip::send::{Route, SendBuffer};
use tautline_proto::wire::udp::internet_checksum;
use tautline_testbed::hosts::{Host, Hosts};

use super::{PATIENCE, Side, hosts, is_here, open};

/// The port of ours.
pub const PORT: u16 = 5000;

/// A node with a port of plain UDP in host B, and a kernel socket in host A.
pub struct Meeting {
    pub port: UdpPort,
    pub node: Node,
    pub socket: UdpSocket,
    pub hosts: Hosts,
    /// Control process that the node is open through.
    control: Option<super::control::Thread>,
}

impl Meeting {
    pub fn new(hosts: Hosts, side: Side) -> Self {
        Self::with(hosts, side, &QueuingOptions::default())
    }

    pub fn with(hosts: Hosts, side: Side, options: &QueuingOptions) -> Self {
        let node = open(&hosts, Host::B, side);
        let port = hosts.inside(Host::B, || node.udp(PORT).options(options).open());
        let socket = hosts.inside(Host::A, || UdpSocket::bind((ip(&hosts, Host::A), 0)));
        let socket = socket.unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            port: port.unwrap().unwrap(),
            node,
            socket,
            hosts,
            control: None,
        }
    }

    /// A node that is open through a control process.
    pub fn controlled(side: Side, options: &QueuingOptions) -> Option<Self> {
        is_here(side).then_some(())?;
        let hosts = hosts()?;
        let control = Some(super::control::Thread::start(&hosts, side));
        let meeting = Self::with(hosts, side, options);
        assert!(meeting.node.report().control_process.is_some());
        Some(Self { control, ..meeting })
    }

    pub fn of(side: Side) -> Option<Self> {
        Some(Self::new(hosts()?, side))
    }

    pub fn own(&self) -> SocketAddrV4 {
        SocketAddrV4::new(ip(&self.hosts, Host::B), PORT)
    }

    pub fn peer(&self) -> SocketAddrV4 {
        match self.socket.local_addr().unwrap() {
            std::net::SocketAddr::V4(address) => address,
            other => panic!("{other}"),
        }
    }

    pub fn receive(&mut self, buffer: &mut [u8]) -> Datagram {
        let deadline = tautline::now() + PATIENCE;
        let received = self
            .port
            .receive_into(buffer, Wait::Until(deadline))
            .unwrap();
        received.expect("a datagram comes")
    }

    pub fn status(&self) -> tautline::status::PortStatus {
        self.node.status().ports.remove(0)
    }
}

pub fn ip(hosts: &Hosts, host: Host) -> Ipv4Addr {
    hosts.end(host, 0).address()
}

pub fn bytes(length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (place ^ place >> 8) as u8)
        .collect()
}

pub fn set<T: rustix::fd::AsFd>(socket: T, level: i32, option: i32, value: &[u8]) {
    use std::os::fd::AsRawFd;
    let socket = socket.as_fd().as_raw_fd();
    // The options that are needed here are in no library's safe interface.
    #[allow(unsafe_code)]
    // SAFETY: `value` is readable for its length; the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            socket,
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A frame from host A, port 7, to the meeting's port.
pub fn frame(meeting: &Meeting, payload: &[u8]) -> Vec<u8> {
    let from = SocketAddrV4::new(ip(&meeting.hosts, Host::A), 7);
    frames(meeting, from, meeting.own(), payload, (0, 1500)).remove(0)
}

/// The frames of a datagram on host A's cable, of this identification and for this MTU.
pub fn frames(
    meeting: &Meeting,
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
    (identification, mtu_bytes): (u16, usize),
) -> Vec<Vec<u8>> {
    let (a, b) = (meeting.hosts.end(Host::A, 0), meeting.hosts.end(Host::B, 0));
    let (from_mac, to_mac) = (MacAddress(a.mac()), MacAddress(b.mac()));
    let route = Route::new(from, to, from_mac, to_mac, mtu_bytes);
    let mut buffer = SendBuffer::new(payload.len());
    let room = buffer.payload(payload.len()).unwrap();
    room.copy_from_slice(payload);
    let mut left = buffer.frames(&route, Priority::NORMAL, payload.len(), identification);
    let mut frames = Vec::new();
    while let Some(frame) = left.next_frame() {
        frames.push(frame.to_vec());
    }
    frames
}

/// `frame` with some bytes changed and the IP checksum made right.
pub fn changed(frame: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for (place, value) in changes {
        frame[*place] = *value;
    }
    frame[24..26].fill(0);
    let checksum = internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}
