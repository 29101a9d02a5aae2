//! `taut record` and `taut replay`, the files read by the libraries of MCAP's makers.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

mod common;
use common::{Running, Scratch, skipped_without_privilege};

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

/// Reads a file with the library `mcap` of PyPI: a line of JSON for each message, then one for each record of metadata.
const READER: &str = r#"
import json, sys
from mcap.reader import make_reader
with open(sys.argv[1], "rb") as file:
    reader = make_reader(file, validate_crcs=True)
    for schema, channel, message in reader.iter_messages():
        print(json.dumps({"topic": channel.topic, "metadata": channel.metadata, "sequence": message.sequence,
                          "time": message.log_time, "data": message.data.hex()}))
    for metadata in reader.iter_metadata():
        print(json.dumps({"name": metadata.name, "figures": metadata.metadata}))
"#;

fn taut(arguments: &[&str]) -> Command {
    let mut command = Command::new(TAUT);
    command.args(arguments).stdin(Stdio::null());
    command
}

fn inside(hosts: &Hosts, host: Host, arguments: &[&str]) -> Command {
    let mut command = hosts.command(host, TAUT);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Exit status, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = taut(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Messages and figures of a recording, by the library of PyPI. Nothing where it is not installed.
fn read(file: &Path) -> Option<(Vec<Value>, Value)> {
    let probe = Command::new("python3").args(["-c", "import mcap"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: Python's package mcap is not installed");
        return None;
    }
    let output = Command::new("python3")
        .args(["-c", READER])
        .arg(file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let figures = lines.pop().unwrap();
    assert_eq!(figures["name"], "tautline");
    Some((lines, figures["figures"].clone()))
}

/// A bus of the test's own with a node on it.
fn motor(scratch: &Scratch) -> (String, String) {
    let bus = scratch.0.join("bus").to_str().unwrap().to_owned();
    let config = scratch.0.join("motor.toml");
    fs::write(
        &config,
        format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"motor\"\n"),
    )
    .unwrap();
    (bus, config.to_str().unwrap().to_owned())
}

/// Records pings of 64 bytes on a bus.
fn recorded(scratch: &Scratch, count: &str) -> String {
    let (bus, config) = motor(scratch);
    let mut echo = taut(&["echo", "--config", &config]);
    let mut echo = echo.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(echo.stdout.take().unwrap());
    while !line.contains("answering on port") {
        assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
    }
    let file = scratch.0.join("f.mcap").to_str().unwrap().to_owned();
    let mut record = taut(&[
        "record",
        &file,
        "--bus",
        &bus,
        "--port",
        "motor.4095",
        "--count",
        count,
    ]);
    let mut record = Running::start(&mut record, "recording bus");
    let ping = [
        "ping",
        "motor",
        "--bus",
        &bus,
        "--count",
        "2000",
        "--interval",
        "1ms",
    ];
    let mut ping = taut(&ping).stdout(Stdio::null()).spawn().unwrap();
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");
    let _ = ping.kill();
    let _ = ping.wait();
    let _ = echo.kill();
    let _ = echo.wait();
    file
}

#[test]
fn a_recording_of_a_bus_is_read_by_others_and_replayed_the_same_in_the_simulator() {
    let scratch = Scratch::new("record-bus");
    let file = recorded(&scratch, "300");
    let again = scratch.0.join("again.mcap").to_str().unwrap().to_owned();
    let (status, out, error) = run(&["replay", &file, "--sim", "--write", &again]);
    assert_eq!(status, Some(0), "{error}");
    assert!(
        out.contains("300 messages arrived as they were recorded"),
        "{out}"
    );
    let Some((messages, figures)) = read(Path::new(&file)) else {
        return;
    };
    assert_eq!(messages.len(), 300);
    assert_eq!(
        (&figures["messages"], &figures["incomplete"]),
        (&"300".into(), &"0".into())
    );
    let topic = messages[0]["topic"].as_str().unwrap();
    assert!(
        topic.starts_with("/bus ") && topic.ends_with("/motor.4095"),
        "{topic}"
    );
    assert_eq!(messages[0]["metadata"]["destination_port"], "4095");
    assert_eq!(messages[0]["data"].as_str().unwrap().len(), 128);
    let (replayed, _) = read(Path::new(&again)).unwrap();
    assert_eq!(messages, replayed);
}

#[test]
fn a_flow_between_hosts_is_recorded_whole_and_replayed_to_a_receiver() {
    if skipped_without_privilege() {
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let scratch = Scratch::new("record-net");
    let file = scratch.0.join("f.mcap").to_str().unwrap().to_owned();
    let peer = "10.77.0.2";
    let receive = |count: &str| {
        let receive = [
            "recv",
            "8",
            "--interface",
            "taut0",
            "--count",
            count,
            "--json",
            "--timeout",
            "30",
        ];
        let mut command = inside(&hosts, Host::B, &receive);
        Running::start(command.stdout(Stdio::piped()), "listening on port 8")
    };
    let mut receiver = receive("3");
    let record = [
        "record",
        &file,
        "--interface",
        "taut0",
        "--port",
        "8",
        "--count",
        "3",
    ];
    let mut record = Running::start(&mut inside(&hosts, Host::B, &record), "recording taut0");
    let long = "x".repeat(5000);
    for text in ["one", &long, "three"] {
        let send = [
            "send",
            peer,
            "8",
            text,
            "--interface",
            "taut0",
            "--priority",
            "6",
            "--from",
            "77",
        ];
        let output = inside(&hosts, Host::A, &send).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("3 recorded, 0 lost, 0 incomplete"), "{said}");
    assert_eq!(receiver.ended().0, Some(0));

    let (status, out, error) = run(&["replay", &file, "--sim"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(
        out.contains("3 messages arrived as they were recorded"),
        "{out}"
    );

    for fast in [true, false] {
        let mut receiver = receive("3");
        let mut replay = vec!["replay", &file, "--to", peer, "--interface", "taut0"];
        if fast {
            replay.push("--fast");
        }
        let output = inside(&hosts, Host::A, &replay).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(out.contains("3 sent"), "{out}");
        assert_eq!(out.contains("late by"), !fast, "{out}");
        assert_eq!(receiver.ended().0, Some(0));
        let mut lines = String::new();
        receiver
            .child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut lines)
            .unwrap();
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let bytes: Vec<u64> = lines
            .iter()
            .map(|line| line["bytes"].as_u64().unwrap())
            .collect();
        assert_eq!(bytes, [3, 5000, 5], "{lines:?}");
        assert!(
            lines
                .iter()
                .all(|line| line["priority"] == 6 && line["source"]["port"] == 77),
            "{lines:?}"
        );
    }
}

#[test]
fn a_full_disk_ends_the_recording_with_a_whole_file() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("record-full");
    let (bus, config) = motor(&scratch);
    let (small, kept) = (scratch.0.join("small"), scratch.0.join("kept.mcap"));
    fs::create_dir(&small).unwrap();
    let mut echo = taut(&["echo", "--config", &config]);
    let mut echo = echo.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(echo.stdout.take().unwrap());
    while !line.contains("answering on port") {
        assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
    }
    // The file system goes with the mount namespace.
    let script = "mount -t tmpfs -o size=5m none $1 && { \
        $2 record $1/f --bus $4; status=$?; cp $1/f $3; exit $status; }";
    let mut record = Command::new("unshare");
    record.args(["-m", "sh", "-c", script, "sh"]);
    record.args([
        small.as_os_str(),
        TAUT.as_ref(),
        kept.as_os_str(),
        bus.as_ref(),
    ]);
    let mut record = Running::start(&mut record, "recording bus");
    let ping = [
        "ping",
        "motor",
        "--bus",
        &bus,
        "--count",
        "100000",
        "--interval",
        "1ms",
        "--size",
        "16000",
    ];
    let mut ping = taut(&ping).stdout(Stdio::null()).spawn().unwrap();
    let (status, said) = record.ended();
    let _ = ping.kill();
    let _ = ping.wait();
    let _ = echo.kill();
    let _ = echo.wait();
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("the disk is full") && said.contains("what to do"),
        "{said}"
    );
    let (status, out, error) = run(&["replay", kept.to_str().unwrap(), "--sim", "--port", "4095"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("arrived as they were recorded"), "{out}");
}

#[test]
fn truncated_and_foreign_files_are_refused_with_a_sentence() {
    let scratch = Scratch::new("record-foreign");
    let file = recorded(&scratch, "5");
    let whole = fs::read(&file).unwrap();
    let other = scratch.0.join("other.mcap");
    let other = other.to_str().unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 3;
    damaged[middle] ^= 0x40;
    let cases: [(&[u8], &str); 6] = [
        (b"", "it is not an MCAP file"),
        (b"\x89MC", "it is not an MCAP file"),
        (
            b"PK\x03\x04 something else that is long enough",
            "it is not an MCAP file",
        ),
        (&whole[..whole.len() - 9], "it ends in the middle"),
        (&whole[..whole.len() / 2], "it ends in the middle"),
        (&damaged, "it is damaged"),
    ];
    for (bytes, words) in cases {
        fs::write(other, bytes).unwrap();
        let (status, out, error) = run(&["replay", other, "--sim"]);
        assert_eq!(status, Some(1), "{words}: {out}{error}");
        assert!(
            error.contains(words) && error.contains("what to do"),
            "{words}: {error}"
        );
        assert!(!error.contains("panicked"), "{error}");
    }
}

#[test]
fn wrong_use_is_told_with_a_remedy() {
    let scratch = Scratch::new("record-wrong");
    let file = scratch.0.join("none.mcap");
    let file = file.to_str().unwrap();
    let directory = scratch.0.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 8] = [
        (
            &["record", file, "--bus", "/nowhere/bus"],
            1,
            "there is no bus",
        ),
        (
            &["record", "/dev/null", "--bus", "/nowhere/bus"],
            1,
            "there is no bus",
        ),
        (&["record"], 2, "required"),
        (&["replay", file], 2, "required"),
        (&["replay", file, "--sim"], 1, "No such file"),
        (&["replay", directory, "--sim"], 1, "directory"),
        (
            &["replay", file, "--sim", "--to", "x"],
            2,
            "cannot be used with",
        ),
        (
            &["replay", file, "--to", "x", "--write", "y"],
            2,
            "add --sim",
        ),
    ];
    for (arguments, status, words) in cases {
        let (code, _, error) = run(arguments);
        assert_eq!(code, Some(status), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    let (bus, config) = motor(&scratch);
    let mut echo = taut(&["echo", "--config", &config]);
    let mut echo = echo.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(echo.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (code, _, error) = run(&["record", "/dev/null", "--bus", &bus]);
    let _ = echo.kill();
    let _ = echo.wait();
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("a recording must be a file"), "{error}");
}
