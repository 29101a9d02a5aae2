//! State of a port on a bus that its thread, the service thread and the status page share: its own memory, its senders,
//! and the counters of those that are gone.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tautline_proto::time::Instant;
use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::cell;
use tautline_shm::vbus::layout::{
    CLASS_COUNT, ConnectionEntry, Identity, PRODUCERS_MAX, ROLE_PUBLISHER, Slot,
};
use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::shape::{Kind, Shape, consumer_bytes};
use tautline_shm::vbus::wait;
use tautline_state::Event;
use tautline_state::lock;

use super::backlog::{Backlog, copy_newest, earlier};
use super::epoch;
use super::publisher::PublisherShared;
use super::types::BusTypes;
use super::view::{ConsumerView, ProducerView};
use crate::address::{Address, NodeName, Source};
use crate::message::SeenValue;
use crate::statistics::Counter;
use crate::sys::clock;
use crate::sys::shared::{SharedMemory, wake};
use crate::types::Direction;
use crate::types::PortTypes;

/// Peers whose reconnections are remembered. Lower: a count begins anew for a peer among many.
const RESTARTS_MAX: usize = 64;

/// Copies of what is published for many. Of values there are two: one is kept while the next is made. Of messages there
/// is one, the first.
pub(super) type Copies = [Box<[u64]>; 2];

#[derive(Debug)]
pub(crate) struct Incoming {
    memory: ProducerView,
    pub(super) shape: Shape,
    /// Room for copies if the peer publishes for many; the port's thread takes it and gives it back, so that it neither
    /// allocates nor frees.
    copies: Mutex<Option<Copies>>,
    pub(super) is_for_many: bool,
    /// Messages that the peer had published for others before this port followed it, and its word of the newest value.
    pub(super) published_before: [u64; CLASS_COUNT],
    pub(super) latest_before: u64,
    pub(super) index: usize,
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    pub(crate) process: u32,
    pub(crate) epoch: u64,
    /// Its process has hung up: nothing more is published.
    gone: AtomicBool,
    pub(super) received: Counter,
}

impl Incoming {
    /// A peer whose memory has been checked to be of this shape.
    pub(crate) fn new(
        memory: ProducerView,
        shape: Shape,
        index: usize,
        identity: &Identity,
        (node, port): (NodeName, PortNumber),
    ) -> Self {
        let is_for_many = identity.role == ROLE_PUBLISHER;
        let words = (shape.message_bytes_max as usize).div_ceil(8);
        // Not of zeros, so that the pages are there.
        let copy = || vec![u64::MAX; words].into_boxed_slice();
        let copies = || match shape.kind {
            Kind::Queuing { .. } => [copy(), Box::default()],
            Kind::Sampling => [copy(), copy()],
        };
        let published = &memory.memory().head.published.count;
        let published_before = match is_for_many {
            true => std::array::from_fn(|class| published[class].load(Relaxed)),
            false => [0; CLASS_COUNT],
        };
        Self {
            shape,
            copies: Mutex::new(is_for_many.then(copies)),
            is_for_many,
            published_before,
            // Acquire: partner is the Release in `cell::Writer::publish`.
            latest_before: memory.memory().head.latest.latest.load(Acquire),
            memory,
            index,
            node,
            port,
            process: identity.process,
            epoch: identity.epoch,
            gone: AtomicBool::new(false),
            received: Counter::default(),
        }
    }

    #[inline]
    pub(crate) fn memory(&self) -> ProducerMemory<'_> {
        self.memory.memory()
    }

    /// Messages or values that the peer says it has published since the port received from it.
    pub(super) fn published(&self) -> u64 {
        let published = self.memory().head.published.count.iter();
        let since = published
            .zip(self.published_before)
            .map(|(count, before)| count.load(Relaxed).wrapping_sub(before));
        since.fold(0, u64::wrapping_add)
    }

    /// Bytes of the port's memory that the connection takes: of copies.
    fn copies_bytes(&self) -> usize {
        let words = (self.shape.message_bytes_max as usize).div_ceil(8);
        match (self.is_for_many, self.shape.kind) {
            (false, _) => 0,
            (true, Kind::Queuing { .. }) => words * 8,
            (true, Kind::Sampling) => words * 16,
        }
    }

    /// Port's thread: room for copies, if the peer publishes for many.
    pub(super) fn take_copies(&self) -> Option<Copies> {
        lock(&self.copies).take()
    }

    pub(super) fn give_back(&self, copies: Option<Copies>) {
        *lock(&self.copies) = copies;
    }

    #[inline(always)]
    pub(crate) fn source(&self) -> Source {
        Source {
            address: Address::Bus(self.node),
            port: self.port,
        }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.memory.mapping().file()
    }

    pub(crate) fn is_gone(&self) -> bool {
        // Acquire: partner is the Release in `hang_up`; what the peer published before is there.
        self.gone.load(Acquire)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) published: u64,
    pub(crate) dropped_full: [u64; CLASS_COUNT],
    pub(crate) kicks: u64,
    pub(crate) corrupt: u64,
    /// Messages or values that peers who publish for many replaced before the port took them.
    pub(crate) overwritten: u64,
}

#[derive(Debug, Default)]
pub(super) struct Control {
    /// Entries in use, a bit each.
    pub(super) used: u32,
    /// Peers that the port has not seen yet.
    pub(super) arrivals: Vec<Arc<Incoming>>,
    /// All peers.
    pub(super) live: Vec<Arc<Incoming>>,
    pub(super) past: Totals,
    /// Peers that have ever connected, and how often.
    connections: Vec<(NodeName, PortNumber, u32)>,
    /// Peers that came when all places were taken.
    refused: u64,
}

/// State that the port's thread, the service thread and the status page share.
#[derive(Debug)]
pub(crate) struct ReceiverShared {
    pub(crate) node: NodeName,
    pub(crate) number: PortNumber,
    pub(crate) shape: Shape,
    /// Sources that a sampling port keeps a value of; 1: the last of all.
    pub(crate) sources: usize,
    pub(crate) types: Arc<BusTypes>,
    own: ConsumerView,
    /// Memory in which the port publishes for many, once it does.
    published: OnceLock<Arc<PublisherShared>>,
    /// Messages that peers who publish for many replaced before the port took them. Only its thread counts.
    pub(crate) overwritten: Counter,
    /// Rung by the service thread and by each producer.
    pub(super) bell: Event,
    /// Changes when a peer comes or goes; a futex of this process.
    pub(super) generation: AtomicU32,
    control: Mutex<Control>,
}

impl ReceiverShared {
    pub(crate) fn new(
        node: NodeName,
        number: PortNumber,
        shape: Shape,
        sources: usize,
        types: PortTypes,
    ) -> std::io::Result<Self> {
        let own = ConsumerView::consumer(SharedMemory::own(consumer_bytes())?);
        let bus_receiver = Self {
            node,
            number,
            shape,
            sources,
            types: Arc::new(BusTypes::new(types)),
            own,
            published: OnceLock::new(),
            overwritten: Counter::default(),
            bell: Event::new()?,
            generation: AtomicU32::new(0),
            control: Mutex::default(),
        };
        bus_receiver.memory().head.identity.announce(&Identity {
            epoch: epoch(),
            port: number.get(),
            process: std::process::id(),
            made_ns: clock::monotonic().as_nanos(),
            node: node.bytes(),
            ..shape.consumer_identity()
        });
        Ok(bus_receiver)
    }

    #[inline]
    pub(crate) fn memory(&self) -> ConsumerMemory<'_> {
        self.own.memory()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.own.mapping().file()
    }

    /// Readable once the bell has been rung since it was last quieted.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn published(&self) -> Option<&Arc<PublisherShared>> {
        self.published.get()
    }

    /// Port's thread: takes the memory in which it publishes for many.
    pub(crate) fn publish(&self) -> std::io::Result<&Arc<PublisherShared>> {
        if let Some(publisher) = self.published() {
            return Ok(publisher);
        }
        let publisher = PublisherShared::new(self.node, self.number, self.shape)?;
        Ok(self.published.get_or_init(|| Arc::new(publisher)))
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Service: takes an entry for a new peer, and offers it a fresh epoch. `None` if all entries are taken.
    pub(super) fn offer(&self, node: NodeName, port: PortNumber) -> Option<(usize, u64)> {
        let mut control = self.control();
        if matches!(self.shape.kind, Kind::Sampling) && self.sources > 1 {
            let is_known =
                |(other, of, _): &(NodeName, PortNumber, u32)| (*other, *of) == (node, port);
            let known = control.connections.iter();
            if known.len() >= self.sources && !known.clone().any(is_known) {
                control.refused += 1;
                return None;
            }
        }
        let index = control.used.trailing_ones() as usize;
        if index >= PRODUCERS_MAX {
            control.refused += 1;
            return None;
        }
        control.used |= 1 << index;
        let epoch = epoch();
        let entry = &self.memory().connections[index];
        reset(entry);
        // Release: partner is the producer's Acquire, where it reads the offer from memory.
        entry.offer.epoch.store(epoch, Release);
        Some((index, epoch))
    }

    pub(super) fn count_refused(&self) {
        self.control().refused += 1;
    }

    /// Service: the peer to whom this entry was offered will not come.
    pub(crate) fn take_back(&self, index: usize) {
        let mut control = self.control();
        let entry = &self.memory().connections[index];
        entry.offer.epoch.store(0, Relaxed);
        control.used &= !(1 << index);
    }

    pub(crate) fn connect(&self, incoming: &Arc<Incoming>) {
        let peer = (incoming.node, incoming.port);
        self.types.agree(peer, Direction::Receives);
        let entry = &self.memory().connections[incoming.index];
        for (taken, before) in entry.taken.taken.iter().zip(incoming.published_before) {
            taken.store(before as u32, Relaxed);
        }
        let mut control = self.control();
        control.arrivals.push(Arc::clone(incoming));
        control.live.push(Arc::clone(incoming));
        let same = |(node, port, _): &&mut (NodeName, PortNumber, u32)| {
            *node == incoming.node && *port == incoming.port
        };
        if let Some((_, _, count)) = control.connections.iter_mut().find(same) {
            *count += 1;
        } else if control.connections.len() < RESTARTS_MAX {
            control.connections.push((incoming.node, incoming.port, 1));
        }
        drop(control);
        self.changed();
    }

    pub(crate) fn hang_up(&self, incoming: &Incoming) {
        // Release: partner is the Acquire in `is_gone`.
        incoming.gone.store(true, Release);
        self.changed();
    }

    /// Tells the port's thread, and wakes it if it sleeps.
    fn changed(&self) {
        // Release: partner is the Acquire in `BusReceiver::refresh`.
        self.generation.fetch_add(1, Release);
        wake(&self.generation, false);
        self.bell.ring();
    }

    pub(crate) fn live(&self) -> Vec<Arc<Incoming>> {
        self.control().live.clone()
    }

    /// Whether our own memory can never be paged out. Those of peers are theirs to lock.
    pub(crate) fn is_resident(&self) -> bool {
        self.own.mapping().is_resident()
    }

    /// Whether a peer that the port has not seen yet has published a value.
    #[cold]
    pub(super) fn has_unseen_value(&self) -> bool {
        let control = self.control();
        control.arrivals.iter().any(|incoming| {
            let memory = incoming.memory();
            cell::Reader::new().fresh(memory.slots, &memory.head.latest)
        })
    }

    /// The newest value of all senders, for the status page. `None` for a queuing port, and where there is none.
    pub(crate) fn newest_value(&self) -> Option<SeenValue> {
        if self.shape.kind != Kind::Sampling {
            return None;
        }
        let of_sender = |incoming: &Arc<Incoming>| {
            let copy = |slot: Slot<'_>| {
                let head = slot.message();
                let length = (head.length as usize).min(slot.capacity());
                let mut bytes = vec![0; length];
                slot.copy_out(&mut bytes);
                SeenValue {
                    source: Source {
                        address: Address::Bus(incoming.node),
                        port: incoming.port,
                    },
                    arrival: Instant::from_nanos(head.arrival_ns),
                    bytes,
                }
            };
            // A writer's word is 0 before its first value.
            Some(copy_newest(incoming.memory(), 0, copy)?.1)
        };
        let values = self.live().into_iter();
        let values = values.filter_map(|incoming| of_sender(&incoming));
        values.max_by_key(|value| value.arrival)
    }

    pub(crate) fn figures(&self) -> Figures {
        let control = self.control();
        let mut figures = Figures {
            memory_bytes: self.own.mapping().bytes()
                + self.published().map_or(0, |publisher| publisher.bytes()),
            totals: control.past,
            queued: [0; CLASS_COUNT],
            refused: control.refused,
            peers: Vec::with_capacity(control.live.len()),
            newest_ns: None,
            oldest_waiting_ns: None,
        };
        let entries = self.memory().connections;
        for incoming in &control.live {
            let memory = incoming.memory();
            figures.memory_bytes += incoming.memory.mapping().bytes() + incoming.copies_bytes();
            add(&mut figures.totals, incoming, &entries[incoming.index]);
            let entry = &entries[incoming.index];
            let backlog = Backlog::of(incoming.shape.kind, incoming.is_for_many, memory, entry);
            for (queued, more) in figures.queued.iter_mut().zip(backlog.queued) {
                *queued += u64::from(more);
            }
            figures.newest_ns = figures.newest_ns.max(backlog.newest_ns);
            figures.oldest_waiting_ns =
                earlier(figures.oldest_waiting_ns, backlog.oldest_waiting_ns);
            let connections = control.connections.iter();
            let mut known = connections
                .filter(|(node, port, _)| (*node, *port) == (incoming.node, incoming.port));
            figures.peers.push(PeerFigures {
                node: incoming.node,
                port: incoming.port,
                received: incoming.received.read(),
                lost: match (self.shape.kind, incoming.is_for_many) {
                    (Kind::Queuing { .. }, true) => {
                        entries[incoming.index].taken.overwritten.load(Relaxed)
                    }
                    _ => wrapping_sum(&dropped(memory)),
                },
                restarts: known.next().map_or(0, |(_, _, count)| count - 1),
            });
        }
        figures
    }
}

#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) memory_bytes: usize,
    pub(crate) totals: Totals,
    pub(crate) queued: [u64; CLASS_COUNT],
    pub(crate) refused: u64,
    pub(crate) peers: Vec<PeerFigures>,
    /// When the newest message or value was published.
    pub(crate) newest_ns: Option<u64>,
    /// When the message was published that has waited longest.
    pub(crate) oldest_waiting_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct PeerFigures {
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    pub(crate) received: u64,
    pub(crate) lost: u64,
    pub(crate) restarts: u32,
}

/// A sum of what a peer says. It may say anything, hence no overflow.
pub(crate) fn wrapping_sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
}

fn dropped(memory: ProducerMemory<'_>) -> [u64; CLASS_COUNT] {
    std::array::from_fn(|class| memory.head.dropped_full.count[class].load(Relaxed))
}

/// Adds what a peer's memory says. It may say anything, hence no overflow.
pub(super) fn add(totals: &mut Totals, incoming: &Incoming, entry: &ConnectionEntry) {
    let memory = incoming.memory();
    totals.published = totals.published.wrapping_add(incoming.published());
    for (total, count) in totals.dropped_full.iter_mut().zip(dropped(memory)) {
        *total = total.wrapping_add(count);
    }
    totals.kicks += u64::from(wait::kicks(&memory.head.kick));
    totals.corrupt += entry.taken.corrupt.load(Relaxed);
    let overwritten = entry.taken.overwritten.load(Relaxed);
    totals.overwritten = totals.overwritten.wrapping_add(overwritten);
}

fn reset(entry: &ConnectionEntry) {
    for taken in &entry.taken.taken {
        taken.store(0, Relaxed);
    }
    entry.taken.corrupt.store(0, Relaxed);
    entry.taken.overwritten.store(0, Relaxed);
    entry.reading.reading.store(0, Relaxed);
}
