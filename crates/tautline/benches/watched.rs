//! Cost of watchers for a port that is watched: exchanges over a bus, in one thread, to be counted by valgrind.
//! `scripts/watching-cost.sh` runs it; it prints nothing of its own.
//!
//! Arguments: `queuing` or `sampling`, how many exchanges, and what the watchers have asked for: `nothing`, `status`,
//! or `latencies`.

use std::time::Duration;

use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::status::{nodes, nodes_with_latency};
use tautline::{Node, NodeConfig, Priority, QueuingPort, SamplingPort, Wait, bus_neighbour};

const RECEIVER: u16 = 11;
const SENDER: u16 = 12;
/// Bytes of a message.
const BYTES: usize = 16;

/// Port that receives.
enum Receiver {
    Queuing(QueuingPort),
    Sampling(SamplingPort),
}

impl Receiver {
    fn take(&mut self, buffer: &mut [u8]) -> bool {
        match self {
            Receiver::Queuing(port) => port
                .receive_into(buffer, Wait::Poll)
                .is_ok_and(|found| found.is_some()),
            Receiver::Sampling(port) => port.read_into(buffer).is_ok_and(|found| found.is_some()),
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo bench` without arguments has nothing to count.
    let [kind, count, wish, ..] = &words[..] else {
        return;
    };
    let count: u64 = count.parse().expect("a number of exchanges");
    let bus = format!("taut-watched-{}", std::process::id());
    let open = |name: &str, peer: &str| {
        let config = BusConfig::new(&bus, name.parse().expect("a name"));
        let peer = bus_neighbour(peer.parse().expect("a name"));
        let config = NodeConfig::vbus(config).with_neighbour(peer);
        Node::open(config.expect("one neighbour")).expect("a bus")
    };
    let (near, far) = (open("near", "far"), open("far", "near"));
    let options = QueuingOptions::default();
    let mut receiver = match kind.as_str() {
        "sampling" => {
            let options = SamplingOptions::default();
            Receiver::Sampling(
                far.sampling(RECEIVER)
                    .options(&options)
                    .open()
                    .expect("open"),
            )
        }
        _ => Receiver::Queuing(
            far.queuing(RECEIVER)
                .options(&options)
                .open()
                .expect("open"),
        ),
    };
    let mut sender = near.queuing(SENDER).options(&options).open().expect("open");
    let until = tautline::now() + Duration::from_secs(60);
    let to = sender
        .destination_until("far", RECEIVER, until)
        .expect("the other node");
    watch(wish);
    let (message, mut buffer) = ([7; BYTES], [0; 1484]);
    for _ in 0..count {
        sender.send(to, Priority::NORMAL, &message).expect("room");
        assert!(receiver.take(&mut buffer), "it has arrived");
    }
}

/// Asks once, as a watcher does. Ports measure for five seconds what they were asked for.
fn watch(wish: &str) {
    match wish {
        "nothing" => {}
        "status" => drop(nodes().expect("a directory of nodes")),
        "latencies" => drop(nodes_with_latency().expect("a directory of nodes")),
        other => panic!("nobody watches for {other}"),
    }
}
