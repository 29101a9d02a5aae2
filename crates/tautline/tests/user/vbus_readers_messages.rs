//! Messages that many read: a queuing port on a bus publishes once, and each reader is bounded by itself. A reader that
//! falls behind is lapped, and counts what it has lost.

use crate::common::readers::{
    Many, a_slow_reader_harms_nobody, many, number_of, open, reader_count, sleepers_are_woken,
    the_dead_harm_nobody, value, wait_until,
};
use crate::common::{PATIENCE, bus, port};
use tautline::address::Address;
use tautline::config::BusConfig;
use tautline::port::{Outgoing, QueuingOptions};
use tautline::vbus::{Observer, PortName};
use tautline::{Destination, Node, Priority, QueuingPort, SendError, Source, Wait, now};

/// Not a multiple of a cache line.
const BYTES: usize = 1_000;
const DEPTH: u32 = 8;

fn queuing(node: &Node, number: u16) -> QueuingPort {
    node.queuing(port(number))
        .options(&QueuingOptions {
            depth: DEPTH,
            message_bytes_max: BYTES,
            ..QueuingOptions::default()
        })
        .open()
        .unwrap()
}

fn camera(config: &BusConfig) -> (Node, QueuingPort, Destination) {
    let node = open(config, "camera");
    let mut events = queuing(&node, 5);
    let readers = events.readers().unwrap();
    (node, events, readers)
}

/// A port that follows the camera, which knows of it.
fn follower(config: &BusConfig, name: &str) -> (Node, QueuingPort) {
    let node = open(config, name);
    let mut log = queuing(&node, 6);
    log.follow("camera", port(5)).unwrap();
    (node, log)
}

fn publish(events: &mut QueuingPort, readers: Destination, priority: Priority, number: u64) {
    let sent = events.send(readers, priority, &value(number, BYTES));
    sent.unwrap();
}

/// The number of the next message.
fn next(log: &mut QueuingPort) -> u64 {
    let mut buffer = [0; BYTES];
    let message = log
        .receive_into(&mut buffer, Wait::Until(now() + PATIENCE))
        .unwrap();
    let message = message.expect("no message comes");
    assert!(message.source.to_string().contains("camera"));
    number_of(&buffer[..message.length])
}

/// The number of the next message, if it is there, by a view of where it lies.
fn next_lent(log: &mut QueuingPort) -> Option<u64> {
    let message = log.receive_in_place(Wait::Poll).unwrap()?;
    Some(number_of(
        message.bytes().slice().expect("a copy of the port's own"),
    ))
}

#[test]
fn each_reader_gets_each_message_once_and_the_most_urgent_first() {
    let config = bus("messages");
    let (node, mut events, readers) = camera(&config);
    assert_eq!(events.readers().unwrap(), readers);
    // There is no reader, and one that comes later does not get it.
    publish(&mut events, readers, Priority::NORMAL, 1);
    let mut logs: Vec<_> = (0..3)
        .map(|number| follower(&config, &format!("viewer{number}")))
        .collect();
    for number in 2..30 {
        publish(&mut events, readers, Priority::NORMAL, number);
        for (_, log) in &mut logs {
            assert_eq!(next(log), number);
            assert_eq!(next_lent(log), None);
        }
    }
    publish(&mut events, readers, Priority::LOWEST, 30);
    let mut loan = events.lend(readers, Priority::HIGHEST, BYTES).unwrap();
    loan.copy_from_slice(&value(31, BYTES));
    loan.send().unwrap();
    let bytes = [32, 33].map(|number| value(number, BYTES));
    let batch = bytes.each_ref().map(|message| Outgoing {
        to: readers,
        priority: Priority::NORMAL,
        message,
    });
    assert_eq!(events.send_batch(&batch), Ok(2));
    for (_, log) in &mut logs {
        let taken = std::array::from_fn(|_| next_lent(log).unwrap());
        assert_eq!(taken, [31, 32, 33, 30]);
        assert_eq!((next_lent(log), log.overwritten()), (None, 0));
    }
    wait_until("three readers", || reader_count(&node) == 3);
    let larger = vec![0; BYTES + 1];
    let error = events.send(readers, Priority::NORMAL, &larger).unwrap_err();
    assert!(matches!(
        error,
        SendError::LargerThanReceiver { largest: BYTES, .. }
    ));
    logs.truncate(1);
    wait_until("one reader", || reader_count(&node) == 1);
    publish(&mut events, readers, Priority::NORMAL, 34);
    assert_eq!(next(&mut logs[0].1), 34);
    let status = logs[0].0.status().ports.remove(0);
    assert_eq!((status.received, status.overwritten), (33, 0));
    assert!(status.memory_bytes > BYTES * DEPTH as usize * 8);
}

#[test]
fn a_reader_that_falls_behind_is_told_how_many_it_has_lost() {
    const PUBLISHED: u64 = 100;
    let config = bus("messages-lapped");
    let (node, mut events, readers) = camera(&config);
    let (_idle, mut behind) = follower(&config, "viewer0");
    let (other, mut prompt) = follower(&config, "viewer1");
    for number in 1..=PUBLISHED {
        publish(&mut events, readers, Priority::NORMAL, number);
        assert_eq!(next(&mut prompt), number);
    }
    publish(&mut events, readers, Priority::HIGHEST, PUBLISHED + 1);
    assert_eq!(next(&mut prompt), PUBLISHED + 1);
    // A class that it has kept up with loses nothing.
    assert_eq!(next(&mut behind), PUBLISHED + 1);
    assert_eq!(behind.overwritten(), 0);
    // The slot that comes next may be being written.
    let kept = u64::from(DEPTH) - 1;
    let lost = PUBLISHED - kept;
    for number in lost + 1..=PUBLISHED {
        assert_eq!(next(&mut behind), number);
        assert_eq!(behind.overwritten(), lost);
    }
    assert_eq!(next_lent(&mut behind), None);
    assert_eq!(prompt.overwritten(), 0);
    let seen = node.status().ports.remove(0).readers.unwrap();
    let mut losses: Vec<u64> = seen.iter().map(|reader| reader.overwritten).collect();
    losses.sort_unstable();
    assert_eq!(losses, [0, lost], "the publisher sees it");
    let observe = |name: &str| {
        let name: PortName = name.parse().unwrap();
        Observer::open(&config.name, name).unwrap().figures()
    };
    let watched = observe("viewer0.6").producers.remove(0);
    assert_eq!(watched.overwritten, lost, "a watcher of the reader sees it");
    assert_eq!(watched.queued, [0; 8]);
    let peer = other.status().ports.remove(0).peers.remove(0);
    assert_eq!((peer.received, peer.lost), (PUBLISHED + 1, 0));
}

/// Ports of files: one publishes from its opening on, the other ones look for it from theirs.
#[test]
fn ports_of_a_file_publish_and_follow() {
    let config = bus("messages-file");
    let open = |node: &str, ports: &str| {
        let bus = &config.name;
        let text = format!("link = \"vbus\"\nbus = \"{bus}\"\nnode = \"{node}\"\n{ports}");
        Node::open(text.parse().unwrap()).unwrap()
    };
    let both = |more: &str| {
        let port = |name, number, kind| {
            format!("[[port]]\nname = \"{name}\"\nnumber = {number}\nkind = \"{kind}\"\n")
        };
        let follows = |publisher| match more {
            "follow" => format!("follow = [\"camera.{publisher}\"]\n"),
            more => format!("{more}\n"),
        };
        let (queue, state) = (port("events", 5, "queuing"), port("state", 6, "sampling"));
        format!("{queue}{}{state}{}", follows(5), follows(6))
    };
    let viewer = format!("[[neighbour]]\nname = \"camera\"\n{}", both("follow"));
    let viewer = open("viewer", &viewer);
    // The publisher is not there yet.
    let mut log = viewer.queuing("events").open().unwrap();
    let mut screen = viewer.sampling("state").open().unwrap();
    let camera = open("camera", &both("readers = true"));
    let mut events = camera.queuing("events").open().unwrap();
    let mut state = camera.sampling("state").open().unwrap();
    let count = || {
        let ports = camera.status().ports.into_iter();
        let counts = ports.map(|port| port.readers.expect("it publishes").len());
        counts.collect::<Vec<_>>()
    };
    wait_until("both have a reader", || count() == [1, 1]);
    let (to_log, to_screen) = (events.readers().unwrap(), state.readers().unwrap());
    events.send(to_log, Priority::NORMAL, b"event").unwrap();
    state.send(to_screen, Priority::NORMAL, b"value").unwrap();
    let mut buffer = [0; 1_484];
    let message = log
        .receive_into(&mut buffer, Wait::Until(now() + PATIENCE))
        .unwrap();
    assert_eq!(buffer[..message.unwrap().length], *b"event");
    let sample = screen
        .next_into(&mut buffer, Wait::Until(now() + PATIENCE))
        .unwrap();
    assert_eq!(buffer[..sample.unwrap().length], *b"value");
}

#[test]
fn the_readers_of_another_port_are_no_destination() {
    let config = bus("messages-other");
    let (node, mut events, readers) = camera(&config);
    let mut other = queuing(&node, 15);
    let mut publisher = queuing(&node, 16);
    let own = publisher.readers().unwrap();
    for port in [&mut other, &mut publisher] {
        let sent = port.send(readers, Priority::NORMAL, &[1]);
        assert_eq!(sent, Err(SendError::OtherPort));
        let lent = port.lend(readers, Priority::NORMAL, 1).map(drop);
        assert_eq!(lent, Err(SendError::OtherPort));
    }
    publisher.send(own, Priority::NORMAL, &[1]).unwrap();
    events.send(readers, Priority::NORMAL, &[1]).unwrap();
}

/// A port that follows two publishers, and to which a third one sends.
#[test]
fn messages_of_several_publishers_and_senders_are_served_in_turn() {
    let config = bus("messages-several");
    let (node, mut events, readers) = camera(&config);
    let mut more = queuing(&node, 15);
    let more_readers = more.readers().unwrap();
    let (viewer, mut log) = follower(&config, "viewer");
    log.follow("camera", port(15)).unwrap();
    let mut own = queuing(&viewer, 16);
    let to_log = Source {
        address: Address::Bus("viewer".parse().unwrap()),
        port: port(6),
    };
    for number in [10, 11] {
        publish(&mut events, readers, Priority::NORMAL, number);
    }
    publish(&mut more, more_readers, Priority::NORMAL, 20);
    let third = value(30, BYTES);
    own.reply(to_log, Priority::NORMAL, &third).unwrap();
    let taken = std::array::from_fn(|_| take(&mut log).expect("all are there"));
    assert_eq!(taken, [10, 20, 30, 11]);
    assert_eq!((take(&mut log), log.overwritten()), (None, 0));
}

/// The number of the next message, if it is there.
fn take(log: &mut QueuingPort) -> Option<u64> {
    let mut buffer = [0; BYTES];
    let message = log.receive_into(&mut buffer, Wait::Poll).unwrap()?;
    Some(number_of(&buffer[..message.length]))
}

impl Many for QueuingPort {
    fn open(node: &Node, number: u16) -> Self {
        queuing(node, number)
    }

    fn publish(&mut self, readers: Destination, number: u64) {
        publish(self, readers, Priority::NORMAL, number);
    }

    fn next(&mut self) -> u64 {
        next(self)
    }

    fn poll(&mut self, lost: &mut u64) -> Option<u64> {
        let found = next_lent(self);
        *lost = self.overwritten();
        found
    }

    many!();
}

#[test]
fn no_reader_takes_a_torn_message_or_holds_the_writer() {
    a_slow_reader_harms_nobody::<QueuingPort>(&bus("messages-torn"));
}

#[test]
fn readers_that_sleep_are_woken() {
    sleepers_are_woken::<QueuingPort>(&bus("messages-sleep"));
}

#[test]
fn a_dead_reader_of_messages_harms_nobody_and_a_dead_writer_is_followed_again() {
    const TEST: &str = "a_dead_reader_of_messages_harms_nobody_and_a_dead_writer_is_followed_again";
    the_dead_harm_nobody(TEST, |log: &mut QueuingPort, base| {
        // Messages that the dead one had published are still taken, in order.
        let mut last = base;
        while let Some(number) = next_lent(log) {
            assert!(number > last);
            last = number;
        }
    });
}
