//! Streams from host A to host B: over TCP, whose flow control is its own, and over kernel UDP and queuing ports with that
//! of [`window`](super::window).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use tautline::{Destination, Outgoing, Priority, QueuingOptions, QueuingPort};
use tautline_lab::hosts::{Host, Hosts};

use super::ExperimentError;
use super::window::{Datagrams, Sent, receive_stream, send_stream};
use crate::echo::tcp;
use crate::nodes::{HostNodes, NodesError, PEER, port_number};

/// Frames of one system call, as [`QueuingPort::send_batch`] sends them.
const BATCH: usize = 32;

/// Small messages between two flushes of a merging sender: enough for several full frames of the smallest ones.
const MERGED: usize = 256;

/// How long a blocked end sleeps before it looks whether it is to stop.
const BLOCKED_LOOK: Duration = Duration::from_millis(20);

/// Room of a UDP socket: a window of messages of one frame with the kernel's own bytes for each.
const UDP_ROOM_BYTES: usize = 4 << 20;

/// The sending end. Windows are in messages.
pub(super) enum Sender {
    Tcp(TcpStream),
    Datagrams(Box<dyn Datagrams>, u64),
}

/// The receiving end.
pub(super) enum Receiver {
    Tcp(TcpStream, Usage),
    Datagrams(Box<dyn Datagrams>, u64),
}

/// How TCP is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Whether small messages wait for others or for an acknowledgement, as TCP has it unless told otherwise (Nagle).
    pub(super) merges: bool,
    /// Whether the receiver reads as much as there is, up to 64 KiB, and cuts it into messages itself; else one message
    /// with each system call.
    pub(super) reads_many: bool,
}

impl Sender {
    /// Sends copies of `message` as fast as the path takes them, until `stop` is set.
    pub(super) fn run(&mut self, message: &[u8], stop: &AtomicBool) -> io::Result<Sent> {
        match self {
            Sender::Datagrams(path, window) => send_stream(path.as_mut(), message, *window, stop),
            Sender::Tcp(stream) => {
                let mut sent = Sent::default();
                while write_until(stream, message, stop)? {
                    sent.messages += 1;
                }
                Ok(sent)
            }
        }
    }
}

/// Writes a whole message; whether it came to that before `stop` was set. A message that was cut off is the last one.
fn write_until(stream: &mut TcpStream, message: &[u8], stop: &AtomicBool) -> io::Result<bool> {
    let mut rest = message;
    while !rest.is_empty() {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match stream.write(rest) {
            Ok(length) => rest = &rest[length..],
            Err(error) if is_nothing_yet(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl Receiver {
    /// Receives messages one by one until `stop` is set and nothing comes any more; adds their number to `received`.
    pub(super) fn run(
        &mut self,
        message_bytes: usize,
        received: &AtomicU64,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        match self {
            Receiver::Datagrams(path, window) => {
                receive_stream(path.as_mut(), *window, received, stop)
            }
            Receiver::Tcp(stream, usage) => {
                let mut buffer = vec![0; message_bytes.max(65_536)];
                let mut part = 0;
                loop {
                    let room = if usage.reads_many {
                        buffer.len()
                    } else {
                        message_bytes - part
                    };
                    match stream.read(&mut buffer[..room]) {
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        Ok(length) => part += length,
                        Err(error) if is_nothing_yet(&error) => {
                            if stop.load(Ordering::Relaxed) {
                                return Ok(());
                            }
                        }
                        Err(error) => return Err(error),
                    }
                    received.fetch_add((part / message_bytes) as u64, Ordering::Relaxed);
                    part %= message_bytes;
                }
            }
        }
    }
}

/// Both ends of a stream.
pub(super) type Ends = (Sender, Receiver);

/// Kernel TCP, blocking.
pub(super) fn over_tcp(
    hosts: &Hosts,
    cable: usize,
    port: u16,
    usage: Usage,
) -> Result<Ends, ExperimentError> {
    let [sending, receiving] = tcp::connect(hosts, cable, port)?;
    sending
        .set_nodelay(!usage.merges)
        .and_then(|()| sending.set_write_timeout(Some(BLOCKED_LOOK)))
        .and_then(|()| receiving.set_read_timeout(Some(BLOCKED_LOOK)))
        .map_err(ExperimentError::io("configure a TCP socket"))?;
    Ok((Sender::Tcp(sending), Receiver::Tcp(receiving, usage)))
}

/// Kernel UDP, blocking.
pub(super) fn over_udp(
    hosts: &Hosts,
    cable: usize,
    port: u16,
    window: u64,
) -> Result<Ends, ExperimentError> {
    let [a, b] = Host::BOTH.map(|host| SocketAddr::from((hosts.end(host, cable).address(), port)));
    let open = |host, own: SocketAddr, peer: SocketAddr| -> Result<Udp, ExperimentError> {
        let open = || -> io::Result<Udp> {
            let socket = UdpSocket::bind(own)?;
            socket.connect(peer)?;
            // Forced where permitted, else as far as the limit allows.
            setsockopt(&socket, sockopt::RcvBufForce, &UDP_ROOM_BYTES)
                .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &UDP_ROOM_BYTES))?;
            Ok(Udp {
                socket,
                buffer: vec![0; 65_536],
                limit: Duration::ZERO,
            })
        };
        hosts
            .inside(host, open)?
            .map_err(ExperimentError::io("open a UDP socket"))
    };
    let ends = (open(Host::A, a, b)?, open(Host::B, b, a)?);
    Ok((
        Sender::Datagrams(Box::new(ends.0), window),
        Receiver::Datagrams(Box::new(ends.1), window),
    ))
}

/// How a port sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sends {
    /// A message with each system call.
    OneByOne,
    /// Many frames with each.
    Batches,
    /// Small messages merged into frames.
    Merged,
}

/// Queuing ports; a receiver that finds nothing looks again for `spin` before it sleeps.
pub(super) fn over_ports(
    hosts: &Hosts,
    nodes: &HostNodes,
    number: u16,
    window: u64,
    (sends, spin): (Sends, Duration),
) -> Result<Ends, ExperimentError> {
    let number = port_number(number);
    let options = QueuingOptions {
        depth: (2 * window as u32).next_power_of_two(),
        spin,
        ..QueuingOptions::default()
    };
    let open = |host| -> Result<Port, ExperimentError> {
        let mut port = nodes.port(hosts, host, |node| node.queuing_port(number, &options))?;
        let to = port.destination(PEER, number).map_err(NodesError::from)?;
        Ok(Port {
            buffer: vec![0; port.message_bytes_max()],
            port,
            to,
            sends,
        })
    };
    Ok((
        Sender::Datagrams(Box::new(open(Host::A)?), window),
        Receiver::Datagrams(Box::new(open(Host::B)?), window),
    ))
}

struct Udp {
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// The socket's time limit, which is set only when it changes.
    limit: Duration,
}

impl Datagrams for Udp {
    fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        for (index, message) in messages.chunks(message_bytes).enumerate() {
            match self.socket.send(message) {
                Ok(_) => {}
                Err(error) if is_nothing_yet(&error) => return Ok(index),
                Err(error) => return Err(error),
            }
        }
        Ok(messages.len() / message_bytes)
    }

    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
        let flags = if limit.is_zero() {
            MsgFlags::MSG_DONTWAIT
        } else {
            if limit != self.limit {
                self.socket.set_read_timeout(Some(limit))?;
                self.limit = limit;
            }
            MsgFlags::empty()
        };
        match recv(self.socket.as_raw_fd(), &mut self.buffer, flags) {
            Ok(length) => {
                take(&self.buffer[..length]);
                Ok(1)
            }
            Err(error) => match io::Error::from(error) {
                error if is_nothing_yet(&error) => Ok(0),
                error => Err(error),
            },
        }
    }
}

struct Port {
    port: QueuingPort,
    to: Destination,
    buffer: Vec<u8>,
    sends: Sends,
}

impl Port {
    // What has no room now is counted by the port, and sent again by the caller.

    fn send_one_by_one(&mut self, messages: &[u8], message_bytes: usize) -> usize {
        let sends = messages.chunks(message_bytes);
        sends
            .take_while(|message| self.port.send(self.to, Priority::LOWEST, message).is_ok())
            .count()
    }

    fn send_batches(&mut self, messages: &[u8], message_bytes: usize) -> usize {
        let mut sent = 0;
        for part in messages.chunks(message_bytes * BATCH) {
            let count = part.len() / message_bytes;
            let batch: [Outgoing<'_>; BATCH] = std::array::from_fn(|index| Outgoing {
                to: self.to,
                priority: Priority::LOWEST,
                message: part
                    .get(index * message_bytes..(index + 1) * message_bytes)
                    .unwrap_or_default(),
            });
            let taken = self.port.send_batch(&batch[..count]).unwrap_or(0);
            sent += taken;
            if taken < count {
                break;
            }
        }
        sent
    }

    fn merge(&mut self, messages: &[u8], message_bytes: usize) -> usize {
        let merged = messages
            .chunks(message_bytes)
            .take_while(|message| self.port.merge(self.to, Priority::LOWEST, message).is_ok())
            .count();
        // What stays merged goes with the next ones.
        let _later = self.port.flush();
        merged
    }
}

impl Datagrams for Port {
    fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        Ok(match self.sends {
            Sends::OneByOne => self.send_one_by_one(messages, message_bytes),
            Sends::Batches => self.send_batches(messages, message_bytes),
            Sends::Merged => self.merge(messages, message_bytes),
        })
    }

    fn batch(&self) -> usize {
        match self.sends {
            Sends::OneByOne => 1,
            Sends::Batches => BATCH,
            Sends::Merged => MERGED,
        }
    }

    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
        let message = if limit.is_zero() {
            self.port.receive(&mut self.buffer)
        } else {
            let deadline = tautline::now() + limit;
            self.port.receive_until(deadline, &mut self.buffer)
        };
        let message = message.map_err(io::Error::other)?;
        Ok(message.map_or(0, |message| {
            take(&self.buffer[..message.length]);
            1
        }))
    }
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
