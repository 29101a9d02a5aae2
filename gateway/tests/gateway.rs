//! Gateways between cells: real processes, in network namespaces of their own, and participants of Zenoh that nobody
//! here wrote (`peer.py`). Cells are buses, so that what is tested is the gateway and not a link.

mod common;

use std::fs;
use std::io::Read as _;
use std::mem;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use common::{Cell, Network, Program, eventually, origin, participant, program, program_apart};
use serde_json::{Value, json};
use tautline::{Priority, SendError};
use tautline_bridge::election::Heartbeat;
use tautline_bridge::testing::checked;
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::Host::{A, B};

const STATE: &str = "[[type]]\nname = \"State\"\nfields = [\"position: f64\", \"mode: u32\"]\n";
/// Bytes of a `State`.
const STATE_BYTES: usize = 12;

#[test]
fn two_cells_meet() {
    let Some(network) = Network::create() else {
        return;
    };
    let (a, b) = (Cell::new(), Cell::new());
    let publish = "[[publish]]\nport = \"state\"\non_change = true\nrepeat_ms = 400\n[[publish]]\nport = \"events\"\n";
    let ports = format!(
        "{STATE}[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\nrefresh_period_us = 500000\n\
         [[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n"
    );
    let first = network.gateway(&a, "one", A, "site/a", &ports, publish, "");
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"motor.7\"]\n\
        [[subscribe]]\nkey = \"site/a/events\"\nport = \"events\"\nto = [\"motor.8\"]\npriority_max = 5\n";
    let second = network.gateway(&b, "two", B, "site/b", &ports, subscribe, "");
    let mut near = program(&a, "motor");
    let mut far = program(&b, "motor");
    eventually("the gateways are active and connected", || {
        [&first, &second]
            .iter()
            .all(|one| one.is_connected() && one.is_active())
    });
    // The same value again and again: published when it changes, and every 400 ms.
    let value = [7; STATE_BYTES];
    eventually("the value arrives", || {
        near.publish(1, &value);
        far.value() == Some(value.to_vec()) && first.count("state", "unchanged") > 0
    });
    // Priorities: within a class in order, and the most urgent no higher than the gateway may send.
    for (priority, text) in [(2, "slow"), (7, "stop"), (2, "slower")] {
        near.say(2, Priority::new(priority).unwrap(), text.as_bytes());
    }
    let mut heard = Vec::new();
    eventually("the messages arrive", || {
        heard.extend(far.message());
        heard.len() == 3
    });
    heard.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    let heard: Vec<(u8, String)> = heard
        .into_iter()
        .map(|(priority, text)| (priority, String::from_utf8(text).unwrap()))
        .collect();
    assert_eq!(
        heard,
        [
            (5, "stop".to_owned()),
            (2, "slow".to_owned()),
            (2, "slower".to_owned())
        ]
    );
    // The port has room for a value of its type: a longer one is refused at its sender, a shorter one here.
    let longer = near.try_publish(1, &[1; STATE_BYTES + 1]);
    let room = SendError::LargerThanReceiver {
        bytes: STATE_BYTES + 1,
        largest: STATE_BYTES,
    };
    assert_eq!(longer, Err(room));
    near.publish(1, &[1; STATE_BYTES - 1]);
    eventually("a value of another size is counted", || {
        first.count("state", "other_size") == 1
    });
    assert_eq!(second.count("site/a/state", "lost"), 0);
    // The port is silent again a moment after its last good value.
    eventually("its state is shown", || {
        near.publish(1, &value);
        let shown = first.show();
        shown.contains("gateway one: active") && shown.contains("state -> site/a/state (alive)")
    });
    // Killed, nothing of it remains: no socket, no port on the bus.
    first.running.kill();
    eventually("nothing answers for the dead gateway", || {
        network.status(A).is_empty()
    });
    eventually("its port is gone", || near.try_publish(1, &value).is_err());
    assert!(second.is_active());
}

#[test]
fn connections_are_read_by_the_threads_that_wait_for_them() {
    let Some(network) = Network::create() else {
        return;
    };
    let (a, b) = (Cell::new(), Cell::new());
    let first = network.gateway(&a, "one", A, "site/a", "", "[fleet]\n", "");
    let second = network.gateway(&b, "two", B, "site/b", "", "[fleet]\n", "");
    eventually("they are connected", || {
        first.is_connected() && second.is_connected()
    });
    // One has opened the connection, the other one has accepted it.
    for gateway in [first, second] {
        let process = gateway.status()["process"].as_u64().unwrap();
        let names = thread_names(process);
        let has = |group: &str| names.iter().any(|name| name.starts_with(group));
        assert!(has("rx-") && has("tx-"), "{names:?}");
        assert!(!has("net-") && !has("acc-"), "{names:?}");
    }
}

#[test]
fn a_check_shows_who_stands_by() {
    let files = TemporaryDirectory::make("taut-gateway-check").unwrap();
    let write = |name: &str, text: &str| fs::write(files.path().join(name), text).unwrap();
    write(
        "node.toml",
        "link = \"vbus\"\nbus = \"cell\"\nnode = \"north\"\n[[neighbour]]\nname = \"south\"\n\
         [[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n\
         [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n",
    );
    let head = "name = \"north\"\nprefix = \"plant\"\nnode = \"node.toml\"\n";
    let publish = "[[publish]]\nport = \"events\"\n";
    let standby = "[standby]\nport = \"votes\"\npeers = [\"south.9\"]\nrank = 2\n";
    let check = |entries: &str, more: &[&str]| {
        write("gateway.toml", &format!("{head}{entries}"));
        let file = files.path().join("gateway.toml");
        checked(env!("CARGO_BIN_EXE_taut-gateway"), &file, more)
    };
    let told =
        |entries: &str| -> Value { serde_json::from_str(&check(entries, &["--json"])).unwrap() };
    let both = format!("{standby}{publish}");
    assert_eq!(
        check(&both, &[]),
        "gateway north\n  events -> plant/events\n  standby: port votes, rank 2, peers south.9; \
         a heartbeat every 50 ms, dead after 350 ms of silence\n"
    );
    assert_eq!(told(&both)["standby"]["peers"], json!(["south.9"]));
    assert_eq!(told(&both)["standby"]["silence_ms_max"], 350);
    assert_eq!(
        check(publish, &[]),
        "gateway north\n  events -> plant/events\n"
    );
    assert_eq!(told(publish)["standby"], Value::Null);
}

fn thread_names(process: u64) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    threads.filter_map(name).collect()
}

#[test]
fn a_participant_that_nobody_here_wrote() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = format!(
        "{STATE}[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\nrefresh_period_us = 500000\n\
         [[port]]\nname = \"set\"\nnumber = 3\nkind = \"sampling\"\ntype = \"State\"\n"
    );
    let entries = "[[publish]]\nport = \"state\"\nperiod_min_ms = 50\n\
        [[subscribe]]\nkey = \"desk/set\"\nport = \"set\"\nto = [\"motor.7\"]\nrate = 100\nburst = 10\n";
    let gateway = network.gateway(&cell, "one", A, "site/a", &ports, entries, "");
    let mut motor = program(&cell, "motor");
    eventually("active", || gateway.is_active());
    let Some(mut peer) = participant(&network, B, "client-of-a") else {
        return;
    };

    // Publication, type, origin; the port lives while its value is valid.
    peer.tell(json!(["watch", "site/a/**"]));
    peer.tell(json!(["subscribe", "site/a/*"]));
    peer.wait_for("the subscription", |what| what["done"] == "subscribe");
    let value = [3; STATE_BYTES];
    eventually("the port is alive", || {
        motor.publish(1, &value);
        peer.has(|what| what["live"] == "site/a/state" && what["alive"] == true)
    });
    let sample = peer.wait_for("a sample", |what| what["sample"].is_object());
    let sample = &sample["sample"];
    assert_eq!(sample["payload"], "03".repeat(STATE_BYTES));
    let encoding = sample["encoding"].as_str().unwrap();
    assert!(
        encoding.starts_with("application/octet-stream;tautline/State/"),
        "{encoding}"
    );
    assert_eq!(sample["attachment"].as_str().unwrap().len(), 128);
    eventually("more than one in 50 ms are left out", || {
        for _ in 0..5 {
            motor.publish(1, &value);
            thread::sleep(Duration::from_millis(2));
        }
        gateway.count("state", "thinned") > 0
    });
    motor.publish(1, &value);
    thread::sleep(Duration::from_millis(60));
    peer.tell(json!(["get", "site/a/state"]));
    let replies = peer.wait_for("a reply", |what| what["replies"].is_array());
    assert_eq!(replies["replies"][0]["payload"], "03".repeat(STATE_BYTES));
    // It falls silent: the token goes, and a query is told so.
    peer.wait_for("the port is silent", |what| {
        what["live"] == "site/a/state" && what["alive"] == false
    });
    peer.tell(json!(["get", "site/a/state"]));
    let replies = peer.wait_for("a reply", |what| what["replies"].is_array());
    assert_eq!(replies["replies"][0]["error"], "no valid value");
    peer.tell(json!(["get", "site/a/@gateway/one/status"]));
    let replies = peer.wait_for("a reply", |what| what["replies"].is_array());
    let status = common::text_of(replies["replies"][0]["payload"].as_str().unwrap());
    assert!(status.contains("\"state\":\"active\""), "{status}");

    // Into the cell: plain bytes of the right size, and everything that is wrong.
    let good = "05".repeat(STATE_BYTES);
    peer.tell(json!(["put", "desk/set", good]));
    eventually("the value arrives", || {
        motor.value() == Some(vec![5; STATE_BYTES])
    });
    let key = "desk/set";
    peer.tell(json!(["put", key, "06".repeat(STATE_BYTES - 1)]));
    peer.tell(json!(["put", key, "06".repeat(100_000)]));
    peer.tell(json!([
        "put",
        key,
        "06".repeat(STATE_BYTES),
        "application/octet-stream;tautline/State/0000000000000001"
    ]));
    peer.tell(json!(["delete", key]));
    eventually("all of them are counted", || {
        let count = |name| gateway.count(key, name);
        (count("other_size"), count("other_type"), count("deletions")) == (2, 1, 1)
    });
    assert_eq!(motor.value(), Some(vec![5; STATE_BYTES]));

    // A hundred times the rate, for half a second.
    let (before, began) = (gateway.count(key, "delivered"), Instant::now());
    peer.tell(json!(["flood", key, "07".repeat(STATE_BYTES), 5000, 10000]));
    peer.wait_for("the flood is over", |what| what["flooded"] == 5000);
    eventually("all of the flood is counted", || {
        gateway.count(key, "delivered") - before + gateway.count(key, "policed") == 5000
    });
    let delivered = gateway.count(key, "delivered") - before;
    // 100 a second and 10 at once, in however long it took.
    let most = 10 + 100 * (began.elapsed().as_secs() + 1);
    assert!(
        (10..=most).contains(&delivered),
        "{delivered} of 5000 delivered, at most {most}"
    );

    // The clocks of two sites differ by hours: it is not the difference that makes a value old, but the wait.
    thread::sleep(Duration::from_millis(1_100));
    let (hours_ns, ms) = (3 * 3_600_000_000_000_u64, 1_000_000_u64);
    let now_ns = tautline::now().as_nanos() + hours_ns;
    for (sequence, published_ns) in [(1, now_ns), (2, now_ns - 20_000 * ms), (2, now_ns)] {
        let attachment = origin(9, 1, sequence, published_ns);
        peer.tell(json!([
            "put",
            key,
            "08".repeat(STATE_BYTES),
            null,
            attachment
        ]));
    }
    eventually("one old, one seen before", || {
        (gateway.count(key, "stale"), gateway.count(key, "repeated")) == (1, 1)
    });
    assert_eq!(motor.value(), Some(vec![8; STATE_BYTES]));
}

#[test]
fn another_gateway_takes_over() {
    let Some(network) = Network::create() else {
        return;
    };
    let Some(_router) = participant(&network, B, "router") else {
        return;
    };
    let (cell, far) = (Cell::new(), Cell::new());
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\nrefresh_period_us = 500000\n\
        follow = [\"motor.5\"]\n\
        [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";
    let entries = |other: &str| {
        format!(
            "[standby]\nport = \"votes\"\npeers = [\"{other}.9\"]\n[[publish]]\nport = \"state\"\n"
        )
    };
    let claim = Heartbeat {
        process: 1,
        cell: 1,
        term: u32::MAX,
        rank: 0,
        active: true,
        connected: true,
    };
    let mut motor = program(&cell, "motor");
    let one = network.gateway(&cell, "one", A, "site/a", ports, &entries("two"), "client");
    let two = network.gateway(&cell, "two", A, "site/a", ports, &entries("one"), "client");
    let watching = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n";
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"motor.7\"]\nrate = 10000\n";
    let reader = network.gateway(&far, "far", B, "site/far", watching, subscribe, "client");
    let mut display = program(&far, "motor");
    eventually("one of the two is active", || {
        reader.is_connected()
            && one.is_active() != two.is_active()
            && one.knows_others()
            && two.knows_others()
    });
    // Counts up, so that a value from the past shows. Beside it the program claims to be the active gateway.
    let mut number = 0_u64;
    let mut highest = 0_u64;
    let mut step = |until: &mut dyn FnMut(u64) -> bool| {
        let began = Instant::now();
        loop {
            number += 1;
            motor.broadcast(&number.to_le_bytes());
            motor.publish(9, &claim.bytes());
            thread::sleep(Duration::from_millis(2));
            if let Some(value) = display.value() {
                let value = u64::from_le_bytes(value.try_into().unwrap());
                assert!(value >= highest, "{value} after {highest}");
                highest = value;
            }
            if until(highest) {
                return number;
            }
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "{}",
                [A, B].map(|host| network.show(host)).concat()
            );
        }
    };
    let sent = step(&mut |highest| highest > 100);
    let (active, other) = if one.is_active() {
        (&one, &two)
    } else {
        (&two, &one)
    };
    assert_eq!(other.count("state", "published"), 0);
    active.running.kill();
    let killed_at = Instant::now();
    step(&mut |highest| highest > sent + 1);
    println!(
        "the other gateway's first value came {:?} after the kill",
        killed_at.elapsed()
    );
    assert!(other.is_active());
    assert!(other.count("state", "standby") > 0);
    // Stopped for longer than the others wait, it finds itself replaced and publishes nothing of what lay in its port.
    let three = network.gateway(
        &cell,
        if other.is("one") { "two" } else { "one" },
        A,
        "site/a",
        ports,
        &entries(if other.is("one") { "one" } else { "two" }),
        "client",
    );
    eventually("it stands by", || {
        three.state() == "standing by" && other.knows_others()
    });
    let published = other.count("state", "published");
    other.running.stop();
    eventually("the third takes over", || three.is_active());
    let sent = step(&mut |_| true);
    step(&mut |highest| highest > sent + 50);
    other.running.go_on();
    eventually("the stopped one stands by", || {
        other.state() == "standing by"
    });
    let sent = step(&mut |_| true);
    step(&mut |highest| highest > sent + 50);
    assert!(three.is_active());
    // Nothing of what lay in its port.
    assert_eq!(other.count("state", "published"), published);
    assert_eq!(reader.count("site/a/state", "repeated"), 0);
    // `one` is where the claims go, whichever process that is by now.
    let refused = [&one, other, &three].map(|one| one.status()["heartbeats_refused"].as_u64());
    assert!(refused.into_iter().flatten().any(|count| count > 0));
}

#[test]
fn a_gateway_takes_over_when_nobody_reads_its_output_any_more() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n\
        [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";
    let command = |name: &str, other: &str| {
        let entries = format!(
            "[standby]\nport = \"votes\"\npeers = [\"{other}.9\"]\n[[publish]]\nport = \"state\"\n"
        );
        let mut command = network.gateway_command(&cell, name, B, "site/a", ports, &entries, "");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let two = network.started("two", B, command("two", "one"));
    eventually("the first is active", || two.is_active());
    let mut one = network.started("one", B, command("one", "two"));
    eventually("the other stands by", || {
        one.state() == "standing by" && one.knows_others()
    });
    drop((one.running.0.stdout.take(), one.running.0.stderr.take()));
    two.running.kill();
    // The motor sends to `one`.
    let mut motor = program(&cell, "motor");
    eventually("the other publishes", || {
        motor.publish(1, b"state");
        one.count("state", "published") > 0
    });
    assert!(one.is_active());
}

#[test]
fn what_zenoh_logs_is_no_output_and_waits_for_no_reader() {
    let Some(network) = Network::create() else {
        return;
    };
    let (cell, other) = (Cell::new(), Cell::new());
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n";
    let entries = "[[publish]]\nport = \"state\"\n";
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"motor.7\"]\n";
    let _heard = network.gateway(&other, "two", A, "site/b", ports, subscribe, "");
    let mut command = network.gateway_command(&cell, "one", B, "site/a", ports, entries, "");
    command.env("RUST_LOG", "trace");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut one = network.started("one", B, command);
    let mut motor = program(&cell, "motor");
    let mut unread = one.running.0.stderr.take().expect("a pipe");
    let mut bytes = 0;
    eventually("nobody reads what Zenoh logs, and the pipe is full", || {
        motor.publish(1, b"state");
        let before = mem::replace(
            &mut bytes,
            rustix::io::ioctl_fionread(&unread).expect("a pipe"),
        );
        bytes > 30_000 && bytes == before
    });
    let before = one.count("state", "published");
    for number in 0..20_u8 {
        motor.publish(1, &[number]);
        eventually("it is published", || {
            one.count("state", "published") > before + u64::from(number)
        });
    }
    one.running.kill();
    let mut output = String::new();
    let pipe = one.running.0.stdout.as_mut().expect("a pipe");
    pipe.read_to_string(&mut output).expect("text");
    assert!(!output.contains("TRACE"), "{output}");
    let mut logged = String::new();
    unread.read_to_string(&mut logged).expect("text");
    assert!(logged.contains("TRACE"), "{logged}");
}

#[test]
fn a_gateway_that_hangs_keeps_no_other_from_being_active() {
    let Some(network) = Network::create() else {
        return;
    };
    let Some(_router) = participant(&network, B, "router") else {
        return;
    };
    let cell = Cell::new();
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n\
        [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";
    let entries = |other: &str| {
        format!(
            "[standby]\nport = \"votes\"\npeers = [\"{other}.9\"]\n[[publish]]\nport = \"state\"\n"
        )
    };
    let two = network.gateway(&cell, "two", A, "site/a", ports, &entries("one"), "client");
    eventually("the first is active", || two.is_active());
    two.running.stop();
    // It looks for a peer that accepts a connection and says nothing.
    let one = network.gateway(&cell, "one", A, "site/a", ports, &entries("two"), "client");
    eventually("the other is active beside it", || one.is_active());
    two.running.go_on();
    eventually("the first stands by", || {
        one.is_active() && one.knows_others() && two.state() == "standing by"
    });
}

#[test]
fn a_router_dies_hangs_and_comes_back() {
    let Some(network) = Network::create() else {
        return;
    };
    let Some(router) = participant(&network, B, "router") else {
        return;
    };
    let (cell, far) = (Cell::new(), Cell::new());
    let ports =
        "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\nrefresh_period_us = 300000\n";
    let one = network.gateway(
        &cell,
        "one",
        A,
        "site/a",
        ports,
        "[[publish]]\nport = \"state\"\n",
        "client",
    );
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"motor.7\"]\nrate = 100000\nburst = 1000\n";
    let reader = network.gateway(&far, "far", A, "site/far", ports, subscribe, "client");
    let (mut motor, mut display) = (program(&cell, "motor"), program(&far, "motor"));
    let mut number = 0_u64;
    eventually("values pass", || {
        number += 1;
        motor.publish(1, &number.to_le_bytes());
        last(&mut display) > 0
    });
    // It hangs: what queues up before it is old when it goes on, and is not delivered.
    router.running().stop();
    let mut old = 0;
    let hung = Instant::now();
    while hung.elapsed() < Duration::from_millis(1_500) {
        number += 1;
        motor.publish(1, &number.to_le_bytes());
        if hung.elapsed() < Duration::from_millis(1_000) {
            old = number;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let before = last(&mut display);
    router.running().go_on();
    eventually("the old values are counted, and new ones pass", || {
        number += 1;
        motor.publish(1, &number.to_le_bytes());
        let seen = last(&mut display);
        assert!(
            seen <= before || seen > old,
            "{seen} is from the time when the router hung: {old}"
        );
        seen > old && reader.count("site/a/state", "stale") > 10
    });
    drop(router);
    eventually("nobody is connected", || !one.is_connected());
    let Some(_router) = participant(&network, B, "router") else {
        return;
    };
    let from = number;
    eventually("values pass after the router's restart", || {
        number += 1;
        motor.publish(1, &number.to_le_bytes());
        last(&mut display) > from
    });
    assert!(reader.is_active() && one.is_active());
}

/// The number that came last.
fn last(display: &mut Program) -> u64 {
    let value = display.value();
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

#[test]
fn two_cells_with_the_same_names_are_not_mixed() {
    let Some(network) = Network::create() else {
        return;
    };
    let (first, second, far) = (Cell::new(), Cell::new(), Cell::new());
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n";
    let publish = "[[publish]]\nport = \"state\"\n";
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"motor.7\"]\nrate = 100000\nburst = 1000\n";
    // The gateway at a distance is the router of all.
    let reader = network.gateway(&far, "far", A, "site/far", ports, subscribe, "router");
    let one = network.gateway(&first, "one", B, "site/a", ports, publish, "client-of-a");
    let two = network.gateway(&second, "one", B, "site/a", ports, publish, "client-of-a");
    let (mut left, mut right, mut display) = (
        program(&first, "motor"),
        program(&second, "motor"),
        program(&far, "motor"),
    );
    eventually("both are connected", || {
        [&one, &two].iter().all(|one| one.is_connected())
    });
    let mut seen = Vec::new();
    eventually("both have published, and one is heard", || {
        left.publish(1, b"left");
        right.publish(1, b"right");
        seen.extend(display.value());
        reader.count("site/a/state", "other_source") > 20 && seen.len() > 20
    });
    seen.dedup();
    assert_eq!(seen.len(), 1, "two sources were mixed: {seen:?}");
    eventually("each sees the other", || {
        [&one, &two]
            .iter()
            .all(|one| one.status()["foreign_gateways"] == 1)
    });
    assert!(
        one.show()
            .contains("gateways of another cell have the same prefix")
    );
}

#[test]
fn an_expired_certificate_connects_nobody_and_disturbs_nobody() {
    let Some(network) = Network::create() else {
        return;
    };
    let Some(()) = network.certify() else { return };
    let (cell, far) = (Cell::new(), Cell::new());
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n";
    let publish = "[[publish]]\nport = \"state\"\n";
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"motor.7\"]\n";
    let (mut motor, mut display) = (program(&cell, "motor"), program(&far, "motor"));
    let reader = network.gateway(&far, "far", B, "site/far", ports, subscribe, "tls-valid");
    let expired = network.gateway(&cell, "one", A, "site/a", ports, publish, "tls-expired");
    eventually("the cell goes on", || {
        motor.publish(1, b"before");
        expired.is_active() && reader.is_active() && expired.count("state", "published") > 50
    });
    assert!(!reader.is_connected() && !expired.is_connected());
    drop(expired);
    let _valid = network.gateway(&cell, "one", A, "site/a", ports, publish, "tls-valid");
    eventually("a new certificate connects both", || {
        motor.publish(1, b"after");
        display.value() == Some(b"after".to_vec())
    });
}

#[test]
fn a_port_that_is_there_gets_every_sample_of_a_flood() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = "[[port]]\nname = \"set\"\nnumber = 3\nkind = \"sampling\"\n";
    let (key, count) = ("desk/set", 100_000_u64);
    let entries = format!(
        "[[subscribe]]\nkey = \"{key}\"\nport = \"set\"\nto = [\"motor.7\"]\nrate = 10000000\nburst = 1000000\n"
    );
    let mut motor = program(&cell, "motor");
    let gateway = network.gateway(&cell, "one", A, "site/a", ports, &entries, "");
    eventually("active", || gateway.is_active());
    let Some(mut peer) = participant(&network, B, "client-of-a") else {
        return;
    };
    eventually("a value arrives", || {
        peer.tell(json!(["put", key, "00"]));
        motor.value().is_some()
    });
    let [delivered, undelivered] =
        ["delivered", "undelivered"].map(|counter| gateway.count(key, counter));
    peer.tell(json!(["flood", key, "07", count, 1_000_000_000]));
    eventually("all of the flood arrives", || {
        gateway.count(key, "delivered") >= delivered + count
            || gateway.count(key, "undelivered") > undelivered
    });
    assert_eq!(gateway.count(key, "undelivered"), undelivered);
}

#[test]
fn a_burst_arrives_whole_and_in_order_within_each_priority() {
    let Some(network) = Network::create() else {
        return;
    };
    let (cell, far) = (Cell::new(), Cell::new());
    let ports = "[[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\ndepth = 1024\n";
    let publish = "[[publish]]\nport = \"events\"\n";
    let subscribe = "[[subscribe]]\nkey = \"site/a/events\"\nport = \"events\"\nto = [\"two.8\"]\n\
        rate = 1000000\nburst = 10000\npriority_max = 7\n";
    let (_node, mut receiver) = far.receiver("two", 8);
    let one = network.gateway(&cell, "one", A, "site/a", ports, publish, "");
    let reader = network.gateway(&far, "far", B, "site/far", ports, subscribe, "");
    let mut motor = program(&cell, "motor");
    let mut buffer = vec![0; receiver.message_bytes_max()];
    let mut next = || {
        let message = receiver
            .receive_into(&mut buffer, tautline::Wait::Poll)
            .expect("a receive")?;
        Some((message.priority.get(), buffer[..message.length].to_vec()))
    };
    eventually("an event arrives", || {
        let _absent = motor.try_say(2, Priority::NORMAL, b"first");
        next().is_some()
    });
    // Messages wait behind each other in the port of a gateway that stands still.
    let priorities = [1, 4, 7];
    for _ in 0..5 {
        let published = one.count("events", "published");
        one.running.stop();
        for number in 0..60_u8 {
            for priority in priorities {
                motor.say(2, Priority::new(priority).unwrap(), &[number]);
            }
        }
        one.running.go_on();
        let mut heard = [(); 3].map(|()| Vec::new());
        eventually("the burst arrives", || {
            while let Some((priority, message)) = next() {
                if let (Some(class), [number]) = (
                    priorities.iter().position(|one| *one == priority),
                    &message[..],
                ) {
                    heard[class].push(*number);
                }
            }
            heard.iter().all(|class| class.last() == Some(&59))
        });
        for class in heard {
            assert_eq!(class, Vec::from_iter(0..60));
        }
        eventually("all of it is counted", || {
            one.count("events", "published") >= published + 180
        });
    }
    assert_eq!(reader.count("site/a/events", "lost"), 0);
}

#[test]
fn every_message_of_a_queue_is_counted_once_whoever_is_active() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = "[[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n\
        [[port]]\nname = \"votes\"\nnumber = 9\nkind = \"sampling\"\n";
    let entries =
        "[standby]\nport = \"votes\"\npeers = [\"two.9\"]\n[[publish]]\nport = \"events\"\n";
    let one = network.gateway(&cell, "one", A, "site/a", ports, entries, "");
    let mut motor = program(&cell, "motor");
    let mut said = 0;
    let mut say = |count: u32| {
        for _ in 0..count {
            said += u64::from(motor.try_say(2, Priority::NORMAL, b"event").is_ok());
        }
        said
    };
    let counted = |counter: &str| one.count("events", counter);
    eventually("some are published, and some came before", || {
        say(10);
        counted("standby") > 0 && counted("published") > 0
    });
    // It is no longer active when it goes on, so these are of before.
    one.running.stop();
    let stopped = say(50);
    thread::sleep(Duration::from_millis(400));
    one.running.go_on();
    eventually("it is active again", || {
        one.status()["term"].as_u64() > Some(1) && one.is_active()
    });
    let said = say(50);
    assert!(said > stopped);
    eventually("all are counted", || {
        counted("published") + counted("standby") == said
    });
    assert!(counted("standby") >= 50);
}

/// Bus on which this test, started again by itself, is a receiving program.
const RECEIVER_BUS: &str = "TAUT_GATEWAY_TEST_BUS";

#[test]
fn a_receiver_that_hangs_or_dies_holds_up_no_other() {
    const NAME: &str = "a_receiver_that_hangs_or_dies_holds_up_no_other";
    if let Ok(bus) = std::env::var(RECEIVER_BUS) {
        let _program = common::program_at(bus.as_ref(), "two");
        loop {
            thread::park();
        }
    }
    let Some(network) = Network::create() else {
        return;
    };
    let (cell, far) = (Cell::new(), Cell::new());
    let ports = "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n\
        [[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n";
    let publish = "[[publish]]\nport = \"state\"\n[[publish]]\nport = \"events\"\n";
    let subscribe = "[[subscribe]]\nkey = \"site/a/state\"\nport = \"state\"\nto = [\"two.7\"]\n\
        [[subscribe]]\nkey = \"site/a/events\"\nport = \"events\"\nto = [\"motor.8\"]\nburst = 1000\n";
    let receiver = program_apart(&far, "two", NAME, RECEIVER_BUS);
    receiver.stop();
    let one = network.gateway(&cell, "one", A, "site/a", ports, publish, "");
    let reader = network.gateway(&far, "far", B, "site/far", ports, subscribe, "");
    let (mut motor, mut display) = (program(&cell, "motor"), program(&far, "motor"));
    let (state, events) = ("site/a/state", "site/a/events");
    eventually("an event arrives, and a value finds nobody", || {
        motor.publish(1, b"state");
        let _absent = motor.try_say(2, Priority::NORMAL, b"event");
        display.message().is_some() && reader.count(state, "undelivered") > 0
    });
    let (before, missed) = (
        reader.count(events, "delivered"),
        reader.count(events, "undelivered"),
    );
    for _ in 0..50 {
        motor.publish(1, b"state");
        motor.say(2, Priority::NORMAL, b"event");
        thread::sleep(Duration::from_millis(10));
    }
    eventually("all events arrive beside it", || {
        reader.count(events, "delivered") >= before + 50
    });
    assert_eq!(reader.count(events, "undelivered"), missed);
    receiver.go_on();
    let arrives = |motor: &mut Program, what: &str| {
        let before = reader.count(state, "delivered");
        eventually(what, || {
            motor.publish(1, b"state");
            reader.count(state, "delivered") > before + 5
        });
    };
    arrives(&mut motor, "values arrive when it goes on");
    drop(receiver);
    let before = reader.count(state, "undelivered");
    eventually("values find nobody when it is dead", || {
        motor.publish(1, b"state");
        reader.count(state, "undelivered") > before
    });
    let _again = program_apart(&far, "two", NAME, RECEIVER_BUS);
    arrives(&mut motor, "values arrive when it has been started again");
    assert!(one.is_active());
}
