//! The guest's side of a window: joining it, and the ports that Linux has listed.
//!
//! Linux's side is `tautline-guest`; `docs/reference/vbus.md`, section "Windows", has the protocol. `tautline_vbus.h`
//! does the same in C. Nothing here waits, and ports take their memory when they open.
#![allow(unsafe_code)] // Lays regions over the memory that the virtual machine has there.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use tautline_shm::vbus::layout::MessageHead;
use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::shape::LayoutError;
use tautline_shm::vbus::wait::{Sleeper, WakeMode};
pub use tautline_shm::vbus::window::Address;
use tautline_shm::vbus::window::{
    CONNECTIONS_MAX, Connection, Direction, PEERS_MAX, Plan, Receiving, Region, Sending, Side,
};

use crate::error::GuestError;

/// A window that the guest has joined.
#[derive(Clone)]
pub struct Window<'m> {
    linux: Region<'m>,
    own: Region<'m>,
    plan: Plan,
    generation: u64,
    ring: fn(),
}

impl<'m> Window<'m> {
    /// Joins the window at `memory`. `ring` rings Linux's doorbell.
    ///
    /// # Errors
    /// [`LayoutError`]: Linux is not there yet, or it is no window of this version.
    ///
    /// # Safety
    /// There are `bytes` bytes, aligned to a page, which stay for the life of the result and are accessed through it
    /// alone. The second region of the window can be written.
    pub unsafe fn join(
        memory: *mut u8,
        bytes: usize,
        ring: fn(),
    ) -> Result<Window<'m>, LayoutError> {
        let too_small = LayoutError {
            field: "bytes",
            value: bytes as u64,
        };
        // SAFETY: as the caller promises.
        let linux = unsafe { Region::at(memory, bytes) }.ok_or(too_small)?;
        let (facts, plan) = linux.check(Side::Linux)?;
        if facts.generation == 0 {
            return Err(LayoutError {
                field: "magic",
                value: 0,
            });
        }
        if plan.window_bytes() > bytes {
            return Err(too_small);
        }
        // SAFETY: within the bytes, as was just checked; regions are whole pages.
        let own = unsafe {
            Region::at(
                memory.add(plan.region_bytes(Side::Linux)),
                plan.region_bytes(Side::Guest),
            )
        };
        let own = own.ok_or(too_small)?;
        // Another generation in each life: Linux's is new whenever the memory is, and in the same memory they count up.
        let before = own.generation();
        let generation = match own.peer_generation() == facts.generation && before != 0 {
            true => before + 1,
            false => facts.generation,
        };
        for (index, connection) in plan.connections().iter().enumerate() {
            // An earlier life may have announced something here.
            match connection.direction {
                Direction::ToGuest => own.consumer(&plan, index).head.identity.withdraw(),
                Direction::ToLinux => own.producer(&plan, index).head.identity.withdraw(),
            }
        }
        own.announce(Side::Guest, &plan, generation, facts.generation, 0);
        Ok(Window {
            linux,
            own,
            plan,
            generation,
            ring,
        })
    }

    /// Tells Linux that the guest is alive. More often than the silence that Linux accepts.
    pub fn beat(&self) {
        let heartbeat = &self.own.life().heartbeat;
        heartbeat.store(heartbeat.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Port `number` of a peer that Linux has named (`peers` of the file of `--window`); `None` if it has not.
    #[must_use]
    pub fn peer(&self, name: &str, number: u16) -> Option<Address> {
        let is_meant = |found: &[u8]| {
            let (start, rest) = found.split_at_checked(name.len())?;
            Some(start == name.as_bytes() && rest.first() == Some(&0))
        };
        (0..PEERS_MAX)
            .filter_map(|place| self.linux.peer(place))
            .find(|(found, _)| is_meant(found) == Some(true))
            .map(|(_, address)| Address {
                port: number,
                ..address
            })
    }

    /// Opens a port.
    ///
    /// # Errors
    /// [`GuestError::NoPort`]: Linux has not listed it.
    pub fn port(&self, number: u16) -> Result<Port<'m>, GuestError> {
        let find = |direction| {
            let is_meant = |one: &Connection| (one.port, one.direction) == (number, direction);
            let found = self.plan.connections().iter().enumerate();
            found
                .filter(|(_, one)| is_meant(one))
                .map(|(index, one)| (index, *one))
                .next()
        };
        let incoming = find(Direction::ToGuest);
        let lent = incoming.map_or(0, |(_, one)| one.shape.message_bytes_max as usize);
        let port = Port {
            lent: vec![0; lent],
            incoming: incoming.map(|found| self.incoming(found)),
            outgoing: find(Direction::ToLinux).map(|found| self.outgoing(found)),
            window: self.clone(),
        };
        match (&port.incoming, &port.outgoing) {
            (None, None) => Err(GuestError::NoPort(number)),
            _ => Ok(port),
        }
    }

    fn incoming(&self, (index, connection): (usize, Connection)) -> Incoming<'m> {
        let own = self.own.consumer(&self.plan, index);
        let mut end = Receiving::new(connection);
        end.offer(
            own,
            self.generation
                .wrapping_mul(CONNECTIONS_MAX as u64)
                .wrapping_add(index as u64 + 1),
        );
        Incoming {
            end,
            own,
            peer: self.linux.producer(&self.plan, index),
            sleeper: Sleeper::new(),
        }
    }

    fn outgoing(&self, (index, connection): (usize, Connection)) -> Outgoing<'m> {
        Outgoing {
            end: Sending::new(connection),
            own: self.own.producer(&self.plan, index),
            peer: self.linux.consumer(&self.plan, index),
            sequence: 0,
        }
    }
}

/// A port of the guest: messages, or values, in one direction or in both.
pub struct Port<'m> {
    window: Window<'m>,
    incoming: Option<Incoming<'m>>,
    outgoing: Option<Outgoing<'m>>,
    /// For the message of [`Port::receive`].
    lent: Vec<u8>,
}

// SAFETY: the pointers lead to memories of connections that this port alone uses on this side; all accesses of the
// other side's are atomic, or copies that are checked.
unsafe impl Send for Port<'_> {}

struct Incoming<'m> {
    end: Receiving,
    own: ConsumerMemory<'m>,
    peer: ProducerMemory<'m>,
    sleeper: Sleeper,
}

struct Outgoing<'m> {
    end: Sending,
    own: ProducerMemory<'m>,
    peer: ConsumerMemory<'m>,
    sequence: u32,
}

/// A message, copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'p> {
    /// Sender.
    pub from: Address,
    /// Priority, 0 to 7.
    pub priority: u8,
    /// Payload.
    pub payload: &'p [u8],
}

impl Port<'_> {
    /// Whether Linux has joined the port in all its directions. Receiving and sending see to the one that they need; a
    /// task that messages activate runs only once there are some, so wait for this before the tasks run.
    pub fn is_open(&mut self) -> bool {
        let is_current = self.window.linux.peer_generation() == self.window.generation;
        let receives = self
            .incoming
            .as_mut()
            .is_none_or(|incoming| incoming.is_connected());
        let sends = self
            .outgoing
            .as_mut()
            .is_none_or(|outgoing| outgoing.is_connected(is_current));
        receives && sends
    }

    /// The most urgent message, or a value that is new.
    pub fn receive(&mut self) -> Option<Message<'_>> {
        let (from, priority, length) = self.incoming.as_mut()?.take(&mut self.lent)?;
        Some(Message {
            from,
            priority,
            payload: &self.lent[..length],
        })
    }

    /// Takes the next message, as [`Port::receive`] does, into memory of the caller, which it is cut to: its sender,
    /// priority and length. Where there is none, the port is left so that the next message rings the guest's doorbell:
    /// a task that messages activate takes until there is none.
    pub fn take(&mut self, out: &mut [u8]) -> Option<(Address, u8, usize)> {
        self.disarm();
        let incoming = self.incoming.as_mut()?;
        if let Some(taken) = incoming.take(out) {
            return Some(taken);
        }
        incoming
            .sleeper
            .arm(&incoming.own.head.wait, WakeMode::Descriptor);
        // Linux rings for nothing that it published before it could see that.
        let taken = incoming.take(out)?;
        self.disarm();
        Some(taken)
    }

    /// The guest looks by itself: Linux need not ring for this port.
    pub fn disarm(&mut self) {
        if let Some(incoming) = &mut self.incoming {
            incoming.sleeper.disarm(&incoming.own.head.wait);
        }
    }

    /// Sends a message to a peer, or makes it the newest value for it, and wakes Linux if it sleeps. `false`: Linux is
    /// not there, the message is too long, or (counted) its priority is full.
    pub fn send(&mut self, to: Address, priority: u8, payload: &[u8]) -> bool {
        let is_current = self.window.linux.peer_generation() == self.window.generation;
        let Some(outgoing) = &mut self.outgoing else {
            return false;
        };
        if !outgoing.end.fits(payload) || !outgoing.is_connected(is_current) {
            return false;
        }
        let head = MessageHead {
            length: 0, // of what is sent
            arrival_ns: 0,
            sequence: outgoing.sequence,
            class: priority.min(7).into(),
        };
        let sent = outgoing
            .end
            .send(outgoing.own, outgoing.peer, (to, payload), head);
        outgoing.sequence = outgoing.sequence.wrapping_add(sent.into());
        if outgoing.end.wanted(outgoing.own, outgoing.peer) {
            let doorbells = &self.window.own.life().doorbells;
            doorbells.store(doorbells.load(Relaxed).wrapping_add(1), Relaxed);
            (self.window.ring)();
        }
        sent
    }
}

impl Incoming<'_> {
    /// Copies the next message, cut to `out`, and gives its place back.
    fn take(&mut self, out: &mut [u8]) -> Option<(Address, u8, usize)> {
        if !self.is_connected() {
            return None;
        }
        let found = self.end.look(self.own, self.peer)?;
        let copied = found.copy_out(out);
        self.end.release(self.own, &found);
        let (from, length) = copied?;
        Some((from, found.priority(), length.min(out.len())))
    }

    fn is_connected(&mut self) -> bool {
        self.end.is_connected() || self.end.connect(self.peer)
    }
}

impl Outgoing<'_> {
    /// `is_current`: Linux has taken note of this life. Until then its offers are of the one before.
    fn is_connected(&mut self, is_current: bool) -> bool {
        self.end.is_connected() || (is_current && self.end.connect(self.own, self.peer))
    }
}

#[cfg(test)]
mod tests;
