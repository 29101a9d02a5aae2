//! Drawings and smaller tables of the page.

use tautline_flight::vector::Vector;
use tautline_report::page::Table;
use tautline_report::space::{Path, Point, Space};
use tautline_report::strips::{Span, Strip, Strips};

use crate::course::WAYPOINTS;
use crate::record::{Fault, FlightRecord, Loop, Phase};
use crate::report::missed_under_load;

/// Error of the attitude at the top of the strips, degrees.
const TILT_SHOWN: f64 = 30.0;

pub(crate) fn strips(records: &[FlightRecord]) -> Strips {
    let strip = |record: &FlightRecord| {
        let world = &record.world;
        let flying = world.samples.iter().filter(|sample| sample.is_flying);
        let span = |phase: &Phase| Span {
            name: phase.name.clone(),
            from: phase.from,
            until: phase.until,
            is_bad: phase.is_fault,
        };
        let event = |fault: &Fault| Span {
            name: fault.name.clone(),
            from: fault.from,
            until: fault.until,
            is_bad: true,
        };
        let word = |at: f64, word: &str| Some((at, word.to_owned()));
        Strip {
            name: record.variant.text().to_owned(),
            points: flying
                .map(|sample| (sample.at, sample.tilt_error))
                .collect(),
            spans: record.phases.iter().map(span).collect(),
            events: record.faults.iter().map(event).collect(),
            marks: missed_at(record).collect(),
            end: match (world.crash, world.landed_at) {
                (Some((at, ..)), _) => word(at, "crashed"),
                (None, Some(at)) => word(at, "landed"),
                (None, None) => None,
            },
        }
    };
    Strips {
        caption: "Angle between the craft's upward axis and its target; missed deadlines are ticks at the top".to_owned(),
        label: format!("degrees, cut off at {TILT_SHOWN}"),
        value_max: TILT_SHOWN,
        strips: records.iter().map(strip).collect(),
    }
}

/// Moments of missed deadlines in flight, seconds from the world's start.
fn missed_at(record: &FlightRecord) -> impl Iterator<Item = f64> {
    let end = record
        .world
        .crash
        .map(|(at, ..)| at)
        .or(record.world.landed_at)
        .unwrap_or(f64::MAX);
    let start = record.world.start_ns;
    let all = record.loops.iter().flat_map(|one| &one.missed_at_ns);
    all.filter(move |at| **at >= start)
        .map(move |at| (at - start) as f64 * 1e-9)
        .filter(move |at| *at < end)
}

fn point(vector: Vector) -> Point {
    [vector.x, vector.y, vector.z]
}

pub(crate) fn space(records: &[FlightRecord]) -> Space {
    let path = |record: &FlightRecord| {
        let samples = &record.world.samples;
        let place = |at: f64| {
            let index = samples.partition_point(|sample| sample.at < at);
            samples.get(index).map(|sample| point(sample.position))
        };
        Path {
            name: record.variant.text().to_owned(),
            points: samples
                .iter()
                .map(|sample| point(sample.position))
                .collect(),
            marks: missed_at(record).filter_map(place).collect(),
            crash: record
                .world
                .crash
                .and_then(|_| samples.last().map(|sample| point(sample.position))),
        }
    };
    Space {
        caption:
            "Paths of the flights; small circles are missed deadlines, large ones are way-points"
                .to_owned(),
        places: WAYPOINTS.iter().map(|place| point(*place)).collect(),
        paths: records.iter().map(path).collect(),
    }
}

pub(crate) fn loops(record: &FlightRecord) -> Table {
    let mut table = Table::new([
        "loop",
        "releases",
        "missed",
        "missed under load",
        "worst response",
    ]);
    table.caption(record.variant.text());
    let under_load = missed_under_load(record);
    for (which, one) in Loop::ALL.iter().zip(&record.loops) {
        let (missed, releases) = under_load[*which as usize];
        table.row([
            format!("{}, {} Hz", which.name(), 1_000_000_000 / which.period_ns()),
            one.releases.to_string(),
            one.missed.to_string(),
            format!("{missed} of {releases}"),
            format!("{:.2} ms", one.worst_ns as f64 / 1e6),
        ]);
    }
    table
}

pub(crate) fn faults(records: &[FlightRecord]) -> Table {
    let mut table = Table::new(["fault", "flight", "from", "course"]);
    table.prose();
    for record in records {
        for fault in &record.faults {
            table.row([
                fault.name.clone(),
                record.variant.text().to_owned(),
                format!("{:.1} s", fault.from),
                fault.outcome.clone(),
            ]);
        }
    }
    table
}

/// The remote control's way over a network, under load and before the first fault.
pub(crate) fn remotes(records: &[FlightRecord]) -> Table {
    let mut table = Table::new([
        "flight",
        "link",
        "smoother",
        "frames",
        "lost",
        "late",
        "oldest",
        "TCP beside them",
    ]);
    for record in records {
        let Some(remote) = &record.remote else {
            continue;
        };
        let counts = remote.counts(record.load_at(), record.fault_at());
        table.row([
            record.variant.text().to_owned(),
            remote.link.clone(),
            if remote.is_smoothed {
                "on"
            } else {
                NOT_APPLICABLE
            }
            .to_owned(),
            counts.sent.to_string(),
            counts.lost.to_string(),
            counts.late.to_string(),
            format!("{:.1} ms", counts.age_ns_max as f64 / 1e6),
            format!("{} MiB", remote.stream_bytes >> 20),
        ]);
    }
    table
}

/// The soft half in numbers.
pub(crate) fn soft(records: &[FlightRecord]) -> Table {
    let mut table = Table::new([
        "flight",
        "pictures seen",
        "missed",
        "with a door",
        "processes started again",
        "messages recorded",
    ]);
    for record in records {
        let soft = &record.soft;
        let recorded = match soft.recordings.is_empty() {
            true => "-".to_owned(),
            false => format!("{} in {} files", soft.recorded, soft.recordings.len()),
        };
        table.row([
            record.variant.text().to_owned(),
            soft.pictures.to_string(),
            soft.pictures_missed.to_string(),
            soft.doors.to_string(),
            soft.restarts.len().to_string(),
            recorded,
        ]);
    }
    table
}

/// Cell of a column that a row has nothing for.
const NOT_APPLICABLE: &str = "-";

pub(crate) fn phases(records: &[FlightRecord]) -> Table {
    let mut table = Table::new(["flight", "beside it", "from", "until", "done"]);
    table.prose();
    for record in records {
        for phase in &record.phases {
            let done = if phase.name == "combined load" {
                record.achieved.join("; ")
            } else {
                NOT_APPLICABLE.to_owned()
            };
            table.row([
                record.variant.text().to_owned(),
                phase.name.clone(),
                format!("{:.2} s", phase.from),
                format!("{:.2} s", phase.until),
                done,
            ]);
        }
        let world = &record.world;
        table.row([
            record.variant.text().to_owned(),
            format!("the world, by {}", world.policy),
            NOT_APPLICABLE.to_owned(),
            NOT_APPLICABLE.to_owned(),
            format!(
                "{} of {} steps over 1 ms late, the latest {:.2} ms",
                world.steps_late,
                world.steps,
                world.late_ns_max as f64 / 1e6
            ),
        ]);
    }
    table
}
