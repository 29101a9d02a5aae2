//! Ports of a cell as topics of ROS 2, by DDS, which `taut ros` starts.
//!
//! The program has ports like any other, and is a participant of DDS. No program in the cell waits for it: ports are
//! memory, and senders never wait for readers. docs/reference/ros.md describes what it does.
//!
//! From the top; a module uses those below it and none above.
//!
//! | module | holds |
//! |---|---|
//! | `run` | ports, participant, threads |
//! | `subscription`, `publication` | from a topic to ports; from a port to a topic |
//! | `status` | counters, and the state for queries |
//! | `dds` | the participant of DDS |
//! | `receive`, `datagrams` | the function by which DDS receives; datagrams that it does not get |
//! | `config` | the file |
//! | `cdr`, `mapping`, `definition` | messages as bytes; fields of ports and messages; definitions of messages |

mod arguments;
mod cdr;
mod config;
mod datagrams;
mod dds;
mod definition;
mod mapping;
mod publication;
mod receive;
mod run;
mod status;
mod subscription;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tautline_bridge::program::{self, Failed, output, signals};
use tautline_bridge::standby::Standby;

use arguments::Command;
use config::Config;

/// Exit status after a panic, which is Rust's own.
const PANICKED: i32 = 101;
/// Memory that the program may take: its own, not that of ports, which others map too. DDS remembers every participant
/// that it has heard of. Lower: a file with many topics finds no memory for its threads. Higher: hostile participants
/// take more of the machine's memory before the program ends.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Show the ports of a cell as topics of ROS 2, and deliver topics to ports.
#[derive(Debug, Parser)]
#[command(name = "taut-ros", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Run(file) => run(&file.config),
        Command::Check { file, output } => check(&file.config, output.json.as_deref()),
        Command::Status(output) => tautline_bridge::status::show(
            status::FAMILY,
            ("programs", "no `taut ros run` in this network namespace\n"),
            status::RosStatus::text,
            output.json.as_deref(),
        ),
    };
    program::ended("taut ros", ended)
}

fn read(file: &Path) -> Result<Config, Failed> {
    Config::from_file(file).map_err(|error| {
        Failed::wrong_use(
            error,
            "correct the file; docs/reference/ros.md lists every key",
        )
    })
}

fn run(file: &Path) -> Result<(), Failed> {
    let config = read(file)?;
    program::limit_memory(MEMORY_BYTES_MAX)?;
    // A thread of the DDS library that fails would leave a program that looks alive. All of it ends, and whoever
    // watches it (systemd) starts it again; the cell notices that a port has gone.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(PANICKED);
    }));
    let stop = signals()?;
    run::run(config, &stop).map_err(|error| {
        Failed::new(
            error,
            "correct the node's configuration, and see `taut status`",
        )
    })
}

fn check(file: &Path, json: Option<&Path>) -> Result<(), Failed> {
    let config = read(file)?;
    let published = config.publications.iter();
    let published = published.map(|one| (&one.port.name, &one.topic.name, &one.topic.message));
    let subscribed = config.subscriptions.iter();
    let subscribed = subscribed.map(|one| (&one.topic.name, &one.port.name, &one.topic.message));
    let mappings: Vec<_> = published.chain(subscribed).collect();
    let lines = mappings
        .iter()
        .map(|(from, to, message)| format!("  {from} -> {to} ({message})\n"));
    let name = config.full_name();
    let standby = config.standby.as_ref();
    let text = format!(
        "node {name}, domain {}\n{}{}",
        config.domain,
        lines.collect::<String>(),
        standby.map(Standby::text).unwrap_or_default()
    );
    let mappings = mappings.iter().map(
        |(from, to, message)| serde_json::json!({ "from": from, "to": to, "message": message }),
    );
    let mappings: Vec<_> = mappings.collect();
    let told = serde_json::json!({
        "name": name,
        "domain": config.domain,
        "mappings": mappings,
        "standby": standby.map(Standby::told),
    });
    output(json, &told, &text)
}
