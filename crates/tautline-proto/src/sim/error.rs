//! Operations that the network refuses.

use core::fmt;

use super::FRAME_BYTES_MIN;
use crate::wire::MacAddress;

/// Operation that a [`SimNetwork`](super::SimNetwork) refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimError {
    /// The network has room for no more nodes.
    NetworkFull {
        /// The configured limit.
        node_count_max: usize,
    },
    /// Another node has this address.
    AddressTaken(MacAddress),
    /// A group address cannot be a node's own.
    GroupAddress(MacAddress),
    /// The frame is shorter than an Ethernet header or longer than configured.
    FrameLength {
        /// Bytes in the frame.
        frame_bytes: usize,
        /// The configured limit.
        frame_bytes_max: usize,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkFull { node_count_max } => {
                write!(formatter, "the network is full at {node_count_max} nodes")
            }
            Self::AddressTaken(mac) => write!(formatter, "another node has address {mac}"),
            Self::GroupAddress(mac) => write!(formatter, "{mac} is a group address"),
            Self::FrameLength {
                frame_bytes,
                frame_bytes_max,
            } => write!(
                formatter,
                "frame of {frame_bytes} bytes, expected {FRAME_BYTES_MIN} to {frame_bytes_max}"
            ),
        }
    }
}

impl core::error::Error for SimError {}
