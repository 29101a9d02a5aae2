//! The byte layout of a port's memory. This is ABI: `bpf/tautline.h` is its other half.
//!
//! The memory is an array of elements of [`SLOT_BYTES`] each, which is also how the kernel sees it
//! (a BPF array map whose value is one element):
//!
//! | element | holds |
//! |---|---|
//! | 0 | [`Control`]: what the port is, the consumer's words, the producer's counters, eight classes |
//! | 1, 2 | [`Peer`]s: what arrived from whom, and what was lost on the way |
//! | 3 … | [`Slot`]s: `depth × 8` in a queuing port (position by position), three for each source in a sampling port |
//!
//! All integers are in the machine's own byte order: this memory never leaves the machine. Only
//! the wire header inside a slot is big-endian, because it is copied as it came.
#![allow(unsafe_code)] // Payloads are copied through pointers; see `Slot::read_payload`.

use crate::sync::{AtomicU16, AtomicU32, AtomicU64};

/// Bytes of one element: a slot, the control element and the peer table each fill one.
///
/// Lower: a full frame of 1,484 payload bytes no longer fits. Higher: memory of every port grows;
/// must stay a multiple of the cache line, so that neighbouring slots do not share one.
pub const SLOT_BYTES: usize = 1536;
/// 64-bit words of a slot after its `turn`.
#[cfg(not(loom))]
pub const SLOT_WORDS: usize = SLOT_BYTES / 8 - 1;
/// In a model a slot has as few words as can still be torn; loom explores every interleaving.
#[cfg(loom)]
pub const SLOT_WORDS: usize = 4 + 2;
/// Payload bytes that a slot can hold: what is left after turn, arrival, source and header.
pub const SLOT_PAYLOAD_BYTES: usize = (SLOT_WORDS - 4) * 8;
/// First element that holds peers.
pub const FIRST_PEER: usize = 1;
/// Peers in one element.
pub const PEERS_PER_ELEMENT: usize = SLOT_BYTES / 64;
/// First element that is a slot.
pub const FIRST_SLOT: usize = FIRST_PEER + PEER_COUNT.div_ceil(PEERS_PER_ELEMENT);
/// Classes of a queuing port: the priorities 0 to 7.
pub const CLASS_COUNT: usize = 8;
/// Slots of a sampling port for each source: one is the reader's, one the writer's, one lies between them.
pub const CELL_COUNT: usize = 3;
/// Peers whose loss a port can tell apart, and the most sources of a sampling port. Lower: more
/// publishers push each other out, and a fleet needs several ports. Higher: a frame from a stranger
/// to a full port costs a longer search, and keys and middle words no longer fit the control element.
#[cfg(not(loom))]
pub const PEER_COUNT: usize = 48;
/// Fewer in a model, which makes each word of its own.
#[cfg(loom)]
pub const PEER_COUNT: usize = 2;
/// Marks the memory as a port's, and this layout: "TLP1".
pub const MAGIC: u32 = 0x544c_5031;
/// Version of this layout. Another version is refused: kernel side and library ship together.
pub const VERSION: u16 = 3;
/// `Control::kind` of a queuing port.
pub const KIND_QUEUING: u16 = 1;
/// `Control::kind` of a sampling port.
pub const KIND_SAMPLING: u16 = 2;

/// Word of a slot (after `turn`) that holds the arrival time, CLOCK_MONOTONIC nanoseconds.
pub const WORD_ARRIVAL: usize = 0;
/// Word that holds the source, see [`source_form`].
pub const WORD_SOURCE: usize = 1;
/// First of the two words that hold the wire header, as it came.
pub const WORD_HEADER: usize = 2;
/// First word of the payload: at byte 40 of the slot, so that a message of up to 24 bytes shares
/// the cache line of `turn`, and a message passes between two cores in one line.
pub const WORD_PAYLOAD: usize = 4;

/// How the eight bytes of a source are to be read: the value of the last two of them.
pub mod source_form {
    /// A claimed slot whose frame could not be copied after all: the consumer skips it.
    pub const VOID: u16 = 0;
    /// Six bytes of MAC address.
    pub const ETHERNET: u16 = 1;
    /// Four bytes of IPv4 address, two bytes of UDP port, both in network byte order.
    pub const UDP: u16 = 2;
    /// Address and UDP port as in [`UDP`], before a datagram of plain UDP: `tautline_proto::ip::DatagramHead` is in
    /// the header's place.
    pub const DATAGRAM: u16 = 3;
    /// Six bytes of MAC address, before a raw frame: `tautline_proto::wire::raw::RawHead` is in the header's place, and
    /// the frame's payload follows.
    pub const RAW: u16 = 4;
}

/// Packs an address and its form into the word that a slot and the peer table hold.
#[must_use]
pub const fn source_word(address: [u8; 6], form: u16) -> u64 {
    let [a, b, c, d, e, f] = address;
    let [form_low, form_high] = form.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, form_low, form_high])
}

/// The address and the form in a source word.
#[must_use]
pub const fn source_parts(word: u64) -> ([u8; 6], u16) {
    let [a, b, c, d, e, f, form_low, form_high] = word.to_ne_bytes();
    (
        [a, b, c, d, e, f],
        u16::from_ne_bytes([form_low, form_high]),
    )
}

/// One message in memory. `turn` determines its present writer; see [`crate::queue`] and [`crate::sample`].
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct Slot {
    /// Queue: the Vyukov turn. Sample: the number of this value, from 1.
    pub turn: AtomicU64,
    /// Arrival, source, header, payload: see the `WORD_` constants.
    pub words: [AtomicU64; SLOT_WORDS],
}

/// A peer's port in one word, never 0: its address, its form and its number.
#[must_use]
pub const fn peer_key(source: u64, port: u16) -> u64 {
    let (address, form) = source_parts(source);
    source_word(address, form << 12 | port & 0x0fff)
}

/// The source word and the port in a key.
#[must_use]
pub const fn peer_key_parts(key: u64) -> (u64, u16) {
    let (address, form_and_port) = source_parts(key);
    (
        source_word(address, form_and_port >> 12),
        form_and_port & 0x0fff,
    )
}

/// Identity of the port. Written when the port is opened, by its process.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct Identity {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// [`VERSION`].
    pub version: AtomicU16,
    /// [`KIND_QUEUING`] or [`KIND_SAMPLING`].
    pub kind: AtomicU16,
    /// Slots of each class, a power of two; [`CELL_COUNT`] for a sampling port.
    pub depth: AtomicU32,
    /// The port's number.
    pub port: AtomicU32,
    /// Sources of a sampling port that have cells of their own; 1: all share one set of cells.
    pub sources: AtomicU32,
    /// See [`crate::police`]: nanoseconds that each frame costs; 0: no policing.
    pub police_interval_ns: AtomicU64,
    /// Nanoseconds that may be owed.
    pub police_tolerance_ns: AtomicU64,
}

/// The line that the consumer writes and the producer reads.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct ConsumerLine {
    /// 1 while the consumer sleeps and wants the doorbell; see [`crate::doorbell`].
    pub waiting: AtomicU32,
}

/// Counters that the producer alone writes. Statistics: read them in any order, at any time.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct ProducerLine {
    /// Frames given up because producers on several CPUs collided (bounded attempts).
    pub contended: AtomicU64,
    /// Frames that do not fit the port: fragments and bundles for a sampling port; of plain UDP and raw ports, frames
    /// longer than a slot.
    pub unfit: AtomicU64,
    /// Peers pushed out of the peer table by others.
    pub peers_evicted: AtomicU64,
    /// Times the doorbell was rung.
    pub doorbells: AtomicU64,
    /// Frames of a source that came when all places of a sampling port were taken.
    pub sources_refused: AtomicU64,
}

/// The token bucket; see [`crate::police`]. The only line that a policed frame writes.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct PoliceLine {
    /// When all admitted frames are paid for, on the arrival clock.
    pub paid_ns: AtomicU64,
    /// Frames that were dropped.
    pub policed: AtomicU64,
}

/// Where a sampling port's cells are at the moment; see [`crate::sample`].
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct MiddleLines {
    /// For each source, the index of the cell between writer and reader, and [`crate::sample::FRESH`].
    pub middle: [AtomicU32; PEER_COUNT],
}

/// Keys of the peers, by place.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct KeyLines {
    /// See [`peer_key`]; 0: empty. Apart from the peers, so that a search passes eight of them a cache
    /// line, and in this element, which every delivery looks up anyway.
    pub key: [AtomicU64; PEER_COUNT],
}

/// One class of a queuing port: the producer's side.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct ClassLine {
    /// Position of the next slot to claim.
    pub head: AtomicU64,
    /// Messages dropped because the class was full.
    pub dropped_full: AtomicU64,
}

/// How far the consumer has come in each class. For observers; the consumer keeps its own copy.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct TakenLine {
    /// Position of the next slot to take, per class.
    pub taken: [AtomicU64; CLASS_COUNT],
}

/// Element 0.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Control {
    /// Identity of the port.
    pub identity: Identity,
    /// The consumer's words.
    pub consumer: ConsumerLine,
    /// The producer's counters.
    pub producer: ProducerLine,
    /// The token bucket.
    pub police: PoliceLine,
    /// The cells between writers and reader.
    pub sample: MiddleLines,
    /// The classes.
    pub class: [ClassLine; CLASS_COUNT],
    /// The consumer's positions.
    pub taken: TakenLine,
    /// The peers' places.
    pub keys: KeyLines,
    #[cfg(not(loom))]
    _rest: [u8; SLOT_BYTES - 64 * (4 + PEER_COUNT / 16 + CLASS_COUNT + 1 + PEER_COUNT / 8)],
}

/// Losses of one peer's port: a `tautline_proto::loss::LossTracker` in memory. One writer
/// at a time: a NIC keeps a flow on one queue. Two queues that serve one flow may miscount here,
/// never elsewhere. Beside it, the writer's side of the sampling port's cells of the same number.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct Peer {
    /// Values written to the cells of this number; the number of the newest.
    pub written: AtomicU64,
    /// Frames received, each once.
    pub received: AtomicU64,
    /// Frames that the sequence numbers say were sent; what exceeds `received` was lost.
    pub expected: AtomicU64,
    /// Bit i: number `highest - i` has been seen.
    pub window: AtomicU64,
    /// Frames seen before, or too far behind to tell.
    pub duplicates: AtomicU64,
    /// Highest sequence number of the current run.
    pub highest: AtomicU32,
    /// Numbers that `window` says something about.
    pub span: AtomicU32,
    /// Times the peer's numbering began anew.
    pub restarts: AtomicU32,
    /// Index of the cell that the next value goes to.
    pub back: AtomicU32,
    /// 1 while a writer is at work on these cells. A second writer gives way and is counted.
    pub lock: AtomicU32,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Slot>() == SLOT_BYTES);
    assert!(size_of::<Control>() == SLOT_BYTES);
    assert!(size_of::<Peer>() * PEERS_PER_ELEMENT == SLOT_BYTES);
    assert!(offset_of!(Control, consumer) == 64);
    assert!(offset_of!(Control, producer) == 128);
    assert!(offset_of!(Control, police) == 192);
    assert!(offset_of!(Control, sample) == 256);
    assert!(offset_of!(Control, class) == 448);
    assert!(offset_of!(Control, taken) == 960);
    assert!(offset_of!(Control, keys) == 1024);
    assert!(FIRST_SLOT == 3);
    assert!(SLOT_PAYLOAD_BYTES >= 1484);
};

impl Slot {
    /// Copies the first `out.len()` payload bytes out, at most [`SLOT_PAYLOAD_BYTES`].
    ///
    /// Both disciplines give a slot one owner at a time, so no other thread writes it meanwhile.
    #[cfg(not(loom))]
    #[inline]
    pub fn read_payload(&self, out: &mut [u8]) {
        self.read_payload_at(0, out);
    }

    /// Start of the payload, [`SLOT_PAYLOAD_BYTES`] long, aligned to 8 bytes. For the owner of the slot
    /// by its discipline; no other thread writes it meanwhile.
    #[cfg(not(loom))]
    #[inline]
    #[must_use]
    pub fn payload(&self) -> *const u8 {
        self.words[WORD_PAYLOAD].as_ptr().cast()
    }

    /// Copies payload bytes from an offset on, as far as the payload reaches.
    #[cfg(not(loom))]
    #[inline]
    pub fn read_payload_at(&self, offset: usize, out: &mut [u8]) {
        let offset = offset.min(SLOT_PAYLOAD_BYTES);
        let bytes = out.len().min(SLOT_PAYLOAD_BYTES - offset);
        let start = self.payload();
        // SAFETY: `start` is the start of SLOT_PAYLOAD_BYTES bytes within this slot, of which `bytes` follow `offset`,
        // `out` has at least `bytes`, and they are different memory. The caller owns the slot: its discipline (`queue`,
        // `sample`) has acquired it from the producer, which does not touch it before it is given back. Whole cache
        // lines at a time: word by word, a full frame took 0.1 µs longer.
        unsafe { core::ptr::copy_nonoverlapping(start.add(offset), out.as_mut_ptr(), bytes) };
    }

    /// In a loom model: word by word, through what loom watches.
    #[cfg(loom)]
    pub fn read_payload(&self, out: &mut [u8]) {
        self.read_payload_unowned(out);
    }

    /// Copies the first `out.len()` payload bytes out of a slot that may be written meanwhile: word by word,
    /// as atomics. What was read counts only if the slot turns out not to have changed.
    pub fn read_payload_unowned(&self, out: &mut [u8]) {
        use crate::sync::Ordering::Relaxed;
        for (chunk, word) in out.chunks_mut(8).zip(&self.words[WORD_PAYLOAD..]) {
            let bytes = word.load(Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Copies `payload` in; what exceeds [`SLOT_PAYLOAD_BYTES`] is the caller's mistake.
    #[cfg(not(loom))]
    pub(crate) fn write_payload(&self, payload: &[u8]) {
        debug_assert!(payload.len() <= SLOT_PAYLOAD_BYTES);
        let bytes = payload.len().min(SLOT_PAYLOAD_BYTES);
        let to = self.words[WORD_PAYLOAD].as_ptr().cast::<u8>();
        // SAFETY: as in `read_payload`, with the producer as the owner; the words are atomics, so
        // they may be written through a shared reference.
        unsafe { core::ptr::copy_nonoverlapping(payload.as_ptr(), to, bytes) };
    }

    /// In a loom model.
    #[cfg(loom)]
    pub(crate) fn write_payload(&self, payload: &[u8]) {
        use crate::sync::Ordering::Relaxed;
        for (chunk, word) in payload.chunks(8).zip(&self.words[WORD_PAYLOAD..]) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(bytes), Relaxed);
        }
    }

    /// Arrival, source and wire header.
    #[inline]
    pub fn head(&self) -> RecordHead {
        use crate::sync::Ordering::Relaxed;
        let word = |index: usize| self.words[index].load(Relaxed);
        let mut header = [0; 16];
        header[..8].copy_from_slice(&word(WORD_HEADER).to_ne_bytes());
        header[8..].copy_from_slice(&word(WORD_HEADER + 1).to_ne_bytes());
        RecordHead {
            arrival_ns: word(WORD_ARRIVAL),
            source: word(WORD_SOURCE),
            header,
        }
    }

    pub(crate) fn write_head(&self, head: &RecordHead) {
        use crate::sync::Ordering::Relaxed;
        let half = |from: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head.header[from..from + 8]);
            u64::from_ne_bytes(bytes)
        };
        self.words[WORD_ARRIVAL].store(head.arrival_ns, Relaxed);
        self.words[WORD_SOURCE].store(head.source, Relaxed);
        self.words[WORD_HEADER].store(half(0), Relaxed);
        self.words[WORD_HEADER + 1].store(half(8), Relaxed);
    }
}

/// Slot header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// When the demux saw the frame, CLOCK_MONOTONIC nanoseconds (the simulator: virtual time).
    pub arrival_ns: u64,
    /// Sender: see [`source_parts`].
    pub source: u64,
    /// The wire header, as it came.
    pub header: [u8; 16],
}
