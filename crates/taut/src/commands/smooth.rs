//! `taut smooth`: other traffic held back, so that real-time messages are not lost in a switch.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tautline::config::ServiceConfig;
use tautline_report::table;
use tautline_smoother::{Node, Setup, Smoother, SmootherError, Status, end};
use tautline_state::find_runtime_directory;
use tautline_state::journal::PutBack;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;
use crate::commands::peer;
use crate::units::counted;

/// Arguments of `taut smooth`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Hold other traffic on an interface as its receivers grant, until told to end.
    Run(RunArguments),
    /// Show the smoothers of this network namespace: grants, rates, backlogs, waits.
    Show(ShowArguments),
    /// End the smoother of an interface, or put back what a killed one left.
    Stop(StopArguments),
}

/// Arguments of `taut smooth run`.
#[derive(Debug, Args)]
struct RunArguments {
    /// Configuration file of the node (TOML), with its interface, neighbours and a [smoother] section.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Arguments of `taut smooth stop`.
#[derive(Debug, Args)]
struct StopArguments {
    /// Interface whose smoother ends.
    #[arg(value_name = "INTERFACE")]
    interface: String,
}

/// Arguments of `taut smooth show`.
#[derive(Debug, Args)]
struct ShowArguments {
    #[command(flatten)]
    json: JsonArguments,
}

/// Runs the action.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.action {
        Action::Run(arguments) => smooth(&arguments),
        Action::Show(arguments) => show(&arguments),
        Action::Stop(arguments) => stop(&arguments),
    }
}

fn failed(error: &SmootherError) -> CommandError {
    CommandError::failed(error.to_string(), error.remedy())
}

fn smooth(arguments: &RunArguments) -> Result<(), CommandError> {
    let setup = setup(arguments)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| {
            CommandError::failed(format!("cannot watch for signals: {error}"), "try again")
        })?;
    }
    let mut text = format!(
        "smoothing {} at {} Mbit/s with {}; other traffic is held once they grant\n",
        setup.interface,
        megabits(setup.capacity_bps),
        counted(setup.nodes.len(), "neighbour")
    );
    let mut smoother = Smoother::begin(setup).map_err(|error| failed(&error))?;
    for line in smoother.recovered() {
        text += &format!("left by a killed process: {line}\n");
    }
    for note in smoother.notes() {
        text += &format!("limited: {note}\n");
    }
    cli::print(&text)?;
    let ended = smoother.run(&stop).map_err(|error| failed(&error));
    let put_back = smoother.end().map_err(|error| failed(&error));
    cli::all([put_back, ended])?;
    cli::print("everything is as it was before\n")
}

/// The section of the file, with the addresses of the neighbours that it means.
fn setup(arguments: &RunArguments) -> Result<Setup, CommandError> {
    let config = ServiceConfig::from_file(&arguments.config).map_err(peer::open_error)?;
    let usage = |what: String, remedy: &str| Err(CommandError::usage(what, remedy));
    let Some(section) = config.smoother else {
        return usage(
            "the configuration has no [smoother] section".to_owned(),
            "add it, with capacity_bps (docs/how-to/smoother.md)",
        );
    };
    let Some(interface) = config.node.interface else {
        return usage(
            "the configuration names no interface".to_owned(),
            "set `interface` in it",
        );
    };
    let is_meant = |name: &str| {
        section.neighbours.is_empty() || section.neighbours.iter().any(|one| one == name)
    };
    let table = &config.node.neighbours;
    let mut named = section.neighbours.iter().chain(section.limits.keys());
    if let Some(unknown) = named.find(|name| table.by_name(name).is_none()) {
        return usage(
            format!("there is no neighbour `{unknown}`"),
            "list it as a [[neighbour]]",
        );
    }
    let nodes = table
        .iter()
        .map(|(_, neighbour)| neighbour)
        .filter(|neighbour| is_meant(&neighbour.name))
        .filter(|neighbour| !neighbour.mac.is_unspecified() && !neighbour.mac.is_group())
        .map(|neighbour| Node {
            name: neighbour.name.clone(),
            mac: neighbour.mac,
            limit_bps: section.limits.get(&neighbour.name).copied(),
        });
    Ok(Setup {
        interface,
        capacity_bps: section.capacity_bps,
        nodes: nodes.collect(),
    })
}

fn stop(arguments: &StopArguments) -> Result<(), CommandError> {
    let ended = end(&arguments.interface).map_err(|error| failed(&error))?;
    if ended == PutBack::default() {
        if tautline_state::interface::index(&arguments.interface).is_err() {
            return Err(CommandError::usage(
                format!("there is no interface `{}`", arguments.interface),
                "`ip link` lists the interfaces",
            ));
        }
        return cli::print(&format!("{} is not smoothed\n", arguments.interface));
    }
    ended
        .done
        .iter()
        .try_for_each(|line| cli::print(&format!("{line}\n")))?;
    match ended.refused.is_empty() {
        true => Ok(()),
        false => Err(failed(&SmootherError::NotPutBack(ended.refused))),
    }
}

/// Smoothers of this network namespace, and of each whether its process lives.
pub(super) fn found() -> Result<Vec<(Status, bool)>, CommandError> {
    let directory = find_runtime_directory()
        .map_err(|error| CommandError::failed(error.to_string(), "run as root"))?;
    match &directory {
        Some(directory) => Status::all(directory).map_err(|error| failed(&error)),
        None => Ok(Vec::new()),
    }
}

/// The same for JSON.
pub(super) fn values(found: &[(Status, bool)]) -> Value {
    let all = found
        .iter()
        .map(|(status, lives)| json!({ "lives": lives, "status": status }));
    all.collect()
}

/// A line for each, for `taut status`.
pub(super) fn summary(found: &[(Status, bool)]) -> String {
    let line = |(status, lives): &(Status, bool)| {
        let nodes = &status.nodes;
        let taking_part = nodes.iter().filter(|node| node.takes_part).count();
        let granted: u64 = nodes.iter().map(|node| node.granted_bps).sum();
        let drops: u64 = nodes.iter().map(|node| node.own_drops).sum();
        let refused: u64 = nodes
            .iter()
            .map(|node| node.refused + node.grants_refused)
            .sum();
        format!(
            "smoother of {}: process {}{}; {taking_part} of {} taking part, {} Mbit/s granted; dropped: \
             {drops}, corrections: {}, refused messages: {refused}, late intervals: {}\n",
            status.interface,
            status.process,
            if *lives { "" } else { " (dead)" },
            counted(nodes.len(), "neighbour"),
            megabits(granted),
            status.corrections,
            status.late_intervals,
        )
    };
    found.iter().map(line).collect()
}

fn show(arguments: &ShowArguments) -> Result<(), CommandError> {
    let found = found()?;
    arguments.json.print(
        || json!({ "smoothers": values(&found) }),
        || all_text(&found),
    )
}

fn all_text(found: &[(Status, bool)]) -> String {
    if found.is_empty() {
        return "no interface of this network namespace is smoothed\n".to_owned();
    }
    let texts: Vec<String> = found
        .iter()
        .map(|(status, lives)| text(status, *lives))
        .collect();
    texts.join("\n")
}

fn megabits(bps: u64) -> String {
    format!("{:.2}", bps as f64 / 1e6)
}

fn text(status: &Status, lives: bool) -> String {
    let mut text = format!(
        "{}: process {}{}, {} s, {:.2} % of a CPU; {} of {} Mbit/s believed ({} corrections), {} arrive, {} of them from others; \
         {} sent in real time; {} late intervals, {} strange messages\n",
        status.interface,
        status.process,
        if lives {
            ""
        } else {
            " (dead: nothing is held)"
        },
        status.seconds,
        status.cpu_us as f64 / 1e4 / status.seconds.max(1) as f64,
        megabits(status.believed_bps),
        megabits(status.capacity_bps),
        status.corrections,
        megabits(status.arrived_bps),
        megabits(status.foreign_bps),
        megabits(status.real_time_sent_bps),
        status.late_intervals,
        status.strange_messages,
    );
    for note in &status.notes {
        text += &format!("limited: {note}\n");
    }
    let header = [
        "neighbour",
        "takes part",
        "granted",
        "its other",
        "its real time",
        "its backlog B",
        "wait µs",
        "we hold to",
        "our backlog B",
        "our drops",
        "refused",
    ];
    let rows = status.nodes.iter().map(|node| {
        vec![
            node.name.clone(),
            if node.takes_part { "yes" } else { "no" }.to_owned(),
            megabits(node.granted_bps),
            megabits(node.other_bps),
            megabits(node.real_time_bps),
            node.backlog_bytes.to_string(),
            node.wait_us.to_string(),
            node.held_to_bps
                .map_or_else(|| "not held".to_owned(), megabits),
            node.own_backlog_bytes.to_string(),
            node.own_drops.to_string(),
            (node.refused + node.grants_refused).to_string(),
        ]
    });
    text += &table::figures(&header, rows);
    text
}
