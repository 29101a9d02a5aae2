//! `taut exec` and CAN: Debian's candump, a reader of our own, and calls on CAN sockets, each with and without the
//! library. They run in a guest of the lab, because not every kernel has virtual CAN interfaces.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tautline_lab::load::find_program;

use crate::common::{build_directory, run, skipped_without_kernels, skipped_without_tools, text};

/// Frames that each program receives. Lower: the rhythm is hardly learned. Higher: the emulated machine takes longer.
const FRAMES: u32 = 600;

/// Frames that a program must be awake for: most of the first trial of 16. More would depend on whether it pays, which
/// varies here: while two CPUs of the guest compute, each has half the speed, and so a look delays the sender.
const AWAKE_MIN: u32 = 8;

/// Programs of the script, each with Debian's package that has it.
const TOOLS: [(&str, &str); 10] = [
    ("candump", "can-utils"),
    ("cangen", "can-utils"),
    ("ip", "iproute2"),
    ("taskset", "util-linux"),
    ("sh", "dash"),
    ("mktemp", "coreutils"),
    ("sleep", "coreutils"),
    ("rm", "coreutils"),
    ("grep", "grep"),
    ("cmp", "diffutils"),
];

/// Compiles a program in C.
fn compiled(source: &str, into: &Path) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = into.join(source.file_stem().unwrap());
    let mut compiler = Command::new("cc");
    let built = compiler
        .args(["-O1", "-w", "-pthread", "-o"])
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    program.to_str().expect("a path in UTF-8").to_owned()
}

/// The library that this `taut` loads into programs.
fn library(taut: &str) -> String {
    let mut command = Command::new(taut);
    command.args(["exec", "--", "printenv", "LD_PRELOAD"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// Number before these words in the output between two others.
fn number(shown: &str, from: &str, until: &str, words: &str) -> u32 {
    let part = shown
        .split_once(from)
        .and_then(|(_, rest)| rest.split_once(until));
    let before = part.and_then(|(part, _)| part.split_once(words));
    let number = before.and_then(|(before, _)| before.split_whitespace().last());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn frames_are_the_same_under_exec_and_are_met_awake() {
    let taut = crate::PROGRAM.strip_suffix("-lab").unwrap();
    if !Path::new(taut).exists() {
        println!("SKIPPED: the command taut is not beside this one (cargo build -p taut)");
        return;
    }
    if skipped_without_tools(&TOOLS) || skipped_without_tools(&[("cc", "gcc")]) {
        return;
    }
    let build = build_directory("can");
    let reader = compiled("../programs/can.c", &build);
    let cases = "../../crates/tautline-awake-preload/tests/semantics/cases.c";
    let cases = compiled(cases, &build);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/can.sh");
    let script = script.canonicalize().unwrap().display().to_string();
    let tools: Vec<PathBuf> = TOOLS
        .iter()
        .map(|(tool, _)| find_program(tool).expect("it was looked for"))
        .collect();
    let library = library(taut);
    let files = tools.iter().map(|tool| tool.to_str().unwrap());
    let files = files.chain([taut, &library, &reader, &cases, &script]);

    let command = format!("sh {script} {taut} {reader} {FRAMES} {cases}");
    #[rustfmt::skip]
    let mut arguments = vec![
        "lab", "kernels", "--fresh", "--timeout", "40min", "--kernel", "linux-image-amd64", "--load", "idle",
        "--cpus", "2", "--guest-module", "vcan", "--guest-module", "can-raw",
        "--guest-command", &command,
    ];
    arguments.extend(files.flat_map(|file| ["--guest-file", file]));
    let output = run(&arguments);
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    if skipped_without_kernels(&said) {
        return;
    }
    assert!(output.status.success(), "{shown}{said}");
    println!("{shown}");
    for sender in ["cangen", "clock"] {
        let of = |way| format!("candump, {sender}, {way}: {FRAMES} frames");
        let [kernel, exec, watch] = ["kernel", "exec", "watch"].map(of);
        assert!(shown.contains(&kernel), "{shown}");
        assert!(
            number(&shown, &kernel, &exec, " met awake") >= AWAKE_MIN,
            "{shown}"
        );
        assert!(
            number(&shown, &exec, &watch, " per cent could") > 50,
            "{shown}"
        );
    }
    let awake = number(&shown, "read, exec:", "read, kernel again:", " met awake");
    assert!(awake >= AWAKE_MIN, "{shown}");
    assert!(shown.contains("receives: 200 in order"), "{shown}");
}
