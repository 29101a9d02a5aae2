//! Typed ports: values arrive as they were sent, sizes and declarations are checked.

use crate::common::{
    PACKET, Pair, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK_GENERIC, bus_pair,
    controlled_pair, here, pair, pair_with, port, queuing_with, sim_pair,
};
use tautline::error::OptionsError;
use tautline::keys::{Cipher, Key, KeyRing, KeySource};
use tautline::port::QueuingOptions;
use tautline::status::{nodes, nodes_with_latency};
use tautline::types::{Declaration, Direction, PortTypes};
use tautline::{
    Node, NodeConfig, PortError, Priority, Protection, QueuingPort, ReceiveError, SendError, Typed,
    TypedQueuingPort, TypedSamplingPort, Wait,
};

#[derive(Clone, Copy, Debug, PartialEq, Typed)]
#[repr(C)]
struct JointState {
    position: [f64; 7],
    velocity: [f64; 7],
    flags: u32,
    reserved: u32,
}

/// No alignment, and a name that needs an escape.
#[derive(Clone, Copy, Debug, PartialEq, Typed)]
#[repr(C, packed)]
struct Command {
    r#type: u8,
    torque: [f32; 3],
}

const STATE: JointState = JointState {
    position: [0.5; 7],
    velocity: [-1.0; 7],
    flags: 0x0102_0304,
    reserved: 0,
};
const COMMAND: Command = Command {
    r#type: 7,
    torque: [1.0, 2.0, f32::INFINITY],
};

fn queue<R: Typed, S: Typed>(node: &Node, number: u16) -> TypedQueuingPort<R, S> {
    node.queuing(port(number)).typed().open().unwrap()
}

fn value<R: Typed, S: Typed>(node: &Node, number: u16) -> TypedSamplingPort<R, S> {
    node.sampling(port(number)).typed().open().unwrap()
}

/// Runs a test on each sort of link: with frames, with sockets, with shared memory.
fn on_links(test: impl Fn(&Pair)) {
    test(&sim_pair());
    test(&bus_pair());
    if let Some(pair) = pair(UDP, UDP) {
        test(&pair);
    }
}

#[test]
fn messages_are_values() {
    on_links(|pair| {
        let mut motor: TypedQueuingPort<Command, JointState> = pair.on_a(|node| queue(node, 11));
        let mut controller: TypedQueuingPort<JointState, Command> =
            pair.on_b(|node| queue(node, 12));
        let to = controller.destination("peer", port(11)).unwrap();
        assert_eq!(motor.receive(Wait::Poll).unwrap(), None);
        controller.send(to, Priority::HIGHEST, &COMMAND).unwrap();
        let (command, message) = motor.receive(Wait::Until(pair.soon())).unwrap().unwrap();
        assert_eq!((command, message.priority), (COMMAND, Priority::HIGHEST));
        motor
            .reply(message.source, Priority::NORMAL, &STATE)
            .unwrap();
        let (state, _) = controller
            .receive(Wait::Until(pair.soon()))
            .unwrap()
            .unwrap();
        assert_eq!(state, STATE);
        // Another size is named, counted and gone; larger ones are not even let in.
        let untyped: &mut QueuingPort = &mut controller;
        untyped.send(to, Priority::NORMAL, b"no command").unwrap();
        let expected = Err(ReceiveError::OtherSize {
            bytes: 10,
            expected: 13,
        });
        assert_eq!(motor.receive(Wait::Until(pair.soon())), expected);
        let too_large = (*controller).send(to, Priority::NORMAL, &[7; 14]);
        controller.send(to, Priority::NORMAL, &COMMAND).unwrap();
        let (command, _) = motor.receive(Wait::Until(pair.soon())).unwrap().unwrap();
        assert_eq!(command, COMMAND);
        let status = pair.a.status().ports.remove(0);
        assert_eq!(status.other_size, 1);
        assert_eq!(status.too_large, u64::from(too_large.is_ok()));
        assert_eq!(
            status.receives.unwrap().fields,
            ["type: u8", "torque: f32[3]"]
        );
        assert_eq!(status.sends.unwrap().bytes, 120);
    });
}

#[test]
fn values_are_values() {
    on_links(|pair| {
        let mut arm: TypedSamplingPort<JointState> = pair.on_a(|node| value(node, 21));
        let mut hub: TypedSamplingPort<JointState> = pair.on_b(|node| value(node, 22));
        let to = arm.destination("peer", port(22)).unwrap();
        assert_eq!(hub.read().unwrap(), None);
        arm.send(to, Priority::NORMAL, &STATE).unwrap();
        let (state, sample) = hub.next(Wait::Until(pair.soon())).unwrap().unwrap();
        assert_eq!(state, STATE);
        assert!(sample.valid && sample.new && !hub.fresh());
        let (again, sample) = hub.read().unwrap().unwrap();
        assert!(again == STATE && !sample.new);
        assert_eq!(hub.read_from(sample.source).unwrap().unwrap().0, STATE);
        // Neither a shorter value is taken for one, nor a longer one that was cut off.
        for bytes in [119, 121] {
            let value = &[7; 121][..bytes];
            (*arm).send(to, Priority::NORMAL, value).unwrap();
            let expected = Err(ReceiveError::OtherSize {
                bytes,
                expected: 120,
            });
            assert_eq!(hub.next(Wait::Until(pair.soon())), expected);
        }
        let status = pair.b.status().ports.remove(0);
        assert_eq!(status.other_size, 2);
    });
}

/// The newest value of the second node's port, as it tells watchers, and as it tells others.
fn told(pair: &Pair) -> [Option<serde_json::Value>; 2] {
    let value = |asked: std::io::Result<(Vec<serde_json::Value>, Vec<String>)>| {
        let (nodes, _) = asked.unwrap();
        let mut ports = nodes.iter().filter_map(|node| node["ports"].as_array());
        let port = ports.find_map(|ports| ports.iter().find(|port| port["key"] == "22"));
        port.unwrap().get("value").cloned()
    };
    [
        pair.on_b(|_| value(nodes_with_latency())),
        pair.on_b(|_| value(nodes())),
    ]
}

#[test]
fn watchers_see_the_newest_value_whether_it_was_read_or_not() {
    // A socket keeps values until the port looks; elsewhere they are in its memory at once.
    let pairs = [
        (Some(bus_pair()), true),
        (pair(XDP, XDP), true),
        (pair(UDP, UDP), false),
    ];
    for (pair, is_there_at_once) in pairs {
        let Some(pair) = pair else { continue };
        let mut arm: TypedSamplingPort<Command> = pair.on_a(|node| value(node, 21));
        let mut hub: TypedSamplingPort<Command> = pair.on_b(|node| value(node, 22));
        pair.on_b(Node::publish_status).unwrap();
        assert_eq!(told(&pair), [None, None], "nothing has come");
        let to = arm.destination("peer", port(22)).unwrap();
        for round in 1..=9u8 {
            let command = Command {
                r#type: round,
                ..COMMAND
            };
            arm.send(to, Priority::NORMAL, &command).unwrap();
            // Every other value is read before the watcher looks.
            let is_read = round % 2 == 0 || !is_there_at_once;
            if is_read {
                hub.next(Wait::Until(pair.soon())).unwrap().unwrap();
            } else {
                while !hub.fresh() {
                    std::thread::yield_now();
                }
            }
            let [Some(value), None] = told(&pair) else {
                panic!("{round}: {:?}", told(&pair));
            };
            let payload = format!("{round:02x}0000803f000000400000807f");
            assert_eq!(
                (&value["payload"], &value["port"]),
                (&payload.into(), &21.into())
            );
            assert!(is_read || hub.fresh(), "it is left to its reader");
        }
    }
}

const CONFIGURED: &str = "link = \"udp\"
address = \"127.0.0.1\"
[[type]]
name = \"JointState\"
fields = [\"position: f64[7]\", \"velocity: f64[7]\", \"flags: u32\", \"reserved: u32\"]
[[type]]
name = \"Command\"
fields = [\"type: u8\", \"torque: f32[4]\"]
[[port]]
name = \"state\"
number = 2041
kind = \"sampling\"
type = \"JointState\"
[[port]]
name = \"command\"
number = 2042
kind = \"queuing\"
type = \"JointState\"
sends = \"Command\"
";

#[test]
fn the_configuration_and_the_program_declare_the_same() {
    let node = Node::open(CONFIGURED.parse().unwrap()).unwrap();
    let state: TypedSamplingPort<JointState> = node.sampling("state").typed().open().unwrap();
    assert_eq!(state.number(), port(2041));
    let result: Result<TypedQueuingPort<JointState, Command>, _> =
        node.queuing("command").typed().open();
    let error = result.unwrap_err();
    assert!(matches!(error, PortError::OtherType { .. }));
    assert_eq!(
        error.to_string(),
        "port `command`: the program's type is not the configuration's: \
         field `torque` is f32[3] here and f32[4] there"
    );
    // An untyped port has the types that the file names.
    let _command = node.queuing("command").open().unwrap();
    let status = node.status().ports;
    assert_eq!(status[1].sends.as_ref().unwrap().name, "Command");
    let config: NodeConfig = CONFIGURED.parse().unwrap();
    assert_eq!(*config.types[0], Declaration::of::<JointState>().unwrap());
}

#[test]
fn types_beyond_the_limits_are_refused() {
    /// Larger than a message.
    #[derive(Clone, Copy, Debug, Typed)]
    #[repr(C)]
    struct Large {
        pixels: [u8; 65_537],
    }
    let node = sim_pair();
    let result = node.a.queuing(port(7)).typed::<Large, Large>().open();
    assert!(matches!(
        result,
        Err(PortError::Options(OptionsError::Type(_)))
    ));
    let too_large = "65537 bytes, and a message has at most 65536";
    assert_eq!(result.unwrap_err().to_string(), too_large);
    assert_eq!(
        Large {
            pixels: [1; 65_537]
        }
        .pixels[0],
        1
    );
}

/// A command as another program has declared it: one field is wider.
mod other {
    #[derive(Clone, Copy, Debug, tautline::Typed)]
    #[repr(C, packed)]
    pub(super) struct Command {
        pub(super) r#type: u8,
        pub(super) torque: [f64; 3],
    }

    /// A command of the same size.
    pub(super) mod same_size {
        #[derive(Clone, Copy, Debug, tautline::Typed)]
        #[repr(C, packed)]
        pub(in super::super) struct Command {
            pub(in super::super) r#type: u8,
            pub(in super::super) torque: [i32; 3],
        }
    }
}

use other::same_size::Command as OtherCommand;

const OTHER: OtherCommand = OtherCommand {
    r#type: 7,
    torque: [1; 3],
};

/// The type byte of a type.
fn type_byte<T: Typed>() -> u8 {
    Declaration::of::<T>().unwrap().type_byte()
}

/// Whether a message was refused because it is an [`OtherCommand`] for a port of [`Command`]s, from port `from`.
fn is_refused<T>(result: Result<T, ReceiveError>, from: u16) -> bool {
    matches!(result, Err(ReceiveError::OtherType { sender, type_byte: found, fingerprint })
        if sender.port == port(from)
            && found == type_byte::<OtherCommand>()
            && fingerprint == Declaration::of::<Command>().unwrap().fingerprint())
}

/// Of two senders, the second has the receiver's type; then comes one without a type.
fn other_types_are_refused(pair: &Pair, options: &QueuingOptions) {
    let open = |node: &Node, number| {
        node.queuing(port(number))
            .options(options)
            .typed()
            .open()
            .unwrap()
    };
    let mut motor: TypedQueuingPort<Command> = pair.on_a(|node| open(node, 11));
    let mut other: TypedQueuingPort<OtherCommand> = pair.on_b(|node| {
        node.queuing(port(12))
            .options(options)
            .typed()
            .open()
            .unwrap()
    });
    let mut same: TypedQueuingPort<Command> = pair.on_b(|node| open(node, 13));
    let mut untyped = pair.on_b(|node| node.queuing(port(14)).options(options).open().unwrap());
    let to = other.destination("peer", port(11)).unwrap();
    other.send(to, Priority::NORMAL, &OTHER).unwrap();
    assert!(is_refused(motor.receive(Wait::Until(pair.soon())), 12));
    // A bundle of them is refused as one.
    for _ in 0..2 {
        let bytes = OTHER.bytes();
        other.merge(to, Priority::NORMAL, bytes).unwrap();
    }
    other.flush().unwrap();
    assert!(is_refused(motor.receive(Wait::Until(pair.soon())), 12));
    let to = same.destination("peer", port(11)).unwrap();
    same.send(to, Priority::NORMAL, &COMMAND).unwrap();
    let to = untyped.destination("peer", port(11)).unwrap();
    untyped.send(to, Priority::LOWEST, COMMAND.bytes()).unwrap();
    for _ in 0..2 {
        let (command, _) = motor.receive(Wait::Until(pair.soon())).unwrap().unwrap();
        assert_eq!(command, COMMAND);
    }
    // And a port without a type takes them all.
    let to = other.destination("peer", port(15)).unwrap();
    let mut any = pair.on_a(|node| node.queuing(port(15)).options(options).open().unwrap());
    other.send(to, Priority::NORMAL, &OTHER).unwrap();
    let mut buffer = [0; 1484];
    let message = any.take_into(&mut buffer);
    assert_eq!(&buffer[..message.length], OTHER.bytes());
    let status = pair.a.status().ports.remove(0);
    assert_eq!((status.other_type, status.received), (2, 2));
    let [peer] = &status.type_differences[..] else {
        panic!("{:?}", status.type_differences);
    };
    assert_eq!(
        (peer.port, peer.direction, peer.refused),
        (port(12), Direction::Receives, 2)
    );
    let told = format!(
        "the type byte is {} here and {} there",
        type_byte::<Command>(),
        type_byte::<OtherCommand>()
    );
    assert_eq!(peer.difference.as_deref(), Some(&told[..]));
}

#[test]
fn messages_of_another_type_are_refused_on_every_link() {
    let options = QueuingOptions::default();
    other_types_are_refused(&sim_pair(), &options);
    for side in here([PACKET, XDP, XDP_GENERIC, XDP_TC, XSK_GENERIC, UDP]) {
        for form in [side, side.speaking_udp()] {
            let a = if form.link == UDP.link { UDP } else { form };
            let b = if form.link == UDP.link { UDP } else { PACKET };
            let b = Side {
                form: form.form,
                ..b
            };
            let Some(pair) = pair(a, b) else { return };
            other_types_are_refused(&pair, &options);
        }
    }
    if let Some(pair) = controlled_pair(PACKET, XDP) {
        other_types_are_refused(&pair, &options);
    }
}

#[test]
fn the_type_of_a_protected_message_is_known_behind_its_protection() {
    let secret = std::array::from_fn(|place| 1 ^ place as u8);
    let keys =
        || KeySource::Ring(KeyRing::new([Key::new(1, Cipher::Aes128Gcm, 0, secret)]).unwrap());
    for protection in Protection::ALL {
        let with_keys = |config: NodeConfig| config.with_keys("peer", keys());
        let Some(pair) = pair_with((XDP, PACKET), false, with_keys) else {
            return;
        };
        let options = queuing_with(|options| options.protection = Some(protection));
        other_types_are_refused(&pair, &options);
    }
}

#[test]
fn values_of_another_type_are_refused_and_counted_once() {
    for pair in [Some(sim_pair()), pair(XDP, PACKET)].into_iter().flatten() {
        let open = |node: &Node| node.sampling(port(21)).typed().open().unwrap();
        let mut hub: TypedSamplingPort<Command> = pair.on_a(open);
        let mut other: TypedSamplingPort<OtherCommand> = pair.on_b(|node| value(node, 22));
        let mut same: TypedSamplingPort<Command> = pair.on_b(|node| value(node, 23));
        let to = other.destination("peer", port(21)).unwrap();
        other.send(to, Priority::NORMAL, &OTHER).unwrap();
        assert!(is_refused(hub.next(Wait::Until(pair.soon())), 22));
        assert!(is_refused(hub.read(), 22));
        let mut buffer = [0; 1484];
        let read = hub.next_into(&mut buffer, Wait::Poll);
        assert_eq!(read, Ok(None));
        let to = same.destination("peer", port(21)).unwrap();
        same.send(to, Priority::NORMAL, &COMMAND).unwrap();
        let (command, _) = hub.next(Wait::Until(pair.soon())).unwrap().unwrap();
        assert_eq!(command, COMMAND);
        let status = pair.a.status().ports.remove(0);
        assert_eq!((status.other_type, status.received), (1, 1));
    }
}

#[test]
fn a_message_in_fragments_of_another_type_is_passed_over() {
    let types = |text: &str| PortTypes {
        receives: Some(std::sync::Arc::new(text.parse().unwrap())),
        sends: Some(std::sync::Arc::new(text.parse().unwrap())),
    };
    for pair in [Some(sim_pair()), pair(XDP, PACKET)].into_iter().flatten() {
        let options = queuing_with(|options| options.message_bytes_max = 20_000);
        let open = |node: &Node, number, text| {
            node.queuing(port(number))
                .options(&options)
                .types(types(text))
                .open()
                .unwrap()
        };
        let mut receiver = pair.on_a(|node| open(node, 31, "Scan { range: f32[5000] }"));
        let mut other = pair.on_b(|node| open(node, 32, "Scan { range: u32[5000] }"));
        let mut same = pair.on_b(|node| open(node, 33, "Scan { range: f32[5000] }"));
        let mut buffer = vec![0; 20_000];
        for sender in [&mut other, &mut same] {
            let to = sender.destination("peer", port(31)).unwrap();
            sender.send(to, Priority::NORMAL, &[7; 20_000]).unwrap();
        }
        // A port of bytes passes it over.
        let message = receiver.receive_into(&mut buffer, Wait::Until(pair.soon()));
        let message = message.unwrap().unwrap();
        assert_eq!((message.length, message.source.port), (20_000, port(33)));
        assert_eq!(pair.a.status().ports.remove(0).other_type, 1);
    }
}

#[test]
fn ends_on_a_bus_that_differ_are_told_the_field() {
    let pair = bus_pair();
    let open = || pair.a.queuing(port(11)).typed::<Command, Command>().open();
    let motor: TypedQueuingPort<Command> = open().unwrap();
    let mut controller: TypedQueuingPort<JointState, other::Command> =
        pair.b.queuing(port(12)).typed().open().unwrap();
    let told = "port 11 of `peer` declares another type: \
                field `torque` is f64[3] here and f32[3] there";
    for _ in 0..2 {
        let error = controller.destination("peer", port(11)).unwrap_err();
        assert!(matches!(error, PortError::PeerOtherType { .. }));
        assert_eq!(error.to_string(), told);
    }
    let until = controller.destination_until("peer", port(11), pair.soon());
    assert_eq!(until.unwrap_err().to_string(), told);
    // Both ends show it: the receiver has the sender's declaration with its next message.
    let shown = |node: &Node| node.status().ports.remove(0).type_differences;
    let [at_sender] = &shown(&pair.b)[..] else {
        panic!("one peer differs");
    };
    assert_eq!(
        (at_sender.direction, at_sender.port),
        (Direction::Sends, port(11))
    );
    let soon = pair.soon();
    let at_receiver = loop {
        let found = shown(&pair.a).remove(0);
        if found.difference.is_some() {
            break found;
        }
        assert!(
            pair.now() < soon,
            "the sender does not tell its declaration"
        );
        std::thread::yield_now();
    };
    assert_eq!(
        (at_receiver.direction, at_receiver.port),
        (Direction::Receives, port(12))
    );
    assert!(at_receiver.refused > 0);
    let difference = "field `torque` is f32[3] here and f64[3] there";
    assert_eq!(at_receiver.difference.as_deref(), Some(difference));
    // The port comes back with the sender's type: the same destination works.
    drop(motor);
    let mut motor: TypedQueuingPort<other::Command> = {
        let deadline = pair.soon();
        loop {
            match pair.a.queuing(port(11)).typed().open() {
                Ok(port) => break port,
                Err(error) => assert!(pair.now() < deadline, "{error}"),
            }
        }
    };
    let soon = pair.soon();
    let to = loop {
        match controller.destination_until("peer", port(11), soon) {
            Ok(to) => break to,
            // Still the answer of the port that is gone.
            Err(error) => assert!(pair.now() < soon, "{error}"),
        }
    };
    let command = other::Command {
        r#type: 1,
        torque: [1.0; 3],
    };
    controller.send(to, Priority::NORMAL, &command).unwrap();
    let (received, _) = motor.receive(Wait::Until(pair.soon())).unwrap().unwrap();
    assert_eq!({ received.torque }, [1.0; 3]);
    assert!(shown(&pair.a).is_empty() && shown(&pair.b).is_empty());
}

#[test]
fn sends_to_a_peer_that_changes_its_type_fail_by_name() {
    let pair = bus_pair();
    let motor = pair.a.queuing(port(11)).typed::<Command, Command>().open();
    let mut controller: TypedQueuingPort<JointState, Command> =
        pair.b.queuing(port(12)).typed().open().unwrap();
    let to = controller.destination("peer", port(11)).unwrap();
    controller.send(to, Priority::NORMAL, &COMMAND).unwrap();
    drop(motor);
    let _other: TypedQueuingPort<other::Command> = pair.a.queuing(port(11)).typed().open().unwrap();
    let soon = pair.soon();
    loop {
        match controller.send(to, Priority::NORMAL, &COMMAND) {
            Err(SendError::OtherType) => break,
            result => assert!(pair.now() < soon, "{result:?}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn untyped_ports_on_a_bus_talk_to_typed_ones() {
    let pair = bus_pair();
    let mut typed: TypedQueuingPort<Command> = pair.a.queuing(port(11)).typed().open().unwrap();
    let mut untyped = pair.b.queuing(port(12)).open().unwrap();
    let to_typed = untyped.destination("peer", port(11)).unwrap();
    untyped
        .send(to_typed, Priority::NORMAL, COMMAND.bytes())
        .unwrap();
    assert_eq!(
        typed.receive(Wait::Until(pair.soon())).unwrap().unwrap().0,
        COMMAND
    );
    let to_untyped = typed.destination("peer", port(12)).unwrap();
    typed.send(to_untyped, Priority::NORMAL, &COMMAND).unwrap();
    let mut buffer = [0; 1484];
    let message = untyped.take_into(&mut buffer);
    assert_eq!(&buffer[..message.length], COMMAND.bytes());
}
