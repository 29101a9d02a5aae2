//! Files that commands are given, to be read and to be written: those that are there already, pipes, devices without an
//! end, places where nothing can be made.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use tautline_state::child::KilledOnDrop;

use crate::common::{Running, Scratch, started};

/// A configuration of a node that opens nothing.
const NODE: &str = "address = \"127.0.12.40\"\n";

/// Time in which a command that reads no further than it should has ended.
const SOON: Duration = Duration::from_secs(20);

fn taut(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Output of a command that ends by itself: one that hangs is ended, and the test fails.
fn soon(mut command: Command) -> (Option<i32>, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > SOON {
            let _ = child.kill();
            panic!("it does not end: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn refused(arguments: &[&str], status: i32, words: &str) {
    let (code, said) = soon(taut(arguments));
    assert_eq!(code, Some(status), "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?}: {said}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A node on a bus that echoes.
fn answering(bus: &Path) -> KilledOnDrop {
    let mut echo = taut(&["echo", "--bus", text(bus)]);
    started(&mut echo, "answering on port", false)
}

#[test]
fn a_recording_that_is_there_is_kept_and_has_one_writer() {
    let scratch = Scratch::new("files-record");
    let bus = scratch.0.join("bus");
    let _echo = answering(&bus);
    for command in ["record", "capture"] {
        let file = scratch.0.join(command);
        let writing = |timeout: &str, more: &[&str]| {
            let mut writing = taut(&[command, "--bus", text(&bus), "--for", timeout]);
            if command == "capture" {
                writing.arg("--write");
            }
            writing.arg(&file).args(more);
            writing
        };
        fs::write(&file, "an hour of flight").unwrap();
        let (status, said) = soon(writing("100ms", &[]));
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("exists, and is left as it is"), "{said}");
        assert!(said.contains("--overwrite"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), b"an hour of flight");
        let (status, said) = soon(writing("100ms", &["--overwrite"]));
        assert_eq!(status, Some(0), "{said}");
        assert_ne!(fs::read(&file).unwrap(), b"an hour of flight");

        // While it is written, no other process gets it.
        fs::remove_file(&file).unwrap();
        let writer = Running::start(&mut writing("1min", &[]), "ing");
        let begin = Instant::now();
        while !file.exists() {
            assert!(begin.elapsed() < SOON, "nothing is written");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100));
        let (status, said) = soon(writing("100ms", &["--overwrite"]));
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("locked by another process"), "{said}");
        let (status, said) = writer.end();
        assert!(matches!(status, Some(0 | 130)), "{said}");
    }
    let recording = scratch.0.join("record");
    let whole = fs::read(&recording).unwrap();
    let link = scratch.0.join("link");
    symlink(&recording, &link).unwrap();
    let second = scratch.0.join("second");
    fs::hard_link(&recording, &second).unwrap();
    for other in [&recording, &link, &second] {
        let arguments = [
            "replay",
            text(&recording),
            "--sim",
            "--overwrite",
            "--write",
            text(other),
        ];
        let (status, said) = soon(taut(&arguments));
        assert!(matches!(status, Some(1 | 2)), "{said}");
        assert_eq!(fs::read(&recording).unwrap(), whole, "{other:?}: {said}");
    }
}

#[test]
fn pipes_and_devices_without_an_end_are_refused_at_once() {
    let scratch = Scratch::new("files-endless");
    let pipe = scratch.0.join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (file, words) in [(text(&pipe), "named pipe"), ("/dev/zero", "device")] {
        refused(&["recv", "7", "--config", file], 2, words);
        refused(&["node", "run", "--config", file], 2, words);
        refused(&["smooth", "run", "--config", file], 2, words);
        refused(&["types", file], 2, words);
        refused(&["task", "check", file], 2, words);
        refused(&["task", "run", file], 2, words);
        refused(&["replay", file, "--sim"], 2, words);
        refused(
            &["serve", "--listen", "127.0.0.1:0", "--token-file", file],
            2,
            words,
        );
    }
    // A pipe that was handed over ends when its writer does.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(NODE.as_bytes()).unwrap();
    drop(writer);
    let mut handed = taut(&["recv", "7", "--config", "/dev/stdin", "--timeout", "10ms"]);
    handed.stdin(reader);
    let (_, said) = soon(handed);
    assert!(said.contains("listening on port 7"), "{said}");
}

#[test]
fn files_that_are_not_there_and_places_without_room_are_wrong_use() {
    let scratch = Scratch::new("files-places");
    let bus = scratch.0.join("bus");
    let _echo = answering(&bus);
    let inside = scratch.0.join("missing/file");
    let (bus, inside) = (text(&bus), text(&inside));
    for arguments in [
        &["key", "add", inside][..],
        &["key", "create", inside],
        &["init", "--interface", "lo", "--file", inside],
        &["capture", "--bus", bus, "--write", inside],
        &["record", "--bus", bus, inside],
    ] {
        refused(arguments, 2, "No such file");
    }
    let wrong = scratch.0.join("wrong");
    fs::write(&wrong, "no file of any kind").unwrap();
    refused(&["key", "add", text(&wrong)], 2, "what to do");
}

#[test]
fn standard_output_has_one_result() {
    let set = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/three_rates.toml");
    let check = ["task", "check", text(&set)];
    let both = [&check[..], &["--json", "--html", "-"]].concat();
    refused(&both, 2, "cannot have two results");
    let trace = ["task", "trace", "--html", "-", "--perfetto", "-"];
    refused(&trace, 2, "cannot have two results");
    let run = ["task", "run", "a", "--json", "--html", "-"];
    refused(&run, 2, "cannot have two results");
    let console = ["guest", "run", "a.elf", "--console", "-", "--json"];
    refused(&console, 2, "cannot have two results");
    // The page alone, without the table.
    let output = taut(&[&check[..], &["--html", "-"]].concat()).output();
    let page = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    assert!(page.trim_end().ends_with("</html>"), "{page}");
}

#[test]
fn what_is_ended_before_its_count_is_interrupted() {
    let scratch = Scratch::new("files-count");
    let bus = scratch.0.join("bus");
    let _echo = answering(&bus);
    let file = scratch.0.join("record.mcap");
    let record = ["record", "--overwrite", text(&file)];
    for command in [&["capture"][..], &record] {
        for (more, expected) in [(&["--count", "9", "--for", "1h"][..], 130), (&[], 0)] {
            let words = [command, &["--bus", text(&bus)], more].concat();
            let mut running = taut(&words);
            let running = Running::start(running.stdout(Stdio::null()), "ing");
            let (status, said) = running.end();
            assert_eq!(status, Some(expected), "{words:?}: {said}");
            assert!(!said.contains("in time"), "{words:?}: {said}");
        }
    }
}

#[test]
fn a_reader_of_errors_that_has_gone_ends_nothing() {
    let scratch = Scratch::new("files-errors");
    let bus = scratch.0.join("bus");
    let _echo = answering(&bus);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut capture = taut(&["capture", "--bus", text(&bus), "--for", "100ms"]);
    let capture = capture.stdout(Stdio::null()).stderr(writer);
    assert_eq!(capture.status().unwrap().code(), Some(0));
}

#[test]
fn policies_and_tokens_that_others_can_write_are_refused() {
    let scratch = Scratch::new("files-policy");
    let policy = scratch.0.join("node.toml");
    // Refused before anything is opened; without a mistake it fails at its interface.
    fs::write(
        &policy,
        "interface = \"nosuch0\"\n[[allow]]\nuser = \"root\"\nports = [7]\n",
    )
    .unwrap();
    let token = scratch.0.join("token");
    fs::write(&token, "0123456789abcdef\n").unwrap();
    let run = ["node", "run", "--config", text(&policy)];
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        text(&token),
    ];
    for (mode, file, arguments) in [
        (0o602, &policy, &run[..]),
        (0o620, &policy, &run),
        (0o604, &token, &serve),
        (0o640, &token, &serve),
    ] {
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
        refused(arguments, 2, &format!("(mode {mode:04o})"));
    }
    fs::set_permissions(&policy, Permissions::from_mode(0o644)).unwrap();
    refused(&run, 2, "nosuch0");
    if rustix::process::geteuid().is_root() {
        for (file, arguments) in [(&policy, &run[..]), (&token, &serve)] {
            fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(file, Some(65_534), None).unwrap();
            let mut command = taut(arguments);
            command.env_remove("SUDO_UID");
            let (status, said) = soon(command);
            assert_eq!(status, Some(2), "{said}");
            assert!(said.contains("belongs to user 65534"), "{said}");
        }
        // With sudo it may be the caller's own.
        let mut command = taut(&run);
        let (_, said) = soon(std::mem::replace(
            command.env("SUDO_UID", "65534"),
            taut(&[]),
        ));
        assert!(said.contains("nosuch0"), "{said}");
    }
}

#[test]
fn nothing_is_sent_when_standard_input_is_empty() {
    let send = ["send", "127.0.12.41", "7", "--address", "127.0.12.42"];
    refused(&send, 2, "standard input is empty");
    for wanted in ["--allow-empty", ""] {
        let (status, said) = soon(taut(&[&send[..3], &[wanted], &send[3..]].concat()));
        assert_eq!(status, Some(0), "{said}");
    }
}

#[test]
fn a_bus_alone_needs_no_link() {
    let scratch = Scratch::new("files-bus");
    let config = scratch.0.join("node.toml");
    let bus = scratch.0.join("bus");
    fs::write(
        &config,
        format!("bus = \"{}\"\nnode = \"arm\"\n", text(&bus)),
    )
    .unwrap();
    let (_, said) = soon(taut(&[
        "recv",
        "7",
        "--config",
        text(&config),
        "--timeout",
        "10ms",
    ]));
    assert!(said.contains("listening on port 7"), "{said}");
    assert!(said.contains("link vbus"), "{said}");
}
