//! `taut-lab task compare`: deadlines that a task set misses idle and beside a load, without a partition and in one.
//!
//! Each run is a process of its own (`taut task run`), so that the partition holds it and nothing else.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use taut::say;
use tautline_lab::load::Load;
use tautline_lab::result::Achieved;
use tautline_report::table::{self, Cell};
use tautline_tasks::file;
use tautline_testbed::interrupt::interrupted;

use taut::cli::CommandError;
use taut::commands::output::JsonArguments;
use taut::{external, units};

use taut::commands::task::{cpu, latency_line, time_cell};

/// Name of the partition that is made for a run.
const PARTITION: &str = "task-compare";

/// Arguments of `taut-lab task`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a task set idle and beside a load, without a partition and in one, and compare the missed deadlines.
    Compare(CompareArguments),
}

/// Runs the action.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    match &arguments.action {
        Action::Compare(arguments) => compare(arguments),
    }
}

#[derive(Debug, Args)]
struct CompareArguments {
    /// File with the task set; without a partition of its own.
    file: PathBuf,
    /// Time of each run, such as 10s.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = units::some_time)]
    length: Duration,
    /// CPU of the tasks [default: the last one that this process may use].
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Loads beside the tasks: idle, cpu, memory, disk, network, scheduling, vision, combined; by stress-ng, fio and
    /// iperf3 where they are installed.
    #[arg(
        long = "load",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "idle,combined"
    )]
    loads: Vec<Load>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Runs the set under each condition and prints the deadlines that it missed.
fn compare(arguments: &CompareArguments) -> Result<(), CommandError> {
    let set = file::read(&arguments.file)
        .map_err(|error| CommandError::usage(error.message, error.remedy))?;
    if set.partition.is_some() {
        return Err(CommandError::usage(
            "the set has a partition of its own, and this command makes one",
            "remove [partition] from the file",
        ));
    }
    let cpu = cpu(arguments.cpu)?;
    let program = external::TAUT.find()?;
    let mut conditions = Vec::new();
    for load in &arguments.loads {
        for in_partition in [false, true] {
            say!("running {}", place(*load, in_partition));
            conditions.push(condition(arguments, &program, cpu, *load, in_partition)?);
            if let Some(signal) = interrupted() {
                return Err(CommandError::interrupted(signal));
            }
        }
    }
    let name = arguments.file.display().to_string();
    let json = || {
        let all: Value = conditions.iter().map(Condition::json).collect();
        json!({ "file": name, "cpu": cpu, "conditions": all })
    };
    arguments
        .json
        .print(json, || text(&name, cpu, &conditions))?;
    match conditions.iter().all(|one| one.report.is_err()) {
        true => Err(CommandError::answer_is_no()),
        false => Ok(()),
    }
}

/// A run of the set, and its surroundings.
struct Condition {
    load: Load,
    in_partition: bool,
    achieved: Vec<Achieved>,
    /// The report of `taut task run`, or the reason why there is none.
    report: Result<Value, String>,
}

fn condition(
    arguments: &CompareArguments,
    program: &PathBuf,
    cpu: usize,
    load: Load,
    in_partition: bool,
) -> Result<Condition, CommandError> {
    let running = crate::lab::start_load(load)?;
    let mut command = Command::new(program);
    if in_partition {
        command.args([
            "partition",
            "run",
            PARTITION,
            "--cpus",
            &cpu.to_string(),
            "--",
        ]);
        command.arg(program);
    }
    command.args(["task", "run", "--cpu", &cpu.to_string(), "--json"]);
    let seconds = format!("{}s", arguments.length.as_secs_f64());
    command.args(["--for", &seconds]).arg(&arguments.file);
    let output = command.stdin(Stdio::null()).output();
    let achieved = running.stop();
    let output = output.map_err(|error| {
        CommandError::failed(
            format!("cannot start a process: {error}"),
            "raise the limits of processes and descriptors (ulimit -a)",
        )
    })?;
    let reason = || {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| line.starts_with("taut: "));
        line.unwrap_or("it gave no report").to_owned()
    };
    Ok(Condition {
        load,
        in_partition,
        achieved,
        report: serde_json::from_slice(&output.stdout).map_err(|_| reason()),
    })
}

fn place(load: Load, in_partition: bool) -> String {
    match in_partition {
        true => format!("{load}, in a partition"),
        false => format!("{load}, without one"),
    }
}

impl Condition {
    fn place(&self) -> String {
        place(self.load, self.in_partition)
    }

    fn rows(&self) -> Vec<Vec<Cell>> {
        self.tasks().map(|task| self.row(task)).collect()
    }

    /// A line for each task that messages activate.
    fn latencies(&self) -> String {
        let tasks = self.tasks().filter_map(|task| {
            let ns = |key| task["latency"][key].as_u64().map(Duration::from_nanos);
            let latency = [ns("p50_ns")?, ns("p99_ns")?, ns("max_ns")?];
            let name = task["name"].as_str().unwrap_or_default();
            Some(latency_line(&format!("{name}, {}", self.place()), latency))
        });
        tasks.collect()
    }

    fn tasks(&self) -> impl Iterator<Item = &Value> {
        let tasks = self.report.iter().map(|report| &report["tasks"]);
        tasks.filter_map(Value::as_array).flatten()
    }

    fn row(&self, task: &Value) -> Vec<Cell> {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let (jobs, missed) = (number(&task["jobs"]), number(&task["missed"]));
        let share = 100.0 * missed as f64 / jobs.max(1) as f64;
        let mut row = vec![
            format!(
                "{}, {}",
                task["name"].as_str().unwrap_or_default(),
                self.place()
            )
            .into(),
            jobs.to_string().into(),
            missed.to_string().into(),
            format!("{share:.2} %").into(),
        ];
        let times = ["p50_ns", "p99_ns", "p999_ns", "max_ns"];
        let times = times.map(|key| Duration::from_nanos(number(&task["response"][key])));
        row.extend(times.map(time_cell));
        row
    }

    fn json(&self) -> Value {
        let (report, reason) = match &self.report {
            Ok(report) => (report.clone(), Value::Null),
            Err(reason) => (Value::Null, json!(reason)),
        };
        json!({
            "load": self.load.name(),
            "partition": self.in_partition,
            "achieved": self.achieved,
            "run": report,
            "reason": reason,
        })
    }
}

const HEADER: [&str; 8] = [
    "task", "jobs", "missed", "share", "p50", "p99", "p99.9", "max",
];

fn text(name: &str, cpu: usize, conditions: &[Condition]) -> String {
    let rows = conditions.iter().flat_map(Condition::rows);
    let mut text = format!(
        "{name} on CPU {cpu}; response times from the release\n{}",
        table::figures_in_one_unit(&HEADER, rows)
    );
    for one in conditions {
        text += &one.latencies();
        for part in &one.achieved {
            let what = format!(
                "{} by {}: {:.1} {}",
                part.part, part.tool, part.amount, part.unit
            );
            text += &format!("{}: {what}\n", one.place());
        }
        if let Err(reason) = &one.report {
            text += &format!("{}: {reason}\n", one.place());
        }
    }
    text
}
