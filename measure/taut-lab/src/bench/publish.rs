//! `taut-lab bench bus --subscribers`: publishing to many, beside iceoryx2.

use tautline_bench::vbus::publish::{self, Outcome, Row, Settings};
use tautline_machine::Machine;
use tautline_report::table;

use super::vbus::{Arguments, explain, ratio, targets};
use super::{with_progress, without_repeats};
use taut::cli::CommandError;

/// Measures and prints.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let settings = Settings {
        subscribers: without_repeats(&arguments.subscribers),
        bytes: arguments.publish_size,
        rounds: arguments.rounds,
        slice: arguments.paced_slice,
        period: arguments.period,
        iceoryx2: arguments.iceoryx2(),
        placement: arguments.common.placement(),
    };
    let outcome = with_progress("slices", |progress| publish::run(&settings, progress));
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let text = text(&outcome, &machine);
    arguments.common.print(&outcome.json(&machine), &text)
}

fn text(outcome: &Outcome, machine: &Machine) -> String {
    let settings = &outcome.settings;
    let about = format!(
        "publishing {} bytes: {} rounds of slices that take turns, one before them not counted, of {} messages each; the next comes \
         when all have taken the last, for those that sleep after {} µs; {}; a ratio is the median of the rounds'",
        settings.bytes,
        settings.rounds,
        settings.slice,
        settings.period.as_micros(),
        settings.placement.text(),
    );
    let header = [
        "subscribers",
        "they are",
        "path",
        "message",
        "count",
        "p50 ns",
        "p99 ns",
        "p50 / to 1",
        "p50 / iceoryx2",
    ];
    let rows = outcome.rows.iter().map(|row| cells(outcome, row));
    let mut lines = vec![machine.summary(), about];
    lines.extend(
        outcome
            .iceoryx2
            .iter()
            .map(|version| format!("  {version}")),
    );
    lines.push(table::figures(&header, rows));
    lines.push(targets(&outcome.targets()));
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

fn cells(outcome: &Outcome, row: &Row) -> Vec<String> {
    let summary = row.histogram.summary();
    vec![
        row.way.subscribers.to_string(),
        row.way.readers().to_owned(),
        row.way.path.to_string(),
        row.way.how().to_owned(),
        summary.count.to_string(),
        summary.p50_ns.to_string(),
        summary.p99_ns.to_string(),
        ratio(outcome.of_one(row)),
        ratio(outcome.of_iceoryx2(row)),
    ]
}
