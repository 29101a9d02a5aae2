//! The smoother in a cell of network namespaces: several senders, one receiver behind a port of 89.11 Mbit/s with a
//! queue of 64 frames, real UDP and TCP.

mod bed;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bed::{Running, Traffic, cell, child, child_in_container, child_on_disk, run, setup, status};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CapabilitySet;
use tautline_smoother::{Smoother, SmootherError, Status, end, holder};
use tautline_state::journal::PutBack;
use tautline_state::netlink::Route;
use tautline_state::network::has_default_queues;
use tautline_state::privilege::keep_capabilities;
use tautline_state::{TemporaryDirectory, runtime_directory};
use tautline_testbed::hosts::HostsError;
use tautline_testbed::hosts::cell::{Cell, INTERFACE};
use tautline_testbed::sys::{allowed_cpus, in_fork, pin_command, pin_to_cpu, set_fifo};

const CAPACITY_BPS: u64 = 89_110_000;
const RELAXED: Ordering = Ordering::Relaxed;
/// Rates of the paper: 4.85 and 30.32 Mbit/s in full frames.
const REAL_TIME: f64 = 400.0;
const OTHER: f64 = 2500.0;

/// Work of the processes that other tests start.
#[test]
#[ignore = "started by other tests"]
fn child_that_smooths() {
    bed::run_child();
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn is_held(status: &Status) -> bool {
    status.nodes.iter().any(|node| node.held_to_bps.is_some())
}

/// Runs a command line at a node.
fn command(cell: &Cell, node: usize, line: &str) -> Result<String, HostsError> {
    let words: Vec<&str> = line.split(' ').collect();
    cell.run(node, words[0], &words[1..])
}

/// Everything that `tc` and `ip` show of a node, without counters.
fn state_of(cell: &Cell, node: usize) -> String {
    let mut text = String::new();
    for line in [
        "tc qdisc show",
        "tc filter show dev taut0 egress",
        "tc filter show dev taut0 ingress",
        "tc class show dev taut0",
        "ip -details link show",
    ] {
        text += &command(cell, node, line).unwrap();
    }
    text
}

#[test]
fn a_forked_process_leaves_the_smoother_of_its_parent_alone() {
    let Some(cell) = cell(1) else { return };
    let before = state_of(&cell, 0);
    let setup = setup(&cell, CAPACITY_BPS, &[cell.receiver()]);
    let begin = || Smoother::begin(setup.clone()).unwrap();
    let mut smoother = Some(cell.inside(0, begin).unwrap());
    let held = state_of(&cell, 0);
    assert_ne!(before, held, "it holds other traffic");
    let dropped = in_fork(|| {
        drop(smoother.take());
        vec![]
    });
    let ended = in_fork(|| match smoother.take().unwrap().end() {
        Err(SmootherError::NotPutBack(_)) | Ok(()) => vec!["its end is not refused".to_owned()],
        Err(_) => vec![],
    });
    for faults in [dropped, ended] {
        assert_eq!(faults.unwrap(), [""; 0]);
    }
    assert_eq!(state_of(&cell, 0), held);
    cell.inside(0, || smoother.take().unwrap().end().unwrap())
        .unwrap();
    assert_eq!(state_of(&cell, 0), before);
}

#[test]
fn with_grants_fewer_real_time_messages_are_lost_and_others_keep_the_port() {
    let Some(cell) = cell(3) else { return };
    run(&cell, |running| {
        running.start(REAL_TIME, OTHER);
        thread::sleep(Duration::from_millis(500));
        let (lost_before, _) = running.traffic.measure(Duration::from_secs(2));
        assert!(lost_before > 0.03, "the port is not overloaded");
        let receiver = cell.receiver();
        running.smooth(receiver, CAPACITY_BPS, &[0, 1, 2]);
        for node in 0..receiver {
            running.smooth(node, CAPACITY_BPS, &[receiver]);
        }
        for node in 0..receiver {
            status(&cell, node, is_held);
        }
        thread::sleep(Duration::from_millis(500));
        let (lost, megabits) = running.traffic.measure(Duration::from_secs(3));
        assert!(lost < lost_before / 5.0, "{lost} after {lost_before}");
        assert!(megabits > 35.0, "others keep what is left");
        let status = status(&cell, receiver, |status| {
            status.nodes.iter().all(|node| node.takes_part)
        });
        for node in 0..receiver {
            let own = bed::status(&cell, node, is_held).nodes.remove(0);
            // Sockets see what waits: they hold at most 0.2 MB each.
            assert!(
                own.own_drops == 0 && own.own_backlog_bytes < 400_000,
                "{own:?}"
            );
        }
        let granted: u64 = status.nodes.iter().map(|node| node.granted_bps).sum();
        assert!(
            granted < CAPACITY_BPS - 10_000_000,
            "real time is subtracted: {granted}"
        );
    });
}

#[test]
fn tcp_is_held_and_connections_that_were_open_lose_their_long_segments() {
    let Some(cell) = cell(1) else { return };
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let traffic = Traffic::default();
    let received_in = |time| {
        let before = received.load(RELAXED);
        thread::sleep(time);
        (received.load(RELAXED) - before) as f64 * 8.0 / 1e6 / time.as_secs_f64()
    };
    thread::scope(|scope| {
        let running = Running {
            scope,
            cell: &cell,
            traffic: &traffic,
            stop: &stop,
        };
        let listener = cell
            .inside(1, || TcpListener::bind("0.0.0.0:5001").unwrap())
            .unwrap();
        let received = &received;
        let stop = &stop;
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length) = stream.read(&mut bytes) {
                if length == 0 {
                    return;
                }
                received.fetch_add(length as u64, RELAXED);
            }
        });
        let stream = cell
            .inside(0, || TcpStream::connect((cell.address(1), 5001)).unwrap())
            .unwrap();
        scope.spawn(move || {
            let mut stream = &stream;
            stream
                .set_write_timeout(Some(Duration::from_millis(100)))
                .unwrap();
            while !stop.load(RELAXED) {
                let _ = stream.write(&[0; 1 << 14]);
            }
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        });
        assert!(received_in(Duration::from_secs(1)) > 30.0, "not held yet");
        // The receiver believes in a port of a tenth.
        let small = CAPACITY_BPS / 10;
        running.smooth(1, small, &[0]);
        running.smooth(0, CAPACITY_BPS, &[1]);
        status(&cell, 0, is_held);
        thread::sleep(Duration::from_secs(1));
        let megabits = received_in(Duration::from_secs(2));
        assert!((1.0..9.5).contains(&megabits), "{megabits} Mbit/s");
        let link = cell.run(0, "ip", &["-details", "link", "show", INTERFACE]);
        assert!(link.unwrap().contains("gso_max_segs 1 "));
    });
}

#[test]
fn a_stopped_and_a_killed_smoother_hold_nothing_after_a_second() {
    let Some(cell) = cell(1) else { return };
    let cell = &cell;
    let before = state_of(cell, 0);
    run(cell, |running| {
        running.smooth(1, 10_000_000, &[0]);
        let mut smoother = child(cell, 0, CAPACITY_BPS, &[1]);
        running.start(REAL_TIME, OTHER);
        status(cell, 0, is_held);
        thread::sleep(Duration::from_secs(1));
        let (_, held) = running.traffic.measure(Duration::from_secs(1));
        assert!(held < 9.0, "{held}");
        signal(&smoother, Signal::STOP);
        thread::sleep(Duration::from_secs(1));
        let (_, stopped) = running.traffic.measure(Duration::from_secs(1));
        assert!(stopped > 15.0, "{stopped} while it is stopped");
        signal(&smoother, Signal::CONT);
        thread::sleep(Duration::from_secs(2));
        let (_, again) = running.traffic.measure(Duration::from_secs(1));
        assert!(again < 9.0, "{again}");
        signal(&smoother, Signal::KILL);
        smoother.wait().unwrap();
        thread::sleep(Duration::from_secs(1));
        let (_, killed) = running.traffic.measure(Duration::from_secs(1));
        assert!(killed > 15.0, "{killed} after it was killed");
    });
    // Its filters are left, and hold nothing. They go with `taut smooth stop`, and with the next start.
    let left = state_of(cell, 0);
    assert!(
        left.contains("taut-count") && left.contains("htb 7a75:"),
        "{left}"
    );
    let done = cell.inside(0, || end(INTERFACE).unwrap()).unwrap();
    assert!(done.done.len() >= 4, "{done:?}");
    assert_eq!(state_of(cell, 0), before);
}

/// A read-only file system, until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn at(path: PathBuf) -> Frozen {
        let frozen = Frozen(path);
        frozen.tell("--freeze");
        frozen
    }

    fn tell(&self, word: &str) {
        let done = Command::new("fsfreeze").arg(word).arg(&self.0).status();
        assert!(done.unwrap().success(), "fsfreeze {word}");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.tell("--unfreeze");
    }
}

#[test]
fn a_sender_whose_disk_stands_still_or_is_full_goes_on_holding_and_reporting() {
    let Some(cell) = cell(1) else { return };
    let files = TemporaryDirectory::make("taut-smoother").unwrap();
    let disk = files.path().join("disk");
    File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&disk).status();
    if !made.is_ok_and(|made| made.success()) || !Path::new("/dev/loop-control").exists() {
        println!("SKIPPED: needs mkfs.ext4 and loop devices");
        return;
    }
    run(&cell, |running| {
        running.smooth(1, 10_000_000, &[0]);
        let mut smoother = child_on_disk(&cell, (0, &disk), CAPACITY_BPS, &[1]);
        running.start(REAL_TIME, OTHER);
        status(&cell, 1, |status| status.nodes[0].takes_part);
        let directory = format!("/proc/{}/root/run/tautline", smoother.id());
        let goes_on = || {
            thread::sleep(Duration::from_secs(3));
            let (_, held) = running.traffic.measure(Duration::from_secs(1));
            assert!(held < 9.0, "{held}");
            let receiver = status(&cell, 1, |_| true);
            assert!(receiver.nodes[0].takes_part, "{receiver:?}");
        };
        let frozen = Frozen::at(directory.clone().into());
        goes_on();
        drop(frozen);
        let filler = Path::new(&directory).join("filler");
        let mut all = File::create(&filler).unwrap();
        let full = io::copy(&mut io::repeat(1), &mut all).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        goes_on();
        std::fs::remove_file(filler).unwrap();
        signal(&smoother, Signal::TERM);
        assert!(smoother.wait().unwrap().success());
    });
}

#[test]
fn a_receiver_that_is_stopped_or_killed_holds_nobody_after_a_second() {
    let Some(cell) = cell(1) else { return };
    run(&cell, |running| {
        let mut receiver = child(&cell, 1, 10_000_000, &[0]);
        running.smooth(0, CAPACITY_BPS, &[1]);
        running.start(REAL_TIME, OTHER);
        status(&cell, 0, is_held);
        signal(&receiver, Signal::STOP);
        thread::sleep(Duration::from_secs(1));
        status(&cell, 0, |status| !is_held(status));
        signal(&receiver, Signal::CONT);
        status(&cell, 0, is_held);
        signal(&receiver, Signal::KILL);
        receiver.wait().unwrap();
        thread::sleep(Duration::from_secs(1));
        let status = status(&cell, 0, |status| !is_held(status));
        assert_eq!(status.nodes[0].held_to_bps, None);
        let (_, free) = running.traffic.measure(Duration::from_secs(1));
        assert!(free > 15.0, "{free}");
    });
    // The killed one has left its journal.
    cell.inside(1, || end(INTERFACE).unwrap()).unwrap();
}

#[test]
fn the_interface_is_as_it_was_after_the_end() {
    let Some(cell) = cell(1) else { return };
    let plain = [0, 1].map(|node| state_of(&cell, node));
    run(&cell, |running| {
        for (node, other) in [(0, 1), (1, 0)] {
            running.smooth(node, CAPACITY_BPS, &[other]);
        }
        status(&cell, 0, is_held);
        let at_root = state_of(&cell, 1);
        assert!(
            at_root.contains("qdisc htb 7a75: dev taut0 root"),
            "{at_root}"
        );
    });
    assert_eq!([0, 1].map(|node| state_of(&cell, node)), plain);
}

#[test]
fn a_sender_alone_keeps_to_the_limit_that_was_set_by_hand() {
    let Some(cell) = cell(1) else { return };
    run(&cell, |running| {
        let mut setup = setup(&cell, CAPACITY_BPS, &[1]);
        setup.nodes[0].limit_bps = Some(5_000_000);
        running.smooth_as(0, setup);
        running.start(REAL_TIME, OTHER);
        status(&cell, 0, is_held);
        thread::sleep(Duration::from_secs(1));
        let (lost, megabits) = running.traffic.measure(Duration::from_secs(2));
        assert!((3.0..5.5).contains(&megabits), "{megabits} Mbit/s");
        assert_eq!(lost, 0.0);
    });
}

#[test]
fn several_transmit_queues_are_held_as_one() {
    let Some(cell) = cell(2) else { return };
    for node in 0..2 {
        command(&cell, node, "ethtool -L taut0 tx 2").unwrap();
    }
    let before = [0, 1].map(|node| state_of(&cell, node));
    run(&cell, |running| {
        running.smooth(2, 10_000_000, &[0, 1]);
        running.start(REAL_TIME / 10.0, OTHER);
        for node in 0..2 {
            running.smooth(node, CAPACITY_BPS, &[2]);
            status(&cell, node, is_held);
        }
        thread::sleep(Duration::from_secs(1));
        let (_, megabits) = running.traffic.measure(Duration::from_secs(2));
        assert!((4.0..10.0).contains(&megabits), "{megabits} Mbit/s");
    });
    assert_eq!([0, 1].map(|node| state_of(&cell, node)), before);
}

#[test]
fn a_filter_of_somebody_else_that_came_meanwhile_stays() {
    let Some(cell) = cell(1) else { return };
    run(&cell, |running| {
        running.smooth(0, CAPACITY_BPS, &[1]);
        status(&cell, 0, |_| true);
        let line = "tc filter add dev taut0 ingress protocol ip pref 7 u32 match ip dport 9 0xffff classid 1:9";
        command(&cell, 0, line).unwrap();
    });
    let left = state_of(&cell, 0);
    assert!(left.contains("clsact") && left.contains("pref 7"), "{left}");
    assert!(!left.contains("taut-count"), "{left}");
}

#[test]
fn a_second_smoother_is_refused_and_off_ends_the_first() {
    let Some(cell) = cell(1) else { return };
    let before = state_of(&cell, 0);
    let mut first = child(&cell, 0, CAPACITY_BPS, &[1]);
    status(&cell, 0, |_| true);
    let second = cell
        .inside(0, || Smoother::begin(setup(&cell, CAPACITY_BPS, &[1])))
        .unwrap();
    let error = second.unwrap_err();
    assert!(matches!(&error, SmootherError::Journal(_)), "{error}");
    let done = cell.inside(0, || end(INTERFACE).unwrap()).unwrap();
    assert!(done.done[0].contains("ended"), "{done:?}");
    assert!(first.wait().unwrap().success());
    assert_eq!(state_of(&cell, 0), before);
    let again = cell.inside(0, || end(INTERFACE).unwrap()).unwrap();
    assert_eq!(again, PutBack::default());
}

#[test]
fn changes_that_cannot_be_put_back_are_an_error_and_stay_noted() {
    let Some(cell) = cell(1) else { return };
    let before = state_of(&cell, 0);
    let begin = || Smoother::begin(setup(&cell, CAPACITY_BPS, &[1])).unwrap();
    let on_thread_of_its_own = |work: &(dyn Fn() + Sync)| {
        thread::scope(|scope| scope.spawn(work).join().unwrap());
    };
    on_thread_of_its_own(&|| {
        cell.enter(0).unwrap();
        let smoother = begin();
        keep_capabilities(CapabilitySet::all().difference(CapabilitySet::NET_ADMIN)).unwrap();
        let refused = smoother.end().unwrap_err();
        let text = refused.to_string();
        for object in [
            "root of interface",
            "filter taut-count",
            "clsact of interface",
        ] {
            assert!(text.contains(object), "{text}");
        }
        assert!(refused.remedy().contains("tc qdisc del"), "{text}");
    });
    assert_ne!(state_of(&cell, 0), before);
    // The next one finds them in the journal.
    on_thread_of_its_own(&|| {
        cell.enter(0).unwrap();
        let smoother = begin();
        assert!(
            smoother.recovered().len() >= 3,
            "{:?}",
            smoother.recovered()
        );
        smoother.end().unwrap();
    });
    assert_eq!(state_of(&cell, 0), before);
}

#[test]
fn a_smoother_in_a_container_is_known_and_ended_by_its_number_here() {
    let Some(cell) = cell(1) else { return };
    let before = state_of(&cell, 0);
    let mut container = child_in_container(&cell, 0, CAPACITY_BPS, &[1]);
    let inside = status(&cell, 0, |_| true).process;
    let directory = runtime_directory().unwrap();
    let (holder, all) = cell
        .inside(0, || {
            let holder = holder(&directory, INTERFACE).unwrap();
            (holder.unwrap(), Status::all(&directory).unwrap())
        })
        .unwrap();
    assert_ne!(holder, inside, "the number here is another");
    assert!(all[0].1, "it lives: {all:?}");
    let numbers = std::fs::read_to_string(format!("/proc/{holder}/status")).unwrap();
    let expected = format!("NSpid:\t{holder}\t{inside}\n");
    assert!(numbers.contains(&expected), "{numbers}");
    let done = cell.inside(0, || end(INTERFACE).unwrap()).unwrap();
    assert_eq!(done.done[0], format!("process {holder} ended"));
    assert!(container.wait().unwrap().success());
    assert_eq!(state_of(&cell, 0), before);
}

#[test]
fn grants_of_a_node_that_is_no_neighbour_do_not_count() {
    let Some(cell) = cell(2) else { return };
    run(&cell, |running| {
        running.smooth(0, CAPACITY_BPS, &[2]);
        running.smooth(1, 1_000_000, &[0]);
        let status = status(&cell, 0, |status| status.strange_messages > 3);
        assert!(!is_held(&status), "{status:?}");
    });
}

#[test]
fn an_interface_that_goes_down_and_is_renamed_is_smoothed_on() {
    let Some(cell) = cell(1) else { return };
    run(&cell, |running| {
        for (node, other) in [(0, 1), (1, 0)] {
            running.smooth(node, CAPACITY_BPS, &[other]);
        }
        status(&cell, 0, is_held);
        for line in [
            "ip link set taut0 down",
            "ip link set taut0 name other0",
            "ip link set other0 up",
        ] {
            command(&cell, 0, line).unwrap();
            thread::sleep(Duration::from_millis(300));
        }
        let seconds = status(&cell, 0, |_| true).seconds;
        status(&cell, 0, |status| {
            status.seconds > seconds + 2 && is_held(status)
        });
    });
    let left = cell.run(0, "tc", &["filter", "show", "dev", "other0", "egress"]);
    assert_eq!(left.unwrap(), "");
}

/// Frames that have come to the interface of the calling thread's namespace. Read without the lock of interfaces.
fn frames_received() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == INTERFACE).then_some(numbers)
    });
    let packets = line.unwrap().split_ascii_whitespace().nth(1);
    packets.unwrap().parse().unwrap()
}

#[test]
fn grants_go_on_while_somebody_holds_the_lock_of_interfaces() {
    let Some(cell) = cell(2) else { return };
    let cpus = allowed_cpus().unwrap();
    if cpus.len() < 2 {
        println!("SKIPPED: needs two CPUs, one of which the kernel keeps for half a second");
        return;
    }
    pin_to_cpu(cpus[1]).unwrap();
    let stop = AtomicBool::new(false);
    let traffic = Traffic::default();
    let ip = |arguments: &[&str], input: String| {
        let mut command = cell.command(1, "ip");
        command.args(arguments).stdin(std::process::Stdio::piped());
        // A kernel without preemption keeps other threads off the CPU on which it removes them.
        pin_command(&mut command, cpus[0]);
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(input.as_bytes()).unwrap();
        drop(pipe);
        assert!(child.wait().unwrap().success());
    };
    // In a namespace that has nothing to do with it. Interfaces of one group go together, and the kernel keeps its lock
    // until all are gone.
    let crowd =
        (0..3000).map(|one| format!("link add a{one} group 7 type veth peer name b{one}\n"));
    ip(&["-batch", "-"], crowd.collect());
    let is_over = AtomicBool::new(false);
    let (cell, is_over) = (&cell, &is_over);
    thread::scope(|scope| {
        let running = Running {
            scope,
            cell,
            traffic: &traffic,
            stop: &stop,
        };
        for (node, other) in [(0, 2), (2, 0)] {
            running.smooth(node, CAPACITY_BPS, &[other]);
        }
        status(cell, 0, is_held);
        // The sending half changes its class all the time, and has to wait.
        running.start(REAL_TIME, OTHER);
        let watch = move || {
            // A thread that waits for the lock spins, and would keep this one from its CPU.
            let _ordinary = set_fifo(20);
            let (mut frames, mut since) = (frames_received(), Instant::now());
            let mut longest = Duration::ZERO;
            while !is_over.load(RELAXED) {
                longest = longest.max(since.elapsed());
                thread::sleep(Duration::from_millis(2));
                let now = frames_received();
                if now != frames {
                    (frames, since) = (now, Instant::now());
                }
            }
            longest
        };
        let watching = scope.spawn(move || cell.inside(0, watch).unwrap());
        let ask = move || {
            let mut route = Route::open().unwrap();
            let mut longest = Duration::ZERO;
            while !is_over.load(RELAXED) {
                let begin = Instant::now();
                let _answered = has_default_queues(&mut route, 1);
                longest = longest.max(begin.elapsed());
                thread::sleep(Duration::from_millis(1));
            }
            longest
        };
        let asking = scope.spawn(move || cell.inside(0, ask).unwrap());
        thread::sleep(Duration::from_millis(200));
        ip(&["link", "del", "group", "7"], String::new());
        is_over.store(true, RELAXED);
        let (longest, lock) = (watching.join().unwrap(), asking.join().unwrap());
        println!("the lock was held for {lock:?}; longest time without a grant: {longest:?}");
        assert!(lock > Duration::from_millis(200), "{lock:?}");
        assert!(longest < lock / 2, "{longest:?}");
        // It held all the time.
        assert!(is_held(&status(cell, 0, |_| true)));
    });
}

#[test]
fn a_link_of_another_speed_is_noticed() {
    let Some(cell) = cell(1) else { return };
    // A veth has one speed; a tap has the one that it is given.
    if command(&cell, 0, "ip tuntap add taut1 mode tap").is_err() {
        println!("SKIPPED: a tap needs /dev/net/tun");
        return;
    }
    command(&cell, 0, "ip link set taut1 up").unwrap();
    command(&cell, 0, "ethtool -s taut1 speed 100 duplex full").unwrap();
    run(&cell, |running| {
        let mut setup = setup(&cell, CAPACITY_BPS, &[1]);
        setup.interface = "taut1".to_owned();
        running.smooth_as(0, setup);
        for (speed, expected) in [(100, CAPACITY_BPS), (10, 10_000_000), (1000, CAPACITY_BPS)] {
            let line = format!("ethtool -s taut1 speed {speed} duplex full");
            command(&cell, 0, &line).unwrap();
            bed::status_of(&cell, 0, "taut1", |status| status.capacity_bps == expected);
        }
    });
}

#[test]
fn what_cannot_be_smoothed_is_refused_with_a_reason() {
    let Some(cell) = cell(1) else { return };
    let before = state_of(&cell, 0);
    let begin = |change: &(dyn Fn(&mut tautline_smoother::Setup) + Sync)| {
        let mut setup = setup(&cell, CAPACITY_BPS, &[1]);
        change(&mut setup);
        cell.inside(0, || Smoother::begin(setup).unwrap_err())
            .unwrap()
    };
    let error = begin(&|setup| setup.interface = "absent0".to_owned());
    assert!(matches!(error, SmootherError::NoInterface(_)), "{error}");
    let error = begin(&|setup| setup.interface = "lo".to_owned());
    assert!(matches!(error, SmootherError::NoEthernet(_)), "{error}");
    for change in [
        |setup: &mut tautline_smoother::Setup| setup.nodes.clear(),
        |setup: &mut tautline_smoother::Setup| setup.nodes.push(setup.nodes[0].clone()),
        |setup: &mut tautline_smoother::Setup| setup.capacity_bps = 5,
    ] {
        let error = begin(&change);
        assert!(matches!(error, SmootherError::Setup(_)), "{error}");
    }
    command(
        &cell,
        0,
        "tc qdisc add dev taut0 root handle 8: pfifo limit 777",
    )
    .unwrap();
    let error = begin(&|_| ());
    assert!(matches!(error, SmootherError::OwnQueue(_)), "{error}");
    command(&cell, 0, "tc qdisc del dev taut0 root").unwrap();
    // A thread without privilege.
    let setup = setup(&cell, CAPACITY_BPS, &[1]);
    let error = cell
        .inside(0, || {
            use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, none).unwrap();
            Smoother::begin(setup).unwrap_err()
        })
        .unwrap();
    let is_refused = matches!(
        error,
        SmootherError::NotPrivileged { .. } | SmootherError::Program(_)
    );
    assert!(is_refused, "{error}");
    assert!(error.remedy().contains("root"), "{}", error.remedy());
    assert_eq!(state_of(&cell, 0), before);
}
