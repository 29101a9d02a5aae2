//! Ports as topics of ROS 2, heard and commanded by Fast DDS, the default of ROS 2: a program in C++ (`fastdds.cpp`),
//! compiled here.

mod common;

use std::thread;
use std::time::Duration;

use common::{Cell, Network, Peer, eventually, fast_dds, program};
use serde_json::{Value, json};
use tautline::Priority;
use tautline_testbed::hosts::Host::{A, B};

const PORTS: &str = "[[type]]\nname = \"State\"\nfields = [\"time_ns: u64\", \"position: f64[6]\"]\n\
    [[type]]\nname = \"Speed\"\nfields = [\"linear: f64[3]\", \"turn: f32\"]\n\
    [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\n\
    [[port]]\nname = \"trace\"\nnumber = 2\nkind = \"queuing\"\ntype = \"State\"\ndepth = 512\n\
    [[port]]\nname = \"command\"\nnumber = 3\nkind = \"sampling\"\ntype = \"Speed\"\n\
    [[port]]\nname = \"steps\"\nnumber = 4\nkind = \"queuing\"\ntype = \"Speed\"\n";
const JOINTS: &str = "message = \"sensor_msgs/msg/JointState\"\n\
    fields = { \"header.stamp\" = \"time_ns\", position = \"position\" }\n\
    constants = { \"header.frame_id\" = \"base\", name = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"] }\n";
const TWIST: &str = "message = \"geometry_msgs/msg/Twist\"\n\
    fields = { linear = \"linear\", \"angular.z\" = \"turn\" }\n";

/// A `State` in which everything follows from a number.
fn state(number: u32) -> Vec<u8> {
    let time_ns = 1_700_000_000_000_000_000 + u64::from(number);
    let positions = (0..6).map(|place| f64::from(number) + f64::from(place) / 16.0);
    let positions = positions.flat_map(f64::to_le_bytes);
    time_ns.to_le_bytes().into_iter().chain(positions).collect()
}

/// A `Speed`.
fn speed(x: f64, turn: f32) -> Vec<u8> {
    let mut bytes: Vec<u8> = [x, 0.0, 0.0]
        .into_iter()
        .flat_map(f64::to_le_bytes)
        .collect();
    bytes.extend(turn.to_le_bytes());
    bytes
}

/// Starts the participant on host B, or says why not.
fn participant(network: &Network, states: &str, commands: &str, reliability: &str) -> Option<Peer> {
    fast_dds(network, B, &[states, commands, reliability])
}

#[test]
fn fast_dds_hears_the_last_value_and_every_message() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let entries = format!(
        "[[publish]]\nport = \"state\"\ntopic = \"/joint_states\"\n{JOINTS}\
         [[publish]]\nport = \"trace\"\n{JOINTS}depth = 512\n"
    );
    let ros = network.ros(&cell, A, PORTS, &entries);
    let mut motor = program(&cell);
    let Some(peer) = participant(&network, "rt/joint_states", "rt/unused", "best-effort") else {
        return;
    };
    eventually("a value is heard", || {
        motor.try_publish(1, &state(7)).unwrap();
        peer.has(|what| what["heard"]["sec"] == 1_700_000_000)
    });
    let heard = peer.wait_for("a value", |what| what["heard"].is_object());
    let message = &heard["heard"];
    assert_eq!(message["nanosec"], 7);
    assert_eq!(message["frame_id"], "base");
    assert_eq!(message["name"], json!(["a", "b", "c", "d", "e", "f"]));
    assert_eq!(message["position"][1], 7.0625);
    assert_eq!(
        (&message["velocity"], &message["effort"]),
        (&json!([]), &json!([]))
    );
    drop(peer);

    let Some(peer) = participant(&network, "rt/trace", "rt/unused", "reliable") else {
        return;
    };
    eventually("the other topic is heard", || {
        ros.count("/trace", "readers") == 1
    });
    // A reader is known to discovery before the writer knows it: the first messages may be lost.
    eventually("a message is heard", || {
        motor.try_say(2, Priority::NORMAL, &state(5000)).unwrap();
        thread::sleep(Duration::from_millis(20));
        peer.has(|what| what["heard"].is_object())
    });
    let is_counted = |what: &Value| what["heard"].is_object() && what["heard"]["nanosec"] != 5000;
    for number in 0..300 {
        motor.try_say(2, Priority::NORMAL, &state(number)).unwrap();
    }
    for number in 0..300 {
        let heard = peer.wait_for("the next message", is_counted);
        assert_eq!(heard["heard"]["nanosec"], number);
    }
    assert_eq!(ros.count("/trace", "refused"), 0);
}

#[test]
fn fast_dds_commands_and_comes_back_when_it_was_killed() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let entries = format!(
        "[[subscribe]]\ntopic = \"/cmd_vel\"\nport = \"command\"\nto = [\"motor.7\"]\n{TWIST}\
         [[subscribe]]\ntopic = \"/steps\"\nport = \"steps\"\nto = [\"motor.8\"]\npriority = 3\n\
         rate = 100000\nburst = 1000\n{TWIST}"
    );
    let ros = network.ros(&cell, A, PORTS, &entries);
    let mut motor = program(&cell);
    let Some(mut peer) = participant(&network, "rt/unused", "rt/cmd_vel", "best-effort") else {
        return;
    };
    eventually("a command arrives", || {
        peer.tell(json!([1.5, -0.25]));
        motor.value() == Some(speed(1.5, -0.25))
    });
    peer.running().kill();
    drop(peer);
    let Some(mut peer) = participant(&network, "rt/unused", "rt/cmd_vel", "best-effort") else {
        return;
    };
    eventually("a command of the next one arrives", || {
        peer.tell(json!([-3.0, 0.5]));
        motor.value() == Some(speed(-3.0, 0.5))
    });
    drop(peer);

    let Some(mut peer) = participant(&network, "rt/unused", "rt/steps", "reliable") else {
        return;
    };
    eventually("a step arrives", || {
        peer.tell(json!([-1.0, 0.0]));
        motor.message().is_some()
    });
    eventually("those before it, too", || {
        let last = ros.count("/steps", "delivered");
        while motor.message().is_some() {}
        ros.count("/steps", "delivered") == last
    });
    for number in 0..20 {
        peer.tell(json!([number, 0.0]));
    }
    let mut steps = Vec::new();
    eventually("every step arrives", || {
        steps.extend(motor.message());
        steps.len() == 20
    });
    let expected = (0..20).map(|number| (3, speed(f64::from(number), 0.0)));
    assert_eq!(steps, expected.collect::<Vec<_>>());
}
