//! Counters of a raw port, and the list of a node's open ones.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tautline_proto::wire::raw::EtherType;
use tautline_shm::deliver::frames;
use tautline_shm::queue;
use tautline_shm::region::{PortMemory, Shape};

use super::open_list::{OpenList, dropped_full, queued};
use crate::latency::Latency;
use crate::memory::MappedPort;
use crate::policing::Policing;
use crate::statistics::{Counter, Traffic};
use crate::status::{LatencyStatus, RawPortStatus};
use crate::sys::clock;

/// Counters of the port's thread.
#[derive(Debug, Default)]
pub(crate) struct RawStatistics {
    pub(crate) sent: Traffic,
    pub(crate) received: Traffic,
    pub(crate) latency: Latency,
    pub(crate) send_errors: Counter,
    pub(crate) void: Counter,
}

/// The open raw ports of a node.
pub(crate) type RawPorts = OpenList<EtherType, OpenRawPort>;

/// An open raw port, for the status page.
#[derive(Debug)]
pub(crate) struct OpenRawPort {
    pub(super) name: Option<String>,
    pub(super) memory: Arc<MappedPort>,
    pub(super) statistics: Arc<RawStatistics>,
}

impl RawPorts {
    pub(crate) fn status(&self) -> Vec<RawPortStatus> {
        self.describe(status)
    }

    /// As [`Ports::measure_latency`](super::list::Ports).
    pub(crate) fn measure_latency(&self, is_wanted: bool) {
        self.describe(|_, port| port.statistics.latency.measure(is_wanted));
    }
}

fn status(ethertype: EtherType, port: &OpenRawPort) -> RawPortStatus {
    let memory = port.memory.port();
    let control = memory.control;
    let depth = match port.memory.shape() {
        Shape::Queuing { depth } => depth,
        _ => 0,
    };
    let counted = &port.statistics;
    let now_ns = clock::monotonic().as_nanos();
    let oldest_ns = queue::oldest_arrival_ns(control, memory.slots);
    RawPortStatus {
        ethertype: ethertype.to_string(),
        number: ethertype.get(),
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
        void: counted.void.read(),
        doorbells: control.producer.doorbells.load(Relaxed),
    }
}
