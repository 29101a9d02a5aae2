//! Wrong use of each command: exit status, and words of the answer. Nothing is measured here, and no host is made.

use std::fs;
use std::process::{Command, Stdio};

use tautline_testbed::hosts::stale;

use crate::common::Scratch;

/// Words after `taut-lab`, exit status, words of the answer. `$D` is a directory of the test's own.
#[rustfmt::skip] // a table: one line each
const WRONG: [(&str, i32, &str); 62] = [
    ("", 2, "Usage"),
    ("frobnicate", 2, "frobnicate"),
    // demo
    ("demo --for 1h --out /proc/no/such", 2, "--out"),
    ("demo --unprivileged --out $D/file/below", 2, "Not a directory"),
    // bench
    ("bench rtt --paths carrier-pigeon", 2, "udp-poll"),
    ("bench rtt --count many", 2, "--count"),
    ("bench rtt --fifo 100", 2, "1..=99"),
    ("bench rtt --timeout -1", 2, "a time with its unit"),
    ("bench rtt --json /no/such/directory/file", 2, "/no/such/directory/file"),
    ("bench rtt --json --html -", 2, "cannot have two results"),
    ("bench loop --for 1s", 2, "too short"),
    ("bench flood --interval 9us", 2, "10us or more"),
    ("bench ordinary --turns 0", 2, "1 or more"),
    ("bench send --sizes 1kib", 2, "64KiB"),
    ("bench send --sizes 65508B", 2, "0 to 65507"),
    ("bench send --ways flung", 2, "copied, lent, tap"),
    ("bench turns --interfaces lo", 2, "give its two interfaces"),
    ("bench bus --sizes 7B", 2, "a size of 7 bytes"),
    ("bench bus --throughput-sizes 65537B", 2, "a size of 65537 bytes"),
    ("bench bus --subscribers 65", 2, "65 subscribers are not possible: 1 to 64 are"),
    ("bench bus --rounds 0", 2, "expected a whole number, 1 or more"),
    ("bench bus --rounds 5x", 2, "expected a whole number, 1 or more"),
    ("bench bus --slice x", 2, "invalid value"),
    // lab
    ("lab run --cpus 999", 2, "CPU 999"),
    ("lab run --cpus x", 2, "invalid list of CPUs"),
    ("lab run --cpus 0,l", 2, "invalid list of CPUs"),
    ("lab run --cpus 0-4000000000", 2, "invalid list of CPUs"),
    ("lab run --cpus=", 2, "invalid list of CPUs"),
    ("lab run --cpus 1-0", 2, "invalid list of CPUs"),
    ("lab run --cpus=+0", 2, "invalid list of CPUs"),
    ("lab run --interval 1us", 2, "expected 50us to 1s"),
    ("lab run --class soon", 2, "unknown class"),
    ("lab run --load io", 2, "unknown load"),
    ("lab run --for 0", 2, "too short"),
    ("lab run --for 1h --json=/nowhere/x.json", 2, "No such file or directory"),
    ("lab run --for 1h --html=$D/missing/x.html", 2, "No such file or directory"),
    ("lab run --for 1h --json=$D", 2, "Is a directory"),
    ("lab run --for 1h --json --html -", 2, "cannot have two results"),
    ("lab interrupt --json --html -", 2, "cannot have two results"),
    ("lab network --interface none --peer 10.0.0.2", 2, "ip link"),
    ("lab network --interface lo --peer 127.0.0.1:0", 2, "UDP port 0"),
    ("lab network --interface lo --peer 127.0.0.1 --deadline 2ms", 2, "shorter --deadline"),
    ("lab network --interface lo --peer 127.0.0.1 --for 1s", 2, "--for"),
    ("lab network --interface lo --peer 127.0.0.1 --load wind", 2, "iperf3"),
    ("lab compare a b --tolerance nan", 2, "0.25"),
    ("lab compare a b --tolerance -1", 2, "0.25"),
    ("lab compare a b --json --html -", 2, "cannot have two results"),
    ("lab kernels --json --html -", 2, "cannot have two results"),
    ("lab paths --driver ne2000", 2, "use igb, e1000e, virtio_net"),
    // task, experiment
    ("task compare $D/missing/file", 2, "No such file"),
    ("task compare $D/file", 2, "what to do"),
    ("task compare $D/partition.toml", 2, "has a partition of its own"),
    ("experiment run", 2, "required"),
    ("experiment run rtdip-fig99", 2, "rtdip-fig7"),
    ("experiment run rtdip-fig6 --json --html -", 2, "cannot have two results"),
    ("experiment run rtdip-fig6 --out /proc/no/such", 2, "No such file"),
    ("experiment run redd-fig2-fig3 --set smalest=4", 2, "smallest (smallest message"),
    ("experiment run redd-fig2-fig3 --set largest=1473", 2, "1 to 1472"),
    ("experiment run redd-fig2-fig3 --set step=x", 2, "NAME=VALUE"),
    ("experiment run redd-bandwidth --set bytes=65508", 2, "1 to 65507"),
    ("experiment run rtdip-fig7 --set count=1", 2, "nothing can be set"),
    ("experiment run ssrtudp-table1 --set bytes=4", 2, "nothing can be set"),
];

#[test]
fn wrong_use_is_answered_with_what_is_possible() {
    let scratch = Scratch::new("lab-usage");
    for (name, text) in [
        ("file", "no file of any kind"),
        (
            "partition.toml",
            "[partition]\nname = \"own\"\ncpus = \"0\"\n\
             [[task]]\nname = \"one\"\nperiod = \"20ms\"\nworst_case = \"1ms\"\n",
        ),
    ] {
        fs::write(scratch.0.join(name), text).unwrap();
    }
    let directory = scratch.0.to_str().unwrap();
    let mut others = String::new();
    for (words, status, expected) in WRONG {
        let words = words.replace("$D", directory);
        let child = Command::new(crate::PROGRAM)
            .args(shell_words::split(&words).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = child.id();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let has_remedy = ["what to do", "--help", "Usage"]
            .iter()
            .any(|words| said.contains(words));
        if output.status.code() != Some(status) || !said.contains(expected) || !has_remedy {
            others += &format!(
                "{words}: {}, not {status} with {expected:?}: {said}\n",
                output.status
            );
        }
        assert_eq!(stale(Some(process)).unwrap(), [""; 0], "{words}");
    }
    assert!(others.is_empty(), "{others}");
}

/// Examples of the help that end within seconds and need no privilege: a command, and the example's number.
const EXAMPLES: [(&str, usize, &str); 3] = [
    ("demo", 1, "p99.9"),
    ("experiment list", 0, "rtmux-latency"),
    ("experiment list", 1, "\"figures\""),
];

/// The unit tests of `help.rs` parse the others.
#[test]
fn examples_of_the_help_do_what_they_say() {
    let scratch = Scratch::new("lab-examples");
    for (words, number, promised) in EXAMPLES {
        let help = Command::new(crate::PROGRAM)
            .args(words.split(' '))
            .arg("--help")
            .output()
            .unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let (_, examples) = help.split_once("Examples:\n").expect(words);
        let mut lines = examples
            .lines()
            .filter_map(|line| line.strip_prefix("    taut "));
        let example = lines.nth(number).expect(words);
        let output = Command::new(crate::PROGRAM)
            .args(example.split(' '))
            .current_dir(&scratch.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {said}{errors}");
        assert!(said.contains(promised), "{example}: {said}{errors}");
    }
}
