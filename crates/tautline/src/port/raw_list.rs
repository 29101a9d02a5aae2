//! Status of a node's raw ports.

use std::sync::atomic::Ordering::Relaxed;

use tautline_proto::wire::PortKey;
use tautline_proto::wire::raw::EtherType;
use tautline_shm::deliver::frames;
use tautline_shm::queue;
use tautline_shm::region::{PortMemory, Shape};

use super::list::{OpenMemory, OpenPort};
use super::open_list::{Ports, dropped_full, queued};
use crate::memory::MappedPort;
use crate::policing::Policing;
use crate::status::{LatencyStatus, RawPortStatus};
use crate::sys::clock;

impl Ports {
    pub(crate) fn raw_status(&self) -> Vec<RawPortStatus> {
        self.describe(|key, port| match (key, &port.memory) {
            (PortKey::Raw(ethertype), OpenMemory::Frames(memory)) => {
                Some(status(ethertype, port, memory))
            }
            _ => None,
        })
    }
}

fn status(ethertype: EtherType, port: &OpenPort, mapped: &MappedPort) -> RawPortStatus {
    let memory = mapped.port();
    let control = memory.control;
    let depth = match mapped.shape() {
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
        void: counted.void.read(),
        doorbells: control.producer.doorbells.load(Relaxed),
    }
}
