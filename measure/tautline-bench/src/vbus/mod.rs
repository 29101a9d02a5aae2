//! Ports between processes, measured side by side with what the machine can do at the least and with iceoryx2.
//!
//! A run goes round by round. In each round every row has one slice, in rotating order; the first round of all is not
//! counted. A row is compared with another by the medians of the same round, and the ratio that is reported is the
//! median of the rounds' ratios: on a virtual machine two cores may share more or fewer caches from one second
//! to the next, which changes all rows alike.

mod ends;
mod floor;
mod iceoryx2;
mod lent;
pub mod publish;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline_machine::Machine;
use tautline_report::LatencyHistogram;
use tautline_testbed::interrupt;
use thiserror::Error;

use self::ends::{Ask, Serve, nanoseconds};
use self::iceoryx2::Iceoryx2;
use self::lent::lent;
use super::sides::{self, Handover, Placement, PlacementError, ServerGone};
use crate::path::nodes::NodePair;
use crate::path::{End, PathError, Sends};

pub use self::ends::READS_PER_SAMPLE;
pub use self::iceoryx2::{PROGRAM as ICEORYX2_PROGRAM, beside_this_program};

/// Payload bytes of the rows that are about waking up: enough for a command.
const PACED_BYTES: usize = 64;

/// A way of a message, by the name that result files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// One cache line, there and back. What everything is compared with.
    Floor,
    /// A cache line for each direction: the least that two sides can do that write nothing of each other's.
    FloorApart,
    /// A sampling port, the value is copied in and out and its age taken, the reader spins.
    VbusSampling,
    /// A sampling port, the value is filled and looked at in place, the reader spins.
    VbusSamplingLent,
    /// A queuing port, the message is copied in and out, the receiver spins.
    VbusQueuing,
    /// A queuing port, the message is filled and looked at in place, the receiver spins.
    VbusLent,
    /// A queuing port, the receiver sleeps.
    VbusSleeping,
    /// A futex, waited on and woken, with nothing around it.
    Futex,
    /// iceoryx2, publish-subscribe with lent samples.
    Iceoryx2,
    /// iceoryx2, the same with an event that a listener sleeps on.
    Iceoryx2Event,
}

impl Path {
    /// All of them, in the order of tables.
    pub const ALL: [Path; 10] = [
        Path::Floor,
        Path::FloorApart,
        Path::VbusSampling,
        Path::VbusSamplingLent,
        Path::VbusQueuing,
        Path::VbusLent,
        Path::VbusSleeping,
        Path::Futex,
        Path::Iceoryx2,
        Path::Iceoryx2Event,
    ];

    /// Those over a bus.
    const BUS: [Path; 5] = [
        Path::VbusSampling,
        Path::VbusSamplingLent,
        Path::VbusQueuing,
        Path::VbusLent,
        Path::VbusSleeping,
    ];

    /// The name in tables and result files.
    pub fn name(self) -> &'static str {
        match self {
            Path::Floor => "floor",
            Path::FloorApart => "floor-apart",
            Path::VbusSampling => "vbus-sampling",
            Path::VbusSamplingLent => "vbus-sampling-lent",
            Path::VbusQueuing => "vbus-queuing",
            Path::VbusLent => "vbus-lent",
            Path::VbusSleeping => "vbus-sleeping",
            Path::Futex => "futex",
            Path::Iceoryx2 => "iceoryx2",
            Path::Iceoryx2Event => "iceoryx2-event",
        }
    }

    /// Description of the way, for the lines above the table.
    pub fn describe(self) -> &'static str {
        match self {
            Path::Floor => "one cache line, there and back",
            Path::FloorApart => "a cache line for each direction",
            Path::VbusSampling => {
                "sampling port, copied in and out, its age taken; the reader spins"
            }
            Path::VbusSamplingLent => "sampling port, filled and read in place; the reader spins",
            Path::VbusQueuing => "queuing port, copied in and out, the receiver spins",
            Path::VbusLent => "queuing port, filled and read in place, the receiver spins",
            Path::VbusSleeping => "queuing port, the receiver sleeps",
            Path::Futex => "FUTEX_WAKE and FUTEX_WAIT, nothing around them",
            Path::Iceoryx2 => "publish-subscribe, samples lent ahead, the subscriber spins",
            Path::Iceoryx2Event => "the same, then an event; the listener sleeps",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Quantities that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// A message there and one back, both sides spinning.
    RoundTrip,
    /// Messages one way, as many as go.
    Throughput,
    /// One message a period, from sending to its being taken.
    Paced,
    /// Reading the last value, which nobody changes.
    Read,
    /// Reading the last value while it is written as fast as it goes.
    ReadWhileWritten,
}

impl Measure {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Measure::RoundTrip => "round trip",
            Measure::Throughput => "throughput",
            Measure::Paced => "paced",
            Measure::Read => "read",
            Measure::ReadWhileWritten => "read while written",
        }
    }
}

/// Work of one slice.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Which way.
    way: usize,
    /// Quantity that is measured.
    pub measure: Measure,
    /// Payload bytes of each message.
    pub bytes: usize,
    /// Messages.
    pub length: u64,
    /// From one paced message to the next.
    pub period: Duration,
}

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Payload sizes of the round trips in bytes.
    pub sizes: Vec<usize>,
    /// Payload sizes of the throughput in bytes.
    pub throughput_sizes: Vec<usize>,
    /// Rounds that are counted.
    pub rounds: u64,
    /// Round trips, and reads, in a slice.
    pub slice: u64,
    /// Messages in a slice of throughput, smaller ones; of the largest size a sixteenth.
    pub throughput_slice: u64,
    /// Messages in a slice of the paced rows.
    pub paced_slice: u64,
    /// From one paced message to the next.
    #[serde(rename = "period_ns", serialize_with = "as_ns")]
    pub period: Duration,
    /// The program that measures iceoryx2.
    pub iceoryx2: Option<PathBuf>,
    /// Where the two threads run.
    #[serde(flatten)]
    pub placement: Placement,
}

fn as_ns<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(nanoseconds(*duration))
}

impl Settings {
    fn check(&self) -> Result<(), BenchError> {
        let invalid = |what: String| Err(BenchError::Settings(what));
        if self.rounds == 0
            || self.slice == 0
            || self.throughput_slice == 0
            || self.paced_slice == 0
        {
            return invalid("rounds and slices must be 1 or more".to_owned());
        }
        let wrong = |size: &&usize| !(8..=BYTES_MAX).contains(*size);
        let mut sizes = self.sizes.iter().chain(&self.throughput_sizes);
        match sizes.find(wrong) {
            Some(size) => invalid(format!(
                "a size of {size} bytes is not possible: 8 to {BYTES_MAX} are"
            )),
            None => Ok(()),
        }
    }
}

/// Bytes of the largest message.
pub const BYTES_MAX: usize = 65_536;

/// Why something could not be measured, in words.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// A failure with these words.
    pub fn new(text: impl Into<String>) -> Failure {
        Failure(text.into())
    }

    /// Nothing came.
    pub fn timed_out() -> Failure {
        let seconds = ends::TIME_LIMIT.as_secs();
        Failure(format!("nothing came for {seconds} s"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Failure {
        Failure::new(error.to_string())
    }
}

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The settings contradict themselves.
    #[error("{0}")]
    Settings(String),
    /// A way could not be opened, or failed.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: Path,
        /// Why.
        source: Failure,
    },
    /// A thread could not be placed or scheduled as asked.
    #[error(transparent)]
    Scheduling(#[from] PlacementError),
    /// The answering thread ended; where it failed, its own error is reported instead of this one.
    #[error("the answering side ended early")]
    ServerEnded,
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

impl From<ServerGone> for BenchError {
    fn from(_: ServerGone) -> BenchError {
        BenchError::ServerEnded
    }
}

/// One row of the result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Result of the measurement.
    pub measure: Measure,
    /// Of which way.
    pub path: Path,
    /// With which payload.
    pub bytes: usize,
    /// Times; of throughput, the time that each message took on the average of a slice.
    pub histogram: LatencyHistogram,
    /// The median of each round; of throughput, messages a second.
    pub rounds: Vec<f64>,
}

impl Row {
    fn new(measure: Measure, path: Path, bytes: usize) -> Row {
        Row {
            measure,
            path,
            bytes,
            histogram: LatencyHistogram::new(),
            rounds: Vec::new(),
        }
    }

    /// The median of the rounds' medians.
    pub fn median(&self) -> Option<f64> {
        median(self.rounds.clone())
    }

    /// The median of the rounds' ratios to another row.
    pub fn of(&self, other: &Row) -> Option<f64> {
        median(
            self.rounds
                .iter()
                .zip(&other.rounds)
                .map(|(value, of)| value / of.max(f64::MIN_POSITIVE))
                .collect(),
        )
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// A target, and whether it was reached.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Quantities that are compared.
    pub what: String,
    /// Value to reach.
    pub limit: f64,
    /// Whether the limit is the least and not the most.
    pub at_least: bool,
    /// Value that was measured; nothing if a row that it takes was not measured.
    pub measured: Option<f64>,
    /// Whether it was reached.
    pub met: Option<bool>,
}

impl Target {
    fn at_most(what: impl Into<String>, limit: f64, measured: Option<f64>) -> Target {
        Target {
            what: what.into(),
            limit,
            at_least: false,
            measured,
            met: measured.map(|measured| measured <= limit),
        }
    }

    fn at_least(what: impl Into<String>, limit: f64, measured: Option<f64>) -> Target {
        Target {
            at_least: true,
            met: measured.map(|measured| measured >= limit),
            ..Target::at_most(what, limit, measured)
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Result of the measurement.
    pub settings: Settings,
    /// Link and mode of each way.
    pub active: Vec<(Path, String)>,
    /// The rows, by measure, size and path.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// The row of this measure, path and size.
    pub fn row(&self, measure: Measure, path: Path, bytes: usize) -> Option<&Row> {
        let wanted = (measure, path, bytes);
        self.rows
            .iter()
            .find(|row| (row.measure, row.path, row.bytes) == wanted)
    }

    /// Reference of a row: the least that the machine can do.
    pub fn of_floor(&self, row: &Row) -> Option<f64> {
        let floor = match row.measure {
            Measure::RoundTrip => self.row(Measure::RoundTrip, Path::Floor, FLOOR_BYTES),
            Measure::Paced => self.row(Measure::Paced, Path::Futex, row.bytes),
            _ => None,
        };
        row.of(floor?)
    }

    /// The row compared with iceoryx2's of the same size.
    pub fn of_iceoryx2(&self, row: &Row) -> Option<f64> {
        let path = match row.measure {
            Measure::Paced => Path::Iceoryx2Event,
            _ => Path::Iceoryx2,
        };
        row.of(self.row(row.measure, path, row.bytes)?)
    }

    /// The targets.
    pub fn targets(&self) -> Vec<Target> {
        let ports = [
            Path::VbusSampling,
            Path::VbusSamplingLent,
            Path::VbusQueuing,
            Path::VbusLent,
        ];
        let mut targets = Vec::new();
        for (bytes, path) in [8, 64]
            .into_iter()
            .flat_map(|bytes| ports.map(|path| (bytes, path)))
        {
            let row = self.row(Measure::RoundTrip, path, bytes);
            let of_floor = row.and_then(|row| self.of_floor(row));
            let of_iceoryx2 = row.and_then(|row| self.of_iceoryx2(row));
            let what = |of: &str| format!("{path}, {bytes} bytes, round trip / {of}");
            targets.push(Target::at_most(what("floor"), 1.5, of_floor));
            targets.push(Target::at_most(what("iceoryx2"), 0.5, of_iceoryx2));
        }
        let lent = |bytes| self.row(Measure::RoundTrip, Path::VbusLent, bytes);
        let large_of_small = lent(65_536)
            .zip(lent(64))
            .and_then(|(large, small)| large.of(small));
        let what = "vbus-lent, round trip of 65536 bytes / of 64";
        targets.push(Target::at_most(what, 1.2, large_of_small));
        for path in [Path::VbusSampling, Path::VbusSamplingLent] {
            let reading = |measure| self.row(measure, path, PACED_BYTES);
            let unwritten = reading(Measure::Read).and_then(Row::median);
            let what = format!("{path}, a read without a writer, ns");
            targets.push(Target::at_most(what, 30.0, unwritten));
            let written = reading(Measure::ReadWhileWritten);
            let written = written.map(|row| row.histogram.summary().p99_ns as f64);
            let what = format!("{path}, p99 of a read beside a writer, ns");
            targets.push(Target::at_most(what, 1_000.0, written));
        }
        let rate = self.row(Measure::Throughput, Path::VbusQueuing, 64);
        let millions = rate.and_then(Row::median).map(|rate| rate / 1e6);
        targets.push(Target::at_least(
            "vbus-queuing, 64 bytes, million messages a second",
            20.0,
            millions,
        ));
        let sleeping = self.row(Measure::Paced, Path::VbusSleeping, PACED_BYTES);
        let of_futex = sleeping.and_then(|row| self.of_floor(row));
        targets.push(Target::at_most(
            "vbus-sleeping, one message a period / futex",
            1.1,
            of_futex,
        ));
        targets
    }

    /// The result file: `machine`, `settings`, `rows` and `targets`.
    pub fn json(&self, machine: &Machine) -> serde_json::Value {
        let mut settings = serde_json::to_value(&self.settings).expect("settings are plain data");
        settings["clock"] = "CLOCK_MONOTONIC".into();
        settings["active"] = self
            .active
            .iter()
            .map(|(path, text)| (path.name().to_owned(), text.clone().into()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        serde_json::json!({
            "machine": machine,
            "settings": settings,
            "rows": self.rows.iter().map(|row| self.row_json(row)).collect::<Vec<_>>(),
            "targets": self.targets(),
        })
    }

    fn row_json(&self, row: &Row) -> serde_json::Value {
        let summary = row.histogram.summary();
        let mut json = serde_json::to_value(summary).expect("a summary is plain data");
        json["measure"] = serde_json::to_value(row.measure).expect("a name");
        json["path"] = row.path.name().into();
        json["payload_bytes"] = row.bytes.into();
        if row.measure == Measure::Throughput {
            let rate = row.median().unwrap_or_default();
            json["messages_per_second"] = rate.into();
            json["bytes_per_second"] = (rate * row.bytes as f64).into();
        }
        let rounded = |value: Option<f64>| value.map(|value| (value * 1e3).round() / 1e3);
        json["p50_of_floor"] = rounded(self.of_floor(row)).into();
        json["p50_of_iceoryx2"] = rounded(self.of_iceoryx2(row)).into();
        json
    }
}

/// Payload bytes of the floor's row: the number that a line carries.
pub const FLOOR_BYTES: usize = 8;

fn failed<E: Into<Failure>>(path: Path) -> impl FnOnce(E) -> BenchError {
    move |error| BenchError::Path {
        path,
        source: error.into(),
    }
}

/// A way that is open, with the row that it fills.
struct OpenPath {
    row: Row,
    ask: Ask,
}

/// Opens all ways, and keeps what they share.
struct Opening<'a> {
    settings: &'a Settings,
    ways: Vec<OpenPath>,
    servers: Vec<Option<Serve>>,
    active: Vec<(Path, String)>,
    /// Ports on it so far: each has a number of its own.
    ports: u16,
}

impl Opening<'_> {
    fn add<E: End + 'static>(&mut self, row: Row, ends: [E; 2]) {
        let (ask, serve) = ends::sides(ends, row.bytes);
        self.note(row.path, row.path.describe().to_owned());
        self.ways.push(OpenPath { row, ask });
        self.servers.push(Some(serve));
    }

    fn note(&mut self, path: Path, text: String) {
        if self.active.iter().all(|(noted, _)| *noted != path) {
            self.active.push((path, text));
        }
    }

    fn all(&mut self) -> Result<(), BenchError> {
        let settings = self.settings;
        let row = |path| Row::new(Measure::RoundTrip, path, FLOOR_BYTES);
        self.add(row(Path::Floor), floor::one_line());
        self.add(row(Path::FloorApart), floor::a_line_each_way());
        let row = Row::new(Measure::Paced, Path::Futex, PACED_BYTES);
        self.add(row, floor::futex());
        self.bus()?;
        if let Some(program) = &settings.iceoryx2 {
            self.iceoryx2(program).map_err(|source| BenchError::Path {
                path: Path::Iceoryx2,
                source,
            })?;
        }
        Ok(())
    }

    fn bus(&mut self) -> Result<(), BenchError> {
        let settings = self.settings;
        let bus = NodePair::on_bus().map_err(failed(Path::VbusQueuing))?;
        for path in Path::BUS {
            self.note(path, format!("{}; {}", path.describe(), bus.report()));
        }
        for bytes in settings.sizes.iter().copied() {
            for path in [
                Path::VbusSampling,
                Path::VbusSamplingLent,
                Path::VbusQueuing,
                Path::VbusLent,
            ] {
                self.port(&bus, Row::new(Measure::RoundTrip, path, bytes))?;
            }
        }
        for bytes in settings.throughput_sizes.iter().copied() {
            for path in [Path::VbusQueuing, Path::VbusLent] {
                self.port(&bus, Row::new(Measure::Throughput, path, bytes))?;
            }
        }
        for measure in [Measure::Read, Measure::ReadWhileWritten] {
            for path in [Path::VbusSampling, Path::VbusSamplingLent] {
                self.port(&bus, Row::new(measure, path, PACED_BYTES))?;
            }
        }
        let row = Row::new(Measure::Paced, Path::VbusSleeping, PACED_BYTES);
        self.port(&bus, row)
    }

    /// Opens the ports of a row.
    fn port(&mut self, bus: &NodePair<'_>, row: Row) -> Result<(), BenchError> {
        let path = row.path;
        self.ports += 1;
        match path {
            Path::VbusSampling | Path::VbusSamplingLent => {
                let options = SamplingOptions {
                    value_bytes_max: row.bytes,
                    ..SamplingOptions::default()
                };
                let ends = bus.sampling(self.ports, &options).map_err(failed(path))?;
                match path {
                    Path::VbusSampling => self.add(row, ends),
                    _ => self.add(row, lent(ends)),
                }
            }
            _ => {
                // They sleep at once when they wait.
                let options = QueuingOptions {
                    message_bytes_max: row.bytes,
                    spin: Duration::ZERO.into(),
                    ..QueuingOptions::default()
                };
                let ends = bus.queuing(self.ports, &options).map_err(failed(path))?;
                match path {
                    Path::VbusLent => self.add(row, lent(ends)),
                    _ => self.add(row, ends.map(|end| end.with_sends(Sends::Batches))),
                }
            }
        }
        Ok(())
    }

    fn iceoryx2(&mut self, program: &std::path::Path) -> Result<(), Failure> {
        let settings = self.settings;
        let program = Iceoryx2::start(program, &settings.placement)?;
        for path in [Path::Iceoryx2, Path::Iceoryx2Event] {
            self.note(path, format!("{}: {}", program.version, path.describe()));
        }
        let program = Arc::new(Mutex::new(program));
        let rows = settings
            .sizes
            .iter()
            .map(|size| Row::new(Measure::RoundTrip, Path::Iceoryx2, *size));
        let rows = rows.chain(
            settings
                .throughput_sizes
                .iter()
                .map(|size| Row::new(Measure::Throughput, Path::Iceoryx2, *size)),
        );
        let event = Row::new(Measure::Paced, Path::Iceoryx2Event, PACED_BYTES);
        for row in rows.chain([event]) {
            self.ways.push(OpenPath {
                row,
                ask: iceoryx2::asking(Arc::clone(&program)),
            });
            self.servers.push(None);
        }
        Ok(())
    }
}

/// Measures. `progress` is called between slices with those done and those of the whole run, the first round
/// included.
pub fn run(
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, BenchError> {
    settings.check()?;
    let mut opening = Opening {
        settings,
        ways: Vec::new(),
        servers: Vec::new(),
        active: Vec::new(),
        ports: 0,
    };
    opening.all()?;
    let Opening {
        ways,
        mut servers,
        active,
        ..
    } = opening;
    let paths: Vec<Path> = ways.iter().map(|way| way.row.path).collect();
    let serve = |slice: Slice, stop: &AtomicBool| match &mut servers[slice.way] {
        Some(serve) => serve(&slice, stop).map_err(failed(paths[slice.way])),
        None => Ok(()),
    };
    let ask = |handover: &Handover<Slice>| measure(settings, ways, handover, progress);
    let mut rows = sides::run(&settings.placement, serve, ask)?;
    rows.sort_by_key(|row| (row.measure, row.bytes, row.path));
    Ok(Outcome {
        settings: settings.clone(),
        active,
        rows,
    })
}

fn measure(
    settings: &Settings,
    mut ways: Vec<OpenPath>,
    handover: &Handover<Slice>,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Vec<Row>, BenchError> {
    let count = ways.len();
    let total = (settings.rounds + 1) * count as u64;
    let mut times = Vec::new();
    for round in 0..=settings.rounds {
        for step in 0..count {
            let way = (step + round as usize) % count;
            let slice = slice_of(settings, way, &ways[way].row);
            times.clear();
            handover.begin(slice)?;
            let asked = (ways[way].ask)(&slice, &mut times);
            let ended = handover.end();
            asked.map_err(failed(ways[way].row.path))?;
            ended?;
            if round > 0 {
                count_slice(&mut ways[way].row, &slice, &mut times);
            }
            progress(round * count as u64 + step as u64 + 1, total);
            if let Some(signal) = interrupt::interrupted() {
                return Err(BenchError::Interrupted(signal));
            }
        }
    }
    Ok(ways.into_iter().map(|way| way.row).collect())
}

fn slice_of(settings: &Settings, way: usize, row: &Row) -> Slice {
    let length = match row.measure {
        Measure::RoundTrip | Measure::Read | Measure::ReadWhileWritten => settings.slice,
        Measure::Throughput if row.bytes > 4096 => settings.throughput_slice.div_ceil(16),
        Measure::Throughput => settings.throughput_slice,
        Measure::Paced => settings.paced_slice,
    };
    Slice {
        way,
        measure: row.measure,
        bytes: row.bytes,
        length,
        period: settings.period,
    }
}

fn count_slice(row: &mut Row, slice: &Slice, times: &mut [u64]) {
    if row.measure == Measure::Throughput {
        for time in times.iter() {
            row.histogram.record(time / slice.length);
            row.rounds
                .push(slice.length as f64 / (*time).max(1) as f64 * 1e9);
        }
        return;
    }
    for time in times.iter() {
        row.histogram.record(*time);
    }
    times.sort_unstable();
    if let Some(median) = times.get(times.len() / 2) {
        row.rounds.push(*median as f64);
    }
}
