//! Frames on the way.

use super::store::FrameIndex;
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    pub(super) arrival: Instant,
    /// Breaks ties in the order of sending, so that a run does not depend on the heap's inside.
    pub(super) number: u64,
    pub(super) receiver: usize,
    pub(super) frame: FrameIndex,
    pub(super) corrupted: bool,
    pub(super) stage: Stage,
}

/// Where a frame on the way arrives next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// At the port of the sender's switch towards the others.
    Uplink(usize),
    /// At the other switch, having left this class of that port.
    Crossed(usize, usize),
    /// At the receiver's switch port, if it has one.
    Port,
    /// At the receiver, having left this class of its switch port.
    Node(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) arrival: Instant,
    pub(super) frame: FrameIndex,
    pub(super) corrupted: bool,
}
