//! Counters of a port of plain UDP, and the list of a node's open ones.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tautline_proto::ip::reassembly::Counters;
use tautline_shm::deliver::frames;
use tautline_shm::queue;
use tautline_shm::region::{PortMemory, Shape};

use super::open_list::{OpenList, dropped_full, queued, reads_since};
use crate::latency::Latency;
use crate::memory::MappedPort;
use crate::policing::Policing;
use crate::statistics::{Counter, Traffic};
use crate::status::{LatencyStatus, ReadsTold, ReassemblyStatus, UdpPortStatus};
use crate::sys::clock;

/// Counters of the port's thread.
#[derive(Debug, Default)]
pub(crate) struct UdpStatistics {
    pub(crate) sent: Traffic,
    pub(crate) received: Traffic,
    pub(crate) latency: Latency,
    pub(crate) send_errors: Counter,
    pub(crate) too_large: Counter,
    pub(crate) void: Counter,
    pub(crate) bad_checksum: Counter,
    pub(crate) partial_checksum: Counter,
    pub(crate) undelivered: Counter,
    pub(crate) reassembly: ReassemblyStatistics,
}

/// Copies of what a port's reassembler counts.
#[derive(Debug, Default)]
pub(crate) struct ReassemblyStatistics {
    completed: Counter,
    expired: Counter,
    duplicates: Counter,
    quota_reached: Counter,
    crowded_out: Counter,
    inconsistent: Counter,
    overlaps: Counter,
    too_long: Counter,
    condemned: Counter,
}

impl ReassemblyStatistics {
    pub(crate) fn copy(&self, counters: &Counters) {
        self.completed.set(counters.completed);
        self.expired.set(counters.expired);
        self.duplicates.set(counters.duplicates);
        self.quota_reached.set(counters.quota_reached);
        self.crowded_out.set(counters.crowded_out);
        self.inconsistent.set(counters.inconsistent);
        self.overlaps.set(counters.overlaps);
        self.too_long.set(counters.too_long);
        self.condemned.set(counters.condemned);
    }

    fn read(&self) -> ReassemblyStatus {
        ReassemblyStatus {
            completed: self.completed.read(),
            expired: self.expired.read(),
            duplicates: self.duplicates.read(),
            quota_reached: self.quota_reached.read(),
            crowded_out: self.crowded_out.read(),
            inconsistent: self.inconsistent.read(),
            overlaps: self.overlaps.read(),
            too_long: self.too_long.read(),
            condemned: self.condemned.read(),
        }
    }
}

/// The open ports of plain UDP of a node.
pub(crate) type UdpPorts = OpenList<u16, OpenUdpPort>;

/// An open port of plain UDP, for the status page.
#[derive(Debug)]
pub(crate) struct OpenUdpPort {
    pub(super) name: Option<String>,
    pub(super) memory: Arc<MappedPort>,
    pub(super) statistics: Arc<UdpStatistics>,
}

impl UdpPorts {
    pub(crate) fn status(&self) -> Vec<UdpPortStatus> {
        self.describe(status)
    }

    /// Reads of a port, if it is open.
    pub(crate) fn reads_since(&self, number: u16, seen: u64) -> Option<ReadsTold> {
        let of_port = |port: &OpenUdpPort| reads_since(&port.statistics.latency, seen);
        let told = self.describe(|own, port| (own == number).then(|| of_port(port)));
        told.into_iter().flatten().next()
    }

    /// As [`Ports::measure_latency`](super::list::Ports).
    pub(crate) fn measure_latency(&self, is_wanted: bool) {
        self.describe(|_, port| port.statistics.latency.measure(is_wanted));
    }
}

fn status(number: u16, port: &OpenUdpPort) -> UdpPortStatus {
    let memory = port.memory.port();
    let control = memory.control;
    let depth = match port.memory.shape() {
        Shape::Queuing { depth } => depth,
        _ => 0,
    };
    let counted = &port.statistics;
    let now_ns = clock::monotonic().as_nanos();
    let oldest_ns = queue::oldest_arrival_ns(control, memory.slots);
    UdpPortStatus {
        number,
        name: port.name.clone(),
        memory_bytes: port.memory.shape().bytes(),
        memory_resident: port.memory.is_resident(),
        depth,
        sent: counted.sent.messages.read(),
        sent_bytes: counted.sent.bytes.read(),
        send_errors: counted.send_errors.read(),
        frames: frames(memory),
        received: counted.received.messages.read(),
        received_bytes: counted.received.bytes.read(),
        oldest_wait_ns: oldest_ns.map(|arrival_ns| now_ns.saturating_sub(arrival_ns)),
        latency: counted.latency.distribution().map(LatencyStatus::from),
        queued: queued(control),
        dropped_full: dropped_full(control),
        contended: control.producer.contended.load(Relaxed),
        policing: Policing::of(control),
        policed: control.police.policed.load(Relaxed),
        unfit: control.producer.unfit.load(Relaxed),
        too_large: counted.too_large.read(),
        bad_checksum: counted.bad_checksum.read(),
        partial_checksum: counted.partial_checksum.read(),
        undelivered: counted.undelivered.read(),
        reassembly: counted.reassembly.read(),
        void: counted.void.read(),
        doorbells: control.producer.doorbells.load(Relaxed),
    }
}
