//! `taut-lab experiment`: see [`tautline_bench::experiment`].

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use taut::say;
use tautline_machine::Machine;

use taut::cli::{self, CommandError};
use taut::commands::output::JsonArguments;
use tautline_bench::experiment::report::{self, Ended, Run};
use tautline_bench::experiment::{
    self, Assignment, Experiment, ExperimentError, Figure, Outcome, Parameter, Request, Scale,
    Values,
};

/// Stands for every experiment.
const EVERYTHING: &str = "all";

/// Arguments of `taut-lab experiment`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the experiments: name, figure, what is measured.
    List(ListArguments),
    /// Run experiments: raw data, plots, a page, and the line "the paper: …, here: …".
    Run(RunArguments),
}

/// Arguments of `taut-lab experiment list`.
#[derive(Debug, Args)]
struct ListArguments {
    #[command(flatten)]
    json: JsonArguments,
}

/// Arguments of `taut-lab experiment run`.
#[derive(Debug, Args)]
struct RunArguments {
    /// Names from `taut-lab experiment list`, or `all`.
    #[arg(required = true, value_name = "NAME", value_parser = names())]
    names: Vec<String>,
    /// Scale periods and counts down, so that most take a minute or less.
    #[arg(long)]
    quick: bool,
    /// Measure next to nothing: for tests.
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
    /// Set a parameter of an experiment; may be repeated. The error for a wrong name lists the right ones.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Assignment>,
    /// Directory for NAME.json (raw data), NAME.svg (plots) and report.html; it is made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "taut-experiments")]
    out: PathBuf,
    #[command(flatten)]
    json: JsonArguments,
    /// Write the page into this file.
    #[arg(long, value_name = "FILE", value_parser = cli::result_file())]
    html: Option<PathBuf>,
}

fn names() -> PossibleValuesParser {
    let names = experiment::figures().map(|(_, figure)| figure.name);
    PossibleValuesParser::new(names.chain([EVERYTHING]))
}

/// Lists or runs.
pub(crate) fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.action {
        Action::List(arguments) => list(&arguments),
        Action::Run(arguments) => run_named(&arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<(), CommandError> {
    let json = || {
        let all = experiment::figures().map(|(experiment, figure)| {
            let parameters = experiment.parameters.iter().map(|one| {
                let (least, most) = one.range;
                json!({"name": one.name, "meaning": one.meaning, "least": least, "most": most})
            });
            json!({
                "name": figure.name,
                "source": figure.source,
                "title": figure.title,
                "paper": figure.found,
                "parameters": Value::from_iter(parameters),
            })
        });
        json!({ "figures": Value::from_iter(all) })
    };
    let width = experiment::figures()
        .map(|(_, figure)| figure.name.len())
        .max()
        .unwrap_or(0);
    let lines = experiment::figures().map(|(_, figure)| {
        format!(
            "{:<width$}  {}: {}\n",
            figure.name, figure.source, figure.title
        )
    });
    arguments.json.print(json, || lines.collect())
}

fn run_named(arguments: &RunArguments) -> Result<(), CommandError> {
    let shows_table = arguments.json.shows_table(&[arguments.html.as_deref()])?;
    let request = request(arguments)?;
    // Before anything is measured, so that nothing is measured in vain.
    cli::make_directory(&arguments.out)?;
    let run = Run {
        machine: Machine::read(),
        command: command_line(),
        quick: arguments.quick,
    };
    let mut all = Vec::new();
    let (mut failed, mut written) = (None, Ok(()));
    for experiment in experiment::ALL {
        let wanted: Vec<&Figure> = experiment
            .figures
            .iter()
            .filter(|figure| is_wanted(&arguments.names, figure))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        match measure(experiment, &request) {
            Ok(outcomes) => {
                let outcomes = outcomes
                    .into_iter()
                    .filter(|one| wanted.contains(&one.figure));
                for outcome in outcomes {
                    if shows_table {
                        cli::print(&(report::text(&run, &outcome) + "\n"))?;
                    }
                    let files = write_files(arguments, &run, &outcome);
                    written = written.and(files);
                    all.push(Ended::Measured(Box::new(outcome)));
                }
            }
            Err(ExperimentError::Interrupted(signal)) => {
                return Err(CommandError::interrupted(signal));
            }
            Err(error) => {
                let reason = format!("{error}; {}", error.remedy());
                all.extend(wanted.iter().map(|figure| Ended::Failed {
                    figure,
                    reason: reason.clone(),
                }));
                say!("taut: {}: {error}", wanted[0].name);
                failed = Some((wanted[0].name, error));
            }
        }
    }
    cli::all([written, write_all(arguments, &run, &all, shows_table)])?;
    match failed {
        Some((name, error)) => Err(CommandError::failed(
            format!("{name}: {error}"),
            error.remedy(),
        )),
        None => Ok(()),
    }
}

/// Request of the user, checked against the parameters of the experiments named.
fn request(arguments: &RunArguments) -> Result<Request, CommandError> {
    let parameters: Vec<&'static Parameter> = experiment::ALL
        .into_iter()
        .filter(|one| {
            one.figures
                .iter()
                .any(|figure| is_wanted(&arguments.names, figure))
        })
        .flat_map(|one| one.parameters)
        .collect();
    let values = Values::of(&arguments.set, &parameters).map_err(|error| {
        CommandError::usage(
            error.to_string(),
            "give --set NAME=VALUE with one of these, or leave it out",
        )
    })?;
    let scale = match (arguments.quick, arguments.tiny) {
        (true, _) => Scale::Quick,
        (_, true) => Scale::Tiny,
        _ => Scale::Full,
    };
    Ok(Request { scale, values })
}

fn is_wanted(names: &[String], figure: &Figure) -> bool {
    names
        .iter()
        .any(|name| name == EVERYTHING || name == figure.name)
}

/// As the user typed it, with the program's name alone.
fn command_line() -> String {
    let arguments = std::env::args_os().skip(1);
    let words = arguments.map(|word| format!(" {}", word.to_string_lossy()));
    format!("taut{}", words.collect::<String>())
}

fn measure(experiment: &Experiment, request: &Request) -> Result<Vec<Outcome>, ExperimentError> {
    // Drawn on standard error, and only if that is a terminal.
    let style = ProgressStyle::with_template("{prefix} {bar:40} {percent:>3} %, {eta} left")
        .expect("the template is a constant");
    let bar = ProgressBar::new(0)
        .with_style(style)
        .with_prefix(experiment.figures[0].name);
    let outcomes = (experiment.run)(request, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    outcomes
}

/// The files of one figure.
fn write_files(arguments: &RunArguments, run: &Run, outcome: &Outcome) -> Result<(), CommandError> {
    let file = |extension: &str| {
        arguments
            .out
            .join(format!("{}.{extension}", outcome.figure.name))
    };
    cli::write_file(
        &file("json"),
        &format!("{:#}\n", report::json(run, outcome)),
    )?;
    let drawings = outcome.plots.iter().filter_map(|plot| plot.svg.as_ref());
    for (index, svg) in drawings.enumerate() {
        let extension = match index {
            0 => "svg".to_owned(),
            more => format!("{}.svg", more + 1),
        };
        cli::write_file(&file(&extension), svg)?;
    }
    Ok(())
}

/// Files that are written once: the page, and the raw data where the user wants them.
fn write_all(
    arguments: &RunArguments,
    run: &Run,
    all: &[Ended],
    shows_table: bool,
) -> Result<(), CommandError> {
    let page = arguments
        .html
        .clone()
        .unwrap_or_else(|| arguments.out.join("report.html"));
    let written = cli::write_file(&page, &report::html(run, all));
    let mut json_written = Ok(());
    if let Some(file) = arguments.json.path() {
        let results = all.iter().filter_map(|ended| match ended {
            Ended::Measured(outcome) => Some(report::json(run, outcome)),
            Ended::Failed { .. } => None,
        });
        let json = json!({ "figures": results.collect::<Value>() });
        json_written = cli::write_file(file, &format!("{json:#}\n"));
    }
    cli::all([written, json_written])?;
    if shows_table {
        cli::print(&format!(
            "raw data and plots: {}, page: {}\n",
            arguments.out.display(),
            page.display()
        ))?;
    }
    Ok(())
}
