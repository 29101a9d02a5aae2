//! `taut-lab bench rtt`: makes two hosts, measures, removes them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tautline_machine::Machine;
use tautline_report::{page, plot};
use tautline_testbed::hosts::{Hosts, HostsOptions, Offloads};

use super::{
    CommonArguments, EndArguments, PLACEMENT_REMEDY, latencies, with_progress, without_repeats,
};
use taut::cli::{self, CommandError};
use taut::units;
use tautline_bench::echo::{self, Path};
use tautline_bench::path::PathError;
use tautline_bench::rtt::{self, Outcome, Row, RttError, Settings};
use tautline_report::table::{self, Cell};

/// Arguments of `taut-lab bench rtt`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Paths to measure, comma-separated.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "sampling,queuing,sampling-tc,queuing-tc,packet,xsk,udp-port,sampling-block,queuing-block,udp-port-block,queuing-sleep,udp-poll,udp-block,tcp-poll,tcp-block,floor,floor-tc"
    )]
    paths: Vec<Path>,
    /// Payload sizes, comma-separated, such as 1KiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        value_parser = units::size,
        default_value = "16B,1400B"
    )]
    sizes: Vec<usize>,
    /// Round trips of each path at each size.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = units::count)]
    count: u64,
    /// Round trips in one slice.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = units::count)]
    slice: u64,
    /// Pause before each round trip, in which who waits for a message goes to sleep, such as 1ms.
    #[arg(long = "interval", value_name = "TIME", default_value = "0", value_parser = units::time)]
    gap: Duration,
    /// Time after which a round trip counts as lost, such as 1s.
    #[arg(long = "timeout", value_name = "TIME", default_value = "100ms", value_parser = units::some_time)]
    time_limit: Duration,
    /// Switch the cables' checksum and segmentation offloads off.
    #[arg(long)]
    offloads_off: bool,
    #[command(flatten)]
    ends: EndArguments,
    #[command(flatten)]
    common: CommonArguments,
    /// Write a page with histograms.
    #[arg(long, value_name = "FILE", value_parser = cli::result_file())]
    html: Option<PathBuf>,
}

/// Makes two hosts, measures, removes them.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let html = arguments.html.as_deref();
    arguments.common.json.shows_table(&[html])?;
    let settings = Settings {
        slice: arguments.slice,
        gap: arguments.gap,
        time_limit: arguments.time_limit,
        placement: arguments.common.placement(),
        ..Settings::new(
            without_repeats(&arguments.paths),
            without_repeats(&arguments.sizes),
            arguments.count,
        )
    };
    let hosts = Hosts::create(&HostsOptions {
        offloads: if arguments.offloads_off {
            Offloads::AllOff
        } else {
            Offloads::Kernel
        },
        end_kind: arguments.ends.over,
        ..echo::hosts_for(&settings.paths)
    })
    .map_err(|error| explain(RttError::Hosts(error)))?;
    let outcome = with_progress("round trips", |progress| {
        rtt::run(&hosts, &settings, progress)
    });
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    cli::all([
        arguments.common.json.print_beside(
            &[html],
            || outcome.json(&machine),
            || text(&outcome, &machine),
        ),
        match html {
            Some(file) => cli::write_file(file, &page(&outcome, &machine)),
            None => Ok(()),
        },
    ])
}

pub(super) fn explain(error: RttError) -> CommandError {
    let what = error.to_string();
    match error {
        RttError::Settings(_) => CommandError::usage(what, "see `taut-lab bench rtt --help`"),
        RttError::Hosts(error) => CommandError::failed(what, error.remedy()),
        RttError::Path {
            source: PathError::Open(_) | PathError::Port(_) | PathError::Floor(_),
            ..
        } => CommandError::failed(
            what,
            "leave it out of --paths; `taut doctor` shows what this machine can do",
        ),
        RttError::Path {
            source: error @ PathError::Library(_),
            ..
        } => CommandError::failed(what, error.remedy()),
        RttError::Path {
            source: PathError::Hosts(error),
            ..
        } => CommandError::failed(what, error.remedy()),
        RttError::Path {
            source: PathError::PayloadSize { .. },
            ..
        } => CommandError::usage(what, "choose smaller --sizes, or leave that path out"),
        RttError::Scheduling(_) => CommandError::failed(what, PLACEMENT_REMEDY),
        RttError::Interrupted(signal) => CommandError::interrupted(signal),
        _ => CommandError::failed(
            what,
            "try again on a quieter machine or with a longer --timeout; `taut doctor` shows what this machine can do",
        ),
    }
}

fn settings_text(outcome: &Outcome) -> String {
    let settings = &outcome.settings;
    let gap = match settings.gap.is_zero() {
        true => String::new(),
        false => format!(", a pause of {:?} before each", settings.gap),
    };
    format!(
        "{} round trips of each path and size{gap}, in slices of {}, the first {} of each as warm-up not counted; \
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
            .map(|(path, text)| format!("  {path:<14}  {text}")),
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
        "p50 / UDP",
        "p99 / UDP",
        "p50 / floor",
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
    cells.extend(latencies(&summary));
    cells.extend(ratios(outcome, row));
    cells
}

/// The row's median and p99 as shares of those of kernel UDP that waits in the same way, and its median as a share of
/// that of the floor at the same hook, where those were measured.
fn ratios(outcome: &Outcome, row: &Row) -> [String; 3] {
    let summary = row.histogram.summary();
    let udp = outcome.reference(row);
    let share = |value: u64, of: Option<u64>| match of {
        Some(of) => format!("{:.2}", rtt::ratio(value, of)),
        None => "–".to_owned(),
    };
    [
        share(summary.p50_ns, udp.map(|udp| udp.p50_ns)),
        share(summary.p99_ns, udp.map(|udp| udp.p99_ns)),
        share(summary.p50_ns, outcome.floor(row).map(|floor| floor.p50_ns)),
    ]
}

fn page(outcome: &Outcome, machine: &Machine) -> String {
    let mut report = new_page("Round trips between two hosts", machine);
    for size in &outcome.settings.sizes {
        let rows: Vec<&Row> = outcome
            .rows
            .iter()
            .filter(|row| row.payload_bytes == *size)
            .collect();
        let series = series(rows.iter().copied());
        report.section(
            &format!("{size} bytes"),
            [
                html_table(outcome, &rows).html(),
                plot::histograms("How long a round trip took", &series, &[]),
                plot::tails("How often a round trip took longer", &series, &[]),
            ],
        );
    }
    finished(report, Some((outcome, settings_text(outcome))), machine)
}

/// A page for paths that were measured on this machine.
pub(super) fn new_page(title: &str, machine: &Machine) -> page::Page {
    let mut report = page::Page::new(title, machine.summary());
    if machine.is_virtual.known() != Some(&false) {
        report.verdict(
            page::Level::Note,
            "Compare the paths with each other, not with other machines",
            &["This is a virtual machine or may be one: its host adds pauses of its own, which fall on all paths alike."],
        );
    }
    report
}

/// Round trips for a plot, by path.
pub(super) fn series<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<plot::Series<'r>> {
    rows.map(|row| plot::Series {
        name: row.path.name(),
        histogram: &row.histogram,
    })
    .collect()
}

/// Ends a page with the settings of a run, in words, and the machine.
pub(super) fn finished(
    mut report: page::Page,
    run: Option<(&Outcome, String)>,
    machine: &Machine,
) -> String {
    if let Some((outcome, words)) = run {
        let mut settings = vec![("Run".to_owned(), words)];
        let active = outcome.active.iter();
        settings.extend(active.map(|(path, text)| (path.to_string(), text.clone())));
        report.section("Settings", [page::key_values(&settings)]);
    }
    report.section("Machine", [page::key_values(&machine.rows())]);
    report.html()
}

fn html_table(outcome: &Outcome, rows: &[&Row]) -> page::Table {
    let header = [
        "Path",
        "p50",
        "p99",
        "p99.9",
        "max",
        "min",
        "p50 / UDP",
        "p99 / UDP",
        "p50 / floor",
        "lost",
    ];
    let cells = |row: &&Row| {
        let summary = row.histogram.summary();
        let mut cells: Vec<Cell> = vec![row.path.to_string().into()];
        let latencies = [
            summary.p50_ns,
            summary.p99_ns,
            summary.p999_ns,
            summary.max_ns,
            summary.min_ns,
        ];
        cells.extend(latencies.map(Cell::Time));
        cells.extend(ratios(outcome, row).map(Cell::from));
        cells.push(row.lost.to_string().into());
        (false, cells)
    };
    page::Table::in_one_unit(&header, rows.iter().map(cells))
}
