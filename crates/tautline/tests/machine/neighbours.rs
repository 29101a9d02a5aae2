//! Neighbours: the entries of a file and of a program, until when they are taken, whom a control process has for its
//! clients, and what the network is asked.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use crate::common::child;
use crate::common::control::{
    NOBODY, STRANGER, allow, client_node, control_status, ports_given, served, start_client,
    start_control,
};
use crate::common::wire::Wire;
use crate::common::{PATIENCE, Take, XDP, hosts, open, port};
use tautline::control::shared_neighbours;
use tautline::neighbours::{Form, NeighbourTableError, solicit};
use tautline::{LinkKind, MacAddress, Neighbour, Node, NodeConfig, Priority};
use tautline_proto::ip::arp::ETHERTYPE_ARP;
use tautline_proto::wire::raw::EtherType;
use tautline_testbed::hosts::{Host, Hosts};

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

/// Asks on the interface of host A.
fn ask(hosts: &Hosts, ip: Ipv4Addr, timeout: Duration) -> Result<MacAddress, NeighbourTableError> {
    let interface = hosts.end(Host::A, 0).interface();
    let ask = || solicit(&interface, ip, timeout);
    hosts.inside(Host::A, ask).unwrap()
}

fn refusal<T>(result: Result<T, NeighbourTableError>) -> NeighbourTableError {
    match result {
        Err(error) => error,
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn a_peer_of_the_kernel_is_found_added_and_sent_to() {
    let Some(hosts) = hosts() else { return };
    let peer = hosts.end(Host::B, 0);
    let mac = ask(&hosts, peer.address(), PATIENCE).unwrap();
    assert_eq!(mac, MacAddress(peer.mac()));
    let node = stranger(&hosts, LinkKind::Packet);
    let neighbour = Neighbour {
        mac,
        ..tautline::neighbour("peer", peer.address())
    };
    node.add_neighbour(neighbour).unwrap();
    assert_eq!(node.status().neighbours[0].ip, Some(peer.address()));
    let socket = hosts.inside(Host::B, || UdpSocket::bind((peer.address(), 5001)));
    let socket = socket.unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let open = || node.udp(5000).open().unwrap();
    let mut port = hosts.inside(Host::A, open).unwrap();
    let to = port.destination("peer", 5001).unwrap();
    port.send_to(to, Priority::HIGHEST, b"found").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
}

#[test]
fn the_network_is_asked_once_and_silence_ends_in_time() {
    let Some(hosts) = hosts() else { return };
    let watch = Wire::watch(&hosts, Host::B);
    let wire = Wire::on(&hosts, Host::A);
    let nobody = Ipv4Addr::new(10, 77, 0, 200);
    let error = refusal(ask(&hosts, nobody, SHORT));
    assert!(
        matches!(error, NeighbourTableError::NoAnswer { waited, .. } if waited == SHORT),
        "{error}"
    );
    // A message after all requests.
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
        let mac = ask(&hosts, wanted, PATIENCE).unwrap();
        assert_eq!(mac, MacAddress([2, 0, 0, 0, 0, 3]));
        liar.join().unwrap();
    });
}

fn ip_bytes(hosts: &Hosts, host: Host) -> [u8; 4] {
    ip(hosts, host).octets()
}

fn entry(number: u8) -> Neighbour {
    Neighbour {
        name: format!("peer{number}"),
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        ip: Some(Ipv4Addr::new(10, 77, 0, number)),
        form: Form::Ethernet,
    }
}

#[test]
fn the_first_port_of_any_kind_locks_the_table() {
    let Some(hosts) = hosts() else { return };
    let openers: [&(dyn Fn(&Node) + Sync); 3] = [
        &|node| drop(node.queuing(port(7)).open().unwrap()),
        &|node| drop(node.udp(5000).open().unwrap()),
        &|node| {
            drop(node.raw(EtherType::ETHERCAT).open().unwrap());
        },
    ];
    for open in openers {
        let node = stranger(&hosts, LinkKind::Xdp);
        node.add_neighbour(entry(20)).unwrap();
        let error = refusal(node.add_neighbour(entry(20)));
        assert!(
            matches!(error, NeighbourTableError::Duplicate { .. }),
            "{error}"
        );
        hosts.inside(Host::A, || open(&node)).unwrap();
        // Closing all ports does not unlock it: the application has begun.
        let error = refusal(node.add_neighbour(entry(21)));
        assert!(matches!(error, NeighbourTableError::Locked), "{error}");
        let neighbours = node.status().neighbours;
        assert_eq!((neighbours.len(), &*neighbours[0].name), (1, "peer20"));
    }
}

#[test]
fn nobody_is_asked_for_an_address_that_no_peer_can_have() {
    let Some(hosts) = hosts() else { return };
    let refused = |ip: [u8; 4], timeout| refusal(ask(&hosts, ip.into(), timeout));
    let group = "address of a group";
    let own = ip_bytes(&hosts, Host::A);
    for (ip, timeout, expected) in [
        (own, SHORT, "this node's own address"),
        ([10, 77, 0, 255], SHORT, group),
        ([255; 4], SHORT, group),
        ([224, 0, 0, 251], SHORT, group),
        ([10, 9, 0, 7], SHORT, "outside the network"),
        ([10, 77, 0, 9], Duration::ZERO, "no time to wait"),
        ([10, 77, 0, 9], Duration::from_secs(11), "no time to wait"),
        ([10, 77, 0, 9], Duration::MAX, "no time to wait"),
    ] {
        let error = refused(ip, timeout).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let on_loopback = || solicit("lo", [10, 9, 0, 7].into(), SHORT);
    let error = refusal(hosts.inside(Host::A, on_loopback).unwrap());
    assert!(
        matches!(error, NeighbourTableError::NoArp { .. }),
        "{error}"
    );
}

fn configured(name: &str, mac: &str) -> String {
    format!("[[neighbour]]\nname = \"{name}\"\nmac = \"{mac}\"\n")
}

fn names(node: &Node) -> Vec<String> {
    let table = node.neighbours();
    table.iter().map(|(_, entry)| entry.name.clone()).collect()
}

/// A changed file is taken by a successor. The client neither opens its node nor its port again.
#[test]
fn clients_go_on_and_see_the_neighbours_of_a_successor() {
    const TEST: &str = "clients_go_on_and_see_the_neighbours_of_a_successor";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let node = client_node(NOBODY).unwrap();
        assert_eq!(names(&node), ["known"]);
        // An entry of its own, for itself alone.
        node.add_neighbour(entry(30)).unwrap();
        let mut port60 = node.queuing(port(60)).open().unwrap();
        let error = port60.destination("late", port(1)).unwrap_err().to_string();
        assert!(error.contains("there are: known, peer30"), "{error}");
        child::ready();
        let late = port60.destination("late", port(1)).unwrap();
        port60.send(late, Priority::HIGHEST, b"seen").unwrap();
        // An entry that the file has lost stays: ports have resolved it.
        assert_eq!(names(&node), ["known", "peer30", "late"]);
        println!("the client has seen it");
        return child::ready();
    }
    let Some(hosts) = hosts() else { return };
    let rules = allow("60", "");
    let before = format!("{}{rules}", configured("known", "02:00:00:00:00:63"));
    let control = start_control(&hosts, TEST, &before);
    let mut client = start_client(&hosts, TEST, "");
    control.kill();
    let mac = MacAddress(hosts.end(Host::A, 0).mac()).to_string();
    let after = format!("{}{rules}", configured("late", &mac));
    let _control = start_control(&hosts, TEST, &after);
    assert_eq!(ports_given(&hosts), [60], "taken over");
    let node = open(&hosts, Host::A, XDP);
    let listen = || node.queuing(port(1)).open();
    let mut heard = hosts.inside(Host::A, listen).unwrap().unwrap();
    client.let_go();
    client.wait_for("the client has seen it");
    let mut buffer = [0; 1484];
    let message = heard.take_into(&mut buffer);
    assert_eq!(&buffer[..message.length], b"seen");
    let neighbours = &control_status(&hosts)["neighbours"];
    assert_eq!(neighbours.as_array().unwrap().len(), 1);
    assert_eq!(neighbours[0]["name"], "late");
    assert_eq!(neighbours[0]["origin"], "configured");
}

#[test]
fn clients_may_look_at_the_neighbours_and_strangers_may_not() {
    const TEST: &str = "clients_may_look_at_the_neighbours_and_strangers_may_not";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        crate::common::unprivileged::become_user(role.parse().unwrap());
        match shared_neighbours("taut0") {
            Ok(Some(shared)) if role == NOBODY.to_string() => {
                let [known] = &shared.entries[..] else {
                    panic!("{shared:?}");
                };
                assert_eq!(known.name, "known");
            }
            Err(NeighbourTableError::NotAllowed { .. }) if role == STRANGER.to_string() => {}
            other => panic!("{other:?}"),
        }
        return;
    }
    let Some(hosts) = hosts() else { return };
    let file = configured("known", "02:00:00:00:00:63") + &allow("", "");
    let _control = start_control(&hosts, TEST, &file);
    for user in [STRANGER, NOBODY] {
        let run = || child::run(TEST, &user.to_string());
        hosts.inside(Host::B, run).unwrap();
    }
}
