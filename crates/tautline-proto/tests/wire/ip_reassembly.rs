//! Datagrams cut in every way and put together again; and what attackers make of fragments.

use core::net::Ipv4Addr;
use core::time::Duration;

use proptest::prelude::*;
use tautline_proto::ip::reassembly::{Config, Counters, Fragment, Outcome, Reassembler};
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

type Part<'a> = (Fragment, &'a [u8]);

fn part(identification: u16, offset: usize, more: bool, payload: &[u8]) -> Part<'_> {
    assert!(offset.is_multiple_of(8) && offset / 8 <= usize::from(FRAGMENT_OFFSET));
    let fragment = Fragment {
        source: PEER,
        identification,
        field: (offset / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 },
        length: payload.len(),
    };
    (fragment, payload)
}

fn push<'r>(reassembler: &'r mut Reassembler, now: Instant, part: Part<'_>) -> Outcome<'r> {
    reassembler.push(now, &part.0, |bytes| bytes.copy_from_slice(part.1))
}

/// The packet cut at these places, which are multiples of a block.
fn cut(packet: &[u8], mut places: Vec<usize>) -> Vec<Part<'_>> {
    places.extend([0, packet.len()]);
    places.sort_unstable();
    places.dedup();
    let ranges = places.windows(2).map(|pair| (pair[0], pair[1]));
    ranges
        .map(|(from, to)| part(1, from, to < packet.len(), &packet[from..to]))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_cuts_in_order(
        length in prop_oneof![9..400usize, 60_000..=DATAGRAM_BYTES_MAX],
        cuts in prop::collection::vec(1..8000usize, 1..40),
    ) {
        let packet = packet(length);
        let blocks = packet.len().div_ceil(8) - 1;
        let parts = cut(&packet, cuts.iter().map(|place| (1 + place % blocks) * 8).collect());
        let mut reassembler = reassembler(DATAGRAM_BYTES_MAX);
        for (index, part) in parts.iter().enumerate() {
            match push(&mut reassembler, Instant::ZERO, *part) {
                Outcome::Complete(datagram) => {
                    prop_assert_eq!(index + 1, parts.len());
                    prop_assert_eq!(datagram.source.to_string(), "10.0.0.1:7");
                    prop_assert_eq!(datagram.destination_port, 9);
                    prop_assert!(datagram.payload == &packet[8..], "other bytes");
                }
                Outcome::Incomplete => prop_assert!(index + 1 < parts.len()),
                Outcome::Dropped => prop_assert!(false, "{index} of {}", parts.len()),
            }
        }
    }

    #[test]
    fn any_fragments_at_all(
        steps in prop::collection::vec((0..3u8, 0..3u16, 0..20u16, any::<bool>(), 0..40usize, any::<u8>()), 1..200),
    ) {
        let mut reassembler = reassembler(120);
        let mut now = Instant::ZERO;
        let mut dropped = 0;
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
                length,
            };
            match push(&mut reassembler, now, (fragment, &payload)) {
                Outcome::Complete(datagram) => prop_assert!(datagram.payload.len() <= 120),
                Outcome::Incomplete => {}
                Outcome::Dropped => dropped += 1,
            }
            prop_assert!(reassembler.under_way_count() <= 4);
        }
        let counted = reassembler.counters();
        prop_assert!(dropped <= counted.broken + counted.strays);
    }
}

/// Teardrop, the ping of death and their like, fragments that were lost or overtaken, and lengths that lie: nothing
/// comes out.
#[test]
fn fragments_that_are_not_the_next_ones_drop_their_datagram() {
    let (packet, other) = (packet(56), [0xEE; 1480]);
    let [first, second, third] = cut(&packet, vec![16, 40])[..] else {
        panic!("three parts");
    };
    let mut too_short = packet.clone();
    too_short[5] += 1;
    let lies = cut(&too_short, vec![16]);
    let series: [(&str, &[Part<'_>], u64, u64); 14] = [
        (
            "teardrop",
            &[first, part(1, 8, false, &other[..4]), second],
            1,
            1,
        ),
        (
            "over the end of the first",
            &[first, part(1, 8, false, &packet[8..])],
            1,
            0,
        ),
        (
            "the first twice",
            &[first, first, second, second, third],
            2,
            1,
        ),
        ("backwards", &[third, second, first], 0, 2),
        ("overtaken", &[first, third, second], 1, 1),
        ("a hole", &[first, third], 1, 0),
        ("after its end", &[first, second, third, second], 0, 1),
        (
            "ping of death",
            &[first, part(1, 65_528, false, &other)],
            1,
            0,
        ),
        (
            "one byte too long",
            &[first, part(1, 16, false, &other[..93])],
            1,
            0,
        ),
        (
            "within a block",
            &[part(1, 0, true, &packet[..13]), second],
            1,
            1,
        ),
        ("without bytes", &[first, part(1, 16, true, &[])], 1, 0),
        ("another length in the header", &lies, 1, 0),
        (
            "less than a header",
            &[part(1, 0, false, &packet[..5])],
            1,
            0,
        ),
        ("no first one", &[second], 0, 1),
    ];
    for (name, parts, broken, strays) in series {
        let mut reassembler = reassembler(100);
        let mut completed = 0;
        for part in parts {
            let pushed = push(&mut reassembler, Instant::ZERO, *part);
            completed += u64::from(matches!(pushed, Outcome::Complete(_)));
        }
        assert_eq!(completed, u64::from(name == "after its end"), "{name}");
        let counted = Counters {
            completed,
            broken,
            strays,
            ..Counters::default()
        };
        assert_eq!(*reassembler.counters(), counted, "{name}");
    }
    let mut longest = reassembler(100);
    push(&mut longest, Instant::ZERO, first);
    let end = part(1, 16, false, &other[..92]);
    push(&mut longest, Instant::ZERO, end);
    assert_eq!(longest.counters().broken, 1, "for its header alone");
}

#[test]
fn a_flood_takes_half_and_ends() {
    let mut reassembler = reassembler(100);
    let bytes = [0; 8];
    let packet = packet(56);
    let others = cut(&packet, vec![16, 40]);
    for identification in 0..1000 {
        let outcome = push(
            &mut reassembler,
            Instant::ZERO,
            part(identification, 0, true, &bytes),
        );
        assert_eq!(outcome, Outcome::Incomplete);
        // The flood gives up its own oldest; another peer, whose datagrams arrive amidst it, notices nothing.
        let index = usize::from(identification) % 3;
        let (fragment, bytes) = others[index];
        let fragment = Fragment {
            source: Ipv4Addr::new(10, 0, 0, 2),
            identification: identification / 3,
            ..fragment
        };
        let outcome = push(&mut reassembler, Instant::ZERO, (fragment, bytes));
        assert_eq!(matches!(outcome, Outcome::Complete(_)), index == 2);
    }
    let counted = *reassembler.counters();
    assert_eq!((counted.displaced, counted.completed), (998, 333));
    // The rest goes with the time limit.
    reassembler.expire(Instant::ZERO + LIMIT);
    assert_eq!(
        (
            reassembler.counters().expired,
            reassembler.under_way_count()
        ),
        (3, 0)
    );
}

#[test]
fn when_all_are_taken_the_oldest_gives_up() {
    let mut reassembler = reassembler(100);
    let packet = packet(56);
    let [first, _, _] = cut(&packet, vec![16, 40])[..] else {
        panic!("three parts")
    };
    let of = |peer: u8| Ipv4Addr::new(10, 0, 0, peer);
    let at = |place: u8| Instant::ZERO + LIMIT * place.into() / 10;
    for peer in 0..6 {
        let fragment = Fragment {
            source: of(peer),
            ..first.0
        };
        let pushed = push(&mut reassembler, at(peer), (fragment, first.1));
        assert_eq!(pushed, Outcome::Incomplete);
    }
    assert_eq!(reassembler.counters().displaced, 2);
    for peer in 0..6 {
        let rest = part(1, 16, false, &packet[16..]);
        let fragment = Fragment {
            source: of(peer),
            ..rest.0
        };
        let pushed = push(&mut reassembler, at(6), (fragment, rest.1));
        assert_eq!(
            matches!(pushed, Outcome::Complete(_)),
            peer >= 2,
            "peer {peer}"
        );
    }
}

#[test]
fn the_time_limit_runs_from_the_first() {
    let packet = packet(56);
    let parts = cut(&packet, vec![16, 40]);
    let mut reassembler = reassembler(100);
    for (half, expected) in [
        (0, Outcome::Incomplete),
        (1, Outcome::Incomplete),
        (2, Outcome::Dropped),
    ] {
        let now = Instant::ZERO + LIMIT * half / 2;
        assert_eq!(push(&mut reassembler, now, parts[half as usize]), expected);
    }
    let counted = Counters {
        expired: 1,
        strays: 1,
        ..Counters::default()
    };
    assert_eq!(*reassembler.counters(), counted);
}
