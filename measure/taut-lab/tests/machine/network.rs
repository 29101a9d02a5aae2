//! `taut-lab lab network` over a virtual cable, to an echo of another program.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::Value;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::common::{Running, Scratch, skipped_without_privilege, skipped_without_tools, stderr};

const NOBODY: u32 = 65_534;

/// Sends datagrams back. Of each fifty it loses one, or holds one for 30 ms, if told to.
const ECHO: &str = "\
import socket, sys, time
address, port, fault = sys.argv[1], int(sys.argv[2]), sys.argv[3]
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind((address, port))
print('ready', file=sys.stderr, flush=True)
count = 0
while True:
    data, source = echo.recvfrom(2048)
    count += 1
    if count % 50 == 0 and fault == 'lose':
        continue
    if count % 50 == 0 and fault == 'hold':
        time.sleep(0.03)
    echo.sendto(data, source)
";

/// Two hosts; the first one's interface has a poll of its own, as a network card does. Nothing where they cannot be
/// made.
fn hosts() -> Option<Hosts> {
    if skipped_without_privilege() || skipped_without_tools(&[("python3", "python3")]) {
        return None;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let gro = ["-K", "taut0", "gro", "on"];
    hosts.run(Host::A, "ethtool", &gro).unwrap();
    Some(hosts)
}

fn echo(mut python: Command, address: &str, port: &str, fault: &str) -> Running {
    Running::start(python.args(["-c", ECHO, address, port, fault]), "ready")
}

fn echo_on(hosts: &Hosts, fault: &str) -> Running {
    echo(hosts.command(Host::B, "python3"), "0.0.0.0", "7", fault)
}

fn network(hosts: &Hosts, scratch: &Scratch, more: &[&str]) -> Command {
    let mut command = hosts.command(Host::A, crate::PROGRAM);
    let peer = hosts.end(Host::B, 0).address().to_string();
    let file = |name: &str| scratch.0.join(name).display().to_string();
    command
        .args(["lab", "network", "--interface", "taut0", "--peer", &peer])
        .args([format!("--json={}", file("it.json"))])
        .args(["--html", &file("it.html")])
        .args(more)
        .stdin(Stdio::null());
    command
}

fn result(scratch: &Scratch) -> Value {
    let text = fs::read(scratch.0.join("it.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn rows(result: &Value) -> &Vec<Value> {
    result["phases"][0]["rows"].as_array().unwrap()
}

fn number(row: &Value, name: &str) -> u64 {
    row[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name}: {row}"))
}

/// Whether the first host's interface is polled in threads.
fn threaded(hosts: &Hosts) -> String {
    let mut command = Command::new("ip");
    let file = "/sys/class/net/taut0/threaded";
    command.args(["netns", "exec", hosts.name(Host::A), "cat", file]);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn each_path_is_measured_and_the_card_is_put_back() {
    let Some(hosts) = hosts() else {
        return;
    };
    let scratch = Scratch::new("network");
    let _echo = echo_on(&hosts, "none");
    let output = network(&hosts, &scratch, &["--for", "4s"])
        .output()
        .unwrap();
    // Never 0: a virtual cable is no verdict on hardware.
    let said = stderr(&output);
    assert!(matches!(output.status.code(), Some(3 | 4)), "{said}");
    let result = result(&scratch);
    let paths: Vec<&Value> = rows(&result).iter().map(|row| &row["path"]).collect();
    let expected = ["udp-block", "udp-tuned", "udp-awake", "udp-port-block"];
    assert_eq!(paths, expected, "{said}");
    for row in rows(&result) {
        let parts = ["late_in_transit", "late_here", "lost", "not_sent"];
        let parts: u64 = parts.map(|name| number(row, name)).iter().sum();
        assert_eq!(
            number(row, "late"),
            parts,
            "each late cycle has one reason: {row}"
        );
        assert!(number(row, "count") > 100, "{row}");
        assert!(number(row, "p50_ns") <= number(row, "p9999_ns"), "{row}");
    }
    assert_eq!(result["missing"], serde_json::json!([]));
    assert!(number(&result["phases"][0]["traffic"], "sent_bytes") > 100_000);
    assert_eq!(threaded(&hosts).trim(), "0", "{said}{}", result["notes"]);
    let page = fs::read_to_string(scratch.0.join("it.html")).unwrap();
    for words in [
        "plain socket",
        "tuned socket",
        "socket awake",
        "no verdict on hardware",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn lost_and_late_replies_are_counted_apart_and_judged() {
    let Some(hosts) = hosts() else {
        return;
    };
    for fault in ["lose", "hold"] {
        let scratch = Scratch::new(&format!("network-{fault}"));
        let _echo = echo_on(&hosts, fault);
        let more = ["--for", "8s", "--period", "10ms"];
        let output = network(&hosts, &scratch, &more).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let result = result(&scratch);
        assert_eq!(result["verdict"]["outcome"], "exceeded");
        let headline = result["verdict"]["sentences"][0].as_str().unwrap();
        assert!(headline.starts_with("NOT HELD"), "{headline}");
        let sum = |name| {
            rows(&result)
                .iter()
                .map(|row| number(row, name))
                .sum::<u64>()
        };
        match fault {
            "lose" => assert!(sum("lost") >= 4, "{result}"),
            // Held for three periods: its own reply and those behind it.
            _ => assert!(sum("late_in_transit") >= 8 && sum("lost") == 0, "{result}"),
        }
        assert!(sum("late") >= sum("lost"));
    }
}

#[test]
fn an_interrupt_ends_it_early_with_a_page() {
    let Some(hosts) = hosts() else {
        return;
    };
    let scratch = Scratch::new("network-early");
    let _echo = echo_on(&hosts, "none");
    // Turns of a minute: the first one is cut short.
    let mut command = network(&hosts, &scratch, &["--for", "1h"]);
    let running = Running::start(command.stdout(Stdio::null()), "load idle");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (status, said) = running.end();
    assert_eq!(status, Some(130), "{said}");
    let result = result(&scratch);
    assert!(number(&rows(&result)[0], "count") > 0, "{result}");
    let notes = result["notes"].to_string();
    assert!(notes.contains("ended early"), "{notes}");
    assert!(scratch.0.join("it.html").exists());
}

#[test]
fn a_peer_that_does_not_answer_has_a_remedy() {
    let Some(hosts) = hosts() else {
        return;
    };
    let scratch = Scratch::new("network-silent");
    let output = network(&hosts, &scratch, &["--for", "2s"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("UDP port 7") && said.contains("taut echo"),
        "{said}"
    );
}

#[test]
fn without_privilege_the_sockets_are_measured() {
    if skipped_without_tools(&[("python3", "python3")]) {
        return;
    }
    let _echo = echo(Command::new("python3"), "127.0.0.1", "7907", "none");
    let arguments = "lab network --interface lo --peer 127.0.0.1:7907 --for 2s --json";
    let mut command = Command::new(crate::PROGRAM);
    command.args(arguments.split(' ')).uid(NOBODY).gid(NOBODY);
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: cannot run the command as nobody: {error}");
            return;
        }
    };
    let said = stderr(&output);
    let result: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let paths: Vec<&Value> = rows(&result).iter().map(|row| &row["path"]).collect();
    assert_eq!(paths, ["udp-block", "udp-awake"], "{said}");
    let missing = result["missing"].to_string();
    for what in ["tuned socket", "port", "real-time priority"] {
        assert!(
            missing.contains(&format!("\"what\":\"{what}\"")),
            "{missing}"
        );
    }
}
