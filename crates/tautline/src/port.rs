//! Ports: what an application holds. [`QueuingPort`] keeps every message and hands out the most
//! urgent first; [`SamplingPort`] keeps the last value only. Both send.
//!
//! A port belongs to one thread at a time (`&mut self`); it can be moved to another. Nothing here
//! allocates, locks or logs after the port is open.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId, fragments};
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    FRAGMENT_BYTES, Header, MESSAGE_BYTES_MAX, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET,
};
use tautline_shm::queue::Consumer;
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::sample::Reader;

use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::{ArrivalClock, PortLink, Route};
use crate::node::NodeInner;
use crate::restarts::Restarts;
use crate::statistics::{Registration, Statistics};

/// Slots in each of the eight classes of a queuing port, unless configured. 64 full frames at
/// 1 Gbit/s are 0.8 ms of line rate: what a reader may sleep through. Eight classes of 64 slots take
/// 768 KiB.
pub const DEPTH_DEFAULT: u32 = 64;
/// Most slots in a class. Higher: one port may pin more than 48 MiB.
pub const DEPTH_MAX: u32 = 4096;
/// Destinations of one port. Lower: a publisher cannot reach a fleet. Higher: memory of every port
/// grows (80 bytes each).
pub const DESTINATIONS_MAX: usize = 64;
/// How long a receive until a deadline spins before it sleeps, unless configured. About what going
/// to sleep and being woken costs, so a message that comes soon is not slowed by it, and a thread
/// that waits for long burns no more than that.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Messages under way that a port of large messages can reassemble at once. Lower: two peers that
/// send large messages at the same time lose one. Higher: 64 KiB each.
const COLLECTORS: usize = 4;
/// How long a message in fragments may take. At 100 Mbit/s 64 KiB take 5.4 ms; ten times that.
const REASSEMBLY_LIMIT: Duration = Duration::from_millis(50);
/// How long a spinning thread keeps the kernel's receive processing off its CPU at most. Lower: what
/// arrives soon, as most does, is found later by the call's 0.2 µs. Higher: what was put off waits for longer.
const LET_IN_INTERVAL: Duration = Duration::from_micros(10);
/// Looks between two readings of the clock while spinning: a look costs a few nanoseconds, a
/// reading about twenty-five.
const LOOKS_PER_CLOCK: u32 = 16;
/// Looks between two pauses, which leave the core to its sibling but take as long as several looks.
const LOOKS_PER_PAUSE: u32 = 8;

/// How a queuing port is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuingOptions {
    /// Slots in each of the eight classes: a power of two, 2 to [`DEPTH_MAX`]. A message takes one
    /// slot, a larger one a slot for each 1,408 bytes.
    pub depth: u32,
    /// Largest message, in bytes, up to 65,536. Above 1,484 the port takes buffers for reassembly, and
    /// a class must be deep enough for one whole message.
    pub message_bytes_max: usize,
    /// How long a receive until a deadline spins before it sleeps.
    pub spin: Duration,
}

impl Default for QueuingOptions {
    fn default() -> Self {
        Self {
            depth: DEPTH_DEFAULT,
            message_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            spin: SPIN_DEFAULT,
        }
    }
}

impl QueuingOptions {
    /// Checks the options against the limits above.
    ///
    /// # Errors
    /// [`PortError::BadDepth`], [`PortError::BadMessageSize`].
    pub fn check(&self) -> Result<(), PortError> {
        if !self.depth.is_power_of_two() || !(2..=DEPTH_MAX).contains(&self.depth) {
            return Err(PortError::BadDepth { depth: self.depth });
        }
        let bad = |why| PortError::BadMessageSize {
            bytes: self.message_bytes_max,
            why,
        };
        if !(1..=MESSAGE_BYTES_MAX).contains(&self.message_bytes_max) {
            return Err(bad("1 to 65,536 bytes"));
        }
        if self.is_fragmenting()
            && self.message_bytes_max.div_ceil(FRAGMENT_BYTES) > self.depth as usize
        {
            return Err(bad(
                "a class must have a slot for each 1,408 bytes; raise the depth",
            ));
        }
        Ok(())
    }

    fn is_fragmenting(&self) -> bool {
        self.message_bytes_max > WHOLE_BYTES_MAX_ETHERNET
    }
}

/// How a sampling port is to be. Its values are of one frame, 1,484 bytes (1,456 in the UDP form).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingOptions {
    /// How often a new value is due. A value older than this is no longer valid.
    pub refresh_period: Duration,
    /// How long a wait for a new value spins before it sleeps.
    pub spin: Duration,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            refresh_period: Duration::from_secs(1),
            spin: SPIN_DEFAULT,
        }
    }
}

/// A message that was received; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes of the message, from the start of the buffer.
    pub length: usize,
    /// Its priority.
    pub priority: Priority,
    /// Who sent it.
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

/// A destination of one port: [`QueuingPort::destination`], [`SamplingPort::destination`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination(usize);

/// The way to one port of one peer, and the numbering of what went there.
#[derive(Debug)]
struct Flow {
    name: String,
    to: PortNumber,
    route: Route,
    sequence: u32,
}

impl Flow {
    /// Sends one frame under the flow's next number. A frame that was not sent has used its number
    /// too: the peer counts it as lost, which it is. A number used twice would pass for a duplicate.
    #[inline]
    fn send(
        &mut self,
        link: &mut dyn PortLink,
        header: Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let header = Header {
            sequence: self.sequence,
            ..header
        };
        self.sequence = self.sequence.wrapping_add(1);
        link.send(&mut self.route, &header, payload)
    }
}

/// What both kinds of port have: a number, a link, destinations.
#[derive(Debug)]
struct Endpoint {
    number: PortNumber,
    link: Box<dyn PortLink>,
    flows: Vec<Flow>,
    statistics: Arc<Statistics>,
    spin: Duration,
    /// Whether a receive that finds nothing arms the descriptor.
    notify: bool,
    _registration: Registration,
    // Last: the demux must outlive the port's place in it.
    node: Arc<NodeInner>,
}

impl Endpoint {
    fn open(
        node: &Arc<NodeInner>,
        number: PortNumber,
        name: Option<&str>,
        shape: Shape,
        spin: Duration,
    ) -> Result<Self, PortError> {
        node.check_namespace()?;
        let reservation = node.ports.reserve(number)?;
        let link = node.link.open_port(number, shape)?;
        let spin = match node.link.capabilities().arrival_clock {
            // Spinning does not move virtual time.
            ArrivalClock::Virtual => Duration::ZERO,
            _ => spin,
        };
        let statistics = Arc::new(Statistics::default());
        let registration = reservation.fill(name, link.memory(), &statistics);
        Ok(Self {
            number,
            link,
            flows: Vec::with_capacity(DESTINATIONS_MAX),
            statistics,
            spin,
            notify: false,
            _registration: registration,
            node: Arc::clone(node),
        })
    }

    fn destination(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        if let Some(known) = self.known(name, to) {
            return Ok(known);
        }
        let neighbours = &self.node.neighbours;
        let neighbour = neighbours
            .by_name(name)
            .and_then(|index| neighbours.get(index))
            .ok_or_else(|| PortError::PeerUnknown {
                name: name.to_owned(),
                known: neighbours
                    .iter()
                    .map(|(_, peer)| peer.name.clone())
                    .collect(),
            })?;
        let route = self.node.link.route(neighbour, to, self.number)?;
        self.add(name.to_owned(), to, route)
    }

    fn reply_to(&mut self, source: Source) -> Result<Destination, PortError> {
        let name = source.address.to_string();
        if let Some(known) = self.known(&name, source.port) {
            return Ok(known);
        }
        let neighbour = self
            .node
            .neighbour_of(source.address)
            .or_else(|| self.link.neighbour_of(source))
            .ok_or_else(|| PortError::PeerUnknown {
                name: name.clone(),
                known: Vec::new(),
            })?;
        let route = self.node.link.route(&neighbour, source.port, self.number)?;
        self.add(name, source.port, route)
    }

    fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        let position = self
            .flows
            .iter()
            .position(|flow| flow.to == to && flow.name == name);
        position.map(Destination)
    }

    fn add(
        &mut self,
        name: String,
        to: PortNumber,
        route: Route,
    ) -> Result<Destination, PortError> {
        if self.flows.len() == DESTINATIONS_MAX {
            return Err(PortError::TooManyDestinations);
        }
        self.flows.push(Flow {
            name,
            to,
            route,
            sequence: 0,
        });
        Ok(Destination(self.flows.len() - 1))
    }

    #[inline]
    fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let result = self.send_frames(to, priority, message);
        match result {
            Ok(()) => self.statistics.sent.add(1),
            Err(_) => self.statistics.send_errors.add(1),
        }
        result
    }

    #[inline]
    fn send_frames(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let flow = &mut self.flows[to.0];
        let whole_bytes_max = flow.route.whole_bytes_max();
        if message.len() <= whole_bytes_max {
            let header = Header::whole(flow.to, self.number, priority, message.len() as u16, 0);
            return flow.send(self.link.as_mut(), header, message);
        }
        let parts = fragments(message.len(), whole_bytes_max).map_err(|too_large| {
            SendError::MessageTooLarge {
                bytes: too_large.message_bytes,
            }
        })?;
        for part in parts {
            let header = Header {
                fragment_index: part.index,
                fragment_count: part.count,
                ..Header::whole(flow.to, self.number, priority, part.length, 0)
            };
            flow.send(self.link.as_mut(), header, &message[part.range()])?;
        }
        Ok(())
    }

    /// From the first call on, a look that finds nothing arms the descriptor. Later calls must not:
    /// arming forgets rings that came before it.
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.notify {
            self.notify = true;
            self.link.arm();
        }
        self.link.descriptor()
    }

    /// Repeats `look` until it finds something or the deadline has come: spins first, then sleeps.
    fn wait_for<T>(
        &mut self,
        deadline: Instant,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        let started = self.link.now();
        let spin_until = started.checked_add(self.spin).unwrap_or(deadline);
        let mut let_in_at = started + LET_IN_INTERVAL;
        loop {
            for count in 0..LOOKS_PER_CLOCK {
                if let Some(found) = look(self)? {
                    return Ok(Some(found));
                }
                if count % LOOKS_PER_PAUSE == 0 {
                    std::hint::spin_loop();
                }
            }
            let now = self.link.now();
            if now >= deadline {
                return Ok(None);
            }
            if now < spin_until {
                if now >= let_in_at {
                    self.link.let_kernel_in();
                    let_in_at = now + LET_IN_INTERVAL;
                }
                continue;
            }
            self.link.arm();
            if let Some(found) = look(self)? {
                return Ok(Some(found));
            }
            let timeout = (deadline != Instant::FAR_FUTURE)
                .then(|| deadline.saturating_duration_since(self.link.now()));
            self.link.wait(timeout)?;
        }
    }
}

/// Whether `buffer` can hold any message of the port.
#[inline]
fn check_buffer(buffer: &[u8], needed: usize) -> Result<(), ReceiveError> {
    if buffer.len() < needed {
        return Err(ReceiveError::BufferTooSmall {
            given: buffer.len(),
            needed,
        });
    }
    Ok(())
}

/// A port that keeps every message, and hands out the most urgent first.
///
/// Eight classes, one for each priority, each of a fixed depth and first in, first out. A full
/// class drops what comes for it, counts that, and takes nothing from the others.
#[derive(Debug)]
pub struct QueuingPort {
    endpoint: Endpoint,
    consumer: Consumer,
    message_bytes_max: usize,
    /// Boxed: a port of small messages does without, and stays small itself.
    large: Option<Box<Large>>,
}

/// What only a port of large messages needs.
#[derive(Debug)]
struct Large {
    reassembler: Reassembler,
    restarts: Restarts,
    /// One frame's payload on its way from the port's memory into a collector.
    part: Box<[u8; WHOLE_BYTES_MAX_ETHERNET]>,
}

impl Large {
    /// Sees every frame before it is used: a sender that began anew numbers its messages as the
    /// old ones, and must not be mixed up with them.
    fn notice(&mut self, source: u64, header: &Header) {
        if self.restarts.begins_anew(source, header) {
            self.reassembler
                .forget_flow(SourceId(source), header.source, header.destination);
        }
    }
}

impl QueuingPort {
    pub(crate) fn open(
        node: &Arc<NodeInner>,
        number: PortNumber,
        name: Option<&str>,
        options: &QueuingOptions,
    ) -> Result<Self, PortError> {
        options.check()?;
        let shape = Shape::Queuing {
            depth: options.depth,
        };
        let large = options.is_fragmenting().then(|| {
            Box::new(Large {
                reassembler: Reassembler::new(ReassemblerConfig {
                    collector_count: COLLECTORS,
                    message_bytes_max: options.message_bytes_max,
                    time_limit: REASSEMBLY_LIMIT,
                }),
                restarts: Restarts::default(),
                part: Box::new([0; WHOLE_BYTES_MAX_ETHERNET]),
            })
        });
        Ok(Self {
            endpoint: Endpoint::open(node, number, name, shape, options.spin)?,
            consumer: Consumer::new(options.depth as usize),
            message_bytes_max: options.message_bytes_max,
            large,
        })
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.endpoint.number
    }

    /// Resolves a neighbour's port. Not for the hot path; the same pair gives the same destination.
    ///
    /// # Errors
    /// [`PortError::PeerUnknown`], [`PortError::NeighbourIncomplete`],
    /// [`PortError::TooManyDestinations`].
    pub fn destination(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        self.endpoint.destination(name, to)
    }

    /// Resolves the sender of a message, to answer it. The first call for a sender is not for the
    /// hot path.
    ///
    /// # Errors
    /// As [`QueuingPort::destination`].
    pub fn reply_to(&mut self, source: Source) -> Result<Destination, PortError> {
        self.endpoint.reply_to(source)
    }

    /// Sends a message: one system call a frame; never waits.
    ///
    /// # Errors
    /// [`SendError`]. Of a message in fragments, some may have been sent; the peer drops them.
    #[inline]
    pub fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.endpoint.send(to, priority, message)
    }

    /// The most urgent message, if there is one, into `buffer`, which must hold
    /// [`QueuingPort::message_bytes_max`]. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Message>, ReceiveError> {
        check_buffer(buffer, self.message_bytes_max)?;
        self.endpoint.link.collect()?;
        if let Some(message) = self.take(buffer) {
            return Ok(Some(message));
        }
        if !self.endpoint.notify {
            return Ok(None);
        }
        self.endpoint.link.arm();
        self.endpoint.link.collect()?;
        Ok(self.take(buffer))
    }

    /// The most urgent message; waits for one until `deadline`, spinning first and then sleeping.
    /// `None` when the deadline has come. [`Instant::FAR_FUTURE`] waits for ever.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        check_buffer(buffer, self.message_bytes_max)?;
        let Self {
            endpoint,
            consumer,
            large,
            message_bytes_max,
        } = self;
        endpoint.wait_for(deadline, |endpoint| {
            endpoint.link.collect()?;
            Ok(take(endpoint, consumer, large, *message_bytes_max, buffer))
        })
    }

    /// Bytes of the largest message that the port can hold.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// A descriptor for poll, select or epoll; `None` on a link that has none.
    ///
    /// It becomes readable when a message comes after a [`QueuingPort::receive`] that returned
    /// `None`. So: receive until there is nothing, then wait. From the first call on, each receive that
    /// finds nothing arms the descriptor, which costs it a little.
    pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.endpoint.descriptor()
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> Option<Message> {
        take(
            &self.endpoint,
            &mut self.consumer,
            &mut self.large,
            self.message_bytes_max,
            buffer,
        )
    }
}

/// Takes records until one completes a message. Bounded by the slots of the port.
#[inline]
fn take(
    endpoint: &Endpoint,
    consumer: &mut Consumer,
    large: &mut Option<Box<Large>>,
    message_bytes_max: usize,
    buffer: &mut [u8],
) -> Option<Message> {
    let port = endpoint.link.memory().port();
    for _ in 0..port.slots.len() {
        let record = consumer.peek(port.slots)?;
        let head = record.slot.head();
        let source = Address::from_word(head.source);
        let header = Header::from_bytes(&head.header);
        let message = match (source, header) {
            (Some(address), Ok(header)) => {
                if let Some(large) = large {
                    large.notice(head.source, &header);
                }
                let source = Source {
                    address,
                    port: header.source,
                };
                let length = usize::from(header.length);
                let length = if header.is_whole() && length <= message_bytes_max {
                    record.slot.read_payload(&mut buffer[..length]);
                    Some(length)
                } else {
                    reassemble(
                        endpoint,
                        large.as_deref_mut(),
                        &record,
                        head,
                        &header,
                        buffer,
                    )
                };
                length.map(|length| Message {
                    length,
                    priority: header.priority,
                    source,
                    arrival: Instant::from_nanos(head.arrival_ns),
                    sequence: header.message_sequence(),
                })
            }
            // A slot that the demux claimed and could not fill, or that somebody scribbled on.
            _ => {
                endpoint.statistics.void.add(1);
                None
            }
        };
        consumer.release(port.control, record);
        if message.is_some() {
            endpoint.statistics.received.add(1);
            return message;
        }
    }
    None
}

/// Adds a frame to its message; the message's length if that completes it.
#[cold]
fn reassemble(
    endpoint: &Endpoint,
    large: Option<&mut Large>,
    record: &tautline_shm::queue::Record<'_>,
    head: tautline_shm::layout::RecordHead,
    header: &Header,
    buffer: &mut [u8],
) -> Option<usize> {
    let Some(large) = large else {
        endpoint.statistics.too_large.add(1);
        return None;
    };
    let part = &mut large.part[..usize::from(header.length)];
    record.slot.read_payload(part);
    let now = Instant::from_nanos(head.arrival_ns);
    let outcome = large
        .reassembler
        .push(now, SourceId(head.source), header, part);
    let length = match outcome {
        Outcome::Complete(message) => {
            buffer[..message.len()].copy_from_slice(message);
            Some(message.len())
        }
        _ => None,
    };
    endpoint.statistics.reassembly(large.reassembler.counters());
    length
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
        Ok(Self {
            endpoint: Endpoint::open(node, number, name, Shape::Sampling, options.spin)?,
            reader: Reader::new(),
            refresh_period: options.refresh_period,
        })
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.endpoint.number
    }

    /// As [`QueuingPort::destination`].
    ///
    /// # Errors
    /// As [`QueuingPort::destination`].
    pub fn destination(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        self.endpoint.destination(name, to)
    }

    /// As [`QueuingPort::reply_to`].
    ///
    /// # Errors
    /// As [`QueuingPort::destination`].
    pub fn reply_to(&mut self, source: Source) -> Result<Destination, PortError> {
        self.endpoint.reply_to(source)
    }

    /// As [`QueuingPort::send`]. A peer's sampling port takes values of one frame only.
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
        if self.endpoint.notify && !Reader::fresh(self.endpoint.link.memory().port().control) {
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
        let fresh = self.endpoint.wait_for(deadline, |endpoint| {
            endpoint.link.collect()?;
            let control = endpoint.link.memory().port().control;
            Ok(Reader::fresh(control).then_some(()))
        })?;
        Ok(fresh.and_then(|()| self.take(buffer)))
    }

    /// Whether there is a value that this port has not seen. One load on a link that the kernel
    /// delivers for; on others, what has been collected.
    #[inline]
    #[must_use]
    pub fn fresh(&self) -> bool {
        Reader::fresh(self.endpoint.link.memory().port().control)
    }

    /// As [`QueuingPort::descriptor`]: readable when a value comes after a [`SamplingPort::read`]
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
