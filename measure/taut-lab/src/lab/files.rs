//! `taut-lab lab report` and `taut-lab lab compare`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tautline_lab::compare::{Comparison, UNKNOWN};
use tautline_lab::report;
use tautline_lab::result::LabResult;

use super::{answer, unusable};
use taut::cli::{self, CommandError, print, result_file, write_file};
use taut::commands::output::JsonArguments;
use taut::units::counted;
use tautline_report::table;

/// Arguments of `taut-lab lab report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Results: files of taut lab, of cyclictest --json or of cyclictest --histfile.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// File for the page; - is standard output.
    #[arg(long, value_name = "FILE", default_value = "lab.html", value_parser = result_file())]
    pub html: PathBuf,
}

/// Arguments of `taut-lab lab compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// Results; the first file has the baseline.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Share by which a percentile may be higher without being worse.
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, value_parser = tolerance)]
    pub tolerance: f64,
    /// Write a page.
    #[arg(long, value_name = "FILE", value_parser = result_file())]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Reads a share: with one that is no number nothing would ever be worse.
fn tolerance(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    let share = share.filter(|share: &f64| share.is_finite() && *share >= 0.0);
    share.ok_or_else(|| "expected a share from 0 on, such as 0.25".to_owned())
}

/// Runs `taut-lab lab report`.
pub(super) fn report(arguments: &ReportArguments) -> Result<(), CommandError> {
    let mut results = Vec::new();
    for file in &arguments.files {
        results.extend(LabResult::read_many(file).map_err(unusable)?);
    }
    write_file(&arguments.html, &report::page("taut lab report", &results))?;
    if arguments.html != Path::new("-") {
        print(&format!(
            "{} on {}\n",
            counted(results.len(), "result"),
            arguments.html.display()
        ))?;
    }
    Ok(())
}

/// Runs `taut-lab lab compare`.
pub(super) fn compare(arguments: &CompareArguments) -> Result<(), CommandError> {
    let html = arguments.html.as_deref();
    arguments.json.shows_table(&[html])?;
    let files: Vec<Vec<LabResult>> = arguments
        .files
        .iter()
        .map(|file| LabResult::read_many(file))
        .collect::<Result<_, _>>()
        .map_err(unusable)?;
    let pairs: Vec<Pair<'_>> = pair(&files)
        .into_iter()
        .map(|(baseline, other)| {
            (
                baseline,
                other,
                Comparison::of(baseline, other, arguments.tolerance),
            )
        })
        .collect();
    if pairs.is_empty() {
        return Err(CommandError::usage(
            "nothing to compare",
            "give two results, or two files of several results with names in common",
        ));
    }
    cli::all([
        arguments.json.print_beside(
            &[html],
            || json!({ "comparisons": pairs.iter().map(comparison_json).collect::<Value>() }),
            || pairs.iter().map(comparison_text).collect(),
        ),
        match html {
            Some(path) => write_file(path, &report::comparison_page(&pairs)),
            None => Ok(()),
        },
    ])?;
    // The worst of the answers: worse, then inconclusive, then good.
    let statuses: Vec<u8> = pairs
        .iter()
        .map(|(.., comparison)| comparison.exit_status())
        .collect();
    answer(if statuses.contains(&3) {
        3
    } else {
        statuses.into_iter().max().unwrap_or(4)
    })
}

/// Baselines and what is compared with them. One file: its first result is the baseline of its others. Several: the
/// first file has the baselines, one for all, or one for each name.
fn pair(files: &[Vec<LabResult>]) -> Vec<(&LabResult, &LabResult)> {
    match files {
        [one] => one.iter().skip(1).map(|other| (&one[0], other)).collect(),
        [baselines, others @ ..] => others
            .iter()
            .flatten()
            .filter_map(|other| {
                let baseline = match baselines.as_slice() {
                    [only] => only,
                    many => many.iter().find(|baseline| baseline.label == other.label)?,
                };
                Some((baseline, other))
            })
            .collect(),
        [] => Vec::new(),
    }
}

/// A baseline, what is compared with it, and how they differ.
type Pair<'a> = (&'a LabResult, &'a LabResult, Comparison);

fn comparison_json((baseline, other, comparison): &Pair<'_>) -> Value {
    let differences = comparison.differences.iter().map(|difference| {
        json!({
            "state": difference.state,
            "load": difference.load,
            "figure": difference.figure,
            "before_ns": difference.before_ns,
            "after_ns": difference.after_ns,
            "judged": difference.is_judged,
            "worse": difference.is_regression,
        })
    });
    json!({
        "baseline": baseline.label,
        "other": other.label,
        "differences": Value::from_iter(differences),
        "remarks": comparison.remarks,
        "worse": comparison.is_regression(),
        "conclusive": comparison.is_conclusive(),
    })
}

fn comparison_text((baseline, other, comparison): &Pair<'_>) -> String {
    let rows = comparison.differences.iter().map(|difference| {
        vec![
            format!(
                "{}, {}",
                difference.load,
                report::state_name(difference.state)
            ),
            difference.figure.to_owned(),
            difference
                .before_ns
                .map_or(UNKNOWN.to_owned(), table::microseconds),
            difference
                .after_ns
                .map_or(UNKNOWN.to_owned(), table::microseconds),
            difference.ratio_text(),
            match (difference.is_regression, difference.is_judged) {
                (true, _) => "WORSE",
                (false, true) => "no worse",
                _ => "not judged",
            }
            .to_owned(),
        ]
    });
    let mut text = format!("{} against {}\n", other.label, baseline.label);
    text += &table::figures(
        &[
            "load",
            "figure",
            "before µs",
            "after µs",
            "ratio",
            "judgement",
        ],
        rows,
    );
    for remark in &comparison.remarks {
        text += &format!("note: {remark}\n");
    }
    text += match (comparison.is_regression(), comparison.is_conclusive()) {
        (true, _) => "worse\n",
        (false, true) => "no worse\n",
        _ => {
            "nothing could be compared: no load in common, too few samples, or unknown percentiles\n"
        }
    };
    text
}
