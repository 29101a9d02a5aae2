//! The neighbour table at run time: who is entered, by whom, until when, and what the network is asked.

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use common::wire::Wire;
use common::{PATIENCE, XDP, bus, hosts, port, sim_pair};
use tautline::{
    Form, LinkKind, MacAddress, Neighbour, NeighbourTableError, Node, NodeConfig, Priority,
    QueuingOptions, TableState,
};
use tautline_lab::hosts::{Host, Hosts};
use tautline_proto::ip::arp::ETHERTYPE_ARP;

/// Long enough for a busy machine; only a test of silence waits for it.
const SHORT: Duration = Duration::from_millis(300);

/// A node of host A without neighbours.
fn stranger(hosts: &Hosts, link: LinkKind) -> Node {
    let mut config = NodeConfig::on(&hosts.end(Host::A, 0).interface()).with_link(link);
    config.xdp_mode = XDP.mode.filter(|_| link == LinkKind::Xdp);
    hosts
        .inside(Host::A, || Node::open(config).unwrap())
        .unwrap()
}

fn ip(hosts: &Hosts, host: Host) -> Ipv4Addr {
    hosts.end(host, 0).address()
}

fn solicit(
    hosts: &Hosts,
    node: &Node,
    name: &str,
    ip: Ipv4Addr,
    timeout: Duration,
) -> Result<MacAddress, NeighbourTableError> {
    let ask = || node.solicit_neighbour(name, ip, Form::Ethernet, timeout);
    hosts.inside(Host::A, ask).unwrap()
}

fn refusal<T>(result: Result<T, NeighbourTableError>) -> NeighbourTableError {
    match result {
        Err(error) => error,
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn a_peer_of_the_kernel_is_solicited_and_sent_to() {
    let Some(hosts) = hosts() else { return };
    for link in [LinkKind::Xdp, LinkKind::Packet, LinkKind::Xsk] {
        let node = stranger(&hosts, link);
        let peer = hosts.end(Host::B, 0);
        let mac = solicit(&hosts, &node, "peer", peer.address(), PATIENCE).unwrap();
        assert_eq!(mac, MacAddress(peer.mac()), "{link}");
        let entry = &node.status().neighbours[0];
        assert_eq!(entry.ip, Some(peer.address()));
        assert_eq!(node.status().neighbour_table.state, "open");
        if link == LinkKind::Xsk {
            continue;
        }
        let socket = hosts.inside(Host::B, || UdpSocket::bind((peer.address(), 5001)));
        let socket = socket.unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let open = || node.udp_port(5000, &QueuingOptions::default()).unwrap();
        let mut port = hosts.inside(Host::A, open).unwrap();
        let to = port.destination("peer", 5001).unwrap();
        port.send_to(to, Priority::HIGHEST, b"found").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
    }
}

#[test]
fn the_network_is_asked_once_and_silence_ends_in_time() {
    let Some(hosts) = hosts() else { return };
    let node = stranger(&hosts, LinkKind::Packet);
    let watch = Wire::watch(&hosts, Host::B);
    let wire = Wire::on(&hosts, Host::A);
    let nobody = Ipv4Addr::new(10, 77, 0, 200);
    let error = refusal(solicit(&hosts, &node, "nobody", nobody, SHORT));
    assert!(
        matches!(error, NeighbourTableError::NoAnswer { waited, .. } if waited == SHORT),
        "{error}"
    );
    assert!(node.neighbours().is_empty());
    // What comes after all that was asked.
    let end = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 7], &[0x88, 0xb6], &[0; 46]].concat();
    assert!(wire.send(&end));
    let mut asked = 0;
    loop {
        let frame = watch.next(|frame| {
            let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
            frame == end || (ethertype == ETHERTYPE_ARP && frame[38..42] == nobody.octets())
        });
        if frame == end {
            break;
        }
        asked += 1;
    }
    assert_eq!(asked, 1);
}

#[test]
fn lies_are_passed_over() {
    let Some(hosts) = hosts() else { return };
    let node = stranger(&hosts, LinkKind::Packet);
    let watch = Wire::watch(&hosts, Host::B);
    let wire = Wire::on(&hosts, Host::B);
    let wanted = Ipv4Addr::new(10, 77, 0, 201);
    let own = hosts.end(Host::A, 0).mac();
    let answer = |station: [u8; 6], ip: [u8; 4], to: [u8; 6]| {
        let kind = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
        let asker = ip_bytes(&hosts, Host::A);
        [
            &own[..],
            &[2, 0, 0, 0, 0, 9],
            &kind,
            &station,
            &ip,
            &to,
            &asker,
        ]
        .concat()
    };
    let liar = || {
        let asked = |frame: &[u8]| {
            frame[12..14] == [8, 6] && frame.len() >= 42 && frame[38..42] == wanted.octets()
        };
        let _question = watch.next(asked);
        let (good, right) = ([2, 0, 0, 0, 0, 3], wanted.octets());
        for lie in [
            answer([0xff; 6], right, own),
            answer([1, 0, 0x5e, 0, 0, 1], right, own),
            answer([0; 6], right, own),
            answer(own, right, own),
            answer([2, 0, 0, 0, 0, 4], [10, 77, 0, 202], own),
            answer([2, 0, 0, 0, 0, 5], right, [2, 0, 0, 0, 0, 5]),
            answer([2, 0, 0, 0, 0, 6], right, own)[..30].to_vec(),
            answer(good, right, own),
        ] {
            assert!(wire.send(&lie));
        }
    };
    std::thread::scope(|scope| {
        let liar = scope.spawn(liar);
        let mac = solicit(&hosts, &node, "wanted", wanted, PATIENCE).unwrap();
        assert_eq!(mac, MacAddress([2, 0, 0, 0, 0, 3]));
        liar.join().unwrap();
    });
}

fn ip_bytes(hosts: &Hosts, host: Host) -> [u8; 4] {
    ip(hosts, host).octets()
}

#[test]
fn the_first_port_locks_the_table_until_it_is_unlocked() {
    let Some(hosts) = hosts() else { return };
    let node = stranger(&hosts, LinkKind::Xdp);
    let entry = |number: u8| Neighbour {
        name: format!("peer{number}"),
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        ip: Some(Ipv4Addr::new(10, 77, 0, number)),
        form: Form::Ethernet,
    };
    node.add_neighbour(entry(20)).unwrap();
    let options = QueuingOptions::default();
    let open = || node.queuing_port(port(7), &options).unwrap();
    let mut first = hosts.inside(Host::A, open).unwrap();
    let locked = "the neighbour table is locked: port 7 was opened";
    assert_eq!(refusal(node.add_neighbour(entry(21))).to_string(), locked);
    let error = refusal(solicit(&hosts, &node, "b", ip(&hosts, Host::B), PATIENCE));
    assert_eq!(error.to_string(), locked);
    assert!(error.remedy().contains("taut neigh unlock"));
    let state = node.status().neighbour_table;
    assert_eq!(state.locked_by.as_deref(), Some("port 7 was opened"));

    node.unlock_neighbours();
    assert_eq!(node.neighbour_table_state(), TableState::Unlocked);
    solicit(&hosts, &node, "b", ip(&hosts, Host::B), PATIENCE).unwrap();
    first.destination("b", port(8)).unwrap();
    node.lock_neighbours();
    let locked = "the neighbour table is locked: somebody asked for it";
    assert_eq!(refusal(node.add_neighbour(entry(21))).to_string(), locked);
    // Closing all ports does not unlock it: the application has begun.
    drop(first);
    assert_eq!(refusal(node.add_neighbour(entry(21))).to_string(), locked);
}

#[test]
fn a_port_of_plain_udp_locks_it_too_and_addresses_are_checked() {
    let Some(hosts) = hosts() else { return };
    let node = stranger(&hosts, LinkKind::Packet);
    let own = ip(&hosts, Host::A);
    let ask = |ip: [u8; 4], timeout| refusal(solicit(&hosts, &node, "x", ip.into(), timeout));
    let error = ask(own.octets(), SHORT);
    assert!(
        matches!(error, NeighbourTableError::OwnAddress { .. }),
        "{error}"
    );
    for group in [[10, 77, 0, 255], [255; 4], [224, 0, 0, 251]] {
        let error = ask(group, SHORT);
        assert!(
            matches!(error, NeighbourTableError::GroupAddress { .. }),
            "{error}"
        );
    }
    let error = ask([10, 9, 0, 7], SHORT);
    assert!(
        matches!(error, NeighbourTableError::OutsideNetwork { .. }),
        "{error}"
    );
    for timeout in [Duration::ZERO, Duration::from_secs(11), Duration::MAX] {
        let error = ask([10, 77, 0, 9], timeout);
        assert!(
            matches!(error, NeighbourTableError::BadTimeout { .. }),
            "{error}"
        );
    }
    let error = refusal(node.solicit_neighbour("b", ip(&hosts, Host::B), Form::Udp, SHORT));
    assert!(
        matches!(error, NeighbourTableError::OtherNamespace),
        "{error}"
    );
    let open = || node.udp_port(5000, &QueuingOptions::default()).unwrap();
    let _port = hosts.inside(Host::A, open).unwrap();
    let error = refusal(node.add_neighbour(tautline::neighbour("b", ip(&hosts, Host::B))));
    assert_eq!(
        error.to_string(),
        "the neighbour table is locked: UDP port 5000 was opened"
    );
}

#[test]
fn a_link_on_no_interface_has_no_arp_and_takes_entries() {
    let pair = sim_pair();
    let on_bus = Node::open(NodeConfig::vbus(bus("neighbours"))).unwrap();
    let on_loopback = Node::open(NodeConfig::udp(Ipv4Addr::LOCALHOST)).unwrap();
    for node in [&pair.a, &on_bus, &on_loopback] {
        let wanted = Ipv4Addr::new(127, 0, 0, 2);
        let error = refusal(node.solicit_neighbour("x", wanted, Form::Udp, SHORT));
        assert!(
            matches!(error, NeighbourTableError::NoArp { .. }),
            "{error}"
        );
    }
    let wanted = Ipv4Addr::new(127, 0, 0, 2);
    let entry = tautline::neighbour("x", wanted);
    on_loopback.add_neighbour(entry.clone()).unwrap();
    let error = refusal(on_loopback.add_neighbour(entry));
    assert!(
        matches!(error, NeighbourTableError::Duplicate { .. }),
        "{error}"
    );
}
