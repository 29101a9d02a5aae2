//! A port of either kind, with one interface to send.

use std::fmt;

use tautline::config::{PortConfig, PortOptions};
use tautline::{
    Destination, Node, PortError, PortNumber, Priority, QueuingPort, SamplingPort, SendError,
};

/// A port of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPort {
    /// The neighbour's name.
    pub neighbour: String,
    /// The port's number there.
    pub port: PortNumber,
}

impl fmt::Display for PeerPort {
    /// Notation of the file: `motor.7`.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.neighbour, self.port)
    }
}

/// A port of either kind.
#[derive(Debug)]
pub enum Port {
    /// Keeps every message.
    Queuing(QueuingPort),
    /// Keeps the last value.
    Sampling(SamplingPort),
}

impl Port {
    /// Opens a configured port.
    ///
    /// # Errors
    /// Those of the node.
    pub fn open(node: &Node, port: &PortConfig) -> Result<Self, PortError> {
        Ok(match port.kind {
            PortOptions::Queuing(_) => Self::Queuing(node.queuing(&port.name).open()?),
            PortOptions::Sampling(_) => Self::Sampling(node.sampling(&port.name).open()?),
        })
    }

    /// The way to a port of a neighbour, or with `None` to all that follow this one.
    ///
    /// # Errors
    /// Those of [`QueuingPort::destination`] and [`QueuingPort::readers`]: above all, the peer is not there yet.
    pub fn destination(&mut self, to: Option<&PeerPort>) -> Result<Destination, PortError> {
        match (self, to) {
            (Self::Queuing(port), Some(to)) => port.destination(&to.neighbour, to.port),
            (Self::Sampling(port), Some(to)) => port.destination(&to.neighbour, to.port),
            (Self::Queuing(port), None) => port.readers(),
            (Self::Sampling(port), None) => port.readers(),
        }
    }

    /// Sends; never waits.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        match self {
            Self::Queuing(port) => port.send(to, priority, bytes),
            Self::Sampling(port) => port.send(to, priority, bytes),
        }
    }
}
