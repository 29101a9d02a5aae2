//! Calls that wait, each in one situation: the same program (`semantics/cases.c`) runs as it is and with the library,
//! and must print the same results and errors. Its peer is another process, so that messages come from outside.
//!
//! The run without the library is the expectation: its answers are the kernel's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Cases that there are, so that none is lost unnoticed.
const CASES: usize = 57;

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

fn run(program: &Path, case: &str, library: Option<&Path>) -> (String, String) {
    // A case that hangs is ended, and differs.
    let mut command = Command::new("timeout");
    command.args(["30"]).arg(program).arg(case);
    if let Some(library) = library {
        command
            .env("LD_PRELOAD", library)
            .env("TAUTLINE_AWAKE", "report");
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let output = format!("{}{status}", String::from_utf8_lossy(&stdout));
    (output, String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn each_call_answers_as_without_the_library() {
    let (program, library) = (compiled("all"), library());
    let listed = Command::new(&program).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let mut different = Vec::new();
    let mut met_awake = 0;
    for case in names.lines() {
        let (expected, _) = run(&program, case, None);
        let (found, report) = run(&program, case, Some(&library));
        met_awake += usize::from(report.contains(" met awake"));
        if found != expected {
            different.push(format!("{case}: {expected} became {found}"));
        }
    }
    std::fs::remove_file(&program).unwrap();
    assert_eq!(names.lines().count(), CASES);
    assert!(different.is_empty(), "{}", different.join("\n"));
    // The waits of the library were in the way: most cases have a descriptor with a report.
    assert!(
        met_awake >= CASES / 2,
        "only {met_awake} cases had a descriptor that was waited for"
    );
}

#[test]
fn a_watched_program_is_changed_in_nothing_and_reported() {
    let (program, library) = (compiled("watched"), library());
    let mut command = Command::new(&program);
    command
        .arg("receives")
        .env("LD_PRELOAD", &library)
        .env("TAUTLINE_AWAKE", "watch");
    let output = command.output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "200 in order"
    );
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(
        report.contains("watched, nothing changed; awake for 0 ms in all"),
        "{report}"
    );
    assert!(report.contains("; 0 met awake"), "{report}");
    assert!(report.contains(" per cent could be met awake"), "{report}");
}
