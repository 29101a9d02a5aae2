//! `taut-lab lab interrupt`: interrupt latency beside the figures of the RTMux paper.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use taut::say;
use tautline_lab::interrupt::{self, PAPER, PaperLine, Settings};
use tautline_lab::load::Load;
use tautline_lab::report;
use tautline_lab::result::{LabResult, Phase, Series};
use tautline_machine::verdict::State;
use tautline_report::table;
use tautline_testbed::interrupt::{flag as signal_flag, interrupted};
use tautline_testbed::sys;

use super::journal_guard::JournalGuard;
use super::publish;
use super::run::{host_name, not_measured, period, remarks};
use taut::cli::{CommandError, result_file};
use taut::commands::output::JsonArguments;
use taut::commands::partition::Guard;
use taut::commands::task::try_cpu;

/// Arguments of `taut-lab lab interrupt`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Events of each kind, for each load, untouched and in a partition.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u64).range(100..=10_000_000))]
    count: u64,
    /// Time between two events, such as 250us.
    #[arg(long = "interval", value_name = "TIME", default_value = "100us", value_parser = period)]
    period: Duration,
    /// CPU of handler and task [default: the last one that this process may use].
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Loads, in order: idle, cpu, memory, disk, network, scheduling, vision, combined.
    #[arg(
        long = "load",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "idle,vision"
    )]
    loads: Vec<Load>,
    /// Measure the machine as it is only, and make no partition.
    #[arg(long)]
    untouched_only: bool,
    /// Name of the result [default: the host's name].
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    json: JsonArguments,
    /// Write a page.
    #[arg(long, value_name = "FILE", value_parser = result_file())]
    html: Option<PathBuf>,
}

/// Runs `taut-lab lab interrupt`.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let places = (&arguments.json, arguments.html.as_deref());
    arguments.json.shows_table(&[places.1])?;
    let settings = settings(arguments)?;
    let kept = JournalGuard::open()?;
    // Puts the partition back should this process be killed.
    let guard = match arguments.untouched_only {
        true => None,
        false => Some(Guard::start()?),
    };
    let stop = signal_flag();
    let outcome = interrupt::run(&settings, &kept.journal, &stop, &mut |step| {
        say!("measuring {step}");
    });
    drop(guard);
    let missing = kept.missing.clone();
    drop(kept);
    if let (Err(_), Some(signal)) = (&outcome, interrupted()) {
        return Err(CommandError::interrupted(signal));
    }
    let mut result = outcome.map_err(not_measured)?;
    result.missing.extend(missing);
    publish("taut lab interrupt", &result, text(&result), places)?;
    match interrupted() {
        Some(signal) => Err(CommandError::interrupted(signal)),
        None => Ok(()),
    }
}

fn settings(arguments: &Arguments) -> Result<Settings, CommandError> {
    let allowed = sys::allowed_cpus().unwrap_or_default();
    let named = arguments.cpu.map(|cpu| cpu as u32);
    let cpu = named.or(allowed.last().copied()).unwrap_or(0);
    if let Err(error) = try_cpu(cpu as usize) {
        return Err(CommandError::usage(
            format!("this process may not use CPU {cpu}: {error}"),
            format!("name one of {allowed:?} with --cpu"),
        ));
    }
    Ok(Settings {
        label: arguments.label.clone().unwrap_or_else(host_name),
        count: arguments.count,
        period_ns: arguments.period.as_nanos() as u64,
        cpu,
        other_cpu: allowed.iter().copied().find(|other| *other != cpu),
        states: match arguments.untouched_only {
            true => vec![State::Untouched],
            false => vec![State::Untouched, State::Partition],
        },
        loads: arguments.loads.clone(),
        load: super::load_settings(allowed.len())?,
    })
}

const HEADER: [&str; 7] = ["latency in µs", "n", "mean", "p50", "p99", "p99.9", "max"];

fn text(result: &LabResult) -> String {
    let phases = result.phases.iter();
    let rows = phases.flat_map(|phase| phase.series.iter().map(move |series| row(phase, series)));
    let rows = rows.chain(PAPER.iter().map(paper_row));
    format!(
        "{}\n{}{}",
        result.machine.summary(),
        table::figures(&HEADER, rows),
        remarks(result)
    )
}

fn row(phase: &Phase, series: &Series) -> Vec<String> {
    let what = interrupt::event_name(series.probe);
    let (state, summary) = (report::state_name(phase.state), &series.summary);
    let mut row = vec![
        format!("{what}, {}, {state}", phase.load),
        summary.count.to_string(),
        table::microseconds(summary.mean_ns as u64),
    ];
    let figures = [
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ];
    row.extend(figures.map(table::microseconds));
    row
}

fn paper_row(line: &PaperLine) -> Vec<String> {
    let not_told = || "-".to_owned();
    vec![
        format!("paper: {}", line.what),
        not_told(),
        table::microseconds(line.mean_ns),
        not_told(),
        not_told(),
        not_told(),
        table::microseconds(line.max_ns),
    ]
}
