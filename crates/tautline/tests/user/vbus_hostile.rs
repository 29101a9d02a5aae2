//! A process on the bus that keeps no rule: it writes random bytes over everything that it may write, as a sender, as a
//! publisher for many and as a reader, and tries to write the memory of others. A process that is connected to it never
//! reads outside, never loops for ever, says so, and goes on.
#![allow(unsafe_code)] // Writes over mappings that the library has made, and asks the kernel for more.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

use crate::common::hostile::{own_memories, write_anywhere};
use crate::common::{PATIENCE, bus, child, port};
use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::SeedableRng;
use tautline::address::Address;
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{
    Destination, Node, NodeConfig, Priority, QueuingPort, SamplingPort, SendError, Source, Wait,
    bus_neighbour, now,
};

const BYTES_MAX: usize = 200;
const DEPTH: u32 = 8;
/// Ports of each node that publish, and those that send, receive and follow.
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
        depth: DEPTH,
        message_bytes_max: BYTES_MAX,
        ..QueuingOptions::default()
    };
    let sampling = SamplingOptions {
        value_bytes_max: BYTES_MAX,
        // A sender and a publisher each of the honest and of the hostile node.
        sources: 4,
        ..SamplingOptions::default()
    };
    let queue = node.queuing(port(queue)).options(&queuing).open();
    let value = node.sampling(port(value)).options(&sampling).open();
    (queue.unwrap(), value.unwrap())
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

/// Sends, publishes and follows as everybody does, and then writes over all that others read of it.
fn scribble(bus: &str, seed: u64) -> ! {
    let node = open(bus, "hostile");
    let mut published = Published::open(&node);
    let (mut queue, mut value) = ports(&node, QUEUE, VALUE);
    let to = queue.destination("victim", port(QUEUE)).unwrap();
    queue.send(to, Priority::NORMAL, b"hello").unwrap();
    let to = value.destination("victim", port(VALUE)).unwrap();
    value.send(to, Priority::NORMAL, b"hello").unwrap();
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
    assert!(memories.len() >= 8, "{memories:?}");
    loop {
        write_anywhere(&mut random, &memories, BYTES_MAX);
    }
}

/// Sends and publishes numbers as one should.
fn behave(bus: &str) -> ! {
    let node = open(bus, "honest");
    let mut published = Published::open(&node);
    let (mut queue, mut value) = ports(&node, QUEUE, VALUE);
    let to_queue = queue.destination("victim", port(QUEUE)).unwrap();
    let to_value = value.destination("victim", port(VALUE)).unwrap();
    println!("{}", child::READY);
    for number in 1_u64.. {
        let bytes = number.to_ne_bytes();
        value.send(to_value, Priority::NORMAL, &bytes).unwrap();
        published.publish(Priority::NORMAL, number);
        while queue.send(to_queue, Priority::NORMAL, &bytes) == Err(SendError::ReceiverFull) {
            std::thread::yield_now();
        }
    }
    unreachable!()
}

/// The victim's receiving ports, and the last numbers of the honest node there: what it sent to them alone, and what it
/// published.
struct Victim {
    queue: QueuingPort,
    value: SamplingPort,
    messages: [u64; 2],
    values: [u64; 2],
}

impl Victim {
    /// Takes what there is, in each of the ways there are.
    fn take(&mut self) {
        let mut buffer = [0; BYTES_MAX];
        if let Some(message) = self.queue.receive_into(&mut buffer, Wait::Poll).unwrap() {
            note_message(
                &mut self.messages,
                message.source,
                &buffer[..message.length],
            );
        }
        if let Some(message) = self.queue.receive_in_place(Wait::Poll).unwrap() {
            let length = message.bytes().copy_out(0, &mut buffer);
            note_message(&mut self.messages, message.source, &buffer[..length]);
        }
        for _ in 0..3 {
            if let Some(value) = self.value.next(Wait::Poll).unwrap() {
                note_value(&mut self.values, value.source(), &value);
            }
        }
        if let Some(sample) = self.value.read_into(&mut buffer).unwrap() {
            note_value(&mut self.values, sample.source, &buffer[..sample.length]);
        }
    }
}

/// The number in bytes of the honest node, and whether it published them.
fn of_honest(source: Source, bytes: &[u8]) -> Option<(u64, usize)> {
    let is_honest = source.address == Address::Bus("honest".parse().unwrap());
    let number = || u64::from_ne_bytes(bytes.try_into().expect("whole"));
    is_honest.then(|| (number(), usize::from(source.port.get() < QUEUE)))
}

fn note_message(last: &mut [u64; 2], source: Source, bytes: &[u8]) {
    if let Some((number, is_published)) = of_honest(source, bytes) {
        let last = &mut last[is_published];
        // A reader may be lapped; a receiver gets each once.
        let is_next = number == *last + 1 || is_published == 1 && number > *last;
        assert!(is_next, "{number} after {last}");
        *last = number;
    }
}

fn note_value(last: &mut [u64; 2], source: Source, bytes: &[u8]) {
    if let Some((number, is_published)) = of_honest(source, bytes) {
        let last = &mut last[is_published];
        assert!(number >= *last, "back from {last} to {number}");
        *last = number;
    }
}

#[test]
fn a_hostile_peer_harms_itself_alone() {
    const TEST: &str = "a_hostile_peer_harms_itself_alone";
    if let Some(role) = child::role() {
        let (what, bus) = role.split_once(':').unwrap();
        match what {
            "honest" => behave(bus),
            seed => scribble(bus, seed.parse().unwrap()),
        }
    }
    let path = bus("hostile").name;
    let node = open(&path, "victim");
    let mut published = Published::open(&node);
    let (queue, value) = ports(&node, QUEUE, VALUE);
    let other = open(&path, "bystander");
    let (mut beside, _values) = ports(&other, QUEUE, VALUE);
    beside.follow("victim", port(EVENTS)).unwrap();
    let honest = child::Helper::start(TEST, &format!("honest:{path}"));
    let mut victim = Victim {
        queue,
        value,
        messages: [0; 2],
        values: [0; 2],
    };
    victim.queue.follow("honest", port(EVENTS)).unwrap();
    victim.value.follow("honest", port(STATE)).unwrap();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut buffer = [0; BYTES_MAX];
    let (mut number, mut void, mut answers) = (0_u64, 0, [0_u64; 2]);
    for life in 0..3 {
        let mut hostile = child::Helper::start(TEST, &format!("{}:{path}", seed + life));
        let to_queue = victim.queue.destination("hostile", port(QUEUE)).unwrap();
        let to_value = victim.value.destination("hostile", port(VALUE)).unwrap();
        victim.queue.follow("hostile", port(EVENTS)).unwrap();
        victim.value.follow("hostile", port(STATE)).unwrap();
        hostile.wait_for(REFUSED);
        let started = Clock::now();
        let before = (victim.messages, victim.values);
        let mut rounds = 0_u32;
        while started.elapsed() < Duration::from_millis(1500) {
            rounds += 1;
            victim.take();
            let priority = Priority::ALL[(rounds % 8) as usize];
            // To it: each send ends, whatever its memory says of room, sleep and pair.
            let sent = victim.queue.send(to_queue, priority, b"to you");
            answers[usize::from(sent.is_ok())] += 1;
            let _any = victim.value.send(to_value, Priority::NORMAL, b"to you");
            // Each of this one's messages reaches the others, whatever the hostile reader says of itself.
            number += 1;
            published.publish(priority, number);
            let soon = now() + PATIENCE;
            let message = beside.receive_into(&mut buffer, Wait::Until(soon)).unwrap();
            let length = message.expect("it is there").length;
            assert_eq!(buffer[..length], number.to_ne_bytes());
            if rounds.is_multiple_of(500) {
                // A sleep among such peers ends, too, and so does a look at the figures.
                let soon = now() + Duration::from_micros(200);
                let slept = victim.queue.receive_into(&mut buffer, Wait::Until(soon));
                if let Some(message) = slept.unwrap() {
                    let bytes = &buffer[..message.length];
                    note_message(&mut victim.messages, message.source, bytes);
                }
                assert_eq!(node.status().ports.len(), 4);
            }
        }
        let is_heard =
            |last: [u64; 2], before: [u64; 2]| last[0] > before[0] && last[1] > before[1];
        assert!(
            is_heard(victim.messages, before.0) && is_heard(victim.values, before.1),
            "the honest one is heard: {before:?}"
        );
        let ports = node.status().ports;
        void += ports.iter().map(|port| port.void).sum::<u64>();
        hostile.kill();
        let started = Clock::now();
        // The honest one sends and publishes; the bystander reads.
        while node.status().ports.iter().any(|port| {
            let readers = port.readers.as_ref().map_or(0, Vec::len);
            port.peers.len() > 2 || readers > 1
        }) {
            assert!(started.elapsed() < PATIENCE, "its death is not seen");
            victim.take();
        }
    }
    assert_eq!(beside.overwritten(), 0);
    println!(
        "{:?} and {:?} of the honest one; {number} published; {void} skipped; of {} sends to the hostile one {} were \
         taken on",
        victim.messages,
        victim.values,
        answers[0] + answers[1],
        answers[1]
    );
    assert!(void > 0, "what makes no sense is counted");
    drop(honest);
}

/// Bytes of a message whose length no other word of the memories has.
const MARKED_BYTES: usize = 137;

/// Fills its rings, all classes but the lowest, and then makes nonsense of every message.
fn send_nonsense(bus: &str) -> ! {
    let node = open(bus, "hostile");
    let (mut queue, _values) = ports(&node, QUEUE, VALUE);
    let to = queue.destination("victim", port(QUEUE)).unwrap();
    let mut sent = 0;
    for priority in &Priority::ALL[1..] {
        for _ in 0..DEPTH {
            queue.send(to, *priority, &[0; MARKED_BYTES]).unwrap();
            sent += 1;
        }
    }
    let mut spoilt = 0;
    for (start, bytes) in own_memories() {
        for place in (start..start + bytes).step_by(4) {
            let word = place as *mut u32;
            // SAFETY: within a writable mapping of this process, aligned to four bytes, as in `scribble`.
            if unsafe { word.read_volatile() } == MARKED_BYTES as u32 {
                // SAFETY: the same.
                unsafe { word.write_volatile(u32::MAX) };
                spoilt += 1;
            }
        }
    }
    assert!(spoilt >= sent, "{spoilt} of {sent} messages found");
    println!("{}", child::READY);
    loop {
        std::thread::park();
    }
}

#[test]
fn nonsense_before_a_message_does_not_hide_it_from_who_waits() {
    const TEST: &str = "nonsense_before_a_message_does_not_hide_it_from_who_waits";
    if let Some(bus) = child::role() {
        send_nonsense(&bus);
    }
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let path = bus("nonsense").name;
    let node = open(&path, "victim");
    let (mut queue, _values) = ports(&node, QUEUE, VALUE);
    let other = open(&path, "honest");
    let (mut honest, _values) = ports(&other, QUEUE, VALUE);
    let to = honest.destination("victim", port(QUEUE)).unwrap();
    let hostile = child::Helper::start(TEST, &path);
    honest.send(to, Priority::ALL[0], b"last of all").unwrap();

    // Everything was sent before this port began to wait, so no sender will wake it.
    queue.descriptor().unwrap();
    let mut buffer = [0; BYTES_MAX];
    let limit = Timespec::try_from(PATIENCE).unwrap();
    let mut looks = 1;
    let message = loop {
        if let Some(message) = queue.receive_into(&mut buffer, Wait::Poll).unwrap() {
            break message;
        }
        let descriptor = queue.descriptor().unwrap();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        let woken = poll(&mut polled, Some(&limit)).unwrap();
        assert_eq!(woken, 1, "asleep after {looks} looks, with a message there");
        looks += 1;
    };
    assert!(looks > 1, "one look must not be enough");
    assert_eq!(&buffer[..message.length], b"last of all");
    drop(hostile);
}
