//! `taut partition`: CPUs of this machine that are set aside for real-time work.

mod report;
mod run;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tautline_state::cpus::CpuList;
use tautline_state::journal::PutBack;
use tautline_tasks::partition::{
    Activity, Partition, PartitionConfig, PartitionError, find, list, plan, recover, remove,
};

use crate::cli::CommandError;
use crate::commands::live::pause;
use crate::commands::output::JsonArguments;
use crate::leftovers;
use crate::units;

pub use run::{Guard, GuardArguments, guard};

/// Arguments of `taut partition`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Set CPUs aside: other tasks, interrupts and work of the kernel move away as far as they can.
    Create(CreateArguments),
    /// Run a program in a partition; with --cpus, in one that lasts as long as the program.
    Run(run::Arguments),
    /// List the partitions of this user; of one: its programs, what still ran on its CPUs, what could not be moved.
    Show(ShowArguments),
    /// Remove a partition, and put every setting back.
    Remove(RemoveArguments),
}

/// Arguments of `taut partition create`.
#[derive(Debug, Args)]
struct CreateArguments {
    /// Name of the partition.
    name: String,
    /// CPUs that are set aside, such as 1 or 2-3,5.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: CpuList,
    /// Show the changes and make none.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    json: JsonArguments,
}

/// Arguments of `taut partition show`.
#[derive(Debug, Args)]
struct ShowArguments {
    /// Name of the partition [default: a list of all].
    name: Option<String>,
    /// Count for this long, in place of since the partition was made, such as 500ms.
    #[arg(long = "for", value_name = "TIME", value_parser = units::some_time, requires = "name")]
    length: Option<Duration>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Arguments of `taut partition remove`.
#[derive(Debug, Args)]
struct RemoveArguments {
    /// Name of the partition.
    name: String,
    /// Move the programs out that run in it.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    json: JsonArguments,
}

fn cpus(text: &str) -> Result<CpuList, String> {
    text.parse()
        .map_err(|_| "expected CPUs such as 1 or 2-3,5".to_owned())
}

/// Runs an action.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.action {
        Action::Create(arguments) => create(&arguments),
        Action::Run(arguments) => run::run(&arguments),
        Action::Show(arguments) => show(&arguments),
        Action::Remove(arguments) => remove_one(&arguments),
    }
}

impl Arguments {
    /// Whether this process becomes or guards a program, and so leaves signals to it.
    pub fn runs_program(&self) -> bool {
        matches!(self.action, Action::Run(_))
    }
}

fn config(name: &str, cpus: &CpuList) -> Result<PartitionConfig, CommandError> {
    PartitionConfig::new(name, cpus.clone()).map_err(error)
}

fn create(arguments: &CreateArguments) -> Result<(), CommandError> {
    let config = config(&arguments.name, &arguments.cpus)?;
    if arguments.dry_run {
        let plan = plan(&config).map_err(error)?;
        return arguments.json.print(
            || report::plan_json(&config, &plan),
            || report::plan_text(&config, &plan),
        );
    }
    let partition = Partition::create(&config).map_err(error)?;
    let text = report::made_text(&config, &partition);
    let json = report::made_json(&config, &partition);
    partition.keep().map_err(error)?;
    arguments.json.print(
        || json,
        || format!("{text}until: taut partition remove {}\n", config.name),
    )
}

/// Puts back what killed processes left, and says so. A directory that cannot be used stops the action that follows.
fn recover_first() -> PutBack {
    let recovered = recover().unwrap_or_default();
    leftovers::say(&recovered);
    recovered
}

fn list_all(arguments: &ShowArguments) -> Result<(), CommandError> {
    let found = list().map_err(error)?;
    arguments.json.print(
        || json!({ "partitions": found.iter().map(report::found_json).collect::<Value>() }),
        || report::list_text(&found),
    )
}

fn show(arguments: &ShowArguments) -> Result<(), CommandError> {
    recover_first();
    let Some(name) = &arguments.name else {
        return list_all(arguments);
    };
    let found = find(name).map_err(error)?;
    let (then, time, signal) = match arguments.length {
        None => (found.activity(), None, None),
        Some(time) => {
            let (then, begin) = (Activity::now(&found.cpus), Instant::now());
            let signal = pause(time);
            let counted = signal.map_or(time, |_| begin.elapsed());
            (then, Some(counted), signal)
        }
    };
    let view = report::View::new(&found, &then, time);
    arguments.json.print(|| view.json(), || view.text())?;
    signal.map_or(Ok(()), |signal| Err(CommandError::interrupted(signal)))
}

fn remove_one(arguments: &RemoveArguments) -> Result<(), CommandError> {
    // First: a partition that a killed process left counts as removed.
    let recovered = recover_first().done;
    let done = match remove(&arguments.name, arguments.force) {
        Err(PartitionError::Absent(_)) if !recovered.is_empty() => recovered,
        removed => removed.map_err(error)?,
    };
    arguments.json.print(
        || json!({ "name": arguments.name, "put_back": done }),
        || {
            format!(
                "removed `{}`; {} settings and groups are put back\n",
                arguments.name,
                done.len()
            )
        },
    )
}

/// Failure as the command line reports it.
fn error(error: PartitionError) -> CommandError {
    let build = match error {
        PartitionError::InvalidName(_)
        | PartitionError::NotOnline { .. }
        | PartitionError::NoCpuLeft { .. } => CommandError::usage,
        _ => CommandError::failed,
    };
    build(error.to_string(), error.remedy())
}
