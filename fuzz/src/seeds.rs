//! Inputs to begin with: the kept ones, and some made from the test vectors of the wire format.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::kept;

const FRAMES: [&str; 3] = [
    include_str!("../../docs/vectors/wire/ethernet.jsonl"),
    include_str!("../../docs/vectors/wire/udp.jsonl"),
    include_str!("../../docs/vectors/wire/datagram.jsonl"),
];
const LOSS: &str = include_str!("../../docs/vectors/wire/loss.jsonl");
const AUTHENTICATED: &str = include_str!("../../docs/vectors/wire/authenticated.jsonl");
const BUNDLES: &str = include_str!("../../docs/vectors/wire/bundles.jsonl");
const SMOOTHER: &str = include_str!("../../docs/vectors/wire/smoother.jsonl");
const FRAGMENTS: &str = include_str!("../../docs/vectors/wire/fragments.jsonl");

/// The seeds of a target by its name, at least one.
pub fn of_target(target: &str) -> Vec<Vec<u8>> {
    let mut seeds = made_for(target);
    seeds.extend(kept::of_target(target));
    seeds
}

fn made_for(target: &str) -> Vec<Vec<u8>> {
    match kept::file_of(target) {
        "wire_frame" => FRAMES.iter().flat_map(|text| frames(text)).collect(),
        "reassembly" => reassembly(),
        "message_plan" => lines(FRAGMENTS).map(|vector| plan(&vector)).collect(),
        "bundle" => lines(BUNDLES)
            .map(|vector| bytes(&vector["payload"]))
            .collect(),
        "authentication" => lines(AUTHENTICATED)
            .map(|vector| [bytes(&vector["header"]), bytes(&vector["payload"])].concat())
            .collect(),
        "smoother" => lines(SMOOTHER)
            .map(|vector| bytes(&vector["payload"]))
            .collect(),
        "loss" => lines(LOSS).map(|vector| sequences(&vector)).collect(),
        "ip_receive" | "ip_reassembly" => crate::ip::seeds(target),
        "vbus_handshake" | "vbus_identity" | "vbus_memory" => crate::vbus::seeds(target),
        "vbus_window" => crate::window::seeds(),
        #[cfg(feature = "recording")]
        "recording" => crate::recording::seeds(),
        #[cfg(feature = "c-interface")]
        "c_interface" => crate::c_interface::seeds(),
        _ => text(),
    }
}

/// The files that libFuzzer begins with: name and content, for each target.
pub fn corpus(targets: &[&'static str]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for target in targets {
        for (number, seed) in of_target(target).into_iter().enumerate() {
            files.insert(format!("{target}/{number:03}"), seed);
        }
    }
    files
}

fn lines(text: &str) -> impl Iterator<Item = Value> + '_ {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("vectors are JSON, one object a line"))
}

fn frames(text: &str) -> impl Iterator<Item = Vec<u8>> + '_ {
    lines(text).map(|vector| bytes(&vector["frame"]))
}

fn bytes(hex: &Value) -> Vec<u8> {
    kept::bytes(hex.as_str().expect("hexadecimal text"))
}

/// Steps that complete messages of one to six fragments, forwards and backwards, interleaved and
/// doubled.
fn reassembly() -> Vec<Vec<u8>> {
    let step = |source, index, count| [source, index, count, 0, index, 0, 8, 0];
    let mut seeds = Vec::new();
    for count in 1..=6 {
        let forwards: Vec<u8> = (0..count).flat_map(|index| step(0, index, count)).collect();
        let backwards: Vec<u8> = (0..count)
            .rev()
            .flat_map(|index| step(1, index, count))
            .collect();
        let doubled: Vec<u8> = (0..count)
            .flat_map(|index| [step(2, index, count), step(3, index, count)].concat())
            .collect();
        seeds.push([&forwards[..], &forwards].concat());
        seeds.extend([backwards, doubled]);
    }
    seeds
}

fn plan(vector: &Value) -> Vec<u8> {
    let number = |key: &str| vector[key].as_u64().expect("a number") as u32;
    let message_bytes = number("message_bytes").to_be_bytes();
    let whole_bytes = (number("whole_bytes_max") - 1408).to_be_bytes();
    [&message_bytes[1..], &whole_bytes[2..]].concat()
}

/// Sequence numbers below 256 as they are, greater ones by their highest byte.
fn sequences(vector: &Value) -> Vec<u8> {
    let sequences = vector["sequences"].as_array().expect("a list").iter();
    sequences
        .flat_map(|sequence| match sequence.as_u64().expect("a number") {
            near @ 0..256 => [240, near as u8],
            far => [250, (far >> 24) as u8],
        })
        .collect()
}

fn text() -> Vec<Vec<u8>> {
    let texts = [
        "1",
        "4095",
        "4096",
        "0",
        "7",
        "-1",
        "02:00:5e:10:00:01",
        "FF-FF-FF-FF-FF-FF",
        "02:00:5e:10:00",
        "arm\nleg\narm\n",
        "\n\n",
        "é",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets;

    #[test]
    fn every_target_has_seeds_made_and_kept() {
        for &(name, _) in targets::ALL {
            assert!(of_target(name).len() >= 10, "{name}");
            assert!(!kept::of_target(name).is_empty(), "{name}");
        }
    }
}
