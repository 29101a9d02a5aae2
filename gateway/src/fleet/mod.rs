//! Fleets: the status of cells, published by gateways, for distant watchers.
//!
//! A gateway with a section `[fleet]` publishes a short report of its machine at a fixed, slow rate, and answers
//! queries with all of it. Programs in the cell get no more requests than from `taut status`; a query causes none: it
//! returns the last collected status. Watchers read liveliness, reports and answers, and validate them: all are
//! bounded, counted and cleaned.
//!
//! | module | holds |
//! |---|---|
//! | `tell` | a gateway's thread that looks, publishes and answers |
//! | `watch` | `taut-gateway fleet`: the cells as lines of JSON |
//! | `look` | state of this machine |
//! | `table` | cells that were heard of, and those that vanished |
//! | `report` | keys and documents, and how those of others are read |
//! | `verdict` | the lab's verdict on this machine, from its file |
//! | `session` | a watcher's way into Zenoh |

mod look;
mod report;
pub(crate) mod session;
mod table;
pub(crate) mod tell;
mod verdict;
pub(crate) mod watch;

pub(crate) use report::{Id, Verdict, plain};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use zenoh::key_expr::OwnedKeyExpr;

/// Prefix of the keys of a fleet that names none.
pub(crate) const PREFIX: &str = "tautline/fleet";
/// Least and longest time between two reports. Lower: a fleet of many cells fills slow links. Higher: a cell that hangs
/// is noticed late.
const PERIOD_MS: std::ops::RangeInclusive<u32> = 200..=60_000;

/// The section `[fleet]` of a gateway's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Section {
    #[serde(default = "prefix")]
    prefix: String,
    #[serde(default = "second_ms")]
    period_ms: u32,
    verdict: Option<PathBuf>,
}

fn prefix() -> String {
    PREFIX.to_owned()
}

fn second_ms() -> u32 {
    1_000
}

/// Wishes of a gateway that tells of its cell.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: OwnedKeyExpr,
    pub(crate) period: Duration,
    /// File with the lab's verdict on this machine.
    pub(crate) verdict: Option<PathBuf>,
}

impl Settings {
    /// The lab's verdict as its file has it now.
    pub(crate) fn verdict_now(&self) -> Option<Verdict> {
        let mut source = verdict::Source::new(self.verdict.clone()?);
        source.look(Instant::now(), |_| {})
    }
}

impl Section {
    /// Takes the section's path as relative to the directory of the gateway's file.
    pub(crate) fn lies_in(&mut self, gateway_file: &Path) {
        if let Some(path) = &mut self.verdict {
            *path = verdict::place(gateway_file, path);
        }
    }

    /// Checks the section; `key` reads a key.
    pub(crate) fn check(
        self,
        key: impl Fn(&str) -> Result<OwnedKeyExpr, String>,
    ) -> Result<Settings, String> {
        if !PERIOD_MS.contains(&self.period_ms) {
            return Err(format!(
                "[fleet]: period_ms is {} to {}, not {}",
                PERIOD_MS.start(),
                PERIOD_MS.end(),
                self.period_ms
            ));
        }
        Ok(Settings {
            prefix: key(&self.prefix)?,
            period: Duration::from_millis(self.period_ms.into()),
            verdict: self.verdict,
        })
    }
}
