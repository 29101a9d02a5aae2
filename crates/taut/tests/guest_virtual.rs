//! Interrupt latency of a program without Linux in its three homes, in virtual time: alone, on a processor of its own
//! beside Linux, and as a guest of our own monitor on a processor with AMD-V, which QEMU emulates. A test without its
//! tools or its kernel package says SKIPPED. `make guest-latency` runs the long forms.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{build_directory, skipped_without_kernels, skipped_without_tools};

/// Events of each kind: interrupts 100 µs apart.
const EVENTS: u64 = 5000;
/// Changes them.
const EVENTS_VARIABLE: &str = "TAUTLINE_GUEST_EVENTS";

/// Words that no kernel knows: they move its start by a few instructions, and so the phase between its timers and
/// those of the guest.
const PHASES: [&str; 3] = ["", ",phase=1", ",phase=12345"];

fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    streams
        .map(|stream| String::from_utf8_lossy(stream).into_owned())
        .concat()
}

fn events() -> u64 {
    std::env::var(EVENTS_VARIABLE).map_or(EVENTS, |text| text.parse().expect("a number"))
}

/// Figures of a line such as `timer to handler: events 5000, ns: mean 700, max 900`.
fn figures(line: &str) -> BTreeMap<&str, u64> {
    let parts = line.split([':', ',']).map(str::trim);
    parts
        .filter_map(|part| part.split_once(' '))
        .filter_map(|(name, number)| Some((name, number.parse().ok()?)))
        .collect()
}

/// Latencies of a guest under one load, in one place and one way of waiting, in one phase.
#[derive(Clone, Copy, Debug, Default)]
struct Latencies {
    left_out: u64,
    handler_max_ns: u64,
    program_max_ns: u64,
}

/// Latencies of all phases, by load, place and way of waiting.
type Cases = BTreeMap<(String, String, String), Vec<Latencies>>;

/// Reads what guests printed. Each case must have had all events.
fn cases(said: &str) -> Cases {
    let (mut load, mut place, mut how) = (String::new(), String::new(), String::new());
    let mut cases = Cases::new();
    for line in said.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix("== ") {
            let (label, status) = head.rsplit_once(": ").expect("a status");
            assert_eq!(status, "exit status 0", "{said}");
            load = label.rsplit_once(", ").expect("a load").1.to_owned();
            place.clear();
        } else if line == "SCHED_FIFO, without a partition" || line == "in a partition" {
            place = line.to_owned();
        } else if let Some((words, others)) = line.split_once(", events left out: ") {
            how = words.to_owned();
            let left_out = others.split(',').next().and_then(|text| text.parse().ok());
            let case = (load.clone(), place.clone(), how.clone());
            cases.entry(case).or_default().push(Latencies {
                left_out: left_out.expect("a number"),
                ..Latencies::default()
            });
        } else if line.starts_with("timer to ") {
            let case = (load.clone(), place.clone(), how.clone());
            let latencies = cases.get_mut(&case).and_then(|phases| phases.last_mut());
            let latencies = latencies.expect("a heading before it");
            let figures = figures(line);
            assert_eq!(figures["events"], events(), "{line}");
            assert!(figures["mean"] <= figures["max"], "{line}");
            match line.starts_with("timer to handler") {
                true => latencies.handler_max_ns = figures["max"],
                false => latencies.program_max_ns = figures["max"],
            }
        }
    }
    cases
}

/// The worst of the phases.
fn worst(phases: &[Latencies]) -> Latencies {
    let most = |of: fn(&Latencies) -> u64| phases.iter().map(of).max().unwrap_or(0);
    Latencies {
        left_out: most(|one| one.left_out),
        handler_max_ns: most(|one| one.handler_max_ns),
        program_max_ns: most(|one| one.program_max_ns),
    }
}

fn print_table(title: &str, cases: &Cases) {
    println!("{title}; at worst of the phases, in µs:");
    for ((load, place, how), phases) in cases {
        let Latencies {
            left_out,
            handler_max_ns,
            program_max_ns,
        } = worst(phases);
        let us = |ns: u64| ns as f64 / 1e3;
        let (handler, program) = (us(handler_max_ns), us(program_max_ns));
        let words = [load, place, how].map(String::as_str);
        let name: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        println!(
            "  {:<60} handler {handler:8.3}, program {program:8.3}, {left_out} left out, {} phases",
            name.join(", "),
            phases.len()
        );
    }
}

/// Builds the programs of `bindings/guest`; none, with a note, without the tools.
fn images(architecture: &str, name: &str) -> Option<PathBuf> {
    if skipped_without_tools(&[("clang", "clang"), ("ld.lld", "lld")]) {
        return None;
    }
    let build = build_directory(name);
    let made = Command::new("make")
        .arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/guest"))
        .arg(format!("BUILD={}", build.display()))
        .arg(format!("ARCHITECTURES={architecture}"))
        .arg(format!("EVENTS={}", events()))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made));
    Some(build)
}

/// Runs `taut lab kernels`; none, with a note, where kernels or QEMU are not to be had.
fn lab(arguments: &[&str]) -> Option<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(["lab", "kernels", "--time-limit", "60min"])
        .args(arguments)
        .current_dir(workspace)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = text(&output);
    if skipped_without_kernels(&said) {
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Each kernel in each phase, as arguments.
fn in_phases(kernels: &[&str]) -> Vec<String> {
    kernels
        .iter()
        .flat_map(|kernel| PHASES.map(|phase| format!("{kernel}{phase}")))
        .collect()
}

fn strings(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Of a program that has the machine for itself, handler and program. They took 6 and 26 ns, as many instructions, when
/// this was written.
const ALONE_MAX_NS: [u64; 2] = [50, 100];

#[test]
fn a_program_alone_is_interrupted_at_once() {
    if skipped_without_tools(&[("qemu-system-aarch64", "qemu-system-arm")]) {
        return;
    }
    let Some(build) = images("aarch64", "guest-alone") else {
        return;
    };
    let run = || {
        let output = Command::new("qemu-system-aarch64")
            .args(["-machine", "virt,gic-version=2,highmem=off", "-m", "128"])
            .args(["-cpu", "cortex-a72,cntfrq=1000000000"])
            .args(["-icount", "shift=0,sleep=off", "-nodefaults"])
            .args(["-display", "none", "-serial", "stdio", "-kernel"])
            .arg(build.join("latency.elf"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let said = format!("== alone, idle: exit status 0\n{}", run());
    let cases = cases(&said);
    print_table("a program alone", &cases);
    assert_eq!(cases.len(), 2, "{said}");
    for phases in cases.values() {
        let worst = worst(phases);
        assert_eq!(worst.left_out, 0, "{said}");
        assert!(worst.handler_max_ns <= ALONE_MAX_NS[0], "{said}");
        assert!(worst.program_max_ns <= ALONE_MAX_NS[1], "{said}");
    }
}

#[test]
fn a_guest_is_interrupted_in_bounded_time() {
    let Some(image) = kvm_image() else {
        return;
    };
    let taut = env!("CARGO_BIN_EXE_taut");
    let Some(said) = lab(&[
        "--cpus",
        "2",
        "--load",
        "idle",
        "--kernel",
        "linux-image-amd64@bookworm,preempt=full",
        "--guest-module",
        "kvm-amd",
        "--guest-file",
        &image,
        "--guest-command",
        &format!("{taut} guest run {image} --console -"),
    ]) else {
        return;
    };
    assert!(said.contains("started (KVM)"), "{said}");
    assert_eq!(cases(&said).len(), 2, "halting, and never halting: {said}");
    for (kind, p50_max_ns) in [("timer to handler", 20_000), ("timer to program", 40_000)] {
        for line in said.lines().filter(|line| line.contains(kind)) {
            let figures = figures(line);
            // They took 7 to 12 and 17 to 22 us when this was written; nobody waits for a clock of the host here.
            assert!(figures["p50"] < p50_max_ns, "{line}");
            assert!(figures["p50"] <= figures["max"], "{line}");
        }
    }
}

/// The image for our own monitor; none, with a note, where that or a tool is missing.
fn kvm_image() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: our own monitor is for x86-64");
        return None;
    }
    if skipped_without_tools(&[("qemu-system-x86_64", "qemu-system-x86")]) {
        return None;
    }
    let image = images("x86_64", "guest-virtual")?.join("latency-x86_64.elf");
    Some(image.to_str().expect("a path in UTF-8").to_owned())
}

/// Longest turn of a CPU in the long forms. Longer ones are part of what is measured.
const TURN: &str = "1us";

/// Kernels of the long forms.
const GENERIC: &str = "linux-image-amd64@bookworm,preempt=full";
const REAL_TIME: &str = "linux-image-rt-amd64@bookworm";
const ARM_KERNELS: [&str; 2] = [
    "linux-image-arm64@bookworm",
    "linux-image-rt-arm64@bookworm",
];

/// Of a program on its own CPU: the worst handler, and that under load as a share of the idle one. The share counts
/// only beyond the most that the turns of the two other CPUs can add: 2/3 of a turn of 1 µs.
const BESIDE_MAX_NS: u64 = 1_000;
const LOADED_MAX: f64 = 1.1;
const TURNS_NS: f64 = 700.0;

/// In a partition, worst of three phases, loaded and idle: a process on both kernels; the handler of a guest on KVM
/// that halts, and of one that never does. The goal for the last is 20 µs; runs of different builds had 23.5 to 30.2.
const PROCESS_MAX_US: f64 = 35.0;
const HALTING_MAX_NS: u64 = 40_000;
const NEVER_HALTING_MAX_NS: u64 = 35_000;

#[test]
#[ignore = "long: make guest-latency"]
fn beside_linux_no_load_is_felt() {
    let Some(build) = images("aarch64", "guest-beside") else {
        return;
    };
    let image = build.join("latency-beside.elf");
    let image = image.to_str().expect("a path in UTF-8");
    let beside = |kernels: &[String]| {
        let mut arguments = vec!["--arch", "arm64", "--cpus", "3", "--turn", TURN];
        arguments.extend(["--beside", image, "--load", "idle,combined"]);
        arguments.extend(["--fresh", "--kernel"]);
        let arguments = arguments
            .into_iter()
            .chain(kernels.iter().map(String::as_str));
        arguments.map(str::to_owned).collect::<Vec<String>>()
    };
    for kernel in ARM_KERNELS {
        let kernels = in_phases(&[kernel]);
        let Some(said) = lab(&strings(&beside(&kernels))) else {
            return;
        };
        let cases = cases(&said);
        print_table(&format!("on its own CPU beside {kernel}"), &cases);
        assert_eq!(cases.len(), 4, "{said}");
        let worst_under = |load: &str| {
            let found = cases.iter().filter(|((of, _, _), _)| of == load);
            let all: Vec<Latencies> = found.flat_map(|(_, phases)| phases.clone()).collect();
            assert_eq!(all.len(), 2 * PHASES.len(), "{said}");
            let worst = worst(&all);
            assert_eq!(worst.left_out, 0, "{said}");
            assert!(worst.handler_max_ns <= BESIDE_MAX_NS, "{said}");
            worst.handler_max_ns as f64
        };
        let share = worst_under("combined") / worst_under("idle");
        println!("  the worst handler under load is {share:.2} of the idle one");
        assert!(
            share <= LOADED_MAX || worst_under("combined") <= TURNS_NS,
            "{said}"
        );
        let first = lab(&strings(&beside(&kernels[..1]))).expect("there was one before");
        assert!(said.starts_with(&first), "{said}\nagain:\n{first}");
    }
}

#[test]
#[ignore = "long: make guest-latency"]
fn a_guest_on_kvm_keeps_its_limits_in_a_partition() {
    let Some(image) = kvm_image() else {
        return;
    };
    let taut = env!("CARGO_BIN_EXE_taut");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/guest-latency.sh");
    let script = script.canonicalize().unwrap();
    let script = script.to_str().expect("a path in UTF-8");
    let command = format!("sh {script} {taut} {image}");
    let kernels = in_phases(&[GENERIC]);
    let run = |kernels: &[&str]| {
        let mut arguments = vec!["--cpus", "2", "--turn", TURN, "--load", "idle,combined"];
        arguments.extend(["--fresh", "--guest-module", "kvm-amd"]);
        arguments.extend(["--guest-command", &command]);
        for file in [taut, &image, "/usr/bin/chrt", script] {
            arguments.extend(["--guest-file", file]);
        }
        arguments.push("--kernel");
        arguments.extend(kernels);
        lab(&arguments)
    };
    let Some(said) = run(&strings(&kernels)) else {
        return;
    };
    let cases = cases(&said);
    print_table("a guest on KVM", &cases);
    assert_eq!(cases.len(), 8, "{said}");
    for ((load, place, how), phases) in &cases {
        assert_eq!(phases.len(), PHASES.len(), "{said}");
        if place != "in a partition" {
            continue;
        }
        let worst = worst(phases);
        let limit = match how.as_str() {
            "halting" => HALTING_MAX_NS,
            _ => NEVER_HALTING_MAX_NS,
        };
        assert!(worst.handler_max_ns <= limit, "{load}, {how}: {worst:?}");
        assert_eq!(worst.left_out, 0, "{load}, {how}: {said}");
    }
    // Three runs in all of the first phase, and two of them side by side: the host's load has no part in it.
    let first = &[kernels[0].as_str()];
    let [second, third] = std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(|| run(first)));
        runs.map(|run| run.join().unwrap().expect("there was one before"))
    });
    assert_eq!(second, third);
    assert!(said.starts_with(&second), "{said}\nagain:\n{second}");
}

#[test]
#[ignore = "long: make guest-latency"]
fn a_process_keeps_its_limit_in_a_partition() {
    if skipped_without_tools(&[("qemu-system-x86_64", "qemu-system-x86")]) {
        return;
    }
    let taut = env!("CARGO_BIN_EXE_taut");
    let count = events();
    let command = format!("{taut} lab interrupt --count {count} --load idle,combined");
    let kernels = in_phases(&[REAL_TIME, GENERIC]);
    let mut arguments = vec!["--cpus", "2", "--turn", TURN, "--load", "idle"];
    arguments.extend(["--guest-command", &command, "--kernel"]);
    arguments.extend(strings(&kernels));
    let Some(said) = lab(&arguments) else {
        return;
    };
    // Of a row, the last column is the maximum.
    let max_us = |line: &str| line.split_whitespace().last()?.parse::<f64>().ok();
    let mut rows: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    let mut kernel = "";
    for line in said.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix("== ") {
            kernel = if head.starts_with("rt-") {
                "PREEMPT_RT"
            } else {
                "generic"
            };
        } else if line.starts_with("timer to task, ")
            && let Some(max) = max_us(line)
        {
            let name = line.split("  ").next().unwrap_or_default();
            rows.entry((kernel, name)).or_default().push(max);
        }
    }
    assert_eq!(rows.len(), 8, "{said}");
    println!("a process; at worst of the phases, in µs:");
    for ((kernel, name), phases) in rows {
        assert_eq!(phases.len(), PHASES.len(), "{said}");
        let worst = phases.into_iter().fold(0.0, f64::max);
        println!("  {kernel}, {name}: {worst:.2}");
        let is_limited = name.ends_with("in a partition");
        assert!(
            !is_limited || worst <= PROCESS_MAX_US,
            "{kernel}, {name}: {worst}"
        );
    }
}
