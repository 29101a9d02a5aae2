//! Ends of paths that carry datagrams from host A to host B and back: kernel UDP, and Tautline's queuing ports and
//! ports of plain UDP.

use std::io::{self, IoSlice};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recv, sendmmsg, setsockopt, sockopt};
use tautline::port::BATCH_FRAMES;
use tautline::{Destination, Outgoing, Priority, QueuingOptions, QueuingPort, UdpPort};
use tautline_testbed::hosts::{Host, Hosts};

use super::ExperimentError;
use super::window::Datagrams;
use crate::kernel::{self, Sides, is_nothing_yet};
use crate::nodes::{HostNodes, NodesError, PEER, port_number};

/// Room of a UDP socket: a window of messages of one frame with the kernel's own bytes for each.
const UDP_ROOM_BYTES: usize = 4 << 20;
/// Empty looks between two looks at the clock. Lower slows the spin down by a clock read, higher only delays giving up.
const LOOKS_PER_CLOCK: u32 = 64;
/// Frames of one system call, as ports send them; kernel UDP is given the same.
const BATCH: usize = BATCH_FRAMES;
/// Small messages between two flushes of a merging sender: enough for several full frames of the smallest ones.
const MERGED: usize = 256;

/// How an end waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Sleep,
    Spin,
}

/// How an end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sends {
    /// A message with each system call.
    OneByOne,
    /// Many frames with each.
    Batches,
    /// Small messages merged into frames.
    Merged,
}

type Ends = [Box<dyn Datagrams>; 2];

/// Kernel UDP.
pub(super) fn kernel_udp(
    hosts: &Hosts,
    cable: usize,
    port: u16,
    (sends, waiting): (Sends, Waiting),
) -> Result<Ends, ExperimentError> {
    let [a, b] = kernel::udp_pair(Sides::Hosts(hosts, cable), port)?;
    Ok([
        kernel_end(a, (sends, waiting))?,
        kernel_end(b, (sends, waiting))?,
    ])
}

fn kernel_end(
    socket: UdpSocket,
    (sends, waiting): (Sends, Waiting),
) -> Result<Box<dyn Datagrams>, ExperimentError> {
    // Forced where permitted, else as far as the limit allows.
    setsockopt(&socket, sockopt::RcvBufForce, &UDP_ROOM_BYTES)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &UDP_ROOM_BYTES))
        .map_err(io::Error::from)
        .map_err(ExperimentError::io("give a UDP socket room"))?;
    Ok(Box::new(Udp {
        socket,
        buffer: vec![0; 65_536],
        waiting,
        batches: sends == Sends::Batches,
        limit: Duration::ZERO,
    }))
}

/// Options of a port for `depth` frames at once, whose receiver looks for `spin` before it sleeps.
pub(super) fn port_options(spin: Duration, depth: u32) -> QueuingOptions {
    QueuingOptions {
        depth: depth.next_power_of_two(),
        spin,
        ..QueuingOptions::default()
    }
}

/// Queuing ports.
pub(super) fn queuing(
    hosts: &Hosts,
    nodes: &HostNodes,
    number: u16,
    options: &QueuingOptions,
    sends: Sends,
) -> Result<Ends, ExperimentError> {
    let number = port_number(number);
    let open = |host| -> Result<Box<dyn Datagrams>, ExperimentError> {
        let mut port = nodes.port(hosts, host, |node| node.queuing_port(number, options))?;
        let to = port.destination(PEER, number).map_err(NodesError::from)?;
        Ok(Box::new(Port {
            buffer: vec![0; port.message_bytes_max()],
            port,
            to,
            sends,
        }))
    };
    Ok([open(Host::A)?, open(Host::B)?])
}

/// Ports of plain UDP, which merge nothing.
pub(super) fn plain_udp(
    hosts: &Hosts,
    nodes: &HostNodes,
    number: u16,
    options: &QueuingOptions,
    sends: Sends,
) -> Result<Ends, ExperimentError> {
    let open = |host| plain_end(hosts, nodes, host, (number, options), sends);
    Ok([open(Host::A)?, open(Host::B)?])
}

/// From a port of plain UDP to a socket of the kernel, which spins: a datagram above a frame leaves in IP fragments.
pub(super) fn plain_udp_to_kernel(
    hosts: &Hosts,
    nodes: &HostNodes,
    number: u16,
    options: &QueuingOptions,
) -> Result<Ends, ExperimentError> {
    let receiving = kernel::udp_end(Sides::Hosts(hosts, 0), Host::B, number)?;
    Ok([
        plain_end(hosts, nodes, Host::A, (number, options), Sends::OneByOne)?,
        kernel_end(receiving, (Sends::OneByOne, Waiting::Spin))?,
    ])
}

fn plain_end(
    hosts: &Hosts,
    nodes: &HostNodes,
    host: Host,
    (number, options): (u16, &QueuingOptions),
    sends: Sends,
) -> Result<Box<dyn Datagrams>, ExperimentError> {
    let mut port = nodes.port(hosts, host, |node| node.udp_port(number, options))?;
    let to = port.destination(PEER, number).map_err(NodesError::from)?;
    Ok(Box::new(PlainUdp {
        buffer: vec![0; port.message_bytes_max()],
        port,
        to,
        batches: sends == Sends::Batches,
    }))
}

struct Udp {
    socket: UdpSocket,
    buffer: Vec<u8>,
    waiting: Waiting,
    /// Whether many datagrams go with each system call.
    batches: bool,
    /// The socket's time limit, which is set only when it changes.
    limit: Duration,
}

impl Udp {
    fn look(&mut self, flags: MsgFlags, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
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

    fn spin(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                let came = self.look(MsgFlags::MSG_DONTWAIT, take)?;
                if came > 0 {
                    return Ok(came);
                }
            }
            if start.elapsed() >= limit {
                return Ok(0);
            }
        }
    }
}

impl Udp {
    fn send_batches(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        // The kernel's view of a batch, which no other thread may have: made anew for each call, below 1 % of its cost.
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
        let mut sent = 0;
        for part in messages.chunks(message_bytes * BATCH) {
            let slices: Vec<_> = part
                .chunks(message_bytes)
                .map(|message| [IoSlice::new(message)])
                .collect();
            let connected = [None; BATCH];
            let result = sendmmsg(
                self.socket.as_raw_fd(),
                &mut headers,
                &slices,
                &connected[..slices.len()],
                [],
                MsgFlags::empty(),
            );
            let taken = match result.map(Iterator::count).map_err(io::Error::from) {
                Ok(taken) => taken,
                Err(error) if is_nothing_yet(&error) => 0,
                Err(error) => return Err(error),
            };
            sent += taken;
            if taken < slices.len() {
                break;
            }
        }
        Ok(sent)
    }

    fn send_one_by_one(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        for (index, message) in messages.chunks(message_bytes).enumerate() {
            match self.socket.send(message) {
                Ok(_) => {}
                Err(error) if is_nothing_yet(&error) => return Ok(index),
                Err(error) => return Err(error),
            }
        }
        Ok(messages.len() / message_bytes)
    }
}

impl Datagrams for Udp {
    fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        if self.batches {
            self.send_batches(messages, message_bytes)
        } else {
            self.send_one_by_one(messages, message_bytes)
        }
    }

    fn batch(&self) -> usize {
        if self.batches { BATCH } else { 1 }
    }

    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
        if limit.is_zero() {
            return self.look(MsgFlags::MSG_DONTWAIT, take);
        }
        if self.waiting == Waiting::Spin {
            return self.spin(limit, take);
        }
        if limit != self.limit {
            self.socket.set_read_timeout(Some(limit))?;
            self.limit = limit;
        }
        self.look(MsgFlags::empty(), take)
    }
}

struct Port {
    port: QueuingPort,
    to: Destination,
    buffer: Vec<u8>,
    sends: Sends,
}

impl Port {
    // The port counts a message that has no room now, and the caller sends it again.

    fn send_one_by_one(&mut self, messages: &[u8], message_bytes: usize) -> usize {
        let sends = messages.chunks(message_bytes);
        sends
            .take_while(|message| self.port.send(self.to, Priority::LOWEST, message).is_ok())
            .count()
    }

    fn merge(&mut self, messages: &[u8], message_bytes: usize) -> usize {
        let merged = messages
            .chunks(message_bytes)
            .take_while(|message| self.port.merge(self.to, Priority::LOWEST, message).is_ok())
            .count();
        // Messages that stay merged go with the next ones.
        let _later = self.port.flush();
        merged
    }
}

/// Messages that lie one after the other, handed to `send` in batches until it takes no more; how many it took.
fn send_batches<E>(
    to: Destination,
    messages: &[u8],
    message_bytes: usize,
    mut send: impl FnMut(&[Outgoing<'_>]) -> Result<usize, E>,
) -> usize {
    let mut sent = 0;
    for part in messages.chunks(message_bytes * BATCH) {
        let count = part.len() / message_bytes;
        let batch: [Outgoing<'_>; BATCH] = std::array::from_fn(|index| Outgoing {
            to,
            priority: Priority::LOWEST,
            message: part
                .get(index * message_bytes..(index + 1) * message_bytes)
                .unwrap_or_default(),
        });
        let taken = send(&batch[..count]).unwrap_or(0);
        sent += taken;
        if taken < count {
            break;
        }
    }
    sent
}

impl Datagrams for Port {
    fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        Ok(match self.sends {
            Sends::OneByOne => self.send_one_by_one(messages, message_bytes),
            Sends::Batches => send_batches(self.to, messages, message_bytes, |batch| {
                self.port.send_batch(batch)
            }),
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
        let length = message.map_err(io::Error::other)?.map(|one| one.length);
        Ok(taken(length, &self.buffer, take))
    }
}

struct PlainUdp {
    port: UdpPort,
    to: Destination,
    buffer: Vec<u8>,
    /// Whether many datagrams go with each system call.
    batches: bool,
}

impl Datagrams for PlainUdp {
    fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        // As with a queuing port, what has no room now is counted by the port, and sent again by the caller.
        if self.batches {
            return Ok(send_batches(self.to, messages, message_bytes, |batch| {
                self.port.send_batch(batch)
            }));
        }
        let sends = messages.chunks(message_bytes);
        Ok(sends
            .take_while(|message| {
                let sent = self.port.send_to(self.to, Priority::LOWEST, message);
                sent.is_ok()
            })
            .count())
    }

    fn batch(&self) -> usize {
        if self.batches { BATCH } else { 1 }
    }

    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
        let datagram = if limit.is_zero() {
            self.port.receive(&mut self.buffer)
        } else {
            let deadline = tautline::now() + limit;
            self.port.receive_until(deadline, &mut self.buffer)
        };
        let length = datagram.map_err(io::Error::other)?.map(|one| one.length);
        Ok(taken(length, &self.buffer, take))
    }
}

/// Hands over what lies in a buffer, if anything came; how many messages that were.
fn taken(length: Option<usize>, buffer: &[u8], take: &mut dyn FnMut(&[u8])) -> u64 {
    length.map_or(0, |length| {
        take(&buffer[..length]);
        1
    })
}
