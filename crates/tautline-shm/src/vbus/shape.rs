//! Where everything lies. The consumer says what its port is to hold; from that both sides compute the
//! same places. A peer's own numbers are compared with the computed ones and never used.

use super::layout::{
    CELL_COUNT, CLASS_COUNT, ConnectionEntry, DEPTH_MAX, FIRST_CONNECTION, FIRST_SLOT, Identity,
    KIND_QUEUING, KIND_SAMPLING, MAGIC, MESSAGE_BYTES_MAX, NAME_BYTES, PRODUCERS_MAX,
    ROLE_CONSUMER, ROLE_PRODUCER, ROLE_PUBLISHER, SLOT_ALIGN, SLOT_HEAD_BYTES, VERSION,
};

/// Memories are multiples of this.
pub const PAGE_BYTES: usize = 4096;
/// Bytes between two rings beyond their slots, so that the slots that a waiting consumer looks at, one in each class,
/// fall into different sets of its first-level cache. Less than a line: they share one. More: memory.
pub const CLASS_STAGGER_BYTES: usize = 128;
/// Most bytes of one connection's memory. Lower: a queuing port of the least depth (2) cannot hold messages of 16 MiB,
/// which take 256 MiB and some more in its eight classes. Higher: one peer may make another pin more.
pub const MEMORY_BYTES_MAX: usize = 257 << 20;

/// Capacity of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Queuing or sampling.
    pub kind: Kind,
    /// Bytes of the largest message, 1 to [`MESSAGE_BYTES_MAX`].
    pub message_bytes_max: u32,
}

/// Queuing or sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keeps every message.
    Queuing {
        /// Slots of each class, a power of two, 2 to [`DEPTH_MAX`].
        depth: u32,
    },
    /// Keeps the last value.
    Sampling,
}

/// Why a memory is not what it should be: its first field that is impossible, or not the one that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// Name of the field; "bytes": the memory is smaller than its identity says, or than it must be.
    pub field: &'static str,
    /// Value that was found.
    pub value: u64,
}

impl core::fmt::Display for LayoutError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { field, value } = self;
        write!(formatter, "{field} is {value} ({value:#x})")
    }
}

impl core::error::Error for LayoutError {}

impl Shape {
    /// Checks the limits.
    ///
    /// # Errors
    /// [`LayoutError`]; of `memory_bytes`, if it would take more than [`MEMORY_BYTES_MAX`].
    pub fn check(self) -> Result<Self, LayoutError> {
        let wrong = |field, value: u64| Err(LayoutError { field, value });
        if !(1..=MESSAGE_BYTES_MAX as u32).contains(&self.message_bytes_max) {
            return wrong("message_bytes_max", self.message_bytes_max.into());
        }
        if let Kind::Queuing { depth } = self.kind
            && (!depth.is_power_of_two() || !(2..=DEPTH_MAX).contains(&depth))
        {
            return wrong("depth", depth.into());
        }
        // Of 64 bits: a machine of 32 must not take what overflows for little.
        let slots = u64::from(self.depth()) * self.class_count() as u64;
        let bytes = self.slot_bytes() as u64 * slots;
        if bytes > MEMORY_BYTES_MAX as u64 || self.producer_bytes() > MEMORY_BYTES_MAX {
            return wrong("memory_bytes", bytes);
        }
        Ok(self)
    }

    /// The kind's number in an identity.
    #[must_use]
    pub const fn kind_number(self) -> u16 {
        match self.kind {
            Kind::Queuing { .. } => KIND_QUEUING,
            Kind::Sampling => KIND_SAMPLING,
        }
    }

    /// Classes that there are.
    #[inline]
    #[must_use]
    pub const fn class_count(self) -> usize {
        match self.kind {
            Kind::Queuing { .. } => CLASS_COUNT,
            Kind::Sampling => 1,
        }
    }

    /// Slots of a class, or cells.
    #[inline]
    #[must_use]
    pub const fn depth(self) -> u32 {
        match self.kind {
            Kind::Queuing { depth } => depth,
            Kind::Sampling => CELL_COUNT as u32,
        }
    }

    /// Bytes from one slot of a class to the next.
    #[inline]
    #[must_use]
    pub const fn slot_bytes(self) -> usize {
        (SLOT_HEAD_BYTES + self.message_bytes_max as usize).next_multiple_of(SLOT_ALIGN)
    }

    /// Bytes from one class to the next.
    #[inline]
    #[must_use]
    pub const fn class_bytes(self) -> usize {
        self.slot_bytes() * self.depth() as usize + CLASS_STAGGER_BYTES
    }

    /// Bytes of a producer's memory, of a shape that has passed [`Shape::check`].
    #[inline]
    #[must_use]
    pub const fn producer_bytes(self) -> usize {
        (FIRST_SLOT + self.class_bytes() * self.class_count()).next_multiple_of(PAGE_BYTES)
    }

    /// Identity of a producer's memory for a port of this shape.
    #[must_use]
    pub fn producer_identity(self) -> Identity {
        Identity {
            role: ROLE_PRODUCER,
            memory_bytes: self.producer_bytes() as u64,
            slot_bytes: self.slot_bytes() as u32,
            class_bytes: self.class_bytes() as u32,
            first_slot: FIRST_SLOT as u32,
            ..self.identity()
        }
    }

    /// Identity of the memory in which a port of this shape publishes for all readers.
    #[must_use]
    pub fn publisher_identity(self) -> Identity {
        Identity {
            role: ROLE_PUBLISHER,
            ..self.producer_identity()
        }
    }

    /// Identity of the consumer's memory.
    #[must_use]
    pub fn consumer_identity(self) -> Identity {
        Identity {
            role: ROLE_CONSUMER,
            memory_bytes: consumer_bytes() as u64,
            slot_bytes: size_of::<ConnectionEntry>() as u32,
            class_bytes: 0,
            first_slot: FIRST_CONNECTION as u32,
            ..self.identity()
        }
    }

    fn identity(self) -> Identity {
        Identity {
            magic: MAGIC,
            version: VERSION,
            role: 0,
            epoch: 0,
            memory_bytes: 0,
            kind: self.kind_number(),
            port: 0,
            peer_port: 0,
            class_count: self.class_count() as u16,
            depth: self.depth(),
            message_bytes_max: self.message_bytes_max,
            slot_bytes: 0,
            class_bytes: 0,
            first_slot: 0,
            process: 0,
            made_ns: 0,
            node: [0; NAME_BYTES],
            peer_node: [0; NAME_BYTES],
        }
    }
}

/// Bytes of a consumer's memory.
#[must_use]
pub const fn consumer_bytes() -> usize {
    (FIRST_CONNECTION + PRODUCERS_MAX * size_of::<ConnectionEntry>()).next_multiple_of(PAGE_BYTES)
}

/// Judges what a memory says of itself; `bytes` is how large it really is. Any bytes may stand there.
/// The answer holds a shape within the limits, for which the memory is large enough.
///
/// # Errors
/// [`LayoutError`].
pub fn check(identity: &Identity, role: u16, bytes: u64) -> Result<Shape, LayoutError> {
    let wrong = |field, value: u64| Err(LayoutError { field, value });
    for (field, value, expected) in [
        ("magic", identity.magic, MAGIC),
        ("version", identity.version.into(), VERSION.into()),
        ("role", identity.role.into(), role.into()),
    ] {
        if value != expected {
            return wrong(field, value.into());
        }
    }
    let kind = match identity.kind {
        KIND_QUEUING => Kind::Queuing {
            depth: identity.depth,
        },
        KIND_SAMPLING => Kind::Sampling,
        other => return wrong("kind", other.into()),
    };
    let shape = Shape {
        kind,
        message_bytes_max: identity.message_bytes_max,
    }
    .check()?;
    let expected = match role {
        ROLE_CONSUMER => shape.consumer_identity(),
        // A publisher's memory is laid out as a producer's.
        _ => shape.producer_identity(),
    };
    if bytes < expected.memory_bytes {
        return wrong("bytes", bytes);
    }
    let fields = |one: &Identity| {
        [
            ("memory_bytes", one.memory_bytes),
            ("class_count", one.class_count.into()),
            ("depth", one.depth.into()),
            ("slot_bytes", one.slot_bytes.into()),
            ("class_bytes", one.class_bytes.into()),
            ("first_slot", one.first_slot.into()),
        ]
    };
    for ((field, value), (_, expected)) in fields(identity).into_iter().zip(fields(&expected)) {
        if value != expected {
            return wrong(field, value);
        }
    }
    Ok(shape)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SMALL: Shape = Shape {
        kind: Kind::Queuing { depth: 2 },
        message_bytes_max: 8,
    };

    fn bytes_of(identity: Identity) -> Vec<u8> {
        let words = identity.to_words().into_iter();
        words.flat_map(u64::to_ne_bytes).collect()
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let mut identity = SMALL.producer_identity();
        identity.epoch = 0x0102_0304_0506_0708;
        identity.port = 11;
        identity.peer_port = 12;
        identity.process = 77;
        identity.made_ns = 9;
        identity.node[..2].copy_from_slice(b"ab");
        identity.peer_node[..2].copy_from_slice(b"cd");
        let bytes = bytes_of(identity);
        if cfg!(target_endian = "little") {
            let expected: [u8; 68] = [
                b'1', b'B', b'L', b'T', 2, 0, 1, 0, // magic, version, role
                8, 7, 6, 5, 4, 3, 2, 1, // epoch
                0, 16, 0, 0, 0, 0, 0, 0, // memory_bytes
                1, 0, 11, 0, 12, 0, 8, 0, // kind, port, peer_port, class_count
                2, 0, 0, 0, 8, 0, 0, 0, // depth, message_bytes_max
                64, 0, 0, 0, 0, 1, 0, 0, // slot_bytes, class_bytes
                0, 2, 0, 0, 77, 0, 0, 0, // first_slot, process
                9, 0, 0, 0, 0, 0, 0, 0, // made_ns
                b'a', b'b', 0, 0, // node
            ];
            assert_eq!(bytes[..68], expected);
        }
        assert_eq!(bytes[96..98], *b"cd");
        assert_eq!(Identity::from_words(identity.to_words()), identity);
        assert_eq!(check(&identity, ROLE_PRODUCER, 4096), Ok(SMALL));
        let shape = |field, value| LayoutError { field, value };
        let published = SMALL.publisher_identity();
        assert_eq!(bytes_of(published)[..8], *b"1BLT\x02\0\x03\0");
        assert_eq!(check(&published, ROLE_PUBLISHER, 4096), Ok(SMALL));
        assert_eq!(
            check(&published, ROLE_PRODUCER, 4096),
            Err(shape("role", 3))
        );
    }

    #[test]
    fn every_wrong_field_is_found() {
        type Change = fn(&mut Identity);
        let good = SMALL.producer_identity();
        let shape = |field, value| LayoutError { field, value };
        let wrong: [(Change, LayoutError); 13] = [
            (|one| one.magic = 7, shape("magic", 7)),
            (|one| one.version = 1, shape("version", 1)),
            (|one| one.role = ROLE_CONSUMER, shape("role", 2)),
            (|one| one.kind = 3, shape("kind", 3)),
            (|one| one.depth = 3, shape("depth", 3)),
            (|one| one.depth = 0, shape("depth", 0)),
            (|one| one.depth = 1 << 31, shape("depth", 1 << 31)),
            (
                |one| one.message_bytes_max = u32::MAX,
                shape("message_bytes_max", u32::MAX.into()),
            ),
            (|one| one.class_count = 9, shape("class_count", 9)),
            (|one| one.slot_bytes = 63, shape("slot_bytes", 63)),
            (|one| one.class_bytes = 0, shape("class_bytes", 0)),
            (
                |one| one.first_slot = u32::MAX,
                shape("first_slot", u32::MAX.into()),
            ),
            (
                |one| one.memory_bytes = 1 << 60,
                shape("memory_bytes", 1 << 60),
            ),
        ];
        for (change, error) in wrong {
            let mut identity = good;
            change(&mut identity);
            assert_eq!(check(&identity, ROLE_PRODUCER, 4096), Err(error));
        }
        assert_eq!(check(&good, ROLE_PRODUCER, 4095), Err(shape("bytes", 4095)));
        let huge = Shape {
            kind: Kind::Queuing { depth: DEPTH_MAX },
            message_bytes_max: MESSAGE_BYTES_MAX as u32,
        };
        assert_eq!(huge.check().unwrap_err().field, "memory_bytes");
    }

    #[test]
    fn memories_are_as_large_as_the_documentation_says() {
        let of = |kind, message_bytes_max| {
            let shape = Shape {
                kind,
                message_bytes_max,
            };
            assert_eq!(shape.check(), Ok(shape));
            shape.producer_bytes()
        };
        let queuing = |depth| Kind::Queuing { depth };
        assert_eq!(of(queuing(64), 65_536), 33_591_296);
        assert_eq!(of(queuing(8), 1 << 20), 67_117_056);
        let largest = MESSAGE_BYTES_MAX as u32;
        assert_eq!(of(queuing(2), largest), 268_439_552);
        assert_eq!(of(Kind::Sampling, largest), 67_112_960);
        assert_eq!(consumer_bytes(), 12_288);
        for (kind, bytes) in [(Kind::Sampling, largest + 1), (queuing(4), largest)] {
            let shape = Shape {
                kind,
                message_bytes_max: bytes,
            };
            assert!(shape.check().is_err(), "{shape:?}");
        }
    }
}
