//! Random inputs: bytes from nowhere, and seeds with a few things wrong.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline_proto::wire::udp::internet_checksum;

/// Longest input from nowhere: a header and some, so that most of it matters.
const RANDOM_BYTES_MAX: u64 = 160;
/// Longest input at all: beyond the longest frame, so that limits are met.
const INPUT_BYTES_MAX: usize = 2048;
/// Most changes to one seed. More would leave little of it.
const CHANGES_MAX: u64 = 6;
/// Values at which something begins or ends.
const INTERESTING: [u8; 12] = [0, 1, 2, 7, 8, 16, 46, 47, 48, 127, 128, 255];
/// Where an untagged frame has its IPv4 header.
const IPV4_OFFSET: usize = 14;

/// Makes the inputs of one target. The same seed makes the same inputs.
pub struct Inputs {
    random: Xoshiro256PlusPlus,
    seeds: Vec<Vec<u8>>,
    input: Vec<u8>,
}

impl Inputs {
    /// Inputs from these seeds, at least one.
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        assert!(!seeds.is_empty(), "no seeds");
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            seeds,
            input: Vec::with_capacity(2 * INPUT_BYTES_MAX),
        }
    }

    /// The next input: one in four from nowhere, the others a changed seed.
    pub fn next_input(&mut self) -> &[u8] {
        self.input.clear();
        if self.below(4) == 0 {
            let length = self.below(RANDOM_BYTES_MAX) as usize;
            self.input.resize(length, 0);
            self.random.fill_bytes(&mut self.input);
        } else {
            self.append_seed();
            for _ in 0..self.below(CHANGES_MAX + 1) {
                self.change();
            }
            if self.below(2) == 0 {
                mend_ipv4_checksum(&mut self.input);
            }
        }
        self.input.truncate(INPUT_BYTES_MAX);
        &self.input
    }

    fn append_seed(&mut self) {
        let index = self.below(self.seeds.len() as u64) as usize;
        self.input.extend_from_slice(&self.seeds[index]);
    }

    fn change(&mut self) {
        let length = self.input.len();
        if length == 0 || length > INPUT_BYTES_MAX {
            return;
        }
        let place = self.place();
        match self.below(8) {
            0 => self.input[place] ^= 1 << self.below(8),
            1 => self.input[place] = self.random.next_u64() as u8,
            2 | 3 => {
                let value = INTERESTING[self.below(INTERESTING.len() as u64) as usize];
                self.input[place] = value;
            }
            4 => self.input.truncate(place),
            5 => {
                let value = self.random.next_u64() as u8;
                self.input.insert(place, value);
            }
            6 => {
                self.input.remove(place);
            }
            _ => {
                self.input.truncate(place);
                self.append_seed();
            }
        }
    }

    /// Any place, but one of two times among the first 64 bytes, where the headers are.
    fn place(&mut self) -> usize {
        let length = self.input.len() as u64;
        let limit = if self.below(2) == 0 {
            length.min(64)
        } else {
            length
        };
        self.below(limit) as usize
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit.max(1)
    }
}

/// Makes the IPv4 header checksum right where there could be one, so that changes behind it are
/// looked at.
fn mend_ipv4_checksum(frame: &mut [u8]) {
    let Some(&first) = frame.get(IPV4_OFFSET) else {
        return;
    };
    let header_bytes = usize::from(first & 0x0F) * 4;
    let Some(header) = frame.get_mut(IPV4_OFFSET..IPV4_OFFSET + header_bytes) else {
        return;
    };
    if first >> 4 == 4 && header_bytes >= 20 {
        header[10..12].fill(0);
        let checksum = internet_checksum(header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
