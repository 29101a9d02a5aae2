//! Models of the lock-free parts, checked over every interleaving that loom can produce:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tautline-shm --test loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::SeqCst};
use loom::thread;
use tautline_shm::layout::{CELL_COUNT, CLASS_COUNT, Control, RecordHead, Slot, model};
use tautline_shm::queue::{Consumer, PushError};
use tautline_shm::sample::Reader;
use tautline_shm::{doorbell, queue, sample};

const URGENT: usize = 7;
const BULK: usize = 0;
const DEPTH: usize = 2;
const PAYLOAD_BYTES: usize = 16;

struct Memory {
    control: Control,
    slots: Vec<Slot>,
}

impl Memory {
    fn queuing() -> Arc<Self> {
        let slots: Vec<_> = (0..DEPTH * CLASS_COUNT).map(|_| model::slot()).collect();
        queue::initialise(&slots);
        Arc::new(Self {
            control: model::control(),
            slots,
        })
    }

    fn sampling() -> Arc<Self> {
        let memory = Self {
            control: model::control(),
            slots: (0..CELL_COUNT).map(|_| model::slot()).collect(),
        };
        sample::initialise(&memory.control);
        Arc::new(memory)
    }

    fn push(&self, class: usize, value: u8) -> Result<(), PushError> {
        let payload = [value; PAYLOAD_BYTES];
        queue::push(&self.control, &self.slots, class, &head(value), &payload)
    }

    fn write(&self, value: u8) -> bool {
        let payload = [value; PAYLOAD_BYTES];
        sample::write(&self.control, &self.slots, &head(value), &payload).is_ok()
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

fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn one_producer_wraps_without_loss_or_reordering() {
    bounded(3, || {
        let memory = Memory::queuing();
        let producer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                (1..=3)
                    .filter(|value| memory.push(URGENT, *value).is_ok())
                    .collect::<Vec<_>>()
            })
        };
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
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.push(URGENT, 1).is_ok())
        };
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
        let producer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || (memory.push(BULK, 3), memory.push(URGENT, 9)))
        };
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
        let memory = Memory::sampling();
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                for value in 1..=3 {
                    assert!(memory.write(value), "one writer is never refused");
                }
            })
        };
        let mut reader = Reader::new();
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

#[test]
fn two_writers_one_gives_way() {
    bounded(2, || {
        let memory = Memory::sampling();
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.write(1))
        };
        let mine = memory.write(2);
        let mut reader = Reader::new();
        let early = reader
            .read(&memory.control, &memory.slots)
            .map(|sample| whole(sample.cell));
        let theirs = other.join().unwrap();
        let late = reader
            .read(&memory.control, &memory.slots)
            .map(|sample| whole(sample.cell));
        assert!(mine || theirs, "somebody wrote");
        let written = memory.control.sample_writer.written.load(SeqCst);
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
fn no_wake_up_is_lost() {
    bounded(3, || {
        let memory = Memory::queuing();
        let rung = Arc::new(AtomicU32::new(0));
        let producer = {
            let (memory, rung) = (Arc::clone(&memory), Arc::clone(&rung));
            thread::spawn(move || {
                for value in 1..=2 {
                    memory.push(URGENT, value).unwrap();
                    if doorbell::wanted(&memory.control) {
                        rung.fetch_add(1, SeqCst);
                    }
                }
            })
        };
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
