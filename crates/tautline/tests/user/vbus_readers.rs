//! One memory that many read: a sampling port on a bus publishes once, and each reader is bounded by itself.

use std::time::Duration;

use crate::common::readers::{
    Many, a_slow_reader_harms_nobody, another_user_reads, many, number_of, open, reader_count,
    sleepers_are_woken, the_dead_harm_nobody, value, wait_until,
};
use crate::common::{PATIENCE, bus, port};
use tautline::config::BusConfig;
use tautline::port::SamplingOptions;
use tautline::{
    Destination, Node, NodeConfig, PortError, Priority, SamplingPort, SendError, Wait, now,
};

/// Larger than what a reader copies where it looks.
const VALUE_BYTES: usize = 3000;
fn options(value_bytes_max: usize) -> SamplingOptions {
    SamplingOptions {
        value_bytes_max,
        ..SamplingOptions::default()
    }
}

fn sampling(node: &Node, number: u16) -> SamplingPort {
    let options = options(VALUE_BYTES);
    node.sampling(port(number))
        .options(&options)
        .open()
        .unwrap()
}

fn camera(config: &BusConfig) -> (Node, SamplingPort, Destination) {
    let node = open(config, "camera");
    let mut lens = sampling(&node, 5);
    let readers = lens.readers().unwrap();
    (node, lens, readers)
}

/// The next value of a port, by its number, and how many were replaced before it.
fn next(port: &mut SamplingPort) -> (u64, u64) {
    let mut buffer = vec![0; port.value_bytes_max()];
    let deadline = now() + PATIENCE;
    let sample = port.next_into(&mut buffer, Wait::Until(deadline)).unwrap();
    let sample = sample.expect("no value comes");
    assert!(sample.new && sample.source.to_string().contains("camera"));
    (number_of(&buffer[..sample.length]), sample.overwritten)
}

fn publish(lens: &mut SamplingPort, readers: Destination, number: u64) {
    let bytes = value(number, VALUE_BYTES);
    lens.send(readers, Priority::NORMAL, &bytes).unwrap();
}

/// A port that follows the camera, which knows of it.
fn follower(config: &BusConfig, name: &str, number: u16) -> (Node, SamplingPort) {
    let node = open(config, name);
    let mut screen = sampling(&node, number);
    screen.follow("camera", port(5)).unwrap();
    (node, screen)
}

#[test]
fn each_reader_gets_each_value_and_one_that_comes_late_the_last() {
    let config = bus("readers");
    let (node, mut lens, readers) = camera(&config);
    assert_eq!(lens.readers().unwrap(), readers);
    // There is no reader.
    publish(&mut lens, readers, 1);
    let mut screens: Vec<_> = (0..3)
        .map(|number| follower(&config, &format!("viewer{number}"), 6))
        .collect();
    for (_, screen) in &mut screens {
        assert_eq!(next(screen), (1, 0), "the last value from before");
    }
    for number in 2..20 {
        publish(&mut lens, readers, number);
        for (_, screen) in &mut screens {
            assert_eq!(next(screen), (number, 0));
            // The same once more, not new.
            let mut buffer = vec![0; VALUE_BYTES];
            let again = screen.read_into(&mut buffer).unwrap().unwrap();
            assert!(!again.new && number_of(&buffer) == number);
            assert!(
                screen
                    .read_in_place()
                    .unwrap()
                    .unwrap()
                    .bytes
                    .slice()
                    .is_some()
            );
        }
    }
    let mut loan = lens.lend(readers, Priority::HIGHEST, VALUE_BYTES).unwrap();
    loan.copy_from_slice(&value(20, VALUE_BYTES));
    loan.send().unwrap();
    publish(&mut lens, readers, 21);
    for (_, screen) in &mut screens {
        assert_eq!(next(screen), (21, 1), "one was replaced");
    }
    wait_until("three readers", || reader_count(&node) == 3);
    let larger = vec![0; VALUE_BYTES + 1];
    let error = lens.send(readers, Priority::NORMAL, &larger).unwrap_err();
    assert!(matches!(
        error,
        SendError::LargerThanReceiver {
            largest: VALUE_BYTES,
            ..
        }
    ));
    // A reader that closes its port is no longer one.
    screens.truncate(1);
    wait_until("one reader", || reader_count(&node) == 1);
    publish(&mut lens, readers, 22);
    assert_eq!(next(&mut screens[0].1), (22, 0));
    let status = screens[0].0.status().ports.remove(0);
    assert_eq!(
        (status.frames, status.readers),
        (21, None),
        "of those that it could see"
    );
}

#[test]
fn values_of_all_sizes_are_published_in_one_batch() {
    let config = bus("readers-batch");
    let (_node, mut lens, readers) = camera(&config);
    let (_other, mut screen) = follower(&config, "viewer", 6);
    for bytes in [8, 40, 48, 256, 264, VALUE_BYTES] {
        let values: Vec<_> = (1..=3).map(|number| value(number, bytes)).collect();
        let batch: Vec<_> = values
            .iter()
            .map(|message| tautline::port::Outgoing {
                to: readers,
                priority: Priority::NORMAL,
                message,
            })
            .collect();
        assert_eq!(lens.send_batch(&batch), Ok(3));
        assert_eq!(next(&mut screen), (3, 2), "{bytes} bytes");
    }
}

#[test]
fn a_reader_must_take_what_is_published() {
    let config = bus("readers-size");
    let (_node, mut lens, readers) = camera(&config);
    let other = open(&config, "viewer");
    let mut small = other
        .sampling(port(6))
        .options(&options(VALUE_BYTES - 1))
        .open()
        .unwrap();
    let error = small.follow("camera", port(5)).unwrap_err();
    let told =
        "port 5 of `camera` is sampling and publishes up to 3000 bytes, which do not fit this port";
    assert_eq!(error.to_string(), told);
    assert!(matches!(
        error,
        PortError::PeerOtherShape {
            bytes: VALUE_BYTES,
            ..
        }
    ));
    let mut large = other
        .sampling(port(7))
        .options(&options(VALUE_BYTES + 1))
        .open()
        .unwrap();
    large.follow("camera", port(5)).unwrap();
    publish(&mut lens, readers, 9);
    assert_eq!(next(&mut large), (9, 0));
    let mut queue = other.queuing(port(8)).open().unwrap();
    let error = queue.follow("camera", port(5)).unwrap_err();
    assert!(matches!(error, PortError::PeerOtherShape { .. }), "{error}");
    let unknown = large.follow("nobody", port(5)).unwrap_err();
    assert!(matches!(unknown, PortError::PeerUnknown { .. }));
    let elsewhere = NodeConfig::udp([127, 0, 0, 1].into());
    let elsewhere = Node::open(elsewhere).unwrap();
    let mut udp = elsewhere.sampling(port(2991)).open().unwrap();
    assert!(matches!(
        udp.readers(),
        Err(PortError::NotOnLink { link: "udp", .. })
    ));
}

#[test]
fn a_port_that_publishes_later_is_found() {
    let config = bus("readers-later");
    let early = BusConfig {
        wait: Duration::from_millis(20),
        ..config.clone()
    };
    let waiting = open(&early, "viewer");
    let mut screen = sampling(&waiting, 6);
    let error = screen.follow("camera", port(5)).unwrap_err();
    assert!(matches!(error, PortError::PeerAbsent { .. }), "{error}");
    let node = open(&config, "camera");
    let mut lens = sampling(&node, 5);
    // It is there, and publishes nothing for anybody.
    let error = screen.follow("camera", port(5)).unwrap_err();
    assert!(matches!(error, PortError::PeerAbsent { .. }), "{error}");
    let readers = lens.readers().unwrap();
    publish(&mut lens, readers, 4);
    assert_eq!(next(&mut screen), (4, 0));
}

impl Many for SamplingPort {
    fn open(node: &Node, number: u16) -> Self {
        sampling(node, number)
    }

    fn publish(&mut self, readers: Destination, number: u64) {
        publish(self, readers, number);
    }

    fn next(&mut self) -> u64 {
        next(self).0
    }

    fn poll(&mut self, lost: &mut u64) -> Option<u64> {
        let value = SamplingPort::next(self, Wait::Poll).unwrap()?;
        *lost += value.sample().overwritten;
        Some(number_of(&value))
    }

    many!();
}

#[test]
fn no_reader_sees_a_torn_value_or_holds_the_writer() {
    a_slow_reader_harms_nobody::<SamplingPort>(&bus("readers-torn"));
}

#[test]
fn readers_that_sleep_are_woken() {
    sleepers_are_woken::<SamplingPort>(&bus("readers-sleep"));
}

#[test]
fn a_dead_reader_harms_nobody_and_a_dead_writer_is_followed_again() {
    const TEST: &str = "a_dead_reader_harms_nobody_and_a_dead_writer_is_followed_again";
    the_dead_harm_nobody(TEST, |screen: &mut SamplingPort, base| {
        let kept = screen.read().unwrap().expect("the last value is kept");
        assert!(number_of(&kept) > base);
    });
}

#[test]
fn another_user_of_the_group_reads() {
    another_user_reads::<SamplingPort>("another_user_of_the_group_reads");
}
