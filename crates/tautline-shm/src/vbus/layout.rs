//! The byte layout of the two memories of a connection. This is ABI: `docs/reference/vbus.md` has the same as
//! tables, and `bindings/c/tautline_vbus.h` in C.
//!
//! Integers are in the machine's own byte order and naturally aligned. Words through which the two
//! sides synchronise are of 32 bits, or of 64 bits of which a 32-bit machine may read the lower half.
#![allow(unsafe_code)] // Payloads are copied through pointers; see `Slot`.

pub use crate::layout::CLASS_COUNT;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, AtomicU64};

/// Marks a memory of a V-Bus, and this layout: "TLB1".
pub const MAGIC: u32 = 0x544c_4231;
/// Version of this layout. Another version is refused.
pub const VERSION: u16 = 2;
/// `Identity::role` of a producer's memory.
pub const ROLE_PRODUCER: u16 = 1;
/// `Identity::role` of a consumer's memory.
pub const ROLE_CONSUMER: u16 = 2;
/// `Identity::role` of the memory in which a port publishes once for all readers.
pub const ROLE_PUBLISHER: u16 = 3;
/// `Identity::kind` of a queuing port.
pub const KIND_QUEUING: u16 = crate::layout::KIND_QUEUING;
/// `Identity::kind` of a sampling port.
pub const KIND_SAMPLING: u16 = crate::layout::KIND_SAMPLING;

/// Producers that one port can have. Lower: a port cannot collect from many. Higher: a look at a
/// port takes longer (eight words a producer), and `futex_waitv` takes at most 128 words.
pub const PRODUCERS_MAX: usize = 32;
/// Bytes of the largest message: an uncompressed picture of four million pixels. Lower: such pictures are cut into
/// parts. Higher: the smallest queuing port for them, 16 slots, takes more memory than anybody wants pinned.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Most slots in a class: as on other links.
pub const DEPTH_MAX: u32 = 4096;
/// Bytes of a node's name, the rest zero; at least one zero byte ends it.
pub const NAME_BYTES: usize = 32;
/// Cells of a value: two pairs of two.
pub const CELL_COUNT: usize = 4;

/// Bytes of [`Identity`].
pub const IDENTITY_BYTES: usize = 128;
/// Offset of the first slot in a producer's memory.
pub const FIRST_SLOT: usize = 512;
/// Offset of the first connection's entry in a consumer's memory.
pub const FIRST_CONNECTION: usize = 512;
/// Bytes of a slot before the payload. A payload of up to 40 bytes shares the first cache line with what announces it.
pub const SLOT_HEAD_BYTES: usize = 24;
/// Slots begin at multiples of this: a cache line.
pub const SLOT_ALIGN: usize = 64;
/// Bytes of the largest payload that is copied word by word. A message was most often put together a moment ago,
/// field by field, and is taken apart a moment later. A processor passes a store on to a load that it covers, but
/// lets a wider load, such as those of the C library's copy, wait until the store is in the cache. Lower: such
/// messages wait, for 5 to 10 ns. Higher: more words than the C library's copy takes time for.
#[cfg(not(loom))]
pub const WORDS_BYTES_MAX: usize = 64;

/// Identity of a memory, written by its owner. Written before the memory is shown to anybody, but for
/// the epoch, which is written last (see [`Identity::EPOCH_WORD`]).
#[repr(C, align(64))]
pub struct IdentityWords {
    /// The bytes of [`Identity`], eight by eight.
    pub words: [AtomicU64; IDENTITY_BYTES / 8],
}

/// [`IdentityWords`], read. The fields lie in memory as they stand here, with nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// [`ROLE_PRODUCER`], [`ROLE_CONSUMER`] or [`ROLE_PUBLISHER`].
    pub role: u16,
    /// Producer: the epoch of this connection, as the consumer offered it. Consumer: that of the
    /// port's opening. Publisher: of the memory. Never 0 in a memory that is in use.
    pub epoch: u64,
    /// Bytes of the memory.
    pub memory_bytes: u64,
    /// [`KIND_QUEUING`] or [`KIND_SAMPLING`].
    pub kind: u16,
    /// The owner's port.
    pub port: u16,
    /// The other end's port; 0 in a consumer's memory, which all its producers share.
    pub peer_port: u16,
    /// [`CLASS_COUNT`]; 1 for a sampling port.
    pub class_count: u16,
    /// Slots of each class, a power of two; [`CELL_COUNT`] for a sampling port.
    pub depth: u32,
    /// Bytes of the largest message.
    pub message_bytes_max: u32,
    /// Bytes from one slot of a class to the next. Consumer: from one connection's entry to the next.
    pub slot_bytes: u32,
    /// Bytes from the first slot of a class to that of the next class. 0 in a consumer's memory.
    pub class_bytes: u32,
    /// Offset of the first slot of class 0. Consumer: of the first connection's entry.
    pub first_slot: u32,
    /// The owner's process, for people to read. Not to be relied on.
    pub process: u32,
    /// CLOCK_MONOTONIC nanoseconds when the memory was made.
    pub made_ns: u64,
    /// The owner's node.
    pub node: [u8; NAME_BYTES],
    /// The other end's node; zero in a consumer's memory.
    pub peer_node: [u8; NAME_BYTES],
}

/// Producer: rung by changing it. What a sleeping consumer waits on.
#[repr(C, align(64))]
pub struct KickLine {
    /// Times that this producer has kicked.
    pub kick: AtomicU32,
}

/// Producer: which cell holds the newest value; see [`crate::vbus::cell`].
#[repr(C, align(64))]
pub struct LatestLine {
    /// Number of the value × 8, and three bits.
    pub latest: AtomicU64,
}

/// Producer: what it has done, for others to watch.
#[repr(C, align(64))]
pub struct PerClassLine {
    /// One count for each class.
    pub count: [AtomicU64; CLASS_COUNT],
}

/// Head of a producer's memory.
#[repr(C)]
pub struct ProducerHead {
    /// Identity of the memory.
    pub identity: IdentityWords,
    /// The word to kick with.
    pub kick: KickLine,
    /// The newest value.
    pub latest: LatestLine,
    /// Messages published, per class; values, in class 0. Only readers of messages that are published for many rely
    /// on it.
    pub published: PerClassLine,
    /// Messages not sent because their class was full, per class.
    pub dropped_full: PerClassLine,
}

/// Consumer: whether, how, and for which time it sleeps; see [`crate::vbus::wait`].
#[repr(C, align(64))]
pub struct WaitLine {
    /// Number of the sleep × 4, and how to wake.
    pub waiting: AtomicU64,
}

/// Consumer: producers that have gone.
#[repr(C, align(64))]
pub struct EndedLine {
    /// Messages or values that they have published for this consumer alone. For watchers, which may have seen none of a
    /// producer that came and went.
    pub published: AtomicU64,
}

/// Head of a consumer's memory.
#[repr(C)]
pub struct ConsumerHead {
    /// Identity of the memory.
    pub identity: IdentityWords,
    /// The consumer's sleep.
    pub wait: WaitLine,
    /// Producers that have gone.
    pub ended: EndedLine,
}

/// Consumer: the connection that an entry is for.
#[repr(C, align(64))]
pub struct OfferLine {
    /// Epoch that a producer is to write into its identity; 0: no producer is expected here.
    pub epoch: AtomicU64,
}

/// Consumer: how far it has come with one producer.
#[repr(C, align(64))]
pub struct TakenLine {
    /// Position of the next message to take, per class.
    pub taken: [AtomicU32; CLASS_COUNT],
    /// Slots whose contents made no sense, and were skipped.
    pub corrupt: AtomicU64,
    /// Messages or values that a publisher for many replaced before this consumer took them. For watchers.
    pub overwritten: AtomicU64,
}

/// Consumer: the pair of cells that it reads; see [`crate::vbus::cell`].
#[repr(C, align(64))]
pub struct ReadingLine {
    /// 0 or 1.
    pub reading: AtomicU32,
}

/// One connection in a consumer's memory.
#[repr(C, align(64))]
pub struct ConnectionEntry {
    /// Which connection.
    pub offer: OfferLine,
    /// Queuing: the consumer's positions.
    pub taken: TakenLine,
    /// Sampling: the consumer's pair.
    pub reading: ReadingLine,
    /// Zero.
    #[cfg(not(loom))]
    pub rest: [AtomicU64; 8],
}

/// Slot header.
#[repr(C)]
pub struct SlotHead {
    /// Queue: low half of the position + 1, once the message is there. Cell: low half of the value's number.
    pub turn: AtomicU32,
    /// Bytes of the payload.
    pub length: AtomicU32,
    /// CLOCK_MONOTONIC nanoseconds when it was published.
    pub arrival_ns: AtomicU64,
    /// Number of the message in its flow.
    pub sequence: AtomicU32,
    /// Priority, 0 to 7.
    pub class: AtomicU32,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<IdentityWords>() == IDENTITY_BYTES);
    assert!(size_of::<SlotHead>() == SLOT_HEAD_BYTES);
    assert!(offset_of!(ProducerHead, kick) == 128);
    assert!(offset_of!(ProducerHead, latest) == 192);
    assert!(offset_of!(ProducerHead, published) == 256);
    assert!(offset_of!(ProducerHead, dropped_full) == 320);
    assert!(size_of::<ProducerHead>() <= FIRST_SLOT);
    assert!(offset_of!(ConsumerHead, wait) == 128);
    assert!(offset_of!(ConsumerHead, ended) == 192);
    assert!(size_of::<ConsumerHead>() <= FIRST_CONNECTION);
    assert!(size_of::<ConnectionEntry>() == 256);
    assert!(offset_of!(ConnectionEntry, taken) == 64);
    assert!(offset_of!(TakenLine, corrupt) == 32);
    assert!(offset_of!(TakenLine, overwritten) == 40);
    assert!(offset_of!(ConnectionEntry, reading) == 128);
    assert!(FIRST_SLOT.is_multiple_of(SLOT_ALIGN));
};

impl Identity {
    /// The word of the epoch. A producer's memory that is used a second time gets epoch 0 first and
    /// the new one last, with Release; a reader reads it first, with Acquire.
    pub const EPOCH_WORD: usize = 1;

    /// The words of the identity as it lies in memory.
    #[must_use]
    pub fn to_words(self) -> [u64; IDENTITY_BYTES / 8] {
        // SAFETY: as many bytes, all of them of fields: these have 128 bytes without padding.
        unsafe { core::mem::transmute(self) }
    }

    /// The identity in these words, whatever they say; [`crate::vbus::shape::check`] judges.
    #[must_use]
    pub fn from_words(words: [u64; IDENTITY_BYTES / 8]) -> Self {
        // SAFETY: as many bytes, and all fields are integers and bytes, of which every pattern is valid.
        unsafe { core::mem::transmute(words) }
    }
}

impl IdentityWords {
    /// Owner: writes the identity of the memory. The epoch comes last: a reader that sees it sees all that was
    /// written before.
    pub fn announce(&self, identity: &Identity) {
        for (place, word) in identity.to_words().into_iter().enumerate() {
            if place != Identity::EPOCH_WORD {
                self.words[place].store(word, Relaxed);
            }
        }
        // Release: partner is the Acquire in `epoch`.
        self.words[Identity::EPOCH_WORD].store(identity.epoch, Release);
    }

    /// Owner: the memory is about to be used anew. It must have no reader any more.
    pub fn withdraw(&self) {
        self.words[Identity::EPOCH_WORD].store(0, Relaxed);
    }

    /// The epoch that the owner has announced; 0 if it has not.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        // Acquire: partner is the Release in `announce`.
        self.words[Identity::EPOCH_WORD].load(Acquire)
    }

    /// Identity, as its owner wrote it.
    #[must_use]
    pub fn read(&self) -> Identity {
        let epoch = self.epoch();
        let words = core::array::from_fn(|place| self.words[place].load(Relaxed));
        Identity {
            epoch,
            ..Identity::from_words(words)
        }
    }
}

/// Contents of a slot header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// Bytes of the payload.
    pub length: u32,
    /// When it was published.
    pub arrival_ns: u64,
    /// Number of the message in its flow.
    pub sequence: u32,
    /// Priority.
    pub class: u32,
}

/// One slot or cell in a memory.
#[derive(Clone, Copy)]
pub struct Slot<'m> {
    pub(crate) head: &'m SlotHead,
    #[cfg(not(loom))]
    pub(crate) payload: *mut u8,
    #[cfg(loom)]
    pub(crate) payload: &'m loom::cell::UnsafeCell<[u8; model::PAYLOAD_BYTES]>,
    #[cfg(loom)]
    pub(crate) halves: &'m [AtomicU32; 2],
    /// Bytes that the payload can have: a limit of this side's own, not read from memory.
    pub(crate) capacity: usize,
}

#[cfg(not(loom))]
impl<'m> Slot<'m> {
    /// The payload's first `bytes`, and what follows them.
    ///
    /// # Panics
    /// If `bytes` is no multiple of 8, or beyond the capacity.
    #[inline]
    pub(crate) fn split_at(self, bytes: usize) -> (Slot<'m>, Slot<'m>) {
        // Words stay aligned, and none of the second part reaches beyond the slot.
        assert!(bytes.is_multiple_of(8) && bytes <= self.capacity);
        let first = Slot {
            capacity: bytes,
            ..self
        };
        let rest = Slot {
            payload: self.payload.wrapping_add(bytes),
            capacity: self.capacity - bytes,
            ..self
        };
        (first, rest)
    }
}

impl Slot<'_> {
    /// Slot header, each field read once. The length may be anything.
    #[inline]
    #[must_use]
    pub fn message(&self) -> MessageHead {
        MessageHead {
            length: self.head.length.load(Relaxed),
            arrival_ns: self.head.arrival_ns.load(Relaxed),
            sequence: self.head.sequence.load(Relaxed),
            class: self.head.class.load(Relaxed),
        }
    }

    /// Owner: says what the payload is.
    #[inline]
    pub(crate) fn describe(&self, message: &MessageHead) {
        self.head.length.store(message.length, Relaxed);
        self.head.arrival_ns.store(message.arrival_ns, Relaxed);
        self.head.sequence.store(message.sequence, Relaxed);
        self.head.class.store(message.class, Relaxed);
    }

    /// Owner: makes a slot of a memory that is used anew as if nothing had been in it. Before the
    /// new epoch is announced.
    pub fn clear(&self) {
        self.head.turn.store(0, Relaxed);
    }

    /// Bytes that the payload can have.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The turn, for watchers: a message was whole while it was read if the turn was the same before and after.
    #[inline]
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.head.turn.load(Acquire)
    }

    /// Start of the payload. In the owner's process it may be written until published; elsewhere
    /// it is mapped read-only, and its bytes may change at any time if the owner breaks the rules.
    #[cfg(not(loom))]
    #[inline]
    #[must_use]
    pub fn payload(&self) -> *mut u8 {
        self.payload
    }

    /// Asks for the first lines of the slot; changes nothing.
    #[inline]
    pub(crate) fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        // SAFETY: a prefetch of any address is without effect on memory; SSE is part of x86-64.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let start = core::ptr::from_ref(self.head).cast::<i8>();
            _mm_prefetch::<_MM_HINT_T0>(start);
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(64));
        }
    }

    /// Owner: asks for the first lines of the slot, to write them; changes nothing.
    #[inline]
    pub(crate) fn prefetch_to_write(&self) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        // SAFETY: a hint that is without effect on memory, registers and flags, whatever the address. The compiler's
        // own form of it would become an ordinary prefetch, since not every x86-64 announces this one; all
        // of them know the instruction.
        unsafe {
            let start = core::ptr::from_ref(self.head).cast::<u8>();
            for line in [start, start.wrapping_add(64)] {
                core::arch::asm!(
                    "prefetchw [{line}]",
                    line = in(reg) line,
                    options(nostack, preserves_flags)
                );
            }
        }
    }

    /// One of the words of the payload.
    ///
    /// # Safety
    /// `place × 8` is below the capacity.
    #[cfg(not(loom))]
    #[inline(always)]
    unsafe fn word(&self, place: usize) -> &AtomicU64 {
        // SAFETY: the payload is aligned to 8 bytes, and a slot ends at a multiple of a cache line, so that the whole
        // word belongs to it where its first byte does, as the caller promises. An atomic access may race with
        // whatever another process does.
        unsafe { &*self.payload.cast::<AtomicU64>().add(place) }
    }

    /// Copies the payload's first `out.len()` bytes out, at most its capacity.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn copy_out(&self, out: &mut [u8]) {
        let bytes = out.len().min(self.capacity);
        if bytes > WORDS_BYTES_MAX {
            // SAFETY: `payload` is the start of `capacity` readable bytes (the slot's constructor has checked that
            // against the mapping), `out` of at least `bytes` writable ones of ours. The owner may write there at the
            // same time if it breaks the rules: then what we get is torn, and nothing but the copy has been read.
            unsafe { core::ptr::copy_nonoverlapping(self.payload, out.as_mut_ptr(), bytes) };
            return;
        }
        let (words, rest) = out[..bytes].as_chunks_mut::<8>();
        let whole = words.len();
        for (place, word) in words.iter_mut().enumerate() {
            // SAFETY: the word is one of the `bytes` within the capacity.
            *word = unsafe { self.word(place) }.load(Relaxed).to_ne_bytes();
        }
        if !rest.is_empty() {
            // SAFETY: its first byte is.
            let last = unsafe { self.word(whole) }.load(Relaxed).to_ne_bytes();
            for (byte, from) in rest.iter_mut().zip(last) {
                *byte = from;
            }
        }
    }

    /// Copies the words that hold the payload's first `length` bytes, while the owner may be writing them: at most its
    /// capacity, and at most what `out` holds.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn copy_racing(&self, length: usize, out: &mut [u64]) {
        let words = length.min(self.capacity).div_ceil(8);
        for (place, word) in out.iter_mut().take(words).enumerate() {
            // SAFETY: the word begins below the length, which is within the capacity.
            *word = unsafe { self.word(place) }.load(Relaxed);
        }
    }

    /// Owner: copies `bytes` into the payload; what exceeds the capacity is left out.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn copy_in(&self, bytes: &[u8]) {
        let length = bytes.len().min(self.capacity);
        if length > WORDS_BYTES_MAX {
            // SAFETY: `payload` is the start of `capacity` bytes that the owner, the only caller,
            // has mapped writable; no other thread writes them.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.payload, length) };
            return;
        }
        let (words, rest) = bytes[..length].as_chunks::<8>();
        for (place, word) in words.iter().enumerate() {
            // SAFETY: the word is one of the `length` bytes within the capacity.
            unsafe { self.word(place) }.store(u64::from_ne_bytes(*word), Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            for (byte, from) in last.iter_mut().zip(rest) {
                *byte = *from;
            }
            // SAFETY: its first byte is.
            unsafe { self.word(words.len()) }.store(u64::from_ne_bytes(last), Relaxed);
        }
    }

    /// In a loom model. loom fails where the owner may be writing at that time.
    #[cfg(loom)]
    pub fn copy_out(&self, out: &mut [u8]) {
        // SAFETY: the pointer is valid within the closure, and loom checks the accesses.
        self.payload
            .with(|payload| out.copy_from_slice(unsafe { &(&*payload)[..out.len()] }));
    }

    /// In a loom model. loom fails where a reader may be reading at that time.
    #[cfg(loom)]
    pub fn copy_in(&self, bytes: &[u8]) {
        self.payload.with_mut(|payload| {
            // SAFETY: the pointer is valid within the closure, and loom checks the accesses.
            unsafe { (&mut *payload)[..bytes.len()].copy_from_slice(bytes) };
        });
        for (half, bytes) in self.halves.iter().zip(bytes.as_chunks::<4>().0) {
            half.store(u32::from_ne_bytes(*bytes), Relaxed);
        }
    }

    /// In a loom model: two halves, so that it can be torn.
    #[cfg(loom)]
    pub(crate) fn copy_racing(&self, _length: usize, out: &mut [u64]) {
        let [low, high] = self.halves.each_ref().map(|half| half.load(Relaxed));
        out[0] = u64::from(high) << 32 | u64::from(low);
    }
}

/// All slots of a connection, where [`crate::vbus::shape::Shape`] says that they lie.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub struct Slots<'m> {
    first: *mut u8,
    /// From one class to the next; 0 if there is only one, so that every class is that one.
    class_bytes: usize,
    slot_bytes: usize,
    mask: u32,
    capacity: usize,
    memory: core::marker::PhantomData<&'m SlotHead>,
}

#[cfg(not(loom))]
impl<'m> Slots<'m> {
    /// The slots of a producer's memory of this shape that starts at `base`.
    ///
    /// # Safety
    /// `base` is the start of at least `shape.producer_bytes()` mapped bytes, aligned to a cache line,
    /// that stay for `'m`; in the owner's process they are writable, and no other code there writes them.
    #[inline]
    #[must_use]
    pub unsafe fn at(base: *mut u8, shape: crate::vbus::shape::Shape) -> Self {
        Self {
            // SAFETY: the first slot is within the memory, says the shape.
            first: unsafe { base.add(FIRST_SLOT) },
            class_bytes: match shape.class_count() {
                CLASS_COUNT => shape.class_bytes(),
                _ => 0,
            },
            slot_bytes: shape.slot_bytes(),
            mask: shape.depth() - 1,
            capacity: shape.message_bytes_max as usize,
            memory: core::marker::PhantomData,
        }
    }

    /// The slot of a class for a position; a class that there is not is brought into range.
    #[inline]
    #[must_use]
    pub fn slot(&self, class: usize, position: u32) -> Slot<'m> {
        let class = class % CLASS_COUNT;
        let offset = class * self.class_bytes + (position & self.mask) as usize * self.slot_bytes;
        // SAFETY: class and position are in range, so the slot is within the memory, by
        // `Shape::producer_bytes`; it is aligned, because all terms are multiples of a cache line;
        // every bit pattern is a valid slot head; and it stays for `'m`, as promised to `at`.
        unsafe {
            let start = self.first.add(offset);
            Slot {
                head: &*start.cast::<SlotHead>(),
                payload: start.add(SLOT_HEAD_BYTES),
                capacity: self.capacity,
            }
        }
    }
}

/// The slots of a model, which are few and small.
#[cfg(loom)]
#[derive(Clone, Copy)]
pub struct Slots<'m> {
    /// Class by class.
    pub slots: &'m [model::ModelSlot],
    /// Slots of a class.
    pub depth: u32,
}

#[cfg(loom)]
impl<'m> Slots<'m> {
    /// The slot of a class for a position.
    #[must_use]
    pub fn slot(&self, class: usize, position: u32) -> Slot<'m> {
        let index = class * self.depth as usize + (position % self.depth) as usize;
        let slot = &self.slots[index];
        Slot {
            head: &slot.head,
            payload: &slot.payload,
            halves: &slot.halves,
            capacity: model::PAYLOAD_BYTES,
        }
    }
}

/// Structures made of loom's atomics, which cannot be laid over bytes.
#[cfg(loom)]
pub mod model {
    use super::*;
    use core::array::from_fn;

    /// Bytes of a model's payload.
    pub const PAYLOAD_BYTES: usize = 8;

    /// A slot whose payload loom watches.
    pub struct ModelSlot {
        /// Its head.
        pub head: SlotHead,
        /// Its payload.
        pub payload: loom::cell::UnsafeCell<[u8; PAYLOAD_BYTES]>,
        /// A second copy, for readers that copy while it may change.
        pub halves: [AtomicU32; 2],
    }

    // SAFETY: the payload passes from thread to thread as the head says, which is what loom checks.
    unsafe impl Sync for ModelSlot {}

    fn half() -> AtomicU32 {
        AtomicU32::new(0)
    }

    fn word() -> AtomicU64 {
        AtomicU64::new(0)
    }

    /// An empty slot.
    #[must_use]
    pub fn slot() -> ModelSlot {
        ModelSlot {
            head: SlotHead {
                turn: half(),
                length: half(),
                arrival_ns: word(),
                sequence: half(),
                class: half(),
            },
            payload: loom::cell::UnsafeCell::new([0; PAYLOAD_BYTES]),
            halves: [half(), half()],
        }
    }

    /// The head of a fresh producer's memory.
    #[must_use]
    pub fn producer() -> ProducerHead {
        let per_class = || PerClassLine {
            count: from_fn(|_| word()),
        };
        ProducerHead {
            identity: identity(),
            kick: KickLine { kick: half() },
            latest: LatestLine { latest: word() },
            published: per_class(),
            dropped_full: per_class(),
        }
    }

    /// An identity that has not been announced.
    #[must_use]
    pub fn identity() -> IdentityWords {
        IdentityWords {
            words: from_fn(|_| word()),
        }
    }

    /// A consumer that is awake.
    #[must_use]
    pub fn wait() -> WaitLine {
        WaitLine { waiting: word() }
    }

    /// A fresh connection.
    #[must_use]
    pub fn connection() -> ConnectionEntry {
        ConnectionEntry {
            offer: OfferLine { epoch: word() },
            taken: TakenLine {
                taken: from_fn(|_| half()),
                corrupt: word(),
                overwritten: word(),
            },
            reading: ReadingLine { reading: half() },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::vbus::shape::{Kind, Shape};

    /// A page of a mapping.
    #[derive(Clone, Copy)]
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);

    const FILL: u8 = 0xee;

    #[test]
    fn a_payload_of_any_length_is_copied_whole_and_nothing_beside_it() {
        let pattern: Vec<u8> = (1..=100).collect();
        for message_bytes_max in [1, 7, 8, 40, 41, 63, 64, 65, 99] {
            let shape = Shape {
                kind: Kind::Queuing { depth: 2 },
                message_bytes_max,
            };
            let capacity = message_bytes_max as usize;
            for length in 0..=pattern.len() {
                let mut memory = vec![Page([FILL; 4096]); shape.producer_bytes().div_ceil(4096)];
                // SAFETY: as many bytes as the shape has, aligned to a page, not used otherwise while the slots are.
                let slots = unsafe { Slots::at(memory.as_mut_ptr().cast(), shape) };
                let (slot, after) = (slots.slot(3, 0), slots.slot(3, 1));
                slot.copy_in(&pattern[..length]);
                let copied = length.min(capacity);
                let mut out = [FILL; 100];
                slot.copy_out(&mut out[..length]);
                assert_eq!(out[..copied], pattern[..copied]);
                assert!(out[copied..].iter().all(|byte| *byte == FILL));
                let filled = u32::from_ne_bytes([FILL; 4]);
                assert_eq!(slot.head.class.load(Relaxed), filled);
                assert_eq!(after.head.turn.load(Relaxed), filled);
            }
        }
    }

    #[test]
    fn a_class_that_there_is_not_is_one_that_there_is() {
        let shape = Shape {
            kind: Kind::Sampling,
            message_bytes_max: 8,
        };
        let mut memory = vec![Page([0; 4096]); shape.producer_bytes().div_ceil(4096)];
        // SAFETY: as above.
        let cells = unsafe { Slots::at(memory.as_mut_ptr().cast(), shape) };
        for class in [0, 1, 7, 8, usize::MAX] {
            assert!(std::ptr::eq(
                cells.slot(class, 5).head,
                cells.slot(0, 1).head
            ));
        }
    }
}
