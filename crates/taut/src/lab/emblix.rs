//! The Emblix paper's figures 1 to 4 as one experiment: the worst wake-up of four kernels under load. It is what
//! `taut lab kernels` compares by itself; `taut experiment run` and the command share this.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tautline_lab::kernels::{self, Arch, Event, Job, KernelsError, Settings};
use tautline_lab::plot::latency_text;
use tautline_lab::result::LabResult;

use crate::cli::CommandError;

/// What the paper found.
pub const PAPER_FOUND: &str = "worst case of Linux 2.4.18 about 180 ms, with the preemption or the low-latency patch far better, with both below 1 ms";

/// Runs the paper's four kernels of today, each for `duration` idle and under the combined load. A result for each, in the
/// order of the figures; finished ones come from the lab's cache.
pub fn run(
    duration: Duration,
    stop: &AtomicBool,
    tell: &(dyn Fn(Event) + Sync),
) -> Result<Vec<LabResult>, CommandError> {
    let settings = Settings {
        duration,
        ..Settings::new(super::kernels::own_program()?, super::cache_directory())
    };
    let jobs: Vec<Job> = Arch::X86_64
        .default_kernels()
        .into_iter()
        .map(|kernel| Job {
            arch: Arch::X86_64,
            kernel,
        })
        .collect();
    let reports: Result<_, KernelsError> = kernels::run(&jobs, &settings, stop, tell);
    Ok(reports?.into_iter().map(|report| report.result).collect())
}

/// What was found here: the worst case of each kernel under its last load, by the probe that all of them ran.
pub fn here(results: &[LabResult]) -> String {
    let worst: Vec<String> = results
        .iter()
        .filter_map(|result| {
            let phase = result.phases.last()?;
            let max_ns = phase.series.first()?.summary.max_ns;
            let max = latency_text(max_ns);
            Some(format!("{} {max} ({})", result.label, phase.load))
        })
        .collect();
    worst.join(", ")
}

/// Paper and here in one line; nothing where there is nothing to compare.
pub fn line(results: &[LabResult]) -> String {
    if results.len() < 2 {
        return String::new();
    }
    format!(
        "emblix-fig1-fig4: the paper: {PAPER_FOUND}; here: {}\n",
        here(results)
    )
}
