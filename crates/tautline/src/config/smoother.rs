//! The `[smoother]` section of a configuration. The library reads it; `taut smooth run` applies it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer};

use super::within;

/// Lowest and highest capacity of an Ethernet port, in bits a second.
const CAPACITY_BPS: RangeInclusive<u64> = 1_000_000..=400_000_000_000;

/// Smoothing of other traffic on the interface.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmootherConfig {
    /// Bits a second that the switch's port in front of this node takes, as written on the port.
    #[serde(deserialize_with = "capacity")]
    pub capacity_bps: u64,
    /// Names of the neighbours that may take part; none: all that have a MAC address.
    #[serde(default)]
    pub neighbours: Vec<String>,
    /// Most bits a second of other traffic to a neighbour, by its name, whether it grants or not.
    #[serde(default, deserialize_with = "limits")]
    pub limits: BTreeMap<String, u64>,
}

/// Lowest and highest limit, in bits a second: a frame takes a tenth of a second at the lowest.
const LIMIT_BPS: RangeInclusive<u64> = 100_000..=400_000_000_000;

fn capacity<'de, D: Deserializer<'de>>(given: D) -> Result<u64, D::Error> {
    bits_per_second(given, CAPACITY_BPS, "capacity")
}

fn bits_per_second<'de, D: Deserializer<'de>>(
    given: D,
    range: RangeInclusive<u64>,
    what: &str,
) -> Result<u64, D::Error> {
    let (low, high) = (range.start(), range.end());
    let expected = format!("a {what} from {low} to {high} bits a second");
    within(given, range, &expected)
}

fn limits<'de, D: Deserializer<'de>>(given: D) -> Result<BTreeMap<String, u64>, D::Error> {
    #[derive(Deserialize)]
    struct Limit(#[serde(deserialize_with = "limit")] u64);
    fn limit<'de, D: Deserializer<'de>>(given: D) -> Result<u64, D::Error> {
        bits_per_second(given, LIMIT_BPS, "limit")
    }
    let limits = BTreeMap::<String, Limit>::deserialize(given)?.into_iter();
    Ok(limits.map(|(name, Limit(bps))| (name, bps)).collect())
}
