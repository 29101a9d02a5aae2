//! Wireshark's dissector against the vectors of the wire format: what tshark says of a frame is what
//! docs/reference/wire.md says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tautline_capture::{Way, pcapng};

/// Errors that the dissectors of Ethernet, IP and UDP would have to find, or that need a sum over the whole datagram.
const OUTER_ERRORS: [&str; 2] = ["invalid_source", "bad_checksum"];

/// UDP datagrams that are cut short, of which ours sees what is left.
const OUTER_LENGTHS: [&str; 2] = ["truncated", "length_beyond_frame"];

/// A frame whose UDP source port is another protocol's, which Wireshark asks first.
const OTHER_PROTOCOL: &str = "source UDP port is not looked at";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn vectors(name: &str) -> Vec<Value> {
    let path = root().join("docs/vectors/wire").join(name);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    let pairs = (0..hex.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// A frame of the Ethernet form.
fn frame(source: u16, destination: u16, flags: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 11, 2, 0, 0, 0, 0, 10, 0x88, 0xb5];
    frame.extend(destination.to_be_bytes());
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([7, flags, 1, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend([1, 0]);
    frame.extend(sequence.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Fields of frames, by tshark with our dissector, in the order of the frames. Nothing where it is not installed.
fn dissect(
    name: &str,
    frames: &[Vec<u8>],
    fields: &[&str],
) -> Option<Vec<BTreeMap<String, String>>> {
    let mut file = Vec::new();
    pcapng::section(&mut file);
    pcapng::interface(&mut file, pcapng::LINK_ETHERNET, "test", "vectors");
    for (frame, time_ns) in frames.iter().zip(1..) {
        let one = pcapng::Packet {
            interface: 0,
            time_ns,
            way: Way::Received,
            length: frame.len() as u32,
            bytes: frame,
            lost: 0,
            comment: "",
        };
        pcapng::packet(&mut file, &one);
    }
    let path = std::env::temp_dir().join(format!("taut-{name}-{}.pcapng", std::process::id()));
    fs::write(&path, file).unwrap();
    let script = root().join("contrib/wireshark/tautline.lua");
    let mut command = Command::new("tshark");
    command
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(&path)
        .args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=a"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output();
    let _ = fs::remove_file(&path);
    let Ok(output) = output else {
        println!("SKIPPED: tshark is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("Lua"), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("Lua Error"), "{text}");
    let rows = text.lines().map(|line| {
        let values = line.split('|').map(str::to_owned);
        fields
            .iter()
            .map(|field| (*field).to_owned())
            .zip(values)
            .collect()
    });
    let rows: Vec<BTreeMap<String, String>> = rows.collect();
    assert_eq!(rows.len(), frames.len());
    Some(rows)
}

#[test]
fn frames_are_read_as_the_vectors_say() {
    let fields = [
        "tautline.destination",
        "tautline.source",
        "tautline.priority",
        "tautline.flags",
        "tautline.fragment_index",
        "tautline.fragment_count",
        "tautline.length",
        "tautline.sequence",
        "tautline.payload",
        "_ws.expert.message",
        "_ws.col.Info",
    ];
    for name in ["ethernet.jsonl", "udp.jsonl"] {
        let vectors = vectors(name);
        let frames: Vec<Vec<u8>> = vectors
            .iter()
            .map(|vector| bytes(&vector["frame"]))
            .collect();
        let Some(rows) = dissect(name, &frames, &fields) else {
            return;
        };
        let (mut accepted, mut malformed) = (0, 0);
        for (vector, row) in vectors.iter().zip(&rows) {
            let expect = &vector["expect"];
            let what = format!("{name}: {}: {row:?}", vector["name"]);
            let said = &row["_ws.col.Info"];
            if vector["name"] == OTHER_PROTOCOL {
                continue;
            }
            match expect["answer"].as_str().unwrap() {
                "accept" => {
                    accepted += 1;
                    for field in &fields[..8] {
                        let key = field.trim_start_matches("tautline.");
                        let found = &row[*field];
                        let number = match found.strip_prefix("0x") {
                            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                            None => found.parse().unwrap_or_else(|_| panic!("{what}")),
                        };
                        assert_eq!(Some(number), expect[key].as_u64(), "{key}: {what}");
                    }
                    if expect["flags"].as_u64().unwrap() % 2 == 0 {
                        assert_eq!(
                            row["tautline.payload"],
                            expect["payload"].as_str().unwrap(),
                            "{what}"
                        );
                    }
                    assert!(!said.contains("malformed"), "{what}");
                }
                "malformed" => {
                    let error = expect["error"].as_str().unwrap();
                    let is_outer = OUTER_ERRORS.contains(&error)
                        || (name == "udp.jsonl" && OUTER_LENGTHS.contains(&error));
                    if !is_outer {
                        malformed += 1;
                        // Wireshark keeps its own words for a frame that ends with its EtherType.
                        let is_empty = vector["frame"].as_str().unwrap().len() <= 36;
                        assert!(is_empty || *said == format!("malformed: {error}"), "{what}");
                        assert!(row["_ws.expert.message"].contains(error), "{what}");
                    }
                }
                _ => {}
            }
        }
        assert!(
            accepted > 10 && malformed > 10,
            "{name}: {accepted} {malformed}"
        );
    }
}

#[test]
fn loss_is_counted_as_the_vectors_say() {
    let vectors = vectors("loss.jsonl");
    let mut frames = Vec::new();
    let mut last = Vec::new();
    // Each vector is a flow of its own.
    for (vector, port) in vectors.iter().zip(1..) {
        for sequence in vector["sequences"].as_array().unwrap() {
            let sequence = u32::try_from(sequence.as_u64().unwrap()).unwrap();
            frames.push(frame(port, 9, 0, sequence, b"x"));
        }
        last.push(frames.len() - 1);
    }
    let keys = ["expected", "received", "lost", "duplicates", "restarts"];
    let fields = keys.map(|key| format!("tautline.loss.{key}"));
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let Some(rows) = dissect("loss", &frames, &fields) else {
        return;
    };
    for (vector, row) in vectors.iter().zip(last.iter().map(|last| &rows[*last])) {
        for (key, field) in keys.iter().zip(&fields) {
            let found: u64 = row[*field].parse().unwrap();
            assert_eq!(
                Some(found),
                vector[key].as_u64(),
                "{}: {key}",
                vector["name"]
            );
        }
    }
}

#[test]
fn bundles_and_messages_of_the_smoother_are_read_as_the_vectors_say() {
    let bundles = vectors("bundles.jsonl");
    let smoother = vectors("smoother.jsonl");
    let mut frames = Vec::new();
    for vector in &bundles {
        frames.push(frame(1, 2, 1, 0, &bytes(&vector["payload"])));
    }
    for vector in &smoother {
        frames.push(frame(4030, 4030, 0, 0, &bytes(&vector["payload"])));
    }
    let fields = [
        "tautline.bundle.message",
        "tautline.bundle.count",
        "tautline.smoother.number",
        "tautline.smoother.rate",
        "tautline.smoother.backlog",
        "_ws.expert.message",
    ];
    let Some(rows) = dissect("bundles", &frames, &fields) else {
        return;
    };
    for (vector, row) in bundles.iter().zip(&rows) {
        let what = format!("{}: {row:?}", vector["name"]);
        let is_bad = row["_ws.expert.message"].contains("bad_bundles");
        // An empty payload holds no bundle to look into.
        if bytes(&vector["payload"]).is_empty() {
            continue;
        }
        assert_eq!(is_bad, vector.get("error").is_some(), "{what}");
        let Some(messages) = vector.get("messages").and_then(Value::as_array) else {
            continue;
        };
        assert_eq!(
            row["tautline.bundle.count"],
            messages.len().to_string(),
            "{what}"
        );
        let full = messages
            .iter()
            .filter_map(Value::as_str)
            .filter(|text| !text.is_empty());
        let full: Vec<&str> = full.collect();
        assert_eq!(row["tautline.bundle.message"], full.join(","), "{what}");
    }
    for (vector, row) in smoother.iter().zip(&rows[bundles.len()..]) {
        let what = format!("{}: {row:?}", vector["name"]);
        if let Some(error) = vector.get("error") {
            let is_empty = bytes(&vector["payload"]).is_empty();
            let said = row["_ws.expert.message"].contains(error.as_str().unwrap());
            assert!(said || is_empty, "{what}");
        } else if let Some(grant) = vector.get("grant") {
            assert_eq!(
                row["tautline.smoother.number"],
                grant["number"].to_string(),
                "{what}"
            );
            assert_eq!(
                row["tautline.smoother.rate"],
                grant["rate_bps"].to_string(),
                "{what}"
            );
        } else {
            let report = &vector["report"];
            assert_eq!(
                row["tautline.smoother.number"],
                report["number"].to_string(),
                "{what}"
            );
            assert!(!row["tautline.smoother.backlog"].is_empty(), "{what}");
        }
    }
}

#[test]
fn a_message_in_fragments_is_put_together() {
    let message: Vec<u8> = (0..3000u32).map(|index| (index % 251) as u8).collect();
    let mut frames: Vec<Vec<u8>> = message
        .chunks(1408)
        .zip(0u8..)
        .map(|(part, index)| {
            let mut frame = frame(5, 6, 0, 100 + u32::from(index), part);
            frame[14 + 7] = index;
            frame[14 + 10] = 3;
            frame
        })
        .collect();
    // The order on the wire does not matter.
    frames.swap(0, 2);
    let fields = [
        "tautline.whole_payload",
        "tautline.whole_in",
        "tautline.offset",
    ];
    let Some(rows) = dissect("fragments", &frames, &fields) else {
        return;
    };
    let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(rows[2]["tautline.whole_payload"], hex);
    assert_eq!(rows[0]["tautline.offset"], "2816");
}

#[test]
fn authenticated_frames_show_their_trailer_and_nothing_false() {
    let vectors = vectors("authenticated.jsonl");
    let frames: Vec<Vec<u8>> = vectors
        .iter()
        .map(|vector| {
            let (header, payload) = (bytes(&vector["header"]), bytes(&vector["payload"]));
            let outer = [2, 0, 0, 0, 0, 11, 2, 0, 0, 0, 0, 10, 0x88, 0xb5];
            [&outer[..], &header, &payload].concat()
        })
        .collect();
    let fields = [
        "tautline.payload",
        "tautline.bundle.message",
        "tautline.authentication.encrypted",
        "tautline.authentication.run",
        "tautline.authentication.hidden",
        "_ws.expert.message",
        "_ws.col.Info",
    ];
    let Some(rows) = dissect("authenticated", &frames, &fields) else {
        return;
    };
    for (vector, row) in vectors.iter().zip(&rows) {
        let what = format!("{}: {row:?}", vector["name"]);
        let (expect, said) = (&vector["expect"], &row["_ws.col.Info"]);
        match expect["error"].as_str() {
            None => {}
            Some("unprotected") => {
                assert!(row["tautline.authentication.run"].is_empty(), "{what}");
                continue;
            }
            // An empty payload is not looked at.
            Some("cut") if !bytes(&vector["payload"]).is_empty() => {
                assert!(row["_ws.expert.message"].contains("cut"), "{what}");
                continue;
            }
            // Without the keys the others look like good ones.
            Some(_) => continue,
        }
        assert!(!said.contains("malformed"), "{what}");
        assert_eq!(
            row["tautline.authentication.run"],
            expect["run"].as_str().unwrap(),
            "{what}"
        );
        let message = expect["message"].as_str().unwrap();
        let payload = vector["payload"].as_str().unwrap();
        if expect["encrypted"] == true {
            assert!(said.contains(" encrypted"), "{what}");
            assert_eq!(row["tautline.payload"], "", "{what}");
            assert_eq!(row["tautline.bundle.message"], "", "{what}");
            assert_eq!(
                row["tautline.authentication.hidden"],
                payload[..payload.len() - 72],
                "{what}"
            );
        } else {
            assert!(said.contains(" authenticated"), "{what}");
            assert_eq!(row["tautline.payload"], message, "{what}");
            assert_eq!(row["tautline.authentication.hidden"], "", "{what}");
        }
    }
}
