//! From a timer to the kernel's handler, by the kernel's own trace: when a probe's timer was due (`hrtimer_start`), and
//! the clock at the entry of the interrupt handler that found it so (`now` of `hrtimer_expire_entry`).

use std::collections::HashMap;
use std::fs;

use super::{Instance, TraceError, field, parse_line};
use tautline_report::histogram::LatencyHistogram;
use tautline_state::journal::Journal;

/// Bytes of the kernel's buffer for each timer: both events, and as much again for timers of others.
const EVENT_BYTES: u64 = 256;

/// Largest buffer. Higher: memory of the kernel that others need. Lower: a million timers no longer fit; what does not
/// fit is not recorded, and counts as not measured.
const BUFFER_KIB_MAX: u64 = 256 << 10;

/// Name of the probe's thread.
const PROBE: &str = "taut-probe";

/// The trace of one CPU's timers.
#[derive(Debug)]
pub struct HandlerTrace {
    instance: Instance,
    cpu: u32,
}

impl HandlerTrace {
    /// Starts to record on a CPU, with room for so many timers.
    ///
    /// # Errors
    /// No tracefs, or a kernel without these events.
    pub fn start(cpu: u32, count: u64, journal: &mut Journal) -> Result<HandlerTrace, TraceError> {
        let instance = Instance::new("interrupt", journal)?;
        let kib = (count.saturating_mul(EVENT_BYTES) / 1024 + 1024).min(BUFFER_KIB_MAX);
        instance.write("tracing_cpumask", &mask(cpu))?;
        instance.write("options/overwrite", "0")?;
        instance.write(
            &format!("per_cpu/cpu{cpu}/buffer_size_kb"),
            &kib.to_string(),
        )?;
        // Others' timers are passed over when the trace is read; a filter only saves their room.
        let filter = format!("comm == \"{PROBE}\"");
        let _ = instance.write("events/timer/hrtimer_start/filter", &filter);
        for event in ["timer/hrtimer_start", "timer/hrtimer_expire_entry"] {
            instance
                .write(&format!("events/{event}/enable"), "1")
                .map_err(|_| TraceError::Lacking(event.to_owned()))?;
        }
        instance.write("tracing_on", "1")?;
        Ok(HandlerTrace { instance, cpu })
    }

    /// Stops, and returns the latencies.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn finish(self) -> Result<LatencyHistogram, TraceError> {
        self.instance.write("tracing_on", "0")?;
        let path = self
            .instance
            .path
            .join(format!("per_cpu/cpu{}/trace", self.cpu));
        let text = fs::read(&path).map_err(|source| TraceError::File { path, source })?;
        Ok(latencies(&String::from_utf8_lossy(&text)))
    }
}

/// A mask of CPUs as the kernel reads it: groups of eight hexadecimal digits, the highest first.
fn mask(cpu: u32) -> String {
    let first = format!("{:x}", 1u32 << (cpu % 32));
    let zeros = ",00000000".repeat(cpu as usize / 32);
    first + &zeros
}

/// The latency of each timer that a probe started and the handler found due.
fn latencies(text: &str) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    let mut due_ns: HashMap<&str, u64> = HashMap::new();
    for line in text.lines() {
        let Some(parsed) = parse_line(line) else {
            continue;
        };
        let number = |name: &str| field(parsed.detail, name)?.parse::<u64>().ok();
        let Some(timer) = field(parsed.detail, "hrtimer") else {
            continue;
        };
        match parsed.event {
            "hrtimer_start" if line.trim_start().starts_with(PROBE) => {
                if let Some(expires) = number("softexpires") {
                    due_ns.insert(timer, expires);
                }
            }
            "hrtimer_expire_entry" => {
                if let (Some(due), Some(now)) = (due_ns.remove(timer), number("now")) {
                    histogram.record(now.saturating_sub(due));
                }
            }
            _ => {}
        }
    }
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_followed_from_its_start_to_the_handler() {
        let text = "\
# tracer: nop
      taut-probe-861 [001] d..1. 12.000001: hrtimer_start: hrtimer=0000000a function=hrtimer_wakeup expires=12000100000 softexpires=12000100000 mode=ABS
            bash-7   [001] d..1. 12.000002: hrtimer_start: hrtimer=0000000b function=hrtimer_wakeup expires=12000050000 softexpires=12000050000 mode=ABS
          <idle>-0   [001] d.h1. 12.000051: hrtimer_expire_entry: hrtimer=0000000b function=hrtimer_wakeup now=12000050900
          <idle>-0   [001] d.h1. 12.000101: hrtimer_expire_entry: hrtimer=0000000a function=hrtimer_wakeup now=12000100750
          <idle>-0   [001] d.h1. 12.000201: hrtimer_expire_entry: hrtimer=0000000a function=hrtimer_wakeup now=12000200750
";
        let found = latencies(text);
        assert_eq!((found.count(), found.summary().max_ns), (1, 750));
        assert_eq!(latencies("CPU 1 is empty\n").count(), 0);
    }

    #[test]
    fn masks_are_groups_of_32_bits() {
        assert_eq!(mask(0), "1");
        assert_eq!(mask(31), "80000000");
        assert_eq!(mask(33), "2,00000000");
    }
}
