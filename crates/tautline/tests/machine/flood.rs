//! A flood from a third host for one port takes nothing from another, and queues of an interface that
//! deliver at once do not disturb each other's sources.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::common::{PACKET, Pair, Side, XDP, XDP_GENERIC, XDP_TC, config, on_sides, open, port};
use tautline::port::{Outgoing, Policing, QueuingOptions, SamplingOptions};
use tautline::{LinkKind, Node, Priority, QueuingPort, SamplingPort, SendError, Wait};
use tautline_testbed::child::{allowed_cpus, pin};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, ThirdHost};

const MESSAGES: u32 = 2_000;
/// Deep enough for a reader that is kept from its CPU by whatever else runs on the machine.
const DEPTH: u32 = 4_096;
const PERIOD: Duration = Duration::from_micros(300);
/// Fewer frames are no flood; a slow machine sends a hundred times as many in this test.
const FLOOD_MIN: u64 = 5_000;

/// Sends the smallest frames there are to port 41 of host B until a flag is set, and sets another with the first of
/// them; how many.
fn flood(hosts: &Hosts, third: &ThirdHost, started: &AtomicBool, stop: &AtomicBool) -> u64 {
    let config = config(hosts, Host::A, PACKET);
    let mut flooder = third
        .inside(|| {
            let node = Node::open(config).unwrap();
            node.queuing(port(41)).open().unwrap()
        })
        .unwrap();
    let to = flooder.destination("peer", port(41)).unwrap();
    let frame = Outgoing {
        to,
        priority: Priority::HIGHEST,
        message: &[],
    };
    let mut sent = 0;
    while !stop.load(Relaxed) {
        match flooder.send_batch(&[frame; 32]) {
            Ok(count) => sent += count as u64,
            Err(SendError::TransmitQueueFull) => {}
            Err(error) => panic!("{error}"),
        }
        started.store(true, Relaxed);
    }
    sent
}

/// The numbers 0 to `MESSAGES`, one a period, each until the kernel takes it.
fn send_all(sender: &mut QueuingPort) {
    let to = sender.destination("peer", port(40)).unwrap();
    for number in 0..MESSAGES {
        thread::sleep(PERIOD);
        while let Err(error) = sender.send(to, Priority::LOWEST, &number.to_be_bytes()) {
            assert_eq!(error, SendError::TransmitQueueFull);
            thread::yield_now();
        }
    }
}

/// Asked before any test has pinned its thread, which the next test may inherit.
static CPUS: LazyLock<Vec<usize>> = LazyLock::new(|| allowed_cpus().unwrap());

fn a_flood_takes_nothing_from_others(side: Side, policing: Option<Policing>) {
    let Some(pair) = crate::common::pair(PACKET, side) else {
        return;
    };
    let cpus = &*CPUS;
    let [first, .., last] = cpus[..] else {
        println!("SKIPPED: a reader with a core of its own needs two");
        return;
    };
    let hosts = pair.hosts.as_ref().unwrap();
    let third = hosts.third().unwrap();
    let options = QueuingOptions {
        depth: DEPTH,
        ..QueuingOptions::default()
    };
    let flooded = QueuingOptions {
        policing,
        ..QueuingOptions::default()
    };
    let mut sender = pair
        .on_a(|node| node.queuing(port(40)).options(&options).open())
        .unwrap();
    let (mut reader, _flooded) = pair.on_b(|node| {
        let reader = node.queuing(port(40)).options(&options).open().unwrap();
        (
            reader,
            node.queuing(port(41)).options(&flooded).open().unwrap(),
        )
    });
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (frames, received) = thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            pin(first).unwrap();
            flood(hosts, &third, &started, &stop)
        });
        while !started.load(Relaxed) && !flooding.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let reading = scope.spawn(|| {
            pin(last).unwrap();
            let (mut buffer, mut received) = ([0; 1484], Vec::new());
            while received.len() < MESSAGES as usize {
                let message = reader
                    .receive_into(&mut buffer, Wait::Until(pair.soon()))
                    .unwrap();
                if message.is_none() {
                    break;
                }
                received.push(u32::from_be_bytes(*buffer.first_chunk().unwrap()));
            }
            received
        });
        pin(first).unwrap();
        send_all(&mut sender);
        let received = reading.join().unwrap();
        stop.store(true, Relaxed);
        (flooding.join().unwrap(), received)
    });
    assert!(frames >= FLOOD_MIN, "{frames} frames are no flood");
    assert!(received.iter().copied().eq(0..MESSAGES), "all, in order");
    let status = pair.b.status();
    let [measured, flooded] = &status.ports[..] else {
        panic!("two ports");
    };
    assert_eq!((measured.peers.len(), measured.peers[0].lost), (1, 0));
    assert_eq!(measured.dropped_full, [0; 8]);
    let taken = flooded.frames - flooded.policed;
    match policing {
        // An hour's interval: the burst, and nothing after it.
        Some(policing) => assert_eq!(taken, u64::from(policing.burst)),
        None => assert!(taken == flooded.frames && flooded.dropped_full[7] > 0),
    }
}

const STRICT: Policing = Policing {
    interval: Duration::from_secs(3600),
    burst: 10,
};

#[test]
fn a_flood_on_xdp() {
    a_flood_takes_nothing_from_others(XDP, None);
    a_flood_takes_nothing_from_others(XDP, Some(STRICT));
}

on_sides! {
    fn a_flood_on_xdp_generic(XDP_GENERIC) = a_flood_takes_nothing_from_others, Some(STRICT);
    fn a_flood_on_xdp_tc(XDP_TC) = a_flood_takes_nothing_from_others, Some(STRICT);
}

/// A pair whose cable has a queue for each of two CPUs.
fn pair_of_two_queues() -> Option<Pair> {
    crate::common::hosts()?;
    let hosts = Hosts::create(&HostsOptions {
        queue_count: 2,
        ..HostsOptions::default()
    });
    let hosts = hosts.unwrap();
    Some(Pair {
        a: open(&hosts, Host::A, PACKET),
        b: open(&hosts, Host::B, XDP),
        network: None,
        control: None,
        hosts: Some(hosts),
    })
}

/// Writes values that are the same byte over and over, their numbers in front.
fn publish(publisher: &mut SamplingPort, cpu: usize, values: u32) {
    pin(cpu).unwrap();
    let to = publisher.destination("peer", port(22)).unwrap();
    for number in 1..=values {
        let mut value = [number as u8; 800];
        value[..4].copy_from_slice(&number.to_be_bytes());
        while let Err(error) = publisher.send(to, Priority::NORMAL, &value) {
            assert_eq!(error, SendError::TransmitQueueFull);
        }
    }
}

#[test]
fn queues_that_deliver_at_once_keep_their_sources_apart() {
    const VALUES: u32 = 20_000;
    let cpus = &*CPUS;
    let [first, .., last] = cpus[..] else {
        println!("SKIPPED: two queues that deliver at once need two CPUs");
        return;
    };
    let Some(pair) = pair_of_two_queues() else {
        return;
    };
    assert_eq!(pair.b.report().link, LinkKind::Xdp);
    let options = SamplingOptions {
        sources: 2,
        ..SamplingOptions::default()
    };
    let mut hub = pair
        .on_b(|node| node.sampling(port(22)).options(&options).open())
        .unwrap();
    let mut publishers = [31, 32].map(|number| {
        let options = SamplingOptions::default();
        pair.on_a(|node| node.sampling(port(number)).options(&options).open())
            .unwrap()
    });
    let mut newest = [0; 2];
    let mut values = 0;
    let mut buffer = [0; 1484];
    thread::scope(|scope| {
        for (publisher, cpu) in publishers.iter_mut().zip([first, last]) {
            scope.spawn(move || publish(publisher, cpu, VALUES));
        }
        while newest != [VALUES; 2] {
            let newer = hub
                .next_into(&mut buffer, Wait::Until(pair.soon()))
                .unwrap();
            let sample = newer.unwrap_or_else(|| panic!("the last value comes: {newest:?}"));
            let bytes = &buffer[..sample.length];
            let number = u32::from_be_bytes(*bytes.first_chunk().unwrap());
            let source = usize::from(sample.source.port.get() - 31);
            assert!(bytes[4..].iter().all(|byte| *byte == number as u8), "torn");
            assert!(number > newest[source], "back from {}", newest[source]);
            assert_eq!(number - newest[source], 1 + sample.overwritten as u32);
            newest[source] = number;
            values += 1 + sample.overwritten;
        }
    });
    assert_eq!(values, u64::from(2 * VALUES), "each was seen or counted");
    let status = &pair.b.status().ports[0];
    assert_eq!((status.contended, status.sources_refused), (0, 0));
    assert!(status.peers.iter().all(|peer| peer.lost == 0));
}
