//! Ports as topics of ROS 2, seen, heard and commanded by ROS 2 itself: a node of rclpy over rmw_fastrtps (`node.py`),
//! by their packages from PyPI.

mod common;

use std::thread;
use std::time::Duration;

use common::{Cell, Network, eventually, program, ros_node};
use serde_json::{Value, json};
use tautline::Priority;
use tautline_testbed::hosts::Host::{A, B};

const PORTS: &str = "[[type]]\nname = \"State\"\nfields = [\"time_ns: u64\", \"position: f64[6]\"]\n\
    [[type]]\nname = \"Speed\"\nfields = [\"linear: f64[3]\", \"turn: f32\"]\n\
    [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\n\
    [[port]]\nname = \"trace\"\nnumber = 2\nkind = \"queuing\"\ntype = \"State\"\ndepth = 512\n\
    [[port]]\nname = \"command\"\nnumber = 3\nkind = \"sampling\"\ntype = \"Speed\"\n";
const JOINTS: &str = "message = \"sensor_msgs/msg/JointState\"\n\
    fields = { \"header.stamp\" = \"time_ns\", position = \"position\" }\n\
    constants = { \"header.frame_id\" = \"base\", name = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"] }\n";

/// A `State` in which everything follows from a number.
fn state(number: u32) -> Vec<u8> {
    let time_ns = 1_700_000_000_000_000_000 + u64::from(number);
    let positions = (0..6).map(|place| f64::from(number) + f64::from(place) / 16.0);
    let positions = positions.flat_map(f64::to_le_bytes);
    time_ns.to_le_bytes().into_iter().chain(positions).collect()
}

/// Whether a list of topics with their types has one.
fn has(topics: &Value, name: &str, message: &str) -> bool {
    let all = topics.as_array().into_iter().flatten();
    all.into_iter().any(|one| *one == json!([name, [message]]))
}

#[test]
fn ros_sees_the_node_hears_its_ports_and_commands_them() {
    const STATES: &str = "sensor_msgs/msg/JointState";
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let entries = format!(
        "namespace = \"/cell\"\n[[publish]]\nport = \"state\"\ntopic = \"/joint_states\"\n{JOINTS}\
         [[publish]]\nport = \"trace\"\n{JOINTS}depth = 512\n\
         [[subscribe]]\ntopic = \"/cmd_vel\"\nport = \"command\"\nto = [\"motor.7\"]\n\
         message = \"geometry_msgs/msg/Twist\"\nfields = {{ linear = \"linear\", \"angular.z\" = \"turn\" }}\n"
    );
    let ros = network.ros(&cell, A, PORTS, &entries);
    let mut motor = program(&cell);
    let Some(mut peer) = ros_node(&network, B) else {
        return;
    };

    // The node and its topics, as `ros2` would list them.
    let mut graph = Value::Null;
    eventually("the node is seen with its topics", || {
        peer.tell(json!(["graph"]));
        graph = peer.wait_for("a graph", |what| what["graph"] == true);
        has(&graph["published"], "/joint_states", STATES)
            && has(&graph["published"], "/cell/trace", STATES)
            && has(&graph["subscribed"], "/cmd_vel", "geometry_msgs/msg/Twist")
    });
    assert!(has(&graph["topics"], "/cell/trace", STATES), "{graph}");

    // The last value, with the quality of service for sensors.
    peer.tell(json!(["hear", "/joint_states", "sensor"]));
    eventually("a value is heard", || {
        motor.try_publish(1, &state(7)).unwrap();
        peer.has(|what| what["heard"] == "/joint_states")
    });
    let message = peer.wait_for("a value", |what| what["heard"] == "/joint_states");
    assert_eq!(
        (&message["sec"], &message["nanosec"], &message["frame_id"]),
        (&json!(1_700_000_000), &json!(7), &json!("base"))
    );
    assert_eq!(message["name"], json!(["a", "b", "c", "d", "e", "f"]));
    assert_eq!(message["position"][1], 7.0625);
    assert_eq!(
        (&message["velocity"], &message["effort"]),
        (&json!([]), &json!([]))
    );

    // Every message, with ROS's default quality of service.
    peer.tell(json!(["hear", "/cell/trace", "default"]));
    eventually("it listens", || ros.count("/cell/trace", "readers") == 1);
    // A reader is known to discovery before the writer knows it: the first messages may be lost.
    eventually("a message is heard", || {
        motor.try_say(2, Priority::NORMAL, &state(5000)).unwrap();
        thread::sleep(Duration::from_millis(20));
        peer.has(|what| what["heard"] == "/cell/trace")
    });
    let is_counted = |what: &Value| what["heard"] == "/cell/trace" && what["nanosec"] != 5000;
    for number in 0..300 {
        motor.try_say(2, Priority::NORMAL, &state(number)).unwrap();
    }
    for number in 0..300 {
        let heard = peer.wait_for("the next message", is_counted);
        assert_eq!(heard["nanosec"], number);
    }

    // A command, and again from the next node when this one was killed.
    let speed = |x: f64, turn: f32| {
        let mut bytes: Vec<u8> = [x, 0.0, 0.0]
            .into_iter()
            .flat_map(f64::to_le_bytes)
            .collect();
        bytes.extend(turn.to_le_bytes());
        Some(bytes)
    };
    eventually("a command arrives", || {
        peer.tell(json!(["write", "/cmd_vel", 1.5, -0.25]));
        motor.value() == speed(1.5, -0.25)
    });
    peer.running().kill();
    drop(peer);
    let Some(mut peer) = ros_node(&network, B) else {
        return;
    };
    eventually("a command of the next one arrives", || {
        peer.tell(json!(["write", "/cmd_vel", -3.0, 0.5]));
        motor.value() == speed(-3.0, 0.5)
    });
    assert!(ros.end(), "it ends in order");
}
