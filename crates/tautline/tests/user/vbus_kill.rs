//! Processes on a bus are killed at random points, and what the others receive is held against what was
//! sent: no message torn, twice, out of order within its priority, from an earlier life, or lost
//! without being counted. `TAUTLINE_KILLS` sets how many of each kind are killed (`make vbus-kills`).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant as Clock};

use crate::common::{PATIENCE, bus, child, port};
use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline::config::BusConfig;
use tautline::port::{Outgoing, QueuingOptions};
use tautline::status::PortStatus;
use tautline::{
    Destination, Node, NodeConfig, Priority, QueuingPort, SendError, Wait, bus_neighbour,
};
use tautline_state::mapping::Mapping;

/// Where the bus is, and of which round a child is.
const BUS: &str = "TAUTLINE_TEST_BUS";
const ROUND: &str = "TAUTLINE_TEST_ROUND";
/// Round, count, check.
const HEAD_BYTES: usize = 24;
const MESSAGE_BYTES_MAX: usize = 700;
const CLASSES: usize = 8;

fn kills() -> u32 {
    let asked = std::env::var("TAUTLINE_KILLS").ok();
    asked.map_or(100, |text| text.parse().expect("a number of kills"))
}

fn seed() -> u64 {
    let asked = std::env::var("TAUTLINE_KILL_SEED").ok();
    let seed = asked.map_or(u64::from(std::process::id()), |text| {
        text.parse().expect("a seed")
    });
    println!("TAUTLINE_KILL_SEED={seed}");
    seed
}

fn options() -> QueuingOptions {
    QueuingOptions {
        depth: 16,
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..QueuingOptions::default()
    }
}

/// A node of this name, to which the other of the two is known.
fn open(path: &Path, name: &str) -> Node {
    let bus = BusConfig::new(path.to_str().unwrap(), name.parse().unwrap());
    let other = if name == "tested" { "killed" } else { "tested" };
    let other = bus_neighbour(other.parse().unwrap());
    Node::open(NodeConfig::vbus(bus).with_neighbour(other).unwrap()).unwrap()
}

/// Contents of a message; its bytes follow from its round, class and count.
fn fill(message: &mut [u8], round: u64, class: usize, count: u64) {
    let check = round ^ count.rotate_left(20) ^ (class as u64) << 60 ^ message.len() as u64;
    message[..8].copy_from_slice(&round.to_ne_bytes());
    message[8..16].copy_from_slice(&count.to_ne_bytes());
    message[16..24].copy_from_slice(&check.to_ne_bytes());
    for (place, byte) in message[HEAD_BYTES..].iter_mut().enumerate() {
        *byte = (check >> (place % 8 * 8)) as u8 ^ place as u8;
    }
}

/// Round and count of a message, which must be whole.
fn check(message: &[u8], class: usize) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap());
    let (round, count) = (word(0), word(8));
    let mut expected = vec![0; message.len()];
    fill(&mut expected, round, class, count);
    assert!(message == expected, "torn: round {round}, count {count}");
    (round, count)
}

fn length(random: &mut Random) -> usize {
    HEAD_BYTES + random.next_u32() as usize % (MESSAGE_BYTES_MAX - HEAD_BYTES + 1)
}

/// Starts a child that lives until it is killed.
fn spawn(test: &str, role: &str, path: &Path, round: u32) -> Child {
    child::again(test, role)
        .env(BUS, path)
        .env(ROUND, round.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(mut child: Child) {
    let ended = child.try_wait().unwrap();
    assert_eq!(ended, None, "the child failed before it was killed");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn from_environment() -> (PathBuf, u32) {
    let path = std::env::var_os(BUS).unwrap().into();
    let round = std::env::var(ROUND).unwrap();
    (path, round.parse().unwrap())
}

/// Waits until something is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Clock::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// Sends without end, in each of the ways there are; gives up nothing.
fn produce() -> ! {
    let (path, round) = from_environment();
    let node = open(&path, "killed");
    let mut sender = node.queuing(port(11)).options(&options()).open().unwrap();
    let to = sender.destination("tested", port(12)).unwrap();
    let mut random = Random::seed_from_u64(u64::from(round) << 32 | u64::from(std::process::id()));
    let mut counts = [0; CLASSES];
    let mut batch = vec![[0; MESSAGE_BYTES_MAX]; 8];
    loop {
        let class = random.next_u32() as usize % CLASSES;
        let priority = Priority::ALL[class];
        let bytes = length(&mut random);
        let count = counts[class];
        let sent = match random.next_u32() % 3 {
            0 => {
                let message = &mut batch[0][..bytes];
                fill(message, round.into(), class, count);
                sender.send(to, priority, message).map(|()| 1)
            }
            1 => sender.lend(to, priority, bytes).and_then(|mut loan| {
                fill(&mut loan, round.into(), class, count);
                loan.send().map(|()| 1)
            }),
            _ => {
                for (place, message) in batch.iter_mut().enumerate() {
                    fill(message, round.into(), class, count + place as u64);
                }
                let outgoing: Vec<_> = batch
                    .iter()
                    .map(|message| Outgoing {
                        to,
                        priority,
                        message,
                    })
                    .collect();
                sender.send_batch(&outgoing).map(|sent| sent as u64)
            }
        };
        match sent {
            Ok(sent) => counts[class] += sent,
            Err(SendError::ReceiverFull | SendError::PeerGone) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Result of one life of a producer.
#[derive(Default)]
struct Received {
    round: u64,
    next: [u64; CLASSES],
    total: u64,
}

impl Received {
    /// Takes one message if there is one, and checks it.
    fn take(&mut self, receiver: &mut QueuingPort, lent: bool, buffer: &mut [u8]) -> bool {
        let (class, length) = if lent {
            let Some(message) = receiver.receive_in_place(Wait::Poll).unwrap() else {
                return false;
            };
            let length = message.bytes().copy_out(0, buffer);
            (message.priority.index(), length)
        } else {
            let Some(message) = receiver.receive_into(buffer, Wait::Poll).unwrap() else {
                return false;
            };
            (message.priority.index(), message.length)
        };
        let (round, count) = check(&buffer[..length], class);
        assert!(round >= self.round, "of a life that is over");
        if round > self.round {
            *self = Self {
                round,
                ..Self::default()
            };
        }
        assert_eq!(count, self.next[class], "lost, twice or out of order");
        self.next[class] += 1;
        self.total += 1;
        true
    }
}

/// Messages that peers have published, ever.
fn published(status: &PortStatus) -> u64 {
    status.frames - status.dropped_full.iter().sum::<u64>()
}

#[test]
fn killed_producers_lose_and_repeat_nothing() {
    const TEST: &str = "killed_producers_lose_and_repeat_nothing";
    if child::role().is_some() {
        produce();
    }
    let mut random = Random::seed_from_u64(seed());
    let path = PathBuf::from(bus("kill-producer").name);
    let node = open(&path, "tested");
    let mut receiver = node.queuing(port(12)).options(&options()).open().unwrap();
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut all = 0;
    let mut silent = 0;
    for round in 1..=kills() {
        let before = published(&node.status().ports[0]);
        let child = spawn(TEST, "producer", &path, round);
        let mut received = Received {
            round: round.into(),
            ..Received::default()
        };
        // Half of them while they connect, the others while they send.
        if random.next_u32().is_multiple_of(2) {
            let started = Clock::now();
            let life = Duration::from_micros(u64::from(random.next_u32() % 20_000));
            while started.elapsed() < life {
                received.take(&mut receiver, false, &mut buffer);
            }
        } else {
            wait_until("no message comes", || {
                received.take(&mut receiver, false, &mut buffer)
            });
            for _ in 0..random.next_u32() % 2000 {
                let lent = random.next_u32().is_multiple_of(2);
                received.take(&mut receiver, lent, &mut buffer);
            }
        }
        end(child);
        wait_until("its death is not seen", || {
            received.take(&mut receiver, false, &mut buffer);
            node.status().ports[0].peers.is_empty()
        });
        assert!(!received.take(&mut receiver, false, &mut buffer));
        let status = &node.status().ports[0];
        let published = published(status) - before;
        // A message counts as published a moment after it is there.
        assert!(
            (published..=published + 32).contains(&received.total),
            "round {round}: {published} published, {} received",
            received.total
        );
        assert_eq!((status.queued, status.void), ([0; CLASSES], 0));
        all += received.total;
        silent += u32::from(received.total == 0);
    }
    println!(
        "{} producers killed, {silent} of them before their first message; {all} messages, none lost, torn, twice or out of order",
        kills()
    );
    drop(receiver);
    drop(node);
    assert!(!path.exists(), "the bus is left behind");
}

/// Record of the messages that a child has received, where its parent finds it when it is dead: one word of a file.
fn ledger(file: &Path) -> Mapping {
    const BYTES: usize = 4096;
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(file).unwrap();
    file.set_len(BYTES as u64).unwrap();
    Mapping::shared(file.as_fd(), BYTES, 0).unwrap()
}

/// Receives without end and notes how many.
fn consume() -> ! {
    let (path, round) = from_environment();
    let ledger = ledger(&path.with_extension("ledger"));
    let node = open(&path, "killed");
    let mut receiver = node.queuing(port(12)).options(&options()).open().unwrap();
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut random = Random::seed_from_u64(round.into());
    let mut last: [Option<(u64, u64)>; CLASSES] = [None; CLASSES];
    loop {
        let deadline = tautline::now() + Duration::from_secs(60);
        let message = receiver
            .receive_into(&mut buffer, Wait::Until(deadline))
            .unwrap();
        let Some(message) = message else { continue };
        let class = message.priority.index();
        let (life, count) = check(&buffer[..message.length], class);
        if let Some((last_life, last_count)) = last[class] {
            assert_eq!((life, count), (last_life, last_count + 1));
        }
        last[class] = Some((life, count));
        ledger.add(0, 1, Relaxed);
        if random.next_u32().is_multiple_of(512) {
            std::thread::yield_now();
        }
    }
}

/// The messages of one sender, each class counted, each tried until it is taken on.
struct Sender {
    port: QueuingPort,
    to: Destination,
    counts: [u64; CLASSES],
    random: Random,
}

impl Sender {
    /// Sends one message; whether it was taken on, and `None` without a receiver.
    fn send(&mut self) -> Option<bool> {
        let class = self.random.next_u32() as usize % CLASSES;
        let mut message = [0; MESSAGE_BYTES_MAX];
        let message = &mut message[..length(&mut self.random)];
        fill(message, 1, class, self.counts[class]);
        match self.port.send(self.to, Priority::ALL[class], message) {
            Ok(()) => {
                self.counts[class] += 1;
                Some(true)
            }
            Err(SendError::ReceiverFull) => Some(false),
            Err(SendError::PeerGone) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_a_killed_consumer_had_not_taken_is_counted() {
    const TEST: &str = "what_a_killed_consumer_had_not_taken_is_counted";
    if child::role().is_some() {
        consume();
    }
    let seed = seed();
    let mut random = Random::seed_from_u64(seed);
    let path = PathBuf::from(bus("kill-consumer").name);
    let file = path.with_extension("ledger");
    let ledger = ledger(&file);
    let node = open(&path, "tested");
    let mut sending = node.queuing(port(11)).options(&options()).open().unwrap();
    let to = sending.destination("killed", port(12)).unwrap();
    let mut sender = Sender {
        port: sending,
        to,
        counts: [0; CLASSES],
        random: Random::seed_from_u64(seed),
    };
    let mut taken_on = 0;
    for round in 1..=kills() {
        let before = node.status().ports[0].undelivered;
        ledger.store(0, 0, Relaxed);
        let child = spawn(TEST, "consumer", &path, round);
        let mut sent = 0;
        let mut send = |sender: &mut Sender| {
            let answer = sender.send();
            sent += u64::from(answer == Some(true));
            answer
        };
        if random.next_u32().is_multiple_of(2) {
            let started = Clock::now();
            let life = Duration::from_micros(u64::from(random.next_u32() % 20_000));
            while started.elapsed() < life {
                send(&mut sender);
            }
        } else {
            wait_until("the name is not used again", || {
                send(&mut sender) == Some(true)
            });
            for _ in 0..random.next_u32() % 2000 {
                if send(&mut sender) == Some(false) {
                    std::thread::yield_now();
                }
            }
        }
        end(child);
        wait_until("its death is not seen", || send(&mut sender).is_none());
        let undelivered = node.status().ports[0].undelivered - before;
        let received = ledger.load(0, Relaxed);
        // It notes a message a moment after it has taken it.
        assert!(
            (received..=received + 1).contains(&(sent - undelivered)),
            "round {round}: {sent} sent, {received} received, {undelivered} said to be undelivered"
        );
        taken_on += sent;
    }
    println!(
        "{} consumers killed; {taken_on} messages, each received or counted as undelivered",
        kills()
    );
    std::fs::remove_file(file).unwrap();
}

/// Publishes values without end.
fn publish() -> ! {
    let (path, round) = from_environment();
    let node = open(&path, "killed");
    let mut publisher = node.sampling(port(21)).open().unwrap();
    let to = publisher.destination("tested", port(22)).unwrap();
    let mut random = Random::seed_from_u64(round.into());
    let mut count = 0;
    loop {
        let mut value = [0; MESSAGE_BYTES_MAX];
        let value = &mut value[..length(&mut random)];
        fill(value, round.into(), 3, count);
        let sent = publisher.send(to, Priority::ALL[3], value);
        count += u64::from(sent.is_ok());
    }
}

#[test]
fn a_value_outlives_its_killed_writer_whole() {
    const TEST: &str = "a_value_outlives_its_killed_writer_whole";
    if child::role().is_some() {
        publish();
    }
    let mut random = Random::seed_from_u64(seed());
    let path = PathBuf::from(bus("kill-writer").name);
    let node = open(&path, "tested");
    let mut reader = node.sampling(port(22)).open().unwrap();
    let mut buffer = vec![0; reader.value_bytes_max()];
    let mut last = (0, 0);
    let mut read = |lent: bool, last: &mut (u64, u64)| {
        let length = if lent {
            let sample = reader.read_in_place().unwrap();
            sample.map(|sample| sample.bytes.copy_out(0, &mut buffer))
        } else {
            let sample = reader.read_into(&mut buffer).unwrap();
            sample.map(|sample| sample.length)
        };
        let Some(length) = length else { return false };
        let found = check(&buffer[..length], 3);
        assert!(found >= *last, "{found:?} after {last:?}");
        *last = found;
        true
    };
    for round in 1..=kills() {
        let child = spawn(TEST, "writer", &path, round);
        wait_until("no value comes", || {
            read(false, &mut last) && last.0 == u64::from(round)
        });
        for _ in 0..random.next_u32() % 20_000 {
            read(random.next_u32().is_multiple_of(2), &mut last);
        }
        end(child);
        for _ in 0..3 {
            assert!(read(false, &mut last), "it stays");
        }
    }
    println!("{} writers killed", kills());
}
