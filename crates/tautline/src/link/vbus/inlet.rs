//! The receiving side of a port on a bus: its own memory, and the memories of those who send to it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::cell;
use tautline_shm::vbus::layout::{
    CLASS_COUNT, ConnectionEntry, Identity, MessageHead, PRODUCERS_MAX, Slot,
};
use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::ring;
use tautline_shm::vbus::shape::{Kind, Shape, consumer_bytes};
use tautline_shm::vbus::wait::{self, Manner, Sleeper};

use super::epoch;
use super::view::{ConsumerView, ProducerView, View};
use crate::address::NodeName;
use crate::error::ReceiveError;
use crate::statistics::Counter;
use crate::sys::event::Event;
use crate::sys::shared::{OwnMemory, PeerMemory, sleep_on, wake};
use crate::sys::{clock, shared, wait as poll};

/// Slots without sense that one look skips at most. Lower: a peer that fills its rings with them keeps
/// its messages from being found for longer. Higher: a look takes longer.
const SKIPS_MAX: usize = 16;
/// Peers whose reconnections are remembered. Lower: a count begins anew for a peer among many.
const RESTARTS_MAX: usize = 64;

/// One who sends to the port.
#[derive(Debug)]
pub(crate) struct Incoming {
    memory: ProducerView<PeerMemory>,
    index: usize,
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    pub(crate) process: u32,
    pub(crate) epoch: u64,
    /// Its process has hung up: nothing more is published.
    gone: AtomicBool,
    received: Counter,
}

impl Incoming {
    /// A peer whose memory has been checked to be of this shape.
    pub(crate) fn new(
        memory: ProducerView<PeerMemory>,
        index: usize,
        identity: &Identity,
        node: NodeName,
        port: PortNumber,
    ) -> Self {
        Self {
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

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.memory.mapping().file()
    }

    pub(crate) fn is_gone(&self) -> bool {
        // Acquire: partner is the Release in `hang_up`; what the peer published before is there.
        self.gone.load(Acquire)
    }
}

/// What has been counted of peers that are gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) published: u64,
    pub(crate) dropped_full: [u64; CLASS_COUNT],
    pub(crate) kicks: u64,
    pub(crate) corrupt: u64,
    /// Messages of peers that died before the port ever looked, and had to make room.
    pub(crate) abandoned: u64,
}

#[derive(Debug, Default)]
struct Control {
    /// Entries in use, a bit each.
    used: u32,
    /// Peers that the port has not seen yet.
    arrivals: Vec<Arc<Incoming>>,
    /// All peers.
    live: Vec<Arc<Incoming>>,
    past: Totals,
    /// Who has ever connected, and how often.
    connections: Vec<(NodeName, PortNumber, u32)>,
    /// Who came when all places were taken.
    refused: u64,
}

/// What the port's thread, the service thread and the status page share.
#[derive(Debug)]
pub(crate) struct InletShared {
    pub(crate) node: NodeName,
    pub(crate) number: PortNumber,
    pub(crate) shape: Shape,
    /// Sources that a sampling port keeps a value of; 1: the last of all.
    sources: usize,
    own: ConsumerView<OwnMemory>,
    event: Event,
    /// Changes when a peer comes or goes; a futex of this process.
    generation: AtomicU32,
    control: Mutex<Control>,
}

impl InletShared {
    pub(crate) fn new(
        node: NodeName,
        number: PortNumber,
        shape: Shape,
        sources: usize,
    ) -> std::io::Result<Self> {
        let own = View::consumer(OwnMemory::new(consumer_bytes())?);
        let inlet = Self {
            node,
            number,
            shape,
            sources,
            own,
            event: Event::new()?,
            generation: AtomicU32::new(0),
            control: Mutex::default(),
        };
        inlet.memory().head.identity.announce(&Identity {
            epoch: epoch(),
            port: number.get(),
            process: std::process::id(),
            made_ns: clock::monotonic().as_nanos(),
            node: node.bytes(),
            ..shape.consumer_identity()
        });
        Ok(inlet)
    }

    #[inline]
    pub(crate) fn memory(&self) -> ConsumerMemory<'_> {
        self.own.memory()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.own.mapping().file()
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // The lists stay whole at every step, so a panic elsewhere does not spoil them.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Service: takes an entry for a new peer, and offers it a fresh epoch. `None` if all are taken.
    pub(crate) fn offer(&self, node: NodeName, port: PortNumber) -> Option<(usize, u64)> {
        let mut control = self.control();
        if control.used == u32::MAX {
            abandon_dead(&mut control);
        }
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

    /// Service: the peer to whom this entry was offered will not come.
    pub(crate) fn take_back(&self, index: usize) {
        let mut control = self.control();
        let entry = &self.memory().connections[index];
        entry.offer.epoch.store(0, Relaxed);
        control.used &= !(1 << index);
    }

    /// Service: a peer is there.
    pub(crate) fn connect(&self, incoming: &Arc<Incoming>) {
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

    /// Service: a peer is gone.
    pub(crate) fn hang_up(&self, incoming: &Incoming) {
        // Release: partner is the Acquire in `is_gone`.
        incoming.gone.store(true, Release);
        self.changed();
    }

    /// Tells the port's thread, and wakes it if it sleeps.
    fn changed(&self) {
        // Release: partner is the Acquire in `Inlet::refresh`.
        self.generation.fetch_add(1, Release);
        wake(&self.generation, false);
        self.event.ring();
    }

    /// The peers that there are.
    pub(crate) fn live(&self) -> Vec<Arc<Incoming>> {
        self.control().live.clone()
    }

    /// Whether our own memory can never be paged out. Those of peers are theirs to lock.
    pub(crate) fn is_resident(&self) -> bool {
        self.own.mapping().is_resident()
    }

    /// Sources that a sampling port keeps a value of.
    pub(crate) fn sources_max(&self) -> usize {
        self.sources
    }

    /// Whether a peer that the port has not seen yet has published a value.
    #[cold]
    fn has_unseen_value(&self) -> bool {
        let control = self.control();
        control.arrivals.iter().any(|incoming| {
            let latest = &incoming.memory().head.latest;
            cell::Reader::new().fresh(latest)
        })
    }

    /// What the status page shows.
    pub(crate) fn figures(&self) -> Figures {
        let control = self.control();
        let mut figures = Figures {
            memory_bytes: self.own.mapping().bytes(),
            totals: control.past,
            queued: [0; CLASS_COUNT],
            refused: control.refused,
            peers: Vec::with_capacity(control.live.len()),
        };
        let entries = self.memory().connections;
        for incoming in &control.live {
            let memory = incoming.memory();
            figures.memory_bytes += incoming.memory.mapping().bytes();
            add(&mut figures.totals, incoming, &entries[incoming.index]);
            let taken = &entries[incoming.index].taken.taken;
            let classes = memory.head.published.count.iter().zip(taken);
            for (queued, (published, taken)) in figures.queued.iter_mut().zip(classes) {
                let waiting = (published.load(Relaxed) as u32).wrapping_sub(taken.load(Relaxed));
                if matches!(self.shape.kind, Kind::Queuing { depth } if waiting <= depth) {
                    *queued += u64::from(waiting);
                }
            }
            let connections = control.connections.iter();
            let mut known = connections
                .filter(|(node, port, _)| (*node, *port) == (incoming.node, incoming.port));
            figures.peers.push(PeerFigures {
                node: incoming.node,
                port: incoming.port,
                received: incoming.received.read(),
                lost: wrapping_sum(&dropped(memory)),
                restarts: known.next().map_or(0, |(_, _, count)| count - 1),
            });
        }
        figures
    }
}

/// What the status page shows of a port on a bus.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) memory_bytes: usize,
    pub(crate) totals: Totals,
    pub(crate) queued: [u64; CLASS_COUNT],
    pub(crate) refused: u64,
    pub(crate) peers: Vec<PeerFigures>,
}

/// The same of one peer.
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
fn add(totals: &mut Totals, incoming: &Incoming, entry: &ConnectionEntry) {
    let memory = incoming.memory();
    for count in &memory.head.published.count {
        totals.published = totals.published.wrapping_add(count.load(Relaxed));
    }
    for (total, count) in totals.dropped_full.iter_mut().zip(dropped(memory)) {
        *total = total.wrapping_add(count);
    }
    totals.kicks += u64::from(wait::kicks(&memory.head.kick));
    totals.corrupt += entry.taken.corrupt.load(Relaxed);
}

/// Makes room by forgetting peers that died before the port looked.
fn abandon_dead(control: &mut Control) {
    let Control {
        used,
        arrivals,
        live,
        past,
        ..
    } = control;
    arrivals.retain(|incoming| {
        if !incoming.is_gone() {
            return true;
        }
        for count in &incoming.memory().head.published.count {
            past.abandoned = past.abandoned.wrapping_add(count.load(Relaxed));
        }
        *used &= !(1 << incoming.index);
        live.retain(|other| !Arc::ptr_eq(other, incoming));
        false
    });
}

fn reset(entry: &ConnectionEntry) {
    for taken in &entry.taken.taken {
        taken.store(0, Relaxed);
    }
    entry.taken.corrupt.store(0, Relaxed);
    entry.reading.reading.store(0, Relaxed);
}

/// How far the port's thread has come with one peer.
#[derive(Debug)]
struct Connection {
    incoming: Arc<Incoming>,
    ring: ring::Consumer,
    cell: cell::Reader,
    /// Kicks when the port last announced a sleep.
    kicks: u32,
    dying: bool,
    /// Sampling: the value in our cell.
    held: Held,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    any: bool,
    new: bool,
    overwritten: u64,
    arrival_ns: u64,
}

/// The port's thread's place.
#[derive(Debug)]
pub(crate) struct Inlet {
    pub(crate) shared: Arc<InletShared>,
    connections: Vec<Connection>,
    generation: u32,
    /// Who is looked at first, in each class.
    first: [u8; CLASS_COUNT],
    any_dying: bool,
    sleeper: Sleeper,
    manner: Manner,
    armed: bool,
}

/// A message in the slot of a peer, read once and checked.
#[derive(Clone, Copy)]
pub(crate) struct Found<'i> {
    pub(crate) slot: Slot<'i>,
    pub(crate) head: MessageHead,
    pub(crate) class: usize,
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    connection: usize,
}

/// A value in the cell of a peer, read once and checked.
#[derive(Clone, Copy)]
pub(crate) struct Handed<'i> {
    pub(crate) slot: Slot<'i>,
    pub(crate) head: MessageHead,
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    /// Values of this peer that nobody saw, since the last that was handed out.
    pub(crate) overwritten: u64,
    pub(crate) new: bool,
}

#[inline]
fn is_sane(head: &MessageHead, largest: u32) -> bool {
    head.length <= largest && head.class < CLASS_COUNT as u32
}

impl Connection {
    /// Makes the peer's newest value the one that is held.
    fn move_on(&mut self, entry: &ConnectionEntry, shape: &Shape) {
        let memory = self.incoming.memory();
        let latest = &memory.head.latest;
        let Some(value) = self.cell.read(memory.slots, latest, &entry.reading) else {
            return;
        };
        if !value.new {
            return;
        }
        let head = value.cell.message();
        let unseen = u64::from(self.held.new) + u64::from(value.overwritten);
        let sane = is_sane(&head, shape.message_bytes_max);
        if !sane {
            let corrupt = &entry.taken.corrupt;
            corrupt.store(corrupt.load(Relaxed).wrapping_add(1), Relaxed);
        }
        self.held = Held {
            any: sane,
            new: sane,
            overwritten: self.held.overwritten + unseen,
            arrival_ns: head.arrival_ns,
        };
    }
}

impl Inlet {
    pub(crate) fn new(shared: Arc<InletShared>) -> Self {
        // A sleep on a word that has changed already ends at once, or is not known to the kernel.
        let generation = &shared.generation;
        let other = generation.load(Relaxed).wrapping_add(1);
        let can_sleep = sleep_on([(generation, other, false)].into_iter(), None).is_ok();
        Self {
            shared,
            connections: Vec::with_capacity(PRODUCERS_MAX),
            generation: 0,
            first: [0; CLASS_COUNT],
            any_dying: false,
            sleeper: Sleeper::new(),
            manner: if can_sleep {
                Manner::Futex
            } else {
                Manner::Descriptor
            },
            armed: false,
        }
    }

    #[inline]
    fn look_for_changes(&mut self) {
        if self.shared.generation.load(Relaxed) != self.generation {
            self.refresh();
        }
    }

    #[cold]
    fn refresh(&mut self) {
        // Acquire: partner is the Release in `InletShared::changed`.
        self.generation = self.shared.generation.load(Acquire);
        let arrivals = std::mem::take(&mut self.shared.control().arrivals);
        for incoming in arrivals {
            self.connections.push(Connection {
                incoming,
                ring: ring::Consumer::new(),
                cell: cell::Reader::new(),
                kicks: 0,
                dying: false,
                held: Held::default(),
            });
        }
        for connection in &mut self.connections {
            connection.dying |= connection.incoming.is_gone();
            self.any_dying |= connection.dying;
        }
    }

    /// The most urgent message; among several peers, each class is served round robin. It stays until
    /// [`Inlet::release`]. At most [`SKIPS_MAX`] slots without sense are skipped.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Found<'_>> {
        self.look_for_changes();
        for _ in 0..SKIPS_MAX {
            let Some((connection, class)) = self.next_ready() else {
                if self.any_dying {
                    self.bury();
                }
                return None;
            };
            let head = self.read_head(connection, class);
            if head.length <= self.shared.shape.message_bytes_max {
                if self.armed {
                    self.disarm();
                }
                return Some(self.found(connection, class, head));
            }
            self.skip(connection, class);
        }
        None
    }

    #[inline]
    fn next_ready(&self) -> Option<(usize, usize)> {
        let count = self.connections.len();
        if let [only] = &self.connections[..] {
            let slots = only.incoming.memory().slots;
            let class = (0..CLASS_COUNT)
                .rev()
                .find(|class| only.ring.peek(slots, *class).is_some())?;
            return Some((0, class));
        }
        for class in (0..CLASS_COUNT).rev() {
            let first = usize::from(self.first[class]);
            for place in 0..count {
                let index = (first + place) % count;
                let connection = &self.connections[index];
                let slots = connection.incoming.memory().slots;
                if connection.ring.peek(slots, class).is_some() {
                    return Some((index, class));
                }
            }
        }
        None
    }

    #[inline]
    fn read_head(&self, connection: usize, class: usize) -> MessageHead {
        let connection = &self.connections[connection];
        let slots = connection.incoming.memory().slots;
        connection.ring.expected(slots, class).message()
    }

    #[inline]
    fn found(&self, index: usize, class: usize, head: MessageHead) -> Found<'_> {
        let connection = &self.connections[index];
        let slots = connection.incoming.memory().slots;
        Found {
            slot: connection.ring.expected(slots, class),
            head,
            class,
            node: connection.incoming.node,
            port: connection.incoming.port,
            connection: index,
        }
    }

    #[cold]
    fn skip(&mut self, index: usize, class: usize) {
        let connection = &mut self.connections[index];
        let entry = &self.shared.memory().connections[connection.incoming.index];
        let corrupt = &entry.taken.corrupt;
        corrupt.store(corrupt.load(Relaxed).wrapping_add(1), Relaxed);
        connection.ring.release(&entry.taken, class);
    }

    /// The slot of a message that was found and has not been given back.
    #[inline]
    pub(crate) fn slot(&self, (index, class): (usize, usize)) -> Slot<'_> {
        let connection = &self.connections[index];
        let slots = connection.incoming.memory().slots;
        connection.ring.expected(slots, class)
    }

    /// Where a message that was found is, for [`Inlet::release`].
    #[inline]
    pub(crate) fn place(found: &Found<'_>) -> (usize, usize) {
        (found.connection, found.class)
    }

    /// Gives a slot back to its peer.
    #[inline]
    pub(crate) fn release(&mut self, (index, class): (usize, usize)) {
        let count = self.connections.len();
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let entry = &self.shared.memory().connections[connection.incoming.index];
        connection.ring.release(&entry.taken, class);
        connection.incoming.received.add(1);
        if count > 1 {
            self.first[class] = ((index + 1) % count) as u8;
        }
    }

    /// Lets go of peers that are gone and from whom nothing is left to take.
    #[cold]
    fn bury(&mut self) {
        let mut index = 0;
        self.any_dying = false;
        let newest = (0..self.connections.len())
            .filter_map(|place| Some((self.value(place)?.0, place)))
            .max();
        let mut newest = newest.map(|(_, place)| place);
        while index < self.connections.len() {
            let connection = &self.connections[index];
            let kept = match self.shared.shape.kind {
                Kind::Queuing { .. } => {
                    let slots = connection.incoming.memory().slots;
                    (0..CLASS_COUNT).any(|class| connection.ring.peek(slots, class).is_some())
                }
                Kind::Sampling => self.is_worth_keeping(index, newest),
            };
            if !connection.dying || kept {
                self.any_dying |= connection.dying;
                index += 1;
                continue;
            }
            let connection = self.connections.swap_remove(index);
            if newest == Some(self.connections.len()) {
                newest = Some(index);
            }
            let mut control = self.shared.control();
            let incoming = &connection.incoming;
            let entry = &self.shared.memory().connections[incoming.index];
            add(&mut control.past, incoming, entry);
            control.live.retain(|other| !Arc::ptr_eq(other, incoming));
            control.used &= !(1 << incoming.index);
            entry.offer.epoch.store(0, Relaxed);
        }
        self.first = [0; CLASS_COUNT];
    }

    /// Whether the value of a peer that is gone may still be asked for: it is the newest of all, or on a
    /// port that keeps one of each source, that source has sent no other since.
    fn is_worth_keeping(&self, place: usize, newest: Option<usize>) -> bool {
        let gone = &self.connections[place];
        if !gone.held.any {
            return false;
        }
        if self.shared.sources_max() == 1 {
            return newest == Some(place);
        }
        let source = self.source(place);
        let mut others = (0..self.connections.len()).filter(|other| *other != place);
        !others.any(|other| self.source(other) == source && self.connections[other].held.any)
    }

    /// Whether there is a value that has not been handed out, without taking notice of it.
    pub(crate) fn fresh(&self) -> bool {
        let is_fresh = |connection: &Connection| {
            let memory = connection.incoming.memory();
            connection.held.new || connection.cell.fresh(&memory.head.latest)
        };
        self.connections.iter().any(is_fresh)
            || (self.shared.generation.load(Relaxed) != self.generation
                && self.shared.has_unseen_value())
    }

    /// Makes each peer's newest value the one that is held; whether there is one that has not been
    /// handed out.
    #[inline]
    pub(crate) fn refresh_values(&mut self) -> bool {
        self.look_for_changes();
        let mut new = false;
        for connection in &mut self.connections {
            let memory = connection.incoming.memory();
            if connection.cell.fresh(&memory.head.latest) {
                let entry = &self.shared.memory().connections[connection.incoming.index];
                connection.move_on(entry, &self.shared.shape);
            }
            new |= connection.held.new;
        }
        if new && self.armed {
            self.disarm();
        }
        if self.any_dying {
            self.bury();
        }
        new
    }

    /// Places of values; some may be empty.
    pub(crate) fn value_count(&self) -> usize {
        self.connections.len()
    }

    /// When the value in a place was published, and whether it has not been handed out.
    pub(crate) fn value(&self, place: usize) -> Option<(u64, bool)> {
        let held = &self.connections.get(place)?.held;
        held.any.then_some((held.arrival_ns, held.new))
    }

    /// Whose place it is.
    pub(crate) fn source(&self, place: usize) -> Option<(NodeName, PortNumber)> {
        let connection = self.connections.get(place)?;
        Some((connection.incoming.node, connection.incoming.port))
    }

    /// The place of the value that was published last. On a port that keeps one value for all, the
    /// others count as replaced by it.
    #[inline]
    pub(crate) fn newest(&mut self) -> Option<usize> {
        if let [only] = &self.connections[..] {
            return only.held.any.then_some(0);
        }
        let arrivals =
            (0..self.connections.len()).filter_map(|place| Some((self.value(place)?.0, place)));
        let (_, newest) = arrivals.max()?;
        if self.shared.sources_max() == 1 {
            let mut replaced = 0;
            for (place, connection) in self.connections.iter_mut().enumerate() {
                let held = &mut connection.held;
                if place != newest && held.new {
                    held.new = false;
                    replaced += 1 + std::mem::take(&mut held.overwritten);
                }
            }
            self.connections[newest].held.overwritten += replaced;
        }
        Some(newest)
    }

    /// Hands out the value in a place. It stays until the next [`Inlet::refresh_values`].
    #[inline]
    pub(crate) fn hand(&mut self, place: usize) -> Option<Handed<'_>> {
        let largest = self.shared.shape.message_bytes_max;
        let connection = self.connections.get_mut(place)?;
        if !connection.held.any {
            return None;
        }
        let slot = connection.cell.held(connection.incoming.memory().slots)?;
        // Read anew, and checked anew: the peer may have changed it since.
        let head = slot.message();
        let new = std::mem::take(&mut connection.held.new);
        let overwritten = std::mem::take(&mut connection.held.overwritten);
        if !is_sane(&head, largest) {
            return None;
        }
        connection.incoming.received.add(u64::from(new));
        Some(Handed {
            slot,
            head,
            node: connection.incoming.node,
            port: connection.incoming.port,
            overwritten,
            new,
        })
    }

    /// Announces that a sleep, or a wait on the descriptor, may follow. Look once more after this.
    pub(crate) fn arm(&mut self, for_descriptor: bool) {
        let manner = if for_descriptor {
            self.shared.event.quiet();
            Manner::Descriptor
        } else {
            if self.manner == Manner::Descriptor {
                self.shared.event.quiet();
            }
            self.manner
        };
        self.look_for_changes();
        self.sleeper.arm(&self.shared.memory().head.wait, manner);
        self.armed = true;
        for connection in &mut self.connections {
            connection.kicks = wait::kicks(&connection.incoming.memory().head.kick);
        }
    }

    /// It is awake: nobody needs to kick.
    #[cold]
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
        self.sleeper.disarm(&self.shared.memory().head.wait);
    }

    /// Sleeps until something may have come since [`Inlet::arm`], at most for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        let slept = if self.manner == Manner::Descriptor {
            poll::readable(self.shared.event(), timeout)
        } else {
            let own = (&self.shared.generation, self.generation, false);
            let peers = self.connections.iter().map(|connection| {
                let kick = &connection.incoming.memory().head.kick.kick;
                (kick, connection.kicks, true)
            });
            sleep_on(std::iter::once(own).chain(peers), timeout)
        };
        self.disarm();
        Ok(slept?)
    }
}

const _: () = assert!(PRODUCERS_MAX < shared::WORDS_MAX && PRODUCERS_MAX <= u32::BITS as usize);
