//! The sampling port: keeps the last value only, of all senders or of each.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET};
use tautline_shm::peer;
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::sample::Reader;

use super::endpoint::{Endpoint, check_buffer};
use super::{Destination, Outgoing, SOURCES_MAX, SPIN_DEFAULT};
use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::node::NodeInner;
use crate::policing::Policing;

/// How a sampling port is to be. Its values are of one frame, 1,484 bytes (1,456 in the UDP form).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingOptions {
    /// How often a new value is due. A value older than this is no longer valid.
    pub refresh_period: Duration,
    /// Sources that the port keeps a value of, 1 to [`SOURCES_MAX`]: a source is a peer's port. With 1
    /// all senders write the same value, and the last one stands. With more, each has its own from
    /// its first frame until the port closes; who comes when all places are taken is refused and
    /// counted ([`PortStatus::sources_refused`](crate::PortStatus::sources_refused)). Each source takes 4.5 KiB.
    pub sources: usize,
    /// How long a wait for a new value spins before it sleeps.
    pub spin: Duration,
    /// How much the port takes before the rest is dropped at its door; `None`: everything.
    pub policing: Option<Policing>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            refresh_period: Duration::from_secs(1),
            sources: 1,
            spin: SPIN_DEFAULT,
            policing: None,
        }
    }
}

impl SamplingOptions {
    /// Checks the options against their limits.
    ///
    /// # Errors
    /// [`PortError::BadSources`], [`PortError::BadPolicing`].
    pub fn check(&self) -> Result<(), PortError> {
        if let Some(policing) = self.policing {
            policing.check()?;
        }
        if !(1..=SOURCES_MAX).contains(&self.sources) {
            return Err(PortError::BadSources {
                sources: self.sources,
            });
        }
        Ok(())
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
    /// Values of this source that came and were replaced since the last that was read.
    pub overwritten: u64,
    /// Whether this read is the first to see it.
    pub new: bool,
}

/// A port that keeps the last value only, with its arrival time, age and validity; of all senders or,
/// if [`SamplingOptions::sources`] says so, of each.
///
/// ```
/// use tautline::{Instant, Node, NodeConfig, Priority, SamplingOptions, neighbour};
///
/// let here = [127, 0, 0, 1].into();
/// let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("hub", here))?)?;
/// let fleet = SamplingOptions { sources: 24, ..SamplingOptions::default() };
/// let mut hub = node.sampling_port(2010.try_into()?, &fleet)?;
/// for number in [2011_u16, 2012, 2013] {
///     let mut arm = node.sampling_port(number.try_into()?, &SamplingOptions::default())?;
///     let to_hub = arm.destination("hub", hub.number())?;
///     arm.send(to_hub, Priority::NORMAL, &number.to_be_bytes())?;
/// }
/// let mut buffer = [0; 1484];
/// let mut seen = 0;
/// while seen < 3 {
///     seen += hub.read_newer_until(Instant::FAR_FUTURE, &mut buffer, |sample, bytes| {
///         println!("{} is at {bytes:?}, {:?} old", sample.source, sample.age);
///     })?;
/// }
/// assert_eq!(hub.sources().count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SamplingPort {
    endpoint: Endpoint,
    /// One for each source.
    readers: Box<[Reader]>,
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
        options.check()?;
        let shape = Shape::Sampling {
            sources: options.sources as u32,
        };
        Ok(Self {
            endpoint: Endpoint::open(node, number, name, shape, options.spin, options.policing)?,
            readers: (0..options.sources).map(Reader::new).collect(),
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

    /// As [`QueuingPort::send_batch`](super::QueuingPort::send_batch): one value to many, or many values.
    ///
    /// # Errors
    /// [`SendError`] if none was sent.
    pub fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.endpoint.send_batch(batch)
    }

    /// The last value, seen before or not, into `buffer`, which must hold
    /// [`SamplingPort::VALUE_BYTES_MAX`]; `None` while there has never been one. Of several sources' values
    /// it is the one that arrived last; the others stay new. Never waits, never retries: the same
    /// small price always, whatever arrives meanwhile.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        self.look(buffer)?;
        if let [_] = *self.readers {
            return Ok(self.take(0, buffer));
        }
        let last = self.arrivals(|_| true).max();
        Ok(last.and_then(|(_, index)| self.take(index, buffer)))
    }

    /// The last value of one source, as [`SamplingPort::read`]; `None` if it has never sent one. On a port
    /// that keeps one value for all it is that value, if it is this source's.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_from(
        &mut self,
        source: Source,
        buffer: &mut [u8],
    ) -> Result<Option<Sample>, ReceiveError> {
        self.look(buffer)?;
        let index = match *self.readers {
            [_] => self.source_of(0).filter(|of| *of == source).map(|_| 0),
            _ => peer::source_known(
                self.endpoint.link.memory().port().control,
                source.address.word(),
                source.port.get(),
                self.readers.len(),
            ),
        };
        Ok(index.and_then(|index| self.take(index, buffer)))
    }

    /// All values that have not been read, the one that arrived first at first: each is copied into
    /// `buffer`, which must hold [`SamplingPort::VALUE_BYTES_MAX`], and `each` is called with it and
    /// its bytes. How many they were, at most one for each source. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_newer(
        &mut self,
        buffer: &mut [u8],
        mut each: impl FnMut(&Sample, &[u8]),
    ) -> Result<usize, ReceiveError> {
        self.look(buffer)?;
        let mut order = [(0, 0); SOURCES_MAX];
        let mut count = 0;
        for (place, new) in order.iter_mut().zip(self.arrivals(Reader::holds_new)) {
            *place = new;
            count += 1;
        }
        order[..count].sort_unstable();
        let mut handed = 0;
        for (_, index) in &order[..count] {
            if let Some(sample) = self.take(*index, buffer) {
                each(&sample, &buffer[..sample.length]);
                handed += 1;
            }
        }
        Ok(handed)
    }

    /// As [`SamplingPort::read_newer`], but waits until there is a value that has not been read, or until
    /// `deadline`, spinning first and then sleeping. 0 when the deadline has come.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_newer_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
        each: impl FnMut(&Sample, &[u8]),
    ) -> Result<usize, ReceiveError> {
        check_buffer(buffer, Self::VALUE_BYTES_MAX)?;
        if self.wait_for_new(deadline)? {
            return self.read_newer(buffer, each);
        }
        Ok(0)
    }

    /// The next value that this port has not seen; waits for one until `deadline`, spinning first
    /// and then sleeping. `None` when the deadline has come. [`Instant::FAR_FUTURE`] waits for ever. Of
    /// several sources' values, the one that arrived first.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_new_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Sample>, ReceiveError> {
        check_buffer(buffer, Self::VALUE_BYTES_MAX)?;
        if !self.wait_for_new(deadline)? {
            return Ok(None);
        }
        self.refresh();
        let first = match *self.readers {
            [_] => Some(0),
            _ => self
                .arrivals(Reader::holds_new)
                .min()
                .map(|(_, index)| index),
        };
        Ok(first.and_then(|index| self.take(index, buffer)))
    }

    /// Whether there is a value that this port has not seen. One load for each source on a link that
    /// the kernel delivers for; on others, of what has been collected.
    #[inline]
    #[must_use]
    pub fn fresh(&self) -> bool {
        let control = self.endpoint.link.memory().port().control;
        self.readers.iter().any(|reader| reader.fresh(control))
    }

    /// The sources whose values the port keeps, in no order. A port that keeps one value for all
    /// has at most the one who sent it.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        (0..self.readers.len()).filter_map(|index| self.source_of(index))
    }

    /// As [`QueuingPort::descriptor`](super::QueuingPort::descriptor): readable when a value comes after a
    /// [`SamplingPort::read`] or [`SamplingPort::read_newer`] that found nothing new.
    pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.endpoint.descriptor()
    }

    /// Brings in what has arrived, and makes each source's newest value the reader's own.
    #[inline]
    fn look(&mut self, buffer: &[u8]) -> Result<(), ReceiveError> {
        check_buffer(buffer, Self::VALUE_BYTES_MAX)?;
        self.endpoint.link.collect()?;
        if self.endpoint.notify && !self.fresh() {
            self.endpoint.link.arm();
            self.endpoint.link.collect()?;
        }
        self.refresh();
        Ok(())
    }

    #[inline]
    fn refresh(&mut self) {
        let port = self.endpoint.link.memory().port();
        for reader in &mut self.readers {
            reader.refresh(port.control, port.slots);
        }
    }

    fn wait_for_new(&mut self, deadline: Instant) -> Result<bool, ReceiveError> {
        let Self {
            endpoint, readers, ..
        } = self;
        let fresh = endpoint.wait_for(deadline, |endpoint| {
            endpoint.link.collect()?;
            let control = endpoint.link.memory().port().control;
            let fresh = readers.iter().any(|reader| reader.fresh(control));
            Ok(fresh.then_some(()))
        })?;
        Ok(fresh.is_some())
    }

    /// Arrival and index of the sources that have a value and are `wanted`.
    fn arrivals(&self, wanted: impl Fn(&Reader) -> bool) -> impl Iterator<Item = (u64, usize)> {
        let slots = self.endpoint.link.memory().port().slots;
        let readers = self.readers.iter().enumerate();
        readers.filter_map(move |(index, reader)| {
            let cell = reader.current(slots).filter(|_| wanted(reader))?;
            Some((cell.head().arrival_ns, index))
        })
    }

    /// Who sent the reader's own value.
    fn source_of(&self, index: usize) -> Option<Source> {
        let slots = self.endpoint.link.memory().port().slots;
        let head = self.readers[index].current(slots)?.head();
        Some(Source {
            address: Address::from_word(head.source)?,
            port: Header::from_bytes(&head.header).ok()?.source,
        })
    }

    #[inline]
    fn take(&mut self, index: usize, buffer: &mut [u8]) -> Option<Sample> {
        let port = self.endpoint.link.memory().port();
        let sample = self.readers[index].hand(port.slots)?;
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
