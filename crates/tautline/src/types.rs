//! Types of messages: declarations from the crate `tautline-types`, and those of a port.

use std::sync::Arc;

pub use tautline_types::{
    Declaration, FIELDS_MAX, Field, FieldType, NAME_BYTES_MAX, Scalar, StaticField, TypeError,
    Typed, ValueError, print,
};

use tautline_proto::wire::MESSAGE_BYTES_MAX;

const _: () = assert!(MESSAGE_BYTES_MAX == tautline_types::TYPE_BYTES_MAX);

/// Types of the messages that a port receives and sends; `None`: it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortTypes {
    /// Type of the messages that it receives.
    pub receives: Option<Arc<Declaration>>,
    /// Type of the messages that it sends.
    pub sends: Option<Arc<Declaration>>,
}

/// The examples of the page about types.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/types.md")]
struct Page;
