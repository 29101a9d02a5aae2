//! A third-party EtherCAT main device, against simulated sub-devices: through its own packet socket,
//! through the same socket under `taut exec`, and through a raw port. Both programs are those of `measure/ethercrab`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tautline_state::child::KilledOnDrop;

use serde_json::Value;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::common::{skipped_without_privilege, text};

/// Sub-devices of the chain.
const DEVICES: u64 = 3;
const CYCLES: u64 = 200;

fn cargo(arguments: &[&str]) -> Output {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../measure/ethercrab/Cargo.toml");
    assert!(manifest.exists(), "{}", manifest.display());
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(arguments)
        .args(["--locked", "--manifest-path"])
        .arg(manifest)
        .env("CARGO_TARGET_DIR", target())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Beside this build, and kept for the next one.
fn target() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().unwrap().join("ethercrab")
}

/// Directory of both programs, built once; says so where ethercrab cannot be fetched.
fn built() -> Option<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let fetched = cargo(&["fetch"]);
        if !fetched.status.success() {
            return Err(text(&fetched.stderr));
        }
        let output = cargo(&["build"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        Ok(target().join("debug"))
    });
    let why = built.as_ref().err().and_then(|said| said.lines().last());
    if let Some(why) = why {
        println!("SKIPPED: ethercrab and what it needs cannot be fetched: {why}");
    }
    built.as_ref().ok().cloned()
}

/// The chain of sub-devices, ended when dropped.
fn sub_devices(hosts: &Hosts, programs: &Path) -> KilledOnDrop {
    let program = programs.join("sub_device");
    let mut command = hosts.command(Host::B, program.to_str().unwrap());
    let interface = hosts.end(Host::B, 0).interface();
    command.args(["--interface", &interface, "--count", &DEVICES.to_string()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    KilledOnDrop(child)
}

/// All devices came to OP, took part in every cycle, and answered its outputs.
fn worked(output: &Output, how: &str) {
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{how}: {said}{complaints}");
    let figures: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(figures["devices"], DEVICES, "{how}: {said}");
    assert_eq!(figures["op"], true, "{how}: {said}");
    assert_eq!(figures["cycles"], CYCLES, "{how}: {said}");
    for wrong in ["lost", "uncounted", "wrong"] {
        assert_eq!(figures[wrong], 0, "{how}: {said}");
    }
    println!("{how}: {}", said.trim_end());
}

#[test]
fn a_main_device_of_others_works_in_three_ways() {
    if skipped_without_privilege() {
        return;
    }
    let Some(programs) = built() else { return };
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let interface = hosts.end(Host::A, 0).interface();
    let _sub_devices = sub_devices(&hosts, &programs);
    let main_device = programs.join("main_device");
    let main_device = main_device.to_str().unwrap();
    let cycles = CYCLES.to_string();
    let waits: [&[&str]; 2] = [&[], &["--spin"]];
    for wait in waits {
        let work = ["--interface", &interface, "--cycles", &cycles];
        let mut by_socket = hosts.command(Host::A, main_device);
        by_socket.args(work).args(wait);
        worked(&by_socket.output().unwrap(), "packet socket");

        let mut awake = hosts.command(Host::A, env!("CARGO_BIN_EXE_taut"));
        awake
            .args(["exec", "--interface", &interface, "--", main_device])
            .args(work)
            .args(wait);
        worked(&awake.output().unwrap(), "taut exec");

        let mut by_port = hosts.command(Host::A, main_device);
        by_port.args(work).args(wait).args(["--way", "port"]);
        worked(&by_port.output().unwrap(), "raw port");
    }
}

#[test]
fn the_sub_devices_pass_their_own_tests() {
    if built().is_none() {
        return;
    }
    let output = cargo(&["test", "--bin", "sub_device"]);
    assert!(output.status.success(), "{}", text(&output.stdout));
}
