//! Kernel UDP: connected sockets, the only place where a path opens them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv, sockopt};
use tautline::port::BATCH_FRAMES;
use tautline_awake::{Awake, raw, sleep};
use tautline_testbed::hosts::Host;
use tautline_testbed::sys;

use super::sides::Sides;
use super::timestamping::{self, StampPoint};
use super::{Arrival, End, LINGER, PathError, Sends, Stamp, Waiting, is_nothing_yet};

/// Bytes of the largest datagram, and some.
const BUFFER_BYTES: usize = 65_536;

/// One end.
pub struct KernelUdp {
    socket: UdpSocket,
    waiting: Waiting,
    sends: Sends,
    stamped: Option<StampPoint>,
    /// The socket's time limit, which is set only when it changes.
    limit: Duration,
    buffer: Box<[u8]>,
    length: usize,
}

/// Both ends, connected with each other: that of A, and that of B. Port 0 leaves the choice to the kernel.
pub fn pair(sides: Sides<'_>, port: u16, waiting: Waiting) -> Result<[KernelUdp; 2], PathError> {
    let [a, b] = [bind(sides, Host::A, port)?, bind(sides, Host::B, port)?];
    // A socket stays in the namespace that it was made in, whichever thread connects it.
    let connect = || {
        a.connect(b.local_addr()?)?;
        b.connect(a.local_addr()?)
    };
    connect().map_err(PathError::io("connect a UDP socket"))?;
    Ok([KernelUdp::new(a, waiting)?, KernelUdp::new(b, waiting)?])
}

/// One end, connected with the same port of the other side, which need not be the kernel's.
pub fn end(
    sides: Sides<'_>,
    host: Host,
    port: u16,
    waiting: Waiting,
) -> Result<KernelUdp, PathError> {
    let socket = bind(sides, host, port)?;
    socket
        .connect((sides.address(host.peer()), port))
        .map_err(PathError::io("connect a UDP socket"))?;
    KernelUdp::new(socket, waiting)
}

/// One end, connected with a program on another machine, over an interface; its arrivals are stamped.
pub fn end_to(
    interface: &str,
    peer: SocketAddrV4,
    waiting: Waiting,
) -> Result<KernelUdp, PathError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let socket = socket.map_err(PathError::io("bind a UDP socket"))?;
    sys::bind_to_interface(&socket, interface)
        .map_err(PathError::io("bind a UDP socket to the interface"))?;
    socket
        .connect(peer)
        .map_err(PathError::io("reach the peer over the interface"))?;
    KernelUdp::new(socket, waiting)?.with_stamps(StampPoint::Arrival)
}

fn bind(sides: Sides<'_>, host: Host, port: u16) -> Result<UdpSocket, PathError> {
    let own = SocketAddr::from((sides.address(host), port));
    sides
        .inside(host, || UdpSocket::bind(own))?
        .map_err(PathError::io("bind a UDP socket"))
}

impl KernelUdp {
    fn new(socket: UdpSocket, waiting: Waiting) -> Result<KernelUdp, PathError> {
        socket
            .set_nonblocking(waiting == Waiting::Spin)
            .map_err(PathError::io("configure a UDP socket"))?;
        Ok(KernelUdp {
            socket,
            waiting,
            sends: Sends::OneByOne,
            stamped: None,
            limit: Duration::ZERO,
            buffer: vec![0; BUFFER_BYTES].into(),
            length: 0,
        })
    }

    /// Has [`End::send_many`] send with system calls of many datagrams each.
    #[must_use]
    pub fn with_sends(mut self, sends: Sends) -> KernelUdp {
        self.sends = sends;
        self
    }

    /// Gives the socket room for so many received bytes, the kernel's own for each datagram counted. Forced where that
    /// is permitted, else as far as the limit allows.
    pub fn with_room(self, bytes: usize) -> Result<KernelUdp, PathError> {
        sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&self.socket, bytes))
            .map_err(|error| PathError::io("give a UDP socket room")(error.into()))?;
        Ok(self)
    }

    /// Has receives look into the network card's queue themselves, for this long at most (SO_BUSY_POLL, socket(7)).
    pub fn with_busy_poll(self, limit: Duration) -> Result<KernelUdp, PathError> {
        sys::set_busy_poll(&self.socket, limit)
            .map_err(PathError::io("have a UDP socket polled busily"))?;
        Ok(self)
    }

    /// Has the kernel stamp what this end sends, or receives.
    pub fn with_stamps(mut self, point: StampPoint) -> Result<KernelUdp, PathError> {
        timestamping::ask(&self.socket, point).map_err(PathError::io("have packets stamped"))?;
        self.stamped = Some(point);
        Ok(self)
    }

    /// The socket, for calls by themselves.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    #[inline]
    fn receive(&mut self, flags: RecvFlags) -> io::Result<Option<Arrival>> {
        let result = recv(&self.socket, &mut *self.buffer, flags);
        self.received(result.map(|(_, length)| length).map_err(Into::into))
    }

    /// Receives by another function, which returns how many bytes it has written.
    #[inline]
    pub(super) fn receive_by(
        &mut self,
        receive: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Option<Arrival>> {
        let result = receive(&mut self.buffer);
        self.received(result)
    }

    #[inline]
    fn received(&mut self, result: io::Result<usize>) -> io::Result<Option<Arrival>> {
        match result {
            Ok(length) => {
                self.length = length;
                Ok(Some(Arrival { stamp: None }))
            }
            Err(error) if is_nothing_yet(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn receive_stamped(&mut self) -> io::Result<Option<Arrival>> {
        let Some((length, stamp)) = timestamping::receive(&self.socket, &mut self.buffer)? else {
            return Ok(None);
        };
        self.length = length;
        Ok(Some(Arrival {
            stamp: stamp.map(Stamp::Realtime),
        }))
    }

    /// Has the kernel end the socket's waits after this time.
    pub(super) fn limit_waits(&mut self, limit: Duration) -> io::Result<()> {
        if limit != self.limit {
            // Zero would mean for ever.
            let limit = limit.max(Duration::from_micros(1));
            self.socket.set_read_timeout(Some(limit))?;
            self.limit = limit;
        }
        Ok(())
    }

    fn send_batches(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        let mut sent = 0;
        for part in messages.chunks(message_bytes * BATCH_FRAMES) {
            let taken = match sys::send_datagrams(&self.socket, part, message_bytes) {
                Ok(taken) => taken,
                Err(error) if is_nothing_yet(&error) => 0,
                Err(error) => return Err(error),
            };
            sent += taken;
            if taken < part.len() / message_bytes {
                break;
            }
        }
        Ok(sent)
    }
}

/// Whether a datagram left; a full buffer is no failure.
#[inline]
fn went(result: io::Result<usize>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if is_nothing_yet(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

impl End for KernelUdp {
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        went(self.socket.send(message))
    }

    fn send_back(&mut self) -> io::Result<bool> {
        went(self.socket.send(&self.buffer[..self.length]))
    }

    #[inline]
    fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
        if self.stamped == Some(StampPoint::Arrival) {
            return self.receive_stamped();
        }
        self.receive(RecvFlags::DONTWAIT)
    }

    fn message(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        match self.waiting {
            Waiting::Spin => return super::spin(self, bytes, limit),
            Waiting::Linger => {
                if let Some(arrival) = super::spin(self, bytes, LINGER)? {
                    return Ok(Some(arrival));
                }
            }
            Waiting::Block | Waiting::Awake => {}
        }
        self.limit_waits(limit)?;
        self.receive(RecvFlags::empty())
    }

    fn wait_within(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        if self.waiting == Waiting::Spin {
            return self.wait(bytes, limit);
        }
        let limit = limit.try_into().map_err(io::Error::other)?;
        let mut entries = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut entries, Some(&limit)) {
            Ok(0) => Ok(None),
            Ok(_) => self.take(bytes),
            Err(error) => match io::Error::from(error) {
                error if is_nothing_yet(&error) => Ok(None),
                error => Err(error),
            },
        }
    }

    fn send_many(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
        match self.sends {
            Sends::Batches => self.send_batches(messages, message_bytes),
            _ => super::send_one_by_one(self, messages, message_bytes),
        }
    }

    fn batch(&self) -> usize {
        match self.sends {
            Sends::Batches => BATCH_FRAMES,
            _ => 1,
        }
    }

    fn sent_stamp(&mut self) -> io::Result<Option<Stamp>> {
        match self.stamped {
            Some(StampPoint::Queue | StampPoint::Driver) => timestamping::of_sent(&self.socket),
            _ => Ok(None),
        }
    }
}

/// One end whose waits and sleeps end awake.
pub struct AwakeUdp {
    awake: Awake<'static>,
    udp: KernelUdp,
}

/// As [`pair`], with waits and sleeps that end awake.
pub fn awake_pair(sides: Sides<'_>, port: u16) -> Result<[AwakeUdp; 2], PathError> {
    let [a, b] = pair(sides, port, Waiting::Awake)?;
    Ok([AwakeUdp::new(a)?, AwakeUdp::new(b)?])
}

/// As [`end_to`], with waits and sleeps that end awake.
pub fn awake_end_to(interface: &str, peer: SocketAddrV4) -> Result<AwakeUdp, PathError> {
    AwakeUdp::new(end_to(interface, peer, Waiting::Awake)?)
}

impl AwakeUdp {
    fn new(udp: KernelUdp) -> Result<AwakeUdp, PathError> {
        let descriptor = raw::open_descriptor(udp.socket.as_raw_fd());
        let descriptor = descriptor.map_err(PathError::io("wait for a UDP socket"))?;
        Ok(AwakeUdp {
            awake: descriptor.into(),
            udp,
        })
    }
}

impl End for AwakeUdp {
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        self.awake.sent();
        self.udp.send(message)
    }

    fn send_back(&mut self) -> io::Result<bool> {
        self.awake.sent();
        self.udp.send_back()
    }

    fn take(&mut self, bytes: usize) -> io::Result<Option<Arrival>> {
        self.udp.take(bytes)
    }

    fn message(&self) -> &[u8] {
        self.udp.message()
    }

    fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        match self.awake.wait(Some(limit))? {
            true => self.udp.take(bytes),
            false => Ok(None),
        }
    }

    fn sleep_until(&mut self, due: Instant) {
        let left = due.saturating_duration_since(Instant::now());
        sleep::until(raw::now() + left);
    }
}
