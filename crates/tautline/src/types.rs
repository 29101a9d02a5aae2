//! Types of messages: declarations from the crate `tautline-types`, and those of a port.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use tautline_types::type_byte;

use crate::address::{Address, Source};
use crate::error::ReceiveError;

pub use tautline_types::{
    Declaration, FIELDS_MAX, Field, FieldType, NAME_BYTES_MAX, Scalar, StaticField, TypeError,
    Typed, ValueError,
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

impl PortTypes {
    pub(crate) fn of<R: Typed, S: Typed>() -> Result<Self, TypeError> {
        Ok(Self {
            receives: Some(Arc::new(Declaration::of::<R>()?)),
            sends: Some(Arc::new(Declaration::of::<S>()?)),
        })
    }

    /// Compares the types with those of the configuration, as far as both declare some.
    ///
    /// # Errors
    /// The first difference; "here" is the program.
    pub(crate) fn check_against(&self, configured: &Self) -> Result<(), String> {
        let pairs = [
            (&self.receives, &configured.receives),
            (&self.sends, &configured.sends),
        ];
        for (own, configured) in pairs {
            let both = own.as_ref().zip(configured.as_ref());
            if let Some(difference) = both.and_then(|(own, other)| own.difference(other)) {
                return Err(difference);
            }
        }
        Ok(())
    }

    /// Byte of the port's own messages on a network.
    pub(crate) fn sent_byte(&self) -> u8 {
        self.sends.as_ref().map_or(0, |sends| sends.type_byte())
    }
}

/// Type of the messages that a port takes, as frames tell it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenType {
    fingerprint: u64,
    /// 0: messages of any type.
    type_byte: u8,
    /// Whether a message of another type is an error to the program, which it is where the program has the type.
    is_error: bool,
}

impl From<&PortTypes> for TakenType {
    fn from(types: &PortTypes) -> Self {
        let Some(receives) = &types.receives else {
            return Self::default();
        };
        let fingerprint = receives.fingerprint();
        Self {
            fingerprint,
            type_byte: type_byte(fingerprint),
            is_error: false,
        }
    }
}

impl TakenType {
    /// Whether a message is of another type. An untyped one is of none.
    #[inline]
    pub(crate) fn is_other(self, type_byte: u8) -> bool {
        self.type_byte != type_byte && self.type_byte != 0 && type_byte != 0
    }

    pub(crate) fn make_error(&mut self) {
        self.is_error = true;
    }

    /// A message of another type is passed over, or is an error.
    #[cold]
    pub(crate) fn refuse<T>(
        self,
        sender: Source,
        type_byte: u8,
    ) -> Result<Option<T>, ReceiveError> {
        match self.is_error {
            false => Ok(None),
            true => Err(ReceiveError::OtherType {
                sender,
                type_byte,
                fingerprint: self.fingerprint,
            }),
        }
    }
}

/// Direction of messages that two ends declare differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// This port sends them.
    Sends,
    /// This port receives them.
    Receives,
}

/// A peer that declares another type of messages than the port, as `taut status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TypeDifference {
    /// The peer's address.
    pub address: Address,
    /// Its port.
    #[serde(serialize_with = "number")]
    pub port: PortNumber,
    /// Direction of the messages.
    pub direction: Direction,
    /// First difference, if the peer has told its declaration, and type bytes on a network; "here" is this port.
    pub difference: Option<String>,
    /// Link `vbus`: connections that were refused for it. Else messages that were refused, from all peers.
    pub refused: u64,
}

/// Writes the number of a port into a status.
pub(crate) fn number<S: Serializer>(port: &PortNumber, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(port.get())
}

/// The examples of the page about types.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/types.md")]
struct Page;
