//! The two ends of a window's connection.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;

use super::{ADDRESS_BYTES, Address, Connection};
use crate::vbus::layout::{CLASS_COUNT, Identity, MessageHead, ROLE_CONSUMER, ROLE_PRODUCER, Slot};
use crate::vbus::region::{ConsumerMemory, ProducerMemory};
use crate::vbus::shape::{self, Kind, Shape, consumer_bytes};
use crate::vbus::wait::{Kicker, WakeMode};
use crate::vbus::{cell, ring};

/// The sending end of a connection.
#[derive(Debug)]
pub struct Sending {
    connection: Connection,
    epoch: u64,
    writer: Writer,
    kicker: Kicker,
}

#[derive(Debug)]
enum Writer {
    Ring(ring::Producer),
    Cells(cell::Writer),
}

impl Writer {
    fn of(shape: Shape) -> Writer {
        match shape.kind {
            Kind::Queuing { depth } => Writer::Ring(ring::Producer::new(depth)),
            Kind::Sampling => Writer::Cells(cell::Writer::new()),
        }
    }
}

impl Sending {
    /// An end that the other side has not joined.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Sending {
            connection,
            epoch: 0,
            writer: Writer::of(connection.shape),
            kicker: Kicker::new(),
        }
    }

    /// Whether the other end was there at the last [`Sending::connect`].
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.epoch != 0
    }

    /// The other side has begun a new life: until it offers an epoch, it is not connected.
    pub fn disconnect(&mut self, own: ProducerMemory<'_>) {
        self.epoch = 0;
        own.head.identity.withdraw();
    }

    /// Takes the epoch that the other end offers, if it is a new one. Clears the whole memory, so ask seldom. `true` if
    /// there is a new connection.
    pub fn connect(&mut self, own: ProducerMemory<'_>, peer: ConsumerMemory<'_>) -> bool {
        let offered = peer.head.identity.epoch();
        if offered == 0 || offered == self.epoch {
            return false;
        }
        let shape = self.connection.shape;
        let identity = peer.head.identity.read();
        let is_meant = peer.connections[0].offer.epoch.load(Relaxed) == offered;
        if !is_meant || shape::check(&identity, ROLE_CONSUMER, consumer_bytes() as u64) != Ok(shape)
        {
            return false;
        }
        own.head.identity.withdraw();
        for class in 0..shape.class_count() {
            for position in 0..shape.depth() {
                own.slots.slot(class, position).clear();
            }
        }
        own.head.latest.latest.store(0, Relaxed);
        self.writer = Writer::of(shape);
        self.kicker = Kicker::new();
        self.epoch = offered;
        own.head.identity.announce(&Identity {
            epoch: offered,
            port: self.connection.port,
            ..shape.producer_identity()
        });
        true
    }

    /// Whether a message is short enough, with its address.
    #[must_use]
    pub fn fits(&self, message: &[u8]) -> bool {
        ADDRESS_BYTES + message.len() <= self.connection.shape.message_bytes_max as usize
    }

    /// Sends a message behind an address, or makes it the newest value. Then, once for all that was sent, ask
    /// [`Sending::wanted`]. `false`, and counted: it is too long, no peer is connected, or its class is full.
    pub fn send(
        &mut self,
        own: ProducerMemory<'_>,
        peer: ConsumerMemory<'_>,
        (address, message): (Address, &[u8]),
        head: MessageHead,
    ) -> bool {
        let class = head.class as usize % CLASS_COUNT;
        let entry = &peer.connections[0];
        let fits = self.fits(message);
        let head = MessageHead {
            length: (ADDRESS_BYTES + message.len()) as u32,
            ..head
        };
        // Where there is room for the message, there is room for its address.
        let fill = |slot: Slot<'_>| {
            let (first, rest) = slot.split_at(ADDRESS_BYTES);
            first.copy_in(&address.to_bytes());
            rest.copy_in(message);
        };
        match &mut self.writer {
            Writer::Ring(ring) => {
                let next = if fits && self.epoch != 0 {
                    ring.next(own.slots, &entry.taken, class)
                } else {
                    Err(ring::Full)
                };
                match next {
                    Ok(slot) => {
                        fill(slot);
                        ring.publish(own.head, own.slots, &head);
                    }
                    Err(ring::Full) => {
                        ring.give_up(own.head, class);
                        return false;
                    }
                }
            }
            Writer::Cells(_) if !fits || self.epoch == 0 => return false,
            Writer::Cells(cells) => {
                fill(cells.next(own.slots, &entry.reading));
                cells.publish(&own.head.latest, own.slots, &head);
                let count = &own.head.published.count[0];
                count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
                // The barrier that must follow each value.
                fence(SeqCst);
            }
        }
        true
    }

    /// Whether the other end sleeps and is to be woken: ring its doorbell.
    #[must_use]
    pub fn wanted(&mut self, own: ProducerMemory<'_>, peer: ConsumerMemory<'_>) -> bool {
        let wanted: Option<WakeMode> = self.kicker.wanted(&own.head.kick, &peer.head.wait);
        wanted.is_some()
    }
}

/// The receiving end of a connection.
#[derive(Debug)]
pub struct Receiving {
    connection: Connection,
    epoch: u64,
    is_connected: bool,
    ring: ring::Consumer,
    cells: cell::Reader,
}

/// A message or value where it lies. The other side can change it at any time if it breaks the rules: copy, then
/// check, then use.
#[derive(Clone, Copy)]
pub struct Received<'m> {
    /// Head of the message; its length is within the shape's limit, and counts the address.
    pub head: MessageHead,
    slot: Slot<'m>,
    class: usize,
}

impl Received<'_> {
    /// Priority of the message, 0 to 7, whatever its head says.
    #[must_use]
    pub fn priority(&self) -> u8 {
        (self.class % CLASS_COUNT) as u8
    }

    /// Copies the message out, cut to `out`: the address before it, and its whole length. `None` if it is too short to
    /// have an address.
    #[must_use]
    pub fn copy_out(&self, out: &mut [u8]) -> Option<(Address, usize)> {
        let length = (self.head.length as usize).checked_sub(ADDRESS_BYTES)?;
        let (first, rest) = self.slot.split_at(ADDRESS_BYTES);
        let mut address = [0; ADDRESS_BYTES];
        first.copy_out(&mut address);
        let cut = length.min(out.len());
        rest.copy_out(&mut out[..cut]);
        Some((Address::from_bytes(address), length))
    }
}

impl Receiving {
    /// An end that has not offered anything.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Receiving {
            connection,
            epoch: 0,
            is_connected: false,
            ring: ring::Consumer::new(),
            cells: cell::Reader::new(),
        }
    }

    /// Whether the other end has joined.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Offers an epoch, which no connection of this window has had, and forgets the connection that there was.
    pub fn offer(&mut self, own: ConsumerMemory<'_>, epoch: u64) {
        own.head.identity.withdraw();
        let entry = &own.connections[0];
        for taken in &entry.taken.taken {
            taken.store(0, Relaxed);
        }
        entry.reading.reading.store(0, Relaxed);
        own.head.wait.waiting.store(0, Relaxed);
        entry.offer.epoch.store(epoch, Relaxed);
        own.head.identity.announce(&Identity {
            epoch,
            port: self.connection.port,
            ..self.connection.shape.consumer_identity()
        });
        *self = Receiving {
            epoch,
            ..Receiving::new(self.connection)
        };
    }

    /// Looks whether the other end has taken the epoch. `true` if it has done so since the last look.
    pub fn connect(&mut self, peer: ProducerMemory<'_>) -> bool {
        if self.is_connected || self.epoch == 0 || peer.head.identity.epoch() != self.epoch {
            return false;
        }
        let shape = self.connection.shape;
        let identity = peer.head.identity.read();
        self.is_connected =
            shape::check(&identity, ROLE_PRODUCER, shape.producer_bytes() as u64) == Ok(shape);
        self.is_connected
    }

    /// The most urgent message, which stays until [`Receiving::release`], or a value that is new. `None` too after a
    /// message whose length makes no sense, which is skipped and counted: more may follow.
    pub fn look<'m>(
        &mut self,
        own: ConsumerMemory<'_>,
        peer: ProducerMemory<'m>,
    ) -> Option<Received<'m>> {
        if !self.is_connected {
            return None;
        }
        let entry = &own.connections[0];
        let (slot, class) = match self.connection.shape.kind {
            Kind::Queuing { .. } => (0..CLASS_COUNT)
                .rev()
                .find_map(|class| Some((self.ring.peek(peer.slots, class)?, class)))?,
            Kind::Sampling => {
                let value = self
                    .cells
                    .read(peer.slots, &peer.head.latest, &entry.reading)?;
                if !value.new {
                    return None;
                }
                (value.cell, value.cell.message().class as usize)
            }
        };
        let head = slot.message();
        let found = Received { head, slot, class };
        if head.length <= self.connection.shape.message_bytes_max {
            return Some(found);
        }
        let corrupt = &entry.taken.corrupt;
        corrupt.store(corrupt.load(Relaxed).wrapping_add(1), Relaxed);
        self.release(own, &found);
        None
    }

    /// Gives the slot of a message back to the other side. Does nothing for a value.
    pub fn release(&mut self, own: ConsumerMemory<'_>, found: &Received<'_>) {
        if let Kind::Queuing { .. } = self.connection.shape.kind {
            self.ring.release(&own.connections[0].taken, found.class);
        }
    }
}
