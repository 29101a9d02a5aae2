//! The kernel's timerlat tracer: interrupt and thread latency apart, measured by the kernel itself.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Instance, TraceError, tracefs};
use crate::episodes::Episodes;
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
        // The probes' clock, for the episodes that they count together.
        instance.write("trace_clock", "mono")?;
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

    /// Measures for a time, or until `stop` is set; then two series for each of the CPUs, interrupt and thread. The
    /// threads' wake-ups are noted in `episodes`.
    pub fn run(
        mut self,
        duration: Duration,
        stop: &AtomicBool,
        episodes: &Episodes,
        cpus: &[u32],
    ) -> Vec<Series> {
        let end = Instant::now() + duration;
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_INTERVAL);
            self.take(episodes, cpus);
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

    fn take(&mut self, episodes: &Episodes, cpus: &[u32]) {
        let mut bytes = [0; 64 * 1024];
        while let Ok(count @ 1..) = self.pipe.read(&mut bytes) {
            self.rest
                .push_str(&String::from_utf8_lossy(&bytes[..count]));
            while let Some(end) = self.rest.find('\n') {
                let line: String = self.rest.drain(..=end).collect();
                let found = parse_timerlat(&line).filter(|one| cpus.contains(&one.cpu));
                let Some(found) = found else {
                    continue;
                };
                let (interrupt, thread) = self.found.entry(found.cpu).or_default();
                if found.is_thread {
                    thread.record(found.latency_ns);
                    let due_ns = found.at_ns.saturating_sub(found.latency_ns);
                    episodes.note(due_ns, due_ns + found.latency_ns, PERIOD_NS);
                } else {
                    interrupt.record(found.latency_ns);
                }
            }
        }
    }
}

/// One latency, as a line of the trace has it.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    cpu: u32,
    /// Whether it is the thread's latency, not the interrupt's.
    is_thread: bool,
    latency_ns: u64,
    /// Time of the line, whole microseconds.
    at_ns: u64,
}

fn series(probe: ProbeKind, cpu: u32, histogram: &LatencyHistogram) -> Series {
    let scheduling = "the kernel's timerlat tracer".to_owned();
    Series::new(probe, Some(cpu), scheduling, PERIOD_NS, histogram)
}

/// `  <...>-867 [000] .... 54.029328: #1 context irq timer_latency 932 ns` (Documentation/trace/timerlat-tracer.rst):
/// The tracer's threads write one line of each kind a period.
fn parse_timerlat(line: &str) -> Option<Found> {
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
    let latency_ns = words.next()?.parse().ok()?;
    let mut fields = head[open..].split_whitespace();
    let time = fields.find_map(|word| word.strip_suffix(':'))?;
    let (seconds, micros) = time.split_once('.')?;
    let at_us =
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000)? + micros.parse::<u64>().ok()?;
    Some(Found {
        cpu,
        is_thread,
        latency_ns,
        at_ns: at_us.checked_mul(1_000)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timerlat_lines_are_understood() {
        let line = "           <...>-868     [001] ....    54.030328: #2     context thread timer_latency      11700 ns";
        let thread = Found {
            cpu: 1,
            is_thread: true,
            latency_ns: 11_700,
            at_ns: 54_030_328_000,
        };
        assert_eq!(parse_timerlat(line), Some(thread));
        let line = "          <idle>-0       [000] d.h1    54.029328: #1     context    irq timer_latency        932 ns";
        let interrupt = Found {
            cpu: 0,
            is_thread: false,
            latency_ns: 932,
            at_ns: 54_029_328_000,
        };
        assert_eq!(parse_timerlat(line), Some(interrupt));
        assert_eq!(parse_timerlat("#  context switches"), None);
    }
}
