//! Files of `cyclictest --json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{Thread, imported, latency_ns, refused, sum};
use crate::result::LabResult;
use crate::result_file::ResultFileError;
use tautline_machine::{Machine, Reading};

/// The file, as far as it is read.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    file_version: u64,
    /// 1 if latencies are in nanoseconds, 0 if in microseconds.
    #[serde(default)]
    resolution_in_ns: u64,
    num_threads: Option<usize>,
    #[serde(default)]
    sysinfo: System,
    thread: BTreeMap<u32, CheckedThread>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct System {
    release: Option<String>,
    version: Option<String>,
    machine: Option<String>,
}

/// A thread as it stands in the file, in the file's unit.
#[derive(Deserialize)]
struct RawThread {
    histogram: BTreeMap<u64, u64>,
    cycles: u64,
    #[serde(default)]
    min: u64,
    max: u64,
    cpu: Option<u32>,
    interval: Option<u64>,
    priority: Option<u64>,
}

/// A thread that does not contradict itself. It is checked while it is read, so that a fault has a line.
#[derive(Deserialize)]
#[serde(try_from = "RawThread")]
struct CheckedThread(RawThread);

impl TryFrom<RawThread> for CheckedThread {
    type Error = String;

    fn try_from(thread: RawThread) -> Result<Self, String> {
        let listed = sum(thread.histogram.values().copied())?;
        let cycles = sum([thread.cycles])?;
        if listed > cycles {
            let histogram = "latencies in the histogram of a thread with";
            return Err(format!("{listed} {histogram} {cycles} cycles"));
        }
        let occupied = thread.histogram.iter().filter(|(_, count)| **count > 0);
        let greatest = occupied.map(|(latency, _)| *latency).next_back();
        let max = thread.max;
        if let Some(greatest) = greatest.filter(|greatest| *greatest > max) {
            return Err(format!("a maximum of {max} below a latency of {greatest}"));
        }
        if listed < cycles && (thread.min > max || greatest == Some(max)) {
            let count = cycles - listed;
            return Err(format!(
                "{count} cycles without a place between the latencies that are listed and the maximum of {max}"
            ));
        }
        Ok(Self(thread))
    }
}

impl CheckedThread {
    fn thread(&self, number: u32, unit_ns: u64) -> Result<Thread, String> {
        let raw = &self.0;
        let occupied = raw.histogram.iter().filter(|(_, count)| **count > 0);
        let counts = occupied.map(|(latency, count)| Ok((latency_ns(*latency, unit_ns)?, *count)));
        let counts = counts.collect::<Result<Vec<_>, String>>()?;
        let listed = counts.iter().map(|(_, count)| count).sum::<u64>();
        // Those that are not listed are beyond the end of the histogram, or there is none.
        let least_ns = match counts.last() {
            Some((greatest_ns, _)) => *greatest_ns,
            None => latency_ns(raw.min, unit_ns)?,
        };
        Ok(Thread {
            number,
            cpu: raw.cpu,
            period_ns: raw.interval.map_or(Ok(0), |us| latency_ns(us, 1_000))?,
            priority: raw.priority,
            unplaced: raw.cycles - listed,
            unplaced_ns: (least_ns, latency_ns(raw.max, unit_ns)?),
            counts,
        })
    }
}

/// Understands the text; nothing if it has no threads, or none with a sample.
///
/// # Errors
/// A number or a layout that cannot be right.
pub fn from_json(text: &str, path: &Path) -> Result<Option<LabResult>, ResultFileError> {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "thread")]
        _thread: BTreeMap<String, serde::de::IgnoredAny>,
    }
    if serde_json::from_str::<Kind>(text).is_err() {
        return Ok(None);
    }
    let file: File = serde_json::from_str(text)
        .map_err(|error| refused(path, error.line(), error.to_string()))?;
    let last = text.lines().count();
    let unit_ns = match file.resolution_in_ns {
        0 => 1_000,
        1 => 1,
        other => {
            let message = format!("a resolution_in_ns of {other}, which is 0 or 1");
            return Err(refused(path, last, message));
        }
    };
    let found = file.thread.len();
    if let Some(count) = file.num_threads.filter(|count| *count != found) {
        let message = format!("{found} threads in a file of {count}");
        return Err(refused(path, last, message));
    }
    let threads = file.thread.iter();
    let threads = threads.map(|(number, thread)| thread.thread(*number, unit_ns));
    let threads = threads.collect::<Result<Vec<_>, String>>();
    let threads = threads.map_err(|message| refused(path, last, message))?;
    let unit = match unit_ns {
        1 => "nanoseconds",
        _ => "microseconds",
    };
    let tool = format!("cyclictest (JSON version {})", file.file_version);
    let machine = Machine {
        kernel_release: Reading(file.sysinfo.release),
        kernel_version: Reading(file.sysinfo.version),
        architecture: Reading(file.sysinfo.machine),
        ..Machine::default()
    };
    Ok(imported(path, (&tool, unit), machine, &threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one thread: its histogram, cycles, least and greatest latency.
    fn file(histogram: &str, cycles: u64, min: u64, max: u64) -> String {
        format!(
            "{{\"file_version\": 1, \"num_threads\": 1, \"resolution_in_ns\": 0,\n\"thread\": {{\"0\": {{\n\
             \"histogram\": {{{histogram}}},\n\"cycles\": {cycles}, \"min\": {min}, \"max\": {max}, \"avg\": 13.0,\n\
             \"cpu\": 0 }} }} }}\n"
        )
    }

    fn read(text: &str) -> Result<LabResult, ResultFileError> {
        LabResult::parse(text, Path::new("dir/board.json"))
    }

    #[test]
    fn json_of_cyclictest() {
        let text = r#"{"file_version": 1, "cmdline": "cyclictest -t2", "rt_test_version:": "2.4",
            "finished": "x", "num_threads": 2, "resolution_in_ns": 0, "return_code": 0,
            "sysinfo": {"sysname": "Linux", "nodename": "b", "release": "6.1.0-56-rt-amd64",
                        "version": "1 SMP PREEMPT_RT", "machine": "x86_64"},
            "thread": {"0": {"histogram": {"3": 90, "4": 9}, "cycles": 100, "min": 3, "max": 50, "avg": 3.6, "cpu": 0, "interval": 1000},
                       "1": {"histogram": {"5": 100}, "cycles": 100, "min": 5, "max": 5, "avg": 5.0, "cpu": 1}}}"#;
        let result = read(text).unwrap();
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
        assert_eq!(first.name(), "imported, CPU 0");
    }

    #[test]
    fn percentiles_of_latencies_that_are_not_listed_are_unknown() {
        let text = file("", 100_000, 10, 300);
        let all = read(&text).unwrap().wakeups(None, None);
        assert_eq!((all.count(), all.unplaced()), (100_000, 100_000));
        assert_eq!(
            (all.summary().min_ns, all.summary().max_ns),
            (10_000, 300_000)
        );
        assert_eq!(all.at_quantile(0.5), None);
        // Five overflows of a thousand: the 99th percentile is known, the 99.9th is not. A byte order mark is no fault.
        let text = format!("\u{feff}{}", file("\"12\": 995", 1_000, 12, 300));
        let all = read(&text).unwrap().wakeups(None, None);
        assert!(all.at_quantile(0.99).is_some_and(|ns| ns < 12_100));
        assert_eq!(all.at_quantile(0.999), None);
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_its_line() {
        for (text, line, words) in [
            (file("\"5\": 11", 10, 5, 5), 5, "11 latencies"),
            (file("\"50\": 9", 10, 5, 20), 5, "a maximum of 20"),
            (file("\"50\": 9", 10, 5, 50), 5, "1 cycles without a place"),
            (file("", 10, 5, 0), 5, "10 cycles without a place"),
            (file("\"5\": -1", 10, 5, 5), 3, "invalid value"),
            (file("\"5.5\": 1", 10, 5, 5), 3, "invalid"),
            (file("\"5\": 1", u64::MAX, 5, 9), 5, "wake-ups"),
            (
                file("\"18446744073709551\": 1", 1, 1, u64::MAX),
                6,
                "no latency",
            ),
            (
                file("\"5\": 1", 1, 5, 5).replace("\"num_threads\": 1", "\"num_threads\": 2"),
                6,
                "1 threads",
            ),
        ] {
            match read(&text) {
                Err(ResultFileError::Impossible {
                    line: found,
                    message,
                    ..
                }) => {
                    assert!(message.contains(words), "{message}");
                    assert!(
                        found.abs_diff(line) <= 1,
                        "{message}: line {found}, not {line}"
                    );
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
