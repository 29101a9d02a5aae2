//! Entries of the service thread: a listener or a connection in one of its states.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use tautline_state::untrusted::{UntrustedListener, UntrustedSocket};

use super::connect_state::Subscription;
use super::handover::Offered;
use super::incoming::{Incoming, ReceiverShared};
use super::publisher::{PublisherShared, Reader};
use super::sender::{Established, SenderShared};
use super::types::Peer;

/// A socket to a peer, with the peer's user.
#[derive(Debug)]
pub(super) struct PeerSocket {
    socket: OwnedFd,
    pub(super) user: u32,
}

impl PeerSocket {
    /// The socket of a connection, whose peer the kernel names. It lets descriptors in from now on.
    pub(super) fn new(socket: UntrustedSocket) -> io::Result<Self> {
        let user = socket.peer()?.uid;
        Ok(Self {
            socket: socket.trust(),
            user,
        })
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A descriptor of the service thread's, by its part in a connection.
pub(super) enum Entry {
    Listener {
        bus_receiver: Arc<ReceiverShared>,
        socket: UntrustedListener,
    },
    /// A peer that has connected and not finished the handshake, or that a port wants to follow.
    Arriving(Arriving),
    /// A producer of a port, or a publisher that it follows.
    Producer {
        bus_receiver: Arc<ReceiverShared>,
        socket: PeerSocket,
        incoming: Arc<Incoming>,
        following: Option<Arc<Subscription>>,
    },
    /// One who reads, or wants to read, what a port publishes for many.
    Reader(ReaderEntry),
    /// A connection of ours that is being made.
    Connecting(Connecting),
    /// A connection of ours.
    Consumer {
        bus_sender: Arc<SenderShared>,
        socket: PeerSocket,
        established: Arc<Established>,
    },
}

pub(super) struct Arriving {
    pub(super) bus_receiver: Arc<ReceiverShared>,
    pub(super) socket: PeerSocket,
    pub(super) since: Instant,
    pub(super) offered: Option<Offered>,
    pub(super) following: Option<Arc<Subscription>>,
}

pub(super) struct ReaderEntry {
    pub(super) bus_receiver: Arc<ReceiverShared>,
    pub(super) publisher: Arc<PublisherShared>,
    pub(super) socket: PeerSocket,
    /// While the handshake is under way.
    pub(super) since: Option<Instant>,
    pub(super) peer: Peer,
    pub(super) reader: Option<Arc<Reader>>,
}

pub(super) struct Connecting {
    pub(super) bus_sender: Arc<SenderShared>,
    pub(super) socket: PeerSocket,
    pub(super) since: Instant,
    pub(super) made: Option<Arc<Established>>,
}

impl Entry {
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener { socket, .. } => socket.as_fd(),
            Self::Producer { socket, .. } | Self::Consumer { socket, .. } => socket.as_fd(),
            Self::Arriving(arriving) => arriving.socket.as_fd(),
            Self::Reader(reader) => reader.socket.as_fd(),
            Self::Connecting(connecting) => connecting.socket.as_fd(),
        }
    }

    pub(super) fn bus_receiver(&self) -> Option<&Arc<ReceiverShared>> {
        match self {
            Self::Listener { bus_receiver, .. } | Self::Producer { bus_receiver, .. } => {
                Some(bus_receiver)
            }
            Self::Arriving(arriving) => Some(&arriving.bus_receiver),
            Self::Reader(reader) => Some(&reader.bus_receiver),
            Self::Connecting(_) | Self::Consumer { .. } => None,
        }
    }

    pub(super) fn bus_sender(&self) -> Option<&Arc<SenderShared>> {
        match self {
            Self::Consumer { bus_sender, .. } => Some(bus_sender),
            Self::Connecting(connecting) => Some(&connecting.bus_sender),
            _ => None,
        }
    }

    pub(super) fn since(&self) -> Option<Instant> {
        match self {
            Self::Arriving(arriving) => Some(arriving.since),
            Self::Connecting(connecting) => Some(connecting.since),
            Self::Reader(reader) => reader.since,
            _ => None,
        }
    }
}
