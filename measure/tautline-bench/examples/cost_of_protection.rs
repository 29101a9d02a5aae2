//! Cost of sealing and of opening a frame, by cipher, protection and size; all of them in turns.
//!
//! `cargo run --release -p tautline-bench --example cost_of_protection`. With the arguments CIPHER PROTECTION BYTES
//! COUNT it does only that, so many times, without a clock: for a program that counts instructions, as the difference
//! of two counts.

use std::hint::black_box;
use std::time::Instant;

use tautline_proto::authentication::*;
use tautline_proto::wire::{Header, MacAddress, PortNumber, Priority};

/// Turns, and frames of each kind in a turn. The best turn counts: others had the processor for a while.
const TURNS: usize = 200;
const FRAMES: usize = 500;

/// One kind of frame: a sender, its receiver, and times for which it is measured.
struct Kind {
    cipher: Cipher,
    protection: Protection,
    message: Vec<u8>,
    ring: KeyRing,
    sending: SendKey,
    sender: Sender,
    receiver: Receiver,
    spaces: [Space; 2],
    now: u64,
    best_ns: [f64; 2],
}

const WAY: Way = Way {
    source: Station::Ethernet(MacAddress([2, 0, 0, 0, 0, 10])),
    destination: Station::Ethernet(MacAddress([2, 0, 0, 0, 0, 11])),
};

impl Kind {
    fn new(cipher: Cipher, protection: Protection, bytes: usize) -> Self {
        let secret = std::array::from_fn(|place| place as u8);
        let ring = KeyRing::new([Key::new(1, cipher, 0, secret)]).expect("one key is a ring");
        Self {
            cipher,
            protection,
            message: vec![7; bytes],
            sending: SendKey::new(ring.clone()),
            ring,
            sender: Sender::new(1, protection),
            receiver: Receiver::new(Discipline::InWindow, 0, u64::MAX),
            spaces: [Space::new(), Space::new()],
            now: 1,
            best_ns: [f64::MAX; 2],
        }
    }

    /// Seals and opens a frame; the sealed one.
    fn pass(&mut self) -> (Header, Vec<u8>) {
        self.now += 1_000;
        let (header, payload) = self.seal();
        let sealed = (header, payload.to_vec());
        self.open(&sealed);
        sealed
    }

    fn seal(&mut self) -> (Header, &[u8]) {
        let length = self.message.len() as u16;
        let header = Header::whole(
            PortNumber::MIN,
            PortNumber::MIN,
            Priority::NORMAL,
            length,
            0,
        );
        let (keys, space) = (&mut self.sending, &mut self.spaces[0]);
        let sealed = self
            .sender
            .seal(self.now, keys, WAY, header, &self.message, space);
        sealed.expect("the message fits")
    }

    fn open(&mut self, (header, payload): &(Header, Vec<u8>)) {
        let (ring, space) = (&self.ring, &mut self.spaces[1]);
        let opened = self
            .receiver
            .open(self.now, ring, WAY, header, payload, space);
        black_box(opened.expect("an authentic frame"));
    }

    fn turn(&mut self) {
        let start = Instant::now();
        for _ in 0..FRAMES {
            self.now += 1_000;
            black_box(self.seal());
        }
        let sealing = start.elapsed();
        let sealed: Vec<_> = (0..FRAMES)
            .map(|_| {
                self.now += 1_000;
                let (header, payload) = self.seal();
                (header, payload.to_vec())
            })
            .collect();
        let start = Instant::now();
        for frame in &sealed {
            self.open(frame);
        }
        for (best, took) in self.best_ns.iter_mut().zip([sealing, start.elapsed()]) {
            *best = best.min(took.as_nanos() as f64 / FRAMES as f64);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [cipher, protection, bytes, count] = &arguments[..] {
        let cipher = Cipher::named(cipher).expect("a cipher");
        let protection = Protection::named(protection).expect("a protection");
        let mut kind = Kind::new(cipher, protection, bytes.parse().expect("a number"));
        for _ in 0..count.parse().expect("a number") {
            black_box(kind.pass());
        }
        return;
    }
    let mut kinds = Vec::new();
    for bytes in [64, 1_400] {
        for cipher in Cipher::ALL {
            for protection in Protection::ALL {
                kinds.push(Kind::new(cipher, protection, bytes));
            }
        }
    }
    for _ in 0..TURNS {
        kinds.iter_mut().for_each(Kind::turn);
    }
    println!("bytes cipher protection seal_ns open_ns");
    for kind in &kinds {
        let [seal, open] = kind.best_ns;
        let (cipher, protection) = (kind.cipher.name(), kind.protection.name());
        println!(
            "{} {cipher} {protection} {seal:.0} {open:.0}",
            kind.message.len()
        );
    }
}
