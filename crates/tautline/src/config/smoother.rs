//! The `[smoother]` section of a configuration. The library reads it; `taut smooth run` applies it.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::Wrong;

/// Lowest and highest capacity of an Ethernet port, in bits a second.
const CAPACITY_BPS: std::ops::RangeInclusive<u64> = 1_000_000..=400_000_000_000;

/// Smoothing of other traffic on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmootherConfig {
    /// Bits a second that the switch's port in front of this node takes, as written on the port.
    pub capacity_bps: u64,
    /// Names of the neighbours that may take part; none: all that have a MAC address.
    pub neighbours: Vec<String>,
    /// Most bits a second of other traffic to a neighbour, by its name, whether it grants or not.
    pub limits: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SmootherSection {
    capacity_bps: Spanned<u64>,
    #[serde(default)]
    neighbours: Vec<String>,
    #[serde(default)]
    limits: BTreeMap<String, Spanned<u64>>,
}

/// Lowest and highest limit, in bits a second: a frame takes a tenth of a second at the lowest.
const LIMIT_BPS: std::ops::RangeInclusive<u64> = 100_000..=400_000_000_000;

pub(super) fn smoother(section: SmootherSection) -> Result<SmootherConfig, Wrong> {
    if !CAPACITY_BPS.contains(section.capacity_bps.get_ref()) {
        let (low, high) = (CAPACITY_BPS.start(), CAPACITY_BPS.end());
        let message = format!("expected a capacity from {low} to {high} bits a second");
        return Err((section.capacity_bps.span(), message));
    }
    for limit in section.limits.values() {
        if !LIMIT_BPS.contains(limit.get_ref()) {
            let (low, high) = (LIMIT_BPS.start(), LIMIT_BPS.end());
            let message = format!("expected a limit from {low} to {high} bits a second");
            return Err((limit.span(), message));
        }
    }
    let limits = section.limits.into_iter();
    Ok(SmootherConfig {
        limits: limits
            .map(|(name, limit)| (name, limit.into_inner()))
            .collect(),
        capacity_bps: section.capacity_bps.into_inner(),
        neighbours: section.neighbours,
    })
}
