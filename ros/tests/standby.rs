//! Two programs that carry the ports of one cell: real processes, killed and stopped, beside strangers that claim to be
//! one of them, heard and commanded by a participant of DDS that nobody here wrote.

mod common;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::{Cell, Network, Peer, Program, Ros, eventually, participant};
use serde_json::{Value, json};
use tautline::Priority;
use tautline_bridge::election::Heartbeat;
use tautline_bridge::testing::checked;
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::Host::{A, B};

/// Ports of both programs. Each follows the counter of the motor, so that a value from the past shows; the motor
/// declares no type, and its port has room for 1484 bytes.
const PORTS: &str = "[[type]]\nname = \"Count\"\nfields = [\"data: f64\"]\n\
    [[type]]\nname = \"Speed\"\nfields = [\"linear: f64[3]\", \"turn: f32\"]\n\
    [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"Count\"\nrefresh_period_us = 500000\n\
    value_bytes_max = 1484\nfollow = [\"motor.5\"]\n\
    [[port]]\nname = \"command\"\nnumber = 2\nkind = \"sampling\"\ntype = \"Speed\"\n\
    [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";

/// Values that DDS may have in hand when its process is stopped, at some 400 a second. Lower: a busy machine, whose
/// threads of DDS wait for a CPU, fails. Higher: values of before pass unnoticed.
const IN_HAND_MAX: usize = 8;
/// Time that a test may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn entries(other: &str) -> String {
    format!(
        "[standby]\nport = \"votes\"\npeers = [\"{other}.9\"]\n\
         [[publish]]\nport = \"state\"\ntopic = \"/state\"\nmessage = \"std_msgs/msg/Float64\"\ndurable = true\n\
         [[subscribe]]\ntopic = \"/cmd_vel\"\nport = \"command\"\nto = [\"motor.7\"]\nrate = 1000\nvalidity_ms = 400\n\
         message = \"geometry_msgs/msg/Twist\"\nfields = {{ linear = \"linear\", \"angular.z\" = \"turn\" }}\n"
    )
}

#[test]
fn a_check_shows_who_stands_by() {
    let files = TemporaryDirectory::make("taut-ros-check").unwrap();
    let write = |name: &str, text: &str| fs::write(files.path().join(name), text).unwrap();
    let head = "link = \"vbus\"\nbus = \"cell\"\nnode = \"one\"\n";
    let neighbours = "[[neighbour]]\nname = \"two\"\n[[neighbour]]\nname = \"motor\"\n";
    write("node.toml", &format!("{head}{neighbours}{PORTS}"));
    let check = |entries: &str, more: &[&str]| {
        let head = "name = \"one\"\nnode = \"node.toml\"\n";
        write("ros.toml", &format!("{head}{entries}"));
        let file = files.path().join("ros.toml");
        checked(env!("CARGO_BIN_EXE_taut-ros"), &file, more)
    };
    let told =
        |entries: &str| -> Value { serde_json::from_str(&check(entries, &["--json"])).unwrap() };
    let alone = entries("two").replace("[standby]\nport = \"votes\"\npeers = [\"two.9\"]\n", "");
    let lines = "node /one, domain 0\n  state -> /state (std_msgs/msg/Float64)\n  \
                 /cmd_vel -> command (geometry_msgs/msg/Twist)\n";
    assert_eq!(check(&alone, &[]), lines);
    assert_eq!(told(&alone)["standby"], Value::Null);
    let standby = "  standby: port votes, rank 0, peers two.9; a heartbeat every 50 ms, \
                   dead after 350 ms of silence\n";
    assert_eq!(check(&entries("two"), &[]), format!("{lines}{standby}"));
    let told = &told(&entries("two"))["standby"];
    assert_eq!(told["peers"], json!(["two.9"]));
    assert_eq!(told["silence_ms_max"], 350);
}

/// Claim to be an active program of the latest term.
fn claim() -> [u8; tautline_bridge::election::HEARTBEAT_BYTES] {
    let claim = Heartbeat {
        process: 1,
        cell: 1,
        term: u32::MAX - 1,
        rank: 0,
        active: true,
        connected: true,
    };
    claim.bytes()
}

/// A participant that hears the counter, and its word for a command.
struct Foreign {
    peer: Peer,
    command: fn(f64) -> Value,
}

/// Starts a participant on host B, or says why not.
type Start = fn(&Network) -> Option<Foreign>;

fn cyclone(network: &Network) -> Option<Foreign> {
    let peer = listener(network)?;
    let command = |x| {
        let twist = json!([[x, 0.0, 0.0], [0.0, 0.0, 0.0]]);
        json!(["write", "rt/cmd_vel", "Twist", [twist], {}])
    };
    Some(Foreign { peer, command })
}

fn fast_dds(network: &Network) -> Option<Foreign> {
    let words = ["rt/state", "rt/cmd_vel", "reliable", "numbers"];
    Some(Foreign {
        peer: common::fast_dds(network, B, &words)?,
        command: |x| json!([x, 0.0]),
    })
}

fn ros_node(network: &Network) -> Option<Foreign> {
    let mut peer = common::ros_node(network, B)?;
    peer.tell(json!(["hear number", "/state"]));
    peer.wait_for("it listens", |what| what["done"] == "hear number");
    let command = |x| json!(["write", "/cmd_vel", x, 0.0]);
    Some(Foreign { peer, command })
}

/// A motor that counts, and a participant that hears the counter and sends one of its own. Commands only rise.
struct Loop {
    motor: Program,
    foreign: Foreign,
    sent: f64,
    heard: f64,
    commanded: f64,
    obeyed: f64,
    /// Values that came after higher ones.
    past: Vec<f64>,
}

impl Loop {
    /// One more of each. The motor also claims to be an active program.
    fn turn(&mut self) {
        self.sent += 1.0;
        self.motor.broadcast(&self.sent.to_le_bytes());
        self.motor.publish(9, &claim());
        if self.sent % 10.0 == 0.0 {
            self.commanded += 1.0;
            let command = (self.foreign.command)(self.commanded);
            self.foreign.peer.tell(command);
        }
        thread::sleep(Duration::from_millis(2));
        for value in values(&self.foreign.peer.take()) {
            match value >= self.heard {
                true => self.heard = value,
                false => self.past.push(value),
            }
        }
        if let Some(speed) = self.motor.value() {
            let speed = f64::from_le_bytes(*speed.first_chunk().expect("a speed"));
            assert!(speed >= self.obeyed, "{speed} after {}", self.obeyed);
            self.obeyed = speed;
        }
    }

    /// Goes on until values and commands that began after this call have passed; the time that the values took.
    fn passes(&mut self) -> Duration {
        let (sent, commanded, began) = (self.sent, self.commanded, Instant::now());
        let mut took = None;
        while self.heard <= sent + 1.0 || self.obeyed <= commanded + 1.0 {
            self.turn();
            if self.heard > sent + 1.0 {
                took.get_or_insert_with(|| began.elapsed());
            }
            assert!(began.elapsed() < PATIENCE, "waited in vain for values");
        }
        took.unwrap_or_default()
    }

    fn goes_on_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            for _ in 0..10 {
                self.turn();
            }
            assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        }
    }
}

/// Values of the counter among things that a participant said.
fn values(said: &[Value]) -> Vec<f64> {
    let heard = said.iter().filter(|what| what["heard"].is_string());
    heard
        .filter_map(|what| what["message"]["data"].as_f64())
        .collect()
}

fn listener(network: &Network) -> Option<Peer> {
    let mut peer = participant(network, B)?;
    peer.tell(json!(["hear", "rt/state", "Float64", { "reliable": true, "durable": true }]));
    peer.wait_for("it listens", |what| what["done"] == "hear");
    Some(peer)
}

#[test]
fn another_takes_over_from_one_that_is_killed_and_from_one_that_hangs() {
    takes_over(cyclone);
}

#[test]
fn fast_dds_hears_and_commands_the_one_that_takes_over() {
    takes_over(fast_dds);
}

#[test]
fn ros_hears_and_commands_the_one_that_takes_over() {
    takes_over(ros_node);
}

fn takes_over(start: Start) {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let motor = Program::open(cell.bus(), "motor", &["one", "two"]);
    let one = network.ros_named("one", &cell, A, PORTS, &entries("two"));
    let two = network.ros_named("two", &cell, B, PORTS, &entries("one"));
    let Some(foreign) = start(&network) else {
        return;
    };
    let mut all = Loop {
        motor,
        foreign,
        sent: 0.0,
        heard: 0.0,
        commanded: 0.0,
        obeyed: 0.0,
        past: Vec::new(),
    };
    all.goes_on_until("one is active, and both are heard", || {
        one.is_active() != two.is_active()
            && [&one, &two].iter().all(|ros| {
                let is_heard = ros.count("/state", "readers") == 1;
                is_heard && ros.knows_the_other() && ros.count("/cmd_vel", "writers") == 1
            })
    });
    all.passes();
    let (active, other, name) = match one.is_active() {
        true => (one, two, "one"),
        false => (two, one, "two"),
    };
    assert_eq!(other.count("/state", "published"), 0);
    assert_eq!(other.count("/cmd_vel", "delivered"), 0);
    assert_eq!(active.count("/state", "other_writers"), 1);
    let refused = |ros: &Ros<'_>| ros.status()["heartbeats_refused"].as_u64().unwrap_or(0);
    assert!(refused(&active) + refused(&other) > 0);

    active.kill();
    let took = all.passes();
    println!("the first value of the other came {took:?} after the kill");
    assert!(other.is_active());
    assert!(other.count("/state", "standby") > 0);
    assert!(other.count("/cmd_vel", "standby") > 0);
    drop(active);

    // Stopped for longer than the others wait, it finds itself replaced, and nothing of what it had passes.
    let host = if name == "one" { A } else { B };
    let rest = if name == "one" { "two" } else { "one" };
    let third = network.ros_named(name, &cell, host, PORTS, &entries(rest));
    all.goes_on_until("it stands by, and is heard", || {
        let is_heard = third.count("/state", "readers") == 1;
        is_heard && third.state() == "standing by" && other.knows_the_other()
    });
    let stopped_at = all.sent;
    other.stop();
    let took = all.passes();
    println!("the first value of the third came {took:?} after the other was stopped");
    assert!(third.is_active());
    assert_eq!(all.past, [0.0; 0]);
    other.go_on();
    all.goes_on_until("the stopped one stands by", || {
        other.state() == "standing by"
    });
    let published = other.count("/state", "published");
    let Some(Foreign { peer: late, .. }) = start(&network) else {
        return;
    };
    all.goes_on_until("who comes later hears both", || {
        let is_heard = |ros: &Ros<'_>| ros.count("/state", "readers") == 2;
        is_heard(&other) && is_heard(&third) && late.has(|what| what["heard"].is_string())
    });
    all.passes();
    thread::sleep(Duration::from_millis(500));
    for value in values(&late.take()) {
        assert!(value > stopped_at, "{value} of before {stopped_at}");
    }
    // Only what DDS had in hand, which nobody can call back.
    println!(
        "values that the stopped one sent when it went on: {:?}",
        all.past
    );
    assert!(all.past.len() <= IN_HAND_MAX);
    #[allow(clippy::cast_precision_loss)] // a few
    let first = stopped_at - IN_HAND_MAX as f64;
    assert!(
        all.past.iter().all(|value| *value > first),
        "{:?}",
        all.past
    );
    // Less if it has begun anew, as it does unless DDS has survived the stop.
    assert!(other.count("/state", "published") <= published);
    assert!(third.is_active());
    let shown = network.ask(host, &["status"]);
    assert!(
        shown.contains("active, term 3, 1 of 1 others heard"),
        "{shown}"
    );
}

#[test]
fn a_peer_that_lies_is_shown_and_silences_no_longer_than_it_speaks() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    // Without a lifespan, so that nothing but the writer's end keeps values of before away.
    let entries = entries("two").replace("durable", "lifespan_ms = 0\ndurable");
    let one = network.ros_named("one", &cell, A, PORTS, &entries);
    eventually("it is active alone", || one.is_active());
    let mut motor = Program::open(cell.bus(), "motor", &["one"]);
    eventually("a value is kept for those who come later", || {
        motor.broadcast(&1_f64.to_le_bytes());
        one.count("/state", "published") > 0
    });
    let listener;
    {
        let liar = cell.node("two", &["one"]);
        let number = 9;
        let port = liar.sampling(number).open();
        let mut port = port.expect("a port");
        eventually("it stands by beside the liar", || {
            if let Ok(to) = port.destination("one", number) {
                let _gone = port.send(to, Priority::NORMAL, &claim());
            }
            one.state() == "standing by"
        });
        for _ in 0..20 {
            let to = port.destination("one", number).expect("a port");
            port.send(to, Priority::NORMAL, &claim()).expect("a send");
            // Bytes that are no heartbeat, too.
            let _refused = port.send(to, Priority::NORMAL, b"nonsense");
            port.send(to, Priority::NORMAL, &claim()).expect("a send");
            thread::sleep(Duration::from_millis(50));
        }
        let shown = one.show();
        assert!(
            shown.contains("standing by, term 1, 1 of 1 others heard"),
            "{shown}"
        );
        let Some(late) = self::listener(&network) else {
            return;
        };
        let mut turn = 0;
        eventually("who comes later is there", || {
            let to = port.destination("one", number).expect("a port");
            port.send(to, Priority::NORMAL, &claim()).expect("a send");
            turn += usize::from(one.count("/state", "readers") == 1);
            turn == 20
        });
        assert_eq!(values(&late.take()), [0.0; 0], "nothing of before");
        listener = late;
    }
    eventually("it takes over when the liar is silent", || one.is_active());
    eventually("and is heard again", || {
        motor.broadcast(&2_f64.to_le_bytes());
        values(&listener.take()).contains(&2.0)
    });
    assert!(one.end(), "it ends in order");
}

#[test]
fn one_that_has_nobody_to_speak_to_gives_way() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let entries = |other: &str, rank: u32| {
        let entries = entries(other);
        entries.replacen("[standby]\n", &format!("[standby]\nrank = {rank}\n"), 1)
    };
    let one = network.ros_named("one", &cell, A, PORTS, &entries("two", 0));
    let two = network.ros_named("two", &cell, B, PORTS, &entries("one", 1));
    eventually("the lower rank is active", || {
        one.is_active() && one.knows_the_other() && two.knows_the_other()
    });
    let Some(_peer) = listener(&network) else {
        return;
    };
    eventually("both see the participant", || {
        one.count("/state", "readers") == 1 && two.count("/state", "readers") == 1
    });
    assert!(one.is_active());
    // The cell is a bus here, so the two still hear each other. The participant is gone when its lease has ended.
    let mut cut = network.command(A, "ip");
    let cut = cut.args(["link", "set", "taut0", "down"]).status();
    assert!(cut.expect("ip").success());
    eventually("the one that still sees it takes over", || {
        two.is_active() && one.state() == "standing by"
    });
    assert_eq!(one.count("/state", "readers"), 0);
    assert_eq!(two.count("/state", "readers"), 1);
}

#[test]
fn one_that_was_stopped_is_heard_again_without_others_too() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let mut motor = Program::open(cell.bus(), "motor", &["one"]);
    let alone = entries("two").replace("[standby]\nport = \"votes\"\npeers = [\"two.9\"]\n", "");
    let one = network.ros_named("one", &cell, A, PORTS, &alone);
    let Some(peer) = listener(&network) else {
        return;
    };
    let mut number = 0.0;
    let mut is_heard = |what: &str, peer: &Peer| {
        number += 1.0;
        let first = number;
        eventually(what, || {
            motor.broadcast(&f64::to_le_bytes(number));
            number += 1.0;
            values(&peer.take()).iter().any(|value| *value > first)
        });
    };
    is_heard("a value is heard", &peer);
    one.stop();
    thread::sleep(Duration::from_millis(700));
    one.go_on();
    is_heard("a value is heard again", &peer);
    let Some(late) = listener(&network) else {
        return;
    };
    is_heard("by another participant, too", &late);
    assert!(one.is_active());
}

#[test]
fn programs_on_two_machines_stand_by_for_each_other() {
    let Some(network) = Network::create() else {
        return;
    };
    let ports = "[[type]]\nname = \"Count\"\nfields = [\"data: f64\"]\n\
        [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"Count\"\n\
        [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";
    let publish = "[[publish]]\nport = \"state\"\nmessage = \"std_msgs/msg/Float64\"\n";
    let start = |own: &str, host, other: &str, at| {
        let node = format!(
            "link = \"udp\"\naddress = \"{}\"\n[[neighbour]]\nname = \"{other}\"\nip = \"{}\"\n{ports}",
            network.address(host),
            network.address(at)
        );
        let entries = format!(
            "name = \"{own}\"\n[standby]\nport = \"votes\"\npeers = [\"{other}.9\"]\n{publish}"
        );
        network.start(None, own, host, &node, &entries)
    };
    let one = start("one", A, "two", B);
    let two = start("two", B, "one", A);
    eventually("one of the two is active", || {
        one.is_active() != two.is_active() && one.knows_the_other() && two.knows_the_other()
    });
    let (active, other) = if one.is_active() {
        (one, two)
    } else {
        (two, one)
    };
    active.stop();
    eventually("the other takes over", || other.is_active());
    active.go_on();
    eventually("the first stands by", || {
        active.state() == "standing by" && active.knows_the_other()
    });
    assert!(other.is_active());
    // One that ends in order hands over at once.
    assert!(other.end());
    eventually("the first is active again", || active.is_active());
}
