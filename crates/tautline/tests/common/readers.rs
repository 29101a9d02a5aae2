//! A node `camera` that publishes for many, and those who read.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant as Clock};

use rustix::event::{PollFd, PollFlags, poll};
use tautline::config::BusConfig;
use tautline::{Destination, Node, NodeConfig, PortError, bus_neighbour};

use super::unprivileged::become_user;
use super::{PATIENCE, bus, child};

/// A user without rights.
pub const STRANGER: u32 = 65534;

/// A node of the bus; all but `camera` have that as a neighbour.
pub fn open(config: &BusConfig, name: &str) -> Node {
    let mut config = config.clone();
    config.node = name.parse().unwrap();
    let peer = bus_neighbour("camera".parse().unwrap());
    let config = NodeConfig::vbus(config);
    let is_camera = name == "camera";
    let config = if is_camera {
        config
    } else {
        config.with_neighbour(peer).unwrap()
    };
    Node::open(config).unwrap()
}

/// Bytes of a message or value that tell its number in each word.
pub fn value(number: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes / 8).flat_map(|place| (number ^ (place as u64) << 40).to_ne_bytes());
    words.collect()
}

/// The number of a message or value, which must be whole.
pub fn number_of(bytes: &[u8]) -> u64 {
    let number = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == value(number, bytes.len()), "torn: {number}");
    number
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Clock::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Readers of the node's only port.
pub fn reader_count(node: &Node) -> usize {
    let status = node.status().ports.remove(0);
    status.readers.expect("it publishes").len()
}

/// The role of a child, and its bus.
pub fn role() -> Option<(String, BusConfig)> {
    let role = child::role()?;
    let (what, path) = role.split_once(':')?;
    Some((
        what.to_owned(),
        BusConfig::new(path, "child".parse().unwrap()),
    ))
}

/// The configuration with a bus that is for the stranger's group, too.
pub fn with_group(config: BusConfig) -> BusConfig {
    BusConfig {
        mode: 0o770,
        group: Some(STRANGER.to_string()),
        ..config
    }
}

/// A port that publishes for many, or reads what another publishes.
pub trait Many: Sized {
    fn open(node: &Node, number: u16) -> Self;
    fn publish(&mut self, readers: Destination, number: u64);
    /// The number of the next message or value, which must come from the camera.
    fn next(&mut self) -> u64;
    /// The number of the next message or value, if it is there; `lost` counts those that were replaced before.
    fn poll(&mut self, lost: &mut u64) -> Option<u64>;
    fn begin(&mut self) -> Destination;
    fn follow_camera(&mut self) -> Result<(), PortError>;
    fn sleep_at_once(&mut self);
    fn woken_by(&mut self) -> BorrowedFd<'_>;
}

/// Functions that both kinds of port have by the same name.
macro_rules! many {
    () => {
        fn begin(&mut self) -> tautline::Destination {
            self.readers().unwrap()
        }

        fn follow_camera(&mut self) -> Result<(), tautline::PortError> {
            self.follow("camera", 5)
        }

        fn sleep_at_once(&mut self) {
            self.set_spin(std::time::Duration::ZERO);
        }

        fn woken_by(&mut self) -> std::os::fd::BorrowedFd<'_> {
            self.descriptor().unwrap()
        }
    };
}
pub(crate) use many;

fn camera<P: Many>(config: &BusConfig) -> (Node, P, Destination) {
    let node = open(config, "camera");
    let mut publisher = P::open(&node, 5);
    let readers = publisher.begin();
    (node, publisher, readers)
}

fn follower<P: Many>(config: &BusConfig, name: &str) -> (Node, P) {
    let node = open(config, name);
    let mut reader = P::open(&node, 6);
    reader.follow_camera().unwrap();
    (node, reader)
}

/// A writer that never pauses, and readers of which one is slow: none takes anything torn or holds the writer.
pub fn a_slow_reader_harms_nobody<P: Many + Send>(config: &BusConfig) {
    let (_node, mut publisher, readers) = camera::<P>(config);
    let viewers = [0, 1, 2].map(|index| follower::<P>(config, &format!("viewer{index}")));
    let (ended, published) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (index, (node, mut reader)) in viewers.into_iter().enumerate() {
            let (ended, published) = (&ended, &published);
            scope.spawn(move || {
                let (mut last, mut seen, mut lost) = (0, 0, 0);
                loop {
                    let is_over = ended.load(SeqCst);
                    match reader.poll(&mut lost) {
                        Some(number) => {
                            assert!(number > last, "went back from {last} to {number}");
                            last = number;
                            seen += 1;
                        }
                        None if is_over => break,
                        None => {}
                    }
                    if index == 0 && !is_over {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                assert_eq!(last, published.load(SeqCst), "the last one is there");
                assert_eq!(seen + lost, last, "each was seen or counted");
                assert!(index > 0 || lost > 0, "it was slow");
                drop(node);
            });
        }
        let started = Clock::now();
        let mut number = 0;
        while started.elapsed() < Duration::from_millis(300) || number < 1_000 {
            number += 1;
            publisher.publish(readers, number);
        }
        published.store(number, SeqCst);
        ended.store(true, SeqCst);
    });
}

/// All readers sleep before each message: two by futex, one on its descriptor.
pub fn sleepers_are_woken<P: Many>(config: &BusConfig) {
    const MESSAGES: u64 = 300;
    let (_node, mut publisher, readers) = camera::<P>(config);
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for index in 0..3 {
            let taken = &taken;
            scope.spawn(move || {
                let (_node, mut reader) = follower::<P>(config, &format!("viewer{index}"));
                reader.sleep_at_once();
                if index == 2 {
                    let _armed = reader.woken_by();
                }
                taken.fetch_add(1, SeqCst);
                for number in 1..=MESSAGES {
                    let found = match index {
                        2 => polled(&mut reader),
                        _ => reader.next(),
                    };
                    assert_eq!(found, number);
                    taken.fetch_add(1, SeqCst);
                }
            });
        }
        for number in 1..=MESSAGES {
            wait_until("the message before is taken by all", || {
                taken.load(SeqCst) >= 3 * number
            });
            publisher.publish(readers, number);
        }
    });
}

fn polled<P: Many>(reader: &mut P) -> u64 {
    loop {
        if let Some(found) = reader.poll(&mut 0) {
            return found;
        }
        let descriptor = reader.woken_by();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&PATIENCE.try_into().unwrap())).unwrap();
        assert_eq!(ready, 1, "a message wakes no reader");
    }
}

/// Readers and writers die. `after` looks at a reader whose writer has died, which published numbers beyond its own.
pub fn the_dead_harm_nobody<P: Many>(test: &str, after: impl Fn(&mut P, u64)) {
    match role() {
        Some((what, config)) if what == "viewer" => {
            let (_node, mut reader) = follower::<P>(&config, "killed");
            reader.sleep_at_once();
            println!("{}", child::READY);
            loop {
                reader.next();
            }
        }
        Some((what, config)) => {
            let (_node, mut publisher, readers) = camera::<P>(&config);
            println!("{}", child::READY);
            let base: u64 = what.parse().unwrap();
            for number in 1.. {
                publisher.publish(readers, base + number);
                thread::sleep(Duration::from_micros(200));
            }
        }
        None => {}
    }
    let config = bus("readers-kill");
    // Keeps the bus, so that children find it. The port follows a publisher that is not there yet.
    let viewer = open(&config, "viewer");
    let mut reader = P::open(&viewer, 6);
    let early = reader.follow_camera();
    assert!(early.is_ok() || matches!(early, Err(PortError::PeerAbsent { .. })));
    for life in 1..=3_u64 {
        let base = life * 1_000_000;
        let start = |what: &str| child::Helper::start(test, &format!("{what}:{}", config.name));
        let writer = start(&base.to_string());
        for _ in 0..3 {
            drop(start("viewer"));
            assert!(reader.next() < base + 1_000_000);
        }
        let started = Clock::now();
        while reader.next() <= base {
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "the new writer is not followed");
        }
        drop(writer);
        after(&mut reader, base);
    }
}

/// Another user of the bus's group reads.
pub fn another_user_reads<P: Many>(test: &str) {
    if let Some((_, config)) = role() {
        become_user(STRANGER);
        let (_node, mut reader) = follower::<P>(&with_group(config), "stranger");
        println!("{}", child::READY);
        assert_eq!(reader.next(), 3);
        println!("taken");
        return child::ready();
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: {test} needs root to act as two users");
        return;
    }
    let config = with_group(bus("readers-stranger"));
    let (_node, mut publisher, readers) = camera::<P>(&config);
    let mut stranger = child::Helper::start(test, &format!("all:{}", config.name));
    publisher.publish(readers, 3);
    stranger.wait_for("taken");
}
