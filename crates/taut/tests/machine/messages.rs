//! ping, echo, send, recv and status as a user or a script runs them.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::signal_process;

use crate::common::{hosts, run, started, taut, text};

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

#[test]
fn a_wrong_file_is_no_wrong_machine() {
    let made = tautline_state::TemporaryDirectory::make("taut-wrong").unwrap();
    let port = "interface = \"lo\"\n[[port]]\nkind = \"sampling\"\n";
    let named = format!("{port}name = \"state\"\n");
    for (text, said) in [
        (
            String::new(),
            "names no `interface`, no `address` and no `bus`",
        ),
        (
            format!("{port}name = \"\"\nnumber = 7\n"),
            "a name of one letter or more",
        ),
        (
            format!("{named}number = 7\nrefresh_period_us = 0\n"),
            "makes every value invalid",
        ),
        (
            format!("{named}number = 99999999999999999999\n"),
            "not the number `99999999999999999999`\n",
        ),
    ] {
        let file = made.path().join("node.toml");
        std::fs::write(&file, &text).unwrap();
        let file = file.to_str().unwrap();
        let output = run(&["recv", "7", "--timeout", "100ms", "--config", file]);
        let printed = self::text(&output.stderr);
        assert!(printed.contains(said), "{text}: {printed}");
        assert_eq!(output.status.code(), Some(2), "{printed}");
    }
}

fn inside(hosts: &Hosts, host: Host, arguments: &[&str]) -> Command {
    let mut command = hosts.command(host, TAUT);
    command.args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn what_a_killed_smoother_of_a_namespace_that_is_gone_left_is_removed() {
    let Some(hosts) = hosts() else { return };
    if taut::namespaces::network_namespaces().is_none() {
        println!("SKIPPED: not all network namespaces can be seen from this process namespace");
        return;
    }
    let (near, far) = (hosts.end(Host::A, 0), hosts.end(Host::B, 0));
    let config = std::env::temp_dir().join(format!("taut-gone-{}.toml", std::process::id()));
    let file = format!(
        "interface = \"{}\"\n[[neighbour]]\nname = \"peer\"\nmac = \"{}\"\n[smoother]\ncapacity_bps = 100_000_000\n",
        near.interface(),
        far.mac().map(|byte| format!("{byte:02x}")).join(":"),
    );
    std::fs::write(&config, file).unwrap();
    let mut smoother = inside(&hosts, Host::A, &["smooth", "run", "--config"]);
    let mut smoother = smoother
        .arg(&config)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let namespace = hosts.inside(Host::A, tautline_state::own_network_namespace);
    let journal = format!(
        "smoother-{}-{}.json",
        namespace.unwrap().unwrap(),
        near.interface()
    );
    // An interface there was tuned as well, and with it a setting of the machine: of this process, as an example.
    let tuned = journal.replace("smoother", "tune");
    let setting = format!("/proc/{}/oom_score_adj", std::process::id());
    let before = std::fs::read_to_string(&setting).unwrap();
    let change = json!({
        "version": 1, "pid": 0, "started_ticks": 0, "groups": [], "directories": [], "trace_instances": [],
        "network": [], "settings": [{
            "setting": { "File": setting }, "before": before.trim(), "value": { "Exactly": "500" }, "order": 1,
        }],
    });
    let runtime = tautline_state::runtime_directory().unwrap();
    runtime
        .write(&tuned, change.to_string().as_bytes(), 0o600)
        .unwrap();
    std::fs::write(&setting, "500").unwrap();
    let mut line = String::new();
    BufReader::new(smoother.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    smoother.kill().unwrap();
    smoother.wait().unwrap();
    std::fs::remove_file(&config).unwrap();
    let doctor = |more: &[&str]| text(&run(&[&["doctor"], more].concat()).stdout);
    assert!(
        !doctor(&[]).contains(&journal),
        "its namespace can be entered"
    );
    drop(hosts);
    let said = doctor(&[]);
    assert!(
        said.contains(&format!("{journal}, of a network namespace that is gone")),
        "{said}"
    );
    let done = doctor(&["--put-back"]);
    for file in [&journal, &tuned] {
        assert!(done.contains(&format!("{file} removed")), "{done}");
    }
    assert_eq!(std::fs::read_to_string(&setting).unwrap(), before, "{done}");
    assert!(!doctor(&[]).contains(&journal));
}

#[test]
fn a_ping_without_privilege_comes_back_whatever_its_size() {
    let mut echo = taut(&["echo", "--address", "127.0.10.1"]);
    let _echo = started(&mut echo, "answering on port 4095", false);
    for (own, size) in [
        ("127.0.10.3", "8B"),
        ("127.0.10.4", "64B"),
        ("127.0.10.5", "5000B"),
        ("127.0.10.6", "65536B"),
    ] {
        let output = run(&[
            "ping",
            "127.0.10.1",
            "--address",
            own,
            "--count",
            "3",
            "--interval",
            "1ms",
            "--timeout",
            "10s",
            "--size",
            size,
            "--json",
        ]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&json["sent"], &json["lost"]),
            (&3.into(), &0.into()),
            "{json}"
        );
        assert!(json["p50_ns"].as_u64().unwrap() > 0);
        assert_eq!(json["link"]["link"], "udp");
    }
    let output = run(&[
        "ping",
        "127.0.10.1",
        "--address",
        "127.0.10.2",
        "--count",
        "2",
        "--interval",
        "1ms",
        "--timeout",
        "10s",
    ]);
    let lines = text(&output.stdout);
    assert!(
        lines.starts_with("link udp"),
        "the active path comes first: {lines}"
    );
    assert!(lines.contains("2 sent, 2 answered, 0.0 % lost"), "{lines}");
    assert!(lines.contains("p99"), "{lines}");
}

#[test]
fn a_ping_between_hosts_takes_names_and_addresses() {
    let Some(hosts) = hosts() else { return };
    let (a, b) = (hosts.end(Host::A, 0), hosts.end(Host::B, 0));
    let interface = a.interface();
    let mut echo = inside(&hosts, Host::B, &["echo", "--interface", &interface]);
    let echo = started(&mut echo, "answering on port 4095", false);

    let mac = b.mac().map(|byte| format!("{byte:02x}")).join(":");
    let ip = b.address().to_string();
    let file = std::env::temp_dir().join(format!("taut-ping-{}.toml", std::process::id()));
    std::fs::write(
        &file,
        format!("interface = \"{interface}\"\n[[neighbour]]\nname = \"motor\"\nmac = \"{mac}\"\n"),
    )
    .unwrap();
    let config = file.to_str().unwrap();
    for (peer, node) in [
        (mac.as_str(), ["--interface", &interface]),
        (&ip, ["--interface", &interface]),
        ("motor", ["--config", config]),
        // The kernel's sockets at this end, the demux at the other.
        (&ip, ["--address", "10.77.0.1"]),
    ] {
        let arguments = [
            "ping",
            peer,
            node[0],
            node[1],
            "--count",
            "2",
            "--interval",
            "1ms",
            "--timeout",
            "10s",
        ];
        let output = inside(&hosts, Host::A, &arguments).output().unwrap();
        let lines = text(&output.stdout);
        assert!(
            output.status.success(),
            "{peer}: {lines}{}",
            text(&output.stderr)
        );
        assert!(lines.contains("2 sent, 2 answered"), "{peer}: {lines}");
    }
    std::fs::remove_file(file).unwrap();

    let status = inside(&hosts, Host::B, &["status", "--json"])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&status.stdout).unwrap();
    let node = &json["nodes"][0];
    assert_eq!(node["process"], echo.0.id());
    assert_eq!(node["interface"], interface);
    assert_eq!(node["ports"][0]["key"], "4095");
    assert_eq!(node["ports"][0]["received"], 8);

    // The port is taken, and by whom is said.
    let second = inside(&hosts, Host::B, &["echo", "--interface", &interface])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let error = text(&second.stderr);
    let holder = format!("port 4095 is taken by process {} (taut)", echo.0.id());
    assert!(
        error.contains(&holder) && error.contains("what to do"),
        "{error}"
    );
}

#[test]
fn datagrams_of_any_program_are_echoed() {
    let mut echo = taut(&["echo", "--address", "127.0.12.1", "--udp", "7907"]);
    let _echo = started(&mut echo, "answering on UDP port 7907", false);
    let asks = std::net::UdpSocket::bind("127.0.12.2:0").unwrap();
    asks.set_read_timeout(Some(std::time::Duration::from_secs(10)))
        .unwrap();
    for message in ["state", ""] {
        asks.send_to(message.as_bytes(), "127.0.12.1:7907").unwrap();
        let mut buffer = [0; 16];
        let (length, from) = asks.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], message.as_bytes());
        assert_eq!(from.to_string(), "127.0.12.1:7907");
    }
}

#[test]
fn status_shows_the_port_while_echo_runs() {
    let mut echo = taut(&["echo", "--address", "127.0.11.1", "--port", "77"]);
    let echo = started(&mut echo, "answering on port 77", false);
    let process = format!("node of process {} (taut)", echo.0.id());
    let shown = text(&run(&["status"]).stdout);
    for line in [
        "copies of a message: 3 in, 2 out; lent: 2 in, 1 out",
        "copies of a datagram of plain UDP: 3 in, 2 out; lent: 2 in, 1 out",
        "send buffers of",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(
        shown.contains(&process) && shown.contains("127.0.11.1"),
        "{shown}"
    );
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with(" 77 ") && line.contains("queuing")),
        "{shown}"
    );
    let json: Value = serde_json::from_slice(&run(&["status", "--json"]).stdout).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert!(nodes.iter().any(|node| node["process"] == echo.0.id()
        && node["ports"][0]["key"] == "77"
        && node["capabilities"]["copies"]["send_lent"] == 1
        && node["send_pool"]["sizes"][0]["lent"] == 0));
    drop(echo);
    assert!(!text(&run(&["status"]).stdout).contains(&process));
}

#[test]
fn an_echo_outlives_more_peers_than_a_port_has_room_for() {
    let mut echo = taut(&["echo", "--address", "127.0.16.1"]);
    let echo = started(&mut echo, "answering on port 4095", false);
    // Each on an address of its own: another peer each time.
    for last in 2..70 {
        let own = format!("127.0.16.{last}");
        let output = run(&["ping", "127.0.16.1", "--address", &own, "--count", "1"]);
        assert!(output.status.success(), "{own}: {}", text(&output.stderr));
    }
    drop(echo);
}

#[test]
fn status_says_when_there_is_none() {
    let Some(hosts) = hosts() else { return };
    let output = inside(&hosts, Host::A, &["status"]).output().unwrap();
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("no node is open"));
}

/// Standard output of a `recv` that runs while `send` does.
fn received(receive: &[&str], send: &mut dyn FnMut()) -> (Option<i32>, String) {
    let mut running = started(&mut taut(receive), "listening on port", true);
    send();
    let mut output = String::new();
    running
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    (running.0.wait().unwrap().code(), output)
}

#[test]
fn what_is_sent_is_received() {
    let send = |arguments: &[&str]| {
        let output = run(&[
            &["send", "127.0.12.1", "100", "--address", "127.0.12.2"],
            arguments,
        ]
        .concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let receive = ["recv", "100", "--address", "127.0.12.1", "--timeout", "30s"];

    let (code, output) = received(&[&receive[..], &["--count", "2"]].concat(), &mut || {
        send(&["one"]);
        send(&["two"]);
    });
    assert_eq!((code, output.as_str()), (Some(0), "one\ntwo\n"));

    let (code, output) = received(&[&receive[..], &["--json"]].concat(), &mut || {
        send(&["AB", "--priority", "6"]);
    });
    let json: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(json["payload"], "4142");
    assert_eq!(json["priority"], 6);

    let (code, output) = received(
        &[&receive[..], &["--sampling", "--hex"]].concat(),
        &mut || {
            let mut child = taut(&["send", "127.0.12.1", "100", "--address", "127.0.12.2"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(&[0, 255, 16])
                .unwrap();
            assert!(child.wait().unwrap().success());
        },
    );
    assert_eq!((code, output.as_str()), (Some(0), "00ff10\n"));
}

/// Frames of another protocol, between hosts on each link that has them.
#[test]
fn frames_are_sent_and_received_from_the_shell() {
    let Some(hosts) = hosts() else { return };
    let interface = hosts.end(Host::A, 0).interface();
    let mac = |host| {
        let mac = hosts.end(host, 0).mac().map(|byte| format!("{byte:02x}"));
        mac.join(":")
    };
    let (a, b) = (mac(Host::A), mac(Host::B));
    let node = |link| ["--raw", "0x88b4", "--interface", &interface, "--link", link];
    for (link, sees_tags) in [("packet", false), ("xdp", true), ("xsk", true)] {
        let send = |peer: &str, more: &[&str]| {
            let arguments = [&["send", peer][..], &node(link), more].concat();
            let sent = inside(&hosts, Host::A, &arguments).output().unwrap();
            assert!(sent.status.success(), "{link}: {}", text(&sent.stderr));
        };
        let receive = |more: &[&str], send: &dyn Fn()| {
            let arguments = [&["recv"][..], &node(link), &["--timeout", "30s"], more].concat();
            let mut command = inside(&hosts, Host::B, &arguments);
            let mut running = started(&mut command, "listening for frames of 0x88b4", true);
            send();
            let mut output = String::new();
            let mut said = running.0.stdout.take().unwrap();
            said.read_to_string(&mut output).unwrap();
            assert!(running.0.wait().unwrap().success());
            output
        };
        let lines = receive(&["--count", "2"], &|| {
            send(&b, &["--hex", "02:07 04"]);
            send("ff:ff:ff:ff:ff:ff", &["--hex", "ffeedd", "--priority", "6"]);
        });
        // A virtual cable does not pad.
        let priority = if sees_tags { 6 } else { 0 };
        let expected = format!(
            "{a} to {b}, priority 0, 3 bytes: 02 07 04\n\
             {a} to ff:ff:ff:ff:ff:ff, priority {priority}, 3 bytes: ff ee dd\n"
        );
        // The more urgent one may have overtaken the other.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&lines), sorted(&expected), "{link}");
        let whole = receive(&["--hex"], &|| send(&b, &["--hex", "0a0b"]));
        let both = [&b, &a].map(|mac| mac.replace(':', "")).concat();
        assert_eq!(whole, format!("{both}88b40a0b\n"), "{link}");
        let json = receive(&["--json"], &|| send(&b, &["--hex", "0a"]));
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["source"], a.as_str());
        assert_eq!(json["destination"], b.as_str());
        assert_eq!(
            (json["bytes"].as_u64(), json["priority"].as_u64()),
            (Some(15), Some(0))
        );
    }
}

/// A port of the configuration is opened as what the command wants, and keeps its name.
#[test]
fn a_port_of_the_file_is_received_from_under_its_name() {
    let file = std::env::temp_dir().join(format!("taut-recv-{}.toml", std::process::id()));
    let text_of_file = "address = \"127.0.12.5\"\nlink = \"udp\"\n\n\
                        [[port]]\nname = \"recv_by_name\"\nnumber = 100\nkind = \"sampling\"\n\
                        [[port]]\nname = \"recv_all\"\nnumber = 101\nkind = \"queuing\"\n";
    std::fs::write(&file, text_of_file).unwrap();
    let config = file.to_str().unwrap();
    for (number, name, more, kind) in [
        ("100", "recv_by_name", &[][..], "sampling"),
        ("101", "recv_all", &[], "queuing"),
        ("101", "recv_all", &["--sampling"], "sampling"),
    ] {
        let receive = ["recv", number, "--config", config, "--timeout", "30s"];
        let (code, output) = received(&[&receive[..], more].concat(), &mut || {
            let status = run(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&status.stdout).unwrap();
            let nodes = status["nodes"].as_array().unwrap();
            let ports = nodes.iter().filter_map(|node| node["ports"].as_array());
            let mut ports = ports.flatten();
            let port = ports.find(|port| port["name"] == name);
            assert_eq!(port.expect("it has its name")["kind"], kind);
            let to = [
                "send",
                "127.0.12.5",
                number,
                "--address",
                "127.0.12.2",
                "hi",
            ];
            assert!(run(&to).status.success());
        });
        assert_eq!((code, output.as_str()), (Some(0), "hi\n"));
    }
    std::fs::remove_file(&file).unwrap();
}

/// With a file, the name of a port is as good as its number. Digits are a number, though a port has them as its name.
#[test]
fn a_port_of_the_file_is_named() {
    let scratch = crate::common::Scratch::new("port-names");
    let write = |name: &str, address: &str, ports: &str| {
        let file = scratch.0.join(name);
        let text = format!("address = \"{address}\"\nlink = \"udp\"\n{ports}");
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let ports = "[[port]]\nname = \"command\"\nnumber = 102\nkind = \"queuing\"\n\
                 [[port]]\nname = \"4094\"\nnumber = 103\nkind = \"queuing\"\n";
    let here = write("here.toml", "127.0.12.7", ports);
    let there = write("there.toml", "127.0.12.8", ports);
    let bare = write("bare.toml", "127.0.12.9", "");
    let send = |arguments: &[&str], config: &str| {
        run(&[&["send", "127.0.12.7"], arguments, &["--config", config]].concat())
    };

    let receive = ["recv", "command", "--config", &here, "--timeout", "30s"];
    let (code, output) = received(&[&receive[..], &["--json"]].concat(), &mut || {
        let sent = send(&["command", "hi", "--from", "command"], &there);
        assert!(sent.status.success(), "{}", text(&sent.stderr));
    });
    let json: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, &json["payload"]), (Some(0), &"6869".into()));
    assert_eq!(json["source"]["port"], 102, "{json}");

    let mut echo = taut(&["echo", "--config", &here, "--port", "command"]);
    let _echo = started(&mut echo, "answering on port 102", false);
    let ping = ["ping", "127.0.12.7", "--count", "2", "--interval", "0"];
    let ping = [&ping[..], &["--port", "command", "--config", &there]].concat();
    let output = run(&[&ping[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["port"], &json["lost"]), (&102.into(), &0.into()));

    let sent = send(&["4094", "hi", "--from", "4094"], &there);
    assert!(sent.status.success(), "a number: {}", text(&sent.stderr));
    let refused = |output: Output, what: &str, remedy: &str| {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(what) && error.contains(remedy), "{error}");
    };
    let has_none = "the configuration has no port `state`";
    let list = "it has `command` (102), `4094` (103)";
    refused(send(&["state", "hi"], &there), has_none, list);
    refused(
        send(&["7", "hi", "--from", "state"], &there),
        has_none,
        list,
    );
    refused(run(&["recv", "state", "--config", &there]), has_none, list);
    refused(send(&["state", "hi"], &bare), has_none, "[[port]]");
    let no_file = ["recv", "command", "--address", "127.0.12.8"];
    refused(run(&no_file), "no configuration file is given", "--config");
}

#[test]
fn a_message_that_is_too_large_is_refused() {
    let mut child = taut(&["send", "127.0.14.9", "7", "--address", "127.0.14.1"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _closed_early = child.stdin.take().unwrap().write_all(&vec![0; 70_000]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("longer than a message, of 65536 bytes at most"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_taken_port_is_an_error() {
    let mut echo = taut(&["echo", "--address", "127.0.15.1", "--port", "9"]);
    let echo = started(&mut echo, "answering on port 9", false);
    let output = run(&["recv", "9", "--address", "127.0.15.1"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    let holder = format!("port 9 is taken by process {} (taut)", echo.0.id());
    assert!(
        error.contains(&holder) && error.contains("what to do"),
        "{error}"
    );
}

/// Two files that `taut init` wrote open, and a message goes from one host to the other.
#[test]
fn two_hosts_that_were_only_initialised_exchange_a_message() {
    let Some(hosts) = hosts() else { return };
    let scratch = crate::common::Scratch::new("init");
    let file = |name: &str| scratch.0.join(name).display().to_string();
    let (here, there) = (file("here.toml"), file("there.toml"));
    let init = |host: Host, other: Host, name: &str, file: &str| {
        let peer = format!("{name}={}", hosts.end(other, 0).address());
        let interface = hosts.end(host, 0).interface();
        let arguments = [
            "init",
            "--interface",
            &interface,
            "--peer",
            &peer,
            "--file",
            file,
        ];
        let output = inside(&hosts, host, &arguments).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = init(Host::A, Host::B, "motor", &here);
    assert!(said.contains(&format!("wrote {here}")), "{said}");
    assert!(said.contains("next, on motor"), "{said}");
    let own = format!("={}\n", hosts.end(Host::A, 0).address());
    assert!(
        said.contains("taut init --interface IF --peer ") && said.contains(&own),
        "{said}"
    );
    init(Host::B, Host::A, "controller", &there);

    let mut recv = inside(
        &hosts,
        Host::B,
        &[
            "recv",
            "8",
            "--config",
            &there,
            "--timeout",
            "20s",
            "--json",
        ],
    );
    let mut child = recv
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening") {
        assert!(
            said.read_line(&mut line).unwrap() > 0,
            "it ended with: {line}"
        );
    }
    let send = ["send", "motor", "8", "hello", "--config", &here];
    let output = inside(&hosts, Host::A, &send).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let received = child.wait_with_output().unwrap();
    let message: Value = serde_json::from_slice(&received.stdout).unwrap();
    assert_eq!(message["payload"], "68656c6c6f");
}

/// A question to a network without an answer ends with ^C, not with its time.
#[test]
fn a_question_to_the_network_can_be_interrupted() {
    let Some(hosts) = hosts() else { return };
    let interface = hosts.end(Host::A, 0).interface();
    let scratch = crate::common::Scratch::new("init-interrupted");
    let file = scratch.0.join("node.toml").display().to_string();
    let arguments = [
        "init",
        "--peer",
        "gone=10.77.0.200",
        "--file",
        &file,
        "--interface",
        &interface,
    ];
    let mut command = inside(&hosts, Host::A, &arguments);
    let mut asking = KilledOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
    let id = asking.0.id();
    while !crate::common::has_handler(id, Signal::INT) {
        assert!(asking.0.try_wait().unwrap().is_none());
    }
    signal_process(id, Signal::INT);
    assert_eq!(asking.0.wait().unwrap().code(), Some(130));
    let mut said = String::new();
    let mut from = asking.0.stderr.take().unwrap();
    from.read_to_string(&mut said).unwrap();
    assert_eq!(said, "taut: interrupted by signal 2\n");
    assert!(!std::path::Path::new(&file).exists());
}

/// Waits for an answer, for the time of the next message and for input end with ^C at once, with the figures so far.
#[test]
fn what_waits_for_long_ends_when_it_is_told_to() {
    let mut echo = taut(&["echo", "--address", "127.0.16.1"]);
    let _echo = started(&mut echo, "answering on port 4095", false);
    let mute = "127.0.16.9";
    for (peer, words, more) in [
        ("127.0.16.1", "0: ", ["--interval", "1h"]),
        (mute, "64 bytes to", ["--timeout", "1h"]),
    ] {
        let ping = ["ping", peer, "--address", "127.0.16.2"];
        let mut ping = taut(&[&ping[..], &more].concat());
        let mut ping = KilledOnDrop(ping.stdout(Stdio::piped()).spawn().unwrap());
        let mut said = BufReader::new(ping.0.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(words) {
            assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
        }
        signal_process(ping.0.id(), Signal::INT);
        said.read_to_string(&mut line).unwrap();
        assert_eq!(ping.0.wait().unwrap().code(), Some(130), "{line}");
        let answered = if peer == mute {
            "0 sent, 0"
        } else {
            "1 sent, 1"
        };
        assert!(line.contains(answered), "{line}");
    }
    let send = ["send", mute, "7", "--address", "127.0.16.3"];
    let mut send = taut(&send);
    let send = send.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut send = KilledOnDrop(send.spawn().unwrap());
    // Open until the end.
    let _input = send.0.stdin.take().unwrap();
    while !crate::common::has_handler(send.0.id(), Signal::INT) {
        assert!(send.0.try_wait().unwrap().is_none());
    }
    signal_process(send.0.id(), Signal::INT);
    assert_eq!(send.0.wait().unwrap().code(), Some(130));
    let mut said = String::new();
    let mut from = send.0.stderr.take().unwrap();
    from.read_to_string(&mut said).unwrap();
    assert_eq!(said, "taut: interrupted by signal 2\n");
}

#[test]
fn init_writes_nothing_that_does_not_work() {
    let scratch = crate::common::Scratch::new("init-errors");
    let file = scratch.0.join("node.toml");
    let path = file.display().to_string();
    let init = |more: &[&str]| {
        let mut arguments = vec!["init", "--file", &path];
        arguments.extend(more);
        let output = run(&arguments);
        (output.status.code(), text(&output.stderr))
    };
    for (arguments, status, words) in [
        (
            &["--interface", "taut-none"][..],
            2,
            "there is no interface `taut-none`",
        ),
        (
            &["--interface", "lo", "--peer", "10.0.0.2"],
            2,
            "NAME=ADDRESS",
        ),
        (
            &["--interface", "lo", "--peer", "motor=10.0.0.2"],
            1,
            "so nobody can be asked by ARP",
        ),
        (
            &[
                "--interface",
                "lo",
                "--peer",
                "a=02:00:00:00:00:02",
                "--peer",
                "a=02:00:00:00:00:03",
            ],
            2,
            "same name",
        ),
    ] {
        let (code, said) = init(arguments);
        assert_eq!(code, Some(status), "{said}");
        assert!(said.contains(words) && !file.exists(), "{said}");
    }
    // A file that is there stays, also one that a link leads to.
    let link = scratch.0.join("target");
    std::os::unix::fs::symlink(&link, &file).unwrap();
    let (code, said) = init(&["--interface", "lo"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("exists, and is left as it is") && !link.exists(),
        "{said}"
    );
    std::fs::remove_file(&file).unwrap();
    assert_eq!(init(&["--interface", "lo"]).0, Some(0));
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .contains("interface = \"lo\"")
    );
}

const TYPES: &str = "[[type]]
name = \"State\"
fields = [\"position: f64[2]\", \"mode: u16\", \"rest: u8[6]\"]
[[type]]
name = \"Odd\"
fields = [\"class: u8\", \"force: f32\"]
";

/// Evaluates the dataclasses as `tautline.layout()` does: their fields, packed.
const PYTHON: &str = "import struct, sys, typing
exec(sys.stdin.read())
for one in (State, Odd):
    fields = typing.get_type_hints(one, include_extras=True)
    print(one.__name__, struct.calcsize('<' + ''.join(hint.__metadata__[0] for hint in fields.values())))
";

/// Output of a program that gets this text.
fn fed(command: &mut Command, text_in: &[u8]) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text_in).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn types_are_printed_for_other_languages_and_compared() {
    let scratch = crate::common::Scratch::new("types");
    let write = |name: &str, content: &str| {
        let path = scratch.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let file = write("node.toml", TYPES);
    let output = run(&["types", &file]);
    let told = text(&output.stdout);
    assert!(
        told.contains("State, 24 bytes") && told.contains("position"),
        "{told}"
    );
    let output = run(&["types", &file, "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["types"][0]["fields"][2]["offset"], 18);
    let (print, byte) = (
        &json["types"][0]["fingerprint"],
        &json["types"][0]["type_byte"],
    );
    let number = u64::from_str_radix(print.as_str().unwrap(), 16).unwrap();
    assert_eq!(*byte, number % 255 + 1);
    let line = format!("fingerprint {number:016x}, type byte {byte}");
    assert!(told.contains(&line), "{told}");

    // Its own assertions on sizes and offsets hold, in C and in C++.
    let header = text(&run(&["types", &file, "--c"]).stdout);
    let include = format!("#include \"{}\"\n", write("messages.h", &header));
    for language in [["-xc", "-std=c11"], ["-xc++", "-std=c++17"]] {
        let mut compiler = Command::new("cc");
        compiler
            .args(language)
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-"]);
        fed(&mut compiler, include.as_bytes());
    }
    let python = run(&["types", &file, "--python"]).stdout;
    let sizes = fed(Command::new("python3").args(["-c", PYTHON]), &python);
    assert_eq!(sizes, "State 24\nOdd 5\n");
    let rust = text(&run(&["types", &file, "--rust"]).stdout);
    assert!(
        rust.contains("#[repr(C, packed)]\npub struct Odd {\n    pub r#class: u8,"),
        "{rust}"
    );

    let same = run(&["types", &file, "--compare", &file]);
    assert_eq!(
        (same.status.code(), text(&same.stdout)),
        (Some(0), "State: the same\nOdd: the same\n".to_owned())
    );
    let changed = TYPES.replace("u16", "i16").replace("Odd", "Even");
    let other = run(&["types", &file, "--compare", &write("other.toml", &changed)]);
    assert_eq!(other.status.code(), Some(1));
    assert_eq!(
        text(&other.stdout),
        "State: field `mode` is u16 here and i16 there\nOdd: only here\nEven: only there\n"
    );
    let other = run(&["types", &file, "--compare", &file, "--json"]);
    let json: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!(json["compared"][1]["name"], "Odd");
    // A file that is as it should be, and has none.
    let none = run(&["types", &write("none.toml", "")]);
    assert_eq!(none.status.code(), Some(1));
    for (arguments, said) in [
        (vec![&write("none.toml", "")[..]], "declares no types"),
        (vec![&file, "--c", "--rust"], "cannot be used with"),
        (
            vec![&file, "--c", "--compare", &file],
            "cannot be used with",
        ),
        (vec!["/nowhere/node.toml"], "cannot read /nowhere/node.toml"),
    ] {
        let output = run(&[&["types"], &arguments[..]].concat());
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}");
        let error = text(&output.stderr);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    // Fields that `send` does not take.
    for (arguments, said) in [
        (
            ["--type", "Stat", "--field", "mode=1"],
            "the configuration has no type `Stat`",
        ),
        (
            ["--type", "State", "--field", "mod=1"],
            "State has no field `mod`; it has position, mode, rest",
        ),
        (
            ["--type", "State", "--field", "mode=-1"],
            "field `mode`: `-1` is not a number of type u16",
        ),
        (
            ["--type", "State", "--field", "mode"],
            "expected NAME=VALUE",
        ),
    ] {
        let send = [&["send", "motor", "7", "--config", &file][..], &arguments].concat();
        let output = run(&send);
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        assert!(error.contains(said), "{error}");
    }
}
