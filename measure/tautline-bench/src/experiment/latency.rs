//! RTDiP, figure 7: one-way latency by message size, as half a round trip and against the clock that both sides
//! share. The measurement is that of `taut bench rtt`.

use serde_json::{Value, json};
use tautline_report::LatencyHistogram;
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::table::{Cell, in_one_unit};
use tautline_testbed::child;
use tautline_testbed::hosts::Hosts;

use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request};
use crate::echo::{self, Path};
use crate::rtt::{self, Row, RttError, Settings};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "rtdip-fig7",
    source: "RTDiP, figure 7",
    title: "one-way latency by message size, 1 to 1,450 bytes",
    found: "RTDiP send/recv up to 79 % below TCP/IP",
}];

const PATHS: [Path; 4] = [Path::Sampling, Path::Queuing, Path::TcpPoll, Path::TcpBlock];

/// The paper's greatest gain over TCP/IP.
const PAPER_GAIN: f64 = 0.79;

/// Limit of our paths as a share of each of TCP's ways of waiting, at every size.
const TARGETS: [(Path, &str, f64); 2] = [
    (Path::TcpBlock, "TCP blocking", 0.79),
    (Path::TcpPoll, "TCP busy-polled", 0.50),
];

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let sizes: &[usize] = request.scale.pick(
        &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1200, 1450],
        &[1, 4, 16, 64, 128, 256, 512, 768, 1024, 1450],
        &[1, 1450],
    );
    let mut settings = Settings {
        slice: request.scale.pick(500, 250, 20),
        one_way: true,
        ..Settings::new(
            PATHS.to_vec(),
            sizes.to_vec(),
            request.scale.pick(20_000, 3_000, 40),
        )
    };
    let remark = settings
        .placement
        .choose_cpus(&child::allowed_cpus().unwrap_or_default());
    let hosts = Hosts::create(&echo::hosts_for(&PATHS))?;
    let measured = rtt::run(&hosts, &settings, progress).map_err(|error| match error {
        RttError::Interrupted(signal) => ExperimentError::Interrupted(signal),
        other => other.into(),
    })?;
    let mut outcome = Outcome::of(&FIGURES[0]);
    outcome.remarks.extend(remark);
    outcome.remarks.push(
        "No demux is attached to TCP's cable. A thread that spins would need all of its \
         CPU under SCHED_FIFO: all four paths run under the ordinary policy."
            .to_owned(),
    );
    outcome.set("round_trips_of_each_path_and_size", settings.count);
    outcome.set("slice", settings.slice);
    outcome.set("client_cpu", json!(settings.placement.client_cpu));
    outcome.set("server_cpu", json!(settings.placement.server_cpu));
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set("link", "veth between two network namespaces");
    outcome.set("offloads", measured.offloads);
    outcome.active = measured
        .active
        .iter()
        .map(|(path, text)| (path.name().to_owned(), text.clone()))
        .collect();
    outcome.rows = measured.rows.iter().map(row_json).collect();
    outcome.table = table(&measured.rows);
    outcome.plots = vec![
        (&chart("Half a round trip", &measured.rows, |row| {
            (&row.histogram, 2.0)
        }))
            .into(),
        (&chart("One way by the shared clock", &measured.rows, |row| {
            (&row.one_way, 1.0)
        }))
            .into(),
    ];
    judge(&mut outcome, &measured.rows, sizes);
    Ok(vec![outcome])
}

/// Half of the median round trip.
fn half(row: &Row) -> f64 {
    row.histogram.summary().p50_ns as f64 / 2.0
}

fn row_json(row: &Row) -> Value {
    let mut json = serde_json::to_value(row.histogram.summary()).expect("a summary is plain data");
    json["path"] = row.path.name().into();
    json["payload_bytes"] = row.payload_bytes.into();
    json["lost"] = row.lost.into();
    json["half_round_trip_p50_ns"] = half(row).into();
    json["one_way"] = serde_json::to_value(row.one_way.summary()).expect("a summary is plain data");
    json
}

fn table(rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>) {
    let header = [
        "path",
        "bytes",
        "half a round trip: p50",
        "p99",
        "one way: p50",
        "p99",
        "p99.9",
        "lost",
    ];
    let at = |histogram: &LatencyHistogram, quantile, parts| {
        Cell::Time(histogram.at_quantile(quantile).unwrap_or_default() / parts)
    };
    let cells = rows.iter().map(|row| {
        vec![
            row.path.to_string().into(),
            row.payload_bytes.to_string().into(),
            at(&row.histogram, 0.5, 2),
            at(&row.histogram, 0.99, 2),
            at(&row.one_way, 0.5, 1),
            at(&row.one_way, 0.99, 1),
            at(&row.one_way, 0.999, 1),
            row.lost.to_string().into(),
        ]
    });
    in_one_unit(&header, &cells.collect::<Vec<_>>())
}

/// Percentiles of a chart, each a group of lines.
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// Percentiles by size: of each row a histogram, and the ways that its times consist of.
fn chart<'r>(
    caption: &str,
    rows: &'r [Row],
    times: impl Fn(&'r Row) -> (&'r LatencyHistogram, f64),
) -> Chart {
    let value = |row: &'r Row, quantile: f64| {
        let (histogram, ways) = times(row);
        histogram.at_quantile(quantile).unwrap_or_default() as f64 / ways
    };
    let line = |path: &Path, (name, quantile): (&'static str, f64)| {
        let points = rows
            .iter()
            .filter(|row| row.path == *path)
            .map(|row| (row.payload_bytes as f64, value(row, quantile)));
        Line::new(path.name(), Mark::Dots, points.collect()).in_group(name)
    };
    let all = PERCENTILES.into_iter();
    let mut lines: Vec<Line> = all
        .flat_map(|percentile| PATHS.iter().map(move |path| line(path, percentile)))
        .collect();
    // The paper names a ratio to TCP/IP, whose calls block.
    let best = rows.iter().filter(|row| row.path == Path::TcpBlock);
    let best = best.map(|row| {
        (
            row.payload_bytes as f64,
            value(row, 0.5) * (1.0 - PAPER_GAIN),
        )
    });
    lines.push(Line::new(
        "the paper's greatest gain: 79 % below TCP blocking",
        Mark::Line,
        best.collect(),
    ));
    Chart {
        caption: format!("{caption}, by percentile"),
        across: Axis::logarithmic("message", Unit::Bytes),
        up: Axis::logarithmic("one way", Unit::Time),
        lines,
        references: Vec::new(),
    }
}

fn judge(outcome: &mut Outcome, rows: &[Row], sizes: &[usize]) {
    let median = |path: Path, bytes: usize| {
        rows.iter()
            .find(|row| row.path == path && row.payload_bytes == bytes)
            .map_or(0.0, half)
    };
    let mut parts = Vec::new();
    for ours in [Path::Queuing, Path::Sampling] {
        for (theirs, name, target) in TARGETS {
            let gains = sizes.iter().map(|bytes| {
                let (ours, theirs) = (median(ours, *bytes), median(theirs, *bytes));
                if theirs > 0.0 {
                    1.0 - ours / theirs
                } else {
                    0.0
                }
            });
            let (least, most) = gains.fold((f64::INFINITY, 0.0f64), |(least, most), gain| {
                (least.min(gain), most.max(gain))
            });
            let found = format!("{:.0} to {:.0} %", least * 100.0, most * 100.0);
            parts.push(format!("{ours} {found} below {name}"));
            outcome.checks.push(Check {
                target: format!(
                    "{ours}: at least {:.0} % below {name} at every size, medians",
                    target * 100.0
                ),
                found,
                met: least >= target,
            });
        }
    }
    outcome.here = parts.join(", ");
}
