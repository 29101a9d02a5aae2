//! The sending side: one port's way to one port of a peer.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex};

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::vbus::cell;
use tautline_shm::vbus::layout::{CLASS_COUNT, MessageHead, Slot};
use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::ring;
use tautline_shm::vbus::shape::{Kind, Shape};
use tautline_shm::vbus::wait::{Kicker, WakeMode};
use tautline_state::Event;
use tautline_state::lock;

use super::connect_state::ConnectState;
use super::service::{Command, ServiceHandle};
use super::types::BusTypes;
use super::view::{ConsumerView, ProducerView};
use crate::address::NodeName;
use crate::error::{PortError, SendError};
use crate::message::Numbering;
use crate::statistics::Statistics;
use crate::sys::shared::{SharedMemory, wake};
use crate::sys::ticks::Ticks;
use crate::types::Direction;

/// Messages of a batch that are shown to the consumer at once. Lower: producer and consumer get into each
/// other's lines more often. Higher: the first of a large batch waits for longer. Rings may be
/// shallower than this: then a batch is shown when they are full.
const BATCH_SHOWN_MAX: u32 = 32;

#[derive(Debug)]
pub(crate) struct Established {
    pub(super) own: ProducerView,
    /// Checked to be a consumer's.
    pub(super) peer: ConsumerView,
    pub(super) bell: Event,
    pub(super) shape: Shape,
    pub(super) index: usize,
}

impl Established {
    #[inline]
    pub(crate) fn memory(&self) -> ProducerMemory<'_> {
        self.own.memory()
    }

    pub(crate) fn own(&self) -> &SharedMemory {
        self.own.mapping()
    }

    #[inline]
    pub(crate) fn consumer(&self) -> ConsumerMemory<'_> {
        self.peer.memory()
    }

    /// Messages that were published and that the consumer has not taken.
    fn outstanding(&self) -> u64 {
        let Kind::Queuing { depth } = self.shape.kind else {
            return 0;
        };
        let taken = &self.consumer().connections[self.index].taken.taken;
        let published = &self.memory().head.published.count;
        (0..CLASS_COUNT)
            .map(|class| {
                let published = published[class].load(Relaxed) as u32;
                // The consumer may write anything there.
                published
                    .wrapping_sub(taken[class].load(Acquire))
                    .min(depth)
            })
            .map(u64::from)
            .sum()
    }
}

/// State that the port's thread and the service thread share.
#[derive(Debug)]
pub(crate) struct SenderShared {
    pub(crate) from: PortNumber,
    pub(crate) node: NodeName,
    pub(crate) to: PortNumber,
    pub(super) types: Arc<BusTypes>,
    established: Mutex<Option<Arc<Established>>>,
    pub(super) attempt: ConnectState,
}

impl SenderShared {
    /// Service: the connection is there, or no longer.
    pub(crate) fn set(&self, established: Option<Arc<Established>>) {
        let is_there = established.is_some();
        if is_there {
            self.types.agree((self.node, self.to), Direction::Sends);
        }
        *lock(&self.established) = established;
        self.attempt.set(is_there);
    }
}

#[derive(Debug)]
struct Active {
    connection: Arc<Established>,
    place: Writer,
    kicker: Kicker,
    clock: Ticks,
}

#[derive(Debug)]
pub(super) enum Writer {
    Ring(ring::Producer),
    Cells(cell::Writer),
}

impl Writer {
    pub(super) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Queuing { depth } => Self::Ring(ring::Producer::new(depth)),
            Kind::Sampling => Self::Cells(cell::Writer::new()),
        }
    }
}

/// One way of a port. Gone with its flow.
#[derive(Debug)]
pub(crate) struct BusSender {
    shared: Arc<SenderShared>,
    service: Arc<ServiceHandle>,
    generation: u32,
    active: Option<Active>,
    /// Ready before the first message, since getting it ready allocates.
    clock: Ticks,
    /// The port's, for messages that peers had not taken when they went.
    statistics: Arc<Statistics>,
    /// Error of a send while nothing is active.
    missing: SendError,
}

impl BusSender {
    pub(crate) fn new(
        service: &Arc<ServiceHandle>,
        from: PortNumber,
        node: NodeName,
        to: PortNumber,
        (types, statistics): (&Arc<BusTypes>, &Arc<Statistics>),
    ) -> Self {
        let shared = Arc::new(SenderShared {
            from,
            node,
            to,
            types: Arc::clone(types),
            established: Mutex::default(),
            attempt: ConnectState::default(),
        });
        service.command(Command::Connect(Arc::clone(&shared)));
        Self {
            shared,
            service: Arc::clone(service),
            generation: 0,
            active: None,
            clock: Ticks::new(),
            statistics: Arc::clone(statistics),
            missing: SendError::PeerGone,
        }
    }

    pub(crate) fn leads_to(&self, name: &str, to: PortNumber) -> bool {
        self.shared.to == to && self.shared.node.as_str() == name
    }

    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<(), PortError> {
        let peer = (self.shared.node, self.shared.to);
        self.shared.attempt.wait(peer, deadline)
    }

    #[cold]
    fn refresh(&mut self) {
        // Acquire: partner is the Release in `ConnectState::set`.
        self.generation = self.shared.attempt.generation.load(Acquire);
        if let Some(old) = self.active.take() {
            let outstanding = old.connection.outstanding();
            self.statistics.undelivered.add(outstanding);
        }
        // The service thread keeps the old connection until we have let go of it, so nothing is unmapped here.
        let established = lock(&self.shared.established).clone();
        self.missing = match self.shared.attempt.obstacle() {
            Some(_) => SendError::OtherType,
            None => SendError::PeerGone,
        };
        self.active = established.map(|connection| Active {
            place: Writer::of(connection.shape.kind),
            connection,
            kicker: Kicker::new(),
            clock: self.clock.clone(),
        });
    }

    #[inline(always)]
    fn active(&mut self, bytes: usize) -> Result<&mut Active, SendError> {
        if self.shared.attempt.generation.load(Relaxed) != self.generation {
            self.refresh();
        }
        let active = self.active.as_mut().ok_or(self.missing)?;
        active.check(bytes)?;
        Ok(active)
    }

    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        priority: Priority,
        sequence: u32,
        message: &[u8],
    ) -> Result<(), SendError> {
        let active = self.active(message.len())?;
        active.put(priority.index(), sequence, None, message)?;
        active.kick();
        Ok(())
    }

    /// Sends messages until one cannot be sent; the clock is read once, and the peer woken once. How
    /// many were sent, and why not the next.
    pub(crate) fn send_batch<'b>(
        &mut self,
        priority: Priority,
        numbering: &mut Numbering,
        messages: impl Iterator<Item = &'b [u8]>,
    ) -> (usize, Result<(), SendError>) {
        // One connection for the whole batch: what is staged belongs to it.
        let active = match self.active(0) {
            Ok(active) => active,
            Err(error) => return (0, Err(error)),
        };
        let mut batch = Batch {
            class: priority.index(),
            arrival_ns: active.clock.now().as_nanos(),
            staged: 0,
        };
        let mut sent = 0;
        let mut result = Ok(());
        for message in messages {
            let own = numbering.take();
            result = active
                .check(message.len())
                .and_then(|()| active.add(&mut batch, own, message));
            if result.is_err() {
                // The caller knows, and may send it again.
                numbering.give_back();
                break;
            }
            sent += 1;
        }
        if sent > 0 {
            active.show(&mut batch);
            active.kick();
        }
        (sent, result)
    }

    /// Lends the place of the next message: the start of `length` bytes that only we can write, until
    /// the sender is used again.
    #[inline(always)]
    pub(crate) fn lend(&mut self, priority: Priority, length: usize) -> Result<*mut u8, SendError> {
        let Active {
            connection, place, ..
        } = self.active(length)?;
        let slot = next(connection, place, priority.index())?;
        debug_assert!(length <= slot.capacity());
        Ok(slot.payload())
    }

    #[inline(always)]
    pub(crate) fn publish_lent(
        &mut self,
        priority: Priority,
        length: usize,
        sequence: u32,
    ) -> Result<(), SendError> {
        // The connection may have ended meanwhile: then the message goes nowhere, as it would have a moment later.
        let active = self.active.as_mut().ok_or(SendError::PeerGone)?;
        let Active {
            connection,
            place,
            clock,
            ..
        } = &mut *active;
        let message = MessageHead {
            length: length as u32,
            arrival_ns: clock.now().as_nanos(),
            sequence,
            class: priority.index() as u32,
        };
        publish(connection, place, &message);
        active.kick();
        Ok(())
    }
}

struct Batch {
    class: usize,
    arrival_ns: u64,
    /// Messages that the consumer does not see yet.
    staged: u32,
}

impl Active {
    #[inline(always)]
    fn check(&self, bytes: usize) -> Result<(), SendError> {
        let largest = self.connection.shape.message_bytes_max as usize;
        if bytes > largest {
            return Err(SendError::LargerThanReceiver { bytes, largest });
        }
        Ok(())
    }

    #[inline]
    fn add(&mut self, batch: &mut Batch, sequence: u32, message: &[u8]) -> Result<(), SendError> {
        let head = MessageHead {
            length: message.len() as u32,
            arrival_ns: batch.arrival_ns,
            sequence,
            class: batch.class as u32,
        };
        if batch.staged == BATCH_SHOWN_MAX {
            self.show(batch);
        }
        let Self {
            connection, place, ..
        } = self;
        let memory = connection.memory();
        let entry = &connection.consumer().connections[connection.index];
        if let Writer::Ring(ring) = place
            && let Ok(slot) = ring.next(memory.slots, &entry.taken, batch.class)
        {
            slot.copy_in(message);
            ring.stage(memory.slots, slot, &head);
            batch.staged += 1;
            return Ok(());
        }
        // The ring was full a moment ago, or this is a value, after which a barrier must come. What is staged must be
        // shown before anything is published.
        self.show(batch);
        self.put(batch.class, sequence, Some(batch.arrival_ns), message)?;
        self.kick();
        Ok(())
    }

    fn show(&mut self, batch: &mut Batch) {
        let Self {
            connection, place, ..
        } = self;
        let memory = connection.memory();
        if let Writer::Ring(ring) = place {
            let staged = std::mem::take(&mut batch.staged);
            ring.publish_staged(memory.head, memory.slots, batch.class, staged);
        }
    }

    /// Publishes a message. `arrival_ns`: the time of its batch.
    #[inline(always)]
    fn put(
        &mut self,
        class: usize,
        sequence: u32,
        arrival_ns: Option<u64>,
        message: &[u8],
    ) -> Result<(), SendError> {
        let Self {
            connection,
            place,
            clock,
            ..
        } = self;
        let slot = next(connection, place, class)?;
        slot.copy_in(message);
        // The clock after the copy: the slot's lines come while it is read.
        let arrival_ns = arrival_ns.unwrap_or_else(|| clock.now().as_nanos());
        let head = MessageHead {
            length: message.len() as u32,
            arrival_ns,
            sequence,
            class: class as u32,
        };
        publish(connection, place, &head);
        Ok(())
    }

    /// Wakes the consumer if it sleeps. A full barrier, which sampling needs.
    #[inline(always)]
    fn kick(&mut self) {
        let head = self.connection.memory().head;
        let wait = &self.connection.consumer().head.wait;
        if let Some(wake_mode) = self.kicker.wanted(&head.kick, wait) {
            self.wake(wake_mode);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&mut self, wake_mode: WakeMode) {
        match wake_mode {
            WakeMode::Futex => wake(&self.connection.memory().head.kick.kick, true),
            WakeMode::Descriptor => self.connection.bell.ring(),
        }
    }
}

#[inline(always)]
fn next<'c>(
    connection: &'c Established,
    place: &mut Writer,
    class: usize,
) -> Result<Slot<'c>, SendError> {
    let memory = connection.memory();
    let entry = &connection.consumer().connections[connection.index];
    match place {
        Writer::Ring(ring) => match ring.next(memory.slots, &entry.taken, class) {
            Ok(slot) => Ok(slot),
            Err(ring::Full) => {
                ring.give_up(memory.head, class);
                Err(SendError::ReceiverFull)
            }
        },
        Writer::Cells(writer) => Ok(writer.next(memory.slots, &entry.reading)),
    }
}

/// Publishes the place that [`next`] gave last for this class.
#[inline(always)]
fn publish(connection: &Established, place: &mut Writer, head: &MessageHead) {
    let memory = connection.memory();
    match place {
        Writer::Ring(ring) => ring.publish(memory.head, memory.slots, head),
        Writer::Cells(writer) => {
            writer.publish(&memory.head.latest, memory.slots, head);
            count_value(memory);
        }
    }
}

/// For watchers.
#[inline]
pub(super) fn count_value(memory: ProducerMemory<'_>) {
    let count = &memory.head.published.count[0];
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Drop for BusSender {
    fn drop(&mut self) {
        self.active = None;
        self.service
            .command(Command::Disconnect(Arc::clone(&self.shared)));
    }
}
