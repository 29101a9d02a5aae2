//! `taut-lab bench bus`: ports between processes, beside the machine's floor and iceoryx2.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use taut::say;
use tautline_machine::Machine;

use super::{CommonArguments, PLACEMENT_REMEDY, publish, with_progress, without_repeats};
use taut::cli::CommandError;
use taut::units;
use tautline_bench::vbus::{
    self, BenchError, ICEORYX2_PROGRAM, Measure, Outcome, Path, READS_PER_SAMPLE, Row, Settings,
    Target,
};
use tautline_report::table;

/// Arguments of `taut-lab bench bus`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Payload sizes of the round trips, comma-separated, such as 4KiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        value_parser = units::size,
        default_value = "8B,64B,1KiB,4KiB,64KiB"
    )]
    sizes: Vec<usize>,
    /// Payload sizes of the throughput, comma-separated, such as 4KiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        value_parser = units::size,
        default_value = "64B,64KiB"
    )]
    throughput_sizes: Vec<usize>,
    /// Measures publishing instead: one message to this many subscribers, such as 1,4,16, who spin or sleep.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = units::count)]
    pub(super) subscribers: Vec<u64>,
    /// Payload of what is published, such as 64KiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = units::size, requires = "subscribers")]
    pub(super) publish_size: usize,
    /// Rounds; in each, every row has one slice. Before them there is one that is not counted.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = units::count)]
    pub(super) rounds: u64,
    /// Round trips, or samples of reading, in a slice.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = units::count)]
    slice: u64,
    /// Messages in a slice of throughput; a sixteenth of it for more than 4096 bytes.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = units::count)]
    throughput_slice: u64,
    /// Messages in a slice of the paced rows, and of publishing.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = units::count)]
    pub(super) paced_slice: u64,
    /// Time from one paced message to the next, such as 1ms.
    #[arg(long = "interval", value_name = "TIME", default_value = "1ms", value_parser = units::some_time)]
    pub(super) period: Duration,
    /// The program that measures iceoryx2 [default: the one beside this command, if it was built].
    #[arg(long, value_name = "PROGRAM")]
    iceoryx2: Option<PathBuf>,
    #[command(flatten)]
    pub(super) common: CommonArguments,
}

/// Measures and prints.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    if !arguments.subscribers.is_empty() {
        return publish::run(arguments);
    }
    let settings = Settings {
        sizes: without_repeats(&arguments.sizes),
        throughput_sizes: without_repeats(&arguments.throughput_sizes),
        rounds: arguments.rounds,
        slice: arguments.slice,
        throughput_slice: arguments.throughput_slice,
        paced_slice: arguments.paced_slice,
        period: arguments.period,
        iceoryx2: arguments.iceoryx2(),
        placement: arguments.common.placement(),
    };
    let outcome = with_progress("slices", |progress| vbus::run(&settings, progress));
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let common = &arguments.common;
    common.print(&outcome.json(&machine), &text(&outcome, &machine))
}

impl Arguments {
    /// The program that measures iceoryx2; says so if there is none.
    pub(super) fn iceoryx2(&self) -> Option<PathBuf> {
        let program = self.iceoryx2.clone().or_else(vbus::beside_this_program);
        if program.is_none() {
            say!(
                "taut: iceoryx2 is not measured, since {ICEORYX2_PROGRAM} is not beside this program\n  what to do: `make bench-bus` builds it from measure/iceoryx2 and measures; --iceoryx2 names another place"
            );
        }
        program
    }
}

pub(super) fn explain(error: BenchError) -> CommandError {
    let what = error.to_string();
    match error {
        BenchError::Settings(_) => CommandError::usage(what, "see `taut-lab bench bus --help`"),
        BenchError::Scheduling(_) => CommandError::failed(what, PLACEMENT_REMEDY),
        BenchError::Interrupted(signal) => CommandError::interrupted(signal),
        BenchError::Path {
            path: Path::Iceoryx2 | Path::Iceoryx2Event,
            ..
        } => CommandError::failed(
            what,
            "build it again with `make bench-bus`, or name another program with --iceoryx2",
        ),
        _ => CommandError::failed(
            what,
            "try again on a quieter machine; a way that fails every time is a mistake worth reporting",
        ),
    }
}

fn text(outcome: &Outcome, machine: &Machine) -> String {
    let mut lines = vec![machine.summary(), settings_text(&outcome.settings)];
    lines.extend(
        outcome
            .active
            .iter()
            .map(|(path, text)| format!("  {path:<18}  {text}")),
    );
    lines.push(times(outcome));
    lines.push(rates(outcome));
    lines.push(targets(&outcome.targets()));
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

fn settings_text(settings: &Settings) -> String {
    format!(
        "{} rounds of slices that take turns, one before them not counted: {} round trips or samples of {READS_PER_SAMPLE} reads, {} messages \
         of throughput, {} messages {} µs apart; {}; a ratio is the median of the rounds'",
        settings.rounds,
        settings.slice,
        settings.throughput_slice,
        settings.paced_slice,
        settings.period.as_micros(),
        settings.placement.text(),
    )
}

pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2}"))
}

fn times(outcome: &Outcome) -> String {
    let header = [
        "measure",
        "path",
        "bytes",
        "count",
        "min ns",
        "p50 ns",
        "p99 ns",
        "p99.9 ns",
        "max ns",
        "p50 / floor",
        "p50 / iceoryx2",
    ];
    let rows = outcome
        .rows
        .iter()
        .filter(|row| row.measure != Measure::Throughput);
    table::figures(&header, rows.map(|row| time_row(outcome, row)))
}

fn time_row(outcome: &Outcome, row: &Row) -> Vec<String> {
    let summary = row.histogram.summary();
    let mut cells = vec![row.measure.name().to_owned(), row.path.to_string()];
    cells.extend(
        [
            row.bytes as u64,
            summary.count,
            summary.min_ns,
            summary.p50_ns,
            summary.p99_ns,
            summary.p999_ns,
            summary.max_ns,
        ]
        .map(|figure| figure.to_string()),
    );
    cells.push(ratio(outcome.of_floor(row)));
    cells.push(ratio(outcome.of_iceoryx2(row)));
    cells
}

fn rates(outcome: &Outcome) -> String {
    let rows: Vec<Vec<String>> = outcome
        .rows
        .iter()
        .filter(|row| row.measure == Measure::Throughput)
        .map(|row| {
            let mut slices = row.rounds.clone();
            slices.sort_by(f64::total_cmp);
            let rate = |at: Option<&f64>| at.copied().unwrap_or_default();
            let median = row.median().unwrap_or_default();
            let mut cells = vec![row.measure.name().to_owned(), row.path.to_string()];
            cells.push(row.bytes.to_string());
            cells.extend(
                [rate(slices.first()), median, rate(slices.last())]
                    .map(|rate| format!("{:.2}", rate / 1e6)),
            );
            cells.push(format!("{:.2}", median * row.bytes as f64 / 1e9));
            cells.push(ratio(outcome.of_iceoryx2(row)));
            cells
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "measure",
        "path",
        "bytes",
        "min M/s",
        "p50 M/s",
        "max M/s",
        "p50 GB/s",
        "/ iceoryx2",
    ];
    table::figures(&header, rows)
}

pub(super) fn targets(targets: &[Target]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let rows = targets.iter().map(|target| {
        let bound = if target.at_least { "≥" } else { "≤" };
        vec![
            target.what.clone(),
            format!("{bound} {}", target.limit),
            ratio(target.measured),
            match target.met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "not measured",
            }
            .to_owned(),
        ]
    });
    table::figures(&["target", "limit", "measured", ""], rows)
}
