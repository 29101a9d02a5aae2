//! Counters of a port in this process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tautline_proto::fragment::ReassemblyCounters;
use tautline_proto::ip::reassembly;
use tautline_proto::wire::PortNumber;

use crate::address::{Address, Source};
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
    pub(crate) expired: Counter,
    pub(crate) incomplete_dropped: Counter,
    /// Sleeps of waiting threads that ended.
    pub(crate) wakeups: Counter,
    /// Time that waiting threads looked for expected messages, in nanoseconds.
    pub(crate) awake_ns: Counter,
    pub(crate) other_size: Counter,
    pub(crate) other_type: Counter,
    last_other: LastOther,
    pub(crate) datagrams: DatagramStatistics,
    pub(crate) opened: Opened,
}

#[derive(Debug)]
pub(crate) struct Opened(Instant);

impl Default for Opened {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Opened {
    pub(crate) fn since_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

#[derive(Debug, Default)]
pub(crate) struct DatagramStatistics {
    pub(crate) bad_checksum: Counter,
    pub(crate) partial_checksum: Counter,
    pub(crate) reassembly: ReassemblyStatistics,
}

#[derive(Debug, Default)]
pub(crate) struct ReassemblyStatistics {
    pub(crate) completed: Counter,
    pub(crate) expired: Counter,
    pub(crate) displaced: Counter,
    pub(crate) broken: Counter,
    pub(crate) strays: Counter,
}

impl ReassemblyStatistics {
    pub(crate) fn copy(&self, counters: &reassembly::Counters) {
        self.completed.set(counters.completed);
        self.expired.set(counters.expired);
        self.displaced.set(counters.displaced);
        self.broken.set(counters.broken);
        self.strays.set(counters.strays);
    }
}

/// The last message of another type than the port's, for the status. Two senders' numbers may mix for a moment.
#[derive(Debug, Default)]
struct LastOther {
    address_word: AtomicU64,
    /// Port and type byte.
    rest: AtomicU64,
}

impl Statistics {
    #[cold]
    pub(crate) fn count_other_type(&self, source: Source, type_byte: u8) {
        let rest = u64::from(source.port.get()) << 8 | u64::from(type_byte);
        self.last_other
            .address_word
            .store(source.address.word(), Relaxed);
        self.last_other.rest.store(rest, Relaxed);
        self.other_type.add(1);
    }

    /// Sender and type byte of the last message of another type.
    pub(crate) fn last_other_type(&self) -> Option<(Source, u8)> {
        let rest = self.last_other.rest.load(Relaxed);
        let address = Address::from_word(self.last_other.address_word.load(Relaxed))?;
        let port = PortNumber::new((rest >> 8) as u16)?;
        Some((Source { address, port }, rest as u8))
    }

    pub(crate) fn reassembly(&self, counters: &ReassemblyCounters) {
        self.expired.set(counters.expired + counters.forgotten);
        self.incomplete_dropped
            .set(counters.no_collector + counters.quota_reached + counters.inconsistent);
        self.too_large.set(counters.too_large);
    }
}
