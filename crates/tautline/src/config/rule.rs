//! Rules of a control process for its clients: the `[[allow]]` entries of a configuration.

use std::fmt;
use std::ops::RangeInclusive;

/// Memory of all ports that an entry allows, unless configured: twenty queuing ports of default depth.
/// Lower: an ordinary application is refused. Higher: a user who may open one port pins more.
pub const MEMORY_BYTES_DEFAULT: u64 = 16 << 20;

/// One `[[allow]]` entry. Several may name the same user; what one of them gives, that user has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// User or group that the entry is for.
    pub who: Who,
    /// The ports that may be opened.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The UDP ports that may be opened for plain UDP.
    pub udp_ports: Vec<RangeInclusive<u16>>,
    /// The priorities that may be sent with.
    pub priorities: Vec<RangeInclusive<u16>>,
    /// Bytes that one user's ports under this entry may take together.
    pub memory_bytes_max: u64,
    /// Whether the neighbour table that all clients share may be changed.
    pub neighbours: bool,
}

/// User or group of an entry: a name, or the number in digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A user.
    User(String),
    /// Everybody in a group.
    Group(String),
}

impl fmt::Display for Who {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(formatter, "user {name}"),
            Self::Group(name) => write!(formatter, "group {name}"),
        }
    }
}
