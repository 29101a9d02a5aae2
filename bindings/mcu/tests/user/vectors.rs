//! The test vectors of `docs/vectors/wire`, answered by the C header. Those of the smoother apart: its messages are
//! payloads of ordinary messages, and a microcontroller has no other traffic to hold back.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tautline_mcu::c::{self, Form};
use tautline_mcu::guarded::Guarded;

/// Error names by their numbers in `enum tlm_verdict`.
const ERRORS: [&str; 10] = [
    "truncated",
    "unknown_version",
    "unknown_flags",
    "invalid_port",
    "invalid_priority",
    "length_beyond_frame",
    "invalid_fragment",
    "port_mismatch",
    "bad_checksum",
    "invalid_source",
];

fn vectors(file: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors/wire");
    let text = fs::read_to_string(folder.join(file)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(address: u32) -> String {
    std::net::Ipv4Addr::from_bits(address).to_string()
}

/// The header's answer to a frame, in the words of the files.
fn answer(vector: &Value, frame: &[u8]) -> Value {
    let form = match vector["form"].as_str().unwrap() {
        "ethernet" => Form::Ethernet(0x88b5),
        "udp" => Form::Udp,
        _ => Form::Datagram(vector["udp_destination_port"].as_u64().unwrap() as u16),
    };
    let parsed = match c::parse(form, frame) {
        Ok(parsed) => parsed,
        Err(c::NOT_OURS) => return json!({"answer": "not_ours"}),
        Err(error) => return json!({"answer": "malformed", "error": ERRORS[error as usize]}),
    };
    let header = parsed.header;
    let start = parsed.payload_offset as usize;
    let mut fields: Map<String, Value> = json!({
        "answer": "accept",
        "destination": header.destination,
        "source": header.source,
        "priority": header.priority,
        "flags": header.flags,
        "fragment_index": header.fragment_index,
        "fragment_count": header.fragment_count,
        "length": header.length,
        "sequence": header.sequence,
        "type_byte": header.type_byte,
        "payload": hex(&frame[start..start + usize::from(header.length)]),
    })
    .as_object()
    .unwrap()
    .clone();
    let mut add = |name: &str, value: String| fields.insert(name.to_owned(), value.into());
    if !matches!(form, Form::Datagram(_)) {
        add("destination_mac", mac(parsed.destination_mac));
        add("source_mac", mac(parsed.source_mac));
    }
    if form == Form::Udp {
        add("destination_ip", ip(parsed.destination_ip));
        add("source_ip", ip(parsed.source_ip));
        let state = ["absent", "valid", "partial"][usize::from(parsed.udp_checksum)];
        add("udp_checksum", state.to_owned());
    }
    fields.into()
}

#[test]
fn every_frame_has_its_answer() {
    let mut memory = Guarded::new();
    let mut count = 0;
    for file in ["ethernet.jsonl", "udp.jsonl", "datagram.jsonl"] {
        for vector in vectors(file) {
            let frame = bytes(&vector["frame"]);
            let answer = answer(&vector, memory.place(&frame));
            assert_eq!(answer, vector["expect"], "{file}: {}", vector["name"]);
            count += 1;
        }
    }
    assert!(count >= 150, "{count} vectors");
}

#[test]
fn messages_are_cut_as_written() {
    for vector in vectors("fragments.jsonl") {
        let number = |key: &str| vector[key].as_u64().unwrap() as usize;
        match c::fragments(number("message_bytes"), number("whole_bytes_max")) {
            Some(lengths) => assert_eq!(json!(lengths), vector["lengths"], "{vector}"),
            None => assert_eq!(vector["error"], "message_too_large", "{vector}"),
        }
    }
}

#[test]
fn loss_is_counted_as_written() {
    for vector in vectors("loss.jsonl") {
        let mut loss = c::Loss::default();
        for sequence in vector["sequences"].as_array().unwrap() {
            loss.record(sequence.as_u64().unwrap() as u32);
        }
        let counted = json!({
            "expected": loss.expected,
            "received": loss.received,
            "lost": loss.expected - loss.received,
            "duplicates": loss.duplicates,
            "restarts": loss.restarts,
        });
        for (name, value) in counted.as_object().unwrap() {
            assert_eq!(*value, vector[name], "{}: {name}", vector["name"]);
        }
    }
}

#[test]
fn bundles_are_taken_apart_as_written() {
    for vector in vectors("bundles.jsonl") {
        let payload = bytes(&vector["payload"]);
        match c::bundle(&payload) {
            Some(messages) => {
                let messages: Vec<String> = messages.into_iter().map(hex).collect();
                assert_eq!(json!(messages), vector["messages"], "{}", vector["name"]);
            }
            None => assert_eq!(vector["error"], "malformed_bundle", "{}", vector["name"]),
        }
    }
}
