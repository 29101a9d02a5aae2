//! A TCP stream over the cable beside round trips, both of whose ends are the measuring thread's.
//!
//! Between two round trips the thread fills the sender's queue and empties the receiver's. The kernel sends from that
//! queue by a timer of its own at a limited rate, so that segments and acknowledgements cross the cable while a round
//! trip is under way, and no other thread runs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;
use tautline_testbed::hosts::Hosts;
use tautline_testbed::sys;

use crate::path::sides::Sides;
use crate::path::{PathError, tcp};

/// Bytes that a system call moves.
const CHUNK_BYTES: usize = 16_384;

/// Room of the sender's queue. Lower: the queue is empty before the round trip is over, and the stream has gaps.
/// Higher: the first round trips wait until it is full.
const QUEUE_BYTES: usize = 131_072;

/// A stream from host A to host B. It ends at once when this is dropped: what is queued is thrown away.
pub(super) struct Stream {
    sender: TcpStream,
    receiver: TcpStream,
    chunk: Box<[u8]>,
}

impl Stream {
    /// Connects over the hosts' first cable.
    pub(super) fn begin(hosts: &Hosts, bytes_per_s: u32) -> Result<Stream, PathError> {
        let [sender, receiver] = tcp::connection(Sides::Hosts(hosts, 0), 0)?;
        configure(&sender, &receiver, bytes_per_s)
            .map_err(PathError::io("configure a TCP stream"))?;
        Ok(Stream {
            sender,
            receiver,
            chunk: vec![0x5a; CHUNK_BYTES].into(),
        })
    }

    /// Fills and empties the queues as far as they allow, without waiting; returns the bytes that have arrived.
    pub(super) fn turn(&mut self) -> io::Result<u64> {
        while moved(self.sender.write(&self.chunk))? > 0 {}
        let mut arrived = 0;
        loop {
            match moved(self.receiver.read(&mut self.chunk))? {
                0 => return Ok(arrived),
                bytes => arrived += bytes as u64,
            }
        }
    }
}

fn configure(sender: &TcpStream, receiver: &TcpStream, bytes_per_s: u32) -> io::Result<()> {
    sys::set_pacing_rate(sender, bytes_per_s)?;
    sockopt::set_socket_send_buffer_size(sender, QUEUE_BYTES)?;
    for end in [sender, receiver] {
        end.set_nonblocking(true)?;
        // A reset when it is closed: the rest of the queue would be sent beside what is measured next.
        sockopt::set_socket_linger(end, Some(Duration::ZERO))?;
    }
    Ok(())
}

/// Bytes of a call on a socket; 0 if it would have to wait.
fn moved(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}
