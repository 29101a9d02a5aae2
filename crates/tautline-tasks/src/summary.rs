//! Figures of a run.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use tautline_exec::HealthRecord;

/// Significant figures of recorded times: 1 %, in 15 KiB for each histogram. Three would take 100 KiB of cache.
const SIGNIFICANT_FIGURES: u8 = 2;
/// Longest time that is recorded, beyond any period.
const TIME_MAX_NS: u64 = 7_200_000_000_000;

/// Distribution of a time, with an error of at most 1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// Maximum, exact.
    pub max: Duration,
}

/// Figures of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSummary {
    /// Its name.
    pub name: String,
    /// Jobs that ended.
    pub jobs: u64,
    /// Time from the release of a job until it began to run.
    pub lateness: Times,
    /// Time from the release of a job until it ended.
    pub response: Times,
    /// Execution time of a job.
    pub execution: Times,
    /// Worst case that the set declares.
    pub worst_case: Duration,
    /// Whether the task was stopped, by its overrun policy or because it panicked.
    pub is_stopped: bool,
    /// Whether its thread did not end in time, because a job did not return. It goes on below all others.
    pub is_left: bool,
}

impl TaskSummary {
    /// Whether a job executed for longer than the set declares, so that the analysis does not hold.
    #[must_use]
    pub fn exceeded(&self) -> bool {
        self.execution.max > self.worst_case
    }
}

/// Figures of a run, and the last health records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// In the order of the set.
    pub tasks: Vec<TaskSummary>,
    /// Records that are kept, the oldest first.
    pub records: Vec<HealthRecord>,
    /// Records since the start.
    pub records_total: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for task in &self.tasks {
            write!(
                formatter,
                "{}: {} jobs, response p50 {:?} p99 {:?} max {:?}, execution max {:?}",
                task.name,
                task.jobs,
                task.response.p50,
                task.response.p99,
                task.response.max,
                task.execution.max
            )?;
            if task.exceeded() {
                write!(formatter, ", more than the declared {:?}", task.worst_case)?;
            }
            if task.is_stopped {
                write!(formatter, ", stopped")?;
            }
            if task.is_left {
                write!(formatter, ", its job did not return")?;
            }
            writeln!(formatter)?;
        }
        write!(formatter, "{} health records", self.records_total)
    }
}

/// Recorded times. All memory is taken when it is made.
#[derive(Debug)]
pub(crate) struct Recorder {
    histogram: Histogram<u32>,
    max: Duration,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, TIME_MAX_NS, SIGNIFICANT_FIGURES);
        Self {
            histogram: histogram.expect("the bounds and figures are constants in range"),
            max: Duration::ZERO,
        }
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.histogram
            .saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.max = self.max.max(time);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn times(&self) -> Times {
        let at = |quantile| {
            Duration::from_nanos(self.histogram.value_at_quantile(quantile)).min(self.max)
        };
        Times {
            p50: at(0.5),
            p99: at(0.99),
            max: self.max,
        }
    }
}
