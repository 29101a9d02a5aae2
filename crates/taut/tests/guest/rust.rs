//! A guest in Rust: tasks that the executive's core declares, admits and runs there, and that talk to Linux.

use tautline::config::BusConfig;
use tautline::port::SamplingOptions;
use tautline::{Node, NodeConfig, SamplingPort, Wait, bus_neighbour};

use crate::bed::{Monitor, Running, has_rust_image, in_time, port_number, receive, wait_until};
use crate::bed::{PATIENCE, guest, show};

use crate::common::both;

const SETTINGS: &str = "peers = [\"viewer\"]\nsilence_max = \"20s\"\n\
    [[port]]\nnumber = 10\nreceives = \"nothing\"\nsends = \"sampling\"\nmessage_bytes_max = 64\n\
    [[port]]\nnumber = 11\nmessage_bytes_max = 64\n";

/// State that `control` publishes.
#[derive(Clone, Copy, Debug)]
struct State {
    control_jobs: u32,
    log_jobs: u32,
    orders: u32,
    faults: u32,
}

fn see(viewer: &mut SamplingPort) -> State {
    let mut buffer = [0; 1_484];
    let sample = viewer
        .next_into(&mut buffer, Wait::Until(in_time()))
        .unwrap();
    assert_eq!(sample.expect("control publishes").length, 16);
    let word = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().unwrap());
    State {
        control_jobs: word(0),
        log_jobs: word(4),
        orders: word(8),
        faults: word(12),
    }
}

fn tasks_run_by_the_guests_timer_and_talk_to_linux(monitor: Monitor) {
    if !has_rust_image(monitor, "bindings/guest/rust", "tasks") {
        return;
    }
    let Some(running) = Running::start(monitor, "rust", "tasks", Some(SETTINGS), &[]) else {
        return;
    };
    let config = BusConfig::new(&running.bus, "viewer".parse().unwrap());
    let peer = bus_neighbour(running.name.parse().unwrap());
    let node = Node::open(NodeConfig::vbus(config).with_neighbour(peer).unwrap()).unwrap();
    let mut viewer = node.sampling(port_number(20)).open().unwrap();
    let first = see(&mut viewer);
    wait_until("each task has run", || {
        let state = see(&mut viewer);
        state.control_jobs > first.control_jobs && state.log_jobs > first.log_jobs
    });

    // A task that messages activate, and the same message back, also when several come at once.
    let (_boss, mut port) = running.peer("boss", 2);
    let to = port
        .destination_until(&running.name, port_number(11), in_time())
        .unwrap();
    for round in 0..5_u8 {
        for number in 0..3 {
            let order = [round, number, 7];
            port.send(to, tautline::Priority::NORMAL, &order).unwrap();
        }
        for number in 0..3 {
            let answer = receive(&mut port, PATIENCE);
            assert_eq!(answer.as_deref(), Some(&[round, number, 7][..]));
        }
    }
    wait_until("control has seen them", || see(&mut viewer).orders == 15);

    // Its next job computes until the least urgent task has had its turn: it is preempted for having used up its
    // budget, and goes on below.
    let before = see(&mut viewer);
    port.send(to, tautline::Priority::HIGHEST, b"beyond")
        .unwrap();
    assert_eq!(
        receive(&mut port, PATIENCE).as_deref(),
        Some(&b"beyond"[..])
    );
    wait_until("control goes on, and the fault is on record", || {
        let state = see(&mut viewer);
        state.faults > before.faults
            && state.log_jobs > before.log_jobs
            && state.control_jobs > before.control_jobs + 1
    });
    let output = running.stop();
    assert!(output.status.success(), "{}", both(&output));
}

fn a_window_that_lacks_a_port_is_told(monitor: Monitor) {
    if !has_rust_image(monitor, "bindings/guest/rust", "tasks") {
        return;
    }
    let without = "peers = [\"viewer\"]\n[[port]]\nnumber = 11\n";
    let Some(mut running) = Running::begin(monitor, "rust-port", "tasks", Some(without), &[])
    else {
        return;
    };
    let output = running.output();
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    let console = running.console();
    assert!(console.contains("Linux lists no port 10"), "{console}");
    assert!(!guest(&["show", &running.name]).status.success());
}

/// The flight controller, beside a world that tells it nothing: it commands motors all the same, and tells its state.
fn the_flight_controller_speaks_with_its_world(monitor: Monitor) {
    if !has_rust_image(monitor, "show/guest", "flight") {
        return;
    }
    let ports = [1, 2, 9, 13, 14]
        .map(|number| {
            format!("[[port]]\nnumber = {number}\nreceives = \"sampling\"\nsends = \"nothing\"\n")
        })
        .into_iter()
        .chain([103, 108, 111, 115].map(|number| {
            format!("[[port]]\nnumber = {number}\nreceives = \"nothing\"\nsends = \"sampling\"\n")
        }))
        .collect::<String>();
    let settings = format!("peers = [\"world\", \"video\", \"keeper\"]\n{ports}");
    let running = Running::begin(monitor, "flight", "flight", Some(&settings), &[]);
    let Some(running) = running else {
        return;
    };
    let monitor_of = || Some(show(&running.name)?["monitor"].as_str()?.to_owned());
    wait_until("the guest has a monitor", || {
        monitor_of().is_some_and(|name| !name.is_empty())
    });
    if monitor_of().is_some_and(|name| name.contains("emulated by the host's kernel")) {
        println!(
            "SKIPPED: the host's kernel emulates the processor, which is too slow for a loop of 1 kHz"
        );
        return;
    }
    running.wait_open();
    let config = BusConfig::new(&running.bus, "world".parse().unwrap());
    let peer = bus_neighbour(running.name.parse().unwrap());
    let node = Node::open(NodeConfig::vbus(config).with_neighbour(peer).unwrap()).unwrap();
    let options = SamplingOptions::default();
    let mut motors = node
        .sampling(port_number(3))
        .options(&options)
        .open()
        .unwrap();
    let mut status = node
        .sampling(port_number(8))
        .options(&options)
        .open()
        .unwrap();
    let mut buffer = [0; 1_484];
    // The first field of each command is its count.
    let first = newest(&mut motors, &mut buffer);
    wait_until("the motors are commanded again and again", || {
        newest(&mut motors, &mut buffer) != first
    });
    newest(&mut status, &mut buffer);
    assert!(running.stop().status.success());
}

/// Length and first bytes of the next value.
fn newest(port: &mut SamplingPort, buffer: &mut [u8]) -> (usize, [u8; 8]) {
    let sample = port.next_into(buffer, Wait::Until(in_time())).unwrap();
    let length = sample.expect("the guest publishes").length;
    (length, buffer[..8].try_into().unwrap())
}

for_each_monitor!(
    the_flight_controller_speaks_with_its_world,
    tasks_run_by_the_guests_timer_and_talk_to_linux,
    a_window_that_lacks_a_port_is_told,
);
