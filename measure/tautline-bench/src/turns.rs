//! Round trips and messages whose two ends take turns in one thread, over one cable: asking, answering and the network
//! card's interrupts share one CPU.
//!
//! So a machine with one CPU can measure them, above all an emulated one whose clock counts instructions: no second
//! CPU spins in the same time, and each run gives the same figures. On a real machine with two network cards and a
//! cable between them it measures the work that a message makes, and nothing that two CPUs would do at once.
//!
//! The thread has no real-time policy: it spins, and the kernel's thread for received frames (ksoftirqd), which may
//! have to take over, would never run on its CPU.

use std::io;
use std::time::{Duration, Instant};

use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use serde::{Deserialize, Serialize};
use tautline_report::{LatencyHistogram, Summary};
use tautline_testbed::hosts::{Hosts, HostsError};
use tautline_testbed::{interrupt, steps};
use thiserror::Error;

use crate::echo::{self, Ends, Path, PathOptions};
use crate::path::{PathError, TAG_BYTES};
use crate::sides::{Placement, PlacementError};

mod stream;

use stream::Stream;

/// Time of round trips of each path and size that are not counted. Lower: first touches of memory, and what the kernel
/// still does for a port that has just been opened, are in the figures.
const WARM_UP: Duration = Duration::from_millis(50);

/// Time for a path's first round trip. Lower: cards that have just been reset are given up. Higher: a cable that is not
/// plugged in is told later.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);

/// Round trips lost one after the other before a path is given up. Lower would give up in a stall of a shared machine.
const LOST_IN_A_ROW_MAX: u32 = 20;

/// Messages of a burst. Lower: the first message's latency, and not the time between two, decides the mean. Higher: no
/// default queue holds them all, and the cards' rings are full.
pub const BURST_MESSAGES: u64 = 32;

/// Least bursts of each path and size, also where few round trips are asked for.
const BURSTS_MIN: u64 = 10;

/// Rate of the TCP stream beside round trips, in bits per second of payload. Lower: most round trips meet no segment.
/// Higher: on one CPU at a nanosecond an instruction, segments and acknowledgements leave no time for round trips.
pub const STREAM_BITS_PER_S: u64 = 200_000_000;

/// Least time of round trips beside the stream. Lower: on a fast machine they are over before the kernel has sent some
/// bursts of it.
const STREAM_TIME_MIN: Duration = Duration::from_millis(50);

/// Round trips that are made in single steps, of which the median counts. A step takes some thousand instructions.
const STEPPED: usize = 5;

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The paths, in the order of the table.
    pub paths: Vec<Path>,
    /// Payload sizes in bytes.
    pub sizes: Vec<usize>,
    /// Round trips of each path and size.
    pub count: u64,
    /// Time after which a message counts as lost, in nanoseconds.
    pub time_limit_ns: u64,
    /// CPU of the thread; nothing leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// Messages of a burst.
    pub burst_messages: u64,
    /// Rate of the TCP stream beside the round trips of a series.
    pub stream_bits_per_s: u64,
}

/// Result of one path at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The path.
    pub path: Path,
    /// The size.
    pub payload_bytes: usize,
    /// Round trips that were lost; they are in no figure.
    pub lost: u64,
    /// From before the request is sent until the reply is there.
    pub round_trip: Summary,
    /// Median of the call that sends, of requests and replies.
    pub send_p50_ns: u64,
    /// Median from the end of that call until the other end has the message.
    pub wait_p50_ns: u64,
    /// Mean of the BPF programs' time for a message, by the kernel's own count; none where no program ran.
    pub bpf_mean_ns: Option<u64>,
    /// From before a message is sent until the other end has it.
    pub one_way: Summary,
    /// Messages sent back to back; none of a path that keeps only the last one.
    pub burst: Option<Burst>,
    /// Round trips beside a TCP stream.
    pub beside_stream: BesideStream,
    /// Instructions of the program for a message: sending, and receiving what is there. None where they cannot be
    /// counted.
    pub user_instructions: Option<u64>,
    /// The rest of a message's half of a round trip, on a clock that counts instructions: kernel, driver, cards, and
    /// the program's looks meanwhile. See [`Outcome::split`].
    pub kernel_ns: Option<u64>,
}

/// Messages that are sent back to back, and then received.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Messages that were lost; a burst with one of them is in no figure.
    pub lost: u64,
    /// From before the first is sent until the last is there, by their number.
    pub message: Summary,
}

/// Round trips beside a TCP stream over the same cable, in the direction of the requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BesideStream {
    /// Round trips that were lost; they are in no figure.
    pub lost: u64,
    /// As [`Row::round_trip`], of at least as many, and of at least 50 ms.
    pub round_trip: Summary,
    /// Payload of the stream that arrived meanwhile, bits per second.
    pub bits_per_s: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// How it was measured.
    pub settings: Settings,
    /// Link and mode of each path.
    pub active: Vec<(Path, String)>,
    /// Paths that this cable, kernel or driver does not have, each with the reason.
    pub missing: Vec<(Path, String)>,
    /// Paths within sizes, in the settings' order.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// Median of a row's round trips as a share of that of another path at the same size.
    pub fn of(&self, row: &Row, reference: Path) -> Option<f64> {
        self.share(row, reference, |row| Some(row.round_trip))
    }

    /// Median of one of a row's series as a share of that of another path at the same size.
    pub fn share(
        &self,
        row: &Row,
        reference: Path,
        series: impl Fn(&Row) -> Option<Summary>,
    ) -> Option<f64> {
        let same =
            |other: &&Row| other.path == reference && other.payload_bytes == row.payload_bytes;
        let reference = series(self.rows.iter().find(same)?)?;
        let own = series(row)?;
        (own.count > 0 && reference.count > 0)
            .then(|| own.p50_ns as f64 / reference.p50_ns.max(1) as f64)
    }

    /// Splits the time of a message where the clock counts instructions, a nanosecond each: the kernel's part is what
    /// the program's instructions and the BPF programs leave of half a round trip.
    pub fn split(&mut self) {
        for row in &mut self.rows {
            let message_ns = row.round_trip.p50_ns / 2;
            let others = |user| user + row.bpf_mean_ns.unwrap_or(0);
            row.kernel_ns = row
                .user_instructions
                .map(|user| message_ns.saturating_sub(others(user)));
        }
    }
}

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TurnsError {
    /// The hosts could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A path failed while it was measured.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: Path,
        /// Why.
        source: PathError,
    },
    /// None of the paths could be opened.
    #[error("{path}: {source}")]
    NoPath {
        /// The first one.
        path: Path,
        /// Why not.
        source: PathError,
    },
    /// A path lost one message after the other.
    #[error(
        "{path}: {LOST_IN_A_ROW_MAX} messages of {payload_bytes} bytes in a row did not come back"
    )]
    Dead {
        /// Which.
        path: Path,
        /// The size under way.
        payload_bytes: usize,
    },
    /// The thread could not be placed or scheduled as asked.
    #[error(transparent)]
    Scheduling(#[from] PlacementError),
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Measures over the hosts' first cable. Paths that cannot share its interfaces are opened one after the other, those
/// of the kernel first, while nothing of Tautline's is attached.
pub fn run(
    hosts: &Hosts,
    settings: &Settings,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Outcome, TurnsError> {
    Placement::place(settings.cpu, None)?;
    let options = PathOptions {
        payload_bytes_max: settings.sizes.iter().copied().max().unwrap_or(1),
        time_limit: Duration::from_nanos(settings.time_limit_ns),
        placement: Placement::default(),
    };
    let mut outcome = Outcome {
        settings: settings.clone(),
        active: Vec::new(),
        missing: Vec::new(),
        rows: Vec::new(),
    };
    let mut failure = None;
    let total = (settings.paths.len() * settings.sizes.len()) as u64;
    for group in echo::sharing_groups(&settings.paths) {
        let opened = echo::open_on_one_cable(&group, hosts, &options);
        // A card may have lost its link when a program was attached.
        hosts.wait_until_up()?;
        for (path, opened) in opened {
            let mut ends = match opened {
                Ok(ends) => ends,
                Err(source) => {
                    outcome.missing.push((path, source.to_string()));
                    failure.get_or_insert((path, source));
                    continue;
                }
            };
            for bytes in &settings.sizes {
                let row = Measuring::new(path, *bytes, &mut ends, settings).row(hosts)?;
                outcome.rows.push(row);
                progress(outcome.rows.len() as u64, total);
            }
            outcome.active.push((path, ends.description));
        }
    }
    match failure {
        Some((path, source)) if outcome.rows.is_empty() => Err(TurnsError::NoPath { path, source }),
        _ => {
            outcome.sort();
            Ok(outcome)
        }
    }
}

impl Outcome {
    /// Sizes, and within a size the paths, in the settings' order.
    fn sort(&mut self) {
        let Settings { paths, sizes, .. } = &self.settings;
        let of_path = |path: Path| paths.iter().position(|one| *one == path);
        let of_size = |bytes: usize| sizes.iter().position(|one| *one == bytes);
        self.rows
            .sort_by_key(|row| (of_size(row.payload_bytes), of_path(row.path)));
        self.active.sort_by_key(|(path, _)| of_path(*path));
        self.missing.sort_by_key(|(path, _)| of_path(*path));
    }
}

/// A path at one size, while it is measured.
struct Measuring<'a> {
    path: Path,
    ends: &'a mut Ends,
    settings: &'a Settings,
    payload: Vec<u8>,
    sequence: u64,
    limit: Duration,
    stamps: Stamps,
    lost: u64,
    lost_in_a_row: u32,
}

/// Moments at which the clock is read. A reading takes time of its own, so that each series has its own readings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamps {
    /// Before the request is sent, and when the reply is there.
    RoundTrip,
    /// When the request is there, too.
    Messages,
    /// After each call that sends, too.
    Calls,
}

/// Moments of a round trip: before and after each call that sends, and when each message was there. Those between the
/// first and the last are those only where [`Stamps`] has them.
struct Moments {
    asked: Instant,
    sent: Instant,
    arrived: Instant,
    answered: Instant,
    done: Instant,
}

impl<'a> Measuring<'a> {
    fn new(path: Path, bytes: usize, ends: &'a mut Ends, settings: &'a Settings) -> Measuring<'a> {
        Measuring {
            path,
            ends,
            settings,
            payload: (0..bytes).map(|index| index as u8).collect(),
            sequence: 0,
            limit: Duration::from_nanos(settings.time_limit_ns),
            stamps: Stamps::RoundTrip,
            lost: 0,
            lost_in_a_row: 0,
        }
    }

    fn row(mut self, hosts: &Hosts) -> Result<Row, TurnsError> {
        self.begin()?;
        let round_trip = self.round_trips()?;
        let lost = self.lost;
        let [send_p50_ns, wait_p50_ns] = self.calls()?;
        Ok(Row {
            path: self.path,
            payload_bytes: self.payload.len(),
            lost,
            round_trip,
            send_p50_ns,
            wait_p50_ns,
            bpf_mean_ns: self.bpf_mean_ns()?,
            one_way: self.one_way()?,
            burst: self.burst()?,
            user_instructions: self.user_instructions()?,
            beside_stream: self.beside_stream(hosts)?,
            kernel_ns: None,
        })
    }

    fn round_trips(&mut self) -> Result<Summary, TurnsError> {
        let mut histogram = LatencyHistogram::new();
        self.repeat(self.settings.count, &mut |moments| {
            histogram.record(ns(moments.asked, moments.done));
        })?;
        Ok(histogram.summary())
    }

    /// Medians of the call that sends, and from its end until the message is there.
    fn calls(&mut self) -> Result<[u64; 2], TurnsError> {
        let (mut sends, mut waits) = (LatencyHistogram::new(), LatencyHistogram::new());
        self.stamps = Stamps::Calls;
        self.repeat(self.settings.count, &mut |moments| {
            sends.record(ns(moments.asked, moments.sent));
            sends.record(ns(moments.arrived, moments.answered));
            waits.record(ns(moments.sent, moments.arrived));
            waits.record(ns(moments.answered, moments.done));
        })?;
        self.stamps = Stamps::RoundTrip;
        Ok([sends, waits].map(|histogram| histogram.summary().p50_ns))
    }

    /// Requests and replies, each for itself.
    fn one_way(&mut self) -> Result<Summary, TurnsError> {
        let mut histogram = LatencyHistogram::new();
        self.stamps = Stamps::Messages;
        self.repeat(self.settings.count, &mut |moments| {
            histogram.record(ns(moments.asked, moments.arrived));
            histogram.record(ns(moments.arrived, moments.done));
        })?;
        self.stamps = Stamps::RoundTrip;
        Ok(histogram.summary())
    }

    fn burst(&mut self) -> Result<Option<Burst>, TurnsError> {
        let messages = self.settings.burst_messages;
        if !self.path.keeps_all_messages() || messages == 0 {
            return Ok(None);
        }
        let mut histogram = LatencyHistogram::new();
        self.lost = 0;
        let bursts = self.settings.count.div_ceil(messages).max(BURSTS_MIN);
        // The first burst touches slots that no message has been in.
        for index in 0..=bursts {
            let sent = self.send_burst(messages);
            let latency = sent.map_err(|source| self.io(source))?;
            if let Some(latency) = latency.filter(|_| index > 0) {
                histogram.record(latency.as_nanos() as u64 / messages);
            }
            interrupted()?;
        }
        Ok(Some(Burst {
            lost: self.lost,
            message: histogram.summary(),
        }))
    }

    /// Sends messages back to back, and then receives them; how long that took, if all arrived.
    fn send_burst(&mut self, messages: u64) -> io::Result<Option<Duration>> {
        let bytes = self.payload.len();
        // Late messages of a burst that was given up.
        self.ends.answering.update(bytes)?;
        let begun = Instant::now();
        for _ in 0..messages {
            let _lost = self.ends.asking.send(&self.payload)?;
        }
        for arrived in 0..messages {
            if self.ends.answering.wait(bytes, self.limit)?.is_none() {
                self.lost += messages - arrived;
                return Ok(None);
            }
        }
        Ok(Some(begun.elapsed()))
    }

    /// Round trips while a TCP stream crosses the cable.
    fn beside_stream(&mut self, hosts: &Hosts) -> Result<BesideStream, TurnsError> {
        let bytes_per_s = u32::try_from(self.settings.stream_bits_per_s / 8).unwrap_or(u32::MAX);
        let opened = Stream::begin(hosts, bytes_per_s);
        let mut stream = opened.map_err(|source| self.failed(source))?;
        let mut turn = |measuring: &mut Self, show: &mut dyn FnMut(&Moments)| {
            let arrived = stream.turn().map_err(|source| measuring.io(source))?;
            measuring.repeat(1, show).map(|()| arrived)
        };
        // TCP finds its rate.
        let begun = Instant::now();
        while begun.elapsed() < WARM_UP {
            turn(self, &mut |_| {})?;
        }
        self.lost = 0;
        let mut histogram = LatencyHistogram::new();
        let (mut arrived, mut count, begun) = (0, 0, Instant::now());
        while count < self.settings.count || begun.elapsed() < STREAM_TIME_MIN {
            arrived += turn(self, &mut |moments| {
                histogram.record(ns(moments.asked, moments.done));
            })?;
            count += 1;
        }
        let bits_per_s = arrived as f64 * 8.0 / begun.elapsed().as_secs_f64();
        Ok(BesideStream {
            lost: self.lost,
            round_trip: histogram.summary(),
            bits_per_s: bits_per_s as u64,
        })
    }

    /// Instructions of the program for a message.
    fn user_instructions(&mut self) -> Result<Option<u64>, TurnsError> {
        let mut counts = Vec::with_capacity(STEPPED);
        for _ in 0..STEPPED {
            self.tag();
            let Ok((steps, came)) = steps::count(|| self.echo()) else {
                return Ok(None);
            };
            if came.map_err(|source| self.io(source))? {
                counts.push(steps / 2);
            }
        }
        counts.sort_unstable();
        Ok(counts.get(counts.len() / 2).copied())
    }

    /// Waits for the first round trip, and warms up.
    fn begin(&mut self) -> Result<(), TurnsError> {
        let begun = Instant::now();
        while self.round_trip()?.is_none() {
            if begun.elapsed() > FIRST_PATIENCE {
                return Err(self.dead());
            }
            interrupted()?;
        }
        let begun = Instant::now();
        while begun.elapsed() < WARM_UP {
            self.repeat(1, &mut |_| {})?;
        }
        self.lost = 0;
        Ok(())
    }

    /// Makes round trips, and shows those that were not lost.
    fn repeat(&mut self, count: u64, show: &mut dyn FnMut(&Moments)) -> Result<(), TurnsError> {
        for _ in 0..count {
            match self.round_trip()? {
                Some(moments) => {
                    self.lost_in_a_row = 0;
                    show(&moments);
                }
                None => {
                    self.lost += 1;
                    self.lost_in_a_row += 1;
                    if self.lost_in_a_row >= LOST_IN_A_ROW_MAX {
                        return Err(self.dead());
                    }
                    interrupted()?;
                }
            }
        }
        interrupted()
    }

    /// One round trip; nothing if a message was lost.
    fn round_trip(&mut self) -> Result<Option<Moments>, TurnsError> {
        self.tag();
        self.exchange().map_err(|source| self.io(source))
    }

    /// Makes the payload that of the next round trip.
    fn tag(&mut self) {
        self.sequence += 1;
        let tag = self.sequence.to_le_bytes();
        let length = self.payload.len().min(TAG_BYTES);
        self.payload[..length].copy_from_slice(&tag[..length]);
    }

    /// A round trip without a reading of the clock; whether its messages came.
    fn echo(&mut self) -> io::Result<bool> {
        let (payload, limit) = (&self.payload, self.limit);
        let Ends {
            asking, answering, ..
        } = &mut *self.ends;
        let _lost = asking.send(payload)?;
        if answering.wait(payload.len(), limit)?.is_none() {
            return Ok(false);
        }
        let _lost = answering.send_back()?;
        Ok(asking.wait(payload.len(), limit)?.is_some())
    }

    fn exchange(&mut self) -> io::Result<Option<Moments>> {
        let (payload, limit, stamps) = (&self.payload, self.limit, self.stamps);
        let Ends {
            asking, answering, ..
        } = &mut *self.ends;
        let asked = Instant::now();
        let read_if = |wanted| if wanted { Instant::now() } else { asked };
        let _lost = asking.send(payload)?;
        let sent = read_if(stamps == Stamps::Calls);
        if answering.wait(payload.len(), limit)?.is_none() {
            return Ok(None);
        }
        let arrived = read_if(stamps != Stamps::RoundTrip);
        let _lost = answering.send_back()?;
        let answered = read_if(stamps == Stamps::Calls);
        if asking.wait(payload.len(), limit)?.is_none() {
            return Ok(None);
        }
        let done = Instant::now();
        // A late message of a round trip that was given up.
        let is_reply = asking.message() == &payload[..];
        Ok(is_reply.then_some(Moments {
            asked,
            sent,
            arrived,
            answered,
            done,
        }))
    }

    /// Time of all BPF programs for one message. Their own stamps are in it, and slow the round trip meanwhile.
    fn bpf_mean_ns(&mut self) -> Result<Option<u64>, TurnsError> {
        // Without it, or on kernels before 5.8, there is no figure.
        let Ok(_counting) = enable_stats(Stats::RunTime) else {
            return Ok(None);
        };
        let before = bpf_time();
        let count = self.settings.count;
        self.repeat(count, &mut |_| {})?;
        let spent = bpf_time().saturating_sub(before);
        Ok((!spent.is_zero()).then(|| spent.as_nanos() as u64 / (2 * count.max(1))))
    }

    /// Failure of a call on one of the ends.
    fn io(&self, source: io::Error) -> TurnsError {
        self.failed(PathError::Io {
            operation: "send or receive",
            source,
        })
    }

    fn failed(&self, source: PathError) -> TurnsError {
        TurnsError::Path {
            path: self.path,
            source,
        }
    }

    fn dead(&self) -> TurnsError {
        TurnsError::Dead {
            path: self.path,
            payload_bytes: self.payload.len(),
        }
    }
}

fn ns(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}

fn interrupted() -> Result<(), TurnsError> {
    match interrupt::interrupted() {
        Some(signal) => Err(TurnsError::Interrupted(signal)),
        None => Ok(()),
    }
}

/// Time that all programs of this machine have run.
fn bpf_time() -> Duration {
    loaded_programs()
        .flatten()
        .map(|program| program.run_time())
        .sum()
}
