//! Files that `taut replay` reads: whatever they hold, they are refused with a sentence or played whole.
//!
//! The first byte of an input says where the rest stands: it is a file as it is, or records, which get a frame around
//! them, so that changes of records are not refused for a wrong checksum or a missing end.

use std::io::Cursor;

use tautline_capture::recording::{Recording, RecordingError};

/// Bytes with which an MCAP file begins and ends.
const MAGIC: &[u8] = b"\x89MCAP0\r\n";
/// Kinds of records.
const HEADER: u8 = 0x01;
const FOOTER: u8 = 0x02;
const SCHEMA: u8 = 0x03;
const CHANNEL: u8 = 0x04;
const MESSAGE: u8 = 0x05;
const CHUNK: u8 = 0x06;
const METADATA: u8 = 0x0c;
const DATA_END: u8 = 0x0f;

/// The bytes as a recording: nothing panics, a file that is accepted is played whole, and no part of it is accepted.
pub fn recording(data: &[u8]) {
    let Some((form, rest)) = data.split_first() else {
        return;
    };
    let bytes = match form % 3 {
        0 => rest.to_vec(),
        1 => file(rest),
        _ => file(&chunk(rest)),
    };
    let mut recording = match Recording::check(Cursor::new(&bytes[..])) {
        Ok(recording) => recording,
        Err(error) => return check_told(&error),
    };
    let flows = recording.flows().len();
    assert_eq!(recording.facts().len(), flows);
    let mut count = 0;
    let played = recording.play(|place, message| {
        assert!(place < flows);
        let ports = [message.flow.source_port, message.flow.destination_port];
        assert!(ports.iter().all(|port| (1..=4095).contains(port)));
        assert!(message.flow.priority <= 7);
        count += 1;
        Ok::<(), RecordingError>(())
    });
    assert!(played.is_ok(), "it was read before: {played:?}");
    assert_eq!(count, recording.messages());
    for cut in [1, 8, 40, bytes.len() / 2, bytes.len() - 1] {
        let part = &bytes[..bytes.len().saturating_sub(cut)];
        match Recording::check(Cursor::new(part)) {
            Ok(_) => panic!("accepted without its last {cut} bytes"),
            Err(error) => check_told(&error),
        }
    }
}

/// An error has a sentence and a remedy.
fn check_told(error: &RecordingError) {
    assert!(!error.to_string().is_empty() && !error.remedy().is_empty());
}

/// A file of these records.
fn file(records: &[u8]) -> Vec<u8> {
    let header = record(HEADER, &[text("tautline"), text("fuzz")].concat());
    // No summary, and no checksums.
    let end = [record(DATA_END, &[0; 4]), record(FOOTER, &[0; 20])].concat();
    [MAGIC, &header, records, &end, MAGIC].concat()
}

/// A chunk of these records, without a checksum.
fn chunk(records: &[u8]) -> Vec<u8> {
    let times = [0; 16];
    let bytes = (records.len() as u64).to_le_bytes();
    let content = [&times[..], &bytes, &[0; 4], &text(""), &bytes, records].concat();
    record(CHUNK, &content)
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let bytes = (content.len() as u64).to_le_bytes();
    [&[kind][..], &bytes, content].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn map(entries: &[(&str, &str)]) -> Vec<u8> {
    let entries: Vec<u8> = entries
        .iter()
        .flat_map(|(key, value)| [text(key), text(value)].concat())
        .collect();
    [&(entries.len() as u32).to_le_bytes()[..], &entries].concat()
}

fn channel(id: u16, schema: u16, entries: &[(&str, &str)]) -> Vec<u8> {
    let encoding = if schema == 0 {
        "application/octet-stream"
    } else {
        "ros1"
    };
    let content = [
        &id.to_le_bytes()[..],
        &schema.to_le_bytes(),
        &text("/eth0/a.1/b.2"),
        &text(encoding),
        &map(entries),
    ];
    record(CHANNEL, &content.concat())
}

fn message(channel: u16, sequence: u32, time_ns: u64, bytes: &[u8]) -> Vec<u8> {
    let time = time_ns.to_le_bytes();
    let content = [
        &channel.to_le_bytes()[..],
        &sequence.to_le_bytes(),
        &time,
        &time,
        bytes,
    ];
    record(MESSAGE, &content.concat())
}

fn schema() -> Vec<u8> {
    let fields = b"uint8 a\n";
    let content = [
        &1u16.to_le_bytes()[..],
        &text("tautline/T"),
        &text("ros1msg"),
        &(fields.len() as u32).to_le_bytes(),
        fields,
    ];
    record(SCHEMA, &content.concat())
}

/// Entries of a channel's metadata, as the recorder writes them.
const FLOW: [(&str, &str); 7] = [
    ("on", "eth0"),
    ("from", "10.0.0.1"),
    ("source_port", "1"),
    ("to", "10.0.0.2"),
    ("destination_port", "4095"),
    ("priority", "7"),
    ("way", "received"),
];

/// Recordings in all three forms: of bytes, of a type, foreign ones, and those with one thing wrong.
pub fn seeds() -> Vec<Vec<u8>> {
    let typed = [&FLOW[..], &[("type", "T { a: u8 }")]].concat();
    let plain = [channel(1, 0, &FLOW), message(1, 5, 9, b"stop")].concat();
    let several = [
        schema(),
        channel(1, 0, &FLOW),
        channel(2, 1, &typed),
        message(1, 1, 10, b""),
        message(2, 2, 11, &[7]),
        message(2, 3, 4, &[8]),
        record(
            METADATA,
            &[text("tautline"), map(&[("lost", "0")])].concat(),
        ),
    ]
    .concat();
    let mut records = vec![
        Vec::new(),
        plain.clone(),
        several.clone(),
        // A message before its channel, and a channel of another writer.
        message(9, 1, 1, b"?"),
        [channel(1, 0, &[]), message(1, 1, 1, b"")].concat(),
    ];
    for (place, wrong) in [(2, "0"), (2, "4096"), (5, "8"), (6, "sideways")] {
        let mut flow = FLOW;
        flow[place].1 = wrong;
        records.push([channel(1, 0, &flow), message(1, 1, 1, b"x")].concat());
    }
    let inside = (1..=2u8).flat_map(|form| {
        let with_form = move |records: &Vec<u8>| [&[form], &records[..]].concat();
        records.iter().map(with_form).collect::<Vec<_>>()
    });
    let mut seeds: Vec<Vec<u8>> = inside.collect();
    let whole = file(&several);
    seeds.push([&[0], &whole[..]].concat());
    seeds.push([&[0], &whole[..whole.len() - 9]].concat());
    seeds.push([&[0], &file(&chunk(&plain))[..]].concat());
    seeds.push(b"\0not a recording".to_vec());
    seeds
}
