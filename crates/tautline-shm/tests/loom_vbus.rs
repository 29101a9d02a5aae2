//! Models of V-Bus, checked over every interleaving and memory order that loom can produce:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tautline-shm --test loom_vbus`.
#![cfg(loom)]

mod model_run;

use loom::sync::Arc;
use loom::thread;
use model_run::{bounded, spawn};
use tautline_shm::vbus::cell::{Reader, Writer};
use tautline_shm::vbus::layout::model::PAYLOAD_BYTES;
use tautline_shm::vbus::layout::{
    CELL_COUNT, CLASS_COUNT, ConnectionEntry, Identity, MessageHead, ProducerHead, Slot, Slots,
    WaitLine, model,
};
use tautline_shm::vbus::ring::{Consumer, Follower, Full, Producer};
use tautline_shm::vbus::shape::{Kind, Shape};
use tautline_shm::vbus::wait::{Kicker, Sleeper, WAKE_MODE, WakeMode, barrier, kick_all, kicks};

const DEPTH: u32 = 2;
const URGENT: usize = 7;
const BULK: usize = 0;

/// Both memories of one connection, and the line that the port's connections share.
struct Connection {
    head: ProducerHead,
    slots: Vec<model::ModelSlot>,
    entry: ConnectionEntry,
    wait: WaitLine,
}

impl Connection {
    fn queuing() -> Arc<Self> {
        Self::of(DEPTH as usize * CLASS_COUNT)
    }

    fn sampling() -> Arc<Self> {
        Self::of(CELL_COUNT)
    }

    fn of(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            head: model::producer(),
            slots: (0..slots).map(|_| model::slot()).collect(),
            entry: model::connection(),
            wait: model::wait(),
        })
    }

    fn rings(&self) -> Slots<'_> {
        Slots {
            slots: &self.slots,
            depth: DEPTH,
        }
    }

    fn cells(&self) -> Slots<'_> {
        Slots {
            slots: &self.slots,
            depth: CELL_COUNT as u32,
        }
    }

    fn push(&self, producer: &mut Producer, class: usize, value: u8) -> Result<(), Full> {
        let slot = producer
            .next(self.rings(), &self.entry.taken, class)
            .inspect_err(|Full| producer.give_up(&self.head, class))?;
        slot.copy_in(&[value; PAYLOAD_BYTES]);
        producer.publish(&self.head, self.rings(), &head(value, class));
        Ok(())
    }

    fn take(&self, consumer: &mut Consumer) -> Option<u8> {
        for class in (0..CLASS_COUNT).rev() {
            if let Some(slot) = consumer.peek(self.rings(), class) {
                let value = whole(slot, class);
                consumer.release(&self.entry.taken, class);
                return Some(value);
            }
        }
        None
    }

    fn write(&self, writer: &mut Writer, kicker: &mut Kicker, value: u8) {
        let cell = writer.next(self.cells(), &self.entry.reading);
        cell.copy_in(&[value; PAYLOAD_BYTES]);
        writer.publish(&self.head.latest, self.cells(), &head(value, 0));
        kicker.wanted(&self.head.kick, &self.wait);
    }

    fn dropped(&self) -> u64 {
        let line = &self.head.dropped_full;
        line.count
            .iter()
            .map(|count| count.load(loom::sync::atomic::Ordering::SeqCst))
            .sum()
    }
}

fn head(value: u8, class: usize) -> MessageHead {
    MessageHead {
        length: PAYLOAD_BYTES as u32,
        arrival_ns: value.into(),
        sequence: value.into(),
        class: class as u32,
    }
}

/// The value in a slot, which must be all of one message.
fn whole(slot: Slot<'_>, class: usize) -> u8 {
    let mut payload = [0; PAYLOAD_BYTES];
    slot.copy_out(&mut payload);
    let value = payload[0];
    assert_eq!(payload, [value; PAYLOAD_BYTES], "torn payload");
    assert_eq!(
        slot.message(),
        head(value, class),
        "head of another message"
    );
    value
}

#[test]
fn of_a_batch_all_is_seen_or_nothing() {
    bounded(3, || {
        let connection = Connection::queuing();
        let sender = spawn(&connection, move |connection| {
            let mut producer = Producer::new(DEPTH);
            let mut sent = 0;
            for batch in [[1, 2], [3, 4]] {
                let mut staged = 0;
                for value in batch {
                    let taken = &connection.entry.taken;
                    let Ok(slot) = producer.next(connection.rings(), taken, URGENT) else {
                        break;
                    };
                    slot.copy_in(&[value; PAYLOAD_BYTES]);
                    producer.stage(connection.rings(), slot, &head(value, URGENT));
                    staged += 1;
                }
                producer.publish_staged(&connection.head, connection.rings(), URGENT, staged);
                sent += staged as u8;
                if staged < 2 {
                    break;
                }
            }
            sent
        });
        let mut consumer = Consumer::new();
        let mut taken = 0;
        for _ in 0..2 {
            if let Some(value) = connection.take(&mut consumer) {
                taken += 1;
                assert_eq!(value, taken);
                if value == 1 {
                    taken += 1;
                    assert_eq!(
                        connection.take(&mut consumer),
                        Some(2),
                        "its batch is there"
                    );
                }
            }
        }
        let sent = sender.join().unwrap();
        while let Some(value) = connection.take(&mut consumer) {
            taken += 1;
            assert_eq!(value, taken);
        }
        assert_eq!(taken, sent);
    });
}

#[test]
fn a_ring_wraps_without_loss_or_reordering() {
    bounded(3, || {
        let connection = Connection::queuing();
        let sender = spawn(&connection, move |connection| {
            let mut producer = Producer::new(DEPTH);
            (1..=4)
                .filter(|value| connection.push(&mut producer, URGENT, *value).is_ok())
                .collect::<Vec<_>>()
        });
        let mut consumer = Consumer::new();
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.extend(connection.take(&mut consumer));
            thread::yield_now();
        }
        let sent = sender.join().unwrap();
        while let Some(value) = connection.take(&mut consumer) {
            taken.push(value);
        }
        assert_eq!(
            taken, sent,
            "each message that was taken on comes once, in order"
        );
        assert_eq!(
            sent.len() as u64 + connection.dropped(),
            4,
            "the rest is counted"
        );
    });
}

#[test]
fn a_full_class_takes_nothing_from_another() {
    bounded(2, || {
        let connection = Connection::queuing();
        let mut producer = Producer::new(DEPTH);
        connection.push(&mut producer, BULK, 1).unwrap();
        connection.push(&mut producer, BULK, 2).unwrap();
        let sender = spawn(&connection, move |connection| {
            let bulk = connection.push(&mut producer, BULK, 3);
            (bulk, connection.push(&mut producer, URGENT, 9))
        });
        let mut consumer = Consumer::new();
        let mut taken = vec![connection.take(&mut consumer).unwrap()];
        let (bulk, urgent) = sender.join().unwrap();
        assert_eq!(urgent, Ok(()));
        while let Some(value) = connection.take(&mut consumer) {
            taken.push(value);
        }
        assert!(
            taken[..2].contains(&9),
            "it overtakes what was there before it"
        );
        taken.retain(|value| *value != 9);
        let expected: &[u8] = if bulk.is_ok() { &[1, 2, 3] } else { &[1, 2] };
        assert_eq!(taken, expected);
    });
}

#[test]
fn a_value_is_never_torn_and_never_goes_back() {
    bounded(3, || {
        let connection = Connection::sampling();
        let sender = spawn(&connection, move |connection| {
            let (mut writer, mut kicker) = (Writer::new(), Kicker::new());
            for value in 1..=4 {
                connection.write(&mut writer, &mut kicker, value);
            }
        });
        let mut reader = Reader::new();
        let (mut last, mut seen, mut overwritten) = (0, 0, 0);
        let mut look = |connection: &Connection| {
            let (latest, reading) = (&connection.head.latest, &connection.entry.reading);
            let Some(value) = reader.read(connection.cells(), latest, reading) else {
                return 0;
            };
            let held = whole(value.cell, 0);
            assert!(held >= last && u32::from(held) == value.number);
            assert_eq!(value.new, held > last);
            seen += u32::from(value.new);
            overwritten += value.overwritten;
            last = held;
            // It is the reader's for as long as it likes.
            thread::yield_now();
            assert_eq!(whole(value.cell, 0), held, "replaced while it was read");
            held
        };
        for _ in 0..2 {
            look(&connection);
        }
        sender.join().unwrap();
        assert_eq!(look(&connection), 4, "the last value is there");
        assert_eq!(seen + overwritten, 4, "each value was seen or counted");
    });
}

/// A reader that copies, and takes a cell only where that fails.
#[test]
fn a_copied_value_is_whole_and_never_goes_back() {
    // The third value is the first that replaces one.
    bounded(2, || {
        let connection = Connection::sampling();
        let sender = spawn(&connection, move |connection| {
            let (mut writer, mut kicker) = (Writer::new(), Kicker::new());
            for value in 1..=3 {
                connection.write(&mut writer, &mut kicker, value);
            }
        });
        let mut reader = Reader::new();
        let (mut last, mut seen, mut overwritten) = (0, 0, 0);
        let mut look = |reader: &mut Reader| {
            let (latest, reading) = (&connection.head.latest, &connection.entry.reading);
            let mut copy = [0];
            let (cells, limit) = (connection.cells(), PAYLOAD_BYTES as u32);
            let next = reader.copy_next(cells, limit, &mut copy);
            let copied = next.or_else(|| reader.copy_latest(cells, latest, limit, &mut copy));
            let (value, unseen) = if let Some(copied) = copied {
                let bytes = copy[0].to_ne_bytes();
                assert_eq!(bytes, [bytes[0]; PAYLOAD_BYTES], "torn payload");
                assert_eq!(copied.message, head(bytes[0], 0), "head of another value");
                (bytes[0], copied.overwritten)
            } else {
                match reader.read(connection.cells(), latest, reading) {
                    Some(value) if value.new => (whole(value.cell, 0), value.overwritten),
                    _ => return last,
                }
            };
            assert!(value > last);
            seen += 1;
            overwritten += unseen;
            last = value;
            last
        };
        look(&mut reader);
        let last = look(&mut reader);
        sender.join().unwrap();
        let fresh = reader.fresh(connection.cells(), &connection.head.latest);
        assert_eq!(fresh, last < 3, "what is there is seen to be");
        assert_eq!(look(&mut reader), 3, "the last value is there");
        assert_eq!(seen + overwritten, 3, "each value was seen or counted");
    });
}

/// One of many readers: the writer takes no notice of it.
#[test]
fn a_value_for_many_is_whole_and_never_goes_back() {
    // The fifth value is the first in a cell that has had one.
    const VALUES: u8 = 5;
    bounded(2, || {
        let connection = Connection::sampling();
        let write = |connection: &Connection, writer: &mut Writer, value| {
            let cell = writer.next_for_all(connection.cells());
            cell.copy_in(&[value; PAYLOAD_BYTES]);
            writer.publish(&connection.head.latest, connection.cells(), &head(value, 0));
            barrier();
        };
        let mut writer = Writer::new();
        write(&connection, &mut writer, 1);
        let latest = connection
            .head
            .latest
            .latest
            .load(loom::sync::atomic::Ordering::SeqCst);
        let mut reader = Reader::of_many(latest);
        let sender = spawn(&connection, move |connection| {
            for value in 2..=VALUES {
                write(&connection, &mut writer, value);
            }
        });
        let (mut last, mut seen, mut overwritten) = (0, 0, 0);
        let mut look = |reader: &mut Reader| {
            let (cells, limit, mut copy) = (connection.cells(), PAYLOAD_BYTES as u32, [0]);
            let latest = &connection.head.latest;
            let copied = reader.follow(cells, latest, limit, &mut copy)?;
            let bytes = copy[0].to_ne_bytes();
            assert_eq!(bytes, [bytes[0]; PAYLOAD_BYTES], "torn payload");
            assert_eq!(copied.message, head(bytes[0], 0), "head of another value");
            assert!(bytes[0] > last);
            last = bytes[0];
            seen += 1;
            overwritten += copied.overwritten;
            Some(last)
        };
        let first = look(&mut reader);
        sender.join().unwrap();
        assert_eq!(
            reader.fresh(connection.cells(), &connection.head.latest),
            first != Some(VALUES)
        );
        let end = look(&mut reader).or(first);
        assert_eq!(end, Some(VALUES), "the last value is there");
        assert_eq!(
            seen + overwritten,
            u32::from(VALUES),
            "each was seen or counted"
        );
    });
}

/// One of many readers: the producer takes no notice of it, and laps it.
#[test]
fn a_message_for_many_is_whole_and_each_is_seen_or_counted() {
    // The ring has two slots: the third message goes where the first is.
    const MESSAGES: u8 = 4;
    bounded(2, || {
        let connection = Connection::queuing();
        let publish = |connection: &Connection, producer: &mut Producer, value| {
            let slot = producer.next_for_all(connection.rings(), BULK);
            slot.copy_in(&[value; PAYLOAD_BYTES]);
            producer.publish_for_all(&connection.head, connection.rings(), &head(value, BULK));
        };
        let mut producer = Producer::new(DEPTH);
        let mut follower = Follower::new(DEPTH, [0; CLASS_COUNT]);
        publish(&connection, &mut producer, 1);
        let sender = spawn(&connection, move |connection| {
            for value in 2..=MESSAGES {
                publish(&connection, &mut producer, value);
            }
        });
        let (mut last, mut seen, mut overwritten) = (0, 0, 0);
        let mut look = |follower: &mut Follower| {
            let mut copy = [0];
            let (limit, rings) = (PAYLOAD_BYTES as u32, connection.rings());
            let followed = follower.copy(&connection.head, rings, BULK, limit, &mut copy);
            overwritten += followed.overwritten;
            let Some(message) = followed.message else {
                return;
            };
            let bytes = copy[0].to_ne_bytes();
            assert_eq!(bytes, [bytes[0]; PAYLOAD_BYTES], "torn payload");
            assert_eq!(message, head(bytes[0], BULK), "head of another message");
            assert!(bytes[0] > last, "went back");
            last = bytes[0];
            seen += 1;
            follower.release(&connection.entry.taken, BULK);
        };
        look(&mut follower);
        sender.join().unwrap();
        assert!(!follower.has_next(&connection.head, URGENT));
        while follower.has_next(&connection.head, BULK) {
            look(&mut follower);
        }
        assert_eq!(last, MESSAGES, "the last message is there");
        assert_eq!(seen + overwritten, u64::from(MESSAGES));
        let taken = connection.entry.taken.taken[BULK].load(loom::sync::atomic::Ordering::SeqCst);
        assert_eq!(taken, u32::from(MESSAGES));
    });
}

/// Two of many consumers sleep: one kick is for both.
#[test]
fn a_kick_for_many_is_missed_by_none() {
    bounded(3, || {
        let connection = Connection::queuing();
        let other = Arc::new(model::wait());
        let sender = spawn(&connection, {
            let other = Arc::clone(&other);
            move |connection| {
                let mut producer = Producer::new(DEPTH);
                let mut kickers = [Kicker::new(), Kicker::new()];
                connection.push(&mut producer, URGENT, 1).unwrap();
                barrier();
                let lines = [&connection.wait, &*other];
                let asked = kickers
                    .iter_mut()
                    .zip(lines)
                    .map(|(kicker, line)| kicker.wanted_by_one(line));
                if asked.fold(false, |any, one| any | one.is_some()) {
                    kick_all(&connection.head.kick);
                }
            }
        });
        let mut consumer = Consumer::new();
        let (mut one, mut two) = (Sleeper::new(), Sleeper::new());
        one.arm(&connection.wait, WakeMode::Futex);
        let remembered = kicks(&connection.head.kick);
        let slept_one = consumer.peek(connection.rings(), URGENT).is_none();
        two.arm(&other, WakeMode::Futex);
        let remembered_later = kicks(&connection.head.kick);
        let slept_two = connection.take(&mut consumer).is_none();
        sender.join().unwrap();
        let now = kicks(&connection.head.kick);
        assert!(!slept_one || now != remembered, "it would sleep for ever");
        assert!(
            !slept_two || now != remembered_later,
            "it would sleep for ever"
        );
    });
}

#[test]
fn no_wake_up_is_lost_and_none_comes_twice() {
    bounded(3, || {
        let connection = Connection::queuing();
        let sender = spawn(&connection, move |connection| {
            let (mut producer, mut kicker) = (Producer::new(DEPTH), Kicker::new());
            let mut woken = 0;
            for value in 1..=2 {
                connection.push(&mut producer, URGENT, value).unwrap();
                let wanted = kicker.wanted(&connection.head.kick, &connection.wait);
                assert!(matches!(wanted, None | Some(WakeMode::Futex)));
                woken += u32::from(wanted.is_some());
            }
            woken
        });
        let mut consumer = Consumer::new();
        let mut sleeper = Sleeper::new();
        sleeper.arm(&connection.wait, WakeMode::Futex);
        let remembered = kicks(&connection.head.kick);
        let before_sleep = connection.take(&mut consumer);
        // Here the consumer would sleep, for as long as the count is what it remembers.
        let woken = sender.join().unwrap();
        let now = kicks(&connection.head.kick);
        if before_sleep.is_none() {
            assert_ne!(now, remembered, "it would sleep for ever");
        }
        assert!(woken <= 1 && now == woken, "one sleep, one kick");
    });
}

#[test]
fn who_is_awake_is_not_kicked() {
    bounded(3, || {
        let connection = Connection::queuing();
        let mut sleeper = Sleeper::new();
        sleeper.arm(&connection.wait, WakeMode::Descriptor);
        sleeper.disarm(&connection.wait);
        let sender = spawn(&connection, move |connection| {
            let (mut producer, mut kicker) = (Producer::new(DEPTH), Kicker::new());
            connection.push(&mut producer, URGENT, 1).unwrap();
            kicker.wanted(&connection.head.kick, &connection.wait)
        });
        let mut consumer = Consumer::new();
        let taken = connection.take(&mut consumer);
        assert_eq!(sender.join().unwrap(), None);
        assert_eq!(WAKE_MODE, 3);
        assert_eq!(taken.or_else(|| connection.take(&mut consumer)), Some(1));
    });
}

/// A memory that is used a second time, as a guest's must be: what the first producer left in it is
/// never taken for a message of the second.
#[test]
fn an_epoch_keeps_old_messages_from_being_new() {
    bounded(3, || {
        let connection = Connection::queuing();
        let mut producer = Producer::new(DEPTH);
        for value in 1..=2 {
            connection.push(&mut producer, URGENT, value).unwrap();
        }
        announce(&connection, 1);
        // The first producer is gone, and its consumer with it: the entry starts again, with a new epoch on offer.
        let sender = spawn(&connection, move |connection| {
            connection.head.identity.withdraw();
            // Acquire: partner is the consumer's Release below.
            let offered = connection
                .entry
                .offer
                .epoch
                .load(loom::sync::atomic::Ordering::Acquire);
            if offered != 2 {
                return;
            }
            for position in 0..DEPTH {
                connection.rings().slot(URGENT, position).clear();
            }
            announce(&connection, offered);
            let mut producer = Producer::new(DEPTH);
            connection.push(&mut producer, URGENT, 7).unwrap();
        });
        let offer = &connection.entry.offer.epoch;
        offer.store(2, loom::sync::atomic::Ordering::Release);
        let mut consumer = Consumer::new();
        let look = |consumer: &mut Consumer| {
            if connection.head.identity.epoch() == 2 {
                assert_eq!(connection.head.identity.read().port, 11);
                if let Some(value) = connection.take(consumer) {
                    assert_eq!(value, 7, "a message of the first producer");
                }
            }
        };
        look(&mut consumer);
        sender.join().unwrap();
        look(&mut consumer);
    });
}

fn announce(connection: &Connection, epoch: u64) {
    let shape = Shape {
        kind: Kind::Queuing { depth: DEPTH },
        message_bytes_max: PAYLOAD_BYTES as u32,
    };
    connection.head.identity.announce(&Identity {
        epoch,
        port: 11,
        ..shape.producer_identity()
    });
}
