//! `taut task top`: how busy the tasks are, again and again.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tautline_report::table::{self, Cell};
use tautline_tasks::{Look, TaskDescription, TaskState, Times, View};

use crate::cli::CommandError;
use crate::commands::live::LiveArguments;
use crate::units::ns;

use super::list::{latency_of, times_json};
use super::{RunArguments, ends, latency_line, name, slack, time, time_cell};

/// Arguments of `taut task top`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    runs: RunArguments,
    #[command(flatten)]
    live: LiveArguments,
}

const HEADER: [&str; 11] = [
    "task", "process", "jobs/s", "CPU", "missed", "p50", "p99", "p99.9", "max", "slack", "state",
];

/// Prints until it is ended. Response times are those of the last interval.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let mut before = take(&arguments.runs)?;
    arguments.live.run(|| {
        let after = take(&arguments.runs)?;
        let rows: Vec<Row> = after.iter().flat_map(|seen| rows(seen, &before)).collect();
        before = after;
        let json = json!({ "rows": rows.iter().map(Row::json).collect::<Value>() });
        Ok((json, text(&rows)))
    })
}

/// A run at one moment.
struct Seen {
    at: Instant,
    view: View,
    look: Look,
}

fn take(runs: &RunArguments) -> Result<Vec<Seen>, CommandError> {
    let look = |mut view: View| {
        let look = view.look().ok()?;
        let at = Instant::now();
        Some(Seen { at, view, look })
    };
    Ok(runs.views()?.into_iter().filter_map(look).collect())
}

/// One task in the last interval.
struct Row {
    task: TaskDescription,
    run: String,
    process: u32,
    jobs_per_second: f64,
    /// Share of the interval for which it had the CPU.
    cpu_share: f64,
    /// Since the start.
    missed: u64,
    response: Times,
    /// From the arrival of messages, where they activate the task.
    latency: Option<Times>,
    state: TaskState,
    /// Time since the release of a job that is beyond its deadline and still runs.
    late_by: Option<Duration>,
}

/// Rows of the tasks that were there at the last look, too.
fn rows(seen: &Seen, before: &[Seen]) -> Vec<Row> {
    let about = seen.view.description();
    let Some(before) = before.iter().find(|one| one.view.description() == about) else {
        return Vec::new();
    };
    let seconds = seen.at.duration_since(before.at).as_secs_f64();
    let now = now();
    let tasks = about.tasks.iter().enumerate().zip(seen.look.tasks());
    let row = |((index, task), view): ((usize, &TaskDescription), tautline_tasks::TaskView)| {
        let since = seen.look.since(&before.look, index);
        let running = view
            .running_since
            .map(|release| now.saturating_sub(release));
        Row {
            task: task.clone(),
            run: about.name.clone(),
            process: about.process,
            jobs_per_second: since.jobs as f64 / seconds,
            cpu_share: since.execution.as_secs_f64() / seconds,
            missed: view.missed,
            response: since.response,
            latency: latency_of(task, since.latency),
            state: view.state,
            late_by: running.and_then(|running| running.checked_sub(task.deadline)),
        }
    };
    tasks.map(row).collect()
}

/// `CLOCK_MONOTONIC`, the clock of the figures.
fn now() -> Duration {
    Duration::from_nanos(tautline_testbed::sys::monotonic_ns())
}

impl Row {
    fn state(&self) -> String {
        match self.late_by {
            Some(late) => format!("{}, late by {}", self.state.name(), time(late)),
            None => self.state.name().to_owned(),
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let response = self.response;
        vec![
            name(&self.task.name).into(),
            self.process.to_string().into(),
            format!("{:.0}", self.jobs_per_second).into(),
            format!("{:.1} %", 100.0 * self.cpu_share).into(),
            self.missed.to_string().into(),
            time_cell(response.p50),
            time_cell(response.p99),
            time_cell(response.p999),
            time_cell(response.max),
            slack(self.task.deadline, response.max),
            self.state().into(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "run": self.run,
            "process": self.process,
            "task": self.task.name,
            "jobs_per_second": self.jobs_per_second,
            "cpu_share": self.cpu_share,
            "missed": self.missed,
            "response": times_json(&self.response),
            "latency": self.latency.as_ref().map(times_json),
            "state": self.state,
            "late_ns": self.late_by.map(ns),
        })
    }
}

fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no task set runs, or none for this user to see\n".to_owned();
    }
    let latencies = rows.iter().filter_map(|row| {
        let latency = row.latency.as_ref()?;
        Some(latency_line(&name(&row.task.name), ends(latency)))
    });
    let latencies: String = latencies.collect();
    table::figures_in_one_unit(&HEADER, rows.iter().map(Row::cells)) + &latencies
}
