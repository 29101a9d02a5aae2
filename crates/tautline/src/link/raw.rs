//! Raw frames on a link: whole Ethernet frames of one EtherType, of protocols that are not ours.

use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use tautline_proto::time::Instant;
use tautline_proto::wire::raw::{RAW_HEAD_BYTES, RawFrame, RawHead};
use tautline_shm::layout::{RecordHead, source_form, source_word};
use tautline_shm::region::PortMemory;
use tautline_shm::{police, queue};

use tautline_proto::wire::MacAddress;

use crate::error::{Priorities, SendError};
use crate::memory::MappedPort;

/// How a link carries raw frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RawFrames {
    /// Past the kernel's protocol stack, both ways.
    PastTheStack,
    /// Through a packet socket.
    PacketSocket,
    /// Not at all.
    None,
}

/// Frames that a port may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permit {
    /// Priorities; of a raw frame, those of its tag, and the lowest without one.
    pub(crate) priorities: Priorities,
    /// The only source address of raw frames; `None`: any.
    pub(crate) source: Option<MacAddress>,
}

impl Permit {
    /// Of a port that no entry is about.
    pub(crate) const ALL: Self = Self {
        priorities: Priorities::ALL,
        source: None,
    };

    /// An error if a frame is not among them.
    #[inline]
    pub(crate) fn check(&self, frame: &RawFrame<'_>) -> Result<(), SendError> {
        self.priorities.check(frame.priority)?;
        match self.source {
            Some(source) if source != frame.source => Err(SendError::SourceNotAllowed {
                entry: self.priorities.entry().unwrap_or(0),
            }),
            _ => Ok(()),
        }
    }
}

/// Puts a frame that reached the process into its port's memory, as the demux would.
pub(super) fn deliver_raw(memory: &MappedPort, arrival: Instant, frame: &RawFrame<'_>) {
    let port = memory.port();
    if police::policed(port.control, arrival.as_nanos()) {
        return;
    }
    let head = RawHead {
        ethertype: frame.ethertype,
        length: frame.payload.len() as u16,
        priority: frame.priority,
        destination: frame.destination,
    };
    // The slot has four bytes more behind this head than behind a header of ours: the payload begins in the header.
    let mut header = [0; 16];
    let (first, rest) = frame
        .payload
        .split_at(frame.payload.len().min(16 - RAW_HEAD_BYTES));
    header[..RAW_HEAD_BYTES].copy_from_slice(&head.to_bytes());
    header[RAW_HEAD_BYTES..][..first.len()].copy_from_slice(first);
    let record = RecordHead {
        arrival_ns: arrival.as_nanos(),
        source: source_word(frame.source.0, source_form::RAW),
        header,
    };
    // The queue has counted a record that it dropped.
    let _counted = queue::push(
        port.control,
        port.slots,
        head.priority.index(),
        &record,
        rest,
    );
}

/// Counts a frame that is longer than a slot.
pub(super) fn count_unfit(memory: &MappedPort) {
    memory.port().control.producer.unfit.fetch_add(1, Relaxed);
}
