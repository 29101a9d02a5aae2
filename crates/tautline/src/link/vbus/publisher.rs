//! Publishing once for all who read: one memory of a port's, which its readers map. The writer takes no notice of how
//! far a reader has come, and looks at one word of each to see whether it sleeps. So a reader that is slow, stopped or
//! dead costs the others nothing, and itself the messages or values that it misses.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex};

use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::vbus::layout::{Identity, MessageHead, Slot};
use tautline_shm::vbus::region::ProducerMemory;
use tautline_shm::vbus::shape::Shape;
use tautline_shm::vbus::wait::{self, Kicker, WakeMode};
use tautline_state::Event;
use tautline_state::lock;

use super::epoch;
use super::sender::{Writer, count_value};
use super::view::{ConsumerView, ProducerView};
use crate::address::NodeName;
use crate::error::SendError;
use crate::message::Numbering;
use crate::sys::clock;
use crate::sys::shared::{SharedMemory, wake};
use crate::sys::ticks::Ticks;

/// Readers of one port. Lower: fewer programs can look at a picture. Higher: the writer looks at as many words for each
/// message.
pub(crate) const READERS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Reader {
    pub(super) memory: ConsumerView,
    pub(super) bell: Event,
    /// Which of the entries in its memory is for this port.
    pub(super) index: usize,
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    pub(crate) process: u32,
}

impl Reader {
    /// Whether it sleeps, or waits for its descriptor.
    pub(crate) fn sleeps(&self) -> bool {
        let waiting = &self.memory.memory().head.wait.waiting;
        waiting.load(Relaxed) & wait::WAKE_MODE != 0
    }

    /// Messages or values that it has missed, as it says itself.
    pub(crate) fn overwritten(&self) -> u64 {
        let entry = &self.memory.memory().connections[self.index];
        entry.taken.overwritten.load(Relaxed)
    }
}

/// State that the publishing port's thread, the service thread and the status page share.
#[derive(Debug)]
pub(crate) struct PublisherShared {
    own: ProducerView,
    pub(super) shape: Shape,
    /// Changes when a reader comes or goes.
    generation: AtomicU32,
    readers: Mutex<Vec<Arc<Reader>>>,
}

impl PublisherShared {
    pub(super) fn new(node: NodeName, port: PortNumber, shape: Shape) -> std::io::Result<Self> {
        let own = ProducerView::producer(SharedMemory::own(shape.producer_bytes())?, shape);
        own.memory().head.identity.announce(&Identity {
            epoch: epoch(),
            port: port.get(),
            process: std::process::id(),
            made_ns: clock::monotonic().as_nanos(),
            node: node.bytes(),
            ..shape.publisher_identity()
        });
        Ok(Self {
            own,
            shape,
            generation: AtomicU32::new(0),
            readers: Mutex::default(),
        })
    }

    #[inline]
    pub(crate) fn memory(&self) -> ProducerMemory<'_> {
        self.own.memory()
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.own.mapping().file()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.own.mapping().bytes()
    }

    pub(crate) fn readers(&self) -> Vec<Arc<Reader>> {
        lock(&self.readers).clone()
    }

    /// Service: one who reads; before it learns of the memory, so that the writer sees it before its first sleep.
    /// `false` if there is no place.
    pub(super) fn add(&self, reader: &Arc<Reader>) -> bool {
        let mut readers = lock(&self.readers);
        if readers.len() >= READERS_MAX {
            return false;
        }
        readers.push(Arc::clone(reader));
        // Release: partner is the Acquire in `Publisher::refresh`.
        self.generation.fetch_add(1, Release);
        true
    }

    pub(super) fn remove(&self, reader: &Arc<Reader>) {
        lock(&self.readers).retain(|other| !Arc::ptr_eq(other, reader));
        // Release: as above.
        self.generation.fetch_add(1, Release);
    }
}

#[derive(Debug)]
struct ReaderPlace {
    reader: Arc<Reader>,
    kicker: Kicker,
    wanted: Option<WakeMode>,
}

/// The writer, in the port's thread.
#[derive(Debug)]
pub(crate) struct Publisher {
    shared: Arc<PublisherShared>,
    place: Writer,
    readers: Vec<ReaderPlace>,
    generation: u32,
    numbering: Numbering,
    clock: Ticks,
}

impl Publisher {
    pub(crate) fn new(shared: Arc<PublisherShared>) -> Self {
        Self {
            place: Writer::of(shared.shape.kind),
            shared,
            readers: Vec::with_capacity(READERS_MAX),
            generation: 0,
            numbering: Numbering::default(),
            clock: Ticks::new(),
        }
    }

    fn check(&self, bytes: usize) -> Result<(), SendError> {
        let largest = self.shared.shape.message_bytes_max as usize;
        if bytes > largest {
            return Err(SendError::LargerThanReceiver { bytes, largest });
        }
        Ok(())
    }

    /// The place of the next message of a priority, or of the next value.
    fn next(&mut self, priority: Priority) -> Slot<'_> {
        let slots = self.shared.memory().slots;
        match &mut self.place {
            Writer::Ring(ring) => ring.next_for_all(slots, priority.index()),
            Writer::Cells(cells) => cells.next_for_all(slots),
        }
    }

    pub(crate) fn send(&mut self, priority: Priority, message: &[u8]) -> Result<(), SendError> {
        self.check(message.len())?;
        self.next(priority).copy_in(message);
        self.publish(priority, message.len());
        Ok(())
    }

    /// Lends the place of the next message or value: the start of `length` bytes that only we can write, until the
    /// publisher is used again.
    pub(crate) fn lend(&mut self, priority: Priority, length: usize) -> Result<*mut u8, SendError> {
        self.check(length)?;
        Ok(self.next(priority).payload())
    }

    /// Publishes what was lent last with this priority, or has been copied.
    pub(crate) fn publish(&mut self, priority: Priority, length: usize) {
        let head = MessageHead {
            length: length as u32,
            arrival_ns: self.clock.now().as_nanos(),
            sequence: self.numbering.take(),
            class: priority.index() as u32,
        };
        let memory = self.shared.memory();
        match &mut self.place {
            Writer::Ring(ring) => ring.publish_for_all(memory.head, memory.slots, &head),
            Writer::Cells(cells) => {
                cells.publish(&memory.head.latest, memory.slots, &head);
                count_value(memory);
            }
        }
        self.look_for_sleepers();
    }

    /// Wakes those who sleep. A full barrier, which the cells need.
    fn look_for_sleepers(&mut self) {
        wait::barrier();
        // After the barrier: a reader that was added before it slept is in the list.
        if self.shared.generation.load(Relaxed) != self.generation {
            self.refresh();
        }
        let mut any_sleeps = false;
        for place in &mut self.readers {
            let waiting = &place.reader.memory.memory().head.wait;
            place.wanted = place.kicker.wanted_by_one(waiting);
            any_sleeps |= place.wanted.is_some();
        }
        if any_sleeps {
            self.wake();
        }
    }

    #[cold]
    fn refresh(&mut self) {
        // Acquire: partner is the Release in `PublisherShared::add`.
        self.generation = self.shared.generation.load(Acquire);
        let list = lock(&self.shared.readers);
        // The service thread keeps those who have gone until we have let go of them, so nothing is unmapped here; and
        // there is room for all, so nothing is allocated.
        let stays =
            |place: &ReaderPlace| list.iter().any(|other| Arc::ptr_eq(other, &place.reader));
        self.readers.retain(stays);
        for reader in list.iter() {
            let is_known = |place: &ReaderPlace| Arc::ptr_eq(&place.reader, reader);
            if !self.readers.iter().any(is_known) {
                self.readers.push(ReaderPlace {
                    reader: Arc::clone(reader),
                    kicker: Kicker::new(),
                    wanted: None,
                });
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&mut self) {
        let kick = &self.shared.memory().head.kick;
        wait::kick_all(kick);
        let is_by_futex = |place: &ReaderPlace| place.wanted == Some(WakeMode::Futex);
        if self.readers.iter().any(is_by_futex) {
            wake(&kick.kick, true);
        }
        let is_by_event = |place: &&ReaderPlace| place.wanted == Some(WakeMode::Descriptor);
        for place in self.readers.iter().filter(is_by_event) {
            place.reader.bell.ring();
        }
    }
}
