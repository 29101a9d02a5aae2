//! Counters of a port in this process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tautline_proto::fragment::ReassemblyCounters;

use crate::latency::Latency;

/// A counter with one writer, the port's thread; anybody may read it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// A plain addition: one writer, so no locked instruction.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.set(self.read() + count);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline]
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Messages and their bytes, of one direction.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) messages: Counter,
    pub(crate) bytes: Counter,
}

impl Traffic {
    #[inline]
    pub(crate) fn add(&self, messages: usize, bytes: usize) {
        self.messages.add(messages as u64);
        self.bytes.add(bytes as u64);
    }
}

/// Counters of the port's thread. Those that every message touches come first, in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Statistics {
    pub(crate) sent: Traffic,
    pub(crate) received: Traffic,
    pub(crate) overwritten: Counter,
    pub(crate) latency: Latency,
    pub(crate) send_errors: Counter,
    pub(crate) merged: Counter,
    pub(crate) void: Counter,
    pub(crate) too_large: Counter,
    pub(crate) bad_bundles: Counter,
    /// Authenticated frames for a port that is not protected.
    pub(crate) protected: Counter,
    /// Messages that peers had not taken when they went (link `vbus`).
    pub(crate) undelivered: Counter,
    /// Messages for which a peer that slept was woken late, because that costs too much (link `vbus`).
    pub(crate) wakes_withheld: Counter,
    pub(crate) expired: Counter,
    pub(crate) incomplete_dropped: Counter,
    /// Messages of another size than the port's type.
    pub(crate) other_size: Counter,
}

impl Statistics {
    /// Copies what the reassembler has counted.
    pub(crate) fn reassembly(&self, counters: &ReassemblyCounters) {
        self.expired.set(counters.expired + counters.forgotten);
        self.incomplete_dropped
            .set(counters.no_collector + counters.quota_reached + counters.inconsistent);
        self.too_large.set(counters.too_large);
    }
}
