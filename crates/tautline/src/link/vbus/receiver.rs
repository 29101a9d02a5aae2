//! The receiving side of a port on a bus, in the port's thread: looks for messages, waits, and lets go of peers that
//! are gone.

mod values;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use tautline_shm::vbus::layout::{
    CLASS_COUNT, ConnectionEntry, MessageHead, PRODUCERS_MAX, Slot, Slots,
};
use tautline_shm::vbus::shape::Kind;
use tautline_shm::vbus::wait::{self, Sleeper, WakeMode};
use tautline_shm::vbus::{cell, ring};

use self::values::KeptValue;
use super::incoming::{Copies, Incoming, ReceiverShared, add};
use crate::address::Source;
use crate::error::ReceiveError;
use crate::message::LentBytes;
use crate::sys::shared::{self, sleep_on};
use crate::sys::wait as poll;

/// Slots without sense that one look skips at most. Lower: a peer that fills its rings with them keeps
/// its messages from being found for longer. Higher: a look takes longer.
const SKIPS_MAX: usize = 16;

#[derive(Debug)]
struct Connection {
    incoming: Arc<Incoming>,
    ring: ring::Consumer,
    cell: cell::Reader,
    /// Kicks when the port last announced a sleep.
    kicks: u32,
    dying: bool,
    /// Sampling: the value that is ours until there is a newer one.
    held: KeptValue,
    /// Of a peer that publishes for many: room for copies.
    copies: Option<Copies>,
    /// Of one that publishes messages for many: the place in its rings.
    follower: Option<ring::Follower>,
}

/// Head of a message of a peer that publishes for many, until it has been copied. Its length is none that a message
/// has, so no look takes it for one that can be handed out.
const NOT_COPIED: MessageHead = MessageHead {
    length: u32::MAX,
    arrival_ns: 0,
    sequence: 0,
    class: 0,
};

#[derive(Debug)]
pub(crate) struct BusReceiver {
    pub(crate) shared: Arc<ReceiverShared>,
    connections: Vec<Connection>,
    generation: u32,
    /// Producer that is looked at first, in each class.
    first: [u8; CLASS_COUNT],
    any_dying: bool,
    sleeper: Sleeper,
    wake_mode: WakeMode,
    armed: bool,
}

/// A message in the slot of a peer: where it is, and what its head said when it was read and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundMessage {
    pub(crate) head: MessageHead,
    pub(crate) place: SlotRef,
}

/// Where a message was found: which peer's it is, and its class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef {
    connection: usize,
    pub(crate) class: usize,
}

impl Connection {
    /// The oldest message of a class. `connection` is which connection this is.
    #[inline(always)]
    fn look(&self, slots: Slots<'_>, connection: usize, class: usize) -> Option<FoundMessage> {
        let slot = self.ring.peek(slots, class)?;
        Some(FoundMessage {
            head: slot.message(),
            place: SlotRef { connection, class },
        })
    }

    /// The same of any peer: one that publishes for many has its message still to be copied.
    fn look_at_any(&self, connection: usize, class: usize) -> Option<FoundMessage> {
        let memory = self.incoming.memory();
        let Some(follower) = &self.follower else {
            return self.look(memory.slots, connection, class);
        };
        follower
            .has_next(memory.head, class)
            .then_some(FoundMessage {
                head: NOT_COPIED,
                place: SlotRef { connection, class },
            })
    }

    /// Copies the next message of a class of a peer that publishes for many, if it is there whole.
    fn copy(&mut self, shared: &ReceiverShared, class: usize) -> Option<MessageHead> {
        let (follower, copies) = (self.follower.as_mut()?, self.copies.as_mut()?);
        let memory = self.incoming.memory();
        let largest = self.incoming.shape.message_bytes_max;
        let followed = follower.copy(memory.head, memory.slots, class, largest, &mut copies[0]);
        if followed.overwritten > 0 {
            let entry = &shared.memory().connections[self.incoming.index];
            follower.show(&entry.taken, class);
            count_overwritten(entry, followed.overwritten);
            let before = shared.overwritten.read();
            let after = before.wrapping_add(followed.overwritten);
            shared.overwritten.set(after);
        }
        let mut head = followed.message?;
        if head.length > largest {
            // More than was copied; the port may take larger ones.
            head.length = NOT_COPIED.length;
        }
        Some(head)
    }

    /// Gives the slot of the oldest message of a class back, or goes on to the next one of those for many.
    #[inline(always)]
    fn release(&mut self, entry: &ConnectionEntry, class: usize) {
        match &mut self.follower {
            None => self.ring.release(&entry.taken, class),
            Some(follower) => follower.release(&entry.taken, class),
        }
    }

    fn has_message(&self) -> bool {
        (0..CLASS_COUNT).any(|class| self.look_at_any(0, class).is_some())
    }
}

/// Counts messages or values that a peer replaced before the port took them, for watchers.
fn count_overwritten(entry: &ConnectionEntry, count: u64) {
    let overwritten = &entry.taken.overwritten;
    overwritten.store(overwritten.load(Relaxed).wrapping_add(count), Relaxed);
}

impl BusReceiver {
    pub(crate) fn new(shared: Arc<ReceiverShared>) -> Self {
        Self {
            shared,
            connections: Vec::with_capacity(PRODUCERS_MAX),
            generation: 0,
            first: [0; CLASS_COUNT],
            any_dying: false,
            sleeper: Sleeper::new(),
            wake_mode: if shared::try_sleeping().is_ok() {
                WakeMode::Futex
            } else {
                WakeMode::Descriptor
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
        // Acquire: partner is the Release in `ReceiverShared::changed`.
        self.generation = self.shared.generation.load(Acquire);
        // The list keeps its room: the thread that adds to it allocates, this one does not.
        for incoming in self.shared.control().arrivals.drain(..) {
            let copies = incoming.take_copies();
            let cell = match copies {
                Some(_) => cell::Reader::of_many(incoming.latest_before),
                None => cell::Reader::new(),
            };
            let follower = match (&copies, incoming.shape.kind) {
                (Some(_), Kind::Queuing { depth }) => {
                    Some(ring::Follower::new(depth, incoming.published_before))
                }
                _ => None,
            };
            self.connections.push(Connection {
                copies,
                follower,
                incoming,
                ring: ring::Consumer::new(),
                cell,
                kicks: 0,
                dying: false,
                held: KeptValue::new(),
            });
        }
        for connection in &mut self.connections {
            connection.dying |= connection.incoming.is_gone();
            self.any_dying |= connection.dying;
        }
    }

    /// The most urgent message; among several peers, each class is served round robin. It stays until
    /// [`BusReceiver::release`]. At most [`SKIPS_MAX`] slots without sense are skipped.
    #[inline(always)]
    pub(crate) fn find(&mut self) -> Option<FoundMessage> {
        self.look_for_changes();
        match self.next_ready(0) {
            Some(found) if self.is_usual(&found.head) => Some(found),
            None if !self.any_dying => None,
            _ => {
                // Taken apart, so that the usual way need not put it together in memory.
                let FoundMessage { head, place } = self.find_slowly()?;
                Some(FoundMessage { head, place })
            }
        }
    }

    /// Whether a message can be handed out with nothing else to do.
    #[inline(always)]
    fn is_usual(&self, head: &MessageHead) -> bool {
        head.length <= self.shared.shape.message_bytes_max && !self.armed
    }

    /// Looks again, where the first look found a message without sense, one of those for many, or the first since a
    /// sleep, or nothing from a peer that is gone.
    #[cold]
    #[inline(never)]
    fn find_slowly(&mut self) -> Option<FoundMessage> {
        // Peers whose messages were replaced while they were copied: the next look tries anew.
        let mut passed = 0;
        for _ in 0..SKIPS_MAX {
            let Some(mut found) = self.next_ready(passed) else {
                if passed != 0 {
                    break;
                }
                if self.any_dying {
                    self.bury();
                }
                return None;
            };
            let SlotRef { connection, class } = found.place;
            if self.connections[connection].follower.is_some() {
                match self.connections[connection].copy(&self.shared, class) {
                    Some(head) => found.head = head,
                    None => {
                        passed |= 1 << connection;
                        continue;
                    }
                }
            }
            if found.head.length <= self.shared.shape.message_bytes_max {
                if self.armed {
                    self.disarm();
                }
                return Some(found);
            }
            self.skip(found.place);
        }
        if self.armed {
            // There may be more behind them, which will not be announced: there must be a look before a sleep.
            self.disarm();
            self.shared.bell.ring();
        }
        None
    }

    #[inline(always)]
    fn next_ready(&self, passed: u32) -> Option<FoundMessage> {
        if let [only] = &self.connections[..]
            && only.follower.is_none()
        {
            let slots = only.incoming.memory().slots;
            let mut classes = (0..CLASS_COUNT).rev();
            return classes.find_map(|class| only.look(slots, 0, class));
        }
        let FoundMessage { head, place } = self.next_of_several(passed)?;
        Some(FoundMessage { head, place })
    }

    /// The same among several peers, or of one that publishes for many. `passed` has a bit for each that is left out.
    #[inline(never)]
    fn next_of_several(&self, passed: u32) -> Option<FoundMessage> {
        let count = self.connections.len();
        for class in (0..CLASS_COUNT).rev() {
            let first = usize::from(self.first[class]);
            for place in 0..count {
                let index = (first + place) % count;
                if passed & (1 << index) != 0 {
                    continue;
                }
                if let Some(found) = self.connections[index].look_at_any(index, class) {
                    return Some(found);
                }
            }
        }
        None
    }

    #[cold]
    fn skip(&mut self, place: SlotRef) {
        let connection = &mut self.connections[place.connection];
        let entry = &self.shared.memory().connections[connection.incoming.index];
        let corrupt = &entry.taken.corrupt;
        corrupt.store(corrupt.load(Relaxed).wrapping_add(1), Relaxed);
        connection.release(entry, place.class);
    }

    /// The slot of a message that was found and has not been given back.
    #[inline(always)]
    fn slot(&self, place: SlotRef) -> Slot<'_> {
        let connection = &self.connections[place.connection];
        let slots = connection.incoming.memory().slots;
        connection.ring.expected(slots, place.class)
    }

    /// The bytes of a message that was found and has not been given back: where its sender has put them, or in a copy
    /// of what is published for many.
    #[inline(always)]
    pub(crate) fn bytes(&self, place: SlotRef, length: usize) -> LentBytes<'_> {
        match &self.connections[place.connection].copies {
            None => LentBytes::on_bus(self.slot(place), length),
            Some(copies) => LentBytes::of_copy(&copies[0], length),
        }
    }

    #[inline(always)]
    pub(crate) fn sender(&self, place: SlotRef) -> Source {
        self.connections[place.connection].incoming.source()
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, SlotRef { connection, class }: SlotRef) {
        let count = self.connections.len();
        let Some(from) = self.connections.get_mut(connection) else {
            return;
        };
        let entry = &self.shared.memory().connections[from.incoming.index];
        from.release(entry, class);
        from.incoming.received.add(1);
        if count > 1 {
            self.serve_next(connection, count, class);
        }
    }

    /// Among several peers, the one after this is looked at first.
    #[inline(never)]
    fn serve_next(&mut self, connection: usize, count: usize, class: usize) {
        self.first[class] = ((connection + 1) % count) as u8;
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
                Kind::Queuing { .. } => connection.has_message(),
                Kind::Sampling => self.is_worth_keeping(index, newest),
            };
            if !connection.dying || kept {
                self.any_dying |= connection.dying;
                index += 1;
                continue;
            }
            let mut connection = self.connections.swap_remove(index);
            connection.incoming.give_back(connection.copies.take());
            if newest == Some(self.connections.len()) {
                newest = Some(index);
            }
            let mut control = self.shared.control();
            let incoming = &connection.incoming;
            let entry = &self.shared.memory().connections[incoming.index];
            add(&mut control.past, incoming, entry);
            if !incoming.is_for_many {
                // Before the entry shows that the sender has gone. Watchers of another port see all of what one
                // publishes for many. Release: partner is the Acquire of a watcher.
                let ended = &self.shared.memory().head.ended.published;
                ended.fetch_add(incoming.published(), Release);
            }
            control.live.retain(|other| !Arc::ptr_eq(other, incoming));
            control.used &= !(1 << incoming.index);
            entry.offer.epoch.store(0, Relaxed);
        }
        self.first = [0; CLASS_COUNT];
    }

    /// Announces that a sleep, or a wait on the descriptor, may follow. Look once more after this.
    pub(crate) fn arm(&mut self, for_descriptor: bool) {
        let wake_mode = if for_descriptor {
            self.shared.bell.quiet();
            WakeMode::Descriptor
        } else {
            if self.wake_mode == WakeMode::Descriptor {
                self.shared.bell.quiet();
            }
            self.wake_mode
        };
        self.look_for_changes();
        self.sleeper.arm(&self.shared.memory().head.wait, wake_mode);
        self.armed = true;
        for connection in &mut self.connections {
            connection.kicks = wait::kicks(&connection.incoming.memory().head.kick);
        }
    }

    /// It is awake: no sender needs to kick.
    #[cold]
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
        self.sleeper.disarm(&self.shared.memory().head.wait);
    }

    /// Sleeps until something may have come since [`BusReceiver::arm`], at most for `timeout`. Not at all if the look
    /// after that ended before it had seen everything.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        if !self.armed {
            return Ok(());
        }
        let slept = if self.wake_mode == WakeMode::Descriptor {
            poll::readable(self.shared.descriptor(), timeout)
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
