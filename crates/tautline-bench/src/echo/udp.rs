//! Round trips over the kernel's UDP sockets.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{
    BLOCKED_LOOK, Echo, EchoError, Ends, PathOptions, RoundTrip, SPINS_PER_LOOK, Seen, Waiting,
    answers,
};
use crate::kernel::{self, Sides, is_nothing_yet};
use tautline_testbed::hosts::Hosts;

/// UDP ports of the two kinds of waiting, which may be open side by side.
const PORT_SPIN: u16 = 7100;
const PORT_BLOCK: u16 = 7101;

pub(super) fn open(
    hosts: &Hosts,
    options: &PathOptions,
    waiting: Waiting,
) -> Result<Ends, EchoError> {
    let port = match waiting {
        Waiting::Spin => PORT_SPIN,
        Waiting::Block => PORT_BLOCK,
    };
    let [asking, answering] = kernel::udp_pair(Sides::Hosts(hosts, 0), port)?;
    let configure = |socket: &UdpSocket, time_limit| match waiting {
        Waiting::Spin => socket.set_nonblocking(true),
        Waiting::Block => socket.set_read_timeout(Some(time_limit)),
    };
    configure(&asking, options.time_limit)
        .and_then(|()| configure(&answering, BLOCKED_LOOK))
        .map_err(EchoError::io("configure a UDP socket"))?;
    let client = Client {
        socket: asking,
        waiting,
        time_limit: options.time_limit,
        buffer: vec![0; options.payload_bytes_max],
    };
    let server = Server {
        socket: answering,
        buffer: vec![0; options.payload_bytes_max],
    };
    Ok((Box::new(client), Box::new(server)))
}

struct Client {
    socket: UdpSocket,
    waiting: Waiting,
    time_limit: Duration,
    buffer: Vec<u8>,
}

impl RoundTrip for Client {
    fn round_trip(&mut self, payload: &[u8]) -> Result<(), EchoError> {
        let start = Instant::now();
        match self.socket.send(payload) {
            Ok(_) => {}
            // A full send buffer loses the datagram, which the time limit below reports.
            Err(error) if is_nothing_yet(&error) => {}
            Err(source) => {
                return Err(EchoError::Io {
                    operation: "send over UDP",
                    source,
                });
            }
        }
        let mut spins = 0u32;
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(length) if answers(&self.buffer[..length], payload) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_nothing_yet(&error) => {}
                Err(source) => {
                    return Err(EchoError::Io {
                        operation: "receive over UDP",
                        source,
                    });
                }
            }
            spins = spins.wrapping_add(1);
            let look = self.waiting == Waiting::Block || spins.is_multiple_of(SPINS_PER_LOOK);
            if look && start.elapsed() >= self.time_limit {
                return Err(EchoError::TimedOut);
            }
            std::hint::spin_loop();
        }
    }

    fn describe(&self) -> String {
        format!("kernel UDP, {}", self.waiting.text())
    }
}

struct Server {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Echo for Server {
    fn serve(
        &mut self,
        _payload_bytes: usize,
        stop: &AtomicBool,
        seen: &mut Seen<'_>,
    ) -> Result<(), EchoError> {
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(length) => {
                    seen(&self.buffer[..length]);
                    match self.socket.send(&self.buffer[..length]) {
                        Ok(_) => {}
                        Err(error) if is_nothing_yet(&error) => {}
                        Err(source) => {
                            return Err(EchoError::Io {
                                operation: "answer over UDP",
                                source,
                            });
                        }
                    }
                }
                // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
                Err(error) if is_nothing_yet(&error) => {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                Err(source) => {
                    return Err(EchoError::Io {
                        operation: "receive over UDP",
                        source,
                    });
                }
            }
        }
    }
}
