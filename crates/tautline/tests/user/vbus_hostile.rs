//! A process on the bus that keeps no rule: it writes random bytes over everything that it may write. A process that
//! is connected to it never reads outside, never loops for ever, says so, and goes on.
#![allow(unsafe_code)] // Writes over mappings that the library has made.

use std::time::{Duration, Instant as Clock};

use crate::common::hostile::{own_memories, write_anywhere};
use crate::common::{PATIENCE, bus, child, port};
use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::SeedableRng;
use tautline::address::Address;
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{Node, NodeConfig, Priority, SendError, Wait, bus_neighbour};

const BUS: &str = "TAUTLINE_TEST_BUS";
const BYTES_MAX: usize = 200;

fn queuing() -> QueuingOptions {
    QueuingOptions {
        depth: 8,
        message_bytes_max: BYTES_MAX,
        ..QueuingOptions::default()
    }
}

fn sampling() -> SamplingOptions {
    SamplingOptions {
        value_bytes_max: BYTES_MAX,
        sources: 3,
        ..SamplingOptions::default()
    }
}

fn open(bus: &str, name: &str, others: [&str; 2]) -> Node {
    let mut config = NodeConfig::vbus(BusConfig::new(bus, name.parse().unwrap()));
    for other in others {
        let neighbour = bus_neighbour(other.parse().unwrap());
        config = config.with_neighbour(neighbour).unwrap();
    }
    Node::open(config).unwrap()
}

/// Connects as everybody does, and then writes over all that others read of it.
fn scribble(seed: u64) -> ! {
    let bus = std::env::var(BUS).unwrap();
    let node = open(&bus, "hostile", ["victim", "honest"]);
    let mut queue = node.queuing(port(31)).options(&queuing()).open().unwrap();
    let mut value = node.sampling(port(32)).options(&sampling()).open().unwrap();
    let to = queue.destination("victim", port(41)).unwrap();
    queue.send(to, Priority::NORMAL, b"hello").unwrap();
    let to = value.destination("victim", port(42)).unwrap();
    value.send(to, Priority::NORMAL, b"hello").unwrap();
    println!("{}", child::READY);
    let mut random = Random::seed_from_u64(seed);
    // The victim has to connect to us, too: two of each role.
    let started = Clock::now();
    let memories = loop {
        let memories = own_memories();
        if memories.len() >= 4 {
            break memories;
        }
        assert!(started.elapsed().as_secs() < 10, "{memories:?}");
        std::thread::sleep(Duration::from_millis(1));
    };
    loop {
        write_anywhere(&mut random, &memories, BYTES_MAX);
    }
}

/// Sends numbered messages and values as one should.
fn behave() -> ! {
    let bus = std::env::var(BUS).unwrap();
    let node = open(&bus, "honest", ["victim", "hostile"]);
    let mut queue = node.queuing(port(31)).options(&queuing()).open().unwrap();
    let mut value = node.sampling(port(32)).options(&sampling()).open().unwrap();
    let to_queue = queue.destination("victim", port(41)).unwrap();
    let to_value = value.destination("victim", port(42)).unwrap();
    println!("{}", child::READY);
    for number in 0_u64.. {
        let bytes = number.to_ne_bytes();
        value.send(to_value, Priority::NORMAL, &bytes).unwrap();
        while queue.send(to_queue, Priority::NORMAL, &bytes) == Err(SendError::ReceiverFull) {
            std::thread::yield_now();
        }
    }
    unreachable!()
}

#[test]
fn a_hostile_peer_harms_itself_alone() {
    const TEST: &str = "a_hostile_peer_harms_itself_alone";
    match child::role().as_deref() {
        Some("honest") => behave(),
        Some(seed) => scribble(seed.parse().unwrap()),
        None => {}
    }
    let path = bus("hostile").name;
    // SAFETY: no other thread of this process reads the environment now; children inherit it.
    unsafe { std::env::set_var(BUS, &path) };
    let node = open(&path, "victim", ["hostile", "honest"]);
    let mut queue = node.queuing(port(41)).options(&queuing()).open().unwrap();
    let mut value = node.sampling(port(42)).options(&sampling()).open().unwrap();
    let honest = child::Helper::start(TEST, "honest");
    let seed = std::process::id();
    println!("seed {seed}");
    let is_honest = |address| address == Address::Bus("honest".parse().unwrap());
    let mut buffer = [0; BYTES_MAX];
    let (mut next, mut last_value, mut answers) = (0_u64, 0_u64, [0_u64; 2]);
    let mut void = 0;
    for life in 0..3 {
        let hostile = child::Helper::start(TEST, &(seed + life).to_string());
        let to_queue = queue.destination("hostile", port(31)).unwrap();
        let to_value = value.destination("hostile", port(32)).unwrap();
        let started = Clock::now();
        let first = next;
        let mut rounds = 0_u32;
        while started.elapsed() < Duration::from_millis(1500) {
            rounds += 1;
            if let Some(message) = queue.receive_into(&mut buffer, Wait::Poll).unwrap() {
                assert!(message.length <= BYTES_MAX);
                if is_honest(message.source.address) {
                    assert_eq!(buffer[..message.length], next.to_ne_bytes());
                    next += 1;
                }
            }
            if let Some(message) = queue.receive_in_place(Wait::Poll).unwrap() {
                let length = message.bytes().copy_out(0, &mut buffer);
                assert!(length <= BYTES_MAX);
                if is_honest(message.source.address) {
                    assert_eq!(buffer[..length], next.to_ne_bytes());
                    next += 1;
                }
            }
            let mut check = |sample: &tautline::Sample, bytes: &[u8]| {
                if is_honest(sample.source.address) {
                    let found = u64::from_ne_bytes(bytes.try_into().unwrap());
                    assert!(found >= last_value, "goes back");
                    last_value = found;
                }
            };
            for _ in 0..2 {
                if let Some(value) = value.next(Wait::Poll).unwrap() {
                    check(value.sample(), &value);
                }
            }
            if let Some(sample) = value.read_into(&mut buffer).unwrap() {
                check(&sample, &buffer[..sample.length]);
            }
            // To it: each send ends, whatever its memory says of room, sleep and pair.
            let sent = queue.send(to_queue, Priority::ALL[(rounds % 8) as usize], b"to you");
            answers[usize::from(sent.is_ok())] += 1;
            let _any = value.send(to_value, Priority::NORMAL, b"to you");
            if rounds.is_multiple_of(1000) {
                // A sleep among such peers ends, too, and so does a look at the figures.
                let soon = tautline::now() + Duration::from_micros(200);
                if let Some(message) = queue.receive_into(&mut buffer, Wait::Until(soon)).unwrap()
                    && is_honest(message.source.address)
                {
                    assert_eq!(buffer[..message.length], next.to_ne_bytes());
                    next += 1;
                }
                let status = node.status();
                assert_eq!(status.ports.len(), 2);
            }
        }
        assert!(next > first, "the honest one is served");
        void += node
            .status()
            .ports
            .iter()
            .map(|port| port.void)
            .sum::<u64>();
        hostile.kill();
        let started = Clock::now();
        while node.status().ports[0].peers.len() > 1 {
            assert!(started.elapsed() < PATIENCE, "its death is not seen");
            if let Some(message) = queue.receive_into(&mut buffer, Wait::Poll).unwrap()
                && is_honest(message.source.address)
            {
                assert_eq!(buffer[..message.length], next.to_ne_bytes());
                next += 1;
            }
        }
    }
    println!(
        "{next} messages of the honest one; {void} slots of the hostile one skipped; of {} sends to it {} were taken on",
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
    let node = open(bus, "hostile", ["victim", "honest"]);
    let mut queue = node.queuing(port(31)).options(&queuing()).open().unwrap();
    let to = queue.destination("victim", port(41)).unwrap();
    let mut sent = 0;
    for priority in &Priority::ALL[1..] {
        for _ in 0..queuing().depth {
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
    let node = open(&path, "victim", ["hostile", "honest"]);
    let mut queue = node.queuing(port(41)).options(&queuing()).open().unwrap();
    let other = open(&path, "honest", ["victim", "hostile"]);
    let mut honest = other.queuing(port(31)).options(&queuing()).open().unwrap();
    let to = honest.destination("victim", port(41)).unwrap();
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
