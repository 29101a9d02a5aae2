//! Errors of opening a port and of resolving a destination.

use std::io;
use std::net::Ipv4Addr;

use tautline_proto::wire::{PortKey, PortNumber, ValueError};
use tautline_state::fork::OtherProcess;

use super::{
    AFTER_FORK, Holder, OptionsError, chain, control_process, holder_name, refused_remedy,
};

/// Name of raw ports in [`PortError::NotOnLink`].
pub(crate) const RAW_FRAMES: &str = "raw frames";
/// Name of UDP ports in [`PortError::NotOnLink`].
pub(crate) const PLAIN_UDP: &str = "plain UDP";

/// A port could not be opened, or a destination not be resolved.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The number is not one that a port can have.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The options are beyond the limits.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// This node has the port open already.
    #[error("{key} is open in this node already")]
    OpenHere { key: PortKey },
    /// Another process has the port.
    #[error("{key} is taken by {}", holder_name(holder))]
    Taken {
        key: PortKey,
        /// Process that holds the port, if known.
        holder: Option<Holder>,
    },
    /// The port is the node's own, or the control process does not give it to this user.
    #[error("{key} is not allowed: {why}")]
    NotAllowed {
        key: PortKey,
        /// Use that the node makes of it, or the rule that does not give it to which user.
        why: String,
    },
    /// The node has as many ports of this kind open as it can.
    #[error("the node has {max} {} open already", plural(*key))]
    TooManyPorts { key: PortKey, max: usize },
    /// The control process that the node was opened through does not answer any more.
    #[error("{} does not answer: {source}", control_process(*pid))]
    ControlGone { pid: i32, source: io::Error },
    /// The configuration has no port of that name.
    #[error("the configuration has no port named `{name}`")]
    UnknownName { name: String },
    /// The port is configured as another kind.
    #[error("port `{name}` is configured as {configured}")]
    OtherKind {
        name: String,
        /// Kind of the configured port.
        configured: &'static str,
    },
    /// The configuration declares another type than the program.
    #[error("port `{name}`: the program's type is not the configuration's: {difference}")]
    OtherType {
        name: String,
        /// First difference; "here" is the program.
        difference: String,
    },
    /// The port is protected, and the keys for that are missing.
    #[error("the port is protected, and {} no keys", neighbour_or_none(name))]
    NoKeys {
        /// The neighbour; `None` if no neighbour has keys.
        name: Option<String>,
    },
    /// The link cannot give the port what was asked for.
    #[error("link `{link}` has no {what}")]
    NotOnLink {
        link: &'static str,
        /// Feature that the link does not have.
        what: &'static str,
    },
    /// The peer's port on the bus was not opened in time.
    #[error(
        "port {port} of `{name}` is not on the bus: its process has not started, or may not be that node"
    )]
    PeerAbsent { name: String, port: PortNumber },
    /// The peer's port declares another type than this port sends.
    #[error("port {port} of `{name}` declares another type: {difference}")]
    PeerOtherType {
        name: String,
        port: PortNumber,
        /// First difference; "here" is this port.
        difference: String,
    },
    /// The peer's port publishes for its readers what this port cannot take (link `vbus`).
    #[error("port {port} of `{name}` is {} and publishes up to {bytes} bytes, which do not fit this port", kind.name())]
    PeerOtherShape {
        name: String,
        port: PortNumber,
        /// Kind of the peer's port.
        kind: crate::kind::PortKind,
        /// Bytes of its largest message.
        bytes: usize,
    },
    /// No neighbour of that name or address is in the table.
    #[error("no neighbour `{name}` (there are: {})", list(known))]
    PeerUnknown {
        /// The name or address asked for.
        name: String,
        known: Vec<String>,
    },
    /// The neighbour's entry lacks what this link needs to reach it.
    #[error("neighbour `{name}` has no {lacks}, which link `{link}` needs")]
    NeighbourIncomplete {
        name: String,
        /// Part of the entry that is missing.
        lacks: &'static str,
        link: &'static str,
    },
    /// The node has no IPv4 address.
    #[error("plain UDP on link `{link}` needs an IPv4 address, and the node has none")]
    NoAddress { link: &'static str },
    /// The address is outside the interface's network, and there is no way out.
    #[error("no way to {address}, which is outside this network: {}", gateway_lack(*gateway))]
    NoRoute {
        address: Ipv4Addr,
        /// The gateway that is configured and of which no MAC address is known.
        gateway: Option<Ipv4Addr>,
    },
    /// The port has as many destinations as it can hold.
    #[error("the port has {max} destinations already", max = crate::limits::DESTINATIONS_MAX)]
    TooManyDestinations,
    /// The run of a protected port, which must be told from all before it, could not be noted.
    #[error("noting the run of a protected port: {source}")]
    RunNotNoted { source: std::io::Error },
    /// The calling thread is in another network namespace than the node's interface.
    #[error("the calling thread is in another network namespace than the node was opened in")]
    OtherNamespace,
    /// The node, or the port, was opened by the process that this one was forked from.
    #[error("the node was opened by another process")]
    OtherProcess,
    /// The kernel refused.
    #[error("{doing}: {}", chain(source.as_ref()))]
    Refused {
        doing: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Ports of a key's kind.
const fn plural(key: PortKey) -> &'static str {
    match key {
        PortKey::Message(_) => "ports",
        PortKey::Udp(_) => "UDP ports",
        PortKey::Raw(_) => "raw ports",
    }
}

fn neighbour_or_none(name: &Option<String>) -> String {
    match name {
        Some(name) => format!("neighbour `{name}` has"),
        None => "all neighbours have".to_owned(),
    }
}

fn gateway_lack(gateway: Option<Ipv4Addr>) -> String {
    match gateway {
        Some(gateway) => format!("the gateway {gateway} is no neighbour with a MAC address"),
        None => "no gateway is configured".to_owned(),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

impl From<tautline_types::TypeError> for PortError {
    fn from(error: tautline_types::TypeError) -> Self {
        Self::Options(error.into())
    }
}

impl From<OtherProcess> for PortError {
    fn from(_: OtherProcess) -> Self {
        Self::OtherProcess
    }
}

impl PortError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Value(_) => "use a number within the range",
            Self::Options(error) => error.remedy(),
            Self::OpenHere { .. } => "use another number, or the port that is open",
            Self::Taken { .. } => "end that process, or use another number or interface",
            Self::NotAllowed { .. } => {
                "use one that is allowed, or have `ports`, `udp_ports` or `ethertypes` of an [[allow]] entry of the control process changed"
            }
            Self::TooManyPorts { .. } => "close some, or open another node",
            Self::ControlGone { .. } => {
                "start it again (taut node run); ports that are open work on meanwhile"
            }
            Self::UnknownName { .. } => {
                "name one of the ports of the configuration, or add it there"
            }
            Self::OtherKind { .. } => "open it as the kind that is configured, or correct `kind`",
            Self::OtherType { .. } => {
                "declare the same type in both; `taut types` prints the file's"
            }
            Self::NotOnLink {
                what: RAW_FRAMES, ..
            } => "use link xdp, xsk or packet",
            Self::NotOnLink {
                what: PLAIN_UDP, ..
            } => "use link xdp, xsk, packet or udp",
            Self::NotOnLink { .. } => "leave it out, or use another link",
            Self::NoKeys { .. } => {
                "give the neighbour's entry a `key_file` (docs/how-to/authentication.md)"
            }
            Self::PeerUnknown { .. } => {
                "name a neighbour of the configuration, a MAC address or an IPv4 address"
            }
            Self::PeerOtherType { .. } => {
                "declare the same type at both ends, and start both again"
            }
            Self::PeerOtherShape { .. } => {
                "open this port as the same kind, and for messages as large"
            }
            Self::PeerAbsent { .. } => {
                "start the peer (`taut bus show` shows who is there), or wait for it longer"
            }
            Self::NeighbourIncomplete { .. } => {
                "add what is missing to the neighbour's entry in the configuration, or use another link"
            }
            Self::NoAddress { .. } => "give the interface an IPv4 address, or set `address`",
            Self::NoRoute { .. } => {
                "set `gateway`, and enter it as a neighbour with its MAC address"
            }
            Self::TooManyDestinations => "open another port for the others",
            Self::RunNotNoted { .. } => {
                "let XDG_STATE_HOME name a directory that this user can write and that outlives restarts"
            }
            Self::OtherProcess => AFTER_FORK,
            Self::OtherNamespace => "open ports on a thread in the node's network namespace",
            Self::Refused { source, .. } => refused_remedy(source.as_ref()),
        }
    }

    pub(crate) fn refused(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Refused {
            doing,
            source: source.into(),
        }
    }
}
