//! The sampling port: keeps the last value only, of all senders or of each.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, MESSAGE_BYTES_MAX, PortNumber, Priority};
use tautline_shm::peer;
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::sample::Reader;
use tautline_shm::vbus::layout::PRODUCERS_MAX;

use super::endpoint::{Endpoint, check_buffer};
use super::lent::Loan;
use super::owner::PortOwner;
use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::limits::{SOURCES_MAX, SPIN_DEFAULT, VALUE_BYTES_DEFAULT};
use crate::link::{FramePort, PortHalf};
use crate::message::{Destination, LentBytes, LentSample, Outgoing, Sample};
use crate::policing::Policing;
use crate::statistics::Statistics;

/// Options of a sampling port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingOptions {
    /// Period in which a new value is due. An older value is no longer valid.
    pub refresh_period: Duration,
    /// Sources that the port keeps a value of, 1 to [`SOURCES_MAX`]: a source is a peer's port. With 1
    /// all senders write the same value, and the last one stands. With more, each has its own from
    /// its first frame until the port closes; who comes when all places are taken is refused and
    /// counted ([`PortStatus::sources_refused`](crate::PortStatus::sources_refused)). Each source takes 4.5 KiB.
    pub sources: usize,
    /// Bytes of the largest value. Values are of one frame: 1,484 bytes (1,456 in the UDP form); on link
    /// `vbus` up to 65,536.
    pub value_bytes_max: usize,
    /// Time for which a wait for a new value spins before it sleeps.
    pub spin: Duration,
    /// Limits beyond which frames are dropped on arrival; `None`: no limits.
    pub policing: Option<Policing>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            refresh_period: Duration::from_secs(1),
            sources: 1,
            value_bytes_max: VALUE_BYTES_DEFAULT,
            spin: SPIN_DEFAULT,
            policing: None,
        }
    }
}

impl SamplingOptions {
    /// Checks the options against their limits.
    ///
    /// # Errors
    /// [`PortError::BadSources`], [`PortError::BadMessageSize`], [`PortError::BadPolicing`].
    pub fn check(&self) -> Result<(), PortError> {
        if let Some(policing) = self.policing {
            policing.check()?;
        }
        if !(1..=SOURCES_MAX).contains(&self.sources) {
            return Err(PortError::BadSources {
                sources: self.sources,
            });
        }
        if !(1..=MESSAGE_BYTES_MAX).contains(&self.value_bytes_max) {
            return Err(PortError::BadMessageSize {
                bytes: self.value_bytes_max,
                why: "1 to 65,536 bytes",
            });
        }
        Ok(())
    }
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
    /// One for each source; none over a bus, where each sender has its cells.
    readers: Box<[Reader]>,
    /// Whether the port keeps one value for all.
    is_single: bool,
    value_bytes_max: usize,
    refresh_period: Duration,
}

/// Most places of values in a port, on any link.
const PLACES_MAX: usize = if PRODUCERS_MAX > SOURCES_MAX {
    PRODUCERS_MAX
} else {
    SOURCES_MAX
};

impl SamplingPort {
    /// Bytes of the largest value, unless configured: one frame.
    pub const VALUE_BYTES_MAX: usize = VALUE_BYTES_DEFAULT;

    pub(crate) fn open(
        node: &Arc<dyn PortOwner>,
        number: PortNumber,
        name: Option<&str>,
        options: &SamplingOptions,
    ) -> Result<Self, PortError> {
        options.check()?;
        let shape = Shape::Sampling {
            sources: options.sources as u32,
        };
        let endpoint = Endpoint::open(
            node,
            number,
            name,
            (shape, options.value_bytes_max),
            options.spin,
            options.policing,
        )?;
        let readers = match endpoint.link {
            PortHalf::Frames(_) => options.sources,
            PortHalf::Bus(_) => 0,
        };
        Ok(Self {
            endpoint,
            readers: (0..readers).map(Reader::new).collect(),
            is_single: options.sources == 1,
            value_bytes_max: options.value_bytes_max,
            refresh_period: options.refresh_period,
        })
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.endpoint.number
    }

    /// Bytes of the largest value that the port takes.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// As [`QueuingPort::destination`](super::QueuingPort::destination).
    ///
    /// # Errors
    /// As [`QueuingPort::destination`](super::QueuingPort::destination).
    pub fn destination(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        self.endpoint.destination(name, to)
    }

    /// The same, and on link `vbus` waits until the peer's port is there, so that this program may start before its
    /// peer. On other links nothing says whether a peer is there, and this does not wait.
    ///
    /// # Errors
    /// Those of [`destination`](Self::destination), and [`PortError::PeerAbsent`] at the deadline; a later attempt is
    /// answered from what is known then.
    pub fn destination_until(
        &mut self,
        name: &str,
        to: PortNumber,
        deadline: Instant,
    ) -> Result<Destination, PortError> {
        self.endpoint.destination_until(name, to, deadline)
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

    /// Lends the place of the next value, as [`QueuingPort::lend`](super::QueuingPort::lend).
    ///
    /// # Errors
    /// As [`QueuingPort::lend`](super::QueuingPort::lend).
    #[inline]
    pub fn lend(
        &mut self,
        to: Destination,
        priority: Priority,
        length: usize,
    ) -> Result<Loan<'_>, SendError> {
        self.endpoint.lend(to, priority, length)
    }

    /// Lends the last value where it lies, seen before or not; `None` if there has never been one. The value
    /// stays there until the port is used again. Never waits, never retries.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read_lent(&mut self) -> Result<Option<LentSample<'_>>, ReceiveError> {
        if let PortHalf::Frames(_) = self.endpoint.link {
            return self.read_lent_here();
        }
        let Endpoint {
            link,
            statistics,
            notify,
            ..
        } = &mut self.endpoint;
        let PortHalf::Bus(bus) = link else {
            return Ok(None);
        };
        let Some(place) = bus.find_value(*notify) else {
            return Ok(None);
        };
        let sample = bus.lend_value(place);
        if let Some(sample) = &sample {
            statistics.received.add(u64::from(sample.new));
            statistics.overwritten.add(sample.overwritten);
        }
        Ok(sample)
    }

    /// As [`SamplingPort::read_lent`], of a port whose values come into its own memory.
    #[inline(always)]
    fn read_lent_here(&mut self) -> Result<Option<LentSample<'_>>, ReceiveError> {
        self.bring_in()?;
        let Some(place) = self.newest() else {
            return Ok(None);
        };
        let PortHalf::Frames(frames) = &mut self.endpoint.link else {
            return Ok(None);
        };
        let statistics = &self.endpoint.statistics;
        let reader = &mut self.readers[place];
        let sample = lend_cell(frames, reader, statistics, self.value_bytes_max);
        if let Some(sample) = &sample {
            statistics.received.add(u64::from(sample.new));
            statistics.overwritten.add(sample.overwritten);
        }
        Ok(sample)
    }

    /// Copies the last value, seen before or not, into `buffer`, which must hold
    /// [`SamplingPort::value_bytes_max`]; `None` while there has never been one. Of several sources' values it
    /// is the one that arrived last; the others stay new. Never waits, never retries: the same small price
    /// always, whatever arrives meanwhile.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        check_buffer(buffer, self.value_bytes_max)?;
        let Endpoint {
            link,
            statistics,
            notify,
            ..
        } = &mut self.endpoint;
        let PortHalf::Bus(bus) = link else {
            return self.read_here(buffer);
        };
        let Some(place) = bus.find_value(*notify) else {
            return Ok(None);
        };
        let Some(sample) = bus.take_value(place, buffer, self.refresh_period) else {
            return Ok(None);
        };
        statistics.received.add(u64::from(sample.new));
        statistics.overwritten.add(sample.overwritten);
        Ok(Some(sample))
    }

    /// As [`SamplingPort::read`], of a port whose values come into its own memory.
    #[inline(always)]
    fn read_here(&mut self, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        self.bring_in()?;
        let last = self.newest();
        Ok(last.and_then(|place| self.take(place, buffer)))
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
        let is_asked = |of: &Source| *of == source;
        let place = match &self.endpoint.link {
            _ if self.is_single => self
                .newest()
                .filter(|place| self.source_of(*place).as_ref().is_some_and(is_asked)),
            PortHalf::Frames(frames) => peer::source_known(
                frames.memory.port().control,
                source.address.word(),
                source.port.get(),
                self.readers.len(),
            ),
            PortHalf::Bus(bus) => (0..bus.inlet.value_count())
                .filter(|place| self.source_of(*place).as_ref().is_some_and(is_asked))
                .max_by_key(|place| bus.inlet.value(*place)),
        };
        Ok(place.and_then(|place| self.take(place, buffer)))
    }

    /// Reads all values that have not been read, in the order of their arrival. Copies each into `buffer`,
    /// which must hold [`SamplingPort::value_bytes_max`], and calls `each` with the value and its bytes.
    /// Returns their number, at most one for each source. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_newer(
        &mut self,
        buffer: &mut [u8],
        mut each: impl FnMut(&Sample, &[u8]),
    ) -> Result<usize, ReceiveError> {
        self.look(buffer)?;
        let (mut order, count) = self.unread();
        order[..count].sort_unstable();
        let mut handed = 0;
        for (_, place) in &order[..count] {
            if let Some(sample) = self.take(*place, buffer) {
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
        check_buffer(buffer, self.value_bytes_max)?;
        if self.wait_for_new(deadline)? {
            return self.read_newer(buffer, each);
        }
        Ok(0)
    }

    /// Copies the next value that this port has not seen into `buffer`; waits for one until `deadline`,
    /// spinning first and then sleeping. `None` when the deadline has come. [`Instant::FAR_FUTURE`] waits for
    /// ever. Of several sources' values, the one that arrived first.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_new_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Sample>, ReceiveError> {
        check_buffer(buffer, self.value_bytes_max)?;
        if !self.wait_for_new(deadline)? {
            return Ok(None);
        }
        self.refresh();
        let (order, count) = self.unread();
        let first = order[..count].iter().min();
        Ok(first.and_then(|(_, place)| self.take(*place, buffer)))
    }

    /// Whether there is a value that this port has not seen. One load for each source on a link that
    /// the kernel delivers for; on others, of what has been collected.
    #[inline]
    #[must_use]
    pub fn fresh(&self) -> bool {
        match &self.endpoint.link {
            PortHalf::Frames(frames) => {
                let control = frames.memory.port().control;
                self.readers.iter().any(|reader| reader.fresh(control))
            }
            PortHalf::Bus(bus) => bus.inlet.fresh(),
        }
    }

    /// The sources whose values the port keeps, in no order. A port that keeps one value for all
    /// has at most the one who sent it.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        (0..self.place_count()).filter_map(|place| self.source_of(place))
    }

    /// As [`QueuingPort::descriptor`](super::QueuingPort::descriptor): readable when a value comes after a
    /// [`SamplingPort::read`] or [`SamplingPort::read_newer`] that found nothing new.
    pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.endpoint.descriptor()
    }

    /// Brings in what has arrived, and makes each source's newest value the reader's own.
    #[inline]
    fn look(&mut self, buffer: &[u8]) -> Result<(), ReceiveError> {
        check_buffer(buffer, self.value_bytes_max)?;
        self.bring_in()
    }

    /// As [`SamplingPort::look`], without a buffer.
    #[inline]
    fn bring_in(&mut self) -> Result<(), ReceiveError> {
        self.collect()?;
        if self.endpoint.notify && !self.finds_new() {
            self.endpoint.link.arm_descriptor();
            self.collect()?;
        }
        self.refresh();
        Ok(())
    }

    /// As [`SamplingPort::fresh`], but over a bus a peer's word alone does not count.
    fn finds_new(&mut self) -> bool {
        if let PortHalf::Bus(bus) = &mut self.endpoint.link {
            return bus.inlet.refresh_values();
        }
        self.fresh()
    }

    #[inline]
    fn collect(&mut self) -> Result<(), ReceiveError> {
        match &mut self.endpoint.link {
            PortHalf::Frames(frames) => frames.link.collect(),
            PortHalf::Bus(_) => Ok(()),
        }
    }

    #[inline]
    fn refresh(&mut self) {
        match &mut self.endpoint.link {
            PortHalf::Frames(frames) => {
                let port = frames.memory.port();
                for reader in &mut self.readers {
                    reader.refresh(port.control, port.slots);
                }
            }
            PortHalf::Bus(bus) => {
                bus.inlet.refresh_values();
            }
        }
    }

    fn wait_for_new(&mut self, deadline: Instant) -> Result<bool, ReceiveError> {
        let Self {
            endpoint, readers, ..
        } = self;
        let fresh = endpoint.wait_for(deadline, |endpoint| {
            let fresh = match &mut endpoint.link {
                PortHalf::Frames(frames) => {
                    frames.link.collect()?;
                    let control = frames.memory.port().control;
                    readers.iter().any(|reader| reader.fresh(control))
                }
                PortHalf::Bus(bus) => bus.inlet.refresh_values(),
            };
            Ok(fresh.then_some(()))
        })?;
        Ok(fresh.is_some())
    }

    /// Places where a value can be.
    fn place_count(&self) -> usize {
        match &self.endpoint.link {
            PortHalf::Frames(_) => self.readers.len(),
            PortHalf::Bus(bus) => bus.inlet.value_count(),
        }
    }

    /// When the value in a place arrived, and whether it is unread.
    fn arrival_of(&self, place: usize) -> Option<(u64, bool)> {
        match &self.endpoint.link {
            PortHalf::Frames(frames) => {
                let reader = &self.readers[place];
                let cell = reader.current(frames.memory.port().slots)?;
                Some((cell.head().arrival_ns, reader.holds_new()))
            }
            PortHalf::Bus(bus) => bus.inlet.value(place),
        }
    }

    /// The place of the value that arrived last.
    #[inline]
    fn newest(&mut self) -> Option<usize> {
        if let [_] = *self.readers {
            return Some(0);
        }
        if let PortHalf::Bus(bus) = &mut self.endpoint.link {
            return bus.inlet.newest();
        }
        let arrivals =
            (0..self.place_count()).filter_map(|place| Some((self.arrival_of(place)?.0, place)));
        arrivals.max().map(|(_, place)| place)
    }

    /// Arrival and place of the values that have not been read, in no order; on a port that keeps one
    /// for all, of the last.
    fn unread(&mut self) -> ([(u64, usize); PLACES_MAX], usize) {
        let mut order = [(0, 0); PLACES_MAX];
        let only = if self.is_single { self.newest() } else { None };
        let unread = (0..self.place_count())
            .filter(|place| !self.is_single || only == Some(*place))
            .filter_map(|place| {
                let (arrival, unread) = self.arrival_of(place)?;
                unread.then_some((arrival, place))
            });
        let mut count = 0;
        for (slot, found) in order.iter_mut().zip(unread) {
            *slot = found;
            count += 1;
        }
        (order, count)
    }

    /// Sender of the value in a place.
    fn source_of(&self, place: usize) -> Option<Source> {
        match &self.endpoint.link {
            PortHalf::Frames(frames) => {
                let slots = frames.memory.port().slots;
                let head = self.readers[place].current(slots)?.head();
                Some(Source {
                    address: Address::from_word(head.source)?,
                    port: Header::from_bytes(&head.header).ok()?.source,
                })
            }
            PortHalf::Bus(bus) => {
                bus.inlet.value(place)?;
                let (node, port) = bus.inlet.source(place)?;
                let address = Address::Bus(node);
                Some(Source { address, port })
            }
        }
    }

    #[inline]
    fn take(&mut self, place: usize, buffer: &mut [u8]) -> Option<Sample> {
        let period = self.refresh_period;
        let statistics = &self.endpoint.statistics;
        let sample = match &mut self.endpoint.link {
            PortHalf::Frames(frames) => {
                let now = frames.link.now();
                let reader = &mut self.readers[place];
                let sample = take_frame(frames, reader, statistics, buffer)?;
                let age = now.saturating_duration_since(sample.arrival);
                Sample {
                    age,
                    valid: age <= period,
                    ..sample
                }
            }
            PortHalf::Bus(bus) => bus.take_value(place, buffer, period)?,
        };
        statistics.received.add(u64::from(sample.new));
        statistics.overwritten.add(sample.overwritten);
        Some(sample)
    }
}

/// Reads the value of one source; its age is not known yet.
#[inline]
fn take_frame(
    frames: &FramePort,
    reader: &mut Reader,
    statistics: &Statistics,
    buffer: &mut [u8],
) -> Option<Sample> {
    let lent = lend_cell(frames, reader, statistics, buffer.len())?;
    Some(Sample {
        length: lent.bytes.copy_out(0, buffer),
        priority: lent.priority,
        source: lent.source,
        arrival: lent.arrival,
        age: Duration::ZERO,
        valid: false,
        sequence: lent.sequence,
        overwritten: lent.overwritten,
        new: lent.new,
    })
}

/// The value of one source in its cell, cut off at `bytes_max`.
#[inline]
fn lend_cell<'p>(
    frames: &'p FramePort,
    reader: &mut Reader,
    statistics: &Statistics,
    bytes_max: usize,
) -> Option<LentSample<'p>> {
    let port = frames.memory.port();
    let sample = reader.hand(port.slots)?;
    let head = sample.cell.head();
    let (Some(address), Ok(header)) = (
        Address::from_word(head.source),
        Header::from_bytes(&head.header),
    ) else {
        statistics.void.add(1);
        return None;
    };
    let length = usize::from(header.length).min(VALUE_BYTES_DEFAULT);
    Some(LentSample {
        bytes: LentBytes::of_slot(sample.cell, 0, length.min(bytes_max)),
        priority: header.priority,
        source: Source {
            address,
            port: header.source,
        },
        arrival: Instant::from_nanos(head.arrival_ns),
        sequence: header.sequence,
        overwritten: sample.overwritten,
        new: sample.new,
    })
}
