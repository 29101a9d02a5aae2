//! Peculiarities of link `xsk`: one socket a queue for all ports of a node, zero-copy or not, batches, busy
//! polling.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{
    PACKET, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, config, here, hosts, open, pair,
    port,
};
use tautline::address::Address;
use tautline::link::XdpMode;
use tautline::port::{Outgoing, QueuingOptions, SamplingOptions};
use tautline::{LinkKind, Node, NodeConfig, OpenError, Priority, SendError, Wait};
use tautline_proto::wire::{HEADER_BYTES, Header};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

#[test]
fn a_second_node_is_told_whose_interface_it_is() {
    let Some(hosts) = hosts() else { return };
    let first = open(&hosts, Host::A, XSK);
    for side in [XSK, XDP] {
        let config = config(&hosts, Host::A, side);
        let second = hosts.inside(Host::A, || Node::open(config)).unwrap();
        match second {
            Err(OpenError::XdpTaken { name, .. }) => {
                assert_eq!(name.as_deref(), Some("tautline_xsk"));
            }
            other => panic!("{other:?}"),
        }
    }
    drop(first);
}

#[test]
fn an_interface_whose_driver_has_no_xdp_says_so() {
    let Some(hosts) = hosts() else { return };
    let ip = |arguments: &[&str]| hosts.run(Host::A, "ip", arguments);
    if ip(&["link", "add", "taut9", "type", "bridge"]).is_err() {
        println!("SKIPPED: this kernel has no bridges");
        return;
    }
    ip(&["link", "set", "taut9", "up"]).unwrap();
    let opened = |mode| {
        let mut config = NodeConfig::on("taut9").with_link(LinkKind::Xsk);
        config.xdp_mode = mode;
        hosts.inside(Host::A, || Node::open(config)).unwrap()
    };
    match opened(Some(XdpMode::Native)) {
        Err(OpenError::NoXdp { interface, mode }) => {
            assert_eq!((interface.as_str(), mode), ("taut9", XdpMode::Native));
        }
        other => panic!("{other:?}"),
    }
    let node = opened(None).unwrap();
    let report = node.report();
    assert_eq!(report.capabilities.xdp_mode, Some(XdpMode::Generic));
    assert_eq!(report.not_better[0].link, "xsk (native)");
    assert!(report.not_better[0].why.contains("no XDP in native mode"));
}

#[test]
fn more_queues_than_are_served_are_refused() {
    if hosts().is_none() {
        return;
    }
    let options = HostsOptions {
        queue_count: 65,
        ..HostsOptions::default()
    };
    let hosts = Hosts::create(&options).unwrap();
    let config = config(&hosts, Host::A, XSK);
    let error = hosts.inside(Host::A, || Node::open(config)).unwrap();
    let error = error.unwrap_err();
    assert!(
        matches!(&error, OpenError::TooManyQueues { max: 64, interface } if interface == "taut0"),
        "{error:?}"
    );
    assert!(error.remedy().contains("ethtool -L"));
}

/// Closing is asynchronous in the kernel: the queue is busy for a moment longer.
#[test]
fn the_queues_can_be_taken_again_at_once() {
    let Some(hosts) = hosts() else { return };
    for _ in 0..10 {
        drop(open(&hosts, Host::A, XSK));
    }
}

#[test]
fn a_batch_beyond_one_call_arrives_whole_and_in_order() {
    let Some(pair) = pair(XSK, XSK) else { return };
    let options = QueuingOptions {
        depth: 256,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let payloads: Vec<[u8; 2]> = (0..200u16).map(u16::to_be_bytes).collect();
    let messages: Vec<_> = payloads
        .iter()
        .map(|message| Outgoing {
            to,
            priority: Priority::NORMAL,
            message,
        })
        .collect();
    let mut sent = 0;
    while sent < messages.len() {
        sent += sender.send_batch(&messages[sent..]).unwrap();
    }
    let mut buffer = [0; 1484];
    for payload in payloads {
        let message = receiver
            .receive_into(&mut buffer, Wait::Until(pair.soon()))
            .unwrap();
        let message = message.expect("arrives");
        assert_eq!(buffer[..message.length], payload);
    }
    let status = &pair.b.status().ports[0];
    assert_eq!((status.peers[0].lost, status.peers[0].duplicates), (0, 0));
}

/// After an error the message is not awaited any more: it is not sent once the interface is up again.
#[test]
fn a_message_that_is_refused_does_not_leave_later() {
    for side in [XSK, XSK_GENERIC] {
        let Some(pair) = pair(side, PACKET) else {
            return;
        };
        let hosts = pair.hosts.as_ref().unwrap();
        let ip = |arguments: &[&str]| hosts.run(Host::A, "ip", arguments).unwrap();
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        let mut datagrams = pair.on_a(|node| node.udp(5000).open()).unwrap();
        let socket = (hosts.end(Host::B, 0).address(), 5001);
        let socket = hosts.inside(Host::B, || UdpSocket::bind(socket)).unwrap();
        let socket = socket.unwrap();
        let to_socket = datagrams.destination("peer", 5001).unwrap();
        sender.send(to, Priority::NORMAL, b"before").unwrap();
        let mut buffer = [0; 65_536];
        let received = receiver.take_into(&mut buffer);
        assert_eq!(buffer[..received.length], *b"before");

        ip(&["link", "set", "taut0", "down"]);
        let down = SendError::InterfaceDown;
        let one = Outgoing {
            to,
            priority: Priority::NORMAL,
            message: b"stale",
        };
        for _ in 0..3 {
            assert_eq!(sender.send(to, Priority::NORMAL, b"stale"), Err(down));
            assert_eq!(sender.send_batch(&[one; 20]), Err(down));
            for bytes in [5, 20_000] {
                let stale = datagrams.send_to(to_socket, Priority::NORMAL, &buffer[..bytes]);
                assert_eq!(stale, Err(down));
            }
        }
        ip(&["link", "set", "taut0", "up"]);
        hosts.wait_until_up().unwrap();
        sender.send(to, Priority::NORMAL, b"after").unwrap();
        datagrams
            .send_to(to_socket, Priority::NORMAL, b"after")
            .unwrap();

        let received = receiver.take_into(&mut buffer);
        assert_eq!(buffer[..received.length], *b"after");
        let received = receiver.receive_into(&mut buffer, Wait::Poll).unwrap();
        assert!(received.is_none(), "{received:?}");
        socket
            .set_read_timeout(Some(crate::common::PATIENCE))
            .unwrap();
        let received = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..received], *b"after");
        socket.set_nonblocking(true).unwrap();
        let more = socket.recv(&mut buffer).map_err(|error| error.kind());
        assert_eq!(more, Err(ErrorKind::WouldBlock));
        let status = &pair.b.status().ports[0];
        assert_eq!(status.peers[0].duplicates, 0);
    }
}

/// A sender of the UDP form is told from others by its address and its UDP port, which address translation on the way
/// may have changed. The header says no more than its number.
#[test]
fn two_senders_behind_one_address_are_two_sources() {
    for side in here([XSK, XSK_GENERIC, XDP, XDP_GENERIC, XDP_TC, PACKET, UDP]) {
        let Some(hosts) = hosts() else { return };
        let node = open(&hosts, Host::B, side);
        let options = SamplingOptions {
            sources: 2,
            ..SamplingOptions::default()
        };
        let opened = hosts.inside(Host::B, || node.sampling(port(12)).options(&options).open());
        let mut hub = opened.unwrap().unwrap();
        let to = (hosts.end(Host::B, 0).address(), port(12).udp_port());
        let from = (hosts.end(Host::A, 0).address(), 0);
        let senders = [1u8, 2].map(|value| {
            let socket = hosts.inside(Host::A, || UdpSocket::bind(from)).unwrap();
            let socket = socket.unwrap();
            let mut datagram = [0; HEADER_BYTES + 1];
            let (head, payload) = datagram.split_first_chunk_mut().unwrap();
            Header::whole(port(12), port(5), Priority::NORMAL, 1, 0).emit(head);
            payload[0] = value;
            socket.send_to(&datagram, to).unwrap();
            socket
        });
        let mut buffer = [0; 1484];
        let deadline = tautline::now() + crate::common::PATIENCE;
        let mut seen = Vec::new();
        while seen.len() < 2 && tautline::now() < deadline {
            let sample = hub.next_into(&mut buffer, Wait::Until(deadline)).unwrap();
            seen.extend(sample.map(|sample| (sample.source.address, buffer[0])));
        }
        for (sender, value) in senders.iter().zip([1, 2]) {
            let SocketAddr::V4(address) = sender.local_addr().unwrap() else {
                unreachable!()
            };
            assert!(
                seen.contains(&(Address::Udp(address), value)),
                "{:?}: {seen:?}",
                side.link
            );
        }
    }
}

/// Any port that looks brings the frames of all: a port that sleeps is woken for its own all the same.
#[test]
fn ports_that_share_a_queue_are_each_woken() {
    let Some(pair) = pair(XSK, XSK) else { return };
    let options = QueuingOptions {
        spin: Duration::ZERO.into(),
        ..QueuingOptions::default()
    };
    let mut sender = pair
        .on_a(|node| node.queuing(port(1)).options(&options).open())
        .unwrap();
    const ROUNDS: u32 = 200;
    // Rounds under way at most: a reader that a busy machine holds up must not lose for want of room.
    const AHEAD: u32 = 16;
    let taken = AtomicU32::new(0);
    let numbers = [21, 22, 23];
    let to = numbers.map(|number| sender.destination("peer", port(number)).unwrap());
    std::thread::scope(|scope| {
        let readers: Vec<_> = numbers
            .iter()
            .map(|number| {
                let mut reader = pair
                    .on_b(|node| node.queuing(port(*number)).options(&options).open())
                    .unwrap();
                let soon = pair.soon() + Duration::from_secs(15);
                let taken = &taken;
                scope.spawn(move || {
                    let mut buffer = [0; 1484];
                    for round in 0..ROUNDS {
                        let message = reader.receive_into(&mut buffer, Wait::Until(soon)).unwrap();
                        assert!(message.is_some(), "round {round}");
                        assert_eq!(buffer[..4], round.to_be_bytes());
                        taken.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        for round in 0..ROUNDS {
            let soon = pair.soon() + Duration::from_secs(15);
            while taken.load(Relaxed) + AHEAD * 3 < round * 3 && pair.now() < soon {
                std::thread::yield_now();
            }
            for to in to {
                sender
                    .send(to, Priority::NORMAL, &round.to_be_bytes())
                    .unwrap();
            }
            // Sometimes they all sleep, sometimes not.
            if round % 8 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
