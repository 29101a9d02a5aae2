//! Errors of receiving.

use std::io;

use tautline_state::fork::OtherProcess;
use tautline_types::type_byte as type_byte_of;

use super::{AFTER_FORK, AFTER_ITS_INTERFACE};
use crate::address::Source;

/// A message could not be received. Hot path: `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The buffer is smaller than the largest message that the port can hold. Nothing was taken.
    #[error("buffer of {given} bytes, but messages may have {needed}")]
    BufferTooSmall {
        given: usize,
        /// Bytes that the port's largest message has.
        needed: usize,
    },
    /// A message has another size than the port's type. The message is gone, and counted.
    #[error("message of {bytes} bytes, and the port's type has {expected}")]
    OtherSize {
        /// Bytes of the message; of one that is longer than the type, one more than the type's at least.
        bytes: usize,
        expected: usize,
    },
    /// A message has another type than the port's (docs/reference/types.md). The message is gone, and counted.
    #[error(
        "message of another type from {sender}: type byte {type_byte}, and the port takes type byte {}, fingerprint \
         {fingerprint:016x}",
        type_byte_of(*fingerprint)
    )]
    OtherType {
        sender: Source,
        /// The message's type byte: 8 bits of its type's fingerprint.
        type_byte: u8,
        /// Fingerprint of the port's type.
        fingerprint: u64,
    },
    /// The interface is down. The port stays open and works again when it comes up.
    #[error("interface is down")]
    InterfaceDown,
    /// The interface that the node was opened on was deleted, or moved to another network namespace; another one may
    /// have its name. Nothing will arrive on this port any more.
    #[error("interface is gone")]
    InterfaceGone,
    /// The port was opened by the process that this one was forked from.
    #[error("port was opened by another process")]
    OtherProcess,
    /// The kernel refused to receive or to wait.
    #[error("kernel refused to receive (errno {errno})")]
    Refused { errno: i32 },
}

impl ReceiveError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::OtherSize { .. } => {
                "use the same type on both sides; `taut status` shows who sends to this port"
            }
            Self::OtherType { .. } => {
                "declare the same type at both ends; `taut types` prints fingerprint and type byte of each"
            }
            Self::BufferTooSmall { .. } => "give a buffer of the port's largest message",
            Self::InterfaceDown => "bring the interface up: ip link set dev INTERFACE up",
            Self::InterfaceGone => AFTER_ITS_INTERFACE,
            Self::OtherProcess => AFTER_FORK,
            Self::Refused { .. } => "`taut doctor` shows what this machine lacks",
        }
    }
}

impl From<OtherProcess> for ReceiveError {
    #[inline]
    fn from(_: OtherProcess) -> Self {
        Self::OtherProcess
    }
}

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::InterfaceDown,
            other => Self::Refused {
                errno: other.unwrap_or(0),
            },
        }
    }
}
