//! Results of experiments, for a terminal, as JSON and as a page. The JSON is described in
//! docs/reference/experiments.md.

use serde_json::{Value, json};
use tautline_machine::Machine;
use tautline_report::page::{self, Block, Level, Page};

use super::{Figure, Outcome};
use tautline_report::table;

/// One run of the command: what it was, and where.
#[derive(Clone, Debug)]
pub struct Run {
    /// The machine.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// Whether periods and counts were scaled down.
    pub quick: bool,
}

/// Result of a figure that was asked for.
#[derive(Clone, Debug)]
pub enum Ended {
    /// It was measured.
    Measured(Box<Outcome>),
    /// It was not, and why.
    Failed {
        /// The figure.
        figure: &'static Figure,
        /// Failure, with its remedy.
        reason: String,
    },
}

/// For the terminal.
pub fn text(run: &Run, outcome: &Outcome) -> String {
    let mut lines = vec![
        format!("{}: {}", outcome.figure.name, outcome.figure.title),
        run.machine.summary(),
        outcome
            .settings
            .iter()
            .map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value)))
            .collect::<Vec<_>>()
            .join("; "),
    ];
    let width = outcome
        .active
        .iter()
        .map(|(path, _)| path.chars().count())
        .max()
        .unwrap_or(0);
    lines.extend(
        outcome
            .active
            .iter()
            .map(|(path, text)| format!("  {path:<width$}  {text}")),
    );
    let header: Vec<&str> = outcome.table.0.iter().map(String::as_str).collect();
    lines.push(table::figures(&header, outcome.table.1.clone()));
    lines.extend(
        outcome
            .remarks
            .iter()
            .map(|remark| format!("note: {remark}")),
    );
    lines.extend(outcome.checks.iter().map(|check| {
        let sign = if check.met { "met" } else { "MISSED" };
        format!("{sign}: {}: {}", check.target, check.found)
    }));
    lines.push(format!("{}: {}", outcome.figure.name, outcome.line()));
    lines.join("\n") + "\n"
}

/// Values of one setting that are shown; more would hide the other settings.
const SHOWN_MAX: usize = 8;

/// A setting's value without quotes.
fn plain(value: &Value) -> String {
    match value {
        // A course over time: it is in the result file and in a plot.
        Value::Array(many) if many.len() > SHOWN_MAX => format!("{} values", many.len()),
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

/// The result file of one figure.
pub fn json(run: &Run, outcome: &Outcome) -> Value {
    let mut settings = outcome.settings.clone();
    settings.insert(
        "active".to_owned(),
        outcome
            .active
            .iter()
            .map(|(path, text)| (path.clone(), text.clone().into()))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    );
    json!({
        "experiment": outcome.figure.name,
        "source": outcome.figure.source,
        "title": outcome.figure.title,
        "command": run.command,
        "quick": run.quick,
        "machine": run.machine,
        "settings": settings,
        "rows": outcome.rows,
        "checks": outcome.checks,
        "remarks": outcome.remarks,
        "line": outcome.line(),
    })
}

/// One page of everything that was run.
pub fn html(run: &Run, all: &[Ended]) -> String {
    let title = match all {
        [Ended::Measured(outcome)] => format!("{}: {}", outcome.figure.name, outcome.figure.title),
        _ => "Figures of the papers, run again".to_owned(),
    };
    let mut page = Page::new(title, run.machine.summary());
    if run.machine.is_virtual.known() != Some(&false) {
        page.verdict(
            Level::Note,
            "Compare the paths with each other, not with other machines",
            &["This is a virtual machine or may be one: its host adds pauses of its own, which fall on all paths alike."],
        );
    }
    if all.len() > 1 {
        page.section("In a line each", [lines(all)]);
    }
    let mut shown = Vec::new();
    for ended in all {
        match ended {
            Ended::Measured(outcome) => section(&mut page, outcome, &mut shown),
            Ended::Failed { figure, reason } => {
                page.section(
                    figure.name,
                    [page::paragraph(&format!("Not measured: {reason}"))],
                );
            }
        }
    }
    page.section("Command", [page::verbatim(&run.command)]);
    page.section("Machine", [page::key_values(&run.machine.rows())]);
    page.html()
}

/// The figures with their lines, for the top of a page of several.
fn lines(all: &[Ended]) -> Block {
    let rows: Vec<(&str, String)> = all
        .iter()
        .map(|ended| match ended {
            Ended::Measured(outcome) => (outcome.figure.name, outcome.line()),
            Ended::Failed { figure, reason } => (figure.name, format!("not measured: {reason}")),
        })
        .collect();
    page::key_values(&rows)
}

/// A figure's part of the page. `shown` has the drawings above it, with the figure that they stand at: those of one
/// measurement share theirs.
fn section(page: &mut Page, outcome: &Outcome, shown: &mut Vec<(String, &'static str)>) {
    let figure = outcome.figure;
    let mut blocks = vec![page::paragraph(&outcome.line())];
    let mut repeated = None;
    for plot in &outcome.plots {
        let svg = plot.svg.clone().unwrap_or_default();
        match shown
            .iter()
            .find(|(other, _)| !svg.is_empty() && *other == svg)
        {
            Some((_, name)) => repeated = Some(*name),
            None => {
                shown.push((svg, figure.name));
                blocks.push(plot.block.clone());
            }
        }
    }
    match repeated {
        Some(name) => blocks.push(page::paragraph(&format!(
            "Plots, table and settings stand at {name}: one measurement makes these figures."
        ))),
        None => blocks.push(table_block(outcome)),
    }
    if !outcome.checks.is_empty() {
        blocks.push(checks(outcome));
    }
    if repeated.is_none() {
        blocks.extend(outcome.remarks.iter().map(|remark| page::paragraph(remark)));
        blocks.push(page::folded(
            "Settings, and what was active",
            [settings(outcome)],
        ));
    }
    page.section(&format!("{}: {}", figure.name, figure.title), blocks);
}

fn table_block(outcome: &Outcome) -> Block {
    let mut table = page::Table::new(outcome.table.0.iter().map(String::as_str));
    for row in &outcome.table.1 {
        table.row(row.iter().map(String::as_str));
    }
    table.html()
}

fn checks(outcome: &Outcome) -> Block {
    let rows: Vec<(&str, String)> = outcome
        .checks
        .iter()
        .map(|check| {
            let met = if check.met { "✓ met" } else { "✗ missed" };
            (check.target.as_str(), format!("{met}: {}", check.found))
        })
        .collect();
    page::key_values(&rows)
}

fn settings(outcome: &Outcome) -> Block {
    let named = outcome
        .settings
        .iter()
        .map(|(name, value)| (name.replace('_', " "), plain(value)));
    let rows: Vec<(String, String)> = named.chain(outcome.active.iter().cloned()).collect();
    page::key_values(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Check, figures};

    fn figure(name: &str) -> &'static Figure {
        let mut all = figures();
        all.find(|(_, figure)| figure.name == name).unwrap().1
    }

    fn outcome(name: &str) -> Outcome {
        let mut outcome = Outcome::of(figure(name));
        outcome.here = "<here>".to_owned();
        outcome.set("state_bytes", 1024);
        outcome.active = vec![("tcp".to_owned(), "kernel".to_owned())];
        outcome.table = (
            vec!["path".into(), "p50".into()],
            vec![vec!["tcp".into(), "1 µs".into()]],
        );
        outcome.rows = vec![json!({"path": "tcp"})];
        outcome.checks = vec![Check {
            target: "below".into(),
            found: "above".into(),
            met: false,
        }];
        outcome.plots = vec![crate::experiment::Plot {
            block: page::paragraph("the plot"),
            svg: Some("<svg/>".into()),
        }];
        outcome
    }

    fn run() -> Run {
        Run {
            machine: Machine::default(),
            command: "taut experiment run <x>".to_owned(),
            quick: true,
        }
    }

    #[test]
    fn the_result_file_has_its_keys() {
        let json = json(&run(), &outcome("rtdip-fig4"));
        for key in [
            "experiment",
            "source",
            "command",
            "quick",
            "machine",
            "settings",
            "rows",
            "checks",
            "line",
        ] {
            assert!(!json[key].is_null(), "{key}");
        }
        assert_eq!(json["settings"]["active"]["tcp"], "kernel");
        assert_eq!(json["checks"][0]["met"], false);
    }

    #[test]
    fn a_missed_target_is_said_as_plainly_as_a_met_one() {
        let text = text(&run(), &outcome("rtdip-fig4"));
        assert!(text.contains("MISSED: below: above"), "{text}");
        assert!(text.contains("state bytes 1024"), "{text}");
    }

    #[test]
    fn drawings_of_one_measurement_stand_once_and_failures_are_named() {
        let failed = Ended::Failed {
            figure: figure("rtdip-fig6"),
            reason: "no <privilege>".to_owned(),
        };
        let all = ["rtdip-fig4", "rtdip-fig5"].map(|name| Ended::Measured(Box::new(outcome(name))));
        let [first, second] = all;
        let html = html(&run(), &[first, second, failed]);
        assert_eq!(html.matches("the plot").count(), 1);
        assert!(html.contains("stand at rtdip-fig4"));
        assert!(html.contains("no &lt;privilege&gt;") && !html.contains("<here>"));
    }
}
