//! Batches over link `vbus` whose ring is full and has room again in the middle.

use std::thread;
use std::time::Duration;

use tautline::config::BusConfig;
use tautline::port::{Outgoing, QueuingOptions};
use tautline::{Node, NodeConfig, Priority, SendError, Wait, bus_neighbour, now};

const MESSAGES: u64 = 20_000;
/// More than a ring holds, so that it is full in the middle of nearly every one.
const BATCH: u64 = 7;

/// A node of a bus that only this test knows.
fn node(name: &str, peer: &str) -> Node {
    let bus = std::env::temp_dir().join(format!("taut-batch-{}", std::process::id()));
    let bus = BusConfig::new(bus.to_str().unwrap(), name.parse().unwrap());
    let peer = bus_neighbour(peer.parse().unwrap());
    Node::open(NodeConfig::vbus(bus).with_neighbour(peer).unwrap()).unwrap()
}

#[test]
fn every_message_of_a_batch_that_went_arrives_in_its_order() {
    let options = QueuingOptions {
        depth: 4,
        message_bytes_max: 8,
        ..QueuingOptions::default()
    };
    let number = 1;
    let (here, there) = (node("here", "there"), node("there", "here"));
    let mut receiver = there.queuing(number).options(&options).open().unwrap();
    let mut sender = here.queuing(number).options(&options).open().unwrap();
    let to = sender.destination("there", number).unwrap();
    let receiving = thread::spawn(move || {
        let mut buffer = [0; 8];
        for expected in 0..MESSAGES {
            let deadline = now() + Duration::from_secs(20);
            let message = receiver
                .receive_into(&mut buffer, Wait::Until(deadline))
                .unwrap();
            assert!(
                message.is_some(),
                "message {expected} was sent and never came"
            );
            assert_eq!(u64::from_le_bytes(buffer), expected);
        }
    });
    let mut sent = 0;
    while sent < MESSAGES && !receiving.is_finished() {
        let batch: Vec<[u8; 8]> = (sent..MESSAGES.min(sent + BATCH))
            .map(u64::to_le_bytes)
            .collect();
        let messages: Vec<Outgoing<'_>> = batch
            .iter()
            .map(|message| Outgoing {
                to,
                priority: Priority::NORMAL,
                message,
            })
            .collect();
        match sender.send_batch(&messages) {
            Ok(count) => sent += count as u64,
            Err(SendError::ReceiverFull) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    receiving.join().unwrap();
}
