//! `taut bench bus` as a user runs it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// As little as gives every row a figure.
const SHORT: [&str; 14] = [
    "bench",
    "bus",
    "--rounds",
    "2",
    "--slice",
    "20",
    "--throughput-slice",
    "100",
    "--paced-slice",
    "3",
    "--sizes",
    "8B,64B",
    "--throughput-sizes",
    "64B",
];

fn run(arguments: &[&str]) -> Output {
    Command::new(crate::PROGRAM)
        .args(SHORT)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A program that answers as the one that measures iceoryx2 does, gone when dropped.
struct Program(PathBuf);

impl Program {
    fn new(name: &str, script: &str) -> Program {
        let path = std::env::temp_dir().join(format!("taut-{}-{name}", std::process::id()));
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Program(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let option = ["--iceoryx2", self.0.to_str().unwrap()];
        run(&[&option, arguments].concat())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const ANSWERS: &str = r#"
echo 'ready iceoryx2 1.2.3'
while read -r what bytes count period; do
    case $what in
        round-trip) echo 'ok 500 700 600' ;;
        throughput) echo "ok $((count * 1000))" ;;
        paced) test "$period" = 1000000 && echo 'ok 9000 9000' ;;
        publish-*) echo 'ok 8000 8000 8000 8000 8000 8000 8000 8000' ;;
    esac
done"#;

#[test]
fn every_row_has_its_figures_and_its_ratios() {
    let output = Program::new("answers", ANSWERS).run(&["--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["machine"]["cpu_model"].is_string());
    assert_eq!(json["settings"]["period_ns"], 1_000_000);
    let active = json["settings"]["active"]["iceoryx2"].as_str().unwrap();
    assert!(active.starts_with("iceoryx2 1.2.3"), "{active}");
    let row = |measure: &str, path: &str, bytes: u64| {
        let rows = json["rows"].as_array().unwrap();
        let found = rows.iter().find(|row| {
            row["measure"] == measure && row["path"] == path && row["payload_bytes"] == bytes
        });
        found.unwrap_or_else(|| panic!("no row {measure} {path} {bytes}"))
    };
    assert_eq!(row("round-trip", "floor", 8)["count"], 40);
    assert_eq!(row("round-trip", "floor", 8)["p50_of_floor"], 1.0);
    assert_eq!(row("round-trip", "floor-apart", 8)["count"], 40);
    let other = row("round-trip", "iceoryx2", 64);
    assert_eq!(
        (&other["min_ns"], &other["p50_ns"]),
        (&500.into(), &600.into())
    );
    assert_eq!(other["p50_of_iceoryx2"], 1.0);
    assert!(other["p50_of_floor"].is_f64());
    let rate = row("throughput", "iceoryx2", 64)["messages_per_second"].as_f64();
    assert!((rate.unwrap() - 1e6).abs() < 1.0);
    assert_eq!(row("paced", "futex", 64)["count"], 6);
    assert_eq!(row("paced", "iceoryx2-event", 64)["p50_ns"], 9000);
    let targets = json["targets"].as_array().unwrap();
    assert!(targets.len() > 10);
    assert!(targets.iter().all(|target| target["limit"].is_f64()));
}

/// Publishing to two numbers of subscribers, in slices of three messages behind the five that are not counted.
#[test]
fn publishing_has_a_row_for_each_number_of_subscribers() {
    let arguments = [
        "--subscribers",
        "1,3",
        "--publish-size",
        "4KiB",
        "--json",
        "-",
    ];
    let output = Program::new("publishes", ANSWERS).run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["iceoryx2"], "iceoryx2 1.2.3");
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 2 * 3, "numbers, how, readers, paths");
    for row in rows {
        assert_eq!(
            (&row["count"], &row["payload_bytes"]),
            (&6.into(), &4096.into())
        );
        assert!(row["p50_of_iceoryx2"].is_f64() && row["p50_of_one_subscriber"].is_f64());
        if row["path"] == "iceoryx2" {
            assert_eq!(
                (&row["p50_ns"], &row["p50_of_iceoryx2"]),
                (&8000.into(), &1.0.into())
            );
        }
    }
    let output = run(&["--subscribers", "16"]);
    let table = text(&output.stdout);
    assert!(
        table.contains("vbus-queuing, lent, to 16 sleeping / to 1"),
        "{table}"
    );
}

#[test]
fn without_iceoryx2_the_rest_is_measured_and_it_says_how_to_build_it() {
    let output = run(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let warning = text(&output.stderr);
    assert!(warning.contains("iceoryx2 is not measured"), "{warning}");
    assert!(warning.contains("make bench-bus"), "{warning}");
    let table = text(&output.stdout);
    assert!(table.contains("floor-apart"), "{table}");
    assert!(table.contains("not measured"), "{table}");
}

#[test]
fn a_program_that_is_none_is_named() {
    let cases = [
        ("greets", "echo hello", "says `hello` in place of `ready`"),
        ("ends", "exit 3", "has ended"),
        (
            "fails",
            "echo ready x\nread -r line\necho error no memory",
            "error no memory",
        ),
        (
            "babbles",
            "echo ready x\nread -r line\necho ok 5 many",
            "invalid time `many`",
        ),
    ];
    for (name, script, reason) in cases {
        let output = Program::new(name, script).run(&[]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let error = text(&output.stderr);
        assert!(error.contains(reason), "{name}: {error}");
        assert!(
            error.contains("what to do: build it again"),
            "{name}: {error}"
        );
    }
    let output = run(&["--iceoryx2", "/nowhere/program"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot run /nowhere/program"));
}
