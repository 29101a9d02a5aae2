//! The descriptor that a port of link `xdp` sends through: a packet socket in the process that owns the demux, a tap in
//! a client of a control process. Taps are made in [`super::taps`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::tap::TapRing;
use crate::link::OutFrame;
use crate::sys::interface::InterfaceWatch;
use crate::sys::{socket, tap};

/// Descriptor that takes whole frames.
#[derive(Debug)]
pub(crate) enum Sender {
    /// Sends any frame. The ring is for captures.
    Packet(OwnedFd, Arc<TapRing>),
    /// Sends what the control process allows; another frame disappears, counted there. A control process whose
    /// interface is gone has deleted the tap.
    Tap(OwnedFd, Option<Arc<InterfaceWatch>>),
}

impl Sender {
    /// Sends one frame. Never waits.
    #[inline]
    pub(in crate::link) fn send(&self, frame: &[u8]) -> io::Result<()> {
        match self {
            Self::Packet(sender, ring) => {
                socket::send(sender.as_fd(), frame)?;
                ring.sent(&[frame]);
                Ok(())
            }
            Self::Tap(sender, watch) => {
                tap::send(sender.as_fd(), frame).map_err(|error| refused(error, watch.as_deref()))
            }
        }
    }

    /// Sends frames in two pieces each; how many, from the first on: at least one. Never waits.
    pub(in crate::link) fn send_many(&self, frames: &[OutFrame<'_>]) -> io::Result<usize> {
        match self {
            Self::Packet(sender, ring) => {
                let count = socket::send_many(sender.as_fd(), frames)?;
                for frame in frames.iter().take(count) {
                    ring.sent(&[frame.head, frame.payload]);
                }
                Ok(count)
            }
            Self::Tap(sender, watch) => tap::send_many(sender.as_fd(), frames)
                .map_err(|error| refused(error, watch.as_deref())),
        }
    }
}

/// Why a tap has not taken a frame: as a packet socket would say it where the interface is gone. The kernel answers
/// `EIO` while it deletes a tap, and `EBADFD` afterwards.
#[cold]
fn refused(error: io::Error, watch: Option<&InterfaceWatch>) -> io::Error {
    let is_deleted = matches!(error.raw_os_error(), Some(libc::EIO | libc::EBADFD));
    match watch {
        Some(watch) if is_deleted && watch.is_gone() => io::Error::from_raw_os_error(libc::ENODEV),
        _ => error,
    }
}
