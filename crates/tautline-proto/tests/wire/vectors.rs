//! The test vectors of `docs/vectors/wire`, whose format `docs/reference/wire.md` describes. A program in
//! another language can check itself against the same files.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tautline_proto::fragment::fragments;
use tautline_proto::loss::LossTracker;
use tautline_proto::smoother::message::{Message, MessageError};
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, HEADER_BYTES, Header, MacAddress, ParseError, Rejected, bundle, ethernet,
    udp,
};

const FRAME_FILES: [&str; 3] = ["ethernet.jsonl", "udp.jsonl", "datagram.jsonl"];

/// The objects in a file, one a line.
fn vectors(file: &str) -> Vec<Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors/wire");
    let text = fs::read_to_string(folder.join(file)).expect("vectors are part of the repository");
    let lines = text.lines().enumerate();
    lines
        .map(|(number, line)| match serde_json::from_str(line) {
            Ok(vector) => vector,
            Err(error) => panic!("{file}, line {}: {error}", number + 1),
        })
        .collect()
}

fn frame_vectors() -> Vec<Value> {
    FRAME_FILES.iter().flat_map(|file| vectors(file)).collect()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("hexadecimal text");
    assert!(hex.len().is_multiple_of(2), "{hex}");
    (0..hex.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(&hex[place..place + 2], 16).expect("hexadecimal"))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a number")).unwrap()
}

/// This crate's verdict on a frame, in the words of the files.
fn answer(vector: &Value, frame: &[u8]) -> Value {
    let answer = match vector["form"].as_str() {
        Some("ethernet") => ethernet::parse(frame, ETHERTYPE_DEFAULT).map(|parsed| {
            let mut fields = header_fields(&parsed.header, parsed.payload);
            add_macs(&mut fields, parsed.destination, parsed.source);
            fields
        }),
        Some("udp") => udp::parse(frame).map(|parsed| {
            let mut fields = header_fields(&parsed.header, parsed.payload);
            add_macs(&mut fields, parsed.destination, parsed.source);
            let checksum = format!("{:?}", parsed.checksum).to_lowercase();
            fields.insert("udp_checksum".into(), checksum.into());
            for (name, ip) in [
                ("destination_ip", parsed.destination_ip),
                ("source_ip", parsed.source_ip),
            ] {
                fields.insert(name.into(), ip.to_string().into());
            }
            fields
        }),
        Some("datagram") => {
            let port = number(&vector["udp_destination_port"]);
            udp::parse_datagram(frame, u16::try_from(port).unwrap())
                .map(|(header, payload)| header_fields(&header, payload))
                .map_err(Rejected::from)
        }
        form => panic!("unknown form {form:?}"),
    };
    match answer {
        Ok(fields) => fields.into(),
        Err(Rejected::NotOurs) => json!({"answer": "not_ours"}),
        Err(Rejected::Malformed(error)) => json!({"answer": "malformed", "error": error.name()}),
    }
}

fn header_fields(header: &Header, payload: &[u8]) -> Map<String, Value> {
    let fields = json!({
        "answer": "accept",
        "destination": header.destination.get(),
        "source": header.source.get(),
        "priority": header.priority.get(),
        "flags": header.flags,
        "fragment_index": header.fragment_index,
        "fragment_count": header.fragment_count,
        "length": header.length,
        "sequence": header.sequence,
        "type_byte": header.type_byte,
        "payload": hex(payload),
    });
    fields.as_object().cloned().expect("an object")
}

fn add_macs(fields: &mut Map<String, Value>, destination: MacAddress, source: MacAddress) {
    fields.insert("destination_mac".into(), destination.to_string().into());
    fields.insert("source_mac".into(), source.to_string().into());
}

#[test]
fn every_frame_has_its_answer() {
    for vector in frame_vectors() {
        let frame = bytes(&vector["frame"]);
        assert_eq!(
            answer(&vector, &frame),
            vector["expect"],
            "{}: {}",
            vector["form"],
            vector["name"]
        );
    }
}

#[test]
fn the_vectors_cover_every_error_in_every_form_that_has_it() {
    let vectors = frame_vectors();
    assert!(vectors.len() >= 150);
    for form in ["ethernet", "udp", "datagram"] {
        let of_form = || vectors.iter().filter(|vector| vector["form"] == form);
        let names: HashSet<_> = of_form().map(|vector| vector["name"].as_str()).collect();
        assert_eq!(names.len(), of_form().count(), "a name twice in {form}");
        for error in ParseError::ALL {
            let applies = match error {
                ParseError::PortMismatch => form != "ethernet",
                ParseError::BadChecksum => form == "udp",
                ParseError::InvalidSource => form != "datagram",
                _ => true,
            };
            let covered = of_form().any(|vector| vector["expect"]["error"] == error.name());
            assert_eq!(covered, applies, "{form}: {error}");
        }
    }
}

/// The frame's header, made from the expected fields alone, is the one in the frame.
#[test]
fn accepted_headers_are_written_as_they_are_read() {
    for vector in frame_vectors() {
        let frame = bytes(&vector["frame"]);
        if vector["expect"]["answer"] != "accept" {
            continue;
        }
        let payload = bytes(&vector["expect"]["payload"]);
        let mut emitted = vec![0; HEADER_BYTES];
        expected_header(&vector["expect"]).emit(emitted.first_chunk_mut().unwrap());
        emitted.extend(payload);
        let found = frame.windows(emitted.len()).any(|part| part == emitted);
        assert!(found, "{}: {}", vector["form"], vector["name"]);
    }
}

fn expected_header(expect: &Value) -> Header {
    Header {
        destination: expect["destination"].to_string().parse().unwrap(),
        source: expect["source"].to_string().parse().unwrap(),
        priority: expect["priority"].to_string().parse().unwrap(),
        flags: number(&expect["flags"]) as u8,
        fragment_index: number(&expect["fragment_index"]) as u8,
        fragment_count: number(&expect["fragment_count"]) as u8,
        length: number(&expect["length"]) as u16,
        sequence: number(&expect["sequence"]) as u32,
        type_byte: number(&expect["type_byte"]) as u8,
    }
}

/// Cut off anywhere, a frame is refused or yields a payload that lies within what was left.
#[test]
fn no_truncation_is_read_beyond() {
    for vector in frame_vectors() {
        let frame = bytes(&vector["frame"]);
        for length in 0..frame.len().min(120) {
            let answer = answer(&vector, &frame[..length]);
            if let Some(payload) = answer["payload"].as_str() {
                assert!(payload.len() / 2 + HEADER_BYTES <= length);
            }
        }
    }
}

#[test]
fn messages_are_cut_as_written() {
    for vector in vectors("fragments.jsonl") {
        let plan = fragments(
            number(&vector["message_bytes"]),
            number(&vector["whole_bytes_max"]),
        );
        match plan {
            Ok(plan) => {
                let lengths: Vec<u16> = plan.map(|part| part.length).collect();
                assert_eq!(json!(lengths), vector["lengths"], "{vector}");
            }
            Err(_) => assert_eq!(vector["error"], "message_too_large", "{vector}"),
        }
    }
}

#[test]
fn loss_is_counted_as_written() {
    for vector in vectors("loss.jsonl") {
        let mut tracker = LossTracker::new();
        for sequence in vector["sequences"].as_array().expect("a list") {
            tracker.record(u32::try_from(number(sequence)).unwrap());
        }
        for (name, value) in [
            ("expected", tracker.expected()),
            ("received", tracker.received()),
            ("lost", tracker.lost()),
            ("duplicates", tracker.duplicates()),
            ("restarts", tracker.restarts().into()),
        ] {
            assert_eq!(json!(value), vector[name], "{}: {name}", vector["name"]);
        }
    }
}

#[test]
fn bundles_are_taken_apart_as_the_vectors_say() {
    for vector in vectors("bundles.jsonl") {
        let payload = bytes(&vector["payload"]);
        let answer = match bundle::messages(&payload) {
            Ok(messages) => json!(messages.map(hex).collect::<Vec<_>>()),
            Err(bundle::MalformedBundle) => json!("malformed_bundle"),
        };
        let expected = vector.get("messages").unwrap_or(&vector["error"]);
        assert_eq!(answer, *expected, "{}", vector["name"]);
    }
}

#[test]
fn messages_of_the_smoother_are_read_as_the_vectors_say() {
    let vectors = vectors("smoother.jsonl");
    for vector in &vectors {
        let payload = bytes(&vector["payload"]);
        let answer = match Message::parse(&payload) {
            Ok(Message::Grant(grant)) => json!({"grant": {
                "burst_bytes": grant.burst_bytes,
                "epoch": grant.epoch,
                "number": grant.number,
                "rate_bps": grant.rate_bps,
            }}),
            Ok(Message::Report(report)) => json!({"report": {
                "epoch": report.epoch,
                "number": report.number,
                "sender_epoch": report.sender_epoch,
                "backlog_bytes": report.backlog_bytes,
                "held_ns": report.held.as_nanos() as u64,
                "other_bytes": report.other_bytes,
                "real_time_bytes": report.real_time_bytes,
            }}),
            Err(error) => json!({"error": error.name()}),
        };
        let mut expected = vector.as_object().cloned().unwrap();
        expected.remove("payload");
        let name = expected.remove("name");
        assert_eq!(answer, Value::Object(expected), "{name:?}");
    }
    for error in [
        MessageError::Truncated,
        MessageError::UnknownVersion,
        MessageError::UnknownKind,
    ] {
        let mut errors = vectors.iter().map(|vector| &vector["error"]);
        assert!(errors.any(|name| name == error.name()), "{error}");
    }
}
