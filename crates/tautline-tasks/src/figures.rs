//! Figures of the tasks while they run, in memory that other processes may read: `taut task show`, `top` and `trace`.
//!
//! Each task has a block of words that its thread alone writes, by plain stores: the looks of others cost it nothing.
//! Times go into histograms whose buckets are 1/64 of an octave wide, and the last jobs into a ring.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline_proto::time::Instant;

/// Buckets of an octave. Lower: percentiles are wrong by more than 1 %. Higher: more cache for each recorded time.
const OCTAVE: u64 = 64;
/// Longest time that is told from longer ones, 2.4 hours: beyond any period.
const TIME_BITS_MAX: u32 = 43;
/// Buckets of a histogram: those of 0 to 63 ns, one each, and 64 for each octave above.
const BUCKETS: usize = (TIME_BITS_MAX - OCTAVE.trailing_zeros() + 1) as usize * OCTAVE as usize;
/// Jobs that are kept of each task. Lower: a look each 0.1 s misses some of a fast task's. Higher: 32 bytes each.
pub(crate) const TRACED_JOBS: usize = 2_048;
/// Words of a job in the ring: its release, its deadline, its beginning, its end.
const JOB_WORDS: usize = 4;

/// Single words of a block.
const MISSED: usize = 0;
const STATE: usize = 1;
/// Release of the job that runs; 0 for none.
const RUNNING: usize = 2;
/// Jobs that ended; written after all that belongs to the last one.
const JOBS: usize = 3;
/// Execution time of all jobs.
const EXECUTED: usize = 4;
/// The longest times, by [`Time`].
const MAXIMA: usize = 5;
const HISTOGRAMS: usize = MAXIMA + Time::COUNT;
const RING: usize = HISTOGRAMS + Time::COUNT * BUCKETS;
/// Words of one task's block.
pub(crate) const BLOCK_WORDS: usize = RING + TRACED_JOBS * JOB_WORDS;

/// A time of each job that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// From the release, or in a table from the start of the window, until the job began to run.
    Lateness,
    /// From the release until it ended.
    Response,
    /// Execution time.
    Execution,
    /// From the arrival of the message until the job ended.
    Latency,
}

impl Time {
    const COUNT: usize = 4;
}

/// State of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TaskState {
    /// It does its jobs.
    #[default]
    Active,
    /// Its job has used up its budget and goes on below all tasks.
    Demoted,
    /// It was stopped, by its overrun policy or because it failed.
    Stopped,
}

impl TaskState {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Active => "active",
            TaskState::Demoted => "demoted",
            TaskState::Stopped => "stopped",
        }
    }
}

/// Distribution of a time. Percentiles are wrong by at most 1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// Maximum, exact.
    pub max: Duration,
}

/// Jobs between two looks at a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interval {
    /// Jobs that ended.
    pub jobs: u64,
    /// From their release until they ended; the maximum, too, is wrong by at most 1 %.
    pub response: Times,
    /// From the arrival of their messages until they ended; zero for a task that time activates.
    pub latency: Times,
    /// Their execution times together.
    pub execution: Duration,
}

/// A job that has ended. All times are on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedJob {
    /// Release.
    pub release: Duration,
    /// Time by which it had to be done.
    pub deadline: Duration,
    /// Time at which it began to run.
    pub begin: Duration,
    /// Time at which it ended.
    pub end: Duration,
}

/// Times of a job beside those of its trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobTimes {
    pub(crate) lateness: Duration,
    pub(crate) execution: Duration,
    /// Of a job that a message activated.
    pub(crate) latency: Option<Duration>,
}

/// The block of one task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures<'a>(pub(crate) &'a [AtomicU64]);

impl Figures<'_> {
    fn load(self, word: usize) -> u64 {
        // Relaxed: a figure that stands alone.
        self.0[word].load(Ordering::Relaxed)
    }

    fn store(self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }

    /// Notes that a job has begun. Here and in the following functions: by the task's thread alone.
    pub(crate) fn begin(self, release: Duration) {
        self.store(RUNNING, ns(release).max(1));
    }

    /// Notes that a job has ended.
    pub(crate) fn end(self, job: &TracedJob, times: &JobTimes) {
        self.record(Time::Lateness, times.lateness);
        self.record(Time::Response, job.end.saturating_sub(job.release));
        self.record(Time::Execution, times.execution);
        if let Some(latency) = times.latency {
            self.record(Time::Latency, latency);
        }
        let executed = self.load(EXECUTED).wrapping_add(ns(times.execution));
        self.store(EXECUTED, executed);
        if job.end > job.deadline {
            self.store(MISSED, self.load(MISSED) + 1);
        }
        let jobs = self.load(JOBS);
        let at = RING + (jobs % TRACED_JOBS as u64) as usize * JOB_WORDS;
        let times = [job.release, job.deadline, job.begin, job.end];
        // A reader that sees one of the words below sees the count of before, too: the place is being written again.
        fence(Ordering::Release);
        for (word, time) in times.into_iter().enumerate() {
            self.store(at + word, ns(time));
        }
        self.store(RUNNING, 0);
        // Release: who reads this count sees the job that it counts.
        self.0[JOBS].store(jobs + 1, Ordering::Release);
    }

    /// Notes the state: by the watchdog too, which holds the decisions as the thread does.
    pub(crate) fn set_state(self, state: TaskState) {
        self.store(STATE, state as u64);
    }

    fn record(self, time: Time, value: Duration) {
        let value = ns(value);
        let bucket = HISTOGRAMS + time as usize * BUCKETS + bucket_of(value);
        self.store(bucket, self.load(bucket) + 1);
        let max = MAXIMA + time as usize;
        if value > self.load(max) {
            self.store(max, value);
        }
    }

    /// Jobs that ended.
    pub(crate) fn jobs(self) -> u64 {
        self.0[JOBS].load(Ordering::Acquire)
    }

    /// Jobs that ended after their deadline.
    pub(crate) fn missed(self) -> u64 {
        self.load(MISSED)
    }

    /// The state.
    pub(crate) fn state(self) -> TaskState {
        match self.load(STATE) {
            0 => TaskState::Active,
            1 => TaskState::Demoted,
            _ => TaskState::Stopped,
        }
    }

    /// Release of the job that runs.
    pub(crate) fn running_since(self) -> Option<Duration> {
        Some(self.load(RUNNING))
            .filter(|release| *release > 0)
            .map(Duration::from_nanos)
    }

    /// Distribution of a time.
    pub(crate) fn times(self, time: Time) -> Times {
        let max = self.load(MAXIMA + time as usize);
        times_of(&self.counts(time), max)
    }

    /// Figures of the jobs that ended since an earlier look at the same task.
    pub(crate) fn since(self, before: Figures<'_>) -> Interval {
        let executed = self.load(EXECUTED).wrapping_sub(before.load(EXECUTED));
        Interval {
            jobs: self.jobs().saturating_sub(before.jobs()),
            response: self.times_since(before, Time::Response),
            latency: self.times_since(before, Time::Latency),
            execution: Duration::from_nanos(executed),
        }
    }

    fn times_since(self, before: Figures<'_>, time: Time) -> Times {
        let counts = self.counts(time).into_iter().zip(before.counts(time));
        let counts: Vec<u64> = counts
            .map(|(now, before)| now.saturating_sub(before))
            .collect();
        let highest = counts.iter().rposition(|count| *count > 0);
        let max = highest
            .map_or(0, value_of)
            .min(self.load(MAXIMA + time as usize));
        times_of(&counts, max)
    }

    fn counts(self, time: Time) -> Vec<u64> {
        let first = HISTOGRAMS + time as usize * BUCKETS;
        let counts = &self.0[first..first + BUCKETS];
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }

    /// Jobs that ended since `seen` jobs had, as far as they are kept, the oldest first; and how many have by now.
    pub(crate) fn trace(self, seen: u64) -> (Vec<TracedJob>, u64) {
        let jobs = self.jobs();
        let kept = |jobs: u64| jobs.saturating_sub(TRACED_JOBS as u64 - 1);
        let read = |number: u64| {
            let at = RING + (number % TRACED_JOBS as u64) as usize * JOB_WORDS;
            let word = |word| Duration::from_nanos(self.load(at + word));
            TracedJob {
                release: word(0),
                deadline: word(1),
                begin: word(2),
                end: word(3),
            }
        };
        let first = seen.max(kept(jobs)).min(jobs);
        let mut found: Vec<(u64, TracedJob)> =
            (first..jobs).map(|number| (number, read(number))).collect();
        // Those that were written over meanwhile.
        fence(Ordering::Acquire);
        let still_kept = kept(self.jobs());
        found.retain(|(number, _)| *number >= still_kept);
        (found.into_iter().map(|(_, job)| job).collect(), jobs)
    }
}

fn times_of(counts: &[u64], max: u64) -> Times {
    let at = |permille: u64| Duration::from_nanos(quantile(counts, permille).min(max));
    Times {
        p50: at(500),
        p99: at(990),
        p999: at(999),
        max: Duration::from_nanos(max),
    }
}

/// Nanoseconds; centuries are all the same.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time on `CLOCK_MONOTONIC`.
pub(crate) fn instant(time: Duration) -> Instant {
    Instant::from_nanos(ns(time))
}

fn bucket_of(value: u64) -> usize {
    let octave = value.checked_ilog2().unwrap_or(0);
    let shift = octave.saturating_sub(OCTAVE.trailing_zeros());
    let bucket = match shift {
        0 if value < OCTAVE => value,
        _ => (u64::from(shift) + 1) * OCTAVE + (value >> shift) - OCTAVE,
    };
    (bucket as usize).min(BUCKETS - 1)
}

/// Middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let Some(shift) = (bucket / OCTAVE).checked_sub(1) else {
        return bucket;
    };
    ((OCTAVE + bucket % OCTAVE) << shift) + (1 << shift) / 2
}

fn quantile(counts: &[u64], permille: u64) -> u64 {
    // A torn count of another process's memory may be anything.
    let total = counts
        .iter()
        .fold(0u64, |sum, count| sum.saturating_add(*count));
    let wanted = (u128::from(total) * u128::from(permille)).div_ceil(1_000) as u64;
    let mut below = 0u64;
    for (bucket, count) in counts.iter().enumerate() {
        below = below.saturating_add(*count);
        if below >= wanted && below > 0 {
            return value_of(bucket);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<AtomicU64> {
        (0..BLOCK_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    fn times(execution: u64) -> JobTimes {
        JobTimes {
            lateness: us(10),
            execution: us(execution),
            latency: None,
        }
    }

    fn job(release: u64, response: u64) -> TracedJob {
        TracedJob {
            release: us(release),
            deadline: us(release + 500),
            begin: us(release + 10),
            end: us(release + response),
        }
    }

    #[test]
    fn buckets_follow_one_another_and_are_right_to_a_hundredth() {
        let mut last = 0;
        for value in (0..10_000).chain((10_000..1 << 44).step_by(123_456_789)) {
            let bucket = bucket_of(value);
            assert!(bucket >= last && bucket < BUCKETS, "{value}");
            last = bucket;
            if value < 1 << TIME_BITS_MAX {
                let error = value_of(bucket).abs_diff(value) as f64;
                assert!(error <= value as f64 / 100.0, "{value}: {error}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << TIME_BITS_MAX) - 1), BUCKETS - 1);
    }

    #[test]
    fn percentiles_and_counts_are_those_of_the_jobs() {
        let words = block();
        let figures = Figures(&words);
        assert_eq!(figures.times(Time::Response), Times::default());
        for number in 1..=1_000 {
            figures.begin(us(1_000 * number));
            assert_eq!(figures.running_since(), Some(us(1_000 * number)));
            figures.end(&job(1_000 * number, number), &times(7));
        }
        let times = figures.times(Time::Response);
        let is_about = |time: Duration, wanted: u64| {
            let error = time.as_nanos().abs_diff(us(wanted).as_nanos());
            assert!(error <= us(wanted).as_nanos() / 100, "{time:?}, {wanted}");
        };
        is_about(times.p50, 500);
        is_about(times.p99, 990);
        is_about(times.p999, 999);
        assert_eq!(times.max, us(1_000));
        assert_eq!(figures.times(Time::Execution).max, us(7));
        assert_eq!(figures.times(Time::Lateness).p50, us(10).min(us(10)));
        assert_eq!((figures.jobs(), figures.missed()), (1_000, 500));
        assert_eq!(figures.running_since(), None);
    }

    #[test]
    fn an_interval_has_its_own_jobs_only() {
        let (words, earlier) = (block(), block());
        let figures = Figures(&words);
        figures.end(&job(1, 400_000), &times(9));
        for (word, then) in words.iter().zip(&earlier) {
            then.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        assert_eq!(figures.since(Figures(&earlier)), Interval::default());
        figures.end(&job(2, 100), &times(30));
        let by_message = JobTimes {
            latency: Some(us(700)),
            ..times(20)
        };
        figures.end(&job(3, 100), &by_message);
        let interval = figures.since(Figures(&earlier));
        assert_eq!((interval.jobs, interval.execution), (2, us(50)));
        assert!(
            interval.response.max.abs_diff(us(100)) <= us(1),
            "{interval:?}"
        );
        assert!(
            interval.latency.p50.abs_diff(us(700)) <= us(7),
            "{interval:?}"
        );
        assert_eq!(figures.times(Time::Latency).max, us(700));
    }

    #[test]
    fn the_ring_keeps_the_last_jobs_and_only_whole_ones() {
        let words = block();
        let figures = Figures(&words);
        let all = TRACED_JOBS as u64 + 100;
        for number in 1..=all {
            figures.end(&job(number, 1), &times(1));
        }
        let (jobs, seen) = figures.trace(0);
        assert_eq!(seen, all);
        assert_eq!(
            jobs.len(),
            TRACED_JOBS - 1,
            "the next one may be half written"
        );
        assert_eq!(jobs.last(), Some(&job(all, 1)));
        assert!(jobs.is_sorted_by_key(|job| job.release));
        figures.end(&job(all + 1, 1), &times(1));
        assert_eq!(figures.trace(seen), (vec![job(all + 1, 1)], all + 1));
        assert_eq!(figures.trace(u64::MAX).0, [], "of a reader that is wrong");
    }

    #[test]
    fn a_strangers_memory_is_read_without_a_panic() {
        let words: Vec<AtomicU64> = (0..BLOCK_WORDS).map(|_| AtomicU64::new(u64::MAX)).collect();
        let figures = Figures(&words);
        for time in [
            Time::Lateness,
            Time::Response,
            Time::Execution,
            Time::Latency,
        ] {
            assert!(figures.times(time).p50 <= Duration::from_nanos(u64::MAX));
        }
        assert_eq!(figures.trace(0).0.len(), TRACED_JOBS - 1);
        assert_eq!(figures.state(), TaskState::Stopped);
    }
}
