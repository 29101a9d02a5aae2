//! A taken socket: its port, and what the program asked of it.

mod raw;
mod udp;

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use tautline::{AdaptiveSpin, Instant, RawPort, UdpPort};

use self::raw::RawSide;
pub(crate) use self::raw::{Cable, FRAME_BYTES_MAX, Station, StationName};
use self::udp::UdpSide;
use crate::decide::Network;
use crate::options::Options;
use crate::table;

/// Longest datagram of IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Time for which a receive that must not wait does not ask the kernel's socket again after it had nothing. Lower: a
/// program that spins pays for more system calls. Higher: a datagram from this host or another interface, and an error,
/// is found later.
const ASK_KERNEL_AGAIN: Duration = Duration::from_micros(10);

/// A taken socket.
pub(crate) struct Taken {
    side: Side,
    /// A datagram that was looked at and not yet received.
    waiting: Option<Arrived>,
    waiting_bytes: Box<[u8]>,
    /// Datagrams that were put into `waiting` so far.
    seen: u64,
    /// Parts of a message, put together.
    gathered: Box<[u8]>,
    pub(crate) options: Options,
    /// Of receives without SO_BUSY_POLL.
    pub(crate) adaptive: AdaptiveSpin,
    /// Threads that sleep until the doorbell rings, and epoll instances that watch it.
    sleepers: u32,
    watchers: u32,
    /// As by shutdown(2).
    pub(crate) is_shut: Shut,
    /// Until when the kernel's socket counts as empty, and what this process had sent through the kernel then.
    kernel_is_empty: Option<(Instant, u32)>,
    counts: Counts,
}

/// The port.
#[expect(
    clippy::large_enum_variant,
    reason = "a taken socket lies in a box already, and its calls take no second one"
)]
enum Side {
    Udp(UdpSide),
    Raw(RawSide),
}

/// Datagrams of a socket that went through its port, and those that the kernel had to send.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) sent_by_kernel: u64,
}

/// Directions that were shut down.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shut {
    pub(crate) reading: bool,
    pub(crate) writing: bool,
}

/// Facts about a datagram, or the frame of a packet socket.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) length: usize,
    pub(crate) sender: Sender,
    pub(crate) arrival: Instant,
}

/// Sender of a datagram or of a frame.
#[derive(Clone, Copy)]
pub(crate) enum Sender {
    Internet(SocketAddrV4),
    Station(Station),
}

/// Destination of a datagram or of a frame.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// Of the socket's own choice: the peer that it is connected to, or the frame's own.
    Unnamed,
    Internet(SocketAddrV4),
    Station(StationName),
}

/// Fate of a datagram that the program sends.
pub(crate) enum Sent {
    Done,
    /// The kernel must send it, or say why not.
    Kernel,
    /// An error of the socket, told now.
    Error(i32),
}

impl Taken {
    /// A UDP socket.
    pub(crate) fn udp(port: UdpPort, network: Network, options: Options) -> Self {
        let side = Side::Udp(UdpSide::new(port, network));
        Self::new(side, DATAGRAM_BYTES_MAX, options)
    }

    /// A packet socket. `is_cooked`: it sends and receives without the Ethernet header (SOCK_DGRAM).
    pub(crate) fn raw(port: RawPort, cable: Cable, is_cooked: bool, options: Options) -> Self {
        let side = Side::Raw(RawSide::new(port, cable, is_cooked));
        Self::new(side, FRAME_BYTES_MAX, options)
    }

    fn new(side: Side, bytes_max: usize, options: Options) -> Self {
        Self {
            side,
            waiting: None,
            waiting_bytes: vec![0; bytes_max].into(),
            seen: 0,
            gathered: vec![0; bytes_max].into(),
            options,
            adaptive: AdaptiveSpin::default(),
            sleepers: 0,
            watchers: 0,
            is_shut: Shut::default(),
            kernel_is_empty: None,
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// UDP port; `None` of a packet socket.
    pub(crate) fn number(&self) -> Option<u16> {
        match &self.side {
            Side::Udp(udp) => Some(udp.port.number()),
            Side::Raw(_) => None,
        }
    }

    /// EtherType and interface of a packet socket; `None` of a UDP socket.
    pub(crate) fn cable(&self) -> Option<&Cable> {
        match &self.side {
            Side::Udp(_) => None,
            Side::Raw(raw) => Some(&raw.cable),
        }
    }

    /// Network of a UDP socket.
    pub(crate) fn network(&self) -> Option<&Network> {
        match &self.side {
            Side::Udp(udp) => Some(&udp.network),
            Side::Raw(_) => None,
        }
    }

    pub(crate) fn set_peer(&mut self, peer: Option<SocketAddrV4>) {
        if let Side::Udp(udp) = &mut self.side {
            udp.set_peer(peer);
        }
        self.ask_kernel();
    }

    /// Whether the kernel's socket had nothing a moment ago. A datagram that this process itself sent since, from
    /// whatever socket, may have come to it.
    pub(crate) fn kernel_is_empty(&self) -> bool {
        let empty = self.kernel_is_empty;
        empty.is_some_and(|(until, sent)| sent == table::sent() && tautline::now() < until)
    }

    /// The kernel's socket has nothing.
    pub(crate) fn kernel_was_empty(&mut self) {
        self.kernel_is_empty = Some((tautline::now() + ASK_KERNEL_AGAIN, table::sent()));
    }

    /// Time for which a wait that found nothing looks before it sleeps, and whether that was decided here.
    pub(crate) fn begin_spin(&mut self) -> (Duration, bool) {
        match self.options.busy_poll {
            Duration::ZERO => (self.adaptive.begin(), true),
            asked => (asked, false),
        }
    }

    /// The next receive asks the kernel's socket: something may have come to it.
    pub(crate) fn ask_kernel(&mut self) {
        self.kernel_is_empty = None;
    }

    /// The descriptor that becomes readable when something arrives, if armed.
    pub(crate) fn doorbell(&mut self) -> Option<RawFd> {
        let doorbell = match &mut self.side {
            Side::Udp(udp) => udp.port.descriptor(),
            Side::Raw(raw) => raw.port.descriptor(),
        };
        doorbell.map(|doorbell| doorbell.as_raw_fd())
    }

    /// Arms the doorbell for the next arrival, whatever waits already.
    pub(crate) fn arm(&mut self) {
        match &mut self.side {
            Side::Udp(udp) => udp.port.arm(),
            Side::Raw(raw) => raw.port.arm(),
        }
    }

    fn disarm(&mut self) {
        match &mut self.side {
            Side::Udp(udp) => udp.port.disarm(),
            Side::Raw(raw) => raw.port.disarm(),
        }
    }

    /// The caller looks into the port by itself for a while. No doorbell rings meanwhile, unless somebody else waits
    /// for it; `own` is how many of the epoll instances are the caller's.
    pub(crate) fn begin_looking(&mut self, own: u32) {
        if self.sleepers == 0 && self.watchers <= own {
            self.disarm();
        }
    }

    /// The looking is over. Those who began to wait meanwhile, and epoll, are woken by the next arrival.
    pub(crate) fn end_looking(&mut self) {
        if self.sleepers > 0 || self.watchers > 0 {
            self.arm();
        }
    }

    /// A thread begins to sleep on the doorbell, or ends.
    pub(crate) fn count_sleeper(&mut self, begins: bool) {
        count(&mut self.sleepers, begins);
    }

    /// An epoll instance begins to watch the doorbell, or ends.
    pub(crate) fn count_watcher(&mut self, begins: bool) {
        count(&mut self.watchers, begins);
    }

    /// Takes the next datagram, or only looks at it.
    #[inline]
    pub(crate) fn receive<R>(
        &mut self,
        is_peek: bool,
        with: impl FnOnce(&[u8], &Arrived, &Options, Option<&Network>) -> R,
    ) -> Option<R> {
        if is_peek {
            self.has_waiting();
        }
        if let Some(arrived) = self.waiting {
            let bytes = &self.waiting_bytes[..arrived.length];
            let result = with(bytes, &arrived, &self.options, self.network());
            if !is_peek {
                self.waiting = None;
                self.counts.received += 1;
            }
            return Some(result);
        }
        if is_peek {
            return None;
        }
        let result = self
            .next(|bytes, arrived, _, options, network| with(bytes, arrived, options, network))?;
        self.counts.received += 1;
        Some(result)
    }

    /// Whether a datagram waits; it is kept for the next call. If none does, the doorbell is armed, once it has been
    /// asked for.
    pub(crate) fn has_waiting(&mut self) -> bool {
        if self.waiting.is_some() {
            return true;
        }
        self.waiting = self.next(|bytes, arrived, room, _, _| {
            room[..arrived.length].copy_from_slice(bytes);
            *arrived
        });
        self.seen += u64::from(self.waiting.is_some());
        self.waiting.is_some()
    }

    /// The next datagram that the port has for this socket, with the room for one that waits.
    #[inline]
    fn next<R>(
        &mut self,
        with: impl FnOnce(&[u8], &Arrived, &mut [u8], &Options, Option<&Network>) -> R,
    ) -> Option<R> {
        let (room, options) = (&mut self.waiting_bytes, &self.options);
        match &mut self.side {
            Side::Udp(udp) => udp
                .next(|bytes, arrived, network| with(bytes, arrived, room, options, Some(network))),
            Side::Raw(raw) => {
                let (bytes, arrived) = raw.next()?;
                Some(with(bytes, &arrived, room, options, None))
            }
        }
    }

    /// Bytes of the datagram that waits.
    pub(crate) fn waiting_bytes(&mut self) -> Option<usize> {
        self.has_waiting();
        self.waiting.map(|arrived| arrived.length)
    }

    /// Number of the datagram that waits.
    pub(crate) fn waiting_number(&self) -> u64 {
        self.seen
    }

    /// Sends a datagram in parts, which `gather` puts together and counts.
    pub(crate) fn send_gathered(
        &mut self,
        descriptor: RawFd,
        to: To,
        gather: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Sent {
        let mut gathered = std::mem::take(&mut self.gathered);
        let sent = match gather(&mut gathered) {
            Some(bytes) => self.send(descriptor, to, &gathered[..bytes]),
            None => Sent::Kernel,
        };
        self.gathered = gathered;
        sent
    }

    /// Sends a datagram, if the port can do so as the kernel would.
    #[inline]
    pub(crate) fn send(&mut self, descriptor: RawFd, to: To, bytes: &[u8]) -> Sent {
        let sent = self.try_send(descriptor, to, bytes);
        match sent {
            Sent::Done => self.counts.sent += 1,
            Sent::Kernel => self.counts.sent_by_kernel += 1,
            Sent::Error(_) => {}
        }
        sent
    }

    #[inline]
    fn try_send(&mut self, descriptor: RawFd, to: To, bytes: &[u8]) -> Sent {
        if self.is_shut.writing || !self.options.sends_alike {
            return Sent::Kernel;
        }
        if matches!(&self.side, Side::Udp(udp) if udp.has_peer()) {
            // Reads reports, which lie before the datagrams.
            self.has_waiting();
        }
        let priority = self.options.priority;
        match (&mut self.side, to) {
            (Side::Udp(udp), To::Unnamed) => udp.send(descriptor, None, priority, bytes),
            (Side::Udp(udp), To::Internet(to)) => udp.send(descriptor, Some(to), priority, bytes),
            (Side::Raw(raw), To::Unnamed) => raw.send(None, bytes),
            (Side::Raw(raw), To::Station(to)) => raw.send(Some(to), bytes),
            _ => Sent::Kernel,
        }
    }
}

fn count(number: &mut u32, begins: bool) {
    *number = match begins {
        true => number.saturating_add(1),
        false => number.saturating_sub(1),
    };
}
