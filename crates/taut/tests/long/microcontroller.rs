//! `tautline_wire.h` in programs, with `taut` as the peer: firmware on a simulated board whose Ethernet ends in a host
//! of the test, nodes beside lwIP, and a program over ordinary UDP sockets.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::common::{Running, build_directory, skipped_without_privilege, skipped_without_tools};

/// Far longer than anything takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Addresses of the board, as its program has them.
const BOARD_MAC: &str = "02:54:4c:01:00:01";
const BOARD_IP: &str = "10.77.9.2";
/// Address that lwIP's interface for Linux gives itself.
const LWIP_MAC: &str = "02:12:34:56:78:ab";
/// The host's end of the cable.
const INTERFACE: &str = "tautmcu";

/// Builds an example of `bindings/mcu`; where it is.
fn example(name: &str) -> PathBuf {
    static BUILD: OnceLock<PathBuf> = OnceLock::new();
    let build = BUILD.get_or_init(|| build_directory("mcu-examples"));
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/mcu");
    let program = build.join(name);
    let mut command = Command::new("make");
    command
        .arg("-C")
        .arg(kit)
        .arg(format!("BUILD={}", build.display()))
        .arg(&program);
    succeeded(&command.output().unwrap());
    program
}

fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    said
}

/// A program that runs on a simulated board or beside lwIP, and a host that its cable leads to.
struct Bench {
    hosts: Hosts,
    _program: Running,
}

impl Bench {
    /// Lays the cable and starts the program, which says these words when it is ready. Nothing, with a note, where a
    /// tool or a privilege is missing.
    fn new(
        tools: &[(&str, &str)],
        ready: &str,
        program: impl FnOnce(&Hosts) -> Command,
    ) -> Option<Bench> {
        if skipped_without_privilege() || skipped_without_tools(tools) {
            return None;
        }
        if !fs::exists("/dev/net/tun").unwrap_or(false) {
            println!("SKIPPED: there is no /dev/net/tun, which the cable needs");
            return None;
        }
        let hosts = Hosts::create(&HostsOptions::default()).unwrap();
        #[rustfmt::skip]
        let steps: [&[&str]; 3] = [
            &["tuntap", "add", "dev", INTERFACE, "mode", "tap"],
            &["link", "set", INTERFACE, "address", "02:54:4c:01:00:02", "up"],
            &["address", "add", "10.77.9.1/24", "dev", INTERFACE],
        ];
        for step in steps {
            hosts.run(Host::A, "ip", step).unwrap();
        }
        let program = Running::start(&mut program(&hosts), ready);
        Some(Bench {
            hosts,
            _program: program,
        })
    }

    fn board() -> Option<Bench> {
        let tools = [
            ("qemu-system-arm", "qemu-system-arm"),
            ("clang", "clang"),
            ("ld.lld", "lld"),
        ];
        let bench = Bench::new(&tools, "ports 4095 and 8 are open", |hosts| {
            let mut command = hosts.command(Host::A, "qemu-system-arm");
            command
                .args(["-M", "mps2-an385", "-display", "none", "-monitor", "none"])
                .args(["-serial", "file:/dev/stderr", "-kernel"])
                .arg(example("echo.elf"))
                .args(["-nic", "tap,ifname=tautmcu,script=no,downscript=no"]);
            command
        })?;
        // The board does not resolve addresses.
        #[rustfmt::skip]
        let neighbour = ["neighbour", "replace", BOARD_IP, "lladdr", BOARD_MAC, "nud", "permanent", "dev", INTERFACE];
        bench.hosts.run(Host::A, "ip", &neighbour).unwrap();
        Some(bench)
    }

    fn taut(&self, arguments: &[&str], link: &str) -> Command {
        let mut command = self.hosts.command(Host::A, env!("CARGO_BIN_EXE_taut"));
        command
            .args(arguments)
            .args(["--interface", INTERFACE, "--link", link])
            .stdin(Stdio::null());
        command
    }

    fn ping(&self, peer: &str, link: &str, size: &str) {
        let arguments = ["ping", peer, "--count", "20", "--interval", "0"];
        let size = format!("{size}B");
        let more = ["--timeout", "20s", "--size", &size];
        let said = succeeded(&self.taut(&arguments, link).args(more).output().unwrap());
        assert!(said.contains("20 sent, 20 answered"), "{link}: {said}");
    }

    /// Values that the board publishes: the number of each in its flow, and the counter in it.
    fn values(&self, link: &str) -> Vec<(u64, u64)> {
        let arguments = [
            "recv",
            "8",
            "--sampling",
            "--count",
            "4",
            "--timeout",
            "20s",
        ];
        let mut command = self.taut(&arguments, link);
        let said = succeeded(&command.arg("--json").output().unwrap());
        let lines = said.lines().map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["source"]["address"], BOARD_MAC);
            assert_eq!(value["source"]["port"], 8);
            let counter = u64::from_str_radix(value["payload"].as_str().unwrap(), 16).unwrap();
            (value["sequence"].as_u64().unwrap(), counter)
        });
        lines.collect()
    }

    /// Whether the counter grew by `step` with each value.
    fn counts_by(&self, step: u64, link: &str) -> bool {
        let values = self.values(link);
        assert_eq!(values.len(), 4);
        values
            .windows(2)
            .all(|pair| pair[1].1 - pair[0].1 == step * (pair[1].0 - pair[0].0))
    }

    fn send_to_state(&self, value: &[u8], link: &str) {
        let mut command = self.taut(&["send", BOARD_MAC, "8"], link);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(value).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_board_without_an_operating_system_is_a_node() {
    let Some(bench) = Bench::board() else { return };
    for link in ["packet", "xdp"] {
        bench.ping(BOARD_MAC, link, "64");
        bench.ping(BOARD_MAC, link, "1484");
        bench.ping(BOARD_MAC, link, "4096");
        bench.ping(BOARD_IP, link, "64");
        assert!(bench.counts_by(1, link), "{link}");
    }
    bench.ping(BOARD_IP, "udp", "1400");
    // A value that the board reads is valid for a second, which a busy machine may exceed.
    let limit = Instant::now() + PATIENCE;
    loop {
        bench.send_to_state(&[5], "packet");
        if bench.counts_by(5, "packet") {
            break;
        }
        assert!(Instant::now() < limit, "the board never counted by 5");
    }
}

/// Small messages only: liblwip 2.1.3 of Debian 12 writes beyond its buffers when a longer frame arrives.
#[test]
fn lwip_and_two_nodes_share_an_interface() {
    let found = Command::new("pkg-config")
        .args(["--exists", "lwip"])
        .status();
    if !found.is_ok_and(|status| status.success()) {
        println!("SKIPPED: lwIP is not installed (liblwip-dev)");
        return;
    }
    let bench = Bench::new(&[], "is open", |hosts| {
        let program = example("lwip");
        let mut command = hosts.command(Host::A, program.to_str().unwrap());
        command.arg(BOARD_IP).env("PRECONFIGURED_TAPIF", INTERFACE);
        command
    });
    let Some(bench) = bench else { return };
    bench.ping(LWIP_MAC, "packet", "64");
    bench.ping(BOARD_IP, "udp", "400");
    // lwIP has the rest: it answers to ICMP, and to ARP before.
    bench
        .hosts
        .run(Host::A, "ping", &["-c", "1", "-W", "20", BOARD_IP])
        .unwrap();
    bench.ping(LWIP_MAC, "xdp", "400");
    bench.ping(BOARD_IP, "xdp", "64");
}

#[test]
fn a_program_over_sockets_is_a_node() {
    let mut command = Command::new(example("sockets"));
    command.arg("127.0.0.33").stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let limit = Instant::now() + PATIENCE;
    // Until it has its socket, nothing answers.
    let answered = loop {
        let output = Command::new(env!("CARGO_BIN_EXE_taut"))
            .args([
                "ping",
                "127.0.0.33",
                "--address",
                "127.0.0.34",
                "--count",
                "20",
            ])
            .args(["--interval", "0", "--size", "1456B"])
            .output()
            .unwrap();
        if output.status.success() || Instant::now() > limit {
            break output;
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let said = succeeded(&answered);
    assert!(said.contains("20 sent, 20 answered"), "{said}");
}
