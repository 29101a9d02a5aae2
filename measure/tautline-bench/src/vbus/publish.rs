//! Publishing to many subscribers: the time of one `send` whose message all of them then take, beside iceoryx2.
//!
//! Subscribers either spin, all in one thread, or sleep, each in a thread of its own. The publisher waits until all
//! have taken a message before it sends the next one, and where they sleep for a period besides, so that each of them
//! has to be woken. That is part of the time that is measured. Rounds are as in the other measurements of a bus.

use std::hint;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{
    Destination, Node, NodeConfig, Priority, QueuingPort, SamplingPort, Spin, Wait, bus_neighbour,
};
use tautline_machine::Machine;
use tautline_report::LatencyHistogram;
use tautline_state::TemporaryDirectory;
use tautline_testbed::interrupt;

use super::ends::{TIME_LIMIT, nanoseconds};
use super::iceoryx2::Iceoryx2;
use super::{BYTES_MAX, BenchError, Failure, Path, Target, as_ns, median};
use crate::sides::{Placement, joined};

/// Most subscribers: as many as may read what a port publishes.
pub const SUBSCRIBERS_MAX: u64 = 64;
/// How long a subscriber sleeps before it looks whether the run has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Messages at the beginning of a slice that are not counted: they fill caches.
const UNCOUNTED: u64 = 5;
/// Depth of a queuing port. All messages are taken before the next one is sent.
const DEPTH: u32 = 8;

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Numbers of subscribers.
    pub subscribers: Vec<u64>,
    /// Payload bytes of a message.
    pub bytes: usize,
    /// Rounds that are counted.
    pub rounds: u64,
    /// Messages in a slice.
    pub slice: u64,
    /// Pause after each message for subscribers that sleep.
    #[serde(rename = "period_ns", serialize_with = "as_ns")]
    pub period: Duration,
    /// The program that measures iceoryx2.
    pub iceoryx2: Option<PathBuf>,
    /// CPUs of the publisher, and of subscribers that spin.
    #[serde(flatten)]
    pub placement: Placement,
}

impl Settings {
    fn check(&self) -> Result<(), BenchError> {
        let wrong = |subscribers: &&u64| !(1..=SUBSCRIBERS_MAX).contains(*subscribers);
        if let Some(wrong) = self.subscribers.iter().find(wrong) {
            let text = format!("{wrong} subscribers are not possible: 1 to {SUBSCRIBERS_MAX} are");
            return Err(BenchError::Settings(text));
        }
        if !(8..=BYTES_MAX).contains(&self.bytes) {
            let bytes = self.bytes;
            let text = format!("a size of {bytes} bytes is not possible: 8 to {BYTES_MAX} are");
            return Err(BenchError::Settings(text));
        }
        Ok(())
    }
}

/// Properties of a way to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Way {
    /// A sampling port, a queuing port, or iceoryx2.
    pub path: Path,
    /// Whether messages are filled in place, and not copied from elsewhere.
    pub lent: bool,
    /// Whether subscribers sleep, each in a thread of its own, and do not spin in one.
    pub sleeping: bool,
    /// How many they are.
    pub subscribers: u64,
}

impl Way {
    /// Words for how messages are sent.
    pub fn how(self) -> &'static str {
        if self.lent { "lent" } else { "copied" }
    }

    /// Words for what subscribers do.
    pub fn readers(self) -> &'static str {
        if self.sleeping {
            "sleeping"
        } else {
            "spinning"
        }
    }
}

/// One row of the result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Way that was measured.
    pub way: Way,
    /// Times of publishing.
    pub histogram: LatencyHistogram,
    /// The median of each round.
    pub rounds: Vec<f64>,
}

impl Row {
    fn of(&self, other: &Row) -> Option<f64> {
        let ratios = self.rounds.iter().zip(&other.rounds);
        median(
            ratios
                .map(|(value, of)| value / of.max(f64::MIN_POSITIVE))
                .collect(),
        )
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Settings of the run.
    pub settings: Settings,
    /// Name and version of iceoryx2, if it was measured.
    pub iceoryx2: Option<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Outcome {
    fn row(&self, way: Way) -> Option<&Row> {
        self.rows.iter().find(|row| row.way == way)
    }

    /// The row compared with that of one subscriber.
    pub fn of_one(&self, row: &Row) -> Option<f64> {
        row.of(self.row(Way {
            subscribers: 1,
            ..row.way
        })?)
    }

    /// The row compared with iceoryx2's.
    pub fn of_iceoryx2(&self, row: &Row) -> Option<f64> {
        row.of(self.row(Way {
            path: Path::Iceoryx2,
            ..row.way
        })?)
    }

    /// The targets.
    pub fn targets(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        for row in &self.rows {
            let Way {
                path, subscribers, ..
            } = row.way;
            if path == Path::Iceoryx2 || subscribers != 16 {
                continue;
            }
            let (how, readers) = (row.way.how(), row.way.readers());
            let what = |of| format!("{path}, {how}, to 16 {readers} / {of}");
            targets.push(Target::at_most(what("to 1"), 1.3, self.of_one(row)));
            targets.push(Target::at_most(
                what("iceoryx2"),
                0.5,
                self.of_iceoryx2(row),
            ));
        }
        targets
    }

    /// The result file: `machine`, `settings`, `rows` and `targets`.
    pub fn json(&self, machine: &Machine) -> serde_json::Value {
        let rounded = |value: Option<f64>| value.map(|value| (value * 1e3).round() / 1e3);
        let row = |row: &Row| {
            let mut json = serde_json::to_value(row.histogram.summary()).expect("plain data");
            json["measure"] = "publish".into();
            json["path"] = row.way.path.name().into();
            json["how"] = row.way.how().into();
            json["readers"] = row.way.readers().into();
            json["subscribers"] = row.way.subscribers.into();
            json["payload_bytes"] = self.settings.bytes.into();
            json["p50_of_one_subscriber"] = rounded(self.of_one(row)).into();
            json["p50_of_iceoryx2"] = rounded(self.of_iceoryx2(row)).into();
            json
        };
        serde_json::json!({
            "machine": machine,
            "settings": self.settings,
            "iceoryx2": self.iceoryx2,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "targets": self.targets(),
        })
    }
}

/// Measures. `progress` is called between slices with those done and those of the whole run.
pub fn run(
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, BenchError> {
    settings.check()?;
    // The placement goes with the thread.
    thread::scope(|scope| joined(scope.spawn(|| measure(settings, progress)).join()))
}

fn measure(
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, BenchError> {
    let Placement {
        client_cpu,
        fifo_priority,
        ..
    } = settings.placement;
    let of = |path| move |source| BenchError::Path { path, source };
    let start = |program: &PathBuf| Iceoryx2::start(program, &settings.placement);
    let mut iceoryx2 = settings.iceoryx2.as_ref().map(start).transpose();
    let iceoryx2 = iceoryx2
        .as_mut()
        .map_err(|error| of(Path::Iceoryx2)(Failure::new(error.to_string())))?;
    let mut rows = Vec::new();
    let mut cells = Vec::new();
    for sleeping in [false, true] {
        for subscribers in settings.subscribers.iter().copied() {
            for path in [Path::VbusSampling, Path::VbusQueuing, Path::Iceoryx2] {
                if path == Path::Iceoryx2 && iceoryx2.is_none() {
                    continue;
                }
                let way = |lent| Way {
                    path,
                    lent,
                    sleeping,
                    subscribers,
                };
                let cell = match path {
                    Path::Iceoryx2 => None,
                    _ => Some(Cell::open(settings, way(false)).map_err(of(path))?),
                };
                cells.push(cell);
                for lent in [false, true] {
                    rows.push((cells.len() - 1, new_row(way(lent))));
                }
            }
        }
    }
    Placement::place(client_cpu, fifo_priority)?;
    let total = (settings.rounds + 1) * rows.len() as u64;
    for round in 0..=settings.rounds {
        for step in 0..rows.len() {
            let place = (step + round as usize) % rows.len();
            let (cell, row) = &mut rows[place];
            let times = match (&mut cells[*cell], &mut *iceoryx2) {
                (Some(cell), _) => cell.slice(settings, row.way),
                (None, Some(program)) => of_iceoryx2(program, settings, row.way),
                (None, None) => unreachable!("its rows are left out"),
            };
            let mut times = times.map_err(of(row.way.path))?;
            times.drain(..UNCOUNTED as usize);
            if round > 0 {
                times.iter().for_each(|time| row.histogram.record(*time));
                row.rounds
                    .extend(median(times.iter().map(|time| *time as f64).collect()));
            }
            progress(round * rows.len() as u64 + step as u64 + 1, total);
            if let Some(signal) = interrupt::interrupted() {
                return Err(BenchError::Interrupted(signal));
            }
        }
    }
    let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    rows.sort_by_key(|row| {
        (
            row.way.sleeping,
            row.way.lent,
            row.way.path,
            row.way.subscribers,
        )
    });
    Ok(Outcome {
        settings: settings.clone(),
        iceoryx2: iceoryx2.as_ref().map(|program| program.version.clone()),
        rows,
    })
}

fn new_row(way: Way) -> Row {
    Row {
        way,
        histogram: LatencyHistogram::new(),
        rounds: Vec::new(),
    }
}

fn of_iceoryx2(program: &mut Iceoryx2, settings: &Settings, way: Way) -> Result<Vec<u64>, Failure> {
    let (how, readers, subscribers) = (way.how(), way.readers(), way.subscribers);
    let (bytes, count) = (settings.bytes, settings.slice + UNCOUNTED);
    let period_ns = settings.period.as_nanos();
    let mut times = Vec::new();
    let request = format!("publish-{how}-{readers} {bytes} {count} {subscribers} {period_ns}");
    program.ask(&request, &mut times)?;
    match times.len() as u64 == count {
        true => Ok(times),
        false => Err(Failure::new(format!(
            "{} times in place of {count}",
            times.len()
        ))),
    }
}

/// Port of either kind.
enum Port {
    Sampling(SamplingPort),
    Queuing(QueuingPort),
}

impl Port {
    fn open(
        node: &Node,
        path: Path,
        number: u16,
        bytes: usize,
        spin: Spin,
    ) -> Result<Port, Failure> {
        let failed = |error: tautline::PortError| Failure::new(error.to_string());
        match path {
            Path::VbusQueuing => {
                let options = QueuingOptions {
                    depth: DEPTH,
                    message_bytes_max: bytes,
                    spin,
                    ..QueuingOptions::default()
                };
                node.queuing(number)
                    .options(&options)
                    .open()
                    .map(Port::Queuing)
                    .map_err(failed)
            }
            _ => {
                let options = SamplingOptions {
                    value_bytes_max: bytes,
                    spin,
                    ..SamplingOptions::default()
                };
                node.sampling(number)
                    .options(&options)
                    .open()
                    .map(Port::Sampling)
                    .map_err(failed)
            }
        }
    }

    fn readers(&mut self) -> Result<Destination, Failure> {
        let readers = match self {
            Port::Sampling(port) => port.readers(),
            Port::Queuing(port) => port.readers(),
        };
        readers.map_err(|error| Failure::new(error.to_string()))
    }

    fn follow(&mut self, publisher: u16) -> Result<(), Failure> {
        let followed = match self {
            Port::Sampling(port) => port.follow(PUBLISHER, publisher),
            Port::Queuing(port) => port.follow(PUBLISHER, publisher),
        };
        followed.map_err(|error| Failure::new(error.to_string()))
    }

    /// Publishes a message: a copy of this one, or one that is filled in place with its first bytes.
    fn publish(
        &mut self,
        to: Destination,
        lent: bool,
        message: &[u8],
    ) -> Result<(), tautline::SendError> {
        let priority = Priority::NORMAL;
        if !lent {
            return match self {
                Port::Sampling(port) => port.send(to, priority, message),
                Port::Queuing(port) => port.send(to, priority, message),
            };
        }
        let mut loan = match self {
            Port::Sampling(port) => port.lend(to, priority, message.len()),
            Port::Queuing(port) => port.lend(to, priority, message.len()),
        }?;
        loan[..8].copy_from_slice(&message[..8]);
        loan.send()
    }

    /// Takes a message, if there is one.
    fn take(&mut self) -> Result<bool, tautline::ReceiveError> {
        Ok(match self {
            Port::Sampling(port) => port.read_in_place()?.is_some_and(|sample| sample.new),
            Port::Queuing(port) => port.receive_in_place(Wait::Poll)?.is_some(),
        })
    }

    /// The same; sleeps until there is one, for [`LOOK_PERIOD`] at most.
    fn await_one(&mut self, buffer: &mut [u8]) -> Result<bool, tautline::ReceiveError> {
        let until = tautline::now() + LOOK_PERIOD;
        Ok(match self {
            Port::Sampling(port) => port.next_into(buffer, Wait::Until(until))?.is_some(),
            Port::Queuing(port) => port.receive_in_place(Wait::Until(until))?.is_some(),
        })
    }
}

/// Node that publishes.
const PUBLISHER: &str = "publisher";
/// Its port, and those of all subscribers, which are nodes of their own.
const NUMBER: u16 = 5;

/// State that the publishing thread shares with those of subscribers.
#[derive(Default)]
struct Shared {
    /// Whether subscribers that spin are to look.
    active: AtomicBool,
    ended: AtomicBool,
    /// Messages taken, of all subscribers together. Released by them, acquired by the publisher.
    taken: AtomicU64,
}

/// A port that publishes, and its subscribers.
struct Cell {
    port: Port,
    to: Destination,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    published: u64,
    message: Vec<u8>,
    /// Of the bus. Goes after the ports, which are in it.
    _directory: TemporaryDirectory,
}

impl Cell {
    fn open(settings: &Settings, way: Way) -> Result<Cell, Failure> {
        let directory = TemporaryDirectory::make("taut-bench");
        let directory = directory.map_err(|error| Failure::new(error.to_string()))?;
        let path = directory.path().join("bus");
        let node = |name: &str| -> Result<Node, Failure> {
            let bus = BusConfig::new(&path.to_string_lossy(), name.parse().expect("a name"));
            let neighbour = bus_neighbour(PUBLISHER.parse().expect("a name"));
            let config = NodeConfig::vbus(bus);
            let config = match name {
                PUBLISHER => config,
                _ => config
                    .with_neighbour(neighbour)
                    .expect("an empty table has room"),
            };
            Node::open(config).map_err(|error| Failure::new(error.to_string()))
        };
        let spin = match way.sleeping {
            true => Spin::from(Duration::ZERO),
            false => Spin::Adaptive,
        };
        let open = |name: &str| Port::open(&node(name)?, way.path, NUMBER, settings.bytes, spin);
        let mut port = open(PUBLISHER)?;
        let to = port.readers()?;
        let mut readers = Vec::new();
        for subscriber in 0..way.subscribers {
            let mut reader = open(&format!("subscriber-{subscriber}"))?;
            reader.follow(NUMBER)?;
            readers.push(reader);
        }
        let shared = Arc::new(Shared::default());
        let threads = match way.sleeping {
            false => vec![spinning(readers, &shared, settings.placement)],
            true => {
                let bytes = settings.bytes;
                let one = |reader| sleeping(reader, &shared, bytes);
                readers.into_iter().map(one).collect()
            }
        };
        Ok(Cell {
            port,
            to,
            shared,
            threads,
            published: 0,
            message: vec![7; settings.bytes],
            _directory: directory,
        })
    }

    /// Times of publishing.
    fn slice(&mut self, settings: &Settings, way: Way) -> Result<Vec<u64>, Failure> {
        self.shared.active.store(true, Ordering::Release);
        self.threads
            .iter()
            .for_each(|thread| thread.thread().unpark());
        let count = settings.slice + UNCOUNTED;
        let times = (0..count).map(|_| self.publish(settings, way)).collect();
        self.shared.active.store(false, Ordering::Release);
        times
    }

    fn publish(&mut self, settings: &Settings, way: Way) -> Result<u64, Failure> {
        if way.sleeping {
            thread::sleep(settings.period);
        }
        self.published += 1;
        self.message[..8].copy_from_slice(&self.published.to_ne_bytes());
        let start = Instant::now();
        let sent = self.port.publish(self.to, way.lent, &self.message);
        let took = start.elapsed();
        sent.map_err(|error| Failure::new(error.to_string()))?;
        let due = self.published * way.subscribers;
        while self.shared.taken.load(Ordering::Acquire) < due {
            if self.shared.ended.load(Ordering::Acquire) || start.elapsed() > TIME_LIMIT {
                return Err(Failure::timed_out());
            }
            hint::spin_loop();
        }
        Ok(nanoseconds(took))
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // One that failed has said so.
            let _ended = thread.join();
        }
    }
}

/// All subscribers in one thread, which spins while it is to.
fn spinning(mut readers: Vec<Port>, shared: &Arc<Shared>, placement: Placement) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let placed = Placement::place(placement.server_cpu, placement.fifo_priority);
        let is_placed = placed.is_ok();
        while is_placed && !shared.ended.load(Ordering::Acquire) {
            if !shared.active.load(Ordering::Acquire) {
                thread::park_timeout(LOOK_PERIOD);
                continue;
            }
            for reader in &mut readers {
                note(&shared, reader.take());
            }
        }
        shared.ended.store(true, Ordering::Release);
    })
}

/// One subscriber, which sleeps.
fn sleeping(mut reader: Port, shared: &Arc<Shared>, bytes: usize) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let mut buffer = vec![0; bytes];
        while !shared.ended.load(Ordering::Acquire) {
            note(&shared, reader.await_one(&mut buffer));
        }
    })
}

/// Counts a message that was taken.
fn note(shared: &Shared, taken: Result<bool, tautline::ReceiveError>) {
    match taken {
        Ok(true) => _ = shared.taken.fetch_add(1, Ordering::Release),
        Ok(false) => {}
        Err(_) => shared.ended.store(true, Ordering::Release),
    }
}
