//! `taut task trace`: who ran when, recorded for a moment and drawn.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tautline_report::page::{self, Page};
use tautline_tasks::{Description, TracedJob, View};

use crate::cli::{self, CommandError};
use crate::commands::live::pause;
use crate::commands::output::JsonArguments;
use crate::task::measured::TracedTask;
use crate::task::picture::Picture;
use crate::units::{self, ns};

use super::{PictureFiles, RunArguments, name, picture_columns};

/// Distance of looks. Lower: more of a CPU for watching. Higher: jobs of a task with a period below 50 µs are missed.
const LOOK: Duration = Duration::from_millis(100);

/// Periods of the slowest task that are drawn. Lower: its rhythm is not seen. Higher: the fast tasks' jobs merge.
const PERIODS_DRAWN: u32 = 4;

/// Arguments of `taut task trace`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    runs: RunArguments,
    /// Time to record, such as 500ms.
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = units::some_time)]
    length: Duration,
    #[command(flatten)]
    json: JsonArguments,
    #[command(flatten)]
    files: PictureFiles,
}

/// Records, prints the picture, and writes the files.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let files = &arguments.files;
    arguments.json.shows_table(&files.paths())?;
    let mut views = arguments.runs.views()?;
    let mut view = match views.len() {
        1 => views.remove(0),
        0 => {
            return Err(CommandError::failed(
                "no task set runs, or none for this user to see".to_owned(),
                "start one with `taut task run FILE`",
            ));
        }
        _ => {
            let runs: Vec<String> = views
                .iter()
                .map(|view| view.description().process.to_string())
                .collect();
            return Err(CommandError::usage(
                format!("processes {} run task sets", runs.join(", ")),
                "say which: taut task trace PID",
            ));
        }
    };
    let recording = Recording::take(&mut view, arguments.length)?;
    let about = view.description();
    let title = format!("{} (process {})", name(&about.name), about.process);
    let releases = recording
        .tasks
        .iter()
        .filter_map(|task| Some(task.jobs.first()?.release));
    let Some(from) = releases.min() else {
        return Err(CommandError::failed(
            format!("{title}: no job ended in this time"),
            "record for longer with --for; `taut task show` has the state of each task",
        ));
    };
    let longest = about.tasks.iter().map(|task| task.period).max();
    let drawn = longest.unwrap_or_default().saturating_mul(PERIODS_DRAWN);
    let picture = Picture::of_run(&recording.tasks, from, drawn.min(arguments.length));
    let lines = recording.lines();
    let page = || {
        let mut page = Page::new(format!("Tasks of {title}"), "Who ran when");
        page.section("Time line", [picture.chart().html()]);
        page.section("Recorded", [page::verbatim(&lines)]);
        page
    };
    let text = || {
        let drawn = picture.text(picture_columns());
        format!("{title}\n{}\n{drawn}{lines}\n", picture.caption())
    };
    cli::all([
        arguments
            .json
            .print_beside(&files.paths(), || recording.json(about), text),
        files.write(about.process, &title, &recording.tasks, page),
    ])
}

/// Jobs of a run that ended while it was watched.
struct Recording {
    tasks: Vec<TracedTask>,
    /// Jobs that were over before they were seen.
    missed: u64,
}

impl Recording {
    fn take(view: &mut View, length: Duration) -> Result<Recording, CommandError> {
        let gone = |error: std::io::Error| {
            CommandError::failed(
                format!("the run cannot be watched any more: {error}"),
                "`taut task show` lists those that there are",
            )
        };
        let described = view.description().tasks.iter();
        let task = |task: &tautline_tasks::TaskDescription| TracedTask {
            name: name(&task.name),
            priority: task.priority,
            jobs: Vec::new(),
        };
        let mut recording = Recording {
            tasks: described.map(task).collect(),
            missed: 0,
        };
        let first = view.look().map_err(gone)?;
        let mut seen: Vec<u64> = first.tasks().map(|task| task.jobs).collect();
        let end = Instant::now() + length;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let is_over = pause(left.min(LOOK)).is_some() || left.is_zero() || !view.is_alive();
            let look = view.look().map_err(gone)?;
            for (index, task) in recording.tasks.iter_mut().enumerate() {
                let (jobs, now) = look.trace(index, seen[index]);
                recording.missed += now.saturating_sub(seen[index] + jobs.len() as u64);
                seen[index] = now;
                task.jobs.extend(jobs);
            }
            if is_over {
                return Ok(recording);
            }
        }
    }

    fn json(&self, about: &Description) -> Value {
        let job = |job: &TracedJob| {
            json!({
                "release_ns": ns(job.release),
                "deadline_ns": ns(job.deadline),
                "begin_ns": ns(job.begin),
                "end_ns": ns(job.end),
            })
        };
        let task = |task: &TracedTask| {
            json!({
                "name": task.name,
                "priority": task.priority,
                "jobs": task.jobs.iter().map(job).collect::<Value>(),
            })
        };
        json!({
            "name": about.name,
            "process": about.process,
            "tasks": self.tasks.iter().map(task).collect::<Value>(),
            "missed": self.missed,
        })
    }

    /// Counts of the recording, a line for each task.
    fn lines(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for task in &self.tasks {
            let late = task
                .jobs
                .iter()
                .filter(|job| job.end > job.deadline)
                .count();
            lines.push(format!(
                "{}: {} jobs, {late} after their deadline",
                task.name,
                task.jobs.len()
            ));
        }
        if self.missed > 0 {
            lines.push(format!(
                "{} more jobs came too fast to be recorded",
                self.missed
            ));
        }
        lines.join("\n")
    }
}
