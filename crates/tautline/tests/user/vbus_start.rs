//! A program on a bus that starts before its peer.

use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, bus, port};
use tautline::config::BusConfig;
use tautline::{Node, NodeConfig, PortError, Priority, Wait, bus_neighbour, now};

fn open(config: &BusConfig, name: &str, peer: &str) -> Node {
    let mut config = config.clone();
    config.node = name.parse().unwrap();
    let peer = bus_neighbour(peer.parse().unwrap());
    Node::open(NodeConfig::vbus(config).with_neighbour(peer).unwrap()).unwrap()
}

fn is_absent<T>(result: Result<T, PortError>) -> bool {
    matches!(result, Err(PortError::PeerAbsent { name, port: number })
        if name == "late" && number == port(7))
}

#[test]
fn whoever_starts_first_waits_until_its_peer_is_there() {
    let config = bus("start");
    let early = open(&config, "early", "late");
    let mut sending = early.queuing(port(1)).open().unwrap();
    let soon = now() + Duration::from_millis(20);
    assert!(is_absent(sending.destination_until("late", port(7), soon)));
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let deadline = now() + PATIENCE;
            let to = sending
                .destination_until("late", port(7), deadline)
                .unwrap();
            sending.send(to, Priority::NORMAL, b"first").unwrap();
            // Still waiting for it when it is there already.
            let again = sending.destination_until("late", port(7), deadline);
            assert_eq!(again.unwrap(), to);
        });
        // Time for it to wait; what follows is the same without.
        thread::sleep(Duration::from_millis(50));
        let late = open(&config, "late", "early");
        let mut receiving = late.queuing(port(7)).open().unwrap();
        let mut buffer = vec![0; receiving.message_bytes_max()];
        let received = receiving.receive_into(&mut buffer, Wait::Until(now() + PATIENCE));
        let length = received.unwrap().expect("nothing comes").length;
        assert_eq!(&buffer[..length], b"first");
        sender.join().unwrap();
    });
}

#[test]
fn a_configured_wait_ends_with_an_error() {
    let config = BusConfig {
        wait: Duration::from_millis(20),
        ..bus("wait")
    };
    let early = open(&config, "early", "late");
    let mut value = early.sampling(port(1)).open().unwrap();
    let error = value.destination("late", port(7)).unwrap_err();
    assert!(error.to_string().contains("`late`"), "{error}");
    assert!(is_absent::<()>(Err(error)));
    // Without a wait it is looked for in the background.
    let config = BusConfig {
        wait: Duration::ZERO,
        ..config
    };
    let other = open(&config, "other", "late");
    let mut value = other.sampling(port(1)).open().unwrap();
    value.destination("late", port(7)).unwrap();
}
