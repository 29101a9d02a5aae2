//! Status of ports that are watched: bytes, ages, and latencies that are measured while they are asked for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::common::Take;
use serde_json::Value;
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::status::{LatencyStatus, PortStatus, nodes, nodes_with_latency};
use tautline::{Node, NodeConfig, Priority, Wait, bus_neighbour, neighbour};

const QUEUE: u16 = 3001;
const VALUE: u16 = 3002;
const SENDER: u16 = 3003;
const UDP: u16 = 13_004;
/// Messages to each port.
const COUNT: u64 = 20;

/// One test at a time: who asks, asks all nodes, those of the others too.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends messages to a queuing and a sampling port of a node by the name of `peer`, and reads each.
fn exchange(from: &Node, to: &Node, peer: &str) {
    let queuing = QueuingOptions::default();
    let mut queue = to.queuing(QUEUE).options(&queuing).open().unwrap();
    let sampling = SamplingOptions::default();
    let mut value = to.sampling(VALUE).options(&sampling).open().unwrap();
    let mut sender = from.queuing(SENDER).options(&queuing).open().unwrap();
    let until = tautline::now() + Duration::from_secs(60);
    let to_queue = sender
        .destination_until(peer, queue.number(), until)
        .unwrap();
    let to_value = sender
        .destination_until(peer, value.number(), until)
        .unwrap();
    let mut buffer = [0; 1484];
    let mut pass = |round: u64| {
        for _ in 0..COUNT / 2 {
            sender.send(to_queue, Priority::NORMAL, &[1; 10]).unwrap();
            queue.look(&mut buffer, Wait::Until(until)).unwrap();
            sender.send(to_queue, Priority::NORMAL, &[1; 10]).unwrap();
            drop(queue.receive_in_place(Wait::Until(until)).unwrap().unwrap());
            sender.send(to_value, Priority::NORMAL, &[1; 6]).unwrap();
            value.look(&mut buffer, Wait::Until(until)).unwrap();
            sender.send(to_value, Priority::NORMAL, &[1; 6]).unwrap();
            while !value
                .read_in_place()
                .unwrap()
                .is_some_and(|value| value.new)
            {}
            // Seen before: no message that has arrived.
            value.read_into(&mut buffer).unwrap().unwrap();
        }
        let status = to.status();
        let port = |number: u16| {
            status
                .ports
                .iter()
                .find(|port| port.key.number() == number)
                .unwrap()
        };
        let (of_queue, of_value) = (port(QUEUE), port(VALUE));
        assert_eq!(
            (of_queue.received, of_queue.received_bytes),
            (COUNT * round, 10 * COUNT * round)
        );
        assert_eq!(
            (of_value.received, of_value.received_bytes),
            (COUNT * round, 6 * COUNT * round)
        );
        assert_eq!(
            (of_queue.age_ns, of_queue.valid, of_queue.oldest_wait_ns),
            (None, None, None)
        );
        assert_eq!(of_value.refresh_period_ns, Some(1_000_000_000));
        let age_ns = of_value.age_ns.expect("a value has come");
        assert_eq!(of_value.valid, Some(age_ns <= 1_000_000_000));
        let sent = from
            .status()
            .ports
            .into_iter()
            .find(|port| port.key.number() == SENDER)
            .unwrap();
        assert_eq!(
            (sent.sent, sent.sent_bytes),
            (2 * COUNT * round, 16 * COUNT * round)
        );
        [of_queue.clone(), of_value.clone()]
    };
    for port in pass(1) {
        assert_eq!(port.latency, None, "nobody watches");
    }
    ask(true);
    for port in pass(2) {
        let latency = port.latency.unwrap();
        assert_measured(&latency, COUNT);
        assert!(latency.measured);
    }
    // It is not asked for any more.
    let is_measured = |port: &PortStatus| {
        port.latency
            .as_ref()
            .is_some_and(|latency| latency.measured)
    };
    while to.status().ports.iter().any(is_measured) {
        assert!(tautline::now() < until, "it is measured for ever");
        std::thread::sleep(Duration::from_millis(50));
        ask(false);
    }
}

fn assert_measured(latency: &LatencyStatus, count: u64) {
    assert_eq!(latency.count, count);
    assert!(latency.p50_ns <= latency.p99_ns && latency.p99_ns <= latency.max_ns);
    assert!(latency.sum_ns >= latency.max_ns && latency.max_ns > 0);
    let buckets = latency.buckets.iter().map(|(_, count)| count);
    assert_eq!(buckets.sum::<u64>(), count);
}

/// Asks all nodes, and to measure latencies if `is_watching`; the answers of this process's.
fn ask(is_watching: bool) -> Vec<Value> {
    let asked = match is_watching {
        true => nodes_with_latency(),
        false => nodes(),
    };
    let (mut states, _) = asked.unwrap();
    states.retain(|state| state["process"] == std::process::id());
    assert!(!states.is_empty(), "this node is not listed");
    states
}

#[test]
fn frames_are_measured_while_they_are_watched() {
    let _alone = alone();
    let here = [127, 0, 0, 1].into();
    let config = NodeConfig::udp(here)
        .with_neighbour(neighbour("here", here))
        .unwrap();
    let node = Node::open(config).unwrap();
    exchange(&node, &node, "here");
}

#[test]
fn messages_on_a_bus_are_measured_while_they_are_watched() {
    let _alone = alone();
    let bus = format!("taut{}", std::process::id());
    let open = |name: &str| {
        let config = BusConfig::new(&bus, name.parse().unwrap());
        let config =
            NodeConfig::vbus(config).with_neighbour(bus_neighbour("other".parse().unwrap()));
        Node::open(config.unwrap()).unwrap()
    };
    let (one, other) = (open("one"), open("other"));
    exchange(&one, &other, "other");
}

#[test]
fn datagrams_are_measured_while_they_are_watched() {
    let _alone = alone();
    let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into())).unwrap();
    let mut port = node.udp(UDP).open().unwrap();
    let to = port.destination("127.0.0.1", UDP).unwrap();
    let mut buffer = [0; 1484];
    for round in 1..=2 {
        for _ in 0..COUNT {
            port.send_to(to, Priority::NORMAL, &[1; 9]).unwrap();
            port.look(&mut buffer, Wait::Forever).unwrap();
        }
        let status = &node.status().ports[0];
        assert_eq!(
            (status.sent_bytes, status.received_bytes),
            (9 * COUNT * round, 9 * COUNT * round)
        );
        match &status.latency {
            None => assert_eq!(round, 1),
            Some(latency) => assert_measured(latency, COUNT),
        }
        ask(true);
    }
}
