//! The command `taut` with gateways: the page of a fleet in a browser, and a recording of another site that is
//! replayed. Real processes in network namespaces.

#[path = "../../crates/taut/tests/common/browser.rs"]
#[allow(dead_code)] // other pages have more to press
mod browser;
mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use browser::Browser;
use common::{Cell, Network, eventually, lab_result, presence, program};
use tautline::Priority;
use tautline_capture::recording::{Recording, RecordingError};
use tautline_testbed::hosts::Host::{A, B};

const PORT: &str =
    "[[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\nrefresh_period_us = 500000\n";
const EVENTS: &str = "[[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n";
const FLEET: &str = "[fleet]\nperiod_ms = 200\n[[publish]]\nport = \"state\"\n";

/// A program that ends with this.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[test]
fn a_browser_shows_the_nodes_and_ports_of_a_fleet() {
    let Some(network) = Network::create() else {
        return;
    };
    let (a, b) = (Cell::new(), Cell::new());
    let ports = format!("{PORT}{EVENTS}");
    let entries = format!("{FLEET}[[publish]]\nport = \"events\"\n");
    let entries = entries.replace("[fleet]\n", "[fleet]\nverdict = \"missing.json\"\n");
    let first = network.gateway(&a, "one", A, "site/a", &ports, &entries, "");
    std::fs::write(network.file("lab.json"), lab_result("held", 43_000)).expect("a file");
    let entries = FLEET.replace("[fleet]\n", "[fleet]\nverdict = \"lab.json\"\n");
    let second = network.gateway(&b, "two", B, "site/b", PORT, &entries, "");
    eventually("both are in the fleet", || {
        let picture = network.fleet(B, "client-of-a");
        first.is_active()
            && second.is_active()
            && ["one", "two"]
                .iter()
                .all(|name| presence(&picture, name) == "alive")
    });
    let Some(mut command) = network.taut(B) else {
        return;
    };
    let command = command
        .args(["serve", "--listen", "127.0.0.1:0", "--fleet", "--zenoh"])
        .arg(network.watcher_file(B, "client-of-a"))
        .stdout(Stdio::piped());
    let mut server = Started(command.spawn().expect("a server"));
    let mut url = String::new();
    let output = server.0.stdout.take().unwrap();
    BufReader::new(output)
        .read_line(&mut url)
        .expect("an address");
    let profile = network.file("profile");
    let Some(mut browser) = network.inside(B, || Browser::open(url.trim(), &profile)) else {
        return;
    };
    browser.wait_for("document.querySelectorAll('#fleet tbody tr').length === 2");
    for (place, told) in [
        "site/a by one: no verdict of the lab: open ",
        "site/b by two: verdict of robot: deadline (250\u{a0}µs) HELD during this run (this machine); untouched, worst \
         wake-up 43.0\u{a0}µs, weak evidence; LinuxCNC grade: usable (up to 50 µs); 2026-11-26 12:41 UTC, Linux 6.18.44",
    ]
    .iter()
    .enumerate()
    {
        browser.wait_for(&format!(
            "document.querySelectorAll('#fleet .verdict')[{place}].textContent.startsWith('{told}')"
        ));
    }
    // Cell, gateway, state; nodes and ports of its network namespace.
    let line = |place: u32, columns: &str| {
        format!(
            "[{columns}].map(column => document.querySelectorAll('#fleet tbody tr')[{place}].cells[column].innerText).join()"
        )
    };
    for (place, told) in ["site/a,one,active,1,2", "site/b,two,active,1,1"]
        .iter()
        .enumerate()
    {
        browser.wait_for(&format!(
            "{} === '{told}'",
            line(place as u32, "0, 1, 2, 4, 5")
        ));
    }
    let fetched = "fetch('/fleet.json').then(answer => answer.json()).then(fleet => window.fleet = fleet), true";
    browser.value(fetched);
    browser.wait_for("window.fleet.cells.map(cell => cell.report.totals.ports).join() === '2,1'");
    for width in [320, 390, 1200] {
        let excess = browser.excess(width);
        assert!(excess <= 0, "the page is too wide at {width} px");
    }
    second.running.kill();
    browser.wait_for(&format!("{} === 'vanished'", line(1, "2")));
    browser.is_content();
    drop(browser);
    eventually("the browser writes no more to its profile", || {
        !is_used(&profile)
    });
}

/// Whether a process has the path in its arguments.
fn is_used(path: &Path) -> bool {
    let path = path.to_str().expect("a path in UTF-8");
    let processes = std::fs::read_dir("/proc").expect("processes");
    let names = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let mut all = processes.flatten().filter_map(names);
    all.any(|words| String::from_utf8_lossy(&words).contains(path))
}

#[test]
fn a_verdict_is_shown_at_another_site_as_the_lab_words_it() {
    let Some(network) = Network::create() else {
        return;
    };
    let (Some(mut lab), Some(mut status)) = (network.taut(A), network.taut(B)) else {
        return;
    };
    let path = network.file("lab.json");
    let mut to_file = std::ffi::OsString::from("--json=");
    to_file.push(&path);
    let lab = lab
        .args([
            "lab",
            "run",
            "--for",
            "1s",
            "--load",
            "idle",
            "--untouched-only",
        ])
        .args(["--class", "instrument", "--label", "robot"])
        .arg(to_file)
        .output()
        .expect("a run");
    let judged = String::from_utf8(lab.stdout).expect("text");
    let cell = Cell::new();
    let entries = FLEET.replace("[fleet]\n", "[fleet]\nverdict = \"lab.json\"\n");
    let gateway = network.gateway(&cell, "one", A, "site/a", PORT, &entries, "");
    eventually("it is active", || gateway.is_active());
    let status = status
        .args(["status", "--fleet", "--zenoh"])
        .arg(network.watcher_file(B, "client-of-a"));
    let mut line = String::new();
    eventually("the verdict is shown", || {
        let output = status.output().expect("a status");
        let shown = String::from_utf8(output.stdout).expect("text");
        let found = shown.lines().find(|line| line.contains("verdict"));
        line = found.unwrap_or_default().to_owned();
        !line.is_empty()
    });
    let (class, words) = line.split_once("ms) ").expect("class and words");
    assert_eq!(class, "  verdict of robot: instrument (1.00 ");
    let (words, figures) = words
        .split_once("; untouched, worst wake-up ")
        .expect("figures");
    assert!(judged.contains(&format!(": {words}.")), "{judged}: {line}");
    let (_, grade) = figures.split_once("LinuxCNC grade: ").expect("a grade");
    let (grade, _) = grade.split_once("; ").expect("a time");
    assert!(
        judged.contains(&format!("LinuxCNC grade: {grade}.")),
        "{judged}: {line}"
    );
    assert!(!line.contains("runs now"), "{line}");
}

#[test]
fn a_recording_of_another_site_is_replayed() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = format!("{PORT}{EVENTS}");
    let entries = "[[publish]]\nport = \"state\"\n[[publish]]\nport = \"events\"\n";
    let gateway = network.gateway(&cell, "one", A, "site/a", &ports, entries, "");
    let mut motor = program(&cell, "motor");
    eventually("active", || gateway.is_active());
    let file = network.file("far.mcap");
    let mut recorder = network.watcher(B, "client-of-a", "record");
    recorder.args([
        "--key",
        "site/a/events",
        "--key",
        "site/a/state",
        "--count",
        "60",
    ]);
    let mut recorder = Started(recorder.arg(&file).spawn().expect("a recorder"));
    let mut number = 0_u32;
    eventually("it has recorded enough", || {
        number += 1;
        motor.publish(1, &number.to_le_bytes());
        let _full = motor.try_say(2, Priority::HIGHEST, &number.to_le_bytes());
        thread::sleep(Duration::from_millis(2));
        recorder.0.try_wait().expect("a child").is_some()
    });
    assert!(recorder.0.wait().unwrap().success());

    // On the bus of another cell, to the program there: port 8 is a queuing port, port 7 a sampling port.
    let mut recording = Recording::open(&file).expect("a recording");
    let flows = recording.flows().iter();
    let mut ports: Vec<(String, u16)> = flows
        .map(|one| (one.from.clone(), one.destination_port))
        .collect();
    ports.sort();
    ports.dedup();
    let names: Vec<&str> = ports.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["site/a/events", "site/a/state"]);
    let mut expected = Vec::new();
    recording
        .play(|_, message| {
            if message.flow.from == "site/a/events" {
                expected.push((message.flow.priority, message.bytes.to_vec()));
            }
            Ok::<(), RecordingError>(())
        })
        .unwrap();
    assert!(expected.len() > 5, "{}", expected.len());
    let desk = Cell::new();
    let events = ports[0].1;
    let mut receiver = desk.receiver("desk", events);
    for extra in [&["--fast"][..], &[]] {
        let Some(mut replay) = network.taut(B) else {
            return;
        };
        replay.arg("replay").arg(&file).arg("--bus").arg(desk.bus());
        let port = events.to_string();
        let replay = replay.args(["--to", "desk", "--port", &port]).args(extra);
        let output = replay.output().expect("a replay");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let mut heard = Vec::new();
        let mut buffer = vec![0; receiver.1.message_bytes_max()];
        while let Some(message) = receiver
            .1
            .receive_into(&mut buffer, tautline::Wait::Poll)
            .expect("a receive")
        {
            heard.push((message.priority.get(), buffer[..message.length].to_vec()));
        }
        assert_eq!(heard, expected);
    }
    // The simulator delivers the same messages.
    let Some(mut replay) = network.taut(B) else {
        return;
    };
    let output = replay
        .arg("replay")
        .arg(&file)
        .arg("--sim")
        .output()
        .expect("a replay");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}
