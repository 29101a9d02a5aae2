//! Packet buffers that hold several datagrams: of a kernel sender with `UDP_SEGMENT`, or joined by the receiving
//! kernel. A port gets each datagram by itself, or the node counts the buffer and leaves it to Linux.

use std::net::{SocketAddrV4, UdpSocket};

use crate::common::udp::{Meeting, ip, set};
use crate::common::{
    Side, Take, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, here, hosts, open, port,
};
use tautline::{Node, Priority, Wait};
use tautline_proto::wire::{HEADER_BYTES, Header, UDP_PORT_BASE};
use tautline_testbed::hosts::Host;

const SIDES: [Side; 5] = [XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC];

const SOL_UDP: i32 = 17;
const UDP_SEGMENT: i32 = 103;

/// Sends datagrams of this size, which the kernel cuts one buffer into.
fn send_joined(socket: &UdpSocket, to: SocketAddrV4, datagrams: &[u8], bytes: usize) {
    set(socket, SOL_UDP, UDP_SEGMENT, &(bytes as i32).to_ne_bytes());
    socket.send_to(datagrams, to).unwrap();
    set(socket, SOL_UDP, UDP_SEGMENT, &0i32.to_ne_bytes());
}

fn joined(node: &Node) -> u64 {
    node.status().counters.joined_datagrams
}

#[test]
fn datagrams_in_one_buffer_are_never_one_message() {
    for side in here(SIDES) {
        for (bytes, count) in [(500, 2), (1000, 20)] {
            let Some(mut meeting) = Meeting::of(side) else {
                return;
            };
            let datagrams: Vec<u8> = (0..count).flat_map(|one| vec![one; bytes]).collect();
            send_joined(&meeting.socket, meeting.own(), &datagrams, bytes);
            meeting.socket.send_to(b"alone", meeting.own()).unwrap();
            let mut buffer = [0; 1484];
            let mut received = Vec::new();
            loop {
                let length = meeting.receive(&mut buffer).length;
                if buffer[..length] == *b"alone" {
                    break;
                }
                assert_eq!(length, bytes, "{:?} {:?}", side.link, side.mode);
                received.push(buffer[0]);
            }
            let all: Vec<u8> = (0..count).collect();
            match joined(&meeting.node) {
                0 => assert_eq!(received, all),
                left => assert_eq!((left, received.len()), (1, 0)),
            }
        }
    }
}

#[test]
fn messages_in_one_buffer_are_delivered_or_counted() {
    for side in here(SIDES) {
        let Some(hosts) = hosts() else { return };
        let node = open(&hosts, Host::B, side);
        let receiver = hosts.inside(Host::B, || node.queuing(port(12)).open());
        let mut receiver = receiver.unwrap().unwrap();
        let socket = hosts.inside(Host::A, || {
            UdpSocket::bind((ip(&hosts, Host::A), UDP_PORT_BASE + 11)).unwrap()
        });
        let socket = socket.unwrap();
        let to = SocketAddrV4::new(ip(&hosts, Host::B), UDP_PORT_BASE + 12);
        let message = |sequence| {
            let header = Header::whole(port(12), port(11), Priority::NORMAL, 32, sequence);
            let mut bytes = [0; HEADER_BYTES];
            header.emit(&mut bytes);
            [&bytes[..], &[sequence as u8; 32]].concat()
        };
        let messages: Vec<u8> = (0..40).flat_map(message).collect();
        send_joined(&socket, to, &messages, 48);
        socket.send_to(&message(40), to).unwrap();
        let mut received = Vec::new();
        let mut buffer = [0; 1484];
        while received.last() != Some(&40) {
            let message = receiver.take_into(&mut buffer);
            assert_eq!(message.length, 32);
            received.push(buffer[0]);
        }
        match joined(&node) {
            0 => assert_eq!(received, (0..=40).collect::<Vec<u8>>()),
            left => assert_eq!((left, received), (1, vec![40])),
        }
    }
}

/// GRO of datagrams for others, which polls in threads and interrupts put off make likely.
#[test]
fn datagrams_that_the_kernel_joins_on_arrival_are_counted() {
    for side in here([XDP_TC]) {
        let Some(hosts) = hosts() else { return };
        let features = ["-K", "taut0", "gro", "on", "rx-udp-gro-forwarding", "on"];
        hosts.run(Host::B, "ethtool", &features).unwrap();
        for (file, value) in [
            ("threaded", "1"),
            ("gro_flush_timeout", "200000"),
            ("napi_defer_hard_irqs", "5"),
        ] {
            hosts.set_interface(Host::B, 0, file, value).unwrap();
        }
        let mut meeting = Meeting::new(hosts, side);
        for _ in 0..40 {
            meeting.socket.send_to(&[1; 500], meeting.own()).unwrap();
        }
        // Until what the kernel holds back has come.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut buffer = [0; 1484];
        let mut received = 0;
        while let Some(datagram) = meeting.port.receive_into(&mut buffer, Wait::Poll).unwrap() {
            assert_eq!(datagram.length, 500);
            received += 1;
        }
        assert!(
            received == 40 || joined(&meeting.node) > 0,
            "{received} of 40"
        );
    }
}
