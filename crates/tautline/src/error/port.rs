//! Errors of opening a port and of resolving a destination.

use std::io;
use std::net::Ipv4Addr;

use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{PORT_MAX, PortNumber};
use tautline_state::fork::OtherProcess;

use super::{AFTER_FORK, Holder, chain, holder_name, refused_remedy};

/// Name of raw ports in [`PortError::NotOffered`].
pub(crate) const RAW_FRAMES: &str = "raw frames";

/// A port could not be opened, or a destination not be resolved.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The number is not one that a port can have.
    #[error("port {number} is out of range (1 to {PORT_MAX})")]
    OutOfRange {
        /// The number asked for.
        number: u32,
    },
    /// This node has the port open already.
    #[error("port {port} is open in this node already")]
    OpenHere {
        /// The port.
        port: PortNumber,
    },
    /// Another process has the port.
    #[error("port {port} is taken by {}", holder_name(holder))]
    Taken {
        /// The port.
        port: PortNumber,
        /// Process that holds the port, if known.
        holder: Option<Holder>,
    },
    /// The control process does not give this port to this user.
    #[error("port {port} is not allowed: {why}")]
    NotAllowed {
        /// The port.
        port: PortNumber,
        /// Which rule does not give it to which user, and why.
        why: String,
    },
    /// The control process does not give this UDP port to this user.
    #[error("UDP port {port} is not allowed: {why}")]
    UdpNotAllowed {
        /// The UDP port.
        port: u16,
        /// Which rule does not give it to which user, and why.
        why: String,
    },
    /// The control process that the node was opened through does not answer any more.
    #[error("control process {pid} does not answer: {source}")]
    ControlGone {
        /// The control process.
        pid: i32,
        /// Cause.
        source: io::Error,
    },
    /// The configuration has no port of that name.
    #[error("the configuration has no port named `{name}`")]
    UnknownName {
        /// The name.
        name: String,
    },
    /// The port is configured as another kind.
    #[error("port `{name}` is configured as {configured}")]
    OtherKind {
        /// The name.
        name: String,
        /// Kind of the configured port.
        configured: &'static str,
    },
    /// The configuration declares another type than the program.
    #[error("port `{name}`: the program's type is not the configuration's: {difference}")]
    OtherType {
        /// The name.
        name: String,
        /// First difference; "here" is the program.
        difference: String,
    },
    /// A type of the program is beyond the limits of types.
    #[error(transparent)]
    BadType(#[from] tautline_types::TypeError),
    /// The depth is not one that a port can have.
    #[error("depth {depth} is not a power of two from 2 to {max}", max = crate::limits::DEPTH_MAX)]
    BadDepth {
        /// The depth asked for.
        depth: u32,
    },
    /// Messages of the size asked for do not fit the port.
    #[error("messages of {bytes} bytes do not fit: {why}")]
    BadMessageSize {
        /// The size asked for.
        bytes: usize,
        /// Limit that was exceeded.
        why: &'static str,
    },
    /// A sampling port cannot keep values of so many sources.
    #[error("{sources} sources are out of range (1 to {max})", max = crate::limits::SOURCES_MAX)]
    BadSources {
        /// The number asked for.
        sources: usize,
    },
    /// The policing asked for is beyond the limits.
    #[error(
        "bursts of {burst} and one frame each {interval:?} cannot be policed (1 to {max}, 100 ns to 1 h)",
        max = tautline_shm::police::BURST_MAX
    )]
    BadPolicing {
        /// Time for each frame.
        interval: std::time::Duration,
        /// Frames at once.
        burst: u32,
    },
    /// The port is protected, and the node shares no keys with this neighbour.
    #[error("no keys are shared with `{name}`, and the port is protected")]
    NoKeys {
        /// The neighbour.
        name: String,
    },
    /// The port is protected, and the node shares keys with nobody.
    #[error("the port is protected, and no neighbour has keys")]
    NoKeysAtAll,
    /// The link cannot give the port what was asked for.
    #[error("link `{link}` has no {what}")]
    NotOnLink {
        /// The link.
        link: &'static str,
        /// Feature that the link does not have.
        what: &'static str,
    },
    /// Nobody has opened the peer's port on the bus in time.
    #[error(
        "port {port} of `{name}` is not on the bus: its process has not started, or may not be that node"
    )]
    PeerAbsent {
        /// The peer.
        name: String,
        /// Its port.
        port: PortNumber,
    },
    /// The peer's port declares another type than this port sends.
    #[error("port {port} of `{name}` declares another type: {difference}")]
    PeerOtherType {
        /// The peer.
        name: String,
        /// Its port.
        port: PortNumber,
        /// First difference; "here" is this port.
        difference: String,
    },
    /// The peer's port publishes for its readers what this port cannot take (link `vbus`).
    #[error("port {port} of `{name}` is {} and publishes up to {bytes} bytes, which do not fit this port", kind.name())]
    PeerOtherShape {
        /// The peer.
        name: String,
        /// Its port.
        port: PortNumber,
        /// Kind of the peer's port.
        kind: crate::kind::PortKind,
        /// Bytes of its largest message.
        bytes: usize,
    },
    /// The peer's port is not for this user (link `vbus`).
    #[error("port {port} of `{name}` is not for this user")]
    PeerDenies {
        /// The peer.
        name: String,
        /// Its port.
        port: PortNumber,
    },
    /// Nobody of that name or address is in the neighbour table.
    #[error("no neighbour `{name}` (there are: {})", list(known))]
    PeerUnknown {
        /// The name or address asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The neighbour's entry lacks what this link needs to reach it.
    #[error("neighbour `{name}` has no {lacks}, which link `{link}` needs")]
    NeighbourIncomplete {
        /// The neighbour.
        name: String,
        /// Part of the entry that is missing.
        lacks: &'static str,
        /// The link.
        link: &'static str,
    },
    /// UDP port 0 is nobody's.
    #[error("0 is no UDP port that can be opened or sent to")]
    UdpPortZero,
    /// This node has the UDP port open already.
    #[error("UDP port {port} is open in this node already")]
    UdpOpenHere {
        /// The UDP port.
        port: u16,
    },
    /// Another process has the UDP port.
    #[error("UDP port {port} is taken by {}", holder_name(holder))]
    UdpTaken {
        /// The UDP port.
        port: u16,
        /// Process that holds the port, if known.
        holder: Option<Holder>,
    },
    /// The node has as many UDP ports open as it can.
    #[error("the node has {max} UDP ports open already")]
    TooManyUdpPorts {
        /// How many it can have.
        max: usize,
    },
    /// The EtherType is the node's own.
    #[error("EtherType {ethertype} is this node's own")]
    RawOwn {
        /// The EtherType.
        ethertype: EtherType,
    },
    /// This node has a raw port for the EtherType already.
    #[error("the raw port of EtherType {ethertype} is open in this node already")]
    RawOpenHere {
        /// The EtherType.
        ethertype: EtherType,
    },
    /// Another process has the EtherType on this interface.
    #[error("EtherType {ethertype} is taken by {}", holder_name(holder))]
    RawTaken {
        /// The EtherType.
        ethertype: EtherType,
        /// Process that holds the port, if known.
        holder: Option<Holder>,
    },
    /// The control process does not give the EtherType to this process's user; `why` names the rule or the limit.
    #[error("EtherType {ethertype} is not allowed: {why}")]
    RawNotAllowed {
        /// The EtherType.
        ethertype: EtherType,
        /// Answer of the control process.
        why: String,
    },
    /// The node has as many raw ports open as it can.
    #[error("the node has {max} raw ports open already")]
    TooManyRawPorts {
        /// How many it can have.
        max: usize,
    },
    /// The node has no IPv4 address.
    #[error("plain UDP on link `{link}` needs an IPv4 address, and the node has none")]
    NoAddress {
        /// The link.
        link: &'static str,
    },
    /// The link cannot do that.
    #[error("link `{link}` has no {what}")]
    NotOffered {
        /// Feature that the link does not have.
        what: &'static str,
        /// The link.
        link: &'static str,
    },
    /// The address is outside the interface's network, and there is no way out.
    #[error("no way to {address}, which is outside this network: {}", gateway_lack(*gateway))]
    NoRoute {
        /// The address.
        address: Ipv4Addr,
        /// The gateway that is configured and of which no MAC address is known.
        gateway: Option<Ipv4Addr>,
    },
    /// The port has as many destinations as it can hold.
    #[error("the port has {max} destinations already", max = crate::limits::DESTINATIONS_MAX)]
    TooManyDestinations,
    /// The run of a protected port, which must be told from all before it, could not be noted.
    #[error("noting the run of a protected port: {source}")]
    RunNotNoted {
        /// Reason.
        source: std::io::Error,
    },
    /// The calling thread is in another network namespace than the node's interface.
    #[error("the calling thread is in another network namespace than the node was opened in")]
    OtherNamespace,
    /// The node, or the port, was opened by the process that this one was forked from.
    #[error("the node was opened by another process")]
    OtherProcess,
    /// The kernel refused.
    #[error("{doing}: {}", chain(source.as_ref()))]
    Refused {
        /// Operation that failed.
        doing: &'static str,
        /// The kernel's answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
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
            Self::OutOfRange { .. } => "use a port number from 1 to 4095",
            Self::OpenHere { .. } => "use another port number, or the port that is open",
            Self::Taken { .. } => "end that process, or use another port number",
            Self::NotAllowed { .. } => {
                "use a port that is allowed, or have an [[allow]] entry of the control process changed"
            }
            Self::UdpNotAllowed { .. } => {
                "use a UDP port that is allowed, or have `udp_ports` of the [[allow]] entry changed"
            }
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
            Self::BadType(_) => "use names and sizes within the limits of docs/reference/types.md",
            Self::BadDepth { .. } => "use a power of two within the limits, such as 64",
            Self::BadMessageSize { .. } => "use smaller messages or a larger depth",
            Self::BadSources { .. } => "use fewer sources, or several ports",
            Self::BadPolicing { .. } => {
                "use a rate of 1 to 10,000,000 messages a second and a burst of 1 to 1,000,000"
            }
            Self::NotOnLink { .. } => "leave it out, or use another link",
            Self::NoKeys { .. } | Self::NoKeysAtAll => {
                "give the neighbour's entry a `key_file` (docs/explanation/security.md)"
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
            Self::PeerDenies { .. } => {
                "have its node list this user in a [[bus_allow]] entry, or its bus let the user in"
            }
            Self::PeerAbsent { .. } => {
                "start the peer (`taut vbus list` shows who is there), or wait for it longer"
            }
            Self::NeighbourIncomplete { .. } => {
                "add what is missing to the neighbour's entry in the configuration, or use another link"
            }
            Self::UdpPortZero => "use a UDP port from 1 to 65535",
            Self::UdpOpenHere { .. } => "use another UDP port, or the one that is open",
            Self::UdpTaken { .. } => "end that process, or use another UDP port",
            Self::TooManyUdpPorts { .. } => "close some, or serve several peers from one port",
            Self::RawOwn { .. } => "use another EtherType here, or set `ethertype` of the node",
            Self::RawOpenHere { .. } => "use another EtherType, or the port that is open",
            Self::RawTaken { .. } => "end that process, or use another interface",
            Self::RawNotAllowed { .. } => {
                "use an EtherType that is allowed, or have `ethertypes` of the [[allow]] entry changed"
            }
            Self::TooManyRawPorts { .. } => "close some, or open another node",
            Self::NoAddress { .. } => "give the interface an IPv4 address, or set `address`",
            Self::NotOffered {
                what: RAW_FRAMES, ..
            } => "use link xdp, xsk or packet",
            Self::NotOffered { .. } => "use link xdp, packet or udp",
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
