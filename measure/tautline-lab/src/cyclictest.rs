//! Imports what cyclictest wrote, so that people can bring the runs that they have: `--json FILE`, and histograms
//! (`--histfile FILE`, or what it printed). A thread is known by its number, and by its CPU where the file has it.
//!
//! Latencies that a file does not contain are unknown: those beyond the end of a histogram are only counted there. A
//! file that contradicts itself is refused with the line.

mod histogram;
mod json;

use std::path::Path;

use crate::result::{LabResult, Phase, ProbeKind, Series, TimeBase};
use crate::result_file::ResultFileError;
use tautline_machine::Machine;
use tautline_machine::verdict::State;
use tautline_report::histogram::LatencyHistogram;
use tautline_state::text::plain;

pub use histogram::from_histogram;
pub use json::from_json;

/// Longest latency that is taken, in nanoseconds: 11 days. Lower: a run on a machine that was stopped is refused.
/// Higher: nanoseconds overflow.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000_000;

/// Most wake-ups of a thread: one a microsecond for 30 years. Lower: a long run is refused. Higher: sums overflow.
const COUNT_MAX: u64 = 1_000_000_000_000_000;

/// Longest fault that is shown. Lower: a long number is cut. Higher: a file from elsewhere fills the terminal.
const MESSAGE_CHARS_MAX: usize = 200;

/// One thread, as a file describes it.
#[derive(Debug, Default)]
struct Thread {
    number: u32,
    cpu: Option<u32>,
    period_ns: u64,
    priority: Option<u64>,
    /// Latency and count, in nanoseconds.
    counts: Vec<(u64, u64)>,
    /// Latencies that the file only counts: more of them, the least that one can be, and the greatest.
    unplaced: u64,
    unplaced_ns: (u64, u64),
}

impl Thread {
    fn series(&self) -> Series {
        let mut histogram = LatencyHistogram::new();
        for (latency_ns, count) in &self.counts {
            histogram.record_many(*latency_ns, *count);
        }
        let (min_ns, max_ns) = self.unplaced_ns;
        histogram.record_unplaced(min_ns, max_ns, self.unplaced);
        let scheduling = self.priority.map_or("unknown".to_owned(), |priority| {
            format!("priority {priority}")
        });
        let period_ns = self.period_ns;
        let kind = ProbeKind::Imported;
        Series {
            thread: Some(self.number),
            ..Series::new(kind, self.cpu, scheduling, period_ns, &histogram)
        }
    }
}

/// A latency in nanoseconds, or why it cannot be right.
fn latency_ns(latency: u64, unit_ns: u64) -> Result<u64, String> {
    let ns = latency.checked_mul(unit_ns);
    ns.filter(|ns| *ns <= LATENCY_NS_MAX)
        .ok_or_else(|| format!("no latency is {latency} long"))
}

/// The sum of counts, or why it cannot be right.
fn sum(counts: impl IntoIterator<Item = u64>) -> Result<u64, String> {
    let mut all = 0_u64;
    for count in counts {
        all = all.saturating_add(count);
        if all > COUNT_MAX {
            return Err(format!("no thread has more than {COUNT_MAX} wake-ups"));
        }
    }
    Ok(all)
}

fn refused(path: &Path, line: usize, message: impl Into<String>) -> ResultFileError {
    ResultFileError::Impossible {
        path: path.to_owned(),
        line,
        message: plain(&message.into(), MESSAGE_CHARS_MAX),
    }
}

/// The result; `None` if no thread has a sample.
fn imported(
    path: &Path,
    (tool, unit): (&str, &str),
    machine: Machine,
    threads: &[Thread],
) -> Option<LabResult> {
    let (full, empty): (Vec<Series>, Vec<Series>) = threads
        .iter()
        .map(Thread::series)
        .partition(|series| series.summary.count > 0);
    if full.is_empty() {
        return None;
    }
    let label = path
        .file_stem()
        .map_or("imported".into(), |stem| stem.to_string_lossy());
    let mut result = LabResult::new(&label, TimeBase::Imported, machine);
    result.tool = tool.to_owned();
    let lengths = full
        .iter()
        .map(|series| series.summary.count.saturating_mul(series.period_ns));
    let duration_ns = lengths.max().unwrap_or(0);
    let unplaced: u64 = full.iter().map(|series| series.unplaced).sum();
    let phase = Phase::new(State::Untouched, "unknown", duration_ns, full);
    result.phases.push(phase);
    result.notes.push(format!(
        "imported: whole {unit}, load and settings unknown, page faults not counted"
    ));
    if unplaced > 0 {
        result.notes.push(format!(
            "{unplaced} latencies are counted in the file and not listed: percentiles among them are unknown"
        ));
    }
    for series in empty {
        result.notes.push(format!("no samples: {}", series.name()));
    }
    Some(result)
}
