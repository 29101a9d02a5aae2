//! `taut task`: real-time tasks of one CPU, analysed, run and watched.

mod check;
mod guests;
mod ports;
mod run;
mod show;
mod trace;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use tautline_exec::TaskSet;
use tautline_report::page::Page;
use tautline_report::plot::latency_text;
use tautline_report::table::Cell;
use tautline_report::text::terminal_columns;
use tautline_state::text;
use tautline_tasks::{Times, View};

use crate::cli::{self, CommandError};
use crate::task::measured::{TracedTask, trace_events};
use crate::units::ns;

pub use run::{cpu, try_cpu};

/// Width of a picture that goes to no terminal, in columns.
const COLUMNS_DEFAULT: usize = 100;
/// Characters of names from other programs that are shown. Lower: paths are cut. Higher: one name fills a line.
const NAME_CHARS_MAX: usize = 64;

/// Arguments of `taut task`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Analyse a task set: response times, slack, and a picture of a hyperperiod. Exit status 1 if it is refused.
    Check(check::Arguments),
    /// Run a task set: its programs, or a rehearsal of its declared times. Exit status 1 if a deadline was missed.
    Run(run::Arguments),
    /// Show the tasks that run on this machine: jobs, response times, missed deadlines.
    Show(show::Arguments),
    /// Record who ran when, for a moment, and draw it.
    Trace(trace::Arguments),
}

/// Runs the action.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.action {
        Action::Check(arguments) => check::run(&arguments),
        Action::Run(arguments) => run::run(&arguments),
        Action::Show(arguments) => show::run(&arguments),
        Action::Trace(arguments) => trace::run(&arguments),
    }
}

/// Which runs are meant.
#[derive(Debug, Args)]
struct RunArguments {
    /// The run of this process only [default: all that this user may see].
    #[arg(value_name = "PID")]
    process: Option<u32>,
}

impl RunArguments {
    /// The runs that are meant; one that is named must be there.
    fn views(&self) -> Result<Vec<View>, CommandError> {
        let mut views = tautline_tasks::runs();
        if let Some(process) = self.process {
            views.retain(|view| view.description().process == process);
            if views.is_empty() {
                return Err(CommandError::failed(
                    format!("process {process} runs no task set, or not for this user to see"),
                    "`taut task show` lists those that there are",
                ));
            }
        }
        Ok(views)
    }
}

/// Files that the jobs of a run are written to.
#[derive(Debug, Args)]
struct PictureFiles {
    /// Write a page with the picture.
    #[arg(long, value_name = "FILE", value_parser = cli::result_file())]
    html: Option<PathBuf>,
    /// Write the jobs in the Trace Event Format, which ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE", value_parser = cli::result_file())]
    perfetto: Option<PathBuf>,
}

impl PictureFiles {
    /// Paths that were named.
    fn paths(&self) -> [Option<&Path>; 2] {
        [self.html.as_deref(), self.perfetto.as_deref()]
    }

    /// Writes those that were named.
    fn write(
        &self,
        process: u32,
        name: &str,
        tasks: &[TracedTask],
        page: impl FnOnce() -> Page,
    ) -> Result<(), CommandError> {
        cli::all([
            match &self.html {
                Some(path) => cli::write_file(path, &page().html()),
                None => Ok(()),
            },
            match &self.perfetto {
                Some(path) => {
                    let events = trace_events(process, name, tasks);
                    cli::write_file(path, &format!("{events}\n"))
                }
                None => Ok(()),
            },
        ])
    }
}

/// Number of the tasks of a set.
fn task_count(set: &TaskSet) -> String {
    match set.tasks().len() {
        1 => "1 task".to_owned(),
        count => format!("{count} tasks"),
    }
}

/// Columns of a picture: those of the terminal.
fn picture_columns() -> usize {
    terminal_columns().unwrap_or(COLUMNS_DEFAULT)
}

/// A name from another program, fit to be printed.
fn name(text: &str) -> String {
    text::plain(text, NAME_CHARS_MAX)
}

/// Time left to a deadline, below zero if it was exceeded.
fn slack(deadline: Duration, longest: Duration) -> Cell {
    let signed = |time| i64::try_from(ns(time)).unwrap_or(i64::MAX);
    Cell::SignedTime(signed(deadline).saturating_sub(signed(longest)))
}

/// Median, 99th percentile and maximum.
fn ends(times: &Times) -> [Duration; 3] {
    [times.p50, times.p99, times.max]
}

/// Line about a task that messages activate.
pub fn latency_line(task: &str, p50_p99_max: [Duration; 3]) -> String {
    let [p50, p99, max] = p50_p99_max.map(time);
    format!(
        "{task}: from the arrival of a message to the end of its job p50 {p50}, p99 {p99}, max {max}\n"
    )
}

/// A time in a column of times.
pub fn time_cell(time: Duration) -> Cell {
    Cell::Time(ns(time))
}

fn time(time: Duration) -> String {
    latency_text(ns(time))
}
