//! Treatment of each input, and the properties that must hold then.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::HashSet;

use tautline_mcu::same::{STEP_BYTES, header_of_step, sequence_after};
use tautline_proto::fragment::{
    DropReason, Outcome, Reassembler, ReassemblerConfig, SourceId, fragments,
};
use tautline_proto::loss::LossTracker;
use tautline_proto::neighbour::{Form, Neighbour, NeighbourTable};
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, FLAGS_KNOWN, FRAGMENT_BYTES, HEADER_BYTES, Header, MESSAGE_BYTES_MAX,
    MacAddress, PortNumber, Priority, TRAILER_BYTES, WHOLE_BYTES_MAX_ETHERNET, WHOLE_BYTES_MAX_UDP,
    bundle, ethernet, udp,
};

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const ALL: &[Target] = &[
    ("wire_frame", wire_frame),
    ("reassembly", reassembly),
    ("message_plan", message_plan),
    ("loss", loss),
    ("bundle", bundle),
    ("authentication", crate::authentication::authentication),
    ("smoother", crate::smoother::smoother),
    ("text", text),
    ("ip_receive", crate::ip::ip_receive),
    ("ip_reassembly", crate::ip::ip_reassembly),
    ("mcu_frame", crate::mcu::mcu_frame),
    ("mcu_loss", crate::mcu::mcu_loss),
    ("mcu_reassembly", crate::mcu::mcu_reassembly),
    ("vbus_handshake", crate::vbus::vbus_handshake),
    ("vbus_identity", crate::vbus::vbus_identity),
    ("vbus_memory", crate::vbus::vbus_memory),
    ("vbus_window", crate::window::vbus_window),
    #[cfg(feature = "recording")]
    ("recording", crate::recording::recording),
    #[cfg(feature = "c-interface")]
    ("c_interface", crate::c_interface::c_interface),
];

/// The bytes as a frame in either form, as a datagram, and as a bare header.
pub fn wire_frame(data: &[u8]) {
    for ethertype in [ETHERTYPE_DEFAULT, 0x88B6] {
        if let Ok(frame) = ethernet::parse(data, ethertype) {
            assert!(!frame.source.is_group());
            check_accepted(data, &frame.header, frame.payload);
            let mut bytes = [0; ethernet::HEADERS_BYTES];
            ethernet::emit_header(
                &mut bytes,
                frame.destination,
                frame.source,
                ethertype,
                &frame.header,
            );
            let again = [&bytes[..], frame.payload].concat();
            assert_eq!(ethernet::parse(&again, ethertype), Ok(frame));
        }
    }
    if let Ok(frame) = udp::parse(data) {
        check_accepted(data, &frame.header, frame.payload);
        check_udp_again(&frame);
    }
    if let Ok((header, payload)) = Header::parse(data) {
        check_accepted(data, &header, payload);
        let bytes = data.first_chunk().expect("a header was read");
        assert_eq!(Header::from_bytes(bytes), Ok(header));
        let udp_port = header.destination.udp_port();
        assert_eq!(udp::parse_datagram(data, udp_port), Ok((header, payload)));
        assert!(udp::parse_datagram(data, udp_port ^ 1).is_err());
    } else {
        assert!(udp::parse_datagram(data, PortNumber::MIN.udp_port()).is_err());
    }
}

/// The payload lies within the input, and the header is one that a sender could have meant.
fn check_accepted(data: &[u8], header: &Header, payload: &[u8]) {
    assert_eq!(payload.len(), usize::from(header.length));
    assert!(data.as_ptr_range().start <= payload.as_ptr_range().start);
    assert!(payload.as_ptr_range().end <= data.as_ptr_range().end);
    let trailer = if header.is_authenticated() && !header.is_whole() {
        TRAILER_BYTES
    } else {
        0
    };
    assert!(header.message_offset() + payload.len() <= MESSAGE_BYTES_MAX + trailer);
    assert!(header.fragment_index < header.fragment_count);
    assert!((1..=4095).contains(&header.destination.get()));
    assert!((1..=4095).contains(&header.source.get()));
    assert!(header.priority.get() <= 7);
    assert_eq!(header.flags & 0x0F & !FLAGS_KNOWN, 0);
}

/// Sent again by a raw link, the frame is taken apart the same; if it fits the UDP form's frames.
fn check_udp_again(frame: &udp::Frame<'_>) {
    let endpoints = udp::Endpoints {
        destination: frame.destination,
        source: frame.source,
        destination_ip: frame.destination_ip,
        source_ip: frame.source_ip,
    };
    let header = &frame.header;
    if frame.payload.len() > WHOLE_BYTES_MAX_UDP {
        return;
    }
    let mut template = udp::UdpTemplate::new(&endpoints, header.destination, header.source);
    template.set_header(header);
    let again = [&template.bytes[..], frame.payload].concat();
    let expected = udp::Frame {
        // The template writes that of our own senders.
        source_udp_port: header.source.udp_port(),
        checksum: udp::UdpChecksum::Absent,
        ..*frame
    };
    assert_eq!(udp::parse(&again), Ok(expected));
}

/// A small message, so that its limits are met often.
const SMALL_MESSAGE_BYTES_MAX: usize = 4 * FRAGMENT_BYTES + 100;
const COLLECTOR_COUNT: usize = 5;

/// The bytes as a series of frames pushed into a small reassembler. What they carry depends on
/// their message and place alone, so that a completed message can be checked wherever its parts
/// came from.
pub fn reassembly(data: &[u8]) {
    let mut reassembler = Reassembler::new(ReassemblerConfig {
        collector_count: COLLECTOR_COUNT,
        message_bytes_max: SMALL_MESSAGE_BYTES_MAX,
        time_limit: Duration::from_nanos(100),
    });
    let mut now = Instant::ZERO;
    let mut payload = [0; 2 * FRAGMENT_BYTES];
    let mut kept = 0;
    let mut pushed = 0;
    for step in data.as_chunks::<STEP_BYTES>().0 {
        let (source, header) = frame_of_step(step);
        now = now + Duration::from_nanos(u64::from(step[7] & 0x1F));
        if step[7] == 0xFF {
            reassembler.forget_flow(source, header.source, header.destination);
        }
        let payload = &mut payload[..usize::from(header.length)];
        fill(payload, source, &header, header.message_offset());
        // Sometimes the payload is not as long as the header says.
        let shown = if step[7] & 0xE0 == 0xC0 {
            0
        } else {
            payload.len()
        };
        pushed += 1;
        match reassembler.push(now, source, &header, &payload[..shown]) {
            Outcome::Complete(message) => {
                kept += 1;
                assert!(message.len() <= SMALL_MESSAGE_BYTES_MAX);
                let mut expected = vec![0; message.len()];
                fill(&mut expected, source, &header, 0);
                assert!(message == expected, "not what was sent");
            }
            Outcome::Incomplete => kept += 1,
            Outcome::Dropped(DropReason::NoCollector) => {
                assert_eq!(reassembler.under_way_count(), COLLECTOR_COUNT);
            }
            Outcome::Duplicate | Outcome::Dropped(_) => {}
        }
        assert!(reassembler.under_way_count() <= COLLECTOR_COUNT);
    }
    let counters = *reassembler.counters();
    let refused =
        counters.no_collector + counters.quota_reached + counters.inconsistent + counters.too_large;
    assert_eq!(pushed, kept + counters.duplicates + refused);
    reassembler.expire(Instant::FAR_FUTURE);
    assert_eq!(reassembler.under_way_count(), 0);
}

fn frame_of_step(step: &[u8; STEP_BYTES]) -> (SourceId, Header) {
    (SourceId(u64::from(step[0] % 4)), header_of_step(step))
}

/// Contents at each place of each message.
fn fill(bytes: &mut [u8], source: SourceId, header: &Header, offset: usize) {
    let key = (source.0 as u32)
        .wrapping_add(header.message_sequence().wrapping_mul(31))
        .wrapping_add(u32::from(header.source.get()) * 7)
        .wrapping_add(u32::from(header.destination.get()) * 11)
        .wrapping_add(u32::from(header.priority.get()) * 13);
    for (place, byte) in bytes.iter_mut().enumerate() {
        let place = (offset + place) as u32;
        *byte = (key ^ place ^ place >> 8) as u8;
    }
}

/// The bytes as lengths of message and frame: the parts cover the message once, and each is a valid
/// frame.
pub fn message_plan(data: &[u8]) {
    for numbers in data.as_chunks::<5>().0 {
        let [a, b, c, d, e] = numbers.map(usize::from);
        let message_bytes = (a << 16 | b << 8 | c) % (MESSAGE_BYTES_MAX + 100);
        let span = WHOLE_BYTES_MAX_ETHERNET - FRAGMENT_BYTES + 1;
        let whole_bytes_max = FRAGMENT_BYTES + (d << 8 | e) % span;
        let Ok(plan) = fragments(message_bytes, whole_bytes_max) else {
            assert!(message_bytes > MESSAGE_BYTES_MAX);
            continue;
        };
        let mut covered = 0;
        for part in plan {
            assert_eq!(part.offset, covered);
            covered = part.range().end;
            let header = Header {
                fragment_index: part.index,
                fragment_count: part.count,
                ..Header::whole(
                    PortNumber::MIN,
                    PortNumber::MIN,
                    Priority::LOWEST,
                    part.length,
                    0,
                )
            };
            assert_eq!(header.check_fragment(), Ok(()));
            assert_eq!(header.message_offset(), part.offset);
            assert!(usize::from(part.length) <= whole_bytes_max);
        }
        assert_eq!(covered, message_bytes);
    }
}

/// The bytes as sequence numbers, near each other or not: the counters always add up.
pub fn loss(data: &[u8]) {
    let mut tracker = LossTracker::new();
    let mut sequence = 0u32;
    let mut recorded = 0;
    let mut seen = HashSet::new();
    for step in data.as_chunks::<2>().0 {
        sequence = sequence_after(sequence, *step);
        let before = tracker;
        tracker.record(sequence);
        recorded += 1;
        seen.insert(sequence);
        assert!(tracker.received() <= tracker.expected());
        assert_eq!(tracker.lost(), tracker.expected() - tracker.received());
        assert!(tracker.expected() >= before.expected());
        assert_eq!(tracker.received() + tracker.duplicates(), recorded);
        assert!(tracker.restarts() >= before.restarts());
        // Until the numbers have gone once round, none of them comes back rightly.
        if tracker.restarts() == 0 && tracker.expected() <= u64::from(u32::MAX) {
            assert!(
                tracker.received() <= seen.len() as u64,
                "one number counted twice"
            );
        }
    }
}

/// The bytes as the payload of a bundle: what is taken out makes the same bytes again, and nothing
/// reaches beyond them.
pub fn bundle(data: &[u8]) {
    let data = &data[..data.len().min(WHOLE_BYTES_MAX_ETHERNET)];
    let mut again = [0; WHOLE_BYTES_MAX_ETHERNET];
    let mut used = 0;
    let mut steps = bundle::Steps::new(data.len());
    let read = |offset: usize| {
        let field = data[offset..]
            .first_chunk()
            .expect("asked for within the payload");
        Some(u16::from_be_bytes(*field))
    };
    let mut count = 0;
    match bundle::messages(data) {
        Ok(messages) => {
            for message in messages {
                let place = steps.step(read).unwrap().expect("as many");
                assert_eq!(&data[place.offset..place.offset + place.length], message);
                used = bundle::append(&mut again, used, message).expect("fits as before");
                count += 1;
            }
            assert!(count >= 1 && steps.is_at_end());
            assert_eq!(steps.step(read), Ok(None));
            assert_eq!(&again[..used], data);
        }
        Err(bundle::MalformedBundle) => {
            while steps.step(read).is_ok_and(|place| place.is_some()) {
                count += 1;
                assert!(count <= data.len() / 2);
            }
            assert!(data.is_empty() || !steps.is_at_end() || steps.is_at_start());
        }
    }
}

/// The bytes as text that people write: numbers and addresses read back what they print, tables
/// refuse what breaks their rules.
pub fn text(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else {
        return;
    };
    if let Ok(port) = text.parse::<PortNumber>() {
        assert_eq!(port.to_string().parse(), Ok(port));
        assert_eq!(PortNumber::from_udp_port(port.udp_port()), Some(port));
    }
    if let Ok(priority) = text.parse::<Priority>() {
        assert_eq!(priority.to_string().parse(), Ok(priority));
    }
    if let Ok(mac) = text.parse::<MacAddress>() {
        assert_eq!(mac.to_string(), text.to_lowercase().replace('-', ":"));
    }
    let mut table = NeighbourTable::new();
    for (line_index, line) in text.lines().enumerate() {
        let known = table.by_name(line).is_some();
        let added = table.add(Neighbour {
            name: line.to_owned(),
            mac: MacAddress::UNSPECIFIED,
            ip: Some(Ipv4Addr::from_bits(line_index as u32)),
            form: Form::Udp,
        });
        assert!(!(known && added.is_ok()));
        if let Ok(index) = added {
            assert_eq!(table.by_name(line), Some(index));
            assert_eq!(
                table.by_ip(Ipv4Addr::from_bits(line_index as u32)),
                Some(index)
            );
        }
    }
    assert!(table.len() <= 256);
}

const _: () = assert!(STEP_BYTES < HEADER_BYTES);
