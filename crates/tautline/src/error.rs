//! Errors, by family of operations. Each message says what happened; [`OpenError::remedy`]
//! and its like say what to do. A program that returns one of them from `main` prints both ([`Error`]).

mod config;
mod neighbours;
mod observe;
mod report;
mod undelivered;

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{MESSAGE_BYTES_MAX, PORT_MAX, PortNumber, Priority};

use crate::keys::KeyFileError;
use crate::kind::XdpMode;

pub use crate::claim::Holder;
pub use config::ConfigError;
pub use neighbours::NeighbourTableError;
pub use observe::ObserveError;
pub use report::Error;
pub use undelivered::Undelivered;

/// A node could not be opened.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ConfigUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no such interface in this network namespace.
    #[error("there is no interface `{name}` here (there are: {})", known.join(", "))]
    NoSuchInterface {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The configuration names no interface, and the link needs one.
    #[error("link `{link}` needs an interface")]
    InterfaceMissing {
        /// The link.
        link: &'static str,
    },
    /// The link needs an IPv4 address and there is none.
    #[error("link `{link}` needs an IPv4 address, and {}", on(interface))]
    NoAddress {
        /// The link.
        link: &'static str,
        /// The interface that has none, if one was named.
        interface: Option<String>,
    },
    /// Another XDP program is on the interface.
    #[error("{}", xdp_taken(interface, program_name(*id, name), holders))]
    XdpTaken {
        /// The interface.
        interface: String,
        /// The program's id, if the kernel told.
        id: Option<u32>,
        /// The program's name, if the kernel told.
        name: Option<String>,
        /// Where it is another node's demux, the processes that hold it, as far as they can be seen.
        holders: Vec<Holder>,
    },
    /// A control process serves the interface, and does not take this process or its settings.
    #[error("control process {pid}: {why}")]
    ControlRefused {
        /// The control process.
        pid: i32,
        /// Why not, with the rule and the user where it is about them.
        why: String,
    },
    /// The interface has a control process already.
    #[error("`{interface}` has a control process: {}", holder_name(holder))]
    ControlTaken {
        /// The interface.
        interface: String,
        /// That process.
        holder: Option<Holder>,
    },
    /// The configuration names another link than the one that a control process shares.
    #[error("a control process shares link `xdp`, and the configuration names link `{link}`")]
    NotShared {
        /// The link that it names.
        link: &'static str,
    },
    /// An entry of the configuration is for nobody.
    #[error("[[allow]] entry {rule} is for {who}, who does not exist here")]
    RuleUnknown {
        /// The entry, from 1.
        rule: usize,
        /// User or group that the entry names.
        who: String,
    },
    /// Keys that the configuration names cannot be used.
    #[error("{0}")]
    Keys(#[from] KeyFileError),
    /// The configuration names no bus, and link `vbus` needs one.
    #[error("link `vbus` needs a bus, and the name of this node on it")]
    BusMissing,
    /// The link needs a privilege that this process lacks.
    #[error("link `{link}` needs {needs}")]
    NotPermitted {
        /// The link.
        link: &'static str,
        /// The capabilities.
        needs: &'static str,
    },
    /// The kernel has no part that the link cannot do without.
    #[error("link `{link}` needs Linux {since} or later, for {lacks}")]
    KernelLacks {
        /// The link.
        link: &'static str,
        /// The part, of [`crate::kernel::FEATURES`].
        lacks: &'static str,
        /// Release that has it.
        since: &'static str,
    },
    /// The kernel has no busy polling, which the configuration asks for.
    #[error("this kernel has no busy polling")]
    NoBusyPolling,
    /// The configuration names a VLAN, and the link has no frames in it.
    #[error("link `{link}` is outside VLAN {vlan}")]
    OutsideVlan {
        /// The link.
        link: &'static str,
        /// The VLAN.
        vlan: u16,
    },
    /// The library was built without the feature `bpf`: links `xdp` and `xsk` have no programs.
    #[error("this build has no BPF programs")]
    WithoutBpf,
    /// The kernel's verifier refuses the program.
    #[error("the kernel's verifier refuses the program: {log}")]
    ProgramRefused {
        /// Last lines of the verifier's log, or all of it where the environment asks for that.
        log: String,
    },
    /// The driver takes no XDP program in this mode.
    #[error("the driver of `{interface}` has no XDP in {} mode", mode.name())]
    NoXdp {
        /// The interface.
        interface: String,
        /// The mode.
        mode: XdpMode,
    },
    /// Zero-copy was asked for, and the driver does not have it.
    #[error("the driver of `{interface}` refuses zero-copy AF_XDP in {} mode: {source}", mode.name())]
    ZeroCopyRefused {
        /// The interface.
        interface: String,
        /// The mode of the program.
        mode: XdpMode,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another AF_XDP socket, not of a node's, has a queue of the interface.
    #[error("another AF_XDP socket has queue {queue} of `{interface}`")]
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The interface has more queues than link `xsk` serves.
    #[error("`{interface}` has more than {max} queues")]
    TooManyQueues {
        /// The interface.
        interface: String,
        /// How many there may be.
        max: u32,
    },
    /// The kernel does not let this process lock the memory of an AF_XDP socket.
    #[error(
        "the memory of a queue, {needs_bytes} bytes, exceeds what this user may lock (RLIMIT_MEMLOCK: {limit_bytes} bytes)"
    )]
    NotLocked {
        /// Bytes for each queue.
        needs_bytes: usize,
        /// This process's limit, shared with the user's other processes.
        limit_bytes: u64,
    },
    /// The kernel or the driver refused.
    #[error("{doing}: {}", chain(source.as_ref()))]
    Refused {
        /// Operation that failed.
        doing: String,
        /// The kernel's answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No link at all could be opened.
    #[error("no link works here: {}", reasons.join("; "))]
    NoLink {
        /// Why not, link by link.
        reasons: Vec<String>,
    },
}

impl OpenError {
    /// Whether this kernel is too old for what was tried.
    pub(crate) fn is_lack_of_kernel(&self) -> bool {
        matches!(self, Self::KernelLacks { .. })
    }

    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Config(_) => {
                "correct the configuration file; docs/configuration.md lists every key"
            }
            Self::ConfigUnreadable { .. } => "name a TOML file that this user may read",
            Self::NotShared { .. } => "leave `link` out, or set it to \"xdp\"",
            Self::NoSuchInterface { .. } => "name one of the interfaces that there are",
            Self::InterfaceMissing { .. } => "set `interface` in the configuration, or --interface",
            Self::NoAddress { .. } => "give the interface an IPv4 address, or set `address`",
            Self::Keys(_) => {
                "make it with `taut key`, and let this user alone read it; docs/security.md has the form"
            }
            Self::BusMissing => "set `bus` and `node` in the configuration",
            Self::XdpTaken { holders, .. } if !holders.is_empty() => {
                "end that process, or have several share the interface through a control process (taut node run)"
            }
            Self::XdpTaken { .. } => {
                "detach that program (ip link set dev INTERFACE xdp off), or run beside it with xdp_mode = \"tc\" (Linux 6.6) or link = \"packet\""
            }
            Self::ControlRefused { .. } => {
                "have [[allow]] entries and settings of the control process changed (`taut status` shows them), or ask for link = \"udp\" by name"
            }
            Self::ControlTaken { .. } => "end that process first, or let it serve this interface",
            Self::RuleUnknown { .. } => "name a user or group that exists, or its number",
            Self::NotPermitted { .. } => {
                "run as root or grant the capabilities (setcap), start a control process (taut node run), or use link = \"udp\", which needs none"
            }
            Self::NoBusyPolling => {
                "leave `busy_poll_us` out: kernels with PREEMPT_RT mostly have none, others since Linux 5.11"
            }
            Self::OutsideVlan { .. } => {
                "use link `xdp` or `xsk`, or leave `vlan` out and name the VLAN's own interface (ip link add link eth0 name eth0.5 type vlan id 5)"
            }
            Self::KernelLacks { .. } => "boot a newer kernel, or use link = \"packet\"",
            Self::WithoutBpf => {
                "use link = \"packet\", \"udp\" or \"vbus\", or build with the feature `bpf`, which needs clang and libbpf's headers"
            }
            Self::ProgramRefused { .. } => {
                "use link = \"packet\", and report this with the whole log, which TAUTLINE_VERIFIER_LOG=all shows"
            }
            Self::NoXdp { .. } => "leave `xdp_mode` out, or set it to \"generic\"",
            Self::ZeroCopyRefused { .. } => {
                "leave `zero_copy` out to have copy mode, or use a network card whose driver has it (`taut doctor`)"
            }
            Self::QueueTaken { .. } => {
                "end the program that has it (`ss --xdp --processes` names it)"
            }
            Self::TooManyQueues { .. } => "reduce them: ethtool -L INTERFACE combined 64",
            Self::NotLocked { .. } => {
                "raise the limit (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK"
            }
            Self::Refused { .. } | Self::NoLink { .. } => {
                "`taut doctor` shows what this machine lacks"
            }
        }
    }
}

/// An error with what it came from, down to the kernel's own answer.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn on(interface: &Option<String>) -> String {
    match interface {
        Some(name) => format!("`{name}` has none"),
        None => "none is configured".to_owned(),
    }
}

fn xdp_taken(interface: &str, program: String, holders: &[Holder]) -> String {
    if holders.is_empty() {
        return format!("another XDP program is attached to `{interface}`: {program}");
    }
    let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
    format!("another node has `{interface}`: {}", names.join(", "))
}

fn program_name(id: Option<u32>, name: &Option<String>) -> String {
    match (id, name) {
        (Some(id), Some(name)) => format!("id {id}, name `{name}`"),
        (Some(id), None) => format!("id {id}"),
        _ => "the kernel does not say which".to_owned(),
    }
}

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
    /// The calling thread is in another network namespace than the node's interface.
    #[error("the calling thread is in another network namespace than the node was opened in")]
    OtherNamespace,
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

fn holder_name(holder: &Option<Holder>) -> String {
    holder
        .as_ref()
        .map_or_else(|| "another process".to_owned(), Holder::to_string)
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
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
            Self::BadType(_) => "use names and sizes within the limits of docs/types.md",
            Self::BadDepth { .. } => "use a power of two within the limits, such as 64",
            Self::BadMessageSize { .. } => "use smaller messages or a larger depth",
            Self::BadSources { .. } => "use fewer sources, or several ports",
            Self::BadPolicing { .. } => {
                "use a rate of 1 to 10,000,000 messages a second and a burst of 1 to 1,000,000"
            }
            Self::NotOnLink { .. } => "leave it out, or use another link",
            Self::NoKeys { .. } | Self::NoKeysAtAll => {
                "give the neighbour's entry a `key_file` (docs/security.md)"
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
            Self::OtherNamespace => "open ports on a thread in the node's network namespace",
            Self::Refused { .. } => "`taut doctor` shows what this machine lacks",
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

/// A message was not sent, or not whole. Hot path: `Copy`, and counted in the port.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is larger than any message can be.
    #[error("message of {bytes} bytes is larger than {MESSAGE_BYTES_MAX}")]
    MessageTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The control process gave this port without this priority.
    #[error("priority {priority} is not allowed on this port: {allowed}")]
    PriorityNotAllowed {
        /// The priority.
        priority: u8,
        /// The entry of the policy, and what it gives.
        allowed: Priorities,
    },
    /// The driver's transmit queue is full: the frame was not sent. Try later, or send less.
    #[error("transmit queue is full")]
    TransmitQueueFull,
    /// Nobody has the port open, or who had it is gone (link `vbus`).
    #[error("nobody has the peer's port open")]
    PeerGone,
    /// The peer's port declares another type than this port sends (link `vbus`); `taut status` names the field.
    #[error("the peer's port declares another type")]
    OtherType,
    /// The receiver's class is full: it is slower than we are, for the moment (link `vbus`).
    #[error("the receiver's class is full")]
    ReceiverFull,
    /// The receiving port takes smaller messages (link `vbus`).
    #[error("message of {bytes} bytes is larger than the {largest} that the receiver takes")]
    LargerThanReceiver {
        /// Its size.
        bytes: usize,
        /// Largest message that the receiver's port was opened for.
        largest: usize,
    },
    /// All send buffers of the size that the message needs are lent. Drop one, or have more in the
    /// configuration's `[send_pool]`.
    #[error("all send buffers of {buffer_bytes} bytes are lent")]
    PoolExhausted {
        /// The size of the buffers.
        buffer_bytes: usize,
    },
    /// The interface is down.
    #[error("interface is down")]
    InterfaceDown,
    /// The interface no longer exists.
    #[error("interface is gone")]
    InterfaceGone,
    /// The frame given to a raw port is of another EtherType than the port's, in a VLAN, or not whole.
    #[error("frame is not one of the port's EtherType")]
    ForeignFrame,
    /// The frame given to a raw port has another source address than the interface's, and the control process gave the
    /// port for that one alone.
    #[error(
        "source address is not the interface's: [[allow]] entry {entry} lacks `any_source_address`"
    )]
    SourceNotAllowed {
        /// The entry of the policy, counted from 1.
        entry: u16,
    },
    /// The interface carries smaller frames than the link needs.
    #[error("frame is larger than the interface's MTU")]
    FrameTooLarge,
    /// The kernel refused for another reason.
    #[error("kernel refused to send (errno {errno})")]
    Refused {
        /// The error number.
        errno: i32,
    },
}

impl SendError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::MessageTooLarge { .. } | Self::LargerThanReceiver { .. } => {
                "send smaller messages"
            }
            Self::PriorityNotAllowed { .. } => {
                "send with a priority of the entry, or have the entry's `priorities` changed (`taut status` shows it)"
            }
            Self::TransmitQueueFull => "send less, or try again",
            Self::PeerGone => "start the program that opens that port, and send again",
            Self::OtherType => "declare the same type at both ends; `taut status` names the field",
            Self::ReceiverFull => "send less, or try again when the receiver has caught up",
            Self::PoolExhausted { .. } => "give buffers back, or raise their number in [send_pool]",
            Self::InterfaceDown | Self::InterfaceGone => {
                "bring the interface up: ip link set dev INTERFACE up"
            }
            Self::ForeignFrame => {
                "begin it with both addresses and the port's EtherType; a tag must have VLAN identifier 0"
            }
            Self::SourceNotAllowed { .. } => {
                "write the interface's MAC address, or have the entry's `any_source_address` set"
            }
            Self::FrameTooLarge => "raise the interface's MTU to 1500",
            Self::Refused { .. } => {
                "check that the peer's address is reachable; `taut doctor` shows what this machine lacks"
            }
        }
    }
}

/// The priorities that a port may send with, and the `[[allow]]` entry that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priorities {
    /// From 1; 0 if no entry is needed.
    entry: u16,
    /// A bit for each.
    bits: u8,
}

impl Priorities {
    /// Of a port that no entry is about.
    pub(crate) const ALL: Self = Self {
        entry: 0,
        bits: u8::MAX,
    };

    /// Of an entry, counted from 1.
    pub(crate) const fn of_entry(entry: u16, bits: u8) -> Self {
        Self { entry, bits }
    }

    /// Whether one is among them.
    #[inline]
    #[must_use]
    pub const fn allow(self, priority: Priority) -> bool {
        self.bits >> priority.get() & 1 == 1
    }

    /// An error if one is not among them.
    #[inline]
    pub(crate) const fn check(self, priority: Priority) -> Result<(), SendError> {
        if self.allow(priority) {
            return Ok(());
        }
        Err(SendError::PriorityNotAllowed {
            priority: priority.get(),
            allowed: self,
        })
    }

    /// The `[[allow]]` entry that gives them, counted from 1; `None` if none was needed.
    #[must_use]
    pub const fn entry(self) -> Option<u16> {
        match self.entry {
            0 => None,
            entry => Some(entry),
        }
    }

    /// The most urgent one; `None` if nothing may be sent.
    #[must_use]
    pub fn highest(self) -> Option<Priority> {
        let highest = self.bits.checked_ilog2()?;
        Priority::new(highest as u8)
    }
}

impl std::fmt::Display for Priorities {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.entry {
            0 => formatter.write_str("it has priorities"),
            entry => write!(formatter, "[[allow]] entry {entry} gives priorities"),
        }?;
        let is_in = |priority: u8| priority < 8 && self.bits >> priority & 1 == 1;
        let (mut first, mut comma) = (0, " ");
        while first < 8 {
            let end = (first..=8).find(|priority| !is_in(*priority)).unwrap_or(8);
            match end - first {
                0 => {}
                1 => write!(formatter, "{comma}{first}")?,
                _ => write!(formatter, "{comma}{first}-{}", end - 1)?,
            }
            if end > first {
                comma = ", ";
            }
            first = end + 1;
        }
        if self.bits == 0 {
            formatter.write_str(" of none")?;
        }
        Ok(())
    }
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::EAGAIN | libc::EBUSY) => Self::TransmitQueueFull,
            Some(libc::ENETDOWN) => Self::InterfaceDown,
            Some(libc::ENODEV | libc::ENXIO) => Self::InterfaceGone,
            Some(libc::EMSGSIZE) => Self::FrameTooLarge,
            other => Self::Refused {
                errno: other.unwrap_or(0),
            },
        }
    }
}

/// A message could not be received. Hot path: `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The buffer is smaller than the largest message that the port can hold. Nothing was taken.
    #[error("buffer of {given} bytes, but messages may have {needed}")]
    BufferTooSmall {
        /// Bytes of the buffer.
        given: usize,
        /// Bytes that the port's largest message has.
        needed: usize,
    },
    /// A message has another size than the port's type. The message is gone, and counted.
    #[error("message of {bytes} bytes, and the port's type has {expected}")]
    OtherSize {
        /// Bytes of the message; of one that is longer than the type, one more than the type's at least.
        bytes: usize,
        /// Bytes of the type.
        expected: usize,
    },
    /// The interface is down. The port stays open and works again when it comes up.
    #[error("interface is down")]
    InterfaceDown,
    /// A datagram that this port of plain UDP had sent did not arrive, as a router or the peer told. What has
    /// been received is there for the next call.
    #[error("not delivered to {0}")]
    Undelivered(Undelivered),
    /// The kernel refused to receive or to wait.
    #[error("kernel refused to receive (errno {errno})")]
    Refused {
        /// The error number.
        errno: i32,
    },
}

impl ReceiveError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::OtherSize { .. } => {
                "use the same type on both sides; `taut status` shows who sends to this port"
            }
            Self::BufferTooSmall { .. } => "give a buffer of the port's largest message",
            Self::InterfaceDown => "bring the interface up: ip link set dev INTERFACE up",
            Self::Undelivered(_) => "start the peer's program, or check address, port and route",
            Self::Refused { .. } => "`taut doctor` shows what this machine lacks",
        }
    }
}

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::InterfaceDown,
            other => Self::Refused {
                errno: other.unwrap_or(0),
            },
        }
    }
}
