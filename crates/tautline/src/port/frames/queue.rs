//! Receiving side of a queuing port whose frames come into the port's own memory: takes messages out of it.

use std::time::Duration;

use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId};
use tautline_proto::time::Instant;
use tautline_proto::wire::bundle::{self, Span, Steps};
use tautline_proto::wire::{FLAGS_KNOWN, Header};
use tautline_shm::layout::{CLASS_COUNT, RecordHead, SLOT_PAYLOAD_BYTES};
use tautline_shm::queue::Record;

use super::Frames;
use crate::address::{Address, Source};
use crate::error::ReceiveError;
use crate::message::{LentBytes, Message};
use crate::port::QueuingOptions;
use crate::port::core::QueueCore;
use crate::port::inbox::{Decoder, Inbox, Located, Location, Records, Whole};
use crate::port::lent::LentMessage;
use crate::restarts::{Restart, Restarts};
use crate::statistics::Statistics;
use crate::types::TakenType;

/// Messages under way that a port of large messages can reassemble at once. Lower: two peers that
/// send large messages at the same time lose one. Higher: 64 KiB each.
const COLLECTORS: usize = 4;
/// How long a message in fragments may take. At 100 Mbit/s 64 KiB take 5.4 ms; ten times that.
const REASSEMBLY_LIMIT: Duration = Duration::from_millis(50);

/// Form of messages with our header.
#[derive(Debug)]
pub(in crate::port) struct Messages {
    /// How far the bundle at the head of each class has been taken apart.
    opened: [Steps; CLASS_COUNT],
    message_bytes_max: usize,
    takes: TakenType,
    /// Boxed: a port of small messages does without, and stays small itself.
    large: Option<Box<Large>>,
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
    fn notice(&mut self, source: u64, header: &Header, arrival: Instant) {
        let Header {
            source: from,
            destination: to,
            priority,
            ..
        } = *header;
        let (reassembler, source_id) = (&mut self.reassembler, SourceId(source));
        match self.restarts.notice(source, header, arrival) {
            None => {}
            Some(Restart::OfSender) => reassembler.forget_flow(source_id, from, to),
            Some(Restart::OfPriority) => {
                reassembler.forget_priority(source_id, from, to, priority);
            }
        }
    }
}

impl QueueCore for Frames<Records<Messages>> {
    type Located = Located<Message>;

    /// Not inlined: inlining makes the compiler spill the bus path's registers.
    #[inline(never)]
    fn take_next(
        &mut self,
        statistics: &Statistics,
        notify: bool,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        // Returned as it is, so that the compiler lets `look` write it where the caller wants it.
        let found = self.look(statistics, buffer);
        if !notify || !matches!(found, Ok(None)) {
            return found;
        }
        self.inbox.link.arm();
        self.look(statistics, buffer)
    }

    /// Not inlined, as [`QueueCore::take_next`].
    #[inline(never)]
    fn lend_next(
        &mut self,
        statistics: &Statistics,
        notify: bool,
    ) -> Result<Option<LentMessage<'_>>, ReceiveError> {
        let mut found = self.seek(statistics)?;
        if found.is_none() && notify {
            self.inbox.link.arm();
            found = self.seek(statistics)?;
        }
        Ok(found.and_then(|found| self.lend_found(statistics, found)))
    }

    #[inline]
    fn look(
        &mut self,
        statistics: &Statistics,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        self.receiver.look(&mut self.inbox, statistics, buffer)
    }

    #[inline]
    fn seek(&mut self, statistics: &Statistics) -> Result<Option<Located<Message>>, ReceiveError> {
        self.receiver.seek(&mut self.inbox, statistics)
    }

    #[inline]
    fn lend_found(
        &mut self,
        statistics: &Statistics,
        found: Located<Message>,
    ) -> Option<LentMessage<'_>> {
        let (message, place) = self.receiver.lend(&self.inbox, statistics, found)?;
        Some(LentMessage::of(place, &message))
    }
}

impl Messages {
    pub(in crate::port) fn new(options: &QueuingOptions, takes: TakenType) -> Self {
        let large = options.is_fragmenting().then(|| {
            Box::new(Large {
                reassembler: Reassembler::new(ReassemblerConfig {
                    collector_count: COLLECTORS,
                    message_bytes_max: options.message_bytes_max,
                    time_limit: REASSEMBLY_LIMIT,
                }),
                restarts: Restarts::new(REASSEMBLY_LIMIT),
            })
        });
        Self {
            opened: [Steps::default(); CLASS_COUNT],
            message_bytes_max: options.message_bytes_max,
            takes,
            large,
        }
    }

    pub(in crate::port) fn make_other_types_errors(&mut self) {
        self.takes.make_error();
    }

    /// Counts a frame of another type. A message in fragments is counted once.
    #[cold]
    fn refuse_type(
        &self,
        statistics: &Statistics,
        address: Address,
        header: &Header,
    ) -> Result<Option<(Message, Location)>, ReceiveError> {
        if header.fragment_index != 0 {
            return Ok(None);
        }
        let port = header.source;
        let source = Source { address, port };
        statistics.count_other_type(source, header.type_byte);
        self.takes.refuse(source, header.type_byte)
    }
}

impl Decoder for Messages {
    type Item = Message;

    #[inline]
    fn length_and_arrival(item: &Message) -> (usize, Instant) {
        (item.length, item.arrival)
    }

    /// Of a whole message without flags. A port of large messages looks at each frame in its own way.
    #[inline]
    fn take_whole(
        &mut self,
        _inbox: &Inbox,
        _statistics: &Statistics,
        record: &Record<'_>,
        buffer: &mut [u8],
    ) -> Whole<Message> {
        if self.large.is_some() {
            return Whole::Other;
        }
        let head = record.slot.head();
        let address = Address::from_word(head.source);
        let Some((address, header)) = address.zip(Header::plain(&head.header)) else {
            return Whole::Other;
        };
        let length = usize::from(header.length);
        if length > self.message_bytes_max || self.takes.is_other(header.type_byte) {
            return Whole::Other;
        }
        record.slot.read_payload(&mut buffer[..length]);
        Whole::Taken(message_of(address, &header, head, length))
    }

    #[inline]
    fn find_in(
        &mut self,
        _inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
    ) -> Result<Option<(Message, Location)>, ReceiveError> {
        let head = record.slot.head();
        let class = record.class();
        let (address, header) = match (
            Address::from_word(head.source),
            Header::from_bytes(&head.header),
        ) {
            (Some(address), Ok(header)) if usize::from(header.length) <= SLOT_PAYLOAD_BYTES => {
                (address, header)
            }
            // A slot that the demux claimed and could not fill, or that another process scribbled on.
            _ => {
                statistics.void.add(1);
                return Ok(None);
            }
        };
        if self.takes.is_other(header.type_byte) && !header.is_authenticated() {
            return self.refuse_type(statistics, address, &header);
        }
        // Mostly none, and then this is all that bundles and protection cost.
        let (length, at) = if header.flags & FLAGS_KNOWN != 0 {
            if header.is_authenticated() {
                // This port does not check it, and its trailer would pass for content.
                statistics.protected.add(1);
                return Ok(None);
            }
            let steps = &mut self.opened[class];
            let span = unpack(statistics, record, &header, steps, self.message_bytes_max);
            let is_last = span.is_none() || steps.is_at_end();
            if is_last {
                *steps = Steps::default();
            }
            // Otherwise the record stays, and its class with it, until all are taken.
            let Some(Span { offset, length }) = span else {
                return Ok(None);
            };
            let at = Location::Slot {
                class,
                offset,
                is_last,
            };
            (length, at)
        } else {
            if let Some(large) = &mut self.large {
                large.notice(head.source, &header, Instant::from_nanos(head.arrival_ns));
            }
            let length = usize::from(header.length);
            if header.is_whole() && length <= self.message_bytes_max {
                let at = Location::Slot {
                    class,
                    offset: 0,
                    is_last: true,
                };
                (length, at)
            } else {
                let large = self.large.as_deref_mut();
                match reassemble(statistics, large, record, head, &header) {
                    Some(length) => (length, Location::Collector),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some((message_of(address, &header, head, length), at)))
    }

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

/// Takes the next message out of a bundle that lies in its record; its span. `None` if there is none
/// that the port takes: then the record is done with. Bounded by the bytes of the bundle.
fn unpack(
    statistics: &Statistics,
    record: &Record<'_>,
    header: &Header,
    steps: &mut Steps,
    message_bytes_max: usize,
) -> Option<Span> {
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
    while let Ok(Some(span)) = steps.step(read) {
        if span.length <= message_bytes_max {
            return Some(span);
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
