//! Result of a run of the lab: one schema for the machine at hand, a guest in virtual time and an
//! imported file, written as JSON.
//!
//! A result carries the histograms themselves, not only their summaries, so that a later report can
//! compute any percentile of them and a comparison the difference of whole tails.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tautline_report::text::plain;
use tautline_report::timeline::Slice;
use tautline_state::journal::Change;
use tautline_state::{StateError, write_whole};

use crate::kernels::agreement::Agreement;
use crate::machine::Machine;
use crate::trace::Outlier;
use crate::verdict::Verdict;
use tautline_report::histogram::{Bucket, LatencyHistogram, Summary};

/// The value of `format` in every result file.
pub const FORMAT: &str = "tautline-lab";

/// The version of the schema. Raised when a reader of the old one would misread the new one.
pub const VERSION: u32 = 1;

/// Longest result file. A week's result takes less than a megabyte: lower, and a list of many kernels would be
/// refused; higher, and a file of another kind takes memory before it is refused.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Longest text in a result that is shown. The kernel's command line has up to 4,096 bytes: lower, and it is cut;
/// higher, and a file from elsewhere fills the terminal.
const TEXT_CHARS_MAX: usize = 4096;

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

/// The clock under the latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeBase {
    /// The machine's own clock.
    Real,
    /// One nanosecond an instruction: comparable to the digit, no statement about hardware.
    Virtual,
    /// A guest under hardware virtualisation on the host's clock: no statement about hardware.
    Guest,
    /// Unknown: the file came from another program.
    Imported,
}

/// How the machine was set while a phase was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As it was found.
    Untouched,
    /// With the changes listed in the result.
    Tuned,
}

/// One stretch of measuring under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// How the machine was set.
    pub state: State,
    /// The load's name, such as `idle` or `combined`.
    pub load: String,
    /// Work of the load's parts meanwhile.
    pub achieved: Vec<Achieved>,
    /// Length of the phase in nanoseconds of its clock.
    pub duration_ns: u64,
    /// Results of each probe.
    pub series: Vec<Series>,
}

/// Work of one part of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Achieved {
    /// The part: `cpu`, `memory`, `disk`, `network` or `scheduling`.
    pub part: String,
    /// Program that made it: `built-in`, `stress-ng`, `fio`, `iperf3`.
    pub tool: String,
    /// The figure, in `unit`.
    pub amount: f64,
    /// Unit of `amount`, such as `MiB/s read and written`.
    pub unit: String,
    /// Why it fell short, where it did.
    pub problem: Option<String>,
}

/// Event that a probe waited on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// `clock_nanosleep` to an absolute time.
    Nanosleep,
    /// A read of a periodic `timerfd`.
    Timerfd,
    /// The real-time clock's periodic interrupt, as in the Emblix paper. The latency is what an interval
    /// between two wake-ups had beyond the period, since the clock's phase cannot be read.
    Rtc,
    /// The kernel's timerlat tracer, up to its interrupt handler.
    TimerlatInterrupt,
    /// The kernel's timerlat tracer, up to its thread.
    TimerlatThread,
    /// A thread that spins and counts the gaps during which it did not run.
    Noise,
    /// Some other program's wake-ups.
    Imported,
}

impl ProbeKind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            ProbeKind::Nanosleep => "nanosleep",
            ProbeKind::Timerfd => "timerfd",
            ProbeKind::Rtc => "rtc",
            ProbeKind::TimerlatInterrupt => "timerlat irq",
            ProbeKind::TimerlatThread => "timerlat thread",
            ProbeKind::Noise => "noise",
            ProbeKind::Imported => "imported",
        }
    }

    /// Whether its latency is that of a thread's wake-up, which is what a deadline is about.
    pub fn is_wakeup(self) -> bool {
        !matches!(self, ProbeKind::Noise | ProbeKind::TimerlatInterrupt)
    }
}

/// Result of one probe on one CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Event that it waited on.
    pub probe: ProbeKind,
    /// The CPU that it was pinned to; none where it was not pinned.
    pub cpu: Option<u32>,
    /// The scheduling that took effect, such as `SCHED_FIFO 80`.
    pub scheduling: String,
    /// The period in nanoseconds; for noise the length of the spinning window.
    pub period_ns: u64,
    /// The figures of the histogram.
    pub summary: Summary,
    /// The occupied buckets.
    pub buckets: Vec<Bucket>,
    /// Periods that passed whole while the thread was late.
    pub overruns: u64,
    /// Page faults of the probe while it measured, minor and major together. Above 0 the probe itself is
    /// part of the latency.
    pub page_faults: u64,
    /// Times that the probe was made to give up its CPU.
    pub switches_involuntary: u64,
    /// Cost of the probe: CPU time over time, 0 to 1.
    pub cpu_share: f64,
    /// The worst latency of each slice of time.
    pub timeline: Vec<Slice>,
}

impl Phase {
    /// A phase of which no load's figures are known.
    pub fn new(state: State, load: &str, duration_ns: u64, series: Vec<Series>) -> Phase {
        Phase {
            state,
            load: load.to_owned(),
            achieved: Vec::new(),
            duration_ns,
            series,
        }
    }
}

impl Series {
    /// Series of a histogram; nothing is known yet of the probe's own faults, cost and time line.
    pub fn new(
        probe: ProbeKind,
        cpu: Option<u32>,
        scheduling: String,
        period_ns: u64,
        histogram: &LatencyHistogram,
    ) -> Series {
        Series {
            probe,
            cpu,
            scheduling,
            period_ns,
            summary: histogram.summary(),
            buckets: histogram.buckets(),
            overruns: 0,
            page_faults: 0,
            switches_involuntary: 0,
            cpu_share: 0.0,
            timeline: Vec::new(),
        }
    }

    /// The histogram, rebuilt from its buckets; minimum and maximum exact.
    pub fn histogram(&self) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        let last = self.buckets.len().saturating_sub(1);
        for (index, bucket) in self.buckets.iter().enumerate() {
            let mut count = bucket.count;
            for (place, exact) in [(0, self.summary.min_ns), (last, self.summary.max_ns)] {
                if index == place && count > 0 {
                    histogram.record(exact);
                    count -= 1;
                }
            }
            let value = bucket.to_ns.clamp(self.summary.min_ns, self.summary.max_ns);
            histogram.record_many(value, count);
        }
        histogram
    }

    /// `nanosleep, CPU 1`, for headings.
    pub fn name(&self) -> String {
        match self.cpu {
            Some(cpu) => format!("{}, CPU {cpu}", self.probe.name()),
            None => self.probe.name().to_owned(),
        }
    }
}

/// Something that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Setting or privilege.
    pub what: String,
    /// Why not.
    pub reason: String,
    /// Remedy.
    pub remedy: String,
    /// Whether the verdict is weaker for it.
    pub weakens_verdict: bool,
}

/// Why a file could not be used as a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultFileError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error(transparent)]
    NotWritten(#[from] StateError),
    /// Well-formed JSON, but not a result of the lab nor of cyclictest, or no JSON at all.
    #[error("{path} is neither a result of taut lab nor of cyclictest ({found})")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Value that was found.
        found: String,
    },
    /// A result of another version of the schema.
    #[error(
        "{path} has result version {found}, this program reads version {VERSION}; measure again, or use the taut that wrote it"
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The file ends in the middle.
    #[error(
        "{path} is cut off at line {line}: it begins like a result but does not end; measure again"
    )]
    CutOff {
        /// The file.
        path: PathBuf,
        /// The last line.
        line: usize,
    },
    /// A result of our version with a field missing or of the wrong kind.
    #[error(
        "{path} says it is a result of version {VERSION}, but line {line}, column {column}: {message}"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line of the fault.
        line: usize,
        /// Column of the fault.
        column: usize,
        /// The fault.
        message: String,
    },
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

    /// Reads a result file, or imports what cyclictest wrote (`--json` or `--histfile`).
    pub fn read(path: &Path) -> Result<LabResult, ResultFileError> {
        LabResult::parse(&read_text(path)?, path)
    }

    /// Reads a file that holds one result, or a list of them as `taut lab kernels` writes it.
    pub fn read_many(path: &Path) -> Result<Vec<LabResult>, ResultFileError> {
        let text = read_text(path)?;
        match serde_json::from_str::<Vec<Box<serde_json::value::RawValue>>>(&text) {
            Ok(list) if !list.is_empty() => list
                .iter()
                .map(|one| LabResult::parse(one.get(), path))
                .collect(),
            _ => LabResult::parse(&text, path).map(|one| vec![one]),
        }
    }

    /// Understands the text of a result file; `path` is for messages and labels. Texts in the result have no control
    /// characters and are bounded: others may have written the file, and it is shown on a terminal.
    pub fn parse(text: &str, path: &Path) -> Result<LabResult, ResultFileError> {
        let found = LabResult::understand(text, path)?;
        let mut value = serde_json::to_value(&found).expect("a result has only string keys");
        clean(&mut value);
        serde_json::from_value(value).map_err(|error| ResultFileError::Malformed {
            path: path.to_owned(),
            line: 0,
            column: 0,
            message: plain(&error.to_string(), TEXT_CHARS_MAX),
        })
    }

    fn understand(text: &str, path: &Path) -> Result<LabResult, ResultFileError> {
        let not_ours = |found: &str| ResultFileError::NotOurs {
            path: path.to_owned(),
            found: found.to_owned(),
        };
        let value: serde_json::Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) if error.is_eof() && looks_like_a_result(text) => {
                return Err(ResultFileError::CutOff {
                    path: path.to_owned(),
                    line: error.line(),
                });
            }
            Err(_) => {
                return crate::cyclictest::from_histogram_file(text, path)
                    .ok_or_else(|| not_ours("not JSON, and no histogram"));
            }
        };
        if value.get("format").and_then(|format| format.as_str()) != Some(FORMAT) {
            return crate::cyclictest::from_json(&value, path)
                .ok_or_else(|| not_ours("JSON of another kind"));
        }
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(VERSION) => {}
            found => {
                return Err(ResultFileError::OtherVersion {
                    path: path.to_owned(),
                    found: found.unwrap_or(0),
                });
            }
        }
        // Parsed again from the text, so that a fault has a line and a column.
        serde_json::from_str(text).map_err(|error| ResultFileError::Malformed {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            message: plain(&error.to_string(), TEXT_CHARS_MAX),
        })
    }

    /// Writes the result, or prints it where `path` is `-`.
    pub fn write_or_print(&self, path: &Path) -> Result<(), ResultFileError> {
        if path == Path::new("-") {
            self.write(Path::new("/dev/stdout"))
        } else {
            self.write(path)
        }
    }

    /// Writes the result; the file appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), ResultFileError> {
        let text = serde_json::to_string_pretty(self).expect("a result has only string keys");
        Ok(write_whole(path, text.as_bytes())?)
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

fn read_text(path: &Path) -> Result<String, ResultFileError> {
    let unreadable = |source| ResultFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ResultFileError::NotOurs {
            path: path.to_owned(),
            found: format!("more than {FILE_BYTES_MAX} bytes"),
        });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Makes every text in a value fit to be shown.
fn clean(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => *text = plain(text, TEXT_CHARS_MAX),
        serde_json::Value::Array(list) => list.iter_mut().for_each(clean),
        serde_json::Value::Object(map) => {
            let fields = std::mem::take(map);
            map.extend(fields.into_iter().map(|(name, mut value)| {
                clean(&mut value);
                (plain(&name, TEXT_CHARS_MAX), value)
            }));
        }
        _ => {}
    }
}

fn looks_like_a_result(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && text.contains(&format!("\"{FORMAT}\""))
}

/// Result that a sleeper on CPU 0 would have reported, for tests.
#[cfg(test)]
pub(crate) fn sleeper(histogram: &LatencyHistogram) -> Series {
    let scheduling = "SCHED_FIFO 80".to_owned();
    Series::new(
        ProbeKind::Nanosleep,
        Some(0),
        scheduling,
        1_000_000,
        histogram,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LabResult {
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
    fn a_result_survives_its_file() {
        let text = serde_json::to_string(&sample()).unwrap();
        let read = LabResult::parse(&text, Path::new("x.json")).unwrap();
        assert_eq!(read, sample());
        let histogram = read.phases[0].series[0].histogram();
        assert_eq!(histogram.count(), 4);
        assert_eq!(histogram.summary().min_ns, 5_003);
        assert_eq!(histogram.summary().max_ns, 123_457);
    }

    #[test]
    fn every_wrong_file_has_its_own_answer() {
        let text = serde_json::to_string_pretty(&sample()).unwrap();
        let parse = |text: &str| LabResult::parse(text, Path::new("x.json")).unwrap_err();
        for cut in [text.len() / 2, text.len() - 2] {
            assert!(
                matches!(parse(&text[..cut]), ResultFileError::CutOff { .. }),
                "{cut}"
            );
        }
        let other = text.replace("\"version\": 1", "\"version\": 2");
        assert!(matches!(
            parse(&other),
            ResultFileError::OtherVersion { found: 2, .. }
        ));
        for foreign in [
            "{}",
            "[1,2]",
            "hello",
            "",
            "{\"format\":\"perf\"}",
            "\u{0}\u{1}",
        ] {
            assert!(
                matches!(parse(foreign), ResultFileError::NotOurs { .. }),
                "{foreign:?}"
            );
        }
        let wrong = text.replace("\"duration_ns\": 4000000", "\"duration_ns\": \"long\"");
        match parse(&wrong) {
            ResultFileError::Malformed { line, .. } => assert!(line > 10),
            error => panic!("{error}"),
        }
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
