//! SS-RTUDP, figure 9: latency and bandwidth beside a TCP stream that takes more than 80 % of the link.
//!
//! Round trips keep to a timetable, because sides that spin all the time would leave a TCP stream on the same two
//! processors nothing: both sleep until shortly before a round trip is due and spin from there, on all paths alike.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tautline_report::LatencyHistogram;
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::plot::{self, latency_text};
use tautline_report::reference::Reference;
use tautline_report::table::{Cell, in_one_unit};
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::{monotonic_ns, sleep_until};

use super::side_cpus::{SideCpus, joined, settle};
use super::traffic::{self, Interval};
use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, go_on, ratio};
use crate::echo::{self, Ends, Path, PathOptions};
use crate::load::{Load, LoadReport, Pace};
use crate::path::sides::{DEMUX_CABLE, KERNEL_CABLE, Sides};
use crate::path::{End, TAG_BYTES};
use crate::sides::Placement;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "ssrtudp-fig9",
    source: "SS-RTUDP, figure 9",
    title: "round trips beside a TCP stream that takes more than 80 % of the link",
    found: "normal and steady performance beside the stream",
}];

const PATHS: [Path; 4] = [Path::Queuing, Path::UdpPort, Path::UdpPoll, Path::UdpBlock];
const SIZES: [usize; 2] = [4, 1400];
/// From one round trip to the next.
const PERIOD_NS: u64 = 1_000_000;
/// How long before a round trip is due its sides are awake. Lower: a late wake-up adds to what is measured. Higher:
/// less is left to the stream.
const LOOK_AHEAD_NS: u64 = 150_000;
/// How long a round trip may take before it counts as lost.
const TIME_LIMIT: Duration = Duration::from_millis(100);
/// Round trips at the start of a turn that are not counted.
const WARM_UP: u64 = 20;
/// How long the stream has before it is measured, to reach its pace.
const LEAD: Duration = Duration::from_millis(300);
/// The link that the stream is to fill, for want of a rate of the virtual cable's own.
const LINK_GBIT_PER_S: f64 = 1.0;
/// Share of that which the stream is to take, and how much longer p99 may be beside it.
const SHARE_MIN: f64 = 0.8;
const P99_OF_ALONE_MAX: f64 = 2.0;

/// One path and size, alone or beside the stream.
struct Row {
    path: Path,
    bytes: usize,
    beside: bool,
    lost: u64,
    histogram: LatencyHistogram,
}

impl Row {
    /// Whether this is measured beside a stream on that cable, or without a stream.
    fn is_due(&self, stream: Option<usize>) -> bool {
        let own = self.beside.then(|| echo::cable_of(self.path, &PATHS));
        own == stream
    }
}

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let rounds: u64 = request.scale.pick(20, 4, 1);
    let count: u64 = request.scale.pick(1_000, 400, 20);
    let place = SideCpus::choose()?;
    let hosts = Hosts::create(&echo::hosts_for(&PATHS))?;
    let options = PathOptions {
        payload_bytes_max: SIZES[1],
        time_limit: TIME_LIMIT,
        placement: Placement::default(),
    };
    let mut ends = echo::open_paths(&PATHS, &hosts, &options).map_err(|(_, error)| error)?;
    let mut rows = empty_rows();
    let total = rounds * rows.len() as u64;
    let mut done = 0;
    let mut streams: Vec<Stream> = Vec::new();
    for _ in 0..rounds {
        for stream in [None, Some(DEMUX_CABLE), Some(KERNEL_CABLE)] {
            let turn = rows.iter_mut().filter(|row| row.is_due(stream));
            let measure = || -> Result<(), ExperimentError> {
                for row in turn {
                    let index = PATHS.iter().position(|path| *path == row.path);
                    one_turn(&mut ends[index.unwrap_or(0)], row, count, place)?;
                    done += 1;
                    progress(done, total);
                    go_on()?;
                }
                Ok(())
            };
            match stream {
                Some(cable) => streams.push(beside_stream(&hosts, cable, measure)?),
                None => measure()?,
            }
        }
    }
    let mut outcome = Outcome::of(&FIGURES[0]);
    outcome.set("round_trips_of_each", rounds * count);
    outcome.set("period_ns", PERIOD_NS);
    outcome.set("awake_before_due_ns", LOOK_AHEAD_NS);
    outcome.set("client_cpu", place.receiver_cpu);
    outcome.set("server_cpu", place.sender_cpu);
    outcome.set("scheduling", place.scheduling());
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set("link", "veth between two network namespaces");
    outcome.set("offloads", hosts.offloads().text());
    let active = PATHS.iter().zip(&ends);
    outcome.active = active
        .map(|(path, ends)| (path.name().to_owned(), ends.description.clone()))
        .collect();
    tell(&mut outcome, &rows);
    tell_of_streams(&mut outcome, &streams);
    judge(&mut outcome, &rows);
    Ok(vec![outcome])
}

/// Every path and size, alone and beside the stream.
fn empty_rows() -> Vec<Row> {
    [false, true]
        .into_iter()
        .flat_map(|beside| SIZES.map(|bytes| (beside, bytes)))
        .flat_map(|(beside, bytes)| PATHS.map(|path| (beside, bytes, path)))
        .map(|(beside, bytes, path)| Row {
            path,
            bytes,
            beside,
            lost: 0,
            histogram: LatencyHistogram::new(),
        })
        .collect()
}

/// Work of a TCP stream while something was measured beside it.
struct Stream {
    load: LoadReport,
    rates: Vec<Interval>,
}

/// Measures beside a stream on a cable, and the stream too.
fn beside_stream(
    hosts: &Hosts,
    cable: usize,
    measure: impl FnOnce() -> Result<(), ExperimentError>,
) -> Result<Stream, ExperimentError> {
    let load = Load::start(Sides::Hosts(hosts, cable), Pace::Gigabit)?;
    thread::sleep(LEAD);
    let stop = &AtomicBool::new(false);
    let rates = thread::scope(|scope| {
        let trace = scope.spawn(move || traffic::trace(hosts, Host::A, cable, stop));
        let measured = measure();
        // Relaxed: the flag carries nothing else.
        stop.store(true, Ordering::Relaxed);
        let rates = joined(trace.join());
        measured.and(rates)
    })?;
    Ok(Stream {
        load: load.stop()?,
        rates,
    })
}

/// Round trips of one path and size, on a timetable.
fn one_turn(
    ends: &mut Ends,
    row: &mut Row,
    count: u64,
    place: SideCpus,
) -> Result<(), ExperimentError> {
    let first_ns = monotonic_ns() + 20_000_000;
    let last = WARM_UP + count;
    let bytes = row.bytes;
    let (quit, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let served = &AtomicU64::new(0);
    let (client, server) = (&mut ends.asking, &mut ends.answering);
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let result = settle(place.sender_cpu, place.fifo)
                .and_then(|()| serve(server.as_mut(), bytes, first_ns, quit, stop));
            served.store(1, Ordering::Release);
            result
        });
        let asking = scope.spawn(move || {
            settle(place.receiver_cpu, place.fifo)?;
            ask(client.as_mut(), row, first_ns, last)
        });
        let asked = joined(asking.join());
        // The server clears its own flag before each message: until it has seen that it is to end.
        quit.store(true, Ordering::Relaxed);
        while served.load(Ordering::Acquire) == 0 {
            stop.store(true, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
        joined(serving.join())?;
        asked
    })
}

fn serve(
    server: &mut dyn End,
    bytes: usize,
    first_ns: u64,
    quit: &AtomicBool,
    stop: &AtomicBool,
) -> Result<(), ExperimentError> {
    let mut due_ns = first_ns;
    while !quit.load(Ordering::Relaxed) {
        sleep_until(due_ns - LOOK_AHEAD_NS);
        stop.store(false, Ordering::Relaxed);
        // Ends after one message; a lost one is waited for in vain until the next comes.
        server
            .serve(bytes, stop, &mut |_| stop.store(true, Ordering::Relaxed))
            .map_err(ExperimentError::io("answer"))?;
        let now_ns = monotonic_ns();
        while due_ns < now_ns + LOOK_AHEAD_NS {
            due_ns += PERIOD_NS;
        }
    }
    Ok(())
}

fn ask(
    client: &mut dyn End,
    row: &mut Row,
    first_ns: u64,
    last: u64,
) -> Result<(), ExperimentError> {
    let mut message = vec![0x5a; row.bytes];
    let tag = row.bytes.min(TAG_BYTES);
    let mut due_ns = first_ns;
    for number in 0..last {
        sleep_until(due_ns - LOOK_AHEAD_NS);
        while monotonic_ns() < due_ns {
            std::hint::spin_loop();
        }
        message[..tag].copy_from_slice(&(first_ns + number).to_le_bytes()[..tag]);
        let start_ns = monotonic_ns();
        let result = client.round_trip(&message, TIME_LIMIT);
        let end_ns = monotonic_ns();
        match result.map_err(ExperimentError::io("ask"))? {
            true if number >= WARM_UP => row.histogram.record(end_ns - start_ns),
            true => {}
            false => row.lost += 1,
        }
        while due_ns < end_ns + LOOK_AHEAD_NS {
            due_ns += PERIOD_NS;
        }
    }
    Ok(())
}

fn tell(outcome: &mut Outcome, rows: &[Row]) {
    let name = |row: &Row| if row.beside { "beside TCP" } else { "alone" };
    outcome.rows = rows
        .iter()
        .map(|row| {
            let summary = row.histogram.summary();
            let mut json: Value = serde_json::to_value(summary).expect("a summary is plain data");
            json["path"] = row.path.name().into();
            json["payload_bytes"] = row.bytes.into();
            json["beside_tcp"] = row.beside.into();
            json["lost"] = row.lost.into();
            json
        })
        .collect();
    let cells = rows.iter().map(|row| {
        let s = row.histogram.summary();
        let mut cells: Vec<Cell> = vec![
            row.path.to_string().into(),
            row.bytes.to_string().into(),
            name(row).into(),
        ];
        cells.extend([s.p50_ns, s.p99_ns, s.p999_ns, s.max_ns, s.min_ns].map(Cell::Time));
        cells.push(row.lost.to_string().into());
        cells
    });
    outcome.table = in_one_unit(
        &[
            "path", "bytes", "", "p50", "p99", "p99.9", "max", "min", "lost",
        ],
        &cells.collect::<Vec<_>>(),
    );
    for bytes in SIZES {
        let chosen = rows.iter().filter(|row| row.bytes == bytes);
        let named: Vec<_> = chosen
            .map(|row| (format!("{} {}", row.path, name(row)), row))
            .collect();
        let series: Vec<_> = named
            .iter()
            .map(|(name, row)| plot::Series {
                name,
                histogram: &row.histogram,
            })
            .collect();
        let caption = format!("How often a round trip of {bytes} bytes took longer");
        outcome
            .plots
            .push(plot::tails(&caption, &series, &[]).into());
    }
}

/// Throughput of the TCP streams: as a plot over time, as settings, as a check.
fn tell_of_streams(outcome: &mut Outcome, streams: &[Stream]) {
    let means: Vec<f64> = streams.iter().map(|one| one.load.gbit_per_s).collect();
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    outcome.set("tcp_gbit_per_s", json!(means));
    let tool = streams.first().map_or("none", |one| one.load.tool.text());
    outcome.set("tcp", format!("{tool}, {}", Pace::Gigabit.text()));
    // One stream after the other, the time between them left out.
    let mut points = Vec::new();
    let mut at_ns = 0.0;
    for interval in streams.iter().flat_map(|one| &one.rates) {
        at_ns += interval.length.as_nanos() as f64;
        points.push((at_ns, interval.bits_per_s));
    }
    let over = |share: f64| {
        let above = points
            .iter()
            .filter(|(_, rate)| *rate > share * LINK_GBIT_PER_S * 1e9);
        format!("{} of {}", above.count(), points.len())
    };
    let over_share = over(SHARE_MIN);
    outcome.set(
        "link_bits_per_s_over_time",
        json!(
            points
                .iter()
                .map(|(_, rate)| rate.round())
                .collect::<Vec<_>>()
        ),
    );
    let chart = Chart {
        caption: "Traffic of host A beside the round trips, one turn after the other".to_owned(),
        across: Axis::linear("time", Unit::Time),
        up: Axis::linear("bit/s on the link", Unit::BitRate),
        lines: vec![Line::new("TCP stream, with headers", Mark::Line, points)],
        references: vec![Reference::paper(
            "the paper: more than 80 % of the link",
            SHARE_MIN * LINK_GBIT_PER_S * 1e9,
        )],
    };
    outcome.plots.push((&chart).into());
    outcome.checks.push(Check {
        target: format!(
            "the TCP stream takes more than {:.0} % of a gigabit link",
            SHARE_MIN * 100.0
        ),
        found: format!(
            "at least {:.0} % over every turn, and in {over_share} intervals",
            least / LINK_GBIT_PER_S * 100.0
        ),
        met: least / LINK_GBIT_PER_S > SHARE_MIN,
    });
}

fn judge(outcome: &mut Outcome, rows: &[Row]) {
    let mut parts = Vec::new();
    for bytes in SIZES {
        for path in PATHS {
            let of = |beside| {
                let mut all = rows.iter();
                all.find(|row| (row.path, row.bytes, row.beside) == (path, bytes, beside))
                    .map_or(0, |row| row.histogram.summary().p99_ns)
            };
            let found = ratio(of(true), of(false)).unwrap_or(f64::INFINITY);
            parts.push(format!(
                "{path} p99 at {bytes} bytes {} alone, {} beside TCP ({found:.2})",
                latency_text(of(false)),
                latency_text(of(true))
            ));
            if matches!(path, Path::Queuing | Path::UdpPort) {
                outcome.checks.push(Check {
                    target: format!(
                        "{path}: p99 at {bytes} bytes beside TCP at most {P99_OF_ALONE_MAX:.1} of that alone"
                    ),
                    found: format!("{found:.2}"),
                    met: found <= P99_OF_ALONE_MAX,
                });
            }
        }
    }
    outcome.here = parts.join(", ");
    let lost: u64 = rows.iter().map(|row| row.lost).sum();
    let sent: u64 = rows
        .iter()
        .map(|row| row.lost + row.histogram.count())
        .sum();
    outcome.remarks.push(format!(
        "{lost} of {sent} round trips were lost, over all paths, and none was sent again."
    ));
    outcome.remarks.push(
        "A virtual cable has no rate of its own: the stream is paced to what fills gigabit Ethernet, and what all paths share with it is \
         the two processors and the cable's queue."
            .to_owned(),
    );
}
