//! Connection to a peer on a bus, and the peer's user.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tautline_state::untrusted::UntrustedSocket;

use super::place::own_user;

/// Whether a user is this process's own or root.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == own_user()
}

/// A socket to a peer, with the peer's user.
#[derive(Debug)]
pub(super) struct PeerSocket {
    socket: OwnedFd,
    user: u32,
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

    pub(super) fn user(&self) -> u32 {
        self.user
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
