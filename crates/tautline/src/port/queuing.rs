//! The queuing port: keeps every message, hands out the most urgent first.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId};
use tautline_proto::time::Instant;
use tautline_proto::wire::bundle::{self, Place, Steps};
use tautline_proto::wire::{
    FRAGMENT_BYTES, Header, MESSAGE_BYTES_MAX, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET,
};
use tautline_shm::layout::{CLASS_COUNT, RecordHead, SLOT_PAYLOAD_BYTES};
use tautline_shm::queue::{Consumer, Record};
use tautline_shm::region::{PortMemory, Shape};

use super::endpoint::{Endpoint, check_buffer};
use super::lent::{LentMessage, Loan};
use super::owner::PortOwner;
use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::limits::{DEPTH_DEFAULT, DEPTH_MAX, SPIN_DEFAULT};
use crate::link::{FramePort, PortHalf};
use crate::memory::MappedPort;
use crate::message::{Destination, LentBytes, Message, Outgoing};
use crate::policing::Policing;
use crate::restarts::Restarts;
use crate::statistics::Statistics;

/// Messages under way that a port of large messages can reassemble at once. Lower: two peers that
/// send large messages at the same time lose one. Higher: 64 KiB each.
const COLLECTORS: usize = 4;
/// How long a message in fragments may take. At 100 Mbit/s 64 KiB take 5.4 ms; ten times that.
const REASSEMBLY_LIMIT: Duration = Duration::from_millis(50);

/// Options of a queuing port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuingOptions {
    /// Slots in each of the eight classes: a power of two, 2 to [`DEPTH_MAX`]. A message takes one
    /// slot, a larger one a slot for each 1,408 bytes.
    pub depth: u32,
    /// Largest message, in bytes, up to 65,536. Above 1,484 the port takes buffers for reassembly, and
    /// a class must be deep enough for one whole message.
    pub message_bytes_max: usize,
    /// Time for which a receive until a deadline spins before it sleeps.
    pub spin: Duration,
    /// Limits beyond which frames are dropped on arrival; `None`: no limits.
    pub policing: Option<Policing>,
}

impl Default for QueuingOptions {
    fn default() -> Self {
        Self {
            depth: DEPTH_DEFAULT,
            message_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            spin: SPIN_DEFAULT,
            policing: None,
        }
    }
}

impl QueuingOptions {
    /// Checks the options against the limits above.
    ///
    /// # Errors
    /// [`PortError::BadDepth`], [`PortError::BadMessageSize`], [`PortError::BadPolicing`].
    pub fn check(&self) -> Result<(), PortError> {
        if let Some(policing) = self.policing {
            policing.check()?;
        }
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

/// A port that keeps every message, and hands out the most urgent first.
///
/// Eight classes, one for each priority, each of a fixed depth and first in, first out. A full class drops and
/// counts its further messages, and takes no room from the others.
#[derive(Debug)]
pub struct QueuingPort {
    endpoint: Endpoint,
    receiver: Receiver,
}

/// Receiving side of a port: takes messages out of its memory.
#[derive(Debug)]
struct Receiver {
    consumer: Consumer,
    /// How far the bundle at the head of each class has been taken apart.
    opened: [Steps; CLASS_COUNT],
    message_bytes_max: usize,
    /// Boxed: a port of small messages does without, and stays small itself.
    large: Option<Box<Large>>,
}

/// A message, and where it lies. Its place is the port's until the message is taken or lent.
struct Found {
    message: Message,
    at: FoundAt,
}

enum FoundAt {
    /// In the oldest slot of a class.
    Slot {
        class: usize,
        offset: usize,
        /// Whether the slot holds no more messages.
        is_last: bool,
    },
    /// Where its fragments were put together.
    Collector,
}

/// State that only a port of large messages needs.
#[derive(Debug)]
struct Large {
    reassembler: Reassembler,
    restarts: Restarts,
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
        node: &Arc<dyn PortOwner>,
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
            })
        });
        Ok(Self {
            endpoint: Endpoint::open(
                node,
                number,
                name,
                (shape, options.message_bytes_max),
                options.spin,
                options.policing,
            )?,
            receiver: Receiver {
                consumer: Consumer::new(options.depth as usize),
                opened: [Steps::default(); CLASS_COUNT],
                message_bytes_max: options.message_bytes_max,
                large,
            },
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

    /// Sends messages in their order, with one system call for each 32 frames where the link can (`sendmmsg`).
    /// How many it took: all, unless the driver's transmit queue is full; the rest may be sent again
    /// later. What was merged before is sent first.
    ///
    /// # Errors
    /// [`SendError`] if it took none.
    pub fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.endpoint.send_batch(batch)
    }

    /// Merges small messages into one frame. The frame leaves when it is full, when a message to another
    /// destination or of another priority comes, or when [`QueuingPort::flush`] is called. There is no timer:
    /// the last messages wait for a flush. A message too large to be merged is sent alone, as by
    /// [`QueuingPort::send`]. The receiver gets the messages one by one; it must be a queuing port that knows
    /// bundles (`docs/wire.md`).
    ///
    /// ```
    /// # use tautline::{Instant, Node, NodeConfig, Priority, QueuingOptions, neighbour};
    /// # let here = [127, 0, 0, 1].into();
    /// # let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("there", here))?)?;
    /// # let mut sender = node.queuing_port(2021.try_into()?, &QueuingOptions::default())?;
    /// # let mut receiver = node.queuing_port(2022.try_into()?, &QueuingOptions::default())?;
    /// let to = sender.destination("there", receiver.number())?;
    /// for joint in 0..6_u8 {
    ///     sender.merge(to, Priority::NORMAL, &[joint; 16])?;
    /// }
    /// sender.flush()?;                                         // one frame
    /// # let mut buffer = [0; 1484];
    /// for joint in 0..6 {
    ///     let message = receiver.receive_until(Instant::FAR_FUTURE, &mut buffer)?;
    ///     assert_eq!(buffer[..message.expect("no deadline").length], [joint; 16]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError`] if a frame had to be sent first and could not: the frame stays, and this message was not
    /// taken. Try again, or drop the merged messages with the port.
    #[inline]
    pub fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.endpoint.merge(to, priority, message)
    }

    /// Sends what is merged, if there is any.
    ///
    /// # Errors
    /// [`SendError`]; it stays merged.
    pub fn flush(&mut self) -> Result<(), SendError> {
        self.endpoint.flush()
    }

    /// Lends the place of the next message of `length` bytes, to be filled and sent without being copied in
    /// this process: a slot that the receiver looks into on link `vbus`, else a buffer of the node's pool
    /// (`[send_pool]` in the configuration).
    ///
    /// # Errors
    /// [`SendError::PoolExhausted`] if all buffers of that size are lent; otherwise as
    /// [`QueuingPort::send`].
    #[inline]
    pub fn lend(
        &mut self,
        to: Destination,
        priority: Priority,
        length: usize,
    ) -> Result<Loan<'_>, SendError> {
        self.endpoint.lend(to, priority, length)
    }

    /// Lends the most urgent message, if there is one, where it lies. Dropping the view gives the slot back;
    /// until then the slot is not written, and counts as taken in its class. Never waits.
    ///
    /// ```
    /// # use tautline::{Instant, Node, NodeConfig, Priority, QueuingOptions, neighbour};
    /// # let here = [127, 0, 0, 1].into();
    /// # let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("there", here))?)?;
    /// # let mut sender = node.queuing_port(2023.try_into()?, &QueuingOptions::default())?;
    /// # let mut receiver = node.queuing_port(2024.try_into()?, &QueuingOptions::default())?;
    /// let to = sender.destination("there", receiver.number())?;
    /// let mut loan = sender.lend(to, Priority::NORMAL, 5)?;
    /// loan.copy_from_slice(b"ready");
    /// loan.send()?;
    /// let message = receiver.receive_lent_until(Instant::FAR_FUTURE)?.expect("no deadline");
    /// assert_eq!(message.bytes().slice(), Some(&b"ready"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive_lent(&mut self) -> Result<Option<LentMessage<'_>>, ReceiveError> {
        let Self { endpoint, receiver } = self;
        let (statistics, notify) = (&endpoint.statistics, endpoint.notify);
        match &mut endpoint.link {
            PortHalf::Bus(bus) => match bus.find(notify) {
                Some(found) => {
                    statistics.received.add(1);
                    Ok(Some(LentMessage::on_bus(bus, found)))
                }
                None => Ok(None),
            },
            PortHalf::Frames(frames) => receiver.lend_next(frames, statistics, notify),
        }
    }

    /// As [`QueuingPort::receive_lent`]; waits for a message until `deadline`, spinning first and then
    /// sleeping.
    ///
    /// # Errors
    /// As [`QueuingPort::receive_lent`].
    pub fn receive_lent_until(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<LentMessage<'_>>, ReceiveError> {
        let Self { endpoint, receiver } = self;
        if let PortHalf::Bus(_) = endpoint.link {
            let found = endpoint.wait_for(deadline, Endpoint::find_on_bus)?;
            return Ok(found.and_then(|found| endpoint.lend_on_bus(found)));
        }
        let found = endpoint.wait_for(deadline, |endpoint| match &mut endpoint.link {
            PortHalf::Frames(frames) => receiver.seek(frames, &endpoint.statistics),
            PortHalf::Bus(_) => Ok(None),
        })?;
        Ok(found.and_then(|found| match &endpoint.link {
            PortHalf::Frames(frames) => receiver.lend(frames, &endpoint.statistics, found),
            PortHalf::Bus(_) => None,
        }))
    }

    /// Copies the most urgent message, if there is one, into `buffer`, which must hold
    /// [`QueuingPort::message_bytes_max`]. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Message>, ReceiveError> {
        check_buffer(buffer, self.receiver.message_bytes_max)?;
        let Self { endpoint, receiver } = self;
        let (statistics, notify) = (&endpoint.statistics, endpoint.notify);
        match &mut endpoint.link {
            PortHalf::Bus(bus) => match bus.find(notify) {
                Some(found) => {
                    statistics.received.add(1);
                    Ok(Some(bus.take(found, buffer)))
                }
                None => Ok(None),
            },
            PortHalf::Frames(frames) => receiver.take_next(frames, statistics, notify, buffer),
        }
    }

    /// Copies the most urgent message into `buffer`; waits for one until `deadline`, spinning first and then
    /// sleeping. `None` when the deadline has come. [`Instant::FAR_FUTURE`] waits for ever.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        check_buffer(buffer, self.receiver.message_bytes_max)?;
        let Self { endpoint, receiver } = self;
        if let PortHalf::Bus(_) = endpoint.link {
            let found = endpoint.wait_for(deadline, Endpoint::find_on_bus)?;
            return Ok(found.and_then(|found| endpoint.take_on_bus(found, buffer)));
        }
        endpoint.wait_for(deadline, |endpoint| match &mut endpoint.link {
            PortHalf::Frames(frames) => receiver.look(frames, &endpoint.statistics, buffer),
            PortHalf::Bus(_) => Ok(None),
        })
    }

    /// Bytes of the largest message that the port can hold.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.receiver.message_bytes_max
    }

    /// A descriptor for poll, select or epoll; `None` on a link that has none.
    ///
    /// It becomes readable when a message comes after a [`QueuingPort::receive`] that returned
    /// `None`. So: receive until there is nothing, then wait. From the first call on, each receive that
    /// finds nothing arms the descriptor, which costs it a little.
    pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.endpoint.descriptor()
    }
}

impl Receiver {
    /// The most urgent message, copied into `buffer`; if there is none and `notify` is set, the descriptor is armed.
    /// Never inline: beside it, the way over a bus would go through memory.
    #[inline(never)]
    fn take_next(
        &mut self,
        frames: &mut FramePort,
        statistics: &Statistics,
        notify: bool,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        if let Some(message) = self.look(frames, statistics, buffer)? {
            return Ok(Some(message));
        }
        if !notify {
            return Ok(None);
        }
        frames.link.arm();
        self.look(frames, statistics, buffer)
    }

    /// The same where it lies.
    #[inline(never)]
    fn lend_next<'p>(
        &'p mut self,
        frames: &'p mut FramePort,
        statistics: &Statistics,
        notify: bool,
    ) -> Result<Option<LentMessage<'p>>, ReceiveError> {
        let mut found = self.seek(frames, statistics)?;
        if found.is_none() && notify {
            frames.link.arm();
            found = self.seek(frames, statistics)?;
        }
        Ok(found.and_then(|found| self.lend(frames, statistics, found)))
    }

    /// Brings in what has arrived, and takes the most urgent message.
    #[inline]
    fn look(
        &mut self,
        frames: &mut FramePort,
        statistics: &Statistics,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        let found = self.seek(frames, statistics)?;
        let message = found.and_then(|found| self.take(&frames.memory, found, buffer));
        statistics.received.add(u64::from(message.is_some()));
        Ok(message)
    }

    /// Brings in what has arrived, and looks for the most urgent message.
    #[inline]
    fn seek(
        &mut self,
        frames: &mut FramePort,
        statistics: &Statistics,
    ) -> Result<Option<Found>, ReceiveError> {
        frames.link.collect()?;
        Ok(self.find(&frames.memory, statistics))
    }

    /// Looks at records until one is or completes a message. Bounded by the slots of the port.
    #[inline]
    fn find(&mut self, memory: &MappedPort, statistics: &Statistics) -> Option<Found> {
        let port = memory.port();
        for _ in 0..port.slots.len() {
            let record = self.consumer.peek(port.slots)?;
            let found = self.found_in(statistics, &record);
            if !matches!(found, Some((_, FoundAt::Slot { .. }))) {
                self.consumer.release(port.control, record);
            }
            if let Some((message, at)) = found {
                return Some(Found { message, at });
            }
        }
        None
    }

    /// The next message of a record; `None` if the record is done with.
    #[inline]
    fn found_in(
        &mut self,
        statistics: &Statistics,
        record: &Record<'_>,
    ) -> Option<(Message, FoundAt)> {
        let head = record.slot.head();
        let class = record.class();
        let (address, header) = match (
            Address::from_word(head.source),
            Header::from_bytes(&head.header),
        ) {
            (Some(address), Ok(header)) if usize::from(header.length) <= SLOT_PAYLOAD_BYTES => {
                (address, header)
            }
            // A slot that the demux claimed and could not fill, or that somebody scribbled on.
            _ => {
                statistics.void.add(1);
                return None;
            }
        };
        let (length, at) = if header.is_bundle() {
            let steps = &mut self.opened[class];
            let place = unpack(statistics, record, &header, steps, self.message_bytes_max);
            let is_last = place.is_none() || steps.is_at_end();
            if is_last {
                *steps = Steps::default();
            }
            // Otherwise the record stays, and its class with it, until all are taken.
            let Place { offset, length } = place?;
            let at = FoundAt::Slot {
                class,
                offset,
                is_last,
            };
            (length, at)
        } else {
            if let Some(large) = &mut self.large {
                large.notice(head.source, &header);
            }
            let length = usize::from(header.length);
            if header.is_whole() && length <= self.message_bytes_max {
                let at = FoundAt::Slot {
                    class,
                    offset: 0,
                    is_last: true,
                };
                (length, at)
            } else {
                let large = self.large.as_deref_mut();
                let length = reassemble(statistics, large, record, head, &header)?;
                (length, FoundAt::Collector)
            }
        };
        Some((message_of(address, &header, head, length), at))
    }

    /// Copies a message that was found into `buffer`, and gives its place back.
    #[inline]
    fn take(&mut self, memory: &MappedPort, found: Found, buffer: &mut [u8]) -> Option<Message> {
        let Found { message, at } = found;
        let bytes = &mut buffer[..message.length];
        match at {
            FoundAt::Slot {
                class,
                offset,
                is_last,
            } => {
                let port = memory.port();
                let record = self.consumer.oldest(port.slots, class)?;
                record.slot.read_payload_at(offset, bytes);
                if is_last {
                    self.consumer.release(port.control, record);
                }
            }
            FoundAt::Collector => bytes.copy_from_slice(self.collected()?),
        }
        Some(message)
    }

    /// Lends a message that was found.
    #[inline]
    fn lend<'p>(
        &'p mut self,
        frames: &'p FramePort,
        statistics: &Statistics,
        found: Found,
    ) -> Option<LentMessage<'p>> {
        let Found { message, at } = found;
        let lent = match at {
            FoundAt::Slot {
                class,
                offset,
                is_last,
            } => {
                let port = frames.memory.port();
                let record = self.consumer.oldest(port.slots, class)?;
                let rest = (offset, is_last);
                LentMessage::in_slot(&mut self.consumer, port.control, record, rest, &message)
            }
            FoundAt::Collector => LentMessage::collected(self.collected()?, &message),
        };
        statistics.received.add(1);
        Some(lent)
    }

    /// The message that was put together last.
    fn collected(&self) -> Option<&[u8]> {
        self.large.as_ref()?.reassembler.latest()
    }
}

#[inline]
fn message_of(address: Address, header: &Header, head: RecordHead, length: usize) -> Message {
    Message {
        length,
        priority: header.priority,
        source: Source {
            address,
            port: header.source,
        },
        arrival: Instant::from_nanos(head.arrival_ns),
        sequence: header.message_sequence(),
    }
}

/// Takes the next message out of a bundle that lies in its record; its place. `None` if there is none
/// that the port takes: then the record is done with. Bounded by the bytes of the bundle.
fn unpack(
    statistics: &Statistics,
    record: &Record<'_>,
    header: &Header,
    steps: &mut Steps,
    message_bytes_max: usize,
) -> Option<Place> {
    let read = |offset: usize| {
        let mut field = [0; bundle::LENGTH_BYTES];
        record.slot.read_payload_at(offset, &mut field);
        Some(u16::from_be_bytes(field))
    };
    if steps.is_at_start() {
        *steps = Steps::new(usize::from(header.length));
        // All or nothing: a bundle that does not end where it should is dropped whole.
        let mut ahead = *steps;
        while let Some(found) = ahead.step(read).transpose() {
            if found.is_err() {
                statistics.bad_bundles.add(1);
                return None;
            }
        }
    }
    while let Ok(Some(place)) = steps.step(read) {
        if place.length <= message_bytes_max {
            return Some(place);
        }
        statistics.too_large.add(1);
    }
    None
}

/// Adds a frame to its message; the message's length if that completes it.
#[cold]
fn reassemble(
    statistics: &Statistics,
    large: Option<&mut Large>,
    record: &Record<'_>,
    head: RecordHead,
    header: &Header,
) -> Option<usize> {
    let Some(large) = large else {
        statistics.too_large.add(1);
        return None;
    };
    let part = LentBytes::of_slot(record.slot, 0, usize::from(header.length)).slice()?;
    let now = Instant::from_nanos(head.arrival_ns);
    let outcome = large
        .reassembler
        .push(now, SourceId(head.source), header, part);
    let length = match outcome {
        Outcome::Complete(message) => Some(message.len()),
        _ => None,
    };
    statistics.reassembly(large.reassembler.counters());
    length
}
