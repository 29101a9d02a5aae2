//! The report of a router or a peer that a datagram did not arrive.

use std::net::SocketAddrV4;

use tautline_proto::ip::Reason;

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
