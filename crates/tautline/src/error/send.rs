//! Errors of sending.

use std::io;

use tautline_proto::wire::{MESSAGE_BYTES_MAX, Priority};
use tautline_state::fork::OtherProcess;

use super::{AFTER_FORK, AFTER_ITS_INTERFACE};

/// Reason of [`SendError::NoWay`]: neither neighbour nor known to the kernel.
pub(crate) const MAC_UNKNOWN: &str = "its MAC address is not known";

/// A message was not sent, or not whole. Hot path: `Copy`, and counted in the port.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is larger than any message can be.
    #[error("message of {bytes} bytes is larger than {MESSAGE_BYTES_MAX}")]
    MessageTooLarge { bytes: usize },
    /// The control process gave this port without this priority.
    #[error("priority {priority} is not allowed on this port: {allowed}")]
    PriorityNotAllowed {
        priority: u8,
        /// The entry of the policy, and what it gives.
        allowed: Priorities,
    },
    /// The sender of a message cannot be answered.
    #[error("no way to the peer: {why}")]
    NoWay {
        /// Missing entry or key, or the reason why there cannot be one.
        why: &'static str,
    },
    /// The destination was not made by the port that was to send there.
    #[error("the destination belongs to another port")]
    OtherPort,
    /// The driver did not take the frame: its transmit queue is full, or the other end of a virtual cable has a smaller
    /// MTU, which the kernel does not tell apart. Try later, or send less.
    #[error("the interface did not take the frame")]
    TransmitQueueFull,
    /// The port is not open, or its process is gone (link `vbus`).
    #[error("nobody has the peer's port open")]
    PeerGone,
    /// The peer's port declares another type than this port sends (link `vbus`); `taut status` names the field.
    #[error("the peer's port declares another type")]
    OtherType,
    /// The receiver's class is full: it is slower than we are, for the moment (link `vbus`).
    #[error("the receiver's class is full")]
    ReceiverFull,
    /// The receiving port takes smaller messages (link `vbus`).
    #[error("message of {bytes} bytes is larger than the {largest} that the receiver takes")]
    LargerThanReceiver {
        bytes: usize,
        /// Largest message that the receiver's port was opened for.
        largest: usize,
    },
    /// All send buffers of the size that the message needs are lent. Drop one, or have more in the
    /// configuration's `[send_pool]`.
    #[error("all send buffers of {buffer_bytes} bytes are lent")]
    PoolExhausted { buffer_bytes: usize },
    /// The interface is down.
    #[error("interface is down")]
    InterfaceDown,
    /// The interface has no carrier: there is no cable, or its other end is down.
    #[error("interface has no carrier")]
    NoCarrier,
    /// The interface that the node was opened on was deleted, or moved to another network namespace; another one may
    /// have its name.
    #[error("interface is gone")]
    InterfaceGone,
    /// The frame given to a raw port is of another EtherType than the port's, in a VLAN, or not whole.
    #[error("frame is not one of the port's EtherType")]
    ForeignFrame,
    /// The frame given to a raw port has another source address than the interface's, and the control process gave the
    /// port for that one alone.
    #[error(
        "source address is not the interface's: [[allow]] entry {entry} lacks `any_source_address`"
    )]
    SourceNotAllowed {
        /// The entry of the policy, counted from 1.
        entry: u16,
    },
    /// The interface carries smaller frames than the link needs.
    #[error("frame is larger than the interface's MTU")]
    FrameTooLarge,
    /// The port was opened by the process that this one was forked from.
    #[error("port was opened by another process")]
    OtherProcess,
    /// The kernel refused for another reason.
    #[error("kernel refused to send (errno {errno})")]
    Refused { errno: i32 },
}

impl SendError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::MessageTooLarge { .. } | Self::LargerThanReceiver { .. } => {
                "send smaller messages"
            }
            Self::PriorityNotAllowed { .. } => {
                "send with a priority of the entry, or have the entry's `priorities` changed (`taut status` shows it)"
            }
            Self::NoWay { .. } => {
                "enter the peer as a neighbour, with its MAC address; for a protected port with its keys too"
            }
            Self::OtherPort => "resolve it on the port that sends: destination()",
            Self::TransmitQueueFull => {
                "try again, or send less: its transmit queue may be full; where only large frames fail, give the other end of a virtual cable the same MTU"
            }
            Self::NoCarrier => {
                "connect the cable, or bring its other end up; `ip link` shows NO-CARRIER"
            }
            Self::PeerGone => "start the program that opens that port, and send again",
            Self::OtherType => "declare the same type at both ends; `taut status` names the field",
            Self::ReceiverFull => "send less, or try again when the receiver has caught up",
            Self::PoolExhausted { .. } => "give buffers back, or raise their number in [send_pool]",
            Self::InterfaceDown => "bring the interface up: ip link set dev INTERFACE up",
            Self::InterfaceGone => AFTER_ITS_INTERFACE,
            Self::ForeignFrame => {
                "begin it with both addresses and the port's EtherType; a tag must have VLAN identifier 0"
            }
            Self::SourceNotAllowed { .. } => {
                "write the interface's MAC address, or have the entry's `any_source_address` set"
            }
            Self::FrameTooLarge => {
                "raise the MTU to 1500, of the interface and on the way, or send smaller messages"
            }
            Self::OtherProcess => AFTER_FORK,
            Self::Refused { .. } => {
                "check that the peer's address is reachable; `taut doctor` shows what this machine lacks"
            }
        }
    }
}

/// The priorities that a port may send with, and the `[[allow]]` entry that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priorities {
    /// From 1; 0 if no entry is needed.
    entry: u16,
    /// A bit for each.
    bits: u8,
}

impl Priorities {
    /// Of a port that no entry is about.
    pub(crate) const ALL: Self = Self {
        entry: 0,
        bits: u8::MAX,
    };

    /// Of an entry, counted from 1.
    pub(crate) const fn of_entry(entry: u16, bits: u8) -> Self {
        Self { entry, bits }
    }

    /// Whether one is among them.
    #[inline]
    #[must_use]
    pub const fn allow(self, priority: Priority) -> bool {
        self.bits >> priority.get() & 1 == 1
    }

    /// An error if one is not among them.
    #[inline]
    pub(crate) const fn check(self, priority: Priority) -> Result<(), SendError> {
        if self.allow(priority) {
            return Ok(());
        }
        Err(SendError::PriorityNotAllowed {
            priority: priority.get(),
            allowed: self,
        })
    }

    /// The `[[allow]]` entry that gives them, counted from 1; `None` if none was needed.
    #[must_use]
    pub const fn entry(self) -> Option<u16> {
        match self.entry {
            0 => None,
            entry => Some(entry),
        }
    }
}

impl std::fmt::Display for Priorities {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.entry {
            0 => formatter.write_str("it has priorities"),
            entry => write!(formatter, "[[allow]] entry {entry} gives priorities"),
        }?;
        let allowed: Vec<u8> = (0..8).filter(|one| self.bits >> one & 1 == 1).collect();
        let runs = allowed.chunk_by(|one, next| one + 1 == *next);
        let runs = runs.map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            run => format!("{}", run[0]),
        });
        match &runs.collect::<Vec<_>>()[..] {
            [] => formatter.write_str(" of none"),
            runs => write!(formatter, " {}", runs.join(", ")),
        }
    }
}

impl From<OtherProcess> for SendError {
    #[inline]
    fn from(_: OtherProcess) -> Self {
        Self::OtherProcess
    }
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::EAGAIN | libc::EBUSY) => Self::TransmitQueueFull,
            Some(libc::ENETDOWN) => Self::InterfaceDown,
            Some(libc::ENOLINK) => Self::NoCarrier,
            Some(libc::ENODEV | libc::ENXIO) => Self::InterfaceGone,
            Some(libc::EMSGSIZE) => Self::FrameTooLarge,
            other => Self::Refused {
                errno: other.unwrap_or(0),
            },
        }
    }
}
