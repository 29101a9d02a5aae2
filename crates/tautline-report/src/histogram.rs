//! Latency histograms: many samples in fixed memory, and what to report of them.
//!
//! Built on HdrHistogram: 0.1 % of relative accuracy from 1 ns to a minute in 216 KiB, all of it
//! taken when the histogram is made. Recording is a shift, a mask and an addition: it allocates
//! nothing and takes a bounded time, so it can be done between two timed operations.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart from longer ones. Longer ones count as this one in the
/// percentiles; the maximum stays exact. Lower would cut off stalls of a virtual machine; each
/// doubling costs 8 KiB.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Significant decimal digits that a bucket keeps. 2 would blur the ratios near one that paths are
/// compared by; 4 would take ten times the memory.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Counts latencies in nanoseconds. Memory is fixed from the start.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    buckets: Histogram<u64>,
    // Exact, where the buckets are rounded.
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
    /// Latencies of which only the bounds are known. They are above all others.
    unplaced: u64,
}

impl LatencyHistogram {
    /// An empty histogram with all its memory.
    pub fn new() -> LatencyHistogram {
        LatencyHistogram {
            buckets: Histogram::new_with_bounds(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
                .expect("the bounds are constants that HdrHistogram accepts"),
            min_ns: u64::MAX,
            max_ns: 0,
            sum_ns: 0,
            unplaced: 0,
        }
    }

    /// Counts one latency. Wait-free, allocates nothing.
    pub fn record(&mut self, latency_ns: u64) {
        self.record_many(latency_ns, 1);
    }

    /// Counts a latency that was taken as a duration.
    pub fn record_duration(&mut self, latency: Duration) {
        self.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts one latency `count` times, for results that come as buckets.
    pub fn record_many(&mut self, latency_ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.buckets.saturating_record_n(latency_ns, count);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
        self.sum_ns += u128::from(latency_ns) * u128::from(count);
    }

    /// Counts latencies that another program only counted, such as those beyond the end of its histogram: none is below
    /// `min_ns`, the greatest is `max_ns`, and no other one is known. Percentiles among them are unknown.
    pub fn record_unplaced(&mut self, min_ns: u64, max_ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.min_ns = self.min_ns.min(min_ns);
        self.max_ns = self.max_ns.max(max_ns);
        self.unplaced += count;
    }

    /// Adds all that `other` counted.
    pub fn add(&mut self, other: &LatencyHistogram) {
        self.buckets
            .add(&other.buckets)
            .expect("both histograms have the same constant bounds");
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
        self.unplaced += other.unplaced;
    }

    /// Forgets all counts and keeps the memory.
    pub fn clear(&mut self) {
        self.buckets.reset();
        self.min_ns = u64::MAX;
        self.max_ns = 0;
        self.sum_ns = 0;
        self.unplaced = 0;
    }

    /// Latencies counted.
    pub fn count(&self) -> u64 {
        self.buckets.len() + self.unplaced
    }

    /// Latencies that were counted by [`record_unplaced`](Self::record_unplaced).
    pub fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// The smallest latency that at least the share `quantile` (0 to 1) of all did not exceed;
    /// nothing of an empty histogram, nor where the latency is unknown.
    pub fn at_quantile(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
        if count > 0 && rank == count {
            return Some(self.max_ns);
        }
        let known = self.buckets.len();
        (rank <= known).then(|| {
            // With nothing unplaced the share itself: a rank's share can round to the next rank.
            let share = match self.unplaced {
                0 => quantile,
                _ => rank as f64 / known as f64,
            };
            let found = self.buckets.value_at_quantile(share);
            found.clamp(self.min_ns, self.max_ns)
        })
    }

    /// Figures for tables; zero throughout for an empty histogram.
    pub fn summary(&self) -> Summary {
        if self.count() == 0 {
            return Summary::default();
        }
        let at = |quantile| self.at_quantile(quantile).unwrap_or(self.max_ns);
        let known = self.buckets.len().max(1);
        Summary {
            count: self.count(),
            min_ns: self.min_ns,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
            mean_ns: self.sum_ns as f64 / known as f64,
        }
    }

    /// All occupied buckets, rising. Their number does not depend on the number of samples.
    pub fn buckets(&self) -> Vec<Bucket> {
        self.buckets
            .iter_recorded()
            .map(|value| {
                let highest = value.value_iterated_to();
                Bucket {
                    from_ns: self.buckets.lowest_equivalent(highest),
                    to_ns: self.buckets.highest_equivalent(highest),
                    count: value.count_at_value(),
                }
            })
            .collect()
    }

    /// Buckets of equal width on a logarithmic axis, `per_decade` to each factor of ten, from the
    /// first occupied one to the last, empty ones between them included: the bars of a plot.
    pub fn log_buckets(&self, per_decade: u32) -> Vec<Bucket> {
        let edge = |index: i64| 10f64.powf(index as f64 / f64::from(per_decade));
        let index_of =
            |value: u64| ((value.max(1) as f64).log10() * f64::from(per_decade)).floor() as i64;
        let mut bars: Vec<Bucket> = Vec::new();
        let mut first = None;
        for bucket in self.buckets() {
            let middle = bucket.from_ns.midpoint(bucket.to_ns);
            let index = index_of(middle);
            let first = *first.get_or_insert(index);
            let place = usize::try_from(index - first).expect("buckets rise");
            while bars.len() <= place {
                let at = first + bars.len() as i64;
                bars.push(Bucket {
                    from_ns: edge(at).round() as u64,
                    to_ns: edge(at + 1).round() as u64,
                    count: 0,
                });
            }
            bars[place].count += bucket.count;
        }
        bars
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram::new()
    }
}

/// One bucket of a histogram: how many latencies lay from `from_ns` to `to_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Least latency in it.
    pub from_ns: u64,
    /// Greatest latency in it.
    pub to_ns: u64,
    /// Latencies counted.
    pub count: u64,
}

/// The figures that tables and result files carry. A percentile that is [unknown](LatencyHistogram::at_quantile) is the
/// maximum here, which it does not exceed, and the mean is that of the latencies that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Latencies counted.
    pub count: u64,
    /// Least, exact.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99 of 100 do not exceed this.
    pub p99_ns: u64,
    /// 999 of 1,000 do not exceed this.
    pub p999_ns: u64,
    /// Greatest, exact.
    pub max_ns: u64,
    /// Arithmetic mean, exact to rounding.
    pub mean_ns: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_histogram_reports_nothing() {
        let histogram = LatencyHistogram::new();
        assert_eq!(histogram.summary(), Summary::default());
        assert_eq!(histogram.at_quantile(0.5), None);
        assert!(histogram.buckets().is_empty());
        assert!(histogram.log_buckets(20).is_empty());
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut histogram = LatencyHistogram::new();
        for latency in 1..=1_000_000 {
            histogram.record(latency);
        }
        let summary = histogram.summary();
        assert_eq!(summary.count, 1_000_000);
        assert_eq!((summary.min_ns, summary.max_ns), (1, 1_000_000));
        assert!((summary.mean_ns - 500_000.5).abs() < 1e-6);
        for (found, exact) in [
            (summary.p50_ns, 500_000),
            (summary.p99_ns, 990_000),
            (summary.p999_ns, 999_000),
        ] {
            assert!(found >= exact, "{found} {exact}");
            assert!(found - exact <= exact / 1000 + 1, "{found} {exact}");
        }
    }

    #[test]
    fn one_sample_is_all_its_percentiles_exactly() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(123_457);
        let summary = histogram.summary();
        assert_eq!(
            [
                summary.min_ns,
                summary.p50_ns,
                summary.p99_ns,
                summary.p999_ns,
                summary.max_ns
            ],
            [123_457; 5]
        );
    }

    #[test]
    fn a_percentile_among_unplaced_latencies_is_unknown() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(10, 980);
        histogram.record_unplaced(20, 300, 20);
        let mut all = LatencyHistogram::new();
        all.add(&histogram);
        assert_eq!((all.count(), all.unplaced()), (1_000, 20));
        assert_eq!(all.at_quantile(0.98), Some(10));
        assert_eq!(all.at_quantile(0.981), None);
        assert_eq!(all.at_quantile(1.0), Some(300));
        assert_eq!((all.summary().min_ns, all.summary().max_ns), (10, 300));
        assert_eq!(all.summary().mean_ns, 10.0);
    }

    #[test]
    fn extremes_are_counted_and_the_maximum_stays_exact() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        histogram.record_duration(Duration::MAX);
        let summary = histogram.summary();
        assert_eq!(
            (summary.count, summary.min_ns, summary.max_ns),
            (3, 0, u64::MAX)
        );
        assert!(summary.p999_ns >= LATENCY_NS_MAX);
    }

    #[test]
    fn buckets_carry_every_sample() {
        let mut histogram = LatencyHistogram::new();
        for latency in [100, 100, 5_000, 7_000_000] {
            histogram.record(latency);
        }
        let buckets = histogram.buckets();
        assert_eq!(buckets.iter().map(|b| b.count).sum::<u64>(), 4);
        assert!(buckets.iter().all(|b| b.from_ns <= b.to_ns));
        let bars = histogram.log_buckets(10);
        assert_eq!(bars.iter().map(|b| b.count).sum::<u64>(), 4);
        assert_eq!(bars.first().unwrap().count, 2);
        assert_eq!(bars.last().unwrap().count, 1);
        assert!(bars.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns));
    }

    #[test]
    fn buckets_rebuild_the_histogram() {
        let mut histogram = LatencyHistogram::new();
        for step in 1..10_000u64 {
            histogram.record(step * step);
        }
        let mut rebuilt = LatencyHistogram::new();
        for bucket in histogram.buckets() {
            rebuilt.record_many(bucket.to_ns, bucket.count);
        }
        assert_eq!(rebuilt.summary().p99_ns, histogram.summary().p99_ns);
        assert_eq!(rebuilt.count(), histogram.count());
    }

    #[test]
    fn adding_and_clearing() {
        let mut one = LatencyHistogram::new();
        one.record(10);
        let mut two = LatencyHistogram::new();
        two.record(30);
        one.add(&two);
        assert_eq!(one.summary().mean_ns, 20.0);
        assert_eq!((one.summary().min_ns, one.summary().max_ns), (10, 30));
        one.add(&LatencyHistogram::new());
        assert_eq!(one.count(), 2);
        one.clear();
        assert_eq!(one.summary(), Summary::default());
    }
}
