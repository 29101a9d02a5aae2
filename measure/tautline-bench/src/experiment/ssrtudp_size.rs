//! SS-RTUDP, figures 7 and 8: latency and bandwidth by size, 4 bytes to 64 KiB.

use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::plot::latency_text;
use tautline_report::reference::Reference;
use tautline_report::table::{Cell, in_one_unit};
use tautline_testbed::hosts::Hosts;

use super::round_trips::{self, Measured};
use super::volley::{self, VolleyPath, VolleyPaths};
use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, ratio};
use crate::echo::Path;
use crate::path::{PAYLOAD_BYTES_MAX, sides};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &[],
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "ssrtudp-fig7-fig8",
    source: "SS-RTUDP, figures 7 and 8",
    title: "latency and bandwidth by size, 4 bytes to 64 KiB",
    found: "over gigabit Ethernet 39 µs at 4 bytes against UDP's 65.8 (0.59), 545 Mbit/s against 397 (1.37)",
}];

const PATHS: [Path; 4] = [Path::Queuing, Path::UdpPort, Path::UdpPoll, Path::UdpBlock];
/// Limits of a round trip as a share of kernel UDP's, medians, and where they hold.
const LATENCY_MAX: f64 = 0.5;
const LATENCY_BYTES: [usize; 2] = [4, 1400];
/// Gain over kernel UDP, and where it holds.
const GAINS: [(usize, f64); 3] = [(64, 2.0), (8192, 1.4), (PAYLOAD_BYTES_MAX, 1.4)];

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let scale = request.scale;
    let sizes: &[usize] = scale.pick(
        &[
            4,
            16,
            64,
            128,
            256,
            512,
            1024,
            1400,
            2048,
            4096,
            8192,
            16_384,
            32_768,
            PAYLOAD_BYTES_MAX,
        ],
        &[
            4,
            64,
            256,
            1024,
            1400,
            4096,
            8192,
            16_384,
            PAYLOAD_BYTES_MAX,
        ],
        &[4, PAYLOAD_BYTES_MAX],
    );
    let count = scale.pick(20_000, 3_000, 40);
    // Two parts, each from 0 to 1,000 of progress.
    let mut shown = |done: u64, total: u64| progress(done * 1000 / total.max(1), 2000);
    let latencies = round_trips::measure(&PATHS, sizes, count, &mut shown)?;
    let mut shown = |done: u64, total: u64| progress(1000 + done * 1000 / total.max(1), 2000);
    let hosts = Hosts::create(&sides::compared())?;
    let mut ways = VolleyPaths::open(&hosts, PAYLOAD_BYTES_MAX)?;
    let (most, bytes_of_a_volley) =
        scale.pick((100_000, 64 << 20), (10_000, 8 << 20), (100, 1 << 20));
    let messages = |bytes: usize| (bytes_of_a_volley / bytes as u64).clamp(16, most);
    let rows = ways.measure(sizes, scale.pick(11, 5, 1), messages, &mut shown)?;
    let mut outcome = Outcome::of(&FIGURES[0]);
    latencies.note(&mut outcome);
    ways.note(&mut outcome);
    tell(&mut outcome, &latencies, &rows, sizes);
    Ok(vec![outcome])
}

fn half_p50_ns(latencies: &Measured, path: Path, bytes: usize) -> Option<u64> {
    Some(latencies.summary(path, bytes)?.p50_ns / 2)
}

/// The path on which a way's round trips were measured.
fn path_of(way: VolleyPath) -> Option<Path> {
    match way {
        VolleyPath::KernelUdp => Some(Path::UdpPoll),
        VolleyPath::KernelBlocking => Some(Path::UdpBlock),
        VolleyPath::UdpPort => Some(Path::UdpPort),
        VolleyPath::Queuing => Some(Path::Queuing),
        VolleyPath::KernelBatched
        | VolleyPath::UdpPortBatched
        | VolleyPath::UdpPortToKernel
        | VolleyPath::Batched
        | VolleyPath::Merged => None,
    }
}

fn tell(outcome: &mut Outcome, latencies: &Measured, rows: &[volley::Row], sizes: &[usize]) {
    outcome.rows = rows
        .iter()
        .map(|row| {
            let mut json = row.json();
            let summary = path_of(row.way).and_then(|path| latencies.summary(path, row.bytes));
            json["round_trip"] = serde_json::to_value(summary).expect("a summary is plain data");
            json
        })
        .collect();
    let (mut header, mut cells) = volley::table(rows);
    header.push("one way, p50");
    for (cells, row) in cells.iter_mut().zip(rows) {
        let half = path_of(row.way).and_then(|path| half_p50_ns(latencies, path, row.bytes));
        cells.push(half.map_or_else(|| "-".into(), Cell::Time));
    }
    outcome.table = in_one_unit(&header, &cells);
    // Greatest bandwidths of the paper, over gigabit (figure 8) and over fast Ethernet (figure 7).
    let bandwidths = [
        ("the paper, SS-RTUDP, gigabit: 545 Mbit/s", 545.2e6),
        ("the paper, UDP, gigabit: 397 Mbit/s", 396.6e6),
        ("the paper, SS-RTUDP, 100 Mbit/s: 89.6 Mbit/s", 89.6e6),
        ("the paper, UDP, 100 Mbit/s: 81.9 Mbit/s", 81.9e6),
    ];
    let bandwidths = bandwidths
        .map(|(name, at)| Reference::paper(name, at))
        .into();
    outcome.plots = vec![
        (&latency_chart(latencies, sizes)).into(),
        (&volley::chart(rows, bandwidths)).into(),
    ];
    let mut parts = Vec::new();
    for bytes in LATENCY_BYTES {
        for path in [Path::Queuing, Path::UdpPort] {
            let of = |path| half_p50_ns(latencies, path, bytes);
            let (Some(ours), Some(kernel)) = (of(path), of(Path::UdpPoll)) else {
                continue;
            };
            let found = ratio(ours, kernel).unwrap_or(f64::INFINITY);
            parts.push(format!(
                "{path} {} at {bytes} bytes against UDP's {} ({found:.2})",
                latency_text(ours),
                latency_text(kernel)
            ));
            outcome.checks.push(Check {
                target: format!(
                    "{path}: round trip at {bytes} bytes at most {LATENCY_MAX:.2} of kernel UDP's, medians"
                ),
                found: format!("{found:.3}"),
                met: found <= LATENCY_MAX,
            });
        }
    }
    parts.push(round_trips::judge_udp_of_raw(outcome, latencies, sizes));
    let best = |way: VolleyPath| {
        let all = rows.iter().filter(|row| row.way == way);
        all.map(volley::Row::bits_per_s).fold(0.0, f64::max) / 1e6
    };
    parts.push(format!(
        "greatest bandwidth {:.0} Mbit/s, {:.0} in batches, over the UDP port {:.0}, against {:.0} and {:.0}",
        best(VolleyPath::Queuing),
        best(VolleyPath::Batched),
        best(VolleyPath::UdpPort),
        best(VolleyPath::KernelUdp),
        best(VolleyPath::KernelBatched)
    ));
    let small = GAINS[0].0;
    let over = |kernel| volley::gain_over(rows, kernel, VolleyPath::UdpPortBatched, small);
    if let (Some(single), Some(batched)) =
        (over(VolleyPath::KernelUdp), over(VolleyPath::KernelBatched))
    {
        parts.push(format!(
            "messages of {small} bytes in batches of a UDP port {single:.2} of kernel UDP's a call each, {batched:.2} of its batches'"
        ));
    }
    outcome.here = parts.join(", ");
    volley::judge(outcome, rows, &GAINS);
}

fn latency_chart(latencies: &Measured, sizes: &[usize]) -> Chart {
    let line = |path: Path| {
        let points = sizes.iter().filter_map(|bytes| {
            let half = half_p50_ns(latencies, path, *bytes)?;
            Some((*bytes as f64, half as f64))
        });
        Line::new(path.name(), Mark::Dots, points.collect())
    };
    // Latencies of the paper at 4 bytes, over gigabit (figure 8) and over fast Ethernet (figure 7).
    let paper = [
        ("the paper, SS-RTUDP, gigabit", 39_000.0),
        ("the paper, UDP, gigabit", 65_800.0),
        ("the paper, SS-RTUDP, 100 Mbit/s", 37_000.0),
        ("the paper, UDP, 100 Mbit/s", 45_800.0),
    ];
    let paper = paper.map(|(name, ns)| Line::new(name, Mark::Dots, vec![(4.0, ns)]));
    Chart {
        caption: "Half a round trip, median".to_owned(),
        across: Axis::logarithmic("message", Unit::Bytes),
        up: Axis::logarithmic("one way", Unit::Time),
        lines: PATHS.map(line).into_iter().chain(paper).collect(),
        references: Vec::new(),
    }
}
