//! The result of a measured network: a file, a table, a page.

use serde_json::{Value, json};
use tautline_bench::network::{PAYLOAD_BYTES, Row, path_name};
use tautline_machine::verdict::Outcome;
use tautline_report::page::{self, Level, Page, key_values, paragraph, verbatim};
use tautline_report::plot::{self, latency_text};
use tautline_report::reference::Reference;
use tautline_report::table::{self, Cell};
use tautline_report::timeline::{self, timeline};

use super::session::{Measured, Phase};
use super::verdict::Verdict;
use crate::lab::run::host_name;

/// The value of `format` in the file, and its version.
const FORMAT: (&str, u32) = ("tautline-lab-network", 1);

/// The result file.
pub(super) fn json(measured: &Measured, verdict: &Verdict) -> Value {
    let phases = measured.phases.iter().map(|phase| {
        json!({
            "load": phase.load.to_string(),
            "duration_ns": phase.duration.as_nanos() as u64,
            "traffic": phase.traffic,
            "rows": phase.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    });
    json!({
        "format": FORMAT.0,
        "version": FORMAT.1,
        "tool": concat!("taut ", env!("CARGO_PKG_VERSION")),
        "label": host_name(),
        "started_unix_s": measured.started_unix_s,
        "machine": measured.machine,
        "card": measured.card,
        "settings": measured.settings,
        "phases": phases.collect::<Vec<_>>(),
        "culprits": measured.culprits,
        "missing": measured.missing,
        "notes": measured.notes,
        "verdict": verdict,
    })
}

const HEADER: [&str; 10] = [
    "path",
    "cycles",
    "p50 µs",
    "p99 µs",
    "p99.99 µs",
    "max µs",
    "late (episodes)",
    "lost",
    "late in transit, here",
    "not sent",
];

fn latencies(row: &Row) -> [u64; 4] {
    let summary = row.histogram.summary();
    let p9999_ns = row.histogram.at_quantile(0.9999);
    [
        summary.p50_ns,
        summary.p99_ns,
        p9999_ns.unwrap_or(summary.max_ns),
        summary.max_ns,
    ]
}

fn counts(row: &Row) -> [String; 4] {
    [
        format!("{} ({})", row.late.count, row.late.episodes),
        row.lost.to_string(),
        format!("{}, {}", row.late_in_transit, row.late_here),
        row.not_sent.to_string(),
    ]
}

/// Text for the terminal.
pub(super) fn text(measured: &Measured, verdict: &Verdict) -> String {
    let mut lines = vec![measured.machine.summary(), settings_text(measured)];
    for phase in &measured.phases {
        lines.push(format!("\nload {}: {}", phase.load, traffic_text(phase)));
        let rows = phase.rows.iter().map(|row| {
            let mut cells = vec![path_name(row.path).to_owned(), row.cycles.to_string()];
            cells.extend(latencies(row).map(table::microseconds));
            cells.extend(counts(row));
            cells
        });
        lines.push(table::figures(&HEADER, rows));
    }
    lines.extend(remarks(measured));
    lines.extend(verdict.sentences.iter().cloned());
    lines.join("\n") + "\n"
}

fn settings_text(measured: &Measured) -> String {
    let settings = &measured.settings;
    format!(
        "{} to the echo {}: {PAYLOAD_BYTES} bytes each {}, late after {}",
        measured.card.summary(),
        settings.peer,
        latency_text(settings.period.as_nanos() as u64),
        latency_text(settings.deadline.as_nanos() as u64),
    )
}

/// Traffic on the interface, and faults that it counted.
fn traffic_text(phase: &Phase) -> String {
    let seconds = phase.duration.as_secs_f64().max(1e-3);
    let rate = |bytes: u64| bytes as f64 * 8e-6 / seconds;
    let faults = phase.traffic.faults.iter();
    let faults: String = faults
        .map(|(name, count)| format!(", {name} {count}"))
        .collect();
    format!(
        "{:.1} Mbit/s out, {:.1} Mbit/s in{faults}",
        rate(phase.traffic.sent_bytes),
        rate(phase.traffic.received_bytes)
    )
}

/// Culprits, what was left out or is lacking, and notes.
fn remarks(measured: &Measured) -> Vec<String> {
    let culprits = measured.culprits.iter().map(|culprit| {
        format!(
            "late by {}, {}, load {}; likely {}",
            latency_text(culprit.outlier.latency_ns),
            culprit.path,
            culprit.load,
            culprit.outlier.culprit
        )
    });
    let missing = measured.missing.iter().map(|missing| {
        format!(
            "lacking: {}: {} ({})",
            missing.what, missing.reason, missing.remedy
        )
    });
    let notes = measured.notes.iter().map(|note| format!("note: {note}"));
    culprits.chain(missing).chain(notes).collect()
}

/// The page.
pub(super) fn page(measured: &Measured, verdict: &Verdict) -> String {
    let mut page = Page::new(
        format!("Card, cable and peer: {}", host_name()),
        settings_text(measured),
    );
    let level = match verdict.outcome {
        Outcome::Held if verdict.about_hardware => Level::Good,
        Outcome::Held => Level::Note,
        Outcome::Exceeded => Level::Bad,
        Outcome::Inconclusive => Level::Limited,
    };
    if let [headline, reasons @ ..] = &verdict.sentences[..] {
        page.verdict(level, headline, reasons);
    }
    for phase in &measured.phases {
        add_phase(&mut page, measured, phase);
    }
    add_culprits(&mut page, measured);
    let remarks = measured.missing.iter().map(|missing| {
        let reason = format!("{} ({})", missing.reason, missing.remedy);
        (missing.what.clone(), reason)
    });
    let notes = measured
        .notes
        .iter()
        .map(|note| ("note".to_owned(), note.clone()));
    let remarks: Vec<(String, String)> = remarks.chain(notes).collect();
    if !remarks.is_empty() {
        page.section("Lacking", [key_values(&remarks)]);
    }
    page.section("Settings", [key_values(&settings_rows(measured))]);
    page.section("Machine", [key_values(&measured.machine.rows())]);
    page.html()
}

fn add_phase(page: &mut Page, measured: &Measured, phase: &Phase) {
    let cells = |row: &Row| {
        let mut cells: Vec<Cell> = vec![path_name(row.path).into(), row.cycles.to_string().into()];
        cells.extend(latencies(row).map(Cell::Time));
        cells.extend(counts(row).map(Cell::from));
        (false, cells)
    };
    let header = HEADER.map(|name| name.trim_end_matches(" µs"));
    let series: Vec<plot::Series<'_>> = phase
        .rows
        .iter()
        .map(|row| plot::Series {
            name: path_name(row.path),
            histogram: &row.histogram,
        })
        .collect();
    let lines: Vec<timeline::Line<'_>> = phase
        .rows
        .iter()
        .map(|row| timeline::Line {
            name: path_name(row.path),
            slices: &row.timeline,
        })
        .collect();
    let deadline_ns = measured.settings.deadline.as_nanos() as u64;
    let name = format!("deadline {}", latency_text(deadline_ns));
    let references = [Reference::deadline(name, deadline_ns as f64)];
    page.section(
        &format!("Load {}", phase.load),
        [
            paragraph(&traffic_text(phase)),
            page::Table::in_one_unit(&header, phase.rows.iter().map(cells)).html(),
            plot::tails("How often a reply took longer", &series, &references),
            timeline(
                "When it was late: the worst reply of each turn",
                &lines,
                &references,
            ),
        ],
    );
}

fn add_culprits(page: &mut Page, measured: &Measured) {
    let blocks = measured.culprits.iter().flat_map(|culprit| {
        let late = latency_text(culprit.outlier.latency_ns);
        let words = format!(
            "{late}, {}, load {}: {}",
            culprit.path, culprit.load, culprit.outlier.culprit
        );
        let trace = verbatim(&culprit.outlier.trace.join("\n"));
        [paragraph(&words), page::folded("Trace", [trace])]
    });
    let blocks: Vec<page::Block> = blocks.collect();
    if !blocks.is_empty() {
        page.section("Late replies", blocks);
    }
}

fn settings_rows(measured: &Measured) -> Vec<(String, String)> {
    let card = &measured.card;
    let unknown = || "unknown".to_owned();
    let mut rows = vec![
        ("Run".to_owned(), settings_text(measured)),
        (
            "Driver".to_owned(),
            card.driver
                .clone()
                .unwrap_or_else(|| "none: virtual".to_owned()),
        ),
        (
            "PCI device".to_owned(),
            card.pci_id.clone().unwrap_or_else(unknown),
        ),
        (
            "MTU".to_owned(),
            card.mtu_bytes
                .map_or_else(unknown, |bytes| bytes.to_string()),
        ),
    ];
    let described = measured.phases.first().map_or(&[][..], |phase| &phase.rows);
    rows.extend(
        described
            .iter()
            .map(|row| (path_name(row.path).to_owned(), row.description.clone())),
    );
    rows
}
