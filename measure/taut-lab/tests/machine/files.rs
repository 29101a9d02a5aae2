//! Files that commands are given, to be read and to be written: pipes, devices without an end, devices that are full.

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
fn a_table_is_shown_although_its_file_has_no_room() {
    let output = taut(&["experiment", "list", "--json=/dev/full"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("rtmux-latency"), "{table}");
}
