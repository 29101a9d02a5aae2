//! The descriptor that a port of link `xdp` sends through: a packet socket in the process that owns the demux, a tap in
//! a client of a control process. Taps are made in [`super::taps`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::error::SendError;
use crate::link::OutFrame;
use crate::link::frame::with_pieces;
use crate::sys::socket::Pieces;
use crate::sys::{socket, tap};

/// Descriptor that takes whole frames.
#[derive(Debug)]
pub(crate) enum Sender {
    /// Sends any frame.
    Packet(OwnedFd),
    /// Sends what the control process allows; another frame disappears, counted there.
    Tap(OwnedFd),
}

impl Sender {
    /// Sends one frame. Never waits.
    #[inline]
    pub(in crate::link) fn send(&self, frame: &[u8]) -> io::Result<()> {
        match self {
            Self::Packet(sender) => socket::send(sender.as_fd(), frame),
            Self::Tap(sender) => tap::send(sender.as_fd(), frame),
        }
    }

    /// Sends frames in two pieces each; how many, from the first on: at least one. Never waits.
    pub(in crate::link) fn send_many(&self, frames: &[Pieces<'_>]) -> io::Result<usize> {
        match self {
            Self::Packet(sender) => socket::send_many(sender.as_fd(), frames),
            Self::Tap(sender) => tap::send_many(sender.as_fd(), frames),
        }
    }

    /// The same with headers that are put together here.
    pub(in crate::link) fn send_frames(&self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        Ok(with_pieces(frames, |pieces| self.send_many(pieces))?)
    }
}
