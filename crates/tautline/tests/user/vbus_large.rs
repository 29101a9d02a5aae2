//! Messages of up to 16 MiB on a bus: whole at the limit, refused one byte above it, in memory that is taken when a
//! port or a connection is made, and reported.

use crate::common::readers::{number_of, open, value};
use crate::common::{PATIENCE, bus, port};
use tautline::address::Address;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{Node, PortError, Priority, QueuingPort, SendError, Source, Wait, now};

const LARGEST: usize = 16 << 20;

fn queuing(node: &Node, number: u16, depth: u32, bytes: usize) -> Result<QueuingPort, PortError> {
    let options = QueuingOptions {
        depth,
        message_bytes_max: bytes,
        ..QueuingOptions::default()
    };
    node.queuing(port(number)).options(&options).open()
}

fn sampling(bytes: usize) -> SamplingOptions {
    SamplingOptions {
        value_bytes_max: bytes,
        ..SamplingOptions::default()
    }
}

#[test]
fn a_picture_is_whole_for_one_and_for_many() {
    let config = bus("large");
    let (node, other) = (open(&config, "camera"), open(&config, "viewer"));
    let mut lens = node
        .sampling(port(5))
        .options(&sampling(LARGEST))
        .open()
        .unwrap();
    let mut screen = other
        .sampling(port(6))
        .options(&sampling(LARGEST))
        .open()
        .unwrap();
    let readers = lens.readers().unwrap();
    screen.follow("camera", port(5)).unwrap();
    let mut buffer = vec![0; LARGEST];
    lens.send(readers, Priority::NORMAL, &value(1, LARGEST))
        .unwrap();
    let sample = screen
        .next_into(&mut buffer, Wait::Until(now() + PATIENCE))
        .unwrap();
    assert_eq!(sample.unwrap().length, LARGEST);
    assert_eq!(number_of(&buffer), 1);
    let over = vec![0; LARGEST + 1];
    let refused = SendError::LargerThanReceiver {
        bytes: LARGEST + 1,
        largest: LARGEST,
    };
    assert_eq!(lens.send(readers, Priority::NORMAL, &over), Err(refused));
    // Four cells, once; and two copies beside them at the reader.
    let cells = 4 * LARGEST;
    let own = node.status().ports[0].memory_bytes;
    assert!((cells..cells + (1 << 20)).contains(&own), "{own}");
    let reading = other.status().ports[0].memory_bytes;
    let needed = cells + 2 * LARGEST;
    assert!((needed..needed + (1 << 20)).contains(&reading), "{reading}");

    let mut pictures = queuing(&other, 7, 2, LARGEST).unwrap();
    let mut sender = queuing(&node, 8, 2, 64).unwrap();
    let deadline = now() + 4 * PATIENCE;
    // From the small port to the large one, in memory that is as large as that says.
    let viewer = Source {
        address: Address::Bus("viewer".parse().unwrap()),
        port: port(7),
    };
    for number in [2, 3] {
        let message = value(number, LARGEST);
        let sent = sender.reply_until(viewer, Priority::NORMAL, &message, deadline);
        sent.unwrap();
    }
    let sent = sender.reply(viewer, Priority::NORMAL, &over);
    assert_eq!(sent, Err(refused));
    let full = sender.reply(viewer, Priority::NORMAL, &value(4, LARGEST));
    assert_eq!(full, Err(SendError::ReceiverFull));
    for number in [2, 3] {
        let message = pictures
            .receive_into(&mut buffer, Wait::Poll)
            .unwrap()
            .unwrap();
        assert_eq!((message.length, number_of(&buffer)), (LARGEST, number));
    }
    let status = other.status();
    let taken = status
        .ports
        .iter()
        .find(|port| port.key.number() == 7)
        .unwrap();
    assert!(
        taken.memory_bytes > 16 * LARGEST,
        "all eight classes: {taken:?}"
    );
}

#[test]
fn a_port_beyond_the_limits_is_refused_with_the_reason() {
    let config = bus("large-limits");
    let node = open(&config, "camera");
    let cases = [
        (2, LARGEST + 1, "1 to 16,777,216 bytes"),
        (4, LARGEST, "more than 257 MiB; lower the depth"),
    ];
    for (depth, bytes, reason) in cases {
        let error = queuing(&node, 5, depth, bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let error = node
        .sampling(port(5))
        .options(&sampling(LARGEST + 1))
        .open();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("1 to 16,777,216 bytes"), "{error}");
    // A slot is as large as a message: no depth for fragments is needed.
    queuing(&node, 5, 2, 1 << 20).unwrap();
    let elsewhere = Node::open(tautline::NodeConfig::udp([127, 0, 0, 1].into())).unwrap();
    let error = queuing(&elsewhere, 2993, 64, 65_537)
        .unwrap_err()
        .to_string();
    assert!(error.contains("1 to 65,536 bytes"), "{error}");
}
