//! A periodic loop: wakes a thread at absolute times, gives it the scheduling of real-time work, and counts
//! what came too late.
//!
//! Not an executive: one loop in one thread, which the application owns.

mod lock;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::thread::{
    CpuSet, current_timer_slack, sched_getaffinity, sched_setaffinity, set_current_timer_slack,
};
use serde::Serialize;
use tautline_awake::{cpu, sleep};
use tautline_proto::time::Instant;
use tautline_state::policy::{policy_of, set_policy};

use lock::Lock;

pub use lock::{LockState, LockStatistics};

use crate::sys::clock::monotonic;

/// Shortest period. A shorter one is less than a wake-up takes: no cycle would begin in time.
pub const PERIOD_MIN: Duration = Duration::from_micros(10);
/// Longest period. A longer one is a job for a timer of the system; the bound keeps sums of periods in 64 bits.
pub const PERIOD_MAX: Duration = Duration::from_secs(3_600);
/// Highest priority of SCHED_FIFO, the kernel's own limit.
pub const FIFO_PRIORITY_MAX: u8 = 99;

/// Stack that is made resident in advance. With less, the first deep call of a cycle takes page faults; more
/// would not fit the smallest stacks that threads are commonly given.
const STACK_BYTES: usize = 64 * 1024;
/// Timer slack without SCHED_FIFO, where the kernel's default of 50 µs makes each wake-up late by as much.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;
/// Significant figures of the recorded times: 1 %, in 15 KiB for each histogram. Three would take 100 KiB of cache.
const SIGNIFICANT_FIGURES: u8 = 2;

/// Configuration of a [`Cycle`].
///
/// ```
/// use std::time::Duration;
/// use tautline::cycle::CycleOptions;
///
/// let ordinary = CycleOptions::new(Duration::from_millis(10));
/// let real_time = CycleOptions::new(Duration::from_millis(1))
///     .with_fifo_priority(80)
///     .with_cpu(1)
///     .with_locked_memory();
/// assert_eq!(real_time.fifo_priority, Some(80));
/// assert_eq!(ordinary.fifo_priority, None);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CycleOptions {
    /// Time from one start to the next, from [`PERIOD_MIN`] to [`PERIOD_MAX`].
    pub period: Duration,
    /// Priority under SCHED_FIFO, 1 to 99, 99 most urgent; `None` leaves the policy of the thread as it is.
    pub fifo_priority: Option<u8>,
    /// The only CPU that the thread may run on; `None` leaves that to the kernel.
    pub cpu: Option<usize>,
    /// Whether all memory of the process is locked, so that no cycle waits for a page.
    pub lock_memory: bool,
    /// Time from the arrival of a peer's value to the beginning of its period, at most half a period of the values;
    /// `None` for a cycle of its own.
    pub phase: Option<Duration>,
    /// Values of the peer in a period, at least 1; each so-manyth begins one.
    pub values_per_cycle: u32,
}

impl CycleOptions {
    /// A cycle of this period, with the scheduling that the thread has.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self {
            period,
            fifo_priority: None,
            cpu: None,
            lock_memory: false,
            phase: None,
            values_per_cycle: 1,
        }
    }

    /// Asks for SCHED_FIFO at this priority: 80 is above the interrupt threads of a PREEMPT_RT kernel (50) and
    /// below what the kernel keeps for itself (99). A cycle that does not sleep then stops everything below.
    #[must_use]
    pub fn with_fifo_priority(self, priority: u8) -> Self {
        Self {
            fifo_priority: Some(priority),
            ..self
        }
    }

    /// Asks that the thread run on this CPU only.
    #[must_use]
    pub fn with_cpu(self, cpu: usize) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }

    /// Locks the cycle to the values of a peer: each period begins `phase` after the arrival of its value, although the
    /// clocks of both hosts drift and arrivals jitter. The phase is at most half a period; it covers the jitter and
    /// leaves less time. [`Cycle::arrived`] tells the cycle of each value.
    #[must_use]
    pub fn locked_to_values(self, phase: Duration) -> Self {
        Self {
            phase: Some(phase),
            ..self
        }
    }

    /// Says that the peer sends so many values in a period: each so-manyth begins one.
    #[must_use]
    pub fn with_values_per_cycle(self, values_per_cycle: u32) -> Self {
        Self {
            values_per_cycle,
            ..self
        }
    }

    /// Asks that all memory of the process be locked, also what it takes later. It stays locked after the cycle.
    #[must_use]
    pub fn with_locked_memory(self) -> Self {
        Self {
            lock_memory: true,
            ..self
        }
    }
}

/// A cycle could not be started.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CycleError {
    /// The period is out of range.
    #[error("a period of {period:?} is out of range ({PERIOD_MIN:?} to {PERIOD_MAX:?})")]
    BadPeriod {
        /// The period asked for.
        period: Duration,
    },
    /// The priority is none of SCHED_FIFO.
    #[error("SCHED_FIFO has no priority {priority} (1 to {FIFO_PRIORITY_MAX})")]
    BadPriority {
        /// The priority asked for.
        priority: u8,
    },
    /// The phase is more than half a period of the values, or a period has no values.
    #[error("a phase of {phase:?} is more than half of {value_period:?}, the period of the values")]
    BadPhase {
        /// The phase asked for.
        phase: Duration,
        /// Period of the values.
        value_period: Duration,
    },
}

impl CycleError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::BadPeriod { .. } => "use a period within the limits, such as 1 ms",
            Self::BadPriority { .. } => "use a priority from 1 to 99, such as 80",
            Self::BadPhase { .. } => {
                "use a phase that covers the jitter of the values, such as 50 µs"
            }
        }
    }
}

/// Settings that took effect, and those that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CycleReport {
    /// Time from one start to the next, in nanoseconds.
    pub period_ns: u64,
    /// Priority under SCHED_FIFO, if the cycle gave the thread one.
    pub fifo_priority: Option<u8>,
    /// CPU that the cycle restricted the thread to.
    pub cpu: Option<usize>,
    /// Whether the cycle locked the memory of the process.
    pub memory_locked: bool,
    /// Settings that were asked for and could not be had, each with the reason and the remedy.
    pub limits: Vec<String>,
}

impl fmt::Display for CycleReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "cycle of {:?}",
            Duration::from_nanos(self.period_ns)
        )?;
        if let Some(priority) = self.fifo_priority {
            write!(formatter, ", SCHED_FIFO {priority}")?;
        }
        if let Some(cpu) = self.cpu {
            write!(formatter, ", CPU {cpu}")?;
        }
        if self.memory_locked {
            write!(formatter, ", memory locked")?;
        }
        for limit in &self.limits {
            write!(formatter, "\n  limited: {limit}")?;
        }
        Ok(())
    }
}

/// One start of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// Number of the period since the cycle started, from 1. Skipped periods have numbers too.
    pub number: u64,
    /// Time at which the period began.
    pub due: Instant,
    /// Time from `due` until the thread ran.
    pub late: Duration,
    /// Start of the next period: the work of this one has to be done by then.
    pub deadline: Instant,
    /// Periods that were skipped immediately before this one.
    pub skipped: u64,
}

/// Distribution of a time, in nanoseconds, with an error of at most 1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TimeSummary {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum, exact.
    pub max_ns: u64,
}

impl fmt::Display for TimeSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        write!(
            formatter,
            "p50 {:.1} p99 {:.1} p99.9 {:.1} max {:.1} µs",
            us(self.p50_ns),
            us(self.p99_ns),
            us(self.p999_ns),
            us(self.max_ns)
        )
    }
}

/// Counters and times of a cycle since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CycleStatistics {
    /// Periods that were begun.
    pub cycles: u64,
    /// Times that the work, or the wake-up, took until after the next period should have begun.
    pub overruns: u64,
    /// Periods that were skipped because of that.
    pub skipped: u64,
    /// Time from the beginning of a period until the thread ran.
    pub late: TimeSummary,
    /// Time that the work of a period took: from the return of [`Cycle::wait`] to its next call.
    pub work: TimeSummary,
    /// State and counters of a cycle that is locked to values.
    pub lock: Option<LockStatistics>,
}

impl fmt::Display for CycleStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} cycles, {} overruns, {} skipped\n  late: {}\n  work: {}",
            self.cycles, self.overruns, self.skipped, self.late, self.work
        )?;
        match &self.lock {
            Some(lock) => write!(formatter, "\n  {lock}"),
            None => Ok(()),
        }
    }
}

/// A periodic loop in the calling thread.
///
/// Period `n` begins at the start of the cycle plus `n` times the period, on `CLOCK_MONOTONIC`: a late wake-up
/// does not move those after it. Work that lasts into the next period is an overrun; the periods that have begun
/// meanwhile are skipped and counted, and the loop goes on at the beginning of the next one.
///
/// A cycle that is [locked to values](CycleOptions::locked_to_values) follows a peer instead, by a phase-locked loop
/// that moves a period by at most a hundredth. Until the first value, and while values are lost, it goes on by itself.
///
/// Settings that are refused are no errors: the cycle runs, and [`Cycle::report`] names each with its remedy.
/// Policy, CPUs and timer slack of the thread are put back when the cycle is dropped. The cycle belongs to its
/// thread, since those settings do. All memory is taken at the start; [`Cycle::wait`] allocates nothing.
///
/// ```
/// use std::time::Duration;
/// use tautline::cycle::CycleOptions;
/// use tautline::Cycle;
///
/// let options = CycleOptions::new(Duration::from_millis(1))
///     .with_fifo_priority(80)
///     .with_locked_memory();
/// let mut cycle = Cycle::start(&options)?;
/// println!("{}", cycle.report()); // cycle of 1ms, SCHED_FIFO 80, memory locked
///
/// for _ in 0..5 {
///     let tick = cycle.wait();
///     // Read the state, compute, send the command: all before `tick.deadline`.
///     assert_eq!(tick.deadline, tick.due + Duration::from_millis(1));
/// }
/// println!("{}", cycle.statistics()); // 5 cycles, 0 overruns, …
/// # Ok::<(), tautline::cycle::CycleError>(())
/// ```
#[derive(Debug)]
pub struct Cycle {
    period_ns: u64,
    due_ns: u64,
    number: u64,
    /// Time at which the work of the current period began; `None` before the first.
    began_ns: Option<u64>,
    cycles: u64,
    overruns: u64,
    skipped: u64,
    late: Times,
    work: Times,
    lock: Option<Lock>,
    report: CycleReport,
    before: Before,
    /// Keeps the cycle in its thread, whose settings it puts back.
    _thread: PhantomData<*const ()>,
}

impl Cycle {
    /// Applies the settings to the calling thread and starts the cycle. The first period begins one period from now.
    ///
    /// # Errors
    /// A period or priority that is out of range.
    pub fn start(options: &CycleOptions) -> Result<Self, CycleError> {
        let CycleOptions {
            period,
            fifo_priority,
            ..
        } = *options;
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            return Err(CycleError::BadPeriod { period });
        }
        if let Some(priority) = fifo_priority
            && !(1..=FIFO_PRIORITY_MAX).contains(&priority)
        {
            return Err(CycleError::BadPriority { priority });
        }
        let value_period = period / options.values_per_cycle.max(1);
        if let Some(phase) = options.phase
            && (phase > value_period / 2 || options.values_per_cycle == 0)
        {
            return Err(CycleError::BadPhase {
                phase,
                value_period,
            });
        }
        let (report, before) = apply(options);
        // Reads files at its first call: not in the first period.
        cpu::is_limited();
        if report.memory_locked {
            make_stack_resident();
        }
        Ok(Self {
            period_ns: period.as_nanos() as u64,
            due_ns: monotonic().as_nanos(),
            number: 0,
            began_ns: None,
            cycles: 0,
            overruns: 0,
            skipped: 0,
            late: Times::new(),
            work: Times::new(),
            lock: options
                .phase
                .map(|phase| Lock::new(period, phase, options.values_per_cycle, monotonic())),
            report,
            before,
            _thread: PhantomData,
        })
    }

    /// Settings that took effect, and those that could not be had.
    #[must_use]
    pub fn report(&self) -> &CycleReport {
        &self.report
    }

    /// Sleeps until the next period begins: the timer goes off early by what a wake-up takes on this machine, and the
    /// thread spins for the rest, a tenth of its time at most (not where a cgroup limits its time). Periods that have
    /// begun already are skipped. Signals do not end the sleep.
    pub fn wait(&mut self) -> Tick {
        let done_ns = monotonic().as_nanos();
        if let Some(began_ns) = self.began_ns {
            self.work.record(done_ns.saturating_sub(began_ns));
        }
        let skipped_before = self.advance(done_ns);
        sleep::until(Instant::from_nanos(self.due_ns));
        let now_ns = monotonic().as_nanos();
        let late_ns = now_ns.saturating_sub(self.due_ns);
        self.late.record(late_ns);
        // The kernel may have slept through whole periods.
        let skipped_asleep = late_ns / self.period_ns();
        self.count_skipped(skipped_asleep);
        self.began_ns = Some(now_ns);
        self.cycles += 1;
        Tick {
            number: self.number,
            due: Instant::from_nanos(self.due_ns),
            late: Duration::from_nanos(now_ns - self.due_ns),
            deadline: self.next_due(),
            skipped: skipped_before + skipped_asleep,
        }
    }

    /// Tells a cycle that is locked to values when one arrived: for each value that is read, after
    /// [`Cycle::wait`]. `at` is the arrival that a port reports, or a stamp of the kernel on `CLOCK_MONOTONIC`; never
    /// the time at which the value was read, which the cycle itself decides. Nothing for a cycle of its own.
    pub fn arrived(&mut self, at: Instant) {
        if let Some(lock) = &mut self.lock {
            lock.arrived(at);
        }
    }

    /// Whether the cycle follows the values of its peer; `None` for a cycle of its own.
    #[must_use]
    pub fn lock_state(&self) -> Option<LockState> {
        self.lock.as_ref().map(Lock::state)
    }

    /// Beginning of the next period: the deadline of the current one.
    #[must_use]
    pub fn next_due(&self) -> Instant {
        Instant::from_nanos(self.due_ns + self.period_ns())
    }

    /// Counters and times since the start. Walks over the recorded times: some microseconds, not for each cycle.
    #[must_use]
    pub fn statistics(&self) -> CycleStatistics {
        CycleStatistics {
            cycles: self.cycles,
            overruns: self.overruns,
            skipped: self.skipped,
            late: self.late.summary(),
            work: self.work.summary(),
            lock: self.lock.as_ref().map(Lock::statistics),
        }
    }

    /// The period, as learned from the values of a peer.
    fn period_ns(&self) -> u64 {
        self.lock.as_ref().map_or(self.period_ns, Lock::period_ns)
    }

    fn go_on(&mut self, periods: u64) {
        self.number += periods;
        self.due_ns = match &mut self.lock {
            Some(lock) => lock.advance(periods).as_nanos(),
            None => self.due_ns + periods * self.period_ns,
        };
    }

    /// Moves on to the first period that begins after `done_ns`. Returns how many were skipped.
    fn advance(&mut self, done_ns: u64) -> u64 {
        self.go_on(1);
        let Some(behind_ns) = done_ns.checked_sub(self.due_ns) else {
            return 0;
        };
        let skipped = behind_ns / self.period_ns() + 1;
        self.count_skipped(skipped);
        skipped
    }

    fn count_skipped(&mut self, periods: u64) {
        if periods > 0 {
            self.go_on(periods);
        }
        self.skipped += periods;
        self.overruns += u64::from(periods > 0);
    }
}

impl Drop for Cycle {
    fn drop(&mut self) {
        // A thread that may lower its priority may not fail here, and nothing could be done if it did.
        if let Some((policy, priority)) = self.before.policy {
            let _ = set_policy(0, policy, priority);
        }
        if let Some(cpus) = &self.before.cpus {
            let _ = sched_setaffinity(None, cpus);
        }
        if let Some(ns) = self.before.timer_slack_ns {
            let _ = set_current_timer_slack(NonZeroU64::new(ns));
        }
    }
}

/// Settings of the thread before the cycle changed them.
#[derive(Debug, Default)]
struct Before {
    policy: Option<(i32, i32)>,
    cpus: Option<CpuSet>,
    timer_slack_ns: Option<u64>,
}

fn apply(options: &CycleOptions) -> (CycleReport, Before) {
    let mut report = CycleReport {
        period_ns: options.period.as_nanos() as u64,
        fifo_priority: None,
        cpu: None,
        memory_locked: false,
        limits: Vec::new(),
    };
    let mut before = Before::default();
    // Memory first: what is locked last could be paged out until then, and the rest needs no memory.
    if options.lock_memory {
        match tautline_state::memory::lock_all() {
            Ok(()) => report.memory_locked = true,
            Err(error) => report.limits.push(format!(
                "memory is not locked ({error}): raise the limit (ulimit -l unlimited) or grant CAP_IPC_LOCK"
            )),
        }
    }
    if let Some(cpu) = options.cpu {
        match restrict_to(cpu) {
            Ok(cpus) => (report.cpu, before.cpus) = (Some(cpu), Some(cpus)),
            Err(error) => report.limits.push(format!(
                "not restricted to CPU {cpu} ({error}): name one that this thread may run on (taskset -p)"
            )),
        }
    }
    if let Some(slack) = timer_slack_lowered() {
        before.timer_slack_ns = Some(slack);
    }
    if let Some(priority) = options.fifo_priority {
        match set_fifo(priority) {
            Ok(policy) => {
                (report.fifo_priority, before.policy) = (Some(priority), Some(policy));
            }
            Err(error) => report.limits.push(format!(
                "SCHED_FIFO {priority} is refused ({error}): raise RLIMIT_RTPRIO (ulimit -r {priority}) or grant CAP_SYS_NICE"
            )),
        }
    }
    (report, before)
}

/// Returns the CPUs that the thread had.
fn restrict_to(cpu: usize) -> io::Result<CpuSet> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let had = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    Ok(had)
}

/// Returns the policy that the thread had.
fn set_fifo(priority: u8) -> io::Result<(i32, i32)> {
    let had = policy_of(0)?;
    set_policy(0, libc::SCHED_FIFO, priority.into())?;
    Ok(had)
}

/// Returns the slack that the thread had, if it was lowered.
fn timer_slack_lowered() -> Option<u64> {
    let had = current_timer_slack().ok()?;
    set_current_timer_slack(Some(TIMER_SLACK_NS)).ok()?;
    Some(had)
}

/// Writes to the stack that later calls will use.
#[inline(never)]
fn make_stack_resident() {
    let stack = [1u8; STACK_BYTES];
    std::hint::black_box(&stack);
}

/// Recorded times. The histogram rounds, the maximum does not.
#[derive(Debug)]
struct Times {
    histogram: Histogram<u32>,
    max_ns: u64,
}

impl Times {
    fn new() -> Self {
        let max_ns = PERIOD_MAX.as_nanos() as u64;
        Self {
            histogram: Histogram::new_with_bounds(1, max_ns, SIGNIFICANT_FIGURES)
                .expect("the bounds and figures are constants in range"),
            max_ns: 0,
        }
    }

    fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    fn summary(&self) -> TimeSummary {
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max_ns);
        TimeSummary {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(due_ns: u64) -> Cycle {
        let mut cycle = Cycle::start(&CycleOptions::new(Duration::from_millis(1))).unwrap();
        cycle.due_ns = due_ns;
        cycle
    }

    #[test]
    fn work_that_ends_in_time_skips_nothing() {
        let mut cycle = at(10 * MS);
        assert_eq!(cycle.advance(10 * MS + MS - 1), 0);
        assert_eq!((cycle.due_ns, cycle.number), (11 * MS, 1));
        assert_eq!(cycle.statistics().overruns, 0);
    }

    #[test]
    fn work_that_ends_when_the_next_period_begins_is_an_overrun() {
        let mut cycle = at(10 * MS);
        assert_eq!(cycle.advance(11 * MS), 1);
        assert_eq!((cycle.due_ns, cycle.number), (12 * MS, 2));
        assert_eq!((cycle.overruns, cycle.skipped), (1, 1));
    }

    #[test]
    fn the_loop_goes_on_at_a_multiple_of_the_period() {
        let mut cycle = at(10 * MS);
        assert_eq!(cycle.advance(14 * MS + 300), 4);
        assert_eq!((cycle.due_ns, cycle.number), (15 * MS, 5));
        assert_eq!((cycle.overruns, cycle.skipped), (1, 4));
        assert_eq!(cycle.advance(15 * MS + 1), 0);
        assert_eq!((cycle.due_ns, cycle.number), (16 * MS, 6));
    }

    #[test]
    fn times_are_kept_within_one_in_a_hundred() {
        let mut cycle = at(0);
        for late_us in 1..=1_000 {
            cycle.late.record(late_us * 1_000);
        }
        let late = cycle.statistics().late;
        assert!(late.p50_ns.abs_diff(500_000) <= 5_000, "{late}");
        assert!(late.p999_ns.abs_diff(999_000) <= 10_000, "{late}");
        assert_eq!(late.max_ns, 1_000_000);
    }
}
