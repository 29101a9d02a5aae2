//! The `[exec]` section of a configuration: which sockets of unmodified programs `taut exec` takes.

use std::ops::RangeInclusive;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::Wrong;
use super::allow::numbers;

/// Sockets of unmodified programs that become UDP ports of the node. The default has no rule of ports: then address
/// and neighbours decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecConfig {
    /// A socket with one of these ports is taken.
    pub local: Vec<RangeInclusive<u16>>,
    /// So is one that first speaks to one of these ports.
    pub remote: Vec<RangeInclusive<u16>>,
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
    programs: Vec<String>,
}

pub(super) fn exec(section: ExecSection) -> Result<ExecConfig, Wrong> {
    Ok(ExecConfig {
        local: numbers(section.local, 1..=u16::MAX, "UDP port")?,
        remote: numbers(section.remote, 1..=u16::MAX, "UDP port")?,
        programs: section.programs,
    })
}
