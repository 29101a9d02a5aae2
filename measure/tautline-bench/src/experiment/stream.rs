//! Streams from host A to host B: over TCP, whose flow control is its own, and over kernel UDP and queuing ports with
//! that of [`window`](super::window).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tautline_testbed::hosts::Hosts;

use super::ends;
use super::window::{Sent, receive_stream, send_stream};
use crate::path::nodes::NodePair;
use crate::path::sides::Sides;
use crate::path::{BLOCKED_LOOK, End, PathError, Sends, Waiting, tcp};

/// One end of a stream.
pub(super) struct StreamEnd {
    end: Box<dyn End>,
    /// Messages under way at most; nothing where the path has flow control of its own.
    window: Option<u64>,
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

impl StreamEnd {
    /// Sends copies of `message` as fast as the path takes them, until `stop` is set.
    pub(super) fn send(&mut self, message: &[u8], stop: &AtomicBool) -> io::Result<Sent> {
        if let Some(window) = self.window {
            return send_stream(self.end.as_mut(), message, window, u64::MAX, stop);
        }
        let mut sent = Sent::default();
        // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
        while !stop.load(Ordering::Relaxed) {
            sent.messages += u64::from(self.end.send(message)?);
        }
        Ok(sent)
    }

    /// Receives messages until `stop` is set and nothing comes any more; adds their number to `received`.
    pub(super) fn receive(
        &mut self,
        message_bytes: usize,
        received: &AtomicU64,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        if let Some(window) = self.window {
            let end = self.end.as_mut();
            return receive_stream(end, message_bytes, window, received, stop).map(drop);
        }
        loop {
            let came = self.end.wait_many(message_bytes, BLOCKED_LOOK)?;
            if came == 0 && stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            // Relaxed: a figure that is read while it grows.
            received.fetch_add(came, Ordering::Relaxed);
        }
    }
}

/// Both ends of a stream: the sending one, and the receiving one.
pub(super) type Ends = (StreamEnd, StreamEnd);

/// Kernel TCP, blocking.
pub(super) fn over_tcp(
    hosts: &Hosts,
    cable: usize,
    port: u16,
    usage: Usage,
) -> Result<Ends, PathError> {
    let [mut sending, mut receiving] = tcp::pair(Sides::Hosts(hosts, cable), port, Waiting::Block)?;
    if usage.merges {
        sending = sending.merging()?;
    }
    if usage.reads_many {
        receiving = receiving.reading_many();
    }
    Ok(stream([Box::new(sending), Box::new(receiving)], None))
}

/// Kernel UDP, blocking.
pub(super) fn over_udp(
    hosts: &Hosts,
    cable: usize,
    port: u16,
    window: u64,
) -> Result<Ends, PathError> {
    let ends = ends::kernel_udp(hosts, cable, port, (Sends::OneByOne, Waiting::Block))?;
    Ok(stream(ends, Some(window)))
}

/// Queuing ports; a receiver that finds nothing looks again for `spin` before it sleeps.
pub(super) fn over_ports(
    nodes: &NodePair<'_>,
    number: u16,
    window: u64,
    (sends, spin): (Sends, Duration),
) -> Result<Ends, PathError> {
    let options = ends::port_options(spin, 2 * window as u32);
    let ends = ends::queuing(nodes, number, &options, sends)?;
    Ok(stream(ends, Some(window)))
}

fn stream(ends: ends::Ends, window: Option<u64>) -> Ends {
    let [sending, receiving] = ends.map(|end| StreamEnd { end, window });
    (sending, receiving)
}
