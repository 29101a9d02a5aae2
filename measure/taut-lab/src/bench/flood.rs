//! `taut-lab bench flood`: makes three hosts, measures, removes them.

use std::time::Duration;

use clap::Args;
use tautline::link::XdpMode;
use tautline_machine::Machine;
use tautline_testbed::hosts::{Hosts, HostsOptions};

use super::{CommonArguments, PLACEMENT_REMEDY, with_progress};
use taut::cli::CommandError;
use taut::units;
use tautline_bench::flood::{self, Beside, FloodError, Outcome, Row, Settings};
use tautline_report::table;

/// Arguments of `taut-lab bench flood`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Messages of each way.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = units::count)]
    count: u64,
    /// Time from one message to the next, such as 1ms.
    #[arg(long = "interval", value_name = "TIME", default_value = "200us", value_parser = period)]
    period: Duration,
    /// Run the demux in generic mode.
    #[arg(long)]
    generic: bool,
    #[command(flatten)]
    common: CommonArguments,
}

fn period(text: &str) -> Result<Duration, String> {
    Some(units::time(text)?)
        .filter(|period| *period >= Duration::from_micros(10))
        .ok_or_else(|| "expected 10us or more".to_owned())
}

/// Makes three hosts, measures, removes them.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let settings = Settings {
        count: arguments.count.max(1),
        period: arguments.period,
        xdp_mode: if arguments.generic {
            XdpMode::Generic
        } else {
            XdpMode::Native
        },
        placement: arguments.common.placement(),
    };
    let hosts = Hosts::create(&HostsOptions::default())
        .map_err(|error| explain(FloodError::Hosts(error)))?;
    let outcome = with_progress("messages", |progress| {
        flood::run(&hosts, &settings, progress)
    });
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let common = &arguments.common;
    common.print(&outcome.json(&machine), &text(&outcome, &machine))
}

fn explain(error: FloodError) -> CommandError {
    let what = error.to_string();
    match error {
        FloodError::Hosts(error) => CommandError::failed(what, error.remedy()),
        FloodError::Node(error) => CommandError::failed(what, error.remedy()),
        FloodError::Port(error) => CommandError::failed(what, error.remedy()),
        FloodError::Scheduling(_) => CommandError::failed(what, PLACEMENT_REMEDY),
        FloodError::Interrupted(signal) => CommandError::interrupted(signal),
        _ => CommandError::failed(what, "`taut doctor` shows what this machine can do"),
    }
}

fn text(outcome: &Outcome, machine: &Machine) -> String {
    let settings = &outcome.settings;
    let mut lines = vec![
        machine.summary(),
        format!(
            "a message each {} µs; reader on CPU {}, both senders on CPU {}; delay from the demux's arrival stamp to the application",
            settings.period.as_micros(),
            cpu(settings.placement.client_cpu),
            cpu(settings.placement.server_cpu),
        ),
    ];
    let active = outcome.active.iter();
    lines.extend(active.map(|(who, text)| format!("  {who:<6}  {text}")));
    let header = [
        "beside",
        "flood frames/s",
        "messages",
        "lost",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "p99 / quiet",
    ];
    let rows = outcome.rows.iter().map(|row| cells(outcome, row));
    lines.push(table::figures(&header, rows));
    lines.join("\n")
}

fn cpu(cpu: Option<usize>) -> String {
    cpu.map_or("any".to_owned(), |cpu| cpu.to_string())
}

fn cells(outcome: &Outcome, row: &Row) -> Vec<String> {
    let summary = row.delays.summary();
    let mut cells = vec![
        row.beside.text().to_owned(),
        match row.beside {
            Beside::Quiet => "–".to_owned(),
            _ => format!("{:.0}", row.flood_rate()),
        },
        row.sent.to_string(),
        row.lost.to_string(),
    ];
    let delays = [
        summary.p50_ns,
        summary.p99_ns,
        summary.p999_ns,
        summary.max_ns,
    ];
    cells.extend(delays.map(table::microseconds));
    cells.push(format!("{:.2}", outcome.p99_ratio(row)));
    cells
}
