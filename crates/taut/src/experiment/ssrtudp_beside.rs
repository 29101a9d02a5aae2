//! SS-RTUDP, figure 9: latency and bandwidth beside a TCP stream that takes more than 80 % of the link.
//!
//! Round trips keep to a timetable, because sides that spin all the time would leave a TCP stream on the same two
//! processors nothing: both sleep until shortly before a round trip is due and spin from there, on all paths alike.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tautline_lab::LatencyHistogram;
use tautline_lab::hosts::{Hosts, HostsOptions};
use tautline_lab::plot::{self, latency_text};
use tautline_lab::sys::{monotonic_ns, sleep_until};

use super::place::{Place, joined, settle};
use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, go_on, ratio};
use crate::echo::{self, Echo, EchoError, Ends, Path, PathOptions, RoundTrip, TAG_BYTES};
use crate::load::{Load, LoadReport, Pace, Place as LoadPlace};

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

const PATHS: [Path; 2] = [Path::Queuing, Path::UdpPoll];
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
/// The link that the stream is to fill, for want of a rate of the virtual cable's own.
const LINK_GBIT_PER_S: f64 = 1.0;
/// What it is to take of that, and how much longer p99 may be beside it.
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

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let rounds: u64 = request.scale.pick(20, 5, 1);
    let count: u64 = request.scale.pick(1_000, 500, 20);
    let place = Place::find()?;
    let hosts = Hosts::create(&HostsOptions::default())?;
    let options = PathOptions {
        payload_bytes_max: SIZES[1],
        time_limit: TIME_LIMIT,
    };
    let mut ends = echo::open_paths(&PATHS, &hosts, &options).map_err(|(_, error)| error)?;
    let mut rows: Vec<Row> = [false, true]
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
        .collect();
    let total = rounds * rows.len() as u64;
    let mut loads: Vec<LoadReport> = Vec::new();
    for round in 0..rounds {
        for beside in [false, true] {
            let load = beside
                .then(|| Load::start(&LoadPlace::between(&hosts, 0), Pace::Gigabit))
                .transpose()?;
            if beside {
                // Until the stream has its pace.
                thread::sleep(Duration::from_millis(300));
            }
            let turn = rows.iter_mut().filter(|row| row.beside == beside);
            for (step, row) in turn.enumerate() {
                let index = PATHS.iter().position(|path| *path == row.path);
                one_turn(&mut ends[index.unwrap_or(0)], row, count, place)?;
                let done = round * 8 + u64::from(beside) * 4 + step as u64;
                progress(done, total);
                go_on()?;
            }
            if let Some(load) = load {
                loads.push(load.stop()?);
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
        .map(|(path, (client, _))| (path.name().to_owned(), client.describe()))
        .collect();
    tell(&mut outcome, &rows, &loads);
    Ok(vec![outcome])
}

/// Round trips of one path and size, on a timetable.
fn one_turn(
    (client, server): &mut Ends,
    row: &mut Row,
    count: u64,
    place: Place,
) -> Result<(), ExperimentError> {
    let first_ns = monotonic_ns() + 20_000_000;
    let last = WARM_UP + count;
    let bytes = row.bytes;
    let (quit, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let served = &AtomicU64::new(0);
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let result = settle(place.sender_cpu, place.fifo)
                .and_then(|()| Ok(serve(server.as_mut(), bytes, first_ns, quit, stop)?));
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
    server: &mut dyn Echo,
    bytes: usize,
    first_ns: u64,
    quit: &AtomicBool,
    stop: &AtomicBool,
) -> Result<(), EchoError> {
    let mut due_ns = first_ns;
    while !quit.load(Ordering::Relaxed) {
        sleep_until(due_ns - LOOK_AHEAD_NS);
        stop.store(false, Ordering::Relaxed);
        // Ends after one message; a lost one is waited for in vain until the next comes.
        server.serve(bytes, stop, &mut |_| stop.store(true, Ordering::Relaxed))?;
        let now_ns = monotonic_ns();
        while due_ns < now_ns + LOOK_AHEAD_NS {
            due_ns += PERIOD_NS;
        }
    }
    Ok(())
}

fn ask(
    client: &mut dyn RoundTrip,
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
        let result = client.round_trip(&message);
        let end_ns = monotonic_ns();
        match result {
            Ok(()) if number >= WARM_UP => row.histogram.record(end_ns - start_ns),
            Ok(()) => {}
            Err(EchoError::TimedOut) => row.lost += 1,
            Err(error) => return Err(error.into()),
        }
        while due_ns < end_ns + LOOK_AHEAD_NS {
            due_ns += PERIOD_NS;
        }
    }
    Ok(())
}

fn tell(outcome: &mut Outcome, rows: &[Row], loads: &[LoadReport]) {
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
        let mut cells = vec![
            row.path.to_string(),
            row.bytes.to_string(),
            name(row).to_owned(),
        ];
        cells.extend([s.min_ns, s.p50_ns, s.p99_ns, s.p999_ns, s.max_ns].map(latency_text));
        cells.push(row.lost.to_string());
        cells
    });
    outcome.table = (
        vec![
            "path", "bytes", "", "best", "p50", "p99", "p99.9", "worst", "lost",
        ],
        cells.collect(),
    );
    let named: Vec<_> = rows
        .iter()
        .map(|row| (format!("{} {} B {}", row.path, row.bytes, name(row)), row))
        .collect();
    let series: Vec<_> = named
        .iter()
        .map(|(name, row)| plot::Series {
            name,
            histogram: &row.histogram,
        })
        .collect();
    outcome.plots = vec![plot::tails("How often a round trip took longer", &series).into()];
    let rates = loads.iter().map(|load| load.gbit_per_s);
    let least = rates.fold(f64::INFINITY, f64::min);
    outcome.set(
        "tcp_gbit_per_s",
        json!(loads.iter().map(|load| load.gbit_per_s).collect::<Vec<_>>()),
    );
    outcome.set(
        "tcp",
        format!(
            "{}, {}",
            loads.first().map_or("none", |load| load.tool.text()),
            Pace::Gigabit.text()
        ),
    );
    outcome.checks.push(Check {
        target: format!(
            "the TCP stream takes more than {:.0} % of a gigabit link",
            SHARE_MIN * 100.0
        ),
        found: format!(
            "at least {:.0} % in every turn",
            least / LINK_GBIT_PER_S * 100.0
        ),
        met: least / LINK_GBIT_PER_S > SHARE_MIN,
    });
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
            if path != Path::UdpPoll {
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
    outcome.remarks.push(
        "A virtual cable has no rate of its own: the stream is paced to what fills gigabit Ethernet, and what both paths share with it is \
         the two processors and the cable's queue."
            .to_owned(),
    );
}
