//! The sampling port: keeps the last value only.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET};
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::sample::Reader;

use super::endpoint::{Endpoint, check_buffer};
use super::{Destination, SPIN_DEFAULT};
use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::node::NodeInner;
use crate::policing::Policing;

/// How a sampling port is to be. Its values are of one frame, 1,484 bytes (1,456 in the UDP form).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingOptions {
    /// How often a new value is due. A value older than this is no longer valid.
    pub refresh_period: Duration,
    /// How long a wait for a new value spins before it sleeps.
    pub spin: Duration,
    /// How much the port takes before the rest is dropped at its door; `None`: everything.
    pub policing: Option<Policing>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            refresh_period: Duration::from_secs(1),
            spin: SPIN_DEFAULT,
            policing: None,
        }
    }
}

/// A value that was read; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of the value, from the start of the buffer.
    pub length: usize,
    /// Its priority.
    pub priority: Priority,
    /// Who sent it.
    pub source: Source,
    /// When it arrived, on the link's arrival clock.
    pub arrival: Instant,
    /// How long ago that was.
    pub age: Duration,
    /// Whether the age is within the port's refresh period.
    pub valid: bool,
    /// Sequence number of its frame.
    pub sequence: u32,
    /// Values that came and were replaced since the last read.
    pub overwritten: u64,
    /// Whether this read is the first to see it.
    pub new: bool,
}

/// A port that keeps the last value only, with its arrival time, age and validity.
#[derive(Debug)]
pub struct SamplingPort {
    endpoint: Endpoint,
    reader: Reader,
    refresh_period: Duration,
}

impl SamplingPort {
    /// Bytes of the largest value: one frame.
    pub const VALUE_BYTES_MAX: usize = WHOLE_BYTES_MAX_ETHERNET;

    pub(crate) fn open(
        node: &Arc<NodeInner>,
        number: PortNumber,
        name: Option<&str>,
        options: &SamplingOptions,
    ) -> Result<Self, PortError> {
        let shape = Shape::Sampling { sources: 1 };
        Ok(Self {
            endpoint: Endpoint::open(node, number, name, shape, options.spin, options.policing)?,
            reader: Reader::new(0),
            refresh_period: options.refresh_period,
        })
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.endpoint.number
    }

    /// As [`QueuingPort::destination`](super::QueuingPort::destination).
    ///
    /// # Errors
    /// As [`QueuingPort::destination`](super::QueuingPort::destination).
    pub fn destination(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        self.endpoint.destination(name, to)
    }

    /// As [`QueuingPort::reply_to`](super::QueuingPort::reply_to).
    ///
    /// # Errors
    /// As [`QueuingPort::destination`](super::QueuingPort::destination).
    pub fn reply_to(&mut self, source: Source) -> Result<Destination, PortError> {
        self.endpoint.reply_to(source)
    }

    /// As [`QueuingPort::send`](super::QueuingPort::send). A peer's sampling port takes values of one frame only.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        value: &[u8],
    ) -> Result<(), SendError> {
        self.endpoint.send(to, priority, value)
    }

    /// The last value, seen before or not, into `buffer`, which must hold
    /// [`SamplingPort::VALUE_BYTES_MAX`]; `None` while there has never been one. Never waits, never
    /// retries: the same small price always, whatever arrives meanwhile.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        check_buffer(buffer, Self::VALUE_BYTES_MAX)?;
        self.endpoint.link.collect()?;
        if self.endpoint.notify
            && !self
                .reader
                .fresh(self.endpoint.link.memory().port().control)
        {
            self.endpoint.link.arm();
            self.endpoint.link.collect()?;
        }
        Ok(self.take(buffer))
    }

    /// The next value that this port has not seen; waits for one until `deadline`, spinning first
    /// and then sleeping. `None` when the deadline has come. [`Instant::FAR_FUTURE`] waits for ever.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_new_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Sample>, ReceiveError> {
        check_buffer(buffer, Self::VALUE_BYTES_MAX)?;
        let Self {
            endpoint, reader, ..
        } = self;
        let fresh = endpoint.wait_for(deadline, |endpoint| {
            endpoint.link.collect()?;
            let control = endpoint.link.memory().port().control;
            Ok(reader.fresh(control).then_some(()))
        })?;
        Ok(fresh.and_then(|()| self.take(buffer)))
    }

    /// Whether there is a value that this port has not seen. One load on a link that the kernel
    /// delivers for; on others, what has been collected.
    #[inline]
    #[must_use]
    pub fn fresh(&self) -> bool {
        self.reader
            .fresh(self.endpoint.link.memory().port().control)
    }

    /// As [`QueuingPort::descriptor`](super::QueuingPort::descriptor): readable when a value comes after a [`SamplingPort::read`]
    /// that found nothing new.
    pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.endpoint.descriptor()
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> Option<Sample> {
        let port = self.endpoint.link.memory().port();
        let sample = self.reader.read(port.control, port.slots)?;
        let head = sample.cell.head();
        let (Some(address), Ok(header)) = (
            Address::from_word(head.source),
            Header::from_bytes(&head.header),
        ) else {
            self.endpoint.statistics.void.add(1);
            return None;
        };
        let length = usize::from(header.length).min(Self::VALUE_BYTES_MAX);
        sample.cell.read_payload(&mut buffer[..length]);
        let arrival = Instant::from_nanos(head.arrival_ns);
        let age = self.endpoint.link.now().saturating_duration_since(arrival);
        self.endpoint.statistics.received.add(u64::from(sample.new));
        self.endpoint.statistics.overwritten.add(sample.overwritten);
        Some(Sample {
            length,
            priority: header.priority,
            source: Source {
                address,
                port: header.source,
            },
            arrival,
            age,
            valid: age <= self.refresh_period,
            sequence: header.sequence,
            overwritten: sample.overwritten,
            new: sample.new,
        })
    }
}
