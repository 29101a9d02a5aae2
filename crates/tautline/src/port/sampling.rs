//! The sampling port: keeps the last value only, of all senders or of each.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::authentication::Protection;
use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::region::Shape;

use super::core::{AnyCore, Core, ValueCore, with_core};
use super::endpoint::{Endpoint, check_buffer, message_port, waiting_port};
use super::frames::values::Readers;
use super::lent::Loan;
use super::opening::Opening;
use super::owner::PortOwner;
use super::queuing::check_bytes;
use super::spin::Spin;
use super::waiting::{Bell, Wait, wait_for};
use crate::address::Source;
use crate::error::{OptionsError, PortError, ReceiveError, SendError};
use crate::kind::LinkKind;
use crate::limits::{SOURCES_MAX, VALUE_BYTES_DEFAULT};
use crate::message::{Destination, LentSample, MessagePort, Outgoing, Sample};
use crate::policing::Policing;
use crate::statistics::Statistics;
use crate::types::PortTypes;

/// Options of a sampling port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingOptions {
    /// Period in which a new value is due. An older value is no longer valid.
    pub refresh_period: Duration,
    /// Sources that the port keeps a value of, 1 to [`SOURCES_MAX`]: a source is a peer's port. With 1 all senders
    /// write the same value, and the last one stands. With more, each has its own from its first frame until the port
    /// closes; who comes when all places are taken is refused and counted
    /// ([`PortStatus::sources_refused`](crate::status::PortStatus::sources_refused)). Each source takes 4.5 KiB.
    pub sources: usize,
    /// Bytes of the largest value. Values are of one frame: 1,484 bytes (1,456 in the UDP form); on link
    /// `vbus` up to 16 MiB.
    pub value_bytes_max: usize,
    /// How long a wait for a new value spins before it sleeps.
    pub spin: Spin,
    /// Limits beyond which frames are dropped on arrival; `None`: no limits.
    pub policing: Option<Policing>,
    /// How what the port sends is protected; it takes authentic frames only, protected in whichever way. `None`: not
    /// at all.
    pub protection: Option<Protection>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            refresh_period: Duration::from_secs(1),
            sources: 1,
            value_bytes_max: VALUE_BYTES_DEFAULT,
            spin: Spin::Adaptive,
            policing: None,
            protection: None,
        }
    }
}

impl SamplingOptions {
    /// Checks the options against their limits, of any link.
    ///
    /// # Errors
    /// [`OptionsError::Sources`], [`OptionsError::MessageSize`], [`OptionsError::Policing`].
    pub fn check(&self) -> Result<(), OptionsError> {
        if let Some(policing) = self.policing {
            policing.check()?;
        }
        if !(1..=SOURCES_MAX).contains(&self.sources) {
            return Err(OptionsError::Sources {
                sources: self.sources,
            });
        }
        check_bytes(self.value_bytes_max, Some(LinkKind::Vbus))
    }

    /// Checks the options against the limits of a link; of one that sends frames if it is not known.
    pub(crate) fn check_on(&self, link: Option<LinkKind>) -> Result<(), OptionsError> {
        self.check()?;
        check_bytes(self.value_bytes_max, link)
    }
}

/// A value that was read: it derefs to its bytes, in the port's copy.
#[derive(Clone, Copy, Debug)]
pub struct Value<'p> {
    bytes: &'p [u8],
    sample: Sample,
}

impl Value<'_> {
    /// Its priority, source, arrival, age, and what else is known about it.
    #[inline]
    #[must_use]
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    /// Its priority.
    #[inline]
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.sample.priority
    }

    /// Sender of the value.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Source {
        self.sample.source
    }

    /// When it arrived, on the link's arrival clock.
    #[inline]
    #[must_use]
    pub fn arrival(&self) -> Instant {
        self.sample.arrival
    }

    /// How old it was when it was read.
    #[inline]
    #[must_use]
    pub fn age(&self) -> Duration {
        self.sample.age
    }

    /// Whether the age is within the port's refresh period.
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.sample.valid
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// A port that keeps the last value only, with its arrival time, age and validity; of all senders or,
/// if [`SamplingOptions::sources`] says so, of each.
///
/// ```
/// use tautline::{Node, NodeConfig, Priority, Wait, neighbour};
///
/// let here = [127, 0, 0, 1].into();
/// let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("hub", here))?)?;
/// let mut hub = node.sampling(2010).sources(24).open()?;
/// for number in [2011_u16, 2012, 2013] {
///     let mut arm = node.sampling(number).open()?;
///     let to_hub = arm.destination("hub", hub.number())?;
///     arm.send(to_hub, Priority::NORMAL, &number.to_be_bytes())?;
/// }
/// for _ in 0..3 {
///     let value = hub.next(Wait::Forever)?.expect("no deadline");
///     println!("{} is at {:?}, {:?} old", value.source(), &*value, value.age());
/// }
/// assert_eq!(hub.sources().count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SamplingPort {
    endpoint: Endpoint<Readers>,
    /// Whether the port keeps one value for all.
    is_single: bool,
    value_bytes_max: usize,
    refresh_period: Duration,
    copy: Box<[u8]>,
}

message_port!(SamplingPort);

impl SamplingPort {
    /// Bytes of the largest value, unless configured: one frame.
    pub const VALUE_BYTES_MAX: usize = VALUE_BYTES_DEFAULT;

    pub(crate) fn open(
        node: &Arc<dyn PortOwner>,
        number: PortNumber,
        name: Option<&str>,
        options: &SamplingOptions,
        types: &PortTypes,
    ) -> Result<Self, PortError> {
        options.check_on(Some(node.link().kind()))?;
        let opening = Opening {
            key: number.into(),
            name,
            shape: Shape::Sampling {
                sources: options.sources as u32,
            },
            bytes_max: options.value_bytes_max,
            refresh_period: Some(options.refresh_period),
            spin: options.spin,
            policing: options.policing,
            protection: options.protection,
            types,
        };
        let endpoint = Endpoint::open(node, number, &opening, || {
            Readers::new(options.sources, types.into())
        })?;
        Ok(Self {
            endpoint,
            is_single: options.sources == 1,
            value_bytes_max: options.value_bytes_max,
            refresh_period: options.refresh_period,
            copy: vec![0; options.value_bytes_max].into(),
        })
    }

    /// Bytes of the largest value that the port takes.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// Reads the last value, seen before or not; `None` while there has never been one. Of several sources' values it
    /// is the one that arrived last; the others stay new. Never waits, never retries: the same small price always,
    /// whatever arrives meanwhile.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read(&mut self) -> Result<Option<Value<'_>>, ReceiveError> {
        self.with_copy(Self::read_into)
    }

    /// Waits for the next value that this port has not seen, and reads it; `None` if the wait has ended without one. Of
    /// several sources' values, the one that arrived first.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn next(&mut self, wait: Wait) -> Result<Option<Value<'_>>, ReceiveError> {
        self.with_copy(|port, copy| port.next_into(copy, wait))
    }

    /// Reads the last value of one source; `None` if it has never sent one. On a port that keeps one value for all it
    /// is that value, if it is this source's. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn read_from(&mut self, source: Source) -> Result<Option<Value<'_>>, ReceiveError> {
        self.with_copy(|port, copy| port.read_from_into(source, copy))
    }

    #[inline(always)]
    fn with_copy(
        &mut self,
        read: impl FnOnce(&mut Self, &mut [u8]) -> Result<Option<Sample>, ReceiveError>,
    ) -> Result<Option<Value<'_>>, ReceiveError> {
        let mut copy = std::mem::take(&mut self.copy);
        let sample = read(self, &mut copy);
        self.copy = copy;
        let value = |sample: Sample| Value {
            bytes: &self.copy[..sample.length],
            sample,
        };
        Ok(sample?.map(value))
    }

    /// Reads the last value like [`read`](Self::read), where it lies: on link `vbus`, a value of more than 256 bytes is
    /// in the sender's memory. It stays there until the port is used again. Its age is not measured.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read_in_place(&mut self) -> Result<Option<LentSample<'_>>, ReceiveError> {
        let (endpoint, bytes_max) = (&mut self.endpoint, self.value_bytes_max);
        endpoint.handle.process.check()?;
        let (statistics, notify) = (&endpoint.handle.statistics, endpoint.handle.notify);
        with_core!(&mut endpoint.core, core => {
            core.bring_in(notify)?;
            let place = core.newest();
            let now = statistics.latency.is_measured().then(|| core.now());
            let Some(place) = place else {
                return Ok(None);
            };
            let sample = core.lend(statistics, place, bytes_max)?;
            if let Some(sample) = &sample {
                count(statistics, sample.bytes.len(), sample.new, sample.overwritten);
                if let Some(now) = now.filter(|_| sample.new) {
                    statistics.latency.record(sample.arrival, now);
                }
            }
            Ok(sample)
        })
    }

    /// Reads the last value like [`read`](Self::read), and copies it into `buffer`, which must hold
    /// [`SamplingPort::value_bytes_max`]. The port is not borrowed.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn read_into(&mut self, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        check_buffer(buffer, self.value_bytes_max)?;
        let (endpoint, period) = (&mut self.endpoint, self.refresh_period);
        endpoint.handle.process.check()?;
        let (statistics, notify) = (&endpoint.handle.statistics, endpoint.handle.notify);
        with_core!(&mut endpoint.core, core => {
            core.bring_in(notify)?;
            let place = core.newest();
            let Some(place) = place else {
                return Ok(None);
            };
            let sample = core.take(statistics, place, buffer, period)?;
            if let Some(sample) = &sample {
                count_read(statistics, sample);
            }
            Ok(sample)
        })
    }

    pub(super) fn read_from_into(
        &mut self,
        source: Source,
        buffer: &mut [u8],
    ) -> Result<Option<Sample>, ReceiveError> {
        self.look(buffer)?;
        let is_single = self.is_single;
        let place = with_core!(&mut self.endpoint.core, core => match is_single {
            true => core.newest().filter(|place| core.source_of(*place) == Some(source)),
            false => core.place_of(source),
        });
        place.map_or(Ok(None), |place| self.take(place, buffer))
    }

    /// Reads the next value like [`next`](Self::next), and copies it into `buffer`, which must hold
    /// [`SamplingPort::value_bytes_max`]. The port is not borrowed.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn next_into(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<Sample>, ReceiveError> {
        let Some(deadline) = wait.deadline() else {
            self.look(buffer)?;
            return self.take_unread(buffer);
        };
        check_buffer(buffer, self.value_bytes_max)?;
        while self.wait_for_new(deadline)? {
            with_core!(&mut self.endpoint.core, core => core.refresh());
            if let Some(sample) = self.take_unread(buffer)? {
                return Ok(Some(sample));
            }
            // All were passed over.
        }
        Ok(None)
    }

    /// Takes the first value that was not read and is not passed over.
    fn take_unread(&mut self, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        while let Some(place) = self.first_unread() {
            if let Some(sample) = self.take(place, buffer)? {
                return Ok(Some(sample));
            }
        }
        Ok(None)
    }

    /// Whether there is a value that this port has not seen. One load for each source on a link that
    /// the kernel delivers for; on others, of what has been collected.
    #[inline]
    #[must_use]
    pub fn fresh(&self) -> bool {
        with_core!(&self.endpoint.core, core => core.fresh())
    }

    /// The sources whose values the port keeps, in no order. A port that keeps one value for all
    /// has at most the one who sent it.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        let any = &self.endpoint.core;
        let places = 0..with_core!(any, core => core.place_count());
        places.filter_map(move |place| with_core!(any, core => core.source_of(place)))
    }

    /// Makes messages of another type errors of receiving; otherwise they are passed over.
    pub(super) fn make_other_types_errors(&mut self) {
        if let AnyCore::Frames(frames) = &mut self.endpoint.core {
            frames.receiver().make_other_types_errors();
        }
    }

    /// Counts a value of another size than the port's type.
    pub(super) fn count_other_size(&self) {
        self.endpoint.handle.statistics.other_size.add(1);
    }

    /// Brings in what has arrived, for a read into `buffer`.
    #[inline]
    fn look(&mut self, buffer: &[u8]) -> Result<(), ReceiveError> {
        check_buffer(buffer, self.value_bytes_max)?;
        self.endpoint.handle.process.check()?;
        let notify = self.endpoint.handle.notify;
        with_core!(&mut self.endpoint.core, core => core.bring_in(notify))
    }

    fn wait_for_new(&mut self, deadline: Instant) -> Result<bool, ReceiveError> {
        self.endpoint.handle.process.check()?;
        let spinner = &mut self.endpoint.handle.spinner;
        let fresh = with_core!(&mut self.endpoint.core, core => {
            wait_for(core, spinner, deadline, |core| Ok(core.finds_new()?.then_some(())))
        })?;
        Ok(fresh.is_some())
    }

    #[inline]
    fn first_unread(&mut self) -> Option<usize> {
        with_core!(&mut self.endpoint.core, core => core.first_unread(self.is_single))
    }

    #[inline]
    fn take(&mut self, place: usize, buffer: &mut [u8]) -> Result<Option<Sample>, ReceiveError> {
        let (statistics, period) = (&self.endpoint.handle.statistics, self.refresh_period);
        let sample = with_core!(&mut self.endpoint.core, core => core.take(statistics, place, buffer, period))?;
        if let Some(sample) = &sample {
            count_read(statistics, sample);
        }
        Ok(sample)
    }
}

/// Counts a value that was read with its age.
#[inline(always)]
fn count_read(statistics: &Statistics, sample: &Sample) {
    count(statistics, sample.length, sample.new, sample.overwritten);
    if sample.new && statistics.latency.is_measured() {
        // The age was measured for the reader, at the same moment.
        statistics
            .latency
            .record(sample.arrival, sample.arrival + sample.age);
    }
}

#[inline(always)]
fn count(statistics: &Statistics, bytes: usize, is_new: bool, overwritten: u64) {
    let new = usize::from(is_new);
    statistics.received.add(new, new * bytes);
    statistics.overwritten.add(overwritten);
}
