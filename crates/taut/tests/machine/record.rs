//! `taut record` and `taut replay`, the files read by the libraries of MCAP's makers.

use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tautline::neighbours::Form;
use tautline::port::QueuingOptions;
use tautline::{MacAddress, Neighbour, Node, NodeConfig, PortNumber, Priority};
use tautline_capture::FlowFacts;
use tautline_capture::message::{Flow, Message};
use tautline_capture::recording::{Recorder, Recording, RecordingError};
use tautline_state::Existing;
use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};
use tautline_testbed::python;

use crate::common::{Running, Scratch, skipped_without_privilege, started};
use crate::typed::{EndsSender, STATE, node_script, send_typed};

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

/// A Python with the libraries that read recordings, or nothing where the package index cannot be reached.
fn readers() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // With what they need themselves.
    let packages = [
        "mcap==1.6.0",
        "mcap-ros1-support==0.9.0",
        "lz4==4.4.5",
        "zstandard==0.25.0",
        "pyyaml==6.0.3",
    ];
    python::environment(directory, &packages)
        .inspect_err(|why| println!("SKIPPED: no reader of recordings: {why}"))
        .ok()
}

/// Messages and figures of a recording, by the library of PyPI.
fn read(file: &Path) -> Option<(Vec<Value>, Value)> {
    let mut reader = Command::new(readers()?);
    let output = reader.args(["-c", READER]).arg(file).output().unwrap();
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
    let _echo = started(&mut echo, "answering on port", false);
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
    let _ping = pinging(&bus, &["--count", "2000"]);
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");
    file
}

/// `taut ping` of the motor, each millisecond.
fn pinging(bus: &str, more: &[&str]) -> KilledOnDrop {
    let ping = ["ping", "motor", "--bus", bus, "--interval", "1ms"];
    let mut ping = taut(&[&ping[..], more].concat());
    KilledOnDrop(ping.stdout(Stdio::null()).spawn().unwrap())
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
    // The line has no reader, and the command goes on all the same.
    let mut unread = taut(&["replay", &file, "--sim"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(unread.stdout(writer).status().unwrap().code(), Some(0));
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
fn messages_between_two_programs_of_a_user_are_replayed_the_same_in_the_simulator() {
    let scratch = Scratch::new("record-own-name");
    let bus = scratch.0.join("bus").to_str().unwrap().to_owned();
    let file = scratch.0.join("f.mcap").to_str().unwrap().to_owned();
    let on_bus = |words: &[&str]| taut(&[words, &["--bus", &bus]].concat());
    let _echo = started(&mut on_bus(&["echo"]), "answering on port", false);
    let mut record = on_bus(&["record", &file, "--count", "30"]);
    let mut record = Running::start(&mut record, "recording bus");
    let own_name = format!("taut-{}", rustix::process::geteuid());
    let mut ping = on_bus(&["ping", &own_name, "--count", "2000", "--interval", "1ms"]);
    let _ping = KilledOnDrop(ping.stdout(Stdio::null()).spawn().unwrap());
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");
    let (status, out, error) = run(&["replay", &file, "--sim"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(
        out.contains("30 messages arrived as they were recorded"),
        "{out}"
    );
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
            "30s",
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
fn channels_are_called_by_the_names_of_ports_and_neighbours() {
    if skipped_without_privilege() {
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let scratch = Scratch::new("record-names");
    let mac = |host| {
        let bytes = hosts.end(host, 0).mac();
        bytes.map(|byte| format!("{byte:02x}")).join(":")
    };
    let config = format!(
        "interface = \"taut0\"\n[[neighbour]]\nname = \"motor\"\nmac = \"{}\"\n\
         [[port]]\nname = \"state\"\nnumber = 7\nkind = \"queuing\"\n",
        mac(Host::A)
    );
    let opened = hosts.inside(Host::B, || {
        let node = Node::open(config.parse().unwrap()).unwrap();
        let port = node.queuing("state").open().unwrap();
        (node, port)
    });
    let (_node, mut port) = opened.unwrap();
    let [file, again] =
        ["f.mcap", "again.mcap"].map(|name| scratch.0.join(name).to_str().unwrap().to_owned());
    let record = ["record", &file, "--interface", "taut0", "--count", "2"];
    let mut record = Running::start(&mut inside(&hosts, Host::B, &record), "recording taut0");
    let to = mac(Host::B);
    let send = [
        "send",
        &to,
        "7",
        "here",
        "--interface",
        "taut0",
        "--from",
        "8",
    ];
    let output = inside(&hosts, Host::A, &send).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let motor = port.destination("motor", 8).unwrap();
    port.send(motor, Priority::NORMAL, b"there").unwrap();
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");

    let (status, _, error) = run(&["replay", &file, "--sim", "--write", &again]);
    assert_eq!(status, Some(0), "{error}");
    let command = fs::read_to_string("/proc/self/comm").unwrap();
    let own = command.trim();
    for file in [&file, &again] {
        let Some((messages, _)) = read(Path::new(file)) else {
            return;
        };
        let [came, went] = [0, 1].map(|place| &messages[place]);
        assert_eq!(came["topic"], format!("/taut0/motor.8/{own}.state"));
        assert_eq!(went["topic"], format!("/taut0/{own}.state/motor.8"));
        let metadata = &came["metadata"];
        assert_eq!(metadata["from_name"], "motor");
        assert_eq!(metadata["from"], mac(Host::A));
        assert_eq!(metadata["destination_port_name"], "state");
        assert_eq!(metadata["destination_port"], "7");
    }
}

#[test]
fn a_limit_of_the_file_size_ends_the_recording_with_a_whole_file() {
    let scratch = Scratch::new("record-limit");
    let (bus, config) = motor(&scratch);
    let file = scratch.0.join("f.mcap");
    let mut echo = taut(&["echo", "--config", &config]);
    let _echo = started(&mut echo, "answering on port", false);
    // Blocks of 512 or 1,024 bytes.
    let script = "ulimit -f 2000; exec $1 record $2 --bus $3";
    let mut record = Command::new("sh");
    record.args(["-c", script, "sh"]);
    record.args([TAUT.as_ref(), file.as_os_str(), bus.as_ref()]);
    let mut record = Running::start(&mut record, "recording bus");
    let _ping = pinging(&bus, &["--count", "100000", "--size", "16000B"]);
    let (status, said) = record.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("ulimit -f"), "{said}");
    let replay = taut(&["replay", file.to_str().unwrap(), "--sim"])
        .output()
        .unwrap();
    assert!(replay.status.success(), "{replay:?}");
}

#[test]
fn messages_of_senders_that_come_and_go_are_recorded_or_counted_as_lost() {
    const COUNT: usize = 20;
    let scratch = Scratch::new("record-short");
    let (bus, config) = motor(&scratch);
    let mut recv = taut(&["recv", "9", "--config", &config, "--count", "1000"]);
    let _recv = Running::start(recv.stdout(Stdio::null()), "listening on port 9");
    let file = scratch.0.join("f.mcap");
    let mut record = taut(&["record", file.to_str().unwrap(), "--bus", &bus]);
    let record = Running::start(&mut record, "recording bus");
    for _ in 0..COUNT {
        let (status, _, said) = run(&["send", "motor", "9", "hello", "--bus", &bus]);
        assert_eq!(status, Some(0), "{said}");
    }
    let (_, said) = record.end();
    let words: Vec<&str> = said.split_whitespace().collect();
    let count = |what: &str| {
        let place = words
            .iter()
            .position(|word| word.trim_end_matches(',') == what);
        words[place.unwrap() - 1].parse::<usize>().unwrap()
    };
    assert_eq!(count("recorded") + count("lost"), COUNT, "{said}");
    assert!(count("recorded") > 0, "{said}");
}

#[test]
fn a_recording_goes_on_when_one_of_its_interfaces_goes_down() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("record-down");
    let file = scratch.0.join("f.mcap");
    let options = HostsOptions {
        cable_count: 2,
        ..HostsOptions::default()
    };
    let hosts = Hosts::create(&options).unwrap();
    let mut record = hosts.command(Host::B, TAUT);
    record.args(["record", file.to_str().unwrap(), "--for", "2s"]);
    record.args(["--interface", "taut0", "--interface", "taut1"]);
    let mut record = Running::start(&mut record, "recording taut0, taut1");
    let down = ["link", "set", "taut0", "down"];
    hosts.run(Host::B, "ip", &down).unwrap();
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("taut0") && said.contains("the others go on"),
        "{said}"
    );
}

/// The kernel shows each frame on loopback as sent and as received.
#[test]
fn a_message_on_loopback_is_recorded_once_and_replayed() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("record-loopback");
    let file = scratch.0.join("f.mcap").to_str().unwrap().to_owned();
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let mut record = hosts.command(Host::B, TAUT);
    record.args(["record", &file, "--interface", "lo", "--for", "2s"]);
    let mut record = Running::start(&mut record, "recording lo");
    hosts
        .inside(Host::B, || {
            let open = |own: u8, other: u8| {
                let neighbour = Neighbour {
                    name: "peer".to_owned(),
                    mac: MacAddress([0; 6]),
                    ip: Some([127, 0, 0, other].into()),
                    form: Form::Udp,
                };
                let config = NodeConfig::udp([127, 0, 0, own].into());
                Node::open(config.with_neighbour(neighbour).unwrap()).unwrap()
            };
            let (one, other) = (open(1, 2), open(2, 1));
            let options = QueuingOptions::default();
            let port = |number| PortNumber::new(number).unwrap();
            let _receiver = other.queuing(port(12)).options(&options).open().unwrap();
            let mut sender = one.queuing(port(11)).options(&options).open().unwrap();
            let to = sender.destination("peer", port(12)).unwrap();
            for _ in 0..5 {
                sender.send(to, Priority::NORMAL, b"once").unwrap();
            }
        })
        .unwrap();
    let (status, said) = record.ended();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("5 recorded, 0 lost"), "{said}");
    let replay = taut(&["replay", &file, "--sim"]).output().unwrap();
    let said = String::from_utf8_lossy(&replay.stdout);
    assert!(replay.status.success() && said.contains('5'), "{replay:?}");
}

#[test]
fn compressed_recordings_are_refused_by_the_name_of_their_compression() {
    let scratch = Scratch::new("record-compressed");
    let file = scratch.0.join("f.mcap");
    for name in ["zstd", "lz4"] {
        let mut bytes = mcap_magic();
        let mut chunk = vec![0; 28];
        chunk.extend((name.len() as u32).to_le_bytes());
        chunk.extend(name.as_bytes());
        chunk.extend([0; 8]);
        bytes.push(0x06);
        bytes.extend((chunk.len() as u64).to_le_bytes());
        bytes.extend(chunk);
        fs::write(&file, &bytes).unwrap();
        let replay = taut(&["replay", file.to_str().unwrap(), "--sim"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&replay.stderr);
        assert!(said.contains(&format!("compressed with {name}")), "{said}");
        assert!(
            said.contains("mcap decompress") && !said.contains("damaged"),
            "{said}"
        );
    }
}

fn mcap_magic() -> Vec<u8> {
    b"\x89MCAP0\r\n".to_vec()
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
    let _echo = started(&mut echo, "answering on port", false);
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
    let _ping = pinging(&bus, &["--count", "100000", "--size", "16000B"]);
    let (status, said) = record.ended();
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
        assert_eq!(status, Some(2), "{words}: {out}{error}");
        assert!(
            error.contains(words) && error.contains("what to do"),
            "{words}: {error}"
        );
        assert!(!error.contains("panicked"), "{error}");
    }
}

#[test]
fn a_device_is_no_place_for_a_recording() {
    let scratch = Scratch::new("record-device");
    let (bus, config) = motor(&scratch);
    let mut echo = taut(&["echo", "--config", &config]);
    let _echo = started(&mut echo, "answering on port", false);
    let (code, _, error) = run(&["record", "/dev/null", "--bus", &bus]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("a recording must be a file"), "{error}");
}

/// Decodes a recording with the support for ROS 1 of MCAP's makers: the fields of each message, or its bytes.
const TYPED_READER: &str = r#"
import json, sys
from mcap.reader import make_reader
from mcap_ros1.decoder import DecoderFactory
factory = DecoderFactory()
with open(sys.argv[1], "rb") as file:
    for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages():
        if schema is None:
            print(json.dumps({"encoding": channel.message_encoding, "data": message.data.decode()}))
            continue
        state = factory.decoder_for(channel.message_encoding, schema)(message.data)
        print(json.dumps({"schema": schema.name, "type": channel.metadata["type"],
                          "position": list(state.position), "mode": state.mode}))
"#;

/// Reads a recording with the packages that Foxglove itself reads files with, by its index: as `TYPED_READER`.
const FOXGLOVE_READER: &str = r#"
import { McapIndexedReader } from "@mcap/core";
import { parse } from "@foxglove/rosmsg";
import { MessageReader } from "@foxglove/rosmsg-serialization";
import { open } from "node:fs/promises";
const file = await open(process.argv[2]);
const read = async (offset, length) => {
    const bytes = new Uint8Array(Number(length));
    await file.read(bytes, 0, bytes.length, Number(offset));
    return bytes;
};
const size = async () => BigInt((await file.stat()).size);
const reader = await McapIndexedReader.Initialize({ readable: { size, read } });
for await (const message of reader.readMessages()) {
    const channel = reader.channelsById.get(message.channelId);
    const schema = reader.schemasById.get(channel.schemaId);
    if (!schema) {
        console.log(JSON.stringify({ encoding: channel.messageEncoding, data: Buffer.from(message.data).toString() }));
        continue;
    }
    const fields = new MessageReader(parse(new TextDecoder().decode(schema.data))).readMessage(message.data);
    console.log(JSON.stringify({ schema: schema.name, type: channel.metadata.get("type"),
                                 position: [...fields.position], mode: fields.mode }));
}
"#;

/// Fields of the typed messages of a recording, as Foxglove reads them.
fn read_by_foxglove(file: &str) -> Option<Vec<Value>> {
    let packages = [
        "@mcap/core@2.2.2",
        "@foxglove/rosmsg@5.0.5",
        "@foxglove/rosmsg-serialization@2.0.4",
    ];
    let mut reader = node_script("foxglove-reader", &packages, FOXGLOVE_READER)?;
    lines_of(reader.arg(file))
}

/// Fields of the typed messages of a recording, by the library of PyPI.
fn read_typed(file: &str) -> Option<Vec<Value>> {
    let mut reader = Command::new(readers()?);
    lines_of(reader.args(["-c", TYPED_READER, file]))
}

/// Lines of JSON that a reader prints.
fn lines_of(reader: &mut Command) -> Option<Vec<Value>> {
    let output = reader.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    Some(lines.collect())
}

#[test]
fn typed_messages_have_names_everywhere() {
    let scratch = Scratch::new("record-typed");
    let (bus, receiving) = motor(&scratch);
    let port = "[[port]]\nname = \"state\"\nnumber = 7\nkind = \"queuing\"\ntype = \"State\"\n";
    let typed = fs::read_to_string(&receiving).unwrap() + STATE + port;
    fs::write(&receiving, &typed).unwrap();
    let sending = |name: &str, types: &str| {
        let file = scratch.0.join(format!("{name}.toml"));
        let text = format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"{name}\"\n{types}");
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let receive = |count: &str| {
        let mut receive = taut(&["recv", "7", "--config", &receiving, "--timeout", "60s"]);
        receive.args(["--count", count]).stdout(Stdio::piped());
        Running::start(&mut receive, "listening on port 7")
    };
    let mut receiver = receive("2");
    // A sender of another type is told which field, and nothing of it arrives.
    let other = sending("other", &STATE.replace("u16", "u32"));
    let (status, _, error) = run(&["send", "motor", "7", "--config", &other, "--type", "State"]);
    assert_eq!(status, Some(1));
    let told = "port 7 of `motor` declares another type: field `mode` is u32 here and u16 there";
    assert!(error.contains(told), "{error}");
    let sender = sending("sender", STATE);
    let (fields, plain) = (["--type", "State", "--field", "position=0.5,-1"], ["plain"]);
    for message in [&fields[..], &plain] {
        let send = [&["send", "motor", "7", "--config", &sender], message].concat();
        let (status, _, error) = run(&send);
        assert_eq!(status, Some(0), "{error}");
    }
    let received = output_of(&mut receiver);
    assert_eq!(received, "State position=[0.5, -1.0] mode=0\nplain\n");

    let _receiver = receive("1000000");
    let is_enough = AtomicBool::new(false);
    let file = scratch.0.join("f.mcap").to_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        scope.spawn(|| send_typed(Path::new(&bus), &is_enough));
        let _ends = EndsSender(&is_enough);
        let watch = |arguments: &[&str], words| {
            let mut command = taut(arguments);
            command.args(["--bus", &bus, "--count", "4", "--for", "60s"]);
            let mut running = Running::start(command.stdout(Stdio::piped()), words);
            output_of(&mut running)
        };
        let port = ["--port", "motor.7"];
        watch(&[&["record", &file], &port[..]].concat(), "recording bus");
        let lines = watch(&[&["capture"], &port[..]].concat(), "capturing on bus");
        let fields = " 18 B State position=[0.5, -1.0] mode=65535";
        assert_eq!(
            lines.lines().filter(|line| line.ends_with(fields)).count(),
            2,
            "{lines}"
        );
        let lines = watch(
            &[&["capture", "--json"], &port[..]].concat(),
            "capturing on bus",
        );
        let tapped = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let typed: Vec<Value> = tapped
            .filter(|line: &Value| line["type"] == "State")
            .collect();
        assert_eq!(typed.len(), 2, "{lines}");
        let expected = serde_json::json!({"position": [0.5, -1.0], "mode": 65535});
        assert_eq!(typed[0]["fields"], expected);
    });

    let again = scratch.0.join("again.mcap").to_str().unwrap().to_owned();
    let (status, _, error) = run(&["replay", &file, "--sim", "--write", &again]);
    assert_eq!(status, Some(0), "{error}");
    for file in [&file, &again] {
        let Some(mut messages) = read_typed(file) else {
            return;
        };
        assert_eq!(messages.len(), 4);
        if let Some(foxglove) = read_by_foxglove(file) {
            // In JavaScript -1.0 is -1.
            let figures = |message: &Value| {
                let position = [0, 1].map(|place| message["position"][place].as_f64());
                let rest = ["schema", "type", "mode", "encoding", "data"];
                (position, rest.map(|key| message[key].clone()))
            };
            let [foxglove, others] =
                [&foxglove, &messages].map(|all| all.iter().map(figures).collect::<Vec<_>>());
            assert_eq!(foxglove, others, "Foxglove reads something else");
        }
        // Which of the two came first when the recorder began does not matter.
        messages.sort_by_key(|message| message["schema"].is_null());
        assert_eq!(messages[0]["schema"], "tautline/State");
        assert_eq!(messages[0]["type"], "State { position: f64[2], mode: u16 }");
        assert_eq!(messages[1]["position"], serde_json::json!([0.5, -1.0]));
        assert_eq!(messages[1]["mode"], 65535);
        assert_eq!(messages[2]["data"], "plain");
        assert_eq!(messages[3]["encoding"], "application/octet-stream");
    }
}

/// Standard output of a command that has ended well.
fn output_of(running: &mut Running) -> String {
    let mut text = String::new();
    let stdout = running.child.stdout.take().unwrap();
    BufReader::new(stdout).read_to_string(&mut text).unwrap();
    let (status, said) = running.ended();
    assert_eq!(status, Some(0), "{said}");
    text
}

/// A recording to port 7 of messages with these times.
fn recording_of(path: &Path, times_ns: &[u64]) {
    let flow = Flow {
        on: "eth0".to_owned(),
        from: "02:00:00:00:00:01".to_owned(),
        source_port: 77,
        to: "02:00:00:00:00:02".to_owned(),
        destination_port: 7,
        priority: 3,
        is_sent: true,
    };
    let mut recorder = Recorder::create(path, Existing::Overwritten).unwrap();
    for (number, time_ns) in (0..).zip(times_ns) {
        let message = Message {
            flow: &flow,
            sequence: number,
            time_ns: *time_ns,
            bytes: &time_ns.to_be_bytes(),
        };
        recorder.write(&message, &FlowFacts::default()).unwrap();
    }
    recorder.finish(&[]).unwrap();
}

#[test]
fn messages_are_replayed_in_the_order_of_their_times_and_without_pauses_that_nobody_waits_for() {
    const BEGIN_NS: u64 = 1_700_000_000_000_000_000;
    const MINUTE_NS: u64 = 60_000_000_000;
    let scratch = Scratch::new("replay-times");
    let path = scratch.0.join("times.mcap");
    let file = path.to_str().unwrap();
    let config = scratch.0.join("node.toml");
    let text = "link = \"udp\"\naddress = \"127.0.0.1\"\n[[neighbour]]\nname = \"self\"\nip = \"127.0.0.1\"\n";
    fs::write(&config, text).unwrap();
    let to = ["--to", "self", "--config", config.to_str().unwrap()];
    let replay = |more: &[&str]| run(&[&["replay", file], &to[..], more].concat());

    // Out of order, and at most 4 ms: sorted, nothing is late by the difference.
    let ms = |number: u64| BEGIN_NS + number * 1_000_000;
    recording_of(&path, &[ms(3), ms(1), ms(4), ms(2)]);
    let again = scratch.0.join("again.mcap");
    let (status, _, error) = run(&["replay", file, "--sim", "--write", again.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{error}");
    let mut times = Vec::new();
    let mut sorted = Recording::open(&again).unwrap();
    let played = sorted.play(|_, message| {
        times.push(message.time_ns);
        Ok::<(), RecordingError>(())
    });
    played.unwrap();
    assert_eq!(times, [ms(1), ms(2), ms(3), ms(4)]);

    recording_of(&path, &[0, BEGIN_NS]);
    let (status, out, error) = replay(&[]);
    assert_eq!((status, out.as_str()), (Some(1), ""), "{error}");
    assert!(
        error.contains("message 2 is stamped 472222.2 h after the one before it"),
        "{error}"
    );
    assert!(error.contains("--fast"), "{error}");
    let (status, out, error) = replay(&["--fast"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("2 sent"), "{out}");
    let (status, _, error) = run(&["replay", file, "--sim"]);
    assert_eq!(status, Some(0), "{error}");

    recording_of(&path, &[BEGIN_NS, BEGIN_NS + 90 * MINUTE_NS]);
    let words = [&["replay", file], &to[..]].concat();
    let waiting = Running::start(
        &mut taut(&words),
        "the longest pause is 1.50 h, before message 2",
    );
    assert_eq!(waiting.end().0, Some(130));
}
