//! Malformed, truncated, padded and random frames, on the links that they can reach.

use std::net::UdpSocket;

use crate::common::wire::{Fence, Wire, bytes, frame, since, vectors};
use crate::common::{
    PACKET, PATIENCE, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, hosts, on_sides, pair, port,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use tautline::link::NodeCounters;
use tautline::port::QueuingOptions;
use tautline::{MacAddress, Node, NodeConfig, Priority, QueuingPort, Wait};
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, FLAG_BUNDLE, Header, ParseError, PortNumber, Rejected, bundle, ethernet, udp,
};
use tautline_testbed::hosts::{Host, Hosts};

/// The station that the vectors are addressed to.
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x0b]);
const IP: &str = "10.0.0.2";

/// Gives the second host the address of the vectors.
fn become_station(hosts: &Hosts) {
    let ip = |arguments: &[&str]| {
        let mut command = hosts.command(Host::B, "ip");
        assert!(command.args(arguments).status().unwrap().success());
    };
    ip(&["link", "set", "taut0", "address", &MAC.to_string()]);
    ip(&["address", "add", &format!("{IP}/24"), "dev", "taut0"]);
}

fn open_station(hosts: &Hosts, side: Side) -> Node {
    let mut config = NodeConfig::on("taut0").with_link(side.link);
    config.xdp_mode = side.mode;
    config.address = Some(IP.parse().unwrap());
    hosts
        .inside(Host::B, || Node::open(config).unwrap())
        .unwrap()
}

/// The ports that the vectors are for, on one node.
fn open_ports(hosts: &Hosts, node: &Node) -> Vec<QueuingPort> {
    let open = |number| node.queuing(port(number)).open();
    let open = || [1, 2, 3, 4095].map(|number| open(number).unwrap()).into();
    hosts.inside(Host::B, open).unwrap()
}

/// Frames that have reached the ports, the fence apart.
fn frames(node: &Node) -> u64 {
    let status = node.status();
    let ports = status.ports.iter().filter(|port| port.key.number() != 4000);
    ports.map(|port| port.frames).sum()
}

/// Answer of the vector, and the part of it that this link can see.
fn expected(vector: &Value, side: Side) -> Result<(), Option<ParseError>> {
    let expect = &vector["expect"];
    if expect["answer"] == "accept" {
        return Ok(());
    }
    let error = ParseError::ALL
        .into_iter()
        .find(|error| expect["error"] == error.name());
    match error {
        // The kernel has taken every tag of VLAN 0 out before a packet socket sees the frame.
        None if side.link == PACKET.link && is_tagged_zero(vector) => Ok(()),
        // The demux leaves the UDP checksum alone: the next error counts.
        Some(ParseError::BadChecksum) => match fate(&bytes(&vector["frame"])) {
            Fate::Malformed(error) => Err(Some(error)),
            _ => Ok(()),
        },
        // The kernel's filter hands a packet socket the frames whose first two bytes are its port.
        Some(_) if side.link == PACKET.link && !is_for_open_port(vector) => Err(None),
        error => Err(error),
    }
}

fn is_tagged_zero(vector: &Value) -> bool {
    vector["name"] == "two priority tags" || vector["name"] == "service tag"
}

fn is_for_open_port(vector: &Value) -> bool {
    let frame = bytes(&vector["frame"]);
    let offset = if frame.get(12..14) == Some(&[0x81, 0]) {
        18
    } else {
        14
    };
    let to = frame.get(offset..offset + 2);
    to.is_some_and(|to| [1, 2, 3, 4095].contains(&u16::from_be_bytes([to[0], to[1]])))
}

fn every_vector_has_its_answer(side: Side, files: &[&str]) {
    let Some(hosts) = hosts() else { return };
    become_station(&hosts);
    let node = open_station(&hosts, side);
    let mut ports = open_ports(&hosts, &node);
    let mut fence = hosts.inside(Host::B, || Fence::open(&node)).unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let mut not_sent = 0;
    let mut sequence = 0;
    for vector in files.iter().flat_map(|file| vectors(file)) {
        let before = (frames(&node), node.status().counters);
        if !wire.send(&bytes(&vector["frame"])) {
            not_sent += 1;
            continue;
        }
        fence.pass(&wire);
        let received = receive_all(&mut ports);
        let arrived = frames(&node) - before.0;
        let counted = since(&before.1, &node.status().counters);
        let mut wanted = NodeCounters::default();
        let name = &vector["name"];
        match expected(&vector, side) {
            Ok(()) => assert_eq!(arrived, 1, "{name}"),
            Err(error) => {
                assert_eq!(arrived, 0, "{name}");
                if let Some(error) = error {
                    wanted.malformed[error.index()] = 1;
                }
            }
        }
        assert_eq!(counted, wanted, "{name}");
        if vector["expect"]["fragment_count"] == 1 {
            let payload = bytes(&vector["expect"]["payload"]);
            if vector["expect"]["flags"].as_u64().unwrap() & u64::from(FLAG_BUNDLE) != 0 {
                let messages = bundle::messages(&payload);
                let messages: Vec<_> = messages.into_iter().flatten().collect();
                assert_eq!(received, messages, "{name}");
            } else {
                assert_eq!(received, [payload], "{name}");
            }
        }
        sequence += 1;
    }
    assert!(sequence > 50 && not_sent <= 3, "{sequence}, {not_sent}");
}

fn receive_all(ports: &mut [QueuingPort]) -> Vec<Vec<u8>> {
    let mut buffer = [0; 1484];
    let mut received = Vec::new();
    for port in ports {
        while let Some(message) = port.receive_into(&mut buffer, Wait::Poll).unwrap() {
            received.push(buffer[..message.length].to_vec());
        }
    }
    received
}

on_sides! {
    fn vectors_on_xdp(XDP) = every_vector_has_its_answer, &["ethernet.jsonl", "udp.jsonl"];
    fn vectors_on_xdp_generic(XDP_GENERIC) = every_vector_has_its_answer, &["ethernet.jsonl", "udp.jsonl"];
    fn vectors_on_xdp_tc(XDP_TC) = every_vector_has_its_answer, &["ethernet.jsonl", "udp.jsonl"];
    fn vectors_on_packet(PACKET) = every_vector_has_its_answer, &["ethernet.jsonl"];
}

/// Datagrams to the sockets of a `udp` node, and to those of a `packet` node.
#[test]
fn datagram_vectors_on_sockets() {
    for side in [UDP, PACKET] {
        let Some(hosts) = hosts() else { return };
        become_station(&hosts);
        let node = open_station(&hosts, side);
        let mut ports = open_ports(&hosts, &node);
        let mut sent = 0;
        hosts
            .inside(Host::A, || {
                let mut ip = hosts.command(Host::A, "ip");
                let added = ip.args(["address", "add", "10.0.0.1/24", "dev", "taut0"]);
                assert!(added.status().unwrap().success());
                let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
                for vector in vectors("datagram.jsonl") {
                    let to = vector["udp_destination_port"].as_u64().unwrap() as u16;
                    let number = PortNumber::from_udp_port(to).map(PortNumber::get);
                    if !number.is_some_and(|number| [1, 2, 3, 4095].contains(&number)) {
                        continue;
                    }
                    sent += 1;
                    let before = (frames(&node), node.status().counters);
                    socket.send_to(&bytes(&vector["frame"]), (IP, to)).unwrap();
                    let deadline = tautline::now() + PATIENCE;
                    let mut received = Vec::new();
                    let news = || {
                        let counted = since(&before.1, &node.status().counters);
                        (frames(&node) - before.0, counted)
                    };
                    while news() == (0, NodeCounters::default()) {
                        assert!(tautline::now() < deadline, "{}", vector["name"]);
                        received.extend(receive_all(&mut ports));
                    }
                    received.extend(receive_all(&mut ports));
                    let mut wanted = NodeCounters::default();
                    let arrived = match expected(&vector, UDP) {
                        Ok(()) => 1,
                        Err(error) => {
                            wanted.malformed[error.unwrap().index()] = 1;
                            0
                        }
                    };
                    assert_eq!(news(), (arrived, wanted), "{}", vector["name"]);
                }
            })
            .unwrap();
        assert!(sent > 30, "{sent}");
    }
}

/// Fate of a frame on a node with these ports open, on link `xdp`.
enum Fate {
    Delivered,
    Malformed(ParseError),
    NoPort,
    Passed,
}

fn is_open(number: PortNumber) -> bool {
    [1, 2, 3, 4000, 4095].contains(&number.get())
}

/// By the parser of the protocol core.
fn fate(frame: &[u8]) -> Fate {
    let for_us = frame.len() >= 14 && (frame[0] & 1 == 1 || frame[..6] == MAC.0);
    if !for_us {
        return Fate::Passed;
    }
    let ethernet = ethernet::parse(frame, ETHERTYPE_DEFAULT).map(|frame| frame.header);
    match ethernet {
        Ok(header) if is_open(header.destination) => Fate::Delivered,
        Ok(_) => Fate::NoPort,
        Err(Rejected::Malformed(error)) => Fate::Malformed(error),
        Err(Rejected::NotOurs) => fate_of_udp(frame),
    }
}

fn fate_of_udp(frame: &[u8]) -> Fate {
    let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    if udp::parse(frame) == Err(Rejected::NotOurs) {
        return Fate::Passed;
    }
    // A frame of ours has a whole IPv4 header, and the ports behind it.
    let udp = ip + usize::from(frame[ip] & 0xf) * 4;
    let to = PortNumber::from_udp_port(u16::from_be_bytes([frame[udp + 2], frame[udp + 3]]));
    if frame[ip + 16..ip + 20] != [10, 0, 0, 2] || !to.is_some_and(is_open) {
        return Fate::Passed;
    }
    // The demux leaves the UDP checksum alone.
    let mut without_checksum = frame.to_vec();
    if let Some(checksum) = without_checksum.get_mut(udp + 6..udp + 8) {
        checksum.fill(0);
    }
    match udp::parse(&without_checksum) {
        Ok(_) => Fate::Delivered,
        Err(Rejected::Malformed(error)) => Fate::Malformed(error),
        Err(Rejected::NotOurs) => Fate::Passed,
    }
}

struct Mutator {
    random: Xoshiro256PlusPlus,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    fn new(seed: u64) -> Self {
        println!("seed {seed:#x}");
        let files = ["ethernet.jsonl", "udp.jsonl"];
        let frames = files.iter().flat_map(|file| vectors(file));
        let frames = frames.map(|vector| bytes(&vector["frame"]));
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            seeds: frames
                .filter(|frame| (14..=1514).contains(&frame.len()))
                .collect(),
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.random.next_u64() % limit as u64) as usize
    }

    /// Noise under our EtherType, or a vector with a few bytes changed, cut off or lengthened.
    fn frame(&mut self) -> Vec<u8> {
        if self.below(4) == 0 {
            let mut frame = vec![0; 14 + self.below(80)];
            self.random.fill_bytes(&mut frame[14..]);
            frame[..6].copy_from_slice(&MAC.0);
            frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x0a]);
            frame[12..14].copy_from_slice(&ETHERTYPE_DEFAULT.to_be_bytes());
            return frame;
        }
        let index = self.below(self.seeds.len());
        let mut frame = self.seeds[index].clone();
        for _ in 0..self.below(4) {
            let place = self.below(frame.len().min(80));
            frame[place] = match self.below(3) {
                0 => self.random.next_u64() as u8,
                1 => frame[place] ^ 1 << self.below(8),
                _ => [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
            };
        }
        match self.below(4) {
            0 => frame.truncate(14 + self.below(frame.len() - 13)),
            1 => frame.resize((frame.len() + self.below(64)).min(1514), 0),
            _ => {}
        }
        frame
    }
}

/// A flood of random frames, while a port is in use: every good message arrives, and each of the
/// flood's frames is where the protocol core's parser says.
fn a_flood_of_random_frames(side: Side, rounds: u32) {
    let Some(hosts) = hosts() else { return };
    become_station(&hosts);
    let node = open_station(&hosts, side);
    let mut ports = open_ports(&hosts, &node);
    let mut fence = hosts.inside(Host::B, || Fence::open(&node)).unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let mut mutator = Mutator::new(0x5eed_f1ee);
    let mut wanted = NodeCounters::default();
    let (mut delivered, mut plain) = (0, 0);
    // Frames of the interface itself (ARP, say) are not in the counters.
    let before = (frames(&node), node.status().counters);
    let fence_before = fence_frames(&node);
    for _ in 0..rounds {
        for _ in 0..24 {
            let frame = mutator.frame();
            if side.mode == XDP_TC.mode && is_dropped_with_its_tag(&frame) {
                continue;
            }
            match fate(&frame) {
                // That would be taken for the fence's own.
                Fate::Delivered if frame_is_for_fence(&frame) => continue,
                Fate::Delivered => {
                    delivered += 1;
                    plain += u64::from(frame[12..14] == ETHERTYPE_DEFAULT.to_be_bytes());
                }
                Fate::Malformed(error) => wanted.malformed[error.index()] += 1,
                Fate::NoPort => wanted.no_port += 1,
                Fate::Passed => {}
            }
            assert!(wire.send(&frame));
        }
        fence.pass(&wire);
        receive_all(&mut ports);
    }
    if side.link != XDP.link {
        // The kernel's own stack is between: it takes out every tag of VLAN 0, verifies UDP
        // checksums, and has its own opinion of a group address as source.
        assert!(plain > 0 && frames(&node) - before.0 >= plain);
        return;
    }
    assert_eq!(frames(&node) - before.0, delivered);
    assert_eq!(since(&before.1, &node.status().counters), wanted);
    assert_eq!(fence_frames(&node) - fence_before, u64::from(rounds));
    assert!(delivered > 0 && wanted.no_port > 0);
    let seen = wanted.malformed.iter().filter(|count| **count > 0).count();
    assert_eq!(seen, ParseError::COUNT - 1, "all but the UDP checksum");
}

/// The kernel takes a VLAN tag out before traffic control, and drops a frame that has not two more bytes behind it. No
/// Ethernet carries such a short one.
fn is_dropped_with_its_tag(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8])) && frame.len() < 20
}

fn frame_is_for_fence(frame: &[u8]) -> bool {
    frame.windows(2).any(|pair| pair == 4000u16.to_be_bytes())
}

fn fence_frames(node: &Node) -> u64 {
    let status = node.status();
    let fence = status.ports.iter().find(|port| port.key.number() == 4000);
    fence.map_or(0, |port| port.frames)
}

on_sides! {
    fn a_flood_on_xdp(XDP) = a_flood_of_random_frames, 2000;
    fn a_flood_on_xdp_generic(XDP_GENERIC) = a_flood_of_random_frames, 1000;
    fn a_flood_on_xdp_tc(XDP_TC) = a_flood_of_random_frames, 1000;
    fn a_flood_on_packet(PACKET) = a_flood_of_random_frames, 500;
}

/// The vectors of bundles on a real link, good and bad ones in turn, and one for a port that takes
/// single values only.
fn bundles(side: Side) {
    let Some(hosts) = hosts() else { return };
    become_station(&hosts);
    let node = open_station(&hosts, side);
    let (mut receiver, mut reader, mut fence) = hosts
        .inside(Host::B, || {
            let receiver = node.queuing(port(2)).open();
            let reader = node.sampling(port(3)).open();
            (receiver.unwrap(), reader.unwrap(), Fence::open(&node))
        })
        .unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let mut sequence = 0;
    let mut send = |to: u16, payload: &[u8]| {
        let header = Header {
            flags: FLAG_BUNDLE,
            ..Header::whole(
                port(to),
                port(1),
                Priority::NORMAL,
                payload.len() as u16,
                sequence,
            )
        };
        sequence += 1;
        let from = MacAddress([2, 0, 0, 0, 0, 0x0a]);
        assert!(wire.send(&frame(MAC, from, &header, payload)));
    };
    let mut buffer = vec![0; 1484];
    let mut bad = 0;
    for vector in vectors("bundles.jsonl") {
        send(2, &bytes(&vector["payload"]));
        fence.pass(&wire);
        let mut taken = Vec::new();
        while let Some(message) = receiver.receive_into(&mut buffer, Wait::Poll).unwrap() {
            taken.push(buffer[..message.length].to_vec());
        }
        let expected = match vector.get("messages") {
            Some(messages) => messages.as_array().unwrap().iter().map(bytes).collect(),
            None => {
                bad += 1;
                Vec::new()
            }
        };
        assert_eq!(taken, expected, "{}", vector["name"]);
    }
    send(3, &[0, 1, 7]);
    fence.pass(&wire);
    assert_eq!(reader.read_into(&mut buffer).unwrap(), None);
    let [queue, sample, _] = &node.status().ports[..] else {
        panic!("three ports");
    };
    assert!(bad > 0);
    assert_eq!((queue.bad_bundles, queue.queued), (bad, [0; 8]));
    assert_eq!(sample.unfit, 1);
    assert!(
        node.status()
            .counters
            .malformed
            .iter()
            .all(|count| *count == 0)
    );
}

on_sides! {
    fn bundles_on_xdp(XDP) = bundles;
    fn bundles_on_packet(PACKET) = bundles;
}

/// Header of a fragment of a message that begins with frame `first`.
fn fragment((index, count): (u8, u8), length: usize, first: u32) -> Header {
    Header {
        destination: port(2),
        source: port(1),
        priority: Priority::NORMAL,
        flags: 0,
        fragment_index: index,
        fragment_count: count,
        length: length as u16,
        sequence: first + u32::from(index),
        type_byte: 0,
    }
}

/// Fragments on a real link: in any order, twice, and with one missing.
fn fragments(side: Side) {
    let Some(hosts) = hosts() else { return };
    become_station(&hosts);
    let node = open_station(&hosts, side);
    let options = QueuingOptions {
        message_bytes_max: 5 * 1408,
        ..QueuingOptions::default()
    };
    let (mut receiver, mut fence) = hosts
        .inside(Host::B, || {
            let receiver = node.queuing(port(2)).options(&options).open().unwrap();
            (receiver, Fence::open(&node))
        })
        .unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let message: Vec<u8> = (0..4 * 1408 + 77u32).map(|byte| (byte * 7) as u8).collect();
    let mut buffer = vec![0; 5 * 1408];
    let send = |index: u8, first: u32| {
        let part = message.chunks(1408).nth(usize::from(index)).unwrap();
        let header = fragment((index, 5), part.len(), first);
        let from = MacAddress([2, 0, 0, 0, 0, 0x0a]);
        assert!(wire.send(&frame(MAC, from, &header, part)));
    };
    let orders: [&[u8]; 5] = [
        &[0, 1, 2, 3, 4],
        &[4, 3, 2, 1, 0],
        &[2, 0, 4, 1, 3],
        &[0, 0, 1, 1, 4, 4, 3, 3, 2, 2],
        &[3, 1, 3, 4, 3, 0, 2, 0, 1, 2],
    ];
    let mut first = 0;
    for order in orders {
        order.iter().for_each(|index| send(*index, first));
        let deadline = tautline::now() + PATIENCE;
        let whole = receiver
            .receive_into(&mut buffer, Wait::Until(deadline))
            .unwrap();
        let whole = whole.expect("is complete");
        assert_eq!((whole.length, whole.sequence), (message.len(), first));
        assert!(buffer[..whole.length] == message[..], "{order:?}");
        fence.pass(&wire);
        assert_eq!(
            receiver.receive_into(&mut buffer, Wait::Poll).unwrap(),
            None,
            "{order:?}"
        );
        first += 5;
    }
    // One missing: nothing comes, until the next message's arrival shows that its time is over.
    [0, 1, 3, 4].iter().for_each(|index| send(*index, first));
    fence.pass(&wire);
    receiver.finds_nothing(&mut buffer);
    assert_eq!(node.status().ports[0].expired, 0);
    std::thread::sleep(std::time::Duration::from_millis(60));
    send(2, first);
    fence.pass(&wire);
    assert_eq!(
        receiver.receive_into(&mut buffer, Wait::Poll).unwrap(),
        None,
        "too late"
    );
    let status = &node.status().ports[0];
    assert_eq!((status.expired, status.received), (1, 5));
    // Lost and duplicate frames of the flow, as the loss window sees them.
    let peer = status.peers[0];
    assert_eq!((peer.received, peer.lost), (30, 0));
    // Those that came twice; the second copy of frame 0 is in none of the orders of message 0.
    assert_eq!((peer.duplicates, peer.restarts), (10, 0));
}

on_sides! {
    fn fragments_on_xdp(XDP) = fragments;
    fn fragments_on_packet(PACKET) = fragments;
}

/// A sender that starts anew numbers its messages as before: they are not mixed with what it left,
/// nor taken for copies.
fn a_restarted_sender_is_not_mixed_up(side: Side) {
    let Some(hosts) = hosts() else { return };
    become_station(&hosts);
    let node = open_station(&hosts, side);
    let options = QueuingOptions {
        message_bytes_max: 3 * 1408,
        ..QueuingOptions::default()
    };
    let open = || node.queuing(port(2)).options(&options).open().unwrap();
    let mut receiver = hosts.inside(Host::B, open).unwrap();
    let wire = Wire::on(&hosts, Host::A);
    let send = |index: u8, fill: u8| {
        let header = fragment((index, 3), 1408, 0);
        let from = MacAddress([2, 0, 0, 0, 0, 0x0a]);
        assert!(wire.send(&frame(MAC, from, &header, &[fill; 1408])));
    };
    let mut buffer = vec![0; 3 * 1408];
    // The first run stops before its message is whole; the others are whole at once.
    [0, 2].iter().for_each(|index| send(*index, 1));
    for fill in 2..6 {
        [0, 1, 2].iter().for_each(|index| send(*index, fill));
        let whole = receiver.take_into(&mut buffer);
        assert_eq!(whole.length, buffer.len());
        assert!(buffer.iter().all(|byte| *byte == fill), "run {fill} alone");
    }
    let status = &node.status().ports[0];
    assert_eq!((status.received, status.expired), (4, 1));
    assert_eq!(status.peers[0].restarts, 4);
}

on_sides! {
    fn a_restarted_sender_on_xdp(XDP) = a_restarted_sender_is_not_mixed_up;
    fn a_restarted_sender_on_packet(PACKET) = a_restarted_sender_is_not_mixed_up;
}

/// Frames that a socket has no room for while it is not read are counted.
fn a_full_socket_counts(side: Side) {
    let Some(pair) = pair(side, side) else { return };
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = [0; 1484];
    const SENT: u64 = 5000;
    for _ in 0..SENT {
        sender.send(to, Priority::NORMAL, &[1; 1000]).unwrap();
    }
    let mut received = 0;
    while receiver
        .receive_into(&mut buffer, Wait::Poll)
        .unwrap()
        .is_some()
    {
        received += 1;
    }
    // The count comes with the next frame.
    sender.send(to, Priority::HIGHEST, b"after").unwrap();
    let after = receiver.take_into(&mut buffer);
    assert_eq!(after.length, 5);
    let status = pair.b.status();
    let full: u64 = status.ports[0].dropped_full.iter().sum();
    let dropped = status.counters.socket_full;
    assert!(dropped > 0);
    assert_eq!(received + full + dropped, SENT);
    assert_eq!(status.ports[0].peers[0].lost, dropped);
}

on_sides! {
    fn a_full_socket_on_packet(PACKET) = a_full_socket_counts;
    fn a_full_socket_on_udp(UDP) = a_full_socket_counts;
}

/// Every link sends the UDP form as docs/reference/wire.md says: the parser of the protocol core takes it, and
/// finds no UDP checksum.
#[test]
fn the_udp_form_is_sent_as_written() {
    for side in [UDP, PACKET.speaking_udp(), XDP.speaking_udp()] {
        // Where it arrives, and not where it leaves: frames past the queueing discipline are shown
        // to no port there.
        let Some(pair) = pair(side, UDP) else { return };
        let sniffer = Wire::watch(pair.hosts.as_ref().unwrap(), Host::B);
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        let mut buffer = [0; 1484];
        for payload in [&b""[..], b"seven..", &[5; 1456]] {
            sender.send(to, Priority::NORMAL, payload).unwrap();
            let message = receiver.take_into(&mut buffer);
            assert_eq!(message.length, payload.len());
            let frame = sniffer.next(|frame| udp::parse(frame) != Err(Rejected::NotOurs));
            let frame = udp::parse(&frame).unwrap();
            assert_eq!(frame.checksum, udp::UdpChecksum::Absent, "{}", side.link);
            assert_eq!(frame.payload, payload);
        }
    }
}
