//! The newest values of a sampling port's peers.

use std::sync::atomic::Ordering::Relaxed;

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::layout::{CLASS_COUNT, MessageHead};

use super::{BusReceiver, Connection, Incoming, ReceiverShared, count_overwritten};
use crate::address::NodeName;
use crate::message::LentBytes;

/// Bytes of the largest value that is copied when it is found, and not left where it lies. Lower: more values ask for
/// a cell of the reader's own, for which two lines and a barrier go between the sides. Higher: the copy takes as long
/// as that, and a port is larger, by this for each peer.
const COPIED_BYTES_MAX: usize = 256;

/// A peer's value that is ours until there is a newer one.
#[derive(Debug)]
pub(super) struct KeptValue {
    any: bool,
    new: bool,
    overwritten: u64,
    head: MessageHead,
    place: Place,
    copy: [u64; COPIED_BYTES_MAX / 8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the cell that the reader has.
    Cell,
    /// In the copy beside it.
    Copy,
    /// In one of the connection's copies of what is published for many.
    OfMany(usize),
}

impl KeptValue {
    #[inline(always)]
    fn renew(&mut self, head: MessageHead, overwritten: u32, place: Place) {
        self.overwritten += u64::from(self.new) + u64::from(overwritten);
        self.any = true;
        self.new = true;
        self.head = head;
        self.place = place;
    }

    pub(super) fn new() -> Self {
        Self {
            any: false,
            new: false,
            overwritten: 0,
            head: MessageHead {
                length: 0,
                arrival_ns: 0,
                sequence: 0,
                class: 0,
            },
            place: Place::Cell,
            copy: [0; COPIED_BYTES_MAX / 8],
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct CurrentValue<'i> {
    pub(crate) bytes: LentBytes<'i>,
    pub(crate) head: MessageHead,
    pub(crate) from: &'i Incoming,
    /// Values of this peer that were not seen, since the last that was handed out.
    pub(crate) overwritten: u64,
    pub(crate) new: bool,
}

#[inline]
fn is_sane(head: &MessageHead, largest: u32) -> bool {
    head.length <= largest && head.class < CLASS_COUNT as u32
}

impl Connection {
    /// Makes the peer's newest value the one that is held, if there is one that is not.
    #[inline(always)]
    fn look_for_value(&mut self, shared: &ReceiverShared) {
        let memory = self.incoming.memory();
        let largest = shared.shape.message_bytes_max;
        let limit = largest.min(COPIED_BYTES_MAX as u32);
        let copy = &mut self.held.copy;
        match self.cell.copy_next(memory.slots, limit, copy) {
            Some(copied) if is_sane(&copied.message, largest) => {
                self.held
                    .renew(copied.message, copied.overwritten, Place::Copy);
            }
            Some(copied) => self.reject(shared, copied.overwritten),
            None if !self.cell.fresh(memory.slots, &memory.head.latest) => {}
            None => self.move_on(shared),
        }
    }

    /// The same where the next value is not the newest, or by a cell of the reader's own.
    #[inline(never)]
    fn move_on(&mut self, shared: &ReceiverShared) {
        if self.copies.is_some() {
            return self.move_on_among_many(shared);
        }
        let memory = self.incoming.memory();
        let latest = &memory.head.latest;
        let largest = shared.shape.message_bytes_max;
        let limit = largest.min(COPIED_BYTES_MAX as u32);
        let copy = &mut self.held.copy;
        let copied = self.cell.copy_latest(memory.slots, latest, limit, copy);
        let (message, overwritten) = if let Some(copied) = copied {
            (copied.message, copied.overwritten)
        } else {
            let entry = &shared.memory().connections[self.incoming.index];
            match self.cell.read(memory.slots, latest, &entry.reading) {
                Some(value) if value.new => (value.cell.message(), value.overwritten),
                // A copy that failed may have spoilt ours. Then there is a newer value, unless the peer breaks the
                // rules, and what is spoilt is its own.
                _ => return,
            }
        };
        if is_sane(&message, largest) {
            let place = match copied {
                Some(_) => Place::Copy,
                None => Place::Cell,
            };
            self.held.renew(message, overwritten, place);
        } else {
            self.reject(shared, overwritten);
        }
    }

    /// The same of a peer that publishes for many: the newest value is copied beside the one that is held.
    fn move_on_among_many(&mut self, shared: &ReceiverShared) {
        let Some(copies) = &mut self.copies else {
            return;
        };
        let memory = self.incoming.memory();
        let largest = self.incoming.shape.message_bytes_max;
        let other = match self.held.place {
            Place::OfMany(index) => 1 - index,
            _ => 0,
        };
        let (latest, copy) = (&memory.head.latest, &mut copies[other]);
        let followed = self.cell.follow(memory.slots, latest, largest, copy);
        if let Some(copied) = followed.filter(|copied| copied.overwritten > 0) {
            let entry = &shared.memory().connections[self.incoming.index];
            count_overwritten(entry, copied.overwritten.into());
        }
        match followed {
            Some(copied) if is_sane(&copied.message, largest) => {
                let place = Place::OfMany(other);
                self.held.renew(copied.message, copied.overwritten, place);
            }
            Some(copied) => self.reject(shared, copied.overwritten),
            // Replaced again and again while it was copied: the next look tries anew.
            None => {}
        }
    }

    /// Counts a value without sense. There is none, then, until the next.
    #[cold]
    fn reject(&mut self, shared: &ReceiverShared, overwritten: u32) {
        let entry = &shared.memory().connections[self.incoming.index];
        let corrupt = &entry.taken.corrupt;
        corrupt.store(corrupt.load(Relaxed).wrapping_add(1), Relaxed);
        let held = &mut self.held;
        held.overwritten += u64::from(held.new) + u64::from(overwritten);
        held.any = false;
        held.new = false;
    }
}

impl BusReceiver {
    /// Whether the value of a peer that is gone may still be asked for: it is the newest of all, or on a
    /// port that keeps one of each source, that source has sent no other since.
    pub(super) fn is_worth_keeping(&self, place: usize, newest: Option<usize>) -> bool {
        let gone = &self.connections[place];
        if !gone.held.any {
            return false;
        }
        if self.shared.sources == 1 {
            return newest == Some(place);
        }
        let source = self.source(place);
        let mut others = (0..self.connections.len()).filter(|other| *other != place);
        !others.any(|other| self.source(other) == source && self.connections[other].held.any)
    }

    /// Whether there is a value that has not been handed out, without taking notice of it.
    #[inline(always)]
    pub(crate) fn fresh(&self) -> bool {
        let is_fresh = |connection: &Connection| {
            let memory = connection.incoming.memory();
            connection.held.new || connection.cell.fresh(memory.slots, &memory.head.latest)
        };
        let any_is_fresh = match &self.connections[..] {
            [only] => is_fresh(only),
            several => several.iter().any(is_fresh),
        };
        any_is_fresh
            || (self.shared.generation.load(Relaxed) != self.generation
                && self.shared.has_unseen_value())
    }

    /// Makes each peer's newest value the one that is held; whether there is one that has not been handed out.
    #[inline(always)]
    pub(crate) fn refresh_values(&mut self) -> bool {
        self.look_for_changes();
        let new = if let [only] = &mut self.connections[..] {
            only.look_for_value(&self.shared);
            only.held.new
        } else {
            self.refresh_several()
        };
        if (new && self.armed) || self.any_dying {
            self.tidy(new);
        }
        new
    }

    #[inline(never)]
    fn refresh_several(&mut self) -> bool {
        let mut new = false;
        for connection in &mut self.connections {
            connection.look_for_value(&self.shared);
            new |= connection.held.new;
        }
        new
    }

    /// Work that remains after a look.
    #[cold]
    fn tidy(&mut self, new: bool) {
        if new && self.armed {
            self.disarm();
        }
        if self.any_dying {
            self.bury();
        }
    }

    pub(crate) fn value_count(&self) -> usize {
        self.connections.len()
    }

    /// When the value in a place was published, and whether it has not been handed out.
    pub(crate) fn value(&self, place: usize) -> Option<(u64, bool)> {
        let held = &self.connections.get(place)?.held;
        held.any.then_some((held.head.arrival_ns, held.new))
    }

    pub(crate) fn source(&self, place: usize) -> Option<(NodeName, PortNumber)> {
        let connection = self.connections.get(place)?;
        Some((connection.incoming.node, connection.incoming.port))
    }

    /// The place of the value that was published last. On a port that keeps one value for all, the
    /// others count as replaced by it.
    #[inline(always)]
    pub(crate) fn newest(&mut self) -> Option<usize> {
        if let [only] = &self.connections[..] {
            return only.held.any.then_some(0);
        }
        self.newest_of_several()
    }

    #[inline(never)]
    fn newest_of_several(&mut self) -> Option<usize> {
        let arrivals =
            (0..self.connections.len()).filter_map(|place| Some((self.value(place)?.0, place)));
        let (_, newest) = arrivals.max()?;
        if self.shared.sources == 1 {
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

    /// Hands out the value in a place. It stays until the next [`BusReceiver::refresh_values`].
    #[inline(always)]
    pub(crate) fn hand(&mut self, place: usize) -> Option<CurrentValue<'_>> {
        let largest = self.shared.shape.message_bytes_max;
        let connection = self.connections.get_mut(place)?;
        let held = &mut connection.held;
        if !held.any {
            return None;
        }
        let new = std::mem::take(&mut held.new);
        let overwritten = std::mem::take(&mut held.overwritten);
        let (bytes, head) = if held.place != Place::Cell {
            let length = held.head.length as usize;
            let copy = match (held.place, &connection.copies) {
                (Place::OfMany(index), Some(copies)) => &copies[index][..],
                _ => &held.copy[..],
            };
            (LentBytes::of_copy(copy, length), held.head)
        } else {
            let slot = connection.cell.held(connection.incoming.memory().slots);
            // Read anew, and checked anew: the peer may have changed it since.
            let head = slot.message();
            if !is_sane(&head, largest) {
                return None;
            }
            (LentBytes::on_bus(slot, head.length as usize), head)
        };
        connection.incoming.received.add(u64::from(new));
        Some(CurrentValue {
            bytes,
            head,
            from: &connection.incoming,
            overwritten,
            new,
        })
    }
}
