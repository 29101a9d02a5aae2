//! Raw ports on every link that has them, and through a control process: frames of other protocols against packet
//! sockets of the kernel, which know nothing of us.

use std::thread;

use crate::common::child::{self, Helper};
use crate::common::control::Thread;
use crate::common::wire::Wire;
use crate::common::{
    PACKET, PATIENCE, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, bus_pair,
    config, hosts, is_here, open, port, sim_pair,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use tautline::link::RawFrames;
use tautline::port::{Policing, QueuingOptions, RAW_FRAME_BYTES_MAX, ReceivedFrame};
use tautline::status::PortStatus;
use tautline::{
    EtherType, LinkKind, MacAddress, Node, NodeConfig, PortError, Priority, RawPort, ReceiveError,
    SendError, Wait,
};
use tautline_testbed::hosts::{Host, Hosts};

/// How the node with the raw port is opened.
#[derive(Clone, Copy)]
struct Way {
    side: Side,
    is_controlled: bool,
}

const fn by_itself(side: Side) -> Way {
    Way {
        side,
        is_controlled: false,
    }
}

const fn controlled(side: Side) -> Way {
    Way {
        side,
        is_controlled: true,
    }
}

const WAYS: [Way; 9] = [
    by_itself(XDP),
    by_itself(XDP_GENERIC),
    by_itself(XDP_TC),
    by_itself(PACKET),
    by_itself(XSK),
    by_itself(XSK_GENERIC),
    controlled(XDP),
    controlled(XDP_GENERIC),
    controlled(XDP_TC),
];

/// Those of the ways whose hook this kernel has.
fn here<const N: usize>(ways: [Way; N]) -> impl Iterator<Item = Way> {
    ways.into_iter().filter(|way| is_here(way.side))
}

const TYPE: EtherType = EtherType::ETHERCAT;
const ALL: MacAddress = MacAddress([0xFF; 6]);
/// Sender that is no station: EtherCAT's main devices write such a thing, and its lowest bit says that it is a group.
const NOBODY: MacAddress = MacAddress([1; 6]);

/// A raw port in host B, and a packet socket at the other end of its cable.
struct Meeting {
    port: RawPort,
    node: Node,
    wire: Wire,
    control: Option<Thread>,
    hosts: Hosts,
}

impl Meeting {
    fn of(way: Way) -> Option<Self> {
        Self::with(way, &QueuingOptions::default())
    }

    fn with(way: Way, options: &QueuingOptions) -> Option<Self> {
        Self::on(hosts()?, way, options)
    }

    fn on(hosts: Hosts, way: Way, options: &QueuingOptions) -> Option<Self> {
        let (node, control) = node(&hosts, way);
        let port = hosts.inside(Host::B, || node.raw(TYPE).options(options).open());
        Some(Self {
            port: port.unwrap().unwrap(),
            node,
            wire: Wire::on(&hosts, Host::A),
            control,
            hosts,
        })
    }

    fn own(&self) -> MacAddress {
        MacAddress(self.hosts.end(Host::B, 0).mac())
    }

    fn send(&self, to: MacAddress, tag: &[u8], payload: &[u8]) -> Vec<u8> {
        let frame = frame(to, tag, TYPE.get(), payload);
        assert!(self.wire.send(&frame));
        frame
    }

    fn receive(&mut self) -> (ReceivedFrame, Vec<u8>) {
        let mut buffer = [0; RAW_FRAME_BYTES_MAX];
        let deadline = tautline::now() + PATIENCE;
        let received = self
            .port
            .receive_into(&mut buffer, Wait::Until(deadline))
            .unwrap();
        let received = received.expect("a frame comes");
        (received, buffer[..received.length].to_vec())
    }

    /// Nothing but a frame that is sent now is in the port, or on the way to it.
    fn is_empty(&mut self) {
        let last = self.send(ALL, &[], b"the last one");
        assert_eq!(self.receive().1, last);
    }

    fn status(&self) -> PortStatus {
        self.node.status().ports.remove(0)
    }
}

/// The node in host B, and the control process that it is open through.
fn node(hosts: &Hosts, way: Way) -> (Node, Option<Thread>) {
    let control = way.is_controlled.then(|| Thread::start(hosts, way.side));
    let node = open(hosts, Host::B, way.side);
    assert_eq!(node.report().control_process.is_some(), way.is_controlled);
    (node, control)
}

/// A frame without a real sender, with a tag or none.
fn frame(to: MacAddress, tag: &[u8], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let ethertype = ethertype.to_be_bytes();
    [&to.0[..], &NOBODY.0, tag, &ethertype, payload].concat()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 7 + length) as u8)
        .collect()
}

fn raw_port(hosts: &Hosts, node: &Node, ethertype: EtherType) -> Result<RawPort, PortError> {
    let open = || node.raw(ethertype).open();
    hosts.inside(Host::B, open).unwrap()
}

#[test]
fn frames_pass_both_ways_as_they_are() {
    for way in here(WAYS) {
        let Some(mut meeting) = Meeting::of(way) else {
            return;
        };
        let watch = Wire::watch(&meeting.hosts, Host::A);
        for length in [0, 1, 3, 4, 5, 46, 100, 1484, 1485, 1496, 1497, 1499, 1500] {
            for to in [
                ALL,
                meeting.own(),
                MacAddress([0x01, 0x80, 0xC2, 0, 0, 0x0E]),
            ] {
                let sent = meeting.send(to, &[], &bytes(length));
                let (received, frame) = meeting.receive();
                assert_eq!(frame, sent, "{length} bytes to {to}");
                assert_eq!(received.priority, Priority::LOWEST);
                assert!(received.arrival <= tautline::now());
            }
            let answer = frame(ALL, &[], TYPE.get(), &bytes(length));
            let answer = [&answer[..6], &meeting.own().0, &answer[12..]].concat();
            meeting.port.send(&answer).unwrap();
            assert_eq!(watch.next(|frame| frame[6..12] == answer[6..12]), answer);
        }
        let status = meeting.status();
        assert_eq!((status.received, status.sent, status.frames), (39, 13, 39));
        assert_eq!((status.void, status.unfit, status.send_errors), (0, 0, 0));
        assert_eq!(status.key, TYPE.into());
    }
}

#[test]
fn the_priority_of_a_tag_orders_frames_and_those_of_vlans_are_left_alone() {
    for way in here(WAYS) {
        let Some(mut meeting) = Meeting::of(way) else {
            return;
        };
        let tag = |priority: u8, vlan: u8| [0x81, 0, priority << 5, vlan];
        meeting.send(ALL, &[], b"no tag");
        meeting.send(ALL, &tag(7, 5), b"in a VLAN");
        meeting.send(ALL, &tag(3, 0), b"less urgent");
        meeting.send(ALL, &tag(6, 0), b"urgent");
        meeting.send(ALL, &tag(3, 0), b"less urgent, later");
        meeting.send(ALL, &tag(1, 0), b"the last one");
        wait_for_frames(&mut meeting, 5);
        let by_priority = [
            (6, "urgent"),
            (3, "less urgent"),
            (3, "less urgent, later"),
            (1, "the last one"),
            (0, "no tag"),
        ];
        let as_they_came = [
            "no tag",
            "less urgent",
            "urgent",
            "less urgent, later",
            "the last one",
        ];
        let expected = match way.side.link {
            // The kernel takes tags away before a socket of one EtherType sees the frame.
            LinkKind::Packet => as_they_came.map(|text| (0, text)),
            _ => by_priority,
        };
        for (priority, text) in expected {
            let (received, frame) = meeting.receive();
            assert_eq!(received.priority.get(), priority);
            // The tag is not in the frame any more.
            assert_eq!(frame[12..14], TYPE.get().to_be_bytes());
            assert_eq!(&frame[14..], text.as_bytes());
        }
        assert_eq!(meeting.status().received, 5);
    }
}

/// Waits until so many frames are in the port. On links `packet` and `xsk` they come in with a look, which takes the
/// first.
fn wait_for_frames(meeting: &mut Meeting, frames: u64) {
    let deadline = tautline::now() + PATIENCE;
    if !meeting.node.report().capabilities.delivered_by_kernel {
        // All were sent before, and the kernel delivers on a virtual cable before it returns or soon after.
        thread::sleep(std::time::Duration::from_millis(200));
        return;
    }
    while meeting.status().frames < frames {
        assert!(tautline::now() < deadline, "{frames} frames come");
        thread::yield_now();
    }
}

#[test]
fn frames_of_others_stay_with_linux() {
    for way in here(WAYS) {
        let Some(mut meeting) = Meeting::of(way) else {
            return;
        };
        // Of another EtherType, to another station, a length in place of a type.
        let elsewhere = MacAddress([0x02, 9, 9, 9, 9, 9]);
        for (to, ethertype) in [(ALL, 0x88CC), (elsewhere, TYPE.get()), (ALL, 0x0100)] {
            assert!(meeting.wire.send(&frame(to, &[], ethertype, &bytes(60))));
        }
        meeting.is_empty();
        // Messages of the node pass beside it.
        let node = open(&meeting.hosts, Host::A, XDP_GENERIC);
        let at = |host, node: &Node, number| {
            let open = || node.queuing(port(number)).open();
            meeting.hosts.inside(host, open).unwrap().unwrap()
        };
        let mut sender = at(Host::A, &node, 11);
        let mut receiver = at(Host::B, &meeting.node, 12);
        let to = sender.destination("peer", port(12)).unwrap();
        sender.send(to, Priority::NORMAL, b"message").unwrap();
        let mut buffer = [0; 1484];
        let message = receiver.take_into(&mut buffer);
        assert_eq!(&buffer[..message.length], b"message");
        assert_eq!(meeting.status().received, 1);
    }
}

#[test]
fn linux_sees_the_frames_again_when_the_port_is_closed() {
    for way in here(WAYS).filter(|way| way.side.link != LinkKind::Packet) {
        let Some(mut meeting) = Meeting::of(way) else {
            return;
        };
        let watch = Wire::watch(&meeting.hosts, Host::B);
        meeting.send(ALL, &[], b"taken");
        meeting.receive();
        let Meeting {
            port,
            node,
            wire,
            control: _control,
            hosts,
        } = meeting;
        drop(port);
        let passed = frame(ALL, &[], TYPE.get(), b"passed");
        assert!(wire.send(&passed));
        // At traffic control and in generic mode a packet socket looks before the demux does.
        let is_ours =
            |frame: &[u8]| frame[12..14] == TYPE.get().to_be_bytes() && !frame.ends_with(b"taken");
        assert_eq!(watch.next(is_ours), passed);
        // The place is free again, and empty.
        let mut again = raw_port(&hosts, &node, TYPE).unwrap();
        again.finds_nothing(&mut [0; RAW_FRAME_BYTES_MAX]);
        assert!(wire.send(&frame(ALL, &[], TYPE.get(), b"again")));
        let deadline = tautline::now() + PATIENCE;
        let mut buffer = [0; RAW_FRAME_BYTES_MAX];
        assert!(
            again
                .receive_into(&mut buffer, Wait::Until(deadline))
                .unwrap()
                .is_some()
        );
    }
}

#[test]
fn wrong_frames_are_not_sent_and_small_buffers_take_nothing() {
    for way in here(WAYS) {
        let Some(mut meeting) = Meeting::of(way) else {
            return;
        };
        let good = frame(ALL, &[], TYPE.get(), b"good");
        for (wrong, error) in [
            (good[..13].to_vec(), SendError::ForeignFrame),
            (Vec::new(), SendError::ForeignFrame),
            (frame(ALL, &[], 0x88CC, b"LLDP"), SendError::ForeignFrame),
            (
                frame(ALL, &[0x81, 0, 0, 5], TYPE.get(), b"VLAN"),
                SendError::ForeignFrame,
            ),
            (
                frame(ALL, &[], TYPE.get(), &bytes(1501)),
                SendError::FrameTooLarge,
            ),
        ] {
            assert_eq!(meeting.port.send(&wrong), Err(error), "{wrong:02x?}");
        }
        meeting.port.send(&good).unwrap();
        // With a priority, for a switch.
        meeting
            .port
            .send(&frame(ALL, &[0x81, 0, 0xE0, 0], TYPE.get(), b"good"))
            .unwrap();
        assert_eq!(
            (meeting.status().sent, meeting.status().send_errors),
            (2, 5)
        );

        meeting.send(ALL, &[], b"waits");
        let small = meeting
            .port
            .receive_into(&mut [0; RAW_FRAME_BYTES_MAX - 1], Wait::Poll);
        let needed = RAW_FRAME_BYTES_MAX;
        assert_eq!(
            small,
            Err(ReceiveError::BufferTooSmall {
                given: needed - 1,
                needed
            })
        );
        assert_eq!(&meeting.receive().1[14..], b"waits");
    }
}

#[test]
fn what_is_too_much_is_dropped_and_counted() {
    for way in here(WAYS) {
        let options = QueuingOptions {
            depth: 4,
            ..QueuingOptions::default()
        };
        let Some(mut meeting) = Meeting::with(way, &options) else {
            return;
        };
        for number in 0..10 {
            meeting.send(ALL, &[], &[number; 60]);
        }
        wait_for_frames(&mut meeting, 10);
        for number in 0..4 {
            assert_eq!(meeting.receive().1[14..], [number; 60]);
        }
        let status = meeting.status();
        assert_eq!((status.received, status.frames), (4, 10));
        assert_eq!(status.dropped_full, [6, 0, 0, 0, 0, 0, 0, 0]);
        meeting.is_empty();

        let policing = Some(Policing::per_second(1, 3));
        let options = QueuingOptions {
            policing,
            ..QueuingOptions::default()
        };
        let mut policed = Meeting::with(way, &options).unwrap();
        for number in 0..10 {
            policed.send(ALL, &[], &[number; 60]);
        }
        wait_for_frames(&mut policed, 3);
        for number in 0..3 {
            assert_eq!(policed.receive().1[14..], [number; 60]);
        }
        policed.port.finds_nothing(&mut [0; RAW_FRAME_BYTES_MAX]);
        assert!(policed.status().policed >= 6, "{:?}", policed.status());
    }
}

#[test]
fn frames_longer_than_a_slot_are_counted_as_unfit() {
    for way in here(WAYS) {
        let Some(hosts) = hosts() else { return };
        for host in [Host::A, Host::B] {
            let interface = hosts.end(host, 0).interface();
            let mtu = ["link", "set", &interface, "mtu", "1600"];
            hosts.run(host, "ip", &mtu).unwrap();
        }
        let Some(mut meeting) = Meeting::on(hosts, way, &QueuingOptions::default()) else {
            return;
        };
        meeting.send(ALL, &[], &bytes(1501));
        let fits = meeting.send(ALL, &[], &bytes(1500));
        assert_eq!(meeting.receive().1, fits);
        assert_eq!((meeting.status().unfit, meeting.status().received), (1, 1));
    }
}

#[test]
fn a_descriptor_is_readable_when_a_frame_comes() {
    for way in here(WAYS) {
        let Some(mut meeting) = Meeting::of(way) else {
            return;
        };
        let frame = frame(ALL, &[], TYPE.get(), b"wakes");
        let Meeting { port, wire, .. } = &mut meeting;
        let descriptor = port.descriptor().expect("these links have one");
        let readable = |seconds| {
            let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            rustix::event::poll(&mut polled, Some(&limit)).unwrap()
        };
        assert_eq!(readable(0), 0);
        assert!(wire.send(&frame));
        assert_eq!(readable(PATIENCE.as_secs() as _), 1);
        assert_eq!(meeting.receive().1, frame);
    }
}

#[test]
fn types_of_linux_and_of_the_node_and_a_ninth_are_refused() {
    for way in here([
        by_itself(XDP),
        by_itself(XSK),
        by_itself(PACKET),
        controlled(XDP),
    ]) {
        let Some(hosts) = hosts() else { return };
        let (node, _control) = node(&hosts, way);
        let own = EtherType::new(0x88B5).unwrap();
        let refused = raw_port(&hosts, &node, own).unwrap_err();
        assert!(matches!(refused, PortError::NotAllowed { .. }), "{refused}");
        let kept = raw_port(&hosts, &node, TYPE).unwrap();
        let refused = raw_port(&hosts, &node, TYPE).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "EtherType 0x88a4 is open in this node already"
        );
        if way.side.link != LinkKind::Packet {
            let types = (0x9000..0x9007).map(|number| EtherType::new(number).unwrap());
            let more: Vec<_> = types
                .map(|one| raw_port(&hosts, &node, one).unwrap())
                .collect();
            let refused = raw_port(&hosts, &node, EtherType::new(0x9007).unwrap()).unwrap_err();
            let of_all =
                "EtherType 0x9007 is not allowed: the interface has 8 raw ports open already";
            let expected = match way.is_controlled {
                true => of_all,
                false => "the node has 8 raw ports open already",
            };
            assert_eq!(refused.to_string(), expected);
            assert_eq!(node.status().ports.len(), 8);
            drop(more);
            raw_port(&hosts, &node, EtherType::new(0x9007).unwrap()).unwrap();
        }
        drop(kept);
        raw_port(&hosts, &node, TYPE).unwrap();
    }
}

#[test]
fn links_that_have_no_raw_frames_say_so() {
    let refused = |node: &Node| node.raw(TYPE).open().unwrap_err();
    for pair in [sim_pair(), bus_pair()] {
        let error = refused(&pair.a);
        assert!(matches!(error, PortError::NotOnLink { .. }), "{error}");
        assert!(error.remedy().contains("packet"), "{}", error.remedy());
        assert_eq!(pair.a.report().capabilities.raw_frames, RawFrames::None);
    }
    let Some(hosts) = hosts() else { return };
    let node = open(&hosts, Host::B, UDP);
    let error = hosts.inside(Host::B, || refused(&node)).unwrap();
    assert_eq!(error.to_string(), "link `udp` has no raw frames");
    assert!(node.status().ports.is_empty());
}

/// Work of a child on the second host: a node with a raw port, until it is killed.
fn hold(role: &str) {
    let mut config = NodeConfig::on("taut0");
    config.link = Some(match role {
        "xdp" => LinkKind::Xdp,
        "xsk" => LinkKind::Xsk,
        _ => LinkKind::Packet,
    });
    let node = Node::open(config).unwrap();
    let _port = node.raw(TYPE).open().unwrap();
    child::ready();
}

#[test]
fn a_taken_type_names_its_holder_and_is_free_when_that_is_killed() {
    const TEST: &str = "a_taken_type_names_its_holder_and_is_free_when_that_is_killed";
    if let Some(role) = child::role() {
        return hold(&role);
    }
    let Some(hosts) = hosts() else { return };
    for (role, way) in [
        ("xdp", by_itself(PACKET)),
        ("packet", by_itself(XDP)),
        ("packet", by_itself(PACKET)),
        ("packet", controlled(XDP)),
        ("xsk", by_itself(PACKET)),
        ("packet", by_itself(XSK)),
    ] {
        let holder = hosts.inside(Host::B, || Helper::start(TEST, role)).unwrap();
        let (node, _control) = node(&hosts, way);
        let refused = raw_port(&hosts, &node, TYPE).unwrap_err();
        assert!(matches!(refused, PortError::Taken { .. }), "{refused}");
        let pid = holder.pid();
        assert!(
            refused.to_string().contains(&format!("process {pid}")),
            "{refused}"
        );
        assert!(node.status().ports.is_empty());
        holder.kill();
        let deadline = tautline::now() + PATIENCE;
        while let Err(error) = raw_port(&hosts, &node, TYPE) {
            assert!(tautline::now() < deadline, "{error}");
        }
    }
}

#[test]
fn a_port_is_opened_by_its_name() {
    let Some(hosts) = hosts() else { return };
    let file = "interface = \"taut0\"\nlink = \"packet\"\n\
        [[port]]\nname = \"fieldbus\"\nkind = \"raw\"\nethertype = 0x88a4\ndepth = 8\nspin_us = 0\n";
    let mut parsed: NodeConfig = file.parse().unwrap();
    parsed.neighbours = config(&hosts, Host::B, PACKET).neighbours;
    let node = hosts
        .inside(Host::B, || Node::open(parsed).unwrap())
        .unwrap();
    let port = hosts.inside(Host::B, || node.raw("fieldbus").open());
    assert_eq!(port.unwrap().unwrap().ethertype(), TYPE);
    let unknown = hosts
        .inside(Host::B, || node.raw("fieldbuss").open())
        .unwrap();
    assert!(matches!(
        unknown.unwrap_err(),
        PortError::UnknownName { .. }
    ));
}
