//! Handles in a child of fork(2): refused there, and the parent's whatever the child drops.

use crate::common::{
    PACKET, Pair, Side, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK_GENERIC, bus_pair,
    controlled_pair, here, pair, port, queuing_with,
};
use tautline::keys::KeySource;
use tautline::link::RawFrames;
use tautline::port::{QueuingOptions, RAW_FRAME_BYTES_MAX};
use tautline::{
    EtherType, Node, NodeConfig, Priority, Protection, QueuingPort, SendError, Wait, neighbour,
    status,
};
use tautline_proto::authentication::{Cipher, Key, KeyRing};
use tautline_testbed::hosts::Host;
use tautline_testbed::sys::in_fork;

const HIGH: Priority = Priority::HIGHEST;
const PLAIN_UDP: u16 = 15_700;

/// Those of the calls that were not refused for being a forked process's, with what came of them.
macro_rules! not_refused {
    ($($call:expr),* $(,)?) => {{
        let results = [$((stringify!($call), $call.map(drop).map_err(|error| error.to_string()))),*];
        let is_wrong = |result: &Result<(), String>| {
            !matches!(result, Err(error) if error.contains("opened by another process"))
        };
        let wrong = results.into_iter().filter(|(_, result)| is_wrong(result));
        wrong.map(|(call, result)| format!("{call}: {result:?}")).collect::<Vec<_>>()
    }};
}

/// Sends from one port to the other, and receives it.
fn passes(sender: &mut QueuingPort, receiver: &mut QueuingPort, text: &[u8]) {
    let to = sender.destination("peer", receiver.number()).unwrap();
    sender.send(to, HIGH, text).unwrap();
    let mut buffer = [0; 1484];
    let length = receiver.take_into(&mut buffer).length;
    assert_eq!(&buffer[..length], text);
}

/// Every call of a child is refused, and whatever it drops the parent's ports go on.
fn a_child_harms_nothing(pair: Pair) {
    let (sender, receiver, to) = pair.ports(&QueuingOptions::default());
    let on_bus = pair.hosts.is_none();
    let (hosts, control) = (pair.hosts, pair.control);
    let mut owned = Some((sender, receiver, pair.a, pair.b));
    let parents = owned.as_mut().unwrap();
    passes(&mut parents.0, &mut parents.1, b"before the fork");
    parents
        .0
        .merge(to, HIGH, b"merged before the fork")
        .unwrap();
    let faults = in_fork(|| {
        let (sender, receiver, a, b) = owned.as_mut().unwrap();
        let mut buffer = [0; 1484];
        let faults = not_refused!(
            sender.send(to, HIGH, b"no"),
            sender.merge(to, HIGH, b"no"),
            sender.flush(),
            sender.lend(to, HIGH, 2),
            sender.destination("peer", port(99)),
            receiver.receive_into(&mut buffer, Wait::Poll),
            receiver.receive_into(&mut buffer, Wait::Forever),
            receiver.receive_in_place(Wait::Poll),
            a.queuing(port(99)).open(),
            b.sampling(port(99)).open(),
        );
        let descriptor = receiver
            .descriptor()
            .map(|_| "it has a descriptor".to_owned());
        drop(owned.take());
        faults.into_iter().chain(descriptor).collect()
    });
    assert_eq!(faults.unwrap(), [""; 0]);
    let (mut sender, mut receiver, a, b) = owned.unwrap();
    sender.flush().unwrap();
    let mut buffer = [0; 1484];
    let merged = receiver.take_into(&mut buffer);
    assert_eq!(
        &buffer[..merged.length],
        b"merged before the fork",
        "it is sent once"
    );
    passes(&mut sender, &mut receiver, b"after the fork");
    assert_eq!(
        receiver.look(&mut buffer, Wait::Poll),
        None,
        "nothing of the child's"
    );
    // A port that was not connected before finds the other one by its name.
    let open = || a.queuing(port(13)).open().unwrap();
    let mut late = match &hosts {
        Some(hosts) => hosts.inside(Host::A, open).unwrap(),
        None => open(),
    };
    passes(&mut late, &mut receiver, b"of another port");
    if on_bus {
        let own = std::process::id();
        let (told, _) = status::nodes().unwrap();
        let of_own = told.iter().filter(|node| node["process"] == own);
        assert!(of_own.count() >= 2, "both nodes still tell their status");
    }
    drop((sender, receiver, late, a, b, control));
}

#[test]
fn a_child_is_refused_and_leaves_the_ports_of_its_parent_open() {
    a_child_harms_nothing(bus_pair());
    for side in here([XDP, XDP_GENERIC, XDP_TC, XSK_GENERIC, PACKET, UDP]) {
        let other = if side.link == UDP.link { UDP } else { PACKET };
        let Some(pair) = pair(other, side) else {
            return;
        };
        a_child_harms_nothing(pair);
    }
}

#[test]
fn a_child_of_a_client_asks_nothing_of_the_control_process() {
    for side in here([XDP, XDP_TC]) {
        let Some(pair) = controlled_pair(PACKET, side) else {
            return;
        };
        a_child_harms_nothing(pair);
    }
}

/// Ports of the other kinds in a child.
fn other_kinds(side: Side) -> Option<()> {
    let pair = pair(PACKET, side)?;
    let soon = pair.soon();
    let open = |node: &Node| {
        let value = node.sampling(port(20)).open().unwrap();
        let datagrams = node.udp(PLAIN_UDP).open().unwrap();
        let raw = node.raw(EtherType::ETHERCAT).open().unwrap();
        (value, datagrams, raw)
    };
    assert_ne!(pair.b.report().capabilities.raw_frames, RawFrames::None);
    let (mut theirs, mut owned) = (pair.on_a(open), Some(pair.on_b(open)));
    let faults = in_fork(|| {
        let (value, datagrams, raw) = owned.as_mut().unwrap();
        let mut buffer = [0; 2_048];
        let faults = not_refused!(
            value.read_into(&mut buffer),
            value.read_in_place(),
            value.next(Wait::Poll),
            value.next_into(&mut buffer, Wait::Forever),
            datagrams.receive_into(&mut buffer, Wait::Poll),
            datagrams.receive_into(&mut buffer, Wait::Forever),
            datagrams.destination("peer", PLAIN_UDP),
            raw.receive_into(&mut buffer, Wait::Poll),
            raw.receive_into(&mut buffer, Wait::Forever),
            raw.send(&[0; 60]),
        );
        drop(owned.take());
        faults
    });
    assert_eq!(faults.unwrap(), [""; 0]);
    let (mut value, mut datagrams, mut raw) = owned.unwrap();
    let mut buffer = [0; 2_048];
    let to = theirs.0.destination("peer", port(20)).unwrap();
    theirs.0.send(to, HIGH, b"value").unwrap();
    let sample = value.take_into(&mut buffer);
    assert_eq!(&buffer[..sample.length], b"value");
    let to = theirs.1.destination("peer", PLAIN_UDP).unwrap();
    theirs.1.send_to(to, HIGH, b"datagram").unwrap();
    let datagram = datagrams.take_into(&mut buffer);
    assert_eq!(&buffer[..datagram.length], b"datagram");
    let mut frame = [0xFF; 60];
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xA4]);
    theirs.2.send(&frame).unwrap();
    let mut buffer = [0; RAW_FRAME_BYTES_MAX];
    assert!(raw.look(&mut buffer, Wait::Until(soon)).is_some());
    Some(())
}

#[test]
fn ports_of_all_kinds_outlive_what_a_child_drops() {
    for side in here([XDP, XDP_TC, XSK_GENERIC, PACKET]) {
        if other_kinds(side).is_none() {
            return;
        }
    }
}

/// A loan and a message that are open during the fork.
#[test]
fn a_child_neither_sends_nor_gives_back_what_its_parent_has_lent() {
    let pairs = [Some(bus_pair()), pair(PACKET, XDP)];
    for pair in pairs.into_iter().flatten() {
        let options = queuing_with(|options| options.depth = 2);
        let (mut sender, mut receiver, to) = pair.ports(&options);
        sender.send(to, HIGH, b"first").unwrap();
        let mut message = receiver.receive_in_place(Wait::Until(pair.soon())).unwrap();
        let mut loan = Some(sender.lend(to, HIGH, 6).unwrap());
        loan.as_mut().unwrap().copy_from_slice(b"second");
        let faults = in_fork(|| {
            let faults = not_refused!(loan.take().unwrap().send());
            drop(message.take());
            faults
        });
        assert_eq!(faults.unwrap(), [""; 0]);
        loan.unwrap().send().unwrap();
        // Of the two places of the class both are taken, or they would be written to.
        let third = sender.send(to, HIGH, b"third");
        let lent = message.unwrap();
        assert_eq!(lent.bytes().slice().unwrap_or(b"first"), b"first");
        drop(lent);
        let second = receiver.receive_in_place(Wait::Until(pair.soon())).unwrap();
        let second = second.expect("it was sent once");
        let mut bytes = [0; 6];
        second.bytes().copy_out(0, &mut bytes);
        assert_eq!(&bytes, b"second");
        drop(second);
        let is_on_bus = pair.hosts.is_none();
        assert_eq!(third == Err(SendError::ReceiverFull), is_on_bus);
        assert!(
            receiver.receive_in_place(Wait::Poll).unwrap().is_none(),
            "the first was kept"
        );
    }
}

#[test]
fn a_protected_port_uses_no_nonce_twice() {
    let secret = std::array::from_fn(|place| place as u8);
    let key = || KeyRing::new([Key::new(1, Cipher::Aes128Gcm, 0, secret)]).unwrap();
    let here = [127, 0, 0, 1].into();
    let config = NodeConfig::udp(here)
        .with_neighbour(neighbour("peer", here))
        .unwrap()
        .with_keys("peer", KeySource::Ring(key()));
    let node = Node::open(config).unwrap();
    let options = queuing_with(|options| options.protection = Some(Protection::Encrypted));
    let mut sender = node.queuing(port(3_701)).options(&options).open().unwrap();
    let mut receiver = node.queuing(port(3_702)).options(&options).open().unwrap();
    let to = sender.destination("peer", receiver.number()).unwrap();
    sender.send(to, HIGH, b"first").unwrap();
    let faults = in_fork(|| not_refused!(sender.send(to, HIGH, b"of the child")));
    assert_eq!(faults.unwrap(), [""; 0]);
    sender.send(to, HIGH, b"second").unwrap();
    let mut buffer = [0; 1484];
    for expected in ["first", "second"] {
        let message = receiver.take_into(&mut buffer);
        assert_eq!(&buffer[..message.length], expected.as_bytes());
    }
    receiver.finds_nothing(&mut buffer);
}
