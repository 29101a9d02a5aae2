//! Ports as topics of ROS 2: real processes, in network namespaces of their own, and participants of DDS that nobody
//! here wrote (`peer.py`: Cyclone DDS). Cells are buses, so that what is tested is the program and not a link.

mod common;

use std::thread;
use std::time::Duration;

use common::{Cell, Network, Peer, counts, eventually, participant, program};
use serde_json::{Value, json};
use tautline::Priority;
use tautline_testbed::hosts::Host::{A, B};

const STATE: &str = "[[type]]\nname = \"State\"\n\
    fields = [\"time_ns: u64\", \"position: f64[6]\", \"velocity: f64[6]\"]\n";
const JOINTS: &str = "message = \"sensor_msgs/msg/JointState\"\n\
    fields = { \"header.stamp\" = \"time_ns\", position = \"position\", velocity = \"velocity\" }\n\
    constants = { \"header.frame_id\" = \"base\", name = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"] }\n";
const SPEED: &str = "[[type]]\nname = \"Speed\"\nfields = [\"linear: f64[3]\", \"turn: f32\"]\n";
const TWIST: &str = "message = \"geometry_msgs/msg/Twist\"\n\
    fields = { linear = \"linear\", \"angular.z\" = \"turn\" }\n";

/// A `State` in which everything follows from a number.
fn state(number: u64) -> Vec<u8> {
    let mut bytes = (1_700_000_000_000_000_000 + number).to_le_bytes().to_vec();
    for place in 0..12_u32 {
        #[allow(clippy::cast_precision_loss)] // a few thousand
        bytes.extend((number as f64 + f64::from(place) / 16.0).to_le_bytes());
    }
    bytes
}

/// A `Speed`.
fn speed(linear: [f64; 3], turn: f32) -> Vec<u8> {
    let mut bytes: Vec<u8> = linear.iter().flat_map(|one| one.to_le_bytes()).collect();
    bytes.extend(turn.to_le_bytes());
    bytes
}

fn twist(x: f64, turn: f64) -> Value {
    json!([[x, 0.0, 0.0], [0.0, 0.0, turn]])
}

#[test]
fn joint_states_and_the_node_are_seen_by_another_implementation() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = format!(
        "{STATE}[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\n\
         [[port]]\nname = \"trace\"\nnumber = 2\nkind = \"queuing\"\ntype = \"State\"\ndepth = 512\n"
    );
    let entries = format!(
        "namespace = \"/cell\"\n[[publish]]\nport = \"state\"\ntopic = \"/joint_states\"\n{JOINTS}\
         [[publish]]\nport = \"trace\"\n{JOINTS}depth = 512\n"
    );
    let ros = network.ros(&cell, A, &ports, &entries);
    let mut motor = program(&cell);
    let Some(mut peer) = participant(&network, B) else {
        return;
    };
    peer.tell(json!(["hear", "rt/joint_states", "JointState", { "reliable": false }]));
    peer.tell(json!(["hear", "rt/cell/trace", "JointState", { "reliable": true }]));
    peer.tell(json!(["hear", "ros_discovery_info", "ParticipantEntitiesInfo", { "reliable": true, "durable": true }]));

    // The node, as `ros2 node list` would see it.
    let node = peer.wait_for("the node", |what| what["heard"] == "ros_discovery_info");
    let node = &node["message"]["node_entities_info_seq"][0];
    assert_eq!(
        (&node["node_namespace"], &node["node_name"]),
        (&json!("/cell"), &json!("arm"))
    );
    assert_eq!(node["writer_gid_seq"].as_array().unwrap().len(), 2);
    assert_eq!(node["reader_gid_seq"].as_array().unwrap().len(), 0);

    // The last value of a sampling port.
    eventually("both topics are heard", || {
        ros.count("/joint_states", "readers") == 1 && ros.count("/cell/trace", "readers") == 1
    });
    eventually("a value is heard", || {
        motor.try_publish(1, &state(7)).unwrap();
        peer.has(|what| what["heard"] == "rt/joint_states")
    });
    let heard = peer.wait_for("a value", |what| what["heard"] == "rt/joint_states");
    let message = &heard["message"];
    assert_eq!(
        message["header"]["stamp"],
        json!({ "sec": 1_700_000_000, "nanosec": 7 })
    );
    assert_eq!(message["header"]["frame_id"], "base");
    assert_eq!(message["name"], json!(["a", "b", "c", "d", "e", "f"]));
    assert_eq!(message["position"][1], 7.0625);
    assert_eq!(message["velocity"][5], 7.6875);
    assert_eq!(message["effort"], json!([]));

    // Every message of a queuing port, in its order. A reader is known to discovery before the writer knows it, so the
    // first ones may be lost.
    eventually("a message is heard", || {
        motor.try_say(2, Priority::NORMAL, &state(5000)).unwrap();
        thread::sleep(Duration::from_millis(20));
        peer.has(|what| what["heard"] == "rt/cell/trace")
    });
    let is_counted = |what: &Value| {
        let number = &what["message"]["header"]["stamp"]["nanosec"];
        what["heard"] == "rt/cell/trace" && *number != 5000
    };
    for number in 0..300 {
        motor.try_say(2, Priority::NORMAL, &state(number)).unwrap();
    }
    for number in 0..300 {
        let heard = peer.wait_for("the next message", is_counted);
        assert_eq!(heard["message"]["header"]["stamp"]["nanosec"], number);
    }
    motor.try_publish(1, &state(1)[1..]).unwrap();
    eventually("a value of another size is counted", || {
        ros.count("/joint_states", "other_size") == 1
    });
    let shown = ros.show();
    assert!(shown.contains("node /cell/arm: domain 0"), "{shown}");
    assert!(
        shown.contains("trace -> /cell/trace (sensor_msgs/msg/JointState): 1 reader"),
        "{shown}"
    );

    // Killed, nothing of it remains in the cell; started again, it is heard again.
    ros.kill();
    eventually("its ports are gone", || {
        motor.try_publish(1, &state(1)).is_err()
    });
    drop(ros);
    let ros = network.ros(&cell, A, &ports, &entries);
    let before = counts(&mut peer, "rt/joint_states");
    assert!(before["count"].as_u64().unwrap() > 0);
    eventually("it is heard again", || {
        let _starting = motor.try_publish(1, &state(9));
        peer.has(|what| what["heard"] == "rt/joint_states" && what["message"]["position"][0] == 9.0)
    });
    assert!(ros.end(), "it ends in order");
}

#[test]
fn a_topic_reaches_ports_and_nothing_wrong_does() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = format!(
        "{SPEED}[[port]]\nname = \"command\"\nnumber = 1\nkind = \"sampling\"\ntype = \"Speed\"\n\
         [[port]]\nname = \"steps\"\nnumber = 2\nkind = \"queuing\"\ntype = \"Speed\"\n"
    );
    let entries = format!(
        "[[subscribe]]\ntopic = \"/cmd_vel\"\nport = \"command\"\nto = [\"motor.7\"]\nrate = 100\nburst = 10\n{TWIST}\
         [[subscribe]]\ntopic = \"/steps\"\nport = \"steps\"\nto = [\"motor.8\"]\npriority = 3\n\
         rate = 100000\nburst = 1000\n{TWIST}"
    );
    let ros = network.ros(&cell, A, &ports, &entries);
    let mut motor = program(&cell);
    let Some(mut peer) = participant(&network, B) else {
        return;
    };
    let write = |peer: &mut Peer, topic: &str, kind: &str, value: Value, options: Value| {
        peer.tell(json!(["write", topic, kind, [value], options]));
        peer.wait_for("it wrote", |what| {
            what["topic"] == topic && what["wrote"].is_u64()
        });
    };
    // Discovery takes its time: the first ones may be lost.
    eventually("a command arrives", || {
        write(
            &mut peer,
            "rt/cmd_vel",
            "Twist",
            twist(1.5, -0.25),
            json!({}),
        );
        motor.value() == Some(speed([1.5, 0.0, 0.0], -0.25))
    });
    eventually("a step arrives", || {
        write(
            &mut peer,
            "rt/steps",
            "Twist",
            twist(-1.0, 0.0),
            json!({ "reliable": true }),
        );
        motor.message().is_some()
    });
    while motor.message().is_some() {}
    for number in 0..20 {
        write(
            &mut peer,
            "rt/steps",
            "Twist",
            twist(f64::from(number), 0.0),
            json!({ "reliable": true }),
        );
    }
    let mut steps = Vec::new();
    eventually("every step arrives", || {
        steps.extend(motor.message());
        steps.len() == 20
    });
    let expected = (0..20).map(|number| (3, speed([f64::from(number), 0.0, 0.0], 0.0)));
    assert_eq!(steps, expected.collect::<Vec<_>>());

    // Not a number; bytes that are no such message, under its type's name; another type under its topic's name.
    let delivered = ros.count("/steps", "delivered");
    write(
        &mut peer,
        "rt/steps",
        "Twist",
        json!([["nan", 0.0, 0.0], [0.0, 0.0, 0.0]]),
        json!({ "reliable": true }),
    );
    eventually("no number", || ros.count("/steps", "not_finite") == 1);
    eventually("other bytes", || {
        write(
            &mut peer,
            "rt/steps",
            "Impostor",
            json!([vec![0; 20]]),
            json!({ "reliable": true, "apart": true }),
        );
        ros.count("/steps", "malformed") > 0
    });
    // Cyclone DDS sends nothing to a reader that means another type; other implementations do, counted as `other_type`.
    eventually("another type", || {
        write(
            &mut peer,
            "rt/steps",
            "Float64",
            json!([1.0]),
            json!({ "reliable": true, "apart": true }),
        );
        ros.count("/steps", "writers_of_other_type") == 1
    });
    assert_eq!(ros.count("/steps", "delivered"), delivered);
    assert!(motor.message().is_none());

    // A hundred times the rate.
    let before = ros.count("/cmd_vel", "delivered");
    let flood = json!({ "count": 5000, "rate": 10_000 });
    write(&mut peer, "rt/cmd_vel", "Twist", twist(2.0, 0.0), flood);
    eventually("the flood is policed", || {
        ros.count("/cmd_vel", "policed") > 1000
    });
    let told = ros.status();
    assert!(ros.count("/cmd_vel", "delivered") - before < 1000, "{told}");
    // The port works on, also when the flooder is killed in the middle and comes back.
    peer.tell(json!(["write", "rt/cmd_vel", "Twist", [twist(2.0, 0.0)], { "count": 100_000, "rate": 10_000 }]));
    thread::sleep(Duration::from_millis(300));
    peer.running().kill();
    drop(peer);
    let Some(mut peer) = participant(&network, B) else {
        return;
    };
    eventually("a command of the next one arrives", || {
        write(
            &mut peer,
            "rt/cmd_vel",
            "Twist",
            twist(-3.0, 0.5),
            json!({}),
        );
        motor.value() == Some(speed([-3.0, 0.0, 0.0], 0.5))
    });
    let shown = ros.show();
    assert!(
        shown.contains("/cmd_vel -> command (geometry_msgs/msg/Twist): "),
        "{shown}"
    );
    assert!(shown.contains(" policed"), "{shown}");
}

#[test]
fn late_joiners_hear_a_durable_topic_and_a_hung_one_holds_up_nobody_in_the_cell() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = format!(
        "{STATE}[[port]]\nname = \"limits\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\n\
         refresh_period_us = 600000000\n\
         [[port]]\nname = \"state\"\nnumber = 2\nkind = \"sampling\"\ntype = \"State\"\n\
         [[port]]\nname = \"strict\"\nnumber = 3\nkind = \"sampling\"\ntype = \"State\"\n"
    );
    let entries = format!(
        "[[publish]]\nport = \"limits\"\n{JOINTS}durable = true\n[[publish]]\nport = \"state\"\n{JOINTS}\
         [[publish]]\nport = \"strict\"\n{JOINTS}reliable = true\n"
    );
    let ros = network.ros(&cell, A, &ports, &entries);
    let mut motor = program(&cell);
    eventually("a value is published before anybody listens", || {
        motor.try_publish(1, &state(42)).unwrap();
        ros.count("/limits", "published") > 0
    });
    let Some(mut peer) = participant(&network, B) else {
        return;
    };
    peer.tell(json!(["hear", "rt/limits", "JointState", { "reliable": true, "durable": true }]));
    let heard = peer.wait_for("the value from before", |what| what["heard"] == "rt/limits");
    assert_eq!(heard["message"]["position"][0], 42.0);

    // One that asks for more than is offered is not matched, and shown.
    peer.tell(json!(["hear", "rt/state", "JointState", { "reliable": true }]));
    eventually("it is incompatible", || {
        ros.count("/state", "readers_incompatible") == 1
    });

    // A reliable participant hangs: the cell publishes on as quickly, and the other topics pass.
    peer.tell(json!(["hear", "rt/strict", "JointState", { "reliable": true, "verbose": false }]));
    eventually("it listens", || ros.count("/strict", "readers") == 1);
    let Some(mut other) = participant(&network, A) else {
        return;
    };
    other.tell(json!(["hear", "rt/state", "JointState", { "verbose": false }]));
    eventually("the other one listens", || {
        ros.count("/state", "readers") == 1
    });
    peer.running().stop();
    let before = counts(&mut other, "rt/state")["count"].as_u64().unwrap();
    let mut refused = 0;
    eventually("the window for the hung one is full", || {
        for number in 0..400 {
            motor.try_publish(3, &state(number)).unwrap();
            motor.try_publish(2, &state(number)).unwrap();
            thread::sleep(Duration::from_micros(200));
        }
        refused = ros.count("/strict", "refused");
        refused > 0
    });
    eventually("the other topic passes", || {
        motor.try_publish(2, &state(1)).unwrap();
        counts(&mut other, "rt/state")["count"].as_u64().unwrap() > before
    });
    peer.running().go_on();
    eventually("the topic goes on when it does", || {
        motor.try_publish(3, &state(1)).unwrap();
        let published = ros.count("/strict", "published");
        motor.try_publish(3, &state(2)).unwrap();
        thread::sleep(Duration::from_millis(20));
        ros.count("/strict", "published") > published
    });
}

#[test]
fn other_messages_pass_both_ways_known_and_declared() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let mut ports = "[[type]]\nname = \"Body\"\nfields = [\"numbers: f64[13]\", \"text: u8[16]\", \"flag: u8\"]\n\
        [[type]]\nname = \"Text\"\nfields = [\"data: u8[16]\"]\n\
        [[type]]\nname = \"Count\"\nfields = [\"data: i32\"]\n\
        [[type]]\nname = \"Switch\"\nfields = [\"data: u8\"]\n"
        .to_owned();
    let mut entries = "[[message]]\nname = \"cell_msgs/msg/Wrench\"\ndefinition = \"\"\"\n\
        uint8 NONE=0\nstd_msgs/Header header\nfloat64[3] force  # newtons\nbool contact\nstring<=16 tool\n\"\"\"\n"
        .to_owned();
    for (number, (name, message, fields)) in [
        (
            "odometry",
            "nav_msgs/msg/Odometry",
            "\"pose.pose\" = \"numbers[0:7]\", \"twist.twist\" = \"numbers[7:13]\", child_frame_id = \"text\"",
        ),
        (
            "imu",
            "sensor_msgs/msg/Imu",
            "orientation = \"numbers[0:4]\", angular_velocity = \"numbers[4:7]\", linear_acceleration = \"numbers[7:10]\"",
        ),
        ("floats", "std_msgs/msg/Float64MultiArray", "data = \"numbers\""),
        (
            "wrench",
            "cell_msgs/msg/Wrench",
            "force = \"numbers[0:3]\", contact = \"flag\", tool = \"text\"",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let number = number + 1;
        ports += &format!("[[port]]\nname = \"{name}\"\nnumber = {number}\nkind = \"queuing\"\ntype = \"Body\"\n");
        entries += &format!("[[publish]]\nport = \"{name}\"\nmessage = \"{message}\"\nfields = {{ {fields} }}\n");
    }
    for (number, name, message) in [
        (5, "Text", "String"),
        (6, "Count", "Int32"),
        (7, "Switch", "Bool"),
    ] {
        ports += &format!(
            "[[port]]\nname = \"{name}\"\nnumber = {number}\nkind = \"queuing\"\ntype = \"{name}\"\n"
        );
        entries += &format!(
            "[[subscribe]]\ntopic = \"{name}\"\nmessage = \"std_msgs/{message}\"\nport = \"{name}\"\nto = [\"motor.8\"]\n"
        );
    }
    let ros = network.ros(&cell, A, &ports, &entries);
    let mut motor = program(&cell);
    let Some(mut peer) = participant(&network, B) else {
        return;
    };
    for (topic, kind) in [
        ("odometry", "Odometry"),
        ("imu", "Imu"),
        ("floats", "Float64MultiArray"),
        ("wrench", "Wrench"),
    ] {
        peer.tell(json!(["hear", format!("rt/{topic}"), kind, { "reliable": true }]));
        eventually("it listens", || {
            ros.count(&format!("/{topic}"), "readers") == 1
        });
    }
    let mut body: Vec<u8> = (0..13_u8)
        .flat_map(|one| f64::from(one).to_le_bytes())
        .collect();
    body.extend(b"gripper\0ignored\0");
    body.push(1);
    let hear = |peer: &Peer, topic: &str| {
        let topic = format!("rt/{topic}");
        peer.wait_for("a message", |what| what["heard"] == topic.as_str())["message"].clone()
    };
    // A reader is known to discovery before the writer knows it, too: the first messages may be lost.
    for (port, topic) in (1..).zip(["odometry", "imu", "floats", "wrench"]) {
        let topic = format!("rt/{topic}");
        eventually("each is heard", || {
            motor.try_say(port, Priority::NORMAL, &body).unwrap();
            peer.has(|what| what["heard"] == topic.as_str())
        });
    }
    let odometry = hear(&peer, "odometry");
    assert_eq!(odometry["pose"]["pose"]["orientation"]["w"], 6.0);
    assert_eq!(odometry["twist"]["twist"]["angular"]["z"], 12.0);
    assert_eq!(odometry["pose"]["covariance"], json!(vec![0.0; 36]));
    assert_eq!(odometry["child_frame_id"], "gripper");
    // A header's time is that of the arrival where nothing is mapped to it.
    assert!(odometry["header"]["stamp"]["sec"].as_i64().unwrap() > 1_600_000_000);
    assert_eq!(
        hear(&peer, "imu")["linear_acceleration"],
        json!({ "x": 7.0, "y": 8.0, "z": 9.0 })
    );
    let floats = hear(&peer, "floats");
    assert_eq!(
        floats["data"],
        json!((0..13).map(f64::from).collect::<Vec<_>>())
    );
    assert_eq!(floats["layout"]["dim"], json!([]));
    let wrench = hear(&peer, "wrench");
    assert_eq!(wrench["force"], json!([0.0, 1.0, 2.0]));
    assert_eq!(
        (&wrench["contact"], &wrench["tool"]),
        (&json!(true), &json!("gripper"))
    );

    let mut expect = |topic: &str, kind: &str, value: Value, expected: &[u8]| {
        eventually("it arrives", || {
            let options = json!({ "reliable": true });
            peer.tell(json!([
                "write",
                format!("rt/{topic}"),
                kind,
                [value],
                options
            ]));
            thread::sleep(Duration::from_millis(50));
            motor.message() == Some((0, expected.to_vec()))
        });
        // Those that were written before the first one arrived.
        while motor.message().is_some() {}
    };
    expect("Count", "Int32", json!([-5]), &(-5_i32).to_le_bytes());
    expect("Switch", "Bool", json!([true]), &[1]);
    expect(
        "Text",
        "String",
        json!(["gr\u{fc}n"]),
        b"gr\xc3\xbcn\0\0\0\0\0\0\0\0\0\0\0",
    );
    peer.tell(
        json!(["write", "rt/Text", "String", [["longer than the field"]], { "reliable": true }]),
    );
    eventually("a text that is too long", || {
        ros.count("/Text", "other_size") == 1
    });
}

#[test]
fn a_length_that_is_claimed_takes_no_memory() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = format!(
        "{SPEED}[[port]]\nname = \"command\"\nnumber = 1\nkind = \"sampling\"\ntype = \"Speed\"\n"
    );
    let entries = format!(
        "[[subscribe]]\ntopic = \"/cmd_vel\"\nport = \"command\"\nto = [\"motor.7\"]\n{TWIST}"
    );
    let ros = network.ros(&cell, A, &ports, &entries);
    // The first fragment, of 64 bytes, of two messages of 300 MB, for the reader that hears of writers.
    let script = "import socket, struct, sys\n\
        for number in 1, 2:\n    \
            body = struct.pack('<HH', 0, 28) + bytes.fromhex('000003c7000003c2')\n    \
            body += struct.pack('<IIIHHI', 0, number, 1, 1, 64, 300_000_000) + bytes(64)\n    \
            head = b'RTPS\\2\\3\\1\\x12' + b'x' * 12 + struct.pack('<BBH', 0x16, 1, len(body))\n    \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(head + body, (sys.argv[1], 7410))\n";
    let mut python = network.command(B, "python3");
    let sent = python.args(["-c", script, &network.address(A).to_string()]);
    assert!(sent.status().expect("python3").success());
    eventually("both are refused", || {
        ros.status()["datagrams_refused"] == 2
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", ros.process())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kb: u64 = peak
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(peak_kb < 200_000, "{peak_kb} kB");
    assert!(ros.show().contains("2 datagrams refused"));
}
