//! The port of plain UDP beside a taken socket: the datagrams that it receives, and the ways to its peers.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;
use std::time::Duration;

use tautline::error::Undelivered;
use tautline::{Destination, Instant, Priority, Reason, ReceiveError, UdpPort};

use super::{Arrived, Sender, Sent};
use crate::decide::Network;
use crate::lock::Undisturbed;
use crate::options;

/// Datagrams that one look may pass over, because they are not from the peer that the socket is connected to. Lower: a
/// flood of strangers' datagrams makes a call say too early that there is none. Higher: such a call takes longer.
const LOOKS_MAX: usize = 1024;
/// Time for which the kernel sends to a peer whose MAC address was not known. Lower: the kernel's table is asked more
/// often, for about 10 µs. Higher: later datagrams take the slow way for longer.
const RESOLVE_AGAIN: Duration = Duration::from_millis(10);
/// Sends that ask the kernel for an error after a report that something did not arrive: the demux sees the report some
/// microseconds before the kernel's socket does. Lower: the error is told by a later call. Higher: more system calls.
const ERROR_LOOKS: u8 = 8;
/// Destinations that are kept: as many as a port has.
const ROUTES_MAX: usize = tautline::port::DESTINATIONS_MAX;

/// The socket's side at its UDP port.
pub(super) struct UdpSide {
    pub(super) port: UdpPort,
    pub(super) network: Network,
    /// The peer of a connected socket, and since when: what came before is still received, as from the kernel.
    peer: Option<(SocketAddrV4, Instant)>,
    routes: Vec<Known>,
    /// The place in `routes` that was used last, and is reused next when all are taken.
    last: usize,
    next_reused: usize,
    unresolved: Option<(SocketAddrV4, Instant)>,
    error_looks: u8,
}

struct Known {
    address: SocketAddrV4,
    destination: Destination,
}

impl UdpSide {
    pub(super) fn new(port: UdpPort, network: Network) -> Self {
        Self {
            port,
            network,
            peer: None,
            routes: Vec::with_capacity(ROUTES_MAX),
            last: 0,
            next_reused: 0,
            unresolved: None,
            error_looks: 0,
        }
    }

    pub(super) fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn set_peer(&mut self, peer: Option<SocketAddrV4>) {
        self.peer = peer.map(|peer| (peer, tautline::now()));
    }

    /// The next datagram that the port has for this socket. Reports that come before it are noted.
    #[inline]
    pub(super) fn next<R>(
        &mut self,
        with: impl FnOnce(&[u8], &Arrived, &Network) -> R,
    ) -> Option<R> {
        for _ in 0..LOOKS_MAX {
            let news = match self.port.receive_lent() {
                Ok(Some(lent)) => {
                    let (source, arrived) = arrived(&lent);
                    if is_for(self.peer, source, arrived.arrival) {
                        return Some(with(lent.bytes(), &arrived, &self.network));
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

    /// Sends a datagram to an address, or to the peer.
    #[inline]
    pub(super) fn send(
        &mut self,
        descriptor: RawFd,
        to: Option<SocketAddrV4>,
        priority: Priority,
        bytes: &[u8],
    ) -> Sent {
        if self.error_looks > 0 {
            self.error_looks -= 1;
            match options::pending_error(descriptor) {
                0 => {}
                error => return Sent::Error(error),
            }
        }
        let Some(to) = to.or(self.peer.map(|(peer, _)| peer)) else {
            return Sent::Kernel;
        };
        let Some(destination) = self.destination(to) else {
            return Sent::Kernel;
        };
        // A queue that is full, or a datagram that is too long: the kernel's turn.
        match self.port.send_to(destination, priority, bytes) {
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

fn arrived(lent: &tautline::LentDatagram<'_>) -> (SocketAddrV4, Arrived) {
    let datagram = lent.datagram();
    let arrived = Arrived {
        length: datagram.length,
        sender: Sender::Internet(datagram.source),
        arrival: datagram.arrival,
    };
    (datagram.source, arrived)
}

/// Whether a connected socket receives it.
#[inline]
fn is_for(peer: Option<(SocketAddrV4, Instant)>, source: SocketAddrV4, arrival: Instant) -> bool {
    peer.is_none_or(|(peer, since)| source == peer || arrival < since)
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
