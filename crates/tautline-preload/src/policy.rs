//! Which sockets are to be taken: what `taut exec` wrote into the environment.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use tautline::{EtherType, LinkKind, NodeConfig};

/// Variable that names the node's configuration file.
const NODE: &str = "TAUTLINE_EXEC_NODE";
/// The variable that names the interface, without a file.
const INTERFACE: &str = "TAUTLINE_EXEC_INTERFACE";
/// Ports of sockets that are taken: `5000-5000,6000-6010`.
const LOCAL: &str = "TAUTLINE_EXEC_LOCAL";
/// The same of peers.
const REMOTE: &str = "TAUTLINE_EXEC_REMOTE";
/// EtherTypes of packet sockets that are taken: `0x88a4,0x8892`.
const ETHERTYPES: &str = "TAUTLINE_EXEC_ETHERTYPES";
/// Names of programs, separated by colons.
const PROGRAMS: &str = "TAUTLINE_EXEC_PROGRAMS";
/// Whether to say what became of each socket.
const EXPLAIN: &str = "TAUTLINE_EXPLAIN";

/// Where to say what became of a socket.
#[derive(PartialEq, Eq)]
pub(crate) enum Explain {
    No,
    StandardError,
    File(PathBuf),
}

/// Policy of this process.
pub(crate) struct Policy {
    pub(crate) program: String,
    pub(crate) explain: Explain,
    /// Device and number of the file that standard error was when the program began.
    standard_error: Option<(u64, u64)>,
    config: Result<NodeConfig, String>,
    local: Vec<RangeInclusive<u16>>,
    remote: Vec<RangeInclusive<u16>>,
    ethertypes: Vec<EtherType>,
}

static POLICY: OnceLock<Option<Policy>> = OnceLock::new();

/// The policy; nothing where no socket is to be taken.
pub(crate) fn policy() -> Option<&'static Policy> {
    POLICY.get()?.as_ref()
}

/// Reads the environment, once, before the program's own code may change it.
pub(crate) fn read() {
    let _once = POLICY.get_or_init(from_environment);
}

fn from_environment() -> Option<Policy> {
    let program = program();
    if let Some(programs) = text(PROGRAMS)
        && !programs.split(':').any(|name| name == program)
    {
        return None;
    }
    let config = match (std::env::var_os(NODE), text(INTERFACE)) {
        (Some(file), _) => NodeConfig::from_file(file).map_err(|error| error.to_string()),
        (None, Some(interface)) => Ok(NodeConfig::on(&interface)),
        (None, None) => return None,
    };
    Some(Policy {
        program,
        explain: explain(std::env::var_os(EXPLAIN)),
        standard_error: standard_error(),
        config: config.and_then(on_demux),
        local: ranges(LOCAL),
        remote: ranges(REMOTE),
        ethertypes: ethertypes(),
    })
}

/// Other links have no plain UDP past the kernel's stack beside a socket.
fn on_demux(config: NodeConfig) -> Result<NodeConfig, String> {
    match config.link {
        None | Some(LinkKind::Xdp) => Ok(config.with_link(LinkKind::Xdp)),
        Some(other) => Err(format!(
            "sockets are taken on link xdp, and the node is on link {}",
            other.name()
        )),
    }
}

fn program() -> String {
    let file = std::env::current_exe().unwrap_or_default();
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn explain(variable: Option<OsString>) -> Explain {
    match variable {
        None => Explain::No,
        Some(value) if value == "0" || value.is_empty() => Explain::No,
        Some(value) if value == "1" => Explain::StandardError,
        Some(value) => Explain::File(value.into()),
    }
}

fn text(variable: &str) -> Option<String> {
    std::env::var(variable)
        .ok()
        .filter(|value| !value.is_empty())
}

/// Text that is no range is left out: `taut exec` writes nothing else.
fn ranges(variable: &str) -> Vec<RangeInclusive<u16>> {
    let text = text(variable).unwrap_or_default();
    let range = |one: &str| {
        let (low, high) = one.split_once('-')?;
        Some(low.parse().ok()?..=high.parse().ok()?)
    };
    text.split(',').filter_map(range).collect()
}

fn ethertypes() -> Vec<EtherType> {
    let text = text(ETHERTYPES).unwrap_or_default();
    let ethertype = |one: &str| {
        let number = u16::from_str_radix(one.strip_prefix("0x")?, 16).ok()?;
        EtherType::new(number).ok()
    };
    text.split(',').filter_map(ethertype).collect()
}

fn standard_error() -> Option<(u64, u64)> {
    let found = std::fs::metadata("/proc/self/fd/2").ok()?;
    Some((found.dev(), found.ino()))
}

impl Policy {
    /// Whether standard error is what it was when the program began.
    pub(crate) fn has_standard_error(&self) -> bool {
        self.standard_error.is_some() && self.standard_error == standard_error()
    }

    pub(crate) fn config(&self) -> Result<&NodeConfig, &str> {
        self.config.as_ref().map_err(String::as_str)
    }

    /// Whether ports decide, and not addresses.
    pub(crate) fn has_rules(&self) -> bool {
        !self.local.is_empty() || !self.remote.is_empty()
    }

    pub(crate) fn wants_local(&self, port: u16) -> bool {
        self.local.iter().any(|range| range.contains(&port))
    }

    pub(crate) fn wants_remote(&self, port: u16) -> bool {
        self.remote.iter().any(|range| range.contains(&port))
    }

    /// Whether packet sockets of an EtherType are to be taken: none without being named.
    pub(crate) fn wants_ethertype(&self, ethertype: EtherType) -> bool {
        self.ethertypes.contains(&ethertype)
    }

    /// Whether a peer is in the node's table. Without a table, everybody on the network is one.
    pub(crate) fn is_neighbour(&self, address: Ipv4Addr, is_near: bool) -> bool {
        let Ok(config) = self.config() else {
            return false;
        };
        if config.neighbours.is_empty() {
            return is_near;
        }
        config.neighbours.by_ip(address).is_some()
    }
}
