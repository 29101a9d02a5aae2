//! `taut bench`: makes two hosts, measures, removes them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use tautline_lab::plot::latency_text;
use tautline_lab::{Machine, page, plot};

use crate::bench::rtt::{self, Outcome, Row, RttError, Settings};
use crate::bench::sides::Placement;
use crate::cli::{self, CommandError};
use crate::echo::{self, EchoError, Path};
use crate::table;
use tautline_lab::child;
use tautline_lab::hosts::{Hosts, HostsOptions, Offloads};

/// Arguments of `taut bench`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to measure.
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Round-trip times, the paths interleaved in short slices.
    Rtt(RttArguments),
}

/// Arguments of `taut bench rtt`.
#[derive(Debug, Args)]
pub struct RttArguments {
    /// Paths to measure, comma-separated.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "sampling,queuing,packet,udp-poll,udp-block,tcp-poll,tcp-block,floor"
    )]
    paths: Vec<Path>,
    /// Payload sizes in bytes, comma-separated.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "16,1400"
    )]
    sizes: Vec<usize>,
    /// Round trips of each path at each size.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    count: u64,
    /// Round trips in one slice.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    slice: u64,
    /// Milliseconds after which a round trip counts as lost.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    time_limit_ms: u64,
    /// CPU of the asking side [default: the second of those allowed].
    #[arg(long, value_name = "CPU")]
    client_cpu: Option<usize>,
    /// CPU of the answering side [default: the first of those allowed].
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// Run both sides under SCHED_FIFO with this priority. They spin: the kernel's own threads may starve on their CPUs.
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo: Option<u8>,
    /// Switch the cables' checksum and segmentation offloads off.
    #[arg(long)]
    offloads_off: bool,
    /// Write the result as JSON; `-` writes it to standard output in place of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with histograms.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs a benchmark.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.benchmark {
        Benchmark::Rtt(arguments) => run_rtt(&arguments),
    }
}

fn run_rtt(arguments: &RttArguments) -> Result<(), CommandError> {
    let mut settings = Settings {
        slice: arguments.slice,
        time_limit: Duration::from_millis(arguments.time_limit_ms.max(1)),
        placement: Placement {
            client_cpu: arguments.client_cpu,
            server_cpu: arguments.server_cpu,
            fifo_priority: arguments.fifo,
        },
        ..Settings::new(
            without_repeats(&arguments.paths),
            without_repeats(&arguments.sizes),
            arguments.count,
        )
    };
    let allowed = child::allowed_cpus().unwrap_or_default();
    if let Some(remark) = settings.placement.choose_cpus(&allowed) {
        eprintln!("taut: {remark}");
    }
    let hosts = Hosts::create(&HostsOptions {
        offloads: if arguments.offloads_off {
            Offloads::AllOff
        } else {
            Offloads::Kernel
        },
        cable_count: echo::cable_count(&settings.paths),
    })
    .map_err(|error| explain(RttError::Hosts(error)))?;
    let bar = progress_bar();
    let outcome = rtt::run(&hosts, &settings, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    if let Some(file) = &arguments.html {
        cli::write_file(file, &html(&outcome, &machine))?;
    }
    let json = || format!("{:#}\n", outcome.json(&machine));
    match &arguments.json {
        Some(file) if file == std::path::Path::new("-") => return cli::print(&json()),
        Some(file) => cli::write_file(file, &json())?,
        None => {}
    }
    cli::print(&text(&outcome, &machine))
}

fn without_repeats<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for item in list {
        if !kept.contains(item) {
            kept.push(*item);
        }
    }
    kept
}

fn progress_bar() -> ProgressBar {
    // Drawn on standard error, and only if that is a terminal.
    ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:40} {percent:>3} % of the round trips, {eta} left")
            .expect("the template is a constant"),
    )
}

fn explain(error: RttError) -> CommandError {
    let what = error.to_string();
    match error {
        RttError::Settings(_) => CommandError::usage(what, "see `taut bench rtt --help`"),
        RttError::Hosts(error) => CommandError::failed(what, error.remedy()),
        RttError::Path {
            source: EchoError::NotAvailable { .. },
            ..
        } => CommandError::failed(
            what,
            "leave it out of --paths; `taut doctor` shows what this machine can do",
        ),
        RttError::Path {
            source: EchoError::Hosts(error),
            ..
        } => CommandError::failed(what, error.remedy()),
        RttError::Path {
            source: EchoError::PayloadSize { .. },
            ..
        } => CommandError::usage(what, "choose smaller --sizes, or leave that path out"),
        RttError::Scheduling(_) => CommandError::failed(
            what,
            "choose other CPUs with --client-cpu and --server-cpu; --fifo needs CAP_SYS_NICE or a limit of real-time priority",
        ),
        RttError::Interrupted(signal) => CommandError::interrupted(signal),
        _ => CommandError::failed(
            what,
            "try again on a quieter machine or with a longer --time-limit-ms; `taut doctor` shows what this machine can do",
        ),
    }
}

fn settings_text(outcome: &Outcome) -> String {
    let settings = &outcome.settings;
    format!(
        "{} round trips of each path and size in slices of {}, the first {} of each as warm-up not counted; \
         {}; veth, offloads: {}; lost after {} ms",
        settings.count,
        settings.slice,
        settings.slice.min(settings.count) * settings.warm_up_slices,
        settings.placement.text(),
        outcome.offloads,
        settings.time_limit.as_millis(),
    )
}

fn text(outcome: &Outcome, machine: &Machine) -> String {
    let mut lines = vec![machine.summary(), settings_text(outcome)];
    lines.extend(
        outcome
            .active
            .iter()
            .map(|(path, text)| format!("  {path:<9}  {text}")),
    );
    let header = [
        "path",
        "bytes",
        "count",
        "lost",
        "min µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "p50 / udp-poll",
        "p99 / udp-poll",
    ];
    let rows = outcome.rows.iter().map(|row| text_row(outcome, row));
    lines.push(table::figures(&header, rows));
    lines.join("\n")
}

fn text_row(outcome: &Outcome, row: &Row) -> Vec<String> {
    let summary = row.histogram.summary();
    let mut cells = vec![
        row.path.to_string(),
        row.payload_bytes.to_string(),
        summary.count.to_string(),
        row.lost.to_string(),
    ];
    let latencies = [
        summary.min_ns,
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ];
    cells.extend(latencies.map(table::microseconds));
    cells.extend(ratios(outcome, row));
    cells
}

/// The row's median and p99 as shares of udp-poll's at the same size, if that was measured.
fn ratios(outcome: &Outcome, row: &Row) -> [String; 2] {
    let summary = row.histogram.summary();
    match outcome.reference(row.payload_bytes) {
        Some(reference) => [
            (summary.p50_ns, reference.p50_ns),
            (summary.p99_ns, reference.p99_ns),
        ]
        .map(|(value, of)| format!("{:.2}", rtt::ratio(value, of))),
        None => ["–", "–"].map(str::to_owned),
    }
}

fn html(outcome: &Outcome, machine: &Machine) -> String {
    let mut report = page::Page::new("Round trips between two hosts", machine.summary());
    if machine.is_virtual.known() != Some(&false) {
        report.verdict(
            page::Level::Note,
            "Compare the paths with each other, not with other machines",
            &["This is a virtual machine or may be one: its host adds pauses of its own, which fall on all paths alike."],
        );
    }
    for size in &outcome.settings.sizes {
        let rows: Vec<&Row> = outcome
            .rows
            .iter()
            .filter(|row| row.payload_bytes == *size)
            .collect();
        let series: Vec<plot::Series<'_>> = rows
            .iter()
            .map(|row| plot::Series {
                name: row.path.name(),
                histogram: &row.histogram,
            })
            .collect();
        report.section(
            &format!("{size} bytes"),
            [
                html_table(outcome, &rows).html(),
                plot::histograms("How long a round trip took", &series),
                plot::tails("How often a round trip took longer", &series),
            ],
        );
    }
    let mut settings = vec![("Run".to_owned(), settings_text(outcome))];
    settings.extend(
        outcome
            .active
            .iter()
            .map(|(path, text)| (path.to_string(), text.clone())),
    );
    report.section("Settings", [page::key_values(&settings)]);
    report.section("Machine", [page::key_values(&machine.rows())]);
    report.html()
}

fn html_table(outcome: &Outcome, rows: &[&Row]) -> page::Table {
    let mut table = page::Table::new([
        "Path",
        "p50",
        "p99",
        "p99.9",
        "max",
        "min",
        "p50 / udp-poll",
        "p99 / udp-poll",
        "lost",
    ]);
    for row in rows {
        let summary = row.histogram.summary();
        let mut cells = vec![row.path.to_string()];
        let latencies = [
            summary.p50_ns,
            summary.p99_ns,
            summary.p999_ns,
            summary.max_ns,
            summary.min_ns,
        ];
        cells.extend(latencies.map(latency_text));
        cells.extend(ratios(outcome, row));
        cells.push(row.lost.to_string());
        table.row(cells);
    }
    table
}
