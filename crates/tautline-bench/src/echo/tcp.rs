//! Round trips over a kernel TCP connection without delay (`TCP_NODELAY`). A message has no header:
//! its length is what both sides agreed on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{
    BLOCKED_LOOK, Echo, EchoError, Ends, PathOptions, RoundTrip, SPINS_PER_LOOK, Seen, Waiting,
    answers,
};
use crate::kernel::{self, Sides, is_nothing_yet};
use tautline_testbed::hosts::Hosts;

const PORT_SPIN: u16 = 7200;
const PORT_BLOCK: u16 = 7201;

pub(super) fn open(
    hosts: &Hosts,
    options: &PathOptions,
    waiting: Waiting,
) -> Result<Ends, EchoError> {
    let port = match waiting {
        Waiting::Spin => PORT_SPIN,
        Waiting::Block => PORT_BLOCK,
    };
    let [asking, answering] = kernel::tcp_pair(Sides::Hosts(hosts, 0), port)?;
    let client = Client {
        end: End::new(
            asking,
            waiting,
            options.time_limit,
            options.payload_bytes_max,
        )?,
        time_limit: options.time_limit,
        waiting,
        owed: 0,
        message_bytes: 0,
    };
    let server = Server {
        end: End::new(answering, waiting, BLOCKED_LOOK, options.payload_bytes_max)?,
    };
    Ok((Box::new(client), Box::new(server)))
}

/// One end of the connection with a message that may have arrived in part.
struct End {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl End {
    fn new(
        stream: TcpStream,
        waiting: Waiting,
        time_limit: Duration,
        bytes_max: usize,
    ) -> Result<End, EchoError> {
        let configure = || {
            stream.set_nodelay(true)?;
            match waiting {
                Waiting::Spin => stream.set_nonblocking(true),
                Waiting::Block => {
                    stream.set_write_timeout(Some(time_limit))?;
                    stream.set_read_timeout(Some(time_limit))
                }
            }
        };
        configure().map_err(EchoError::io("configure a TCP socket"))?;
        Ok(End {
            stream,
            buffer: vec![0; bytes_max],
            filled: 0,
        })
    }

    /// Reads until a message of `bytes` is whole, or until `give_up` says so when nothing came.
    /// What came in part is kept for the next call.
    fn fill(&mut self, bytes: usize, mut give_up: impl FnMut() -> bool) -> Result<bool, EchoError> {
        while self.filled < bytes {
            match self.stream.read(&mut self.buffer[self.filled..bytes]) {
                Ok(0) => return Err(EchoError::Closed),
                Ok(length) => self.filled += length,
                Err(error) if is_nothing_yet(&error) => {
                    if give_up() {
                        return Ok(false);
                    }
                    std::hint::spin_loop();
                }
                Err(source) => {
                    return Err(EchoError::Io {
                        operation: "receive over TCP",
                        source,
                    });
                }
            }
        }
        Ok(true)
    }
}

/// Writes all of `bytes`; a stream cannot leave a message half sent and go on.
fn write_whole(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    mut give_up: impl FnMut() -> bool,
) -> Result<(), EchoError> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(EchoError::Closed),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if is_nothing_yet(&error) => {
                if give_up() {
                    return Err(EchoError::OutOfStep { bytes: bytes.len() });
                }
            }
            Err(source) => {
                return Err(EchoError::Io {
                    operation: "send over TCP",
                    source,
                });
            }
        }
    }
    Ok(())
}

struct Client {
    end: End,
    waiting: Waiting,
    time_limit: Duration,
    /// Replies that were given up and are still to arrive, each of `message_bytes`.
    owed: usize,
    message_bytes: usize,
}

impl Client {
    /// A clock that is asked seldom while spinning.
    fn give_up(&self) -> impl FnMut() -> bool + use<> {
        let (start, time_limit) = (Instant::now(), self.time_limit);
        let every = if self.waiting == Waiting::Spin {
            SPINS_PER_LOOK
        } else {
            1
        };
        let mut looks = 0u32;
        move || {
            looks = looks.wrapping_add(1);
            looks.is_multiple_of(every) && start.elapsed() >= time_limit
        }
    }

    /// Takes the replies that are owed in the old size before the size changes.
    fn settle(&mut self) -> Result<(), EchoError> {
        while self.owed > 0 {
            let give_up = self.give_up();
            if !self.end.fill(self.message_bytes, give_up)? {
                return Err(EchoError::OutOfStep {
                    bytes: self.owed * self.message_bytes,
                });
            }
            self.end.filled = 0;
            self.owed -= 1;
        }
        Ok(())
    }
}

impl RoundTrip for Client {
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError> {
        if payload.len() != self.message_bytes {
            self.settle()?;
            self.message_bytes = payload.len();
        }
        let mut give_up = self.give_up();
        write_whole(&mut self.end.stream, payload, &mut give_up)?;
        loop {
            if !self.end.fill(payload.len(), &mut give_up)? {
                self.owed += 1;
                return Err(EchoError::TimedOut);
            }
            self.end.filled = 0;
            if answers(&self.end.buffer[..payload.len()], payload) {
                return Ok(());
            }
            self.owed = self.owed.saturating_sub(1);
        }
    }

    fn describe(&self) -> String {
        format!("kernel TCP without delay, {}", self.waiting.text())
    }
}

struct Server {
    end: End,
}

impl Echo for Server {
    fn serve(
        &mut self,
        payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError> {
        // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
        let stopped = || stop.load(Ordering::Relaxed);
        while self.end.fill(payload_bytes, stopped)? {
            seen(&self.end.buffer[..payload_bytes]);
            write_whole(
                &mut self.end.stream,
                &self.end.buffer[..payload_bytes],
                stopped,
            )?;
            self.end.filled = 0;
        }
        Ok(())
    }
}
