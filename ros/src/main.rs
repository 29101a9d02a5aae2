//! Ports of a cell as topics of ROS 2, by DDS, which `taut ros` starts.
//!
//! The program has ports as any program has, and is a participant of DDS. Nobody in the cell waits for it: ports are
//! memory, and whoever sends to a port never waits for its reader. docs/ros.md describes what it does.
//!
//! From the top; a module uses those below it and none above.
//!
//! | module | holds |
//! |---|---|
//! | `run` | ports, participant, threads |
//! | `subscription`, `publication` | from a topic to ports; from a port to a topic |
//! | `status` | counters, and the state for whoever asks |
//! | `dds` | the participant of DDS |
//! | `config` | the file |
//! | `cdr`, `mapping`, `definition` | messages as bytes; fields of ports and messages; definitions of messages |
//! | `gate`, `origin` | of the gateway: values that are published; age of a message without a common clock |

#[path = "../../crates/taut/src/commands/ros/arguments.rs"]
#[allow(unreachable_pub)] // `taut` offers them to its tests
mod arguments;
mod cdr;
mod config;
mod dds;
mod definition;
#[path = "../../gateway/src/gate.rs"]
#[allow(dead_code)] // the gateway uses all of it
mod gate;
mod mapping;
#[path = "../../gateway/src/origin.rs"]
#[allow(dead_code)]
mod origin;
mod publication;
mod run;
mod status;
mod subscription;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;

use arguments::{Arguments, Command};
use config::Config;

/// Exit status after a panic, which is Rust's own.
const PANICKED: i32 = 101;

/// Show the ports of a cell as topics of ROS 2, and deliver topics to ports.
#[derive(Debug, Parser)]
#[command(name = "taut-ros", version)]
struct Cli {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    let ended = match Cli::parse().arguments.command {
        Command::Run { config } => run(&config),
        Command::Check { config, json } => check(&config, json.as_deref()),
        Command::Status { json } => show(json.as_deref()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err((what, remedy)) => {
            eprintln!("taut ros: {what}\n  what to do: {remedy}");
            ExitCode::FAILURE
        }
    }
}

/// A failure and its remedy, for a person.
type Failed = (String, &'static str);

fn read(file: &Path) -> Result<Config, Failed> {
    Config::from_file(file).map_err(|error| {
        (
            error.to_string(),
            "correct the file; docs/ros.md lists every key",
        )
    })
}

fn run(file: &Path) -> Result<(), Failed> {
    let config = read(file)?;
    // A thread of the DDS library that fails would leave a program that looks alive. All of it ends, and whoever
    // watches it (systemd) starts it again; the cell notices that a port has gone.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(PANICKED);
    }));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        // The second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| {
                (
                    format!("cannot watch for signals: {error}"),
                    "raise the limit of open files (ulimit -n)",
                )
            })?;
    }
    run::run(config, &stop).map_err(|error| {
        (
            error.to_string(),
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
    let text = format!(
        "node {name}, domain {}\n{}",
        config.domain,
        lines.collect::<String>()
    );
    let mappings = mappings.iter().map(
        |(from, to, message)| serde_json::json!({ "from": from, "to": to, "message": message }),
    );
    let mappings: Vec<_> = mappings.collect();
    let told = serde_json::json!({ "name": name, "domain": config.domain, "mappings": mappings });
    output(json, &told, &text)
}

fn show(json: Option<&Path>) -> Result<(), Failed> {
    let all = status::all();
    let text = match all.is_empty() {
        true => "no `taut ros run` in this network namespace\n".to_owned(),
        false => all.iter().map(status::RosStatus::text).collect(),
    };
    output(json, &serde_json::json!(all), &text)
}

/// Writes JSON where it was asked for, and the text unless standard output is for JSON.
fn output(json: Option<&Path>, told: &serde_json::Value, text: &str) -> Result<(), Failed> {
    let Some(path) = json else {
        print(text);
        return Ok(());
    };
    if path == Path::new("-") {
        print(&format!("{told:#}\n"));
        return Ok(());
    }
    let bytes = format!("{told:#}\n");
    tautline_state::write_whole(path, bytes.as_bytes()).map_err(|error| {
        (
            error.to_string(),
            "name a file in a directory that you may write to",
        )
    })?;
    print(text);
    Ok(())
}

/// Writes to standard output; a reader that has gone away is no error.
fn print(text: &str) {
    let _gone = std::io::stdout().lock().write_all(text.as_bytes());
}
