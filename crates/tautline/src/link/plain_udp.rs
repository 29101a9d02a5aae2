//! Plain UDP on a link: datagrams without our header, for peers that are not ours.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};

use serde::Serialize;
use tautline_proto::ip::Reason;
use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::wire::{MacAddress, Priority};

use super::Inbox;
use super::socket::{BindError, bound_socket};
use crate::error::{PortError, SendError};

/// How a link carries plain UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlainUdp {
    /// Past the kernel's protocol stack, both ways.
    PastTheStack,
    /// Through an ordinary UDP socket.
    KernelSocket,
    /// Not at all.
    None,
}

/// A datagram that did not arrive, as a router or the peer told. Anybody can write that: it is news, not
/// proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Undelivered {
    /// Where it should have gone.
    pub destination: SocketAddrV4,
    /// Why it did not.
    pub reason: Reason,
}

impl std::fmt::Display for Undelivered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.destination, self.reason)
    }
}

/// The half of a link that belongs to one port of plain UDP.
pub trait UdpPortLink: Inbox {
    /// Our address and UDP port.
    fn local(&self) -> SocketAddrV4;

    /// Whether a route needs the MAC address of the peer or the router.
    fn needs_station(&self) -> bool;

    /// Whether a checksum of which the sender's kernel has made only the pseudo-header's part may be
    /// taken for right: no network card can have been between the sender and this interface.
    fn accepts_partial_checksums(&self) -> bool {
        false
    }

    /// The way to a peer's port. `station` is ignored where none is needed.
    fn route(&self, to: SocketAddrV4, station: MacAddress) -> Route;

    /// Sends a datagram, whose content may be spoilt by that. Never waits.
    ///
    /// # Errors
    /// [`SendError`]. Of a datagram in fragments, some may have been sent; the peer drops them.
    fn send(
        &mut self,
        route: &Route,
        priority: Priority,
        datagram: OutDatagram<'_>,
    ) -> Result<(), SendError>;

    /// The next news that something did not arrive.
    fn undelivered(&mut self) -> Option<Undelivered>;
}

/// A kernel socket that has the port, so that nobody else gets it, and that shows in `ss` whose it is.
/// What reaches it all the same (from this very host, say) is dropped, not kept.
pub(super) fn reserve(local: SocketAddrV4) -> Result<OwnedFd, PortError> {
    let socket = bind(local)?;
    let nothing = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    crate::sys::socket::set_filter(socket.as_fd(), &nothing)
        .map_err(|error| PortError::refused("closing the socket that reserves the port", error))?;
    Ok(socket)
}

/// An ordinary UDP socket on this address.
pub(super) fn bind(local: SocketAddrV4) -> Result<OwnedFd, PortError> {
    bound_socket(local).map_err(|error| match error {
        BindError::Taken(holder) => PortError::UdpTaken {
            port: local.port(),
            holder,
        },
        BindError::Io(error) => PortError::refused("binding the port's UDP socket", error),
    })
}
