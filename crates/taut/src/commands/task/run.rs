//! `taut task run`: a task set runs on this machine, and what came of it is compared with what was declared.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tautline_exec::{Action, Event, HealthRecord, Job, TaskSet};
use tautline_report::page::{self, Level, Page, Table};
use tautline_report::table::{self, Cell};
use tautline_tasks::partition::PartitionConfig;
use tautline_tasks::{Executive, Options, Running, Summary, TaskSummary};

use crate::cli::{self, CommandError};
use crate::commands::live::pause;
use crate::commands::output::JsonArguments;
use crate::commands::partition::Guard;
use crate::task::measured::TracedTask;
use crate::task::picture::Picture;
use crate::units::{self, ns};

use super::guests::Guests;
use super::show::times_json;
use super::{
    PictureFiles, ends, latency_line, picture_columns, ports, slack, task_count, time, time_cell,
};

/// Distance of looks whether all tasks have stopped, and at guests. Lower: more wake-ups beside the tasks. Higher: a
/// set that has nothing more to do ends later, and the end of a guest is known later.
const LOOK: Duration = Duration::from_millis(200);
/// Time for the jobs to end. Lower: one with a long period is left behind. Higher: ^C seems to do nothing.
const PATIENCE: Duration = Duration::from_secs(2);
/// Share of the declared worst case for which a rehearsed task computes: the rest is for the executive around it.
const REHEARSED: f64 = 0.9;
/// Health records that are printed; JSON has all that are kept.
const RECORDS_SHOWN: usize = 8;
/// Longest picture. Longer: jobs are narrower than a column.
const SPAN_MAX: Duration = Duration::from_millis(100);

/// Arguments of `taut task run`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// File with the task set.
    file: PathBuf,
    /// Time to run, such as 10s; until ^C with 0.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = units::time)]
    length: Duration,
    /// CPU of the tasks [default: the first one of the file's partition, or the last one that this process may use].
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    #[command(flatten)]
    json: JsonArguments,
    #[command(flatten)]
    files: PictureFiles,
}

/// Runs the set and prints what came of it. Exit status 1 if a deadline was missed or a task has failed.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let files = &arguments.files;
    arguments.json.shows_table(&files.paths())?;
    let failed = |error: tautline_tasks::RunError| {
        let build = match error {
            tautline_tasks::RunError::File(_) => CommandError::usage,
            _ => CommandError::failed,
        };
        build(error.to_string(), error.remedy().to_owned())
    };
    cli::check_code_for_root(&arguments.file)?;
    let mut executive = Executive::from_file(&arguments.file).map_err(failed)?;
    let set = executive.set().clone();
    let rehearsed: Vec<String> = executive.without_code().map(str::to_owned).collect();
    for name in &rehearsed {
        let task = set.tasks().iter().find(|task| task.name == *name);
        let declared = task.map_or(Duration::ZERO, |task| task.worst_case);
        let body = move |_: &Job| compute(declared.mul_f64(REHEARSED));
        executive.task(name, body).map_err(failed)?;
    }
    let node = ports::attach(&mut executive)?;
    let partition = executive.partition().cloned();
    let cpu = match &partition {
        Some(partition) => cpu_of(partition, arguments.cpu)?,
        None => cpu(arguments.cpu)?,
    };
    // Puts the partition back should this process be killed.
    let _guard = partition.map(|_| Guard::start()).transpose()?;
    // The only code is that of rehearsals.
    let options = Options::default().with_cpu(cpu);
    let guests = Guests::find(executive.guests());
    let running = executive.start(&options).map_err(failed)?;
    say!(
        "{} on CPU {cpu}; `taut top --kind task` and `taut task trace` watch it",
        arguments.file.display()
    );
    if wait(&running, guests, arguments.length) {
        say!("taut: {}", ending(&running, &set));
    }
    let summary = running.stop(PATIENCE);
    drop(node);
    let report = Report {
        name: arguments.file.display().to_string(),
        set: &set,
        cpu,
        traced: traced(&set, &summary),
        summary: &summary,
        rehearsed,
    };
    let own = std::process::id();
    cli::all([
        arguments
            .json
            .print_beside(&files.paths(), || report.json(), || report.text()),
        files.write(own, &report.name, &report.traced, || report.page()),
    ])?;
    if report.holds() {
        Ok(())
    } else {
        Err(CommandError::answer_is_no())
    }
}

/// The CPU of the partition that was named, or the first one.
fn cpu_of(partition: &PartitionConfig, named: Option<usize>) -> Result<usize, CommandError> {
    let mut cpus = partition.cpus.iter().map(|cpu| cpu as usize);
    let found = cpus.find(|cpu| named.is_none_or(|named| named == *cpu));
    found.ok_or_else(|| {
        CommandError::usage(
            format!(
                "CPU {} is not in partition `{}`",
                named.unwrap_or(0),
                partition.name
            ),
            format!("name one of {}", partition.cpus),
        )
    })
}

/// Whether a thread can be kept on a CPU, found by trying. The affinity that a process inherits does not tell: with
/// `isolcpus=` no program has such a CPU until it asks.
///
/// # Errors
/// The kernel's, where it cannot.
pub fn try_cpu(cpu: usize) -> std::io::Result<()> {
    let tried = std::thread::spawn(move || tautline_state::cpus::pin(cpu)).join();
    tried.unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

/// The CPU that was named, or the last one that this process may use: the first ones have most of the interrupts.
///
/// # Errors
/// The CPU cannot be used.
pub fn cpu(named: Option<usize>) -> Result<usize, CommandError> {
    let allowed = tautline_state::cpus::allowed_cpus().map_err(|error| {
        CommandError::failed(
            format!("cannot ask for the CPUs of this process: {error}"),
            "name one with --cpu",
        )
    })?;
    let cpu = named.or(allowed.last().copied()).unwrap_or(0);
    match try_cpu(cpu) {
        Ok(()) => Ok(cpu),
        Err(error) => {
            let allowed: Vec<String> = allowed.iter().map(usize::to_string).collect();
            Err(CommandError::usage(
                format!("this process may not use CPU {cpu}: {error}"),
                format!("name one of {}", allowed.join(", ")),
            ))
        }
    }
}

/// Waits for the end of the time, for ^C, or until every task was stopped; whether it was ^C.
fn wait(running: &Running, mut guests: Guests, length: Duration) -> bool {
    // By the clock: on a busy machine a look takes longer than it should.
    let end = Some(length).filter(|length| !length.is_zero());
    let end = end.and_then(|length| Instant::now().checked_add(length));
    while !running.is_idle() {
        guests.look(running);
        let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return false;
        }
        if pause(left.min(LOOK)).is_some() {
            return true;
        }
    }
    false
}

/// Line for the user who has pressed ^C: the end, and the jobs that it waits for.
fn ending(running: &Running, set: &TaskSet) -> String {
    let names = set.tasks().iter().map(|task| &task.name);
    let is_busy = |name: &&String| {
        let view = running.task(name);
        view.is_ok_and(|view| view.running_since.is_some())
    };
    let busy: Vec<String> = names
        .filter(is_busy)
        .map(|name| format!("`{}`", super::name(name)))
        .collect();
    match busy.is_empty() {
        true => "the tasks end, and the report follows".to_owned(),
        false => format!(
            "the tasks end, and the report follows; up to {} for jobs that run: {}",
            time(PATIENCE),
            busy.join(", ")
        ),
    }
}

/// Uses the CPU for so long.
fn compute(time: Duration) {
    let used = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    };
    let end = used() + time;
    while used() < end {
        std::hint::spin_loop();
    }
}

fn traced(set: &TaskSet, summary: &Summary) -> Vec<TracedTask> {
    let tasks = summary.tasks.iter().enumerate();
    let task = |(index, one): (usize, &TaskSummary)| TracedTask {
        name: one.name.clone(),
        priority: set.priority(index).unwrap_or(0),
        jobs: one.trace.clone(),
    };
    tasks.map(task).collect()
}

/// A set that has run.
struct Report<'a> {
    name: String,
    set: &'a TaskSet,
    cpu: usize,
    summary: &'a Summary,
    /// The last jobs of each task.
    traced: Vec<TracedTask>,
    /// Names of the tasks without a program.
    rehearsed: Vec<String>,
}

const HEADER: [&str; 12] = [
    "task", "priority", "period", "jobs", "missed", "p50", "p99", "p99.9", "max", "slack",
    "executed", "declared",
];

impl Report<'_> {
    fn holds(&self) -> bool {
        let tasks = self.summary.tasks.iter().zip(self.set.tasks());
        !tasks.into_iter().any(|(one, task)| {
            one.is_stopped
                || one.is_left
                || one.jobs == 0
                || (one.missed > 0 && task.accept.is_none())
        })
    }

    fn rows(&self) -> impl Iterator<Item = Vec<Cell>> + '_ {
        let tasks = self.summary.tasks.iter().enumerate();
        tasks.map(|(index, one)| {
            let task = &self.set.tasks()[index];
            let priority = self.set.priority(index);
            vec![
                one.name.clone().into(),
                priority.map_or_else(|| "-".into(), |priority| priority.to_string().into()),
                time_cell(task.period),
                one.jobs.to_string().into(),
                one.missed.to_string().into(),
                time_cell(one.response.p50),
                time_cell(one.response.p99),
                time_cell(one.response.p999),
                time_cell(one.response.max),
                slack(task.deadline, one.response.max),
                time_cell(one.execution.max),
                time_cell(one.worst_case),
            ]
        })
    }

    fn text(&self) -> String {
        let picture = self.picture();
        format!(
            "{}\n{}{}{}\n{}\n{}\n",
            self.subtitle(),
            table::figures_in_one_unit(&HEADER, self.rows()),
            self.latencies(),
            picture.caption(),
            picture.text(picture_columns()),
            self.verdicts().join("\n")
        )
    }

    /// A line for each task that messages activate.
    fn latencies(&self) -> String {
        let tasks = self.summary.tasks.iter();
        let lines =
            tasks.filter_map(|one| Some(latency_line(&one.name, ends(one.latency.as_ref()?))));
        lines.collect()
    }

    fn subtitle(&self) -> String {
        let count = task_count(self.set);
        format!(
            "{}: {count} on CPU {}; response times from the release, `executed` and `declared` are execution times",
            self.name, self.cpu
        )
    }

    /// The end of the run, from the first moment of which all jobs are still known.
    fn picture(&self) -> Picture {
        let tasks = &self.traced;
        let span = self
            .set
            .hyperperiod(self.set.mode_names().next().unwrap_or_default());
        let span = span.unwrap_or(SPAN_MAX).min(SPAN_MAX);
        let jobs = || tasks.iter().flat_map(|task| &task.jobs);
        let last = jobs().map(|job| job.release).max().unwrap_or_default();
        let known = tasks
            .iter()
            .filter_map(|task| Some(task.jobs.first()?.release));
        let from = last
            .saturating_sub(span)
            .max(known.min().unwrap_or_default());
        Picture::of_run(tasks, from, span)
    }

    /// The answer, and what follows from it.
    fn verdicts(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (one, task) in self.summary.tasks.iter().zip(self.set.tasks()) {
            lines.extend(self.faults(one, task.deadline, task.accept.is_some()));
        }
        let jobs: u64 = self.summary.tasks.iter().map(|one| one.jobs).sum();
        if self.holds() && lines.is_empty() {
            lines.push(format!("held: every deadline of {jobs} jobs"));
        } else if self.holds() {
            lines.insert(
                0,
                format!("held: every deadline of {jobs} jobs that had to be"),
            );
        }
        if !self.rehearsed.is_empty() {
            lines.push(format!(
                "a rehearsal: {} computed for {:.0} % of the declared worst case, for want of a program (`exec`)",
                self.rehearsed.join(", "),
                REHEARSED * 100.0
            ));
        }
        lines.extend(
            self.summary
                .limits
                .iter()
                .map(|limit| format!("limited: {limit}")),
        );
        let records = self.summary.records.iter().rev().take(RECORDS_SHOWN);
        let mut records: Vec<String> = records.map(|record| self.record(record)).collect();
        records.reverse();
        let hidden = self.summary.records_total - records.len() as u64;
        lines.extend(records);
        if hidden > 0 {
            lines.push(format!("{hidden} earlier health records"));
        }
        lines
    }

    fn faults(&self, one: &TaskSummary, deadline: Duration, is_accepted: bool) -> Vec<String> {
        let name = &one.name;
        let mut lines = Vec::new();
        if one.missed > 0 {
            let late = one.response.max.saturating_sub(deadline);
            let accepted = if is_accepted { " (accepted)" } else { "" };
            lines.push(format!(
                "`{name}` missed {} of {} deadlines, by up to {}{accepted}",
                one.missed,
                one.jobs,
                time(late)
            ));
        }
        if one.exceeded() {
            lines.push(format!(
                "`{name}` executed for up to {}, more than the {} that are declared: the analysis does not hold",
                time(one.execution.max),
                time(one.worst_case)
            ));
        }
        if one.is_stopped {
            lines.push(format!("`{name}` was stopped"));
        } else if one.is_left {
            lines.push(format!("`{name}` has a job that did not return"));
        } else if one.jobs == 0 {
            lines.push(format!("`{name}` did no job"));
        }
        lines
    }

    fn record(&self, record: &HealthRecord) -> String {
        let at = time(record.at.saturating_sub(self.summary.start));
        let name = &self.set.tasks()[record.task].name;
        let event = match record.event {
            Event::DeadlineMissed => "missed a deadline".to_owned(),
            Event::BudgetExceeded { used } => format!("used up its budget ({})", time(used)),
            Event::WindowsExceeded { used } => format!("used up its windows ({})", time(used)),
            Event::Overrun { releases: 1 } => "still ran at the next release".to_owned(),
            Event::Overrun { releases } => format!("still ran at the next {releases} releases"),
            Event::MessagesTooFast { distance, behind } => format!(
                "gets a message each {} on average, sooner than its period, and is {} behind",
                time(distance),
                time(behind)
            ),
            Event::Failed => "failed".to_owned(),
            Event::PartnerEnded => "lost its guest".to_owned(),
            _ => format!("{:?}", record.event),
        };
        let action = match record.action {
            Action::Recorded => String::new(),
            Action::Demoted => ": it went on below all others".to_owned(),
            Action::Skipped { releases } => format!(": {releases} left out"),
            Action::CatchingUp { releases, skipped } => {
                format!(": {releases} made up for, {skipped} left out")
            }
            Action::Stopped => ": stopped".to_owned(),
            Action::SafeMode => ": the set went to its safe mode".to_owned(),
            _ => format!(": {:?}", record.action),
        };
        format!("at {at}: `{name}` {event}{action}")
    }

    fn page(&self) -> Page {
        let mut page = Page::new(format!("Run of {}", self.name), self.subtitle());
        let lines = self.verdicts();
        let (level, answer) = match (self.holds(), self.rehearsed.is_empty()) {
            (true, true) => (Level::Good, "Every deadline was held"),
            (true, false) => (Level::Good, "Every deadline was held, in a rehearsal"),
            (false, _) => (Level::Bad, "Not every deadline was held"),
        };
        page.verdict(level, answer, &lines);
        let rows = Table::in_one_unit(&HEADER, self.rows().map(|row| (false, row)));
        let latencies = Some(self.latencies()).filter(|lines| !lines.is_empty());
        let latencies = latencies.map(|lines| page::verbatim(&lines));
        page.section("Figures", [rows.html()].into_iter().chain(latencies));
        page.section("The end of the run", [self.picture().chart().html()]);
        page.section(
            "Declared",
            [page::paragraph("`taut task check` analyses the same file.")],
        );
        page
    }

    fn json(&self) -> Value {
        let tasks = self.summary.tasks.iter().zip(self.set.tasks());
        let task = |(one, task): (&TaskSummary, &tautline_exec::Task)| {
            json!({
                "name": one.name,
                "period_ns": ns(task.period),
                "deadline_ns": ns(task.deadline),
                "jobs": one.jobs,
                "missed": one.missed,
                "lateness": times_json(&one.lateness),
                "response": times_json(&one.response),
                "execution": times_json(&one.execution),
                "latency": one.latency.as_ref().map(times_json),
                "worst_case_ns": ns(one.worst_case),
                "exceeded": one.exceeded(),
                "stopped": one.is_stopped,
                "left": one.is_left,
                "rehearsed": self.rehearsed.contains(&one.name),
            })
        };
        json!({
            "file": self.name,
            "cpu": self.cpu,
            "held": self.holds(),
            "tasks": tasks.map(task).collect::<Value>(),
            "limits": self.summary.limits,
            "records": self.summary.records.iter().map(|record| self.record(record)).collect::<Value>(),
            "records_total": self.summary.records_total,
        })
    }
}
