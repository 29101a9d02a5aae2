//! Fleets: gateways that tell of their cells, watchers at a distance, and participants that tell lies. Real processes
//! in network namespaces; the strangers are `eclipse-zenoh` from PyPI (`peer.py`).

mod common;

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::{
    Cell, Network, Watcher, eventually, lab_result, line_of, participant, presence, program,
};
use serde_json::json;
use tautline_capture::recording::{Recording, RecordingError};
use tautline_testbed::hosts::Host::{A, B};

const PORT: &str =
    "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\nrefresh_period_us = 500000\n";
const FLEET: &str = "[fleet]\nperiod_ms = 200\n[[publish]]\nport = \"state\"\n";

#[test]
fn cells_are_seen_from_another_site_and_those_that_vanish_stay_in_view() {
    let Some(network) = Network::create() else {
        return;
    };
    let (a, b) = (Cell::new(), Cell::new());
    let first = network.gateway(&a, "one", A, "site/a", PORT, FLEET, "");
    let second = network.gateway(&b, "two", B, "site/b", PORT, FLEET, "");
    let mut motor = program(&a, "motor");
    eventually("both are active", || {
        first.is_active() && second.is_active()
    });
    let mut picture = json!(null);
    eventually("both are in the picture with all that they tell", || {
        motor.publish(1, b"value");
        picture = network.fleet(B, "client-of-a");
        ["one", "two"].iter().all(|name| {
            let line = line_of(&picture, name);
            line["presence"] == "alive" && line["nodes"].is_array()
        }) && line_of(&picture, "one")["report"]["totals"]["published"].as_u64() > Some(0)
    });
    let line = line_of(&picture, "one");
    assert_eq!(line["prefix"], "site/a");
    assert_eq!(line["report"]["state"], "active");
    assert_eq!(line["report"]["process"], first.status()["process"]);
    // Nodes of the same network namespace: the gateway's own at least, as `taut status` shows it.
    let nodes = line["nodes"].as_array().unwrap();
    let own = nodes
        .iter()
        .find(|node| node["process"] == line["report"]["process"]);
    let own = own.expect("the gateway's own node");
    assert_eq!(own["link"], "vbus");
    assert_eq!(own["ports"][0]["name"], "state");
    let totals = &line["report"]["totals"];
    assert_eq!(
        totals["nodes"],
        nodes.len() as u64 + line["left_out"].as_u64().unwrap()
    );
    assert!(totals["received"].as_u64() > Some(0), "{totals}");

    // Somebody who follows sees one that hangs, and goes on; and one that is killed.
    let watcher = Watcher::start(&network, B, "client-of-a");
    eventually("both are there", || {
        watcher.presence("one") == "alive" && watcher.presence("two") == "alive"
    });
    second.running.stop();
    eventually("it is silent", || watcher.presence("two") == "silent");
    second.running.go_on();
    eventually("it goes on", || watcher.presence("two") == "alive");
    second.running.kill();
    eventually("it has vanished", || watcher.presence("two") == "vanished");
    assert_eq!(watcher.presence("one"), "alive");
    // So does somebody who comes later: the other gateway has seen it.
    thread::sleep(Duration::from_millis(300));
    let picture = network.fleet(B, "client-of-a");
    assert_eq!(presence(&picture, "two"), "vanished", "{picture}");
    let age_ms = line_of(&picture, "two")["age_ms"].as_u64().unwrap();
    assert!(age_ms >= 300, "{age_ms}");
    assert!(line_of(&picture, "two")["report"].is_null());
    // Restarted, it takes its line back.
    let again = network.gateway(&b, "two", B, "site/b", PORT, FLEET, "");
    eventually("it is back", || {
        again.is_active() && watcher.presence("two") == "alive"
    });
    let picture = watcher.picture();
    assert_eq!(picture["cells"].as_array().unwrap().len(), 2, "{picture}");
}

#[test]
fn strangers_change_nothing() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let gateway = network.gateway(&cell, "one", A, "site/a", PORT, FLEET, "");
    let Some(mut stranger) = participant(&network, B, "client-of-a") else {
        return;
    };
    let watcher = Watcher::start(&network, B, "client-of-a");
    eventually("it is there", || watcher.presence("one") == "alive");
    let number = watcher.picture()["cells"][0]["number"]
        .as_str()
        .unwrap()
        .to_owned();
    let key = format!("tautline/fleet/@cell/site/a/@gateway/one/{number}");
    let hex = |text: &str| -> String {
        let bytes = text.bytes();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    };
    for lie in [
        "",
        "{",
        "[1]",
        "{\"term\":-1}",
        &format!("{{\"host\":\"{}\"}}", "x".repeat(20_000)),
        "{\"verdict\":7}",
    ] {
        stranger.tell(json!(["put", key, hex(lie)]));
    }
    stranger.tell(json!([
        "put",
        "tautline/fleet/@cell/x/@gateway/y/z",
        hex("{}")
    ]));
    stranger.tell(json!([
        "put",
        "tautline/fleet/@cell/x/@gateway/y/0000000000000001",
        hex("{}")
    ]));
    stranger.tell(json!([
        "put",
        key,
        hex("{\"host\":\"\\u001b[2Jroot\",\"state\":\"active\",\"verdict\":{\"words\":\"\\u001b[2JHELD\"}}")
    ]));
    eventually("each lie is counted", || {
        let picture = watcher.picture();
        picture["malformed"] == 7 && picture["unannounced"] == 1
    });
    let text = watcher.picture().to_string();
    assert!(!text.contains("\\u001b"), "{text}");
    eventually("the gateway's own word comes again", || {
        line_of(&watcher.picture(), "one")["report"]["process"] == gateway.status()["process"]
    });
    // Tokens that nobody stands behind: bounded, and gone with the stranger.
    stranger.tell(json!([
        "token",
        "tautline/fleet/@cell/x/@gateway/y/0000000000000002"
    ]));
    eventually("it is in view, without a report", || {
        line_of(&watcher.picture(), "y")["report"].is_null() && !watcher.presence("y").is_empty()
    });
    // Queries above the rate are told so, and ask nobody in the cell.
    stranger.tell(json!(["gets", key, 100]));
    let told = stranger.wait_for("the answers", |what| what["answered"].is_number());
    let answered = told["answered"].as_u64().unwrap();
    assert!((1..100).contains(&answered), "{told}");
    drop(stranger);
    eventually("the stranger's token has vanished", || {
        watcher.presence("y") == "vanished"
    });
    assert!(gateway.is_active());
}

#[test]
fn the_verdict_on_a_machine_is_seen_from_another_site() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let fleet = FLEET.replace("[fleet]\n", "[fleet]\nverdict = \"lab.json\"\n");
    let said = network.file("said");
    let mut command = network.gateway_command(&cell, "one", A, "site/a", PORT, &fleet, "");
    command.stderr(File::create(&said).expect("a file"));
    let gateway = network.started("one", A, command);
    eventually("it is active", || gateway.is_active());
    let watcher = Watcher::start(&network, B, "client-of-a");
    let verdict = || line_of(&watcher.picture(), "one")["report"]["verdict"].clone();
    let is_refused = |reason: &str| {
        eventually(reason, || {
            let error = verdict()["error"].clone();
            error.as_str().is_some_and(|error| error.contains(reason))
        });
    };
    is_refused("No such file");
    let config = network.file(&format!("one-{}.toml", cell.name));
    let checked = |words: &str| {
        let mut check = Command::new(env!("CARGO_BIN_EXE_taut-gateway"));
        let output = check.args(["check", "--config"]).arg(&config).output();
        let output = output.expect("an answer");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(words), "{text}");
    };
    checked("no verdict of the lab: open ");
    let (path, beside) = (network.file("lab.json"), network.file("beside.json"));
    let replace = |text: &str| {
        fs::write(&beside, text).expect("a file");
        fs::rename(&beside, &path).expect("renamed");
    };
    replace(&lab_result("held", 43_000));
    eventually("it is held", || {
        verdict()["words"] == "HELD during this run"
    });
    checked("  verdict of the lab: HELD during this run\n");
    let judged = verdict();
    assert_eq!(judged["label"], "robot");
    assert_eq!(
        (&judged["class"], &judged["deadline_ns"]),
        (&json!("deadline"), &json!(250_000))
    );
    assert_eq!(judged["linuxcnc_grade"], "usable (up to 50 \u{b5}s)");
    assert_eq!(
        (&judged["max_ns"], &judged["started_unix_s"]),
        (&json!(43_000), &json!(1_795_696_892))
    );
    assert_eq!(judged["kernel"], "6.18.44");
    // Replaced meanwhile, and seen by somebody who asks once, too.
    replace(&lab_result("exceeded", 260_000));
    eventually("it is not held", || verdict()["words"] == "NOT HELD");
    let picture = network.fleet(B, "client-of-a");
    let told = &line_of(&picture, "one")["report"]["verdict"];
    assert_eq!(told["max_ns"], 260_000, "{picture}");
    // None of these is believed, and the gateway goes on.
    replace(&lab_result("held", 1)[..200]);
    is_refused("lab.json is cut off");
    replace(&lab_result("held", 1));
    chown(&path, Some(65_534), None).expect("root");
    is_refused("belongs to user 65534");
    replace("");
    let large = File::options().write(true).open(&path).expect("a file");
    large.set_len(9 << 20).expect("a hole");
    is_refused("is longer than");
    replace(&lab_result("held", 20_000));
    eventually("it is held again", || verdict()["max_ns"] == 20_000);
    assert!(gateway.is_active());
    let said = fs::read_to_string(said).expect("text");
    let complaints = said.matches("gateway one: no verdict of the lab: ").count();
    assert_eq!(complaints, 4, "{said}");
}

#[test]
fn keys_of_another_site_are_recorded() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let publish = "[[publish]]\nport = \"state\"\n[[publish]]\nport = \"events\"\n";
    let ports = format!("{PORT}[[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n");
    let gateway = network.gateway(&cell, "one", A, "site/a", &ports, publish, "");
    let mut motor = program(&cell, "motor");
    eventually("active", || gateway.is_active());
    let file = network.file("far.mcap");
    let mut command = network.watcher(B, "client-of-a", "record");
    let command = command
        .args(["--key", "site/a/*", "--count", "40"])
        .arg(&file);
    let mut recorder = command.spawn().expect("a recorder");
    let mut number = 0_u32;
    eventually("it has recorded enough", || {
        number += 1;
        motor.publish(1, &number.to_le_bytes());
        let _full = motor.try_say(2, tautline::Priority::HIGHEST, &number.to_be_bytes());
        thread::sleep(Duration::from_millis(2));
        recorder.try_wait().expect("a child").is_some()
    });
    assert!(recorder.wait().unwrap().success());
    let mut recording = Recording::open(&file).expect("a recording");
    assert_eq!(recording.messages(), 40);
    let mut flows: Vec<(String, u8)> = recording
        .flows()
        .iter()
        .map(|flow| (flow.from.clone(), flow.priority))
        .collect();
    flows.sort();
    assert_eq!(flows[0], ("site/a/events".to_owned(), 7), "{flows:?}");
    assert_eq!(flows[1].0, "site/a/state");
    let mut last = 0;
    recording
        .play(|_, message| {
            if message.flow.from == "site/a/events" {
                let number = u32::from_be_bytes(message.bytes.try_into().unwrap());
                assert!(number > last, "in order");
                last = number;
            }
            Ok::<(), RecordingError>(())
        })
        .unwrap();
    assert!(last > 0);
    // A disk that cannot be written to is said in words.
    let mut command = network.watcher(B, "client-of-a", "record");
    let output = command
        .args(["--key", "site/a/*", "/dev/null/far.mcap"])
        .output()
        .expect("a recorder");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/dev/null/far.mcap"), "{said}");
}
