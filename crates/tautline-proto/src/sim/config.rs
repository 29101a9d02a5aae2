//! Size and faults of the network.

use core::time::Duration;

/// All of a million: a fault that always happens.
pub const ALWAYS_PPM: u32 = 1_000_000;

/// How large a [`SimNetwork`](super::SimNetwork) is. All memory is taken when it is made.
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
