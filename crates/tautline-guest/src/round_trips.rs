//! A measurement: round trips through a window, both sides spinning, without a relay, a bus or a second process.
//!
//! Quiet ones and ones beside a bulk stream alternate, so that both meet the same machine.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use tautline_shm::vbus::layout::{MessageHead, NAME_BYTES};
use tautline_shm::vbus::window::{Address, Plan, Receiving, Sending};

use crate::config::GuestConfig;
use crate::doorbell::Doorbells;
use crate::image::Image;
use crate::monitor::{self, Recipe};
use crate::window::Window;

const BLOCKS: usize = 200;
const ROUND_TRIPS_PER_BLOCK: usize = 500;
const URGENT_BYTES: usize = 64;
/// Messages of the stream: a frame's, and a long one, whose copy takes longer than a round trip.
const BULK_BYTES: [usize; 2] = [1_024, 16_384];
const BULK_BYTES_MAX: usize = 16_384;
const URGENT: u32 = 7;

struct Ends<'w> {
    plan: &'w Plan,
    window: &'w Window,
    sending: Sending,
    receiving: Receiving,
    to: Address,
    /// The longest message.
    message: Vec<u8>,
}

impl Ends<'_> {
    /// `false`: the class is full.
    fn send(&mut self, bytes: usize, class: u32) -> bool {
        let head = MessageHead {
            length: 0,
            arrival_ns: 0,
            sequence: 0,
            class,
        };
        self.sending.send(
            self.window.own().producer(self.plan, 0),
            self.window.guests().consumer(self.plan, 0),
            (self.to, &self.message[..bytes]),
            head,
        )
    }

    /// Priority of the next answer, if there is one.
    fn take(&mut self) -> Option<u32> {
        let consumer = self.window.own().consumer(self.plan, 1);
        let producer = self.window.guests().producer(self.plan, 1);
        let found = self.receiving.look(consumer, producer)?;
        self.receiving.release(consumer, &found);
        Some(found.priority().into())
    }

    /// Fills the lowest priority; tells by how many messages.
    fn stream(&mut self, bytes: usize) -> u32 {
        let mut count = 0;
        while self.send(bytes, 0) {
            count += 1;
        }
        count
    }

    fn round_trip(&mut self) -> Duration {
        let began = Instant::now();
        assert!(self.send(URGENT_BYTES, URGENT));
        while self.take() != Some(URGENT) {
            spin_loop();
        }
        began.elapsed()
    }
}

#[test]
#[ignore = "a measurement, of the image that TAUTLINE_GUEST_IMAGE names: spin.elf"]
fn window_round_trips() {
    let path = std::env::var("TAUTLINE_GUEST_IMAGE").expect("spin.elf of bindings/guest");
    let mut config = GuestConfig::new("spin".parse().expect("a name"), path);
    config.bus = Some("none".to_owned());
    config.ports[0].message_bytes_max = BULK_BYTES_MAX as u32;
    let image = Image::read(&config.image, config.ram_bytes).expect("an image");
    let plan = config.plan().expect("valid");
    let window = Window::new(&plan, 1, 0).expect("memory");
    let doorbells = Doorbells::new().expect("events");
    let mut name = [0; NAME_BYTES];
    name[..5].copy_from_slice(b"bench");
    let peer = window.own().set_peer(0, &name);
    let recipe = Recipe {
        config: &config,
        image: &image,
        console: None,
        monitor_command: &[],
        own_limit: None,
    };
    let mut machine = monitor::start(&recipe, &window, &doorbells).expect("a machine");
    let (own, guests) = (window.own(), window.guests());
    while guests.generation() == 0 {
        spin_loop();
    }
    let mut ends = Ends {
        plan: &plan,
        window: &window,
        sending: Sending::new(plan.connections()[0]),
        receiving: Receiving::new(plan.connections()[1]),
        to: Address { port: 20, ..peer },
        message: vec![0; BULK_BYTES_MAX],
    };
    ends.receiving.offer(own.consumer(&plan, 1), 1 << 63 | 1);
    own.acknowledge(guests.generation());
    let (producer, consumer) = (own.producer(&plan, 0), guests.consumer(&plan, 0));
    while !ends.sending.connect(producer, consumer) {
        spin_loop();
    }
    while !ends.receiving.connect(guests.producer(&plan, 1)) {
        spin_loop();
    }
    println!("{}", machine.name());
    for bulk_bytes in BULK_BYTES {
        compare(&mut ends, bulk_bytes);
    }
    machine.kill();
}

/// Quiet round trips, and those beside a stream of such messages.
fn compare(ends: &mut Ends<'_>, bulk_bytes: usize) {
    let (mut quiet, mut beside) = (Blocks::default(), Blocks::default());
    let (mut streamed, mut bulk_count) = (Duration::ZERO, 0);
    for _ in 0..BLOCKS {
        quiet.add((0..ROUND_TRIPS_PER_BLOCK).map(|_| ends.round_trip()));
        let began = Instant::now();
        beside.add((0..ROUND_TRIPS_PER_BLOCK).map(|_| {
            bulk_count += ends.stream(bulk_bytes);
            ends.round_trip()
        }));
        streamed += began.elapsed();
        // The rest of the stream, so that the next block is quiet.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(5) {
            let _ = ends.take();
        }
    }
    let count = BLOCKS * ROUND_TRIPS_PER_BLOCK;
    println!(
        "a stream of {bulk_bytes} B, {:?} for each of its messages; {count} round trips of each kind in {BLOCKS} \
         blocks",
        streamed / bulk_count.max(1)
    );
    let quiet = quiet.print("quiet");
    let beside = beside.print("beside the stream");
    let factor =
        |of: fn(&Figures) -> Duration| of(&beside).as_secs_f64() / of(&quiet).as_secs_f64();
    println!(
        "beside / quiet: p50 {:.2}, p99 {:.2}, p99 of the median block {:.2}, of the calmest tenth {:.2}",
        factor(|figures| figures.p50),
        factor(|figures| figures.p99),
        factor(|figures| figures.block_p99),
        factor(|figures| figures.calm_p99),
    );
}

/// Round trips of one kind, sorted in each block. A host that takes the CPU away spoils the blocks in which it does so,
/// and the figures of all; those of the median block and of the calmest tenth are the window's.
#[derive(Default)]
struct Blocks(Vec<Vec<Duration>>);

struct Figures {
    p50: Duration,
    p99: Duration,
    block_p99: Duration,
    calm_p99: Duration,
}

impl Blocks {
    fn add(&mut self, times: impl Iterator<Item = Duration>) {
        let mut block: Vec<Duration> = times.collect();
        block.sort_unstable();
        self.0.push(block);
    }

    fn print(&self, what: &str) -> Figures {
        let at = |times: &[Duration], permille: usize| times[times.len() * permille / 1_000];
        let mut all = self.0.concat();
        all.sort_unstable();
        let mut of_blocks: Vec<Duration> = self.0.iter().map(|block| at(block, 990)).collect();
        of_blocks.sort_unstable();
        let figures = Figures {
            p50: at(&all, 500),
            p99: at(&all, 990),
            block_p99: at(&of_blocks, 500),
            calm_p99: at(&of_blocks, 100),
        };
        println!(
            "{what}: min {:?}, p50 {:?}, p99 {:?}; p99 of the median block {:?}, of the calmest tenth {:?}",
            all[0], figures.p50, figures.p99, figures.block_p99, figures.calm_p99
        );
        figures
    }
}
