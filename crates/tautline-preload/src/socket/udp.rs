//! The port of plain UDP beside a taken socket: the datagrams that it receives, and the ways to its peers.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;
use std::time::Duration;

use tautline::error::Undelivered;
use tautline::{Instant, Priority, Reason, ReceiveError, SendError, UdpPort};

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

/// The socket's side at its UDP port.
pub(super) struct UdpSide {
    pub(super) port: UdpPort,
    pub(super) network: Network,
    /// The peer of a connected socket, and since when: what came before is still received, as from the kernel.
    peer: Option<(SocketAddrV4, Instant)>,
    /// Address that the port sent to last: it knows the way.
    last: Option<SocketAddrV4>,
    /// Peer whose MAC address was not known, and until when the kernel sends to it.
    unresolved: Option<(SocketAddrV4, Instant)>,
    error_looks: u8,
}

impl UdpSide {
    pub(super) fn new(port: UdpPort, network: Network) -> Self {
        Self {
            port,
            network,
            peer: None,
            last: None,
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
        self.port.limit_packets(news.destination, mtu_bytes.into());
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
        if self.last != Some(to) {
            return self.send_to_other(to, priority, bytes);
        }
        // A queue that is full, or a datagram that is too long: the kernel's turn.
        match self.port.reply(to, priority, bytes) {
            Ok(()) => Sent::Done,
            Err(_) => Sent::Kernel,
        }
    }

    /// Whether the port may try to send to an address that it did not send to last. The kernel sends to others than
    /// this network's, and for a while to a peer whose MAC address nobody knows, which the kernel's own datagram will
    /// find out.
    #[cold]
    fn may_reach(&self, to: SocketAddrV4) -> bool {
        let is_ours = to.port() != 0 && self.network.is_ours_to_reach(*to.ip());
        is_ours
            && !self
                .unresolved
                .is_some_and(|(peer, until)| peer == to && tautline::now() < until)
    }

    /// Sends to an address that the port did not send to last.
    #[cold]
    fn send_to_other(&mut self, to: SocketAddrV4, priority: Priority, bytes: &[u8]) -> Sent {
        if !self.may_reach(to) {
            return Sent::Kernel;
        }
        // Asking the kernel allocates.
        let _undisturbed = Undisturbed::new();
        match self.port.reply(to, priority, bytes) {
            Ok(()) => {
                self.last = Some(to);
                Sent::Done
            }
            Err(SendError::NoWay { .. }) => {
                self.unresolved = Some((to, tautline::now() + RESOLVE_AGAIN));
                Sent::Kernel
            }
            Err(_) => Sent::Kernel,
        }
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
