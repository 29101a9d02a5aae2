//! Messages and values that are looked at where they lie.

use super::*;

pub(super) fn what_is_lent_stays(pair: &Pair) {
    lent_messages_arrive_and_hold_their_place(pair);
    merged_messages_can_be_lent(pair);
    a_lent_value_stays(pair);
}

fn lent_messages_arrive_and_hold_their_place(pair: &Pair) {
    let options = queuing_with(|options| (options.depth, options.message_bytes_max) = (64, 65_536));
    let (mut sender, mut receiver, to) = pair.ports(&options);
    assert!(receiver.receive_in_place(Wait::Poll).unwrap().is_none());
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
        let message = receiver.receive_in_place(Wait::Until(pair.soon())).unwrap();
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
    assert!(receiver.receive_in_place(Wait::Poll).unwrap().is_none());
    let status = pair.b.status();
    assert_eq!(status.ports[0].received, 8);

    // While the oldest is looked at, its class takes one less, and nothing is written over it.
    let options = queuing_with(|options| options.depth = 4);
    drop((sender, receiver));
    let (mut sender, mut receiver, to) = pair.ports(&options);
    sender.send(to, Priority::NORMAL, &[9; 100]).unwrap();
    let lent = receiver
        .receive_in_place(Wait::Until(pair.soon()))
        .unwrap()
        .unwrap();
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
    while let Some(lent) = receiver.receive_in_place(Wait::Poll).unwrap() {
        lent.bytes().copy_out(0, &mut out);
        assert!(out[..100].iter().all(|byte| *byte == out[0]));
        taken.push(out[0]);
    }
    // Where a socket stands before the port, what is too much waits there until it is collected.
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
            let message = receiver.look(&mut out, tautline::Wait::Until(pair.soon()));
            assert_eq!(out[..message.unwrap().length], pattern(31, 3));
            continue;
        }
        let lent = receiver
            .receive_in_place(Wait::Until(pair.soon()))
            .unwrap()
            .unwrap();
        let length = lent.bytes().copy_out(0, &mut out);
        let expected = pattern(usize::from(number) * 10 + 1, number);
        assert_eq!(out[..length], expected);
    }
    assert!(receiver.receive_in_place(Wait::Poll).unwrap().is_none());
    assert_eq!(pair.b.status().ports[0].queued, [0; 8]);
}

fn a_lent_value_stays(pair: &Pair) {
    let mut sender = pair.on_a(|node| node.sampling(port(31)).open()).unwrap();
    let mut reader = pair.on_b(|node| node.sampling(port(32)).open()).unwrap();
    let to = sender.destination("peer", port(32)).unwrap();
    assert!(reader.read_in_place().unwrap().is_none());
    let mut out = buffer();
    let mut lend = |value: u8| {
        let mut loan = sender.lend(to, Priority::NORMAL, 100).unwrap();
        loan.fill(value);
        loan.send().unwrap();
    };
    lend(1);
    settle(pair);
    let first = reader.read_in_place().unwrap().unwrap();
    assert!(first.new);
    for value in 2..6 {
        lend(value);
    }
    settle(pair);
    assert_eq!(first.bytes.copy_out(0, &mut out), 100);
    assert_eq!(out[..100], [1; 100], "it stays while it is looked at");
    let last = reader.read_in_place().unwrap().unwrap();
    last.bytes.copy_out(0, &mut out);
    assert_eq!((out[0], last.new, last.overwritten), (5, true, 3));
    assert!(!reader.read_in_place().unwrap().unwrap().new);
}
