//! The error of a neighbour that was not entered, or not found on the network.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tautline_proto::neighbour::NeighbourError;
use tautline_state::fork::OtherProcess;

use super::{AFTER_FORK, control_process};
use crate::limits::SOLICIT_TIME_MAX;

/// A neighbour was not entered, or not found on the network.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NeighbourTableError {
    /// The table takes no entries any more.
    #[error("the neighbour table is locked since the node's first port was opened")]
    Locked,
    /// Another neighbour has the same name or address.
    #[error("neighbour `{name}` has the same {what} as neighbour `{other}`")]
    Duplicate {
        name: String,
        what: &'static str,
        other: String,
    },
    /// The table has no room, or the entry lacks what its form needs.
    #[error("neighbour `{}`: {why}", name.escape_debug())]
    Entry { name: String, why: NeighbourError },
    /// No single neighbour can have the address.
    #[error("{address} is {what}, not of one neighbour")]
    Address {
        /// The MAC or IPv4 address.
        address: String,
        /// Owner of the address, in words.
        what: &'static str,
    },
    /// The address is outside the interface's network, where the question is not heard.
    #[error("{ip} is outside the network of `{interface}`, where ARP does not reach")]
    OutsideNetwork { ip: Ipv4Addr, interface: String },
    /// No answer came in time.
    #[error("nobody on the network of `{interface}` answered for {ip} within {waited:?}")]
    NoAnswer {
        ip: Ipv4Addr,
        interface: String,
        waited: Duration,
    },
    /// The time to wait is zero or beyond the limit.
    #[error("{timeout:?} is no time to wait for an answer (1 ms to {SOLICIT_TIME_MAX:?})")]
    BadTimeout { timeout: Duration },
    /// There is no interface that could be asked through.
    #[error("{what}, so nobody can be asked by ARP")]
    NoArp {
        /// State that was found instead.
        what: String,
    },
    /// There is no such interface in this network namespace.
    #[error("there is no interface `{name}` here (there are: {})", known.join(", "))]
    NoSuchInterface { name: String, known: Vec<String> },
    /// Asking needs a privilege that this process lacks.
    #[error("asking by ARP needs CAP_NET_RAW")]
    NotPermitted,
    /// The node was opened by the process that this one was forked from.
    #[error("the node was opened by another process")]
    OtherProcess,
    /// The control process does not take this process as a client.
    #[error("{}: {why}", control_process(*pid))]
    NotAllowed {
        pid: i32,
        /// Which entry would be needed, in words.
        why: String,
    },
    /// The control process does not answer.
    #[error("{} does not answer: {source}", control_process(*pid))]
    ControlGone {
        /// The control process; 0 if none was reached.
        pid: i32,
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{doing}: {source}")]
    Refused {
        doing: &'static str,
        source: io::Error,
    },
}

impl From<OtherProcess> for NeighbourTableError {
    fn from(_: OtherProcess) -> Self {
        Self::OtherProcess
    }
}

impl NeighbourTableError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Locked => "write it into the configuration, or add it before the first port",
            Self::Duplicate { .. } => {
                "use the neighbour that is there, or correct it in the configuration and start again"
            }
            Self::Entry { why, .. } => match why {
                NeighbourError::TableFull => "leave neighbours out that nobody sends to",
                _ => "correct the entry",
            },
            Self::Address { .. } => {
                "name the address of a peer; groups are written into the configuration"
            }
            Self::OutsideNetwork { .. } => {
                "ask for the router, and set it as `gateway` or enter the peer with the router's MAC address"
            }
            Self::NoAnswer { .. } => {
                "check that the peer is up and on this network, or enter its MAC address by hand"
            }
            Self::BadTimeout { .. } => "wait a second or so",
            Self::NoArp { .. } => "enter the MAC address by hand, or name an Ethernet interface",
            Self::NoSuchInterface { .. } => "name one of the interfaces that there are",
            Self::NotPermitted => {
                "run as root or grant the capability (setcap), or write the MAC address down"
            }
            Self::OtherProcess => AFTER_FORK,
            Self::NotAllowed { .. } => {
                "run as root, or have an [[allow]] entry for your user in the file of the control process"
            }
            Self::ControlGone { .. } => {
                "start it again (taut node run); ports that are open work on meanwhile"
            }
            Self::Refused { .. } => "`taut doctor` shows what this machine lacks",
        }
    }
}
