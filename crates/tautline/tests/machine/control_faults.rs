//! Clients that send rubbish, hang half-way, die in a loop or stop: the control process loses nothing over them, and
//! their neighbours notice nothing.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::common::child;
use crate::common::control::{
    NOBODY, allow, answers, client_node, echo_for_ever, eventually, ports_given, program_of_demux,
    start_client, start_control,
};
use crate::common::stranger::{self, hello, request};
use crate::common::{Give, PATIENCE, Take, XDP, begin, open, port};
use aya::maps::{ArrayOfMaps, Map, MapData};
use nix::sys::signal::Signal;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rustix::net::RecvFlags;
use tautline::{Priority, Wait};
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::{fork, signal_process, wait_for};

/// Objects that a control process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    mappings_of_bpf: usize,
    maps_in_demux: usize,
}

impl Holdings {
    fn of(hosts: &Hosts, pid: u32) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let mappings = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        Self {
            descriptors: descriptors.count(),
            mappings_of_bpf: mappings.matches("bpf").count(),
            maps_in_demux: maps_in_demux(hosts),
        }
    }
}

/// Resident memory, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

/// Ports and doorbells that the second host's demux holds. Maps live there, in a descriptor or in a mapping; there is
/// no other place.
fn maps_in_demux(hosts: &Hosts) -> usize {
    let program = program_of_demux(hosts).unwrap();
    let ids = program.map_ids().unwrap().unwrap();
    let of_maps = ids.into_iter().filter_map(|id| {
        match Map::from_map_data(MapData::from_id(id).unwrap()).unwrap() {
            Map::ArrayOfMaps(maps) => Some(maps),
            _ => None,
        }
    });
    let held = of_maps.map(|maps| {
        let maps: ArrayOfMaps<_, MapData> = Map::ArrayOfMaps(maps).try_into().unwrap();
        (0..maps.len())
            .filter(|index| maps.get(index, 0).is_ok())
            .count()
    });
    held.sum()
}

/// A connection to the control process of the second host.
fn connect(hosts: &Hosts) -> OwnedFd {
    let connect = || stranger::connect(&stranger::control_socket("taut0"));
    hosts.inside(Host::B, connect).unwrap()
}

/// Sends a message with descriptors; whether the kernel took it.
fn send(socket: &OwnedFd, message: &[u8], descriptors: usize) -> bool {
    let null = fs::File::open("/dev/null").unwrap();
    stranger::send(socket, message, &vec![null.as_fd(); descriptors])
}

/// Waits until the other end has closed, whatever it says before.
fn is_closed(socket: &OwnedFd) {
    let mut buffer = [0u8; 400];
    for _ in 0..10 {
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, 1..)) => {}
            // A reset: it closed without having read all.
            Ok((_, 0)) | Err(_) => return,
        }
    }
    panic!("it goes on talking");
}

fn is_answered(socket: &OwnedFd) -> bool {
    let mut buffer = [0u8; 400];
    matches!(
        rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()),
        Ok((_, 1..))
    )
}

#[test]
fn rubbish_silence_and_deaf_ears_cost_nothing() {
    const TEST: &str = "rubbish_silence_and_deaf_ears_cost_nothing";
    let client = |_: &str| {
        echo_for_ever(&client_node(NOBODY).unwrap(), 60);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("60", ""));
    let _neighbour = start_client(&hosts, TEST, "");
    let node = open(&hosts, Host::A, XDP);
    let before = Holdings::of(&hosts, control.pid());
    let seed = 20_261_121;
    println!("seed {seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for round in 0..200 {
        let socket = connect(&hosts);
        let length = (random.next_u32() % 400) as usize;
        let mut message = vec![0; length];
        random.fill_bytes(&mut message);
        if round % 2 == 0 {
            // Begins well.
            let known = hello();
            let good = (random.next_u32() as usize % known.len()).min(length);
            message[..good].copy_from_slice(&known[..good]);
        }
        // A message of no bytes is the end of a connection; so is the end of this one.
        let descriptors = random.next_u32() as usize % 100;
        if length > 0 && send(&socket, &message, descriptors) {
            is_closed(&socket);
        }
    }
    // The greeting that these are made of is a good one: its connection goes on.
    let greeted = connect(&hosts);
    for _ in 0..2 {
        assert!(send(&greeted, &hello(), 0));
        assert!(is_answered(&greeted), "is it of the present version?");
    }
    drop(greeted);
    // Half a request, another version, a port before the greeting.
    let mut other_version = hello();
    other_version[4] ^= 1;
    let ungreeted = request(&[1, 2, b'6', b'0', 0, 64]);
    for message in [&hello()[..9], &other_version, &ungreeted] {
        let socket = connect(&hosts);
        assert!(send(&socket, message, 0));
        is_closed(&socket);
    }
    assert!(answers(&hosts, &node, 60));
    // Asks and asks, and reads nothing.
    let deaf = connect(&hosts);
    assert!(
        (0..100_000).any(|_| !send(&deaf, &hello(), 0)),
        "it is heard for ever"
    );
    // Says nothing.
    let silent: Vec<OwnedFd> = (0..100).map(|_| connect(&hosts)).collect();
    assert!(answers(&hosts, &node, 60));
    drop((deaf, silent));
    eventually("everything is given back", || {
        Holdings::of(&hosts, control.pid()) == before
    });
    assert!(answers(&hosts, &node, 60));
}

/// Opens and dies, in another state each time.
fn die(round: u32) {
    let node = tautline::Node::open(config()).unwrap();
    match round % 4 {
        0 => {}
        1 => drop(node.queuing(port(61)).open()),
        2 => std::mem::forget(node.queuing(port(62)).open()),
        // Killed from outside, at whatever it is doing.
        _ => loop {
            let _port = node.queuing(port(63)).open();
        },
    }
    std::mem::forget(node);
}

fn config() -> tautline::NodeConfig {
    tautline::NodeConfig::on("taut0").with_link(tautline::LinkKind::Xdp)
}

#[test]
fn a_thousand_deaths_leave_nothing_behind() {
    const TEST: &str = "a_thousand_deaths_leave_nothing_behind";
    let client = |role: &str| {
        if role == "echo" {
            return echo_for_ever(&client_node(NOBODY).unwrap(), 60);
        }
        // The node is not used: it is what makes this process a client's.
        drop(client_node(NOBODY).unwrap());
        for round in 0..1000 {
            let child = fork(|| die(round)).unwrap();
            if round % 4 == 3 {
                std::thread::sleep(Duration::from_micros(u64::from(round) * 7));
                signal_process(child, rustix::process::Signal::KILL);
            }
            wait_for(child);
        }
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let control = start_control(&hosts, TEST, &allow("\"60-69\"", ""));
    let _neighbour = start_client(&hosts, TEST, "echo");
    let node = open(&hosts, Host::A, XDP);
    let before = Holdings::of(&hosts, control.pid());
    let resident_before = resident_kib(control.pid());
    hosts.inside(Host::B, || child::run(TEST, "dying")).unwrap();
    eventually("everything is given back", || {
        Holdings::of(&hosts, control.pid()) == before
    });
    assert_eq!(ports_given(&hosts), [60]);
    // Each port's memory is 780 KiB, so that a single one that stays is seen.
    let grown = resident_kib(control.pid()).saturating_sub(resident_before);
    assert!(grown < 700, "{grown} KiB more are resident");
    assert!(answers(&hosts, &node, 60));
}

#[test]
fn a_stopped_reader_fills_its_own_queue_and_nobody_elses() {
    const TEST: &str = "a_stopped_reader_fills_its_own_queue_and_nobody_elses";
    const MESSAGES: usize = 2_000;
    let client = |role: &str| {
        let node = client_node(NOBODY).unwrap();
        if role == "echo" {
            return echo_for_ever(&node, 61);
        }
        let mut port = node.queuing(port(60)).open().unwrap();
        println!("{}", child::READY);
        let (mut buffer, mut received) = ([0; 1484], Vec::new());
        while received.last() != Some(&u32::MAX) {
            let message = port.take_into(&mut buffer);
            assert_eq!(message.length, 4);
            received.push(u32::from_ne_bytes(buffer[..4].try_into().unwrap()));
        }
        received.pop();
        let kept: Vec<u32> = (0..received.len() as u32).collect();
        println!("got {} in order: {}", received.len(), received == kept);
        child::ready();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let _control = start_control(&hosts, TEST, &allow("60, 61", ""));
    let mut reader = start_client(&hosts, TEST, "reader");
    let _neighbour = start_client(&hosts, TEST, "echo");
    let node = open(&hosts, Host::A, XDP);
    reader.signal(Signal::SIGSTOP);
    let mut sender = hosts
        .inside(Host::A, || node.queuing(port(59)).open().unwrap())
        .unwrap();
    let to = sender.destination("peer", port(60)).unwrap();
    let to_neighbour = sender.destination("peer", port(61)).unwrap();
    let mut buffer = [0; 1484];
    for number in 0..MESSAGES as u32 {
        let message = number.to_ne_bytes();
        sender.give(to, Priority::HIGHEST, &message);
        sender.give(to_neighbour, Priority::LOWEST, &message);
        let answer = sender.receive_into(&mut buffer, Wait::Until(tautline::now() + PATIENCE));
        assert_eq!(answer.unwrap().expect("the neighbour answers").length, 4);
        assert_eq!(buffer[..4], message);
    }
    reader.signal(Signal::SIGCONT);
    // Into a class of its own, which is empty.
    let end = u32::MAX.to_ne_bytes();
    sender.give(to, Priority::LOWEST, &end);
    assert_eq!(reader.wait_for("got ").trim(), "got 64 in order: true");
}
