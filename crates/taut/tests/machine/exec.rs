//! `taut exec` with programs that are none of ours: each also without the library, and with the same output.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::common::{Scratch, skipped_without_privilege, started, text};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

fn taut(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let command = command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
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

/// Two hosts.
struct Bench {
    hosts: Hosts,
}

/// Which sides are started by `taut exec`.
const SIDES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

impl Bench {
    fn new() -> Option<Self> {
        let hosts = || Hosts::create(&HostsOptions::default()).unwrap();
        (!skipped_without_privilege()).then(|| Self { hosts: hosts() })
    }

    fn address(&self, host: Host) -> String {
        self.hosts.end(host, 0).address().to_string()
    }

    /// A program, as it is or by `taut exec`.
    fn command(&self, host: Host, is_served: bool, words: &[&str]) -> Command {
        let mut command = match is_served {
            false => self.hosts.command(host, words[0]),
            true => {
                let mut command = self.hosts.command(host, env!("CARGO_BIN_EXE_taut"));
                let interface = self.hosts.end(host, 0).interface();
                command.args([
                    "exec",
                    "--report",
                    "--interface",
                    &interface,
                    "--",
                    words[0],
                ]);
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

    fn server(&self, is_served: bool, words: &[&str]) -> KilledOnDrop {
        let mut command = self.command(Host::B, is_served, words);
        KilledOnDrop(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    /// Runs a client until its output has these words: the server may not be there yet. Its output and its report.
    fn client(&self, is_served: bool, words: &[&str], input: &str, wanted: &str) -> [String; 2] {
        let start = Instant::now();
        loop {
            let mut command = self.command(Host::A, is_served, words);
            let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
            // A program that ends without reading is looked at below.
            let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
            let output = child.wait_with_output().unwrap();
            let said = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
            if said[0].contains(wanted) {
                return said;
            }
            assert!(start.elapsed() < PATIENCE, "{words:?}: {said:#?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Has a client ask a server in all four ways; each must say the same.
fn asks_alike(bench: &Bench, server: &[&str], client: &[&str], input: &str, wanted: &str) {
    let said = SIDES.map(|[of_client, of_server]| {
        let _server = bench.server(of_server, server);
        let [said, _] = bench.client(of_client, client, input, wanted);
        said
    });
    assert!(said.iter().all(|one| *one == said[0]), "{said:#?}");
}

/// Datagrams that came past the stack, by a report.
fn past_the_stack(report: &str) -> u64 {
    let counts = report
        .match_indices(" past the stack")
        .filter_map(|(end, _)| {
            let (_, count) = report[..end].rsplit_once(' ')?;
            count.parse::<u64>().ok()
        });
    counts.sum()
}

#[test]
fn dig_asks_dnsmasq() {
    if lacks("dig") || lacks("dnsmasq") {
        return;
    }
    let Some(bench) = Bench::new() else {
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
}

#[test]
fn socat_talks_to_socat() {
    if lacks("socat") {
        return;
    }
    let Some(bench) = Bench::new() else {
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
    let Some(bench) = Bench::new() else {
        return;
    };
    let at = bench.address(Host::B);
    let server = ["iperf3", "-4", "-s", "-1", "-B", &at];
    let client = [
        "iperf3", "-4", "-u", "-c", &at, "-k", "200", "-b", "4M", "-l", "1000",
    ];
    for [of_client, of_server] in SIDES {
        let _server = bench.server(of_server, &server);
        let [said, _] = bench.client(of_client, &client, "", "iperf Done");
        assert!(said.contains("0/200 (0%)  sender"), "{said}");
        // The server may be told that it is over before it has read the last ones.
        assert!(said.contains("(0%)  receiver"), "{said}");
    }
}

#[test]
fn sockperf_loses_nothing() {
    if lacks("sockperf") {
        return;
    }
    let Some(bench) = Bench::new() else {
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
    }
}

/// Cyclone DDS: its participants find each other by multicast, and wait in sets.
#[test]
fn ddsperf_pings() {
    if lacks("ddsperf") {
        return;
    }
    let Some(bench) = Bench::new() else {
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
        let [said, _] = bench.client(of_client, &client, "", " cnt ");
        assert!(said.contains(": new\n"), "nobody was found: {said}");
    }
}

#[test]
fn python_talks_by_socket_and_asyncio() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/talk.py");
    let script = script.to_str().unwrap();
    let at = bench.address(Host::B);
    let server = ["python3", script, "serve", &at];
    let client = ["python3", script, "ask", &at];
    asks_alike(&bench, &server, &client, "", "asyncio: 20 answers");
}

#[test]
fn rules_of_the_firewall_that_are_passed_are_told() {
    let Some(bench) = Bench::new() else {
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
    let said = warned();
    assert!(
        !said.contains("firewall"),
        "nothing is filtered that arrives: {said}"
    );
    add("add rule inet guard input udp dport 5000 drop");
    let said = warned();
    assert!(
        said.contains("chain input of table guard") && said.contains("what to do"),
        "{said}"
    );
}

#[test]
fn rules_of_the_older_packet_filter_that_are_passed_are_told() {
    let Some(bench) = Bench::new() else {
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
    let said = warned();
    assert!(
        !said.contains("firewall"),
        "nothing is filtered that arrives: {said}"
    );
    iptables("-A INPUT -p udp --dport 5000 -j DROP");
    let said = warned();
    assert!(said.contains("chain INPUT of table filter"), "{said}");
    iptables("-F INPUT");
    assert!(!warned().contains("firewall"));
    iptables("-P INPUT DROP");
    assert!(warned().contains("chain INPUT of table filter"));
    iptables("-P INPUT ACCEPT");
    iptables("-t raw -A PREROUTING -p udp -j DROP");
    assert!(warned().contains("chain PREROUTING of table raw"));
}

#[test]
fn programs_that_cannot_be_helped_are_told_why() {
    let scratch = Scratch::new("exec-refused");
    let refused = |program: &Path, why: &str| {
        let output = taut(&["exec", "--", program.to_str().unwrap()]);
        let said = text(&output.stderr);
        assert!(said.contains(why), "{said}");
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
    refused(&words, "it is not a program for this machine");
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

/// An event loop that only other threads of the program wake up, and one that datagrams wake up as well, in turns, and
/// that asks for room to send after each of them.
const EVENT_LOOPS: &str = "import os, select, socket, threading, time
bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(('127.0.0.1', 0))
link.setblocking(False)
room = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
loops = [select.epoll(), select.epoll()]
loops[0].register(bells[0], select.EPOLLIN)
loops[1].register(bells[1], select.EPOLLIN)
loops[1].register(link, select.EPOLLIN)
loops[1].register(room, 0)
def wake_up():
    for number in range(300):
        time.sleep(0.002)
        os.eventfd_write(bells[0], 1)
        os.eventfd_write(bells[1], 1)
        time.sleep(0.002)
        link.sendto(b'1', link.getsockname())
def run(loop, count):
    while count:
        for ready, _ in loop.poll():
            if ready == link.fileno():
                count -= len(link.recv(1))
                loop.modify(room, select.EPOLLOUT | select.EPOLLONESHOT)
            elif ready != room.fileno():
                count -= os.eventfd_read(ready)
threads = [threading.Thread(target=run, args=(loops[0], 300)), threading.Thread(target=wake_up)]
[thread.start() for thread in threads]
run(loops[1], 600)
[thread.join() for thread in threads]
print(loops[0].fileno(), loops[1].fileno())
";

#[test]
fn an_event_loop_learns_from_messages_and_not_from_the_programs_own_threads() {
    let output = taut(&["exec", "--report", "--", "python3", "-c", EVENT_LOOPS]);
    let (numbers, said) = (text(&output.stdout), text(&output.stderr));
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    let [woken_by_threads, woken_by_datagrams] = numbers[..] else {
        panic!("{said}");
    };
    let of = |number| {
        let start = format!("taut exec: descriptor {number}: ");
        said.lines().find_map(|line| line.strip_prefix(&start))
    };
    assert_eq!(of(woken_by_threads), None, "{said}");
    // "every 4000.0 us, …; N met awake, N woken by the kernel, N there before; …"
    let counts = of(woken_by_datagrams).unwrap_or_else(|| panic!("{said}"));
    let before = |words: &str| {
        let number = counts.split(words).next()?.rsplit(' ').next()?;
        number.parse::<u32>().ok()
    };
    let counted = [" met awake", " woken by the kernel", " there before"].map(before);
    let arrivals: u32 = counted.into_iter().map(Option::unwrap_or_default).sum();
    assert!((200..=300).contains(&arrivals), "{counts}");
}

#[test]
fn children_that_wait_for_nothing_are_not_reported() {
    let script = "import subprocess\nfor k in range(3): subprocess.run(['ls', '/'])";
    let output = taut(&["exec", "--watch", "--", "python3", "-c", script]);
    let said = text(&output.stderr);
    assert!(
        said.lines().all(|line| !line.contains("process ")),
        "{said}"
    );
    assert!(said.contains("taut exec: "), "{said}");
}

/// Receives 200 datagrams of a thread that sends one each 2 ms, by a socket with a timeout: poll(2), then recv(2).
const RECEIVING: &str = "import socket, threading, time
taker, giver = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
taker.bind(('127.0.0.1', 0))
taker.settimeout(10)
def give():
    for k in range(200):
        time.sleep(0.002)
        giver.sendto(b'x', taker.getsockname())
threading.Thread(target=give).start()
for k in range(200): taker.recv(9)
";

#[test]
fn a_receive_with_a_timeout_counts_each_arrival_once() {
    let output = taut(&["exec", "--report", "--", "python3", "-c", RECEIVING]);
    let said = text(&output.stderr);
    let count = |end: &str| {
        let before = said.split_once(end).map(|(before, _)| before);
        let number = before.and_then(|before| before.rsplit_once(' ')?.1.parse().ok());
        number.unwrap_or_else(|| panic!("{said}"))
    };
    let kinds = [" met awake", " woken by the kernel", " there before"];
    let counts: [u64; 3] = kinds.map(count);
    assert_eq!(counts.iter().sum::<u64>(), 200, "{said}");
}

/// Sleeps and says so, in Python.
const SLEEPING: &str = "import os, time
for k in range(100_000):
    time.sleep(0.002)
    if k == 50:
        print('began', os.getpid(), flush=True)
";

/// A program under `taut exec --report`, and the number of its own process, by its first line.
fn reported(program: &[&str]) -> (Child, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["exec", "--report", "--"]).args(program);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.as_mut().unwrap());
    said.read_line(&mut line).unwrap();
    let number = line.trim().strip_prefix("began ").map(str::parse);
    (child, number.unwrap().unwrap())
}

fn send(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

#[test]
fn a_program_is_reported_however_it_ends_and_ends_as_without_the_command() {
    let python = ["python3", "-c", SLEEPING];
    let ends: [(Signal, bool); 5] = [
        (Signal::INT, false),
        (Signal::TERM, false),
        (Signal::INT, true),
        (Signal::KILL, true),
        (Signal::SEGV, true),
    ];
    for (signal, is_to_program) in ends {
        let (child, program) = reported(&python);
        let to = if is_to_program {
            program
        } else {
            child.id() as i32
        };
        send(to, signal);
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{said}");
        assert!(said.contains("sleeps: late by "), "{signal:?}: {said}");
        let of_python = said.matches("KeyboardInterrupt").count();
        assert_eq!(of_python, usize::from(signal == Signal::INT), "{said}");
    }
    let leaving = format!("{SLEEPING}        os._exit(7)\n");
    let (child, _) = reported(&["python3", "-c", &leaving]);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("sleeps: late by "), "{said}");
}

/// Prints each SIGUSR1 and SIGUSR2, and ends when its input does.
const COUNTING: &str = "import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print('group', flush=True))
signal.signal(signal.SIGUSR2, lambda *_: print('alone', flush=True))
print('began', os.getpid(), flush=True)
sys.stdin.read()
";

#[test]
fn a_signal_for_the_process_group_reaches_a_reported_program_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["exec", "--report", "--", "python3", "-c", COUNTING]);
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let group = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("began"));
    for _ in 0..20 {
        kill_process_group(group, Signal::USR1).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "group");
        // Passed on after the one before it, which has the lower number: no two of a kind wait at a time.
        kill_process(group, Signal::USR2).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "alone");
    }
    // A signal too many would be among the last lines.
    drop(child.stdin.take());
    assert_eq!(lines.map(Result::unwrap).collect::<Vec<_>>(), [""; 0]);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_program_does_not_outlive_the_command_that_reports() {
    let (mut child, program) = reported(&["python3", "-c", SLEEPING]);
    child.kill().unwrap();
    child.wait().unwrap();
    let runs = || {
        let state = fs::read_to_string(format!("/proc/{program}/stat"));
        state.is_ok_and(|state| !state.contains(") Z "))
    };
    let start = Instant::now();
    while runs() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn signals_that_were_ignored_or_blocked_stay_so() {
    let masks = "grep -E '^(SigBlk|SigIgn)' /proc/self/status";
    let script =
        format!("trap '' HUP USR1; {masks}; exec \"$1\" exec --report -- sh -c \"{masks}\"");
    let output = Command::new("sh")
        .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_taut")])
        .output()
        .unwrap();
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert_eq!(lines[..2], lines[2..], "{said}");
}

#[test]
fn a_shell_stops_continues_and_interrupts_a_reported_program_as_any_other() {
    if lacks("bash") {
        return;
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec");
    let mut command = Command::new("python3");
    command.arg(directory.join("terminal.py"));
    command.arg(env!("CARGO_BIN_EXE_taut"));
    command.arg(directory.join("interrupted.py"));
    let output = command.output().unwrap();
    assert_eq!(
        text(&output.stdout),
        "stopped jobs: 1\ninterrupts: 1\nreported: True\nstatus 130\n",
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_server_that_is_terminated_is_reported() {
    if lacks("sockperf") {
        return;
    }
    let Some(bench) = Bench::new() else {
        return;
    };
    let at = bench.address(Host::B);
    let words = ["sockperf", "server", "-i", &at, "-p", "11111"];
    let server = bench.command(Host::B, true, &words).spawn().unwrap();
    let client = "sockperf ping-pong -p 11111 -t 1 --mps 1000 -i";
    let client: Vec<&str> = client.split(' ').chain([at.as_str()]).collect();
    bench.client(false, &client, "", "# dropped messages = 0");
    send(server.id() as i32, Signal::TERM);
    let output = server.wait_with_output().unwrap();
    let said = text(&output.stderr);
    // Whether some came past the stack depends on what else the machine does.
    let is_reported = said.contains("taut exec: descriptor ") && said.contains(" past the stack");
    assert!(is_reported, "{said}");
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

/// In a mount namespace, so that the library's copy in the system's folder is this test's alone. Prints what another
/// user is told, then what the program says for root, and for the user once the remedy has been followed.
const SETUID: &str = r#"
set -e
mount -t tmpfs none "$D"
mkdir "$D/upper" "$D/work"
cp "$BIN/taut" $(ls -t "$BIN"/*awake_preload.so "$BIN"/deps/*awake_preload.so 2>/dev/null | head -n 1) "$D"
echo '#include <unistd.h>
int main(void) { return usleep(100000); }' | cc -x c -o "$D/sleep" -
chmod 4755 "$D/sleep"
stranger="setpriv --reuid 64321 --regid 64321 --clear-groups"
told=$($stranger "$D/taut" exec --report -- "$D/sleep" 2>&1)
echo "told: $told"
echo "root: $("$D/taut" exec --report -- "$D/sleep" 2>&1)"
remedy=$(echo "$told" | sed -n 's/.*`sudo \(.*\)`.*/\1/p')
folder=${remedy##* }
mount -t overlay -o "lowerdir=$folder,upperdir=$D/upper,workdir=$D/work" none "$folder"
$remedy
echo "served: $($stranger "$D/taut" exec --report -- "$D/sleep" 2>&1)"
"#;

#[test]
fn a_setuid_program_is_served_for_root_and_for_others_once_they_follow_the_remedy() {
    if skipped_without_privilege() || lacks("setpriv") {
        return;
    }
    let scratch = Scratch::new("exec-setuid");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SETUID]);
    let program = Path::new(env!("CARGO_BIN_EXE_taut"));
    command.env("BIN", program.parent().unwrap());
    let output = command.env("D", &scratch.0).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    let part = |from: &str, to: &str| {
        let rest = said.split(from).nth(1).unwrap_or_default();
        rest.split(to).next().unwrap_or_default().to_owned()
    };
    let (told, root, served) = (
        part("told: ", "root: "),
        part("root: ", "served: "),
        part("served: ", "\0"),
    );
    assert!(
        told.contains("stay as they are: it has rights that this user has not"),
        "{said}"
    );
    for one in [root, served] {
        let is_served = one.contains("sleeps: late by") && !one.contains("stay as they are");
        assert!(is_served, "{said}");
    }
}

/// Without the privileges the program runs all the same.
#[test]
fn a_program_whose_interface_cannot_be_had_runs_with_a_line_that_says_why() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let drop = [
        "setpriv",
        "--bounding-set=-bpf,-sys_admin,-net_admin",
        "--inh-caps=-all",
    ];
    let interface = bench.hosts.end(Host::A, 0).interface();
    let mut command = bench.hosts.command(Host::A, drop[0]);
    command.args(&drop[1..]).arg(env!("CARGO_BIN_EXE_taut"));
    let output = command
        .args([
            "exec",
            "--interface",
            &interface,
            "--",
            "sh",
            "-c",
            "exit 5",
        ])
        .output();
    let output = output.unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(
        said.contains("nothing comes past the stack: ") && said.contains("CAP_"),
        "{said}"
    );
}

/// The cases of the library, in one network namespace whose loopback is the interface.
#[test]
fn each_call_answers_as_without_the_library_while_datagrams_come_past_the_stack() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let scratch = Scratch::new("exec-cases");
    let program = scratch.0.join("cases");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tautline-awake-preload/tests/semantics/cases.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-pthread", "-o"]);
    assert!(
        compiler
            .arg(&program)
            .arg(source)
            .status()
            .unwrap()
            .success()
    );
    let program = program.to_str().unwrap();
    bench
        .hosts
        .run(Host::A, "ip", &["link", "set", "lo", "up"])
        .unwrap();
    let run = |words: &[&str]| {
        // A case that hangs is ended, and differs.
        let mut command = bench.hosts.command(Host::A, "timeout");
        let output = command.arg("30").args(words).output().unwrap();
        let said = format!("{}{}", text(&output.stdout), output.status);
        (said, text(&output.stderr))
    };
    let listed = Command::new(program).output().unwrap();
    let (mut different, mut past) = (Vec::new(), 0);
    // A buffer that does not exist is a known difference (docs/reference/exec.md).
    let listed = text(&listed.stdout);
    for case in listed.lines().filter(|case| *case != "bad_buffer") {
        let (expected, _) = run(&[program, case]);
        let taut = [
            env!("CARGO_BIN_EXE_taut"),
            "exec",
            "--report",
            "-i",
            "lo",
            "--",
        ];
        let (found, report) = run(&[&taut[..], &[program, case]].concat());
        past += usize::from(past_the_stack(&report) > 0);
        if found != expected {
            different.push(format!("{case}: {expected} became {found}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(
        past >= 20,
        "datagrams came past the stack in {past} cases only"
    );
}

/// Several programs look on one interface, beside a control process that has the demux there.
#[test]
fn programs_look_beside_one_another_and_beside_a_control_process() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let scratch = Scratch::new("exec-beside");
    let interface = bench.hosts.end(Host::A, 0).interface();
    let file = scratch.0.join("node.toml");
    fs::write(&file, format!("interface = \"{interface}\"\n")).unwrap();
    let mut control = bench.hosts.command(Host::A, env!("CARGO_BIN_EXE_taut"));
    control.args(["node", "run", "--config", file.to_str().unwrap()]);
    let _control = started(&mut control, "serving clients", false);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/periodic.py");
    let script = script.to_str().unwrap();
    let at = bench.address(Host::A);
    // Other tests do not hold them up: who sleeps through its expected time does not look.
    let first = ["chrt", "-f", "20", "python3", script];
    let receivers = ["9201", "9202"].map(|port| {
        let words = [&first[..], &["receive", &at, port]].concat();
        bench.command(Host::A, true, &words).spawn().unwrap()
    });
    let words = [&first[..], &["send", &at]].concat();
    let mut sender = bench.command(Host::B, false, &words);
    let _sender = KilledOnDrop(sender.stdout(Stdio::null()).spawn().unwrap());
    for receiver in receivers {
        let output = receiver.wait_with_output().unwrap();
        let (said, report) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(said, "300 in order\n", "{report}");
        assert!(past_the_stack(&report) > 0, "{report}");
    }
}
