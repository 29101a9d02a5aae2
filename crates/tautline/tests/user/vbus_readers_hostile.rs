//! Peers that keep no rule where one port publishes for many: a publisher that writes random words over what it
//! publishes, and a reader that does so over its own memory and tries to write that of the publisher. They harm
//! themselves alone.
#![allow(unsafe_code)] // Asks the kernel for write permission to mappings that the library has made.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

use crate::common::hostile::{own_memories, write_anywhere};
use crate::common::{PATIENCE, Take, bus, child, port};
use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::SeedableRng;
use tautline::address::Address;
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{
    Destination, Node, NodeConfig, Priority, QueuingPort, SamplingPort, Wait, bus_neighbour, now,
};

const BYTES_MAX: usize = 200;
/// Ports of each node that publish, and those that follow.
const EVENTS: u16 = 31;
const STATE: u16 = 32;
const QUEUE: u16 = 41;
const VALUE: u16 = 42;
/// Line of a hostile child whose attempts to write others' memories have all failed.
const REFUSED: &str = "all attempts are refused";

fn open(bus: &str, name: &str) -> Node {
    let mut config = NodeConfig::vbus(BusConfig::new(bus, name.parse().unwrap()));
    for other in ["victim", "hostile", "honest", "bystander"] {
        let neighbour = bus_neighbour(other.parse().unwrap());
        config = config.with_neighbour(neighbour).unwrap();
    }
    Node::open(config).unwrap()
}

fn ports(node: &Node, queue: u16, value: u16) -> (QueuingPort, SamplingPort) {
    let queuing = QueuingOptions {
        depth: 8,
        message_bytes_max: BYTES_MAX,
        ..QueuingOptions::default()
    };
    let sampling = SamplingOptions {
        value_bytes_max: BYTES_MAX,
        sources: 3,
        ..SamplingOptions::default()
    };
    let queue = node.queuing(port(queue)).options(&queuing).open().unwrap();
    (
        queue,
        node.sampling(port(value))
            .options(&sampling)
            .open()
            .unwrap(),
    )
}

/// Ports by which a node publishes.
struct Published {
    events: QueuingPort,
    state: SamplingPort,
    to: [Destination; 2],
}

impl Published {
    fn open(node: &Node) -> Self {
        let (mut events, mut state) = ports(node, EVENTS, STATE);
        let to = [events.readers().unwrap(), state.readers().unwrap()];
        Self { events, state, to }
    }

    fn publish(&mut self, priority: Priority, number: u64) {
        let bytes = number.to_ne_bytes();
        self.events.send(self.to[0], priority, &bytes).unwrap();
        self.state.send(self.to[1], priority, &bytes).unwrap();
    }
}

/// Nothing that another process has written can be mapped, made or written to be ours.
fn try_to_write() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let peers = maps
        .lines()
        .filter(|line| line.contains("taut-vbus") && line.contains(" r--s "));
    let mut tried = 0;
    for line in peers {
        let range = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [range.0, range.1].map(|text| usize::from_str_radix(text, 16).unwrap());
        // SAFETY: a whole mapping of this process; the kernel is to refuse, and a program that had it writable would
        // still not write there.
        let result = unsafe {
            libc::mprotect(
                start as *mut libc::c_void,
                end - start,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        assert_eq!(result, -1, "{line} has become writable");
        tried += 1;
    }
    assert!(tried >= 4, "the publishers' and the readers': {maps}");
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let target = std::fs::read_link(&path).unwrap_or_default();
        if !target.to_string_lossy().contains("taut-vbus") {
            continue;
        }
        let Ok(file) = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
        else {
            continue;
        };
        // SAFETY: no bytes are written where the kernel refuses, and one where it does not, which fails the test.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), c"x".as_ptr().cast(), 1, 0) };
        assert_eq!(written, -1, "{target:?} was written");
        // SAFETY: a new mapping, which is not used.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_eq!(mapped, libc::MAP_FAILED, "{target:?} was mapped writable");
    }
}

/// Publishes and follows as everybody does, and then writes over all that others read of it.
fn scribble(bus: &str, seed: u64) -> ! {
    let node = open(bus, "hostile");
    let mut published = Published::open(&node);
    let (mut queue, mut value) = ports(&node, QUEUE, VALUE);
    queue.follow("victim", port(EVENTS)).unwrap();
    value.follow("victim", port(STATE)).unwrap();
    for number in 0..20 {
        published.publish(Priority::NORMAL, number);
    }
    println!("{}", child::READY);
    // Those that follow this node have to come first.
    let started = Clock::now();
    while node
        .status()
        .ports
        .iter()
        .any(|port| port.readers == Some(Vec::new()))
    {
        assert!(started.elapsed() < PATIENCE, "nobody follows");
        std::thread::sleep(Duration::from_millis(1));
    }
    try_to_write();
    println!("{REFUSED}");
    let mut random = Random::seed_from_u64(seed);
    let memories = own_memories();
    assert!(memories.len() >= 6, "{memories:?}");
    loop {
        write_anywhere(&mut random, &memories, BYTES_MAX);
    }
}

/// Publishes numbers as one should.
fn behave(bus: &str) -> ! {
    let node = open(bus, "honest");
    let mut published = Published::open(&node);
    println!("{}", child::READY);
    for number in 0_u64.. {
        published.publish(Priority::NORMAL, number);
        std::thread::yield_now();
    }
    unreachable!()
}

/// Numbers of the honest publisher that one port has seen.
#[derive(Default)]
struct Seen {
    last: Option<u64>,
    count: u64,
}

impl Seen {
    fn note(&mut self, from: Address, bytes: &[u8], what: &str) {
        if from != Address::Bus("honest".parse().unwrap()) {
            return;
        }
        let number = u64::from_ne_bytes(bytes.try_into().expect(what));
        assert!(self.last < Some(number), "{what}: back to {number}");
        self.last = Some(number);
        self.count += 1;
    }
}

#[test]
fn a_hostile_publisher_and_reader_harms_itself_alone() {
    const TEST: &str = "a_hostile_publisher_and_reader_harms_itself_alone";
    if let Some(role) = child::role() {
        let (what, bus) = role.split_once(':').unwrap();
        match what {
            "honest" => behave(bus),
            seed => scribble(bus, seed.parse().unwrap()),
        }
    }
    let path = bus("readers-hostile").name;
    let node = open(&path, "victim");
    let mut published = Published::open(&node);
    let (mut queue, mut value) = ports(&node, QUEUE, VALUE);
    let other = open(&path, "bystander");
    let (mut beside, _values) = ports(&other, QUEUE, VALUE);
    beside.follow("victim", port(EVENTS)).unwrap();
    let honest = child::Helper::start(TEST, &format!("honest:{path}"));
    queue.follow("honest", port(EVENTS)).unwrap();
    value.follow("honest", port(STATE)).unwrap();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut buffer = [0; BYTES_MAX];
    let (mut messages, mut values) = (Seen::default(), Seen::default());
    let mut number = 0_u64;
    let mut void = 0;
    for life in 0..3 {
        let mut hostile = child::Helper::start(TEST, &format!("{}:{path}", seed + life));
        queue.follow("hostile", port(EVENTS)).unwrap();
        value.follow("hostile", port(STATE)).unwrap();
        hostile.wait_for(REFUSED);
        let started = Clock::now();
        let before = [messages.count, values.count];
        let mut rounds = 0_u32;
        while started.elapsed() < Duration::from_millis(1200) {
            rounds += 1;
            if let Some(message) = queue.receive_into(&mut buffer, Wait::Poll).unwrap() {
                let bytes = &buffer[..message.length];
                messages.note(message.source.address, bytes, "a message");
            }
            if let Some(message) = queue.receive_in_place(Wait::Poll).unwrap() {
                let bytes = message.bytes().slice().expect("a copy").to_vec();
                assert!(bytes.len() <= BYTES_MAX);
                messages.note(message.source.address, &bytes, "a lent message");
            }
            for _ in 0..3 {
                if let Some(value) = value.next(Wait::Poll).unwrap() {
                    values.note(value.source().address, &value, "a value");
                }
            }
            // Each of this one's messages reaches the others, whatever the hostile reader says of itself.
            number += 1;
            published.publish(Priority::ALL[(rounds % 8) as usize], number);
            let message = beside.take_into(&mut buffer);
            let length = message.length;
            assert_eq!(buffer[..length], number.to_ne_bytes());
            if rounds.is_multiple_of(500) {
                // A sleep among such peers ends, too, and so does a look at the figures.
                let soon = now() + Duration::from_micros(200);
                if let Some(message) = queue.receive_into(&mut buffer, Wait::Until(soon)).unwrap() {
                    let bytes = &buffer[..message.length];
                    messages.note(message.source.address, bytes, "a message");
                }
                assert_eq!(node.status().ports.len(), 4);
            }
        }
        assert!(
            messages.count > before[0] && values.count > before[1],
            "the honest one is heard"
        );
        void += node
            .status()
            .ports
            .iter()
            .map(|port| port.void)
            .sum::<u64>();
        hostile.kill();
        let started = Clock::now();
        let mut readers = usize::MAX;
        while readers > 1 {
            assert!(started.elapsed() < PATIENCE, "its death is not seen");
            let ports = node.status().ports;
            readers = ports
                .iter()
                .filter_map(|port| port.readers.as_ref())
                .map(Vec::len)
                .max()
                .unwrap();
        }
    }
    assert_eq!(beside.overwritten(), 0);
    let counts = (messages.count, values.count, number);
    println!("{counts:?} messages, values and publications; {void} skipped");
    assert!(void > 0, "what makes no sense is counted");
    drop(honest);
}
