//! Streams from host A to host B: over TCP, whose flow control is its own, and over kernel UDP and queuing ports with
//! that of [`window`](super::window).

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tautline_testbed::hosts::Hosts;

use super::ExperimentError;
pub(super) use super::ends::Sends;
use super::ends::{self, Waiting};
use super::window::{Datagrams, Sent, receive_stream, send_stream};
use crate::kernel::{self, Sides, is_nothing_yet};
use crate::nodes::HostNodes;

/// How long a blocked end sleeps before it looks whether it is to stop.
const BLOCKED_LOOK: Duration = Duration::from_millis(20);

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
            Sender::Datagrams(path, window) => {
                send_stream(path.as_mut(), message, *window, u64::MAX, stop)
            }
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
                receive_stream(path.as_mut(), *window, received, stop).map(drop)
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
    let [sending, receiving] = kernel::tcp_pair(Sides::Hosts(hosts, cable), port)?;
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
    let ends = ends::kernel_udp(hosts, cable, port, (Sends::OneByOne, Waiting::Sleep))?;
    Ok(with_window(ends, window))
}

/// Queuing ports; a receiver that finds nothing looks again for `spin` before it sleeps.
pub(super) fn over_ports(
    hosts: &Hosts,
    nodes: &HostNodes,
    number: u16,
    window: u64,
    (sends, spin): (Sends, Duration),
) -> Result<Ends, ExperimentError> {
    let options = ends::port_options(spin, 2 * window as u32);
    let ends = ends::queuing(hosts, nodes, number, &options, sends)?;
    Ok(with_window(ends, window))
}

fn with_window([sending, receiving]: [Box<dyn Datagrams>; 2], window: u64) -> Ends {
    (
        Sender::Datagrams(sending, window),
        Receiver::Datagrams(receiving, window),
    )
}
