//! Datagrams cut in every way and put together again; and what attackers make of fragments.

use core::net::Ipv4Addr;
use core::time::Duration;

use proptest::prelude::*;
use tautline_proto::ip::reassembly::{Config, DropReason, Fragment, Outcome, Reassembler};
use tautline_proto::ip::{DATAGRAM_BYTES_MAX, FRAGMENT_OFFSET, MORE_FRAGMENTS};
use tautline_proto::time::Instant;

const LIMIT: Duration = Duration::from_millis(100);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn reassembler(datagram_bytes_max: usize) -> Reassembler {
    Reassembler::new(Config {
        collector_count: 4,
        datagram_bytes_max,
        time_limit: LIMIT,
    })
}

/// A datagram with its UDP header, from port 7 to port 9.
fn packet(length: usize) -> Vec<u8> {
    let mut packet = vec![0, 7, 0, 9];
    packet.extend(u16::try_from(length + 8).unwrap().to_be_bytes());
    packet.extend([0, 0]);
    packet.extend((0..length).map(|place| (place ^ place >> 8) as u8));
    packet
}

fn part<'a>(identification: u16, offset: usize, more: bool, payload: &'a [u8]) -> Fragment<'a> {
    assert!(offset.is_multiple_of(8) && offset / 8 <= usize::from(FRAGMENT_OFFSET));
    Fragment {
        source: PEER,
        identification,
        field: (offset / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 },
        payload,
    }
}

/// The packet cut at these places, in blocks.
fn cut<'a>(packet: &'a [u8], mut places: Vec<usize>) -> Vec<Fragment<'a>> {
    places.extend([0, packet.len()]);
    places.sort_unstable();
    places.dedup();
    let ranges = places.windows(2).map(|pair| (pair[0], pair[1]));
    ranges
        .map(|(from, to)| part(1, from, to < packet.len(), &packet[from..to]))
        .collect()
}

fn assert_complete(outcome: Outcome<'_>, packet: &[u8]) {
    let Outcome::Complete(datagram) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(datagram.source.to_string(), "10.0.0.1:7");
    assert_eq!(datagram.destination_port, 9);
    assert!(datagram.payload == &packet[8..], "other bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_cuts_in_any_order_with_duplicates(
        length in prop_oneof![9..400usize, 60_000..=DATAGRAM_BYTES_MAX],
        cuts in prop::collection::vec(1..8000usize, 1..40),
        order in prop::collection::vec(any::<u16>(), 80),
        doubled in any::<u64>(),
    ) {
        let packet = packet(length);
        let blocks = packet.len().div_ceil(8) - 1;
        let parts = cut(&packet, cuts.iter().map(|place| (1 + place % blocks) * 8).collect());
        let mut order: Vec<_> = (0..parts.len())
            .flat_map(|index| {
                let copies = 1 + (doubled >> (index % 64) & 1);
                vec![index; copies as usize]
            })
            .zip(order)
            .map(|(index, at)| (at, index))
            .collect();
        order.sort_unstable();
        let mut reassembler = reassembler(DATAGRAM_BYTES_MAX);
        let mut completed = 0;
        for (_, index) in &order {
            match reassembler.push(Instant::ZERO, &parts[*index]) {
                Outcome::Complete(datagram) => {
                    prop_assert!(datagram.payload == &packet[8..]);
                    completed += 1;
                }
                Outcome::Dropped(reason) => prop_assert!(false, "{reason:?}"),
                Outcome::Incomplete | Outcome::Duplicate => {}
            }
        }
        prop_assert_eq!(completed, 1);
        prop_assert_eq!(reassembler.counters().duplicates as usize, order.len() - parts.len());
    }

    /// For every input: a datagram handed out is made of bytes that one fragment each brought, and a
    /// datagram of which two fragments disagreed is not handed out.
    #[test]
    fn any_fragments_at_all(
        steps in prop::collection::vec((0..3u8, 0..3u16, 0..20u16, any::<bool>(), 0..40usize, any::<u8>()), 1..200),
    ) {
        let mut reassembler = reassembler(120);
        let mut now = Instant::ZERO;
        let mut pushed = 0u64;
        for (peer, identification, offset, more, length, fill) in steps {
            now = now + Duration::from_millis(u64::from(fill % 4));
            let mut payload = vec![fill & 3; length];
            if offset == 0 && length >= 8 {
                payload[..8].copy_from_slice(&[0, 7, 0, 9, 0, 8 + fill % 16 * 8, 0, 0]);
            }
            let fragment = Fragment {
                source: Ipv4Addr::new(10, 0, 0, peer),
                identification,
                field: offset | if more { MORE_FRAGMENTS } else { 0 },
                payload: &payload,
            };
            pushed += 1;
            if let Outcome::Complete(datagram) = reassembler.push(now, &fragment) {
                prop_assert!(datagram.payload.len() <= 120);
            }
            prop_assert!(reassembler.under_way_count() <= 4);
        }
        let counted = reassembler.counters();
        let refused = counted.duplicates + counted.inconsistent + counted.overlaps
            + counted.too_long + counted.condemned;
        prop_assert!(refused + counted.completed <= pushed);
    }
}

#[test]
fn the_longest_datagram() {
    let packet = packet(DATAGRAM_BYTES_MAX);
    let parts = cut(&packet, (1..45).map(|index| index * 1480).collect());
    let mut reassembler = reassembler(DATAGRAM_BYTES_MAX);
    for part in parts.iter().skip(1).rev() {
        assert_eq!(reassembler.push(Instant::ZERO, part), Outcome::Incomplete);
    }
    assert_complete(reassembler.push(Instant::ZERO, &parts[0]), &packet);
    assert_eq!(
        reassembler.push(Instant::ZERO, &parts[3]),
        Outcome::Duplicate,
        "late ones do not begin it anew"
    );
}

fn condemned(reassembler: &mut Reassembler, parts: &[Fragment<'_>], reason: DropReason) {
    let mut outcomes: Vec<_> = Vec::new();
    for part in parts {
        outcomes.push(match reassembler.push(Instant::ZERO, part) {
            Outcome::Dropped(reason) => Some(reason),
            Outcome::Complete(datagram) => panic!("{datagram:?}"),
            Outcome::Incomplete | Outcome::Duplicate => None,
        });
    }
    let first = outcomes.iter().position(Option::is_some).expect("refused");
    assert_eq!(outcomes[first], Some(reason));
    assert!(
        outcomes[first + 1..]
            .iter()
            .all(|after| *after == Some(DropReason::Condemned)),
        "{outcomes:?}"
    );
}

#[test]
fn teardrop_and_other_overlaps_drop_the_datagram() {
    let packet = packet(56);
    let other = vec![0xEE; 64];
    // Teardrop: the second ends within the first.
    let teardrop = [
        part(1, 0, true, &packet[..40]),
        part(1, 24, false, &other[..4]),
        part(1, 40, false, &packet[40..]),
    ];
    condemned(&mut reassembler(100), &teardrop, DropReason::Overlap);
    // The second lies over the end of the first, with the same bytes or others.
    for bytes in [&packet, &other] {
        let overlap = [
            part(1, 0, true, &packet[..32]),
            part(1, 24, false, &bytes[24..]),
            part(1, 32, false, &packet[32..]),
        ];
        condemned(&mut reassembler(100), &overlap, DropReason::Overlap);
    }
    // Another UDP header over the first.
    let rewrite = [
        part(1, 0, true, &packet[..32]),
        part(1, 0, true, &other[..32]),
        part(1, 32, false, &packet[32..]),
    ];
    condemned(&mut reassembler(100), &rewrite, DropReason::Overlap);
}

#[test]
fn the_ping_of_death_is_too_long() {
    let bytes = vec![0; 1480];
    let beyond = [
        part(1, 65_528, false, &bytes),
        part(1, 0, true, &bytes[..8]),
    ];
    condemned(
        &mut reassembler(DATAGRAM_BYTES_MAX),
        &beyond,
        DropReason::TooLong,
    );
    // By one byte.
    let last = DATAGRAM_BYTES_MAX + 8 - 3;
    assert!(last.is_multiple_of(8));
    let mut just = reassembler(DATAGRAM_BYTES_MAX);
    assert_eq!(
        just.push(Instant::ZERO, &part(1, last, false, &bytes[..3])),
        Outcome::Incomplete
    );
    condemned(
        &mut just,
        &[part(2, last, false, &bytes[..4])],
        DropReason::TooLong,
    );
}

#[test]
fn two_ends_contradict_each_other() {
    let bytes = [0; 64];
    for second in [
        part(1, 40, false, &bytes[..16]),
        part(1, 40, true, &bytes[..8]),
        part(1, 16, false, &bytes[..8]),
    ] {
        let two = [part(1, 32, false, &bytes[..8]), second];
        condemned(&mut reassembler(100), &two, DropReason::Inconsistent);
    }
    let early_end = [
        part(1, 32, true, &bytes[..8]),
        part(1, 16, false, &bytes[..8]),
    ];
    condemned(&mut reassembler(100), &early_end, DropReason::Inconsistent);
}

#[test]
fn crooked_and_empty_fragments() {
    let bytes = [0; 64];
    for crooked in [part(1, 0, true, &bytes[..13]), part(1, 8, true, &[])] {
        condemned(&mut reassembler(100), &[crooked], DropReason::Inconsistent);
    }
    // Complete, but the UDP header says otherwise, or is not there.
    let mut lies = packet(24);
    lies[5] += 1;
    let parts = cut(&lies, vec![16]);
    let mut reassembler = reassembler(100);
    assert_eq!(
        reassembler.push(Instant::ZERO, &parts[0]),
        Outcome::Incomplete
    );
    assert_eq!(
        reassembler.push(Instant::ZERO, &parts[1]),
        Outcome::Dropped(DropReason::BadLength)
    );
    assert_eq!(
        reassembler.push(Instant::ZERO, &part(2, 0, false, &bytes[..5])),
        Outcome::Dropped(DropReason::BadLength)
    );
}

#[test]
fn a_flood_takes_half_and_ends() {
    let mut reassembler = reassembler(100);
    let bytes = [0; 8];
    let packet = packet(56);
    let others = cut(&packet, vec![16, 40]);
    let mut of_others = 0;
    for identification in 0..1000 {
        let outcome = reassembler.push(Instant::ZERO, &part(identification, 0, true, &bytes));
        assert_eq!(outcome, Outcome::Incomplete);
        // The flood gives up its own oldest; another peer, whose datagrams arrive amidst it, notices nothing.
        let index = usize::from(identification) % 3;
        let fragment = Fragment {
            source: Ipv4Addr::new(10, 0, 0, 2),
            identification: identification / 3,
            ..others[index]
        };
        let outcome = reassembler.push(Instant::ZERO, &fragment);
        assert_eq!(matches!(outcome, Outcome::Complete(_)), index == 2);
        of_others += u64::from(index == 2);
    }
    assert_eq!(reassembler.counters().quota_reached, 998);
    assert_eq!(reassembler.counters().crowded_out, 0);
    assert_eq!(reassembler.counters().completed, of_others);
    // The rest goes with the time limit.
    assert_eq!(reassembler.expire(Instant::ZERO + LIMIT), 3);
    assert_eq!(reassembler.under_way_count(), 0);
}

#[test]
fn when_all_are_taken_who_holds_most_gives_up() {
    let mut reassembler = reassembler(100);
    let bytes = [0; 8];
    let at = |place: u32| Instant::ZERO + LIMIT * place / 10;
    let mut begin = |place: u32, peer: u8, identification: u16| {
        let fragment = Fragment {
            source: Ipv4Addr::new(10, 0, 0, peer),
            ..part(identification, 0, true, &bytes)
        };
        assert_eq!(reassembler.push(at(place), &fragment), Outcome::Incomplete);
        reassembler.counters().crowded_out
    };
    begin(0, 2, 1);
    begin(1, 3, 1);
    begin(2, 3, 2);
    assert_eq!(begin(3, 4, 1), 0);
    assert_eq!(begin(4, 5, 1), 1);
    // Now each holds one: the oldest of all goes.
    assert_eq!(begin(5, 6, 1), 2);
    let waits = |peer: u8, identification: u16| {
        reassembler.is_waiting_for(Ipv4Addr::new(10, 0, 0, peer), identification)
    };
    assert!(!waits(3, 1) && !waits(2, 1));
    assert!(waits(3, 2) && waits(4, 1) && waits(5, 1) && waits(6, 1));
}

#[test]
fn a_lost_fragment_does_not_hold_up_what_comes_after() {
    let packet = packet(56);
    let parts = cut(&packet, vec![16, 40]);
    let mut reassembler = reassembler(100);
    for identification in 0..50 {
        for (index, fragment) in parts.iter().enumerate() {
            let lost = identification % 2 == 0 && index == 1;
            let fragment = Fragment {
                identification,
                ..*fragment
            };
            let outcome = (!lost).then(|| reassembler.push(Instant::ZERO, &fragment));
            let complete = matches!(outcome, Some(Outcome::Complete(_)));
            assert_eq!(complete, identification % 2 == 1 && index == 2);
        }
    }
    assert_eq!(reassembler.counters().completed, 25);
}

#[test]
fn the_time_limit_runs_from_the_first() {
    let packet = packet(56);
    let parts = cut(&packet, vec![16, 40]);
    let mut reassembler = reassembler(100);
    let at = |part: u32, whole: u32| Instant::ZERO + LIMIT * part / whole;
    assert_eq!(reassembler.push(at(0, 2), &parts[0]), Outcome::Incomplete);
    assert_eq!(reassembler.push(at(1, 2), &parts[1]), Outcome::Incomplete);
    assert!(reassembler.is_waiting_for(PEER, 1));
    assert_eq!(reassembler.push(at(2, 2), &parts[2]), Outcome::Incomplete);
    assert_eq!(reassembler.counters().expired, 1);
}
