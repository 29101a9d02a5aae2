//! Sending side of a port: the ways to its destinations, the numbering of what went there, and the
//! bundle that small messages are merged into.

use tautline_proto::authentication::Station;
use tautline_proto::fragment::{Fragment, fragments};
use tautline_proto::wire::{
    FLAG_BUNDLE, Header, MacAddress, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET, bundle,
};

use crate::address::Source;
use crate::error::{PortError, SendError};
use crate::limits::{BATCH_FRAMES, DESTINATIONS_MAX, REPLY_SEQUENCES};
use crate::link::frame::HEAD_BYTES_MAX;
use crate::link::{OutFrame, PortLink, Route};
use crate::message::{Destination, Numbering, Outgoing, PortIdentity, bytes_of};
use crate::port::authenticated::Sealing;
use crate::send_pool::LentBuffer;
use crate::statistics::Statistics;

/// The way to one port of one peer, and the numbering of what went there.
#[derive(Debug)]
struct Flow {
    name: String,
    to: PortNumber,
    route: Route,
    /// Bytes of the largest message in one frame.
    whole_bytes_max: usize,
    numbering: Numbering,
}

impl Flow {
    /// Header of the next whole frame.
    #[inline]
    fn header(&mut self, from: Origin, priority: Priority, length: u16) -> Header {
        Header {
            type_byte: from.type_byte,
            ..Header::whole(self.to, from.port, priority, length, self.numbering.take())
        }
    }
}

/// The sending port, as headers of its frames name it.
#[derive(Clone, Copy, Debug)]
struct Origin {
    port: PortNumber,
    type_byte: u8,
}

/// Messages that wait for being sent in one frame.
#[derive(Debug)]
struct Pending {
    flow: usize,
    priority: Priority,
    count: usize,
    used: usize,
    payload: Box<[u8; WHOLE_BYTES_MAX_ETHERNET]>,
}

/// Sending side of a port.
#[derive(Debug)]
pub(in crate::port) struct Outbox {
    origin: Origin,
    identity: PortIdentity,
    flows: Vec<Flow>,
    /// Numbering of answers to ports that are not destinations, by their [`sequence`].
    answers: Box<[Numbering; REPLY_SEQUENCES]>,
    pending: Pending,
    /// The buffer of a loan that is being filled.
    lent: Option<LentBuffer>,
    /// Of a protected port.
    sealing: Option<Box<Sealing>>,
}

/// A frame of a batch before it is sent.
#[derive(Clone, Copy)]
struct Planned<'a> {
    flow: usize,
    header: Header,
    payload: &'a [u8],
    /// Whether it is the last of its message.
    last: bool,
}

/// Place in [`Outbox::answers`] of the numbering for a port of a node.
#[inline]
fn sequence(station: Station, port: PortNumber) -> usize {
    const BITS: u32 = REPLY_SEQUENCES.trailing_zeros();
    const { assert!(REPLY_SEQUENCES.is_power_of_two()) };
    let address = match station {
        Station::Ethernet(MacAddress([a, b, c, d, e, f])) => {
            u64::from_be_bytes([0, 0, a, b, c, d, e, f])
        }
        Station::Udp(ip) => ip.to_bits().into(),
    };
    // Fibonacci hashing (Knuth, TAOCP 6.4): the upper bits depend on all bits of the key.
    let key = address << 12 ^ u64::from(port.get());
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BITS)) as usize
}

/// How far a batch came.
struct Progress {
    messages: usize,
    stopped: Option<SendError>,
}

impl Outbox {
    pub(in crate::port) fn new(port: PortNumber, type_byte: u8, sealing: Option<Sealing>) -> Self {
        Self {
            origin: Origin { port, type_byte },
            identity: PortIdentity::new(),
            // With room for the flow of an answer.
            flows: Vec::with_capacity(DESTINATIONS_MAX + 1),
            answers: Box::new(std::array::from_fn(|_| Numbering::default())),
            pending: Pending {
                flow: 0,
                priority: Priority::LOWEST,
                count: 0,
                used: 0,
                payload: Box::new([0; WHOLE_BYTES_MAX_ETHERNET]),
            },
            lent: None,
            sealing: sealing.map(Box::new),
        }
    }

    /// Bytes of the largest message in one frame on this way; `None` from a protected port to a node that shares no
    /// keys.
    pub(in crate::port) fn whole_bytes_max(&self, route: &Route) -> Option<usize> {
        match &self.sealing {
            None => Some(route.whole_bytes_max()),
            Some(sealing) => sealing.whole_bytes_max(route),
        }
    }

    /// Keeps the buffer of a loan until that is sent or forgotten; its bytes.
    pub(in crate::port) fn keep_lent(&mut self, buffer: LentBuffer) -> &mut [u8] {
        self.lent.insert(buffer)
    }

    /// Gives the buffer of a loan back, if it has not been sent.
    #[inline(never)]
    pub(in crate::port) fn forget_lent(&mut self) {
        self.lent = None;
    }

    /// Sends what is in the buffer of a loan, and gives that back.
    #[inline(never)]
    pub(in crate::port) fn send_kept(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        (flow, priority): (usize, Priority),
    ) -> Result<(), SendError> {
        match self.lent.take() {
            Some(mut buffer) => self.send_lent(link, statistics, flow, priority, &mut buffer),
            None => Ok(()),
        }
    }

    pub(in crate::port) fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        let position = self
            .flows
            .iter()
            .position(|flow| flow.to == to && flow.name == name);
        position.map(|place| self.identity.destination(place))
    }

    /// Place of the flow to a destination. Counts one of another port.
    #[inline]
    pub(in crate::port) fn flow_to(
        &self,
        statistics: &Statistics,
        to: Destination,
    ) -> Result<usize, SendError> {
        let place = self.place(to);
        place.inspect_err(|_| statistics.send_errors.add(1))
    }

    #[inline]
    fn place(&self, to: Destination) -> Result<usize, SendError> {
        let place = self.identity.index_of(to)?;
        match place < self.flows.len() {
            true => Ok(place),
            false => Err(SendError::OtherPort),
        }
    }

    /// Place of the flow to the destination that sent a message, if it is one.
    #[inline]
    pub(in crate::port) fn flow_back(&self, sender: Source) -> Option<usize> {
        let station = sender.address.station()?;
        let is_sender = |flow: &Flow| flow.to == sender.port && flow.route.station() == station;
        self.flows.iter().position(is_sender)
    }

    pub(in crate::port) fn add(
        &mut self,
        name: String,
        to: PortNumber,
        route: Route,
        whole_bytes_max: usize,
    ) -> Result<Destination, PortError> {
        if self.flows.len() == DESTINATIONS_MAX {
            return Err(PortError::TooManyDestinations);
        }
        self.flows.push(Flow {
            name,
            to,
            // Goes on from the answers that went there.
            numbering: self.answers[sequence(route.station(), to)].clone(),
            route,
            whole_bytes_max,
        });
        Ok(self.identity.destination(self.flows.len() - 1))
    }

    /// Sends one message now to a port that is not a destination. Nothing of it stays but the next number of its
    /// sequence.
    pub(in crate::port) fn reply(
        &mut self,
        link: &mut dyn PortLink,
        (to, route): (PortNumber, Route),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let no_keys = SendError::NoWay {
            why: "the port is protected, and no keys are shared with it",
        };
        let whole_bytes_max = self.whole_bytes_max(&route).ok_or(no_keys)?;
        let sequence = sequence(route.station(), to);
        let place = self.flows.len();
        self.flows.push(Flow {
            name: String::new(),
            to,
            route,
            whole_bytes_max,
            numbering: std::mem::take(&mut self.answers[sequence]),
        });
        let sent = self.send_frames(link, place, priority, message);
        if let Some(flow) = self.flows.pop() {
            self.answers[sequence] = flow.numbering;
        }
        sent
    }

    /// Sends one message now to a destination.
    #[inline]
    pub(in crate::port) fn send(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let flow = self.flow_to(statistics, to)?;
        self.send_on(link, statistics, flow, priority, message)
    }

    /// Sends one message now; what is merged for the same place and priority goes before it. Never inline: beside it,
    /// the way over a bus would be longer.
    #[inline(never)]
    pub(in crate::port) fn send_on(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        flow: usize,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.flush_before(link, statistics, flow, priority)?;
        let result = self.send_frames(link, flow, priority, message);
        match result {
            Ok(()) => statistics.sent.add(1, message.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }

    /// Sends one message now from where it lies.
    #[inline]
    fn send_lent(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        place: usize,
        priority: Priority,
        message: &mut LentBuffer,
    ) -> Result<(), SendError> {
        self.flush_before(link, statistics, place, priority)?;
        let flow = &mut self.flows[place];
        let result = if message.len() <= flow.whole_bytes_max {
            let header = flow.header(self.origin, priority, message.len() as u16);
            match &mut self.sealing {
                None => link.send(&message.payload().frame(&mut flow.route, &header)),
                sealing => send_frame(link, sealing, &mut flow.route, &header, message),
            }
        } else {
            // Its frames are sent together: the kernel takes headers and payloads from where they are.
            self.send_frames(link, place, priority, message)
        };
        match result {
            Ok(()) => statistics.sent.add(1, message.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }

    /// Sends what is merged for the same place and priority.
    #[inline]
    fn flush_before(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        flow: usize,
        priority: Priority,
    ) -> Result<(), SendError> {
        if self.pending.count > 0 && (self.pending.flow, self.pending.priority) == (flow, priority)
        {
            self.flush(link, statistics)?;
        }
        Ok(())
    }

    #[inline]
    fn send_frames(
        &mut self,
        link: &mut dyn PortLink,
        place: usize,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let flow = &mut self.flows[place];
        if message.len() <= flow.whole_bytes_max {
            let header = flow.header(self.origin, priority, message.len() as u16);
            return send_frame(link, &mut self.sealing, &mut flow.route, &header, message);
        }
        let one = [Outgoing {
            to: self.identity.destination(place),
            priority,
            message,
        }];
        match self.send_all(link, &one).stopped {
            None => Ok(()),
            Some(error) => {
                // It is not sent again: what is missing is lost.
                self.flows[place].numbering.take();
                Err(error)
            }
        }
    }

    /// Sends messages in their order until the link takes no more; how many it took. An error if it is none.
    pub(in crate::port) fn send_batch(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        batch: &[Outgoing<'_>],
    ) -> Result<usize, SendError> {
        self.flush(link, statistics)?;
        let Progress { messages, stopped } = self.send_all(link, batch);
        statistics.sent.add(messages, bytes_of(&batch[..messages]));
        match stopped {
            Some(error) if messages == 0 => {
                statistics.send_errors.add(1);
                Err(error)
            }
            _ => Ok(messages),
        }
    }

    fn send_all(&mut self, link: &mut dyn PortLink, batch: &[Outgoing<'_>]) -> Progress {
        let mut progress = Progress {
            messages: 0,
            stopped: None,
        };
        let Some(first) = batch.first() else {
            return progress;
        };
        let filler = Planned {
            flow: 0,
            header: Header::whole(self.origin.port, self.origin.port, first.priority, 0, 0),
            payload: &[],
            last: false,
        };
        let mut chunk = [filler; BATCH_FRAMES];
        let mut planned = 0;
        let mut wrong_next = None;
        'batch: for outgoing in batch {
            let flow = match self.place(outgoing.to) {
                Ok(flow) => flow,
                Err(error) => {
                    wrong_next = Some(error);
                    break;
                }
            };
            let whole_bytes_max = self.flows[flow].whole_bytes_max;
            let parts = match fragments(outgoing.message.len(), whole_bytes_max) {
                Ok(parts) => parts,
                Err(wrong) => {
                    wrong_next = Some(SendError::MessageTooLarge {
                        bytes: wrong.message_bytes,
                    });
                    break;
                }
            };
            for part in parts {
                chunk[planned] = self.plan(flow, outgoing, &part);
                planned += 1;
                if planned == BATCH_FRAMES {
                    self.send_chunk(link, &chunk, &mut progress);
                    planned = 0;
                    if progress.stopped.is_some() {
                        break 'batch;
                    }
                }
            }
        }
        self.send_chunk(link, &chunk[..planned], &mut progress);
        progress.stopped = progress.stopped.or(wrong_next);
        progress
    }

    fn plan<'a>(&mut self, place: usize, outgoing: &Outgoing<'a>, part: &Fragment) -> Planned<'a> {
        let flow = &mut self.flows[place];
        Planned {
            flow: place,
            header: Header {
                fragment_index: part.index,
                fragment_count: part.count,
                ..flow.header(self.origin, outgoing.priority, part.length)
            },
            payload: &outgoing.message[part.range()],
            last: part.index + 1 == part.count,
        }
    }

    /// Sends the frames until the link takes no more. What it has not taken has used no numbers.
    fn send_chunk(
        &mut self,
        link: &mut dyn PortLink,
        chunk: &[Planned<'_>],
        progress: &mut Progress,
    ) {
        let Some(first) = chunk.first() else { return };
        let (flows, count) = (&mut self.flows, chunk.len());
        let mut all = [*first; BATCH_FRAMES];
        all[..count].copy_from_slice(chunk);
        let mut stopped = None;
        if let Some(sealing) = &mut self.sealing {
            let frames = all[..count].iter_mut().map(|frame| {
                let route = &flows[frame.flow].route;
                (route, &mut frame.header, &mut frame.payload)
            });
            stopped = sealing.seal_all(frames).err();
        }
        let mut heads = [[0; HEAD_BYTES_MAX]; BATCH_FRAMES];
        let mut frames = [OutFrame::whole(&[], first.header.priority); BATCH_FRAMES];
        for ((frame, planned), head) in frames.iter_mut().zip(&all[..count]).zip(&mut heads) {
            let route = &mut flows[planned.flow].route;
            let to = route.datagrams_to();
            let made = route.head(&planned.header);
            head[..made.len()].copy_from_slice(made);
            *frame = OutFrame {
                head: &head[..made.len()],
                payload: planned.payload,
                to,
                priority: planned.header.priority,
            };
        }
        let mut sent = 0;
        while sent < count && stopped.is_none() {
            match link.send_many(&frames[sent..count]) {
                Ok(taken @ 1..) => sent += taken,
                none => stopped = Some(none.err().unwrap_or(SendError::TransmitQueueFull)),
            }
        }
        progress.stopped = progress.stopped.or(stopped);
        progress.messages += chunk[..sent].iter().filter(|frame| frame.last).count();
        for planned in &chunk[sent..] {
            self.flows[planned.flow].numbering.give_back();
        }
    }

    /// Puts a message into the bundle, and sends the bundle if that has no room for it or is for another place or
    /// priority. On an error the message has not been taken; what was merged before stays.
    pub(in crate::port) fn merge(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let flow = self.flow_to(statistics, to)?;
        link.permit().priorities.check(priority)?;
        let whole_bytes_max = self.flows[flow].whole_bytes_max;
        if bundle::LENGTH_BYTES + message.len() > whole_bytes_max {
            self.flush(link, statistics)?;
            return self.send_on(link, statistics, flow, priority, message);
        }
        let pending = &self.pending;
        let fits = pending.used + bundle::LENGTH_BYTES + message.len() <= whole_bytes_max;
        if pending.count > 0 && !(fits && (pending.flow, pending.priority) == (flow, priority)) {
            self.flush(link, statistics)?;
        }
        let pending = &mut self.pending;
        (pending.flow, pending.priority) = (flow, priority);
        // It fits: that was checked, or the bundle is empty.
        if let Some(used) = bundle::append(&mut pending.payload[..], pending.used, message) {
            pending.used = used;
            pending.count += 1;
        }
        Ok(())
    }

    /// Sends the bundle, if there is one. On an error it stays.
    pub(in crate::port) fn flush(
        &mut self,
        link: &mut dyn PortLink,
        statistics: &Statistics,
    ) -> Result<(), SendError> {
        let pending = &mut self.pending;
        if pending.count == 0 {
            return Ok(());
        }
        let flow = &mut self.flows[pending.flow];
        // One message needs no bundle, so that a receiver that knows none understands it.
        let (flags, payload) = match pending.count {
            1 => (0, &pending.payload[bundle::LENGTH_BYTES..pending.used]),
            _ => (FLAG_BUNDLE, &pending.payload[..pending.used]),
        };
        let length = payload.len() as u16;
        let header = Header {
            flags,
            ..flow.header(self.origin, pending.priority, length)
        };
        let sent = send_frame(link, &mut self.sealing, &mut flow.route, &header, payload);
        if let Err(error) = sent {
            flow.numbering.give_back();
            statistics.send_errors.add(1);
            return Err(error);
        }
        let bytes = pending.used - pending.count * bundle::LENGTH_BYTES;
        statistics.sent.add(pending.count, bytes);
        if flags & FLAG_BUNDLE != 0 {
            statistics.merged.add(pending.count as u64);
        }
        (pending.count, pending.used) = (0, 0);
        Ok(())
    }
}

/// Sends one frame, sealed if the port is protected.
#[inline(always)]
fn send_frame(
    link: &mut dyn PortLink,
    sealing: &mut Option<Box<Sealing>>,
    route: &mut Route,
    header: &Header,
    payload: &[u8],
) -> Result<(), SendError> {
    match sealing {
        None => link.send(&route.frame(header, payload)),
        Some(sealing) => {
            let (header, payload) = sealing.seal(route, header, payload)?;
            link.send(&route.frame(&header, payload))
        }
    }
}
