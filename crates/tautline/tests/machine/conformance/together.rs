//! Messages that leave together: merged into frames, and in batches.

use super::*;

pub(super) fn merged_messages_come_out_one_by_one(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    sender.flush().unwrap();
    if !pair.a.report().capabilities.merges {
        sender.merge(to, Priority::NORMAL, b"at once").unwrap();
        let message = receiver.take_into(&mut buffer);
        assert_eq!(&buffer[..message.length], b"at once");
        assert_eq!(pair.a.status().ports[0].merged, 0);
        return;
    }
    for number in 0..5u8 {
        let message = pattern(usize::from(number) * 10, number);
        sender.merge(to, Priority::NORMAL, &message).unwrap();
    }
    settle(pair);
    receiver.finds_nothing(&mut buffer);
    sender.flush().unwrap();
    settle(pair);
    for number in 0..5u8 {
        let message = receiver.take_into(&mut buffer);
        assert_eq!(
            buffer[..message.length],
            pattern(usize::from(number) * 10, number)
        );
        assert_eq!((message.priority, message.sequence), (Priority::NORMAL, 0));
        if number == 1 {
            // A more urgent message overtakes the rest of a bundle.
            sender.give(to, Priority::HIGHEST, b"now");
            settle(pair);
            let urgent = receiver.take_into(&mut buffer);
            assert_eq!(&buffer[..urgent.length], b"now");
        }
    }
    receiver.finds_nothing(&mut buffer);

    // Full, another priority, a send of the same one, too large: each sends what is merged first.
    for number in 0..40u8 {
        sender
            .merge(to, Priority::NORMAL, &pattern(100, number))
            .unwrap();
    }
    sender.merge(to, Priority::LOWEST, &[40]).unwrap();
    sender.give(to, Priority::LOWEST, &[41]);
    sender.merge(to, Priority::LOWEST, &[42; 30]).unwrap();
    sender
        .merge(to, Priority::LOWEST, &pattern(1456, 43))
        .unwrap();
    sender.flush().unwrap();
    settle(pair);
    for number in 0..40u8 {
        let message = receiver.take_into(&mut buffer);
        assert_eq!(buffer[..message.length], pattern(100, number));
    }
    for (first, length) in [(40, 1), (41, 1), (42, 30), (43, 1456)] {
        let message = receiver.take_into(&mut buffer);
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
    let small = queuing_with(|options| options.message_bytes_max = 50);
    let mut receiver = pair
        .on_b(|node| node.queuing(port(12)).options(&small).open())
        .unwrap();
    for length in [51, 50, 60, 70, 1, 80] {
        sender
            .merge(to, Priority::NORMAL, &pattern(length, 1))
            .unwrap();
    }
    drop(sender); // Which flushes.
    settle(pair);
    let mut lengths = Vec::new();
    while let Some(message) = receiver.look(&mut buffer, tautline::Wait::Poll) {
        lengths.push(message.length);
    }
    assert_eq!(lengths, [50, 1]);
    assert_eq!(pair.b.status().ports[0].too_large, 4);
}

pub(super) fn a_batch_arrives_in_its_order(pair: &Pair) {
    let options =
        queuing_with(|options| (options.depth, options.message_bytes_max) = (256, 10_000));
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
    let length = receiver.take_into(&mut buffer).length;
    assert_eq!(&buffer[..length], b"merged before");
    for (number, expected) in messages.iter().enumerate() {
        let message = receiver.look(&mut buffer, tautline::Wait::Until(pair.soon()));
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

    // Messages before one that cannot be sent are sent.
    let hopeless = vec![0; 65_537];
    let batch = [
        outgoing(&b"sent"[..]),
        outgoing(&hopeless),
        outgoing(b"not tried"),
    ];
    assert_eq!(sender.send_batch(&batch), Ok(1));
    assert_eq!(
        sender.send_batch(&batch[1..]),
        Err(hopeless_error(pair, options.message_bytes_max))
    );
    assert_eq!(sender.send_batch(&batch[2..]), Ok(1));
    for expected in [&b"sent"[..], b"not tried"] {
        let length = receiver.take_into(&mut buffer).length;
        assert_eq!(&buffer[..length], expected);
    }
    let status = &pair.a.status().ports[0];
    assert_eq!((status.sent, status.send_errors), (103, 1));
    assert_eq!(pair.b.status().ports[0].peers[0].lost, 0);
}
