//! `taut flight` as a user runs it.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tautline_testbed::sys::is_root;

mod common;
use common::{Scratch, browse};

fn flight(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.arg("flight").args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

/// One variant, with its loads and the fault; the verdict needs the others, and time that tests do not have. Figures
/// of a shared machine are not judged here: the world's own check may void the flight.
#[test]
fn a_flight_ends_with_a_table_a_verdict_and_a_page() {
    if !is_root() {
        println!("SKIPPED: real-time priorities and partitions need root");
        return;
    }
    let scratch = Scratch::new("flight");
    let out = scratch.0.join("out");
    let output = flight(&["--variants", "fifo", "--out", &out.display().to_string()]);
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaints}");
    assert!(said.contains("SCHED_FIFO by hand"), "{said}");
    assert!(said.contains("The executive did not fly"), "{said}");
    let json: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    let flight = &json["flights"][0];
    let record = &flight["record"];
    println!("{said}");
    assert_eq!(record["loops"].as_array().unwrap().len(), 3);
    assert!(record["world"]["steps"].as_u64().unwrap() > 10_000);
    assert!(record["world"]["samples"].as_array().unwrap().len() > 300);
    if flight["void"].is_null() {
        // Nobody survives a second without a CPU, at whatever priority below the runaway's.
        assert!(!record["world"]["crash"].is_null(), "{said}");
        assert!(
            flight["calm"]["tilt_rms"].as_f64().unwrap() < 10.0,
            "{said}"
        );
    }
    if let Some(text) = browse(&out.join("report.html"), &scratch.0.join("profile")) {
        assert!(text.contains("A flight beside a busy Linux"));
    }
}

#[test]
fn wrong_usage_says_what_is_possible() {
    for (arguments, expected) in [
        (vec!["--variants", "kite"], "plain, fifo, partition"),
        (vec!["--seed", "-1"], "-1"),
        (vec!["--cpu", "4000"], "name one of"),
        (vec!["part", "nonsense"], "started by taut flight itself"),
    ] {
        let output = flight(&arguments);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(complaints.contains(expected), "{arguments:?}: {complaints}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_before_anything_flies() {
    let output = flight(&["--out", "/proc/flight"]);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        complaints.contains("--out") && !complaints.contains("flying"),
        "{complaints}"
    );
}
