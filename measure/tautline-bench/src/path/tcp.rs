//! Kernel TCP: a connection from A to B, the only place where a path opens one. A message has no header: its length is
//! what both sides agreed on.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use tautline_testbed::hosts::Host;

use super::sides::Sides;
use super::{Arrival, BLOCKED_LOOK, End, PathError, Waiting, is_nothing_yet};

/// Bytes that one read may bring, and the largest message.
const BUFFER_BYTES: usize = 65_536;
/// How long a stream may take no byte before it is given up. Lower: a stall of a shared machine ends the
/// measurement. Higher: it hangs on a dead connection.
const STUCK: Duration = Duration::from_secs(2);

/// One end.
pub struct KernelTcp {
    stream: TcpStream,
    waiting: Waiting,
    /// Whether [`End::wait_many`] reads as much as there is; else one message with each system call.
    reads_many: bool,
    /// The socket's time limit, which is set only when it changes.
    limit: Duration,
    /// One holds the message that was taken last, the other what has come of the next one.
    buffers: [Box<[u8]>; 2],
    taken: usize,
    length: usize,
    filled: usize,
    /// Size of the round trips so far, their number, and the messages that were taken: the difference was given up and
    /// is still to arrive.
    reply_bytes: usize,
    asked: u64,
    replies: u64,
}

/// A blocking connection from A to a listening socket on side B: its end in A, and its end in B. Port 0 leaves the
/// choice to the kernel.
pub fn connection(sides: Sides<'_>, port: u16) -> Result<[TcpStream; 2], PathError> {
    let own = SocketAddr::from((sides.address(Host::B), port));
    let listener = sides
        .inside(Host::B, || TcpListener::bind(own))?
        .map_err(PathError::io("listen for TCP"))?;
    let address = listener
        .local_addr()
        .map_err(PathError::io("listen for TCP"))?;
    let a = sides
        .inside(Host::A, || TcpStream::connect(address))?
        .map_err(PathError::io("connect over TCP"))?;
    let (b, _) = listener
        .accept()
        .map_err(PathError::io("accept over TCP"))?;
    Ok([a, b])
}

/// Both ends of a connection without delay (`TCP_NODELAY`).
pub fn pair(sides: Sides<'_>, port: u16, waiting: Waiting) -> Result<[KernelTcp; 2], PathError> {
    let [a, b] = connection(sides, port)?;
    let end =
        |stream| KernelTcp::new(stream, waiting).map_err(PathError::io("configure a TCP socket"));
    Ok([end(a)?, end(b)?])
}

impl KernelTcp {
    fn new(stream: TcpStream, waiting: Waiting) -> io::Result<KernelTcp> {
        stream.set_nodelay(true)?;
        match waiting {
            Waiting::Spin => stream.set_nonblocking(true)?,
            _ => stream.set_write_timeout(Some(BLOCKED_LOOK))?,
        }
        Ok(KernelTcp {
            stream,
            waiting,
            reads_many: false,
            limit: Duration::ZERO,
            buffers: [(); 2].map(|()| vec![0; BUFFER_BYTES].into()),
            taken: 0,
            length: 0,
            filled: 0,
            reply_bytes: 0,
            asked: 0,
            replies: 0,
        })
    }

    /// Lets small messages wait for others or for an acknowledgement, as TCP has it unless told otherwise (Nagle).
    pub fn merging(self) -> Result<KernelTcp, PathError> {
        self.stream
            .set_nodelay(false)
            .map_err(PathError::io("configure a TCP socket"))?;
        Ok(self)
    }

    /// Reads as much as there is, up to 64 KiB, where messages are only counted. For an end that blocks.
    #[must_use]
    pub fn reading_many(mut self) -> KernelTcp {
        self.reads_many = true;
        self
    }

    /// Reads once, up to `bytes` of the present message; whether anything came.
    #[inline]
    fn read(&mut self, bytes: usize, flags: RecvFlags) -> io::Result<bool> {
        let room = &mut self.buffers[1 - self.taken][self.filled..bytes];
        match recv(&self.stream, room, flags) {
            Ok((_, 0)) => Err(closed()),
            Ok((_, length)) => {
                self.filled += length;
                Ok(true)
            }
            Err(error) => match io::Error::from(error) {
                error if is_nothing_yet(&error) => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Reads until a message is whole or nothing comes. A part of a message is kept for the next call.
    #[inline]
    fn fill(&mut self, bytes: usize, flags: RecvFlags) -> io::Result<Option<Arrival>> {
        while self.filled < bytes {
            if !self.read(bytes, flags)? {
                return Ok(None);
            }
        }
        (self.taken, self.length, self.filled) = (1 - self.taken, bytes, 0);
        self.replies += 1;
        Ok(Some(Arrival { stamp: None }))
    }

    /// Has the next blocking read wait for `limit` at most.
    fn limit(&mut self, limit: Duration) -> io::Result<RecvFlags> {
        if self.waiting != Waiting::Spin && limit != self.limit {
            // Zero would mean for ever.
            let limit = limit.max(Duration::from_micros(1));
            self.stream.set_read_timeout(Some(limit))?;
            self.limit = limit;
        }
        Ok(RecvFlags::empty())
    }

    /// Takes the replies that are owed in the old size before the size changes.
    fn settle(&mut self, limit: Duration) -> io::Result<()> {
        while self.replies < self.asked {
            if self.wait(self.reply_bytes, limit)?.is_none() {
                let bytes = (self.asked - self.replies) as usize * self.reply_bytes;
                return Err(io::Error::other(format!(
                    "{bytes} bytes of earlier replies did not arrive"
                )));
            }
        }
        Ok(())
    }
}

/// Writes all of a message; a stream cannot leave one half sent and go on.
fn write_whole(stream: &mut TcpStream, message: &[u8]) -> io::Result<bool> {
    let mut rest = message;
    let mut stuck = None;
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(0) => return Err(closed()),
            Ok(length) => (rest, stuck) = (&rest[length..], None),
            Err(error) if is_nothing_yet(&error) => {
                let now = Instant::now();
                if now >= *stuck.get_or_insert(now + STUCK) {
                    return Err(error);
                }
                std::hint::spin_loop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn closed() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the other side closed the connection",
    )
}

impl End for KernelTcp {
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        write_whole(&mut self.stream, message)
    }

    fn send_back(&mut self) -> io::Result<bool> {
        let message = &self.buffers[self.taken][..self.length];
        write_whole(&mut self.stream, message)
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> io::Result<Option<Arrival>> {
        self.fill(bytes, RecvFlags::DONTWAIT)
    }

    fn message(&self) -> &[u8] {
        &self.buffers[self.taken][..self.length]
    }

    fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        match self.waiting {
            Waiting::Spin => super::spin(self, bytes, limit),
            _ => {
                let flags = self.limit(limit)?;
                self.fill(bytes, flags)
            }
        }
    }

    fn wait_many(&mut self, bytes: usize, limit: Duration) -> io::Result<u64> {
        if !self.reads_many {
            return Ok(u64::from(self.wait(bytes, limit)?.is_some()));
        }
        let flags = self.limit(limit)?;
        self.read(BUFFER_BYTES, flags)?;
        let whole = self.filled / bytes;
        self.filled %= bytes;
        Ok(whole as u64)
    }

    fn round_trip(&mut self, payload: &[u8], limit: Duration) -> io::Result<bool> {
        if payload.len() != self.reply_bytes {
            self.settle(limit)?;
            self.reply_bytes = payload.len();
        }
        self.asked += 1;
        super::round_trip(self, payload, limit)
    }
}
