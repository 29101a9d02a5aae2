//! Plain UDP: ports of ours against sockets of the kernel, which know nothing of us, on every link.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use crate::common::udp::{Meeting, PORT, bytes, changed, frame, ip, set};
use crate::common::wire::Wire;
use crate::common::{
    PACKET, PATIENCE, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, here, hosts,
    open, sim_pair,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline::config::UdpChecksum;
use tautline::link::PlainUdp;
use tautline::neighbours::Form;
use tautline::port::{Outgoing, QueuingOptions};
use tautline::send_pool::SendPoolConfig;
use tautline::{
    LinkKind, MacAddress, Neighbour, Node, NodeConfig, PortError, PortKey, Priority, ReceiveError,
    SendError, UdpPort, Wait,
};
use tautline_proto::ip::FRAGMENT_OFFSET;
use tautline_proto::ip::checksum::judge;
use tautline_proto::ip::receive::{Arrival, Own, parse};
use tautline_proto::wire::{ParseError, Rejected};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, Offloads};

const SIDES: [Side; 7] = [XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, PACKET, UDP];
/// Those that have their own way past the kernel's stack.
const PAST_THE_STACK: [Side; 5] = [XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC];

fn is_past_the_stack(side: Side) -> bool {
    matches!(side.link, LinkKind::Xdp | LinkKind::Xsk)
}

/// A network of two addresses has no broadcast address (RFC 3021), and Linux takes 240.0.0.0/4 for ordinary addresses.
#[test]
fn every_address_that_linux_uses_is_heard_and_answered() {
    for (ours, theirs) in [
        ("10.9.0.0/31", "10.9.0.1/31"),
        ("10.9.0.1/31", "10.9.0.0/31"),
        ("240.0.0.2/24", "240.0.0.1/24"),
    ] {
        for side in here(SIDES) {
            let Some(hosts) = hosts() else { return };
            for (host, address) in [(Host::B, ours), (Host::A, theirs)] {
                for arguments in [
                    vec!["address", "flush", "dev", "taut0"],
                    vec!["address", "add", address, "dev", "taut0"],
                ] {
                    hosts.run(host, "ip", &arguments).unwrap();
                }
            }
            let address = |text: &str| text[..text.len() - 3].parse::<Ipv4Addr>().unwrap();
            let (own, peer) = (address(ours), address(theirs));
            let mut wanted = NodeConfig::on("taut0").with_link(side.link);
            wanted.xdp_mode = side.mode;
            let neighbour = Neighbour {
                name: "peer".to_owned(),
                mac: MacAddress(hosts.end(Host::A, 0).mac()),
                ip: Some(peer),
                form: Form::Ethernet,
            };
            let wanted = wanted.with_neighbour(neighbour).unwrap();
            let mut port = hosts
                .inside(Host::B, || {
                    let node = Node::open(wanted).unwrap();
                    node.udp(PORT).open().unwrap()
                })
                .unwrap();
            let socket = hosts.inside(Host::A, || UdpSocket::bind((peer, 0)).unwrap());
            let socket = socket.unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send_to(b"there", (own, PORT)).unwrap();
            let mut buffer = [0; 1484];
            let received = port.receive_into(&mut buffer, Wait::Until(tautline::now() + PATIENCE));
            let received = received.unwrap();
            let received = received.unwrap_or_else(|| panic!("{theirs} is heard: {:?}", side.mode));
            port.reply(received.source, Priority::NORMAL, b"back")
                .unwrap();
            assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
        }
    }
}

#[test]
fn any_number_of_peers_is_answered() {
    for side in here(SIDES) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let mut buffer = [0; 1484];
        let mut ask = |meeting: &mut Meeting, socket: &UdpSocket| {
            socket.send_to(b"question", meeting.own()).unwrap();
            let source = meeting.receive(&mut buffer).source;
            assert_eq!(socket.local_addr().unwrap(), source.into());
            let answered = meeting.port.reply(source, Priority::NORMAL, b"answer");
            answered.unwrap();
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..length], from),
                (&b"answer"[..], meeting.own().into())
            );
        };
        let bind = || UdpSocket::bind((ip(&meeting.hosts, Host::A), 0)).unwrap();
        let peers = meeting.hosts.inside(Host::A, || [(); 100].map(|()| bind()));
        let own = meeting.socket.try_clone().unwrap();
        ask(&mut meeting, &own);
        for socket in peers.unwrap() {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            ask(&mut meeting, &socket);
        }
        for _ in 0..20 {
            ask(&mut meeting, &own);
        }
        // No host has this address.
        let stranger = SocketAddrV4::new(Ipv4Addr::new(10, 255, 255, 77), 7);
        let sent = meeting.port.reply(stranger, Priority::NORMAL, b"answer");
        if is_past_the_stack(side) {
            assert!(matches!(sent, Err(SendError::NoWay { .. })), "{sent:?}");
            assert_eq!(meeting.status().send_errors, 1);
        }
    }
}

#[test]
fn a_destination_of_another_port_is_refused() {
    for side in here([XDP, UDP]) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let open = || meeting.node.udp(PORT + 1).open();
        let mut other = meeting.hosts.inside(Host::B, open).unwrap().unwrap();
        let to = other.destination("peer", meeting.peer().port()).unwrap();
        let port = &mut meeting.port;
        let refused = Err(SendError::OtherPort);
        let priority = Priority::NORMAL;
        assert_eq!(port.send_to(to, priority, b"1"), refused);
        assert_eq!(port.lend(to, priority, 1).map(drop), refused);
        let batch = [Outgoing {
            to,
            priority,
            message: b"1",
        }];
        assert_eq!(port.send_batch(&batch), Err(SendError::OtherPort));
        assert_eq!(port.address(to), None);
        assert_eq!(meeting.status().send_errors, 3);
        other.send_to(to, priority, b"own").unwrap();
        assert_eq!(meeting.socket.recv(&mut [0; 9]).unwrap(), 3);
    }
}

#[test]
fn checksums_are_judged() {
    for (offloads, side) in [
        (Offloads::ChecksumOff, XDP),
        (Offloads::Kernel, XDP_GENERIC),
    ] {
        if hosts().is_none() {
            return;
        }
        let hosts = Hosts::create(&HostsOptions {
            offloads,
            ..HostsOptions::default()
        });
        let mut meeting = Meeting::new(hosts.unwrap(), side);
        let mut buffer = [0; 1484];
        let whole = match offloads {
            Offloads::Kernel => UdpChecksum::Partial,
            _ => UdpChecksum::Valid,
        };
        meeting.socket.send_to(b"with", meeting.own()).unwrap();
        assert_eq!(meeting.receive(&mut buffer).checksum, whole);
        let one = 1i32.to_ne_bytes();
        set(&meeting.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &one);
        meeting.socket.send_to(b"without", meeting.own()).unwrap();
        assert_eq!(meeting.receive(&mut buffer).checksum, UdpChecksum::Absent);

        // By hand: right, then each with one bit wrong, in the sum and in the bytes.
        let wire = Wire::on(&meeting.hosts, Host::A);
        let frame = frame(&meeting, b"by hand");
        assert!(wire.send(&frame));
        assert_eq!(meeting.receive(&mut buffer).checksum, UdpChecksum::Valid);
        for (place, bit) in [(40, 0), (41, 7), (42, 1), (48, 6)] {
            let mut wrong = frame.clone();
            wrong[place] ^= 1 << bit;
            assert!(wire.send(&wrong));
        }
        assert!(wire.send(&frame));
        assert_eq!(meeting.receive(&mut buffer).checksum, UdpChecksum::Valid);
        assert_eq!(meeting.status().datagrams.unwrap().bad_checksum, 4);
    }
}

#[test]
fn wrong_datagrams_are_dropped_and_counted() {
    for side in here(PAST_THE_STACK) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let wire = Wire::on(&meeting.hosts, Host::A);
        let good = frame(&meeting, b"0123456789");
        let own = meeting.own().ip().octets();
        let source = |octets: [u8; 4]| (26..).zip(octets).collect::<Vec<_>>();
        let cases = [
            (ParseError::LengthBeyondFrame, vec![(39, 19)]),
            (ParseError::Truncated, vec![(39, 7)]),
            (ParseError::Truncated, vec![(39, 0)]),
            (ParseError::Truncated, vec![(17, 27)]),
            (ParseError::InvalidSource, vec![(6, 3)]),
            (ParseError::InvalidSource, source(own)),
            (ParseError::InvalidSource, source([10, 77, 0, 255])),
            (ParseError::InvalidSource, source([255; 4])),
            (ParseError::InvalidSource, source([0; 4])),
            (ParseError::InvalidSource, source([224, 0, 0, 1])),
            (ParseError::InvalidSource, source([127, 0, 0, 1])),
        ];
        let mut buffer = [0; 1484];
        let mut wanted = meeting.node.status().counters;
        for (error, changes) in cases {
            assert!(wire.send(&changed(&good, &changes)));
            // The message after it shows that it is through.
            assert!(wire.send(&good));
            assert_eq!(meeting.receive(&mut buffer).length, 10);
            wanted.malformed[error.index()] += 1;
            let counters = meeting.node.status().counters;
            assert_eq!(counters, wanted, "{error:?}, {changes:?}");
        }
        // Not for us to judge: other ports, protocols and addresses, damaged IP headers.
        for changes in [
            vec![(36, 0), (37, 0)],
            vec![(37, 0)],
            vec![(23, 6)],
            vec![(33, 77)],
            vec![(14, 0x44)],
            vec![(17, 200)],
            vec![(17, 23)],
        ] {
            assert!(wire.send(&changed(&good, &changes)));
        }
        let mut damaged = good.clone();
        damaged[25] ^= 1;
        assert!(wire.send(&damaged));
        // From port 0 comes what wants no answer, and bytes after the datagram are none of it.
        assert!(wire.send(&changed(&good, &[(34, 0), (35, 0), (40, 0), (41, 0)])));
        let received = meeting.receive(&mut buffer);
        assert_eq!(received.source.port(), 0);
        let refused = meeting.port.reply(received.source, Priority::NORMAL, b"!");
        assert!(
            matches!(refused, Err(SendError::NoWay { why }) if why.contains("UDP port 0")),
            "{refused:?}"
        );
        assert!(wire.send(&changed(&good, &[(39, 17), (40, 0), (41, 0)])));
        assert_eq!(meeting.receive(&mut buffer).length, 9);
        assert_eq!(meeting.node.status().counters, wanted);
        let status = meeting.status();
        assert_eq!((status.received, status.frames), (13, 13));
    }
}

#[test]
fn the_most_urgent_comes_first() {
    for side in here(SIDES) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        for (service, text) in [(0, "routine"), (0xE0, "control"), (0xB8, "expedited")] {
            let service = i32::to_ne_bytes(service);
            set(&meeting.socket, libc::IPPROTO_IP, libc::IP_TOS, &service);
            meeting
                .socket
                .send_to(text.as_bytes(), meeting.own())
                .unwrap();
        }
        let deadline = tautline::now() + PATIENCE;
        let mut buffer = [0; 1484];
        // Elsewhere nothing is counted before the first look.
        if side.link == LinkKind::Xdp {
            while meeting.status().frames < 3 {
                assert!(tautline::now() < deadline);
            }
        }
        for (priority, text) in [(7, "control"), (5, "expedited"), (0, "routine")] {
            let received = meeting.receive(&mut buffer);
            assert_eq!(&buffer[..received.length], text.as_bytes());
            assert_eq!(received.priority.get(), priority);
        }
    }
}

#[test]
fn other_udp_ports_stay_with_linux() {
    for side in here(SIDES) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let own = *meeting.own().ip();
        let linux = meeting
            .hosts
            .inside(Host::B, || UdpSocket::bind((own, PORT + 1)).unwrap())
            .unwrap();
        linux.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 1484];
        for length in [1, 1472, 1473, 60_000] {
            let mut long = vec![0; length];
            let sent = bytes(length);
            meeting.socket.send_to(&sent, (own, PORT + 1)).unwrap();
            assert_eq!(linux.recv(&mut long).unwrap(), length);
            assert!(long == sent);
            meeting.socket.send_to(b"ours", meeting.own()).unwrap();
            assert_eq!(meeting.receive(&mut buffer).length, 4);
        }
        assert_eq!(meeting.status().received, 4);
    }
}

/// A socket that was just closed can live a moment longer in a child of another test that has forked and not
/// yet executed its program.
fn bind_patiently(address: std::net::IpAddr) -> UdpSocket {
    let deadline = tautline::now() + PATIENCE;
    loop {
        match UdpSocket::bind((address, PORT)) {
            Ok(socket) => return socket,
            Err(error) => assert!(tautline::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn a_taken_port_names_its_holder() {
    for side in here(SIDES) {
        let Some(hosts) = hosts() else { return };
        let node = open(&hosts, Host::B, side);
        let own = ip(&hosts, Host::B);
        let everywhere = [
            (own.into(), true),
            (std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), true),
            (Ipv4Addr::LOCALHOST.into(), false),
        ];
        hosts
            .inside(Host::B, || {
                for (address, conflicts) in everywhere {
                    let socket = bind_patiently(address);
                    match node.udp(PORT).open() {
                        Err(PortError::Taken {
                            key,
                            holder: Some(holder),
                        }) => {
                            assert_eq!(key, PortKey::udp(PORT).unwrap());
                            assert!(conflicts);
                            assert_eq!(holder.pid as u32, std::process::id());
                        }
                        Ok(port) => {
                            assert!(!conflicts);
                            // The other way about, and a second time.
                            assert!(UdpSocket::bind((own, PORT)).is_err());
                            assert!(matches!(
                                node.udp(PORT).open(),
                                Err(PortError::OpenHere { .. })
                            ));
                            drop(port);
                            drop(bind_patiently(own.into()));
                        }
                        Err(error) => panic!("{error}"),
                    }
                    drop(socket);
                }
                assert!(node.udp(PORT).open().is_ok());
                assert!(matches!(node.udp(0).open(), Err(PortError::Value(_))));
            })
            .unwrap();
    }
}

/// A third host behind host A, which becomes a router; packets of at most `mtu_bytes` on the far side.
struct Far {
    hosts: Hosts,
}

const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 9);

impl Far {
    fn behind(near: &Hosts, mtu_bytes: u32) -> Self {
        let hosts = Hosts::create(&HostsOptions::default()).unwrap();
        let (router, far) = (near.name(Host::A), hosts.name(Host::A));
        let commands = [
            format!("link add far0 netns {router} type veth peer name far1 netns {far}"),
            format!("-n {router} address add 10.99.0.1/24 dev far0"),
            format!("-n {far} address add {FAR}/24 dev far1"),
            format!("-n {router} link set far0 mtu {mtu_bytes} up"),
            format!("-n {far} link set far1 mtu {mtu_bytes} up"),
            // The pair's own cable has the same network.
            format!("-n {far} link set taut0 down"),
            format!("-n {far} route add 10.77.0.0/24 via 10.99.0.1"),
            format!(
                "-n {} route add 10.99.0.0/24 via 10.77.0.1",
                near.name(Host::B)
            ),
        ];
        for command in commands {
            let status = Command::new("ip").args(command.split(' ')).status();
            assert!(status.unwrap().success(), "ip {command}");
        }
        near.inside(Host::A, || {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        })
        .unwrap();
        Self { hosts }
    }

    fn socket(&self) -> UdpSocket {
        let socket = self
            .hosts
            .inside(Host::A, || UdpSocket::bind((FAR, 0)).unwrap())
            .unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

#[test]
fn a_router_is_crossed_both_ways() {
    for side in here(SIDES) {
        let Some(hosts) = hosts() else { return };
        let far = Far::behind(&hosts, 1500);
        let mut config = crate::common::config(&hosts, Host::B, side);
        let open = |config| {
            let node = hosts
                .inside(Host::B, || Node::open(config).unwrap())
                .unwrap();
            let port = hosts.inside(Host::B, || node.udp(PORT).open());
            port.unwrap().unwrap()
        };
        let far_socket = far.socket();
        let far_port = far_socket.local_addr().unwrap().port();
        if is_past_the_stack(side) {
            match open(config.clone()).destination(&FAR.to_string(), far_port) {
                Err(PortError::NoRoute {
                    address: FAR,
                    gateway: None,
                }) => {}
                other => panic!("{other:?}"),
            }
        }
        config.gateway = Some(ip(&hosts, Host::A));
        let mut port = open(config);
        let to = port.destination(&FAR.to_string(), far_port).unwrap();
        let mut buffer = [0; 1484];
        for length in [1, 100, 1472] {
            port.send_to(to, Priority::NORMAL, &bytes(length)).unwrap();
            let (received, from) = far_socket.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..received], bytes(length));
            assert_eq!(from.ip(), ip(&hosts, Host::B));
            far_socket.send_to(&buffer[..received], from).unwrap();
            let deadline = tautline::now() + PATIENCE;
            let back = port
                .receive_into(&mut buffer, Wait::Until(deadline))
                .unwrap();
            let back = back.expect("it comes back");
            assert_eq!((back.length, *back.source.ip()), (length, FAR));
            port.reply(back.source, Priority::NORMAL, b"!").unwrap();
            assert_eq!(far_socket.recv(&mut buffer).unwrap(), 1);
        }
    }
}

#[test]
fn a_sleeper_is_woken_and_epoll_too() {
    for side in here(SIDES) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let mut buffer = [0; 1484];
        let (own, peer) = (meeting.own(), meeting.socket.try_clone().unwrap());
        let sender = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            peer.send_to(b"wake", own).unwrap();
        });
        let received = meeting.port.receive_into(&mut buffer, Wait::Forever);
        assert_eq!(received.unwrap().unwrap().length, 4);
        sender.join().unwrap();

        assert!(meeting.port.descriptor().is_some());
        assert!(meeting.port.receive(Wait::Poll).unwrap().is_none());
        meeting.socket.send_to(b"ring", own).unwrap();
        let descriptor = meeting
            .port
            .descriptor()
            .unwrap()
            .as_fd()
            .try_clone_to_owned();
        let descriptor = descriptor.unwrap();
        let mut poll = [rustix::event::PollFd::new(
            &descriptor,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: PATIENCE.as_secs() as _,
            tv_nsec: 0,
        };
        assert_eq!(rustix::event::poll(&mut poll, Some(&limit)), Ok(1));
        let lent = meeting.port.receive(Wait::Poll).unwrap().unwrap();
        assert_eq!(&*lent, b"ring");
    }
}

#[test]
fn a_short_buffer_takes_nothing() {
    let Some(mut meeting) = Meeting::of(XDP) else {
        return;
    };
    meeting.socket.send_to(b"here", meeting.own()).unwrap();
    assert_eq!(
        meeting.port.receive_into(&mut [0; 100], Wait::Poll),
        Err(ReceiveError::BufferTooSmall {
            given: 100,
            needed: 1484
        })
    );
    assert_eq!(meeting.receive(&mut [0; 1484]).length, 4);
}

#[test]
fn a_full_class_drops_and_counts() {
    let Some(meeting) = Meeting::of(XDP) else {
        return;
    };
    for _ in 0..100 {
        meeting.socket.send_to(b"full", meeting.own()).unwrap();
    }
    let deadline = tautline::now() + PATIENCE;
    while meeting.status().frames < 100 {
        assert!(tautline::now() < deadline);
    }
    assert_eq!(meeting.status().dropped_full[0], 36);
    assert_eq!(meeting.status().queued[0], 64);
}

#[test]
fn links_say_what_they_can() {
    let pair = sim_pair();
    assert_eq!(pair.a.report().capabilities.plain_udp, PlainUdp::None);
    assert!(matches!(
        pair.a.udp(PORT).open(),
        Err(PortError::NotOnLink { link: "sim", .. })
    ));
    for side in here(SIDES) {
        let Some(hosts) = hosts() else { return };
        let node = open(&hosts, Host::B, side);
        let expected = match side.link {
            LinkKind::Xdp | LinkKind::Xsk => PlainUdp::PastTheStack,
            _ => PlainUdp::KernelSocket,
        };
        assert_eq!(node.report().capabilities.plain_udp, expected);
    }
}

#[test]
fn forty_ports_and_more_are_open_at_once() {
    let Some(hosts) = hosts() else { return };
    let node = open(&hosts, Host::B, XDP);
    let small = QueuingOptions {
        depth: 2,
        ..QueuingOptions::default()
    };
    hosts
        .inside(Host::B, || {
            let mut ports: Vec<_> = (0..256)
                .map(|number| node.udp(6000 + number).options(&small).open().unwrap())
                .collect();
            assert!(matches!(
                node.udp(PORT).options(&small).open(),
                Err(PortError::TooManyPorts { max: 256, .. })
            ));
            ports.remove(100);
            ports.push(node.udp(PORT).options(&small).open().unwrap());
        })
        .unwrap();
}

fn lent(node: &Node) -> [u32; 4] {
    let status = node.status().send_pool.unwrap();
    status.sizes.map(|size| size.lent)
}

#[test]
fn an_exhausted_pool_says_so_until_a_buffer_is_dropped() {
    let node = {
        let mut config = NodeConfig::udp([127, 0, 0, 1].into());
        config.send_pool = SendPoolConfig {
            pages_1: 2,
            pages_4: 1,
            pages_8: 1,
            pages_16: 2,
        };
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
        let Some(hosts) = hosts() else { return };
        let mut meeting = Meeting::with(hosts, side, &options);
        let (own, peer) = (meeting.own(), meeting.peer());
        let soon = || tautline::now() + PATIENCE;
        assert!(meeting.port.receive(Wait::Poll).unwrap().is_none());
        for length in [0, 1, 999, 1472] {
            meeting.socket.send_to(&bytes(length), own).unwrap();
            let lent = meeting.port.receive(Wait::Until(soon())).unwrap().unwrap();
            assert_eq!(*lent, bytes(length));
            assert_eq!(lent.datagram().length, length);
            assert_eq!(lent.datagram().source, peer);
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
        meeting.port.finds_nothing(&mut buffer);
    }
}

/// The kernel side and its twin in this process do the same with the same frames, most of which are wrong
/// somewhere.
#[test]
fn kernel_and_twin_agree() {
    for side in here(PAST_THE_STACK) {
        let Some(mut meeting) = Meeting::of(side) else {
            return;
        };
        let seed = 0x0dd5_ca1e;
        println!("seed {seed:#x}");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let wire = Wire::on(&meeting.hosts, Host::A);
        let own = Own {
            ip: *meeting.own().ip(),
            broadcast: Ipv4Addr::new(10, 77, 0, 255),
        };
        let mut wanted = meeting.node.status().counters;
        let (mut delivered, mut bad_checksum, mut fragments, mut rounds) = (0, 0, 0, 0);
        let mut buffer = [0; 1484];
        for round in 0..6_000u32 {
            let good = frame(&meeting, &round.to_be_bytes());
            let mut mutated = good.clone();
            for _ in 0..1 + random.next_u64() % 3 {
                // Not the addresses of the Ethernet header: the veth's own filter comes before.
                let place = 12 + random.next_u64() as usize % (mutated.len() - 12);
                mutated[place] = match random.next_u64() % 3 {
                    0 => mutated[place] ^ 1 << (random.next_u64() % 8),
                    1 => [0, 1, 4, 8, 0x45, 255][random.next_u64() as usize % 6],
                    _ => random.next_u64() as u8,
                };
            }
            if random.next_u64() % 8 != 0 {
                mutated = changed(&mutated, &[]);
            }
            let parsed = parse(&mutated, &own, |port| port == PORT);
            // Whether another fragment follows a first one is a question of time: `udp_fragments` has those.
            let field = u16::from_be_bytes([mutated[20], mutated[21]]);
            if field & FRAGMENT_OFFSET != 0 {
                continue;
            }
            assert!(wire.send(&mutated));
            let expected = match parsed {
                Ok(Arrival::Datagram {
                    source,
                    head,
                    payload,
                }) => {
                    delivered += 1;
                    let judged = judge(head.checksum, source, meeting.own(), payload);
                    bad_checksum += u64::from(judged.is_none());
                    judged.map(|_| (source, head.priority, payload.to_vec()))
                }
                Ok(Arrival::Fragment { .. }) => {
                    fragments += 1;
                    None
                }
                Err(Rejected::Malformed(error)) => {
                    wanted.malformed[error.index()] += 1;
                    None
                }
                _ => None,
            };
            rounds += 1;
            // The message after it shows that it is through; order between the two is by priority.
            assert!(wire.send(&changed(&good, &[(15, 0)])));
            let mut seen = Vec::new();
            for _ in 0..1 + usize::from(expected.is_some()) {
                let received = meeting.receive(&mut buffer);
                let payload = buffer[..received.length].to_vec();
                seen.push((received.source, received.priority, payload));
            }
            if let Some(expected) = expected {
                assert!(seen.contains(&expected), "{mutated:02x?}: {seen:?}");
            }
            let counters = meeting.node.status().counters;
            assert_eq!(counters.malformed, wanted.malformed, "{mutated:02x?}");
        }
        let status = meeting.status();
        assert_eq!(status.frames, delivered + fragments + rounds);
        assert_eq!(status.datagrams.unwrap().bad_checksum, bad_checksum);
        assert!(bad_checksum > 100 && delivered > 1000, "{status:?}");
    }
}
