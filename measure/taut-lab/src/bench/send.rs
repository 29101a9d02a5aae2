//! `taut-lab bench send`: makes two hosts, measures, removes them.

use clap::Args;
use tautline_machine::Machine;
use tautline_testbed::hosts::{Hosts, HostsOptions};

use super::{CommonArguments, PLACEMENT_REMEDY, with_progress, without_repeats};
use taut::cli::CommandError;
use taut::units;
use tautline_bench::send::{self, From, Outcome, Row, SendBenchError, Settings};
use tautline_report::table;

/// Arguments of `taut-lab bench send`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Datagrams of each size each way.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = units::count)]
    count: u64,
    /// Sizes of the datagrams, such as 8KiB.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64B,1400B,8KiB,65507B", value_parser = size)]
    sizes: Vec<usize>,
    /// Ways of sending: copied from the caller's memory, from a lent buffer, or copied as a client of a control process
    /// (tap).
    #[arg(long, value_name = "WAYS", value_delimiter = ',', value_enum, default_values_t = From::ALL)]
    ways: Vec<From>,
    #[command(flatten)]
    common: CommonArguments,
}

fn size(text: &str) -> Result<usize, String> {
    match units::size(text)? {
        bytes @ 0..=65_507 => Ok(bytes),
        _ => Err("a datagram has 0 to 65507 bytes".to_owned()),
    }
}

/// Makes two hosts, measures, removes them.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let settings = Settings {
        sizes: without_repeats(&arguments.sizes),
        count: arguments.count.max(1),
        ways: without_repeats(&arguments.ways),
        placement: arguments.common.placement(),
    };
    let options = HostsOptions {
        cable_count: From::CABLES,
        ..HostsOptions::default()
    };
    let hosts = Hosts::create(&options).map_err(|error| explain(SendBenchError::Hosts(error)))?;
    let outcome = with_progress("datagrams", |progress| {
        send::run(&hosts, &settings, progress)
    });
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let common = &arguments.common;
    common.print(&outcome.json(&machine), &text(&outcome, &machine))
}

fn explain(error: SendBenchError) -> CommandError {
    let what = error.to_string();
    match error {
        SendBenchError::Hosts(error) => CommandError::failed(what, error.remedy()),
        SendBenchError::Node(error) => CommandError::failed(what, error.remedy()),
        SendBenchError::Port(error) => CommandError::failed(what, error.remedy()),
        SendBenchError::Send { source, .. } => taut::commands::peer::send_error(source),
        SendBenchError::Interrupted(signal) => CommandError::interrupted(signal),
        // Placement is the only other cause.
        _ => CommandError::failed(what, PLACEMENT_REMEDY),
    }
}

fn text(outcome: &Outcome, machine: &Machine) -> String {
    let mut lines = vec![
        machine.summary(),
        format!("  sender  {}", outcome.active),
        "what a call of the sender takes; the frames go to a MAC address that nobody has"
            .to_owned(),
    ];
    let header = [
        "bytes",
        "sent from",
        "datagrams",
        "p50 µs",
        "p99 µs",
        "max µs",
        "p50 / copied",
    ];
    let rows = outcome.rows.iter().map(|row| cells(outcome, row));
    lines.push(table::figures(&header, rows));
    lines.join("\n")
}

fn cells(outcome: &Outcome, row: &Row) -> Vec<String> {
    let summary = row.calls.summary();
    let mut cells = vec![
        row.bytes.to_string(),
        row.from.text().to_owned(),
        row.calls.count().to_string(),
    ];
    let calls = [summary.p50_ns, summary.p99_ns, summary.max_ns];
    cells.extend(calls.map(table::microseconds));
    cells.push(match outcome.ratio(row) {
        Some(ratio) => format!("{ratio:.2}"),
        None => "–".to_owned(),
    });
    cells
}
