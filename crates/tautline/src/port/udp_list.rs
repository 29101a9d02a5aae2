//! Status of a node's ports of plain UDP.

use std::sync::atomic::Ordering::Relaxed;

use tautline_proto::wire::PortKey;
use tautline_shm::deliver::frames;
use tautline_shm::queue;
use tautline_shm::region::{PortMemory, Shape};

use super::list::{OpenMemory, OpenPort};
use super::open_list::{Ports, dropped_full, queued};
use crate::memory::MappedPort;
use crate::policing::Policing;
use crate::statistics::ReassemblyStatistics;
use crate::status::{LatencyStatus, ReassemblyStatus, UdpPortStatus};
use crate::sys::clock;

impl Ports {
    pub(crate) fn udp_status(&self) -> Vec<UdpPortStatus> {
        self.describe(|key, port| match (key, &port.memory) {
            (PortKey::Udp(number), OpenMemory::Frames(memory)) => {
                Some(status(number.get(), port, memory))
            }
            _ => None,
        })
    }
}

fn status(number: u16, port: &OpenPort, mapped: &MappedPort) -> UdpPortStatus {
    let memory = mapped.port();
    let control = memory.control;
    let depth = match mapped.shape() {
        Shape::Queuing { depth } => depth,
        _ => 0,
    };
    let counted = &port.statistics;
    let now_ns = clock::monotonic().as_nanos();
    let oldest_ns = queue::oldest_arrival_ns(control, memory.slots);
    UdpPortStatus {
        number,
        name: port.name.clone(),
        memory_bytes: mapped.shape().bytes(),
        memory_resident: mapped.is_resident(),
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
        bad_checksum: counted.datagrams.bad_checksum.read(),
        partial_checksum: counted.datagrams.partial_checksum.read(),
        undelivered: counted.undelivered.read(),
        reassembly: reassembly_status(&counted.datagrams.reassembly),
        void: counted.void.read(),
        doorbells: control.producer.doorbells.load(Relaxed),
    }
}

fn reassembly_status(counted: &ReassemblyStatistics) -> ReassemblyStatus {
    ReassemblyStatus {
        completed: counted.completed.read(),
        expired: counted.expired.read(),
        duplicates: counted.duplicates.read(),
        quota_reached: counted.quota_reached.read(),
        crowded_out: counted.crowded_out.read(),
        inconsistent: counted.inconsistent.read(),
        overlaps: counted.overlaps.read(),
        too_long: counted.too_long.read(),
        condemned: counted.condemned.read(),
    }
}
