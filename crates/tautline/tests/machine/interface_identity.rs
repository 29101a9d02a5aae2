//! The interface of a node is deleted and made again, gets another MAC address, another name: a node and a control
//! process tell, and no thread waits without end.

use std::thread;
use std::time::Duration;

use crate::common::control::{NOBODY, allow, control_status, start_client, start_control};
use crate::common::unprivileged::{become_user, forbid_bpf};
use crate::common::{
    PACKET, PATIENCE, Pair, Side, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, begin, child, config, here,
    hosts, is_here, open, pair, port, queuing_with,
};
use tautline::config::ServiceConfig;
use tautline::control::Server;
use tautline::neighbours::Form;
use tautline::port::QueuingOptions;
use tautline::status::{InterfaceState, NodeStatus};
use tautline::{
    Destination, LinkKind, MacAddress, Neighbour, Node, NodeConfig, OpenError, PortError, Priority,
    QueuingPort, ReceiveError, SendError, Spin, Wait,
};
use tautline_testbed::hosts::{Host, Hosts};

const OTHER_MAC: &str = "02:00:00:00:77:01";

fn ip(hosts: &Hosts, host: Host, arguments: &str) {
    let mut command = hosts.command(host, "ip");
    let status = command.args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn of(pair: &Pair) -> &Hosts {
    pair.hosts.as_ref().unwrap()
}

/// In the second host of a pair.
fn on_b(pair: &Pair, arguments: &str) {
    ip(of(pair), Host::B, arguments);
}

/// Sends until a message arrives, because an interface that has come up takes a moment.
fn flows(sender: &mut QueuingPort, receiver: &mut QueuingPort, to: Destination) {
    let mut buffer = [0; 1484];
    let give_up = tautline::now() + PATIENCE;
    while tautline::now() < give_up {
        let _may_be_early = sender.send(to, Priority::NORMAL, b"again");
        let soon = tautline::now() + Duration::from_millis(20);
        if let Ok(Some(_)) = receiver.receive_into(&mut buffer, Wait::Until(soon)) {
            return;
        }
    }
    panic!("nothing arrives");
}

/// The error that a wait without a deadline ends with.
fn waits_in_vain(receiver: &mut QueuingPort) -> ReceiveError {
    let mut buffer = [0; 1484];
    loop {
        match receiver.receive_into(&mut buffer, Wait::Forever) {
            Ok(_) => {}
            // A packet socket tells first that the interface went down, as it does in between.
            Err(ReceiveError::InterfaceDown) => {}
            Err(error) => return error,
        }
    }
}

/// Runs `cause` while a port waits, and returns the error that it ends with, and the port.
fn ended_by(mut receiver: QueuingPort, cause: impl FnOnce()) -> (ReceiveError, QueuingPort) {
    let (says, hears) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let error = waits_in_vain(&mut receiver);
        let _nobody_waits = says.send((error, receiver));
    });
    // Asleep, or in the midst of its spin.
    thread::sleep(Duration::from_millis(50));
    cause();
    hears.recv_timeout(PATIENCE).expect("the port waits on")
}

fn changes(status: &NodeStatus) -> (InterfaceState, Vec<String>) {
    let now = status.interface_now.clone().unwrap();
    (now.state, now.changes)
}

const UNCHANGED: (InterfaceState, Vec<String>) = (InterfaceState::Up, Vec::new());

#[test]
fn a_node_learns_that_its_interface_was_deleted_and_made_again() {
    let sleeps = QueuingOptions::default();
    let spins = queuing_with(|options| options.spin = Spin::For(Duration::from_secs(3_600)));
    for side in here([XDP, XDP_GENERIC, XDP_TC, XSK, PACKET]) {
        for options in [&sleeps, &spins] {
            let Some(pair) = pair(side, side) else { return };
            let (mut sender, receiver, to) = pair.ports(options);
            sender.send(to, Priority::NORMAL, b"before").unwrap();
            assert_eq!(changes(&pair.a.status()), UNCHANGED);
            // Both ends of the cable go.
            let delete = || on_b(&pair, "link delete taut0");
            let (error, mut receiver) = ended_by(receiver, delete);
            assert_eq!(error, ReceiveError::InterfaceGone, "{:?}", side.link);
            let soon = tautline::now() + PATIENCE;
            let again = receiver.receive_into(&mut [0; 1484], Wait::Until(soon));
            assert_eq!(again, Err(ReceiveError::InterfaceGone));
            let refused = sender.send(to, Priority::NORMAL, b"after");
            assert_eq!(refused, Err(SendError::InterfaceGone));
            // Asked from outside of the hosts' networks, too.
            let (state, told) = changes(&pair.b.status());
            assert_eq!(state, InterfaceState::Gone);
            assert_eq!(
                told,
                ["interface `taut0` is gone: restart this process when there is one"]
            );
            on_b(&pair, "link add taut0 type veth peer taut9");
            on_b(&pair, "link set taut0 up");
            let status = pair.b.status();
            let (state, told) = changes(&status);
            assert_eq!(
                (state, status.interface_up),
                (InterfaceState::Gone, Some(false))
            );
            assert!(
                told[0].contains("another one has this name now"),
                "{told:?}"
            );
        }
    }
}

/// The kernel gives the same index and the same addresses to each that asks for them.
#[test]
fn an_interface_made_again_with_the_same_index_and_mac_address_is_another() {
    let Some(pair) = pair(XDP, XDP) else { return };
    let inside = || {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(text.contains("taut0"));
        nix::net::if_::if_nametoindex("taut0").unwrap()
    };
    let index = of(&pair).inside(Host::B, inside).unwrap();
    let mac = pair.b.report().mac.clone().unwrap();
    on_b(&pair, "link delete taut0");
    let again = format!("link add taut0 index {index} address {mac} type veth peer taut9");
    on_b(&pair, &again);
    let (state, told) = changes(&pair.b.status());
    assert_eq!(state, InterfaceState::Gone);
    assert!(
        told[0].contains("another one has this name now"),
        "{told:?}"
    );
}

/// Alternative names may be longer than 15 bytes, and an address may have a label other than its interface's name.
#[test]
fn a_node_opens_by_an_alternative_name_and_has_an_address_of_any_label() {
    let Some(hosts) = hosts() else { return };
    for name in ["motors0", "the-motors-of-the-arm"] {
        ip(
            &hosts,
            Host::B,
            &format!("link property add dev taut0 altname {name}"),
        );
    }
    ip(&hosts, Host::B, "address flush dev taut0");
    ip(
        &hosts,
        Host::B,
        "address add 10.77.0.9/24 dev taut0 label taut0:arm",
    );
    for name in ["taut0", "motors0", "the-motors-of-the-arm"] {
        for link in [LinkKind::Xdp, LinkKind::Packet, LinkKind::Udp] {
            let open = || Node::open(NodeConfig::on(name).with_link(link)).unwrap();
            let node = hosts.inside(Host::B, open).unwrap();
            let report = node.report();
            assert_eq!(report.interface.as_deref(), Some("taut0"), "{name}");
            assert_eq!(report.ip, Some([10, 77, 0, 9].into()), "{name}");
            if link == LinkKind::Xdp {
                assert_eq!(changes(&node.status()), UNCHANGED, "{name}");
            }
        }
    }
    let none = || Node::open(NodeConfig::on("the-motors-of-the-leg")).unwrap_err();
    let refused = hosts.inside(Host::B, none).unwrap();
    assert!(
        matches!(refused, OpenError::NoSuchInterface { .. }),
        "{refused}"
    );
}

/// A tunnel's packets have no Ethernet header: each would be read as if it had one.
#[test]
fn an_interface_without_ethernet_has_link_udp_and_no_other() {
    let Some(hosts) = hosts() else { return };
    let add = ["tuntap", "add", "dev", "tunnel0", "mode", "tun"];
    if hosts.run(Host::B, "ip", &add).is_err() {
        println!("SKIPPED: this kernel has no tun");
        return;
    }
    ip(&hosts, Host::B, "address add 10.90.0.2/24 dev tunnel0");
    ip(&hosts, Host::B, "link set tunnel0 up");
    let open = |link| {
        let config = NodeConfig {
            link,
            ..NodeConfig::on("tunnel0")
        };
        hosts.inside(Host::B, || Node::open(config)).unwrap()
    };
    for link in [LinkKind::Xdp, LinkKind::Xsk, LinkKind::Packet] {
        let refused = open(Some(link)).unwrap_err();
        assert!(matches!(refused, OpenError::NoEthernet { .. }), "{refused}");
        assert!(refused.remedy().contains("link = \"udp\""));
    }
    let serve = || Server::open(ServiceConfig::new(NodeConfig::on("tunnel0"))).unwrap_err();
    let refused = hosts.inside(Host::B, serve).unwrap();
    assert!(matches!(refused, OpenError::NoEthernet { .. }), "{refused}");
    let node = open(None).unwrap();
    assert_eq!(node.report().link, LinkKind::Udp);
    let why = &node.report().not_better[0].why;
    assert!(why.contains("`tunnel0` has no Ethernet frames"), "{why}");
}

#[test]
fn link_udp_lives_by_its_address() {
    let Some(pair) = pair(UDP, UDP) else { return };
    assert_eq!(pair.on_b(Node::status).interface_now, None);
    assert_eq!(pair.on_b(Node::status).interface_up, Some(true));
    on_b(&pair, "link delete taut0");
    assert_eq!(pair.on_b(Node::status).interface_up, Some(false));
}

/// A bridge tells that an interface has left it in the words that the kernel has for its end.
#[test]
fn leaving_a_bridge_is_no_end() {
    let Some(pair) = pair(XDP, XDP) else { return };
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    on_b(&pair, "link add taut-br type bridge");
    on_b(&pair, "link set taut0 master taut-br");
    on_b(&pair, "link set taut0 nomaster");
    on_b(&pair, "link delete taut-br");
    flows(&mut sender, &mut receiver, to);
    assert_eq!(changes(&pair.b.status()), UNCHANGED);
}

#[test]
fn another_mac_address_is_told() {
    for side in here([XDP, XDP_TC, PACKET]) {
        let Some(pair) = pair(side, side) else { return };
        let old = pair.b.report().mac.clone().unwrap();
        on_b(&pair, &format!("link set taut0 address {OTHER_MAC}"));
        let status = pair.b.status();
        let (state, told) = changes(&status);
        assert_eq!(
            (state, status.interface_up),
            (InterfaceState::OtherMac, Some(true))
        );
        let sentence = format!(
            "the interface's MAC address is now {OTHER_MAC}, this process listens on {old}: restart it"
        );
        assert_eq!(told, [sentence]);
        assert_eq!(status.interface_now.unwrap().mac.unwrap(), OTHER_MAC);
        on_b(&pair, &format!("link set taut0 address {old}"));
        assert_eq!(changes(&pair.b.status()), UNCHANGED);
    }
}

#[test]
fn another_ipv4_address_is_told() {
    let Some(pair) = pair(XDP, XDP) else { return };
    let old = of(&pair).end(Host::B, 0).address();
    let told = || changes(&pair.b.status());
    on_b(&pair, "address add 10.250.9.9/24 dev taut0");
    assert_eq!(told(), UNCHANGED);
    on_b(&pair, &format!("address delete {old}/24 dev taut0"));
    let sentence = format!(
        "the interface's IPv4 address is now 10.250.9.9, this process uses {old}: restart it"
    );
    assert_eq!(told(), (InterfaceState::Up, vec![sentence]));
    on_b(&pair, "address delete 10.250.9.9/24 dev taut0");
    let sentence =
        format!("the interface's IPv4 address is gone, this process uses {old}: restart it");
    assert_eq!(told(), (InterfaceState::Up, vec![sentence]));
}

#[test]
fn another_name_is_told_and_does_no_harm() {
    for side in here([XDP, XDP_GENERIC, XDP_TC, PACKET]) {
        let Some(pair) = pair(side, side) else { return };
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        for change in ["down", "name other0", "up"] {
            let name = if change == "up" { "other0" } else { "taut0" };
            on_b(&pair, &format!("link set {name} {change}"));
        }
        flows(&mut sender, &mut receiver, to);
        let status = pair.b.status();
        let (state, told) = changes(&status);
        assert_eq!(
            (state, status.interface_up),
            (InterfaceState::Up, Some(true))
        );
        assert_eq!(told, ["`taut0` is called `other0` now"]);
        on_b(&pair, "link add taut0 type veth peer taut9");
        let (state, told) = changes(&pair.b.status());
        assert_eq!(state, InterfaceState::Up);
        assert_eq!(
            told,
            ["`taut0` is called `other0` now, and another interface has its old name"]
        );
    }
}

/// Waits on port 60 as a client, and says what it hears.
fn client(peer: &str) {
    become_user(NOBODY);
    forbid_bpf();
    let neighbour = Neighbour {
        name: "peer".to_owned(),
        mac: peer.parse().unwrap(),
        ip: None,
        form: Form::Ethernet,
    };
    let config = NodeConfig::on("taut0").with_link(LinkKind::Xdp);
    let node = match Node::open(config.with_neighbour(neighbour).unwrap()) {
        Ok(node) => node,
        Err(error) => {
            println!("not opened: {error}");
            return child::ready();
        }
    };
    let mut receiver = node.queuing(port(60)).open().unwrap();
    let to = receiver.destination("peer", port(12)).unwrap();
    receiver.send(to, Priority::NORMAL, b"before").unwrap();
    println!("{}", child::READY);
    println!("waited: {}", waits_in_vain(&mut receiver));
    // The control process ends at the same moment.
    let give_up = tautline::now() + PATIENCE;
    let sent = loop {
        match receiver.send(to, Priority::NORMAL, b"after") {
            Ok(()) if tautline::now() < give_up => thread::sleep(Duration::from_millis(10)),
            sent => break sent,
        }
    };
    match sent {
        Err(SendError::InterfaceGone) => println!("sent: Err(InterfaceGone)"),
        other => println!("sent: {other:?}"),
    }
    let opened = loop {
        match node.queuing(port(61)).open() {
            Ok(_) if tautline::now() < give_up => {}
            opened => break opened,
        }
    };
    match opened {
        Err(PortError::ControlGone { .. }) => println!("opened: the control process is gone"),
        other => println!("opened: {other:?}"),
    }
    // The next interface of this name may come after all this.
    let told = loop {
        let (state, told) = changes(&node.status());
        let named = told.iter().any(|change| change.contains("another one"));
        if named || tautline::now() >= give_up {
            break (state, told);
        }
        thread::sleep(Duration::from_millis(10));
    };
    println!("status: {told:?}");
    child::ready();
}

#[test]
fn a_control_process_ends_with_its_interface_and_its_clients_learn_it() {
    const TEST: &str = "a_control_process_ends_with_its_interface_and_its_clients_learn_it";
    let client = |role: &str| {
        client(role);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let mut control = start_control(&hosts, TEST, &allow("60, 61", ""));
    let peer = MacAddress(hosts.end(Host::A, 0).mac()).to_string();
    let mut client = start_client(&hosts, TEST, &peer);
    let status = control_status(&hosts);
    assert_eq!(status["interface_now"]["state"], "up");
    ip(&hosts, Host::B, "link delete taut0");
    // At once, as root may: the old control process must not stay beside the next one.
    ip(&hosts, Host::B, "link add taut0 type veth peer taut9");
    let ended = control.wait_for("ended: ");
    assert!(ended.contains("interface `taut0` is gone"), "{ended}");
    for (what, expected) in [
        ("waited: ", "interface is gone"),
        ("sent: ", "Err(InterfaceGone)"),
        ("opened: ", "the control process is gone"),
    ] {
        let line = client.wait_for(what);
        assert!(line.contains(expected), "{line}");
    }
    let told = client.wait_for("status: ");
    assert!(
        told.contains("Gone") && told.contains("another one has this name"),
        "{told}"
    );
    // The next control process has the new interface, whatever the client holds yet.
    let mut next = start_control(&hosts, TEST, &allow("60, 61", ""));
    let mut again = start_client(&hosts, TEST, &peer);
    ip(&hosts, Host::B, "link delete taut0");
    next.wait_for("ended: ");
    again.wait_for("waited: interface is gone");
}

#[test]
fn a_control_process_says_that_it_listens_on_an_old_mac_address() {
    const TEST: &str = "a_control_process_says_that_it_listens_on_an_old_mac_address";
    let client = |role: &str| {
        client(role);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("60, 61", ""));
    let peer = MacAddress(hosts.end(Host::A, 0).mac()).to_string();
    let old = MacAddress(hosts.end(Host::B, 0).mac());
    let _holds_the_demux = start_client(&hosts, TEST, &peer);
    ip(
        &hosts,
        Host::B,
        &format!("link set taut0 address {OTHER_MAC}"),
    );
    let status = control_status(&hosts);
    assert_eq!(status["interface_now"]["state"], "other_mac");
    let sentence =
        format!("the interface's MAC address is now {OTHER_MAC}, this process listens on {old}");
    let changes = status["interface_now"]["changes"].to_string();
    assert!(changes.contains(&sentence), "{changes}");
    // A node of the new address would neither be heard nor hear.
    let refused = hosts.inside(Host::B, || {
        Node::open(NodeConfig::on("taut0").with_link(LinkKind::Xdp)).unwrap_err()
    });
    let refused = refused.unwrap();
    assert!(
        matches!(refused, OpenError::ControlRefused { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains(&sentence), "{refused}");
    control.kill();
    // The demux is on the interface as long as the client lives.
    let serve = || Server::open(ServiceConfig::new(NodeConfig::on("taut0"))).unwrap_err();
    let refused = hosts.inside(Host::B, serve).unwrap();
    assert!(matches!(refused, OpenError::OtherDemux { .. }), "{refused}");
    assert!(
        refused.to_string().contains("another MAC address"),
        "{refused}"
    );
    assert!(!refused.remedy().contains("doctor"), "{}", refused.remedy());
}

/// A process with a demux of its own, in the way of a control process.
#[test]
fn a_node_of_its_own_that_listens_on_an_old_mac_address_is_named() {
    if !is_here(XDP) {
        return;
    }
    let Some(hosts) = hosts() else { return };
    let side = Side { mode: None, ..XDP };
    let _node = open(&hosts, Host::B, side);
    ip(
        &hosts,
        Host::B,
        &format!("link set taut0 address {OTHER_MAC}"),
    );
    let config = config(&hosts, Host::B, side);
    let serve = || Server::open(ServiceConfig::new(config)).unwrap_err();
    let refused = hosts.inside(Host::B, serve).unwrap();
    let OpenError::OtherDemux { why, holders, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(
        why.contains("a single process's own") && why.contains("another MAC address"),
        "{why}"
    );
    assert!(
        holders
            .iter()
            .any(|holder| holder.pid == std::process::id() as i32),
        "{refused}"
    );
}
