//! A guest of our own monitor in virtual time: on a processor with AMD-V, which QEMU emulates. What needs tools or a
//! kernel package says SKIPPED where that is not to be had.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{build_directory, skipped_without_kernels, skipped_without_tools};

const EVENTS: u64 = 5000;

fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    streams
        .map(|stream| String::from_utf8_lossy(stream).into_owned())
        .concat()
}

/// Figures of a line such as `timer to handler: events 5000, ns: mean 700, max 900`.
fn figures(line: &str) -> BTreeMap<&str, u64> {
    let parts = line.split([':', ',']).map(str::trim);
    parts
        .filter_map(|part| part.split_once(' '))
        .filter_map(|(name, number)| Some((name, number.parse().ok()?)))
        .collect()
}

#[test]
fn a_guest_is_interrupted_in_bounded_time() {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: our own monitor is for x86-64");
        return;
    }
    if skipped_without_tools(&[
        ("clang", "clang"),
        ("ld.lld", "lld"),
        ("qemu-system-x86_64", "qemu-system-x86"),
    ]) {
        return;
    }
    let build = build_directory("guest-virtual");
    let made = Command::new("make")
        .arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/guest"))
        .arg(format!("BUILD={}", build.display()))
        .arg("ARCHITECTURES=x86_64")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let image = build.join("latency-x86_64.elf");
    let image = image.to_str().unwrap();
    let taut = env!("CARGO_BIN_EXE_taut");
    let output = Command::new(taut)
        .args(["lab", "kernels", "--cpus", "2", "--load", "idle"])
        .args(["--kernel", "linux-image-amd64@bookworm,preempt=full"])
        .args(["--guest-module", "kvm-amd", "--guest-file", image])
        .arg("--guest-command")
        .arg(format!("{taut} guest run {image} --console -"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = text(&output);
    if skipped_without_kernels(&said) {
        return;
    }
    assert!(output.status.success(), "{said}");
    assert!(said.contains("started (KVM)"), "{said}");
    for (kind, p50_max_ns) in [("timer to handler", 20_000), ("timer to program", 40_000)] {
        let lines: Vec<&str> = said.lines().filter(|line| line.contains(kind)).collect();
        assert_eq!(lines.len(), 2, "halting, and never halting: {said}");
        for line in lines {
            let figures = figures(line);
            assert_eq!(figures["events"], EVENTS, "{line}");
            // They took 7 to 12 and 17 to 22 us when this was written; nobody waits for a clock of the host here.
            assert!(figures["p50"] < p50_max_ns, "{line}");
            assert!(figures["p50"] <= figures["max"], "{line}");
        }
    }
}
