//! The `[exec]` section of a configuration: which sockets of unmodified programs `taut exec` takes.

use std::ops::RangeInclusive;

use serde::Deserialize;
use tautline_proto::wire::raw::EtherType;
use toml::{Spanned, Value};

use super::allow::numbers;
use super::{Wrong, port};

/// Sockets of unmodified programs that become ports of the node. The default has no rule of ports: then address and
/// neighbours decide about UDP sockets, and packet sockets stay the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecConfig {
    /// A socket with one of these ports is taken.
    pub local: Vec<RangeInclusive<u16>>,
    /// So is one that first speaks to one of these ports.
    pub remote: Vec<RangeInclusive<u16>>,
    /// A packet socket for one of these EtherTypes becomes a raw port.
    pub ethertypes: Vec<EtherType>,
    /// Names of the programs' files; none: all programs.
    pub programs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecSection {
    #[serde(default)]
    local: Vec<Spanned<Value>>,
    #[serde(default)]
    remote: Vec<Spanned<Value>>,
    #[serde(default)]
    ethertypes: Vec<Spanned<i64>>,
    #[serde(default)]
    programs: Vec<String>,
}

/// `own`: EtherType of the node, which no raw port can have.
pub(super) fn exec(section: ExecSection, own: u16) -> Result<ExecConfig, Wrong> {
    let ethertypes = section.ethertypes.iter().map(|entry| {
        port::ethertype(*entry.get_ref(), own).map_err(|message| (entry.span(), message))
    });
    Ok(ExecConfig {
        ethertypes: ethertypes.collect::<Result<_, _>>()?,
        local: numbers(section.local, 1..=u16::MAX, "UDP port")?,
        remote: numbers(section.remote, 1..=u16::MAX, "UDP port")?,
        programs: section.programs,
    })
}
