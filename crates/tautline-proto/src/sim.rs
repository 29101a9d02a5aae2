//! A network in memory, on virtual time, from a seed.
//!
//! Nodes attach with a MAC address and send frames to each other, as through one switch. On the way frames are lost,
//! doubled, delayed, overtaken and damaged, as [`Faults`] says, and the network can be partitioned. The same seed and
//! the same calls give the same run, so a failure repeats.
//!
//! Everything is bounded: a fixed number of nodes, of frames on the way, of frames waiting at each node. What does not
//! fit is dropped and counted in [`SimCounters`], like everything else that happens to a frame.
//!
//! Bandwidth has no end, and faults are independent of each other: it is not a model of a particular network.
//!
//! ```
//! use core::time::Duration;
//! use tautline_proto::sim::{Faults, SimConfig, SimNetwork};
//! use tautline_proto::time::Instant;
//! use tautline_proto::wire::MacAddress;
//!
//! let mut network = SimNetwork::new(SimConfig::default());
//! let a = network.attach(MacAddress([2, 0, 0, 0, 0, 1]))?;
//! let b = network.attach(MacAddress([2, 0, 0, 0, 0, 2]))?;
//! network.set_faults(Faults {
//!     delay_min: Duration::from_micros(5),
//!     delay_max: Duration::from_micros(5),
//!     ..Faults::NONE
//! });
//!
//! let mut frame = [0; 60];
//! frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
//! network.send(Instant::ZERO, a, &frame)?;
//!
//! let arrival = network.next_event().unwrap();
//! assert_eq!(arrival, Instant::from_nanos(5_000));
//! assert!(network.receive(b, Instant::ZERO).is_none());
//! assert_eq!(network.receive(b, arrival).unwrap().bytes, frame);
//! # Ok::<(), tautline_proto::sim::SimError>(())
//! ```

mod store;

use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::time::Instant;
use crate::wire::MacAddress;
use store::{FrameIndex, FrameStore};

/// Shortest frame that can be sent: addresses and EtherType.
const FRAME_BYTES_MIN: usize = 14;
/// Most bits that damage flips in one frame. The Ethernet check sequence finds up to three in a frame of this size
/// always, so what passes it undetected is a share of its own, not a matter of the bit count.
const FLIPPED_BITS_MAX: u64 = 3;

/// All of a million: a fault that always happens.
pub const ALWAYS_PPM: u32 = 1_000_000;

/// How large a [`SimNetwork`] is. All memory is taken when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Nodes that can attach.
    pub node_count_max: usize,
    /// Frames that can be on the way or waiting, all nodes together. Lower drops bursts.
    pub frame_count_max: usize,
    /// Frames that can wait at one node. Lower drops what a slow receiver leaves.
    pub queue_depth_max: usize,
    /// Longest frame, in bytes, without the check sequence.
    pub frame_bytes_max: usize,
}

impl Default for SimConfig {
    /// Seed 0, 8 nodes, 1,024 frames of 1,518 bytes, 256 of them waiting at one node: 1.5 MiB.
    fn default() -> Self {
        Self {
            seed: 0,
            node_count_max: 8,
            frame_count_max: 1024,
            queue_depth_max: 256,
            frame_bytes_max: 1518,
        }
    }
}

/// Faults of the network. Shares are in parts per million of the copies that reach a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Copies that vanish.
    pub loss_ppm: u32,
    /// Copies that arrive twice.
    pub duplication_ppm: u32,
    /// Copies that take up to [`reordering_delay_max`](Self::reordering_delay_max) longer and that others overtake.
    pub reordering_ppm: u32,
    /// Copies in which one to three bits flip.
    pub corruption_ppm: u32,
    /// Of the damaged copies, those that pass the Ethernet check sequence; the others are dropped,
    /// as a network card would.
    pub corruption_undetected_ppm: u32,
    /// Shortest time on the way.
    pub delay_min: Duration,
    /// Longest time on the way. Within this range frames from one node to another keep their order.
    pub delay_max: Duration,
    /// Longest additional time of a copy that is reordered.
    pub reordering_delay_max: Duration,
}

impl Faults {
    /// A network that does nothing to frames and takes no time.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        duplication_ppm: 0,
        reordering_ppm: 0,
        corruption_ppm: 0,
        corruption_undetected_ppm: 0,
        delay_min: Duration::ZERO,
        delay_max: Duration::ZERO,
        reordering_delay_max: Duration::ZERO,
    };
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}

/// Counters of frames. Each copy towards a receiver is counted on its own.
///
/// Nothing vanishes unseen: `copies + duplicated` is the sum of `delivered`, everything below it,
/// and what is still on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Frames sent.
    pub sent: u64,
    /// Copies made of them: one for each receiver of a group, none if no node has the address.
    pub copies: u64,
    /// Frames to a station address that no node has.
    pub no_receiver: u64,
    /// Additional copies made by duplication.
    pub duplicated: u64,
    /// Copies that were given an additional delay.
    pub reordered: u64,
    /// Copies put into a receiver's queue, damaged ones included.
    pub delivered: u64,
    /// Of the delivered, those damaged without notice.
    pub corrupted_delivered: u64,
    /// Copies lost.
    pub lost: u64,
    /// Copies damaged, noticed and dropped.
    pub corrupted_dropped: u64,
    /// Copies stopped by a partition of the network.
    pub partitioned: u64,
    /// Copies dropped because too many frames were on the way.
    pub network_full: u64,
    /// Copies dropped because too many frames waited at the receiver.
    pub queue_full: u64,
}

/// Operation that a [`SimNetwork`] refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimError {
    /// The network has room for no more nodes.
    NetworkFull {
        /// The configured limit.
        node_count_max: usize,
    },
    /// Another node has this address.
    AddressTaken(MacAddress),
    /// A group address cannot be a node's own.
    GroupAddress(MacAddress),
    /// The frame is shorter than an Ethernet header or longer than configured.
    FrameLength {
        /// Bytes in the frame.
        frame_bytes: usize,
        /// The configured limit.
        frame_bytes_max: usize,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkFull { node_count_max } => {
                write!(formatter, "the network is full at {node_count_max} nodes")
            }
            Self::AddressTaken(mac) => write!(formatter, "another node has address {mac}"),
            Self::GroupAddress(mac) => write!(formatter, "{mac} is a group address"),
            Self::FrameLength {
                frame_bytes,
                frame_bytes_max,
            } => write!(
                formatter,
                "frame of {frame_bytes} bytes, expected {FRAME_BYTES_MIN} to {frame_bytes_max}"
            ),
        }
    }
}

impl core::error::Error for SimError {}

/// A node of the network it was attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimNode(usize);

impl SimNode {
    /// The number of the node, from 0 in the order of attachment.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// When it arrived; not when it was asked for.
    pub arrival: Instant,
    /// Whether it was damaged on the way. For judging a test only: a real receiver cannot know.
    pub corrupted: bool,
    /// The frame from its destination address on, without the check sequence.
    pub bytes: &'a [u8],
}

/// A network in memory. See the [module](self) for an example.
#[derive(Debug)]
pub struct SimNetwork {
    config: SimConfig,
    faults: Faults,
    random: Xoshiro256PlusPlus,
    nodes: Vec<Node>,
    /// When the last frame from one node to another arrives: nothing that keeps its order may be
    /// earlier. Row: sender, column: receiver.
    latest_arrival: Box<[Instant]>,
    on_the_way: BinaryHeap<Reverse<Event>>,
    store: FrameStore,
    /// The frame that the last `receive` handed out; its memory is free again at the next call.
    lent: Option<FrameIndex>,
    next_event_number: u64,
    counters: SimCounters,
}

#[derive(Debug)]
struct Node {
    mac: MacAddress,
    part: u32,
    queue: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    arrival: Instant,
    /// Breaks ties in the order of sending, so that a run does not depend on the heap's inside.
    number: u64,
    receiver: usize,
    frame: FrameIndex,
    corrupted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    arrival: Instant,
    frame: FrameIndex,
    corrupted: bool,
}

impl SimNetwork {
    /// A network without nodes and faults. Takes all memory that it will use.
    pub fn new(config: SimConfig) -> Self {
        let pairs = config.node_count_max * config.node_count_max;
        Self {
            config,
            faults: Faults::NONE,
            random: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            nodes: Vec::with_capacity(config.node_count_max),
            latest_arrival: vec![Instant::ZERO; pairs].into_boxed_slice(),
            on_the_way: BinaryHeap::with_capacity(config.frame_count_max),
            store: FrameStore::new(config.frame_count_max, config.frame_bytes_max),
            lent: None,
            next_event_number: 0,
            counters: SimCounters::default(),
        }
    }

    /// Attaches a node with this address.
    ///
    /// # Errors
    ///
    /// [`SimError::NetworkFull`], [`SimError::AddressTaken`], [`SimError::GroupAddress`].
    pub fn attach(&mut self, mac: MacAddress) -> Result<SimNode, SimError> {
        let node_count_max = self.config.node_count_max;
        if self.nodes.len() >= node_count_max {
            return Err(SimError::NetworkFull { node_count_max });
        }
        if mac.is_group() {
            return Err(SimError::GroupAddress(mac));
        }
        if self.nodes.iter().any(|node| node.mac == mac) {
            return Err(SimError::AddressTaken(mac));
        }
        self.nodes.push(Node {
            mac,
            part: 0,
            queue: VecDeque::with_capacity(self.config.queue_depth_max),
        });
        Ok(SimNode(self.nodes.len() - 1))
    }

    /// Changes what the network does to the frames sent from now on.
    ///
    /// # Panics
    ///
    /// If `delay_min` is above `delay_max`, or a share above [`ALWAYS_PPM`].
    pub fn set_faults(&mut self, faults: Faults) {
        assert!(faults.delay_min <= faults.delay_max, "{faults:?}");
        let shares = [
            faults.loss_ppm,
            faults.duplication_ppm,
            faults.reordering_ppm,
            faults.corruption_ppm,
            faults.corruption_undetected_ppm,
        ];
        assert!(shares.iter().all(|&ppm| ppm <= ALWAYS_PPM), "{faults:?}");
        self.faults = faults;
    }

    /// Puts a node into a part of the network: only nodes of the same part hear each other. All
    /// begin in part 0. Frames on the way still arrive.
    pub fn partition(&mut self, node: SimNode, part: u32) {
        self.nodes[node.0].part = part;
    }

    /// Sends a frame at `now` to the node that has its destination address, or to all others for a group address. What
    /// becomes of it is in the [`counters`](Self::counters), not in the result, as on a real network.
    ///
    /// # Errors
    ///
    /// [`SimError::FrameLength`].
    pub fn send(&mut self, now: Instant, from: SimNode, frame: &[u8]) -> Result<(), SimError> {
        let destination = match frame.first_chunk::<6>() {
            Some(mac) if (FRAME_BYTES_MIN..=self.config.frame_bytes_max).contains(&frame.len()) => {
                MacAddress(*mac)
            }
            _ => {
                return Err(SimError::FrameLength {
                    frame_bytes: frame.len(),
                    frame_bytes_max: self.config.frame_bytes_max,
                });
            }
        };
        self.counters.sent += 1;
        let mut heard = false;
        for receiver in 0..self.nodes.len() {
            let addressed = destination.is_group() || self.nodes[receiver].mac == destination;
            if receiver != from.0 && addressed {
                heard = true;
                self.send_copies(now, from.0, receiver, frame);
            }
        }
        self.counters.no_receiver += u64::from(!heard);
        Ok(())
    }

    /// When the next frame on the way arrives: the time to call [`receive`](Self::receive) next. Frames that wait in a
    /// queue already are not counted; they can be received now.
    pub fn next_event(&self) -> Option<Instant> {
        self.on_the_way.peek().map(|Reverse(event)| event.arrival)
    }

    /// The next frame that has arrived at `node` by `now`, in the order of arrival.
    pub fn receive(&mut self, node: SimNode, now: Instant) -> Option<Delivery<'_>> {
        self.arrive(now);
        if let Some(frame) = self.lent.take() {
            self.store.release(frame);
        }
        let waiting = self.nodes[node.0].queue.pop_front()?;
        self.lent = Some(waiting.frame);
        Some(Delivery {
            arrival: waiting.arrival,
            corrupted: waiting.corrupted,
            bytes: self.store.bytes(waiting.frame),
        })
    }

    /// Counters so far.
    pub const fn counters(&self) -> &SimCounters {
        &self.counters
    }

    /// Decides what becomes of a frame on its way to one receiver.
    fn send_copies(&mut self, now: Instant, from: usize, receiver: usize, frame: &[u8]) {
        self.counters.copies += 1;
        if self.nodes[from].part != self.nodes[receiver].part {
            self.counters.partitioned += 1;
            return;
        }
        if self.happens(self.faults.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        self.send_copy(now, from, receiver, frame);
        if self.happens(self.faults.duplication_ppm) {
            self.counters.duplicated += 1;
            self.send_copy(now, from, receiver, frame);
        }
    }

    fn send_copy(&mut self, now: Instant, from: usize, receiver: usize, frame: &[u8]) {
        let arrival = self.arrival(now, from, receiver);
        let corrupted = self.happens(self.faults.corruption_ppm);
        if corrupted && !self.happens(self.faults.corruption_undetected_ppm) {
            self.counters.corrupted_dropped += 1;
            return;
        }
        let Some(index) = self.store.take(frame) else {
            self.counters.network_full += 1;
            return;
        };
        if corrupted {
            self.flip_bits(index);
        }
        self.on_the_way.push(Reverse(Event {
            arrival,
            number: self.next_event_number,
            receiver,
            frame: index,
            corrupted,
        }));
        self.next_event_number += 1;
    }

    fn arrival(&mut self, now: Instant, from: usize, receiver: usize) -> Instant {
        let spread = self.faults.delay_max - self.faults.delay_min;
        let usual = now + self.faults.delay_min + self.up_to(spread);
        if self.happens(self.faults.reordering_ppm) {
            self.counters.reordered += 1;
            return usual + self.up_to(self.faults.reordering_delay_max);
        }
        let latest = &mut self.latest_arrival[from * self.config.node_count_max + receiver];
        *latest = usual.max(*latest);
        *latest
    }

    fn flip_bits(&mut self, index: FrameIndex) {
        let bits = self.store.bytes(index).len() as u64 * 8;
        let flips = 1 + self.below(FLIPPED_BITS_MAX);
        let mut bit = self.below(bits);
        for _ in 0..flips {
            self.store.bytes_mut(index)[(bit / 8) as usize] ^= 1 << (bit % 8);
            // Steps that never come round to the first bit: a bit flipped back would be no damage.
            bit = (bit + 1 + self.below(bits / FLIPPED_BITS_MAX - 1)) % bits;
        }
    }

    /// Moves what has arrived by `now` into the queues.
    fn arrive(&mut self, now: Instant) {
        while let Some(Reverse(event)) = self.on_the_way.peek().copied() {
            if event.arrival > now {
                return;
            }
            self.on_the_way.pop();
            let queue = &mut self.nodes[event.receiver].queue;
            if queue.len() >= self.config.queue_depth_max {
                self.counters.queue_full += 1;
                self.store.release(event.frame);
                continue;
            }
            queue.push_back(Waiting {
                arrival: event.arrival,
                frame: event.frame,
                corrupted: event.corrupted,
            });
            self.counters.delivered += 1;
            self.counters.corrupted_delivered += u64::from(event.corrupted);
        }
    }

    fn happens(&mut self, share_ppm: u32) -> bool {
        self.below(u64::from(ALWAYS_PPM)) < u64::from(share_ppm)
    }

    fn up_to(&mut self, duration: Duration) -> Duration {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.below(nanos.saturating_add(1)))
    }

    /// A number below `limit`, by Lemire's multiplication; its bias is below 2^-32 for what is drawn here.
    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.random.next_u64()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    fn network(faults: Faults) -> (SimNetwork, SimNode, SimNode) {
        network_with(SimConfig::default(), faults)
    }

    fn network_with(config: SimConfig, faults: Faults) -> (SimNetwork, SimNode, SimNode) {
        let mut network = SimNetwork::new(config);
        let a = network.attach(A).unwrap();
        let b = network.attach(B).unwrap();
        network.set_faults(faults);
        (network, a, b)
    }

    fn frame(to: MacAddress, number: u8) -> [u8; 60] {
        let mut frame = [number; 60];
        frame[..6].copy_from_slice(&to.0);
        frame
    }

    fn numbers(network: &mut SimNetwork, node: SimNode) -> Vec<u8> {
        let mut numbers = Vec::new();
        while let Some(delivery) = network.receive(node, Instant::FAR_FUTURE) {
            numbers.push(delivery.bytes[59]);
        }
        numbers
    }

    fn balanced(network: &SimNetwork) -> bool {
        let counters = network.counters();
        let ends = counters.delivered
            + counters.lost
            + counters.corrupted_dropped
            + counters.partitioned
            + counters.network_full
            + counters.queue_full;
        counters.copies + counters.duplicated == ends + network.on_the_way.len() as u64
    }

    #[test]
    fn without_faults_everything_arrives_in_order() {
        let (mut network, a, b) = network(Faults::NONE);
        for number in 0..100 {
            network.send(Instant::ZERO, a, &frame(B, number)).unwrap();
        }
        assert_eq!(numbers(&mut network, a), []);
        assert_eq!(numbers(&mut network, b), Vec::from_iter(0..100));
        assert!(balanced(&network));
    }

    #[test]
    fn groups_reach_everybody_else() {
        let (mut network, a, b) = network(Faults::NONE);
        let c = network.attach(MacAddress([2, 0, 0, 0, 0, 3])).unwrap();
        let group = frame(MacAddress::BROADCAST, 7);
        network.send(Instant::ZERO, a, &group).unwrap();
        assert_eq!(numbers(&mut network, a), []);
        assert_eq!(numbers(&mut network, b), [7]);
        assert_eq!(numbers(&mut network, c), [7]);
    }

    #[test]
    fn a_partition_stops_traffic_until_it_ends() {
        let (mut network, a, b) = network(Faults::NONE);
        network.partition(b, 1);
        network.send(Instant::ZERO, a, &frame(B, 1)).unwrap();
        assert_eq!(numbers(&mut network, b), []);
        assert_eq!(network.counters().partitioned, 1);
        network.partition(b, 0);
        network.send(Instant::ZERO, a, &frame(B, 2)).unwrap();
        assert_eq!(numbers(&mut network, b), [2]);
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_breaks_it() {
        let jitter = Faults {
            delay_min: Duration::from_micros(1),
            delay_max: Duration::from_micros(100),
            ..Faults::NONE
        };
        for (faults, ordered) in [
            (jitter, true),
            (
                Faults {
                    reordering_ppm: 300_000,
                    reordering_delay_max: Duration::from_micros(300),
                    ..jitter
                },
                false,
            ),
        ] {
            let (mut network, a, b) = network(faults);
            for number in 0..200 {
                let now = Instant::from_nanos(u64::from(number) * 10_000);
                network.send(now, a, &frame(B, number)).unwrap();
            }
            let mut received = numbers(&mut network, b);
            assert_eq!(received.is_sorted(), ordered);
            received.sort_unstable();
            assert_eq!(received, Vec::from_iter(0..200));
        }
    }

    #[test]
    fn shares_are_met() {
        let (mut network, a, b) = network(Faults {
            loss_ppm: 100_000,
            duplication_ppm: 200_000,
            corruption_ppm: 100_000,
            corruption_undetected_ppm: 500_000,
            ..Faults::NONE
        });
        let mut damaged = 0;
        for _ in 0..10_000 {
            network.send(Instant::ZERO, a, &frame(B, 9)).unwrap();
            while let Some(delivery) = network.receive(b, Instant::ZERO) {
                assert_eq!(delivery.corrupted, delivery.bytes != frame(B, 9));
                damaged += u64::from(delivery.corrupted);
            }
        }
        let counters = *network.counters();
        assert_eq!(damaged, counters.corrupted_delivered);
        // Five standard deviations and more around the expected 1000, 1800, 540, 540.
        assert!((850..1150).contains(&counters.lost), "{counters:?}");
        assert!((1600..2000).contains(&counters.duplicated), "{counters:?}");
        assert!(
            (420..660).contains(&counters.corrupted_dropped),
            "{counters:?}"
        );
        assert!(
            (420..660).contains(&counters.corrupted_delivered),
            "{counters:?}"
        );
        assert!(balanced(&network));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let config = SimConfig {
            frame_count_max: 10,
            queue_depth_max: 4,
            ..SimConfig::default()
        };
        let (mut network, a, b) = network_with(config, Faults::NONE);
        for number in 0..12 {
            network.send(Instant::ZERO, a, &frame(B, number)).unwrap();
        }
        assert_eq!(numbers(&mut network, b), [0, 1, 2, 3]);
        let counters = *network.counters();
        assert_eq!((counters.network_full, counters.queue_full), (2, 6));
        assert!(balanced(&network));
        for _ in 0..100 {
            network.send(Instant::ZERO, a, &frame(B, 5)).unwrap();
            assert_eq!(numbers(&mut network, b), [5], "memory comes back");
        }
    }

    #[test]
    fn one_seed_one_run() {
        let run = |seed| {
            let faults = Faults {
                loss_ppm: 300_000,
                ..Faults::NONE
            };
            let config = SimConfig {
                seed,
                ..SimConfig::default()
            };
            let (mut network, a, b) = network_with(config, faults);
            for number in 0..200 {
                network.send(Instant::ZERO, a, &frame(B, number)).unwrap();
            }
            numbers(&mut network, b)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn mistakes_are_refused() {
        let (mut network, a, _) = network(Faults::NONE);
        assert_eq!(network.attach(A), Err(SimError::AddressTaken(A)));
        let group = MacAddress::BROADCAST;
        assert_eq!(network.attach(group), Err(SimError::GroupAddress(group)));
        for frame_bytes in [0, 13, 1519] {
            assert_eq!(
                network.send(Instant::ZERO, a, &vec![0; frame_bytes]),
                Err(SimError::FrameLength {
                    frame_bytes,
                    frame_bytes_max: 1518
                })
            );
        }
        let nobody = MacAddress([2, 0, 0, 0, 0, 9]);
        network.send(Instant::ZERO, a, &frame(nobody, 0)).unwrap();
        assert_eq!(network.counters().no_receiver, 1);
        for number in 3..=8 {
            network.attach(MacAddress([2, 0, 0, 0, 0, number])).unwrap();
        }
        assert_eq!(
            network.attach(nobody),
            Err(SimError::NetworkFull { node_count_max: 8 })
        );
    }
}
