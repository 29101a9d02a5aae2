//! Faults of the interface: no privilege for it, none of that name, down, gone, taken
//! by another program, shared with ordinary traffic.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::wire::{Wire, frame};
use crate::common::{
    PACKET, PATIENCE, Pair, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, child, config, here,
    hosts, is_here, on_sides, pair, port,
};
use tautline::link::XdpMode;
use tautline::port::QueuingOptions;
use tautline::{
    LinkKind, MacAddress, Node, NodeConfig, OpenError, Priority, QueuingPort, SendError, Wait,
};
use tautline_proto::wire::Header;
use tautline_testbed::hosts::{Host, Hosts};

/// Becomes an ordinary user, whichever user we are.
fn drop_privilege() {
    use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
    if Uid::effective().is_root() {
        setgroups(&[]).unwrap();
        setgid(Gid::from_raw(65534)).unwrap();
        setuid(Uid::from_raw(65534)).unwrap();
    }
}

#[test]
fn without_privilege_it_is_udp_and_says_why() {
    if child::role().is_none() {
        return child::run("without_privilege_it_is_udp_and_says_why", "nobody");
    }
    drop_privilege();
    let node = Node::open(NodeConfig::on("lo")).unwrap();
    let report = node.report();
    assert_eq!(report.link, LinkKind::Udp);
    let tried: Vec<_> = report.not_better.iter().map(|tried| &tried.link).collect();
    assert_eq!(
        tried,
        ["xdp (native)", "xdp (tc)", "xdp (generic)", "packet"]
    );
    assert!(report.not_better[0].why.contains("CAP_BPF"), "{report}");
    assert!(report.not_better[3].why.contains("CAP_NET_RAW"), "{report}");
    for link in [LinkKind::Xdp, LinkKind::Packet] {
        let refused = Node::open(NodeConfig::on("lo").with_link(link)).unwrap_err();
        assert!(
            matches!(refused, OpenError::NotPermitted { link: name, .. } if name == link.name()),
            "{refused}"
        );
        assert!(refused.remedy().contains("link = \"udp\""));
    }
}

#[test]
fn an_unknown_interface_is_answered_with_those_that_there_are() {
    let Some(hosts) = hosts() else { return };
    let open = || Node::open(NodeConfig::on("taut9")).unwrap_err();
    let error = hosts.inside(Host::A, open).unwrap();
    let OpenError::NoSuchInterface { name, known } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, "taut9");
    assert!(known.iter().any(|name| name == "lo") && known.iter().any(|name| name == "taut0"));
    assert!(error.to_string().contains("taut0"));
    assert!(error.remedy().contains("interfaces"));
    let no_name = "a-name-that-no-interface-can-have";
    let open = || Node::open(NodeConfig::on(no_name)).unwrap_err();
    let error = hosts.inside(Host::A, open).unwrap();
    assert!(
        matches!(error, OpenError::NoSuchInterface { .. }),
        "{error}"
    );
}

fn ip(pair: &Pair, host: Host, arguments: &[&str]) {
    let hosts = pair.hosts.as_ref().unwrap();
    let mut command = hosts.command(host, "ip");
    assert!(command.args(arguments).status().unwrap().success());
}

/// Sends until a message arrives: after an interface has come up, the cable takes a moment.
fn flows_again(
    sender: &mut QueuingPort,
    receiver: &mut QueuingPort,
    to: tautline::Destination,
) -> Result<(), SendError> {
    let mut buffer = [0; 1484];
    let give_up = tautline::now() + PATIENCE;
    let mut last = Ok(());
    while tautline::now() < give_up {
        last = sender.send(to, Priority::NORMAL, b"again");
        let soon = tautline::now() + Duration::from_millis(20);
        if let Ok(Some(_)) = receiver.receive_into(&mut buffer, Wait::Until(soon)) {
            return Ok(());
        }
    }
    panic!("nothing arrives any more; the last send: {last:?}");
}

/// An interface that has come up can send a moment later.
fn wait_for_carrier(pair: &Pair) {
    let hosts = pair.hosts.as_ref().unwrap();
    let give_up = tautline::now() + PATIENCE;
    loop {
        let mut command = hosts.command(Host::A, "ip");
        let output = command.args(["link", "show", "taut0"]).output().unwrap();
        if String::from_utf8_lossy(&output.stdout).contains("state UP") {
            return;
        }
        assert!(tautline::now() < give_up);
    }
}

#[test]
fn a_send_tells_a_lack_of_carrier_from_a_full_queue() {
    for side in here([XDP, XDP_TC, PACKET]) {
        let Some(pair) = pair(side, side) else { return };
        let (mut sender, _receiver, to) = pair.ports(&QueuingOptions::default());
        ip(&pair, Host::B, &["link", "set", "taut0", "down"]);
        let give_up = tautline::now() + PATIENCE;
        // The kernel takes a moment to note it.
        while sender.send(to, Priority::NORMAL, b"into nothing") != Err(SendError::NoCarrier) {
            assert!(tautline::now() < give_up);
        }
        ip(&pair, Host::B, &["link", "set", "taut0", "up"]);
        wait_for_carrier(&pair);
        sender.send(to, Priority::NORMAL, b"again").unwrap();

        ip(&pair, Host::B, &["link", "set", "taut0", "mtu", "600"]);
        sender.send(to, Priority::NORMAL, &[1; 500]).unwrap();
        let refused = sender.send(to, Priority::NORMAL, &[1; 1000]).unwrap_err();
        assert!(
            refused.remedy().contains("MTU"),
            "{refused}: {}",
            refused.remedy()
        );
        assert!(!refused.to_string().contains("full"), "{refused}");
    }
}

/// Raw links take no IP fragments of the UDP form: what the kernel would cut vanished.
#[test]
fn link_udp_refuses_a_message_that_does_not_fit_its_interface() {
    for side in here([XDP.speaking_udp(), PACKET.speaking_udp(), UDP]) {
        let Some(pair) = pair(UDP, side) else { return };
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        ip(&pair, Host::A, &["link", "set", "taut0", "mtu", "1000"]);
        let refused = sender.send(to, Priority::NORMAL, &[1; 1300]);
        assert_eq!(refused, Err(SendError::FrameTooLarge));
        sender.send(to, Priority::NORMAL, &[1; 900]).unwrap();
        let mut buffer = [0; 1484];
        let message = receiver.take_into(&mut buffer);
        assert_eq!(message.length, 900);
    }
}

fn down_and_up_again(side: Side) {
    let Some(pair) = pair(side, side) else { return };
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    flows_again(&mut sender, &mut receiver, to).unwrap();
    // The sender's end.
    ip(&pair, Host::A, &["link", "set", "taut0", "down"]);
    let refused = sender.send(to, Priority::NORMAL, b"into nothing");
    match side.link {
        // The route went with the interface.
        LinkKind::Udp => assert_eq!(refused, Err(SendError::Refused { errno: 101 })),
        _ => assert_eq!(refused, Err(SendError::InterfaceDown)),
    }
    assert_eq!(pair.on_a(Node::status).interface_up, Some(false));
    ip(&pair, Host::A, &["link", "set", "taut0", "up"]);
    wait_for_carrier(&pair);
    // The socket's memory of the time before is not this message's affair.
    sender.send(to, Priority::NORMAL, b"at once").unwrap();
    flows_again(&mut sender, &mut receiver, to).unwrap();
    assert_eq!(pair.on_a(Node::status).interface_up, Some(true));
    // Another network's interface of the same name says nothing about ours, whichever process asks.
    let asked_elsewhere = match side.link {
        LinkKind::Udp => None,
        _ => Some(true),
    };
    assert_eq!(pair.a.status().interface_up, asked_elsewhere);
    // The receiver's end.
    ip(&pair, Host::B, &["link", "set", "taut0", "down"]);
    let _lost = sender.send(to, Priority::NORMAL, b"into nothing");
    ip(&pair, Host::B, &["link", "set", "taut0", "up"]);
    flows_again(&mut sender, &mut receiver, to).unwrap();
    assert!(pair.a.status().ports[0].send_errors > 0);
}

on_sides! {
    fn xdp_survives_down_and_up(XDP) = down_and_up_again;
    fn xdp_generic_survives_down_and_up(XDP_GENERIC) = down_and_up_again;
    fn xdp_tc_survives_down_and_up(XDP_TC) = down_and_up_again;
    fn packet_survives_down_and_up(PACKET) = down_and_up_again;
    fn xsk_survives_down_and_up(XSK) = down_and_up_again;
    fn udp_survives_down_and_up(UDP) = down_and_up_again;
}

#[test]
fn a_deleted_interface_is_an_error_and_no_more() {
    for side in here([XDP, XDP_GENERIC, XDP_TC, PACKET, UDP]) {
        let Some(pair) = pair(side, side) else { return };
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        sender.send(to, Priority::NORMAL, b"before").unwrap();
        ip(&pair, Host::A, &["link", "delete", "taut0"]);
        let refused = sender.send(to, Priority::NORMAL, b"after").unwrap_err();
        match side.link {
            LinkKind::Udp => assert!(matches!(refused, SendError::Refused { .. })),
            _ => assert_eq!(refused, SendError::InterfaceGone),
        }
        let mut buffer = [0; 1484];
        let soon = tautline::now() + Duration::from_millis(20);
        // Earlier messages may still be there; the interface's end may be reported; neither panics.
        let _before = receiver.receive_into(&mut buffer, Wait::Until(soon));
        let _nothing = sender.receive_into(&mut buffer, Wait::Until(soon));
        let status = pair.on_a(Node::status);
        assert_eq!(status.interface_up, Some(false));
        assert_eq!(status.ports[0].send_errors, 1);
        let port_again = pair.on_a(|node| node.queuing(port(99)).open());
        // Sockets can be opened for an address that has gone with its interface only on `udp`,
        // and not even there.
        assert!(port_again.is_err(), "{:?}", side.link);
    }
}

/// Some XDP program: that of link `xsk`, loaded without a node.
const FOREIGN_NAME: &str = "tautline_xsk";

#[test]
fn another_program_is_named_and_left_alone() {
    let Some(hosts) = hosts() else { return };
    // Attached by this test itself, so no demux of a node.
    let mut foreign = aya::Ebpf::load(tautline_bpf::XSK.unwrap()).unwrap();
    let program: &mut aya::programs::Xdp = foreign
        .program_mut(FOREIGN_NAME)
        .unwrap()
        .try_into()
        .unwrap();
    hosts
        .inside(Host::B, || {
            program.load().unwrap();
            program
                .attach("taut0", aya::programs::XdpMode::Driver)
                .unwrap()
        })
        .unwrap();
    let open = |config: NodeConfig| hosts.inside(Host::B, || Node::open(config)).unwrap();
    for side in [XDP, XDP_GENERIC] {
        let error = open(config(&hosts, Host::B, side)).unwrap_err();
        let OpenError::XdpTaken { id, name, .. } = &error else {
            panic!("{error}");
        };
        assert!(id.is_some());
        assert_eq!(name.as_deref(), Some(FOREIGN_NAME));
        assert!(error.remedy().contains("xdp off"));
    }
    let node = open(NodeConfig::on("taut0")).unwrap();
    let report = node.report();
    let tried: Vec<_> = report.not_better.iter().map(|tried| &tried.link).collect();
    // At traffic control there is room beside it.
    if is_here(XDP_TC) {
        assert_eq!(report.link, LinkKind::Xdp);
        assert_eq!(report.capabilities.xdp_mode, Some(XdpMode::Tc));
        assert_eq!(tried, [""; 0]);
        let told = |limit: &String| limit.contains(FOREIGN_NAME) && limit.contains("first");
        assert!(report.limits.iter().any(told), "{report}");
    } else {
        assert_eq!(report.link, LinkKind::Packet);
        assert_eq!(tried, ["xdp (tc)", "xdp (generic)", "xdp (native)"]);
        assert!(report.not_better[1].why.contains(FOREIGN_NAME), "{report}");
        // By name, what stands in the way is told, and not that the kernel has no place beside it.
        let named = open(NodeConfig::on("taut0").with_link(LinkKind::Xdp)).unwrap_err();
        assert!(matches!(named, OpenError::XdpTaken { .. }), "{named}");
    }
}

/// On a virtual cable the demux leaves everybody else's frames alone, unless asked otherwise; on other interfaces
/// native mode is tried first, and without it traffic control before generic mode.
#[test]
fn the_hook_is_that_of_the_driver() {
    let Some(hosts) = hosts() else { return };
    let ip = |arguments: &[&str]| {
        let mut command = hosts.command(Host::A, "ip");
        command.args(arguments).output().unwrap().status.success()
    };
    let open = |config: NodeConfig| {
        let opened = hosts.inside(Host::A, || Node::open(config)).unwrap();
        let report = opened.unwrap().report().clone();
        (report.link, report.capabilities.xdp_mode)
    };
    let first = match is_here(XDP_TC) {
        true => XdpMode::Tc,
        false => XdpMode::Generic,
    };
    let (xdp, mut virtual_ones) = (LinkKind::Xdp, vec!["taut0"]);
    for (name, how) in [
        ("taut-br", &["type", "bridge"][..]),
        (
            "taut-mac",
            &["link", "taut0", "type", "macvlan", "mode", "bridge"],
        ),
        ("taut-vlan", &["link", "taut0", "type", "vlan", "id", "7"]),
    ] {
        match ip(&[&["link", "add", name], how].concat()) && ip(&["link", "set", name, "up"]) {
            true => virtual_ones.push(name),
            false => println!("SKIPPED: this kernel makes no {}", how.join(" ")),
        }
    }
    for name in virtual_ones {
        assert_eq!(open(NodeConfig::on(name)), (xdp, Some(first)), "{name}");
    }
    if ip(&["tuntap", "add", "dev", "taut-tap", "mode", "tap"]) {
        assert_eq!(
            open(NodeConfig::on("taut-tap")),
            (xdp, Some(XdpMode::Native))
        );
    } else {
        println!("SKIPPED: this kernel makes no taps");
    }
    // A driver without native mode.
    assert_eq!(open(NodeConfig::on("lo")), (xdp, Some(first)));
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let mut config = NodeConfig::on("taut0");
        config.xdp_mode = Some(mode);
        assert_eq!(open(config), (xdp, Some(mode)));
    }
}

/// The kernel would let one demux be at each hook; both would have the same ports.
#[test]
fn a_second_demux_is_refused_at_every_hook() {
    let Some(hosts) = hosts() else { return };
    for first in here([XDP, XDP_GENERIC, XDP_TC]) {
        let open = |side: Side| {
            let config = config(&hosts, Host::B, side);
            hosts.inside(Host::B, || Node::open(config)).unwrap()
        };
        // A child that another test is starting holds the demux before for a moment.
        let started = Instant::now();
        let node = loop {
            match open(first) {
                Err(OpenError::XdpTaken { .. }) if started.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(10));
                }
                opened => break opened.unwrap(),
            }
        };
        for second in here([XDP, XDP_GENERIC, XDP_TC]) {
            let error = open(second).unwrap_err();
            let OpenError::XdpTaken { holders, .. } = &error else {
                panic!("{error}");
            };
            assert!(!holders.is_empty(), "{error}");
        }
        drop(node);
    }
}

/// A second node falls back to `packet`; the first one's demux lets its frames pass.
#[test]
fn two_nodes_share_an_interface() {
    let Some(pair) = pair(XDP, XDP) else { return };
    let hosts = pair.hosts.as_ref().unwrap();
    let mut automatic = config(hosts, Host::B, XDP);
    (automatic.link, automatic.xdp_mode) = (None, None);
    let second = hosts
        .inside(Host::B, || Node::open(automatic).unwrap())
        .unwrap();
    assert_eq!(second.report().link, LinkKind::Packet);
    let expected = format!("another node has `taut0`: process {} (", std::process::id());
    assert!(second.report().not_better[0].why.starts_with(&expected));
    let (mut sender, mut first_port, to_first) = pair.ports(&QueuingOptions::default());
    let mut second_port = hosts
        .inside(Host::B, || {
            // Each number belongs to one of them.
            let taken = second.queuing(port(12)).open();
            assert!(
                taken
                    .unwrap_err()
                    .to_string()
                    .contains("is taken by process")
            );
            second.queuing(port(13)).open().unwrap()
        })
        .unwrap();
    let to_second = sender.destination("peer", port(13)).unwrap();
    let mut buffer = [0; 1484];
    for number in 0..50u8 {
        sender
            .send(to_first, Priority::NORMAL, &[number, 1])
            .unwrap();
        sender
            .send(to_second, Priority::NORMAL, &[number, 2])
            .unwrap();
        for (receiver, mark) in [(&mut first_port, 1), (&mut second_port, 2)] {
            let message = receiver.take_into(&mut buffer);
            assert_eq!(message.length, 2);
            assert_eq!(buffer[..2], [number, mark]);
        }
    }
    assert_eq!(
        pair.b.status().counters.no_port,
        50,
        "passed on to the other"
    );
    assert_eq!(second.status().ports[0].received, 50);
}

const STREAM_BYTES: usize = 10 << 20;

fn stream(salt: u8) -> impl Iterator<Item = u8> {
    (0..STREAM_BYTES as u32)
        .map(move |place| (place.wrapping_mul(2_654_435_761) >> 24) as u8 ^ salt)
}

/// Sends a stream and reads another, both compared byte by byte.
fn exchange(mut connection: TcpStream, sends: u8, expects: u8) {
    let mut reading = connection.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; STREAM_BYTES];
        reading.read_exact(&mut bytes).unwrap();
        assert!(bytes.into_iter().eq(stream(expects)));
    });
    connection
        .write_all(&stream(sends).collect::<Vec<_>>())
        .unwrap();
    reader.join().unwrap();
}

fn tcp_both_ways(hosts: &Hosts) {
    let listen = || TcpListener::bind((hosts.end(Host::B, 0).address(), 5000)).unwrap();
    let listener = hosts.inside(Host::B, listen).unwrap();
    let to = listener.local_addr().unwrap();
    let here = hosts
        .inside(Host::A, || TcpStream::connect(to).unwrap())
        .unwrap();
    let (there, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| exchange(here, 1, 2));
        exchange(there, 2, 1);
    });
}

/// Datagrams of many sizes on many ports, among them those next to and between our own.
fn udp_datagrams(hosts: &Hosts) {
    let socket = |host, number| {
        let address = (hosts.end(host, 0).address(), number);
        let socket = hosts
            .inside(host, || UdpSocket::bind(address).unwrap())
            .unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let sender = socket(Host::A, 0);
    let mut buffer = [0; 2048];
    for number in [53, 5001, 21568, 21569, 21571, 25664, 25665, 65535] {
        let receiver = socket(Host::B, number);
        let to = receiver.local_addr().unwrap();
        for length in [0, 1, 15, 16, 17, 100, 1472, 2000] {
            let sent = common_pattern(length);
            sender.send_to(&sent, to).unwrap();
            let (bytes, from) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..bytes], sent, "{length} bytes to {number}");
            receiver.send_to(&sent, from).unwrap();
            let (bytes, _) = sender.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..bytes], sent, "{length} bytes from {number}");
        }
    }
}

fn common_pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (place * 13 + length) as u8)
        .collect()
}

fn ping(hosts: &Hosts) {
    let to = hosts.end(Host::B, 0).address().to_string();
    let mut command = hosts.command(Host::A, "ping");
    match command
        .args(["-c", "3", "-i", "0.01", "-W", "5", &to])
        .output()
    {
        Ok(output) => assert!(output.status.success()),
        Err(_) => println!("SKIPPED: ping is not installed"),
    }
}

/// Unknown frames reach Linux, and frames of ours go on beside all this.
fn ordinary_traffic_is_untouched(side: Side) {
    let Some(pair) = pair(side, side) else { return };
    let hosts = pair.hosts.as_ref().unwrap();
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = [0; 1484];
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            tcp_both_ways(hosts);
            udp_datagrams(hosts);
            ping(hosts);
        });
        let mut count = 0;
        while !traffic.is_finished() || count < 100 {
            // The cable drops what overflows it, as cables do; what arrives must be right.
            let _full = sender.send(to, Priority::HIGHEST, &[count as u8; 100]);
            let soon = tautline::now() + Duration::from_millis(1);
            if let Some(message) = receiver
                .receive_into(&mut buffer, Wait::Until(soon))
                .unwrap()
            {
                assert_eq!(buffer[..message.length], [buffer[0]; 100]);
            }
            count += 1;
        }
    });
    assert!(
        pair.b
            .status()
            .counters
            .malformed
            .iter()
            .all(|count| *count == 0)
    );
    // Frames of ours for a port that is not open are Linux's too, which drops them quietly.
    let header = Header::whole(port(77), port(1), Priority::NORMAL, 0, 0);
    let mac = |host| MacAddress(hosts.end(host, 0).mac());
    let wire = Wire::on(hosts, Host::A);
    assert!(wire.send(&frame(mac(Host::B), mac(Host::A), &header, &[])));
}

on_sides! {
    fn ordinary_traffic_beside_xdp(XDP) = ordinary_traffic_is_untouched;
    fn ordinary_traffic_beside_xdp_generic(XDP_GENERIC) = ordinary_traffic_is_untouched;
    fn ordinary_traffic_beside_xdp_tc(XDP_TC) = ordinary_traffic_is_untouched;
}
