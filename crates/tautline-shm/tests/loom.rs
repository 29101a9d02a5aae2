//! Models of the lock-free parts, checked over every interleaving that loom can produce:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tautline-shm --test loom`.
#![cfg(loom)]

mod model_run;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::SeqCst};
use loom::thread;
use model_run::{bounded, spawn};
use tautline_shm::index_pool::IndexPool;
use tautline_shm::layout::{
    CELL_COUNT, CLASS_COUNT, Control, PEER_COUNT, Peer, RecordHead, Slot, source_form, source_word,
};
use tautline_shm::queue::{Consumer, PushError};
use tautline_shm::sample::Reader;
use tautline_shm::{doorbell, peer, police, queue, sample};

const URGENT: usize = 7;
const BULK: usize = 0;
const DEPTH: usize = 2;
const PAYLOAD_BYTES: usize = 16;

struct Memory {
    control: Control,
    peers: [Peer; PEER_COUNT],
    slots: Vec<Slot>,
}

impl Memory {
    fn queuing() -> Arc<Self> {
        let slots: Vec<_> = (0..DEPTH * CLASS_COUNT).map(|_| Slot::default()).collect();
        queue::initialise(&slots);
        Arc::new(Self {
            control: Control::default(),
            peers: std::array::from_fn(|_| Peer::default()),
            slots,
        })
    }

    fn sampling(sources: usize) -> Arc<Self> {
        let memory = Self {
            control: Control::default(),
            peers: std::array::from_fn(|_| Peer::default()),
            slots: (0..sources * CELL_COUNT).map(|_| Slot::default()).collect(),
        };
        sample::initialise(&memory.control);
        Arc::new(memory)
    }

    fn push(&self, class: usize, value: u8) -> Result<(), PushError> {
        let payload = [value; PAYLOAD_BYTES];
        queue::push(&self.control, &self.slots, class, &head(value), &payload)
    }

    fn write(&self, value: u8) -> bool {
        self.write_to(0, value)
    }

    fn write_to(&self, source: usize, value: u8) -> bool {
        let payload = [value; PAYLOAD_BYTES];
        let (control, peer) = (&self.control, &self.peers[source]);
        sample::write(control, peer, &self.slots, source, &head(value), &payload).is_ok()
    }

    /// Writes as a sender whose address says its number, wherever its place is.
    fn write_as(&self, sender: u8, value: u8) -> bool {
        let source = source_word([sender; 6], source_form::ETHERNET);
        let place = peer::source(&self.control, source, 1, PEER_COUNT);
        place.is_some_and(|place| self.write_to(place, value))
    }

    /// Takes one message and checks that it is whole.
    fn take(&self, consumer: &mut Consumer) -> Option<u8> {
        let record = consumer.peek(&self.slots)?;
        let value = whole(record.slot);
        consumer.release(&self.control, record);
        Some(value)
    }
}

fn head(value: u8) -> RecordHead {
    RecordHead {
        arrival_ns: u64::from(value),
        source: u64::from(value),
        header: [value; 16],
    }
}

fn whole(slot: &Slot) -> u8 {
    let mut payload = [0; PAYLOAD_BYTES];
    slot.read_payload(&mut payload);
    let value = payload[0];
    assert_eq!(payload, [value; PAYLOAD_BYTES], "torn payload");
    assert_eq!(slot.head(), head(value), "head of another message");
    value
}

#[test]
fn one_producer_wraps_without_loss_or_reordering() {
    bounded(3, || {
        let memory = Memory::queuing();
        let producer = spawn(&memory, move |memory| {
            (1..=3)
                .filter(|value| memory.push(URGENT, *value).is_ok())
                .collect::<Vec<_>>()
        });
        let mut consumer = Consumer::new(DEPTH);
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.extend(memory.take(&mut consumer));
            thread::yield_now();
        }
        let pushed = producer.join().unwrap();
        while let Some(value) = memory.take(&mut consumer) {
            taken.push(value);
        }
        assert_eq!(taken, pushed, "each accepted message once, in order");
        let dropped = memory.control.class[URGENT].dropped_full.load(SeqCst);
        assert_eq!(pushed.len() as u64 + dropped, 3, "the others are counted");
    });
}

#[test]
fn two_producers_share_a_class() {
    bounded(2, || {
        let memory = Memory::queuing();
        let other = spawn(&memory, move |memory| memory.push(URGENT, 1).is_ok());
        let mine = memory.push(URGENT, 2).is_ok();
        let theirs = other.join().unwrap();
        assert!(mine && theirs, "there was room for both");
        let mut consumer = Consumer::new(DEPTH);
        let mut taken = [memory.take(&mut consumer), memory.take(&mut consumer)];
        taken.sort_unstable();
        assert_eq!(taken, [Some(1), Some(2)]);
        assert_eq!(memory.take(&mut consumer), None);
    });
}

#[test]
fn a_full_class_displaces_nothing() {
    bounded(2, || {
        let memory = Memory::queuing();
        memory.push(BULK, 1).unwrap();
        memory.push(BULK, 2).unwrap();
        let producer = spawn(&memory, move |memory| {
            (memory.push(BULK, 3), memory.push(URGENT, 9))
        });
        let mut consumer = Consumer::new(DEPTH);
        let first = memory.take(&mut consumer).unwrap();
        let (bulk, urgent) = producer.join().unwrap();
        assert_eq!(urgent, Ok(()));
        let mut rest = Vec::new();
        while let Some(value) = memory.take(&mut consumer) {
            rest.push(value);
        }
        let mut all = vec![first];
        all.extend(&rest);
        let expected_bulk: Vec<u8> = if bulk.is_ok() {
            vec![1, 2, 3]
        } else {
            vec![1, 2]
        };
        let bulk_seen: Vec<u8> = all.iter().copied().filter(|value| *value != 9).collect();
        assert_eq!(bulk_seen, expected_bulk);
        assert!(all.contains(&9));
        if first != 9 {
            assert_eq!(
                rest[0], 9,
                "the urgent one overtakes what was there before it"
            );
        }
    });
}

#[test]
fn a_sample_is_never_torn_and_never_goes_back() {
    bounded(3, || {
        let memory = Memory::sampling(1);
        let writer = spawn(&memory, move |memory| {
            for value in 1..=3 {
                assert!(memory.write(value), "one writer is never refused");
            }
        });
        let mut reader = Reader::new(0);
        let mut last = 0;
        let mut overwritten = 0;
        let mut seen = 0;
        for _ in 0..2 {
            if let Some(sample) = reader.read(&memory.control, &memory.slots) {
                let value = whole(sample.cell);
                assert!(value >= last && u64::from(value) == sample.number);
                assert_eq!(sample.new, value > last);
                seen += u64::from(sample.new);
                overwritten += sample.overwritten;
                last = value;
            }
            thread::yield_now();
        }
        writer.join().unwrap();
        let sample = reader.read(&memory.control, &memory.slots).unwrap();
        assert_eq!(whole(sample.cell), 3, "the last value is there");
        seen += u64::from(sample.new);
        overwritten += sample.overwritten;
        assert_eq!(seen + overwritten, 3, "each value was seen or counted");
    });
}

/// The newest value as an observer sees it, which must be whole.
fn observed(memory: &Memory) -> Option<u8> {
    let mut payload = [0; PAYLOAD_BYTES];
    let found = sample::observe(&memory.peers[0], &memory.slots, 0, &mut payload)?;
    let value = payload[0];
    assert_eq!(payload, [value; PAYLOAD_BYTES], "torn payload");
    assert_eq!(found, head(value), "head of another value");
    Some(value)
}

#[test]
fn an_observer_sees_whole_values_and_disturbs_nobody() {
    // The observer in a thread of its own: then loom tries all that it may see of the writes, which come first.
    bounded(2, || {
        let memory = Memory::sampling(1);
        assert!(memory.write(1), "nobody else writes");
        let observer = spawn(&memory, move |memory| observed(&memory));
        // The third goes to the cell of the first.
        for value in 2..=3 {
            assert!(memory.write(value), "one writer is never refused");
        }
        observer.join().unwrap();
        assert_eq!(observed(&memory), Some(3), "the last value, unread");
    });
}

#[test]
fn two_writers_one_gives_way() {
    bounded(2, || {
        let memory = Memory::sampling(1);
        let other = spawn(&memory, move |memory| memory.write(1));
        let mine = memory.write(2);
        let mut reader = Reader::new(0);
        let early = reader
            .read(&memory.control, &memory.slots)
            .map(|sample| whole(sample.cell));
        let theirs = other.join().unwrap();
        let late = reader
            .read(&memory.control, &memory.slots)
            .map(|sample| whole(sample.cell));
        assert!(mine || theirs, "somebody wrote");
        let written = memory.peers[0].written.load(SeqCst);
        let contended = memory.control.producer.contended.load(SeqCst);
        assert_eq!(
            (written, contended),
            (u64::from(mine) + u64::from(theirs), 2 - written)
        );
        let allowed = [(mine, 2), (theirs, 1)];
        for seen in [early, late].into_iter().flatten() {
            assert!(
                allowed.contains(&(true, seen)),
                "{seen} was refused, or never written"
            );
        }
        assert!(late.is_some());
    });
}

#[test]
fn sources_on_two_cpus_do_not_disturb_each_other() {
    bounded(2, || {
        let memory = Memory::sampling(PEER_COUNT);
        let other = spawn(&memory, move |memory| {
            memory.write_as(1, 11) && memory.write_as(1, 12)
        });
        assert!(memory.write_as(2, 21), "nobody else has its place");
        let mut readers: Vec<_> = (0..PEER_COUNT).map(Reader::new).collect();
        let mut read = || {
            let look = |reader: &mut Reader| {
                let sample = reader.read(&memory.control, &memory.slots)?;
                Some((whole(sample.cell), sample.new, sample.overwritten))
            };
            readers.iter_mut().filter_map(look).collect::<Vec<_>>()
        };
        let early = read();
        assert!(early.iter().any(|seen| *seen == (21, true, 0)));
        assert!(other.join().unwrap(), "nor is it refused");
        let late = read();
        assert_eq!(late.len(), 2);
        assert!(late.contains(&(21, false, 0)));
        let seen = early
            .iter()
            .chain(&late)
            .filter(|seen| seen.1 && seen.0 < 20);
        let counted: u64 = seen.map(|seen| 1 + seen.2).sum();
        assert_eq!(counted, 2, "each value was seen or counted");
        assert!(late.iter().any(|seen| seen.0 == 12));
        assert!(!memory.write_as(3, 31), "all places are taken");
        assert_eq!(memory.control.producer.sources_refused.load(SeqCst), 1);
        assert_eq!(memory.control.producer.contended.load(SeqCst), 0);
    });
}

#[test]
fn one_source_on_two_cpus_has_one_place() {
    bounded(3, || {
        let memory = Memory::sampling(PEER_COUNT);
        let place = |memory: &Memory| {
            let source = source_word([7; 6], source_form::ETHERNET);
            peer::source(&memory.control, source, 1, PEER_COUNT)
        };
        let other = spawn(&memory, move |memory| place(&memory));
        let mine = place(&memory);
        assert!(mine.is_some());
        assert_eq!(mine, other.join().unwrap());
        let taken = memory
            .control
            .keys
            .key
            .iter()
            .filter(|key| key.load(SeqCst) != 0);
        assert_eq!(taken.count(), 1);
    });
}

#[test]
fn no_more_than_the_burst_is_admitted() {
    bounded(3, || {
        let memory = Memory::queuing();
        police::set(&memory.control, police::Bucket::new(1_000, 3));
        let admitted = |memory: &Memory| {
            (0..2)
                .filter(|_| !police::policed(&memory.control, 5))
                .count()
        };
        let other = spawn(&memory, move |memory| admitted(&memory));
        let all = admitted(&memory) + other.join().unwrap();
        assert_eq!(all, 3, "two CPUs that meet lose no token and make none");
        assert_eq!(memory.control.police.policed.load(SeqCst), 1);
    });
}

#[test]
fn no_wake_up_is_lost() {
    bounded(3, || {
        let memory = Memory::queuing();
        let rung = Arc::new(AtomicU32::new(0));
        let producer = spawn(&memory, {
            let rung = Arc::clone(&rung);
            move |memory| {
                for value in 1..=2 {
                    memory.push(URGENT, value).unwrap();
                    if doorbell::wanted(&memory.control) {
                        rung.fetch_add(1, SeqCst);
                    }
                }
            }
        });
        let mut consumer = Consumer::new(DEPTH);
        doorbell::arm(&memory.control);
        let before_sleep = memory.take(&mut consumer);
        // Here the consumer would sleep if it found nothing.
        producer.join().unwrap();
        if before_sleep.is_none() {
            assert!(rung.load(SeqCst) > 0, "it would sleep for ever");
        }
        assert!(rung.load(SeqCst) <= 1, "rung for once only");
    });
}

/// Two threads share one buffer: never both at a time, and each sees what the other left there.
#[test]
fn a_place_has_one_holder_who_sees_what_the_last_one_did() {
    bounded(3, || {
        let shared = Arc::new((IndexPool::new(1), loom::cell::UnsafeCell::new(0)));
        let borrow = |(places, buffer): &(IndexPool, loom::cell::UnsafeCell<u32>)| {
            let Some(place) = places.take() else {
                return 0;
            };
            // SAFETY: the holder of the place has the buffer; loom fails the model if two do, or if one does
            // not happen after the other.
            #[allow(unsafe_code)]
            buffer.with_mut(|value| unsafe { *value += 1 });
            places.give_back(place);
            1
        };
        let other = spawn(&shared, move |shared| borrow(&shared));
        let mine = borrow(&shared);
        let borrowed = mine + other.join().unwrap();
        let mut total = 0;
        shared.1.with(|value| {
            // SAFETY: the other thread has ended.
            #[allow(unsafe_code)]
            unsafe {
                total = *value;
            }
        });
        assert_eq!(total, borrowed);
        assert!(borrowed >= 1, "one of two finds it free");
        assert_eq!(shared.0.taken(), 0);
    });
}
