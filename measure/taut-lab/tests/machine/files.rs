//! Files that commands are given, to be read and to be written: pipes, devices without an end, places where nothing can
//! be made.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode};

use crate::common::Scratch;

fn taut(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command.args(arguments).stdin(Stdio::null());
    command
}

fn refused(arguments: &[&str], status: i32, words: &str) {
    let output = taut(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?}: {said}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn pipes_and_devices_without_an_end_are_refused_at_once() {
    let scratch = Scratch::new("lab-files-endless");
    let pipe = scratch.0.join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (file, words) in [(text(&pipe), "named pipe"), ("/dev/zero", "device")] {
        refused(&["lab", "report", file, "--html", "-"], 2, words);
        refused(&["lab", "compare", file, file], 2, words);
    }
}

#[test]
fn a_result_that_cannot_be_written_is_told_before_it_is_measured() {
    let scratch = Scratch::new("lab-files-result");
    let page = scratch.0.join("missing/x.html");
    let hour = ["lab", "run", "--for", "1h"];
    for option in ["--json=/nowhere/x.json", &format!("--html={}", text(&page))] {
        refused(
            &[&hour[..], &[option]].concat(),
            2,
            "No such file or directory",
        );
    }
    let directory = format!("--json={}", text(&scratch.0));
    refused(&[&hour[..], &[&directory]].concat(), 2, "Is a directory");
    let inside = scratch.0.join("file/below");
    fs::write(scratch.0.join("file"), "").unwrap();
    refused(
        &["demo", "--unprivileged", "--out", text(&inside)],
        2,
        "Not a directory",
    );
    // The disk is full at the end: the table is there nevertheless.
    let output = taut(&["experiment", "list", "--json=/dev/full"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("rtmux-latency"), "{table}");
}

#[test]
fn files_that_are_not_there_and_places_without_room_are_wrong_use() {
    let scratch = Scratch::new("lab-files-places");
    let inside = scratch.0.join("missing/file");
    refused(&["task", "compare", text(&inside)], 2, "No such file");
    let figure = ["experiment", "run", "rtdip-fig6", "--out", "/proc/no/such"];
    refused(&figure, 2, "No such file");
    let wrong = scratch.0.join("wrong");
    fs::write(&wrong, "no file of any kind").unwrap();
    refused(&["task", "compare", text(&wrong)], 2, "what to do");
}

#[test]
fn standard_output_has_one_result() {
    for command in [
        &["lab", "run", "--for", "1h"][..],
        &["lab", "interrupt"],
        &["lab", "kernels"],
        &["lab", "compare", "a", "b"],
        &["experiment", "run", "rtdip-fig6"],
        &["bench", "rtt"],
    ] {
        let both = [command, &["--json", "--html", "-"]].concat();
        refused(&both, 2, "cannot have two results");
    }
}

#[test]
fn lists_of_cpus_are_read_strictly() {
    for list in ["0,l", "0-4000000000", "", "1-0", "+0"] {
        let list = format!("--cpus={list}");
        refused(
            &["lab", "run", "--for", "1h", &list],
            2,
            "invalid list of CPUs",
        );
    }
}
