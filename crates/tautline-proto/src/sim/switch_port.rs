//! The port of a switch in front of a node: a rate, and a first-in-first-out queue of so many frames.

use crate::smoother::{FRAME_BYTES, WIRE_OVERHEAD_BYTES, time_on_wire};
use crate::time::Instant;

/// Shortest frame on a wire, without the check sequence: shorter ones are padded.
const FRAME_BYTES_ON_WIRE_MIN: usize = 60;

/// Rate and queue of a switch's port towards a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRate {
    /// Bits a second; preamble, check sequence and gap count too.
    pub rate_bps: u64,
    /// Frames that can wait, beside the one that is being sent. What comes then is dropped.
    pub queue_frames: usize,
    /// Whether frames of the default EtherType overtake the others, as tagged ones do in a switch that honours
    /// priorities. They then have a queue of their own, of the same length.
    pub priorities: bool,
}

/// A port at work.
#[derive(Clone, Copy, Debug)]
pub(super) struct SwitchPort {
    pub(super) rate: PortRate,
    /// When the last frame that was taken has left, for urgent frames and for all.
    free_at: Instant,
    urgent_free_at: Instant,
    /// Frames that were taken and have not arrived, urgent ones and others.
    held: [usize; 2],
}

impl SwitchPort {
    pub(super) const fn new(rate: PortRate) -> Self {
        Self {
            rate,
            free_at: Instant::ZERO,
            urgent_free_at: Instant::ZERO,
            held: [0; 2],
        }
    }

    /// A frame of a class has left. A port that was set meanwhile holds none of the old one's frames.
    pub(super) const fn leave(&mut self, class: usize) {
        self.held[class] = self.held[class].saturating_sub(1);
    }

    /// Time at which a frame that comes now has left; `None` if the queue is full.
    ///
    /// An urgent frame waits for the urgent frames before it and for the rest of one other frame. The others then leave
    /// later by as much as the urgent frame takes. Those among them whose departure is fixed already leave too early by
    /// that: the rate is kept on average, not in each frame.
    pub(super) fn take(
        &mut self,
        now: Instant,
        frame_bytes: usize,
        urgent: bool,
    ) -> Option<Instant> {
        let class = usize::from(urgent && self.rate.priorities);
        if self.held[class] > self.rate.queue_frames {
            return None;
        }
        self.held[class] += 1;
        let wire_bytes = frame_bytes.max(FRAME_BYTES_ON_WIRE_MIN) as u64 + WIRE_OVERHEAD_BYTES;
        let takes = time_on_wire(wire_bytes, self.rate.rate_bps);
        if class == 0 {
            self.free_at = self.free_at.max(now) + takes;
            return Some(self.free_at);
        }
        let longest = time_on_wire(FRAME_BYTES, self.rate.rate_bps);
        let others = self.free_at.saturating_duration_since(now).min(longest);
        let begin = self.urgent_free_at.max(now + others);
        self.urgent_free_at = begin + takes;
        self.free_at = self.free_at.max(now) + takes;
        Some(self.urgent_free_at)
    }
}
