//! The Emblix paper's figures 1 to 4: the worst wake-up of four kernels under load, in virtual time. The measurement
//! is that of `taut lab kernels`: it needs QEMU and, the first time, the distribution's archive, but no privilege.

use std::time::Duration;

use serde_json::{Value, json};
use tautline_lab::kernels::KernelsError;
use tautline_lab::result::{LabResult, Phase};
use tautline_report::plot::{self, latency_text};
use tautline_report::reference::Reference;
use tautline_testbed::interrupt;

use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, count_guests};
use crate::emblix;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "emblix-fig1-fig4",
    source: "Predictability in Embedded Linux, figures 1 to 4",
    title: "worst wake-up of four kernels under load, in virtual time",
    found: emblix::PAPER_FOUND,
}];

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let duration = request.scale.pick(
        Duration::from_secs(10),
        Duration::from_secs(3),
        Duration::from_millis(100),
    );
    let stop = interrupt::flag();
    let tell = count_guests(progress, emblix::KERNEL_COUNT);
    let results = emblix::run(duration, &stop, &tell)
        .map_err(|error| ended(error, interrupt::interrupted()))?;
    Ok(vec![outcome(&results, duration)])
}

/// Reason why the run ended. ^C sends the signal to QEMU too, whose end may be noticed before ours.
pub(super) fn ended(error: KernelsError, signal: Option<i32>) -> ExperimentError {
    match signal {
        Some(signal) => ExperimentError::Interrupted(signal),
        None => error.into(),
    }
}

fn outcome(results: &[LabResult], duration: Duration) -> Outcome {
    let mut outcome = Outcome::of(&FIGURES[0]);
    outcome.set("guest_seconds_of_each_load", duration.as_secs_f64());
    outcome.set("wake_up_period_ns", 1_000_000);
    outcome.set("clock", "virtual: one nanosecond an instruction");
    outcome.active = results
        .iter()
        .map(|result| {
            let machine = &result.machine;
            let text = format!(
                "Linux {}, preemption {}, clock_nanosleep under SCHED_FIFO 80",
                machine.kernel_release, machine.preemption
            );
            (result.label.clone(), text)
        })
        .collect();
    outcome.rows = of_all(results, row_json);
    outcome.table = (
        [
            "kernel, load",
            "n",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "max µs",
        ]
        .map(str::to_owned)
        .into(),
        of_all(results, cells),
    );
    outcome.plots = plots(results).into();
    outcome.here = emblix::here(results);
    outcome.checks = vec![order(results)];
    outcome.remarks = vec![
        "Virtual time knows nothing of caches, memory and devices: the order and the ratio of the kernels carry over, not the milliseconds. It is no statement about hardware.".to_owned(),
        "A kernel that has run with the same orders before comes from the lab's cache: the same figures to the digit.".to_owned(),
    ];
    outcome
}

fn of_all<T>(results: &[LabResult], of: impl Fn(&LabResult, &Phase) -> Option<T>) -> Vec<T> {
    results
        .iter()
        .flat_map(|result| result.phases.iter().map(move |phase| (result, phase)))
        .filter_map(|(result, phase)| of(result, phase))
        .collect()
}

fn row_json(result: &LabResult, phase: &Phase) -> Option<Value> {
    let summary = &phase.series.first()?.summary;
    Some(json!({
        "path": result.label, "load": phase.load, "count": summary.count, "min_ns": summary.min_ns,
        "p50_ns": summary.p50_ns, "p99_ns": summary.p99_ns, "p999_ns": summary.p999_ns, "max_ns": summary.max_ns,
    }))
}

fn cells(result: &LabResult, phase: &Phase) -> Option<Vec<String>> {
    let summary = &phase.series.first()?.summary;
    let mut cells = vec![
        format!("{}, {}", result.label, phase.load),
        summary.count.to_string(),
    ];
    let figures = [
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ];
    cells.extend(figures.map(|ns| format!("{:.3}", ns as f64 / 1e3)));
    Some(cells)
}

/// How often each latency came and was exceeded, under the last load: the paper's four pictures laid over each other.
fn plots(results: &[LabResult]) -> [super::Plot; 2] {
    let histograms: Vec<_> = results
        .iter()
        .filter_map(|result| {
            let series = result.phases.last()?.series.first()?;
            Some((result.label.as_str(), series.histogram()))
        })
        .collect();
    let series: Vec<plot::Series<'_>> = histograms
        .iter()
        .map(|(name, histogram)| plot::Series { name, histogram })
        .collect();
    let references = [
        Reference::deadline("deadline of musical instruments: 1 ms", 1e6),
        Reference::paper("the paper's worst, unpatched: about 180 ms", 180e6),
    ];
    [
        plot::histograms(
            "How often each latency occurred under load",
            &series,
            &references,
        )
        .into(),
        plot::tails(
            "How often a latency was exceeded under load; the end of a line is the worst case",
            &series,
            &references,
        )
        .into(),
    ]
}

/// The kernels come in the order of the figures: each must be no worse than the one before it.
fn order(results: &[LabResult]) -> Check {
    let worst = emblix::worst_ns(results);
    Check {
        target: "worst case under load falls from no preemption to full preemption to PREEMPT_RT"
            .to_owned(),
        found: worst
            .iter()
            .map(|ns| latency_text(*ns))
            .collect::<Vec<_>>()
            .join(", "),
        met: matches!(worst[..], [none, _, full, rt] if none > full && full > rt),
    }
}

#[cfg(test)]
mod tests {
    use tautline_lab::result::{ProbeKind, Series, TimeBase};
    use tautline_machine::Machine;
    use tautline_machine::verdict::State;
    use tautline_report::LatencyHistogram;

    use super::*;

    fn results(worst_ns: [u64; 4]) -> Vec<LabResult> {
        ["none", "voluntary", "full", "rt"]
            .into_iter()
            .zip(worst_ns)
            .map(|(label, worst_ns)| {
                let mut histogram = LatencyHistogram::new();
                histogram.record_many(4_000, 99);
                histogram.record(worst_ns);
                let scheduling = "SCHED_FIFO 80".to_owned();
                let kind = ProbeKind::Nanosleep;
                let series = Series::new(kind, Some(0), scheduling, 1_000_000, &histogram);
                let mut result = LabResult::new(label, TimeBase::Virtual, Machine::default());
                let phase = Phase::new(State::Untouched, "combined", 100_000_000, vec![series]);
                result.phases.push(phase);
                result
            })
            .collect()
    }

    #[test]
    fn what_a_signal_ended_is_no_failure() {
        let failed = || KernelsError::ToolFailed {
            command: "qemu-system-x86_64".to_owned(),
            output: "terminating on signal 2".to_owned(),
        };
        let interrupted = ended(failed(), Some(15));
        assert!(matches!(interrupted, ExperimentError::Interrupted(15)));
        assert!(matches!(ended(failed(), None), ExperimentError::Kernels(_)));
    }

    #[test]
    fn the_order_of_the_kernels_is_checked_and_the_line_has_all_of_them() {
        let found = outcome(
            &results([512_000, 380_000, 176_000, 9_000]),
            Duration::from_secs(3),
        );
        assert!(found.checks[0].met);
        assert_eq!(found.rows.len(), 4);
        assert_eq!(found.plots.len(), 2);
        for words in ["about 180 ms", "none 512 µs (combined)", "rt 9.00 µs"] {
            assert!(found.line().contains(words), "{words}: {}", found.line());
        }
        for wrong in [[100, 90, 200, 10], [100, 90, 80, 80]] {
            assert!(!order(&results(wrong.map(|us| us * 1_000))).met);
        }
    }
}
