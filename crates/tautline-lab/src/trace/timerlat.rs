//! The kernel's timerlat tracer: interrupt and thread latency apart, measured by the kernel itself.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Instance, TraceError, tracefs};
use crate::measured::{ProbeKind, Series};
use tautline_report::histogram::LatencyHistogram;
use tautline_state::journal::Journal;

/// The tracer's own default (`osnoise/timerlat_period_us`).
const PERIOD_NS: u64 = 1_000_000;

/// Between two looks a CPU writes 100 lines of some 100 bytes: the kernel's buffer of 1.4 MiB holds far more.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The timerlat tracer: interrupt and thread latency of each CPU, measured by the kernel itself.
#[derive(Debug)]
pub struct Timerlat {
    /// Removed with the tracer; the pipe reads from it.
    _instance: Instance,
    pipe: File,
    /// The beginning of a line whose end has not come yet.
    rest: String,
    /// Interrupt and thread latency by CPU.
    found: BTreeMap<u32, (LatencyHistogram, LatencyHistogram)>,
}

impl Timerlat {
    /// Starts the tracer on all CPUs.
    pub fn start(journal: &mut Journal) -> Result<Timerlat, TraceError> {
        let root = tracefs()?;
        let tracers = fs::read_to_string(root.join("available_tracers")).unwrap_or_default();
        if !tracers
            .split_whitespace()
            .any(|tracer| tracer == "timerlat")
        {
            return Err(TraceError::Lacking(
                "timerlat tracer (CONFIG_TIMERLAT_TRACER)".to_owned(),
            ));
        }
        let instance = Instance::new("timerlat", journal)?;
        instance.write("current_tracer", "timerlat")?;
        instance.write("tracing_on", "1")?;
        let path = instance.path.join("trace_pipe");
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .map_err(|source| TraceError::File { path, source })?;
        Ok(Timerlat {
            _instance: instance,
            pipe,
            rest: String::new(),
            found: BTreeMap::new(),
        })
    }

    /// Measures for a time, or until `stop` is set; then two series for each CPU, interrupt and thread.
    pub fn run(mut self, duration: Duration, stop: &AtomicBool) -> Vec<Series> {
        let end = Instant::now() + duration;
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_INTERVAL);
            self.take();
        }
        self.found
            .iter()
            .flat_map(|(cpu, (interrupt, thread))| {
                [
                    series(ProbeKind::TimerlatInterrupt, *cpu, interrupt),
                    series(ProbeKind::TimerlatThread, *cpu, thread),
                ]
            })
            .collect()
    }

    fn take(&mut self) {
        let mut bytes = [0; 64 * 1024];
        while let Ok(count @ 1..) = self.pipe.read(&mut bytes) {
            self.rest
                .push_str(&String::from_utf8_lossy(&bytes[..count]));
            while let Some(end) = self.rest.find('\n') {
                let line: String = self.rest.drain(..=end).collect();
                if let Some((cpu, is_thread, ns)) = parse_timerlat(&line) {
                    let (interrupt, thread) = self.found.entry(cpu).or_default();
                    if is_thread {
                        thread.record(ns)
                    } else {
                        interrupt.record(ns)
                    }
                }
            }
        }
    }
}

fn series(probe: ProbeKind, cpu: u32, histogram: &LatencyHistogram) -> Series {
    let scheduling = "the kernel's timerlat tracer".to_owned();
    Series::new(probe, Some(cpu), scheduling, PERIOD_NS, histogram)
}

/// `  <...>-867 [000] .... 54.029328: #1 context irq timer_latency 932 ns` (Documentation/trace/timerlat-tracer.rst):
/// CPU, whether it is the thread's latency, and the latency. The tracer's threads write one line of each kind a period.
fn parse_timerlat(line: &str) -> Option<(u32, bool, u64)> {
    let (head, tail) = line.split_once("context")?;
    let open = head.rfind('[')?;
    let cpu = head[open + 1..].split(']').next()?.trim().parse().ok()?;
    let mut words = tail.split_whitespace();
    let is_thread = match words.next()? {
        "thread" => true,
        "irq" => false,
        _ => return None,
    };
    (words.next()? == "timer_latency").then_some(())?;
    Some((cpu, is_thread, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timerlat_lines_are_understood() {
        let line = "           <...>-868     [001] ....    54.030328: #2     context thread timer_latency      11700 ns";
        assert_eq!(parse_timerlat(line), Some((1, true, 11_700)));
        let line = "          <idle>-0       [000] d.h1    54.029328: #1     context    irq timer_latency        932 ns";
        assert_eq!(parse_timerlat(line), Some((0, false, 932)));
        assert_eq!(parse_timerlat("#  context switches"), None);
    }
}
