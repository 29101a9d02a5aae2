//! Random and changed inputs: the C header and the Rust parser agree on each. `fuzz/` runs the same comparisons with
//! coverage, and for longer.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline_mcu::c::{self, Form};
use tautline_mcu::guarded::Guarded;
use tautline_mcu::same;
use tautline_proto::wire::udp::internet_checksum;

/// Frames that are compared. Fewer: rare combinations are not met. More: every run takes longer.
const FRAMES: u32 = 500_000;
/// Sequences of steps for loss and reassembly.
const SEQUENCES: u32 = 5_000;
const SEED: u64 = 18;

/// Frames of the test vectors, and datagrams.
fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors/wire");
    let mut seeds = Vec::new();
    for file in ["ethernet.jsonl", "udp.jsonl", "datagram.jsonl"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        for line in text.lines() {
            let vector: serde_json::Value = serde_json::from_str(line).unwrap();
            let hex = vector["frame"].as_str().unwrap();
            let byte = |place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap();
            seeds.push((0..hex.len()).step_by(2).map(byte).collect());
        }
    }
    seeds
}

fn below(random: &mut Xoshiro256PlusPlus, limit: usize) -> usize {
    (random.next_u64() % limit.max(1) as u64) as usize
}

/// A vector with up to five bytes changed, inserted or cut off, mostly in the headers.
fn changed(random: &mut Xoshiro256PlusPlus, seed: &[u8]) -> Vec<u8> {
    let mut frame = seed.to_vec();
    for _ in 0..below(random, 6) {
        let within = if below(random, 4) == 0 {
            frame.len()
        } else {
            frame.len().min(64)
        };
        if within == 0 {
            break;
        }
        let place = below(random, within);
        let value = [0, 1, 2, 7, 8, 46, 47, 48, 0xFF, random.next_u64() as u8][below(random, 10)];
        match below(random, 6) {
            0 => frame.truncate(place),
            1 => frame.insert(place, value),
            2 => frame[place] ^= 1 << below(random, 8),
            _ => frame[place] = value,
        }
    }
    if below(random, 2) == 0 {
        mend_ipv4_checksum(&mut frame);
    }
    frame
}

/// Makes the checksum of an IPv4 header right, so that changes behind it are looked at.
fn mend_ipv4_checksum(frame: &mut [u8]) {
    let Some(header) = frame.get_mut(14..34).filter(|header| header[0] == 0x45) else {
        return;
    };
    header[10..12].fill(0);
    let checksum = internet_checksum(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn every_frame_has_the_same_answer_in_both_languages() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut memory = Guarded::new();
    let seeds = seeds();
    let mut answers = BTreeSet::new();
    for _ in 0..FRAMES {
        let seed = &seeds[below(&mut random, seeds.len())];
        let frame = changed(&mut random, seed);
        same::frame_in(&mut memory, &frame);
        for form in [Form::Ethernet(0x88B5), Form::Udp, Form::Datagram(21_571)] {
            answers.insert(c::parse(form, &frame).map_or_else(|answer| answer, |_| c::ACCEPTED));
        }
    }
    assert_eq!(
        answers,
        (0..=c::ACCEPTED).collect(),
        "not every answer was met"
    );
}

fn random_bytes(random: &mut Xoshiro256PlusPlus, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill_bytes(&mut bytes);
    bytes
}

#[test]
fn losses_are_counted_the_same() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    for _ in 0..SEQUENCES {
        same::loss(&random_bytes(&mut random, 400));
    }
}

/// A frame of a few messages of up to four fragments that several senders have under way, as a step of
/// [`same::reassembly`]; one in twenty is none that a sender would make.
fn step(random: &mut Xoshiro256PlusPlus) -> [u8; 8] {
    let mut step = [0; 8];
    random.fill_bytes(&mut step);
    if below(random, 20) > 0 {
        let count = 2 + step[2] % 3;
        let index = step[1] % count;
        let whole_or_rest = if index + 1 < count { 0 } else { 3 };
        step = [
            step[0],
            index,
            count,
            whole_or_rest,
            9,
            step[5] & 1,
            step[6] % 3,
            step[7] % 8,
        ];
    }
    step
}

#[test]
fn messages_are_put_together_the_same() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut completed = 0;
    for _ in 0..SEQUENCES {
        let steps: Vec<u8> = (0..100).flat_map(|_| step(&mut random)).collect();
        completed += same::reassembly(&steps);
    }
    assert!(
        completed > SEQUENCES,
        "only {completed} messages were complete"
    );
}
