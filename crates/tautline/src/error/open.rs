//! Errors of a configuration file, of opening a node, and of a control process that serves.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::{Holder, chain, control_process, holder_name, limit_remedy, refused_remedy};
use crate::keys::KeyFileError;
use crate::kind::XdpMode;
use tautline_state::privilege::has_seccomp_filter;

/// A node could not be opened.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ConfigUnreadable { path: PathBuf, source: io::Error },
    /// There is no such interface in this network namespace.
    #[error("there is no interface `{name}` here (there are: {})", known.join(", "))]
    NoSuchInterface { name: String, known: Vec<String> },
    /// The configuration names no interface, and the link needs one.
    #[error("link `{link}` needs an interface")]
    InterfaceMissing { link: &'static str },
    /// The link needs an IPv4 address and there is none.
    #[error("link `{link}` needs an IPv4 address, and {}", on(interface))]
    NoAddress {
        link: &'static str,
        /// The interface that has none, if one was named.
        interface: Option<String>,
    },
    /// Another XDP program is on the interface.
    #[error("{}", xdp_taken(interface, program_name(*id, name), holders))]
    XdpTaken {
        interface: String,
        /// The program's id, if the kernel told.
        id: Option<u32>,
        /// The program's name, if the kernel told.
        name: Option<String>,
        /// Where it is another node's demux, the processes that hold it, as far as they can be seen.
        holders: Vec<Holder>,
    },
    /// The demux on the interface is not the one that a control process with these settings would attach, so it cannot
    /// take that over.
    #[error(
        "the demux on `{interface}` is another: {}; processes that have it: {}",
        why,
        holder_names(holders)
    )]
    OtherDemux {
        interface: String,
        /// Differences between it and the interface or the configuration.
        why: String,
        /// The processes that hold it, as far as they can be seen.
        holders: Vec<Holder>,
    },
    /// A control process serves the interface, and does not take this process or its settings.
    #[error("{}: {why}", control_process(*pid))]
    ControlRefused {
        pid: i32,
        /// Why not, with the rule and the user where it is about them.
        why: String,
    },
    /// The interface has a control process already.
    #[error("`{interface}` has a control process: {}", holder_name(holder))]
    ControlTaken {
        interface: String,
        holder: Option<Holder>,
    },
    /// The configuration names another link than the one that a control process shares.
    #[error("a control process shares link `xdp`, and the configuration names link `{link}`")]
    NotShared { link: &'static str },
    /// An entry of the configuration names an unknown user or group.
    #[error("[[allow]] entry {rule} is for {who}, who does not exist here")]
    RuleUnknown {
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
        link: &'static str,
        needs: &'static str,
    },
    /// The kernel refuses bpf(2) to a process that has the capabilities for it, or does not know the call.
    #[error(
        "bpf(2) is refused to this process, though it has the capabilities: {}",
        forbidder()
    )]
    BpfForbidden,
    /// The kernel has no part that the link cannot do without.
    #[error("link `{link}` needs Linux {since} or later, for {lacks}")]
    KernelLacks {
        link: &'static str,
        /// The part, of [`crate::kernel::FEATURES`].
        lacks: &'static str,
        since: &'static str,
    },
    /// The configuration names a VLAN, and the link has no frames in it.
    #[error("link `{link}` is outside VLAN {vlan}")]
    OutsideVlan { link: &'static str, vlan: u16 },
    /// The process is in a time namespace, whose clock is not that of the arrival stamps.
    #[error(
        "link `{link}` stamps arrivals with a clock that is shifted in this process's time namespace"
    )]
    TimeNamespace { link: &'static str },
    /// The interface, such as a tunnel's, has packets without Ethernet headers.
    #[error("`{interface}` has no Ethernet frames, which link `{link}` needs")]
    NoEthernet {
        interface: String,
        link: &'static str,
    },
    /// Tags of VLANs are not in frames where the demux would see them, and VLANs are in use.
    #[error("in {} mode the tags of VLANs on `{interface}` are not seen", mode.name())]
    HiddenTags { interface: String, mode: XdpMode },
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
    NoXdp { interface: String, mode: XdpMode },
    /// Another AF_XDP socket, not of a node's, has a queue of the interface.
    #[error("another AF_XDP socket has queue {queue} of `{interface}`")]
    QueueTaken { interface: String, queue: u32 },
    /// The interface has more queues than link `xsk` serves.
    #[error("`{interface}` has more than {max} queues")]
    TooManyQueues { interface: String, max: u32 },
    /// The kernel does not let this process lock the memory of an AF_XDP socket.
    #[error(
        "the memory of a queue, {needs_bytes} bytes, exceeds what this user may lock (RLIMIT_MEMLOCK: {limit_bytes} bytes)"
    )]
    NotLocked {
        needs_bytes: usize,
        /// This process's limit, shared with the user's other processes.
        limit_bytes: u64,
    },
    /// The kernel or the driver refused.
    #[error("{doing}: {}", chain(source.as_ref()))]
    Refused {
        doing: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The bus cannot be made or joined.
    #[error("joining bus `{bus}`: {}", chain(source))]
    BusRefused {
        /// Its name or path, as configured.
        bus: String,
        source: io::Error,
    },
    /// Neither an interface nor an address nor a bus is configured.
    #[error("the configuration names no `interface`, no `address` and no `bus`")]
    NoNetwork,
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
                "correct the configuration file; docs/reference/configuration.md lists every key"
            }
            Self::ConfigUnreadable { .. } => "name a TOML file that this user may read",
            Self::NotShared { .. } => "leave `link` out, or set it to \"xdp\"",
            Self::NoSuchInterface { .. } => "name one of the interfaces that there are",
            Self::InterfaceMissing { .. } => "set `interface` in the configuration, or --interface",
            Self::NoAddress { .. } => "give the interface an IPv4 address, or set `address`",
            Self::Keys(_) => {
                "make it with `taut key`, and let this user alone read it; docs/how-to/authentication.md has the form"
            }
            Self::BusMissing => "set `bus` and `node` in the configuration",
            Self::XdpTaken { holders, .. } if !holders.is_empty() => {
                "end that process, or have several share the interface through a control process (taut node run)"
            }
            Self::XdpTaken { .. } => {
                "detach that program (ip link set dev INTERFACE xdp off), or run beside it with xdp_mode = \"tc\" (Linux 6.6) or link = \"packet\""
            }
            Self::OtherDemux { .. } => {
                "end those processes and start them again afterwards, or take a control process's demux from them: taut node run --replace"
            }
            Self::ControlRefused { .. } => {
                "have [[allow]] entries and settings of the control process changed (`taut status` shows them), or ask for link = \"udp\" by name"
            }
            Self::ControlTaken { .. } => "end that process first, or let it serve this interface",
            Self::RuleUnknown { .. } => "name a user or group that exists, or its number",
            Self::NotPermitted { .. } => {
                "run as root or grant the capabilities (setcap), start a control process (taut node run), or use link = \"udp\", which needs none"
            }
            Self::OutsideVlan { .. } => {
                "use link `xdp` or `xsk`, or leave `vlan` out and name the VLAN's own interface (ip link add link eth0 name eth0.5 type vlan id 5)"
            }
            Self::BpfForbidden if has_seccomp_filter() => {
                "allow bpf(2) in the seccomp filter of the container or service (docker --security-opt seccomp=, SystemCallFilter=), or use link = \"packet\""
            }
            Self::BpfForbidden => {
                "use a kernel with CONFIG_BPF_SYSCALL and without lockdown, or link = \"packet\""
            }
            Self::TimeNamespace { .. } => {
                "run it outside of the time namespace, or use link = \"packet\" or \"udp\""
            }
            Self::NoEthernet { .. } => "use link = \"udp\", which needs no Ethernet",
            Self::HiddenTags { .. } => {
                "use link `xdp` with xdp_mode = \"tc\" (Linux 6.6); on a network card, or leave tags in frames (ethtool -K INTERFACE rxvlan off)"
            }
            Self::KernelLacks { .. } => "boot a newer kernel, or use link = \"packet\"",
            Self::WithoutBpf => {
                "use link = \"packet\", \"udp\" or \"vbus\", or build with the feature `bpf`, which needs clang and libbpf's headers"
            }
            Self::ProgramRefused { .. } => {
                "use link = \"packet\", and report this with the kernel's release"
            }
            Self::NoXdp { .. } => "leave `xdp_mode` out, or set it to \"generic\"",
            Self::QueueTaken { .. } => {
                "end the program that has it (`ss --xdp --processes` names it)"
            }
            Self::TooManyQueues { .. } => "reduce them: ethtool -L INTERFACE combined 64",
            Self::NotLocked { .. } => {
                "raise the limit (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK"
            }
            Self::Refused { source, .. } => not_opened_remedy(source.as_ref()),
            Self::BusRefused { source, .. } => limit_remedy(source).unwrap_or(
                "name another bus, or its path: `taut bus show` shows those of the system and of this user",
            ),
            Self::NoNetwork => {
                "name the interface with the cable: `interface = \"eth0\"`; `taut init` writes a file"
            }
            Self::NoLink { .. } => "`taut doctor` shows what this machine lacks",
        }
    }
}

/// Something in a configuration file is wrong, and where.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, if the text came from one.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Description of the mistake, and the values that were expected.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column, message) = (self.line, self.column, &self.message);
        match &self.file {
            Some(file) => write!(formatter, "{file}:{line}:{column}: {message}"),
            None => write!(formatter, "line {line}, column {column}: {message}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A control process has ended by itself.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Its interface was deleted, or moved to another network namespace. Its clients' sends fail and their waits end.
    #[error("{0}")]
    InterfaceGone(String),
    /// The kernel refuses to wait for events.
    #[error("cannot wait for clients: {0}")]
    NotWaiting(#[from] io::Error),
}

impl ServeError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InterfaceGone(_) => {
                "start it again, and its clients, when there is an interface of this name"
            }
            Self::NotWaiting(_) => "`taut doctor` shows what this machine lacks",
        }
    }
}

fn not_opened_remedy(source: &(dyn std::error::Error + 'static)) -> &'static str {
    match source.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::PermissionDenied) => "run it as root, or as a user who may",
        Some(io::ErrorKind::AddrNotAvailable) => {
            "give an address of this machine: `ip address` lists them"
        }
        _ => refused_remedy(source),
    }
}

/// The likely one that forbids bpf(2).
fn forbidder() -> &'static str {
    match has_seccomp_filter() {
        true => "it runs under a seccomp filter",
        false => "the kernel lacks it, or is locked down",
    }
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
    format!("another node has `{interface}`: {}", holder_names(holders))
}

fn holder_names(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "none that can be seen from here".to_owned();
    }
    let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn program_name(id: Option<u32>, name: &Option<String>) -> String {
    match (id, name) {
        (Some(id), Some(name)) => format!("id {id}, name `{name}`"),
        (Some(id), None) => format!("id {id}"),
        _ => "the kernel does not say which".to_owned(),
    }
}
