//! The Emblix paper's figures 1 to 4 as one experiment: the worst wake-up of four kernels under load. It is what
//! `taut lab kernels` compares by itself; `taut experiment run` and the command share this.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tautline_lab::kernels::{self, Arch, Event, Job, KernelsError, Settings, defaults};
use tautline_lab::result::LabResult;
use tautline_report::plot::latency_text;

/// Result of the paper.
pub const PAPER_FOUND: &str = "worst case of Linux 2.4.18 about 180 ms, with the preemption or the low-latency patch far better, with both below 1 ms";

/// The kernels that [`run`] compares.
pub const KERNEL_COUNT: u64 = 4;

/// Runs the paper's four kernels of today, each for `duration` idle and under the combined load. A result for each,
/// in the order of the figures; finished ones come from the lab's cache.
pub fn run(
    duration: Duration,
    stop: &AtomicBool,
    tell: &(dyn Fn(Event) + Sync),
) -> Result<Vec<LabResult>, KernelsError> {
    let settings = Settings {
        duration,
        ..Settings::new(defaults::own_program()?, defaults::cache(None)?)
    };
    let jobs: Vec<Job> = Arch::X86_64
        .default_kernels()
        .into_iter()
        .map(|kernel| Job {
            arch: Arch::X86_64,
            kernel,
        })
        .collect();
    let reports = kernels::run(&jobs, &settings, stop, tell)?;
    Ok(reports.into_iter().map(|report| report.result).collect())
}

/// The worst case of each kernel under its last load, by the probe that all of them ran; the tracer, where there is
/// one, is another instrument.
pub fn worst_ns(results: &[LabResult]) -> Vec<u64> {
    results
        .iter()
        .filter_map(|result| Some(result.phases.last()?.series.first()?.summary.max_ns))
        .collect()
}

/// Result found here, in words.
pub fn here(results: &[LabResult]) -> String {
    let texts: Vec<String> = results
        .iter()
        .zip(worst_ns(results))
        .map(|(result, ns)| {
            let load = result.phases.last().map_or("", |phase| &phase.load);
            format!("{} {} ({load})", result.label, latency_text(ns))
        })
        .collect();
    texts.join(", ")
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
