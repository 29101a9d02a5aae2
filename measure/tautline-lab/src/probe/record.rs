//! Memory of a probe: the same few hundred KiB for a second as for a week.

use tautline_report::histogram::LatencyHistogram;
use tautline_report::timeline::Slice;

/// Slices of a time line. Fewer would hide when in a run a spike was; more than a screen is wide shows nothing.
pub const TIMELINE_SLICES: usize = 240;

/// Where a probe keeps what it saw. Fixed size, touched when made.
#[derive(Debug)]
pub struct Record {
    /// All latencies.
    pub histogram: LatencyHistogram,
    /// Periods that passed whole while the thread was late.
    pub overruns: u64,
    worst: [u64; TIMELINE_SLICES],
    slice_ns: u64,
}

impl Record {
    /// Takes and touches all the memory that a measurement of this length needs: as much as any other.
    pub fn new(duration_ns: u64) -> Box<Record> {
        let mut histogram = LatencyHistogram::new();
        histogram.record(1);
        histogram.clear(); // writes every bucket, and so brings in its pages
        Box::new(Record {
            histogram,
            overruns: 0,
            worst: [0; TIMELINE_SLICES],
            slice_ns: (duration_ns / TIMELINE_SLICES as u64).max(1),
        })
    }

    /// Records one wake-up: its moment since the start, and its latency. Allocates nothing, takes a bounded time.
    pub fn add(&mut self, since_start_ns: u64, latency_ns: u64) {
        self.histogram.record(latency_ns);
        let slice = ((since_start_ns / self.slice_ns) as usize).min(TIMELINE_SLICES - 1);
        self.worst[slice] = self.worst[slice].max(latency_ns);
    }

    /// The time line: slices in which something was recorded.
    pub fn slices(&self) -> Vec<Slice> {
        self.worst
            .iter()
            .enumerate()
            .filter(|(_, worst)| **worst > 0)
            .map(|(index, worst)| Slice {
                start_ns: index as u64 * self.slice_ns,
                max_ns: *worst,
            })
            .collect()
    }
}
