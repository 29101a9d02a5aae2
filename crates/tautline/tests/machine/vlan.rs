//! Nodes whose Ethernet form is in a VLAN (`vlan` of the configuration), on every raw link.

use std::time::Duration;

use crate::common::wire::{Wire, frame};
use crate::common::{
    PACKET, PATIENCE, Side, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, config,
    controlled_pair, hosts, is_here, open, pair, port, sim_pair_with,
};
use tautline::config::Vlan;
use tautline::link::XdpMode;
use tautline::port::QueuingOptions;
use tautline::{
    LinkKind, MacAddress, Node, NodeConfig, OpenError, Priority, QueuingPort, Typed, Wait,
};
use tautline_proto::wire::Header;
use tautline_testbed::hosts::{EndKind, Host, Hosts, HostsOptions};

const VLAN: Vlan = Vlan::new(5).unwrap();
const OTHER: Vlan = Vlan::new(6).unwrap();
const OUTSIDE: MacAddress = MacAddress([2, 0, 0, 0, 9, 9]);

const SIDES: [Side; 5] = [XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC];

fn here() -> impl Iterator<Item = Side> {
    SIDES.into_iter().filter(|side| is_here(*side))
}

/// The next message, and that it has this text and priority.
fn receives(receiver: &mut QueuingPort, text: &str, priority: Priority) {
    let mut buffer = [0; 1484];
    let deadline = tautline::now() + PATIENCE;
    let message = receiver
        .receive_into(&mut buffer, Wait::Until(deadline))
        .unwrap();
    let message = message.unwrap_or_else(|| panic!("`{text}` comes"));
    assert_eq!(&buffer[..message.length], text.as_bytes());
    assert_eq!(message.priority, priority);
}

#[test]
fn messages_pass_both_ways_in_a_vlan() {
    for side in here() {
        let Some(pair) = pair(XDP_GENERIC.in_vlan(VLAN), side.in_vlan(VLAN)) else {
            return;
        };
        let options = QueuingOptions::default();
        let (mut sender, mut receiver, to) = pair.ports(&options);
        let back = receiver.destination("peer", port(11)).unwrap();
        let full = "x".repeat(1484);
        for (text, priority) in [("there", Priority::HIGHEST), (&full, Priority::LOWEST)] {
            sender.send(to, priority, text.as_bytes()).unwrap();
            receives(&mut receiver, text, priority);
            receiver.send(back, priority, text.as_bytes()).unwrap();
            receives(&mut sender, text, priority);
        }
    }
}

#[test]
fn clients_of_a_control_process_are_in_its_vlan() {
    for side in [XDP, XDP_TC] {
        let Some(pair) = controlled_pair(XDP_GENERIC.in_vlan(VLAN), side.in_vlan(VLAN)) else {
            continue;
        };
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        let back = receiver.destination("peer", port(11)).unwrap();
        sender.send(to, Priority::HIGHEST, b"there").unwrap();
        receives(&mut receiver, "there", Priority::HIGHEST);
        receiver.send(back, Priority::HIGHEST, b"back").unwrap();
        receives(&mut sender, "back", Priority::HIGHEST);

        let hosts = pair.hosts.as_ref().unwrap();
        for (vlan, has) in [(Vlan::NONE, "5"), (OTHER, "5")] {
            let wanted = config(hosts, Host::B, side.in_vlan(vlan));
            let refused = hosts.inside(Host::B, || Node::open(wanted).map(drop));
            let error = refused.unwrap().unwrap_err().to_string();
            let expected = format!("its demux has VLAN {has}, this node asks for another");
            assert!(error.contains(&expected), "{error}");
        }
    }
}

/// A station at the other end of the cable, and a port that it may reach.
struct Reached {
    hosts: Hosts,
    wire: Wire,
    node: Node,
    receiver: QueuingPort,
}

impl Reached {
    fn new(side: Side) -> Option<Self> {
        Some(Self::at(hosts()?, side))
    }

    fn at(hosts: Hosts, side: Side) -> Self {
        let node = open(&hosts, Host::B, side);
        let receiver = hosts
            .inside(Host::B, || node.queuing(port(12)).open())
            .unwrap()
            .unwrap();
        let wire = Wire::on(&hosts, Host::A);
        Self {
            hosts,
            wire,
            node,
            receiver,
        }
    }

    /// The same, with the sender behind a bridge. Linux takes the tag out of each frame that comes to a bridge, and
    /// keeps it with the packet buffer, as it does with what a VLAN's interface sends.
    fn behind_a_bridge(hosts: Hosts, side: Side) -> Self {
        let cable = hosts.end(Host::A, 0).interface();
        for command in [
            "link add bridge0 type bridge forward_delay 0",
            &format!("link set {cable} master bridge0"),
            "link add sender0 type veth peer sender1",
            "link set sender1 up master bridge0",
            "link set sender0 up",
            "link set bridge0 up",
        ] {
            let arguments: Vec<&str> = command.split(' ').collect();
            hosts.run(Host::A, "ip", &arguments).unwrap();
        }
        let mut reached = Self::at(hosts, side);
        reached.wire = Wire::on_named(&reached.hosts, Host::A, "sender0");
        reached
    }

    /// Sends until a message arrives, because a bridge that has come up takes a moment, and takes what else arrives.
    fn reaches(&mut self, tag: &[u8]) -> bool {
        let mut buffer = [0; 1484];
        let mut arrived = false;
        let give_up = tautline::now() + PATIENCE;
        while !arrived && tautline::now() < give_up {
            self.send("first", tag);
            let soon = tautline::now() + Duration::from_millis(50);
            while self
                .receiver
                .receive_into(&mut buffer, Wait::Until(soon))
                .unwrap()
                .is_some()
            {
                arrived = true;
            }
        }
        arrived
    }

    fn says_that_tags_are_not_seen(&self) -> bool {
        let limits = &self.node.report().limits;
        limits
            .iter()
            .any(|limit| limit.contains("tags") && limit.contains("not seen"))
    }

    fn send(&self, text: &str, tag: &[u8]) {
        self.send_to(MacAddress(self.hosts.end(Host::B, 0).mac()), text, tag);
    }

    fn send_to(&self, to: MacAddress, text: &str, tag: &[u8]) {
        let header = Header::whole(port(12), port(11), Priority::NORMAL, text.len() as u16, 0);
        let frame = frame(to, OUTSIDE, &header, text.as_bytes());
        let mut frame = [&frame[..12], tag, &frame[12..]].concat();
        frame.resize(frame.len().max(60), 0);
        assert!(self.wire.send(&frame));
    }
}

/// Tags of 802.1Q: in the VLAN with a priority, in another one, none, with a priority alone, two tags, a service tag.
const MINE: [u8; 4] = [0x81, 0, 0xA0, 5];
const FOREIGN: [&[u8]; 6] = [
    &[0x81, 0, 0, 6],
    &[0x81, 0, 1, 5],
    &[],
    &[0x81, 0, 0xA0, 0],
    &[0x81, 0, 0, 5, 0x81, 0, 0, 5],
    &[0x88, 0xA8, 0, 5],
];

#[test]
fn frames_outside_the_vlan_are_not_taken() {
    for side in here() {
        let Some(mut reached) = Reached::new(side.in_vlan(VLAN)) else {
            return;
        };
        for tag in FOREIGN {
            reached.send("foreign", tag);
        }
        // A promiscuous interface sees these.
        reached.send_to(OUTSIDE, "somebody else's", &MINE);
        reached.send("mine", &MINE);
        reached.send_to(MacAddress([0xff; 6]), "everybody's", &MINE);
        receives(&mut reached.receiver, "mine", Priority::NORMAL);
        receives(&mut reached.receiver, "everybody's", Priority::NORMAL);
        let counters = reached.node.status().counters;
        assert_eq!(
            counters.malformed.iter().sum::<u64>(),
            0,
            "others are Linux's"
        );
    }
}

#[test]
fn a_node_in_no_vlan_takes_nothing_of_one() {
    for side in here().chain([PACKET]) {
        let Some(mut reached) = Reached::new(side) else {
            return;
        };
        reached.send("foreign", &MINE);
        reached.send("mine", &[]);
        receives(&mut reached.receiver, "mine", Priority::NORMAL);
    }
}

#[test]
fn frames_with_their_tag_in_the_packet_buffer_are_heard_or_the_report_says_why_not() {
    for side in here() {
        let Some(hosts) = hosts() else { return };
        let mut reached = Reached::behind_a_bridge(hosts, side.in_vlan(VLAN));
        if reached.says_that_tags_are_not_seen() {
            assert!(side.link == LinkKind::Xsk || side.mode == Some(XdpMode::Generic));
        } else {
            assert!(reached.reaches(&MINE), "{:?}", side.mode);
            for tag in FOREIGN {
                reached.send("foreign", tag);
            }
            reached.send("mine", &MINE);
            receives(&mut reached.receiver, "mine", Priority::NORMAL);
        }
    }
}

#[test]
fn frames_with_their_tag_in_the_packet_buffer_are_not_untagged_ones() {
    for side in here() {
        let Some(hosts) = hosts() else { return };
        let mut reached = Reached::behind_a_bridge(hosts, side);
        if reached.says_that_tags_are_not_seen() {
            assert_eq!(side.mode, Some(XdpMode::Generic));
            continue;
        }
        assert!(reached.reaches(&[]), "{:?}", side.mode);
        reached.send("foreign", &MINE);
        // The second tag, of VLAN 0, stays in the frame.
        reached.send("foreign", &[0x81, 0, 0, 5, 0x81, 0, 0, 0]);
        reached.send("mine", &[]);
        receives(&mut reached.receiver, "mine", Priority::NORMAL);
    }
}

/// On a bridge and a macvlan each tag is outside of the frame.
#[test]
fn a_mode_that_sees_no_tags_is_refused_to_a_node_in_a_vlan_which_takes_another() {
    if !is_here(XDP_TC) {
        return;
    }
    for end_kind in [EndKind::Bridge, EndKind::Macvlan] {
        if hosts().is_none() {
            return;
        }
        let options = HostsOptions {
            end_kind,
            ..HostsOptions::default()
        };
        let hosts = Hosts::create(&options).unwrap();
        let wanted = config(&hosts, Host::B, XDP_GENERIC.in_vlan(VLAN));
        let refused = hosts.inside(Host::B, || Node::open(wanted).map(drop));
        let error = refused.unwrap().unwrap_err();
        assert!(matches!(error, OpenError::HiddenTags { .. }), "{error}");
        assert!(error.remedy().contains("xdp_mode = \"tc\""));
        let side = Side { mode: None, ..XDP };
        let mut reached = Reached::at(hosts, side.in_vlan(VLAN));
        assert!(reached.reaches(&MINE), "{end_kind:?}");
    }
}

#[test]
fn the_udp_form_stays_outside_the_vlan() {
    for side in here() {
        let sides = (UDP, side.in_vlan(VLAN).speaking_udp());
        let Some(pair) = pair(sides.0, sides.1) else {
            return;
        };
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        let back = receiver.destination("peer", port(11)).unwrap();
        sender.send(to, Priority::NORMAL, b"there").unwrap();
        receives(&mut receiver, "there", Priority::NORMAL);
        receiver.send(back, Priority::NORMAL, b"back").unwrap();
        receives(&mut sender, "back", Priority::NORMAL);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Typed)]
#[repr(C)]
struct Command {
    torque: f32,
}

#[test]
fn a_simulated_network_has_vlans() {
    let pair = sim_pair_with(|config| NodeConfig {
        vlan: VLAN,
        ..config
    });
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    sender.send(to, Priority::NORMAL, b"there").unwrap();
    pair.network.as_ref().unwrap().advance(PATIENCE);
    let mut buffer = [0; 1484];
    let message = receiver
        .receive_into(&mut buffer, Wait::Poll)
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..message.length], b"there");
}

#[test]
fn other_links_refuse_a_vlan() {
    let config = NodeConfig {
        vlan: VLAN,
        ..NodeConfig::udp([127, 0, 0, 1].into())
    };
    let packet = NodeConfig {
        vlan: VLAN,
        ..NodeConfig::on("lo").with_link(LinkKind::Packet)
    };
    for (config, link) in [(config, "udp"), (packet, "packet")] {
        let error = Node::open(config).unwrap_err();
        assert!(error.remedy().contains("use link `xdp`"));
        let error = error.to_string();
        assert!(
            error.contains(&format!("link `{link}` is outside VLAN 5")),
            "{error}"
        );
    }
}
