//! Counters of a port of plain UDP, and the list of a node's open ones.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tautline_proto::ip::reassembly::Counters;
use tautline_shm::deliver::frames;
use tautline_shm::layout::CLASS_COUNT;
use tautline_shm::region::{PortMemory, Shape};

use crate::error::PortError;
use crate::memory::MappedPort;
use crate::policing::Policing;
use crate::statistics::Counter;

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

/// Results of the datagrams that came for a port in IP fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReassemblyStatus {
    /// Datagrams put together.
    pub completed: u64,
    /// Datagrams given up because a fragment was missing at the time limit.
    pub expired: u64,
    /// Fragments whose bytes had come before.
    pub duplicates: u64,
    /// Datagrams given up because their peer had its share of the collectors and sent another one.
    pub quota_reached: u64,
    /// Datagrams given up because all collectors were taken.
    pub crowded_out: u64,
    /// Datagrams dropped because their fragments, or their length, contradicted each other.
    pub inconsistent: u64,
    /// Datagrams dropped because fragments overlapped.
    pub overlaps: u64,
    /// Datagrams dropped because they are longer than the port takes.
    pub too_long: u64,
    /// Fragments of datagrams that had been dropped.
    pub condemned: u64,
}

/// One open port of plain UDP, at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UdpPortStatus {
    /// Its UDP port number.
    pub number: u16,
    /// Its name in the configuration.
    pub name: Option<String>,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Whether that memory can never be paged out: it is locked, or the kernel's (link `xdp`).
    pub memory_resident: bool,
    /// Slots of each class.
    pub depth: u32,
    /// Datagrams sent.
    pub sent: u64,
    /// Sends that failed.
    pub send_errors: u64,
    /// Datagrams and fragments that were for this port, delivered or dropped.
    pub frames: u64,
    /// Datagrams handed to the application.
    pub received: u64,
    /// Datagrams and fragments waiting, per priority 0 to 7.
    pub queued: [u64; CLASS_COUNT],
    /// Datagrams and fragments dropped because their class was full, per priority.
    pub dropped_full: [u64; CLASS_COUNT],
    /// Datagrams given up because several CPUs delivered at once.
    pub contended: u64,
    /// Limits of the port, if it is policed.
    pub policing: Option<Policing>,
    /// Datagrams and fragments dropped because more came than that.
    pub policed: u64,
    /// Datagrams in frames that are longer than a slot.
    pub unfit: u64,
    /// Datagrams longer than the port takes.
    pub too_large: u64,
    /// Datagrams dropped for a wrong checksum.
    pub bad_checksum: u64,
    /// Datagrams taken although their sender's kernel had left the checksum to a network card and none was
    /// on the way: between the ends of a virtual link.
    pub partial_checksum: u64,
    /// News that a datagram of this port did not arrive.
    pub undelivered: u64,
    /// Datagrams in fragments.
    pub reassembly: ReassemblyStatus,
    /// Slots without a datagram, and datagrams whose first fragment came twice with two ports.
    pub void: u64,
    /// Times that the reader was woken.
    pub doorbells: u64,
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
