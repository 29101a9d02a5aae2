//! Round trips whose two ends take turns in one thread, over one cable: asking, answering and the network card's
//! interrupts share one CPU.
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
use tautline_testbed::interrupt;
use thiserror::Error;

use crate::echo::{self, Ends, Path, PathOptions};
use crate::path::{PathError, TAG_BYTES};
use crate::sides::{Placement, PlacementError};

/// Time of round trips of each path and size that are not counted. Lower: first touches of memory, and what the kernel
/// still does for a port that has just been opened, are in the figures.
const WARM_UP: Duration = Duration::from_millis(50);

/// Time for a path's first round trip. Lower: cards that have just been reset are given up. Higher: a cable that is not
/// plugged in is told later.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);

/// Round trips lost one after the other before a path is given up. Lower would give up in a stall of a shared machine.
const LOST_IN_A_ROW_MAX: u32 = 20;

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
    /// Median of a row as a share of that of another path at the same size.
    pub fn of(&self, row: &Row, reference: Path) -> Option<f64> {
        let same =
            |other: &&Row| other.path == reference && other.payload_bytes == row.payload_bytes;
        let reference = self.rows.iter().find(same)?.round_trip;
        (reference.count > 0).then(|| row.round_trip.p50_ns as f64 / reference.p50_ns.max(1) as f64)
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
                let row = Measuring::new(path, *bytes, &mut ends, settings).row()?;
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
    payload: Vec<u8>,
    sequence: u64,
    count: u64,
    limit: Duration,
    /// Whether the clock is read between the first and the last moment, which costs time of its own.
    has_stages: bool,
    lost: u64,
    lost_in_a_row: u32,
}

/// Moments of a round trip: before and after each call that sends, and when each message was there. All but the first
/// and the last are those only where stages are measured.
struct Moments {
    asked: Instant,
    sent: Instant,
    arrived: Instant,
    answered: Instant,
    done: Instant,
}

impl<'a> Measuring<'a> {
    fn new(path: Path, bytes: usize, ends: &'a mut Ends, settings: &Settings) -> Measuring<'a> {
        Measuring {
            path,
            ends,
            payload: (0..bytes).map(|index| index as u8).collect(),
            sequence: 0,
            count: settings.count,
            limit: Duration::from_nanos(settings.time_limit_ns),
            has_stages: false,
            lost: 0,
            lost_in_a_row: 0,
        }
    }

    fn row(mut self) -> Result<Row, TurnsError> {
        self.begin()?;
        let mut round_trips = LatencyHistogram::new();
        self.repeat(self.count, &mut |moments| {
            round_trips.record(ns(moments.asked, moments.done));
        })?;
        let lost = self.lost;
        self.has_stages = true;
        let (mut sends, mut waits) = (LatencyHistogram::new(), LatencyHistogram::new());
        self.repeat(self.count, &mut |moments| {
            sends.record(ns(moments.asked, moments.sent));
            sends.record(ns(moments.arrived, moments.answered));
            waits.record(ns(moments.sent, moments.arrived));
            waits.record(ns(moments.answered, moments.done));
        })?;
        self.has_stages = false;
        Ok(Row {
            path: self.path,
            payload_bytes: self.payload.len(),
            lost,
            round_trip: round_trips.summary(),
            send_p50_ns: sends.summary().p50_ns,
            wait_p50_ns: waits.summary().p50_ns,
            bpf_mean_ns: self.bpf_mean_ns()?,
        })
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
        self.sequence += 1;
        let tag = self.sequence.to_le_bytes();
        let length = self.payload.len().min(TAG_BYTES);
        self.payload[..length].copy_from_slice(&tag[..length]);
        let path = self.path;
        self.exchange().map_err(|source| TurnsError::Path {
            path,
            source: PathError::Io {
                operation: "send or receive",
                source,
            },
        })
    }

    fn exchange(&mut self) -> io::Result<Option<Moments>> {
        let (payload, limit, has_stages) = (&self.payload, self.limit, self.has_stages);
        let Ends {
            asking, answering, ..
        } = &mut *self.ends;
        let asked = Instant::now();
        let stage = || if has_stages { Instant::now() } else { asked };
        let _lost = asking.send(payload)?;
        let sent = stage();
        if answering.wait(payload.len(), limit)?.is_none() {
            return Ok(None);
        }
        let arrived = stage();
        let _lost = answering.send_back()?;
        let answered = stage();
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
        self.repeat(self.count, &mut |_| {})?;
        let spent = bpf_time().saturating_sub(before);
        Ok((!spent.is_zero()).then(|| spent.as_nanos() as u64 / (2 * self.count.max(1))))
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
