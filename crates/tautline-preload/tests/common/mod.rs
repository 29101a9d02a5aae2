//! Common to both conformance suites: the program in C, its runs, and its output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use tautline_testbed::hosts::{Host, Hosts};

/// Directory of this build's libraries.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().to_owned()
}

/// Compiles a program of these sources.
pub(crate) fn compile(name: &str, sources: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new("cc")
        .args([
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-nonnull",
            "-pthread",
            "-o",
        ])
        .arg(&program)
        .args(sources.iter().map(|source| directory.join(source)))
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    program
}

/// Runs the program in host A, with the library and these variables or without: its output, and what became of its
/// sockets.
pub(crate) fn run(
    hosts: &Hosts,
    program: &Path,
    arguments: &[&str],
    library: Option<&[(&str, &str)]>,
) -> (String, String) {
    let explained = program.with_extension("explained");
    let mut command = hosts.command(Host::A, program.to_str().unwrap());
    command.args(arguments);
    if let Some(variables) = library {
        let _none = std::fs::remove_file(&explained);
        command
            .env("LD_PRELOAD", built().join("libtautline_preload.so"))
            .env("TAUTLINE_EXEC_INTERFACE", hosts.end(Host::A, 0).interface())
            .env("TAUTLINE_EXPLAIN", &explained)
            .envs(variables.iter().copied());
    }
    let output = command.output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    let status = output.status;
    assert!(status.success(), "{status}: {said}{complaints}");
    // A child of a program whose sockets are taken is told that its parent has the interface.
    let is_of_child = |line: &&str| line.contains("another node has");
    let others: Vec<&str> = complaints
        .lines()
        .filter(|line| !is_of_child(line))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    let explained = match library {
        Some(_) => std::fs::read_to_string(&explained).unwrap(),
        None => String::new(),
    };
    (String::from_utf8(output.stdout).unwrap(), explained)
}

/// Runs all cases by the kernel's sockets (`false`) and with the library (`true`): both at the same time, since each
/// waits for most of its time.
pub(crate) fn both<R: Send>(run: impl Fn(bool) -> R + Sync) -> (R, R) {
    thread::scope(|scope| {
        let by_kernel = scope.spawn(|| run(false));
        let by_port = run(true);
        (by_kernel.join().unwrap(), by_port)
    })
}

/// Text that each case wrote.
pub(crate) fn by_case(text: &str) -> BTreeMap<&str, &str> {
    let cases = text.split("== ").skip(1);
    cases.map(|case| case.split_once('\n').unwrap()).collect()
}

/// Datagrams or frames that a closed socket sent and received through its port.
pub(crate) fn past_the_kernel(line: &str) -> Option<u64> {
    let (_, counts) = line.split_once(": closed; past the kernel ")?;
    let numbers = counts
        .split(' ')
        .filter_map(|word| word.parse::<u64>().ok());
    Some(numbers.take(2).sum())
}
