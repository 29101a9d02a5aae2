//! Result of a run of the lab: one schema for the machine at hand, a guest in virtual time and an
//! imported file, written as JSON.
//!
//! A result carries the histograms themselves, not only their summaries, so that a later report can
//! compute any percentile of them and a comparison the difference of whole tails.

use serde::{Deserialize, Serialize};
use tautline_machine::verdict::{FORMAT, VERSION};
use tautline_report::histogram::LatencyHistogram;
use tautline_state::journal::Change;

use crate::kernels::agreement::Agreement;
use crate::trace::Outlier;
use tautline_machine::Machine;
use tautline_machine::verdict::Verdict;

pub use crate::measured::{Achieved, Missing, Phase, ProbeKind, Series, TimeBase};
use tautline_machine::verdict::State;

/// A complete result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabResult {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`] in what this release writes.
    pub version: u32,
    /// The program that measured, with its version.
    pub tool: String,
    /// Name of this run for the reader: a host name, a kernel, a file.
    pub label: String,
    /// Which clock the latencies were taken on, and so what they can be a statement about.
    pub time: TimeBase,
    /// Start in seconds since 1970 (CLOCK_REALTIME); 0 where time is virtual or unknown.
    pub started_unix_s: u64,
    /// Machine that was measured. For a guest, the guest.
    pub machine: Machine,
    /// Each state and load that was measured, in order.
    pub phases: Vec<Phase>,
    /// Figures of cyclictest in turns with the probe, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agreements: Vec<Agreement>,
    /// Changes that the run made on the machine, and whether each was undone.
    pub changes: Vec<Change>,
    /// Privileges and settings that could not be had, and what that weakens.
    pub missing: Vec<Missing>,
    /// The judgement, where one was asked for.
    pub verdict: Option<Verdict>,
    /// The wake-up that ended the run early, where one was asked for.
    pub outlier: Option<Outlier>,
    /// Anything else that a reader must know.
    pub notes: Vec<String>,
}

impl LabResult {
    /// An empty result for `machine`.
    pub fn new(label: &str, time: TimeBase, machine: Machine) -> LabResult {
        LabResult {
            format: FORMAT.to_owned(),
            version: VERSION,
            tool: format!("taut {}", env!("CARGO_PKG_VERSION")),
            label: label.to_owned(),
            time,
            started_unix_s: 0,
            machine,
            phases: Vec::new(),
            agreements: Vec::new(),
            changes: Vec::new(),
            missing: Vec::new(),
            verdict: None,
            outlier: None,
            notes: Vec::new(),
        }
    }

    /// Every wake-up histogram of a load and state put together, over CPUs and probes.
    pub fn wakeups(&self, state: Option<State>, load: Option<&str>) -> LatencyHistogram {
        let mut all = LatencyHistogram::new();
        self.phases
            .iter()
            .filter(|phase| state.is_none_or(|state| phase.state == state))
            .filter(|phase| load.is_none_or(|load| phase.load == load))
            .flat_map(|phase| &phase.series)
            .filter(|series| series.probe.is_wakeup())
            .for_each(|series| all.add(&series.histogram()));
        all
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measured::sleeper;
    use tautline_report::timeline::Slice;

    pub(crate) fn sample() -> LabResult {
        let mut histogram = LatencyHistogram::new();
        [5_003, 6_001, 7_000, 123_457]
            .iter()
            .for_each(|ns| histogram.record(*ns));
        let mut result = LabResult::new("bench", TimeBase::Real, Machine::default());
        let series = Series {
            cpu_share: 0.004,
            timeline: vec![Slice {
                start_ns: 0,
                max_ns: 123_457,
            }],
            ..sleeper(&histogram)
        };
        let phase = Phase::new(State::Untouched, "idle", 4_000_000, vec![series]);
        result.phases.push(phase);
        result
    }

    #[test]
    fn noise_is_no_wakeup() {
        let mut result = sample();
        let mut noise = result.phases[0].series[0].clone();
        noise.probe = ProbeKind::Noise;
        result.phases[0].series.push(noise);
        assert_eq!(result.wakeups(None, None).count(), 4);
        assert_eq!(result.wakeups(Some(State::Tuned), None).count(), 0);
        assert_eq!(
            result.wakeups(Some(State::Untouched), Some("idle")).count(),
            4
        );
    }
}
