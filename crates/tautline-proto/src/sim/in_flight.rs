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
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) arrival: Instant,
    pub(super) frame: FrameIndex,
    pub(super) corrupted: bool,
}
