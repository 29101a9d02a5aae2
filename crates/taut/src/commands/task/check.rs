//! `taut task check`: real-time tasks of one CPU, analysed before they run.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tautline_exec::{Activation, Analysis, Scheduling, TaskResponse, TaskSet};
use tautline_report::page::{self, Level, Page, Table};
use tautline_report::table::{self, Cell};
use tautline_state::text;
use tautline_tasks::file;
use tautline_tasks::partition::PartitionConfig;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;
use crate::task::picture::Picture;
use crate::units::ns;

use super::{picture_columns, slack, task_count, time, time_cell};

/// Characters of a reason that are shown. Lower: sentences are cut. Higher: one task fills the screen.
const REASON_CHARS_MAX: usize = 200;

/// Time that real-time threads may run in each period, in microseconds; -1 for all of it.
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const RUNTIME_PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";

/// Arguments of `taut task check`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// File with the task set.
    file: PathBuf,
    #[command(flatten)]
    json: JsonArguments,
    /// Write a page with the analysis and the picture.
    #[arg(long, value_name = "FILE", value_parser = cli::result_file())]
    html: Option<PathBuf>,
}

/// Prints the analysis. Exit status 1 if the set is refused, 2 if there is none to analyse.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let html = arguments.html.as_deref();
    arguments.json.shows_table(&[html])?;
    let name = arguments.file.display().to_string();
    let file = file::read(&arguments.file)
        .map_err(|error| CommandError::usage(error.message, error.remedy))?;
    let modes = Analysis::of_all(&file.set)
        .map_err(|error| CommandError::usage(format!("{name}: {error}"), error.remedy()))?;
    let report = Report {
        partition: file.partition,
        kernel_ppm: kernel_ppm(),
        ..Report::new(name, &file.set, modes)
    };
    cli::all([
        arguments
            .json
            .print_beside(&[html], || report.json(), || report.text()),
        match html {
            Some(path) => cli::write_file(path, &report.page().html()),
            None => Ok(()),
        },
    ])?;
    if report.is_admitted() {
        Ok(())
    } else {
        Err(CommandError::answer_is_no())
    }
}

/// A set with the analysis of its modes.
struct Report<'a> {
    name: String,
    set: &'a TaskSet,
    partition: Option<PartitionConfig>,
    /// Share of a CPU that the kernel of this machine leaves to real-time tasks, in millionths; `None` for all of it.
    kernel_ppm: Option<u64>,
    modes: Vec<Analysis>,
    /// By mode: the factor by which execution times may grow or must shrink, in thousandths. It takes twenty analyses.
    headroom_permille: Vec<u64>,
}

const HEADER: [&str; 10] = [
    "task", "priority", "period", "deadline", "charged", "blocking", "jitter", "others",
    "response", "slack",
];

impl Report<'_> {
    fn new(name: String, set: &TaskSet, modes: Vec<Analysis>) -> Report<'_> {
        let headroom = modes.iter().map(|mode| mode.headroom_permille(set));
        Report {
            name,
            set,
            headroom_permille: headroom.collect(),
            partition: None,
            kernel_ppm: None,
            modes,
        }
    }

    fn is_admitted(&self) -> bool {
        self.modes.iter().all(|mode| mode.is_admitted(self.set))
    }

    fn text(&self) -> String {
        let mut text = format!("{}: {}\n{}\n", self.name, self.summary(), self.machine());
        for mode in &self.modes {
            let picture = Picture::of(self.set, mode);
            let _ = writeln!(text, "\n{}", self.mode_line(mode));
            let rows = mode.responses.iter().map(|one| self.row(one));
            text += &table::figures_in_one_unit(&HEADER, rows);
            let _ = writeln!(text, "{}", picture.caption());
            text += &picture.text(picture_columns());
        }
        text.push('\n');
        for line in self.verdicts() {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    fn summary(&self) -> String {
        let scheduling = match self.set.scheduling() {
            Scheduling::RateMonotonic => "rate-monotonic priorities",
            Scheduling::DeadlineMonotonic => "deadline-monotonic priorities",
            Scheduling::Declared => "fixed priorities",
            Scheduling::EarliestDeadline => "the earliest deadline first",
            Scheduling::Table => "a static cyclic table",
        };
        format!("{} on one CPU, {scheduling}", task_count(self.set))
    }

    fn machine(&self) -> String {
        let machine = self.set.machine();
        let mut text = format!(
            "machine: release jitter {}, blocking {}, overhead {} a job",
            time(machine.release_jitter),
            time(machine.blocking),
            time(machine.overhead)
        );
        let mut early = (0..self.set.tasks().len()).map(|task| (task, self.set.early(task)));
        let _ = match early.find(|(_, early)| !early.is_zero()) {
            Some((task, early)) => write!(
                text,
                "\nearly wake-up: `{}`, up to {} before its releases; the others are charged for it",
                self.set.tasks()[task].name,
                time(early)
            ),
            None => write!(text, "\nearly wake-up: no task"),
        };
        if let Some(partition) = &self.partition {
            let _ = write!(
                text,
                "\npartition {}: CPUs {}",
                partition.name, partition.cpus
            );
        }
        for one in self.set.receive() {
            let priority = one.priority.map_or_else(
                || "in interrupts".to_owned(),
                |priority| format!("at priority {priority}"),
            );
            let _ = write!(
                text,
                "\nreceive processing of {}: {} frames at once, {} a second, {} each, {priority}",
                one.name,
                one.burst,
                one.rate,
                time(one.worst_case)
            );
        }
        text
    }

    fn mode_line(&self, mode: &Analysis) -> String {
        let mut line = place(mode);
        let _ = write!(
            line,
            "utilisation {:.1} %, ",
            mode.utilisation_ppm as f64 / 1e4
        );
        line += &match mode.hyperperiod {
            Some(hyperperiod) => format!("hyperperiod {}", time(hyperperiod)),
            None => "no short hyperperiod".to_owned(),
        };
        if let Some(table) = &mode.table {
            let _ = write!(
                line,
                " (major frame), minor frame {}, {} windows",
                time(table.minor_frame),
                table.windows.len()
            );
        }
        match mode.switch_time() {
            Some(longest) if self.modes.len() > 1 => {
                let _ = write!(line, ", left within {}", time(longest));
            }
            _ => {}
        }
        line
    }

    fn row(&self, one: &TaskResponse) -> Vec<Cell> {
        let task = &self.set.tasks()[one.task];
        vec![
            task.name.clone().into(),
            one.priority
                .map_or_else(|| "-".into(), |priority| priority.to_string().into()),
            time_cell(task.period),
            time_cell(one.deadline),
            time_cell(one.charged),
            time_cell(one.blocking),
            time_cell(one.jitter),
            time_cell(one.interference + one.receive),
            one.response.map_or_else(|| "no bound".into(), time_cell),
            one.response
                .map_or_else(|| "none".into(), |longest| slack(one.deadline, longest)),
        ]
    }

    /// The answer, and what follows from it.
    fn verdicts(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (mode, permille) in self.modes.iter().zip(&self.headroom_permille) {
            let place = place(mode);
            let mut is_held = true;
            for one in mode.responses.iter().filter(|one| !one.holds()) {
                is_held = false;
                lines.push(format!("{place}{}", self.miss(mode, one)));
            }
            // Exact to the last digit: rounded, a factor could promise what does not hold.
            let factor = format!("{}.{:03}", permille / 1_000, permille % 1_000);
            lines.push(match (is_held, permille) {
                (true, _) => format!(
                    "{place}holds: every deadline, and also if all execution times were {factor} times as long"
                ),
                (false, 0) => format!("{place}shorter execution times alone would not help"),
                (false, _) => format!(
                    "{place}every deadline would hold if all execution times were {factor} times as long"
                ),
            });
            if let Some(frame) = mode.better_minor_frame(self.set) {
                lines.push(format!(
                    "{place}every deadline would hold with minor_frame = \"{}ns\" ({})",
                    ns(frame),
                    time(frame)
                ));
            }
        }
        lines.extend(self.beyond_the_kernel());
        lines.extend(self.needless_reasons());
        lines
    }

    /// Modes that take more of a CPU than the kernel gives to real-time tasks outside a partition, which lifts that. Of
    /// SCHED_DEADLINE the kernel counts the whole CPU for each task (docs/reference/executive.md, "Earliest
    /// deadlines").
    fn beyond_the_kernel(&self) -> Vec<String> {
        let Some(share_ppm) = self.kernel_ppm.filter(|_| self.partition.is_none()) else {
            return Vec::new();
        };
        let (share, remedy) = (
            share_ppm as f64 / 1e4,
            "run it in a [partition], which has all of its CPU, or set kernel.sched_rt_runtime_us to -1",
        );
        if self.set.scheduling() == Scheduling::EarliestDeadline {
            return vec![format!(
                "note: the set does not start here, for this kernel leaves deadlines only {share:.1} % of a CPU: {remedy}"
            )];
        }
        let beyond = self.modes.iter();
        let beyond = beyond.filter(|mode| mode.utilisation_ppm > share_ppm);
        let line = |mode: &Analysis| {
            format!(
                "{}note: this kernel leaves real-time tasks {share:.1} % of a CPU, less than the {:.1} % of the set: {remedy}",
                place(mode),
                mode.utilisation_ppm as f64 / 1e4
            )
        };
        beyond.map(line).collect()
    }

    fn miss(&self, mode: &Analysis, one: &TaskResponse) -> String {
        let task = &self.set.tasks()[one.task];
        let (name, deadline) = (&task.name, time(one.deadline));
        let miss = match (one.response, one.excess(), &mode.table) {
            (Some(response), Some(excess), _) => format!(
                "`{name}` can miss its deadline of {deadline} by {} or more (response time {})",
                time(excess),
                time(response)
            ),
            (_, _, Some(_)) => format!(
                "`{name}` has a job without room in any window by its deadline of {deadline}"
            ),
            _ if one.priority.is_none() => {
                format!("`{name}` has no bound: the tasks can take the whole CPU")
            }
            _ => format!(
                "`{name}` has no bound: more urgent work leaves it no time within eight periods"
            ),
        };
        match &task.accept {
            Some(reason) => format!(
                "accepted: {miss}: {}",
                text::plain(reason, REASON_CHARS_MAX)
            ),
            None => format!("refused: {miss}"),
        }
    }

    /// Reasons that stand in the file although the task holds its deadline in all modes.
    fn needless_reasons(&self) -> Vec<String> {
        let tasks = self.set.tasks().iter().enumerate();
        let needless = tasks.filter(|(index, task)| {
            let all = self.modes.iter().flat_map(|mode| &mode.responses);
            task.accept.is_some()
                && all
                    .filter(|one| one.task == *index)
                    .all(TaskResponse::holds)
        });
        needless
            .map(|(_, task)| {
                format!(
                    "note: `{}` holds its deadline and needs no `accept`",
                    task.name
                )
            })
            .collect()
    }

    fn page(&self) -> Page {
        let mut page = Page::new(format!("Task set {}", self.name), self.summary());
        let (level, answer) = if !self.is_admitted() {
            (Level::Bad, "Refused: a deadline can be missed")
        } else if self
            .modes
            .iter()
            .all(|mode| mode.responses.iter().all(TaskResponse::holds))
        {
            (Level::Good, "Every task holds its deadline")
        } else {
            (
                Level::Limited,
                "Admitted, with deadlines that may be missed",
            )
        };
        page.verdict(level, answer, &self.verdicts());
        for mode in &self.modes {
            let rows = mode.responses.iter();
            let rows = rows.map(|one| (!one.holds(), self.row(one)));
            let rows = Table::in_one_unit(&HEADER, rows);
            let heading = match mode.mode.as_str() {
                "" => "Response times".to_owned(),
                name => format!("Mode {name}"),
            };
            let picture = Picture::of(self.set, mode).chart().html();
            page.section(
                &heading,
                [page::paragraph(&self.mode_line(mode)), rows.html(), picture],
            );
        }
        page.section("Machine", [page::verbatim(&self.machine())]);
        page
    }

    fn json(&self) -> Value {
        let machine = self.set.machine();
        json!({
            "file": self.name,
            "admitted": self.is_admitted(),
            "scheduling": match self.set.scheduling() {
                Scheduling::RateMonotonic => "rate-monotonic",
                Scheduling::DeadlineMonotonic => "deadline-monotonic",
                Scheduling::Declared => "fixed",
                Scheduling::EarliestDeadline => "earliest-deadline",
                Scheduling::Table => "table",
            },
            "machine": {
                "release_jitter_ns": ns(machine.release_jitter),
                "blocking_ns": ns(machine.blocking),
                "overhead_ns": ns(machine.overhead),
            },
            "partition": self.partition.as_ref().map(|partition| json!({
                "name": partition.name,
                "cpus": partition.cpus,
            })),
            "kernel_share": self.kernel_ppm.map(|share| share as f64 / 1e6),
            "modes": self.modes.iter().zip(&self.headroom_permille)
                .map(|(mode, permille)| self.mode_json(mode, *permille)).collect::<Value>(),
        })
    }

    fn mode_json(&self, mode: &Analysis, permille: u64) -> Value {
        let windows = |table: &tautline_exec::Table| {
            let windows = table.windows.iter().map(|window| {
                json!({
                    "task": self.set.tasks()[window.task].name,
                    "offset_ns": ns(window.offset),
                    "duration_ns": ns(window.duration),
                })
            });
            json!({
                "major_frame_ns": ns(table.major_frame),
                "minor_frame_ns": ns(table.minor_frame),
                "windows": windows.collect::<Value>(),
            })
        };
        json!({
            "mode": mode.mode,
            "admitted": mode.is_admitted(self.set),
            "utilisation": mode.utilisation_ppm as f64 / 1e6,
            "hyperperiod_ns": mode.hyperperiod.map(ns),
            "switch_ns_max": mode.switch_time().map(ns),
            "headroom": permille as f64 / 1e3,
            "tasks": mode.responses.iter().map(|one| self.task_json(one)).collect::<Value>(),
            "table": mode.table.as_ref().map(windows),
        })
    }

    fn task_json(&self, one: &TaskResponse) -> Value {
        let task = &self.set.tasks()[one.task];
        let port = match &task.activation {
            Activation::Message { port } => Some(port),
            Activation::Time { .. } => None,
        };
        json!({
            "name": task.name,
            "priority": one.priority,
            "period_ns": ns(task.period),
            "phase_ns": ns(task.phase()),
            "port": port,
            "deadline_ns": ns(one.deadline),
            "charged_ns": ns(one.charged),
            "early_ns": ns(self.set.early(one.task)),
            "blocking_ns": ns(one.blocking),
            "release_jitter_ns": ns(one.jitter),
            "receive_ns": ns(one.receive),
            "interference_ns": ns(one.interference),
            "response_ns": one.response.map(ns),
            "slack_ns": one.slack().map(ns),
            "excess_ns": one.excess().map(ns),
            "holds": one.holds(),
            "accept": task.accept,
        })
    }
}

/// Share of a CPU that this machine's kernel leaves to real-time tasks, in millionths; `None` if it is all, or unknown.
fn kernel_ppm() -> Option<u64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let share_ppm = number(RUNTIME)?
        .checked_mul(1_000_000)?
        .checked_div(number(RUNTIME_PERIOD)?)?;
    Some(share_ppm).filter(|share| *share < 1_000_000)
}

/// Beginning of a line about a mode; empty where a set has none.
fn place(mode: &Analysis) -> String {
    match mode.mode.as_str() {
        "" => String::new(),
        name => format!("mode {name}: "),
    }
}
