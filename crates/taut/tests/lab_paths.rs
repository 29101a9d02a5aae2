//! `taut bench turns` and `taut lab paths` as a user runs them. What needs root, QEMU or a kernel package says SKIPPED
//! where that is not to be had.

mod common;

use std::process::{Command, Output, Stdio};

use common::skipped_without_kernels;
use tautline_bench::echo::Path;
use tautline_bench::turns::Outcome;
use tautline_lab::load::find_program;
use tautline_testbed::sys;

/// Most of a port's median as a share of the floor's, 16 bytes, in the guest below: programs of the profile `dev`,
/// Linux 6.1. The ports took 1.137 and 1.203 when this was written. Lower: a new compiler fails it. Higher:
/// instructions that a change adds to each message, 2 % of a round trip, go unseen.
const OF_FLOOR_MAX: [(Path, f64); 2] = [(Path::Queuing, 1.16), (Path::Sampling, 1.225)];

fn taut(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    streams
        .map(|stream| String::from_utf8_lossy(stream).into_owned())
        .concat()
}

fn outcome(json: &serde_json::Value) -> Outcome {
    serde_json::from_value(json.clone()).unwrap()
}

fn assert_whole(outcome: &Outcome) {
    let Outcome {
        settings, missing, ..
    } = outcome;
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(
        outcome.rows.len(),
        settings.paths.len() * settings.sizes.len()
    );
    for row in &outcome.rows {
        let count = row.round_trip.count + row.lost;
        assert_eq!(count, settings.count, "{row:?}");
        let [p50, send, wait] = [row.round_trip.p50_ns, row.send_p50_ns, row.wait_p50_ns];
        assert!(send > 0 && wait > 0 && p50 > send + wait, "{row:?}");
        let is_kernel = matches!(row.path, Path::UdpPoll | Path::UdpBusy);
        assert_eq!(row.bpf_mean_ns.is_none(), is_kernel, "{row:?}");
    }
}

#[test]
fn two_ends_take_turns_over_one_cable() {
    if !sys::is_root() {
        println!("SKIPPED: needs root, to make hosts");
        return;
    }
    let paths = "udp-poll,udp-busy,queuing,sampling,udp-port,floor";
    let output = taut(&[
        "bench", "turns", "--paths", paths, "--sizes", "16,1400", "--count", "50", "--json", "-",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["machine"].is_object(), "{json}");
    assert_whole(&outcome(&json));
    let output = taut(&["bench", "turns", "--paths", "queuing", "--count", "20"]);
    assert!(text(&output).contains("queuing port, both sides spin"));
    // A path that cannot be opened is named, and those beside it are measured.
    let output = taut(&[
        "bench",
        "turns",
        "--paths",
        "sampling,queuing",
        "--sizes",
        "20000",
        "--count",
        "20",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    let Outcome { rows, missing, .. } = outcome(&serde_json::from_slice(&output.stdout).unwrap());
    let measured: Vec<Path> = rows.iter().map(|row| row.path).collect();
    assert_eq!(measured, [Path::Queuing], "{missing:?}");
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(missing[0].0, Path::Sampling, "{missing:?}");
}

#[test]
fn wrong_use_is_explained() {
    for (arguments, words) in [
        (
            &["bench", "turns", "--interfaces", "lo"][..],
            "give its two interfaces",
        ),
        (
            &["lab", "paths", "--driver", "ne2000"],
            "use igb, e1000e, virtio_net",
        ),
    ] {
        let output = taut(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(words), "{}", text(&output));
    }
}

#[test]
fn messages_over_network_cards_take_as_many_instructions_as_ever() {
    if find_program("qemu-system-x86_64").is_none() || !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: needs a PC with QEMU (apt-get install qemu-system-x86)");
        return;
    }
    let output = taut(&[
        "lab",
        "paths",
        "--driver",
        "virtio_net",
        "--kernel",
        "linux-image-amd64@bookworm,preempt=none",
        "--paths",
        "udp-poll,queuing,sampling,floor",
        "--sizes",
        "16",
        "--count",
        "300",
        "--json",
        "-",
    ]);
    let said = text(&output);
    if skipped_without_kernels(&said) {
        return;
    }
    assert!(output.status.success(), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let outcome = outcome(&json[0]["outcome"]);
    assert_whole(&outcome);
    for (path, of_floor_max) in OF_FLOOR_MAX {
        let row = outcome.rows.iter().find(|row| row.path == path).unwrap();
        let of = |reference| outcome.of(row, reference).unwrap();
        assert!(of(Path::UdpPoll) < 0.75, "{row:?}");
        let of_floor = of(Path::Floor);
        assert!(of_floor < of_floor_max, "{row:?}: {of_floor}");
    }
}
