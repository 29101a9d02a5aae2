//! `taut exec` with programs that are none of ours: each also without the library, and with the same output.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::common::{Scratch, skipped_without_privilege};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

fn taut(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let command = command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Says so where a program is not installed.
fn lacks(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain(["/usr/sbin".into()])
        .any(|directory| directory.join(program).exists());
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    !found
}

/// Two hosts, and files in which `taut exec` explains itself.
struct Bench {
    hosts: Hosts,
    scratch: Scratch,
}

/// Which sides have the library.
const SIDES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

impl Bench {
    fn new(name: &str) -> Option<Self> {
        if skipped_without_privilege() {
            return None;
        }
        Some(Self {
            hosts: Hosts::create(&HostsOptions::default()).unwrap(),
            scratch: Scratch::new(name),
        })
    }

    fn address(&self, host: Host) -> String {
        self.hosts.end(host, 0).address().to_string()
    }

    fn explained_in(&self, host: Host) -> PathBuf {
        self.scratch.0.join(self.hosts.name(host))
    }

    fn explained(&self, host: Host) -> String {
        fs::read_to_string(self.explained_in(host)).unwrap_or_default()
    }

    /// A program, with its sockets taken or not.
    fn command(&self, host: Host, is_taken: bool, words: &[&str]) -> Command {
        self.command_with(host, is_taken, &[], words)
    }

    /// The same with more options.
    fn command_with(
        &self,
        host: Host,
        is_taken: bool,
        options: &[&str],
        words: &[&str],
    ) -> Command {
        let mut command = match is_taken {
            false => self.hosts.command(host, words[0]),
            true => {
                let _none = fs::remove_file(self.explained_in(host));
                let mut command = self.hosts.command(host, env!("CARGO_BIN_EXE_taut"));
                command
                    .args(["exec", "--interface", &self.hosts.end(host, 0).interface()])
                    .arg(format!("--explain={}", self.explained_in(host).display()))
                    .args(options)
                    .arg("--")
                    .arg(words[0]);
                command
            }
        };
        command.args(&words[1..]);
        command.env(
            "PATH",
            format!("{}:/usr/sbin", std::env::var("PATH").unwrap()),
        );
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn server(&self, is_taken: bool, words: &[&str]) -> KilledOnDrop {
        let mut command = self.command(Host::B, is_taken, words);
        KilledOnDrop(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    /// Runs a client until its output has these words: the server may not be there yet.
    fn client(&self, is_taken: bool, words: &[&str], input: &str, wanted: &str) -> String {
        let start = Instant::now();
        loop {
            let mut command = self.command(Host::A, is_taken, words);
            let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
            // A program that ends without reading is looked at below.
            let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
            let output = child.wait_with_output().unwrap();
            let said = text(&output.stdout);
            if said.contains(wanted) {
                return said;
            }
            let complaints = text(&output.stderr);
            assert!(start.elapsed() < PATIENCE, "{words:?}: {said}{complaints}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Has a client ask a server in all four ways; each must say the same.
fn asks_alike(bench: &Bench, server: &[&str], client: &[&str], input: &str, wanted: &str) {
    let mut said = Vec::new();
    for [of_client, of_server] in SIDES {
        let _server = bench.server(of_server, server);
        said.push(bench.client(of_client, client, input, wanted));
        for (host, is_taken) in [(Host::A, of_client), (Host::B, of_server)] {
            let explained = bench.explained(host);
            assert!(
                !is_taken || explained.contains(": taken, port"),
                "{explained}"
            );
        }
    }
    assert!(said.iter().all(|one| *one == said[0]), "{said:#?}");
}

/// Datagrams that went past the kernel, by the lines of sockets that were closed.
fn past_the_kernel(explained: &str) -> u64 {
    let counts = explained
        .lines()
        .filter_map(|line| line.split_once(": closed; past the kernel "));
    counts
        .flat_map(|(_, counts)| {
            counts
                .split(' ')
                .filter_map(|word| word.parse::<u64>().ok())
                .take(2)
        })
        .sum()
}

#[test]
fn dig_asks_dnsmasq() {
    if lacks("dig") || lacks("dnsmasq") {
        return;
    }
    let Some(bench) = Bench::new("exec-dig") else {
        return;
    };
    let at = bench.address(Host::B);
    let listen = format!("--listen-address={at}");
    let server = [
        "dnsmasq",
        "--no-daemon",
        &listen,
        "--bind-interfaces",
        "--no-resolv",
        "--no-hosts",
        "--address=/robot.example/10.9.8.7",
        "--user=root",
        "--conf-file=/dev/null",
        "--pid-file=",
    ];
    let server_at = format!("@{at}");
    let client = [
        "dig",
        "+noall",
        "+answer",
        "+tries=1",
        "+time=1",
        &server_at,
        "robot.example",
    ];
    asks_alike(&bench, &server, &client, "", "10.9.8.7");
    // Its question forbids path MTU discovery, so the kernel sends it.
    let explained = bench.explained(Host::A);
    assert!(past_the_kernel(&explained) >= 1, "{explained}");
}

#[test]
fn socat_talks_to_socat() {
    if lacks("socat") {
        return;
    }
    let Some(bench) = Bench::new("exec-socat") else {
        return;
    };
    let at = bench.address(Host::B);
    let listen = format!("UDP4-RECVFROM:9001,bind={at}");
    let to = format!("UDP4:{at}:9001");
    let server = ["socat", &listen, "EXEC:tr a-z A-Z"];
    let client = ["socat", "-t1", "STDIO", &to];
    asks_alike(&bench, &server, &client, "shout\n", "SHOUT");
}

#[test]
fn iperf3_loses_nothing() {
    if lacks("iperf3") {
        return;
    }
    let Some(bench) = Bench::new("exec-iperf3") else {
        return;
    };
    let at = bench.address(Host::B);
    let server = ["iperf3", "-4", "-s", "-1", "-B", &at];
    let client = [
        "iperf3", "-4", "-u", "-c", &at, "-k", "200", "-b", "4M", "-l", "1000",
    ];
    for [of_client, of_server] in SIDES {
        let _server = bench.server(of_server, &server);
        let said = bench.client(of_client, &client, "", "iperf Done");
        assert!(said.contains("0/200 (0%)  sender"), "{said}");
        // The server may be told that it is over before it has read the last ones.
        assert!(said.contains("(0%)  receiver"), "{said}");
        for (host, is_taken) in [(Host::A, of_client), (Host::B, of_server)] {
            let explained = bench.explained(host);
            assert!(
                !is_taken || past_the_kernel(&explained) >= 150,
                "{explained}"
            );
        }
    }
}

#[test]
fn sockperf_loses_nothing() {
    if lacks("sockperf") {
        return;
    }
    let Some(bench) = Bench::new("exec-sockperf") else {
        return;
    };
    let at = bench.address(Host::B);
    let server = ["sockperf", "server", "-i", &at, "-p", "11111"];
    let client = [
        "sockperf",
        "ping-pong",
        "-i",
        &at,
        "-p",
        "11111",
        "-t",
        "1",
        "--mps",
        "1000",
        "-m",
        "64",
    ];
    let wanted = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0";
    for [of_client, of_server] in [[false, false], [true, true]] {
        let _server = bench.server(of_server, &server);
        bench.client(of_client, &client, "", wanted);
        let explained = bench.explained(Host::A);
        assert!(
            !of_client || past_the_kernel(&explained) > 1000,
            "{explained}"
        );
    }
}

/// Cyclone DDS: found by multicast through the kernel's sockets, data between ports.
#[test]
fn ddsperf_pings_past_the_kernel() {
    if lacks("ddsperf") {
        return;
    }
    let Some(bench) = Bench::new("exec-ddsperf") else {
        return;
    };
    let config = format!(
        "CYCLONEDDS_URI=<CycloneDDS><Domain><General><Interfaces><NetworkInterface name=\"{}\"/></Interfaces>\
         <AllowMulticast>spdp</AllowMulticast></General>\
         <Discovery><ParticipantIndex>auto</ParticipantIndex></Discovery></Domain></CycloneDDS>",
        bench.hosts.end(Host::A, 0).interface()
    );
    let server = ["env", &config, "ddsperf", "pong"];
    let client = ["env", &config, "ddsperf", "-D", "3", "ping", "1000Hz"];
    for [of_client, of_server] in [[false, false], [true, true]] {
        let _server = bench.server(of_server, &server);
        let said = bench.client(of_client, &client, "", " cnt ");
        assert!(said.contains(": new\n"), "nobody was found: {said}");
        let explained = bench.explained(Host::A);
        assert!(
            !of_client || past_the_kernel(&explained) >= 1000,
            "{explained}"
        );
    }
}

#[test]
fn python_talks_by_socket_and_asyncio() {
    let Some(bench) = Bench::new("exec-python") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/talk.py");
    let script = script.to_str().unwrap();
    let at = bench.address(Host::B);
    let server = ["python3", script, "serve", &at];
    let client = ["python3", script, "ask", &at];
    asks_alike(&bench, &server, &client, "", "asyncio: 20 answers");
}

/// Sends two datagrams from two sockets, and makes one for IPv6.
const TWO_SOCKETS: &str = "
import socket, sys
for _ in range(2):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.sendto(b'x', (sys.argv[1], 9))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
print('done')
";

/// Lines of a program whose sockets cannot be taken, on standard error.
fn complaints(mut command: Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
    text(&output.stderr).lines().map(str::to_owned).collect()
}

#[test]
fn sockets_that_stay_the_kernels_for_want_of_the_interface_or_a_privilege_are_told_once_unasked() {
    let Some(bench) = Bench::new("exec-silent") else {
        return;
    };
    let at = bench.address(Host::B);
    let words = ["python3", "-c", TWO_SOCKETS, &at];
    let told = complaints(bench.command(Host::A, true, &words));
    assert!(told.is_empty(), "{told:#?}");
    let explained = bench.explained(Host::A);
    assert!(
        explained.contains("left to the kernel: it is for IPv6"),
        "{explained}"
    );

    let listen = format!("UDP4-RECVFROM:9001,bind={}", bench.address(Host::A));
    let other = bench
        .command(Host::A, true, &["socat", &listen, "-"])
        .spawn();
    let _other = KilledOnDrop(other.unwrap());
    let start = Instant::now();
    while !bench.explained(Host::A).contains(": taken, port") {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
    let told = complaints(bench.command(Host::A, true, &words));
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(
        told[0].contains("left to the kernel: ") && told[0].contains("another node has"),
        "{told:#?}"
    );
    drop(_other);

    let without = [
        "setpriv",
        "--bounding-set=-bpf,-sys_admin,-net_admin",
        "--inh-caps=-all",
    ];
    let told = complaints(bench.command(Host::A, true, &[&without[..], &words].concat()));
    let of_python: Vec<_> = told.iter().filter(|line| line.contains("python")).collect();
    assert_eq!(of_python.len(), 1, "{told:#?}");
    assert!(of_python[0].contains("CAP_"), "{told:#?}");
}

#[test]
fn rules_of_the_firewall_that_are_passed_are_told() {
    let Some(bench) = Bench::new("exec-firewall") else {
        return;
    };
    if lacks("nft") {
        return;
    }
    let warned = || {
        let output = bench.command(Host::A, true, &["true"]).output().unwrap();
        text(&output.stderr)
    };
    let add = |rule: &str| {
        let mut command = bench.hosts.command(Host::A, "/usr/sbin/nft");
        assert!(command.arg(rule).status().unwrap().success());
    };
    add("add table inet guard");
    add("add chain inet guard input { type filter hook input priority 0; }");
    add("add chain inet guard output { type filter hook output priority 0; policy drop; }");
    assert_eq!(warned(), "", "nothing is filtered that arrives");
    add("add rule inet guard input udp dport 5000 drop");
    let said = warned();
    assert!(
        said.contains("chain input of table guard") && said.contains("what to do"),
        "{said}"
    );
}

#[test]
fn rules_of_the_older_packet_filter_that_are_passed_are_told() {
    let Some(bench) = Bench::new("exec-iptables") else {
        return;
    };
    if lacks("iptables-legacy") {
        return;
    }
    let warned = || {
        let output = bench.command(Host::A, true, &["true"]).output().unwrap();
        text(&output.stderr)
    };
    let iptables = |arguments: &str| {
        let mut command = bench.hosts.command(Host::A, "/usr/sbin/iptables-legacy");
        let status = command.args(arguments.split(' ')).status();
        assert!(status.unwrap().success(), "{arguments}");
    };
    iptables("-A OUTPUT -p udp -j DROP");
    assert_eq!(warned(), "", "nothing is filtered that arrives");
    iptables("-A INPUT -p udp --dport 5000 -j DROP");
    let said = warned();
    assert!(said.contains("chain INPUT of table filter"), "{said}");
    iptables("-F INPUT");
    assert_eq!(warned(), "");
    iptables("-P INPUT DROP");
    assert!(warned().contains("chain INPUT of table filter"));
    iptables("-P INPUT ACCEPT");
    iptables("-t raw -A PREROUTING -p udp -j DROP");
    assert!(warned().contains("chain PREROUTING of table raw"));
}

#[test]
fn programs_that_cannot_be_taken_are_refused() {
    let scratch = Scratch::new("exec-refused");
    let refused = |program: &Path, why: &str| {
        let output = taut(&["exec", "--interface", "lo", "--", program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
        let said = text(&output.stderr);
        assert!(
            said.contains(why) && said.contains("what to do: "),
            "{said}"
        );
    };
    let source = scratch.0.join("main.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let fixed = scratch.0.join("fixed");
    let built = Command::new("cc")
        .arg("-static")
        .arg("-o")
        .arg(&fixed)
        .arg(&source)
        .status();
    assert!(built.unwrap().success());
    refused(
        &fixed,
        "it is statically linked, so no library can be loaded into it",
    );
    let words = scratch.0.join("words");
    fs::write(&words, "just words\n").unwrap();
    refused(&words, "it is no program for this machine");
    refused(&scratch.0.join("missing"), "there is no program");
    let script = scratch.0.join("script");
    fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
    refused(&script, "it is statically linked");
    if lacks("go") {
        return;
    }
    let source = scratch.0.join("main.go");
    fs::write(&source, "package main\n\nfunc main() {}\n").unwrap();
    let program = scratch.0.join("gateway");
    let built = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOCACHE", scratch.0.join("cache"))
        .env("GOTOOLCHAIN", "local")
        .status();
    assert!(built.unwrap().success());
    refused(
        &program,
        "it is written in Go, which calls the kernel without the C library",
    );
}

#[test]
fn waits_of_a_program_end_awake_without_privileges_and_are_reported() {
    let script = "import time\nfor k in range(200): time.sleep(0.002)\nprint('done')";
    let output = taut(&["exec", "--report", "--", "python3", "-c", script]);
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "done\n", "{said}");
    assert!(
        said.contains("awake for ") && said.contains("sleeps: late by "),
        "{said}"
    );
    let output = taut(&["exec", "--watch", "--", "python3", "-c", script]);
    let said = text(&output.stderr);
    assert!(
        said.contains("watched, nothing changed; awake for 0 ms"),
        "{said}"
    );
}

#[test]
fn children_that_wait_for_nothing_are_not_reported() {
    let script = "import subprocess\nfor k in range(3): subprocess.run(['ls', '/'])";
    let output = taut(&["exec", "--watch", "--", "python3", "-c", script]);
    let said = text(&output.stderr);
    assert_eq!(said.matches("awake for ").count(), 1, "{said}");
}

#[test]
fn a_program_that_cannot_be_helped_runs_with_a_line_that_says_why() {
    let scratch = Scratch::new("exec-static");
    let (source, fixed) = (scratch.0.join("main.c"), scratch.0.join("fixed"));
    fs::write(&source, "int main(void) { return 7; }\n").unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-static").arg("-o").args([&fixed, &source]);
    assert!(compiler.status().unwrap().success());
    let output = taut(&["exec", "--", fixed.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(7));
    let said = text(&output.stderr);
    assert!(
        said.contains("stay as they are: it is statically linked"),
        "{said}"
    );
    let output = taut(&["exec", "--", "sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn wrong_use_is_told() {
    for (arguments, told) in [
        (
            vec!["exec", "--local", "5000", "--", "true"],
            "are for sockets that become ports of a node",
        ),
        (
            vec!["exec", "--watch", "--interface", "lo", "--", "true"],
            "cannot be used with",
        ),
        (vec!["exec", "--fifo", "100", "--", "true"], "100"),
        (vec!["exec", "--interface", "lo"], "PROGRAM"),
        (
            vec!["exec", "--interface", "lo", "--local", "0", "--", "true"],
            "is no UDP port",
        ),
        (
            vec!["exec", "--interface", "lo", "--local", "9-5", "--", "true"],
            "is no UDP port",
        ),
        (
            vec![
                "exec",
                "--interface",
                "lo",
                "--ethertype",
                "0x0800",
                "--",
                "true",
            ],
            "EtherType 0x0800 is Linux's own",
        ),
        (
            vec![
                "exec",
                "--interface",
                "lo",
                "--ethertype",
                "cat",
                "--",
                "true",
            ],
            "is no EtherType",
        ),
        (
            vec![
                "exec",
                "--interface",
                "lo",
                "--ethertype",
                "0x88b5",
                "--",
                "true",
            ],
            "is the node's own",
        ),
        (
            vec!["exec", "--interface", "no-such-if", "--", "true"],
            "there is no interface",
        ),
        (
            vec!["exec", "--config", "/no/such/file", "--", "true"],
            "/no/such/file",
        ),
        (
            vec!["exec", "--config", "a", "--interface", "lo", "--", "true"],
            "cannot be used with",
        ),
        // The option's older name.
        (
            vec!["exec", "--node", "/no/such/file", "--", "true"],
            "/no/such/file",
        ),
    ] {
        let output = taut(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
    let scratch = Scratch::new("exec-node");
    let file = scratch.0.join("node.toml");
    fs::write(&file, "interface = \"lo\"\nlink = \"packet\"\n").unwrap();
    let output = taut(&["exec", "--config", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("on link packet"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn rules_and_programs_decide() {
    let Some(bench) = Bench::new("exec-rules") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/talk.py");
    let file = bench.scratch.0.join("node.toml");
    let at = bench.address(Host::A);
    for (section, option, decision) in [
        ("local = [9100]", None, "9100: taken"),
        (
            "local = [9101]",
            None,
            "9100: decided when it connects or sends",
        ),
        ("local = [9101]", Some("9000-9200"), "9100: taken"),
        ("programs = [\"other\"]", None, ""),
    ] {
        let interface = bench.hosts.end(Host::A, 0).interface();
        fs::write(
            &file,
            format!("interface = \"{interface}\"\n[exec]\n{section}\n"),
        )
        .unwrap();
        let explained = bench.explained_in(Host::A);
        let _none = fs::remove_file(&explained);
        let mut command = bench.hosts.command(Host::A, env!("CARGO_BIN_EXE_taut"));
        command.args(["exec", "--config", file.to_str().unwrap()]);
        command.arg(format!("--explain={}", explained.display()));
        if let Some(ports) = option {
            command.args(["--local", ports]);
        }
        command.args(["--", "python3", script.to_str().unwrap(), "bind", &at]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let told = bench.explained(Host::A);
        assert!(
            told.contains(decision) && told.is_empty() == decision.is_empty(),
            "{told}"
        );
    }
}

/// `talk.py` says the same about frames, with its packet sockets taken at neither end, one of them, or both.
#[test]
fn packet_sockets_answer_alike() {
    let Some(bench) = Bench::new("exec-frames") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/talk.py");
    let interface = bench.hosts.end(Host::A, 0).interface();
    let words = |what| ["python3", script.to_str().unwrap(), what, &interface];
    for [of_client, of_server] in SIDES {
        let named = ["--ethertype", "0x88a4"];
        let mut server = bench.command_with(Host::B, of_server, &named, &words("serve-frames"));
        let output = Stdio::null();
        let _server = KilledOnDrop(server.stdout(output).stderr(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        let said = loop {
            let mut client = bench.command_with(Host::A, of_client, &named, &words("ask-frames"));
            let output = client.output().unwrap();
            if output.status.success() {
                break text(&output.stdout);
            }
            let complaints = text(&output.stderr);
            assert!(start.elapsed() < PATIENCE, "{complaints}");
            thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(said, "frames: 20 answers\n");
        let told = bench.explained(Host::A);
        // Without the library the file is that of a run before.
        assert!(!of_client || told.contains(": taken, raw port"), "{told}");
        let passed = "past the kernel 20 frames sent and 20 received, 0 sent";
        assert!(!of_client || told.contains(passed), "{told}");
    }
}

#[test]
fn packet_sockets_are_taken_by_their_ethertype() {
    let Some(bench) = Bench::new("exec-types") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/talk.py");
    let file = bench.scratch.0.join("node.toml");
    let interface = bench.hosts.end(Host::A, 0).interface();
    for (section, option, decision) in [
        ("ethertypes = [0x88a4]", None, "0x88a4: taken, raw port"),
        (
            "ethertypes = [0x8892]",
            None,
            "left to the kernel: its EtherType is not named (--ethertype 0x88a4)",
        ),
        ("", None, "is not named (--ethertype 0x88a4)"),
        ("", Some("0x8892,0x88A4"), "0x88a4: taken, raw port"),
        ("programs = [\"other\"]", Some("0x88a4"), ""),
    ] {
        let section = format!("interface = \"{interface}\"\n[exec]\n{section}\n");
        fs::write(&file, section).unwrap();
        let explained = bench.explained_in(Host::A);
        let _none = fs::remove_file(&explained);
        let mut command = bench.hosts.command(Host::A, env!("CARGO_BIN_EXE_taut"));
        command.args(["exec", "--config", file.to_str().unwrap()]);
        command.arg(format!("--explain={}", explained.display()));
        if let Some(ethertypes) = option {
            command.args(["--ethertype", ethertypes]);
        }
        let script = script.to_str().unwrap();
        command.args(["--", "python3", script, "packets", &interface]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let told = bench.explained(Host::A);
        assert!(
            told.contains(decision) && told.is_empty() == decision.is_empty(),
            "{told}"
        );
    }
}

/// A fieldbus is on an interface without an IPv4 address, and its frames are another process's as long as it runs.
#[test]
fn an_ethertype_is_one_processs_and_needs_no_address() {
    let Some(bench) = Bench::new("exec-address") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/talk.py");
    let interface = bench.hosts.end(Host::A, 0).interface();
    let flush = ["address", "flush", "dev", &interface];
    bench.hosts.run(Host::A, "ip", &flush).unwrap();
    let named = ["--ethertype", "0x88a4"];
    let words = |what| ["python3", script.to_str().unwrap(), what, &interface];
    let mut first = bench.command_with(Host::A, true, &named, &words("serve-frames"));
    let first = KilledOnDrop(first.stdout(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    while !bench.explained(Host::A).contains(": taken, raw port") {
        assert!(start.elapsed() < PATIENCE, "{}", bench.explained(Host::A));
        thread::sleep(Duration::from_millis(20));
    }
    let second = || {
        let mut second = bench.command_with(Host::A, true, &named, &words("packets"));
        assert!(second.output().unwrap().status.success());
        bench.explained(Host::A)
    };
    let told = second();
    assert!(told.contains("left to the kernel: "), "{told}");
    drop(first);
    let told = second();
    assert!(told.contains(": taken, raw port"), "{told}");
}
