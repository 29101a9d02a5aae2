//! One suite that every link passes, alone and with the links that it interoperates with.

mod lent;
mod together;
mod values;

use std::time::Duration;

use crate::common::{
    Give, PACKET, Pair, Take, UDP, XDP, XDP_GENERIC, XDP_TC, XSK, XSK_GENERIC, bus_pair,
    controlled_pair, pair, port, queuing_with, sampling_with, sim_pair, slowness,
    zero_copy_demanded,
};
use lent::what_is_lent_stays;
use tautline::error::OptionsError;
use tautline::link::{ArrivalClock, Copies, XdpMode};
use tautline::neighbours::Form;
use tautline::port::{Outgoing, Policing, QueuingOptions, SamplingOptions};
use tautline::{LinkKind, Node, PortError, Priority, QueuingPort, ReceiveError, SendError, Wait};
use together::{a_batch_arrives_in_its_order, merged_messages_come_out_one_by_one};
use values::{each_source_has_its_own_value, the_last_value_is_kept};

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
                any_number_of_senders_is_answered
                a_destination_of_another_port_is_refused
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
    xdp_tc: pair(XDP_TC, XDP_TC);
    xdp_through_control: controlled_pair(XDP, XDP);
    xdp_marked: pair(XDP.marked(), XDP.marked());
    xdp_marked_through_control: controlled_pair(XDP.marked(), XDP.marked());
    xdp_tc_through_control: controlled_pair(XDP_TC, XDP_TC);
    xsk: pair(XSK, XSK);
    xsk_generic: pair(XSK_GENERIC, XSK_GENERIC);
    packet: pair(PACKET, PACKET);
    packet_marked: pair(PACKET.marked(), PACKET.marked());
    udp: pair(UDP, UDP);
    sim: Some(sim_pair());
    vbus: Some(bus_pair());
    packet_to_xdp: pair(PACKET, XDP);
    xsk_marked_to_xdp: pair(XSK.marked(), XDP);
    xdp_marked_to_udp: pair(XDP.speaking_udp().marked(), UDP);
    xdp_to_packet: pair(XDP, PACKET);
    udp_to_xdp: pair(UDP, XDP.speaking_udp());
    xdp_marked_to_xdp_tc: pair(XDP.marked(), XDP_TC);
    udp_to_xdp_tc: pair(UDP, XDP_TC.speaking_udp());
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
        assert_eq!(can.batches, report.link != LinkKind::Sim);
        let copies = |copies: Copies| {
            let Copies { send, receive, .. } = copies;
            (receive, copies.receive_lent, send, copies.send_lent)
        };
        let socket = (3, 2, 2, 1);
        let (of_message, of_datagram) = match report.link {
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
    let mut opened = pair.on_b(|node| node.queuing(port(900)).open()).unwrap();
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
        sender.give(to, Priority::NORMAL, &sent);
        let message = receiver.take_into(&mut buffer);
        assert_eq!(&buffer[..message.length], sent);
        assert_eq!(message.priority, Priority::NORMAL);
        assert_eq!(message.source.port, port(11));
        assert_eq!(message.sequence, count as u32);
        // The realtime clock of a socket's timestamp is moved to the monotonic one with an error of microseconds.
        let earliest = before.as_nanos().saturating_sub(1_000_000);
        assert!((earliest..=pair.now().as_nanos()).contains(&message.arrival.as_nanos()));
    }
    receiver.finds_nothing(&mut buffer);
}

/// Sends without reading until all that was sent lies in the receiver's memory or socket.
fn settle(pair: &Pair) {
    if let Some(network) = &pair.network {
        network.advance(Duration::from_millis(1));
    } else {
        std::thread::sleep(Duration::from_millis(20) * slowness());
    }
}

fn most_urgent_first_then_first_in_first_out(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    for number in 0..24u8 {
        sender.give(to, Priority::ALL[usize::from(number % 8)], &[number]);
    }
    settle(pair);
    let mut buffer = buffer();
    let mut taken = Vec::new();
    while let Some(message) = receiver.look(&mut buffer, Wait::Poll) {
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
    let options = queuing_with(|options| options.depth = 8);
    let (mut sender, mut receiver, to) = pair.ports(&options);
    sender.give(to, Priority::HIGHEST, &[100]);
    for number in 0..12u8 {
        let expected = match answers_sender(pair) && number >= 8 {
            true => Err(SendError::ReceiverFull),
            false => Ok(()),
        };
        assert_eq!(sender.send(to, Priority::LOWEST, &[number]), expected);
    }
    sender.give(to, Priority::NORMAL, &[101]);
    settle(pair);
    let mut buffer = buffer();
    let mut taken = Vec::new();
    while let Some(message) = receiver.look(&mut buffer, Wait::Poll) {
        assert_eq!(message.length, 1);
        taken.push(buffer[0]);
    }
    assert_eq!(taken[..2], [100, 101]);
    assert_eq!(taken[2..], [0, 1, 2, 3, 4, 5, 6, 7], "the oldest stay");
    let status = pair.b.status();
    assert_eq!(status.ports[0].dropped_full, [4, 0, 0, 0, 0, 0, 0, 0]);
    sender.give(to, Priority::LOWEST, &[102]);
    let message = receiver.look(&mut buffer, Wait::Until(pair.soon()));
    assert!(message.is_some() && buffer[0] == 102, "there is room again");
}

fn large_messages_are_put_together(pair: &Pair) {
    let options = queuing_with(|options| options.message_bytes_max = 65_536);
    let (mut sender, mut receiver, to) = pair.ports(&options);
    let mut buffer = buffer();
    for (salt, length) in [1485, 1408 * 2, 1408 * 2 + 1, 40_000, 65_536]
        .into_iter()
        .enumerate()
    {
        let sent = pattern(length, salt as u8);
        sender.give(to, Priority::NORMAL, &sent);
        let message = receiver.take_into(&mut buffer);
        assert_eq!(message.length, length);
        assert!(
            buffer[..length] == sent[..],
            "{length} bytes arrive as they were"
        );
    }
}

/// Error of a send of 65,537 bytes to a port that takes `largest`: no network carries them, and on a bus only the
/// receiver counts.
fn hopeless_error(pair: &Pair, largest: usize) -> SendError {
    let bytes = 65_537;
    match answers_sender(pair) {
        true => SendError::LargerThanReceiver { bytes, largest },
        false => SendError::MessageTooLarge { bytes },
    }
}

fn what_is_too_large_is_refused(pair: &Pair) {
    let small = queuing_with(|options| options.message_bytes_max = 100);
    let (mut sender, mut receiver, to) = pair.ports(&small);
    let mut buffer = buffer();
    assert_eq!(
        sender.send(to, Priority::NORMAL, &vec![0; 65_537]),
        Err(hopeless_error(pair, 100))
    );
    assert_eq!(
        receiver.receive_into(&mut [0; 99], Wait::Poll),
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
    let message = receiver.take_into(&mut buffer);
    assert_eq!((message.length, buffer[0]), (100, 3));
    let counted = pair.b.status().ports[0].too_large;
    let expected = if answers_sender(pair) { 0 } else { 1 + 3 };
    assert_eq!(counted, expected, "one whole frame, three fragments");
}

fn what_is_too_much_is_dropped_at_the_door(pair: &Pair) {
    let strict = Policing {
        interval: Duration::from_secs(3600),
        burst: 5,
    };
    let options = queuing_with(|options| options.policing = Some(strict));
    if !pair.b.report().capabilities.polices {
        let refused = pair.on_b(|node| node.queuing(port(12)).options(&options).open());
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
        sender.give(to, priority, &[number]);
    }
    settle(pair);
    let mut buffer = buffer();
    let mut taken = Vec::new();
    while receiver.look(&mut buffer, Wait::Poll).is_some() {
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
        .on_b(|node| node.sampling(port(23)).options(&refilling).open())
        .unwrap();
    let to = sender.destination("peer", port(23)).unwrap();
    for value in 0..3 {
        for _ in 0..2 {
            sender.give(to, Priority::NORMAL, &[value]);
        }
        settle(pair);
        if let Some(network) = &pair.network {
            network.advance(Duration::from_millis(5));
        }
        let sample = reader.read_into(&mut buffer).unwrap().unwrap();
        assert_eq!(
            (buffer[0], sample.overwritten),
            (value, 1),
            "paid meanwhile"
        );
    }
    assert_eq!(pair.b.status().ports[1].policed, 0);

    let hopeless = sampling_with(|options| options.policing = Some(Policing::per_second(0, 1)));
    let refused = pair.on_b(|node| node.sampling(port(24)).options(&hopeless).open());
    assert!(matches!(
        refused,
        Err(PortError::Options(OptionsError::Policing { burst: 1, .. }))
    ));
}

fn a_deadline_is_kept(pair: &Pair) {
    let (_sender, mut receiver, _) = pair.ports(&QueuingOptions::default());
    let mut reader = pair.on_b(|node| node.sampling(port(30)).open()).unwrap();
    let mut buffer = buffer();
    let deadline = pair.now() + Duration::from_millis(30);
    assert_eq!(receiver.look(&mut buffer, Wait::Until(deadline)), None);
    assert!(pair.now() >= deadline);
    let past = pair.now();
    assert_eq!(receiver.look(&mut buffer, Wait::Until(past)), None);
    let deadline = pair.now() + Duration::from_millis(30);
    assert_eq!(reader.look(&mut buffer, Wait::Until(deadline)), None);
    assert!(pair.now() >= deadline);
}

fn an_answer_finds_the_sender(pair: &Pair) {
    let (mut asker, mut answerer, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    for count in 0..3u32 {
        asker.give(to, Priority::NORMAL, b"question");
        let question = answerer.take_into(&mut buffer);
        answerer
            .reply(question.source, question.priority, b"answer")
            .unwrap();
        let answer = asker.take_into(&mut buffer);
        assert_eq!(&buffer[..answer.length], b"answer");
        assert_eq!(answer.sequence, count, "one flow, whoever asks");
    }
}

/// More ports than a port has destinations ask, and each is answered; so is the one whose messages were answered first.
fn any_number_of_senders_is_answered(pair: &Pair) {
    let (mut first, mut answerer, to) = pair.ports(&QueuingOptions::default());
    let mut ask = |asker: &mut QueuingPort, to| {
        let mut buffer = buffer();
        let limit = pair.soon();
        // On a bus, a port that has gone makes room for another when its peer looks.
        while let Err(error) = asker.send(to, Priority::NORMAL, b"question") {
            assert_eq!(error, SendError::PeerGone);
            assert!(pair.now() < limit);
            answerer.finds_nothing(&mut buffer);
        }
        let question = answerer.take_into(&mut buffer);
        answerer
            .reply(question.source, question.priority, b"answer")
            .unwrap();
        let answer = asker.take_into(&mut buffer);
        assert_eq!(&buffer[..answer.length], b"answer");
        answer.sequence
    };
    let begin = ask(&mut first, to);
    for number in 0..100 {
        let open = |node: &Node| node.queuing(port(2_000 + number)).open();
        let mut asker = pair.on_a(open).unwrap();
        let to = asker.destination("peer", port(12)).unwrap();
        ask(&mut asker, to);
    }
    let numbers: Vec<_> = (0..20).map(|_| ask(&mut first, to)).collect();
    assert!(numbers.is_sorted_by(|one, next| one + 1 == *next));
    assert!(numbers[0] > begin || answers_sender(pair), "a flow goes on");
}

fn a_destination_of_another_port_is_refused(pair: &Pair) {
    let (mut owner, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let open = |node: &Node| node.queuing(port(13)).open();
    let mut other = pair.on_a(open).unwrap();
    let own = other.destination("peer", port(12)).unwrap();
    let refused = Err(SendError::OtherPort);
    let priority = Priority::NORMAL;
    assert_eq!(other.send(to, priority, b"1"), refused);
    assert_eq!(other.merge(to, priority, b"1"), refused);
    assert_eq!(other.lend(to, priority, 1).map(drop), refused);
    let outgoing = |to| Outgoing {
        to,
        priority,
        message: b"2",
    };
    assert_eq!(other.send_batch(&[outgoing(to)]).map(drop), refused);
    // A batch is taken up to it.
    let batch = [outgoing(own), outgoing(to), outgoing(own)];
    assert_eq!(other.send_batch(&batch), Ok(1));
    let mut buffer = buffer();
    let mut received = || {
        let message = receiver.take_into(&mut buffer);
        let port = message.source.port;
        (port.get(), buffer[0])
    };
    assert_eq!(received(), (13, b'2'));
    owner.give(to, priority, b"3");
    assert_eq!(received(), (11, b'3'));
    let status = pair.a.status();
    let counted = status
        .ports
        .iter()
        .find(|status| status.key == port(13).into());
    assert_eq!(counted.unwrap().send_errors, 4);
}

fn a_sleeper_is_woken(pair: &Pair) {
    if pair.is_virtual() {
        return; // Waiting moves the clock there: no thread sleeps.
    }
    let options = queuing_with(|options| options.spin = Duration::ZERO.into());
    let (mut sender, mut receiver, to) = pair.ports(&options);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut buffer = buffer();
            for number in 0..20 {
                let message = receiver.take_into(&mut buffer);
                assert_eq!((message.length, buffer[0]), (1, number));
            }
        });
        for number in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            sender.give(to, Priority::NORMAL, &[number]);
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
        while receiver.look(&mut buffer, Wait::Poll).is_some() {}
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
        sender.give(to, Priority::NORMAL, &[round]);
        sender.give(to, Priority::NORMAL, &[round]);
        let descriptor_again = is_readable(&mut receiver, 5000);
        assert!(descriptor_again, "round {round}");
        assert!(receiver.look(&mut buffer, Wait::Poll).is_some());
        // On a wire it may still be on its way.
        receiver.take_into(&mut buffer);
        receiver.finds_nothing(&mut buffer);
    }
}

fn mistakes_are_answered(pair: &Pair) {
    let options = QueuingOptions::default();
    let mut first = pair
        .on_a(|node| node.queuing(port(40)).options(&options).open())
        .unwrap();
    let again = pair
        .on_a(|node| node.queuing(port(40)).options(&options).open())
        .unwrap_err();
    assert!(matches!(again, PortError::OpenHere { key } if key == port(40).into()));
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
        .on_a(|node| node.queuing(port(41)).options(&depth).open())
        .unwrap_err();
    assert!(matches!(
        refused,
        PortError::Options(OptionsError::Depth { depth: 3 })
    ));
    let shallow = QueuingOptions {
        depth: 8,
        message_bytes_max: 65_536,
        ..options
    };
    let opened = pair.on_a(|node| node.queuing(port(41)).options(&shallow).open());
    match answers_sender(pair) {
        // Over a bus nothing is cut into frames.
        true => assert_eq!(opened.unwrap().message_bytes_max(), 65_536),
        false => assert!(matches!(
            opened,
            Err(PortError::Options(OptionsError::MessageSize { .. }))
        )),
    }
    assert!(pair.a.queuing("nothing").open().is_err());
}

fn counters_add_up(pair: &Pair) {
    let (mut sender, mut receiver, to) = pair.ports(&QueuingOptions::default());
    let mut buffer = buffer();
    for _ in 0..10 {
        sender.give(to, Priority::NORMAL, b"x");
        receiver.take_into(&mut buffer);
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
    assert!(status.counters.malformed.iter().all(|count| *count == 0));
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
        sender.give(to, Priority::NORMAL, &[round]);
        let message = receiver.take_into(&mut buffer);
        assert_eq!((message.length, buffer[0]), (1, round));
    }
    assert!(pair.b.status().ports.is_empty());
}
