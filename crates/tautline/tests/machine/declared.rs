//! Ends on a network that declare different types find out, on every link and in both directions, and both say which
//! field. Lost, forged and random declarations harm nobody.

use std::time::{Duration, Instant as Clock};

use crate::common::child;
use crate::common::control::{NOBODY, allow, client_node, served, start_client, start_control};
use crate::common::wire::Wire;
use crate::common::{
    PACKET, PATIENCE, Pair, Side, UDP, XDP, XDP_GENERIC, XDP_TC, XSK_GENERIC, controlled_pair,
    hosts, open, pair, port,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline::keys::{Cipher, Key, KeyRing};
use tautline::types::Declaration;
use tautline::{
    DeclarationsStatus, KeySource, MacAddress, Node, PortError, PortStatus, Priority, Protection,
    QueuingOptions, SamplingOptions, Typed, TypedQueuingPort, TypedSamplingPort,
};
use tautline_proto::wire::declaration::{
    Kind, PART_BYTES, PART_HEAD_BYTES, Part, UDP_DECLARATION_BASE, ethertype, header, parts,
};
use tautline_proto::wire::{ETHERTYPE_DEFAULT, HEADER_BYTES};
use tautline_testbed::hosts::{Host, Hosts};

#[derive(Clone, Copy, Debug, PartialEq, Typed)]
#[repr(C)]
struct Command {
    mode: u32,
    torque: [f32; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Typed)]
#[repr(C)]
struct State {
    position: [f64; 2],
}

/// The same names and sizes, with other fields.
mod other {
    use tautline::Typed;

    #[derive(Clone, Copy, Debug, PartialEq, Typed)]
    #[repr(C)]
    pub(super) struct Command {
        pub(super) mode: u32,
        pub(super) torque: [i32; 3],
    }

    #[derive(Clone, Copy, Debug, PartialEq, Typed)]
    #[repr(C)]
    pub(super) struct State {
        pub(super) position: [f32; 4],
    }
}

const COMMAND: Command = Command {
    mode: 1,
    torque: [0.5; 3],
};
const OTHER_COMMAND: other::Command = other::Command {
    mode: 2,
    torque: [3; 3],
};

/// Longer than the time between announcements that nobody answers.
const TOLD: Duration = Duration::from_secs(30);

fn status(node: &Node, number: u16) -> PortStatus {
    let mut ports = node.status().ports.into_iter();
    ports.find(|status| status.number == port(number)).unwrap()
}

fn declared(node: &Node, number: u16) -> DeclarationsStatus {
    status(node, number).declarations.expect("a typed port")
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Clock::now();
    while !holds() {
        assert!(begin.elapsed() < TOLD * crate::common::slowness(), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Differences that a port tells of, in order.
fn told(node: &Node, number: u16) -> Vec<(&'static str, u16, String)> {
    let differences = status(node, number).type_differences.into_iter();
    let mut told: Vec<_> = differences
        .map(|one| {
            (
                one.direction,
                one.port.get(),
                one.difference.unwrap_or_default(),
            )
        })
        .collect();
    told.sort_unstable();
    told
}

/// The error of a destination whose port declares another type, once that is known.
fn difference(
    mut ask: impl FnMut(tautline::Instant) -> Result<tautline::Destination, PortError>,
) -> PortError {
    let end = tautline::now() + TOLD;
    loop {
        // It gives up sooner, without an error: a peer may know no declarations.
        if let Err(error) = ask(end) {
            return error;
        }
        assert!(tautline::now() < end, "nothing was declared");
    }
}

/// Both ends send types that the other one does not receive.
fn both_know(pair: &Pair, queue: &QueuingOptions) {
    let mut motor: TypedQueuingPort<Command, State> = pair
        .on_a(|node| node.typed_queuing_port(port(11), queue))
        .unwrap();
    let mut controller: TypedQueuingPort<other::State, other::Command> = pair
        .on_b(|node| node.typed_queuing_port(port(12), queue))
        .unwrap();
    let expected = "port 11 of `peer` declares another type: \
                    field `torque` is i32[3] here and f32[3] there";
    let error = difference(|deadline| controller.destination_until("peer", port(11), deadline));
    assert!(matches!(error, PortError::PeerOtherType { .. }));
    assert_eq!(error.to_string(), expected);
    let again = controller.destination("peer", port(11)).unwrap_err();
    assert_eq!(again.to_string(), expected);
    let error = difference(|deadline| motor.destination_until("peer", port(12), deadline));
    assert_eq!(
        error.to_string(),
        "port 12 of `peer` declares another type: field `position` is f64[2] here and f32[4] there"
    );
    let at_motor = [
        (
            "receives",
            12,
            "field `torque` is f32[3] here and i32[3] there".to_owned(),
        ),
        (
            "sends",
            12,
            "field `position` is f64[2] here and f32[4] there".to_owned(),
        ),
    ];
    let at_controller = [
        (
            "receives",
            11,
            "field `position` is f32[4] here and f64[2] there".to_owned(),
        ),
        (
            "sends",
            11,
            "field `torque` is i32[3] here and f32[3] there".to_owned(),
        ),
    ];
    until("both ends say which field", || {
        told(&pair.a, 11) == at_motor && told(&pair.b, 12) == at_controller
    });
    // No declaration is a message, nor counted as a frame that is wrong.
    for (node, number) in [(&pair.a, 11), (&pair.b, 12)] {
        let status = status(node, number);
        assert_eq!((status.frames, status.doorbells), (0, 0));
        assert!(status.peers.is_empty());
        assert_eq!(node.status().counters.malformed_total(), 0);
        assert_eq!(node.status().counters.no_port, 0);
    }
    assert_eq!(motor.receive().unwrap(), None);
}

/// A queue without protection.
fn plain() -> QueuingOptions {
    QueuingOptions::default()
}

const SIDES: [Side; 6] = [PACKET, XDP, XDP_GENERIC, XDP_TC, XSK_GENERIC, UDP];

#[test]
fn ends_that_differ_know_the_field_on_every_link() {
    for side in crate::common::here(SIDES) {
        for form in [side, side.speaking_udp()] {
            let a = if form.link == UDP.link { UDP } else { PACKET };
            let a = Side {
                form: form.form,
                ..a
            };
            let Some(pair) = pair(a, form) else { return };
            both_know(&pair, &plain());
        }
    }
}

#[test]
fn clients_of_a_control_process_know_it_too() {
    for side in crate::common::here([XDP, XDP.speaking_udp(), XDP_TC]) {
        let a = Side {
            form: side.form,
            ..PACKET
        };
        let Some(pair) = controlled_pair(a, side) else {
            return;
        };
        both_know(&pair, &plain());
    }
}

#[test]
fn an_unprivileged_client_of_a_confined_control_process_knows_it() {
    const TEST: &str = "an_unprivileged_client_of_a_confined_control_process_knows_it";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        let node = client_node(NOBODY).unwrap();
        let motor: TypedQueuingPort<Command> = node.typed_queuing_port(port(60), &plain()).unwrap();
        println!("{}", child::READY);
        until("the client is told", || told(&node, 60).len() == 1);
        let expected = "field `torque` is f32[3] here and i32[3] there";
        assert_eq!(told(&node, 60)[0].2, expected);
        println!("it knows");
        until("the client is told again", || told(&node, 60).len() == 2);
        drop(motor);
        println!("it knows more");
        loop {
            std::thread::park();
        }
    }
    let Some(hosts) = hosts() else { return };
    let control = start_control(&hosts, TEST, &allow("60", ""));
    let mut client = start_client(&hosts, TEST, "client");
    let node = open(&hosts, Host::A, XDP);
    let mut controller: TypedQueuingPort<other::Command> = hosts
        .inside(Host::A, || node.typed_queuing_port(port(12), &plain()))
        .unwrap()
        .unwrap();
    let error = difference(|deadline| controller.destination_until("peer", port(60), deadline));
    assert!(matches!(error, PortError::PeerOtherType { .. }));
    client.wait_for("it knows");
    // The control process is replaced; the client declares on.
    control.kill();
    let _successor = start_control(&hosts, TEST, &allow("60", ""));
    let mut second: TypedQueuingPort<other::Command> = hosts
        .inside(Host::A, || node.typed_queuing_port(port(13), &plain()))
        .unwrap()
        .unwrap();
    let error = difference(|deadline| second.destination_until("peer", port(60), deadline));
    assert!(matches!(error, PortError::PeerOtherType { .. }));
    client.wait_for("it knows more");
}

#[test]
fn messages_go_on_whatever_peers_declare() {
    let Some(pair) = pair(PACKET, XDP) else {
        return;
    };
    let options = SamplingOptions::default();
    let mut hub: TypedSamplingPort<Command> = pair
        .on_b(|node| node.typed_sampling_port(port(21), &options))
        .unwrap();
    let mut arm: TypedSamplingPort<other::Command> = pair
        .on_a(|node| node.typed_sampling_port(port(22), &options))
        .unwrap();
    let to = arm.destination("peer", port(21)).unwrap();
    until("both know", || {
        told(&pair.a, 22).len() == 1 && told(&pair.b, 21).len() == 1
    });
    // No value is there, and none is replaced.
    assert_eq!(hub.read().unwrap(), None);
    arm.send(to, Priority::NORMAL, &OTHER_COMMAND).unwrap();
    let (value, _) = hub.read_new_until(pair.soon()).unwrap().unwrap();
    assert_eq!(value.mode, OTHER_COMMAND.mode);
}

#[test]
fn ends_that_agree_say_nothing_and_stop_to_ask() {
    let Some(pair) = pair(PACKET, XDP) else {
        return;
    };
    // The sender comes first: its first announcements are lost.
    let mut controller: TypedQueuingPort<State, Command> = pair
        .on_b(|node| node.typed_queuing_port(port(12), &plain()))
        .unwrap();
    let to = controller.destination("peer", port(11)).unwrap();
    until("announcements are repeated", || {
        declared(&pair.b, 12).announced >= 2
    });
    assert_eq!(declared(&pair.b, 12).answered, 0);
    let mut motor: TypedQueuingPort<Command, State> = pair
        .on_a(|node| node.typed_queuing_port(port(11), &plain()))
        .unwrap();
    until("the peer answers", || declared(&pair.b, 12).answered == 1);
    let announced = declared(&pair.b, 12).announced;
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(declared(&pair.b, 12).announced, announced);
    assert!(told(&pair.a, 11).is_empty() && told(&pair.b, 12).is_empty());
    controller.send(to, Priority::NORMAL, &COMMAND).unwrap();
    let (value, _) = motor.receive_until(pair.soon()).unwrap().unwrap();
    assert_eq!(value, COMMAND);
}

#[test]
fn a_peer_without_types_answers_or_is_silent_and_all_goes_on() {
    let Some(pair) = pair(PACKET, PACKET) else {
        return;
    };
    let mut untyped = pair
        .on_a(|node| node.queuing_port(port(11), &plain()))
        .unwrap();
    assert!(status(&pair.a, 11).declarations.is_none());
    let mut controller: TypedQueuingPort<State, Command> = pair
        .on_b(|node| node.typed_queuing_port(port(12), &plain()))
        .unwrap();
    let to = controller.destination("peer", port(11)).unwrap();
    controller.send(to, Priority::NORMAL, &COMMAND).unwrap();
    let mut buffer = [0; 1484];
    let message = untyped.receive_until(pair.soon(), &mut buffer).unwrap();
    assert_eq!(message.unwrap().length, size_of::<Command>());
    until("it is asked again", || declared(&pair.b, 12).announced >= 3);
    assert_eq!(declared(&pair.b, 12).answered, 0);
    // A port that only sends values has no type to compare with.
    drop(untyped);
    let sends = tautline::types::PortTypes {
        receives: None,
        sends: Declaration::of::<State>().ok().map(Into::into),
    };
    let _answers = pair
        .on_a(|node| node.declared_queuing_port(port(11), &plain(), &sends))
        .unwrap();
    until("it answers that", || declared(&pair.b, 12).answered == 1);
    assert!(told(&pair.b, 12).is_empty());
}

#[test]
fn the_longest_declaration_is_told_in_parts() {
    let Some(pair) = pair(UDP, UDP) else { return };
    let name = |index: usize| format!("{}{index:02}", "n".repeat(61));
    let fields = |last: &str| -> Vec<String> {
        let fields = (0..64).map(|index| match index {
            63 => format!("{}: {last}", name(index)),
            _ => format!("{}: u8[65]", name(index)),
        });
        fields.collect()
    };
    let declare = |last: &str| {
        let fields = fields(last);
        let declaration =
            Declaration::new(&"T".repeat(63), fields.iter().map(String::as_str)).unwrap();
        assert!(declaration.to_string().len() > 3 * PART_BYTES);
        let types = Some(declaration.into());
        tautline::types::PortTypes {
            receives: types.clone(),
            sends: types,
        }
    };
    let (here, there) = (declare("u8[65]"), declare("i8[65]"));
    let mut sender = pair
        .on_a(|node| node.declared_queuing_port(port(11), &plain(), &here))
        .unwrap();
    let _receiver = pair
        .on_b(|node| node.declared_queuing_port(port(12), &plain(), &there))
        .unwrap();
    let _to = sender.destination("peer", port(12)).unwrap();
    let sentence = |here, there| format!("field `{}` is {here} here and {there} there", name(63));
    until("both have the whole text", || {
        told(&pair.a, 11) == [("sends", 12, sentence("u8[65]", "i8[65]"))]
            && told(&pair.b, 12) == [("receives", 11, sentence("i8[65]", "u8[65]"))]
    });
}

/// Frames of a declaration, as anybody may write them onto the cable.
fn frames(
    to: [u8; 6],
    from: MacAddress,
    (destination, source): (u16, u16),
    (kind, about): (Kind, u64),
    declaration: &Declaration,
) -> Vec<Vec<u8>> {
    let text = declaration.to_string();
    let frame = |range: std::ops::Range<usize>| {
        let part = Part {
            kind,
            ethertype: ETHERTYPE_DEFAULT,
            hash: declaration.hash(),
            about,
            text_bytes: text.len(),
            offset: range.start,
            text: &text.as_bytes()[range],
        };
        let mut payload = [0; PART_HEAD_BYTES + PART_BYTES];
        let bytes = part.emit(&mut payload);
        let mut head = [0; HEADER_BYTES];
        header(port(destination), port(source), bytes as u16).emit(&mut head);
        let ethertype = ethertype(ETHERTYPE_DEFAULT).to_be_bytes();
        [&to[..], &from.0, &ethertype, &head, &payload[..bytes]].concat()
    };
    parts(text.len()).map(frame).collect()
}

fn declaration(field: &str) -> Declaration {
    Declaration::new("Command", [field]).unwrap()
}

fn mac(hosts: &Hosts, host: Host) -> [u8; 6] {
    hosts.end(host, 0).mac()
}

#[test]
fn strangers_floods_and_changes_of_mind_are_bounded() {
    for side in crate::common::here([XDP, PACKET]) {
        let Some(pair) = pair(PACKET, side) else {
            return;
        };
        let hosts = pair.hosts.as_ref().unwrap();
        let mut motor: TypedQueuingPort<Command> = pair
            .on_b(|node| node.typed_queuing_port(port(12), &plain()))
            .unwrap();
        let wire = Wire::on(hosts, Host::A);
        let to = mac(hosts, Host::B);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let say = |from: MacAddress, source: u16, field: &str| {
            let frames = frames(
                to,
                from,
                (12, source),
                (Kind::Announcement, 0),
                &declaration(field),
            );
            frames.iter().for_each(|frame| assert!(wire.send(frame)));
        };
        // Strangers: more than there is room for.
        for one in 0..100u8 {
            say(MacAddress([2, 9, 9, 9, 9, one]), 5, "mode: u8");
            std::thread::sleep(Duration::from_millis(2));
        }
        until("strangers are heard", || told(&pair.b, 12).len() == 24);
        // Random bytes, and good ones that were cut off or changed.
        let good = frames(
            to,
            MacAddress([2, 9, 9, 9, 9, 200]),
            (12, 5),
            (Kind::Announcement, 0),
            &declaration("mode: i8"),
        );
        for round in 0..3_000usize {
            let mut frame = good[0].clone();
            match round % 3 {
                0 => frame.truncate(16 + round % (frame.len() - 16)),
                1 => random.fill_bytes(&mut frame[16..]),
                _ => {
                    let at = 16 + round % (frame.len() - 16);
                    frame[at] ^= 1 << (round % 8);
                }
            }
            let _taken = wire.send(&frame);
        }
        // Replies to nothing, and declarations of another network.
        for frame in frames(
            to,
            MacAddress(mac(hosts, Host::A)),
            (12, 11),
            (Kind::Reply, 1),
            &declaration("mode: i8"),
        ) {
            assert!(wire.send(&frame));
        }
        until("they are counted", || {
            let declared = declared(&pair.b, 12);
            declared.malformed > 0 && declared.unproven + declared.malformed > 0
        });
        // A neighbour finds room among strangers, and may change its mind.
        for (field, expected) in [
            ("mode: u8", "field `mode` is u32 here and u8 there"),
            ("mode: u16", "field `mode` is u32 here and u16 there"),
        ] {
            until("the neighbour is heard", || {
                say(MacAddress(mac(hosts, Host::A)), 11, field);
                let told = told(&pair.b, 12);
                told.contains(&("receives", 11, expected.to_owned()))
            });
        }
        assert!(told(&pair.b, 12).len() <= 48);
        let replied = declared(&pair.b, 12);
        assert!(replied.withheld > 0, "{replied:?}");
        // Messages pass, and no queue has seen anything of it.
        let mut sender = pair
            .on_a(|node| node.queuing_port(port(11), &plain()))
            .unwrap();
        assert_eq!(status(&pair.b, 12).frames, 0);
        let there = sender.destination("peer", port(12)).unwrap();
        let value = COMMAND;
        let bytes: Vec<u8> = [value.mode.to_le_bytes().to_vec()]
            .into_iter()
            .chain(value.torque.map(|one| one.to_le_bytes().to_vec()))
            .flatten()
            .collect();
        sender.send(there, Priority::NORMAL, &bytes).unwrap();
        let (received, _) = motor.receive_until(pair.soon()).unwrap().unwrap();
        assert_eq!(received, COMMAND);
        // The same peer agrees at last.
        let own = Declaration::of::<Command>().unwrap();
        until("the neighbour agrees", || {
            let agreed = frames(
                to,
                MacAddress(mac(hosts, Host::A)),
                (12, 11),
                (Kind::Announcement, 0),
                &own,
            );
            agreed.iter().for_each(|frame| assert!(wire.send(frame)));
            told(&pair.b, 12).iter().all(|(_, from, _)| *from != 11)
        });
    }
}

fn keys() -> KeySource {
    let secret = std::array::from_fn(|place| 1 ^ place as u8);
    KeySource::Ring(KeyRing::new([Key::new(1, Cipher::Aes128Gcm, 0, secret)]).unwrap())
}

#[test]
fn protected_ports_believe_authentic_declarations_alone() {
    for (a, b) in [(PACKET, XDP), (UDP, UDP)] {
        let Some(hosts) = hosts() else { return };
        let node = |host, side| {
            let config = crate::common::config(&hosts, host, side).with_keys("peer", keys());
            hosts.inside(host, || Node::open(config).unwrap()).unwrap()
        };
        let pair = Pair {
            a: node(Host::A, a),
            b: node(Host::B, b),
            network: None,
            control: None,
            hosts: Some(hosts),
        };
        for protection in Protection::ALL {
            let options = QueuingOptions {
                protection: Some(protection),
                ..plain()
            };
            both_know(&pair, &options);
        }
        let hosts = pair.hosts.as_ref().unwrap();
        if a.link == UDP.link {
            continue;
        }
        let options = QueuingOptions {
            protection: Some(Protection::Encrypted),
            ..plain()
        };
        let mut sender: TypedQueuingPort<State, Command> = pair
            .on_a(|node| node.typed_queuing_port(port(31), &options))
            .unwrap();
        let _receiver: TypedQueuingPort<Command, State> = pair
            .on_b(|node| node.typed_queuing_port(port(32), &options))
            .unwrap();
        let _to = sender.destination("peer", port(32)).unwrap();
        until("they agree", || declared(&pair.a, 31).answered == 1);
        // Somebody else says that the receiver declares another type.
        let wire = Wire::on(hosts, Host::B);
        let about = Declaration::of::<Command>().unwrap().hash();
        for frame in frames(
            mac(hosts, Host::A),
            MacAddress(mac(hosts, Host::B)),
            (31, 32),
            (Kind::Reply, about),
            &declaration("mode: u8"),
        ) {
            assert!(wire.send(&frame));
        }
        until("it is not believed", || declared(&pair.a, 31).unproven == 1);
        assert!(told(&pair.a, 31).is_empty());
        sender.destination("peer", port(32)).unwrap();
    }
}

#[test]
fn a_port_whose_socket_is_taken_works_and_says_so() {
    let Some(pair) = pair(UDP, UDP) else { return };
    let own = pair.hosts.as_ref().unwrap().end(Host::B, 0).address();
    let taken = (own, UDP_DECLARATION_BASE + 12);
    let _taken = pair.on_b(|_| std::net::UdpSocket::bind(taken).unwrap());
    let mut controller: TypedQueuingPort<State, Command> = pair
        .on_b(|node| node.typed_queuing_port(port(12), &plain()))
        .unwrap();
    let unavailable = declared(&pair.b, 12).unavailable.unwrap();
    assert!(unavailable.contains("in use"), "{unavailable}");
    let begin = Clock::now();
    let deadline = tautline::now() + PATIENCE;
    let to = controller.destination_until("peer", port(11), deadline);
    assert!(begin.elapsed() < PATIENCE, "nothing is waited for");
    // A peer that never replies is waited for shortly, whatever the deadline.
    let mut second: TypedQueuingPort<State, Command> = pair
        .on_b(|node| node.typed_queuing_port(port(14), &plain()))
        .unwrap();
    let silent = second.destination_until("peer", port(15), tautline::Instant::FAR_FUTURE);
    assert!(silent.is_ok() && begin.elapsed() >= Duration::from_secs(2));
    let mut motor: TypedQueuingPort<Command, State> = pair
        .on_a(|node| node.typed_queuing_port(port(11), &plain()))
        .unwrap();
    controller
        .send(to.unwrap(), Priority::NORMAL, &COMMAND)
        .unwrap();
    assert!(motor.receive_until(pair.soon()).unwrap().is_some());
}
