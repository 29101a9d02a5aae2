//! Messages out of captured frames: whole ones, those of bundles, and those that come in fragments.

use std::net::Ipv4Addr;
use std::time::Duration;

use tautline_proto::authentication;
use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId};
use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, bundle};

use crate::batch::{Item, Way};
use crate::bus::{BusMessage, bus_message};
use crate::frame::{self, End, Frame};

/// Messages that may be under way at once. Lower loses messages of many senders in fragments; each takes 64 KiB.
const UNDER_WAY: usize = 32;

/// Time that a message may take from its first fragment to its last. Longer than a receiver's own limit, since a
/// capture sees frames of both ways.
const TIME_LIMIT: Duration = Duration::from_millis(500);

/// Flows that are distinguished at a time. Lower: of a large network, a recording lacks those that began last. Higher:
/// a sender of frames with ever new addresses and ports takes more memory, a few KiB for each; and from 9,362 on, a
/// recording could have more channels than MCAP has numbers for.
pub const FLOWS_MAX: usize = 8_192;

/// Sender, receiver and priority of messages: what they have in common in a recording.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Interface or bus.
    pub on: String,
    /// Node that sends: its name on a bus, its MAC or IPv4 address on a network.
    pub from: String,
    /// Its port.
    pub source_port: u16,
    /// Node that receives.
    pub to: String,
    /// Its port.
    pub destination_port: u16,
    /// Priority.
    pub priority: u8,
    /// Whether it left from the machine that was recorded.
    pub is_sent: bool,
}

impl Flow {
    /// Flow of a message of a bus.
    #[must_use]
    pub fn of_bus(on: &str, message: &BusMessage) -> Self {
        Self {
            on: on.to_owned(),
            from: message.from.node.to_string(),
            source_port: message.from.port.get(),
            to: message.to.node.to_string(),
            destination_port: message.to.port.get(),
            priority: message.priority,
            is_sent: false,
        }
    }

    /// Flow of a frame on an interface.
    #[must_use]
    pub fn of_frame(on: &str, frame: &Frame<'_>, way: Way) -> Self {
        let header = &frame.header;
        Self {
            on: on.to_owned(),
            from: frame.from.to_string(),
            source_port: header.source.get(),
            to: frame.to.to_string(),
            destination_port: header.destination.get(),
            priority: header.priority.get(),
            is_sent: way == Way::Sent,
        }
    }
}

/// A message as it was captured.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// Its flow.
    pub flow: &'a Flow,
    /// Number of its first frame.
    pub sequence: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Puts the messages of one interface or bus together.
#[derive(Debug)]
pub struct Messages {
    on: String,
    is_bus: bool,
    ethertype: u16,
    reassembler: Reassembler,
    malformed: u64,
}

impl Messages {
    /// For the copies of one tap.
    #[must_use]
    pub fn new(on: &str, is_bus: bool, ethertype: u16) -> Self {
        let config = ReassemblerConfig {
            collector_count: UNDER_WAY,
            time_limit: TIME_LIMIT,
            ..ReassemblerConfig::default()
        };
        Self {
            on: on.to_owned(),
            is_bus,
            ethertype,
            reassembler: Reassembler::new(config),
            malformed: 0,
        }
    }

    /// Frames that are against the format, those that are encrypted, and messages of which fragments are missing.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        let counters = self.reassembler.counters();
        self.malformed
            + counters.expired
            + counters.no_collector
            + counters.quota_reached
            + counters.inconsistent
    }

    /// Hands out the messages that a copy completes: none, one, or those of a bundle.
    ///
    /// # Errors
    /// The first of `each`.
    pub fn take<E>(
        &mut self,
        item: &Item,
        bytes: &[u8],
        mut each: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.is_bus {
            let Some((message, payload)) = bus_message(bytes) else {
                self.malformed += 1;
                return Ok(());
            };
            let flow = Flow::of_bus(&self.on, &message);
            return each(Message {
                flow: &flow,
                sequence: message.sequence,
                time_ns: item.time_ns,
                bytes: payload,
            });
        }
        match frame::frame(bytes, self.ethertype) {
            Ok(Some(frame)) => self.take_frame(item, &frame, each),
            Ok(None) => Ok(()),
            Err(_) => {
                self.malformed += 1;
                Ok(())
            }
        }
    }

    fn take_frame<E>(
        &mut self,
        item: &Item,
        frame: &Frame<'_>,
        mut each: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let flow = Flow::of_frame(&self.on, frame, item.way);
        let (header, payload) = match readable(frame) {
            Some(readable) => readable,
            None => {
                self.malformed += 1;
                return Ok(());
            }
        };
        let message = |bytes| Message {
            flow: &flow,
            sequence: header.message_sequence(),
            time_ns: item.time_ns,
            bytes,
        };
        if header.is_bundle() {
            let Ok(mut messages) = bundle::messages(payload) else {
                self.malformed += 1;
                return Ok(());
            };
            return messages.try_for_each(|bytes| each(message(bytes)));
        }
        let now = Instant::from_nanos(item.time_ns);
        self.reassembler.expire(now);
        let source = source(frame, item.way);
        match self.reassembler.push(now, source, &header, payload) {
            Outcome::Complete(bytes) => each(message(bytes)),
            _ => Ok(()),
        }
    }
}

/// Header and payload of a frame; of an authenticated one, without its trailer, which is not checked. `None` if that is
/// missing, or the payload is encrypted.
fn readable<'f>(frame: &Frame<'f>) -> Option<(Header, &'f [u8])> {
    if !frame.header.is_authenticated() {
        return Some((frame.header, frame.payload));
    }
    let (header, message, trailer) = authentication::unchecked(&frame.header, frame.payload)?;
    (!trailer.is_encrypted).then_some((header, message))
}

/// Sender and receiver as one number, as the reassembler tells messages apart.
fn source(frame: &Frame<'_>, way: Way) -> SourceId {
    let number = |end: End| match end {
        End::Mac(mac) => {
            let bytes = mac.0;
            u64::from_be_bytes([
                0, 0, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5],
            ])
        }
        End::Ip(ip) => u64::from(Ipv4Addr::to_bits(ip)) | 1 << 48,
    };
    // One capture sees the frames of one node to several.
    let mixed = number(frame.to)
        .rotate_left(17)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    SourceId(number(frame.from) ^ mixed ^ u64::from(way == Way::Sent) << 63)
}
