//! Measurements of one phase: what ran meanwhile, and the latencies that each probe found.

use serde::{Deserialize, Serialize};
use tautline_machine::verdict::State;
use tautline_report::histogram::{Bucket, LatencyHistogram, Summary};
use tautline_report::timeline::Slice;

use crate::episodes::EpisodeCount;

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
    /// Episodes of late wake-ups, for the deadlines that were counted while it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub episodes: Vec<EpisodeCount>,
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
    /// A timer's interrupt, up to the entry of its handler, by the kernel's trace.
    TimerHandler,
    /// An event that a process on another CPU sends through a pipe, up to the task that waits for it.
    OtherCpu,
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
            ProbeKind::TimerHandler => "timer to handler",
            ProbeKind::OtherCpu => "other CPU to task",
            ProbeKind::Noise => "noise",
            ProbeKind::Imported => "imported",
        }
    }

    /// Beginning and end of its latency, where interrupts are measured.
    pub fn event_name(self) -> &'static str {
        match self {
            ProbeKind::Nanosleep => "timer to task",
            other => other.name(),
        }
    }

    /// Whether its latency is that of a thread's wake-up, which is what a deadline is about.
    pub fn is_wakeup(self) -> bool {
        !matches!(
            self,
            ProbeKind::Noise | ProbeKind::TimerlatInterrupt | ProbeKind::TimerHandler
        )
    }
}

/// A line of the paper: the events, mean and maximum.
pub struct PaperLine {
    /// Events and conditions.
    pub what: &'static str,
    /// Mean in nanoseconds.
    pub mean_ns: u64,
    /// Maximum in nanoseconds.
    pub max_ns: u64,
}

/// Figures of the LOVER paper. RTMux on ARM: a microcontroller requests 100,000 interrupts, 100 µs apart, and times the
/// handler's answer on a pin. Xenomai: its own latency test, from a timer.
pub const PAPER: [PaperLine; 4] = [
    PaperLine {
        what: "RTMux, interrupt to handler, idle",
        mean_ns: 582,
        max_ns: 3_567,
    },
    PaperLine {
        what: "RTMux, interrupt to handler, vision programs",
        mean_ns: 806,
        max_ns: 5_191,
    },
    PaperLine {
        what: "Xenomai, timer to handler (100 µs period)",
        mean_ns: 804,
        max_ns: 5_167,
    },
    PaperLine {
        what: "Xenomai, timer to user task (1 ms period)",
        mean_ns: 8_999,
        max_ns: 28_333,
    },
];

/// Result of one probe on one CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Event that it waited on.
    pub probe: ProbeKind,
    /// The CPU that it was pinned to; none where it was not pinned.
    pub cpu: Option<u32>,
    /// Number of the thread in a file of another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// The scheduling that took effect, such as `SCHED_FIFO 80`.
    pub scheduling: String,
    /// The period in nanoseconds; for noise the length of the spinning window.
    pub period_ns: u64,
    /// The figures of the histogram.
    pub summary: Summary,
    /// The occupied buckets.
    pub buckets: Vec<Bucket>,
    /// Wake-ups whose latency is not known singly, only that it is none below those of the buckets, and at most the
    /// greatest.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unplaced: u64,
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
            episodes: Vec::new(),
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
            thread: None,
            scheduling,
            period_ns,
            summary: histogram.summary(),
            buckets: histogram.buckets(),
            unplaced: histogram.unplaced(),
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
        // The greatest one is among the unplaced ones, where there are any.
        let last = match self.unplaced {
            0 => self.buckets.len().saturating_sub(1),
            _ => usize::MAX,
        };
        let least_ns = self
            .buckets
            .last()
            .map_or(self.summary.min_ns, |one| one.to_ns);
        let unplaced_ns = (least_ns.min(self.summary.max_ns), self.summary.max_ns);
        histogram.record_unplaced(unplaced_ns.0, unplaced_ns.1, self.unplaced);
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

    /// Whether a percentile is known.
    pub fn knows(&self, quantile: f64) -> bool {
        self.unplaced == 0 || self.histogram().at_quantile(quantile).is_some()
    }

    /// `nanosleep, CPU 1`, for headings.
    pub fn name(&self) -> String {
        self.named(self.probe.name())
    }

    /// Name of a measurement of interrupts: `timer to task, CPU 1`.
    pub fn event_name(&self) -> String {
        self.named(self.probe.event_name())
    }

    fn named(&self, name: &str) -> String {
        match (self.cpu, self.thread) {
            (Some(cpu), _) => format!("{name}, CPU {cpu}"),
            (None, Some(thread)) => format!("{name}, thread {thread}"),
            (None, None) => name.to_owned(),
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
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
