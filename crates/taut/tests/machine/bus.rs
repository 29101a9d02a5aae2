//! `taut bus`, and the views of buses of other commands, beside nodes in processes of their own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tautline_state::child::KilledOnDrop;
use tautline_testbed::sys;

use crate::common::{run, stderr, stdout, taut};

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory for a bus and the configurations of its nodes, gone when dropped.
struct BusDirectory(PathBuf);

impl BusDirectory {
    fn new(name: &str) -> BusDirectory {
        let path = std::env::temp_dir().join(format!("taut-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        BusDirectory(path)
    }

    fn bus(&self) -> String {
        self.0.join("cell").to_str().unwrap().to_owned()
    }

    /// A configuration file for this node, which knows the node `motor`.
    fn config(&self, node: &str) -> String {
        let path = self.0.join(format!("{node}.toml"));
        let text = format!(
            "link = \"vbus\"\nbus = \"{}\"\nnode = \"{node}\"\n\n[[neighbour]]\nname = \"motor\"\n",
            self.bus()
        );
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A receiver on port 7 of the node `motor`, once it listens.
    fn receiver(&self, more: &[&str]) -> Process {
        let config = self.config("motor");
        let arguments = [&["recv", "7", "--config", &config], more].concat();
        let process = Process::start(&arguments);
        let socket = self.0.join("cell/motor/7");
        await_that(|| socket.exists());
        process
    }

    fn send(&self, node: &str, text: &str) {
        let config = self.config(node);
        let mut child = taut(&["send", "motor", "7", "--config", &config, "--priority", "5"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

impl Drop for BusDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running command; killed when dropped.
struct Process(KilledOnDrop);

impl Process {
    fn start(arguments: &[&str]) -> Process {
        Process::of(&mut taut(arguments))
    }

    fn of(command: &mut Command) -> Process {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(KilledOnDrop(command.spawn().unwrap()))
    }

    /// Waits until it says this on standard error.
    fn await_said(&mut self, text: &str) {
        let mut lines = BufReader::new(self.0.stderr.as_mut().unwrap());
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended first");
        }
    }

    /// Output until it ends, and whether it succeeded.
    fn end(mut self) -> (String, bool) {
        let mut said = String::new();
        let mut output = self.0.stdout.take().unwrap();
        output.read_to_string(&mut said).unwrap();
        (said, self.0.wait().unwrap().success())
    }
}

fn await_that(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(
            Instant::now() < deadline,
            "nothing happened for {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn list_shows_a_bus_its_members_and_its_ports() {
    let directory = BusDirectory::new("list");
    let receiver = directory.receiver(&["--count", "9"]);
    let found = json(&run(&["bus", "show", &directory.bus(), "--json"]));
    let bus = &found["buses"][0];
    assert_eq!(bus["name"], "cell");
    assert_eq!(bus["path"], directory.bus());
    assert_eq!(bus["mode"], "700");
    assert_eq!(bus["members"][0]["node"], "motor");
    assert_eq!(bus["members"][0]["process"], receiver.0.id());
    let port = &bus["ports"][0];
    assert_eq!(port["port"], "motor.7");
    assert_eq!(port["kind"], "queuing");
    assert_eq!(port["process"], receiver.0.id());
    assert_eq!(port["producers"].as_array().unwrap().len(), 0);
    let table = stdout(&run(&["bus", "show", &directory.bus()]));
    assert!(table.contains("motor.7"), "{table}");
    assert!(table.contains("mode 700"), "{table}");
    drop(receiver);
    // Killed: what it left behind is no port any more.
    let found = json(&run(&["bus", "show", &directory.bus(), "--json"]));
    assert_eq!(found["buses"][0]["ports"], Value::Array(Vec::new()));
    assert_eq!(found["buses"][0]["members"], Value::Array(Vec::new()));
}

#[test]
fn whoever_comes_and_goes_a_tap_takes_nothing_from_the_receiver() {
    let directory = BusDirectory::new("tap");
    let receiver = directory.receiver(&["--count", "3", "--timeout", "30s"]);
    let bus = directory.bus();
    let mut tap = Process::start(&[
        "capture", "--bus", &bus, "--port", "motor.7", "--count", "3", "--for", "30s", "--json",
    ]);
    tap.await_said("capturing on");
    for (node, text) in [("arm", "one"), ("leg", "two"), ("arm", "three")] {
        directory.send(node, text);
        // `send` leaves again: the tap must have looked at who sends meanwhile.
        thread::sleep(Duration::from_millis(1));
    }
    let (received, went_well) = receiver.end();
    assert!(went_well);
    assert_eq!(received, "one\ntwo\nthree\n");
    drop(tap);
}

#[test]
fn tap_of_a_sender_that_stays_sees_every_message() {
    let directory = BusDirectory::new("stays");
    let receiver = directory.receiver(&["--count", "40", "--timeout", "30s"]);
    let (_sender, mut input) = c_sender(&directory);
    // The first message is there once the sender has connected.
    input.write_all(b"0\n").unwrap();
    let bus = directory.bus();
    let connected = || {
        let list = json(&run(&["bus", "show", &bus, "--json"]));
        let port = &list["buses"][0]["ports"][0];
        port["producers"][0]["published"][6] == 1
    };
    await_that(connected);
    let mut tap = Process::start(&[
        "capture", "--bus", &bus, "--port", "motor.7", "--count", "39", "--for", "30s", "--json",
    ]);
    tap.await_said("capturing on");
    for number in 1..40 {
        writeln!(input, "{number}").unwrap();
    }
    let (tapped, all) = tap.end();
    assert!(all, "{tapped}");
    for (number, line) in (1..40).zip(tapped.lines()) {
        let message: Value = serde_json::from_str(line).unwrap();
        let text = format!("{number}");
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(message["payload"], hex.as_str());
        assert_eq!(message["sequence"], number);
        assert_eq!(message["priority"], 6);
        assert_eq!(message["from"], "c-example.1");
        assert_eq!(message["bytes"], text.len());
    }
    // The receiver has got them all, the tap notwithstanding.
    let (received, went_well) = receiver.end();
    assert!(went_well);
    let expected: String = (0..40).map(|number| format!("{number}\n")).collect();
    assert_eq!(received, expected);
}

/// The C example, which connects to port 7 of `motor` as any program may, and sends each line of its input.
fn c_sender(directory: &BusDirectory) -> (Process, ChildStdin) {
    let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/c");
    let program = directory.0.join("vbus_send");
    let output = Command::new("cc")
        .args([
            "-std=c99",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-I",
        ])
        .arg(&bindings)
        .arg(bindings.join("examples/vbus/vbus_send.c"))
        .arg(bindings.join("examples/vbus/vbus_linux.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut command = Command::new(&program);
    command.args([directory.bus().as_str(), "motor", "7", "6"]);
    let mut sender = Process::of(command.stdin(Stdio::piped()));
    let input = sender.0.stdin.take().unwrap();
    (sender, input)
}

#[test]
fn top_shows_rates_and_what_waits() {
    let directory = BusDirectory::new("top");
    let receiver = directory.receiver(&["--count", "1000", "--timeout", "60s"]);
    let (_sender, mut input) = c_sender(&directory);
    input.write_all(b"first\n").unwrap();
    let bus = directory.bus();
    // Other tests have buses, too.
    let process = receiver.0.id();
    let words = ["top", "--kind", "bus", "--once", "--interval", "50ms"];
    let top = || json(&run(&[&words[..], &["--json"]].concat()));
    let row = |top: &Value| {
        let mut rows = top["rows"].as_array().unwrap().iter();
        rows.find(|row| row["process"] == process && row["key"]["kind"] == "port")
            .cloned()
    };
    await_that(|| row(&top()).is_some_and(|row| row["per_second"].as_f64() == Some(0.0)));
    let row_of_port = row(&top()).unwrap();
    assert_eq!(row_of_port["key"]["number"], 7);
    assert_eq!(row_of_port["full"], 0);
    let one = json(&run(&["bus", "show", &bus, "--json"]));
    let port = &one["buses"][0]["ports"][0];
    assert_eq!(port["producers"][0]["from"], "c-example.1");
    let table = stdout(&run(&words));
    assert!(table.contains("motor on cell"), "{table}");
    sys::signal_process(process, rustix::process::Signal::STOP);
    // A process that is stopped is named, after a second, and the rest is shown.
    let stopped = top();
    assert_eq!(row(&stopped), None);
    let silent = stopped["silent"].as_array().unwrap();
    let is_named = |name: &Value| name.as_str().unwrap().contains(&process.to_string());
    assert!(silent.iter().any(is_named), "{silent:?}");
    sys::signal_process(process, rustix::process::Signal::CONT);
}

#[test]
fn a_view_that_no_terminal_shows_is_printed_once() {
    for kind in ["bus", "task", "guest"] {
        let shown = run(&["top", "--kind", kind, "--interval", "50ms"]);
        assert!(shown.status.success(), "{}", stderr(&shown));
        assert!(!shown.stdout.is_empty());
    }
}

#[test]
fn a_view_ends_when_its_reader_has_gone() {
    let top = ["top", "--kind", "bus", "--json", "--interval", "50ms"];
    let mut top = taut(&top).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(top.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    drop(reader);
    assert_eq!(top.wait().unwrap().code(), Some(0));
}

#[test]
fn a_receiver_whose_reader_has_gone_takes_no_more_messages() {
    let directory = BusDirectory::new("enough");
    let bus = directory.bus();
    let mut receiver = taut(&["recv", "7", "--bus", &bus, "--count", "500"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(receiver.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("listening on port 7")));
    drop(receiver.stdout.take());
    let list = run(&["bus", "show", "--json", &bus]);
    let port = json(&list)["buses"][0]["ports"][0]["port"].clone();
    let (node, _) = port.as_str().unwrap().split_once('.').unwrap().to_owned();
    let sent = run(&["send", node, "7", "one", "--bus", &bus]);
    assert!(sent.status.success(), "{}", stderr(&sent));
    assert_eq!(receiver.wait().unwrap().code(), Some(0));
}

#[test]
fn a_bus_of_killed_nodes_is_shown_and_removed_by_the_doctor() {
    let name = format!("taut-doctor-{}", std::process::id());
    let mut echo = taut(&["echo", "--bus", &name])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(echo.stdout.take().unwrap());
    if lines.read_line(&mut line).unwrap() == 0 {
        println!("SKIPPED: this user has no directory for buses");
        echo.wait().unwrap();
        return;
    }
    let left = || stdout(&run(&["doctor", "--json"])).contains(&format!("bus {name} "));
    assert!(!left(), "it is alive");
    echo.kill().unwrap();
    echo.wait().unwrap();
    assert!(left());
    let done = stdout(&run(&["doctor", "--put-back"]));
    assert!(done.contains(&format!("bus {name} removed")), "{done}");
    assert!(!left());
}

/// A user that owns nothing else.
const USER: u32 = 65_533;

#[test]
fn a_home_directory_that_is_named_as_a_bus_is_left_as_it_is() {
    let directory = BusDirectory::new("home");
    let home = directory.0.join("home");
    let parts = [home.clone(), home.join(".ssh"), home.join(".ssh/id")];
    fs::create_dir_all(&parts[1]).unwrap();
    fs::write(&parts[2], "k\n").unwrap();
    // One whose names are those of a node and of a port.
    let like_bus = [home.join("motor"), home.join("motor/9")];
    let look = || {
        let found = parts.iter().map(|part| fs::metadata(part).unwrap());
        let found = found.map(|found| (found.ino(), found.mode(), found.uid(), found.mtime_nsec()));
        (
            found.collect::<Vec<_>>(),
            fs::read_to_string(&parts[2]).unwrap(),
        )
    };
    let name = home.to_str().unwrap();
    let join = |user: Option<u32>| {
        let before = look();
        for words in [
            &["recv", "9", "--timeout", "200ms"][..],
            &["send", "motor", "9", "one"],
            &["echo", "--count", "1"],
            &["bus", "show"],
        ] {
            let is_refused = words[0] != "bus";
            let mut command = taut(words);
            command
                .args(is_refused.then_some("--bus"))
                .arg(name)
                .current_dir("/");
            if let Some(user) = user {
                command.uid(user).gid(user);
            }
            let output = match command.output() {
                // The command lies where this user cannot reach it.
                Err(error) if user.is_some() => return println!("SKIPPED: as a user: {error}"),
                output => output.unwrap(),
            };
            assert_eq!(
                output.status.success(),
                !is_refused,
                "{words:?}: {}",
                stderr(&output)
            );
            assert_eq!(look(), before, "{words:?}");
        }
    };
    join(None);
    fs::create_dir(&like_bus[0]).unwrap();
    fs::write(&like_bus[1], "mine").unwrap();
    join(None);
    let files = || parts.iter().chain(&like_bus);
    if files().any(|file| chown(file, Some(USER), Some(USER)).is_err()) {
        return println!("SKIPPED: only root can be another user");
    }
    join(Some(USER));
    join(None);
    assert_eq!(fs::read_to_string(&like_bus[1]).unwrap(), "mine");
}

#[test]
fn a_count_that_is_not_reached_in_time_is_a_failure() {
    let directory = BusDirectory::new("few");
    let _receiver = directory.receiver(&[]);
    let bus = directory.bus();
    let port = ["capture", "--bus", &bus, "--port", "motor.7"];
    let output = run(&[&port[..], &["--count", "1", "--for", "50ms"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("only 0 of 1 came in time"), "{said}");
}
