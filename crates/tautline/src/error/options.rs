//! Errors of the options of a port: a value is beyond the limits, whatever node and link the port is for.

use std::time::Duration;

use tautline_proto::wire::PortKey;

use crate::limits::{DEPTH_MAX, SOURCES_MAX};

/// An option of a port is beyond its limits.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The depth is not one that a port can have.
    #[error("depth {depth} is not a power of two from 2 to {DEPTH_MAX}")]
    Depth { depth: u32 },
    /// Messages of the size asked for do not fit the port.
    #[error("messages of {bytes} bytes do not fit: {why}")]
    MessageSize {
        bytes: usize,
        /// Limit that was exceeded.
        why: &'static str,
    },
    /// A sampling port cannot keep values of so many sources.
    #[error("{sources} sources are out of range (1 to {SOURCES_MAX})")]
    Sources { sources: usize },
    /// The policing asked for is beyond the limits.
    #[error(
        "bursts of {burst} and one frame each {interval:?} cannot be policed (1 to {max}, 100 ns to 1 h)",
        max = tautline_shm::police::BURST_MAX
    )]
    Policing {
        /// Time for each frame.
        interval: Duration,
        /// Frames at once.
        burst: u32,
    },
    /// Ports of this kind do not have the option.
    #[error("{key} has no option `{option}`")]
    NotOfKind {
        key: PortKey,
        /// Key of the option in the configuration.
        option: &'static str,
    },
    /// The program sets an option to another value than the configuration.
    #[error(
        "port `{name}`: `{option}` is {configured} in the configuration and {program} in the program"
    )]
    Contradiction {
        name: String,
        /// Key of the option in the configuration.
        option: &'static str,
        /// The configuration's value.
        configured: String,
        /// The program's value.
        program: String,
    },
    /// A type of the program is beyond the limits of types.
    #[error(transparent)]
    Type(#[from] tautline_types::TypeError),
}

impl OptionsError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Depth { .. } => "use a power of two within the limits, such as 64",
            Self::MessageSize { .. } => "use smaller messages or a larger depth",
            Self::Sources { .. } => "use fewer sources, or several ports",
            Self::Policing { .. } => {
                "use a rate of 1 to 10,000,000 messages a second and a burst of 1 to 1,000,000"
            }
            Self::NotOfKind { .. } => "leave it out, or open a port for messages",
            Self::Contradiction { .. } => "set the option in one of the two, or to the same value",
            Self::Type(_) => "use names and sizes within the limits of docs/reference/types.md",
        }
    }
}
