//! Time from the arrival of messages to their read, of one port, measured while it is watched.
//!
//! The thread of a port that is not watched tests one flag a message. Measuring takes a reading of the clock a message,
//! as long as a third of an exchange over a bus; hence the watcher switches it on
//! (`docs/decisions/0051-latency-is-measured-while-watched.md`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde::Serialize;
use tautline_proto::time::Instant;

use crate::statistics::Counter;

/// Buckets of each power of two, as a power of two. Lower: percentiles are coarser, now 12.5 %. Higher: each watched
/// port takes more memory, now 2.2 KiB.
const STEPS_LOG2: u32 = 3;
const STEPS: u64 = 1 << STEPS_LOG2;
/// Times of 2^37 ns, 137 s, and more share the last bucket. Lower: long times are not told apart. Higher: more memory.
const TOP_LOG2: u32 = 37;
/// Buckets: the times below 8 ns have one each, then come eight for each power of two.
const BUCKETS: usize = ((TOP_LOG2 - STEPS_LOG2 + 1) as usize) << STEPS_LOG2;

/// Latencies of one port. One writer, the port's thread; the status thread switches it and reads.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    is_measured: AtomicBool,
    /// Made by the status thread, before the first measurement, so that the port's thread allocates nothing.
    counts: OnceLock<Box<Counts>>,
}

#[derive(Debug)]
struct Counts {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
    max_ns: Counter,
}

/// Time from the arrival of messages to their read, measured while it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LatencyStatus {
    /// Whether it is measured at the moment.
    pub measured: bool,
    /// Messages that were measured since the first who asked.
    pub count: u64,
    /// Half of them were read within this time, in nanoseconds, up to 12.5 % less.
    pub p50_ns: u64,
    /// 99 of 100 were read within this time.
    pub p99_ns: u64,
    /// Longest time, in nanoseconds.
    pub max_ns: u64,
    /// Sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// Longest time in a bucket and the messages in it, for each bucket that is not empty, the shortest times first.
    pub buckets: Vec<(u64, u64)>,
}

/// Time within which a share of the messages was read, by [`LatencyStatus::buckets`] or the difference of two of them:
/// the upper bound of its bucket. `None` without messages.
#[must_use]
pub fn bucket_quantile(buckets: &[(u64, u64)], share: f64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    // The message of this rank, from 1.
    let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    buckets.iter().find_map(|(upper_ns, count)| {
        seen += count;
        (seen >= rank).then_some(*upper_ns)
    })
}

impl Latency {
    /// Whether the port's thread is to measure. One load.
    #[inline(always)]
    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured.load(Relaxed)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn record(&self, arrival: Instant, now: Instant) {
        let ns = now.as_nanos().saturating_sub(arrival.as_nanos());
        // The cell's own Acquire pairs with the Release in `get_or_init`: the counts are there, zeroed.
        let Some(counts) = self.counts.get() else {
            return;
        };
        counts.buckets[bucket(ns)].add(1);
        // A clock that jumps must not stop the port.
        counts.sum_ns.set(counts.sum_ns.read().wrapping_add(ns));
        if ns > counts.max_ns.read() {
            counts.max_ns.set(ns);
        }
    }

    pub(crate) fn measure(&self, is_wanted: bool) {
        if is_wanted {
            self.counts.get_or_init(|| {
                Box::new(Counts {
                    buckets: std::array::from_fn(|_| Counter::default()),
                    sum_ns: Counter::default(),
                    max_ns: Counter::default(),
                })
            });
        }
        // Relaxed: a message more or less is measured; `record` looks for the counts itself.
        self.is_measured.store(is_wanted, Relaxed);
    }

    /// Latencies so far; `None` if none was ever measured.
    pub(crate) fn status(&self) -> Option<LatencyStatus> {
        let counts = self.counts.get()?;
        let filled = counts.buckets.iter().enumerate();
        let filled = filled.filter_map(|(index, count)| match count.read() {
            0 => None,
            count => Some((upper_bound_ns(index), count)),
        });
        let (buckets, max_ns): (Vec<_>, _) = (filled.collect(), counts.max_ns.read());
        let quantile = |share| bucket_quantile(&buckets, share).unwrap_or(0).min(max_ns);
        Some(LatencyStatus {
            measured: self.is_measured(),
            count: buckets.iter().map(|(_, count)| count).sum(),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns,
            sum_ns: counts.sum_ns.read(),
            buckets,
        })
    }
}

fn bucket(ns: u64) -> usize {
    let log2 = (ns | (STEPS - 1)).ilog2();
    let shift = (log2 + 1).saturating_sub(STEPS_LOG2 + 1);
    let index = (u64::from(shift) << STEPS_LOG2) + (ns >> shift);
    (index as usize).min(BUCKETS - 1)
}

/// Longest time in a bucket.
fn upper_bound_ns(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index >> STEPS_LOG2).saturating_sub(1);
    let step = index - (shift << STEPS_LOG2);
    ((step + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_lies_below_its_bucket_and_above_the_one_before() {
        let times = (0..70_000)
            .chain((16..37).flat_map(|log2| [(1 << log2) - 1, 1 << log2, 3 << (log2 - 1)]));
        for ns in times {
            let index = bucket(ns);
            let upper = upper_bound_ns(index);
            assert!(ns <= upper, "{ns} is in bucket {index} up to {upper}");
            assert!(upper - ns <= ns / STEPS, "{ns} is told as {upper}");
            assert!(
                index == 0 || upper_bound_ns(index - 1) < ns,
                "{ns} is in bucket {index}"
            );
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn measures_while_it_is_switched_on() {
        let latency = Latency::default();
        let at = Instant::from_nanos;
        latency.record(at(0), at(100));
        assert_eq!(latency.status(), None);
        latency.measure(true);
        assert!(latency.is_measured());
        latency.record(at(0), at(100));
        latency.record(at(0), at(101));
        // A stamp of another CPU may be of the future.
        latency.record(at(50), at(40));
        latency.measure(false);
        let found = latency.status().unwrap();
        assert!(!found.measured);
        assert_eq!((found.max_ns, found.sum_ns), (101, 201));
        assert_eq!(found.buckets, [(0, 1), (103, 2)]);
    }
}
