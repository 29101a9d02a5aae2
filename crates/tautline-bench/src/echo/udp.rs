//! Round trips over the kernel's UDP sockets.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{
    BLOCKED_LOOK, Echo, EchoError, Ends, PathOptions, RoundTrip, SPINS_PER_LOOK, Seen, Waiting,
    answers, is_nothing_yet,
};
use tautline_testbed::hosts::{Host, Hosts};

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
    let [a, b] = Host::BOTH.map(|host| SocketAddr::from((hosts.end(host, 0).address(), port)));
    let client = Client {
        socket: hosts.inside(Host::A, || socket(a, b, waiting, options.time_limit))??,
        waiting,
        time_limit: options.time_limit,
        buffer: vec![0; options.payload_bytes_max],
    };
    let server = Server {
        socket: hosts.inside(Host::B, || socket(b, a, waiting, BLOCKED_LOOK))??,
        buffer: vec![0; options.payload_bytes_max],
    };
    Ok((Box::new(client), Box::new(server)))
}

fn socket(
    own: SocketAddr,
    peer: SocketAddr,
    waiting: Waiting,
    time_limit: Duration,
) -> Result<UdpSocket, EchoError> {
    let socket = UdpSocket::bind(own).map_err(EchoError::io("bind a UDP socket"))?;
    socket
        .connect(peer)
        .map_err(EchoError::io("connect a UDP socket"))?;
    match waiting {
        Waiting::Spin => socket.set_nonblocking(true),
        Waiting::Block => socket.set_read_timeout(Some(time_limit)),
    }
    .map_err(EchoError::io("configure a UDP socket"))?;
    Ok(socket)
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
