//! One suite that every link passes, alone and with the links that it interoperates with.

mod common;

use std::time::Duration;

use common::{
    PACKET, Pair, UDP, XDP, XDP_GENERIC, XSK, XSK_GENERIC, bus_pair, controlled_pair, pair, port,
    sim_pair, zero_copy_demanded,
};
use tautline::link::{ArrivalClock, Copies, XdpMode};
use tautline::{
    Form, LinkKind, Outgoing, Policing, PortError, Priority, QueuingOptions, ReceiveError,
    SamplingOptions, SendError,
};

/// Runs every test of the suite on one pair of links.
macro_rules! suite {
    ($($name:ident: $pair:expr;)*) => {$(
        mod $name {
            use super::*;

            suite!(@tests $pair;
                capabilities_are_true
                messages_arrive_whole
                most_urgent_first_then_first_in_first_out
                a_full_class_drops_and_displaces_nothing
                large_messages_are_put_together
                what_is_too_large_is_refused
                what_is_lent_stays
                merged_messages_come_out_one_by_one
                a_batch_arrives_in_its_order
                the_last_value_is_kept
                each_source_has_its_own_value
                what_is_too_much_is_dropped_at_the_door
                a_deadline_is_kept
                an_answer_finds_the_sender
                a_sleeper_is_woken
                the_descriptor_wakes_epoll
                mistakes_are_answered
                counters_add_up
                a_port_can_be_opened_again
            );
        }
    )*};
    (@tests $pair:expr; $($test:ident)*) => {$(
        #[test]
        fn $test() {
            if let Some(pair) = $pair {
                super::$test(&pair);
            }
        }
    )*};
}

suite! {
    xdp: pair(XDP, XDP);
    xdp_generic: pair(XDP_GENERIC, XDP_GENERIC);
    xdp_through_control: controlled_pair(XDP, XDP);
    xsk: pair(XSK, XSK);
    xsk_generic: pair(XSK_GENERIC, XSK_GENERIC);
    packet: pair(PACKET, PACKET);
    udp: pair(UDP, UDP);
    sim: Some(sim_pair());
    vbus: Some(bus_pair());
    packet_to_xdp: pair(PACKET, XDP);
    xdp_to_packet: pair(XDP, PACKET);
    udp_to_xdp: pair(UDP, XDP.speaking_udp());
    xdp_to_udp: pair(XDP.speaking_udp(), UDP);
    xsk_to_xdp: pair(XSK, XDP);
    xdp_to_xsk: pair(XDP, XSK);
    packet_to_xsk: pair(PACKET, XSK);
    xsk_to_packet: pair(XSK, PACKET);
    udp_to_xsk: pair(UDP, XSK.speaking_udp());
    xsk_to_udp: pair(XSK.speaking_udp(), UDP);
    packet_to_udp: pair(PACKET.speaking_udp(), UDP);
}

fn buffer() -> Vec<u8> {
    vec![0; 65_536]
}

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length)
        .map(|index| (index as u8).wrapping_mul(31).wrapping_add(salt))
        .collect()
}

fn capabilities_are_true(pair: &Pair) {
    for node in [&pair.a, &pair.b] {
        let report = node.report();
        let can = &report.capabilities;
        assert_eq!(can.descriptor, !pair.is_virtual());
        let bus = report.link == LinkKind::Vbus;
        assert_eq!(can.ethernet_form, !bus && report.link != LinkKind::Udp);
        assert_eq!(
            (can.lends, can.answers_sender, can.polices),
            (true, bus, !bus)
        );
        let copies = |copies: Copies| {
            let Copies { send, receive, .. } = copies;
            (receive, copies.receive_lent, send, copies.send_lent)
        };
        let socket = (3, 2, 2, 1);
        let (of_message, of_datagram) = match report.link {
            LinkKind::Xdp if report.control_process.is_some() => ((2, 1, 2, 1), Some(socket)),
            LinkKind::Xdp => ((2, 1, 2, 1), Some((2, 1, 2, 1))),
            LinkKind::Xsk if can.zero_copy == Some(true) => ((2, 1, 1, 1), Some((2, 1, 2, 1))),
            LinkKind::Xsk => ((3, 2, 2, 2), Some((3, 2, 3, 2))),
            LinkKind::Sim => ((3, 2, 2, 2), None),
            LinkKind::Vbus => ((1, 0, 1, 0), None),
            _ => (socket, Some(socket)),
        };
        assert_eq!(copies(can.copies), of_message);
        assert_eq!(can.udp_copies.map(copies), of_datagram);
        assert_eq!(can.delivered_by_kernel, report.link == LinkKind::Xdp);
        let is_xsk = report.link == LinkKind::Xsk;
        assert_eq!(
            can.xdp_mode.is_some(),
            is_xsk || report.link == LinkKind::Xdp
        );
        // A veth has no zero-copy mode, so there the kernel copies, and it is said; in generic mode everywhere.
        let zero = zero_copy_demanded() && can.xdp_mode == Some(XdpMode::Native);
        assert_eq!(can.zero_copy, is_xsk.then_some(zero));
        let text = report.to_string();
        assert_eq!(text.contains("copy mode"), is_xsk && !zero);
        assert_eq!(text.contains("zero-copy"), is_xsk && zero);
        let clock = match report.link {
            LinkKind::Xdp | LinkKind::Xsk => ArrivalClock::Demux,
            LinkKind::Sim => ArrivalClock::Virtual,
            LinkKind::Vbus => ArrivalClock::Sender,
            _ => ArrivalClock::SocketTimestamp,
        };
        assert_eq!(can.arrival_clock, clock);
        assert!(report.not_better.is_empty(), "{report}");
    }
}

/// Whether the sender is told what the receiver could not take.
fn answers_sender(pair: &Pair) -> bool {
    pair.a.report().capabilities.answers_sender
}

fn has_descriptor(pair: &Pair) -> bool {
    let mut opened = pair
        .on_b(|node| node.queuing_port(port(900), &QueuingOptions::default()))
        .unwrap();
    opened.descriptor().is_some()
}

fn messages_arrive_whole(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    let whole_max = pair.a.report().capabilities.whole_bytes_max.min(1456);
    for (count, length) in [0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 1400, whole_max]
        .into_iter()
        .enumerate()
    {
        let sent = pattern(length, count as u8);
        let before = pair.now();
        sender.send(to, Priority::NORMAL, &sent).unwrap();
        let message = receiver
            .receive_until(pair.soon(), &mut buffer)
            .unwrap()
            .expect("arrives");
        assert_eq!(&buffer[..message.length], sent);
        assert_eq!(message.priority, Priority::NORMAL);
        assert_eq!(message.source.port, port(11));
        assert_eq!(message.sequence, count as u32);
        // The realtime clock of a socket's timestamp is moved to the monotonic one with an error
        // of microseconds.
        let earliest = before.as_nanos().saturating_sub(1_000_000);
        assert!((earliest..=pair.now().as_nanos()).contains(&message.arrival.as_nanos()));
    }
    assert_eq!(receiver.receive(&mut buffer).unwrap(), None);
}

/// Sends without reading until all that was sent lies in the receiver's memory or socket.
fn settle(pair: &Pair) {
    if let Some(network) = &pair.network {
        network.advance(Duration::from_millis(1));
    } else {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn most_urgent_first_then_first_in_first_out(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    for number in 0..24u8 {
        sender
            .send(to, Priority::ALL[usize::from(number % 8)], &[number])
            .unwrap();
    }
    settle(pair);
    let mut buffer = buffer();
    let mut taken = Vec::new();
    while let Some(message) = receiver.receive(&mut buffer).unwrap() {
        assert_eq!(message.priority.get(), buffer[0] % 8);
        taken.push(buffer[0]);
    }
    let expected: Vec<u8> = (0..8)
        .rev()
        .flat_map(|class| [class, class + 8, class + 16])
        .collect();
    assert_eq!(taken, expected);
}

fn a_full_class_drops_and_displaces_nothing(pair: &Pair) {
    let options = QueuingOptions {
        depth: 8,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&options);
    sender.send(to, Priority::HIGHEST, &[100]).unwrap();
    for number in 0..12u8 {
        let expected = match answers_sender(pair) && number >= 8 {
            true => Err(SendError::ReceiverFull),
            false => Ok(()),
        };
        assert_eq!(sender.send(to, Priority::LOWEST, &[number]), expected);
    }
    sender.send(to, Priority::NORMAL, &[101]).unwrap();
    settle(pair);
    let mut buffer = buffer();
    let mut taken = Vec::new();
    while let Some(message) = receiver.receive(&mut buffer).unwrap() {
        assert_eq!(message.length, 1);
        taken.push(buffer[0]);
    }
    assert_eq!(taken[..2], [100, 101]);
    assert_eq!(taken[2..], [0, 1, 2, 3, 4, 5, 6, 7], "the oldest stay");
    let status = pair.b.status();
    assert_eq!(status.ports[0].dropped_full, [4, 0, 0, 0, 0, 0, 0, 0]);
    sender.send(to, Priority::LOWEST, &[102]).unwrap();
    let message = receiver.receive_until(pair.soon(), &mut buffer).unwrap();
    assert!(message.is_some() && buffer[0] == 102, "there is room again");
}

fn large_messages_are_put_together(pair: &Pair) {
    let options = QueuingOptions {
        message_bytes_max: 65_536,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let mut buffer = buffer();
    for (salt, length) in [1485, 1408 * 2, 1408 * 2 + 1, 40_000, 65_536]
        .into_iter()
        .enumerate()
    {
        let sent = pattern(length, salt as u8);
        sender.send(to, Priority::NORMAL, &sent).unwrap();
        let message = receiver
            .receive_until(pair.soon(), &mut buffer)
            .unwrap()
            .expect("arrives");
        assert_eq!(message.length, length);
        assert!(
            buffer[..length] == sent[..],
            "{length} bytes arrive as they were"
        );
    }
}

fn what_is_lent_stays(pair: &Pair) {
    lent_messages_arrive_and_hold_their_place(pair);
    merged_messages_can_be_lent(pair);
    a_lent_value_stays(pair);
}

fn lent_messages_arrive_and_hold_their_place(pair: &Pair) {
    let options = QueuingOptions {
        depth: 64,
        message_bytes_max: 65_536,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&options);
    assert!(receiver.receive_lent().unwrap().is_none());
    let mut out = buffer();
    for (salt, length) in [0, 1, 63, 1000, 1456, 1485, 40_000, 65_536]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(length, salt as u8);
        // Dropped without being sent, it is as if it had not been asked for.
        drop(sender.lend(to, Priority::HIGHEST, length).unwrap());
        let mut loan = sender.lend(to, Priority::NORMAL, length).unwrap();
        loan.copy_from_slice(&bytes);
        loan.send().unwrap();
        let message = receiver.receive_lent_until(pair.soon()).unwrap();
        let message = message.expect("arrives");
        assert_eq!(message.priority, Priority::NORMAL);
        assert_eq!(message.source.port, port(11));
        assert_eq!(message.bytes().len(), length);
        assert_eq!(message.bytes().copy_out(0, &mut out), length);
        assert!(out[..length] == bytes, "{length} bytes");
        let foreign = pair.b.report().link == LinkKind::Vbus;
        assert_eq!(message.bytes().slice().is_some(), !foreign);
        assert!(message.bytes().slice().is_none_or(|slice| slice == bytes));
    }
    assert!(receiver.receive_lent().unwrap().is_none());
    let status = pair.b.status();
    assert_eq!(status.ports[0].received, 8);

    // While the oldest is looked at, its class takes one less, and nothing is written over it.
    let options = QueuingOptions {
        depth: 4,
        ..QueuingOptions::default()
    };
    drop((sender, receiver));
    let (mut sender, mut receiver, to) = pair.ports(&options);
    sender.send(to, Priority::NORMAL, &[9; 100]).unwrap();
    let lent = receiver.receive_lent_until(pair.soon()).unwrap().unwrap();
    for number in 0..3 {
        sender.send(to, Priority::NORMAL, &[number; 100]).unwrap();
    }
    let full = sender.send(to, Priority::NORMAL, &[3; 100]);
    assert_eq!(full.is_err(), answers_sender(pair));
    settle(pair);
    lent.bytes().copy_out(0, &mut out);
    assert_eq!(out[..100], [9; 100]);
    drop(lent);
    let mut taken = Vec::new();
    while let Some(lent) = receiver.receive_lent().unwrap() {
        lent.bytes().copy_out(0, &mut out);
        assert!(out[..100].iter().all(|byte| *byte == out[0]));
        taken.push(out[0]);
    }
    // Where a socket stands before the port, what is too much waits there until somebody collects.
    let waited = pair.b.report().capabilities.delivered_by_kernel || answers_sender(pair);
    let expected: &[u8] = if waited { &[0, 1, 2] } else { &[0, 1, 2, 3] };
    assert_eq!(taken, expected);
}

fn merged_messages_can_be_lent(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut out = buffer();
    for number in 0..5u8 {
        let message = pattern(usize::from(number) * 10 + 1, number);
        sender.merge(to, Priority::NORMAL, &message).unwrap();
    }
    sender.flush().unwrap();
    for number in 0..5u8 {
        if number == 3 {
            // Looked at and copied in turn.
            let message = receiver.receive_until(pair.soon(), &mut out).unwrap();
            assert_eq!(out[..message.unwrap().length], pattern(31, 3));
            continue;
        }
        let lent = receiver.receive_lent_until(pair.soon()).unwrap().unwrap();
        let length = lent.bytes().copy_out(0, &mut out);
        let expected = pattern(usize::from(number) * 10 + 1, number);
        assert_eq!(out[..length], expected);
    }
    assert!(receiver.receive_lent().unwrap().is_none());
    assert_eq!(pair.b.status().ports[0].queued, [0; 8]);
}

fn a_lent_value_stays(pair: &Pair) {
    let options = SamplingOptions::default();
    let mut sender = pair
        .on_a(|node| node.sampling_port(port(31), &options))
        .unwrap();
    let mut reader = pair
        .on_b(|node| node.sampling_port(port(32), &options))
        .unwrap();
    let to = sender.destination("peer", port(32)).unwrap();
    assert!(reader.read_lent().unwrap().is_none());
    let mut out = buffer();
    let mut lend = |value: u8| {
        let mut loan = sender.lend(to, Priority::NORMAL, 100).unwrap();
        loan.fill(value);
        loan.send().unwrap();
    };
    lend(1);
    settle(pair);
    let first = reader.read_lent().unwrap().unwrap();
    assert!(first.new);
    for value in 2..6 {
        lend(value);
    }
    settle(pair);
    assert_eq!(first.bytes.copy_out(0, &mut out), 100);
    assert_eq!(out[..100], [1; 100], "it stays while it is looked at");
    let last = reader.read_lent().unwrap().unwrap();
    last.bytes.copy_out(0, &mut out);
    assert_eq!((out[0], last.new, last.overwritten), (5, true, 3));
    assert!(!reader.read_lent().unwrap().unwrap().new);
}

fn what_is_too_large_is_refused(pair: &Pair) {
    let small = QueuingOptions {
        message_bytes_max: 100,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&small);
    let mut buffer = buffer();
    assert_eq!(
        sender.send(to, Priority::NORMAL, &vec![0; 65_537]),
        Err(SendError::MessageTooLarge { bytes: 65_537 })
    );
    assert_eq!(
        receiver.receive(&mut [0; 99]),
        Err(ReceiveError::BufferTooSmall {
            given: 99,
            needed: 100
        })
    );
    for message in [&[1; 101][..], &[2; 3000]] {
        let expected = match answers_sender(pair) {
            true => Err(SendError::LargerThanReceiver {
                bytes: message.len(),
                largest: 100,
            }),
            false => Ok(()),
        };
        assert_eq!(sender.send(to, Priority::NORMAL, message), expected);
    }
    sender.send(to, Priority::NORMAL, &[3; 100]).unwrap();
    let message = receiver
        .receive_until(pair.soon(), &mut buffer)
        .unwrap()
        .unwrap();
    assert_eq!((message.length, buffer[0]), (100, 3));
    let counted = pair.b.status().ports[0].too_large;
    let expected = if answers_sender(pair) { 0 } else { 1 + 3 };
    assert_eq!(counted, expected, "one whole frame, three fragments");
}

fn merged_messages_come_out_one_by_one(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    sender.flush().unwrap();
    if !pair.a.report().capabilities.merges {
        sender.merge(to, Priority::NORMAL, b"at once").unwrap();
        let message = receiver.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..message.length], b"at once");
        assert_eq!(pair.a.status().ports[0].merged, 0);
        return;
    }
    for number in 0..5u8 {
        let message = pattern(usize::from(number) * 10, number);
        sender.merge(to, Priority::NORMAL, &message).unwrap();
    }
    settle(pair);
    assert_eq!(receiver.receive(&mut buffer).unwrap(), None, "no timer");
    sender.flush().unwrap();
    settle(pair);
    for number in 0..5u8 {
        let message = receiver.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(
            buffer[..message.length],
            pattern(usize::from(number) * 10, number)
        );
        assert_eq!((message.priority, message.sequence), (Priority::NORMAL, 0));
        if number == 1 {
            // What is more urgent overtakes the rest of a bundle.
            sender.send(to, Priority::HIGHEST, b"now").unwrap();
            settle(pair);
            let urgent = receiver.receive(&mut buffer).unwrap().unwrap();
            assert_eq!(&buffer[..urgent.length], b"now");
        }
    }
    assert_eq!(receiver.receive(&mut buffer).unwrap(), None);

    // Full, another priority, a send of the same one, too large: each sends what is merged first.
    for number in 0..40u8 {
        sender
            .merge(to, Priority::NORMAL, &pattern(100, number))
            .unwrap();
    }
    sender.merge(to, Priority::LOWEST, &[40]).unwrap();
    sender.send(to, Priority::LOWEST, &[41]).unwrap();
    sender.merge(to, Priority::LOWEST, &[42; 30]).unwrap();
    sender
        .merge(to, Priority::LOWEST, &pattern(1456, 43))
        .unwrap();
    sender.flush().unwrap();
    settle(pair);
    for number in 0..40u8 {
        let message = receiver.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(buffer[..message.length], pattern(100, number));
    }
    for (first, length) in [(40, 1), (41, 1), (42, 30), (43, 1456)] {
        let message = receiver.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((buffer[0], message.length), (first, length));
    }
    let sent = &pair.a.status().ports[0];
    assert_eq!(
        (sent.sent, sent.merged, sent.send_errors),
        (5 + 1 + 44, 45, 0)
    );
    let received = &pair.b.status().ports[0];
    assert_eq!((received.received, received.bad_bundles), (50, 0));
    // A frame takes 14 of these messages: two are full, the third was sent for the priority.
    assert_eq!(received.frames, 2 + 3 + 4);
    assert_eq!(received.peers[0].lost, 0);
    assert_eq!(received.queued, [0; 8], "each record was given back");

    // A receiver that takes less than a bundle holds skips what is too large.
    drop(receiver);
    let small = QueuingOptions {
        message_bytes_max: 50,
        ..QueuingOptions::default()
    };
    let mut receiver = pair
        .on_b(|node| node.queuing_port(port(12), &small))
        .unwrap();
    for length in [51, 50, 60, 70, 1, 80] {
        sender
            .merge(to, Priority::NORMAL, &pattern(length, 1))
            .unwrap();
    }
    drop(sender); // Which flushes.
    settle(pair);
    let mut lengths = Vec::new();
    while let Some(message) = receiver.receive(&mut buffer).unwrap() {
        lengths.push(message.length);
    }
    assert_eq!(lengths, [50, 1]);
    assert_eq!(pair.b.status().ports[0].too_large, 4);
}

fn a_batch_arrives_in_its_order(pair: &Pair) {
    let options = QueuingOptions {
        depth: 256,
        message_bytes_max: 10_000,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let mut buffer = buffer();
    assert_eq!(sender.send_batch(&[]).unwrap(), 0);
    let messages: Vec<_> = (0..100u8)
        .map(|number| match number {
            // One that is larger than a frame, and one that is empty.
            50 => pattern(10_000, 50),
            60 => Vec::new(),
            _ => pattern(usize::from(number) + 1, number),
        })
        .collect();
    let outgoing = |message| Outgoing {
        to,
        priority: Priority::NORMAL,
        message,
    };
    let batch: Vec<_> = messages
        .iter()
        .map(|message| outgoing(&message[..]))
        .collect();
    sender
        .merge(to, Priority::NORMAL, b"merged before")
        .unwrap();
    assert_eq!(sender.send_batch(&batch).unwrap(), 100);
    let first = receiver.receive_until(pair.soon(), &mut buffer).unwrap();
    assert_eq!(&buffer[..first.unwrap().length], b"merged before");
    for (number, expected) in messages.iter().enumerate() {
        let message = receiver.receive_until(pair.soon(), &mut buffer).unwrap();
        let length = message.expect("arrives").length;
        assert!(buffer[..length] == expected[..], "message {number}");
    }
    let received = &pair.b.status().ports[0];
    // The large one goes in eight, where there are frames.
    let of_large = if pair.a.report().capabilities.merges {
        8
    } else {
        1
    };
    assert_eq!(received.frames, 1 + 99 + of_large);
    assert_eq!(received.peers[0].lost, 0);

    // What comes before a message that cannot be sent is sent.
    let hopeless = vec![0; 65_537];
    let batch = [
        outgoing(&b"sent"[..]),
        outgoing(&hopeless),
        outgoing(b"not tried"),
    ];
    assert_eq!(sender.send_batch(&batch), Ok(1));
    assert_eq!(
        sender.send_batch(&batch[1..]),
        Err(SendError::MessageTooLarge { bytes: 65_537 })
    );
    assert_eq!(sender.send_batch(&batch[2..]), Ok(1));
    for expected in [&b"sent"[..], b"not tried"] {
        let message = receiver.receive_until(pair.soon(), &mut buffer).unwrap();
        assert_eq!(&buffer[..message.unwrap().length], expected);
    }
    let status = &pair.a.status().ports[0];
    assert_eq!((status.sent, status.send_errors), (103, 1));
    assert_eq!(pair.b.status().ports[0].peers[0].lost, 0);
}

fn the_last_value_is_kept(pair: &Pair) {
    let options = SamplingOptions {
        refresh_period: Duration::from_millis(100),
        ..SamplingOptions::default()
    };
    let mut publisher = pair
        .on_a(|node| node.sampling_port(port(21), &options))
        .unwrap();
    let mut reader = pair
        .on_b(|node| node.sampling_port(port(22), &options))
        .unwrap();
    let to = publisher.destination("peer", port(22)).unwrap();
    let mut buffer = buffer();
    assert_eq!(
        reader.read(&mut buffer).unwrap(),
        None,
        "there has never been a value"
    );
    for value in 1..=5u8 {
        publisher
            .send(to, Priority::NORMAL, &pattern(100, value))
            .unwrap();
    }
    settle(pair);
    let sample = reader.read(&mut buffer).unwrap().unwrap();
    assert_eq!(&buffer[..sample.length], pattern(100, 5));
    assert!(sample.new);
    assert_eq!(sample.valid, sample.age <= options.refresh_period);
    assert!(sample.valid || !pair.is_virtual());
    assert_eq!((sample.overwritten, sample.sequence), (4, 4));
    assert_eq!(sample.source.port, port(21));
    let again = reader.read(&mut buffer).unwrap().unwrap();
    assert!(!again.new);
    assert_eq!((again.overwritten, again.sequence), (0, 4));
    assert_eq!(again.arrival, sample.arrival);
    if let Some(network) = &pair.network {
        network.advance(Duration::from_millis(150));
    } else {
        std::thread::sleep(Duration::from_millis(150));
    }
    let old = reader.read(&mut buffer).unwrap().unwrap();
    assert!(!old.valid && old.age >= Duration::from_millis(100));
    publisher.send(to, Priority::NORMAL, b"new").unwrap();
    let new = reader
        .read_new_until(pair.soon(), &mut buffer)
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..new.length], b"new");
    assert!(new.new && new.overwritten == 0);
    assert_eq!(new.valid, new.age <= options.refresh_period);
    // What is larger than a value has no place in a sampling port, nor have its fragments.
    let large = publisher.send(to, Priority::NORMAL, &[0; 2000]);
    assert_eq!(large.is_err(), answers_sender(pair));
    settle(pair);
    assert!(!reader.read(&mut buffer).unwrap().unwrap().new);
    let unfit = if answers_sender(pair) { 0 } else { 2 };
    assert_eq!(pair.b.status().ports[0].unfit, unfit);
}

fn each_source_has_its_own_value(pair: &Pair) {
    let options = SamplingOptions {
        sources: 3,
        refresh_period: Duration::from_millis(100),
        ..SamplingOptions::default()
    };
    let mut hub = pair
        .on_b(|node| node.sampling_port(port(22), &options))
        .unwrap();
    let mut publishers: Vec<_> = (31..35)
        .map(|number| {
            let options = SamplingOptions::default();
            let open = |node: &tautline::Node| node.sampling_port(port(number), &options);
            let mut publisher = pair.on_a(open).unwrap();
            let to = publisher.destination("peer", port(22)).unwrap();
            (publisher, to)
        })
        .collect();
    let mut publish = |index: usize, value: &[u8]| {
        let (publisher, to) = &mut publishers[index];
        let expected = match answers_sender(pair) && value == b"refused" {
            true => Err(SendError::PeerGone),
            false => Ok(()),
        };
        assert_eq!(publisher.send(*to, Priority::NORMAL, value), expected);
        if let Some(network) = &pair.network {
            network.advance(Duration::from_micros(100));
        }
    };
    let mut buffer = buffer();
    let mut newer = |hub: &mut tautline::SamplingPort, wait: bool| {
        let mut seen = Vec::new();
        let each = |sample: &tautline::Sample, bytes: &[u8]| {
            assert!(sample.new);
            seen.push((sample.source.port.get(), bytes.to_vec(), sample.overwritten));
        };
        let count = match wait {
            true => hub.read_newer_until(pair.soon(), &mut buffer, each),
            false => hub.read_newer(&mut buffer, each),
        };
        assert_eq!(count.unwrap(), seen.len());
        seen
    };
    assert!(newer(&mut hub, false).is_empty());
    assert_eq!(hub.sources().count(), 0);
    publish(1, b"b1");
    publish(0, b"a1");
    publish(1, b"b2");
    publish(2, b"c1");
    publish(3, b"refused");
    settle(pair);
    let expected = [(31, "a1", 0), (32, "b2", 1), (33, "c1", 0)];
    let expected = expected.map(|(port, text, over)| (port, text.as_bytes().to_vec(), over));
    assert_eq!(
        newer(&mut hub, true),
        expected,
        "the first to arrive at first"
    );
    assert!(newer(&mut hub, false).is_empty(), "nothing is newer");
    assert!(!hub.fresh());
    publish(2, b"c2");
    publish(0, b"a2");
    settle(pair);

    let mut buffer = vec![0; 1484];
    let last = hub.read(&mut buffer).unwrap().unwrap();
    assert_eq!(
        (&buffer[..2], last.new),
        (&b"a2"[..], true),
        "the last of all"
    );
    let known: Vec<_> = hub.sources().collect();
    assert_eq!(known.len(), 3);
    let third = *known.iter().find(|source| source.port == port(33)).unwrap();
    let c = hub.read_from(third, &mut buffer).unwrap().unwrap();
    assert_eq!((&buffer[..2], c.new, c.overwritten), (&b"c2"[..], true, 0));
    let c = hub.read_from(third, &mut buffer).unwrap().unwrap();
    assert_eq!((&buffer[..2], c.new), (&b"c2"[..], false));
    let stranger = tautline::Source {
        port: port(34),
        ..third
    };
    assert_eq!(hub.read_from(stranger, &mut buffer).unwrap(), None);
    publish(3, b"refused");
    publish(1, b"b3");
    settle(pair);
    let next = hub
        .read_new_until(pair.soon(), &mut buffer)
        .unwrap()
        .unwrap();
    assert_eq!((&buffer[..2], next.source.port), (&b"b3"[..], port(32)));
    let status = &pair.b.status().ports[0];
    assert_eq!(status.sources, Some(3));
    assert_eq!((status.received, status.overwritten), (6, 1));
    if answers_sender(pair) {
        // The fourth is refused as often as it tries to connect, and sends nothing.
        assert!(status.sources_refused > 0);
        assert_eq!(status.frames, 7);
    } else {
        assert_eq!((status.frames, status.sources_refused), (9, 2));
    }
    assert_eq!(status.peers.len(), 3);
    assert!(status.peers.iter().all(|peer| peer.lost == 0));
    for sources in [0, 49] {
        let options = SamplingOptions {
            sources,
            ..SamplingOptions::default()
        };
        let refused = pair.on_b(|node| node.sampling_port(port(24), &options));
        assert!(matches!(refused, Err(PortError::BadSources { .. })));
    }
}

fn what_is_too_much_is_dropped_at_the_door(pair: &Pair) {
    let strict = Policing {
        interval: Duration::from_secs(3600),
        burst: 5,
    };
    let options = QueuingOptions {
        policing: Some(strict),
        ..QueuingOptions::default()
    };
    if !pair.b.report().capabilities.polices {
        let refused = pair.on_b(|node| node.queuing_port(port(12), &options));
        assert!(matches!(
            refused,
            Err(PortError::NotOnLink { link: "vbus", .. })
        ));
        return;
    }
    let (mut sender, mut receiver, to) = pair.ports(&options);
    // The kernel begins to stamp arrivals a moment after the first socket that asks for it: what comes before
    // is stamped when it is read, later than what comes after.
    settle(pair);
    for number in 0..12 {
        let priority = Priority::ALL[usize::from(number % 8)];
        sender.send(to, priority, &[number]).unwrap();
    }
    settle(pair);
    let mut buffer = buffer();
    let mut taken = Vec::new();
    while receiver.receive(&mut buffer).unwrap().is_some() {
        taken.push(buffer[0]);
    }
    assert_eq!(
        taken,
        [4, 3, 2, 1, 0],
        "the first five, the most urgent first"
    );
    let status = &pair.b.status().ports[0];
    assert_eq!((status.policing, status.policed), (Some(strict), 7));
    assert_eq!((status.frames, status.dropped_full), (12, [0; 8]));

    let refilling = SamplingOptions {
        policing: Some(Policing {
            interval: Duration::from_millis(1),
            burst: 2,
        }),
        ..SamplingOptions::default()
    };
    let mut reader = pair
        .on_b(|node| node.sampling_port(port(23), &refilling))
        .unwrap();
    let to = sender.destination("peer", port(23)).unwrap();
    for value in 0..3 {
        for _ in 0..2 {
            sender.send(to, Priority::NORMAL, &[value]).unwrap();
        }
        settle(pair);
        if let Some(network) = &pair.network {
            network.advance(Duration::from_millis(5));
        }
        let sample = reader.read(&mut buffer).unwrap().unwrap();
        assert_eq!(
            (buffer[0], sample.overwritten),
            (value, 1),
            "paid meanwhile"
        );
    }
    assert_eq!(pair.b.status().ports[1].policed, 0);

    let hopeless = SamplingOptions {
        policing: Some(Policing::per_second(0, 1)),
        ..SamplingOptions::default()
    };
    let refused = pair.on_b(|node| node.sampling_port(port(24), &hopeless));
    assert!(matches!(
        refused,
        Err(PortError::BadPolicing { burst: 1, .. })
    ));
}

fn a_deadline_is_kept(pair: &Pair) {
    let (_sender, mut receiver, _) = pair.ports(&QueuingOptions::default());
    let mut reader = pair
        .on_b(|node| node.sampling_port(port(30), &SamplingOptions::default()))
        .unwrap();
    let mut buffer = buffer();
    let deadline = pair.now() + Duration::from_millis(30);
    assert_eq!(receiver.receive_until(deadline, &mut buffer).unwrap(), None);
    assert!(pair.now() >= deadline);
    let past = pair.now();
    assert_eq!(receiver.receive_until(past, &mut buffer).unwrap(), None);
    let deadline = pair.now() + Duration::from_millis(30);
    assert_eq!(reader.read_new_until(deadline, &mut buffer).unwrap(), None);
    assert!(pair.now() >= deadline);
}

fn an_answer_finds_the_sender(pair: &Pair) {
    let (mut asker, mut answerer, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    for count in 0..3u32 {
        asker.send(to, Priority::NORMAL, b"question").unwrap();
        let question = answerer
            .receive_until(pair.soon(), &mut buffer)
            .unwrap()
            .unwrap();
        let back = answerer.reply_to(question.source).unwrap();
        answerer.send(back, question.priority, b"answer").unwrap();
        let answer = asker
            .receive_until(pair.soon(), &mut buffer)
            .unwrap()
            .unwrap();
        assert_eq!(&buffer[..answer.length], b"answer");
        assert_eq!(answer.sequence, count, "one flow, whoever asks");
    }
}

fn a_sleeper_is_woken(pair: &Pair) {
    if pair.is_virtual() {
        return; // Waiting moves the clock there: nobody sleeps.
    }
    let options = QueuingOptions {
        spin: Duration::ZERO,
        ..QueuingOptions::default()
    };
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let soon = pair.soon();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut buffer = buffer();
            for number in 0..20 {
                let message = receiver.receive_until(soon, &mut buffer).unwrap();
                assert_eq!((message.unwrap().length, buffer[0]), (1, number));
            }
        });
        for number in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            sender.send(to, Priority::NORMAL, &[number]).unwrap();
        }
        sleeper.join().unwrap();
    });
}

fn the_descriptor_wakes_epoll(pair: &Pair) {
    assert_eq!(
        has_descriptor(pair),
        pair.b.report().capabilities.descriptor
    );
    if !has_descriptor(pair) {
        return; // Reported, and checked with the capabilities.
    }
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    for round in 0..5u8 {
        while receiver.receive(&mut buffer).unwrap().is_some() {}
        let is_readable = |receiver: &mut tautline::QueuingPort, limit_ms: i64| {
            let descriptor = receiver.descriptor().unwrap();
            let limit = Timespec {
                tv_sec: limit_ms / 1000,
                tv_nsec: limit_ms % 1000 * 1_000_000,
            };
            let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            poll(&mut set, Some(&limit)).unwrap() == 1
        };
        assert!(!is_readable(&mut receiver, 10), "nothing has come");
        sender.send(to, Priority::NORMAL, &[round]).unwrap();
        sender.send(to, Priority::NORMAL, &[round]).unwrap();
        let descriptor_again = is_readable(&mut receiver, 5000);
        assert!(descriptor_again, "round {round}");
        assert!(receiver.receive(&mut buffer).unwrap().is_some());
        // On a wire it may still be on its way.
        let second = receiver.receive_until(pair.soon(), &mut buffer).unwrap();
        assert!(second.is_some());
        assert!(receiver.receive(&mut buffer).unwrap().is_none());
    }
}

fn mistakes_are_answered(pair: &Pair) {
    let options = QueuingOptions::default();
    let mut first = pair
        .on_a(|node| node.queuing_port(port(40), &options))
        .unwrap();
    let again = pair
        .on_a(|node| node.queuing_port(port(40), &options))
        .unwrap_err();
    assert!(matches!(again, PortError::OpenHere { port: number } if number == port(40)));
    let unknown = first.destination("nobody", port(1)).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "no neighbour `nobody` (there are: peer)"
    );
    assert!("4096".parse::<tautline::PortNumber>().is_err());
    assert!("0".parse::<tautline::PortNumber>().is_err());
    for (number, expected) in (1..=65).map(|number| (number, number <= 64)) {
        assert_eq!(first.destination("peer", port(number)).is_ok(), expected);
    }
    let depth = QueuingOptions {
        depth: 3,
        ..options.clone()
    };
    let refused = pair
        .on_a(|node| node.queuing_port(port(41), &depth))
        .unwrap_err();
    assert!(matches!(refused, PortError::BadDepth { depth: 3 }));
    let shallow = QueuingOptions {
        depth: 8,
        message_bytes_max: 65_536,
        ..options
    };
    let refused = pair
        .on_a(|node| node.queuing_port(port(41), &shallow))
        .unwrap_err();
    assert!(matches!(refused, PortError::BadMessageSize { .. }));
    assert!(pair.a.queuing_port_named("nothing").is_err());
}

fn counters_add_up(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    for _ in 0..10 {
        sender.send(to, Priority::NORMAL, b"x").unwrap();
        receiver
            .receive_until(pair.soon(), &mut buffer)
            .unwrap()
            .unwrap();
    }
    let sent = &pair.a.status().ports[0];
    assert_eq!((sent.sent, sent.send_errors), (10, 0));
    let status = pair.b.status();
    let received = &status.ports[0];
    assert_eq!((received.frames, received.received), (10, 10));
    assert_eq!(received.queued, [0; 8]);
    assert_eq!(received.peers.len(), 1);
    let peer = received.peers[0];
    assert_eq!(
        (peer.received, peer.lost, peer.duplicates, peer.restarts),
        (10, 0, 0, 0)
    );
    assert_eq!(peer.port, port(11));
    assert_eq!(status.counters.malformed_total(), 0);
    assert!(received.memory_bytes <= 2 << 20, "a port of default depth");
    // As root it is locked, or the kernel's; who may lock less is told so by the node.
    assert!(received.memory_resident || !pair.b.report().limits.is_empty());
    let form = if pair.a.report().link == LinkKind::Udp {
        Form::Udp
    } else {
        Form::Ethernet
    };
    let spoken = pair.a.neighbours().iter().next().unwrap().1.form;
    let by_name = pair.a.report().link == LinkKind::Vbus;
    assert!(form == Form::Ethernet || spoken == Form::Udp);
    assert_eq!(spoken == Form::Bus, by_name);
}

fn a_port_can_be_opened_again(pair: &Pair) {
    for round in 0..5u8 {
        let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
        let mut buffer = buffer();
        sender.send(to, Priority::NORMAL, &[round]).unwrap();
        let message = receiver.receive_until(pair.soon(), &mut buffer).unwrap();
        assert_eq!((message.unwrap().length, buffer[0]), (1, round));
    }
    assert!(pair.b.status().ports.is_empty());
}
