//! Types of messages: declarations from the crate `tautline-types`, and those of a port.

use std::sync::Arc;

use crate::address::Address;

pub use tautline_types::{
    Declaration, FIELDS_MAX, Field, FieldType, NAME_BYTES_MAX, Scalar, StaticField, TypeError,
    Typed, ValueError, print,
};

use tautline_proto::wire::{MESSAGE_BYTES_MAX, PortNumber};

const _: () = assert!(MESSAGE_BYTES_MAX == tautline_types::TYPE_BYTES_MAX);

/// Types of the messages that a port receives and sends; `None`: it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortTypes {
    /// Type of the messages that it receives.
    pub receives: Option<Arc<Declaration>>,
    /// Type of the messages that it sends.
    pub sends: Option<Arc<Declaration>>,
}

/// Direction of messages that two ends declare differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// This port sends them.
    Sends,
    /// This port receives them.
    Receives,
}

/// A peer that declares another type.
#[derive(Clone, Debug)]
pub(crate) struct TypeDifference {
    pub(crate) address: Address,
    pub(crate) port: PortNumber,
    pub(crate) direction: Direction,
    /// First difference, if the peer has told its declaration; "here" is this port.
    pub(crate) difference: Option<String>,
    /// How often it said so: on a bus, connections that were refused.
    pub(crate) times: u64,
}

/// The examples of the page about types.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/types.md")]
struct Page;
