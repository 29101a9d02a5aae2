//! LinuxCNC under `taut exec`, against a program that answers as a Mesa card does (`measure/programs`).

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::PROGRAM;
use crate::common::{Scratch, skipped_without_privilege};

const CYCLES: usize = 1000;
const GAVE_UP: &str = "hm2_eth: rtapi_app_main: Resource temporarily unavailable";

/// Run by LinuxCNC while its servo thread works: a thread whose sleeps are served has no timer slack. A thread of the
/// ordinary policy has 50 µs without it.
const LOOK: &str = "#!/bin/sh
sleep 1
main=$(pidof rtapi_app)
grep -q awake_preload /proc/$main/maps || exit 1
for thread in $(grep -l 'T#' /proc/$main/task/*/comm | cut -d/ -f5); do
    slack=$(cat /proc/$thread/timerslack_ns)
    echo \"slack $slack\"
    [ $slack -le 1 ] || exit 1
done
";

/// Whether LinuxCNC succeeded, and what it said. While it starts, its driver gives up a read after 200 ms: on a machine
/// that stood still for so long it is started again.
fn linuxcnc(hosts: &Hosts, scratch: &Path, words: &[&str]) -> (bool, String) {
    let mut starts_left = 3;
    loop {
        let output = run(hosts, scratch, words);
        starts_left -= 1;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !said.contains(GAVE_UP) || starts_left == 0 {
            return (output.status.success(), said);
        }
        println!("started again: {said}");
    }
}

/// In namespaces of its own: LinuxCNC's shared memory has one key for the whole machine.
fn run(hosts: &Hosts, scratch: &Path, words: &[&str]) -> Output {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../measure/programs");
    let look = scratch.join("look");
    fs::write(&look, LOOK).unwrap();
    fs::set_permissions(&look, Permissions::from_mode(0o755)).unwrap();
    let mut command = hosts.command(Host::A, "unshare");
    command
        .args(["--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["timeout", "60", PROGRAM, "exec"])
        .args(words)
        .args(["--", "halrun", "-f"])
        .arg(programs.join("mesa.hal"))
        .env("BOARD", hosts.end(Host::B, 0).address().to_string())
        .env("PERIOD_NS", "1000000")
        .env("CYCLES", CYCLES.to_string())
        .env("SAMPLES", scratch.join("samples"))
        .env("POLICY", look)
        .env("LINUXCNC_FORCE_REALTIME", "1")
        .env("RTAPI_UID", "65534")
        .env("RTAPI_FIFO_PATH", scratch.join("rtapi"))
        .env("HOME", scratch)
        .stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn the_servo_thread_of_linuxcnc_is_served_and_its_card_answers() {
    let is_installed = |program: &str| {
        let found = Command::new("which").arg(program).output();
        found.is_ok_and(|found| found.status.success())
    };
    if skipped_without_privilege() {
        return;
    }
    if let Some(missing) = ["halrun", "python3"].iter().find(|one| !is_installed(one)) {
        println!("SKIPPED: {missing} is not installed (linuxcnc-uspace, python3)");
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let scratch = Scratch::new("linuxcnc");
    // LinuxCNC leaves root's rights for its socket.
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    let card = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../measure/programs/mesa_card.py");
    // A card is not held up by other tests.
    let mut command = hosts.command(Host::B, "chrt");
    command.args(["-f", "80", "python3"]).arg(card);
    command.arg(hosts.end(Host::B, 0).interface());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().unwrap();
    let _card = KilledOnDrop(child);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    let (is_done, said) = linuxcnc(&hosts, &scratch.0, &["--report"]);
    assert!(is_done, "{said}");
    assert!(said.contains("slack "), "{said}");
    assert!(said.contains("sleeps: late by"), "{said}");
    let samples = fs::read_to_string(scratch.0.join("samples")).unwrap();
    let reads = samples.lines().filter(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        matches!((numbers.next(), numbers.next()), (Some(Ok(_)), Some(Ok(clocks))) if clocks > 0)
    });
    // Lines that the reader of samples has lost have words in place of numbers.
    assert!(reads.count() > CYCLES / 2, "{samples}{said}");

    let (_, said) = linuxcnc(&hosts, &scratch.0, &["--watch"]);
    assert!(said.contains("watched, nothing changed"), "{said}");
}
