//! Imports what cyclictest wrote, so that people can bring the runs that they have: `--json FILE` and
//! `--histfile FILE`. Both count in whole microseconds, so an imported latency is up to 1 µs too low.

use std::path::Path;

use serde_json::Value;

use crate::machine::{Machine, Reading};
use crate::result::{LabResult, Phase, ProbeKind, Series, State, TimeBase};
use tautline_report::histogram::LatencyHistogram;

/// Understands `cyclictest --json`; nothing if it is something else.
pub fn from_json(value: &Value, path: &Path) -> Option<LabResult> {
    let threads = value.get("thread")?.as_object()?;
    let resolution_ns = match value.get("resolution_in_ns").and_then(Value::as_u64) {
        Some(1) => 1,
        _ => 1_000,
    };
    let mut series = Vec::new();
    for thread in threads.values() {
        let mut histogram = LatencyHistogram::new();
        for (latency, count) in thread.get("histogram")?.as_object()? {
            histogram.record_many(
                latency.parse::<u64>().ok()? * resolution_ns,
                count.as_u64()?,
            );
        }
        let cycles = thread.get("cycles")?.as_u64()?;
        let max_ns = thread.get("max")?.as_u64()? * resolution_ns;
        add_overflow(&mut histogram, cycles, max_ns);
        let number = |name: &str| thread.get(name).and_then(Value::as_u64);
        series.push(imported_series(
            &histogram,
            number("cpu").map(|cpu| cpu as u32),
            number("interval").unwrap_or(0) * 1_000,
            number("priority"),
        ));
    }
    let mut machine = Machine::default();
    if let Some(system) = value.get("sysinfo") {
        let text =
            |name: &str| Reading(system.get(name).and_then(Value::as_str).map(str::to_owned));
        machine.kernel_release = text("release");
        machine.kernel_version = text("version");
        machine.architecture = text("machine");
    }
    let version = value
        .get("file_version")
        .and_then(Value::as_u64)
        .unwrap_or(0);
    imported(
        path,
        &format!("cyclictest (JSON version {version})"),
        machine,
        series,
    )
}

/// Understands `cyclictest --histogram=N --histfile FILE`: a line for each microsecond with a count for each
/// thread, and comments with minima, maxima and overflows. Nothing if it is something else.
pub fn from_histogram_file(text: &str, path: &Path) -> Option<LabResult> {
    let mut columns: Vec<LatencyHistogram> = Vec::new();
    let (mut maxima, mut overflows) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix('#') {
            let numbers = |name: &str| {
                let rest = comment.trim().strip_prefix(name)?.trim_start_matches(':');
                Some(
                    rest.split_whitespace()
                        .filter_map(|n| n.parse::<u64>().ok())
                        .collect::<Vec<_>>(),
                )
            };
            if let Some(found) = numbers("Max Latencies") {
                maxima = found;
            } else if let Some(found) = numbers("Histogram Overflows") {
                overflows = found;
            }
            continue;
        }
        let mut words = line.split_whitespace();
        let latency_us: u64 = words.next()?.parse().ok()?;
        for (index, count) in words.enumerate() {
            if columns.len() <= index {
                columns.push(LatencyHistogram::new());
            }
            columns[index].record_many(latency_us * 1_000, count.parse().ok()?);
        }
    }
    for (index, column) in columns.iter_mut().enumerate() {
        let max_ns = maxima.get(index).copied().unwrap_or(0) * 1_000;
        let cycles = column.count() + overflows.get(index).copied().unwrap_or(0);
        add_overflow(column, cycles, max_ns);
    }
    let series = columns
        .iter()
        .filter(|column| column.count() > 0)
        .enumerate()
        .map(|(index, column)| imported_series(column, Some(index as u32), 0, None))
        .collect();
    imported(
        path,
        "cyclictest (histogram file)",
        Machine::default(),
        series,
    )
}

/// Latencies past the end of cyclictest's histogram are only counted there. They are entered at the
/// maximum: no percentile comes out too low.
fn add_overflow(histogram: &mut LatencyHistogram, cycles: u64, max_ns: u64) {
    let beyond = cycles.saturating_sub(histogram.count());
    histogram.record_many(max_ns, beyond);
}

fn imported_series(
    histogram: &LatencyHistogram,
    cpu: Option<u32>,
    period_ns: u64,
    priority: Option<u64>,
) -> Series {
    let scheduling = priority.map_or("unknown".to_owned(), |priority| {
        format!("priority {priority}")
    });
    Series::new(ProbeKind::Imported, cpu, scheduling, period_ns, histogram)
}

fn imported(path: &Path, tool: &str, machine: Machine, series: Vec<Series>) -> Option<LabResult> {
    if series.iter().all(|series| series.summary.count == 0) {
        return None;
    }
    let label = path
        .file_stem()
        .map_or("imported".into(), |stem| stem.to_string_lossy());
    let mut result = LabResult::new(&label, TimeBase::Imported, machine);
    result.tool = tool.to_owned();
    let duration_ns = series
        .iter()
        .map(|series| series.summary.count * series.period_ns)
        .max()
        .unwrap_or(0);
    result
        .phases
        .push(Phase::new(State::Untouched, "unknown", duration_ns, series));
    result.notes.push(
        "imported: whole microseconds, load and settings unknown, page faults not counted"
            .to_owned(),
    );
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_cyclictest() {
        let text = r#"{"file_version": 1, "cmdline": "cyclictest -t2", "rt_test_version:": "2.4",
            "finished": "x", "num_threads": 2, "resolution_in_ns": 0, "return_code": 0,
            "sysinfo": {"sysname": "Linux", "nodename": "b", "release": "6.1.0-56-rt-amd64",
                        "version": "1 SMP PREEMPT_RT", "machine": "x86_64"},
            "thread": {"0": {"histogram": {"3": 90, "4": 9}, "cycles": 100, "min": 3, "max": 50, "avg": 3.6, "cpu": 0, "interval": 1000},
                       "1": {"histogram": {"5": 100}, "cycles": 100, "min": 5, "max": 5, "avg": 5.0, "cpu": 1}}}"#;
        let result = LabResult::parse(text, Path::new("dir/board.json")).unwrap();
        assert_eq!(result.label, "board");
        let first = &result.phases[0].series[0];
        assert_eq!(
            (
                first.summary.count,
                first.summary.min_ns,
                first.summary.max_ns
            ),
            (100, 3_000, 50_000)
        );
        // A bucket's upper edge, within the histogram's 0.1 %.
        assert!((3_000..=3_003).contains(&first.summary.p50_ns));
        assert_eq!(
            result.machine.kernel_release.to_string(),
            "6.1.0-56-rt-amd64"
        );
        assert_eq!(result.wakeups(None, None).count(), 200);
    }

    #[test]
    fn histogram_file_of_cyclictest() {
        let text = "# /dev/cpu_dma_latency set to 0us\n# Histogram\n000002 000010\t000000\n000003 000005\t000020\n\
                    # Total: 000000015 000000020\n# Min Latencies: 00002 00003\n# Avg Latencies: 00002 00003\n\
                    # Max Latencies: 00950 00003\n# Histogram Overflows: 00001 00000\n# Histogram Overflow at cycle number:\n# Thread 0: 00007\n";
        let result = LabResult::parse(text, Path::new("old.hist")).unwrap();
        let series = &result.phases[0].series;
        assert_eq!(series.len(), 2);
        assert_eq!(
            (series[0].summary.count, series[0].summary.max_ns),
            (16, 950_000)
        );
        assert_eq!(
            (series[1].summary.count, series[1].summary.max_ns),
            (20, 3_000)
        );
    }

    #[test]
    fn empty_and_broken_imports_are_refused() {
        for text in [
            "1 x\n",
            "# only\n",
            "{\"thread\": {}}",
            "{\"thread\": {\"0\": {\"histogram\": {}}}}",
        ] {
            assert!(LabResult::parse(text, Path::new("x")).is_err(), "{text}");
        }
    }
}
