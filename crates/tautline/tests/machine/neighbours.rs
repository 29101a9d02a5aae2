//! The neighbour table at run time: who is entered, by whom, until when, and what the network is asked.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use crate::common::child;
use crate::common::control::{
    NOBODY, STRANGER, allow, client_node, control_status, echo_for_ever, eventually, ports_given,
    served, start_client, start_control,
};
use crate::common::wire::Wire;
use crate::common::{PATIENCE, XDP, bus, hosts, port, sim_pair};
use tautline::control::SharedTable;
use tautline::{
    Form, LinkKind, MacAddress, Neighbour, NeighbourTableError, Node, NodeConfig, Priority,
    QueuingOptions, TableState,
};
use tautline_proto::ip::arp::ETHERTYPE_ARP;
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

/// The table of the second host's control process, as this test's own user, root.
fn shared(hosts: &Hosts) -> SharedTable {
    let connect = || SharedTable::connect("taut0").unwrap().unwrap();
    hosts.inside(Host::B, connect).unwrap()
}

fn entry(number: u8) -> Neighbour {
    Neighbour {
        name: format!("peer{number}"),
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        ip: Some(Ipv4Addr::new(10, 77, 0, number)),
        form: Form::Ethernet,
    }
}

fn names(table: &mut SharedTable) -> Vec<String> {
    let content = table.read().unwrap();
    let names = content
        .entries
        .into_iter()
        .map(|(entry, origin)| format!("{} {}", entry.name, origin.name()));
    names.collect()
}

#[test]
fn clients_see_what_their_control_process_was_given() {
    const TEST: &str = "clients_see_what_their_control_process_was_given";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        // Without a privilege: the control process asks for it.
        let node = client_node(NOBODY).unwrap();
        let names: Vec<String> = (node.neighbours().iter())
            .map(|(_, entry)| entry.name.clone())
            .collect();
        assert_eq!(names, ["known", "peer20", "a"]);
        let a: Ipv4Addr = role.parse().unwrap();
        let ask = |name: &str, ip| node.solicit_neighbour(name, ip, Form::Ethernet, SHORT);
        let error = refusal(ask("again", a));
        assert!(
            matches!(&error, NeighbourTableError::Duplicate { other, .. } if other == "a"),
            "{error}"
        );
        let nobody = Ipv4Addr::new(10, 77, 0, 200);
        let error = refusal(ask("nobody", nobody));
        assert!(
            matches!(error, NeighbourTableError::NoAnswer { .. }),
            "{error}"
        );
        let error = refusal(ask("far", Ipv4Addr::new(10, 9, 0, 7)));
        assert!(error.to_string().contains("outside the network"), "{error}");
        // Of its own it enters what it likes, as with a configuration; the table of all is another matter.
        node.add_neighbour(entry(30)).unwrap();
        let mut table = SharedTable::connect("taut0").unwrap().unwrap();
        assert_eq!(table.read().unwrap().entries.len(), 3);
        for refused in [table.add(&entry(31)), table.unlock(), table.lock()] {
            let error = refusal(refused);
            assert!(
                matches!(error, NeighbourTableError::NotAllowed { .. }),
                "{error}"
            );
        }
        let options = QueuingOptions::default();
        let mut port60 = node.queuing_port(port(60), &options).unwrap();
        port60.destination("a", port(1)).unwrap();
        child::ready();
        // Entered meanwhile.
        port60.destination("late", port(1)).unwrap();
        println!("the client has seen it");
        return child::ready();
    }
    let Some(hosts) = hosts() else { return };
    let known = "[[neighbour]]\nname = \"known\"\nmac = \"02:00:00:00:00:63\"\n";
    let control = start_control(&hosts, TEST, &format!("{known}{}", allow("60", "")));
    let mut table = shared(&hosts);
    assert_eq!(i64::from(table.pid()), i64::from(control.pid()));
    table.add(&entry(20)).unwrap();
    let a = hosts.end(Host::A, 0);
    let named = tautline::neighbour("a", a.address());
    let mac = table.solicit(&named, a.address(), PATIENCE).unwrap();
    assert_eq!(mac, MacAddress(a.mac()));
    assert_eq!(
        names(&mut table),
        ["known configured", "peer20 added", "a solicited"]
    );
    for (wrong, words) in [
        (entry(20), "has the same name as neighbour `peer20`"),
        (
            Neighbour {
                mac: MacAddress::BROADCAST,
                ..entry(21)
            },
            "is the address of a group",
        ),
        (
            Neighbour {
                ip: Some(ip(&hosts, Host::B)),
                ..entry(21)
            },
            "is this node's own address",
        ),
    ] {
        let error = refusal(table.add(&wrong)).to_string();
        assert!(error.contains(words), "{error}");
    }

    let mut client = start_client(&hosts, TEST, &a.address().to_string());
    let locked = "the neighbour table is locked: port 60 was opened";
    assert_eq!(refusal(table.add(&entry(21))).to_string(), locked);
    let asked = table.solicit(&named, a.address(), PATIENCE);
    assert_eq!(refusal(asked).to_string(), locked);
    table.unlock().unwrap();
    let late = Neighbour {
        name: "late".to_owned(),
        ..entry(22)
    };
    table.add(&late).unwrap();
    table.lock().unwrap();
    let status = control_status(&hosts);
    assert_eq!(status["neighbour_table"]["state"], "locked");
    assert_eq!(status["neighbours"][3]["name"], "late");
    assert_eq!(status["neighbours"][3]["origin"], "added");
    client.let_go();
    client.wait_for("the client has seen it");
}

#[test]
fn a_successor_finds_the_table_as_long_as_a_client_lives() {
    const TEST: &str = "a_successor_finds_the_table_as_long_as_a_client_lives";
    if let Some(role) = child::role() {
        if !served(&role) {
            echo_for_ever(&client_node(NOBODY).unwrap(), 60);
        }
        return;
    }
    let Some(hosts) = hosts() else { return };
    let rules = allow("60", "");
    let control = start_control(&hosts, TEST, &rules);
    shared(&hosts).add(&entry(20)).unwrap();
    let client = start_client(&hosts, TEST, "");
    let mut table = shared(&hosts);
    table.unlock().unwrap();
    table.add(&entry(21)).unwrap();
    control.kill();
    assert!(matches!(
        refusal(table.read()),
        NeighbourTableError::ControlGone { .. }
    ));
    // Its configuration has one of them now, with another address, which stands.
    let configured = "[[neighbour]]\nname = \"peer20\"\nmac = \"02:00:00:00:00:63\"\n";
    let control = start_control(&hosts, TEST, &format!("{configured}{rules}"));
    let mut table = shared(&hosts);
    assert_eq!(names(&mut table), ["peer20 configured", "peer21 added"]);
    // Maintenance is over with who began it.
    let error = refusal(table.add(&entry(22))).to_string();
    assert_eq!(error, "the neighbour table is locked: port 60 was opened");
    drop(table);
    client.kill();
    eventually("the client's port is free", || {
        ports_given(&hosts).is_empty()
    });
    control.kill();
    let _control = start_control(&hosts, TEST, &rules);
    assert!(names(&mut shared(&hosts)).is_empty(), "nobody held it");
}

#[test]
fn an_entry_makes_an_operator_and_strangers_see_nothing() {
    const TEST: &str = "an_entry_makes_an_operator_and_strangers_see_nothing";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        crate::common::unprivileged::become_user(role.parse().unwrap());
        let connected = SharedTable::connect("taut0");
        if role == STRANGER.to_string() {
            let error = refusal(connected);
            assert!(
                matches!(error, NeighbourTableError::NotAllowed { .. }),
                "{error}"
            );
            return;
        }
        let mut table = connected.unwrap().unwrap();
        table.add(&entry(20)).unwrap();
        table.lock().unwrap();
        table.unlock().unwrap();
        table.add(&entry(21)).unwrap();
        return;
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("", "neighbours = true"));
    for user in [STRANGER, NOBODY] {
        let run = || child::run(TEST, &user.to_string());
        hosts.inside(Host::B, run).unwrap();
    }
    assert_eq!(names(&mut shared(&hosts)), ["peer20 added", "peer21 added"]);
}

/// An entry of the kernel's table for host A's peer, as `ip` shows it.
fn kernels_entry(hosts: &Hosts, ip: &str) -> String {
    let mut command = hosts.command(Host::B, "ip");
    let output = command.args(["neigh", "show", ip]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_control_process_has_the_kernel_ask_and_leaves_its_table_as_it_was() {
    const TEST: &str = "a_control_process_has_the_kernel_ask_and_leaves_its_table_as_it_was";
    if let Some(role) = child::role() {
        assert!(served(&role));
        return;
    }
    let Some(hosts) = hosts() else { return };
    let a = hosts.end(Host::A, 0);
    let (ip, mac) = (a.address().to_string(), MacAddress(a.mac()));
    let set = |ip: &str, mac: &str, state: &str| {
        let entry = [ip, "dev", "taut0", "lladdr", mac, "nud", state];
        let command: Vec<&str> = [&["neigh", "replace"][..], &entry].concat();
        hosts.run(Host::B, "ip", &command).unwrap();
    };
    let _control = start_control(&hosts, TEST, "");
    let solicit = |ip: Ipv4Addr, timeout| {
        let ask = || {
            let mut table = SharedTable::connect("taut0").unwrap().unwrap();
            table.solicit(&tautline::neighbour(&ip.to_string(), ip), ip, timeout)
        };
        hosts.inside(Host::B, ask).unwrap()
    };
    // Nobody's address: no entry is left of the question.
    let nobody = Ipv4Addr::new(10, 77, 0, 201);
    assert!(matches!(
        refusal(solicit(nobody, SHORT)),
        NeighbourTableError::NoAnswer { .. }
    ));
    eventually("no entry is left", || {
        kernels_entry(&hosts, "10.77.0.201").is_empty()
    });
    // An entry that nobody has confirmed lately is asked for again, at once.
    set(&ip, "02:00:00:00:00:99", "stale");
    assert_eq!(solicit(a.address(), PATIENCE).unwrap(), mac);
    assert!(kernels_entry(&hosts, &ip).contains("REACHABLE"));
    // One that the administrator has made is the answer.
    let of_administrator = "02:00:00:00:00:98";
    set("10.77.0.202", of_administrator, "permanent");
    let mac = solicit(Ipv4Addr::new(10, 77, 0, 202), PATIENCE).unwrap();
    assert_eq!(mac.to_string(), of_administrator);
    assert!(kernels_entry(&hosts, "10.77.0.202").contains("PERMANENT"));
}
