//! Plain UDP over IPv4: a frame taken apart, and fragments put together.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::HashSet;

use tautline_proto::ip::checksum::{judge, made};
use tautline_proto::ip::reassembly::{Config, Datagram, Fragment, Outcome, Reassembler};
use tautline_proto::ip::receive::{Arrival, Own, parse};
use tautline_proto::ip::send::{Route, SendBuffer};
use tautline_proto::ip::{DatagramHead, FRAGMENT_OFFSET, MORE_FRAGMENTS, is_possible_source};
use tautline_proto::time::Instant;
use tautline_proto::wire::udp::{UdpChecksum, internet_checksum};
use tautline_proto::wire::{MacAddress, Priority};

const OWN: Own = Own {
    ip: Ipv4Addr::new(10, 77, 0, 2),
    broadcast: Ipv4Addr::new(10, 77, 0, 255),
};
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// Every port with an odd number is ours.
const fn is_open(port: u16) -> bool {
    port % 2 == 1
}

/// The bytes as a frame, as they are and with a right IP checksum, without which hardly one would be
/// looked at.
pub fn ip_receive(data: &[u8]) {
    check_arrival(data);
    let mut mended = data.to_vec();
    let Some(ip) = mended.get_mut(14..) else {
        return;
    };
    let header_bytes = ip.first().map_or(0, |first| usize::from(first & 0x0F) * 4);
    if let Some(header) = ip.get_mut(..header_bytes).filter(|ip| ip.len() >= 20) {
        header[10..12].fill(0);
        let checksum = internet_checksum(header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        check_arrival(&mended);
    }
}

/// A frame that is accepted lies within its bounds, is for a port of ours and from a possible sender, and means the
/// same when it is sent again.
fn check_arrival(frame: &[u8]) {
    let within = |payload: &[u8]| {
        assert!(frame.as_ptr_range().start <= payload.as_ptr_range().start);
        assert!(payload.as_ptr_range().end <= frame.as_ptr_range().end);
    };
    match parse(frame, &OWN, is_open) {
        Ok(Arrival::Datagram {
            source,
            head,
            payload,
        }) => {
            within(payload);
            assert!(is_possible_source(*source.ip(), OWN.ip, OWN.broadcast));
            assert!(is_open(head.destination_port) && head.fragment == 0);
            assert_eq!(usize::from(head.length), payload.len());
            assert_eq!(DatagramHead::from_bytes(&head.to_bytes()), Some(head));
            check_sent_again(source, &head, payload);
        }
        Ok(Arrival::Fragment {
            source,
            head,
            payload,
        }) => {
            within(payload);
            assert!(is_possible_source(source, OWN.ip, OWN.broadcast));
            assert!(head.fragment != 0 && head.fragment & !(MORE_FRAGMENTS | FRAGMENT_OFFSET) == 0);
            assert_eq!(usize::from(head.length), payload.len());
            let is_first = head.fragment & FRAGMENT_OFFSET == 0;
            assert_eq!(is_first, is_open(head.destination_port));
            assert_eq!(DatagramHead::from_bytes(&head.to_bytes()), Some(head));
        }
        Err(_) => {}
    }
}

fn check_sent_again(source: SocketAddrV4, head: &DatagramHead, payload: &[u8]) {
    let to = SocketAddrV4::new(OWN.ip, head.destination_port);
    let route = Route::new(source, to, PEER_MAC, MAC, 1500);
    if payload.len() > route.whole_bytes_max() {
        return;
    }
    let mut buffer = SendBuffer::new(payload.len());
    let room = buffer.payload(payload.len()).expect("made for it");
    room.copy_from_slice(payload);
    let mut frames = buffer.frames(&route, head.priority, payload.len(), 0);
    let frame = frames.next_frame().expect("there is one").to_vec();
    let again = Arrival::Datagram {
        source,
        head: DatagramHead {
            checksum: made(source, to, payload),
            ..*head
        },
        payload,
    };
    assert_eq!(parse(&frame, &OWN, is_open), Ok(again));
    assert_eq!(
        judge(made(source, to, payload), source, to, payload),
        Some(UdpChecksum::Valid)
    );
}

/// Bytes of one step of `ip_reassembly`.
const STEP_BYTES: usize = 6;
const COLLECTOR_COUNT: usize = 5;
/// Small, so that the limits are met often.
const DATAGRAM_BYTES_MAX: usize = 200;
/// Longest fragment, mostly unused.
const FRAGMENT_BYTES_MAX: usize = 512;
/// Difference of a byte that is not the original's.
const LIE: u8 = 0x80;

/// The bytes as a series of fragments pushed into a small reassembler. Of each datagram there is an original;
/// most fragments are of it, some lie about their place, their end or their bytes. A datagram that comes out
/// is the original, unless a forged fragment was about just this one: then each of its bytes is one that came for
/// its place.
pub fn ip_reassembly(data: &[u8]) {
    let mut reassembler = Reassembler::new(Config {
        collector_count: COLLECTOR_COUNT,
        datagram_bytes_max: DATAGRAM_BYTES_MAX,
        time_limit: Duration::from_nanos(100),
    });
    let memory_bytes: usize = reassembler.memory().map(<[u8]>::len).sum();
    let mut now = Instant::ZERO;
    let mut lied_about = HashSet::new();
    let mut dropped = 0;
    for step in data.as_chunks::<STEP_BYTES>().0 {
        let key = (step[0] % 4, step[0] >> 2 & 7);
        let original = original(key);
        now = now + Duration::from_nanos(u64::from(step[5] & 0x0F));
        let mut bytes = [0; FRAGMENT_BYTES_MAX];
        let (fragment, bytes, honest) = fragment_of_step(step, key, &original, &mut bytes);
        if !honest {
            lied_about.insert(key);
        }
        match reassembler.push(now, &fragment, |place| place.copy_from_slice(bytes)) {
            Outcome::Complete(datagram) => {
                check_datagram(&datagram, key, &original, lied_about.contains(&key));
            }
            Outcome::Incomplete => assert!(reassembler.under_way_count() > 0),
            Outcome::Dropped => dropped += 1,
        }
        assert!(reassembler.under_way_count() <= COLLECTOR_COUNT);
    }
    let counters = *reassembler.counters();
    assert!(dropped <= counters.broken + counters.strays);
    assert_eq!(
        memory_bytes,
        reassembler.memory().map(<[u8]>::len).sum::<usize>()
    );
    reassembler.expire(Instant::FAR_FUTURE);
    assert_eq!(reassembler.under_way_count(), 0);
}

fn source(peer: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 10 + peer)
}

/// The packet of a datagram, UDP header first; 9 to 200 bytes of datagram.
fn original((peer, identification): (u8, u8)) -> Vec<u8> {
    let length = 9 + usize::from(peer) * 41 + usize::from(identification) * 9;
    let mut packet = vec![7, peer, 9, identification];
    packet.extend((8 + length as u16).to_be_bytes());
    packet.extend([peer, identification]);
    let bytes = (0..length).map(|place| (place as u8 ^ peer << 5 ^ identification << 2) & !LIE);
    packet.extend(bytes);
    packet
}

fn fragment_of_step<'b>(
    step: &[u8; STEP_BYTES],
    (peer, identification): (u8, u8),
    original: &[u8],
    bytes: &'b mut [u8],
) -> (Fragment, &'b [u8], bool) {
    let offset = usize::from(step[1] % 32) * 8;
    let length = usize::from(step[2] % 32 + 1) * 8;
    let (offset, length, more, honest) = match step[3] {
        // Lies: anything at all, or one wrong byte.
        0xF0.. => (
            usize::from(step[1]) << 8 & 0xFFF8,
            usize::from(step[2]),
            step[4].is_multiple_of(2),
            false,
        ),
        0xE0.. => (
            offset,
            length - 8 + usize::from(step[4]),
            step[4].is_multiple_of(2),
            false,
        ),
        wrong => {
            let offset = offset.min((original.len() - 1) & !7);
            let end = original.len().min(offset + length);
            (offset, end - offset, end < original.len(), wrong < 0xD0)
        }
    };
    let bytes = &mut bytes[..length];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = original.get(offset + place).copied().unwrap_or(LIE);
    }
    if !honest && let Some(wrong) = bytes.get_mut(usize::from(step[4])) {
        *wrong ^= LIE;
    }
    let fragment = Fragment {
        source: source(peer),
        identification: identification.into(),
        field: (offset / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 },
        length,
    };
    (fragment, bytes, honest)
}

fn check_datagram(datagram: &Datagram<'_>, key: (u8, u8), original: &[u8], lied_about: bool) {
    assert!(datagram.payload.len() <= DATAGRAM_BYTES_MAX);
    assert_eq!(*datagram.source.ip(), source(key.0));
    if !lied_about {
        let field = |at: usize| u16::from_be_bytes([original[at], original[at + 1]]);
        assert_eq!(datagram.source.port(), field(0));
        assert_eq!(datagram.destination_port, field(2));
        assert_eq!(datagram.checksum, field(6));
        assert_eq!(datagram.payload, &original[8..], "not what was sent");
        return;
    }
    for (place, byte) in datagram.payload.iter().enumerate() {
        let sent = original.get(8 + place).copied().unwrap_or(LIE);
        assert_eq!(sent & !LIE, byte & !LIE, "a byte from elsewhere");
    }
}

/// Seeds of a target of this module.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "ip_receive" => frames(),
        _ => series(),
    }
}

/// Datagrams of all sizes, whole and in fragments, with options.
fn frames() -> Vec<Vec<u8>> {
    let from = SocketAddrV4::new(source(0), 7);
    let to = SocketAddrV4::new(OWN.ip, 9);
    let mut seeds = Vec::new();
    for length in [0, 1, 18, 100, 472, 1472, 1473, 3000] {
        let route = Route::new(from, to, PEER_MAC, MAC, 1500);
        let mut buffer = SendBuffer::new(length);
        buffer.payload(length).expect("made for it").fill(0x5A);
        let mut frames = buffer.frames(&route, Priority::HIGHEST, length, 77);
        while let Some(frame) = frames.next_frame() {
            seeds.push(frame.to_vec());
        }
    }
    let mut options = seeds[2].clone();
    options[14] = 0x46;
    options[17] += 4;
    options.splice(34..34, [1, 1, 1, 0]);
    seeds.push(options);
    let mut tagged = seeds[2].clone();
    tagged.splice(12..12, [0x81, 0, 0xE0, 0]);
    seeds.push(tagged);
    seeds
}

/// Datagrams forwards, backwards, doubled, interleaved, with a hole, and with each sort of lie.
fn series() -> Vec<Vec<u8>> {
    let step = |key: u8, block: u8, lie: u8| [key, block, 2, lie, 1, 0];
    let mut seeds = Vec::new();
    for key in [0, 5, 14, 31] {
        let blocks = || (0..28).step_by(3);
        let in_order = |lie: u8| blocks().flat_map(move |block| step(key, block, lie));
        seeds.push(in_order(0).collect());
        seeds.push(
            blocks()
                .rev()
                .flat_map(|block| step(key, block, 0))
                .collect(),
        );
        seeds.push(in_order(0).chain(in_order(0)).collect());
        let interleaved =
            blocks().flat_map(|block| [step(key, block, 0), step(key ^ 1, block, 0)].concat());
        seeds.push(interleaved.collect());
        seeds.push(in_order(0).skip(STEP_BYTES).collect());
        for lie in [0xD0, 0xE0, 0xF0] {
            let lies = step(key, 3, lie).into_iter();
            seeds.push(lies.chain(in_order(0)).collect());
        }
    }
    seeds
}
