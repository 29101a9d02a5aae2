//! Entries of the service thread: a listener or a connection in one of its states, and memories to be released.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use tautline_state::untrusted::UntrustedListener;

use super::handover::Offered;
use super::incoming::{Incoming, ReceiverShared};
use super::peer::PeerSocket;
use super::publisher::{PublisherShared, Reader};
use super::sender::{Established, SenderShared};
use super::subscription::Subscription;
use super::types::Peer;

/// A descriptor of the service thread's, by its part in a connection.
pub(super) enum Entry {
    /// A port's listening socket.
    Listener {
        bus_receiver: Arc<ReceiverShared>,
        socket: UntrustedListener,
    },
    /// A peer that has connected and not finished the handshake, or that a port wants to follow.
    Arriving {
        bus_receiver: Arc<ReceiverShared>,
        socket: PeerSocket,
        since: Instant,
        offered: Option<Offered>,
        following: Option<Arc<Subscription>>,
    },
    /// A producer of a port, or a publisher that it follows.
    Producer {
        bus_receiver: Arc<ReceiverShared>,
        socket: PeerSocket,
        incoming: Arc<Incoming>,
        following: Option<Arc<Subscription>>,
    },
    /// One who reads, or wants to read, what a port publishes for many.
    Reader {
        bus_receiver: Arc<ReceiverShared>,
        publisher: Arc<PublisherShared>,
        socket: PeerSocket,
        /// While the handshake is under way.
        since: Option<Instant>,
        peer: Peer,
        reader: Option<Arc<Reader>>,
    },
    /// A connection of ours that is being made.
    Connecting {
        bus_sender: Arc<SenderShared>,
        socket: PeerSocket,
        since: Instant,
        made: Option<Arc<Established>>,
    },
    /// A connection of ours.
    Consumer {
        bus_sender: Arc<SenderShared>,
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
            | Self::Reader { socket, .. }
            | Self::Connecting { socket, .. }
            | Self::Consumer { socket, .. } => socket.as_fd(),
        }
    }

    pub(super) fn bus_receiver(&self) -> Option<&Arc<ReceiverShared>> {
        match self {
            Self::Listener { bus_receiver, .. }
            | Self::Arriving { bus_receiver, .. }
            | Self::Producer { bus_receiver, .. }
            | Self::Reader { bus_receiver, .. } => Some(bus_receiver),
            _ => None,
        }
    }

    pub(super) fn bus_sender(&self) -> Option<&Arc<SenderShared>> {
        match self {
            Self::Connecting { bus_sender, .. } | Self::Consumer { bus_sender, .. } => {
                Some(bus_sender)
            }
            _ => None,
        }
    }

    pub(super) fn since(&self) -> Option<Instant> {
        match self {
            Self::Arriving { since, .. } | Self::Connecting { since, .. } => Some(*since),
            Self::Reader { since, .. } => *since,
            _ => None,
        }
    }
}

/// Memories that the port's thread may still be using. They are let go of here, so that it never
/// unmaps on the way of a message.
pub(super) enum DetachedPort {
    Incoming(Arc<Incoming>),
    Established(Arc<Established>),
    Reader(Arc<Reader>),
}

impl DetachedPort {
    pub(super) fn is_ours_alone(&self) -> bool {
        match self {
            Self::Incoming(incoming) => Arc::strong_count(incoming) == 1,
            Self::Established(established) => Arc::strong_count(established) == 1,
            Self::Reader(reader) => Arc::strong_count(reader) == 1,
        }
    }
}
