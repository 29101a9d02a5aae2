//! Counters of a port of plain UDP, and the list of a node's open ones.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_proto::ip::reassembly::Counters;
use tautline_shm::deliver::frames;
use tautline_shm::region::{PortMemory, Shape};

use crate::error::PortError;
use crate::memory::MappedPort;
use crate::policing::Policing;
use crate::statistics::Counter;
use crate::status::{ReassemblyStatus, UdpPortStatus};

/// Counters of the port's thread.
#[derive(Debug, Default)]
pub(crate) struct UdpStatistics {
    pub(crate) sent: Counter,
    pub(crate) send_errors: Counter,
    pub(crate) received: Counter,
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
#[derive(Debug, Default)]
pub(crate) struct UdpPorts {
    open: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    number: u16,
    /// `None` while the port is being opened.
    port: Option<OpenPort>,
}

#[derive(Debug)]
struct OpenPort {
    name: Option<String>,
    memory: Arc<MappedPort>,
    statistics: Arc<UdpStatistics>,
}

/// Keeps a number in its node's list; dropped before the port is open, gives it up again.
#[derive(Debug)]
pub(crate) struct UdpRegistration {
    number: u16,
    open: Arc<Mutex<Vec<Entry>>>,
}

impl UdpPorts {
    pub(crate) fn reserve(&self, number: u16) -> Result<UdpRegistration, PortError> {
        let mut open = lock(&self.open);
        if open.iter().any(|entry| entry.number == number) {
            return Err(PortError::UdpOpenHere { port: number });
        }
        open.push(Entry { number, port: None });
        Ok(UdpRegistration {
            number,
            open: Arc::clone(&self.open),
        })
    }

    pub(crate) fn status(&self) -> Vec<UdpPortStatus> {
        let open = lock(&self.open);
        open.iter()
            .filter_map(|entry| Some(status(entry.number, entry.port.as_ref()?)))
            .collect()
    }
}

impl UdpRegistration {
    /// The port is open: it shows in the list from now on.
    pub(crate) fn fill(
        self,
        name: Option<&str>,
        memory: &Arc<MappedPort>,
        statistics: &Arc<UdpStatistics>,
    ) -> Self {
        let mut open = lock(&self.open);
        if let Some(entry) = open.iter_mut().find(|entry| entry.number == self.number) {
            entry.port = Some(OpenPort {
                name: name.map(str::to_owned),
                memory: Arc::clone(memory),
                statistics: Arc::clone(statistics),
            });
        }
        drop(open);
        self
    }
}

impl Drop for UdpRegistration {
    fn drop(&mut self) {
        lock(&self.open).retain(|entry| entry.number != self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The list stays whole at every step, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status(number: u16, port: &OpenPort) -> UdpPortStatus {
    let memory = port.memory.port();
    let control = memory.control;
    let depth = match port.memory.shape() {
        Shape::Queuing { depth } => depth,
        _ => 0,
    };
    let queued = |class: usize| {
        let head = control.class[class].head.load(Relaxed);
        head.saturating_sub(control.taken.taken[class].load(Relaxed))
    };
    let counted = &port.statistics;
    UdpPortStatus {
        number,
        name: port.name.clone(),
        memory_bytes: port.memory.shape().bytes(),
        memory_resident: port.memory.is_resident(),
        depth,
        sent: counted.sent.read(),
        send_errors: counted.send_errors.read(),
        frames: frames(memory),
        received: counted.received.read(),
        queued: std::array::from_fn(queued),
        dropped_full: std::array::from_fn(|class| control.class[class].dropped_full.load(Relaxed)),
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
