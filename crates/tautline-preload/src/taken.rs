//! A taken socket: its port, and what the program asked of it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use tautline::error::Undelivered;
use tautline::{AdaptiveSpin, Destination, Instant, Reason, ReceiveError, UdpPort};

use crate::decide::Network;
use crate::lock::Undisturbed;
use crate::options::{self, Options};
use crate::table;

/// Longest datagram of IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Datagrams that one look may pass over, because they are not from the peer that the socket is connected to. Lower: a
/// flood of strangers' datagrams makes a call say too early that there is none. Higher: such a call takes longer.
const LOOKS_MAX: usize = 1024;
/// Time for which the kernel sends to a peer whose MAC address was not known. Lower: the kernel's table is asked more
/// often, for about 10 µs. Higher: later datagrams take the slow way for longer.
const RESOLVE_AGAIN: Duration = Duration::from_millis(10);
/// Sends that ask the kernel for an error after a report that something did not arrive: the demux sees the report some
/// microseconds before the kernel's socket does. Lower: the error is told by a later call. Higher: more system calls.
const ERROR_LOOKS: u8 = 8;
/// Time for which a receive that must not wait does not ask the kernel's socket again after it had nothing. Lower: a
/// program that spins pays for more system calls. Higher: a datagram from this host or another interface, and an error,
/// is found later.
const ASK_KERNEL_AGAIN: Duration = Duration::from_micros(10);
/// Destinations that are kept: as many as a port has.
const ROUTES_MAX: usize = tautline::port::DESTINATIONS_MAX;

/// A taken socket.
pub(crate) struct Taken {
    port: UdpPort,
    network: Network,
    /// The peer of a connected socket, and since when: what came before is still received, as from the kernel.
    peer: Option<(SocketAddrV4, Instant)>,
    routes: Vec<Known>,
    /// The place in `routes` that was used last, and is reused next when all are taken.
    last: usize,
    next_reused: usize,
    unresolved: Option<(SocketAddrV4, Instant)>,
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
    error_looks: u8,
    /// Until when the kernel's socket counts as empty, and what this process had sent through the kernel then.
    kernel_is_empty: Option<(Instant, u32)>,
    counts: Counts,
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

struct Known {
    address: SocketAddrV4,
    destination: Destination,
}

/// Facts about a datagram.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) length: usize,
    pub(crate) source: SocketAddrV4,
    pub(crate) arrival: Instant,
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
    pub(crate) fn new(port: UdpPort, network: Network, options: Options) -> Self {
        Self {
            port,
            network,
            peer: None,
            routes: Vec::with_capacity(ROUTES_MAX),
            last: 0,
            next_reused: 0,
            unresolved: None,
            waiting: None,
            waiting_bytes: vec![0; DATAGRAM_BYTES_MAX].into(),
            seen: 0,
            gathered: vec![0; DATAGRAM_BYTES_MAX].into(),
            options,
            adaptive: AdaptiveSpin::default(),
            sleepers: 0,
            watchers: 0,
            is_shut: Shut::default(),
            error_looks: 0,
            kernel_is_empty: None,
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn number(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn peer(&self) -> Option<SocketAddrV4> {
        self.peer.map(|(peer, _)| peer)
    }

    pub(crate) fn set_peer(&mut self, peer: Option<SocketAddrV4>) {
        self.peer = peer.map(|peer| (peer, tautline::now()));
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
        self.port.descriptor().map(|doorbell| doorbell.as_raw_fd())
    }

    /// Arms the doorbell for the next arrival, whatever waits already.
    pub(crate) fn arm(&mut self) {
        self.port.arm();
    }

    /// The caller looks into the port by itself for a while. No doorbell rings meanwhile, unless somebody else waits
    /// for it; `own` is how many of the epoll instances are the caller's.
    pub(crate) fn begin_looking(&mut self, own: u32) {
        if self.sleepers == 0 && self.watchers <= own {
            self.port.disarm();
        }
    }

    /// The looking is over. Those who began to wait meanwhile, and epoll, are woken by the next arrival.
    pub(crate) fn end_looking(&mut self) {
        if self.sleepers > 0 || self.watchers > 0 {
            self.port.arm();
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
        with: impl FnOnce(&[u8], &Arrived, &Options, &Network) -> R,
    ) -> Option<R> {
        if is_peek {
            self.has_waiting();
        }
        if let Some(arrived) = self.waiting {
            let bytes = &self.waiting_bytes[..arrived.length];
            let result = with(bytes, &arrived, &self.options, &self.network);
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

    /// The next datagram that the port has for this socket, with the room for one that waits. Reports that come before
    /// it are noted.
    #[inline]
    fn next<R>(
        &mut self,
        with: impl FnOnce(&[u8], &Arrived, &mut [u8], &Options, &Network) -> R,
    ) -> Option<R> {
        for _ in 0..LOOKS_MAX {
            let news = match self.port.receive_lent() {
                Ok(Some(lent)) => {
                    let arrived = arrived(&lent);
                    if is_for(self.peer, &arrived) {
                        let (room, options) = (&mut self.waiting_bytes, &self.options);
                        let bytes = lent.bytes();
                        return Some(with(bytes, &arrived, room, options, &self.network));
                    }
                    continue;
                }
                Err(ReceiveError::Undelivered(news)) => news,
                _ => return None,
            };
            self.note(news);
        }
        None
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

    /// A report that something did not arrive. The kernel has it too, and makes an error of a connected socket of it.
    fn note(&mut self, news: Undelivered) {
        if self.peer.is_some() {
            self.error_looks = ERROR_LOOKS;
        }
        let Reason::TooLongForPath { mtu_bytes } = news.reason else {
            return;
        };
        let known = self
            .routes
            .iter()
            .find(|known| known.address == news.destination);
        if let Some(known) = known {
            self.port.limit_packets(known.destination, mtu_bytes.into());
        }
    }

    /// Sends a datagram in parts, which `gather` puts together and counts.
    pub(crate) fn send_gathered(
        &mut self,
        descriptor: RawFd,
        to: Option<SocketAddrV4>,
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
    pub(crate) fn send(
        &mut self,
        descriptor: RawFd,
        to: Option<SocketAddrV4>,
        bytes: &[u8],
    ) -> Sent {
        let sent = self.try_send(descriptor, to, bytes);
        match sent {
            Sent::Done => self.counts.sent += 1,
            Sent::Kernel => self.counts.sent_by_kernel += 1,
            Sent::Error(_) => {}
        }
        sent
    }

    #[inline]
    fn try_send(&mut self, descriptor: RawFd, to: Option<SocketAddrV4>, bytes: &[u8]) -> Sent {
        if self.is_shut.writing || !self.options.sends_alike {
            return Sent::Kernel;
        }
        if self.peer.is_some() {
            // Reads reports, which lie before the datagrams.
            self.has_waiting();
        }
        if self.error_looks > 0 {
            self.error_looks -= 1;
            match options::pending_error(descriptor) {
                0 => {}
                error => return Sent::Error(error),
            }
        }
        let Some(to) = to.or(self.peer()) else {
            return Sent::Kernel;
        };
        let Some(destination) = self.destination(to) else {
            return Sent::Kernel;
        };
        // A queue that is full, or a datagram that is too long: the kernel's turn.
        match self.port.send_to(destination, self.options.priority, bytes) {
            Ok(()) => Sent::Done,
            Err(_) => Sent::Kernel,
        }
    }

    #[inline]
    fn destination(&mut self, to: SocketAddrV4) -> Option<Destination> {
        if let Some(known) = self
            .routes
            .get(self.last)
            .filter(|known| known.address == to)
        {
            return Some(known.destination);
        }
        match self.routes.iter().position(|known| known.address == to) {
            Some(place) => self.last = place,
            None => self.last = self.resolve(to)?,
        }
        Some(self.routes[self.last].destination)
    }

    /// Finds the way to a peer; its place. Nothing if the kernel must send: to others than this network's, and to a
    /// peer whose MAC address nobody knows yet, which the kernel's own datagram will find out.
    #[cold]
    fn resolve(&mut self, to: SocketAddrV4) -> Option<usize> {
        if to.port() == 0 || !self.network.is_ours_to_reach(*to.ip()) {
            return None;
        }
        // Asking the kernel allocates.
        let _undisturbed = Undisturbed::new();
        let now = tautline::now();
        if self
            .unresolved
            .is_some_and(|(peer, until)| peer == to && now < until)
        {
            return None;
        }
        let place = self.route(to);
        self.unresolved = place.is_none().then(|| (to, now + RESOLVE_AGAIN));
        place
    }

    fn route(&mut self, to: SocketAddrV4) -> Option<usize> {
        if self.routes.len() < ROUTES_MAX {
            let destination = self.port.reply_to(to).ok()?;
            self.routes.push(Known {
                address: to,
                destination,
            });
            return Some(self.routes.len() - 1);
        }
        let place = self.next_reused;
        let known = &mut self.routes[place];
        self.port.redirect(known.destination, to).ok()?;
        known.address = to;
        self.next_reused = (place + 1) % ROUTES_MAX;
        Some(place)
    }
}

fn count(number: &mut u32, begins: bool) {
    *number = match begins {
        true => number.saturating_add(1),
        false => number.saturating_sub(1),
    };
}

fn arrived(lent: &tautline::LentDatagram<'_>) -> Arrived {
    let datagram = lent.datagram();
    Arrived {
        length: datagram.length,
        source: datagram.source,
        arrival: datagram.arrival,
    }
}

/// Whether a connected socket receives it.
#[inline]
fn is_for(peer: Option<(SocketAddrV4, Instant)>, arrived: &Arrived) -> bool {
    peer.is_none_or(|(peer, since)| arrived.source == peer || arrived.arrival < since)
}

impl Network {
    /// Whether a datagram to an address leaves through the node: not to this host, to groups or to everybody.
    fn is_ours_to_reach(&self, to: Ipv4Addr) -> bool {
        to != self.address
            && !to.is_loopback()
            && !to.is_unspecified()
            && !to.is_multicast()
            && !to.is_broadcast()
            && (self.is_near(to) || self.has_gateway)
            && to != self.broadcast()
            && to.to_bits() & !self.mask != 0
    }
}
