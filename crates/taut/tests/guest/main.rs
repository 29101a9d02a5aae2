//! `taut guest` with real guests: programs of `bindings/guest`, built here, under QEMU and on KVM; and what happens
//! when a guest, or the process that runs it, misbehaves.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tautline::config::BusConfig;
use tautline::{Node, NodeConfig, Priority, Wait, bus_neighbour};

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod kvm;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taut");

use bed::{
    Monitor, NOBODY, PATIENCE, Running, guest, has_freertos, images, in_time, is_alive,
    port_number, receive, show, taut, unique, wait_until,
};
use common::Scratch;

use crate::common::both;

/// The same tests for each monitor.
macro_rules! for_each_monitor {
    ($($test:ident),* $(,)?) => {
        mod under_qemu {
            $(#[test] fn $test() { super::$test(super::Monitor::Qemu) })*
        }
        mod on_kvm {
            $(#[test] fn $test() { super::$test(super::Monitor::Kvm) })*
        }
    };
}

// Behind the macro, which it uses.
mod devices;
mod rust;

for_each_monitor!(
    an_echo_answers_taut_ping_and_leaves_nothing,
    freertos_answers_too,
    values_go_both_ways,
    ends_are_told_apart_and_followed_as_the_policy_says,
    a_guest_that_fails_is_started_again_and_programs_go_on,
    a_task_set_is_told_of_the_ends_of_its_guest,
    hostile_guests_harm_nobody,
    programs_of_random_bytes_harm_nobody,
    nothing_is_left_when_its_process_is_killed,
    guests_are_killed_and_restarted_at_random,
);

fn an_echo_answers_taut_ping_and_leaves_nothing(monitor: Monitor) {
    let Some(running) = Running::start(monitor, "echo", "echo", None, &[]) else {
        return;
    };
    let (name, bus) = (running.name.clone(), running.bus.clone());
    for _ in 0..2 {
        let output = taut()
            .args(["ping", &name, "--bus", &bus, "--count", "50"])
            .args(["--interval", "1ms", "--json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", both(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&found["sent"], &found["lost"]), (&50.into(), &0.into()));
    }
    let listed = both(&guest(&["show"]));
    assert!(
        listed.contains(&name) && listed.contains("running"),
        "{listed}"
    );
    let shown = show(&name).unwrap();
    assert_eq!(shown["ports"][0]["to_guest"], 100);
    assert_eq!(shown["ports"][0]["to_linux"], 100);
    let monitors = running.monitors();
    assert_eq!(monitors.len(), 1);

    // A second one of this name is told so.
    let second = guest(&[
        "run",
        images(monitor)
            .unwrap()
            .join(monitor.image("echo"))
            .to_str()
            .unwrap(),
        "--name",
        &name,
    ]);
    assert_eq!(second.status.code(), Some(1));
    assert!(both(&second).contains("runs already"), "{}", both(&second));

    let console = running.console();
    assert!(console.contains("echo on port 4095"), "{console}");
    let output = running.stop();
    assert!(output.status.success(), "{}", both(&output));
    assert!(both(&output).contains("it was stopped"));
    assert!(!is_alive(monitors[0]));
    assert!(!Path::new("/run/tautline/vbus").join(&bus).exists());
    assert!(!both(&guest(&["show"])).contains(&name));
}

#[test]
fn a_standard_output_that_nobody_reads_holds_no_guest_up() {
    let monitor = Monitor::Qemu;
    let Some(images) = images(monitor) else {
        return;
    };
    let (mut reader, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(b".").is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let (name, bus) = (unique("unread"), unique("bus-unread"));
    let mut child = taut()
        .args(["guest", "run"])
        .arg(images.join(monitor.image("echo")))
        .args(["--name", &name, "--bus", &bus])
        .stdout(full)
        .spawn()
        .unwrap();
    let runs = |restarts: u32| {
        let found = show(&name);
        found
            .is_some_and(|found| found["ports"][0]["open"] == true && found["restarts"] == restarts)
    };
    wait_until("it runs", || runs(0));
    assert!(guest(&["restart", &name]).status.success());
    wait_until("it runs again", || runs(1));
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    assert!(guest(&["stop", &name]).status.success());
    assert!(child.wait().unwrap().success());
    reading.join().unwrap().unwrap();
}

/// Starts FreeRTOS: the image for the interrupt controller that this machine has. The one for another says so.
fn start_freertos(monitor: Monitor) -> Option<Running> {
    const FOR_ANOTHER: &str = "this FreeRTOS is for another interrupt controller";
    let arguments = ["--silence-max", "10s"];
    let mut running = Running::begin(monitor, "freertos", "freertos_echo", None, &arguments)?;
    wait_until("FreeRTOS answers, or says what it needs", || {
        running.is_open() || running.console().contains(FOR_ANOTHER)
    });
    if running.console().contains(FOR_ANOTHER) {
        assert_eq!(running.output().status.code(), Some(1));
        running = Running::begin(monitor, "gicv3", "freertos_echo-gicv3", None, &arguments)?;
    }
    running.wait_open();
    Some(running)
}

fn freertos_answers_too(monitor: Monitor) {
    if !has_freertos(monitor) {
        return;
    }
    let Some(running) = start_freertos(monitor) else {
        return;
    };
    let output = taut()
        .args(["ping", &running.name, "--bus", &running.bus])
        .args(["--count", "200", "--interval", "1ms", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", both(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["sent"], &found["lost"]), (&200.into(), &0.into()));
    drop(running.stop());
}

fn values_go_both_ways(monitor: Monitor) {
    let settings = "peers = [\"viewer\"]\nsilence_max = \"5s\"\n\
        [[port]]\nnumber = 10\nreceives = \"nothing\"\nsends = \"sampling\"\nmessage_bytes_max = 64\n\
        [[port]]\nnumber = 11\nreceives = \"sampling\"\nsends = \"nothing\"\nmessage_bytes_max = 64\n";
    let Some(running) = Running::start(monitor, "blink", "blink", Some(settings), &[]) else {
        return;
    };
    let config = BusConfig::new(&running.bus, "viewer".parse().unwrap());
    let lamp = bus_neighbour(running.name.parse().unwrap());
    let node = Node::open(NodeConfig::vbus(config).with_neighbour(lamp).unwrap()).unwrap();
    let mut viewer = node.sampling(port_number(20)).open().unwrap();
    let mut buffer = [0; 1_484];
    let mut see = || {
        let sample = viewer
            .next_into(&mut buffer, Wait::Until(in_time()))
            .unwrap();
        let sample = sample.expect("the lamp publishes");
        assert_eq!(sample.length, 16);
        let word = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().unwrap());
        (word(8), word(12) != 0)
    };
    let (first, _) = see();
    let (second, _) = see();
    assert!(second > first, "values get newer");

    // A period of zero puts the lamp out for good.
    let mut knob = node.queuing(port_number(21)).open().unwrap();
    let to = knob
        .destination_until(&running.name, port_number(11), in_time())
        .unwrap();
    knob.send(to, Priority::NORMAL, &0_u32.to_le_bytes())
        .unwrap();
    wait_until("the lamp is out for a second's worth of values", || {
        (0..20).all(|_| !see().1)
    });
    drop(running.stop());
}

fn ends_are_told_apart_and_followed_as_the_policy_says(monitor: Monitor) {
    let settings = "[[port]]\nnumber = 1\n";
    let killed = format!("{} was killed by signal 9", monitor.process());
    let cases: [(&str, &[u8], &str, Option<i32>); 4] = [
        ("off", b"o", "it switched itself off", Some(0)),
        ("fault", b"f", "its processor stopped for a fault", Some(1)),
        ("hang", b"h", "it gave no sign of life", Some(1)),
        ("kill", b"", &killed, Some(1)),
    ];
    for (test, order, said, status) in cases {
        let arguments = ["--silence-max", "2s"];
        let Some(mut running) =
            Running::start(monitor, test, "misbehave", Some(settings), &arguments)
        else {
            return;
        };
        let (_node, mut port) = running.peer("boss", 2);
        if order.is_empty() {
            signal(Signal::KILL, running.monitors()[0]);
        } else {
            running.order(&mut port, order);
        }
        let output = running.output();
        assert_eq!(output.status.code(), status, "{test}: {}", both(&output));
        assert!(both(&output).contains(said), "{test}: {}", both(&output));
    }
}

fn a_guest_that_fails_is_started_again_and_programs_go_on(monitor: Monitor) {
    let settings = "[[port]]\nnumber = 1\n";
    let arguments = ["--restart", "on-failure", "--silence-max", "2s"];
    let Some(running) = Running::start(monitor, "again", "misbehave", Some(settings), &arguments)
    else {
        return;
    };
    let (_node, mut port) = running.peer("boss", 2);
    assert_eq!(running.ask(&mut port, b"x").as_deref(), Some(&b"done"[..]));
    let to = port
        .destination_until(&running.name, port_number(1), in_time())
        .unwrap();
    for (restarts, order) in [(1, b"f"), (2, b"r"), (3, b"h")] {
        port.send(to, Priority::HIGHEST, order).unwrap();
        wait_until("it was started again", || {
            show(&running.name).is_some_and(|found| found["restarts"] == restarts)
        });
        running.wait_open();
        // The same destination, the same port: nothing was opened anew.
        port.send(to, Priority::HIGHEST, b"x").unwrap();
        assert_eq!(receive(&mut port, PATIENCE).as_deref(), Some(&b"done"[..]));
    }
    let asked = guest(&["restart", &running.name]);
    assert!(asked.status.success(), "{}", both(&asked));
    running.wait_open();
    assert_eq!(running.ask(&mut port, b"x").as_deref(), Some(&b"done"[..]));
    // A life that the guest begins by itself, without its machine: the ports open again.
    assert_eq!(running.ask(&mut port, b"j").as_deref(), Some(&b"done"[..]));
    assert_eq!(running.ask(&mut port, b"x").as_deref(), Some(&b"done"[..]));
    drop(running.stop());
}

fn signal(signal: Signal, process: u32) {
    let process = Pid::from_raw(process.cast_signed()).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

fn a_task_set_is_told_of_the_ends_of_its_guest(monitor: Monitor) {
    /// Longer than the time between two looks of the set.
    const LOOKED: Duration = Duration::from_secs(1);
    let Some(running) = Running::start(monitor, "set", "echo", None, &["--restart", "always"])
    else {
        return;
    };
    let scratch = Scratch::new("guest-of-a-set");
    let file = scratch.0.join("set.toml");
    let name = &running.name;
    let task = |task: &str, rest: &str| {
        format!("[[task]]\nname = \"{task}\"\nperiod = \"20ms\"\nworst_case = \"100us\"\n{rest}\n")
    };
    let grave = task(
        "control",
        &format!("guest = \"{name}\"\non_guest_end = \"safe-mode\""),
    );
    let light = task("log", &format!("guest = \"{name}\""));
    let absent = task("idle", "guest = \"nobody-runs-this\"");
    let top = "modes = [\"run\", \"safe\"]\nsafe_mode = \"safe\"\n";
    fs::write(&file, format!("{top}{grave}{light}{absent}")).unwrap();
    let mut set = taut();
    set.args([
        "task",
        "run",
        file.to_str().unwrap(),
        "--for",
        "0",
        "--json",
    ]);
    set.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut set = set.spawn().unwrap();
    let mut said = BufReader::new(set.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert!(
        first.contains("guest `nobody-runs-this` does not run"),
        "{first}"
    );
    assert!(said.next().unwrap().unwrap().contains("on CPU"));

    // One end by a signal to the machine, one by request: both lives have ended.
    signal(Signal::KILL, running.monitors()[0]);
    wait_until("it was started again", || {
        show(name).is_some_and(|found| found["restarts"] == 1)
    });
    running.wait_open();
    std::thread::sleep(LOOKED);
    let asked = guest(&["restart", name]);
    assert!(asked.status.success(), "{}", both(&asked));
    running.wait_open();
    std::thread::sleep(LOOKED);
    signal(Signal::INT, set.id());
    let output = set.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |task: &str| -> Vec<&str> {
        let records = report["records"].as_array().unwrap().iter();
        let lost = format!("`{task}` lost its guest");
        records
            .filter_map(Value::as_str)
            .filter_map(|record| record.split_once(&lost).map(|(_, action)| action))
            .collect()
    };
    assert_eq!(
        of("control"),
        [": the set went to its safe mode", ""],
        "{report}"
    );
    assert_eq!((of("log"), of("idle")), (vec!["", ""], vec![]), "{report}");
    drop(running.stop());
}

fn hostile_guests_harm_nobody(monitor: Monitor) {
    let settings = "[[port]]\nnumber = 1\n[[port]]\nnumber = 3\nreceives = \"sampling\"\nsends = \"sampling\"\n";
    let Some(running) = Running::start_unopened(monitor, "hostile", settings) else {
        return;
    };
    let (_node, mut port) = running.peer("boss", 2);
    // Doorbells without end, and messages without a receiver: the answer comes all the same.
    assert_eq!(running.ask(&mut port, b"d").as_deref(), Some(&b"done"[..]));
    assert_eq!(running.ask(&mut port, b"a").as_deref(), Some(&b"done"[..]));
    wait_until("letters to nobody are counted", || {
        let found = show(&running.name).unwrap();
        let port = &found["ports"][0];
        port["malformed"].as_u64().unwrap() + port["to_linux_dropped"].as_u64().unwrap() >= 50
    });
    // Random words all over its region, for two seconds: the process lives, answers, and passes others' messages.
    let to = port
        .destination_until(&running.name, port_number(1), in_time())
        .unwrap();
    port.send(to, Priority::HIGHEST, b"s").unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let found = show(&running.name).expect("its process answers");
        assert_ne!(found["state"], "ended");
        // There may be no room: there is no reader any more.
        let _ = port.send(to, Priority::LOWEST, b"x");
    }
    let output = running.stop();
    assert!(output.status.success(), "{}", both(&output));
}

/// Their monitor ends, by the guest's fault or by request, and nothing else does.
fn programs_of_random_bytes_harm_nobody(monitor: Monitor) {
    const PROGRAMS: u64 = 3;
    let Some(images) = images(monitor) else {
        return;
    };
    let scratch = Scratch::new("guest-random");
    let whole = fs::read(images.join(monitor.image("echo"))).unwrap();
    // Of the first segment's header, which follows the file's, the words of 64 bits with its place and its bytes.
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    let (place, bytes) = (word(64 + 8), word(64 + 32));
    for program in 1..=PROGRAMS {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(program);
        let mut image = whole.clone();
        for byte in &mut image[place..place + bytes] {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed as u8;
        }
        let file = scratch.0.join(format!("{program}.elf"));
        fs::write(&file, image).unwrap();
        let mut running =
            Running::begin_image(monitor, &format!("random-{program}"), &file, None, &[]);
        let has_ended = |running: &mut Running| running.child.try_wait().unwrap().is_some();
        wait_until("it has begun", || {
            has_ended(&mut running) || !running.monitors().is_empty()
        });
        let monitors = running.monitors();
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until && !has_ended(&mut running) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if !has_ended(&mut running) {
            // It may end in this moment.
            let _ = guest(&["stop", &running.name]);
        }
        let output = running.output();
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{}",
            both(&output)
        );
        assert!(!both(&output).contains("panicked"), "{}", both(&output));
        assert!(!monitors.into_iter().any(is_alive));
    }
}

fn nothing_is_left_when_its_process_is_killed(monitor: Monitor) {
    let mut first: Option<String> = None;
    for _ in 0..5 {
        let Some(mut running) = Running::start(monitor, "killed", "echo", None, &[]) else {
            return;
        };
        let monitors = running.monitors();
        running.child.kill().unwrap();
        let status = running.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
        wait_until("its monitor has ended with its parent", || {
            !monitors.iter().any(|monitor| is_alive(*monitor))
        });
        // The same name again, at once: what the killed process left is no hindrance.
        let name = first.get_or_insert_with(|| running.name.clone());
        assert_eq!(*name, running.name);
        assert!(!both(&guest(&["show"])).contains(name.as_str()));
    }
}

#[test]
fn what_killed_guests_have_left_hides_no_guest() {
    let Some(running) = Running::start(Monitor::Qemu, "listed", "echo", None, &[]) else {
        return;
    };
    // More than are listed of one user.
    let left = (0..300).map(|number| format!("/run/tautline/guests/{}-{number}", unique("left")));
    let left: Vec<String> = left.collect();
    for path in &left {
        drop(UnixListener::bind(path).unwrap());
    }
    assert!(both(&guest(&["show"])).contains(&running.name));
    let Some(second) = Running::start(Monitor::Qemu, "sweeps", "echo", None, &[]) else {
        return;
    };
    assert!(left.iter().all(|path| !Path::new(path).exists()));
    drop((running.stop(), second.stop()));
}

fn guests_are_killed_and_restarted_at_random(monitor: Monitor) {
    let count: u32 =
        std::env::var("TAUTLINE_GUEST_KILLS").map_or(10, |count| count.parse().unwrap());
    let maximum = "restarts_max = 4294967295\n[[port]]\nnumber = 4095\n";
    let arguments = ["--restart", "always"];
    let Some(running) = Running::start(monitor, "random", "echo", Some(maximum), &arguments) else {
        return;
    };
    let (_node, mut port) = running.peer("boss", 2);
    let to = port
        .destination_until(&running.name, port_number(4095), in_time())
        .unwrap();
    let mut buffer = vec![0; port.message_bytes_max()];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let (mut sent, mut answered, mut refused) = (0_u64, 0_u64, 0_u64);
    for kill in 1..=count {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let until = Instant::now() + Duration::from_micros(seed % 150_000);
        let mut message = [0; 256];
        while Instant::now() < until {
            sent += 1;
            message[..8].copy_from_slice(&sent.to_le_bytes());
            message[8..].fill(sent as u8);
            // There may be no receiver, and then there may be no room.
            refused += u64::from(port.send(to, Priority::NORMAL, &message).is_err());
            while let Some(found) = port.receive_into(&mut buffer, Wait::Poll).unwrap() {
                let number = u64::from_le_bytes(buffer[..8].try_into().unwrap());
                assert_eq!(found.length, message.len());
                assert!(
                    number > answered && number <= sent,
                    "in their order, none twice"
                );
                assert!(
                    buffer[8..found.length]
                        .iter()
                        .all(|byte| *byte == number as u8),
                    "not torn"
                );
                answered = number;
            }
        }
        wait_until("it was started again", || {
            running.assert_alive();
            if seed.is_multiple_of(2) {
                for process in running.monitors() {
                    // It may have ended by itself in this moment.
                    let process = Pid::from_raw(process.cast_signed()).unwrap();
                    let _ = rustix::process::kill_process(process, Signal::KILL);
                }
            } else {
                // It may have ended by itself in this moment.
                let _ = guest(&["restart", &running.name]);
            }
            let restarts = |found: Value| found["restarts"].as_u64();
            show(&running.name).and_then(restarts) >= Some(kill.into())
        });
    }
    running.wait_open();
    println!("{count} kills: {sent} sent, {refused} refused");
    assert!(sent > refused);
    drop(running.stop());
}

#[test]
fn wrong_images_and_settings_are_refused_with_a_remedy() {
    let Some(images) = images(Monitor::Qemu) else {
        return;
    };
    let scratch = Scratch::new("guest-wrong");
    let echo = images.join("echo.elf");
    let put = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = scratch.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let whole = fs::read(&echo).unwrap();
    let cut = put("cut.elf", &whole[..whole.len() / 4]);
    let empty = put("empty.elf", b"");
    let typo = put("typo.toml", b"[[port]]\nnumbr = 7\n");
    let crowd = put(
        "crowd.toml",
        b"[[port]]\nnumber = 7\ndepth = 4096\nmessage_bytes_max = 65528\n",
    );
    let refused = |image: &Path, arguments: &[&str], status: i32, said: &str| {
        let output = taut()
            .args(["guest", "run"])
            .arg(image)
            .args(["--name", &unique("wrong"), "--bus", &unique("bus-wrong")])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", both(&output));
        assert!(both(&output).contains(said), "{said}: {}", both(&output));
        assert!(both(&output).contains("what to do:"), "{}", both(&output));
    };
    let mut other = whole.clone();
    other[18] = 243;
    let other = put("other.elf", &other);
    refused(&other, &[], 2, "it is for another processor (ELF machine");
    refused(&cut, &[], 2, "truncated");
    refused(&empty, &[], 2, "it is empty");
    refused(Path::new("/nowhere.elf"), &[], 2, "No such file");
    refused(&scratch.0, &[], 2, "not a regular file");
    refused(&echo, &["--ram", "1M"], 2, "2 MiB to 2048 MiB");
    refused(
        &echo,
        &["--window", typo.to_str().unwrap()],
        2,
        "there is no key `numbr`; is `number` meant?",
    );
    refused(
        &echo,
        &["--window", crowd.to_str().unwrap()],
        2,
        "memory_bytes",
    );
    refused(&echo, &["--window", "/nowhere.toml"], 2, "No such file");
    refused(&echo, &["--partition", "nowhere"], 1, "nowhere");
    let absent = guest(&["stop", "nowhere"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(both(&absent).contains("no guest `nowhere` runs"));
    let without = taut()
        .args(["guest", "run"])
        .arg(&echo)
        .args(["--bus", &unique("bus-wrong")])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(without.status.code(), Some(1));
    assert!(
        both(&without).contains("apt install qemu-system-arm"),
        "{}",
        both(&without)
    );
}

#[test]
fn strangers_reach_no_guest_of_root() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become somebody else");
        return;
    }
    let Some(running) = Running::start(Monitor::Qemu, "stranger", "echo", None, &[]) else {
        return;
    };
    let as_nobody = |arguments: &[&str]| {
        taut()
            .arg("guest")
            .args(arguments)
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .env_remove("XDG_RUNTIME_DIR")
            .output()
            .unwrap()
    };
    for action in ["stop", "restart", "show"] {
        let output = as_nobody(&[action, &running.name]);
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    }
    assert!(!both(&as_nobody(&["show"])).contains(&running.name));
    assert_eq!(show(&running.name).unwrap()["restarts"], 0);
    drop(running.stop());
}
