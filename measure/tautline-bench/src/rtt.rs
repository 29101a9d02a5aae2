//! Round-trip times of several paths, measured side by side.
//!
//! A run is cut into short slices. Each slice belongs to one path and one size; the order of the
//! slices rotates, so that a disturbance of the machine hits all alike. One thread asks, one
//! answers, each on a CPU of its own. Between slices the asking thread tells the other what to
//! serve next; that, and the first slices of each path, are not measured.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tautline_machine::Machine;
use tautline_report::{LatencyHistogram, Summary};
use thiserror::Error;

use crate::echo::{self, Path, PathOptions};
use crate::path::{End, PAYLOAD_BYTES_MAX, PathError, TAG_BYTES};
use crate::sides::{self, Handover, Placement, PlacementError, ServerGone};
use tautline_testbed::hosts::{Hosts, HostsError};
use tautline_testbed::interrupt;

/// Round trips lost one after the other before the path is given up as dead. Lower would give up in
/// a stall of a shared machine, higher lets a dead path cost minutes.
const LOST_IN_A_ROW_MAX: u32 = 20;

/// Settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The paths, in the order of the table.
    pub paths: Vec<Path>,
    /// Payload sizes in bytes.
    pub sizes: Vec<usize>,
    /// Round trips of each path and size.
    pub count: u64,
    /// Round trips in one slice.
    pub slice: u64,
    /// Slices of each path and size at the start that are not counted.
    pub warm_up_slices: u64,
    /// Pause before each round trip, in which both sides of a path that sleeps go to sleep.
    #[serde(rename = "gap_ns", serialize_with = "as_ns")]
    pub gap: Duration,
    /// Time from one request to the next, which the asking side sleeps for; zero: as soon as there is an answer.
    #[serde(rename = "period_ns", serialize_with = "as_ns")]
    pub period: Duration,
    /// How long one round trip may take before it counts as lost.
    #[serde(rename = "time_limit_ns", serialize_with = "as_ns")]
    pub time_limit: Duration,
    /// Where the two threads run.
    #[serde(flatten)]
    pub placement: Placement,
    /// Whether the answering side reads the clock at each message, for the time of one way.
    pub one_way: bool,
}

pub(crate) fn as_ns<S: serde::Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

impl Settings {
    /// Default paths.
    pub fn new(paths: Vec<Path>, sizes: Vec<usize>, count: u64) -> Settings {
        Settings {
            paths,
            sizes,
            count,
            slice: 1_000,
            warm_up_slices: 1,
            gap: Duration::ZERO,
            period: Duration::ZERO,
            time_limit: Duration::from_millis(100),
            placement: Placement::default(),
            one_way: false,
        }
    }

    fn check(&self) -> Result<(), RttError> {
        let invalid = |what: &str| Err(RttError::Settings(what.to_owned()));
        if self.paths.is_empty() || self.sizes.is_empty() {
            return invalid("there must be at least one path and one size");
        }
        if self.count == 0 || self.slice == 0 {
            return invalid("the count of round trips and of those in a slice must be 1 or more");
        }
        if let Some(size) = self
            .sizes
            .iter()
            .find(|size| !(1..=PAYLOAD_BYTES_MAX).contains(*size))
        {
            return invalid(&format!(
                "a size of {size} bytes is not possible: 1 to {PAYLOAD_BYTES_MAX} are"
            ));
        }
        Ok(())
    }
}

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RttError {
    /// The settings contradict themselves.
    #[error("{0}")]
    Settings(String),
    /// The hosts could not be made.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A path could not be opened or failed.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: Path,
        /// Why.
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

/// Result of one path at one size.
#[derive(Clone, Debug)]
pub struct Row {
    /// The path.
    pub path: Path,
    /// The size.
    pub payload_bytes: usize,
    /// Round trips that took longer than the time limit; they are not in the histogram.
    pub lost: u64,
    /// Latencies of the others.
    pub histogram: LatencyHistogram,
    /// From before the request is sent until the other side has it, by the clock that both read; empty unless
    /// [`Settings::one_way`].
    pub one_way: LatencyHistogram,
    /// Time that the slices took, and CPU time of the asking and of the answering side.
    pub spent: Spent,
    /// Round trips that took longer than half a period, in rows: one disturbance makes several late.
    pub late: Episodes,
}

/// Time that slices took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// On the clock.
    pub elapsed: Duration,
    /// CPU time of the asking thread.
    pub asking: Duration,
    /// CPU time of the answering thread.
    pub answering: Duration,
}

/// Late round trips, and rows of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Episodes {
    /// Late round trips, lost ones included.
    pub count: u64,
    /// Rows of late round trips without one in time between them.
    pub episodes: u64,
    is_late: bool,
}

impl Episodes {
    /// Takes the next round trip.
    pub fn add(&mut self, is_late: bool) {
        self.count += u64::from(is_late);
        self.episodes += u64::from(is_late && !self.is_late);
        self.is_late = is_late;
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Result of the measurement.
    pub settings: Settings,
    /// The hosts' offload settings.
    pub offloads: &'static str,
    /// Link and mode of each path.
    pub active: Vec<(Path, String)>,
    /// Paths within sizes, in the settings' order.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// The row to compare with: kernel UDP that waits in the same way, at the same size.
    pub fn reference(&self, row: &Row) -> Option<Summary> {
        self.summary(row.path.reference(), row.payload_bytes)
    }

    /// The floor at the hook of the row's demux, at the same size.
    pub fn floor(&self, row: &Row) -> Option<Summary> {
        self.summary(row.path.floor()?, row.payload_bytes)
    }

    fn summary(&self, path: Path, payload_bytes: usize) -> Option<Summary> {
        let is_meant = |row: &&Row| row.path == path && row.payload_bytes == payload_bytes;
        let summary = self.rows.iter().find(is_meant)?.histogram.summary();
        (summary.count > 0).then_some(summary)
    }

    /// The result file: `machine`, `settings` and `rows`.
    pub fn json(&self, machine: &Machine) -> serde_json::Value {
        let mut settings = serde_json::to_value(&self.settings).expect("settings are plain data");
        settings["clock"] = "CLOCK_MONOTONIC".into();
        settings["link"] = "veth between two network namespaces".into();
        settings["offloads"] = self.offloads.into();
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
        })
    }

    fn row_json(&self, row: &Row) -> serde_json::Value {
        let summary = row.histogram.summary();
        let mut json = serde_json::to_value(summary).expect("a summary is plain data");
        json["path"] = row.path.name().into();
        json["payload_bytes"] = row.payload_bytes.into();
        json["lost"] = row.lost.into();
        json["p9999_ns"] = row.histogram.at_quantile(0.9999).into();
        if !self.settings.period.is_zero() {
            json["late"] = row.late.count.into();
            json["late_episodes"] = row.late.episodes.into();
        }
        json["asking_cpu_percent"] = percent(row.spent.asking, row.spent.elapsed).into();
        json["answering_cpu_percent"] = percent(row.spent.answering, row.spent.elapsed).into();
        if self.settings.one_way {
            json["one_way"] = serde_json::to_value(row.one_way.summary()).expect("plain data");
        }
        let of = |path| self.summary(path, row.payload_bytes);
        for (name, reference) in [
            ("udp_poll", of(Path::UdpPoll)),
            ("udp_block", of(Path::UdpBlock)),
            ("floor", self.floor(row)),
        ] {
            if let Some(reference) = reference {
                json[format!("p50_of_{name}")] = ratio(summary.p50_ns, reference.p50_ns).into();
                json[format!("p99_of_{name}")] = ratio(summary.p99_ns, reference.p99_ns).into();
            }
        }
        json
    }
}

/// A quotient for display, rounded to a thousandth.
pub fn ratio(value: u64, of: u64) -> f64 {
    (value as f64 / of.max(1) as f64 * 1000.0).round() / 1000.0
}

/// A part of a time in per cent, rounded to a tenth.
pub fn percent(part: Duration, of: Duration) -> f64 {
    (part.as_secs_f64() * 1000.0 / of.as_secs_f64().max(1e-9)).round() / 10.0
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Measures. `progress` is called between slices with the round trips done and those of the whole
/// run, warm-up included.
pub fn run(
    hosts: &Hosts,
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Outcome, RttError> {
    settings.check()?;
    let options = PathOptions {
        payload_bytes_max: settings.sizes.iter().copied().max().unwrap_or(1),
        time_limit: settings.time_limit,
        placement: settings.placement,
    };
    let ends = echo::open_paths(&settings.paths, hosts, &options)
        .map_err(|(path, source)| RttError::Path { path, source })?;
    let (mut active, mut clients, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for (path, ends) in settings.paths.iter().zip(ends) {
        active.push((*path, ends.description));
        clients.push(ends.asking);
        servers.push(ends.answering);
    }
    Ok(Outcome {
        settings: settings.clone(),
        offloads: hosts.offloads().text(),
        active,
        rows: run_on_threads(clients, servers, settings, progress)?,
    })
}

fn failed(path: Path, operation: &'static str) -> impl FnOnce(io::Error) -> RttError {
    move |source| RttError::Path {
        path,
        source: PathError::Io { operation, source },
    }
}

fn run_on_threads(
    mut clients: Vec<Box<dyn End>>,
    mut servers: Vec<Box<dyn End>>,
    settings: &Settings,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Vec<Row>, RttError> {
    let arrivals = &Arrivals::default();
    // Room for a slice, taken before it is measured.
    let room = settings.slice.min(settings.count) as usize;
    let mut seen = Vec::with_capacity(if settings.one_way { room } else { 0 });
    sides::run(
        &settings.placement,
        |slice: Slice, stop| {
            let mut see = |message: &[u8]| {
                if settings.one_way {
                    seen.push(Moment::of(message, Instant::now()));
                }
            };
            let before = cpu_time();
            servers[slice.path_index]
                .serve(slice.payload_bytes, stop, &mut see)
                .map_err(failed(settings.paths[slice.path_index], "answer"))?;
            arrivals.add(&mut seen, cpu_time() - before);
            Ok(())
        },
        // The clients outlive both threads: a stream that is closed early would be an error of the server's.
        |handover| Asking::new(settings, &mut clients, handover, arrivals).run(progress),
    )
}

/// When the messages of a slice arrived, and the answering thread's CPU time: filled by the answering thread at the end
/// of a slice, emptied by the other.
#[derive(Default)]
struct Arrivals(Mutex<(Vec<Moment>, Duration)>);

impl Arrivals {
    fn add(&self, moments: &mut Vec<Moment>, cpu_time: Duration) {
        let mut all = self.all();
        all.0.append(moments);
        all.1 += cpu_time;
    }

    fn take(&self) -> (Vec<Moment>, Duration) {
        std::mem::take(&mut *self.all())
    }

    fn all(&self) -> MutexGuard<'_, (Vec<Moment>, Duration)> {
        // They are whole after every operation on them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a message was sent or arrived.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// As much of the first [`TAG_BYTES`] bytes as the message has.
    tag: [u8; TAG_BYTES],
    at: Instant,
}

impl Moment {
    fn of(message: &[u8], at: Instant) -> Moment {
        let mut tag = [0; TAG_BYTES];
        let length = message.len().min(TAG_BYTES);
        tag[..length].copy_from_slice(&message[..length]);
        Moment { tag, at }
    }
}

/// The times between departures and the arrivals that belong to them. Both are in the order of sending; a departure
/// without an arrival was lost on the way.
fn ways<'a>(
    departures: &'a [Moment],
    arrivals: &'a [Moment],
) -> impl Iterator<Item = Duration> + 'a {
    let mut rest = arrivals;
    departures.iter().filter_map(move |departure| {
        let index = rest
            .iter()
            .position(|arrival| arrival.tag == departure.tag)?;
        let arrival = &rest[index];
        rest = &rest[index + 1..];
        Some(arrival.at.saturating_duration_since(departure.at))
    })
}

/// Path that the answering thread serves.
#[derive(Clone, Copy)]
struct Slice {
    path_index: usize,
    payload_bytes: usize,
}

impl From<ServerGone> for RttError {
    fn from(_: ServerGone) -> RttError {
        RttError::ServerEnded
    }
}

/// The asking thread's state.
struct Asking<'a> {
    settings: &'a Settings,
    clients: &'a mut [Box<dyn End>],
    handover: &'a Handover<Slice>,
    rows: Vec<Row>,
    payload: Vec<u8>,
    sequence: u64,
    departures: Vec<Moment>,
    arrivals: &'a Arrivals,
}

impl<'a> Asking<'a> {
    fn new(
        settings: &'a Settings,
        clients: &'a mut [Box<dyn End>],
        handover: &'a Handover<Slice>,
        arrivals: &'a Arrivals,
    ) -> Asking<'a> {
        let rows = settings.sizes.iter().flat_map(|&payload_bytes| {
            settings.paths.iter().map(move |&path| Row {
                path,
                payload_bytes,
                lost: 0,
                histogram: LatencyHistogram::new(),
                one_way: LatencyHistogram::new(),
                spent: Spent::default(),
                late: Episodes::default(),
            })
        });
        let bytes_max = settings.sizes.iter().copied().max().unwrap_or(0);
        Asking {
            settings,
            clients,
            handover,
            rows: rows.collect(),
            payload: (0..bytes_max).map(|index| index as u8).collect(),
            sequence: 0,
            departures: Vec::new(),
            arrivals,
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Row>, RttError> {
        let Settings {
            count,
            slice,
            warm_up_slices,
            ..
        } = *self.settings;
        let row_count = self.rows.len();
        let warm_up = slice.min(count);
        let total = (count + warm_up * warm_up_slices) * row_count as u64;
        let mut done = 0;
        for round in 0..warm_up_slices + count.div_ceil(slice) {
            let measured = round.checked_sub(warm_up_slices);
            let length = measured.map_or(warm_up, |round| slice.min(count - round * slice));
            for step in 0..row_count {
                let row_index = (step + round as usize) % row_count;
                self.run_slice(row_index, length, measured.is_some())?;
                done += length;
                progress(done, total);
            }
        }
        Ok(self.rows)
    }

    fn run_slice(&mut self, row_index: usize, length: u64, measured: bool) -> Result<(), RttError> {
        let path_index = row_index % self.settings.paths.len();
        let payload_bytes = self.rows[row_index].payload_bytes;
        self.handover.begin(Slice {
            path_index,
            payload_bytes,
        })?;
        let mut lost = 0;
        let mut lost_in_a_row = 0;
        let (began, cpu_time_before) = (Instant::now(), cpu_time());
        let mut due = began;
        for _ in 0..length {
            let tag = payload_bytes.min(TAG_BYTES);
            self.payload[..tag].copy_from_slice(&self.sequence.to_le_bytes()[..tag]);
            self.sequence = self.sequence.wrapping_add(1);
            if !self.settings.gap.is_zero() {
                thread::sleep(self.settings.gap);
            }
            if !self.settings.period.is_zero() {
                // After a stall the loop goes on from now: it does not catch up.
                due = (due + self.settings.period).max(Instant::now());
                self.clients[path_index].sleep_until(due);
            }
            let start = Instant::now();
            let result = self.clients[path_index]
                .round_trip(&self.payload[..payload_bytes], self.settings.time_limit);
            let latency = start.elapsed();
            if self.settings.one_way {
                let sent = Moment::of(&self.payload[..payload_bytes], start);
                self.departures.push(sent);
            }
            let came = result.map_err(failed(self.settings.paths[path_index], "ask"))?;
            if measured {
                let is_late = !came || latency > self.settings.period / 2;
                self.rows[row_index].late.add(is_late);
            }
            if came {
                lost_in_a_row = 0;
                if measured {
                    self.rows[row_index].histogram.record_duration(latency);
                }
            } else {
                lost += 1;
                lost_in_a_row += 1;
                self.consider_giving_up(row_index, lost_in_a_row)?;
            }
        }
        let (elapsed, asking) = (began.elapsed(), cpu_time() - cpu_time_before);
        if lost > 0 {
            // Late replies arrive while the server still serves this size.
            thread::sleep(self.settings.time_limit);
        }
        if measured {
            self.rows[row_index].lost += lost;
        }
        self.handover.end()?;
        let (arrivals, answering) = self.arrivals.take();
        if measured {
            let row = &mut self.rows[row_index];
            ways(&self.departures, &arrivals).for_each(|way| row.one_way.record_duration(way));
            row.spent.elapsed += elapsed;
            row.spent.asking += asking;
            row.spent.answering += answering;
        }
        self.departures.clear();
        interrupt::interrupted().map_or(Ok(()), |signal| Err(RttError::Interrupted(signal)))
    }

    fn consider_giving_up(&self, row_index: usize, lost_in_a_row: u32) -> Result<(), RttError> {
        if self.handover.is_gone() {
            return Err(ServerGone.into());
        }
        if let Some(signal) = interrupt::interrupted() {
            return Err(RttError::Interrupted(signal));
        }
        if lost_in_a_row >= LOST_IN_A_ROW_MAX {
            return Err(RttError::Dead {
                path: self.rows[row_index].path,
                payload_bytes: self.rows[row_index].payload_bytes,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Arrival;

    /// An end without a network. As the asking one it counts, and loses what it is told to; as the answering one it
    /// waits for the end, or fails.
    struct Local {
        lose: fn(u64) -> bool,
        sent: u64,
        fails: bool,
    }

    impl End for Local {
        fn send(&mut self, message: &[u8]) -> io::Result<bool> {
            assert!(!message.is_empty());
            self.sent += 1;
            Ok(!(self.lose)(self.sent))
        }

        fn send_back(&mut self) -> io::Result<bool> {
            unreachable!("nothing comes")
        }

        fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
            thread::yield_now();
            match self.fails {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(None),
            }
        }

        fn message(&self) -> &[u8] {
            &[]
        }

        fn round_trip(&mut self, payload: &[u8], _limit: Duration) -> io::Result<bool> {
            self.send(payload)
        }
    }

    fn settings(count: u64, slice: u64) -> Settings {
        Settings {
            slice,
            time_limit: Duration::ZERO,
            ..Settings::new(vec![Path::UdpPoll, Path::Floor], vec![1, 16], count)
        }
    }

    fn local(lose: fn(u64) -> bool, fails: bool) -> Box<dyn End> {
        Box::new(Local {
            lose,
            sent: 0,
            fails,
        })
    }

    type Steps = Vec<(u64, u64)>;

    fn run_local(
        settings: &Settings,
        lose: fn(u64) -> bool,
        fails: bool,
    ) -> Result<(Vec<Row>, Steps), RttError> {
        let clients = settings.paths.iter().map(|_| local(lose, false));
        let servers = settings.paths.iter().map(|_| local(|_| false, fails));
        let mut steps = Vec::new();
        let mut progress = |done, total| steps.push((done, total));
        let rows = run_on_threads(
            clients.collect(),
            servers.collect(),
            settings,
            &mut progress,
        )?;
        Ok((rows, steps))
    }

    #[test]
    fn every_row_gets_its_count_and_the_warm_up_is_extra() {
        let (rows, steps) = run_local(&settings(25, 10), |_| false, false).unwrap();
        let keys: Vec<_> = rows
            .iter()
            .map(|row| (row.path, row.payload_bytes))
            .collect();
        assert_eq!(
            keys,
            [
                (Path::UdpPoll, 1),
                (Path::Floor, 1),
                (Path::UdpPoll, 16),
                (Path::Floor, 16)
            ]
        );
        assert!(
            rows.iter()
                .all(|row| row.histogram.count() == 25 && row.lost == 0)
        );
        assert_eq!(steps.last(), Some(&(140, 140)));
        assert_eq!(steps.len(), 16);
    }

    #[test]
    fn lost_ones_are_counted_apart() {
        let (rows, _) = run_local(&settings(30, 7), |sent| sent % 5 == 0, false).unwrap();
        assert!(
            rows.iter()
                .all(|row| row.histogram.count() + row.lost == 30)
        );
        assert!(rows.iter().any(|row| row.lost > 0));
    }

    #[test]
    fn ways_are_those_of_messages_that_arrived() {
        let start = Instant::now();
        let moment = |tag: u8, ms| Moment::of(&[tag], start + Duration::from_millis(ms));
        let departures = [moment(1, 0), moment(2, 10), moment(3, 20), moment(4, 30)];
        // The first one was sent in the turn before.
        let arrivals = [moment(9, 1), moment(1, 5), moment(3, 22), moment(4, 33)];
        let found: Vec<_> = ways(&departures, &arrivals).collect();
        assert_eq!(found, [5, 2, 3].map(Duration::from_millis));
        assert_eq!(ways(&departures, &[]).count(), 0);
        assert_eq!(Moment::of(&[7; 20], start).tag, [7; TAG_BYTES]);
    }

    #[test]
    fn a_dead_path_is_given_up() {
        let error = run_local(&settings(1_000, 500), |_| true, false).unwrap_err();
        assert!(
            matches!(
                error,
                RttError::Dead {
                    path: Path::UdpPoll,
                    payload_bytes: 1
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_failing_server_is_reported_with_its_reason() {
        let error = run_local(&settings(10, 5), |_| false, true).unwrap_err();
        assert!(
            matches!(
                error,
                RttError::Path {
                    source: PathError::Io { .. },
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for broken in [
            Settings::new(vec![], vec![1], 1),
            Settings::new(vec![Path::Floor], vec![], 1),
            Settings::new(vec![Path::Floor], vec![0], 1),
            Settings::new(vec![Path::Floor], vec![PAYLOAD_BYTES_MAX + 1], 1),
            Settings::new(vec![Path::Floor], vec![1], 0),
        ] {
            assert!(
                matches!(broken.check(), Err(RttError::Settings(_))),
                "{broken:?}"
            );
        }
        Settings::new(vec![Path::Floor], vec![1, PAYLOAD_BYTES_MAX], 1)
            .check()
            .unwrap();
    }

    #[test]
    fn the_result_file_has_its_keys() {
        let settings = settings(5, 5);
        let (rows, _) = run_local(&settings, |_| false, false).unwrap();
        let outcome = Outcome {
            settings,
            offloads: "none",
            active: vec![(Path::Floor, "bare".to_owned())],
            rows,
        };
        let json = outcome.json(&Machine::default());
        assert_eq!(json["machine"]["cpu_model"], "unknown");
        assert_eq!(json["settings"]["active"]["floor"], "bare");
        let row = json["rows"][1].as_object().unwrap();
        assert_eq!(row["path"], "floor");
        assert_eq!(row["payload_bytes"], 1);
        assert_eq!(row["count"], 5);
        for key in ["min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"] {
            assert!(row[key].is_u64(), "{key}");
        }
        assert!(row["p50_of_udp_poll"].is_f64());
        assert_eq!(row["p50_of_floor"], 1.0);
        assert!(json["rows"][0]["p50_of_floor"].is_f64());
    }
}
