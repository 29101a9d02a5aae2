//! The commands as a user runs them.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tautline_testbed::hosts::clear_stale;
use tautline_testbed::sys;

use crate::common::{run, skipped_without_privilege, stderr, stdout, taut};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);

const NOBODY: u32 = 65_534;

fn namespaces_of(pid: u32) -> [PathBuf; 2] {
    ["a", "b"].map(|letter| Path::new("/run/netns").join(format!("taut-{pid}-{letter}")))
}

/// Starts a benchmark that would take hours and waits until it measures.
fn endless_benchmark() -> Child {
    let child = taut(&[
        "bench",
        "rtt",
        "--paths",
        "udp-block",
        "--sizes",
        "16B",
        "--count",
        "1000000000",
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    wait_until(|| namespaces_of(child.id()).iter().all(|path| path.exists()));
    // The hosts are there; a moment later it measures. Either moment must be clean.
    thread::sleep(Duration::from_millis(200));
    child
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_run_is_cleared_by_the_next() {
    if skipped_without_privilege() {
        return;
    }
    let mut child = endless_benchmark();
    let left = namespaces_of(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        left.iter().all(|path| path.exists()),
        "killed, so it could not clear up"
    );
    clear_stale().unwrap();
    assert!(!left.iter().any(|path| path.exists()));
}

#[test]
fn an_interrupted_run_clears_up_itself() {
    if skipped_without_privilege() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = endless_benchmark();
        let made = namespaces_of(child.id());
        sys::signal_process(child.id(), signal);
        let status = child.wait().unwrap();
        assert_eq!(
            status.code(),
            Some(128 + signal.as_raw()),
            "{status} {:?}",
            status.signal()
        );
        assert!(!made.iter().any(|path| path.exists()));
    }
}

#[test]
fn a_loop_is_measured_beside_each_load() {
    if skipped_without_privilege() {
        return;
    }
    let paths = [
        "udp-block",
        "udp-block-again",
        "udp-awake",
        "udp-short-path",
        "udp-linger",
    ];
    let list = paths.join(",");
    let words = ["bench", "loop", "--paths", &list, "--beside", "idle,cpu"];
    let output = run(&[&words[..], &["--for", "21250ms", "--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let runs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (run, load) in runs["runs"].as_array().unwrap().iter().zip(["idle", "cpu"]) {
        assert_eq!(run["beside"], load);
        assert_eq!(run["settings"]["period_ns"], 1_000_000);
        let rows = run["rows"].as_array().unwrap();
        let names: Vec<_> = rows
            .iter()
            .map(|row| row["path"].as_str().unwrap())
            .collect();
        assert_eq!(names, paths);
        for row in rows {
            let count = row["count"].as_u64().unwrap() + row["lost"].as_u64().unwrap();
            assert_eq!(count, 1_125, "{row}");
            // A reply can get lost after its request has arrived.
            let one_way = row["one_way"]["count"].as_u64().unwrap();
            let replies = row["count"].as_u64().unwrap();
            assert!((replies..=1_125).contains(&one_way), "{row}");
            assert!(
                row["late"].as_u64() >= row["late_episodes"].as_u64(),
                "{row}"
            );
            assert!(row["p9999_ns"].as_u64() >= row["p999_ns"].as_u64(), "{row}");
            // The loop sleeps between its messages.
            assert!(row["asking_cpu_percent"].as_f64() < Some(60.0), "{row}");
        }
    }
}

#[test]
fn a_benchmark_writes_table_json_and_page() {
    if skipped_without_privilege() {
        return;
    }
    let page = std::env::temp_dir().join(format!("taut-test-{}.html", std::process::id()));
    let file = page.with_extension("json");
    let output = run(&[
        "bench",
        "rtt",
        "--paths",
        "udp-poll,udp-block,tcp-poll,tcp-block",
        "--sizes",
        "1B,1400B,60000B",
        "--count",
        "30",
        "--slice",
        "10",
        "--timeout",
        "5s",
        "--json",
        file.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let active = text
        .find("kernel UDP, blocking sockets")
        .expect("the active paths are named");
    assert!(active < text.find("p99.9").unwrap(), "above the table");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let html = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(&page).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12);
    for row in rows {
        assert_eq!(
            row["count"].as_u64().unwrap() + row["lost"].as_u64().unwrap(),
            30,
            "{row}"
        );
        let figures = ["min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"]
            .map(|key| row[key].as_u64().unwrap());
        assert!(figures.is_sorted(), "{row}");
    }
    assert!(json["machine"]["kernel_release"].is_string());
    assert_eq!(json["settings"]["count"], 30);
    assert!(html.contains("60000 bytes") && html.contains("<svg"));
}

#[test]
fn ports_stand_beside_the_floor_of_their_own_hook() {
    if skipped_without_privilege() {
        return;
    }
    let mut features = tautline::kernel::FEATURES.iter();
    let tcx = features.find(|feature| feature.used_by.contains("`tc`"));
    let (paths, floors) = match tcx.expect("a feature").is_there() {
        Ok(false) => {
            println!("SKIPPED: traffic control without BPF links (before Linux 6.6)");
            ("queuing,floor", 2)
        }
        _ => ("queuing,floor,queuing-tc,floor-tc,queuing-generic", 4),
    };
    let output = run(&[
        "bench", "rtt", "--paths", paths, "--sizes", "16B", "--count", "50", "--json", "-",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of_floor = |row: &serde_json::Value| row["p50_of_floor"].as_f64();
    assert!(rows[..floors].iter().all(|row| of_floor(row).is_some()));
    let own = rows.iter().skip(1).step_by(2).filter_map(of_floor);
    assert!(own.eq(vec![1.0; floors / 2]), "{rows:?}");
    // No floor has generic mode.
    assert!(rows[floors..].iter().all(|row| of_floor(row).is_none()));
}

#[test]
fn a_flood_is_measured_beside_quiet() {
    if skipped_without_privilege() {
        return;
    }
    let output = run(&[
        "bench",
        "flood",
        "--count",
        "100",
        "--interval",
        "50us",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let beside: Vec<_> = rows.iter().map(|row| &row["beside"]).collect();
    assert_eq!(beside, ["quiet", "flood", "policed"]);
    for row in rows {
        assert_eq!(row["sent"], 500, "whole turns");
        let seen = row["count"].as_u64().unwrap() + row["lost"].as_u64().unwrap();
        assert_eq!(seen, 500, "{row}");
    }
    assert!(rows[1]["flood_frames_per_s"].as_f64().unwrap() > 0.0);
    assert!(json["policed"].as_u64().unwrap() > 0);
}

#[test]
fn sending_is_measured_copied_lent_and_through_a_control_process() {
    if skipped_without_privilege() {
        return;
    }
    let output = run(&[
        "bench", "send", "--count", "50", "--sizes", "64B,8KiB", "--json", "-",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let ways: Vec<_> = rows
        .iter()
        .map(|row| (&row["bytes"], &row["from"]))
        .collect();
    assert_eq!(
        serde_json::json!(ways),
        serde_json::json!([
            [64, "copied"],
            [64, "lent"],
            [64, "tap"],
            [8192, "copied"],
            [8192, "lent"],
            [8192, "tap"]
        ])
    );
    assert!(rows.iter().all(|row| row["count"] == 50));
    assert!(rows[1]["p50_of_copied"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_demux_is_weighed_by_what_it_costs_ordinary_traffic() {
    if skipped_without_privilege() {
        return;
    }
    // The median of three: on a machine whose CPUs others take, a turn may pass without a byte of TCP.
    let output = run(&["bench", "ordinary", "--turns", "3", "--json", "-"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["round_trips"].as_array().unwrap();
    assert_eq!(rows.len(), 14);
    for row in rows {
        let seen = row["count"].as_u64().unwrap() + row["lost"].as_u64().unwrap();
        assert_eq!(seen, 3_000, "{row}");
    }
    assert_eq!(rows[0]["demux"], "untouched");
    assert_eq!(rows[0]["p50_of_untouched"], 1.0);
    assert!(rows[1]["p50_of_untouched"].as_f64().unwrap() > 0.0);
    let streams = json["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 14);
    let moved = |row: &serde_json::Value| row["bits_per_s"].as_f64().unwrap() > 0.0;
    assert!(streams.iter().all(moved), "{streams:?}");
}

#[test]
fn json_on_standard_output_is_all_there_is() {
    if skipped_without_privilege() {
        return;
    }
    let output = run(&[
        "bench",
        "rtt",
        "--paths",
        "udp-poll,udp-poll",
        "--sizes",
        "8B",
        "--count",
        "5",
        "--timeout",
        "5s",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["rows"].as_array().unwrap().len(),
        1,
        "a path named twice is measured once"
    );
}

#[test]
fn without_privilege_the_remedy_is_named() {
    let output = match taut(&["bench", "rtt", "--paths", "udp-poll"])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: cannot run the command as nobody: {error}");
            return;
        }
    };
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("CAP_NET_ADMIN") && text.contains("root"),
        "{text}"
    );
}
