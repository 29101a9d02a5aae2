//! `taut-flight` as a user runs it, with `taut` beside it.

use std::fs;
use std::io::Read;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline_capture::recording::Recording;
use tautline_testbed::child::allowed_cpus;
use tautline_testbed::hosts::may_create;
use tautline_testbed::process_namespace::is_inside;
use tautline_testbed::python;
use tautline_testbed::sys::{is_root, mount};

use crate::common::browser::Browser;
use crate::common::pages::{Percentiles, all_fit_and_answer};
use crate::common::{
    Scratch, Served, browse, build_directory, built_rust_guest, skipped_without_tools,
};

fn flight(arguments: &[&str]) -> Output {
    let mut command = Command::new(crate::PROGRAM);
    command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

/// The command `taut` beside it.
fn taut() -> Command {
    let file = crate::PROGRAM.strip_suffix("-flight").unwrap();
    Command::new(file)
}

/// User and group without any rights.
const NOBODY: u32 = 65_534;

/// Longest response beside which a craft is certainly not lost: a host that takes the CPU for longer is no fault of the
/// controller's.
const HARMLESS_NS: u64 = 40_000_000;

/// One variant, with its loads and the fault; all three take time that tests do not have. Figures of a shared machine
/// are not judged here: the world's own check may void the flight.
#[test]
fn the_executive_flies_in_a_partition_and_tells() {
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    if !is_root() || !may_create() || cpus < 2 {
        println!("SKIPPED: a partition needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside("the_executive_flies_in_a_partition_and_tells") {
        return;
    }
    let scratch = Scratch::new("flight");
    let out = scratch.0.join("out");
    let output = flight(&[
        "--variants",
        "partition",
        "--out",
        &out.display().to_string(),
    ]);
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(
        said.contains("executive in a partition"),
        "{said}{complaints}"
    );
    let json: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    let flight = &json["flights"][0];
    let record = &flight["record"];
    let loops = record["loops"].as_array().unwrap();
    assert_eq!(loops.len(), 3);
    assert!(record["world"]["steps"].as_u64().unwrap() > 10_000);
    assert!(record["world"]["samples"].as_array().unwrap().len() > 300);
    assert_eq!(record["phases"].as_array().unwrap().len(), 3, "{said}");
    let worst = loops
        .iter()
        .filter_map(|one| one["worst_ns"].as_u64())
        .max();
    if flight["void"].is_null() && worst.unwrap() < HARMLESS_NS {
        assert!(output.status.success(), "{said}{complaints}");
        assert!(record["world"]["crash"].is_null(), "{said}");
        assert!(!record["world"]["landed_at"].is_null(), "{said}");
        assert!(said.contains("Linux silent"), "{said}");
    }
    // The soft half, and what the recorder wrote.
    let soft = &record["soft"];
    assert!(soft["pictures"].as_u64().unwrap() > 50, "{soft}");
    assert!(soft["doors"].as_u64().unwrap() > 20, "{soft}");
    assert_eq!(soft["restarts"][0]["which"], "video", "{soft}");
    assert!(
        said.contains("video process killed: started again"),
        "{said}"
    );
    assert!(said.contains("recorder's disk full"), "{said}");
    let files = soft["recordings"].as_array().unwrap();
    let messages = files.iter().map(|file| {
        let recording = Recording::open(Path::new(file.as_str().unwrap())).unwrap();
        let has_pictures = recording.flows().iter().any(|flow| flow.to == "mapping");
        assert!(has_pictures, "{file}");
        recording.messages()
    });
    assert_eq!(messages.sum::<u64>(), soft["recorded"].as_u64().unwrap());
    // The second node, where this machine can make one.
    let remote = &record["remote"];
    if remote.is_null() {
        assert!(said.contains("no second node: "), "{said}");
        println!("SKIPPED: {}", record["limits"]);
    } else {
        let frames = remote["frames"].as_array().unwrap();
        let came = frames.iter().filter(|frame| frame[1].is_u64()).count();
        assert!(frames.len() > 300 && 2 * came > frames.len(), "{came} came");
        assert!(remote["stream_bytes"].as_u64().unwrap() > 1 << 20, "{said}");
        assert!(remote["control_killed"].is_array(), "{said}");
        assert!(said.contains("control process killed: "), "{said}");
        assert!(
            said.contains("remote control beside a cable full of TCP, by link xdp"),
            "{said}"
        );
    }
    let page = out.join("report.html");
    if let Some(text) = browse(&page, &scratch.0.join("profile")) {
        assert!(text.contains("A flight beside a busy Linux"));
    }
    let page = page.display().to_string();
    all_fit_and_answer(&[page], Percentiles::None, &scratch);
}

/// Image of the controller as a guest, in a process namespace of the test of this name. Nothing where it cannot fly.
fn guest_image(name: &str, directory: &str) -> Option<String> {
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    if !is_root() || !may_create() || cpus < 2 {
        println!("SKIPPED: a partition needs root with CAP_SYS_ADMIN, and two CPUs");
        return None;
    }
    if skipped_without_tools(&[("qemu-system-aarch64", "qemu-system-arm")]) || !is_inside(name) {
        return None;
    }
    let images = build_directory(directory);
    built_rust_guest("show/guest", "aarch64", &images)
        .then(|| images.join("flight.elf").display().to_string())
}

/// The controller in a guest under QEMU. Where the machine cannot emulate a processor in time, the flight is void.
#[test]
fn the_executive_flies_in_a_guest_and_leaves_nothing() {
    let name = "the_executive_flies_in_a_guest_and_leaves_nothing";
    let Some(image) = guest_image(name, "flight-images") else {
        return;
    };
    let scratch = Scratch::new("flight-guest");
    let out = scratch.0.join("out").display().to_string();
    let arguments = [
        "--variants",
        "guest",
        "--guest-image",
        &image,
        "--out",
        &out,
    ];
    let output = flight(&arguments);
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    let json = fs::read(scratch.0.join("out/report.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let flight = &json["flights"][0];
    let record = &flight["record"];
    assert_eq!(record["variant"], "guest", "{said}{complaints}");
    assert!(record["monitor"].as_str().unwrap().starts_with("QEMU"));
    let loops = record["loops"].as_array().unwrap();
    assert!(loops[0]["releases"].as_u64().unwrap() > 5_000, "{said}");
    let world = &record["world"];
    let silence_ns = world["silent_steps_max"].as_u64().unwrap() * 250_000;
    if flight["void"].is_null() && silence_ns < HARMLESS_NS {
        assert!(output.status.success(), "{said}{complaints}");
        assert!(world["crash"].is_null(), "{said}");
        assert!(!world["landed_at"].is_null(), "{said}");
        assert!(said.contains("Linux silent"), "{said}");
    }
    assert!(!is_emulating() && partitions().is_empty());
}

#[test]
fn a_guest_ends_with_its_flight_that_is_killed() {
    let name = "a_guest_ends_with_its_flight_that_is_killed";
    let Some(image) = guest_image(name, "flight-killed-images") else {
        return;
    };
    let scratch = Scratch::new("flight-guest-killed");
    let out = scratch.0.join("out").display().to_string();
    let mut show = Command::new(crate::PROGRAM)
        .args(["--variants", "guest", "--guest-image", &image])
        .args(["--out", &out])
        .env("TMPDIR", &scratch.0)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the guest runs", is_emulating);
    show.kill().unwrap();
    show.wait().unwrap();
    wait_until("guest and partition are gone", || {
        !is_emulating() && partitions().is_empty()
    });
}

/// A show in flight, beside its loads, with temporary files in a directory.
fn show_beside_loads(temporary: &Path, out: &Path) -> Child {
    let before = names(temporary);
    let mut command = Command::new(crate::PROGRAM);
    command
        .args(["--variants", "partition", "--out"])
        .arg(out)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let show = command.spawn().unwrap();
    wait_until("the loads run", || {
        let mut homes = names(temporary);
        homes.retain(|home| !before.contains(home));
        let mut files = homes.iter().flat_map(|home| names(&temporary.join(home)));
        files.any(|name| name.starts_with("taut-lab-load"))
    });
    show
}

/// Kills a show, and its guard first if that is wanted, and waits for the end of all processes of this namespace.
fn kill_show(show: &mut Child, with_guard: bool) {
    if with_guard {
        let words = format!("\0guard\0{}\0", show.id());
        let guard = processes()
            .find(|(_, line)| line.contains(&words))
            .unwrap()
            .0;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(guard as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    }
    show.kill().unwrap();
    show.wait().unwrap();
    wait_until("all its processes have ended", || {
        let others: Vec<_> = processes().collect();
        others
            .iter()
            .all(|(number, _)| *number == std::process::id())
    });
}

/// Processes of this namespace that run, with their words.
fn processes() -> impl Iterator<Item = (u32, String)> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
    let words = |number| {
        // Unreaped ones have none.
        let words = fs::read_to_string(format!("/proc/{number}/cmdline")).ok()?;
        (!words.is_empty()).then_some((number, words))
    };
    numbers.filter_map(words)
}

/// Entries of a directory; none if it is missing.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The line of `taut doctor` about killed processes: what it found, and the remedy.
fn left_behind() -> (String, String) {
    let output = taut().args(["doctor", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = json["lines"].as_array().unwrap();
    let line = lines
        .iter()
        .find(|line| line["name"] == "killed processes")
        .unwrap();
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    (text("found"), text("remedy"))
}

/// Nothing of a flight is left if its process is killed; with its guard, the doctor or the next flight puts it back.
#[test]
fn a_flight_that_is_killed_leaves_nothing() {
    let name = "a_flight_that_is_killed_leaves_nothing";
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    if !is_root() || !may_create() || cpus < 2 {
        println!("SKIPPED: a partition needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside(name) {
        return;
    }
    // The journals and namespaces of other processes are none of this test's: from here they seem dead.
    for place in ["/run/tautline", "/run/netns"] {
        fs::create_dir_all(place).unwrap();
        mount("tmpfs", place, "mode=755").unwrap();
    }
    let scratch = Scratch::new("flight-killed");
    let (temporary, out) = (scratch.0.join("tmp"), scratch.0.join("out"));
    fs::create_dir(&temporary).unwrap();
    let is_clean = || {
        let has_namespaces = names(Path::new("/run/netns"))
            .iter()
            .any(|name| name.starts_with("taut-"));
        let of_flight =
            |name: &String| name.starts_with("smoother-") || name.starts_with("flight-");
        names(&temporary).is_empty()
            && !has_namespaces
            && !names(Path::new("/run/tautline")).iter().any(of_flight)
    };
    let nothing = ("nothing is left of any".to_owned(), String::new());
    assert_eq!(left_behind(), nothing);

    // With its guard: the doctor says what is left, and the command that it names gives it back.
    let mut show = show_beside_loads(&temporary, &out);
    kill_show(&mut show, true);
    let home = names(&temporary).remove(0);
    let (found, remedy) = left_behind();
    println!("{found}");
    assert!(
        found.contains(&home) && found.contains("partition-flight"),
        "{found}"
    );
    assert_eq!(remedy, "taut doctor --put-back");
    let words: Vec<&str> = remedy.split(' ').skip(1).collect();
    // A stranger puts nothing of it back.
    let stranger = taut().args(&words).uid(NOBODY).gid(NOBODY).output();
    println!("{stranger:?}");
    assert_eq!(left_behind().0, found);
    assert_eq!(names(&temporary), [home]);
    let output = taut().args(&words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(
        output.status.success() && said.ends_with("nothing is left\n"),
        "{said}"
    );
    assert_eq!(left_behind(), nothing);
    assert!(is_clean() && partitions().is_empty());

    // Again; the next flight gives it back.
    let mut show = show_beside_loads(&temporary, &out);
    kill_show(&mut show, true);
    let left = names(&temporary);
    let mut show = show_beside_loads(&temporary, &out);
    assert!(names(&temporary).iter().all(|name| !left.contains(name)));
    // This one's guard lives, and does it by itself.
    kill_show(&mut show, false);
    let mut said = String::new();
    show.stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        said.contains("left by a process that was killed: "),
        "{said}"
    );
    assert!(is_clean(), "{:?}", left_behind());
    assert_eq!(left_behind(), nothing);
    assert!(partitions().is_empty());
}

/// Number of the process of a live flight's part, by a word of its description.
fn part(word: &str) -> Option<u32> {
    process(&["flight\0part\0", word])
}

/// Number of a process that runs with all of these in its words.
fn process(words: &[&str]) -> Option<u32> {
    let is_it = |line: &str| words.iter().all(|word| line.contains(word));
    let found = processes().find(|(_, line)| is_it(line));
    found.map(|(number, _)| number)
}

/// Number of the control process of the craft's interface.
fn control_process() -> Option<u32> {
    process(&["node\0run\0", "craft.toml"])
}

/// Frames of the remote control in a live flight's document: received, and lost.
fn frames(served: &Served, proof: &str) -> (u64, u64) {
    let answer = served.ask("GET", "/flight.json", proof);
    let json: Value = serde_json::from_str(&answer.body).unwrap();
    let count = |key: &str| json["remote"][key].as_u64().unwrap_or_default();
    (count("received"), count("lost"))
}

/// A flight in laps, as a user of its page sees it: the buttons work, for this user only.
#[test]
fn a_live_flight_obeys_its_page_alone_and_leaves_nothing() {
    let name = "a_live_flight_obeys_its_page_alone_and_leaves_nothing";
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    if !is_root() || !may_create() || cpus < 2 {
        println!("SKIPPED: a partition needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside(name) {
        return;
    }
    let scratch = Scratch::new("flight-live");
    let mut served = Served::started(&["--live", "--listen", "127.0.0.1:0"]);
    let token = served.token.clone().expect("a token on loopback, too");
    wait_until("a video process runs", || part("Video").is_some());

    // Strangers: without the token, with what browsers send to every port of an address, and by another name.
    let host = format!("Host: {}\r\n", served.address);
    let proof = format!("{host}Authorization: Bearer {token}\r\n");
    let order = r#"{"kill":"video"}"#;
    let press = |head: &str, order: &str| served.ask_with("POST", "/press", head, order).status;
    let video = part("Video");
    assert_eq!(served.get("/flight.json").status, 401);
    assert_eq!(press(&host, order), 401);
    for guess in [
        "Authorization: Bearer guess",
        &format!("Cookie: taut-flight={token}"),
    ] {
        assert_eq!(press(&format!("{host}{guess}\r\n"), order), 401);
    }
    let evil = proof.replace(&served.address, "evil.example");
    assert_eq!(press(&evil, order), 421);
    assert_eq!(served.ask("GET", "/press", &proof).status, 405);
    assert_eq!(press(&proof, r#"{"kill":"init"}"#), 400);
    assert_eq!(press(&proof, r#"{"gusts":50}"#), 400);
    assert_eq!(press(&proof, &" ".repeat(1_000)), 413);
    assert_eq!(part("Video"), video, "a stranger's press did something");
    let control = control_process();
    assert_eq!(press(&host, r#"{"kill":"control-process"}"#), 401);
    assert_eq!(
        control_process(),
        control,
        "a stranger's press did something"
    );
    assert_eq!(press(&proof, r#"{"gusts":1.5}"#), 204);

    let url = format!("http://{}/#token={token}", served.address);
    if let Some(mut browser) = Browser::open(&url, &scratch.0.join("profile")) {
        browser.wait_for("Number(document.querySelector('#picture').dataset.count) > 0");
        browser.wait_for("document.querySelector('#gusts-name').textContent === '1.5 m/s'");
        browser.wait_for("document.querySelector('#phase').textContent.includes('way-points')");
        browser.wait_for("/rate, 1000 Hz/.test(document.querySelector('#deadlines').textContent)");
        assert_eq!(
            browser.value("location.hash"),
            "",
            "the token stays in the line"
        );
        for width in [320, 390, 1200] {
            assert!(
                browser.excess(width) <= 0,
                "the page is too wide at {width} px"
            );
        }
        for (button, word, told) in [
            ("video", "Video", "video started again"),
            ("mapping", "Mapping", "mapping started again"),
        ] {
            let before = part(word);
            browser.click(&format!("[data-press*={button}]"));
            browser.wait_for(&format!(
                "document.querySelector('#events').textContent.includes('{told}')"
            ));
            assert!(
                before.is_some() && part(word) != before,
                "{word} was not killed"
            );
        }
        browser.value(
            "(() => { const load = document.querySelector('#load'); load.value = 2; \
             load.dispatchEvent(new Event('input')); })()",
        );
        wait_until("the fork storm runs", || part("Storm").is_some());
        browser.wait_for("document.querySelector('#load-name').textContent.includes('fork storm')");
        // Without its control process, the remote control's frames go on coming; a successor takes the port over.
        if control.is_none() {
            println!("SKIPPED: this machine cannot make the second node (ip, tc, ethtool)");
        } else {
            browser
                .wait_for("/frames received/.test(document.querySelector('#remote').textContent)");
            browser.click("[data-press*=control-process]");
            wait_until("the control process is dead", || {
                control_process() != control
            });
            let (before, _) = frames(&served, &proof);
            browser.wait_for(
                "document.querySelector('#events').textContent.includes('successor serves')",
            );
            assert!(control_process().is_some() && control_process() != control);
            let (after, lost) = frames(&served, &proof);
            println!("{before} frames until the kill, {after} until its successor, {lost} lost");
            assert!(after > before, "no frame came without a control process");
            wait_until("frames come through the successor", || {
                frames(&served, &proof).0 > after + 50
            });
            browser.wait_for("document.querySelector('#state').textContent.startsWith('flight 1')");
            let phase = browser.value("document.querySelector('#phase').textContent");
            println!("{phase:?}");
        }
        // The craft falls, in a gust perhaps against a wall, and the next flight begins by itself.
        browser.click("[data-press*=controller]");
        browser
            .wait_for("document.querySelector('#events').textContent.includes('crashed on the')");
        browser.wait_for("document.querySelector('#state').textContent.startsWith('flight 2')");
        browser.is_content();
    }

    let number = rustix::process::Pid::from_child(&served.child);
    rustix::process::kill_process(number, rustix::process::Signal::INT).unwrap();
    assert!(served.child.wait().unwrap().success());
    wait_until("everything has ended", || part("").is_none());
    assert!(partitions().is_empty());
}

/// The button that kills the controller kills the guest with its monitor; the next flight has another one.
#[test]
fn a_live_flight_in_a_guest_is_followed_by_another_when_its_guest_is_killed() {
    let name = "a_live_flight_in_a_guest_is_followed_by_another_when_its_guest_is_killed";
    let Some(image) = guest_image(name, "flight-live-images") else {
        return;
    };
    let guest = ["--variants", "guest", "--guest-image", &image];
    let live = ["--live", "--listen", "127.0.0.1:0"];
    let mut served = Served::started(&[&live[..], &guest[..]].concat());
    let token = served.token.clone().expect("a token on loopback, too");
    let host = format!("Host: {}\r\n", served.address);
    let proof = format!("{host}Authorization: Bearer {token}\r\n");
    let told = || -> Value {
        serde_json::from_str(&served.ask("GET", "/flight.json", &proof).body).unwrap()
    };
    let emulator = || process(&["qemu-system-aarch64\0"]);
    let facts = served.ask("GET", "/facts.json", &proof).body;
    assert!(facts.contains("\"the guest\""), "{facts}");
    wait_until("the guest flies its way-points", || {
        told()["phase"] == "way-points"
    });
    let first = emulator();
    assert!(first.is_some() && told()["monitor"].as_str().unwrap().starts_with("QEMU"));
    let order = r#"{"kill":"controller"}"#;
    assert_eq!(served.ask_with("POST", "/press", &host, order).status, 401);
    assert_eq!(emulator(), first, "a stranger's press did something");
    assert_eq!(served.ask_with("POST", "/press", &proof, order).status, 204);
    wait_until("the craft has fallen", || {
        let ended = told()["ended"].to_string();
        ended.contains("crashed on") || ended.contains("without a controller")
    });
    assert_ne!(emulator(), first);
    wait_until("the next flight is on its way", || {
        let told = told();
        told["flight"] == 2 && told["phase"] == "way-points" && told["ended"].is_null()
    });
    assert!(emulator().is_some() && emulator() != first);

    let number = rustix::process::Pid::from_child(&served.child);
    rustix::process::kill_process(number, rustix::process::Signal::INT).unwrap();
    assert!(served.child.wait().unwrap().success());
    wait_until("everything has ended", || {
        part("").is_none() && emulator().is_none()
    });
    assert!(partitions().is_empty());
}

/// Whether a process of this namespace is QEMU. Ended processes are not reaped there, so they stay listed.
fn is_emulating() -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|one| fs::read_to_string(one.path().join("stat")).ok());
    let mut alive = stats.filter(|stat| !stat.contains(") Z "));
    alive.any(|stat| stat.contains("(qemu-system"))
}

fn partitions() -> Vec<Value> {
    let listed = taut()
        .args(["partition", "show", "--json"])
        .output()
        .unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let all = listed["partitions"].as_array().unwrap().iter();
    all.filter(|one| one["name"] == "flight").cloned().collect()
}

/// Longest wait for ordinary work. Beside the loads, some kernels give it no time for half a minute
/// (docs/explanation/flight.md).
const PATIENCE: Duration = Duration::from_secs(180);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_guest_that_cannot_start_is_left_out_with_the_reason() {
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    if !is_root() || !may_create() || cpus < 2 {
        println!("SKIPPED: a partition needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside("a_guest_that_cannot_start_is_left_out_with_the_reason") {
        return;
    }
    let scratch = Scratch::new("flight-no-guest");
    let out = scratch.0.join("out").display().to_string();
    // Without QEMU, an image that is none, and no image.
    let image = scratch.0.join("flight.elf");
    fs::write(&image, "no code").unwrap();
    let image = image.display().to_string();
    let program = fs::canonicalize(crate::PROGRAM).unwrap();
    for (given, expected) in [
        (
            vec!["--guest-image", &image],
            "`qemu-system-aarch64` is not installed",
        ),
        (vec![], "no image of it was given"),
    ] {
        let output = Command::new(&program)
            .args(["--variants", "guest", "--out", &out])
            .args(given)
            .env("PATH", "/nowhere")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("did not fly"), "{said}{complaints}");
        assert!(said.contains(expected), "{said}{complaints}");
    }
}

/// Wrong use: words after `taut-flight`, and words of the answer.
#[rustfmt::skip] // a table: one line each
const WRONG: [(&str, &str); 13] = [
    ("--variants kite", "plain, fifo, partition, guest"),
    ("--seed -1", "-1"),
    ("--cpu 4000", "name one of"),
    ("--out /proc/flight", "--out"),
    ("--guest-image /nowhere.elf", "make flight-guest"),
    ("part nonsense", "started by taut-flight itself"),
    ("--listen 127.0.0.1:0", "--live"),
    ("--live --variants plain", "has a bus"),
    ("--live --variants guest", "no image of it"),
    ("--live --out x", "cannot be used with"),
    ("serve --speed 99", "0.1 to 20"),
    ("serve --to nobody", "--to"),
    ("serve --address 192.0.2.1", "--address"),
];

#[test]
fn wrong_use_is_answered_with_what_is_possible_before_anything_flies() {
    for (words, expected) in WRONG {
        let output = flight(&words.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words}: {said}");
        assert!(said.contains(expected), "{words}: {said}");
        assert!(!said.contains("flying"), "{words}: {said}");
    }
}

/// Packages of the environment with the ground station.
const PACKAGES: [&str; 2] = ["pymavlink==2.4.50", "fastcrc==0.5.0"];

#[test]
fn a_ground_station_flies_a_mission() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let interpreter = match python::environment(directory, &PACKAGES) {
        Ok(interpreter) => interpreter,
        Err(reason) => return println!("SKIPPED: pymavlink is not to be had: {reason}"),
    };
    // Free at the moment, and without another user in this test.
    let ports = [(); 2].map(|()| {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
    });
    let to = format!("127.0.0.1:{}", ports[0]);
    let own = ports[1].to_string();
    let mut craft = Command::new(crate::PROGRAM)
        .args([
            "serve", "--to", &to, "--port", &own, "--speed", "6", "--for", "60s",
        ])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/station.py");
    let station = Command::new(interpreter)
        .arg(script)
        .arg(&to)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    craft.kill().unwrap();
    craft.wait().unwrap();
    let (said, complaints) = (
        String::from_utf8_lossy(&station.stdout),
        String::from_utf8_lossy(&station.stderr),
    );
    println!("{said}");
    assert!(station.status.success(), "{said}{complaints}");
    assert!(said.ends_with("landed\n"), "{said}");
}
