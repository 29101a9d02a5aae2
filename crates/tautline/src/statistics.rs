//! Counters of a port in this process, and the list of a node's open ports.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tautline_proto::fragment::ReassemblyCounters;
use tautline_proto::wire::PortNumber;
use tautline_shm::deliver::{PortRef, frames};
use tautline_shm::layout::{CLASS_COUNT, peer_key_parts};
use tautline_shm::peer::load_loss;
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::vbus::shape::Kind;

use crate::address::Address;
use crate::error::PortError;
use crate::link::PortHalf;
use crate::link::vbus::{InletShared, PeerFigures, wrapping_sum};
use crate::memory::MappedPort;
use crate::policing::Policing;

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

/// Counters of the port's thread.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) sent: Counter,
    pub(crate) send_errors: Counter,
    pub(crate) merged: Counter,
    pub(crate) received: Counter,
    pub(crate) overwritten: Counter,
    pub(crate) void: Counter,
    pub(crate) too_large: Counter,
    pub(crate) bad_bundles: Counter,
    /// Messages that peers had not taken when they went (link `vbus`).
    pub(crate) undelivered: Counter,
    expired: Counter,
    incomplete_dropped: Counter,
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

/// The kind of a port, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// Keeps every message.
    Queuing,
    /// Keeps the last value.
    Sampling,
}

impl PortKind {
    /// The name in tables and result files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queuing => "queuing",
            Self::Sampling => "sampling",
        }
    }
}

/// Messages from one peer's port to this port, and losses on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerCounters {
    /// The peer's address.
    pub address: Address,
    /// Its port.
    #[serde(serialize_with = "number")]
    pub port: PortNumber,
    /// Frames that arrived, each once.
    pub received: u64,
    /// Frames that the sequence numbers say were sent and that did not arrive.
    pub lost: u64,
    /// Frames that arrived more than once.
    pub duplicates: u64,
    /// Times that the peer began to count anew.
    pub restarts: u32,
}

fn number<S: serde::Serializer>(port: &PortNumber, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(port.get())
}

/// One open port, at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortStatus {
    /// Its number.
    #[serde(serialize_with = "number")]
    pub number: PortNumber,
    /// Its name in the configuration.
    pub name: Option<String>,
    /// Its kind.
    pub kind: PortKind,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Whether that memory can never be paged out: it is locked, or the kernel's (link `xdp`).
    pub memory_resident: bool,
    /// Slots of each class (queuing).
    pub depth: Option<u32>,
    /// Messages sent.
    pub sent: u64,
    /// Sends that failed.
    pub send_errors: u64,
    /// Of the messages sent, those that shared a frame with others.
    pub merged: u64,
    /// Frames that the demux delivered or dropped here.
    pub frames: u64,
    /// Messages handed to the application; values that it saw (sampling).
    pub received: u64,
    /// Frames waiting, per priority 0 to 7 (queuing).
    pub queued: [u64; CLASS_COUNT],
    /// Frames dropped because their class was full, per priority (queuing).
    pub dropped_full: [u64; CLASS_COUNT],
    /// Values replaced before the application looked (sampling).
    pub overwritten: u64,
    /// Limits of the port, if it is policed.
    pub policing: Option<Policing>,
    /// Frames dropped because they were more than that. They count as lost by their sender's
    /// numbers too.
    pub policed: u64,
    /// Frames given up because several CPUs delivered at once.
    pub contended: u64,
    /// Fragments and bundles that came for a sampling port.
    pub unfit: u64,
    /// Sources that the port keeps a value of (sampling).
    pub sources: Option<u32>,
    /// Frames of sources for which there was no place (sampling).
    pub sources_refused: u64,
    /// Messages larger than the port takes.
    pub too_large: u64,
    /// Bundles that break the format, dropped whole.
    pub bad_bundles: u64,
    /// Messages of which fragments were missing at the time limit, or when their sender began anew.
    pub expired: u64,
    /// Fragments dropped for want of a collector, or because they contradict each other.
    pub incomplete_dropped: u64,
    /// Slots without a message.
    pub void: u64,
    /// Peers that pushed each other out of the list below.
    pub peers_evicted: u64,
    /// Times that the reader was woken.
    pub doorbells: u64,
    /// Messages of peers that died before the port looked, and had to make room for others (link `vbus`).
    pub abandoned: u64,
    /// Messages that this port had sent, and that peers had not taken when they went (link `vbus`).
    pub undelivered: u64,
    /// Senders.
    pub peers: Vec<PeerCounters>,
}

/// The open ports of a node.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    open: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    number: PortNumber,
    /// `None` while the port is being opened.
    port: Option<OpenPort>,
}

#[derive(Debug)]
struct OpenPort {
    name: Option<String>,
    memory: OpenMemory,
    statistics: Arc<Statistics>,
}

/// Where what a port receives lies, for the status page.
#[derive(Debug)]
pub(crate) enum OpenMemory {
    Frames(Arc<MappedPort>),
    Bus(Arc<InletShared>),
}

impl OpenMemory {
    pub(crate) fn of(half: &PortHalf) -> Self {
        match half {
            PortHalf::Frames(frames) => Self::Frames(Arc::clone(&frames.memory)),
            PortHalf::Bus(bus) => Self::Bus(Arc::clone(&bus.inlet.shared)),
        }
    }
}

/// Keeps a number until the port is open, or failed to.
pub(crate) struct Reservation {
    registration: Registration,
}

/// Keeps a port in its node's list.
#[derive(Debug)]
pub(crate) struct Registration {
    number: PortNumber,
    open: Arc<Mutex<Vec<Entry>>>,
}

impl Ports {
    pub(crate) fn reserve(&self, number: PortNumber) -> Result<Reservation, PortError> {
        let mut open = lock(&self.open);
        if open.iter().any(|entry| entry.number == number) {
            return Err(PortError::OpenHere { port: number });
        }
        open.push(Entry { number, port: None });
        Ok(Reservation {
            registration: Registration {
                number,
                open: Arc::clone(&self.open),
            },
        })
    }

    pub(crate) fn status(&self) -> Vec<PortStatus> {
        let open = lock(&self.open);
        open.iter()
            .filter_map(|entry| Some(status(entry.number, entry.port.as_ref()?)))
            .collect()
    }
}

impl Reservation {
    pub(crate) fn fill(
        self,
        name: Option<&str>,
        memory: OpenMemory,
        statistics: &Arc<Statistics>,
    ) -> Registration {
        let Self { registration } = self;
        let port = OpenPort {
            name: name.map(str::to_owned),
            memory,
            statistics: Arc::clone(statistics),
        };
        for entry in lock(&registration.open).iter_mut() {
            if entry.number == registration.number {
                entry.port = Some(port);
                break;
            }
        }
        registration
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.open).retain(|entry| entry.number != self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The list stays whole at every step, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status(number: PortNumber, port: &OpenPort) -> PortStatus {
    match &port.memory {
        OpenMemory::Frames(memory) => frame_status(number, port, memory),
        OpenMemory::Bus(inlet) => bus_status(number, port, inlet),
    }
}

fn bus_status(number: PortNumber, port: &OpenPort, inlet: &InletShared) -> PortStatus {
    let figures = inlet.figures();
    let counted = &port.statistics;
    let dropped = wrapping_sum(&figures.totals.dropped_full);
    let (kind, depth, sources) = match inlet.shape.kind {
        Kind::Queuing { depth } => (PortKind::Queuing, Some(depth), None),
        Kind::Sampling => (PortKind::Sampling, None, Some(inlet.sources_max() as u32)),
    };
    let peer = |peer: &PeerFigures| PeerCounters {
        address: Address::Bus(peer.node),
        port: peer.port,
        received: peer.received,
        lost: peer.lost,
        duplicates: 0,
        restarts: peer.restarts,
    };
    PortStatus {
        number,
        name: port.name.clone(),
        kind,
        memory_bytes: figures.memory_bytes,
        memory_resident: inlet.is_resident(),
        depth,
        sent: counted.sent.read(),
        send_errors: counted.send_errors.read(),
        frames: figures.totals.published.wrapping_add(dropped),
        received: counted.received.read(),
        queued: figures.queued,
        dropped_full: figures.totals.dropped_full,
        overwritten: counted.overwritten.read(),
        policing: None,
        policed: 0,
        contended: 0,
        unfit: 0,
        sources,
        sources_refused: figures.refused,
        too_large: 0,
        expired: 0,
        incomplete_dropped: 0,
        void: figures.totals.corrupt,
        bad_bundles: 0,
        merged: 0,
        peers_evicted: 0,
        doorbells: figures.totals.kicks,
        abandoned: figures.totals.abandoned,
        undelivered: counted.undelivered.read(),
        peers: figures.peers.iter().map(peer).collect(),
    }
}

fn frame_status(number: PortNumber, port: &OpenPort, mapped: &MappedPort) -> PortStatus {
    let memory = mapped.port();
    let control = memory.control;
    let (kind, depth, sources) = match mapped.shape() {
        Shape::Queuing { depth } => (PortKind::Queuing, Some(depth), None),
        Shape::Sampling { sources } => (PortKind::Sampling, None, Some(sources)),
    };
    let queued = |class: usize| {
        let head = control.class[class].head.load(Relaxed);
        head.saturating_sub(control.taken.taken[class].load(Relaxed))
    };
    let counted = &port.statistics;
    PortStatus {
        number,
        name: port.name.clone(),
        kind,
        memory_bytes: mapped.shape().bytes(),
        memory_resident: mapped.is_resident(),
        depth,
        sent: counted.sent.read(),
        send_errors: counted.send_errors.read(),
        merged: counted.merged.read(),
        frames: frames(memory),
        received: counted.received.read(),
        queued: std::array::from_fn(queued),
        dropped_full: std::array::from_fn(|class| control.class[class].dropped_full.load(Relaxed)),
        overwritten: counted.overwritten.read(),
        policing: Policing::of(control),
        policed: control.police.policed.load(Relaxed),
        contended: control.producer.contended.load(Relaxed),
        unfit: control.producer.unfit.load(Relaxed),
        sources,
        sources_refused: control.producer.sources_refused.load(Relaxed),
        too_large: counted.too_large.read(),
        bad_bundles: counted.bad_bundles.read(),
        expired: counted.expired.read(),
        incomplete_dropped: counted.incomplete_dropped.read(),
        void: counted.void.read(),
        peers_evicted: control.producer.peers_evicted.load(Relaxed),
        doorbells: control.producer.doorbells.load(Relaxed),
        abandoned: 0,
        undelivered: 0,
        peers: peers(&memory),
    }
}

fn peers(port: &PortRef<'_>) -> Vec<PeerCounters> {
    let places = port.control.keys.key.iter().zip(port.peers);
    places
        .filter_map(|(key, peer)| {
            let (source, number) = peer_key_parts(key.load(Relaxed));
            let losses = load_loss(peer);
            Some(PeerCounters {
                address: Address::from_word(source)?,
                port: PortNumber::new(number)?,
                received: losses.received(),
                lost: losses.lost(),
                duplicates: losses.duplicates(),
                restarts: losses.restarts(),
            })
        })
        .collect()
}
