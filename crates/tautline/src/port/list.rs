//! The list of a node's open ports, which keeps a key from being opened twice, and the status of each.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_proto::authentication::{Protection, Refusal};
use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, PortKey, PortNumber};
use tautline_shm::deliver::{PortRef, frames};
use tautline_shm::layout::{CLASS_COUNT, Control, peer_key_parts};
use tautline_shm::peer::load_loss;
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::vbus::shape::Kind;
use tautline_shm::{queue, sample};
use tautline_state::fork::OwnerProcess;
use tautline_state::lock;

use super::authenticated::Checked;
use crate::address::{Address, Source};
use crate::kind::PortKind;
use crate::link::vbus::{PeerFigures, ReceiverShared, wrapping_sum};
use crate::memory::MappedPort;
use crate::message::SeenValue;
use crate::policing::Policing;
use crate::statistics::{DatagramStatistics, Statistics};
use crate::status::{
    DatagramStatus, PeerCounters, PortStatus, ProtectionStatus, ReassemblyStatus, TypeStatus,
    ValueStatus,
};
use crate::sys::clock;
use crate::types::{Direction, PortTypes, TakenType, TypeDifference};

#[derive(Debug)]
pub(crate) struct OpenPort {
    pub(super) name: Option<String>,
    pub(super) memory: OpenMemory,
    pub(super) types: PortTypes,
    pub(super) statistics: Arc<Statistics>,
    /// Additional parts of a protected port.
    pub(super) protected: Option<ProtectedPort>,
    /// Age up to which a value is valid (sampling).
    pub(super) refresh_period: Option<Duration>,
    /// Whether arrivals are stamped by a clock of this machine: in a simulation they have no age.
    pub(super) has_real_time: bool,
}

/// Memory in which frames wait for being checked, and what came of the checks.
#[derive(Debug)]
pub(crate) struct ProtectedPort {
    pub(super) protection: Protection,
    pub(super) waiting: Arc<MappedPort>,
    pub(super) checked: Arc<Checked>,
}

impl ProtectedPort {
    fn status(&self) -> ProtectionStatus {
        let control = self.waiting.port().control;
        let refused = |refusal: Refusal| self.checked.refused[refusal.index()].read();
        ProtectionStatus {
            kind: self.protection.name(),
            memory_bytes: self.waiting.shape().bytes(),
            accepted: self.checked.accepted.read(),
            unprotected: refused(Refusal::Unprotected),
            cut: refused(Refusal::Cut),
            unknown_sender: refused(Refusal::UnknownSender),
            unknown_epoch: refused(Refusal::UnknownEpoch),
            untimely: refused(Refusal::Untimely),
            replayed: refused(Refusal::Replayed),
            forged: refused(Refusal::Forged),
            waiting: queued(control).iter().sum(),
            dropped_full: dropped_full(control).iter().sum(),
            contended: control.producer.contended.load(Relaxed),
        }
    }
}

/// Where what a port receives lies, for the status page.
#[derive(Debug)]
pub(crate) enum OpenMemory {
    Frames(Arc<MappedPort>),
    Bus(Arc<ReceiverShared>),
}

#[derive(Debug, Default)]
pub(crate) struct Ports {
    open: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    key: PortKey,
    /// `None` while the port is being opened.
    port: Option<OpenPort>,
}

/// Keeps a key in its node's list; dropped before the port is open, gives it up again.
#[derive(Debug)]
pub(crate) struct Registration {
    key: PortKey,
    open: Arc<Mutex<Vec<Entry>>>,
    process: OwnerProcess,
}

impl Ports {
    pub(crate) fn status(&self) -> Vec<PortStatus> {
        self.describe(|key, port| Some(status(key, port)))
    }

    /// Status with the newest values of sampling ports that have a type.
    pub(crate) fn status_with_values(&self) -> Vec<PortStatus> {
        self.describe(|key, port| {
            let value = port.newest_value().map(ValueStatus::from);
            Some(PortStatus {
                value,
                ..status(key, port)
            })
        })
    }

    /// Takes a key; `None` if it is taken.
    pub(crate) fn reserve(&self, key: PortKey) -> Option<Registration> {
        let mut open = lock(&self.open);
        if open.iter().any(|entry| entry.key == key) {
            return None;
        }
        open.push(Entry { key, port: None });
        Some(Registration {
            key,
            open: Arc::clone(&self.open),
            process: OwnerProcess::current(),
        })
    }

    /// A line for each open port that has one.
    fn describe<T>(&self, line: impl Fn(PortKey, &OpenPort) -> Option<T>) -> Vec<T> {
        let open = lock(&self.open);
        open.iter()
            .filter_map(|entry| line(entry.key, entry.port.as_ref()?))
            .collect()
    }

    /// Switches the measurement of latencies, for all ports that are open.
    pub(crate) fn measure_latency(&self, is_wanted: bool) {
        self.describe(|_, port| {
            port.statistics.latency.measure(is_wanted);
            None::<()>
        });
    }
}

impl Registration {
    /// The port is open: it shows in the list from now on.
    pub(super) fn fill(self, port: OpenPort) -> Self {
        let mut open = lock(&self.open);
        if let Some(entry) = open.iter_mut().find(|entry| entry.key == self.key) {
            entry.port = Some(port);
        }
        drop(open);
        self
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a forked process a thread of the parent's may have held the lock.
        if self.process.is_current() {
            lock(&self.open).retain(|entry| entry.key != self.key);
        }
    }
}

/// Arrivals in a port's memory, for its status.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    newest_ns: Option<u64>,
    /// Of the message that has waited longest (queuing).
    oldest_waiting_ns: Option<u64>,
}

impl OpenPort {
    /// Ages of the newest value, and of the message that has waited longest.
    fn ages(&self, arrivals: Arrivals) -> (Option<u64>, Option<u64>) {
        if !self.has_real_time {
            return (None, None);
        }
        let now_ns = clock::monotonic().as_nanos();
        let age = |arrival: Option<u64>| arrival.map(|ns| now_ns.saturating_sub(ns));
        (age(arrivals.newest_ns), age(arrivals.oldest_waiting_ns))
    }

    /// The newest value that the port has received, of whichever source, if it is a sampling port with a type.
    fn newest_value(&self) -> Option<SeenValue> {
        let bytes_max = self.types.receives.as_ref()?.bytes();
        match &self.memory {
            OpenMemory::Frames(memory) => {
                newest_frame_value(memory, bytes_max, TakenType::from(&self.types))
            }
            OpenMemory::Bus(bus_receiver) => bus_receiver.newest_value(),
        }
    }

    /// The peer that sent the last message of another type.
    fn type_difference(&self) -> Option<TypeDifference> {
        let receives = self.types.receives.as_ref()?;
        let (source, type_byte) = self.statistics.last_other_type()?;
        Some(TypeDifference {
            address: source.address,
            port: source.port,
            direction: Direction::Receives,
            difference: Some(format!(
                "the type byte is {} here and {type_byte} there",
                receives.type_byte()
            )),
            refused: self.statistics.other_type.read(),
        })
    }

    fn refresh_period_ns(&self) -> Option<u64> {
        let period = self.refresh_period?;
        Some(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX))
    }
}

fn is_valid(age_ns: Option<u64>, period_ns: Option<u64>) -> Option<bool> {
    period_ns.map(|period| age_ns.is_some_and(|age| age <= period))
}

/// The newest value of all sources that is not of another type, cut off at `bytes_max`.
fn newest_frame_value(
    mapped: &MappedPort,
    bytes_max: usize,
    takes: TakenType,
) -> Option<SeenValue> {
    let Shape::Sampling { sources } = mapped.shape() else {
        return None;
    };
    let memory = mapped.port();
    let of_source = |place: usize| {
        let mut bytes = vec![0; bytes_max];
        let head = sample::observe(memory.peers.get(place)?, memory.slots, place, &mut bytes)?;
        let header = Header::from_bytes(&head.header).ok()?;
        if takes.is_other(header.type_byte) {
            return None;
        }
        bytes.truncate(usize::from(header.length));
        Some(SeenValue {
            source: Source {
                address: Address::from_word(head.source)?,
                port: header.source,
            },
            arrival: Instant::from_nanos(head.arrival_ns),
            bytes,
        })
    };
    let values = (0..sources as usize).filter_map(of_source);
    values.max_by_key(|value| value.arrival)
}

fn status(key: PortKey, port: &OpenPort) -> PortStatus {
    let counted = &port.statistics;
    // The rest is what the memory tells.
    let status = PortStatus {
        key,
        name: port.name.clone(),
        kind: PortKind::Queuing,
        receives: port.types.receives.as_deref().map(TypeStatus::from),
        sends: port.types.sends.as_deref().map(TypeStatus::from),
        memory_bytes: 0,
        memory_resident: false,
        depth: None,
        sent: counted.sent.messages.read(),
        sent_bytes: counted.sent.bytes.read(),
        send_errors: counted.send_errors.read(),
        merged: counted.merged.read(),
        frames: 0,
        received: counted.received.messages.read(),
        received_bytes: counted.received.bytes.read(),
        age_ns: None,
        refresh_period_ns: port.refresh_period_ns(),
        valid: None,
        value: None,
        oldest_wait_ns: None,
        latency: counted.latency.status(),
        queued: [0; CLASS_COUNT],
        dropped_full: [0; CLASS_COUNT],
        overwritten: counted.overwritten.read(),
        policing: None,
        policed: 0,
        contended: 0,
        unfit: 0,
        sources: None,
        sources_refused: 0,
        too_large: counted.too_large.read(),
        bad_bundles: counted.bad_bundles.read(),
        protected: counted.protected.read(),
        protection: port.protected.as_ref().map(ProtectedPort::status),
        expired: counted.expired.read(),
        incomplete_dropped: counted.incomplete_dropped.read(),
        void: counted.void.read(),
        peers_evicted: 0,
        wakeups: counted.wakeups.read(),
        awake_ns: counted.awake_ns.read(),
        open_ns: counted.opened.since_ns(),
        doorbells: 0,
        undelivered: counted.undelivered.read(),
        other_size: counted.other_size.read(),
        other_type: counted.other_type.read(),
        type_differences: Vec::new(),
        readers: None,
        peers: Vec::new(),
        datagrams: matches!(key, PortKey::Udp(_)).then(|| datagram_status(&counted.datagrams)),
    };
    let (arrivals, status) = match &port.memory {
        OpenMemory::Frames(memory) => frame_status(status, port, memory),
        OpenMemory::Bus(bus_receiver) => bus_status(status, bus_receiver),
    };
    let (age_ns, oldest_wait_ns) = port.ages(arrivals);
    PortStatus {
        age_ns,
        valid: is_valid(age_ns, status.refresh_period_ns),
        oldest_wait_ns,
        ..status
    }
}

fn bus_status(base: PortStatus, bus_receiver: &ReceiverShared) -> (Arrivals, PortStatus) {
    let figures = bus_receiver.figures();
    let dropped = wrapping_sum(&figures.totals.dropped_full);
    let (kind, depth, sources) = match bus_receiver.shape.kind {
        Kind::Queuing { depth } => (PortKind::Queuing, Some(depth), None),
        Kind::Sampling => {
            let sources = bus_receiver.sources as u32;
            (PortKind::Sampling, None, Some(sources))
        }
    };
    let arrivals = Arrivals {
        newest_ns: figures.newest_ns.filter(|_| kind == PortKind::Sampling),
        oldest_waiting_ns: figures.oldest_waiting_ns,
    };
    let peer = |peer: &PeerFigures| PeerCounters {
        address: Address::Bus(peer.node),
        port: peer.port,
        received: peer.received,
        lost: peer.lost,
        duplicates: 0,
        restarts: peer.restarts,
    };
    let missed = bus_receiver.overwritten.read();
    let status = PortStatus {
        kind,
        depth,
        sources,
        memory_bytes: figures.memory_bytes,
        memory_resident: bus_receiver.is_resident(),
        frames: figures.totals.published.wrapping_add(dropped),
        queued: figures.queued,
        dropped_full: figures.totals.dropped_full,
        overwritten: base.overwritten.wrapping_add(missed),
        sources_refused: figures.refused,
        void: figures.totals.corrupt,
        doorbells: figures.totals.kicks,
        type_differences: bus_receiver.types.differences(),
        readers: bus_receiver.published().map(|publisher| {
            let readers = publisher.readers();
            readers.iter().map(|reader| (&**reader).into()).collect()
        }),
        peers: figures.peers.iter().map(peer).collect(),
        ..base
    };
    (arrivals, status)
}

/// Adds what the port's own memory tells.
fn frame_status(base: PortStatus, port: &OpenPort, mapped: &MappedPort) -> (Arrivals, PortStatus) {
    let memory = mapped.port();
    let control = memory.control;
    let mut arrivals = Arrivals::default();
    let (kind, depth, sources) = match mapped.shape() {
        Shape::Queuing { depth } => {
            arrivals.oldest_waiting_ns = queue::oldest_arrival_ns(control, memory.slots);
            (PortKind::Queuing, Some(depth), None)
        }
        Shape::Sampling { sources } => {
            arrivals.newest_ns = sample::newest_arrival_ns(memory.slots);
            (PortKind::Sampling, None, Some(sources))
        }
    };
    let status = PortStatus {
        kind,
        depth,
        sources,
        memory_bytes: mapped.shape().bytes(),
        memory_resident: mapped.is_resident(),
        frames: frames(memory),
        queued: queued(control),
        dropped_full: dropped_full(control),
        policing: Policing::of(control),
        policed: control.police.policed.load(Relaxed),
        contended: control.producer.contended.load(Relaxed),
        unfit: control.producer.unfit.load(Relaxed),
        sources_refused: control.producer.sources_refused.load(Relaxed),
        peers_evicted: control.producer.peers_evicted.load(Relaxed),
        doorbells: control.producer.doorbells.load(Relaxed),
        type_differences: port.type_difference().into_iter().collect(),
        peers: match base.key {
            PortKey::Message(_) => peers(&memory),
            PortKey::Udp(_) | PortKey::Raw(_) => Vec::new(),
        },
        ..base
    };
    (arrivals, status)
}

fn datagram_status(counted: &DatagramStatistics) -> DatagramStatus {
    let reassembly = &counted.reassembly;
    DatagramStatus {
        bad_checksum: counted.bad_checksum.read(),
        partial_checksum: counted.partial_checksum.read(),
        reassembly: ReassemblyStatus {
            completed: reassembly.completed.read(),
            expired: reassembly.expired.read(),
            displaced: reassembly.displaced.read(),
            broken: reassembly.broken.read(),
            strays: reassembly.strays.read(),
        },
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

/// Frames that wait in a port's memory, per priority.
fn queued(control: &Control) -> [u64; CLASS_COUNT] {
    std::array::from_fn(|class| {
        let head = control.class[class].head.load(Relaxed);
        head.saturating_sub(control.taken.taken[class].load(Relaxed))
    })
}

/// Frames that were dropped because their class was full, per priority.
fn dropped_full(control: &Control) -> [u64; CLASS_COUNT] {
    std::array::from_fn(|class| control.class[class].dropped_full.load(Relaxed))
}
