//! The probes: threads that wait for a moment and look how late they are.
//!
//! A probe is one thread, on one CPU, with one timer. All its memory is taken and touched before it measures; while it
//! measures it makes the one system call that it measures, looks which CPU it is on (no system call on PCs; a probe
//! that was moved from its CPU ends), allocates nothing, and its page faults are counted so that a reader sees that
//! there were none. Memory does not grow with time: a histogram of fixed size, a time line of [`TIMELINE_SLICES`]
//! slices, and a ring of [`LIVE_RING_LENGTH`] recent values for live figures.

mod record;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::episodes::Episodes;
use crate::measured::{ProbeKind, Series};
use crate::sys;
pub use record::{Record, TIMELINE_SLICES};
use tautline_report::histogram::LatencyHistogram;
use tautline_report::plot::latency_text;

/// Recent latencies kept for live figures. At 10 kHz and ten looks a second 1,000 arrive between two looks;
/// fewer places would lose some of the live figures (never of the result).
pub const LIVE_RING_LENGTH: usize = 4096;

/// The real-time clock's rate in the Emblix paper; a power of two as the clock demands.
pub const RTC_RATE_HZ: u32 = 1024;

/// Gaps shorter than this are the cost of reading the clock, not noise.
pub const NOISE_FLOOR_NS: u64 = 1_000;

/// The noise probe spins for 7 of each 10 ms: above 0.95 real-time throttling would step in and be measured
/// instead; far below, stalls would fall between the windows.
const NOISE_WINDOW_NS: u64 = 7_000_000;
const NOISE_PERIOD_NS: u64 = 10_000_000;

/// Time between the last thread's readiness and the first deadline.
const START_DELAY_NS: u64 = 20_000_000;

/// Stack of a probe's thread: its frames need a few KiB; all of it is locked, so not more.
const STACK_BYTES: usize = 256 * 1024;

/// Stack that a probe touches before it measures.
const STACK_BYTES_TOUCHED: usize = 64 * 1024;

/// How a probe is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// SCHED_FIFO at a priority from 1 to 99.
    Fifo(u8),
    /// SCHED_DEADLINE with a fifth of the period as budget. The kernel refuses it to pinned threads.
    Deadline,
    /// SCHED_OTHER, with the least timer slack: what an unprivileged program can have.
    Other,
}

impl Scheduling {
    /// Name in results.
    pub fn name(self) -> String {
        match self {
            Scheduling::Fifo(priority) => format!("SCHED_FIFO {priority}"),
            Scheduling::Deadline => "SCHED_DEADLINE".to_owned(),
            Scheduling::Other => "SCHED_OTHER".to_owned(),
        }
    }

    fn apply(self, period_ns: u64) -> io::Result<()> {
        match self {
            Scheduling::Fifo(priority) => sys::set_fifo(priority),
            Scheduling::Deadline => sys::set_deadline(period_ns / 5, period_ns, period_ns),
            Scheduling::Other => sys::set_timer_slack(1),
        }
    }
}

/// One probe to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Event that it waits on. Not an imported or tracer kind.
    pub kind: ProbeKind,
    /// The CPU to pin it to.
    pub cpu: Option<u32>,
    /// How it is scheduled.
    pub scheduling: Scheduling,
    /// Time between two wake-ups. Not heeded by the real-time clock and the noise probe.
    pub period_ns: u64,
    /// Shifts the deadlines, so that several probes on one CPU do not wait for the same moment.
    pub offset_ns: u64,
}

impl Plan {
    /// Time between two wake-ups as the probe has it; for noise the length of the spinning window.
    fn wait_ns(&self) -> u64 {
        match self.kind {
            ProbeKind::Rtc => 1_000_000_000 / u64::from(RTC_RATE_HZ),
            ProbeKind::Noise => NOISE_WINDOW_NS,
            _ => self.period_ns,
        }
    }

    /// Whether the calling probe is on its CPU. The kernel moves pinned threads as well if their CPU goes offline.
    pub(crate) fn still_in_place(&self, now_ns: u64, start_ns: u64) -> Result<(), ProbeError> {
        let to_cpu = sys::current_cpu();
        match self.cpu {
            Some(cpu) if cpu != to_cpu => Err(ProbeError::Moved {
                cpu,
                to_cpu,
                after_ns: now_ns.saturating_sub(start_ns),
            }),
            _ => Ok(()),
        }
    }
}

/// Why a probe could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The scheduling was refused.
    #[error("{scheduling} was refused: {source}")]
    Scheduling {
        /// Settings asked for.
        scheduling: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The CPU does not exist or is not allowed.
    #[error("CPU {cpu} cannot be used: {source}")]
    Cpu {
        /// The CPU.
        cpu: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The timer could not be had.
    #[error("{timer} cannot be used: {source}")]
    Timer {
        /// Which.
        timer: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The probe was moved to another CPU while it measured. What it found before that is part of the result.
    #[error("it was moved to CPU {to_cpu} after {}: CPU {cpu} went offline, or the affinity was changed", latency_text(*.after_ns))]
    Moved {
        /// CPU that it was pinned to.
        cpu: u32,
        /// CPU that it was found on.
        to_cpu: u32,
        /// Time since the start.
        after_ns: u64,
    },
    /// No thread could be started.
    #[error("a probe's thread could not be started: {0}")]
    Thread(#[from] io::Error),
}

/// When a measurement begins, and how long it is.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The first deadline on CLOCK_MONOTONIC, before the plans' offsets; none to begin as soon as all threads are
    /// ready.
    pub start_ns: Option<u64>,
    /// How long to measure.
    pub duration: Duration,
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        Span {
            start_ns: None,
            duration,
        }
    }
}

/// Condition that ends a measurement early: the first latency above a limit.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    /// The limit.
    pub above_ns: u64,
    /// The tracer's `tracing_on`, which the probe itself switches off within the same wake-up.
    pub tracing_on: Option<RawFd>,
}

/// The wake-up that tripped a [`Trigger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tripped {
    /// Its latency.
    pub latency_ns: u64,
    /// When it should have been, on CLOCK_MONOTONIC.
    pub due_ns: u64,
    /// Where.
    pub cpu: u32,
}

/// Results of all probes of one measurement.
#[derive(Debug)]
pub struct Measured {
    /// A series for each plan that could run, in order.
    pub series: Vec<Series>,
    /// The plans that could not, or not to the end, with the reason.
    pub refused: Vec<(Plan, ProbeError)>,
    /// The wake-up that ended the measurement early.
    pub tripped: Option<Tripped>,
    /// How long it measured.
    pub duration_ns: u64,
}

/// Live figures of one probe: written by its thread alone, read by anyone at any time.
#[derive(Debug)]
pub struct Live {
    /// Part of the measurement that is running.
    pub plan: Plan,
    // Relaxed throughout: each cell is a figure of its own and a torn view of several only flickers.
    recent: Vec<AtomicU64>,
    written: AtomicUsize,
}

impl Live {
    fn new(plan: Plan) -> Live {
        Live {
            plan,
            recent: (0..LIVE_RING_LENGTH).map(|_| AtomicU64::new(0)).collect(),
            written: AtomicUsize::new(0),
        }
    }

    fn push(&self, latency_ns: u64) {
        let written = self.written.load(Ordering::Relaxed);
        self.recent[written % LIVE_RING_LENGTH].store(latency_ns, Ordering::Relaxed);
        // Release pairs with the Acquire in `take_since`: a reader that sees the count sees the value.
        self.written
            .store(written.wrapping_add(1), Ordering::Release);
    }

    /// Puts what arrived since `seen` into `histogram` and moves `seen` on. Values that were overwritten
    /// meanwhile are skipped: live figures may miss some, the result never does.
    pub fn take_since(&self, seen: &mut usize, histogram: &mut LatencyHistogram) {
        let written = self.written.load(Ordering::Acquire);
        let first = (*seen).max(written.saturating_sub(LIVE_RING_LENGTH));
        for index in first..written {
            histogram.record(self.recent[index % LIVE_RING_LENGTH].load(Ordering::Relaxed));
        }
        *seen = written;
    }
}

/// Runs all `plans` side by side for a span, until `stop` is set or the trigger trips. All wake-ups are noted in
/// `episodes`. `look` is called about ten times a second with the share of time gone and the live figures.
pub fn measure(
    plans: &[Plan],
    span: impl Into<Span>,
    episodes: &Arc<Episodes>,
    stop: &Arc<AtomicBool>,
    trigger: Option<Trigger>,
    look: &mut dyn FnMut(f64, &[Arc<Live>]),
) -> Measured {
    let span = span.into();
    let shared = Arc::new(Shared {
        start_ns: AtomicU64::new(0),
        ready: Barrier::new(plans.len() + 1),
        begin: Barrier::new(plans.len() + 1),
        stop: Arc::clone(stop),
        episodes: Arc::clone(episodes),
        tripped: AtomicBool::new(false),
        duration_ns: span.duration.as_nanos() as u64,
        trigger,
    });
    let live: Vec<Arc<Live>> = plans
        .iter()
        .map(|plan| Arc::new(Live::new(*plan)))
        .collect();
    let threads: Vec<_> = live
        .iter()
        .map(|live| {
            let (live, shared) = (Arc::clone(live), Arc::clone(&shared));
            thread::Builder::new()
                .name("taut-probe".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || probe_thread(&live, &shared))
                .expect("the memory of a thread can be had: a lab that cannot start threads measures nothing")
        })
        .collect();
    shared.ready.wait();
    let soonest_ns = sys::monotonic_ns() + START_DELAY_NS;
    let start_ns = span.start_ns.unwrap_or(0).max(soonest_ns);
    shared.start_ns.store(start_ns, Ordering::Release);
    shared.begin.wait();
    while threads.iter().any(|thread| !thread.is_finished()) {
        let gone_ns = sys::monotonic_ns().saturating_sub(start_ns);
        look(
            (gone_ns as f64 / shared.duration_ns.max(1) as f64).min(1.0),
            &live,
        );
        let left_ns = shared.duration_ns.saturating_sub(gone_ns).max(5_000_000);
        thread::sleep(Duration::from_nanos(left_ns.min(100_000_000)));
    }
    let duration_ns = sys::monotonic_ns()
        .saturating_sub(start_ns)
        .min(shared.duration_ns);
    collect(plans, threads, duration_ns)
}

/// A series and how it ended; or why there is none.
type Outcome = Result<(Series, End), ProbeError>;

/// The end of a measurement: the wake-up that tripped the trigger, if one did; or why it came early.
type End = Result<Option<Tripped>, ProbeError>;

fn collect(
    plans: &[Plan],
    threads: Vec<thread::JoinHandle<Outcome>>,
    duration_ns: u64,
) -> Measured {
    let mut measured = Measured {
        series: Vec::new(),
        refused: Vec::new(),
        tripped: None,
        duration_ns,
    };
    for (plan, thread) in plans.iter().zip(threads) {
        match thread.join().expect("a probe does not panic") {
            Ok((series, end)) => {
                measured.series.push(series);
                match end {
                    Ok(tripped) => measured.tripped = measured.tripped.or(tripped),
                    Err(error) => measured.refused.push((*plan, error)),
                }
            }
            Err(error) => measured.refused.push((*plan, error)),
        }
    }
    measured
}

struct Shared {
    start_ns: AtomicU64,
    ready: Barrier,
    begin: Barrier,
    stop: Arc<AtomicBool>,
    episodes: Arc<Episodes>,
    tripped: AtomicBool,
    duration_ns: u64,
    trigger: Option<Trigger>,
}

impl Shared {
    fn is_over(&self, now_ns: u64, start_ns: u64) -> bool {
        now_ns >= start_ns + self.duration_ns
            || self.stop.load(Ordering::Relaxed)
            || self.tripped.load(Ordering::Relaxed)
    }
}

fn probe_thread(live: &Live, shared: &Shared) -> Outcome {
    let plan = live.plan;
    let mut record = Record::new(shared.duration_ns);
    let prepared = prepare(&plan);
    touch_stack();
    // Both barriers are passed also after a refusal: the others must not wait for this thread.
    shared.ready.wait();
    shared.begin.wait();
    let start_ns = shared.start_ns.load(Ordering::Acquire);
    let waiter = prepared?;
    let waiter = match plan.kind {
        ProbeKind::Timerfd => Waiter::Timer(
            sys::timer_descriptor(start_ns + plan.offset_ns, plan.period_ns).map_err(|source| {
                ProbeError::Timer {
                    timer: "timerfd",
                    source,
                }
            })?,
        ),
        _ => waiter,
    };
    sys::sleep_until(start_ns - START_DELAY_NS / 2);
    let before = sys::thread_usage();
    let began_ns = sys::monotonic_ns();
    let end = match &waiter {
        Waiter::Spin => spin(&plan, &mut record, shared, start_ns).map(|()| None),
        _ => wake_up_again_and_again(&plan, &waiter, &mut record, live, shared, start_ns),
    };
    let took_ns = sys::monotonic_ns().saturating_sub(began_ns).max(1);
    let after = sys::thread_usage();
    if let Waiter::RealTimeClock(clock) = &waiter {
        sys::rtc_stop(clock);
    }
    let scheduling = plan.scheduling.name();
    let series = Series {
        overruns: record.overruns,
        page_faults: (after.faults_minor - before.faults_minor)
            + (after.faults_major - before.faults_major),
        switches_involuntary: after.switches_involuntary - before.switches_involuntary,
        cpu_share: (after.cpu_time_ns - before.cpu_time_ns) as f64 / took_ns as f64,
        timeline: record.slices(),
        ..Series::new(
            plan.kind,
            plan.cpu,
            scheduling,
            plan.wait_ns(),
            &record.histogram,
        )
    };
    Ok((series, end))
}

/// Pins, schedules and opens; what the thread then waits on.
fn prepare(plan: &Plan) -> Result<Waiter, ProbeError> {
    if let Some(cpu) = plan.cpu {
        sys::pin_to_cpu(cpu).map_err(|source| ProbeError::Cpu { cpu, source })?;
    }
    plan.scheduling
        .apply(plan.period_ns)
        .map_err(|source| ProbeError::Scheduling {
            scheduling: plan.scheduling.name(),
            source,
        })?;
    match plan.kind {
        ProbeKind::Noise => Ok(Waiter::Spin),
        ProbeKind::Rtc => {
            let refused = |source| ProbeError::Timer {
                timer: "/dev/rtc0",
                source,
            };
            let clock = File::open("/dev/rtc0").map_err(refused)?;
            sys::rtc_start(&clock, RTC_RATE_HZ).map_err(refused)?;
            Ok(Waiter::RealTimeClock(clock))
        }
        _ => Ok(Waiter::Sleep),
    }
}

enum Waiter {
    Sleep,
    Timer(OwnedFd),
    RealTimeClock(File),
    Spin,
}

impl Waiter {
    /// Waits; the expirations since the last one, none after a signal.
    fn wait(&self, due_ns: u64) -> Option<u64> {
        let mut word = [0; size_of::<u64>()];
        match self {
            Waiter::Timer(timer) => match sys::read(timer.as_fd(), &mut word) {
                Ok(8) => Some(u64::from_ne_bytes(word)),
                _ => None, // the descriptor cannot fail otherwise
            },
            Waiter::RealTimeClock(clock) => {
                let word = &mut word[..size_of::<usize>()];
                sys::read(clock.as_fd(), word).ok().map(|_| 1)
            }
            _ => {
                sys::sleep_until(due_ns);
                Some(1)
            }
        }
    }
}

/// The measuring loop. From here to its end: no allocation, no lock, one system call a turn.
fn wake_up_again_and_again(
    plan: &Plan,
    waiter: &Waiter,
    record: &mut Record,
    live: &Live,
    shared: &Shared,
    start_ns: u64,
) -> End {
    let mut due_ns = start_ns + plan.offset_ns;
    let period_ns = plan.wait_ns();
    if let Waiter::RealTimeClock(clock) = waiter {
        // The clock's own phase: the first interrupt after the start is the reference.
        sys::sleep_until(start_ns);
        let _ = sys::read(clock.as_fd(), &mut [0; size_of::<usize>()]);
        due_ns = sys::monotonic_ns() + period_ns;
    }
    loop {
        let Some(expired) = waiter.wait(due_ns) else {
            continue; // a signal
        };
        let now_ns = sys::monotonic_ns();
        if matches!(waiter, Waiter::Sleep) && now_ns < due_ns {
            continue; // woken early by a signal
        }
        plan.still_in_place(now_ns, start_ns)?;
        let latency_ns = now_ns.saturating_sub(due_ns);
        record.add(now_ns.saturating_sub(start_ns), latency_ns);
        shared.episodes.note(due_ns, now_ns, period_ns);
        live.push(latency_ns);
        if let Some(trigger) = &shared.trigger
            && latency_ns > trigger.above_ns
            && !shared.tripped.swap(true, Ordering::Relaxed)
        {
            if let Some(tracing_on) = trigger.tracing_on {
                let _ = sys::write(tracing_on, b"0"); // the result says whether a trace was kept
            }
            return Ok(Some(Tripped {
                latency_ns,
                due_ns,
                cpu: plan.cpu.unwrap_or_else(sys::current_cpu),
            }));
        }
        if shared.is_over(now_ns, start_ns) {
            return Ok(None);
        }
        due_ns = match waiter {
            Waiter::Timer(_) => {
                record.overruns += expired - 1;
                due_ns + expired * period_ns
            }
            Waiter::RealTimeClock(_) => now_ns + period_ns,
            _ => {
                let missed = latency_ns / period_ns;
                record.overruns += missed;
                due_ns + (missed + 1) * period_ns
            }
        };
    }
}

/// Spins in windows and records each gap between two looks at the clock that is longer than a look.
fn spin(
    plan: &Plan,
    record: &mut Record,
    shared: &Shared,
    start_ns: u64,
) -> Result<(), ProbeError> {
    let mut window_ns = start_ns;
    loop {
        sys::sleep_until(window_ns);
        let end_ns = window_ns + NOISE_WINDOW_NS;
        let mut last_ns = sys::monotonic_ns();
        while last_ns < end_ns {
            let now_ns = sys::monotonic_ns();
            let gap_ns = now_ns - last_ns;
            if gap_ns >= NOISE_FLOOR_NS {
                plan.still_in_place(now_ns, start_ns)?;
                record.add(last_ns.saturating_sub(start_ns), gap_ns);
            }
            last_ns = now_ns;
        }
        plan.still_in_place(last_ns, start_ns)?;
        if shared.is_over(last_ns, start_ns) {
            return Ok(());
        }
        while window_ns <= last_ns {
            window_ns += NOISE_PERIOD_NS;
        }
    }
}

/// Brings in the pages of the stack below this frame.
#[inline(never)]
fn touch_stack() {
    let mut area = [0u8; STACK_BYTES_TOUCHED];
    for page in area.chunks_mut(4096) {
        page[0] = 1;
        std::hint::black_box(&page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(kind: ProbeKind) -> Plan {
        Plan {
            kind,
            cpu: None,
            scheduling: Scheduling::Other,
            period_ns: 1_000_000,
            offset_ns: 0,
        }
    }

    fn run(plans: &[Plan], trigger: Option<Trigger>) -> Measured {
        run_counted(plans, &Arc::new(Episodes::new(&[])), trigger)
    }

    fn run_counted(plans: &[Plan], episodes: &Arc<Episodes>, trigger: Option<Trigger>) -> Measured {
        let stop = Arc::new(AtomicBool::new(false));
        measure(
            plans,
            Duration::from_millis(100),
            episodes,
            &stop,
            trigger,
            &mut |_, _| {},
        )
    }

    #[test]
    fn every_period_is_accounted_for() {
        let measured = run(
            &[plan(ProbeKind::Nanosleep), plan(ProbeKind::Timerfd)],
            None,
        );
        assert!(measured.refused.is_empty(), "{:?}", measured.refused);
        assert_eq!(measured.series.len(), 2);
        for series in &measured.series {
            // On time or late, each of the 100 periods is a sample or an overrun; the last may be cut.
            let periods = series.summary.count + series.overruns;
            assert!(
                (100..=101).contains(&periods) || series.summary.max_ns > 1_000_000,
                "{periods}"
            );
            assert_eq!(
                series.buckets.iter().map(|b| b.count).sum::<u64>(),
                series.summary.count
            );
            assert!(!series.timeline.is_empty());
            let worst = series.timeline.iter().map(|slice| slice.max_ns).max();
            assert_eq!(worst, Some(series.summary.max_ns));
        }
    }

    #[test]
    fn all_probes_count_episodes_together() {
        let episodes = Arc::new(Episodes::new(&[0, u64::MAX]));
        let plans = [plan(ProbeKind::Nanosleep), plan(ProbeKind::Timerfd)];
        run_counted(&plans, &episodes, None);
        // Each wake-up is later than the first limit and follows the last one within a period; none exceeds the second.
        let counts = episodes.counts();
        assert_eq!((counts[0].count, counts[1].count), (1, 0));
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused_and_the_rest_runs() {
        let mut absent = plan(ProbeKind::Nanosleep);
        absent.cpu = Some(1023);
        let measured = run(&[absent, plan(ProbeKind::Nanosleep)], None);
        assert_eq!(measured.series.len(), 1);
        assert!(matches!(
            measured.refused[0].1,
            ProbeError::Cpu { cpu: 1023, .. }
        ));
    }

    /// Moves all probes of this process; those of other tests are not pinned.
    fn move_probes(cpu: u32) {
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu as usize);
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let number = task.file_name().into_string().unwrap().parse().unwrap();
            if name.trim() == "taut-probe" {
                let thread = rustix::process::Pid::from_raw(number);
                let _ = rustix::thread::sched_setaffinity(thread, &only); // it may have ended
            }
        }
    }

    #[test]
    fn a_probe_that_was_moved_from_its_cpu_ends_and_keeps_what_it_found() {
        let [own, other, ..] = sys::allowed_cpus().unwrap()[..] else {
            println!("SKIPPED: needs two CPUs");
            return;
        };
        let plans = [ProbeKind::Nanosleep, ProbeKind::Timerfd, ProbeKind::Noise].map(|kind| Plan {
            cpu: Some(own),
            ..plan(kind)
        });
        let duration = Duration::from_secs(20); // ends long before
        let episodes = Arc::new(Episodes::new(&[]));
        let stop = Arc::new(AtomicBool::new(false));
        let measured = measure(&plans, duration, &episodes, &stop, None, &mut |share, _| {
            if share > 0.0 {
                move_probes(other);
            }
        });
        assert_eq!(measured.series.len(), 3);
        let found: Vec<_> = measured.refused.iter().map(|(plan, _)| *plan).collect();
        assert_eq!(found, plans);
        for (_, error) in &measured.refused {
            match error {
                ProbeError::Moved { cpu, to_cpu, .. } => {
                    assert_eq!((*cpu, *to_cpu), (own, other));
                }
                error => panic!("{error}"),
            }
        }
        // 20 s would have had 20,000.
        assert!(measured.series[0].summary.count < 19_000);
    }

    #[test]
    fn the_trigger_ends_the_measurement() {
        let trigger = Trigger {
            above_ns: 0,
            tracing_on: None,
        };
        let measured = run(&[plan(ProbeKind::Nanosleep)], Some(trigger));
        let tripped = measured.tripped.expect("every latency is above 0");
        assert!(tripped.latency_ns > 0);
        assert!(measured.series[0].summary.count <= 2);
    }

    #[test]
    fn the_noise_probe_sees_gaps_only_above_its_floor() {
        let measured = run(&[plan(ProbeKind::Noise)], None);
        let series = &measured.series[0];
        assert!(series.summary.count == 0 || series.summary.min_ns >= NOISE_FLOOR_NS);
    }

    #[test]
    fn live_figures_skip_what_was_overwritten() {
        let live = Live::new(plan(ProbeKind::Nanosleep));
        (0..LIVE_RING_LENGTH as u64 + 10).for_each(|ns| live.push(ns));
        let (mut seen, mut histogram) = (0, LatencyHistogram::new());
        live.take_since(&mut seen, &mut histogram);
        assert_eq!(histogram.count(), LIVE_RING_LENGTH as u64);
        assert_eq!(histogram.summary().min_ns, 10);
        live.take_since(&mut seen, &mut histogram);
        assert_eq!(histogram.count(), LIVE_RING_LENGTH as u64);
    }
}
