//! `taut capture` on flows between hosts and on a bus, its files read by tshark with our dissector.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tautline_state::child::KilledOnDrop;

use tautline::{Node, Priority, Wait};
use tautline_testbed::hosts::{Host, Hosts};

use crate::common::{Running, Scratch, hosts, skipped_without_privilege, text};

const TAUT: &str = env!("CARGO_BIN_EXE_taut");
const NOBODY: u32 = 65_534;

/// A command whose standard output says when it is ready.
struct Server {
    _child: KilledOnDrop,
}

impl Server {
    fn start(command: &mut Command, words: &str) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains(words));
        assert!(ready, "it ended before it said {words}");
        // Its later output must find a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Server {
            _child: KilledOnDrop(child),
        }
    }
}

fn taut(hosts: &Hosts, host: Host, arguments: &[&str]) -> Command {
    let mut command = hosts.command(host, TAUT);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A capture on the first host's cable, into a file.
fn capturing(hosts: &Hosts, file: &Path) -> Running {
    let path = file.to_str().unwrap();
    let arguments = ["capture", "--interface", "taut0", "--write", path];
    Running::start(&mut taut(hosts, Host::A, &arguments), "capturing on taut0")
}

/// Sends `count` messages to the other host's echo and gets them back.
fn ping(hosts: &Hosts, from: Host, node: &[&str], to: &str, size: &str, count: &str) {
    let size = format!("{size}B");
    let mut arguments = vec!["ping", to, "--size", &size, "--count", count];
    arguments.extend(["--interval", "1ms", "--timeout", "10s"]);
    arguments.extend(node);
    let output: Output = taut(hosts, from, &arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// Fields of the packets of a file, by tshark with our dissector. Nothing where it is not installed.
fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<BTreeMap<String, String>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/wireshark/tautline.lua");
    let mut command = Command::new("tshark");
    command
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(file)
        .args(["-N", "n", "-T", "fields", "-E", "separator=|"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let Ok(output) = command.output() else {
        println!("SKIPPED: tshark is not installed");
        return None;
    };
    let said = text(&output.stderr);
    assert!(output.status.success() && !said.contains("Lua"), "{said}");
    let rows = text(&output.stdout);
    let row = |line: &str| {
        let values = line.split('|').map(str::to_owned);
        fields
            .iter()
            .map(|field| (*field).to_owned())
            .zip(values)
            .collect()
    };
    Some(rows.lines().map(row).collect())
}

fn number(row: &BTreeMap<String, String>, field: &str) -> u64 {
    let digits = row[field].trim_start_matches("0x");
    let radix = if digits == row[field] { 10 } else { 16 };
    u64::from_str_radix(digits, radix).unwrap_or_else(|_| panic!("{field}: {row:?}"))
}

/// Sent and received packets of a file, told by their flags.
fn ways(rows: &[BTreeMap<String, String>]) -> (usize, usize) {
    let way = |wanted| {
        let is_that =
            |row: &&BTreeMap<String, String>| number(row, "frame.packet_flags") & 3 == wanted;
        rows.iter().filter(is_that).count()
    };
    (way(2), way(1))
}

const FIELDS: [&str; 7] = [
    "frame.packet_flags",
    "tautline.source",
    "tautline.destination",
    "tautline.sequence",
    "tautline.loss.lost",
    "tautline.whole_length",
    "_ws.expert.message",
];

/// MAC address of a host.
fn mac(hosts: &Hosts, host: Host) -> String {
    let bytes = hosts.end(host, 0).mac();
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// Frames of one message of 64 bytes, twenty times, and of one of 3,000 bytes, five times.
const FRAMES: usize = 20 + 5 * 3;

#[test]
fn both_ways_of_a_flow_are_captured_on_every_link() {
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture");
    for link in ["xdp", "xsk", "packet", "udp"] {
        let node = match link {
            "udp" => ["--address", "10.77.0.1"].to_vec(),
            _ => ["--link", link, "--interface", "taut0"].to_vec(),
        };
        let echo = [&["echo"], &node[..]].concat();
        let _echo = Server::start(&mut taut(&hosts, Host::A, &echo), "answering on port");
        let file = scratch.0.join(format!("{link}.pcapng"));
        let capture = capturing(&hosts, &file);
        let mut forms = vec!["10.77.0.1".to_owned()];
        if link != "udp" {
            forms.push(mac(&hosts, Host::A));
        }
        for to in &forms {
            for (size, count) in [("64", "20"), ("3000", "5")] {
                ping(&hosts, Host::B, &["--interface", "taut0"], to, size, count);
            }
        }
        let (status, said) = capture.end();
        assert_eq!(status, Some(0), "{link}: {said}");
        let expected = forms.len() * FRAMES;
        let Some(rows) = tshark(&file, &FIELDS) else {
            return;
        };
        let sent = expected;
        assert_eq!(ways(&rows), (sent, expected), "{link}: {said}");
        assert!(
            said.contains(&format!("{} captured, 0 lost", sent + expected)),
            "{link}: {said}"
        );
        let whole = rows
            .iter()
            .filter(|row| row["tautline.whole_length"] == "3000")
            .count();
        assert_eq!(whole, 5 * (sent + expected) / FRAMES, "{link}");
        for row in &rows {
            assert_eq!(number(row, "tautline.loss.lost"), 0, "{link}: {row:?}");
            assert!(
                !row["_ws.expert.message"].contains("malformed"),
                "{link}: {row:?}"
            );
        }
    }
}

#[test]
fn clients_of_a_control_process_are_captured_and_a_demux_that_begins_later() {
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture-clients");
    let config = scratch.0.join("node.toml");
    fs::write(&config, "interface = \"taut0\"\n").unwrap();
    let file = scratch.0.join("f.pcapng");
    let capture = capturing(&hosts, &file);
    let run = ["node", "run", "--config", config.to_str().unwrap()];
    let _control = Server::start(&mut taut(&hosts, Host::A, &run), "serving clients");
    let echo = ["echo", "--interface", "taut0"];
    let _echo = Server::start(&mut taut(&hosts, Host::A, &echo), "answering on port");
    // Far longer than the time between two looks at which programs there are.
    std::thread::sleep(std::time::Duration::from_secs(2));
    ping(
        &hosts,
        Host::B,
        &["--interface", "taut0"],
        &mac(&hosts, Host::A),
        "64",
        "20",
    );
    let (status, said) = capture.end();
    assert_eq!(status, Some(0), "{said}");
    let Some(rows) = tshark(&file, &FIELDS) else {
        return;
    };
    assert_eq!(ways(&rows), (20, 20), "{said} {rows:?}");
}

#[test]
fn a_capture_and_a_recording_outlive_the_node_that_they_watch() {
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture-dies");
    let (file, recorded) = (scratch.0.join("f.pcapng"), scratch.0.join("f.mcap"));
    let echo = ["echo", "--interface", "taut0"];
    let start = || Server::start(&mut taut(&hosts, Host::A, &echo), "answering on port");
    let first = start();
    let capture = capturing(&hosts, &file);
    let record = ["record", recorded.to_str().unwrap(), "-i", "taut0"];
    let record = Running::start(&mut taut(&hosts, Host::A, &record), "recording taut0");
    let to = mac(&hosts, Host::A);
    let from = ["--interface", "taut0"];
    ping(&hosts, Host::B, &from, &to, "64", "20");
    // Killed, and another one in its place.
    drop(first);
    let _second = start();
    // Far longer than the time between two looks at which programs there are.
    std::thread::sleep(std::time::Duration::from_secs(2));
    ping(&hosts, Host::B, &from, &to, "64", "20");
    let (status, said) = record.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("80 recorded, 0 lost, 0 incomplete"), "{said}");
    let (status, said) = capture.end();
    assert_eq!(status, Some(0), "{said}");
    let Some(rows) = tshark(&file, &FIELDS) else {
        return;
    };
    assert_eq!(ways(&rows), (40, 40), "{said}");
}

#[test]
fn datagrams_of_a_udp_port_are_captured_alone() {
    const COUNT: usize = 10;
    const PORT: u16 = 5_000;
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture-udp");
    let ip = hosts.end(Host::A, 0).address();
    let config = format!(
        "interface = \"taut0\"\nlink = \"xdp\"\n[[port]]\nname = \"sensor\"\nkind = \"udp\"\nnumber = {PORT}\n"
    );
    let opened = hosts.inside(Host::A, || {
        let node = Node::open(config.parse().unwrap()).unwrap();
        let port = node.udp("sensor").open().unwrap();
        (node, port)
    });
    let (_node, mut port) = opened.unwrap();
    let (file, lines) = (scratch.0.join("f.pcapng"), scratch.0.join("lines"));
    let key = format!("udp:{PORT}");
    let json = format!("--json={}", lines.display());
    let capture = ["capture", "-i", "taut0", "--port", &key];
    let mut capture = taut(&hosts, Host::A, &capture);
    let capture = capture.args([&json, "-w"]).arg(&file);
    let capture = Running::start(capture, "capturing on taut0");
    let send = |to: u16| {
        let sender = hosts.inside(Host::B, || UdpSocket::bind("0.0.0.0:0").unwrap());
        let sender = sender.unwrap();
        for _ in 0..COUNT {
            sender.send_to(&[7; 33], (ip, to)).unwrap();
        }
        sender.local_addr().unwrap().port()
    };
    // Of another port, which is not open.
    send(PORT + 1);
    let from = send(PORT);
    let mut buffer = [0; 1_500];
    for _ in 0..COUNT {
        let datagram = port.receive_into(&mut buffer, Wait::Forever);
        assert_eq!(datagram.unwrap().unwrap().length, 33);
    }
    let (status, said) = capture.end();
    assert_eq!(status, Some(0), "{said}");
    let lines = fs::read_to_string(lines).unwrap();
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let datagrams: Vec<_> = lines.lines().map(line).collect();
    assert_eq!(datagrams.len(), COUNT, "{lines}");
    for datagram in datagrams {
        assert_eq!(datagram["to"]["udp_port"], PORT, "{datagram}");
        assert_eq!(datagram["from"]["udp_port"], from, "{datagram}");
        assert_eq!(datagram["bytes"], 33, "{datagram}");
    }
    let Some(rows) = tshark(&file, &["udp.dstport"]) else {
        return;
    };
    let is_frame = |row: &&BTreeMap<String, String>| row["udp.dstport"] == PORT.to_string();
    assert_eq!(rows.iter().filter(is_frame).count(), COUNT, "{rows:?}");
}

#[test]
fn lines_name_the_ports_and_a_port_is_watched_alone() {
    let Some(hosts) = hosts() else { return };
    let echo = |port| {
        let echo = ["echo", "--interface", "taut0", "--port", port];
        taut(&hosts, Host::A, &echo)
    };
    let _echo = Server::start(&mut echo("70"), "answering on port");
    let capture = [
        "capture",
        "--interface",
        "taut0",
        "--port",
        "70",
        "--json",
        "--count",
        "4",
    ];
    let mut capture = taut(&hosts, Host::A, &capture);
    let mut capture = Running::start(capture.stdout(Stdio::piped()), "capturing on taut0");
    let to = mac(&hosts, Host::A);
    ping(
        &hosts,
        Host::B,
        &["--interface", "taut0", "--port", "70"],
        &to,
        "9",
        "2",
    );
    let (status, said) = capture.ended();
    assert_eq!(status, Some(0), "{said}");
    let mut lines = String::new();
    capture
        .child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut lines)
        .unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (line, way) in lines.iter().zip(["in", "out", "in", "out"]) {
        let own = if way == "in" { "to" } else { "from" };
        assert_eq!(
            (&line["way"], &line[own]["port"]),
            (&way.into(), &70.into()),
            "{line}"
        );
        assert_eq!(line[own]["address"], to.as_str());
        assert_eq!(
            (&line["bytes"], &line["on"]),
            (&9.into(), &"taut0".into()),
            "{line}"
        );
    }
}

#[test]
fn ports_and_neighbours_are_called_by_their_names() {
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture-names");
    let ip = |host| hosts.end(host, 0).address();
    let config = format!(
        "interface = \"taut0\"\nlink = \"xdp\"\n[[neighbour]]\nname = \"motor\"\nmac = \"{}\"\n\
         ip = \"{}\"\nform = \"udp\"\n[[port]]\nname = \"command\"\nnumber = 8\nkind = \"queuing\"\n",
        mac(&hosts, Host::B),
        ip(Host::B)
    );
    let opened = hosts.inside(Host::A, || {
        let node = Node::open(config.parse().unwrap()).unwrap();
        let port = node.queuing("command").open().unwrap();
        (node, port)
    });
    let (_node, mut port) = opened.unwrap();
    let to = port.destination("motor", 9).unwrap();
    let command = fs::read_to_string("/proc/self/comm").unwrap();
    let file = scratch.0.join("f.pcapng");
    let mut capture = |more: &[&str]| {
        let capture = ["capture", "-i", "taut0", "--count", "1"];
        let mut capture = taut(&hosts, Host::A, &capture);
        capture.args(more).stdout(Stdio::piped());
        let mut capture = Running::start(&mut capture, "capturing on taut0");
        port.send(to, Priority::NORMAL, b"stop").unwrap();
        let (status, said) = capture.ended();
        assert_eq!(status, Some(0), "{said}");
        let mut lines = String::new();
        let mut stdout = capture.child.stdout.take().unwrap();
        stdout.read_to_string(&mut lines).unwrap();
        lines
    };
    let line = capture(&[]);
    let ends = format!(
        " {} port 8 (command) > motor port 9 priority ",
        command.trim()
    );
    assert!(line.contains(&ends), "{line}");
    let line: serde_json::Value = serde_json::from_str(&capture(&["--json"])).unwrap();
    assert_eq!(line["from"]["port_name"], "command", "{line}");
    assert_eq!(line["to"]["name"], "motor", "{line}");
    assert_eq!(line["to"]["address"], ip(Host::B).to_string(), "{line}");
    capture(&["-w", file.to_str().unwrap()]);
    let Some(rows) = tshark(&file, &["ip.dst_host", "tautline.source"]) else {
        return;
    };
    assert_eq!(rows[0]["ip.dst_host"], "motor", "{rows:?}");
    assert_eq!(number(&rows[0], "tautline.source"), 8, "{rows:?}");
}

#[test]
fn a_file_says_the_types_of_ports_whose_nodes_tell_none() {
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture-types");
    let file = scratch.0.join("types.toml");
    let types = "[[type]]\nname = \"Pair\"\nfields = [\"a: u8\", \"b: i8[7]\"]\n\
        [[port]]\nname = \"p\"\nnumber = 70\nkind = \"queuing\"\ntype = \"Pair\"\n";
    fs::write(&file, format!("interface = \"taut0\"\n{types}")).unwrap();
    let echo = ["echo", "--interface", "taut0", "--port", "70"];
    let _echo = Server::start(&mut taut(&hosts, Host::A, &echo), "answering on port");
    let file = file.to_str().unwrap();
    let capture = ["capture", "-i", "taut0", "--port", "70", "--config", file];
    let mut capture = taut(&hosts, Host::A, &capture);
    capture.args(["--json", "--count", "4"]);
    let mut capture = Running::start(capture.stdout(Stdio::piped()), "capturing on taut0");
    let to = mac(&hosts, Host::A);
    let own = ["--interface", "taut0", "--port", "70"];
    // The second has another size than the type.
    for size in ["8", "9"] {
        ping(&hosts, Host::B, &own, &to, size, "1");
    }
    let (status, said) = capture.ended();
    assert_eq!(status, Some(0), "{said}");
    let lines = BufReader::new(capture.child.stdout.take().unwrap()).lines();
    let lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    for (line, is_typed) in lines.iter().zip([true, true, false, false]) {
        assert_eq!(line["type"] == "Pair", is_typed, "{line}");
        assert_eq!(line["fields"]["b"].is_array(), is_typed, "{line}");
    }
    let output = Command::new(TAUT)
        .args(["capture", "-i", "lo", "--config", "/nowhere.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nowhere.toml"));
}

#[test]
fn messages_of_a_bus_are_captured_without_privilege() {
    let scratch = Scratch::new("capture-bus");
    let bus = scratch.0.join("bus");
    let bus = bus.to_str().unwrap();
    let file = scratch.0.join("f.pcapng");
    let config = scratch.0.join("motor.toml");
    fs::write(
        &config,
        format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"motor\"\n"),
    )
    .unwrap();
    let mut echo = Command::new(TAUT);
    let _echo = Server::start(
        echo.args(["echo", "--config", config.to_str().unwrap()]),
        "answering on port",
    );
    let mut capture = Command::new(TAUT);
    capture.args(["capture", "--bus", bus, "--port", "motor.4095"]);
    capture.args(["-w", file.to_str().unwrap()]);
    let capture = Running::start(&mut capture, "capturing on bus");
    // Long enough that who sends is found.
    let ping = Command::new(TAUT)
        .args([
            "ping",
            "motor",
            "--bus",
            bus,
            "--count",
            "400",
            "--interval",
            "2ms",
        ])
        .output()
        .unwrap();
    assert!(ping.status.success(), "{}", text(&ping.stderr));
    let (status, said) = capture.end();
    assert_eq!(status, Some(0), "{said}");
    let fields = [
        "tautline_bus.to",
        "tautline_bus.destination",
        "tautline_bus.sequence",
    ];
    let Some(rows) = tshark(&file, &fields) else {
        return;
    };
    // A sender is found a while after its first message. Those that were gone by then are counted as lost.
    let words: Vec<&str> = said.split_whitespace().collect();
    let count = |word: &str| -> usize {
        let at = words.iter().position(|one| *one == word).unwrap();
        words[at - 1].parse().unwrap()
    };
    assert_eq!(count("captured,"), rows.len(), "{said}");
    assert_eq!(count("captured,") + count("lost"), 400, "{said}");
    assert!(!rows.is_empty(), "{said}");
    for row in &rows {
        assert_eq!(
            (
                row["tautline_bus.to"].as_str(),
                row["tautline_bus.destination"].as_str()
            ),
            ("motor", "4095")
        );
    }
    let sequences: Vec<u64> = rows
        .iter()
        .map(|row| number(row, "tautline_bus.sequence"))
        .collect();
    assert!(sequences.is_sorted(), "{sequences:?}");
}

#[test]
fn a_full_disk_ends_the_capture_with_a_whole_file() {
    let Some(hosts) = hosts() else { return };
    let scratch = Scratch::new("capture-full");
    let (small, kept) = (scratch.0.join("small"), scratch.0.join("kept.pcapng"));
    fs::create_dir(&small).unwrap();
    // The file system goes with the mount namespace.
    let script = "mount -t tmpfs -o size=64k none $1 && { \
        $2 capture -i taut0 -w $1/f; status=$?; cp $1/f $3; exit $status; }";
    let mut capture = hosts.command(Host::A, "unshare");
    capture.args(["-m", "sh", "-c", script, "sh"]);
    capture.args([small.as_os_str(), TAUT.as_ref(), kept.as_os_str()]);
    let echo = ["echo", "--interface", "taut0"];
    let _echo = Server::start(&mut taut(&hosts, Host::A, &echo), "answering on port");
    let mut capture = Running::start(&mut capture, "capturing on taut0");
    ping(
        &hosts,
        Host::B,
        &["--interface", "taut0"],
        &mac(&hosts, Host::A),
        "1400",
        "60",
    );
    let (status, said) = capture.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("No space left") && said.contains("what to do"),
        "{said}"
    );
    assert!(fs::metadata(&kept).unwrap().len() > 32 << 10, "{said}");
    let Some(rows) = tshark(&kept, &FIELDS) else {
        return;
    };
    assert!(rows.len() > 20, "{}", rows.len());
    assert!(rows.iter().all(|row| !row["tautline.sequence"].is_empty()));
}

#[test]
fn a_full_device_is_an_error_and_a_reader_that_goes_is_an_end() {
    let Some(hosts) = hosts() else { return };
    let [a, b] = [Host::A, Host::B].map(|host| hosts.end(host, 0).interface());
    let peer = mac(&hosts, Host::B);
    let send = || {
        let sent = taut(
            &hosts,
            Host::A,
            &["send", &peer, "7", "x", "--interface", &a],
        )
        .output();
        assert!(sent.unwrap().status.success());
    };
    let begin = |arguments: &[&str], to: Stdio| {
        let mut command = taut(
            &hosts,
            Host::B,
            &[&["capture", "-i", &b], arguments].concat(),
        );
        let mut capture = command.stdout(to).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(capture.stderr.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("capturing"));
        (capture, lines)
    };
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for arguments in [&[][..], &["--json"]] {
        let (mut capture, lines) = begin(arguments, full());
        send();
        assert_eq!(capture.wait().unwrap().code(), Some(1), "{arguments:?}");
        let said: Vec<String> = lines.map(Result::unwrap).collect();
        let is_named = said
            .iter()
            .any(|line| line.contains("cannot write to standard output"));
        assert!(is_named, "{arguments:?}: {said:?}");
    }
    for arguments in [&[][..], &["--json"]] {
        let (mut capture, _lines) = begin(arguments, Stdio::piped());
        drop(capture.stdout.take());
        send();
        assert_eq!(capture.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn missing_rights_and_interfaces_are_told_with_a_remedy() {
    if skipped_without_privilege() {
        return;
    }
    for name in ["nosuch0", "a name that is longer than any"] {
        let output = Command::new(TAUT).args(["capture", "-i", name]).output();
        let said = text(&output.unwrap().stderr);
        assert!(said.contains("no interface"), "{said}");
    }
    let mut stranger = Command::new(TAUT);
    stranger
        .args(["capture", "-i", "lo"])
        .uid(NOBODY)
        .gid(NOBODY);
    let output = stranger.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("does not let this process") && said.contains("run as root"),
        "{said}"
    );
}
