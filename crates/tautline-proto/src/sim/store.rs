//! A fixed number of frame buffers, so that the network takes no memory once it runs.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A buffer of a [`FrameStore`], held from `take` to `release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FrameIndex(usize);

#[derive(Debug)]
pub(super) struct FrameStore {
    bytes: Box<[u8]>,
    frame_bytes_max: usize,
    /// Bytes used in each buffer.
    used: Box<[usize]>,
    vacant: Vec<FrameIndex>,
}

impl FrameStore {
    pub(super) fn new(frame_count_max: usize, frame_bytes_max: usize) -> Self {
        Self {
            bytes: vec![0; frame_count_max * frame_bytes_max].into_boxed_slice(),
            frame_bytes_max,
            used: vec![0; frame_count_max].into_boxed_slice(),
            vacant: (0..frame_count_max).rev().map(FrameIndex).collect(),
        }
    }

    /// Copies a frame into a vacant buffer, `None` if there is none. The frame is at most as long as configured.
    pub(super) fn take(&mut self, frame: &[u8]) -> Option<FrameIndex> {
        let index = self.vacant.pop()?;
        self.used[index.0] = frame.len();
        self.bytes_mut(index).copy_from_slice(frame);
        Some(index)
    }

    pub(super) fn release(&mut self, index: FrameIndex) {
        debug_assert!(!self.vacant.contains(&index), "released twice");
        self.vacant.push(index);
    }

    pub(super) fn bytes(&self, index: FrameIndex) -> &[u8] {
        let start = index.0 * self.frame_bytes_max;
        &self.bytes[start..start + self.used[index.0]]
    }

    pub(super) fn bytes_mut(&mut self, index: FrameIndex) -> &mut [u8] {
        let start = index.0 * self.frame_bytes_max;
        &mut self.bytes[start..start + self.used[index.0]]
    }
}
