//! Why a frame was refused.

use core::fmt;

/// Error in a frame that was meant for us. Such a frame is dropped and counted, never
/// answered.
///
/// `Copy` and numbered, so that the hot path can count it in an array: see [`ParseError::index`].
/// Where several things are wrong the first check that fails names the error, in the order that
/// `docs/reference/wire.md` gives.
///
/// ```
/// use tautline_proto::wire::{Header, ParseError};
///
/// let mut counters = [0u64; ParseError::COUNT];
/// if let Err(error) = Header::parse(&[0; 3]) {
///     counters[error.index()] += 1;
/// }
/// assert_eq!(counters[ParseError::Truncated.index()], 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ParseError {
    /// Fewer bytes than a header.
    Truncated = 0,
    /// The version is not the one that this crate speaks.
    UnknownVersion = 1,
    /// A critical flag is set that this version does not define.
    UnknownFlags = 2,
    /// The destination or the source port is 0 or above the highest port.
    InvalidPort = 3,
    /// The priority is above 7.
    InvalidPriority = 4,
    /// The header, or the UDP header, claims more bytes than the frame has.
    LengthBeyondFrame = 5,
    /// The fragment's index, count and length contradict each other or the format's limits.
    InvalidFragment = 6,
    /// UDP form: the header's destination port is not that of the UDP datagram.
    PortMismatch = 7,
    /// UDP form on a raw link: the UDP checksum is present and wrong.
    BadChecksum = 8,
    /// The source MAC address is a group address, which no station may send from.
    InvalidSource = 9,
}

impl ParseError {
    /// Number of variants: the length of an array of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// All variants, each at its own [`index`](Self::index).
    pub const ALL: [Self; 10] = [
        Self::Truncated,
        Self::UnknownVersion,
        Self::UnknownFlags,
        Self::InvalidPort,
        Self::InvalidPriority,
        Self::LengthBeyondFrame,
        Self::InvalidFragment,
        Self::PortMismatch,
        Self::BadChecksum,
        Self::InvalidSource,
    ];

    /// The counter of this error. Stable: a new variant gets the next number, none is reused.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The counter's name in status output and in the test vectors, in snake case. Stable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownFlags => "unknown_flags",
            Self::InvalidPort => "invalid_port",
            Self::InvalidPriority => "invalid_priority",
            Self::LengthBeyondFrame => "length_beyond_frame",
            Self::InvalidFragment => "invalid_fragment",
            Self::PortMismatch => "port_mismatch",
            Self::BadChecksum => "bad_checksum",
            Self::InvalidSource => "invalid_source",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Truncated => "frame is shorter than the header",
            Self::UnknownVersion => "unknown version",
            Self::UnknownFlags => "unknown critical flag",
            Self::InvalidPort => "port number out of range",
            Self::InvalidPriority => "priority out of range",
            Self::LengthBeyondFrame => "length reaches beyond the frame",
            Self::InvalidFragment => "fragment index, count and length do not agree",
            Self::PortMismatch => "destination port differs from that of the UDP datagram",
            Self::BadChecksum => "wrong UDP checksum",
            Self::InvalidSource => "source is a group address",
        })
    }
}

impl core::error::Error for ParseError {}

/// Why a whole frame did not yield a payload.
///
/// The two cases have different owners: what is not ours goes on to the rest of the system
/// untouched, what is malformed ends here and is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// Other traffic, or too damaged to tell: leave it to the kernel.
    NotOurs,
    /// Addressed to Tautline and wrong: drop and count.
    Malformed(ParseError),
}

impl From<ParseError> for Rejected {
    fn from(error: ParseError) -> Self {
        Self::Malformed(error)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => formatter.write_str("not a Tautline frame"),
            Self::Malformed(error) => write!(formatter, "malformed frame: {error}"),
        }
    }
}

impl core::error::Error for Rejected {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_sits_at_its_own_index() {
        for (index, error) in ParseError::ALL.iter().enumerate() {
            assert_eq!(error.index(), index, "{error:?}");
        }
    }

    #[test]
    fn names_are_distinct() {
        for (index, error) in ParseError::ALL.iter().enumerate() {
            for other in &ParseError::ALL[index + 1..] {
                assert_ne!(error.name(), other.name());
            }
        }
    }
}
