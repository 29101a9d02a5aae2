//! `taut bench turns` and `taut lab paths` as a user runs them. What needs root, QEMU or a kernel package says SKIPPED
//! where that is not to be had.

use std::process::{Command, Output, Stdio};

use crate::common::{both, skipped_without_kernels};
use tautline_bench::echo::Path;
use tautline_bench::turns::{Outcome, Row};
use tautline_lab::load::find_program;
use tautline_report::Summary;
use tautline_testbed::sys;

/// Most of a port's median as a share of the floor's, 16 bytes, in the guest below: programs of the profile `dev`,
/// Linux 6.1. The ports took 1.167 and 1.208 when this was written. Lower: a new compiler fails it. Higher:
/// instructions that a change adds to each message, 2 % of a round trip, go unseen.
const OF_FLOOR_MAX: [(Path, f64); 2] = [(Path::Queuing, 1.18), (Path::Sampling, 1.22)];

/// Most of a port's other series in the same guest, 2 % above the figures when this was written. Lower and higher: as
/// above.
const LIMITS: [(Path, Limits); 2] = [
    (
        Path::Queuing,
        Limits {
            one_way_of_floor: 1.18,
            burst_of_udp: Some(0.876),
            beside_stream_of_udp: 0.640,
            user_instructions: 1_090,
        },
    ),
    (
        Path::Sampling,
        Limits {
            one_way_of_floor: 1.22,
            burst_of_udp: None,
            beside_stream_of_udp: 0.665,
            user_instructions: 1_910,
        },
    ),
];

struct Limits {
    one_way_of_floor: f64,
    burst_of_udp: Option<f64>,
    beside_stream_of_udp: f64,
    /// Of the program, for a message.
    user_instructions: u64,
}

impl Limits {
    fn check(&self, outcome: &Outcome, row: &Row) {
        let of =
            |reference, series: fn(&Row) -> Option<Summary>| outcome.share(row, reference, series);
        let one_way = of(Path::Floor, |row| Some(row.one_way)).unwrap();
        assert!(one_way < self.one_way_of_floor, "{row:?}: {one_way}");
        let burst = of(Path::UdpPoll, |row| Some(row.burst.as_ref()?.message));
        assert_eq!(burst.is_some(), self.burst_of_udp.is_some(), "{row:?}");
        assert!(
            burst < self.burst_of_udp || burst.is_none(),
            "{row:?}: {burst:?}"
        );
        let beside = of(Path::UdpPoll, |row| Some(row.beside_stream.round_trip)).unwrap();
        assert!(beside < self.beside_stream_of_udp, "{row:?}: {beside}");
        let user = row.user_instructions.unwrap();
        assert!(user < self.user_instructions, "{row:?}");
    }
}

fn taut(arguments: &[&str]) -> Output {
    Command::new(crate::PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
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
        assert!(row.one_way.count > 0 && row.one_way.p50_ns < p50, "{row:?}");
        assert_eq!(
            row.burst.is_some(),
            row.path.keeps_all_messages(),
            "{row:?}"
        );
        if let Some(burst) = &row.burst {
            assert!(burst.message.count > 0 && burst.lost == 0, "{row:?}");
        }
        let beside = &row.beside_stream;
        let count = beside.round_trip.count + beside.lost;
        assert!(count >= settings.count, "{row:?}");
        assert!(beside.bits_per_s > 0, "{row:?}");
        let is_counted = cfg!(target_arch = "x86_64");
        assert_eq!(row.user_instructions.is_some(), is_counted, "{row:?}");
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
        "bench",
        "turns",
        "--paths",
        paths,
        "--sizes",
        "16B,1400B",
        "--count",
        "50",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{}", both(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["machine"].is_object(), "{json}");
    assert_whole(&outcome(&json));
    let output = taut(&["bench", "turns", "--paths", "queuing", "--count", "20"]);
    assert!(both(&output).contains("queuing port, both sides spin"));
    // A path that cannot be opened is named, and those beside it are measured.
    let output = taut(&[
        "bench",
        "turns",
        "--paths",
        "sampling,queuing",
        "--sizes",
        "20000B",
        "--count",
        "20",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{}", both(&output));
    let Outcome { rows, missing, .. } = outcome(&serde_json::from_slice(&output.stdout).unwrap());
    let measured: Vec<Path> = rows.iter().map(|row| row.path).collect();
    assert_eq!(measured, [Path::Queuing], "{missing:?}");
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(missing[0].0, Path::Sampling, "{missing:?}");
}

#[test]
fn messages_over_network_cards_take_as_many_instructions_as_ever() {
    if find_program("qemu-system-x86_64").is_none() || !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: needs a PC with QEMU (apt-get install qemu-system-x86)");
        return;
    }
    let Some(first) = measured(&[]) else { return };
    let outcome = outcome(&first["paths"][0]["outcome"]);
    assert_whole(&outcome);
    for (path, of_floor_max) in OF_FLOOR_MAX {
        let row = row(&outcome, path);
        let of = |reference| outcome.of(row, reference).unwrap();
        assert!(of(Path::UdpPoll) < 0.75, "{row:?}");
        let of_floor = of(Path::Floor);
        assert!(of_floor < of_floor_max, "{row:?}: {of_floor}");
    }
    for (path, limits) in LIMITS {
        let row = row(&outcome, path);
        limits.check(&outcome, row);
        let parts = row.user_instructions.unwrap() + row.bpf_mean_ns.unwrap();
        let message_ns = row.round_trip.p50_ns / 2;
        assert_eq!(row.kernel_ns, Some(message_ns - parts), "{row:?}");
    }
    let second = measured(&["--fresh"]).unwrap();
    assert_eq!(first, second, "two runs differ");
}

/// Result of a guest with two cards of virtio_net; nothing where guests cannot be had, which is said.
fn measured(options: &[&str]) -> Option<serde_json::Value> {
    let output = taut(
        &[
            &[
                "lab",
                "paths",
                "--driver",
                "virtio_net",
                "--kernel",
                "linux-image-amd64@bookworm,preempt=none",
                "--paths",
                "udp-poll,queuing,sampling,floor",
                "--sizes",
                "16B",
                "--count",
                "300",
                "--json",
                "-",
            ],
            options,
        ]
        .concat(),
    );
    let said = both(&output);
    if skipped_without_kernels(&said) {
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn row(outcome: &Outcome, path: Path) -> &Row {
    let mut rows = outcome.rows.iter();
    rows.find(|row| row.path == path).unwrap()
}
