//! One input for both implementations. Each function panics if they differ; the fuzz targets and the tests call them.

use core::time::Duration;

use tautline_proto::fragment::{
    DropReason, Outcome, Reassembler, ReassemblerConfig, SourceId, fragments,
};
use tautline_proto::loss::{Arrival, LossTracker};
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, FLAG_AUTHENTICATED, FRAGMENT_BYTES, Header, MESSAGE_BYTES_MAX, ParseError,
    PortNumber, Priority, Rejected, WHOLE_BYTES_MAX_ETHERNET, WHOLE_BYTES_MAX_UDP, bundle,
    ethernet, udp,
};

use crate::c::{self, Form, Parsed};
use crate::guarded::Guarded;

/// The bytes as a frame in either form, as a datagram, as a header, as a bundle and as the length of a message.
pub fn frame(data: &[u8]) {
    let mut memory = Guarded::new();
    frame_in(&mut memory, data);
}

/// The same in memory that the caller keeps, which is faster.
pub fn frame_in(memory: &mut Guarded, data: &[u8]) {
    let data = memory.place(data);
    for ethertype in [ETHERTYPE_DEFAULT, 0x88B6] {
        same_ethernet(data, ethertype);
    }
    same_udp(data);
    same_datagram(data);
    let parsed = Header::parse(data).map(|(header, payload)| fields(data, &header, payload));
    let answer = c::parse(Form::Header, data);
    assert_eq!(answer, known_to_c(parsed.map_err(Rejected::from), &answer));
    same_bundle(data);
    same_plan(data);
}

/// The Rust parser's answer as that of the C parser, which does not know authenticated frames: it says so before it
/// looks at what the Rust parser judges after the flags.
fn known_to_c(answer: Result<Parsed, Rejected>, of_c: &Result<Parsed, i32>) -> Result<Parsed, i32> {
    let unknown = ParseError::UnknownFlags.index() as i32;
    let is_known = match &answer {
        Ok(parsed) => parsed.header.flags & FLAG_AUTHENTICATED == 0,
        Err(_) => true,
    };
    match numbered(answer) {
        Ok(_) if !is_known => Err(unknown),
        Err(after) if after > unknown && *of_c == Err(unknown) => Err(unknown),
        other => other,
    }
}

/// The same with the numbers of the C parser.
fn numbered(answer: Result<Parsed, Rejected>) -> Result<Parsed, i32> {
    answer.map_err(|rejected| match rejected {
        Rejected::NotOurs => c::NOT_OURS,
        Rejected::Malformed(error) => error.index() as i32,
    })
}

fn fields(data: &[u8], header: &Header, payload: &[u8]) -> Parsed {
    Parsed {
        header: c_header(header),
        payload_offset: (payload.as_ptr() as usize - data.as_ptr() as usize) as u64,
        ..Parsed::default()
    }
}

fn c_header(header: &Header) -> c::Header {
    c::Header {
        destination: header.destination.get(),
        source: header.source.get(),
        length: header.length,
        priority: header.priority.get(),
        flags: header.flags,
        fragment_index: header.fragment_index,
        fragment_count: header.fragment_count,
        type_byte: header.type_byte,
        sequence: header.sequence,
    }
}

/// Parsed the same, and written the same again, with and without a tag.
fn same_ethernet(data: &[u8], ethertype: u16) {
    let parsed = ethernet::parse(data, ethertype);
    let expected = parsed.map(|frame| Parsed {
        destination_mac: frame.destination.0,
        source_mac: frame.source.0,
        ..fields(data, &frame.header, frame.payload)
    });
    let answer = c::parse(Form::Ethernet(ethertype), data);
    assert_eq!(answer, known_to_c(expected, &answer));
    let (Ok(frame), Ok(answer)) = (parsed, answer) else {
        return;
    };
    let mut headers = [0; ethernet::HEADERS_BYTES];
    let (to, from) = (frame.destination, frame.source);
    ethernet::emit_header(&mut headers, to, from, ethertype, &frame.header);
    assert_eq!(c::write_ethernet(&answer, ethertype, false), headers);
    let mut tagged = ethernet::with_tag(&headers, ethernet::Vlan::NONE);
    ethernet::set_tag_priority(&mut tagged, frame.header.priority);
    assert_eq!(c::write_ethernet(&answer, ethertype, true), tagged);
}

/// Parsed the same, and written the same again, with and without a type of service.
fn same_udp(data: &[u8]) {
    let parsed = udp::parse(data);
    let expected = parsed.map(|frame| Parsed {
        destination_mac: frame.destination.0,
        source_mac: frame.source.0,
        destination_ip: frame.destination_ip.to_bits(),
        source_ip: frame.source_ip.to_bits(),
        udp_checksum: frame.checksum as u8,
        ..fields(data, &frame.header, frame.payload)
    });
    let answer = c::parse(Form::Udp, data);
    assert_eq!(answer, known_to_c(expected, &answer));
    let (Ok(frame), Ok(answer)) = (parsed, answer) else {
        return;
    };
    if frame.payload.len() > WHOLE_BYTES_MAX_UDP {
        return;
    }
    let endpoints = udp::Endpoints {
        destination: frame.destination,
        source: frame.source,
        destination_ip: frame.destination_ip,
        source_ip: frame.source_ip,
    };
    let header = &frame.header;
    let mut template = udp::UdpTemplate::new(&endpoints, header.destination, header.source);
    for type_of_service in [0, header.priority.get() << 5] {
        template.set_type_of_service(type_of_service);
        template.set_header(header);
        assert_eq!(c::write_udp(&answer, type_of_service), template.bytes);
    }
}

/// For the port that the header names, and for another one.
fn same_datagram(data: &[u8]) {
    let named = Header::parse(data).map_or(21_570, |(header, _)| header.destination.udp_port());
    for port in [named, named ^ 1] {
        let parsed = udp::parse_datagram(data, port);
        let expected = parsed.map(|(header, payload)| fields(data, &header, payload));
        let answer = c::parse(Form::Datagram(port), data);
        assert_eq!(
            answer,
            known_to_c(expected.map_err(Rejected::from), &answer)
        );
    }
}

fn same_bundle(data: &[u8]) {
    let messages: Option<Vec<&[u8]>> = bundle::messages(data).ok().map(Iterator::collect);
    assert_eq!(c::bundle_is_valid(data), messages.is_some());
    assert_eq!(c::bundle(data), messages);
}

/// The first three bytes as the length of a message.
fn same_plan(data: &[u8]) {
    let Some([a, b, c, ..]) = data.get(..3) else {
        return;
    };
    let message_bytes = (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c))
        % (MESSAGE_BYTES_MAX + 100);
    for whole_bytes_max in [WHOLE_BYTES_MAX_UDP, WHOLE_BYTES_MAX_ETHERNET] {
        let plan = fragments(message_bytes, whole_bytes_max);
        let lengths = plan.map(|plan| plan.map(|part| part.length).collect::<Vec<_>>());
        assert_eq!(c::fragments(message_bytes, whole_bytes_max), lengths.ok());
    }
}

/// The bytes as sequence numbers, near each other or not.
pub fn loss(data: &[u8]) {
    let (mut rust, mut c) = (LossTracker::new(), c::Loss::default());
    let mut sequence = 0_u32;
    for step in data.as_chunks::<2>().0 {
        sequence = sequence_after(sequence, *step);
        let arrival = match rust.record(sequence) {
            Arrival::First => 0,
            Arrival::Advance { .. } => 1,
            Arrival::Reordered => 2,
            Arrival::Duplicate => 3,
            Arrival::Restart => 4,
        };
        assert_eq!(c.record(sequence), arrival, "{sequence} {rust:?}");
        let rust_fields = c::Loss {
            window: rust.window,
            expected: rust.expected,
            received: rust.received,
            duplicates: rust.duplicates,
            highest: rust.highest,
            span: rust.span,
            restarts: rust.restarts,
        };
        assert_eq!(c, rust_fields, "after {sequence}");
    }
}

/// A sequence number near the one before, or not. The fuzz target `loss` reads its inputs so, too, and both have the
/// same corpus.
pub fn sequence_after(sequence: u32, step: [u8; 2]) -> u32 {
    let [kind, number] = step.map(u32::from);
    match kind {
        0..192 => sequence.wrapping_add(number % 16).wrapping_sub(4),
        192..224 => sequence.wrapping_add(number << 8),
        224..240 => sequence.wrapping_sub(number << 4),
        240..250 => number,
        _ => number << 24,
    }
}

/// Bytes of one step of [`reassembly`].
pub const STEP_BYTES: usize = 8;
/// Small limits, so that they are met often.
const COLLECTOR_COUNT: usize = 5;
const SMALL_MESSAGE_BYTES_MAX: usize = 4 * FRAGMENT_BYTES + 100;
const TIME_LIMIT: Duration = Duration::from_nanos(100);

/// The bytes as a series of frames of several senders, pushed into a small reassembler of each language. Returns the
/// number of messages that were complete.
pub fn reassembly(data: &[u8]) -> u32 {
    let mut rust = Reassembler::new(ReassemblerConfig {
        collector_count: COLLECTOR_COUNT,
        message_bytes_max: SMALL_MESSAGE_BYTES_MAX,
        time_limit: TIME_LIMIT,
    });
    let mut c = c::Collectors::new(
        COLLECTOR_COUNT,
        SMALL_MESSAGE_BYTES_MAX,
        TIME_LIMIT.as_nanos() as u64,
    );
    let mut now = Instant::ZERO;
    for (number, step) in data.as_chunks::<STEP_BYTES>().0.iter().enumerate() {
        now = now + Duration::from_nanos(u64::from(step[7] & 0x1F));
        let source = SourceId(u64::from(step[0] % 4));
        let header = header_of_step(step);
        if step[7] >= 0xF0 {
            rust.forget_flow(source, header.source, header.destination);
            c.forget_flow(
                source.0 as u32,
                header.source.get(),
                header.destination.get(),
            );
        }
        // The C side takes what its parser has accepted, and no whole messages.
        if header.check_fragment().is_err() || header.is_whole() {
            rust.expire(now);
            c.expire(now.as_nanos());
            continue;
        }
        let payload = vec![number as u8; usize::from(header.length)];
        let (outcome, message) = c.collect(
            now.as_nanos(),
            source.0 as u32,
            &c_header(&header),
            &payload,
        );
        let (expected, expected_message) = match rust.push(now, source, &header, &payload) {
            Outcome::Incomplete => (0, None),
            Outcome::Complete(bytes) => (1, Some(bytes)),
            Outcome::Duplicate => (2, None),
            Outcome::Dropped(DropReason::NoCollector) => (3, None),
            Outcome::Dropped(DropReason::QuotaReached) => (4, None),
            Outcome::Dropped(DropReason::Inconsistent) => (5, None),
            Outcome::Dropped(DropReason::TooLarge) => (6, None),
            Outcome::Dropped(other) => panic!("a reason that C does not know: {other:?}"),
        };
        assert_eq!(outcome, expected, "step {number}");
        assert!(
            message == expected_message,
            "step {number}: another message"
        );
    }
    let (c, rust) = (c.counters(), rust.counters());
    let of_c = [
        c.completed,
        c.expired,
        c.forgotten,
        c.duplicates,
        c.no_collector,
        c.quota_reached,
        c.inconsistent,
        c.too_large,
    ];
    let of_rust = [
        rust.completed,
        rust.expired,
        rust.forgotten,
        rust.duplicates,
        rust.no_collector,
        rust.quota_reached,
        rust.inconsistent,
        rust.too_large,
    ];
    assert_eq!(of_c.map(u64::from), of_rust);
    c.completed
}

/// Ports, priorities, lengths and numbers that meet each other often; of the fuzz target `reassembly`, too.
pub fn header_of_step(step: &[u8; STEP_BYTES]) -> Header {
    let (fragment_index, fragment_count) = (step[1] % 8, step[2] % 8);
    let length = match step[3] % 4 {
        0 | 1 if fragment_index + 1 < fragment_count => FRAGMENT_BYTES as u16,
        2 => u16::from_be_bytes([step[3], step[4]]) % (2 * FRAGMENT_BYTES as u16),
        _ => 1 + u16::from(step[4]),
    };
    Header {
        destination: PortNumber::new(1 + u16::from(step[5] & 1)).expect("in range"),
        source: PortNumber::new(1 + u16::from(step[5] >> 1 & 1)).expect("in range"),
        priority: Priority::ALL[usize::from(step[5] >> 2 & 1)],
        flags: 0,
        fragment_index,
        fragment_count,
        length,
        sequence: u32::from(step[6] % 16)
            .wrapping_sub(8)
            .wrapping_add(fragment_index.into()),
        type_byte: 0,
    }
}

const _: () = assert!(ParseError::COUNT as i32 == c::NOT_OURS);
