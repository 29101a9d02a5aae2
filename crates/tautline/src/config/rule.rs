//! Rules of a control process for its clients: the `[[allow]]` entries of a configuration.

use std::fmt;
use std::ops::RangeInclusive;

/// Memory of all ports that an entry allows, unless configured: twenty queuing ports of default depth, with the frames
/// that they may have on their way. Lower: an ordinary application is refused. Higher: a user who may open one port
/// pins more.
pub const MEMORY_BYTES_DEFAULT: u64 = 40 << 20;
/// Ports of one user at a time that an entry allows, unless configured. Lower: an ordinary application is refused.
/// Higher: each is an interface of the kernel's, and thousands of them slow down programs that list interfaces.
pub const PORTS_DEFAULT: usize = 256;

/// One `[[allow]]` entry. Several may name the same user; what one of them gives, that user has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// User or group that the entry is for.
    pub who: Who,
    /// The ports that may be opened.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The UDP ports that may be opened for plain UDP.
    pub udp_ports: Vec<RangeInclusive<u16>>,
    /// The EtherTypes that raw ports may be opened for.
    pub ethertypes: Vec<RangeInclusive<u16>>,
    /// Whether the frames of those raw ports may carry any source address, and not the interface's alone.
    pub any_source_address: bool,
    /// The priorities that may be sent with.
    pub priorities: Vec<RangeInclusive<u16>>,
    /// Bytes that one user's ports under this entry may take together: their memory, and the kernel's for what they
    /// send.
    pub memory_bytes_max: u64,
    /// Ports that one user may have open under this entry at a time, of all kinds.
    pub ports_max: usize,
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
