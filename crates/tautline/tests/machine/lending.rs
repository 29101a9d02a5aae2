//! Datagrams that are filled in buffers of the node's pool and sent from there, and that are looked at where
//! they lie. What all links have in common is in `conformance`.

use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use crate::common::{PACKET, PATIENCE, Side, UDP, XDP, XDP_GENERIC, XDP_TC, config, here, hosts};
use tautline::link::PlainUdp;
use tautline::port::QueuingOptions;
use tautline::send_pool::SendPoolConfig;
use tautline::{Node, NodeConfig, Priority, SendError, UdpPort, Wait};
use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_testbed::hosts::{Host, Hosts};

const PORT: u16 = 5000;
const POOL: SendPoolConfig = SendPoolConfig {
    pages_1: 2,
    pages_4: 1,
    pages_8: 1,
    pages_16: 2,
};

/// A node with a port of plain UDP in host A, and a kernel socket in host B.
struct Meeting {
    port: UdpPort,
    node: Node,
    socket: UdpSocket,
    _hosts: Hosts,
}

fn meeting(side: Side) -> Option<Meeting> {
    meeting_with(side, &QueuingOptions::default())
}

fn meeting_with(side: Side, options: &QueuingOptions) -> Option<Meeting> {
    let hosts = hosts()?;
    let mut config = config(&hosts, Host::A, side);
    config.send_pool = POOL;
    let (node, port) = hosts
        .inside(Host::A, || {
            let node = Node::open(config).unwrap();
            let port = node.udp(PORT).options(options).open().unwrap();
            (node, port)
        })
        .unwrap();
    let own = SocketAddrV4::new(hosts.end(Host::B, 0).address(), PORT);
    let socket = hosts.inside(Host::B, || UdpSocket::bind(own)).unwrap();
    let socket = socket.unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(Meeting {
        port,
        node,
        socket,
        _hosts: hosts,
    })
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (place ^ place >> 8) as u8)
        .collect()
}

fn lent(node: &Node) -> [u32; 4] {
    let status = node.status().send_pool.unwrap();
    status.sizes.map(|size| size.lent)
}

#[test]
fn datagrams_leave_from_where_they_were_filled_in() {
    for side in [XDP, PACKET, UDP] {
        let Some(mut meeting) = meeting(side) else {
            return;
        };
        let to = meeting.port.destination("peer", PORT).unwrap();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        for length in [
            0,
            1,
            1472,
            1473,
            4096,
            4097,
            16_384,
            32_768,
            65_506,
            DATAGRAM_BYTES_MAX,
        ] {
            let mut loan = meeting.port.lend(to, Priority::NORMAL, length).unwrap();
            loan.copy_from_slice(&bytes(length));
            loan.send().unwrap();
            let received = meeting.socket.recv(&mut buffer).unwrap();
            assert!(buffer[..received] == bytes(length), "{length} bytes");
        }
        let length = DATAGRAM_BYTES_MAX + 1;
        let too_long = meeting.port.lend(to, Priority::NORMAL, length).unwrap();
        assert_eq!(
            too_long.send(),
            Err(SendError::MessageTooLarge {
                bytes: DATAGRAM_BYTES_MAX + 1
            })
        );
        let status = &meeting.node.status().ports[0];
        assert_eq!((status.sent, status.send_errors), (10, 1));
    }
}

#[test]
fn an_exhausted_pool_says_so_until_a_buffer_is_dropped() {
    let node = {
        let mut config = NodeConfig::udp([127, 0, 0, 1].into());
        config.send_pool = POOL;
        Node::open(config).unwrap()
    };
    let mut ports = [15_400, 15_401, 15_402].map(|number| node.udp(number).open().unwrap());
    let [one, two, three] = &mut ports;
    let to = |port: &mut UdpPort| port.destination("127.0.0.1", 9).unwrap();
    let (to_one, to_two, to_three) = (to(one), to(two), to(three));
    let held = [
        one.lend(to_one, Priority::NORMAL, 100).unwrap(),
        two.lend(to_two, Priority::NORMAL, 4096).unwrap(),
    ];
    let exhausted = SendError::PoolExhausted { buffer_bytes: 4096 };
    let none = three.lend(to_three, Priority::NORMAL, 4096);
    assert_eq!(none.map(drop), Err(exhausted));
    assert_eq!(lent(&node), [2, 0, 0, 0]);
    // Other sizes are not touched by that, and do not help out.
    let large = three.lend(to_three, Priority::NORMAL, 5000).unwrap();
    assert_eq!(lent(&node), [2, 1, 0, 0]);
    drop(large);
    drop(held);
    assert_eq!(lent(&node), [0; 4]);
    drop(three.lend(to_three, Priority::NORMAL, 100).unwrap());
    let status = node.status();
    let pool = status.send_pool.unwrap();
    assert_eq!(pool.sizes.map(|size| size.exhausted), [1, 0, 0, 0]);
    let errors: u64 = status.ports.iter().map(|port| port.send_errors).sum();
    assert_eq!(errors, 1);
}

#[test]
fn datagrams_are_looked_at_where_they_lie() {
    for side in here([XDP, XDP_GENERIC, XDP_TC, PACKET, UDP]) {
        let options = QueuingOptions {
            depth: 4,
            ..QueuingOptions::default()
        };
        let Some(mut meeting) = meeting_with(side, &options) else {
            return;
        };
        let own = SocketAddrV4::new(*meeting.port.local().ip(), PORT);
        let soon = || tautline::now() + PATIENCE;
        assert!(meeting.port.receive(Wait::Poll).unwrap().is_none());
        for length in [0, 1, 999, 1472] {
            meeting.socket.send_to(&bytes(length), own).unwrap();
            let lent = meeting.port.receive(Wait::Until(soon())).unwrap().unwrap();
            assert_eq!(*lent, bytes(length));
            assert_eq!(lent.datagram().length, length);
            assert_eq!(lent.datagram().source.port(), PORT);
        }
        // Looked at, while its class is filled and overflows.
        meeting.socket.send_to(&[9; 100], own).unwrap();
        let lent = meeting.port.receive(Wait::Until(soon())).unwrap().unwrap();
        for number in 0..4 {
            meeting.socket.send_to(&[number; 100], own).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(*lent, [9; 100]);
        drop(lent);
        let mut taken = Vec::new();
        while let Some(lent) = meeting.port.receive(Wait::Poll).unwrap() {
            assert!(lent.iter().all(|byte| *byte == lent[0]));
            taken.push(lent[0]);
        }
        // Behind a socket, the one too many waits there until it is collected.
        let capabilities = &meeting.node.report().capabilities;
        let expected: &[u8] = match capabilities.plain_udp {
            PlainUdp::PastTheStack => &[0, 1, 2],
            _ => &[0, 1, 2, 3],
        };
        assert_eq!(taken, expected);
        // Forgotten instead of dropped, it is not given back, and found again.
        meeting.socket.send_to(b"again", own).unwrap();
        let lent = meeting.port.receive(Wait::Until(soon())).unwrap().unwrap();
        std::mem::forget(lent);
        let mut buffer = [0; 1484];
        let again = meeting
            .port
            .receive_into(&mut buffer, Wait::Poll)
            .unwrap()
            .unwrap();
        assert_eq!(&buffer[..again.length], b"again");
        assert_eq!(
            meeting.port.receive_into(&mut buffer, Wait::Poll).unwrap(),
            None
        );
    }
}

#[test]
fn a_port_that_lends_wakes_its_sleeper() {
    for side in [XDP, PACKET, UDP] {
        let Some(mut meeting) = meeting(side) else {
            return;
        };
        let own = SocketAddrV4::new(*meeting.port.local().ip(), PORT);
        meeting.port.descriptor().unwrap();
        assert!(meeting.port.receive(Wait::Poll).unwrap().is_none());
        meeting.socket.send_to(b"wake up", own).unwrap();
        let descriptor = meeting.port.descriptor().unwrap();
        let mut poll = [rustix::event::PollFd::new(
            &descriptor,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec::try_from(PATIENCE).unwrap();
        assert_eq!(rustix::event::poll(&mut poll, Some(&limit)).unwrap(), 1);
        let lent = meeting.port.receive(Wait::Poll).unwrap().unwrap();
        assert_eq!(&*lent, b"wake up");
    }
}
