//! rtl_redd_udp, figures 2 and 3: round trip best, average and worst by size, raw frames against UDP. The measurement
//! is that of `taut bench rtt`.

use serde_json::{Value, json};
use tautline_report::Summary;
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::plot::latency_text;
use tautline_report::table::{Cell, in_one_unit};

use super::round_trips::{self, Measured, of_kernel_udp};
use super::{Experiment, ExperimentError, Figure, Outcome, Parameter, Progress, Request};
use crate::echo::Path;
use crate::rtt::Row;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &PARAMETERS,
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "redd-fig2-fig3",
    source: "rtl_redd_udp, figures 2 and 3",
    title: "round trip best, average and worst by size, raw frames against UDP",
    found: "raw and UDP have the same worst case (50 µs at 50 bytes to 200 µs at 1,500), UDP's best and average are a little above",
}];

/// The paper's MIN_SIZE, MAX_SIZE, STEP_SIZE and NUM_MEASUREMENTS.
const PARAMETERS: [Parameter; 4] = [
    Parameter {
        name: "smallest",
        meaning: "smallest message in bytes",
        range: (1, UDP_BYTES_MAX),
    },
    Parameter {
        name: "largest",
        meaning: "largest message in bytes",
        range: (1, UDP_BYTES_MAX),
    },
    Parameter {
        name: "step",
        meaning: "from one size to the next in bytes",
        range: (1, UDP_BYTES_MAX),
    },
    Parameter {
        name: "count",
        meaning: "round trips of each path and size",
        range: (1, 10_000_000),
    },
];

/// A datagram that fills an Ethernet frame.
const UDP_BYTES_MAX: u64 = 1472;
const PATHS: [Path; 4] = [Path::Queuing, Path::UdpPort, Path::UdpPoll, Path::UdpBlock];

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let scale = request.scale;
    let values = &request.values;
    let (smallest, largest) = (
        values.or("smallest", 50),
        values.or("largest", UDP_BYTES_MAX),
    );
    let step = values.or("step", scale.pick(50, 200, 1000));
    if smallest > largest {
        return Err(ExperimentError::Settings(format!(
            "the smallest size, {smallest}, is above the largest, {largest}"
        )));
    }
    let sizes = sizes(smallest, largest, step);
    let count = values.or("count", scale.pick(10_000, 5_000, 40));
    let measured = round_trips::measure(&PATHS, &sizes, count, progress)?;
    let mut outcome = Outcome::of(&FIGURES[0]);
    for (name, value) in [("smallest", smallest), ("largest", largest), ("step", step)] {
        outcome.set(&format!("{name}_bytes"), value);
    }
    measured.note(&mut outcome);
    outcome.rows = measured.rows.iter().map(row_json).collect();
    outcome.table = table(&measured.rows);
    outcome.plots = PATHS
        .map(|path| (&chart(path, &measured.rows)).into())
        .into();
    judge(&mut outcome, &measured, &sizes);
    Ok(vec![outcome])
}

/// From the smallest to the largest, which is among them even where the steps miss it.
fn sizes(smallest: u64, largest: u64, step: u64) -> Vec<usize> {
    let mut sizes: Vec<usize> = (smallest..=largest)
        .step_by(step as usize)
        .map(|bytes| bytes as usize)
        .collect();
    if sizes.last() != Some(&(largest as usize)) {
        sizes.push(largest as usize);
    }
    sizes
}

fn row_json(row: &Row) -> Value {
    let mut json = serde_json::to_value(row.histogram.summary()).expect("a summary is plain data");
    json["path"] = row.path.name().into();
    json["payload_bytes"] = row.payload_bytes.into();
    json["lost"] = row.lost.into();
    json
}

fn table(rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>) {
    let header = [
        "path", "bytes", "p50", "p99", "p99.9", "max", "min", "mean", "lost",
    ];
    let cells = rows.iter().map(|row| {
        let summary = row.histogram.summary();
        let mut cells: Vec<Cell> = vec![
            row.path.to_string().into(),
            row.payload_bytes.to_string().into(),
        ];
        let figures = [
            summary.p50_ns,
            summary.p99_ns,
            summary.p999_ns,
            summary.max_ns,
            summary.min_ns,
            summary.mean_ns as u64,
        ];
        cells.extend(figures.map(Cell::Time));
        cells.push(row.lost.to_string().into());
        cells
    });
    in_one_unit(&header, &cells.collect::<Vec<_>>())
}

/// The three figures of the paper.
fn best_average_worst(summary: &Summary) -> [f64; 3] {
    [
        summary.min_ns as f64,
        summary.mean_ns,
        summary.max_ns as f64,
    ]
}

fn chart(path: Path, rows: &[Row]) -> Chart {
    let lines = ["best", "average", "worst"].iter().enumerate();
    let lines = lines.map(|(index, name)| {
        let points = rows.iter().filter(|row| row.path == path).map(|row| {
            let summary = row.histogram.summary();
            (
                row.payload_bytes as f64,
                best_average_worst(&summary)[index],
            )
        });
        Line::new(*name, Mark::Dots, points.collect())
    });
    // Read off its text, which names the two ends of the worst case, for RAW and for UDP.
    let paper = Line::new(
        "the paper's worst, 100 Mbit/s",
        Mark::Line,
        vec![(50.0, 50_000.0), (1_500.0, 200_000.0)],
    );
    Chart {
        caption: format!("Round trip over {path}: best, average, worst"),
        across: Axis::linear("message", Unit::Bytes),
        up: Axis::logarithmic("round trip", Unit::Time),
        lines: lines.chain([paper]).collect(),
        references: Vec::new(),
    }
}

fn judge(outcome: &mut Outcome, measured: &Measured, sizes: &[usize]) {
    let mut parts = vec![round_trips::judge_udp_of_raw(outcome, measured, sizes)];
    for path in [Path::Queuing, Path::UdpPort] {
        let ratios = of_kernel_udp(measured, path, sizes);
        parts.push(format!(
            "{path} takes {} of kernel UDP busy-polled at the median",
            round_trips::span(&ratios)
        ));
    }
    let worst = PATHS.map(|path| {
        let all = sizes
            .iter()
            .filter_map(|bytes| measured.summary(path, *bytes));
        let worst = all.map(|summary| summary.max_ns).max().unwrap_or(0);
        format!("{path} {}", latency_text(worst))
    });
    parts.push(format!("worst of all sizes: {}", worst.join(", ")));
    outcome.here = parts.join(", ");
    outcome.set("raw", json!("queuing: Tautline in its Ethernet form"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_always_measured() {
        assert_eq!(sizes(50, 1472, 1000), [50, 1050, 1472]);
        assert_eq!(sizes(4, 4, 9), [4]);
        assert_eq!(sizes(1, 5, 2), [1, 3, 5]);
    }
}
