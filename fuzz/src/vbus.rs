//! Targets for V-Bus: what a peer sends in the handshake, what it says of its memory, and memory that holds
//! anything at any moment.
#![allow(unsafe_code)] // Lays the layout over a page of this process.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tautline_shm::vbus::cell::{Reader, Writer};
use tautline_shm::vbus::handshake::{MESSAGE_BYTES, Message, Step};
use tautline_shm::vbus::layout::{
    CLASS_COUNT, IDENTITY_BYTES, Identity, MessageHead, NAME_BYTES, PRODUCERS_MAX, ROLE_CONSUMER,
    ROLE_PRODUCER, Slot,
};
use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::ring::{Consumer, Producer};
use tautline_shm::vbus::shape::{Kind, MEMORY_BYTES_MAX, PAGE_BYTES, Shape, check, consumer_bytes};
use tautline_shm::vbus::wait::Kicker;

const QUEUING: Shape = Shape {
    kind: Kind::Queuing { depth: 2 },
    message_bytes_max: 16,
};
const SAMPLING: Shape = Shape {
    kind: Kind::Sampling,
    message_bytes_max: 16,
};
const PAGES: usize = 4;

const _: () = {
    assert!(QUEUING.producer_bytes() <= PAGES * PAGE_BYTES);
    assert!(SAMPLING.producer_bytes() <= PAGES * PAGE_BYTES);
    assert!(consumer_bytes() <= PAGES * PAGE_BYTES);
};

/// Memory as a mapping would be.
#[repr(align(4096))]
struct Pages([AtomicU64; PAGES * PAGE_BYTES / 8]);

impl Pages {
    fn new() -> Box<Self> {
        Box::new(Self([const { AtomicU64::new(0) }; PAGES * PAGE_BYTES / 8]))
    }

    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn producer(&self, shape: Shape) -> ProducerMemory<'_> {
        // SAFETY: the pages are as many as the shape needs (asserted above), aligned, writable, and
        // accessed by this thread alone.
        unsafe { ProducerMemory::at(self.base(), shape) }
    }

    fn consumer(&self) -> ConsumerMemory<'_> {
        // SAFETY: as above.
        unsafe { ConsumerMemory::at(self.base()) }
    }

    /// Writes four bytes somewhere, as a peer may at any moment.
    fn scribble(&self, place: u16, value: u32) {
        let words = self.0.len() * 2;
        let (word, half) = (usize::from(place) % words / 2, u32::from(place) % 2);
        let shift = half * 32;
        let before = self.0[word].load(Relaxed) & !(0xFFFF_FFFF << shift);
        self.0[word].store(before | u64::from(value) << shift, Relaxed);
    }
}

/// The bytes as a message of the handshake.
pub fn vbus_handshake(data: &[u8]) {
    if let Ok((message, text)) = Message::with_declaration(data) {
        assert_eq!(Message::from_bytes(&data[..MESSAGE_BYTES]), Ok(message));
        assert_eq!(
            data.len(),
            MESSAGE_BYTES + text.len(),
            "nothing is left out"
        );
    }
    if let Ok(message) = Message::from_bytes(data) {
        assert_eq!(data.len(), MESSAGE_BYTES);
        assert_eq!(message.to_bytes()[..], *data, "nothing is left out");
        assert_eq!(message.node[NAME_BYTES - 1], 0, "the name ends");
        assert!(message.node[0] != b'.' && !message.node.contains(&b'/'));
    }
}

/// The bytes as what a memory says of itself.
pub fn vbus_identity(data: &[u8]) {
    let Some((bytes, rest)) = data.split_first_chunk::<IDENTITY_BYTES>() else {
        return;
    };
    let (words, _) = bytes.as_chunks();
    let words = core::array::from_fn(|index| u64::from_ne_bytes(words[index]));
    let identity = Identity::from_words(words);
    assert_eq!(identity.to_words(), words);
    // How large it really is.
    let size = rest.first_chunk().map_or(identity.memory_bytes, |size| {
        u64::from(u32::from_ne_bytes(*size))
    });
    for role in [ROLE_PRODUCER, ROLE_CONSUMER] {
        let Ok(shape) = check(&identity, role, size) else {
            continue;
        };
        assert_eq!(shape.check(), Ok(shape));
        let needed = match role {
            ROLE_PRODUCER => shape.producer_bytes(),
            _ => consumer_bytes(),
        };
        assert!(needed as u64 <= size && needed <= MEMORY_BYTES_MAX);
        let slots = shape.class_bytes() * (shape.class_count() - 1)
            + shape.slot_bytes() * shape.depth() as usize;
        assert!(512 + slots <= shape.producer_bytes(), "the last slot fits");
    }
}

/// A payload that is copied as the library does it, beside bytes that must stay.
fn copy(slot: Slot<'_>, head: &MessageHead) {
    let mut buffer = [0xA5; 24];
    let length = head.length as usize;
    if length <= slot.capacity() {
        slot.copy_out(&mut buffer[..length]);
        assert!(buffer[length..].iter().all(|byte| *byte == 0xA5));
    }
}

/// The bytes as a peer that writes something into its memory between all steps of ours, in both roles.
pub fn vbus_memory(data: &[u8]) {
    let (theirs, ours) = (Pages::new(), Pages::new());
    let (mut consumer, mut reader) = (Consumer::new(), Reader::new());
    let mut producer = Producer::new(2);
    let (mut writer, mut kicker) = (Writer::new(), Kicker::new());
    let mut pushed = [0_u32; CLASS_COUNT];
    for step in data.as_chunks::<8>().0 {
        let place = u16::from_ne_bytes([step[0], step[1]]);
        theirs.scribble(
            place,
            u32::from_ne_bytes([step[2], step[3], step[4], step[5]]),
        );
        let class = usize::from(step[6]) % CLASS_COUNT;
        let index = usize::from(step[6]) % PRODUCERS_MAX;
        let own = &ours.consumer().connections[index];
        let head = MessageHead {
            length: 8,
            arrival_ns: 1,
            sequence: 2,
            class: class as u32,
        };
        match step[7] % 5 {
            0 => {
                let memory = theirs.producer(QUEUING);
                if let Some(slot) = consumer.peek(memory.slots, class) {
                    copy(slot, &slot.message());
                    consumer.release(&own.taken, class);
                }
            }
            1 => {
                let memory = theirs.producer(SAMPLING);
                let mut words = [0xA5; 4];
                let limit = SAMPLING.message_bytes_max;
                let latest = &memory.head.latest;
                let next = reader.copy_next(memory.slots, limit, &mut words);
                let copied =
                    next.or_else(|| reader.copy_latest(memory.slots, latest, limit, &mut words));
                assert!(copied.is_none_or(|copied| copied.message.length <= limit));
                let words_max = limit.div_ceil(8) as usize;
                assert!(words[words_max..].iter().all(|word| *word == 0xA5));
                let value = reader.read(memory.slots, &memory.head.latest, &own.reading);
                if let Some(value) = value {
                    copy(value.cell, &value.cell.message());
                }
            }
            2 => {
                let memory = ours.producer(QUEUING);
                let taken = &theirs.consumer().connections[index].taken;
                let mut batch = 0;
                while let Ok(slot) = producer.next(memory.slots, taken, class) {
                    slot.copy_in(&[7; 16]);
                    producer.publish(memory.head, memory.slots, &head);
                    batch += 1;
                    assert!(
                        batch <= 4,
                        "more than was free, and one ring more, whatever the peer says"
                    );
                }
                pushed[class] = pushed[class].wrapping_add(batch);
            }
            3 => {
                let memory = ours.producer(SAMPLING);
                let reading = &theirs.consumer().connections[index].reading;
                let cell = writer.next(memory.slots, reading);
                cell.copy_in(&[7; 16]);
                writer.publish(&memory.head.latest, memory.slots, &head);
            }
            _ => {
                let memory = ours.producer(QUEUING);
                let wait = &theirs.consumer().head.wait;
                let kicks = u32::from(kicker.wanted(&memory.head.kick, wait).is_some())
                    + u32::from(kicker.wanted(&memory.head.kick, wait).is_some());
                assert!(kicks <= 1, "one sleep, one kick");
            }
        }
    }
}

/// Inputs to begin with.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut name = [0; NAME_BYTES];
    name[..5].copy_from_slice(b"motor");
    match target {
        "vbus_handshake" => [Step::Connect, Step::Offer, Step::Here, Step::End]
            .map(|step| Message::new(step, name, 7, 1).to_bytes().to_vec())
            .to_vec(),
        "vbus_identity" => [QUEUING, SAMPLING]
            .into_iter()
            .flat_map(|shape| [shape.producer_identity(), shape.consumer_identity()])
            .map(|identity| {
                identity
                    .to_words()
                    .map(u64::to_ne_bytes)
                    .as_flattened()
                    .to_vec()
            })
            .collect(),
        // Turns of first slots, and all kinds of steps.
        _ => (0..5_u8)
            .map(|kind| {
                let step = |class: u8| [128 + 32 * class, 0, 1, 0, 0, 0, class, kind];
                (0..4).flat_map(step).collect()
            })
            .collect(),
    }
}
