//! Two results side by side: did the tail get worse?
//!
//! The maximum of two runs on the machine's own clock differs by chance, so it is shown and not judged. Judged are the
//! high percentiles that enough samples stand behind, and, in virtual time, where nothing is chance, the maximum too.

use crate::result::{LabResult, Phase, TimeBase};
use tautline_machine::verdict::State;
use tautline_report::histogram::LatencyHistogram;

/// Samples that must lie beyond a percentile before it is compared: fewer are anecdotes.
const SAMPLES_BEYOND_MIN: f64 = 10.0;

/// A difference smaller than this is never a regression: clocks and cyclictest count in microseconds.
const DIFFERENCE_NS_MIN: u64 = 1_000;

/// Word of tables for a figure that a result does not contain.
pub const UNKNOWN: &str = "unknown";

/// One figure of one load, before and after.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The state.
    pub state: State,
    /// The load.
    pub load: String,
    /// Which figure: `p50`, `p99`, `p99.9`, `p99.99` or `max`.
    pub figure: &'static str,
    /// In the baseline, where it is known.
    pub before_ns: Option<u64>,
    /// In the other, where it is known.
    pub after_ns: Option<u64>,
    /// Whether it counts for the verdict.
    pub is_judged: bool,
    /// Whether it got worse by more than the tolerance.
    pub is_regression: bool,
}

impl Difference {
    /// After over before, where both are known.
    pub fn ratio(&self) -> Option<f64> {
        let (before_ns, after_ns) = self.before_ns.zip(self.after_ns)?;
        Some(after_ns as f64 / before_ns.max(1) as f64)
    }

    /// The ratio for a table.
    pub fn ratio_text(&self) -> String {
        self.ratio()
            .map_or_else(|| UNKNOWN.to_owned(), |ratio| format!("{ratio:.2}"))
    }
}

/// The comparison of one result with the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// All figures of all loads that both have.
    pub differences: Vec<Difference>,
    /// Difference that makes the two hard to compare.
    pub remarks: Vec<String>,
}

impl Comparison {
    /// Compares; `tolerance` is a share, 0.25 for a quarter.
    pub fn of(baseline: &LabResult, other: &LabResult, tolerance: f64) -> Comparison {
        let mut differences = Vec::new();
        for (state, load) in conditions(baseline) {
            let before = baseline.wakeups(Some(state), Some(&load));
            let after = other.wakeups(Some(state), Some(&load));
            if before.count() == 0 || after.count() == 0 {
                continue;
            }
            let exact = baseline.time == TimeBase::Virtual && other.time == TimeBase::Virtual;
            let is_worse = |(before_ns, after_ns): (u64, u64)| {
                after_ns as f64 > before_ns as f64 * (1.0 + tolerance)
                    && after_ns.saturating_sub(before_ns) >= DIFFERENCE_NS_MIN
            };
            differences.extend(compare_histograms(&before, &after, exact).into_iter().map(
                |(figure, before_ns, after_ns, is_judged)| Difference {
                    state,
                    load: load.clone(),
                    figure,
                    before_ns,
                    after_ns,
                    is_judged,
                    is_regression: is_judged && before_ns.zip(after_ns).is_some_and(is_worse),
                },
            ));
        }
        Comparison {
            differences,
            remarks: remarks(baseline, other),
        }
    }

    /// Whether any judged figure got worse.
    pub fn is_regression(&self) -> bool {
        self.differences
            .iter()
            .any(|difference| difference.is_regression)
    }

    /// Whether anything could be judged at all.
    pub fn is_conclusive(&self) -> bool {
        self.differences
            .iter()
            .any(|difference| difference.is_judged)
    }

    /// For scripts: 0 no regression, 3 regression, 4 nothing could be compared.
    pub fn exit_status(&self) -> u8 {
        match (self.is_regression(), self.is_conclusive()) {
            (true, _) => 3,
            (false, true) => 0,
            (false, false) => 4,
        }
    }
}

/// States and loads in order, each once.
fn conditions(result: &LabResult) -> Vec<(State, String)> {
    let mut found: Vec<(State, String)> = Vec::new();
    for Phase { state, load, .. } in &result.phases {
        if !found.iter().any(|(s, l)| s == state && l == load) {
            found.push((*state, load.clone()));
        }
    }
    found
}

type Figure = (&'static str, Option<u64>, Option<u64>, bool);

fn compare_histograms(
    before: &LatencyHistogram,
    after: &LatencyHistogram,
    exact: bool,
) -> Vec<Figure> {
    let fewest = before.count().min(after.count()) as f64;
    let mut figures: Vec<Figure> = [
        ("p50", 0.5),
        ("p99", 0.99),
        ("p99.9", 0.999),
        ("p99.99", 0.9999),
    ]
    .into_iter()
    .map(|(name, quantile)| {
        let enough = fewest * (1.0 - quantile) >= SAMPLES_BEYOND_MIN;
        let (before, after) = (before.at_quantile(quantile), after.at_quantile(quantile));
        let is_judged = enough && before.is_some() && after.is_some();
        (name, before, after, is_judged)
    })
    .collect();
    figures.push((
        "max",
        Some(before.summary().max_ns),
        Some(after.summary().max_ns),
        exact,
    ));
    figures
}

fn remarks(baseline: &LabResult, other: &LabResult) -> Vec<String> {
    let mut remarks = Vec::new();
    if baseline.time != other.time {
        remarks.push("the two were taken on different clocks (real, virtual, imported): compare shapes, not figures".to_owned());
    }
    let pairs = baseline
        .machine
        .rows()
        .into_iter()
        .zip(other.machine.rows());
    let differing: Vec<&str> = pairs
        .filter(|(before, after)| before.1 != after.1)
        .map(|(before, _)| before.0)
        .collect();
    if !differing.is_empty() {
        remarks.push(format!("the machines differ in: {}", differing.join(", ")));
    }
    let absent: Vec<String> = conditions(baseline)
        .into_iter()
        .filter(|(state, load)| other.wakeups(Some(*state), Some(load)).count() == 0)
        .map(|(_, load)| load)
        .collect();
    if !absent.is_empty() {
        remarks.push(format!("only the baseline has: {}", absent.join(", ")));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::sleeper;
    use tautline_machine::Machine;

    fn result(scale: u64, samples: u64, time: TimeBase) -> LabResult {
        let mut histogram = LatencyHistogram::new();
        for index in 0..samples {
            histogram.record((5_000 + index % 997) * scale);
        }
        let mut result = LabResult::new("x", time, Machine::default());
        let series = vec![sleeper(&histogram)];
        result
            .phases
            .push(Phase::new(State::Untouched, "idle", 1, series));
        result
    }

    #[test]
    fn a_slower_run_is_a_regression_and_the_same_is_not() {
        let (fast, slow) = (
            result(1, 20_000, TimeBase::Real),
            result(3, 20_000, TimeBase::Real),
        );
        assert_eq!(Comparison::of(&fast, &slow, 0.25).exit_status(), 3);
        assert_eq!(Comparison::of(&fast, &fast, 0.25).exit_status(), 0);
        assert_eq!(Comparison::of(&slow, &fast, 0.25).exit_status(), 0);
        assert_eq!(Comparison::of(&fast, &slow, 2.5).exit_status(), 0);
    }

    #[test]
    fn the_maximum_is_judged_in_virtual_time_only() {
        let judged = |time| {
            Comparison::of(&result(1, 20_000, time), &result(1, 20_000, time), 0.0)
                .differences
                .iter()
                .any(|difference| difference.figure == "max" && difference.is_judged)
        };
        assert!(judged(TimeBase::Virtual));
        assert!(!judged(TimeBase::Real));
    }

    #[test]
    fn percentiles_that_are_unknown_are_not_judged() {
        let unknown = |max_ns| {
            let mut histogram = LatencyHistogram::new();
            histogram.record_unplaced(10_000, max_ns, 100_000);
            let mut result = result(1, 1, TimeBase::Imported);
            result.phases[0].series = vec![sleeper(&histogram)];
            result
        };
        let comparison = Comparison::of(&unknown(30_000), &unknown(300_000), 0.25);
        assert_eq!(comparison.exit_status(), 4);
        let (max, percentiles) = comparison.differences.split_last().unwrap();
        assert_eq!(max.after_ns, Some(300_000));
        assert!(percentiles.iter().all(|one| one.after_ns.is_none()));
    }

    #[test]
    fn too_few_samples_or_no_common_load_are_inconclusive() {
        let few = result(1, 10, TimeBase::Real);
        assert_eq!(Comparison::of(&few, &few, 0.25).exit_status(), 4);
        let mut other = result(1, 20_000, TimeBase::Real);
        other.phases[0].load = "disk".to_owned();
        let comparison = Comparison::of(&result(1, 20_000, TimeBase::Real), &other, 0.25);
        assert_eq!(comparison.exit_status(), 4);
        assert!(
            comparison
                .remarks
                .iter()
                .any(|remark| remark.contains("idle"))
        );
    }
}
