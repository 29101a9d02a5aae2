//! Ports, of all kinds behind one handle, since most of what can be done with them is the same.
#![allow(unsafe_code)] // Exported functions that take pointers.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use tautline::port::{BATCH_FRAMES, RAW_FRAME_BYTES_MAX};
use tautline::status::NodeStatus;
use tautline::{
    Instant, Node, PortError, PortKey, PortNumber, Priority, QueuingPort, RawPort, SamplingPort,
    Source, UdpPort, Wait,
};
use tautline_state::fork::OwnerProcess;
use tautline_tasks::MessageHead;

use crate::border::{Fault, coded};
use crate::code::Code;
use crate::datagram::{DatagramPort, Socket};
use crate::handle::{InUse, Table};
use crate::pointer::{self, Out, Outgoing};
use crate::types::{
    TAUTLINE_BATCH_MAX, TAUTLINE_BUS, TAUTLINE_DATAGRAM, TAUTLINE_POLL, TAUTLINE_QUEUING,
    TAUTLINE_RAW, TAUTLINE_SAMPLING, tautline_destination, tautline_message, tautline_outgoing,
    tautline_port, tautline_port_counters, tautline_port_info, tautline_sample, tautline_source,
};

/// Senders on a bus whose names a port remembers: as many as can be connected with it. Lower: answering many in turn
/// reads the node's status each time. Higher: finding one takes longer.
const ANSWERED_MAX: usize = 32;

/// Ports and sockets: a socket is a port that also has what sockets have.
static PORTS: Table<Box<Port>> = Table::new();

/// Port behind a handle.
#[derive(Debug)]
pub(crate) struct Port {
    kind: Kind,
    /// Senders on a bus that were answered lately, by what C knows of them.
    answered: VecDeque<(tautline_source, Source)>,
    node: Node,
    process: OwnerProcess,
}

/// The port itself.
#[derive(Debug)]
pub(crate) enum Kind {
    Queuing(QueuingPort),
    Sampling(SamplingPort),
    Datagram(DatagramPort),
    Raw(RawPort),
}

impl Kind {
    fn message_bytes_max(&self) -> usize {
        match self {
            Self::Queuing(port) => port.message_bytes_max(),
            Self::Sampling(port) => port.value_bytes_max(),
            Self::Datagram(datagrams) => datagrams.port.message_bytes_max(),
            Self::Raw(_) => RAW_FRAME_BYTES_MAX,
        }
    }

    /// Takes the most urgent message, datagram or frame.
    fn receive(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<tautline_message>, Fault> {
        Ok(match self {
            Self::Queuing(port) => port.receive_into(buffer, wait)?.map(Into::into),
            Self::Datagram(datagrams) => {
                let received = datagrams.port.receive_into(buffer, wait)?;
                received.map(Into::into)
            }
            Self::Raw(port) => port.receive_into(buffer, wait)?.map(Into::into),
            Self::Sampling(_) => return Err(Code::WrongKind.into()),
        })
    }
}

impl Port {
    pub(crate) fn new(kind: Kind, node: Node) -> Self {
        Self {
            kind,
            answered: VecDeque::new(),
            node,
            process: OwnerProcess::current(),
        }
    }

    /// The port of a socket, and what else a socket has.
    pub(crate) fn as_socket(&mut self) -> Result<(&mut UdpPort, &mut Socket), Fault> {
        match &mut self.kind {
            Kind::Datagram(DatagramPort {
                port,
                socket: Some(socket),
            }) => Ok((port, socket)),
            // A port, and no socket.
            _ => Err(Code::BadHandle.into()),
        }
    }

    /// A port of plain UDP.
    pub(crate) fn datagrams(&mut self) -> Result<&mut DatagramPort, Fault> {
        match &mut self.kind {
            Kind::Datagram(port) => Ok(port),
            _ => Err(Code::WrongKind.into()),
        }
    }

    /// The descriptor for poll, select or epoll. It stays the port's.
    fn descriptor(&mut self) -> Result<BorrowedFd<'_>, Fault> {
        self.process.check().map_err(|_| Code::OtherProcess)?;
        let descriptor = match &mut self.kind {
            Kind::Queuing(port) => port.descriptor(),
            Kind::Sampling(port) => port.descriptor(),
            Kind::Datagram(datagrams) => datagrams.port.descriptor(),
            Kind::Raw(port) => port.descriptor(),
        };
        Ok(descriptor.ok_or(Code::NoDescriptor)?)
    }

    fn sampling(&mut self) -> Result<&mut SamplingPort, Fault> {
        match &mut self.kind {
            Kind::Sampling(port) => Ok(port),
            _ => Err(Code::WrongKind.into()),
        }
    }

    /// Sends an answer.
    ///
    /// # Safety
    /// The message is null, or its bytes can be read.
    unsafe fn reply(
        &mut self,
        source: tautline_source,
        priority: Priority,
        message: Outgoing,
    ) -> Result<(), Fault> {
        let number = match &self.kind {
            Kind::Queuing(port) => port.number(),
            Kind::Sampling(port) => port.number(),
            Kind::Datagram(_) => {
                let to = source.udp_address()?;
                // SAFETY: the caller's promise.
                return unsafe { self.datagrams()?.reply(to, priority, message) };
            }
            Kind::Raw(_) => return Err(Code::WrongKind.into()),
        };
        let to = match source.form {
            TAUTLINE_BUS => self.sender_on_bus(source, number)?,
            _ => source.try_into()?,
        };
        // SAFETY: the caller's promise. It is copied into memory that C never sees.
        let message = unsafe { message.read() }?;
        match &mut self.kind {
            Kind::Queuing(port) => port.reply(to, priority, message)?,
            Kind::Sampling(port) => port.reply(to, priority, message)?,
            Kind::Datagram(_) | Kind::Raw(_) => return Err(Code::WrongKind.into()),
        }
        Ok(())
    }

    /// Sender of a message on a bus. C has only a number for its node: that is looked for among the nodes whose ports
    /// are connected with this one.
    fn sender_on_bus(&mut self, source: tautline_source, own: PortNumber) -> Result<Source, Fault> {
        if let Some((_, known)) = self.answered.iter().find(|(one, _)| *one == source) {
            return Ok(*known);
        }
        let sender = sender_of(source, &self.node.status(), own)?;
        if self.answered.len() == ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back((source, sender));
        Ok(sender)
    }

    fn counters(&self) -> Option<tautline_port_counters> {
        let key = match &self.kind {
            Kind::Queuing(port) => port.number().into(),
            Kind::Sampling(port) => port.number().into(),
            Kind::Datagram(datagrams) => PortKey::udp(datagrams.port.number()).ok()?,
            Kind::Raw(port) => port.ethertype().into(),
        };
        let status = self.node.status();
        let mut ports = status.ports.iter();
        ports.find(|port| port.key == key).map(Into::into)
    }

    /// A message of a batch.
    ///
    /// # Safety
    /// Its bytes are null, or can be read and are written by nobody during `'a`.
    unsafe fn outgoing<'a>(
        &self,
        one: &tautline_outgoing,
    ) -> Result<tautline::port::Outgoing<'a>, Fault> {
        let message = Outgoing::new("message", one.message, one.bytes)?;
        if let Kind::Datagram(datagrams) = &self.kind {
            for buffer in datagrams.lent() {
                message.offset_in(buffer)?;
            }
        }
        Ok(tautline::port::Outgoing {
            priority: Priority::new(one.priority).ok_or(Code::BadArgument)?,
            to: one.destination.into(),
            // SAFETY: the caller's promise.
            message: unsafe { message.read() }?,
        })
    }

    /// Sends the first messages of a batch, which has one at least, with one call of the port; how many.
    ///
    /// # Safety
    /// As [`Port::outgoing`], for each.
    unsafe fn send_first(&mut self, batch: &[tautline_outgoing]) -> Result<usize, Fault> {
        // SAFETY: the caller's promise. A batch leaves what is in send buffers as it is.
        let mut all = batch.iter().map(|one| unsafe { self.outgoing(one) });
        let first = all.next().ok_or(Code::BadArgument)??;
        let mut messages = [first; BATCH_FRAMES];
        let mut count = 1;
        for (place, message) in messages[1..].iter_mut().zip(all.map_while(Result::ok)) {
            *place = message;
            count += 1;
        }
        let messages = &messages[..count];
        Ok(match &mut self.kind {
            Kind::Queuing(port) => port.send_batch(messages),
            Kind::Sampling(port) => port.send_batch(messages),
            Kind::Datagram(datagrams) => datagrams.port.send_batch(messages),
            Kind::Raw(_) => return Err(Code::WrongKind.into()),
        }?)
    }
}

/// Puts a port behind a handle.
pub(crate) fn insert(port: Port) -> Result<u32, Fault> {
    PORTS.insert(Box::new(port))
}

/// The port of a handle, for one call.
pub(crate) fn enter(id: u32) -> Result<InUse<'static, Box<Port>>, Fault> {
    PORTS.enter(id)
}

/// A descriptor to wait on for a port's messages, and the length of the longest one.
pub(crate) fn watched(port: tautline_port) -> Result<(OwnedFd, usize), Fault> {
    let mut entered = enter(port.id)?;
    let bytes_max = entered.kind.message_bytes_max();
    let descriptor = entered.descriptor()?.try_clone_to_owned();
    let refused = |error: std::io::Error| Fault::new(Code::Refused, error.to_string());
    Ok((descriptor.map_err(refused)?, bytes_max))
}

/// Takes the next message, or the newest value, and returns its length. `None` too while another thread uses the port.
pub(crate) fn take_next(port: tautline_port, buffer: &mut [u8]) -> Option<MessageHead> {
    let mut entered = enter(port.id).ok()?;
    let Kind::Sampling(port) = &mut entered.kind else {
        let taken = entered.kind.receive(buffer, Wait::Poll).ok().flatten()?;
        return Some(MessageHead::new(taken.bytes as usize, taken.arrival_ns));
    };
    let mut newest = None;
    // The last of the values that are new, one for each source.
    for _ in 0..tautline::port::SOURCES_MAX {
        let Some(sample) = port.next_into(buffer, Wait::Poll).ok()? else {
            break;
        };
        let arrival_ns = sample.arrival.as_nanos();
        newest = Some(MessageHead::new(sample.length, arrival_ns));
    }
    newest
}

/// Closes a port.
pub(crate) fn close(id: u32) -> Result<(), Fault> {
    drop(PORTS.remove(id)?);
    Ok(())
}

fn port_number(number: u16) -> Result<PortNumber, Fault> {
    PortNumber::try_from(number).map_err(|error| PortError::from(error).into())
}

/// Closes a port, or a socket.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_port_close(port: tautline_port) -> c_int {
    coded(|| {
        close(port.id)?;
        Ok(0)
    })
}

/// Description of a port.
///
/// # Safety
/// `info` is null or the struct can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_port_info(
    port: tautline_port,
    info: *mut tautline_port_info,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("info", info) }?;
        let port = enter(port.id)?;
        let (kind, number) = match &port.kind {
            Kind::Queuing(port) => (TAUTLINE_QUEUING, port.number().get()),
            Kind::Sampling(port) => (TAUTLINE_SAMPLING, port.number().get()),
            Kind::Datagram(datagrams) => (TAUTLINE_DATAGRAM, datagrams.port.number()),
            Kind::Raw(port) => (TAUTLINE_RAW, port.ethertype().get()),
        };
        out.put(tautline_port_info {
            number,
            kind,
            message_bytes_max: port.kind.message_bytes_max() as u32,
        });
        Ok(0)
    })
}

/// Counters of a port.
///
/// # Safety
/// `counters` is null or the struct can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_port_counters(
    port: tautline_port,
    counters: *mut tautline_port_counters,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("counters", counters) }?;
        let counters = enter(port.id)?.counters();
        let missing = || Fault::new(Code::Internal, "the node does not know its port");
        out.put(counters.ok_or_else(missing)?);
        Ok(0)
    })
}

/// Resolves a neighbour's port, and waits for it on a bus until a deadline.
///
/// # Safety
/// `neighbour` is null or a text; `destination` is null or one can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_destination_of(
    port: tautline_port,
    neighbour: *const c_char,
    to: u16,
    deadline_ns: u64,
    destination: *mut tautline_destination,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (name, out) = unsafe {
            (
                pointer::text("neighbour", neighbour)?,
                Out::new("destination", destination)?,
            )
        };
        let deadline = Instant::from_nanos(deadline_ns);
        let mut entered = enter(port.id)?;
        let found = match &mut entered.kind {
            Kind::Queuing(port) => port.destination_until(name, port_number(to)?, deadline),
            Kind::Sampling(port) => port.destination_until(name, port_number(to)?, deadline),
            Kind::Datagram(datagrams) => datagrams.port.destination(name, to),
            Kind::Raw(_) => return Err(Code::WrongKind.into()),
        }?;
        out.put(found.into());
        Ok(0)
    })
}

/// The destination of all who follow a port on a bus.
///
/// # Safety
/// `destination` is null or one can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_readers_of(
    port: tautline_port,
    destination: *mut tautline_destination,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("destination", destination)? };
        let mut entered = enter(port.id)?;
        let readers = match &mut entered.kind {
            Kind::Queuing(port) => port.readers()?,
            Kind::Sampling(port) => port.readers()?,
            Kind::Datagram(_) | Kind::Raw(_) => return Err(Code::WrongKind.into()),
        };
        out.put(readers.into());
        Ok(0)
    })
}

/// Reads from now on what another port of a bus publishes for its readers.
///
/// # Safety
/// `neighbour` is null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_follow(
    port: tautline_port,
    neighbour: *const c_char,
    publisher: u16,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::text("neighbour", neighbour)? };
        let number = port_number(publisher)?;
        match &mut enter(port.id)?.kind {
            Kind::Queuing(port) => port.follow(name, number)?,
            Kind::Sampling(port) => port.follow(name, number)?,
            Kind::Datagram(_) | Kind::Raw(_) => return Err(Code::WrongKind.into()),
        }
        Ok(0)
    })
}

/// Sends an answer to the sender of a message.
///
/// # Safety
/// `source` is null or points to a source; `message` is null or `bytes` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_reply(
    port: tautline_port,
    source: *const tautline_source,
    priority: u8,
    message: *const c_void,
    bytes: usize,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let source = unsafe { pointer::value("source", source) }?;
        let message = Outgoing::new("message", message, bytes)?;
        let mut entered = enter(port.id)?;
        let priority = Priority::new(priority).ok_or(Code::BadArgument)?;
        // SAFETY: the caller's promise.
        unsafe { entered.reply(source, priority, message) }?;
        Ok(0)
    })
}

/// The sender that a source of a bus stands for, among the peers of port `own`.
fn sender_of(
    source: tautline_source,
    status: &NodeStatus,
    own: PortNumber,
) -> Result<Source, Fault> {
    let ports = status.ports.iter().filter(|port| port.key == own.into());
    let senders = ports.flat_map(|port| &port.peers).map(|peer| Source {
        address: peer.address,
        port: peer.port,
    });
    let mut senders = senders.filter(|sender| tautline_source::from(*sender) == source);
    match (senders.next(), senders.next()) {
        (Some(one), other) if other.is_none_or(|other| other == one) => Ok(one),
        _ => Err(Fault::new(
            Code::UnknownPeer,
            "the sender's port is not open any more",
        )),
    }
}

/// Sends a message.
///
/// # Safety
/// `message` is null or `bytes` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_send(
    port: tautline_port,
    destination: tautline_destination,
    priority: u8,
    message: *const c_void,
    bytes: usize,
) -> c_int {
    coded(|| {
        let message = Outgoing::new("message", message, bytes)?;
        let mut entered = enter(port.id)?;
        let priority = Priority::new(priority).ok_or(Code::BadArgument)?;
        let to = destination.into();
        // SAFETY: the caller's promise. It is used for ports that copy it into memory that C never sees.
        let read = || unsafe { message.read() };
        match &mut entered.kind {
            Kind::Queuing(port) => port.send(to, priority, read()?)?,
            Kind::Sampling(port) => port.send(to, priority, read()?)?,
            // SAFETY: the caller's promise.
            Kind::Datagram(datagrams) => unsafe { datagrams.send(to, priority, message) }?,
            Kind::Raw(_) => return Err(Code::WrongKind.into()),
        }
        Ok(0)
    })
}

/// Sends a frame as it is.
///
/// # Safety
/// `frame` is null or `bytes` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_send_frame(
    port: tautline_port,
    frame: *const c_void,
    bytes: usize,
) -> c_int {
    coded(|| {
        let frame = Outgoing::new("frame", frame, bytes)?;
        let mut entered = enter(port.id)?;
        let Kind::Raw(port) = &mut entered.kind else {
            return Err(Code::WrongKind.into());
        };
        // SAFETY: the caller's promise. The kernel copies it, and C does not see the slice.
        port.send(unsafe { frame.read() }?)?;
        Ok(0)
    })
}

/// Sends messages in their order.
///
/// # Safety
/// `batch` is null or `count` structs can be read there; of each, `message` is null or `bytes` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_send_batch(
    port: tautline_port,
    batch: *const tautline_outgoing,
    count: usize,
) -> c_int {
    coded(|| {
        if count > TAUTLINE_BATCH_MAX {
            let what = "a batch has at most 1,024 messages";
            return Err(Fault::new(Code::BadArgument, what));
        }
        // SAFETY: the caller's promise.
        let batch = unsafe { pointer::values("batch", batch, count) }?;
        let mut entered = enter(port.id)?;
        let mut sent = 0;
        while sent < count {
            // SAFETY: the caller's promise.
            match unsafe { entered.send_first(&batch[sent..]) } {
                Ok(taken @ 1..) => sent += taken,
                Err(fault) if sent == 0 => return Err(fault),
                // The reason is reported to the call that begins with that message.
                _ => break,
            }
        }
        Ok(sent as c_int)
    })
}

/// Receives the most urgent message, datagram or frame, and waits for one until a deadline.
///
/// # Safety
/// `buffer` is null or has room for `bytes` bytes; `message` is null or the struct can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_receive(
    port: tautline_port,
    deadline_ns: u64,
    buffer: *mut c_void,
    bytes: usize,
    message: *mut tautline_message,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (buffer, out) = unsafe {
            (
                pointer::buffer("buffer", buffer, bytes)?,
                Out::new("message", message)?,
            )
        };
        let mut entered = enter(port.id)?;
        let received = entered.kind.receive(buffer, wait_of(deadline_ns))?;
        Ok(match received {
            Some(received) => {
                out.put(received);
                1
            }
            None => 0,
        })
    })
}

/// Reads the last value of a sampling port, seen before or not.
///
/// # Safety
/// `buffer` is null or has room for `bytes` bytes; `sample` is null or the struct can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_read(
    port: tautline_port,
    buffer: *mut c_void,
    bytes: usize,
    sample: *mut tautline_sample,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (buffer, out) = unsafe {
            (
                pointer::buffer("buffer", buffer, bytes)?,
                Out::new("sample", sample)?,
            )
        };
        let mut entered = enter(port.id)?;
        Ok(put_sample(entered.sampling()?.read_into(buffer)?, out))
    })
}

/// Reads the next value of a sampling port that was not seen, and waits for one until a deadline.
///
/// # Safety
/// As [`tautline_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_next(
    port: tautline_port,
    deadline_ns: u64,
    buffer: *mut c_void,
    bytes: usize,
    sample: *mut tautline_sample,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (buffer, out) = unsafe {
            (
                pointer::buffer("buffer", buffer, bytes)?,
                Out::new("sample", sample)?,
            )
        };
        let mut entered = enter(port.id)?;
        let read = entered
            .sampling()?
            .next_into(buffer, wait_of(deadline_ns))?;
        Ok(put_sample(read, out))
    })
}

/// The wait that a deadline of C stands for.
fn wait_of(deadline_ns: u64) -> Wait {
    match deadline_ns {
        TAUTLINE_POLL => Wait::Poll,
        _ => Wait::Until(Instant::from_nanos(deadline_ns)),
    }
}

fn put_sample(read: Option<tautline::Sample>, out: Out<tautline_sample>) -> c_int {
    match read {
        Some(read) => {
            out.put(read.into());
            1
        }
        None => 0,
    }
}

/// The port's descriptor for poll, select or epoll. It stays the port's.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_descriptor(port: tautline_port) -> c_int {
    coded(|| {
        let mut entered = enter(port.id)?;
        Ok(entered.descriptor()?.as_raw_fd())
    })
}
