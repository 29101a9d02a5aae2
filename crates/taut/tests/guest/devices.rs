//! Devices of a guest by its ports: console, clock, and what it may send. And guests that abuse them.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::bed::{
    Monitor, Running, guest, images, receive, show, taut, taut_file, unique, wait_until,
};
use crate::common::{Scratch, both, skipped_without_privilege};

const ONE_PORT: &str = "[[port]]\nnumber = 1\n";

/// `taut guest console` with lines on its standard input.
fn talk(running: &Running, port: &str, lines: &str) -> Output {
    let mut child = taut()
        .args(["guest", "console", &running.name, "--port", port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    child.wait_with_output().unwrap()
}

fn clock(running: &Running, arguments: &[&str]) -> Output {
    let name = ["show", &running.name, "--clock", "--json"];
    guest(&[&name[..], arguments].concat())
}

fn a_guest_answers_lines_and_tells_its_time(monitor: Monitor) {
    let Some(running) = Running::start(monitor, "talks", "echo", None, &[]) else {
        return;
    };
    let output = talk(&running, "4095", "set speed 3\nstop\n");
    assert_eq!(both(&output), "set speed 3\nstop\n");
    let long = "x".repeat(2_000);
    assert!(both(&talk(&running, "4095", &long)).starts_with("not sent: "));

    let ask = || {
        let output = clock(&running, &[]);
        assert!(output.status.success(), "{}", both(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&found["answered"], &found["impossible"]),
            (&1_000.into(), &0.into())
        );
        let number = |key: &str| found[key].as_i64().unwrap();
        (number("offset_ns"), number("error_max_ns"))
    };
    // Two measurements contain the same offset, but for what the clocks drift apart meanwhile.
    let (first, second) = (ask(), ask());
    let apart = first.0.abs_diff(second.0);
    assert!(apart < first.1.unsigned_abs() + second.1.unsigned_abs() + 50_000_000);
    assert!(first.1 > 0);
    drop(running.stop());
}

fn lies_and_terminal_codes_harm_nobody(monitor: Monitor) {
    let Some(running) = Running::start(monitor, "lies", "misbehave", Some(ONE_PORT), &[]) else {
        return;
    };
    let output = talk(&running, "1", "q\n");
    let said = both(&output);
    assert!(said.ends_with("done\n") && said.contains("[2J"), "{said:?}");
    assert!(!said.contains(['\x1b', '\x07', '\u{9b}']), "{said:?}");

    let output = clock(&running, &["--port", "1"]);
    // Of random moments, hardly any can be true; nothing breaks.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        both(&output)
    );
    assert!(!both(&output).contains("panicked"), "{}", both(&output));
    drop(running.stop());
}

fn a_guest_sends_only_where_and_as_it_may(monitor: Monitor) {
    for (limit, own) in [("to = [\"boss:2\"]\n", 3), ("priority_max = 6\n", 2)] {
        let settings = format!("{ONE_PORT}{limit}");
        let test = format!("may-{own}");
        let Some(running) = Running::start_unopened(monitor, &test, &settings) else {
            return;
        };
        // Its answers have the highest priority.
        let (_node, mut port) = running.peer("boss", own);
        running.order(&mut port, b"x");
        wait_until("the answer is refused", || {
            show(&running.name).unwrap()["ports"][0]["refused"] == 1
        });
        assert_eq!(receive(&mut port, Duration::from_millis(100)), None);
        if own == 3 {
            let (_node, mut port) = running.peer("boss-b", 2);
            running.order(&mut port, b"x");
            let answer = receive(&mut port, Duration::from_millis(100));
            assert_eq!(answer, None, "another node's port of that number");
        }
        drop(running.stop());
    }
}

/// A guest on host A's network: host B asks it by the wire, from a port that it may answer and from another.
fn a_guest_talks_on_the_wire_to_whom_it_may(monitor: Monitor) {
    let Some(images) = images(monitor) else {
        return;
    };
    if skipped_without_privilege() {
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let mac = |host| {
        let bytes: [u8; 6] = hosts.end(host, 0).mac();
        bytes.map(|byte| format!("{byte:02x}")).join(":")
    };
    let test = format!("wire-{monitor:?}").to_lowercase();
    let scratch = Scratch::new(&test);
    let name = unique(&test);
    let (node, window) = (scratch.0.join("node.toml"), scratch.0.join("window.toml"));
    let neighbour = format!(
        "[[neighbour]]\nname = \"motor\"\nmac = \"{}\"\n",
        mac(Host::B)
    );
    let link = "interface = \"taut0\"\nlink = \"packet\"\n";
    fs::write(&node, format!("{link}{neighbour}")).unwrap();
    fs::write(&window, "[[port]]\nnumber = 4095\nto = [\"motor:8\"]\n").unwrap();
    let taut = |host| hosts.command(host, taut_file().to_str().unwrap());
    let mut guest = taut(Host::A)
        .args(["guest", "run"])
        .arg(images.join(monitor.image("echo")))
        .args(["--name", &name, "--config"])
        .arg(node)
        .arg("--window")
        .arg(window)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the guest has opened its port", || {
        show(&name).is_some_and(|found| found["ports"][0]["open"] == true)
    });
    let ask = |from: &str, timeout: &str| {
        let output = taut(Host::B)
            .args([
                "ping",
                &mac(Host::A),
                "--interface",
                "taut0",
                "--link",
                "packet",
            ])
            .args(["--from", from, "--count", "20", "--interval", "1ms"])
            .args(["--timeout", timeout])
            .output()
            .unwrap();
        output.status.code()
    };
    assert_eq!(ask("8", "1s"), Some(0));
    let refused = || show(&name).unwrap()["ports"][0]["refused"].as_u64();
    assert_eq!(refused(), Some(0));
    assert_eq!(ask("9", "20ms"), Some(1), "nobody answers");
    wait_until("all answers are refused", || refused() == Some(20));
    let stopped = crate::bed::guest(&["stop", &name]);
    assert!(stopped.status.success(), "{}", both(&stopped));
    assert!(guest.wait().unwrap().success());
}

for_each_monitor!(
    a_guest_talks_on_the_wire_to_whom_it_may,
    a_guest_answers_lines_and_tells_its_time,
    lies_and_terminal_codes_harm_nobody,
    a_guest_sends_only_where_and_as_it_may,
);
