//! Groups: neighbours whose MAC address is the broadcast address or a multicast address. Every node with the
//! destination port open receives the message; no node can send under a group's address.

use crate::common::wire::{Wire, frame};
use crate::common::{
    PACKET, Side, Take, XDP, XDP_GENERIC, XDP_TC, XSK, config, here, hosts, is_here, open, port,
};
use tautline::address::Address;
use tautline::neighbours::Form;
use tautline::{MacAddress, Neighbour, Node, Priority, Wait};
use tautline_proto::wire::Header;
use tautline_testbed::hosts::{Host, Hosts};

const GROUPS: [(&str, MacAddress); 2] = [
    ("everybody", MacAddress([0xff; 6])),
    ("drives", MacAddress([0x01, 0x00, 0x5e, 0x00, 0x00, 0x07])),
];

/// A node whose neighbours are the peer and both groups.
fn open_with_groups(hosts: &Hosts, host: Host, side: Side) -> Node {
    let config = GROUPS
        .iter()
        .fold(config(hosts, host, side), |config, (name, mac)| {
            let group = Neighbour {
                name: (*name).to_owned(),
                mac: *mac,
                ip: None,
                form: Form::Ethernet,
            };
            config.with_neighbour(group).unwrap()
        });
    hosts.inside(host, || Node::open(config).unwrap()).unwrap()
}

#[test]
fn every_link_sends_to_groups_and_receives_from_them() {
    let Some(hosts) = hosts() else { return };
    for (from, to) in [
        (XDP, XDP_GENERIC),
        (PACKET, XDP),
        (PACKET, XDP_TC),
        (XSK, PACKET),
        (XDP, XSK),
    ] {
        if !is_here(to) {
            continue;
        }
        let sender = open_with_groups(&hosts, Host::A, from);
        let receiver = open(&hosts, Host::B, to);
        let queue = |node: &Node, number| node.queuing(port(number)).open().unwrap();
        let mut out = hosts.inside(Host::A, || queue(&sender, 11)).unwrap();
        let mut members = hosts
            .inside(Host::B, || [queue(&receiver, 12), queue(&receiver, 13)])
            .unwrap();
        let own_mac = MacAddress(hosts.end(Host::A, 0).mac());
        for (name, _) in GROUPS {
            for (member, number) in members.iter_mut().zip([12, 13]) {
                let group = out.destination(name, port(number)).unwrap();
                out.send(group, Priority::NORMAL, name.as_bytes()).unwrap();
                let soon = tautline::now() + crate::common::PATIENCE;
                let mut buffer = [0; 1484];
                let received = member.receive_into(&mut buffer, Wait::Until(soon)).unwrap();
                let message = received.unwrap_or_else(|| panic!("{name}, {}", to.link));
                assert_eq!(&buffer[..message.length], name.as_bytes());
                assert_eq!(message.source.port, port(11));
                assert_eq!(message.source.address, Address::Ethernet(own_mac));
            }
        }
    }
}

#[test]
fn a_group_is_no_sender() {
    let Some(hosts) = hosts() else { return };
    for side in here([XDP, XDP_GENERIC, XDP_TC, PACKET, XSK]) {
        let node = open(&hosts, Host::B, side);
        let open = || node.queuing(port(12)).open();
        let mut queue = hosts.inside(Host::B, open).unwrap().unwrap();
        let wire = Wire::on(&hosts, Host::A);
        let own = MacAddress(hosts.end(Host::B, 0).mac());
        let header = Header::whole(port(12), port(1), Priority::NORMAL, 2, 0);
        let honest = MacAddress([2, 0, 0, 0, 0, 9]);
        for source in [GROUPS[0].1, GROUPS[1].1, honest] {
            assert!(wire.send(&frame(own, source, &header, b"me")));
        }
        let message = queue.take_into(&mut [0; 1484]);
        assert_eq!(
            message.source.address,
            Address::Ethernet(honest),
            "{}",
            side.link
        );
    }
}
