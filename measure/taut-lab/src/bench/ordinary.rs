//! `taut-lab bench ordinary`: makes two hosts, measures, removes them.

use clap::Args;
use tautline_machine::Machine;
use tautline_report::table;
use tautline_testbed::hosts::{EndKind, Hosts};

use super::{CommonArguments, EndArguments, PLACEMENT_REMEDY, latencies, with_progress};
use taut::cli::CommandError;
use taut::units;
use tautline_bench::ordinary::{
    self, Attached, OrdinaryError, Outcome, RoundTrips, Settings, Stream,
};
use tautline_bench::path::PathError;

/// Arguments of `taut-lab bench ordinary`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Turns of each kind of traffic on each cable: 1,000 round trips, 0.2 s of a stream.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = units::count)]
    turns: u64,
    #[command(flatten)]
    ends: EndArguments,
    #[command(flatten)]
    common: CommonArguments,
}

/// Makes two hosts, measures, removes them.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let end_kind = arguments.ends.over;
    let settings = Settings {
        turns: arguments.turns,
        attached: Attached::on(end_kind),
        placement: arguments.common.placement(),
    };
    let hosts = Hosts::create(&ordinary::hosts_options(end_kind))
        .map_err(|error| explain(OrdinaryError::Hosts(error)))?;
    let outcome = with_progress("turns", |progress| {
        ordinary::run(&hosts, &settings, progress)
    });
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let common = &arguments.common;
    common.print(&outcome.json(&machine), &text(&outcome, end_kind, &machine))
}

fn explain(error: OrdinaryError) -> CommandError {
    let what = error.to_string();
    match error {
        OrdinaryError::Hosts(error) | OrdinaryError::Path(PathError::Hosts(error)) => {
            CommandError::failed(what, error.remedy())
        }
        OrdinaryError::Node(error) => CommandError::failed(what, error.remedy()),
        OrdinaryError::Port(error) => CommandError::failed(what, error.remedy()),
        OrdinaryError::Scheduling(_) => CommandError::failed(what, PLACEMENT_REMEDY),
        OrdinaryError::Interrupted(signal) => CommandError::interrupted(signal),
        _ => CommandError::failed(
            what,
            "try again on a quieter machine; `taut doctor` shows what this machine can do",
        ),
    }
}

fn text(outcome: &Outcome, end_kind: EndKind, machine: &Machine) -> String {
    let header = [
        "demux",
        "bytes",
        "count",
        "lost",
        "min µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "p50 / untouched",
        "p99 / untouched",
    ];
    let round_trips = outcome.round_trips.iter();
    let round_trips = table::figures(&header, round_trips.map(|row| round_trip(outcome, row)));
    let header = ["demux", "TCP", "Gbit/s", "/ untouched"];
    let streams = outcome.streams.iter();
    let streams = table::figures(&header, streams.map(|row| stream(outcome, row)));
    [
        machine.summary(),
        format!(
            "cost of a demux for ordinary traffic, {} turns; {}; {}, offloads: {}",
            outcome.settings.turns,
            outcome.settings.placement.text(),
            end_kind.name(),
            outcome.offloads
        ),
        "kernel UDP, round trips, both sides spin:".to_owned(),
        round_trips,
        "TCP, median turn:".to_owned(),
        streams,
    ]
    .join("\n")
}

fn round_trip(outcome: &Outcome, row: &RoundTrips) -> Vec<String> {
    let summary = row.histogram.summary();
    let mut cells = vec![
        row.attached.text().to_owned(),
        row.bytes.to_string(),
        summary.count.to_string(),
        row.lost.to_string(),
    ];
    cells.extend(latencies(&summary));
    cells.extend(match outcome.of_untouched(row) {
        Some(shares) => shares.map(|share| format!("{share:.2}")),
        None => ["–", "–"].map(str::to_owned),
    });
    cells
}

fn stream(outcome: &Outcome, row: &Stream) -> Vec<String> {
    let share = outcome.rate_of_untouched(row);
    vec![
        row.attached.text().to_owned(),
        row.direction.text().to_owned(),
        format!("{:.2}", row.bits_per_s() / 1e9),
        share.map_or("–".to_owned(), |share| format!("{share:.2}")),
    ]
}
