//! The queuing port: keeps every message, hands out the most urgent first.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId};
use tautline_proto::time::Instant;
use tautline_proto::wire::bundle::{self, Steps};
use tautline_proto::wire::{
    FRAGMENT_BYTES, Header, MESSAGE_BYTES_MAX, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET,
};
use tautline_shm::layout::{CLASS_COUNT, RecordHead};
use tautline_shm::queue::{Consumer, Record};
use tautline_shm::region::{PortMemory, Shape};

use super::endpoint::{Endpoint, check_buffer};
use super::lent::{LentMessage, Loan};
use super::{DEPTH_DEFAULT, DEPTH_MAX, Destination, Outgoing, SPIN_DEFAULT};
use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::PortHalf;
use crate::memory::MappedPort;
use crate::node::NodeInner;
use crate::policing::Policing;
use crate::restarts::Restarts;
use crate::statistics::Statistics;

/// Messages under way that a port of large messages can reassemble at once. Lower: two peers that
/// send large messages at the same time lose one. Higher: 64 KiB each.
const COLLECTORS: usize = 4;
/// How long a message in fragments may take. At 100 Mbit/s 64 KiB take 5.4 ms; ten times that.
const REASSEMBLY_LIMIT: Duration = Duration::from_millis(50);

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
    /// How much the port takes before the rest is dropped at its door; `None`: everything.
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

/// A port that keeps every message, and hands out the most urgent first.
///
/// Eight classes, one for each priority, each of a fixed depth and first in, first out. A full
/// class drops what comes for it, counts that, and takes nothing from the others.
#[derive(Debug)]
pub struct QueuingPort {
    endpoint: Endpoint,
    consumer: Consumer,
    /// How far the bundle at the head of each class has been taken apart.
    opened: [Steps; CLASS_COUNT],
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
            endpoint: Endpoint::open(
                node,
                number,
                name,
                (shape, options.message_bytes_max),
                options.spin,
                options.policing,
            )?,
            consumer: Consumer::new(options.depth as usize),
            opened: [Steps::default(); CLASS_COUNT],
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

    /// Sends messages in their order, with one system call for each 32 frames where the link can (`sendmmsg`).
    /// How many it took: all, unless the driver's transmit queue is full; the rest may be sent again
    /// later. What was merged before is sent first.
    ///
    /// # Errors
    /// [`SendError`] if it took none.
    pub fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.endpoint.send_batch(batch)
    }

    /// Merges small messages into one frame: keeps this one until the frame is full, or a message to
    /// another place or of another priority comes, or [`QueuingPort::flush`] is called. There is no
    /// timer: what is merged last waits until somebody flushes. A message too large for that is sent
    /// alone, as [`QueuingPort::send`] does it. The receiver gets the messages one by one; it must be a
    /// queuing port that knows bundles (`docs/wire.md`).
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
    /// [`SendError`] if a frame had to be sent first and could not: it stays, and this message has not
    /// been taken. Try again, or give up what is merged with the port.
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

    /// Lends the place of the next message of `length` bytes, to be filled and sent without a copy. Link
    /// `vbus` only.
    ///
    /// # Errors
    /// [`SendError::NotLending`] on other links; otherwise as [`QueuingPort::send`].
    #[inline]
    pub fn lend(
        &mut self,
        to: Destination,
        priority: Priority,
        length: usize,
    ) -> Result<Loan<'_>, SendError> {
        self.endpoint.lend(to, priority, length)
    }

    /// The most urgent message where it lies, if there is one: looked at without a copy, and given back
    /// when dropped. Never waits. Link `vbus` only.
    ///
    /// # Errors
    /// [`ReceiveError::NotLending`] on other links.
    #[inline]
    pub fn receive_lent(&mut self) -> Result<Option<LentMessage<'_>>, ReceiveError> {
        if self.endpoint.notify && !self.has_message()? {
            self.endpoint.link.arm_descriptor();
        }
        let PortHalf::Bus(bus) = &mut self.endpoint.link else {
            return Err(ReceiveError::NotLending);
        };
        let lent = bus.take_lent();
        let received = &self.endpoint.statistics.received;
        received.add(u64::from(lent.is_some()));
        Ok(lent)
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
        let found = self.endpoint.wait_for(deadline, |endpoint| {
            let PortHalf::Bus(bus) = &mut endpoint.link else {
                return Err(ReceiveError::NotLending);
            };
            Ok(bus.inlet.peek().map(drop))
        })?;
        match found {
            Some(()) => self.receive_lent(),
            None => Ok(None),
        }
    }

    fn has_message(&mut self) -> Result<bool, ReceiveError> {
        match &mut self.endpoint.link {
            PortHalf::Bus(bus) => Ok(bus.inlet.peek().is_some()),
            PortHalf::Frames(_) => Err(ReceiveError::NotLending),
        }
    }

    /// The most urgent message, if there is one, into `buffer`, which must hold
    /// [`QueuingPort::message_bytes_max`]. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Message>, ReceiveError> {
        check_buffer(buffer, self.message_bytes_max)?;
        if let Some(message) = self.look(buffer)? {
            return Ok(Some(message));
        }
        if !self.endpoint.notify {
            return Ok(None);
        }
        self.endpoint.link.arm_descriptor();
        self.look(buffer)
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
            opened,
            large,
            message_bytes_max,
        } = self;
        endpoint.wait_for(deadline, |endpoint| {
            look(
                endpoint,
                consumer,
                opened,
                large,
                *message_bytes_max,
                buffer,
            )
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
    fn look(&mut self, buffer: &mut [u8]) -> Result<Option<Message>, ReceiveError> {
        look(
            &mut self.endpoint,
            &mut self.consumer,
            &mut self.opened,
            &mut self.large,
            self.message_bytes_max,
            buffer,
        )
    }
}

/// Brings in what has arrived, and takes the most urgent message.
#[inline]
fn look(
    endpoint: &mut Endpoint,
    consumer: &mut Consumer,
    opened: &mut [Steps; CLASS_COUNT],
    large: &mut Option<Box<Large>>,
    message_bytes_max: usize,
    buffer: &mut [u8],
) -> Result<Option<Message>, ReceiveError> {
    let statistics = &endpoint.statistics;
    match &mut endpoint.link {
        PortHalf::Bus(bus) => {
            let message = bus.take(buffer);
            statistics.received.add(u64::from(message.is_some()));
            Ok(message)
        }
        PortHalf::Frames(frames) => {
            frames.link.collect()?;
            let memory = &frames.memory;
            Ok(take(
                memory,
                statistics,
                consumer,
                opened,
                large,
                message_bytes_max,
                buffer,
            ))
        }
    }
}

/// Takes records until one completes a message. Bounded by the slots of the port.
#[inline]
fn take(
    memory: &MappedPort,
    statistics: &Statistics,
    consumer: &mut Consumer,
    opened: &mut [Steps; CLASS_COUNT],
    large: &mut Option<Box<Large>>,
    message_bytes_max: usize,
    buffer: &mut [u8],
) -> Option<Message> {
    let port = memory.port();
    for _ in 0..port.slots.len() {
        let record = consumer.peek(port.slots)?;
        let head = record.slot.head();
        let source = Address::from_word(head.source);
        let header = Header::from_bytes(&head.header);
        let message = match (source, header) {
            (Some(address), Ok(header)) if header.is_bundle() => {
                let steps = &mut opened[record.class()];
                let length = unpack(
                    statistics,
                    &record,
                    &header,
                    steps,
                    message_bytes_max,
                    buffer,
                );
                let message = length.map(|length| message_of(address, &header, &head, length));
                if message.is_some() && !steps.is_at_end() {
                    statistics.received.add(1);
                    // The record stays, and its class with it, until all are taken.
                    return message;
                }
                *steps = Steps::default();
                message
            }
            (Some(address), Ok(header)) => {
                if let Some(large) = large {
                    large.notice(head.source, &header);
                }
                let length = usize::from(header.length);
                let length = if header.is_whole() && length <= message_bytes_max {
                    record.slot.read_payload(&mut buffer[..length]);
                    Some(length)
                } else {
                    reassemble(
                        statistics,
                        large.as_deref_mut(),
                        &record,
                        head,
                        &header,
                        buffer,
                    )
                };
                length.map(|length| message_of(address, &header, &head, length))
            }
            // A slot that the demux claimed and could not fill, or that somebody scribbled on.
            _ => {
                statistics.void.add(1);
                None
            }
        };
        consumer.release(port.control, record);
        if message.is_some() {
            statistics.received.add(1);
            return message;
        }
    }
    None
}

#[inline]
fn message_of(address: Address, header: &Header, head: &RecordHead, length: usize) -> Message {
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

/// Takes the next message out of a bundle that lies in its record; its length. `None` if there is none
/// that the port takes: then the record is done with. Bounded by the bytes of the bundle.
fn unpack(
    statistics: &Statistics,
    record: &Record<'_>,
    header: &Header,
    steps: &mut Steps,
    message_bytes_max: usize,
    buffer: &mut [u8],
) -> Option<usize> {
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
            let bytes = &mut buffer[..place.length];
            record.slot.read_payload_at(place.offset, bytes);
            return Some(place.length);
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
    buffer: &mut [u8],
) -> Option<usize> {
    let Some(large) = large else {
        statistics.too_large.add(1);
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
    statistics.reassembly(large.reassembler.counters());
    length
}
