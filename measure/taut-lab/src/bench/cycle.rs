//! `taut-lab bench loop`: round trips of a loop whose two ends sleep between messages, and their tail.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tautline_bench::echo::{self, Path};
use tautline_bench::rtt::{self, Outcome, Row, Settings};
use tautline_lab::load::Load;
use tautline_machine::Machine;
use tautline_report::table::{self, Cell};
use tautline_report::{page, plot};
use tautline_testbed::hosts::Hosts;

use super::rtt::{explain, finished, new_page, series};
use super::{CommonArguments, with_progress, without_repeats};
use taut::cli::{self, CommandError};
use taut::units;

/// Round trips of a path before another one's turn. Lower: the predictor of a path learns its rhythm anew in a larger
/// part of them. Higher: a disturbance falls on fewer paths.
const SLICE: u64 = 1_000;
/// Bytes of a message: a robot's state.
const PAYLOAD_BYTES: usize = 64;

/// Arguments of `taut-lab bench loop`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Paths to measure, comma-separated. The first one is what the others are compared with.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_values_t = default_paths()
    )]
    paths: Vec<Path>,
    /// Time from one request to the next, such as 1ms.
    #[arg(long = "interval", value_name = "TIME", default_value = "1ms", value_parser = units::time)]
    period: Duration,
    /// Length of the whole run, all paths and loads together, such as 10min.
    #[arg(long = "for", value_name = "TIME", default_value = "2min", value_parser = units::time)]
    length: Duration,
    /// Loads beside which everything is measured, one after the other, comma-separated: idle, cpu, memory, disk,
    /// network, scheduling, vision, combined.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "idle,cpu,network"
    )]
    beside: Vec<Load>,
    #[command(flatten)]
    common: CommonArguments,
    /// Write a page with the tails.
    #[arg(long, value_name = "FILE", value_parser = cli::result_file())]
    html: Option<PathBuf>,
}

/// Each way in which a loop can wait. A program for musl loads no library, so it lacks the short path.
fn default_paths() -> Vec<Path> {
    let mut paths = vec![
        Path::UdpBlock,
        Path::UdpBlockAgain,
        Path::UdpTuned,
        Path::UdpAwake,
        Path::UdpShortPath,
        Path::UdpLinger,
        Path::UdpPoll,
        Path::QueuingSleep,
        Path::QueuingBlock,
        Path::Queuing,
    ];
    paths.retain(|path| *path != Path::UdpShortPath || cfg!(target_env = "gnu"));
    paths
}

/// Makes two hosts, measures beside each load, removes them.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let html = arguments.html.as_deref();
    arguments.common.json.shows_table(&[html])?;
    let paths = without_repeats(&arguments.paths);
    let beside = without_repeats(&arguments.beside);
    let settings = settings(arguments, paths, beside.len())?;
    let mut measured = Vec::new();
    for load in beside {
        measured.push((load, measure(&settings, load)?));
    }
    let machine = Machine::read();
    let json = || {
        let runs = measured.iter().map(|(load, outcome)| {
            let mut run = outcome.json(&machine);
            run["beside"] = load.to_string().into();
            run
        });
        serde_json::json!({ "runs": runs.collect::<Vec<_>>() })
    };
    cli::all([
        arguments
            .common
            .json
            .print_beside(&[html], json, || text(&measured, &machine)),
        match html {
            Some(file) => cli::write_file(file, &page(&measured, &machine)),
            None => Ok(()),
        },
    ])
}

fn settings(
    arguments: &Arguments,
    paths: Vec<Path>,
    loads: usize,
) -> Result<Settings, CommandError> {
    let turns = (paths.len() * loads).max(1) as u32;
    let each = arguments.length / turns;
    let count = each.as_nanos() / arguments.period.as_nanos().max(1);
    // The first slice of each path is not counted.
    let count = (count as u64).saturating_sub(SLICE);
    if count < SLICE {
        return Err(CommandError::usage(
            format!(
                "{:?} is too short for {turns} turns of two times {SLICE} round trips",
                arguments.length
            ),
            "choose a longer --for, or fewer --paths",
        ));
    }
    Ok(Settings {
        slice: SLICE,
        period: arguments.period,
        placement: arguments.common.placement(),
        one_way: true,
        ..Settings::new(paths, vec![PAYLOAD_BYTES], count)
    })
}

fn measure(settings: &Settings, load: Load) -> Result<Outcome, CommandError> {
    let hosts = Hosts::create(&echo::hosts_for(&settings.paths));
    let hosts = hosts.map_err(|error| explain(error.into()))?;
    let _load = crate::lab::start_load(load)?;
    let of_what = format!("round trips, {load}");
    with_progress(&of_what, |progress| rtt::run(&hosts, settings, progress)).map_err(explain)
}

const HEADER: [&str; 13] = [
    "path",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "p99.99 µs",
    "max µs",
    "p50 / first",
    "p99 / first",
    "p99.9 / first",
    "p99.9 / tuned",
    "late (rows)",
    "lost",
    "CPU %, asking, answering",
];

fn text(measured: &[(Load, Outcome)], machine: &Machine) -> String {
    let mut lines = vec![machine.summary()];
    lines.extend(measured.first().map(|(_, outcome)| settings_text(outcome)));
    for (load, outcome) in measured {
        lines.push(format!("\nload {load}:"));
        let rows = outcome.rows.iter().map(|row| {
            let mut cells = vec![row.path.to_string()];
            cells.extend(tail(row).map(table::microseconds));
            cells.extend(rest(outcome, row));
            cells
        });
        lines.push(table::figures(&HEADER, rows));
    }
    lines.join("\n")
}

fn settings_text(outcome: &Outcome) -> String {
    let settings = &outcome.settings;
    format!(
        "{} round trips of each path, one each {:?}, {PAYLOAD_BYTES} bytes, in turns of {SLICE}, the first of each not \
         counted; {}; veth; late: longer than half a period",
        settings.count,
        settings.period,
        settings.placement.text(),
    )
}

fn tail(row: &Row) -> [u64; 5] {
    let summary = row.histogram.summary();
    [
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        row.histogram.at_quantile(0.9999).unwrap_or(summary.max_ns),
        summary.max_ns,
    ]
}

/// Shares of the first path's figures and of the tuned one's p99.9, late and lost round trips, CPU time.
fn rest(outcome: &Outcome, row: &Row) -> [String; 7] {
    let first = outcome.rows.first().map_or([0; 5], tail);
    let own = tail(row);
    let share = |index: usize| format!("{:.2}", rtt::ratio(own[index], first[index]));
    let tuned = outcome.rows.iter().find(|row| row.path == Path::UdpTuned);
    let of_tuned = tuned.map(|tuned| rtt::ratio(own[2], tail(tuned)[2]));
    let spent = row.spent;
    [
        share(0),
        share(1),
        share(2),
        of_tuned.map_or("–".to_owned(), |share| format!("{share:.2}")),
        format!("{} ({})", row.late.count, row.late.episodes),
        row.lost.to_string(),
        format!(
            "{}, {}",
            rtt::percent(spent.asking, spent.elapsed),
            rtt::percent(spent.answering, spent.elapsed)
        ),
    ]
}

fn page(measured: &[(Load, Outcome)], machine: &Machine) -> String {
    let mut report = new_page("A loop that sleeps between its messages", machine);
    for (load, outcome) in measured {
        let cells = |row: &Row| {
            let mut cells: Vec<Cell> = vec![row.path.to_string().into()];
            cells.extend(tail(row).map(Cell::Time));
            cells.extend(rest(outcome, row).map(Cell::from));
            (false, cells)
        };
        let header = HEADER.map(|name| name.trim_end_matches(" µs"));
        report.section(
            &format!("Load {load}"),
            [
                page::Table::in_one_unit(&header, outcome.rows.iter().map(cells)).html(),
                plot::tails(
                    "How often a round trip took longer",
                    &series(outcome.rows.iter()),
                    &[],
                ),
            ],
        );
    }
    let first = measured.first().map(|(_, outcome)| outcome);
    finished(
        report,
        first.map(|outcome| (outcome, settings_text(outcome))),
        machine,
    )
}
