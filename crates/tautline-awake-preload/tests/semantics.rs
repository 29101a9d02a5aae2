//! Calls that wait, each in one situation: the same program (`semantics/cases.c`) runs as it is and with the library,
//! and must print the same results and errors. Its peer is another process, so that messages come from outside.
//!
//! The run without the library is the expectation: its answers are the kernel's.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tautline_awake::board::{Board, Effect};

/// Cases that there are, so that none is lost unnoticed.
const CASES: usize = 58;

/// The program, compiled for one test alone.
fn compiled(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join(format!("awake-cases-{test}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/semantics/cases.c");
    let built = Command::new("cc")
        .args(["-O1", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .expect("the C compiler cc");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    program
}

/// The library, as cargo builds it for this test: beside the test programs.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let library = own.with_file_name("libtautline_awake_preload.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// A board for one run, and the value of TAUTLINE_AWAKE by which the library finds it.
fn board(word: &str) -> (Board, File, String) {
    let (board, file) = Board::create().unwrap();
    let value = format!("{word},board={}/{}", std::process::id(), file.as_raw_fd());
    (board, file, value)
}

/// Output of the program, and whether a descriptor of it was waited for by the library.
fn run(program: &Path, case: &str, library: Option<&Path>) -> (String, bool) {
    // A case that hangs is ended, and differs.
    let mut command = Command::new("timeout");
    command.args(["30"]).arg(program).arg(case);
    let (board, _file, variable) = board("");
    if let Some(library) = library {
        command
            .env("LD_PRELOAD", library)
            .env("TAUTLINE_AWAKE", variable);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let processes = board.processes();
    let is_reported = processes.iter().any(|process| !process.flows.is_empty());
    (format!("{said}{}", output.status), is_reported)
}

#[test]
fn each_call_answers_as_without_the_library() {
    let (program, library) = (compiled("all"), library());
    let listed = Command::new(&program).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let mut different = Vec::new();
    let mut reported = 0;
    for case in names.lines() {
        let (expected, _) = run(&program, case, None);
        let (found, is_reported) = run(&program, case, Some(&library));
        reported += usize::from(is_reported);
        if found != expected {
            different.push(format!("{case}: {expected} became {found}"));
        }
    }
    std::fs::remove_file(&program).unwrap();
    assert_eq!(names.lines().count(), CASES);
    assert!(different.is_empty(), "{}", different.join("\n"));
    // The waits of the library were in the way: most cases have a descriptor with a report.
    assert!(
        reported >= CASES / 2,
        "only {reported} cases had a descriptor that was waited for"
    );
}

#[test]
fn a_message_is_counted_once_if_a_set_announces_it() {
    let (program, library) = (compiled("counted"), library());
    let (board, _file, variable) = board("");
    let mut command = Command::new(&program);
    command
        .arg("select_receives")
        .env("LD_PRELOAD", &library)
        .env("TAUTLINE_AWAKE", variable);
    let output = command.output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "120 in order");
    let processes = board.processes();
    let flows = processes.iter().flat_map(|process| &process.flows);
    let counted: Vec<u64> = flows
        .map(|(_, figures, _)| figures.counts)
        .map(|counts| counts.awake + counts.asleep + counts.before)
        .collect();
    assert_eq!(counted, [120]);
}

#[test]
fn a_watched_program_is_changed_in_nothing_and_reported() {
    let (program, library) = (compiled("watched"), library());
    let (board, _file, variable) = board("watch");
    let mut command = Command::new(&program);
    command
        .arg("receives")
        .env("LD_PRELOAD", &library)
        .env("TAUTLINE_AWAKE", variable);
    let output = command.output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "200 in order"
    );
    let processes = board.processes();
    let receiving = processes.iter().find(|process| {
        process
            .flows
            .iter()
            .any(|(_, figures, _)| figures.could_be_met > 0)
    });
    let receiving = receiving.unwrap_or_else(|| panic!("{processes:?}"));
    assert_eq!(receiving.effect, Effect::Watched);
    assert_eq!(receiving.looked, Duration::ZERO);
    assert!(
        receiving
            .flows
            .iter()
            .all(|(_, figures, _)| figures.counts.awake == 0)
    );
}
