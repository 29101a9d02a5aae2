//! A node `camera` that publishes for many, and those who read.

use std::thread;
use std::time::{Duration, Instant as Clock};

use tautline::config::{BusConfig, BusRule};
use tautline::{Node, NodeConfig, bus_neighbour};

use super::{PATIENCE, child};

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

/// The rule by which the stranger may have these ports.
pub fn stranger_may_have(ports: std::ops::RangeInclusive<u16>) -> Vec<BusRule> {
    vec![BusRule {
        ports: vec![ports],
        ..BusRule::of(&STRANGER.to_string())
    }]
}
