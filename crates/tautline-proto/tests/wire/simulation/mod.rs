//! The protocol core on a simulated network, over many seeds.
//!
//! Two nodes send messages of all sizes over several flows to a third, in both forms, while the network misbehaves;
//! then it is partitioned, then healed, then the senders restart. After every frame the receiver's state is compared
//! with what an oracle knows, which sees what a receiver cannot:
//!
//! - a completed message equals the sent one, unless one of its frames was damaged without notice;
//! - it completes no more often than the network delivered each of its frames;
//! - loss is what the oracle counts from the full set of numbers that arrived;
//! - where nothing was lost or damaged, everything completes, in whatever order it came;
//! - once the network is healed everything completes;
//! - a restart of the sender is seen, once for each flow;
//! - nothing grows: collectors and queues stay within their limits, each frame ends in one counter.
//!
//! `TAUTLINE_SIM_SEEDS=5000` runs more seeds than the usual 200, `TAUTLINE_SIM_SEED=17` runs one again.

mod receiver;
mod sender;

use std::collections::BTreeMap;
use std::env;
use std::panic;
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline_proto::sim::{Faults, SimConfig, SimNetwork, SimNode};
use tautline_proto::time::Instant;
use tautline_proto::wire::MacAddress;

use receiver::Receiver;
use sender::Sender;

const SEEDS_DEFAULT: u64 = 200;
const SENDER_COUNT: usize = 2;
const RECEIVER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xFF]);

/// Shortest and longest time between two frames of all senders together. With the longest extra delay below, a frame is
/// overtaken by fewer than 64 others, which the loss tracker still tells from a loss.
const GAP_NS: (u64, u64) = (5_000, 15_000);
const REORDERING_NS_MAX: u64 = 250_000;

#[test]
fn invariants_hold_for_every_seed() {
    let number = |name| env::var(name).ok().map(|text| parse(name, &text));
    let seeds = match number("TAUTLINE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TAUTLINE_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT),
    };
    let mut total = Tally::default();
    for seed in seeds.clone() {
        match panic::catch_unwind(|| run(seed)) {
            Ok(tally) => {
                for (what, count) in tally {
                    *total.entry(what).or_default() += count;
                }
            }
            Err(cause) => panic!(
                "seed {seed}: {}\nagain: TAUTLINE_SIM_SEED={seed} cargo test -p tautline-proto --test simulation",
                message(cause.as_ref())
            ),
        }
    }
    println!("seeds {seeds:?}: {total:?}");
    if seeds.end - seeds.start >= SEEDS_DEFAULT {
        assert!(
            total.values().all(|count| *count > 0),
            "never happened: {total:?}"
        );
    }
}

fn parse(name: &str, text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{name}={text}: expected a number"))
}

fn message(cause: &(dyn std::any::Any + Send)) -> &str {
    cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(cause.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
}

/// Events of the runs, so that no invariant holds only because nothing happened.
type Tally = BTreeMap<&'static str, u64>;

/// One run: what the phases below share.
struct World {
    random: Xoshiro256PlusPlus,
    network: SimNetwork,
    now: Instant,
    senders: Vec<Sender>,
    receiver: Receiver,
    receiver_node: SimNode,
}

fn run(seed: u64) -> Tally {
    let mut world = World::new(seed);
    let faults = world.draw_faults();
    let harmless = faults.loss_ppm == 0 && faults.corruption_ppm == 0;

    world.network.set_faults(faults);
    world.send_messages(40);
    world.settle();
    let complete_run = harmless && world.receiver.has_room_for_everything();
    if complete_run {
        world.assert_that_all_completed("without losses");
    }

    let node = world.senders[0].node;
    world.network.partition(node, 1);
    world.send_messages(5);
    world.settle();
    world.network.partition(node, 0);
    world.network.set_faults(Faults::NONE);
    world.begin_count();
    world.send_messages(10);
    world.settle();
    world.assert_that_all_completed("after healing");

    world.receiver.check_loss();
    world.restart_senders();
    world.begin_count();
    world.send_messages(10);
    world.settle();
    world.assert_that_all_completed("after the restart");
    world.receiver.check_restarts();
    world.check_counters();
    world.tally(complete_run)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(!seed);
        let mut network = SimNetwork::new(SimConfig {
            seed,
            ..SimConfig::default()
        });
        let receiver_node = network.attach(RECEIVER_MAC).unwrap();
        let senders = (0..SENDER_COUNT)
            .map(|number| Sender::attach(number, &mut network, &mut random))
            .collect();
        let receiver = Receiver::new(&mut random);
        Self {
            random,
            network,
            now: Instant::ZERO,
            senders,
            receiver,
            receiver_node,
        }
    }

    fn draw_faults(&mut self) -> Faults {
        let random = &mut self.random;
        let mut share = |one_in: u64, ppm_max: u64| match below(random, one_in) {
            0 => below(random, ppm_max) as u32,
            _ => 0,
        };
        let loss_ppm = share(2, 100_000);
        let duplication_ppm = share(2, 300_000);
        let reordering_ppm = share(2, 500_000);
        let corruption_ppm = share(3, 50_000);
        let corruption_undetected_ppm = share(2, 1_000_000);
        let delay_ns_max = below(random, 20_000);
        Faults {
            loss_ppm,
            duplication_ppm,
            reordering_ppm,
            corruption_ppm,
            corruption_undetected_ppm,
            delay_min: Duration::ZERO,
            delay_max: Duration::from_nanos(delay_ns_max),
            reordering_delay_max: Duration::from_nanos(below(random, REORDERING_NS_MAX)),
        }
    }

    /// Every flow sends so many messages, their frames interleaved at random.
    fn send_messages(&mut self, messages_per_flow: usize) {
        for sender in &mut self.senders {
            sender.queue_messages(messages_per_flow);
        }
        loop {
            let busy: Vec<usize> = (0..self.senders.len())
                .filter(|&index| self.senders[index].is_busy())
                .collect();
            if busy.is_empty() {
                return;
            }
            let gap = GAP_NS.0 + below(&mut self.random, GAP_NS.1 - GAP_NS.0);
            self.advance_to(self.now + Duration::from_nanos(gap));
            let chosen = busy[below(&mut self.random, busy.len() as u64) as usize];
            let sender = &mut self.senders[chosen];
            let frame = sender.next_frame(&mut self.random);
            self.network.send(self.now, sender.node, &frame).unwrap();
        }
    }

    /// Lets everything on the way arrive and every time limit pass.
    fn settle(&mut self) {
        self.advance_to(self.now + Duration::from_millis(1));
        assert_eq!(self.network.next_event(), None);
        self.advance_to(self.now + self.receiver.time_limit());
        self.receiver.expire(self.now);
        assert_eq!(self.receiver.under_way_count(), 0);
    }

    fn advance_to(&mut self, end: Instant) {
        while let Some(event) = self.network.next_event().filter(|&event| event <= end) {
            while let Some(delivery) = self.network.receive(self.receiver_node, event) {
                self.receiver.take(&delivery, &self.senders);
            }
            for sender in &self.senders {
                assert!(self.network.receive(sender.node, event).is_none());
            }
        }
        self.now = end;
    }

    /// From here on all messages are to complete.
    fn begin_count(&mut self) {
        for sender in &mut self.senders {
            sender.begin_count();
        }
    }

    fn assert_that_all_completed(&self, when: &str) {
        for sender in &self.senders {
            for key in sender.counted() {
                assert!(
                    self.receiver.has_completed(key),
                    "{when}: {key:?} is missing"
                );
            }
        }
    }

    fn restart_senders(&mut self) {
        for sender in &mut self.senders {
            sender.restart();
        }
        self.receiver.begin_after_restart();
    }

    fn check_counters(&self) {
        let counters = self.network.counters();
        assert_eq!(counters.network_full + counters.queue_full, 0);
        assert_eq!(
            counters.copies + counters.duplicated,
            counters.delivered + counters.lost + counters.corrupted_dropped + counters.partitioned
        );
        self.receiver.check_counters(counters.delivered);
    }

    fn tally(&self, complete_run: bool) -> Tally {
        let network = self.network.counters();
        let mut tally = self.receiver.tally();
        tally.insert("damaged", network.corrupted_delivered);
        tally.insert("partitioned", network.partitioned);
        tally.insert("complete runs", complete_run.into());
        tally
    }
}

/// A number below `limit`.
fn below(random: &mut Xoshiro256PlusPlus, limit: u64) -> u64 {
    random.next_u64() % limit.max(1)
}
