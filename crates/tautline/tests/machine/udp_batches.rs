//! Batches of ports of plain UDP: to sockets of the kernel and to ports of ours, on every link.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

use crate::common::control;
use crate::common::udp::{Meeting, PORT, bytes, ip};
use crate::common::{
    PACKET, PATIENCE, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, config, here,
    hosts, pair,
};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tautline::neighbours::Form;
use tautline::port::{BATCH_FRAMES, Outgoing, QueuingOptions};
use tautline::{
    Destination, MacAddress, Neighbour, Node, PortError, Priority, SendError, UdpPort, Wait,
};
use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_state::interface::Polls;
use tautline_testbed::child::{allowed_cpus, pin, schedule_fifo};
use tautline_testbed::hosts::{Host, Hosts};

const SIDES: [Side; 7] = [XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, PACKET, UDP];

fn outgoing(to: Destination, message: &[u8]) -> Outgoing<'_> {
    Outgoing {
        to,
        priority: Priority::NORMAL,
        message,
    }
}

/// A socket of the kernel in host A, and the way to it.
fn peer(hosts: &Hosts, port: &mut UdpPort) -> (UdpSocket, Destination) {
    let socket = hosts.inside(Host::A, || UdpSocket::bind((ip(hosts, Host::A), 0)));
    let socket = socket.unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let number = socket.local_addr().unwrap().port();
    let to = port.destination("peer", number).unwrap();
    (socket, to)
}

/// More than two calls' worth, in turns to two peers, with long ones among them.
fn arrives_whole_and_in_order(mut meeting: Meeting) {
    let peers = [(); 2].map(|()| peer(&meeting.hosts, &mut meeting.port));
    // Short ones mostly: all have to fit a socket's default room.
    let lengths = [0, 1, 2, 17, 63, 64, 255, 256, 1471, 1472];
    let datagrams: Vec<_> = (0..BATCH_FRAMES * 2 + 7)
        .map(|number| match number {
            // Alone, twice in a row, and the last of all.
            5 | 70 => bytes(8192),
            40 => bytes(1473),
            41 => bytes(20_000),
            _ => bytes(lengths[number % lengths.len()]),
        })
        .collect();
    let batch: Vec<_> = datagrams
        .iter()
        .enumerate()
        .map(|(number, datagram)| outgoing(peers[number % 2].1, datagram))
        .collect();
    assert_eq!(meeting.port.send_batch(&[]), Ok(0));
    assert_eq!(meeting.port.send_batch(&batch), Ok(batch.len()));
    let mut buffer = vec![0; 65_536];
    for (number, expected) in datagrams.iter().enumerate() {
        let (received, from) = peers[number % 2].0.recv_from(&mut buffer).unwrap();
        assert!(buffer[..received] == *expected, "datagram {number}");
        assert_eq!(from, meeting.own().into());
    }
    let status = meeting.status();
    assert_eq!((status.sent, status.send_errors), (batch.len() as u64, 0));
}

#[test]
fn a_batch_reaches_each_peer_whole_and_in_order() {
    for side in here(SIDES) {
        let Some(meeting) = Meeting::of(side) else {
            return;
        };
        arrives_whole_and_in_order(meeting);
    }
}

/// Where the port is an ordinary socket, whatever the link.
#[test]
fn a_batch_leaves_a_node_of_a_control_process() {
    let Some(hosts) = hosts() else { return };
    let _control = control::Thread::start(&hosts, XDP);
    let meeting = Meeting::new(hosts, XDP);
    let report = meeting.node.report();
    assert!(report.control_process.is_some() && report.capabilities.batches);
    arrives_whole_and_in_order(meeting);
}

#[test]
fn each_datagram_of_a_batch_has_its_own_priority() {
    for side in here(SIDES) {
        let Some(pair) = pair(side, side) else { return };
        let options = QueuingOptions::default();
        let (mut sender, mut receiver, to) = pair.udp_ports([5001, 5002], &options);
        // Runs of the same one, and some that stand alone.
        let urgent = [0, 0, 0, 7, 7, 3, 0, 5, 5, 1];
        let numbers: Vec<_> = (0..40u8).map(|number| [number]).collect();
        let priority = |number: u8| Priority::ALL[urgent[usize::from(number) % urgent.len()]];
        let batch: Vec<_> = numbers
            .iter()
            .map(|number| Outgoing {
                to,
                priority: priority(number[0]),
                message: number,
            })
            .collect();
        assert_eq!(sender.send_batch(&batch), Ok(40));
        let mut buffer = [0; 1484];
        let mut seen = [None; Priority::ALL.len()];
        for _ in 0..40 {
            let received = receiver
                .receive_into(&mut buffer, Wait::Until(pair.soon()))
                .unwrap();
            let received = received.expect("it arrives");
            assert_eq!(received.priority, priority(buffer[0]));
            // In order among those of its priority.
            let last = seen[received.priority.index()].replace(buffer[0]);
            assert!(last < Some(buffer[0]));
        }
        assert_eq!(pair.b.status().ports[0].received, 40);
    }
}

#[test]
fn what_cannot_be_sent_ends_a_batch() {
    for side in here(SIDES) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let (socket, to) = peer(&meeting.hosts, &mut meeting.port);
        let hopeless = vec![0; DATAGRAM_BYTES_MAX + 1];
        let batch = [&b"before"[..], b"", &hopeless, b"after"].map(|one| outgoing(to, one));
        let port = &mut meeting.port;
        assert_eq!(port.send_batch(&batch), Ok(2));
        let too_large = SendError::MessageTooLarge {
            bytes: hopeless.len(),
        };
        assert_eq!(port.send_batch(&batch[2..]), Err(too_large));
        assert_eq!(port.send_batch(&batch[3..]), Ok(1));
        let mut buffer = [0; 100];
        for expected in [&b"before"[..], b"", b"after"] {
            let received = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..received], expected);
        }
        let status = meeting.status();
        assert_eq!((status.sent, status.send_errors), (3, 1));
    }
}

/// Neither a closed port nor an absent station keeps the others of a batch from their ways.
#[test]
fn who_is_not_there_holds_up_nobody() {
    for side in here(SIDES) {
        let Some(hosts) = hosts() else { return };
        let ghost = Neighbour {
            name: "ghost".to_owned(),
            mac: MacAddress([2, 0, 0, 0, 0, 0x77]),
            ip: Some(Ipv4Addr::new(10, 77, 0, 77)),
            form: Form::Ethernet,
        };
        let config = config(&hosts, Host::B, side);
        let config = config.with_neighbour(ghost).unwrap();
        let open = || {
            let node = Node::open(config).unwrap();
            let port = node.udp(PORT).open().unwrap();
            (node, port)
        };
        let (node, mut port) = hosts.inside(Host::B, open).unwrap();
        assert!(matches!(
            port.destination("nobody", 9),
            Err(PortError::PeerUnknown { .. })
        ));
        assert!(matches!(
            port.destination("peer", 0),
            Err(PortError::Value(_))
        ));
        let (socket, to) = peer(&hosts, &mut port);
        let closed = port.destination("peer", 9).unwrap();
        let ghost = port.destination("ghost", 9).unwrap();
        let mut buffer = [0; 1484];
        for _ in 0..3 {
            let numbers: Vec<_> = (0..40u8).map(|number| [number]).collect();
            let batch: Vec<_> = numbers
                .iter()
                .map(|number| match number[0] % 8 {
                    1 => outgoing(closed, number),
                    5 => outgoing(ghost, number),
                    _ => outgoing(to, number),
                })
                .collect();
            let mut sent = 0;
            while sent < batch.len() {
                sent += port.send_batch(&batch[sent..]).unwrap();
            }
            for number in (0..40u8).filter(|number| !matches!(number % 8, 1 | 5)) {
                assert_eq!(socket.recv(&mut buffer).unwrap(), 1);
                assert_eq!(buffer[0], number);
            }
        }
        let status = &node.status().ports[0];
        assert_eq!((status.sent, status.send_errors), (120, 0));
    }
}

/// Sends batches of the numbers from 0 on until the link takes no more: how many it took, and the error. Nothing if
/// it takes whatever comes.
fn fill(port: &mut UdpPort, to: Destination) -> Option<(u16, SendError)> {
    let mut sent = 0;
    while sent < 20_000 {
        let numbers: Vec<_> = (sent..sent + 40).map(u16::to_be_bytes).collect();
        let batch: Vec<_> = numbers.iter().map(|number| outgoing(to, number)).collect();
        match port.send_batch(&batch) {
            Ok(taken) => sent += taken as u16,
            Err(error) => return Some((sent, error)),
        }
    }
    None
}

/// Where a queueing discipline holds datagrams back, the socket is full some time.
#[test]
fn a_batch_ends_where_the_socket_is_full() {
    for side in [PACKET, UDP] {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let slow = "qdisc add dev taut0 root tbf rate 400kbit burst 2000 limit 1000000";
        let arguments: Vec<_> = slow.split(' ').collect();
        meeting.hosts.run(Host::B, "tc", &arguments).unwrap();
        let (socket, to) = peer(&meeting.hosts, &mut meeting.port);
        let (sent, error) = fill(&mut meeting.port, to).expect("it is full some time");
        assert_eq!(error, SendError::TransmitQueueFull);
        let status = meeting.status();
        assert_eq!((status.sent, status.send_errors), (sent.into(), 1));
        assert!(sent > 20, "{sent}");
        let mut buffer = [0; 100];
        for number in 0..20u16 {
            assert_eq!(socket.recv(&mut buffer).unwrap(), 2);
            assert_eq!(buffer[..2], number.to_be_bytes());
        }
    }
}

/// A receiver whose poll does not get the CPU: the cable takes what it holds, and after that nothing.
#[test]
fn a_batch_ends_where_the_cable_is_full() {
    for side in [XDP, XSK] {
        let Some(pair) = pair(side, XDP) else { return };
        let hosts = pair.hosts.as_ref().unwrap();
        hosts.set_interface(Host::B, 0, "threaded", "1").unwrap();
        let cpu = allowed_cpus().unwrap()[0];
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        let interface = hosts.end(Host::B, 0).interface();
        let polls = hosts.inside(Host::B, || Polls::of(&interface));
        for thread in polls.unwrap().unwrap().threads {
            sched_setaffinity(Pid::from_raw(thread as i32), &only).unwrap();
        }
        // With one, the driver says that it is full; without one it drops what it has no room for, and says nothing.
        let discipline = ["qdisc", "add", "dev", "taut0", "root", "pfifo"];
        hosts.run(Host::A, "tc", &discipline).unwrap();
        let options = QueuingOptions {
            depth: 1024,
            ..QueuingOptions::default()
        };
        let (mut sender, mut receiver, to) = pair.udp_ports([5001, 5002], &options);
        let filled = thread::scope(|scope| {
            let filling = scope.spawn(|| {
                pin(cpu).unwrap();
                schedule_fifo(50).unwrap();
                fill(&mut sender, to)
            });
            filling.join().unwrap()
        });
        let Some((sent, error)) = filled else {
            println!(
                "SKIPPED: cables of this kernel (before Linux 6.16) never say that they are full"
            );
            return;
        };
        assert_eq!(error, SendError::TransmitQueueFull);
        let status = &pair.a.status().ports[0];
        assert_eq!((status.sent, status.send_errors), (sent.into(), 1));
        let mut buffer = [0; 1484];
        for number in 0..sent {
            // On `xsk` what waits in the ring leaves when a thread looks.
            assert_eq!(sender.receive_into(&mut buffer, Wait::Poll), Ok(None));
            let received = receiver.take_into(&mut buffer);
            assert_eq!(received.length, 2);
            assert_eq!(buffer[..2], number.to_be_bytes());
        }
        assert_eq!(receiver.receive_into(&mut buffer, Wait::Poll), Ok(None));
    }
}
