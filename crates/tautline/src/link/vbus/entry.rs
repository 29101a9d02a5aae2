//! Entries of the service thread: a listener or a connection in one of its states, and memories to be released.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::closer::PeerSocket;
use super::incoming::{Incoming, InletShared};
use super::outlet::{Established, OutletShared};
use crate::sys::seqpacket::Listener;

/// A descriptor of the service thread's, by its part in a connection.
pub(super) enum Entry {
    /// A port's listening socket.
    Listener {
        inlet: Arc<InletShared>,
        socket: Listener,
    },
    /// Somebody who has connected and not finished the handshake.
    Arriving {
        inlet: Arc<InletShared>,
        socket: PeerSocket,
        since: Instant,
        offered: Option<(usize, u64)>,
    },
    /// A producer of a port.
    Producer {
        inlet: Arc<InletShared>,
        socket: PeerSocket,
        incoming: Arc<Incoming>,
    },
    /// A connection of ours that is being made.
    Connecting {
        outlet: Arc<OutletShared>,
        socket: PeerSocket,
        since: Instant,
        made: Option<Arc<Established>>,
    },
    /// A connection of ours.
    Consumer {
        outlet: Arc<OutletShared>,
        socket: PeerSocket,
        made_at: Instant,
        established: Arc<Established>,
    },
}

impl Entry {
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener { socket, .. } => socket.as_fd(),
            Self::Arriving { socket, .. }
            | Self::Producer { socket, .. }
            | Self::Connecting { socket, .. }
            | Self::Consumer { socket, .. } => socket.as_fd(),
        }
    }

    /// The user at the other end.
    pub(super) fn user(&self) -> Option<u32> {
        match self {
            Self::Listener { .. } => None,
            Self::Arriving { socket, .. }
            | Self::Producer { socket, .. }
            | Self::Connecting { socket, .. }
            | Self::Consumer { socket, .. } => Some(socket.user()),
        }
    }

    pub(super) fn inlet(&self) -> Option<&Arc<InletShared>> {
        match self {
            Self::Listener { inlet, .. }
            | Self::Arriving { inlet, .. }
            | Self::Producer { inlet, .. } => Some(inlet),
            _ => None,
        }
    }

    pub(super) fn outlet(&self) -> Option<&Arc<OutletShared>> {
        match self {
            Self::Connecting { outlet, .. } | Self::Consumer { outlet, .. } => Some(outlet),
            _ => None,
        }
    }

    pub(super) fn since(&self) -> Option<Instant> {
        match self {
            Self::Arriving { since, .. } | Self::Connecting { since, .. } => Some(*since),
            _ => None,
        }
    }
}

/// Memories that the port's thread may still be using. They are let go of here, so that it never
/// unmaps on the way of a message.
pub(super) enum Grave {
    Incoming(Arc<Incoming>),
    Established(Arc<Established>),
}

impl Grave {
    pub(super) fn is_ours_alone(&self) -> bool {
        match self {
            Self::Incoming(incoming) => Arc::strong_count(incoming) == 1,
            Self::Established(established) => Arc::strong_count(established) == 1,
        }
    }
}
