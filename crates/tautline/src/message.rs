//! Messages and values: what is handed to a port to be sent, and what a port hands out.

mod lent;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};

use crate::address::Source;
use crate::error::{PortError, SendError};

pub(crate) use lent::DetachedBytes;
pub use lent::{LentBytes, LentSample};

/// A destination of one port: [`QueuingPort::destination`](crate::QueuingPort::destination),
/// [`SamplingPort::destination`](crate::SamplingPort::destination). Another port refuses to send there, with
/// [`SendError::OtherPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    port: u32,
    index: u32,
}

impl Destination {
    /// Two numbers that stand for this destination in other languages.
    #[must_use]
    pub const fn into_parts(self) -> [u32; 2] {
        [self.port, self.index]
    }

    /// The destination that two numbers stand for. Any others belong to no port.
    #[must_use]
    pub const fn from_parts([port, index]: [u32; 2]) -> Self {
        Self { port, index }
    }

    /// Place in the table of the port that made it.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.index as usize
    }
}

/// Number of a port of messages: an integer or a [`PortNumber`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePort(u16);

impl From<u16> for MessagePort {
    fn from(number: u16) -> Self {
        Self(number)
    }
}

impl From<PortNumber> for MessagePort {
    fn from(number: PortNumber) -> Self {
        Self(number.get())
    }
}

impl MessagePort {
    pub(crate) fn number(self) -> Result<PortNumber, PortError> {
        Ok(PortNumber::try_from(self.0)?)
    }
}

/// Identity of a port: a number that no other port of this process has, until four billion have been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortIdentity(u32);

impl PortIdentity {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }

    /// The port's destination at a place in its table.
    #[inline]
    pub(crate) const fn destination(self, index: usize) -> Destination {
        Destination {
            port: self.0,
            index: index as u32,
        }
    }

    /// Place of a destination in the port's table. It may be beyond the table's end.
    #[inline(always)]
    pub(crate) const fn index_of(self, to: Destination) -> Result<usize, SendError> {
        if to.port == self.0 {
            Ok(to.index as usize)
        } else {
            Err(SendError::OtherPort)
        }
    }
}

/// One message of a batch: [`QueuingPort::send_batch`](crate::QueuingPort::send_batch),
/// [`SamplingPort::send_batch`](crate::SamplingPort::send_batch), [`UdpPort::send_batch`](crate::UdpPort::send_batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Where to.
    pub to: Destination,
    /// How urgent.
    pub priority: Priority,
    /// Its bytes.
    pub message: &'a [u8],
}

pub(crate) fn bytes_of(batch: &[Outgoing<'_>]) -> usize {
    batch.iter().map(|outgoing| outgoing.message.len()).sum()
}

/// The newest value of a port, copied to be shown; its reader gets it all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenValue {
    pub(crate) source: Source,
    pub(crate) arrival: Instant,
    pub(crate) bytes: Vec<u8>,
}

/// A message that was received; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes of the message, from the start of the buffer.
    pub length: usize,
    /// Its priority.
    pub priority: Priority,
    /// Sender of the message.
    pub source: Source,
    /// When its last frame arrived, on the link's arrival clock.
    pub arrival: Instant,
    /// Sequence number of its first frame.
    pub sequence: u32,
}

/// A value that was read; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of the value, from the start of the buffer.
    pub length: usize,
    /// Its priority.
    pub priority: Priority,
    /// Sender of the value.
    pub source: Source,
    /// When it arrived, on the link's arrival clock.
    pub arrival: Instant,
    /// How long ago that was.
    pub age: Duration,
    /// Whether the age is within the port's refresh period.
    pub valid: bool,
    /// Sequence number of its frame.
    pub sequence: u32,
    /// Values of this source that came and were replaced since the last that was read.
    pub overwritten: u64,
    /// Whether this read is the first to see it.
    pub new: bool,
}

/// Number of the next frame, or on a bus of the next message, of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbering(u32);

impl Numbering {
    /// Takes the next number. A message that could not be sent has used its number too: the peer counts it as lost,
    /// which it is. A number used twice would pass for a duplicate.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> u32 {
        let number = self.0;
        self.0 = number.wrapping_add(1);
        number
    }

    /// Gives the last number back: the link has not taken its frame, and the caller will send it again.
    #[inline(always)]
    pub(crate) fn give_back(&mut self) {
        self.0 = self.0.wrapping_sub(1);
    }
}
