//! `taut task show`: the tasks that run on this machine.

use clap::Args;
use serde_json::{Value, json};
use tautline_report::table::{self, Cell};
use tautline_tasks::{TaskDescription, TaskView, Times, View};

use crate::cli::CommandError;
use crate::commands::output::JsonArguments;
use crate::units::ns;

use super::{RunArguments, ends, latency_line, name, slack, time_cell};

/// Arguments of `taut task show`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    runs: RunArguments,
    #[command(flatten)]
    json: JsonArguments,
}

const HEADER: [&str; 11] = [
    "task", "priority", "period", "jobs", "missed", "p50", "p99", "p99.9", "max", "slack", "state",
];

/// Prints each run with its tasks.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let mut views = arguments.runs.views()?;
    let seen: Vec<Seen> = views.iter_mut().filter_map(Seen::take).collect();
    let json = || json!({ "runs": seen.iter().map(Seen::json).collect::<Value>() });
    arguments.json.print(json, || {
        if seen.is_empty() {
            return "no task set runs, or none for this user to see\n".to_owned();
        }
        let texts: Vec<String> = seen.iter().map(Seen::text).collect();
        texts.join("\n")
    })
}

/// A run at one moment.
struct Seen<'a> {
    view: &'a View,
    mode: String,
    tasks: Vec<TaskView>,
}

impl<'a> Seen<'a> {
    /// `None` if it has just ended.
    fn take(view: &'a mut View) -> Option<Seen<'a>> {
        let look = view.look().ok()?;
        let modes = &view.description().modes;
        Some(Seen {
            mode: modes
                .get(look.mode())
                .map_or(String::new(), |mode| name(mode)),
            tasks: look.tasks().collect(),
            view,
        })
    }

    fn tasks(&self) -> impl Iterator<Item = (&TaskDescription, &TaskView)> {
        self.view.description().tasks.iter().zip(&self.tasks)
    }

    fn text(&self) -> String {
        let about = self.view.description();
        let mode = match self.mode.as_str() {
            "" => String::new(),
            mode => format!(", mode {mode}"),
        };
        let heading = format!("{} (process {}){mode}\n", name(&about.name), about.process);
        let rows = self.tasks().map(|(task, view)| row(task, view));
        let latencies = self.tasks().filter_map(|(task, view)| {
            let latency = latency_of(task, view.latency)?;
            Some(latency_line(&name(&task.name), ends(&latency)))
        });
        let latencies: String = latencies.collect();
        heading + &table::figures_in_one_unit(&HEADER, rows) + &latencies
    }

    fn json(&self) -> Value {
        let about = self.view.description();
        json!({
            "name": about.name,
            "process": about.process,
            "mode": self.mode,
            "tasks": self.tasks().map(|(task, view)| task_json(task, view)).collect::<Value>(),
        })
    }
}

fn row(task: &TaskDescription, view: &TaskView) -> Vec<Cell> {
    let response = view.response;
    vec![
        name(&task.name).into(),
        match task.priority {
            0 => "deadline".into(),
            priority => priority.to_string().into(),
        },
        time_cell(task.period),
        view.jobs.to_string().into(),
        view.missed.to_string().into(),
        time_cell(response.p50),
        time_cell(response.p99),
        time_cell(response.p999),
        time_cell(response.max),
        slack(task.deadline, response.max),
        view.state.name().into(),
    ]
}

fn task_json(task: &TaskDescription, view: &TaskView) -> Value {
    json!({
        "name": task.name,
        "priority": task.priority,
        "period_ns": ns(task.period),
        "deadline_ns": ns(task.deadline),
        "worst_case_ns": ns(task.worst_case),
        "bound_ns": task.bound.map(ns),
        "jobs": view.jobs,
        "missed": view.missed,
        "state": view.state,
        "lateness": times_json(&view.lateness),
        "response": times_json(&view.response),
        "execution": times_json(&view.execution),
        "latency": latency_of(task, view.latency).as_ref().map(times_json),
    })
}

/// Times from the arrival of a message; `None` for a task that time activates.
pub(super) fn latency_of(task: &TaskDescription, latency: Times) -> Option<Times> {
    task.is_by_message.then_some(latency)
}

/// A distribution as JSON.
pub(super) fn times_json(times: &Times) -> Value {
    json!({
        "p50_ns": ns(times.p50),
        "p99_ns": ns(times.p99),
        "p999_ns": ns(times.p999),
        "max_ns": ns(times.max),
    })
}
