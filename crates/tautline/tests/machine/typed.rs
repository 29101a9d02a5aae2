//! Typed ports: values arrive as they were sent, sizes and declarations are checked.

use crate::common::{Pair, UDP, XDP, bus_pair, pair, port, sim_pair};
use tautline::status::{nodes, nodes_with_latency};
use tautline::types::Declaration;
use tautline::{
    Node, NodeConfig, PortError, Priority, QueuingOptions, ReceiveError, SamplingOptions,
    SendError, Typed, TypedQueuingPort, TypedSamplingPort,
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
        let options = QueuingOptions::default();
        let mut motor: TypedQueuingPort<Command, JointState> = pair
            .on_a(|node| node.typed_queuing_port(port(11), &options))
            .unwrap();
        let mut controller: TypedQueuingPort<JointState, Command> = pair
            .on_b(|node| node.typed_queuing_port(port(12), &options))
            .unwrap();
        let to = controller.destination("peer", port(11)).unwrap();
        assert_eq!(motor.receive().unwrap(), None);
        controller.send(to, Priority::HIGHEST, &COMMAND).unwrap();
        let (command, message) = motor.receive_until(pair.soon()).unwrap().unwrap();
        assert_eq!((command, message.priority), (COMMAND, Priority::HIGHEST));
        let back = motor.reply_to(message.source).unwrap();
        let filled = |state: &mut JointState| *state = STATE;
        motor.send_filled(back, Priority::NORMAL, filled).unwrap();
        let (state, _) = controller.receive_until(pair.soon()).unwrap().unwrap();
        assert_eq!(state, STATE);
        // Another size is named, counted and gone; larger ones are not even let in.
        let untyped = controller.untyped();
        untyped.send(to, Priority::NORMAL, b"no command").unwrap();
        let expected = Err(ReceiveError::OtherSize {
            bytes: 10,
            expected: 13,
        });
        assert_eq!(motor.receive_until(pair.soon()), expected);
        let too_large = controller.untyped().send(to, Priority::NORMAL, &[7; 14]);
        controller.send(to, Priority::NORMAL, &COMMAND).unwrap();
        let (command, _) = motor.receive_until(pair.soon()).unwrap().unwrap();
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
        let options = SamplingOptions::default();
        let mut arm: TypedSamplingPort<JointState> = pair
            .on_a(|node| node.typed_sampling_port(port(21), &options))
            .unwrap();
        let mut hub: TypedSamplingPort<JointState> = pair
            .on_b(|node| node.typed_sampling_port(port(22), &options))
            .unwrap();
        let to = arm.destination("peer", port(22)).unwrap();
        assert_eq!(hub.read().unwrap(), None);
        arm.send(to, Priority::NORMAL, &STATE).unwrap();
        let (state, sample) = hub.read_new_until(pair.soon()).unwrap().unwrap();
        assert_eq!(state, STATE);
        assert!(sample.valid && sample.new && !hub.fresh());
        let (again, sample) = hub.read().unwrap().unwrap();
        assert!(again == STATE && !sample.new);
        assert_eq!(hub.read_from(sample.source).unwrap().unwrap().0, STATE);
        // Neither a shorter value is taken for one, nor a longer one that was cut off.
        for bytes in [119, 121] {
            arm.untyped()
                .send(to, Priority::NORMAL, &[7; 121][..bytes])
                .unwrap();
            let expected = Err(ReceiveError::OtherSize {
                bytes,
                expected: 120,
            });
            assert_eq!(hub.read_new_until(pair.soon()), expected);
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
        let port = ports.find_map(|ports| ports.iter().find(|port| port["number"] == 22));
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
        let options = SamplingOptions::default();
        let mut arm: TypedSamplingPort<Command> = pair
            .on_a(|node| node.typed_sampling_port(port(21), &options))
            .unwrap();
        let mut hub: TypedSamplingPort<Command> = pair
            .on_b(|node| node.typed_sampling_port(port(22), &options))
            .unwrap();
        pair.on_b(Node::publish_status).unwrap();
        assert_eq!(told(&pair), [None, None], "nothing has come");
        let to = arm.destination("peer", port(22)).unwrap();
        for round in 1..=9u8 {
            let command = Command {
                r#type: round,
                ..COMMAND
            };
            arm.send(to, Priority::NORMAL, &command).unwrap();
            // Every other value is read before somebody looks.
            let is_read = round % 2 == 0 || !is_there_at_once;
            if is_read {
                hub.read_new_until(pair.soon()).unwrap().unwrap();
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
    let state: TypedSamplingPort<JointState> = node.typed_sampling_port_named("state").unwrap();
    assert_eq!(state.number(), port(2041));
    let result: Result<TypedQueuingPort<JointState, Command>, _> =
        node.typed_queuing_port_named("command");
    let error = result.unwrap_err();
    assert!(matches!(error, PortError::OtherType { .. }));
    assert_eq!(
        error.to_string(),
        "port `command`: the program's type is not the configuration's: \
         field `torque` is f32[3] here and f32[4] there"
    );
    // An untyped port has the types that the file names.
    let _command = node.queuing_port_named("command").unwrap();
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
    let result = node
        .a
        .typed_queuing_port::<Large, Large>(port(7), &QueuingOptions::default());
    assert!(matches!(result, Err(PortError::BadType(_))));
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

/// A command as somebody else has declared it: one field is wider.
mod other {
    #[derive(Clone, Copy, Debug, tautline::Typed)]
    #[repr(C, packed)]
    pub(super) struct Command {
        pub(super) r#type: u8,
        pub(super) torque: [f64; 3],
    }
}

#[test]
fn ends_on_a_bus_that_differ_are_told_the_field() {
    let pair = bus_pair();
    let options = QueuingOptions::default();
    let open = || {
        pair.a
            .typed_queuing_port::<Command, Command>(port(11), &options)
    };
    let motor: TypedQueuingPort<Command> = open().unwrap();
    let mut controller: TypedQueuingPort<JointState, other::Command> =
        pair.b.typed_queuing_port(port(12), &options).unwrap();
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
    assert_eq!((at_sender.direction, at_sender.port), ("sends", port(11)));
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
        ("receives", port(12))
    );
    assert!(at_receiver.refused > 0);
    let difference = "field `torque` is f32[3] here and f64[3] there";
    assert_eq!(at_receiver.difference.as_deref(), Some(difference));
    // The port comes back with the sender's type: the same destination works.
    drop(motor);
    let mut motor: TypedQueuingPort<other::Command> = {
        let deadline = pair.soon();
        loop {
            match pair.a.typed_queuing_port(port(11), &options) {
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
    let (received, _) = motor.receive_until(pair.soon()).unwrap().unwrap();
    assert_eq!({ received.torque }, [1.0; 3]);
    assert!(shown(&pair.a).is_empty() && shown(&pair.b).is_empty());
}

#[test]
fn sends_to_a_peer_that_changes_its_type_fail_by_name() {
    let pair = bus_pair();
    let options = QueuingOptions::default();
    let motor = pair
        .a
        .typed_queuing_port::<Command, Command>(port(11), &options);
    let mut controller: TypedQueuingPort<JointState, Command> =
        pair.b.typed_queuing_port(port(12), &options).unwrap();
    let to = controller.destination("peer", port(11)).unwrap();
    controller.send(to, Priority::NORMAL, &COMMAND).unwrap();
    drop(motor);
    let _other: TypedQueuingPort<other::Command> =
        pair.a.typed_queuing_port(port(11), &options).unwrap();
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
    let options = QueuingOptions::default();
    let mut typed: TypedQueuingPort<Command> =
        pair.a.typed_queuing_port(port(11), &options).unwrap();
    let mut untyped = pair.b.queuing_port(port(12), &options).unwrap();
    let to_typed = untyped.destination("peer", port(11)).unwrap();
    untyped
        .send(to_typed, Priority::NORMAL, COMMAND.bytes())
        .unwrap();
    assert_eq!(
        typed.receive_until(pair.soon()).unwrap().unwrap().0,
        COMMAND
    );
    let to_untyped = typed.destination("peer", port(12)).unwrap();
    typed.send(to_untyped, Priority::NORMAL, &COMMAND).unwrap();
    let mut buffer = [0; 1484];
    let message = untyped
        .receive_until(pair.soon(), &mut buffer)
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..message.length], COMMAND.bytes());
}
