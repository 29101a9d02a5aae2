//! V-Bus through memory that is just there: a window between Linux and a guest.
//!
//! Processes pass descriptors of memories to each other; a guest cannot. So all memories of its connections lie in one
//! piece of shared memory, in two *regions*: one that Linux writes and one that the guest writes. Each begins with a
//! [`RegionHead`]: its side, its generation (a new one after each start), a heartbeat, the ports. Linux decides which
//! ports there are; both sides compute from the list where each memory lies ([`Plan`]), so there are no offsets that
//! could be wrong. The two ends of a connection agree on its epoch through the memories themselves
//! ([`Sending::connect`], [`Receiving::connect`]), and from then on a connection is like any other on the bus.
//!
//! A port of a window talks to many peers through one connection: each message begins with an [`Address`], which
//! names its sender or its receiver. The names of peers are in a table of Linux's region.
//!
//! `docs/reference/vbus.md` has the bytes as tables, and `bindings/c/tautline_vbus.h` has the same in C.
#![allow(unsafe_code)] // Lays the layout over mapped memory, as `region` does.

mod ends;
#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::{KIND_QUEUING, KIND_SAMPLING, NAME_BYTES};
use super::region::{ConsumerMemory, ProducerMemory};
use super::shape::{Kind, LayoutError, PAGE_BYTES, Shape, consumer_bytes};

pub use ends::{Received, Receiving, Sending};

/// Marks a region: "TLW1".
pub const MAGIC: u32 = 0x544c_5731;
/// Version of the layout of regions. Another version is refused.
pub const VERSION: u16 = 1;
/// Connections of a window. Lower: a guest with many ports does not fit. Higher: a look at all of them takes longer.
pub const CONNECTIONS_MAX: usize = 32;
/// Peers whose names a window knows at a time. Lower: names are replaced while they are in use. Higher: the table takes
/// more than a page.
pub const PEERS_MAX: usize = 64;
/// Bytes of a window. Lower: large ports do not fit. Higher: a mistake in a file takes all memory of a machine.
pub const WINDOW_BYTES_MAX: usize = 256 << 20;
/// Bytes before the first memory of a region.
pub const REGION_HEAD_BYTES: usize = 2 * PAGE_BYTES;
/// Bytes of an [`Address`].
pub const ADDRESS_BYTES: usize = 8;

/// Writer of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The process that runs the guest.
    Linux,
    /// The guest.
    Guest,
}

impl Side {
    const fn number(self) -> u16 {
        match self {
            Side::Linux => 1,
            Side::Guest => 2,
        }
    }

    /// Name of the side.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Side::Linux => "Linux",
            Side::Guest => "the guest",
        }
    }
}

/// Head of a region.
#[repr(C, align(64))]
pub struct RegionHead {
    /// The bytes of [`Facts`], eight by eight.
    facts: [AtomicU64; 8],
    /// Signs of life.
    pub life: Life,
    rest: [AtomicU64; 16],
    connections: [[AtomicU64; 8]; CONNECTIONS_MAX],
    rest_of_page: [AtomicU64; 224],
    peers: [PeerLine; PEERS_MAX],
}

/// Signs of life of a region's writer.
#[repr(C, align(64))]
pub struct Life {
    /// Counts up while the side is alive.
    pub heartbeat: AtomicU32,
    /// Times that this side has rung the other's doorbell. For people to read.
    pub doorbells: AtomicU32,
}

#[repr(C, align(64))]
struct PeerLine {
    /// Even: the name is whole. 0: there has never been one.
    turn: AtomicU32,
    rest: [AtomicU32; 7],
    name: [AtomicU64; NAME_BYTES / 8],
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(RegionHead, life) == 64);
    assert!(offset_of!(RegionHead, connections) == 256);
    assert!(offset_of!(RegionHead, peers) == PAGE_BYTES);
    assert!(size_of::<RegionHead>() == REGION_HEAD_BYTES);
    assert!(size_of::<PeerLine>() == 64);
    assert!(offset_of!(PeerLine, name) == 32);
};

/// Word of the generation in [`RegionHead::facts`].
const GENERATION_WORD: usize = 1;
/// Word of the other side's generation.
const PEER_GENERATION_WORD: usize = 3;

/// Statements of a region about itself. The fields lie in memory as they stand here, with nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Facts {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// Number of its writer: 1 Linux, 2 the guest.
    pub side: u16,
    /// This life of the writer; never 0 in use, and another one after each start.
    pub generation: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Generation of the other side that this side has taken note of; 0: none yet.
    pub peer_generation: u64,
    /// Bytes of both regions. The guest's begins where Linux's ends.
    pub window_bytes: u64,
    /// Connections in the table.
    pub connection_count: u32,
    /// Silence of the other side, in milliseconds, that this side takes for its death; 0: any is accepted.
    pub silence_max_ms: u32,
    /// Zero.
    pub rest: [u64; 2],
}

impl Facts {
    fn to_words(self) -> [u64; 8] {
        // SAFETY: as many bytes, all of them of fields: these have 64 bytes without padding.
        unsafe { core::mem::transmute(self) }
    }

    fn from_words(words: [u64; 8]) -> Self {
        // SAFETY: as many bytes, and all fields are integers, of which every pattern is valid.
        unsafe { core::mem::transmute(words) }
    }
}

/// Two 32-bit fields as they lie in memory on a little-endian machine.
const fn word32(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

// Windows lead to guests of the same machine; all that Linux has KVM for are little-endian in use.
const _: () = assert!(cfg!(target_endian = "little"));

/// Direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest receives.
    ToGuest,
    /// The guest sends.
    ToLinux,
}

impl Direction {
    /// The side that sends.
    #[must_use]
    pub const fn producer(self) -> Side {
        match self {
            Direction::ToGuest => Side::Linux,
            Direction::ToLinux => Side::Guest,
        }
    }

    const fn number(self) -> u16 {
        match self {
            Direction::ToGuest => 1,
            Direction::ToLinux => 2,
        }
    }
}

/// One connection of a window: a port of the guest in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The guest's port.
    pub port: u16,
    /// Direction of its messages.
    pub direction: Direction,
    /// Shape of its memories; the largest message counts its [`Address`].
    pub shape: Shape,
}

impl Connection {
    const EMPTY: Connection = Connection {
        port: 0,
        direction: Direction::ToGuest,
        shape: Shape {
            kind: Kind::Sampling,
            message_bytes_max: 1,
        },
    };

    /// Bytes of the memory that a side writes.
    #[must_use]
    pub fn memory_bytes(&self, side: Side) -> usize {
        if self.direction.producer() == side {
            self.shape.producer_bytes()
        } else {
            consumer_bytes()
        }
    }

    fn to_words(self) -> [u64; 8] {
        let depth = match self.shape.kind {
            Kind::Queuing { depth } => depth,
            Kind::Sampling => 0,
        };
        let first = u64::from(self.shape.kind_number())
            | u64::from(self.port) << 16
            | u64::from(self.direction.number()) << 32;
        [
            first,
            word32(depth, self.shape.message_bytes_max),
            0,
            0,
            0,
            0,
            0,
            0,
        ]
    }

    fn from_words(words: [u64; 8]) -> Result<Self, LayoutError> {
        let wrong = |field, value: u64| LayoutError { field, value };
        let (kind, port, direction) = (
            words[0] as u16,
            (words[0] >> 16) as u16,
            (words[0] >> 32) as u16,
        );
        let (depth, message_bytes_max) = halves(words[1]);
        let kind = match kind {
            KIND_QUEUING => Kind::Queuing { depth },
            KIND_SAMPLING => Kind::Sampling,
            other => return Err(wrong("kind", other.into())),
        };
        let direction = match direction {
            1 => Direction::ToGuest,
            2 => Direction::ToLinux,
            other => return Err(wrong("direction", other.into())),
        };
        let shape = Shape {
            kind,
            message_bytes_max,
        };
        Ok(Connection {
            port,
            direction,
            shape: shape.check()?,
        })
    }
}

/// The connections of a window, and where each memory lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    connections: [Connection; CONNECTIONS_MAX],
    count: usize,
}

impl Plan {
    /// A window with these connections.
    ///
    /// # Errors
    /// [`LayoutError`]: too many connections, a shape beyond the limits, a message that has no room for its
    /// address, a port twice in one direction, a window that is too large.
    pub fn new(connections: &[Connection]) -> Result<Plan, LayoutError> {
        let wrong = |field, value: usize| {
            let value = value as u64;
            Err(LayoutError { field, value })
        };
        if connections.is_empty() || connections.len() > CONNECTIONS_MAX {
            return wrong("connection_count", connections.len());
        }
        let mut plan = Plan {
            connections: [Connection::EMPTY; CONNECTIONS_MAX],
            count: connections.len(),
        };
        for (index, one) in connections.iter().enumerate() {
            one.shape.check()?;
            if (one.shape.message_bytes_max as usize) <= ADDRESS_BYTES {
                return wrong("message_bytes_max", one.shape.message_bytes_max as usize);
            }
            let same =
                |other: &Connection| (other.port, other.direction) == (one.port, one.direction);
            if connections[..index].iter().any(same) {
                return wrong("port", one.port.into());
            }
            plan.connections[index] = *one;
        }
        if plan.window_bytes() > WINDOW_BYTES_MAX {
            return wrong("window_bytes", plan.window_bytes());
        }
        Ok(plan)
    }

    /// The connections, in the order of the table.
    #[must_use]
    pub fn connections(&self) -> &[Connection] {
        &self.connections[..self.count]
    }

    /// Bytes of the region that a side writes.
    #[must_use]
    pub fn region_bytes(&self, side: Side) -> usize {
        self.offset(self.count, side)
    }

    /// Bytes of both regions.
    #[must_use]
    pub fn window_bytes(&self) -> usize {
        self.region_bytes(Side::Linux) + self.region_bytes(Side::Guest)
    }

    /// Offset, in a side's region, of the memory that it writes for a connection.
    fn offset(&self, index: usize, side: Side) -> usize {
        let before = &self.connections[..index];
        REGION_HEAD_BYTES
            + before
                .iter()
                .map(|one| one.memory_bytes(side))
                .sum::<usize>()
    }
}

/// Sender or receiver of a message: its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Place of the peer in the table of names.
    pub peer: u16,
    /// Lower half of that place's turn: whose name stood there.
    pub turn: u16,
    /// The peer's port.
    pub port: u16,
}

impl Address {
    /// Bytes before a message.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let [p0, p1] = self.peer.to_le_bytes();
        let [t0, t1] = self.turn.to_le_bytes();
        let [n0, n1] = self.port.to_le_bytes();
        [p0, p1, t0, t1, n0, n1, 0, 0]
    }

    fn from_bytes([p0, p1, t0, t1, n0, n1, ..]: [u8; ADDRESS_BYTES]) -> Address {
        Address {
            peer: u16::from_le_bytes([p0, p1]),
            turn: u16::from_le_bytes([t0, t1]),
            port: u16::from_le_bytes([n0, n1]),
        }
    }
}

/// A region that lies in mapped memory.
#[derive(Clone, Copy)]
pub struct Region<'m> {
    base: *mut u8,
    bytes: usize,
    head: &'m RegionHead,
}

// SAFETY: atomics and a pointer to memory whose parts have one writer each, as the protocol says.
unsafe impl Send for Region<'_> {}
// SAFETY: as above.
unsafe impl Sync for Region<'_> {}

impl<'m> Region<'m> {
    /// The region that starts at `base`; `None` if it has no room for a head.
    ///
    /// # Safety
    /// Those of [`ProducerMemory::at`], with `bytes` bytes. The side that the region belongs to may write it, the other
    /// may not.
    #[must_use]
    pub unsafe fn at(base: *mut u8, bytes: usize) -> Option<Self> {
        if bytes < REGION_HEAD_BYTES {
            return None;
        }
        // SAFETY: there are as many bytes, aligned to a page, as the caller promises; every bit pattern is valid.
        let head = unsafe { &*base.cast::<RegionHead>() };
        Some(Region { base, bytes, head })
    }

    /// Signs of life.
    #[must_use]
    pub fn life(&self) -> &'m Life {
        &self.head.life
    }

    /// Generation of the region; 0: its side is not there.
    #[must_use]
    pub fn generation(&self) -> u64 {
        // Acquire: partner is the Release in `announce`.
        self.head.facts[GENERATION_WORD].load(Acquire)
    }

    /// The other side's generation that this one has taken note of.
    #[must_use]
    pub fn peer_generation(&self) -> u64 {
        // Acquire: partner is the Release in `acknowledge`.
        self.head.facts[PEER_GENERATION_WORD].load(Acquire)
    }

    /// Owner: has taken note of the other side's generation, and has offered what belongs to it.
    pub fn acknowledge(&self, peer_generation: u64) {
        self.head.facts[PEER_GENERATION_WORD].store(peer_generation, Release);
    }

    /// Owner: says what the region is. The memory is filled with zeros, or of an earlier generation.
    pub fn announce(
        &self,
        side: Side,
        plan: &Plan,
        generation: u64,
        peer_generation: u64,
        silence_max_ms: u32,
    ) {
        let facts = Facts {
            magic: MAGIC,
            version: VERSION,
            side: side.number(),
            generation,
            region_bytes: plan.region_bytes(side) as u64,
            peer_generation,
            window_bytes: plan.window_bytes() as u64,
            connection_count: plan.count as u32,
            silence_max_ms,
            rest: [0; 2],
        };
        self.head.facts[GENERATION_WORD].store(0, Relaxed);
        for (index, word) in facts.to_words().into_iter().enumerate() {
            if index != GENERATION_WORD {
                self.head.facts[index].store(word, Relaxed);
            }
        }
        for (place, connection) in self.head.connections.iter().zip(plan.connections()) {
            for (word, value) in place.iter().zip(connection.to_words()) {
                word.store(value, Relaxed);
            }
        }
        // Release: partner is the Acquire in `generation`.
        self.head.facts[GENERATION_WORD].store(generation, Release);
    }

    /// Statements of the region, read once; checked by [`Region::check`].
    #[must_use]
    pub fn facts(&self) -> Facts {
        let generation = self.generation();
        let words = core::array::from_fn(|index| self.head.facts[index].load(Relaxed));
        Facts {
            generation,
            ..Facts::from_words(words)
        }
    }

    /// The plan that the region states.
    ///
    /// # Errors
    /// [`LayoutError`]: it is no region of this side, or it contradicts itself.
    pub fn check(&self, side: Side) -> Result<(Facts, Plan), LayoutError> {
        let facts = self.facts();
        let wrong = |field, value: u64| Err(LayoutError { field, value });
        for (field, value, expected) in [
            ("magic", facts.magic, MAGIC),
            ("version", facts.version.into(), VERSION.into()),
            ("side", facts.side.into(), side.number().into()),
        ] {
            if value != expected {
                return wrong(field, value.into());
            }
        }
        let count = facts.connection_count as usize;
        if count > CONNECTIONS_MAX {
            return wrong("connection_count", count as u64);
        }
        let mut connections = [Connection::EMPTY; CONNECTIONS_MAX];
        for (connection, words) in connections.iter_mut().zip(&self.head.connections[..count]) {
            let words = core::array::from_fn(|index| words[index].load(Relaxed));
            *connection = Connection::from_words(words)?;
        }
        let plan = Plan::new(&connections[..count])?;
        let (region, window) = (plan.region_bytes(side), plan.window_bytes());
        for (field, value, expected) in [
            ("region_bytes", facts.region_bytes, region),
            ("window_bytes", facts.window_bytes, window),
        ] {
            if value != expected as u64 {
                return wrong(field, value);
            }
        }
        if self.bytes < region {
            return wrong("bytes", self.bytes as u64);
        }
        Ok((facts, plan))
    }

    /// Base of a memory, if all of it is in the region.
    fn memory(&self, plan: &Plan, index: usize, side: Side) -> *mut u8 {
        let at = plan.offset(index, side);
        let bytes = plan.connections[index].memory_bytes(side);
        assert!(
            index < plan.count && at + bytes <= self.bytes,
            "a region as large as its plan"
        );
        // SAFETY: within the region, as was just checked.
        unsafe { self.base.add(at) }
    }

    /// The producer's memory of a connection.
    ///
    /// # Panics
    /// If the region is smaller than the plan's.
    #[must_use]
    pub fn producer(&self, plan: &Plan, index: usize) -> ProducerMemory<'m> {
        let connection = plan.connections[index];
        let base = self.memory(plan, index, connection.direction.producer());
        // SAFETY: as many bytes as the shape needs, in the mapping that `at` was promised, at a multiple of a page.
        unsafe { ProducerMemory::at(base, connection.shape) }
    }

    /// The consumer's memory of a connection.
    ///
    /// # Panics
    /// If the region is smaller than the plan's.
    #[must_use]
    pub fn consumer(&self, plan: &Plan, index: usize) -> ConsumerMemory<'m> {
        let consumer = match plan.connections[index].direction {
            Direction::ToGuest => Side::Guest,
            Direction::ToLinux => Side::Linux,
        };
        let base = self.memory(plan, index, consumer);
        // SAFETY: as above, with the bytes of a consumer's memory.
        unsafe { ConsumerMemory::at(base) }
    }

    /// Linux: gives a place of the table to a name. Returns the address of its port 0.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn set_peer(&self, place: usize, name: &[u8; NAME_BYTES]) -> Address {
        let line = &self.head.peers[place];
        let turn = line.turn.load(Relaxed);
        line.turn.store(turn.wrapping_add(1), Relaxed);
        // Partner: the fence in `peer`. A reader that sees a word of the new name sees that the turn has changed.
        core::sync::atomic::fence(Release);
        for (word, bytes) in line.name.iter().zip(name.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        let turn = turn.wrapping_add(2);
        // Release: partner is the Acquire in `peer`.
        line.turn.store(turn, Release);
        Address {
            peer: place as u16,
            turn: turn as u16,
            port: 0,
        }
    }

    /// The name at a place of the table, and the address of its port 0; `None` while there is none.
    #[must_use]
    pub fn peer(&self, place: usize) -> Option<([u8; NAME_BYTES], Address)> {
        let line = self.head.peers.get(place)?;
        // Acquire: partner is the Release in `set_peer`.
        let turn = line.turn.load(Acquire);
        if turn == 0 || turn & 1 != 0 {
            return None;
        }
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.as_chunks_mut::<8>().0.iter_mut().zip(&line.name) {
            *bytes = word.load(Relaxed).to_le_bytes();
        }
        // Partner: the fence in `set_peer`.
        core::sync::atomic::fence(Acquire);
        let address = Address {
            peer: place as u16,
            turn: turn as u16,
            port: 0,
        };
        (line.turn.load(Relaxed) == turn).then_some((name, address))
    }
}
