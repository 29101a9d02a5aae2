//! State of a neighbour table: whether it takes entries, and where each entry comes from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a neighbour table takes entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TableState {
    /// No port has been opened yet.
    #[default]
    Open,
    /// It takes no entries.
    Locked(LockedBy),
    /// It takes entries for maintenance, until it is locked. No guarantees meanwhile.
    Unlocked,
}

/// Cause of a locked neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LockedBy {
    /// The first port, with this number.
    Port(u16),
    /// The first port, of plain UDP, with this number.
    UdpPort(u16),
    /// The first port, a raw one, of this EtherType.
    RawPort(u16),
    /// A request.
    Request,
}

impl TableState {
    /// `open`, `locked` or `unlocked`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Locked(_) => "locked",
            Self::Unlocked => "unlocked",
        }
    }
}

impl fmt::Display for TableState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => formatter.write_str("open until the first port opens"),
            Self::Locked(by) => write!(formatter, "locked: {by}"),
            Self::Unlocked => formatter.write_str("unlocked for maintenance, without guarantees"),
        }
    }
}

impl fmt::Display for LockedBy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(number) => write!(formatter, "port {number} was opened"),
            Self::UdpPort(number) => write!(formatter, "UDP port {number} was opened"),
            Self::RawPort(ethertype) => {
                write!(
                    formatter,
                    "the raw port of EtherType {ethertype:#06x} was opened"
                )
            }
            Self::Request => formatter.write_str("somebody asked for it"),
        }
    }
}

/// Where an entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Origin {
    /// The configuration.
    Configured,
    /// It was entered at run time.
    Added,
    /// The same, with the MAC address that the network answered.
    Solicited,
    /// The control process that the node is open through has it.
    Shared,
}

impl Origin {
    /// As tables show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Added => "added",
            Self::Solicited => "solicited",
            Self::Shared => "shared",
        }
    }
}
