//! The gateway between the ports of a cell and Zenoh, which `taut gateway` starts.
//!
//! It has ports as any program has, and a session of Zenoh. No program in the cell waits for it: ports are memory, and
//! senders never wait for readers. docs/reference/gateway.md describes what it does.
//!
//! From the top; a module uses those below it and none above.
//!
//! | module | holds |
//! |---|---|
//! | `run` | ports, session, threads |
//! | `publication`, `subscription`, `request` | from a port to Zenoh; from Zenoh to ports; both ways |
//! | `fleet` | status of cells, published by gateways, and its watchers |
//! | `record` | what is published elsewhere, in a file |
//! | `status` | counters, and permissions to query them |
//! | `config` | the file |
//! | `origin`, `words` | origin of a value; priorities, types |
//! | `threads`, `log` | Zenoh's threads, and its log |
//! | `units` | times on the command line |

mod arguments;
mod config;
mod fleet;
mod log;
mod origin;
mod publication;
mod record;
mod request;
mod run;
mod status;
mod subscription;
mod threads;
#[path = "../../crates/taut/src/units.rs"]
#[allow(dead_code, unreachable_pub)] // `taut` has more of them
mod units;
mod words;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tautline_bridge::program::{self, Failed, output, say, signals};
use tautline_bridge::standby::Standby;
use tautline_capture::recording::RecordingError;
use tautline_state::Existing;

use arguments::Command;
use config::Config;

/// Publish the ports of a cell on Zenoh, and deliver what comes from there.
#[derive(Debug, Parser)]
#[command(name = "taut-gateway", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    log::start();
    let ended = match Cli::parse().command {
        Command::Run(file) => {
            threads::choose();
            run(&file.config)
        }
        Command::Check { file, output } => check(&file.config, output.json.as_deref()),
        Command::Status(output) => tautline_bridge::status::show(
            status::FAMILY,
            ("gateways", "no gateway runs in this network namespace\n"),
            status::GatewayStatus::text,
            output.json.as_deref(),
        ),
        Command::Fleet {
            config,
            zenoh,
            prefix,
            once,
            interval,
        } => {
            let interval = (!once).then_some(interval);
            watch(config.as_deref(), zenoh.as_deref(), prefix, interval)
        }
        Command::Record {
            file,
            overwrite,
            keys,
            config,
            zenoh,
            count,
            length,
        } => record(
            config.as_deref(),
            zenoh.as_deref(),
            &record::Wishes {
                file: &file,
                existing: match overwrite {
                    true => Existing::Overwritten,
                    false => Existing::Kept,
                },
                keys: &keys,
                count,
                length,
            },
        ),
    };
    program::ended("taut gateway", ended)
}

fn read(file: &Path) -> Result<Config, Failed> {
    Config::from_file(file).map_err(|error| {
        Failed::wrong_use(
            error,
            "correct the file; docs/reference/gateway.md lists every key",
        )
    })
}

fn run(file: &Path) -> Result<(), Failed> {
    let config = read(file)?;
    let stop = signals()?;
    run::run(config, &stop).map_err(|error| {
        Failed::new(
            error,
            "correct the node's or Zenoh's configuration, and see `taut status`",
        )
    })
}

/// Remedy where a session of Zenoh does not come up.
const SESSION_REMEDY: &str = "see that the router or gateway of Zenoh's configuration runs, and that its certificates are valid";

/// The gateway's file, if one was named, and the configuration of a watcher beside it.
fn watcher(
    config: Option<&Path>,
    zenoh: Option<&Path>,
) -> Result<(Option<Config>, zenoh::Config), Failed> {
    let config = config.map(read).transpose()?;
    let own = fleet::session::configuration(config.as_ref(), zenoh)
        .map_err(|error| Failed::wrong_use(error, "correct the file, which is Zenoh's own"))?;
    Ok((config, own))
}

fn open(zenoh: zenoh::Config) -> Result<zenoh::Session, Failed> {
    fleet::session::open(zenoh)
        .map_err(|error| Failed::new(format!("no session of Zenoh: {error}"), SESSION_REMEDY))
}

fn watch(
    config: Option<&Path>,
    zenoh: Option<&Path>,
    prefix: Option<String>,
    interval: Option<Duration>,
) -> Result<(), Failed> {
    let (config, zenoh) = watcher(config, zenoh)?;
    let of_file = || Some(config?.fleet?.prefix.to_string());
    let prefix = prefix
        .or_else(of_file)
        .unwrap_or_else(|| fleet::PREFIX.to_owned());
    if zenoh::key_expr::KeyExpr::try_from(prefix.as_str()).is_err() || prefix.contains(['*', '$']) {
        return Err(Failed::wrong_use(
            format!("`{}` is not a key", fleet::plain(&prefix)),
            "name the first part of the fleet's keys, such as plant/fleet",
        ));
    }
    let stop = signals()?;
    let session = open(zenoh)?;
    let watched = match interval {
        None => fleet::watch::once(&session, &prefix),
        Some(interval) => fleet::watch::follow(&session, &prefix, interval, &stop),
    };
    watched.map_err(|error| Failed::new(error, SESSION_REMEDY))
}

fn record(
    config: Option<&Path>,
    zenoh: Option<&Path>,
    wishes: &record::Wishes<'_>,
) -> Result<(), Failed> {
    let (config, zenoh) = watcher(config, zenoh)?;
    let stop = signals()?;
    let session = open(zenoh)?;
    say(&format!("recording {}", wishes.keys.join(", ")));
    let recorded = record::run(&session, config.as_ref(), wishes, &stop);
    let recorded = recorded.map_err(|error| match error.downcast_ref() {
        Some(error) => not_recorded(wishes.file, error),
        None => Failed::new(error, "name keys as Zenoh has them, such as plant/cell1/**"),
    })?;
    say(&format!(
        "{} recorded, {} lost, {} left out",
        recorded.messages, recorded.lost, recorded.left_out
    ));
    Ok(())
}

fn not_recorded(file: &Path, error: &RecordingError) -> Failed {
    Failed::new(error.about(file), error.remedy())
}

fn check(file: &Path, json: Option<&Path>) -> Result<(), Failed> {
    let config = read(file)?;
    let verdict = config.fleet.as_ref().and_then(fleet::Settings::verdict_now);
    let published = config
        .publications
        .iter()
        .map(|one| (one.port.name.clone(), one.key.to_string()));
    let subscribed = config
        .subscriptions
        .iter()
        .map(|one| (one.key.to_string(), one.port.name.clone()));
    let answered = config
        .answers
        .iter()
        .map(|one| (one.key.to_string(), one.to.to_string()));
    let asked = config
        .asks
        .iter()
        .map(|one| (one.port.name.clone(), one.key.to_string()));
    let one_way = published.chain(subscribed).map(|mapping| (mapping, false));
    let both_ways = answered.chain(asked).map(|mapping| (mapping, true));
    let mappings: Vec<((String, String), bool)> = one_way.chain(both_ways).collect();
    let lines = mappings.iter().map(|((from, to), has_reply)| {
        let back = if *has_reply { status::AND_BACK } else { "" };
        format!("  {from} -> {to}{back}\n")
    });
    let standby = config.standby.as_ref();
    let text = format!(
        "gateway {}\n{}{}{}",
        config.name,
        lines.collect::<String>(),
        standby.map(Standby::text).unwrap_or_default(),
        verdict.as_ref().map(verdict_line).unwrap_or_default()
    );
    let mappings = mappings
        .iter()
        .map(|((from, to), reply)| serde_json::json!({ "from": from, "to": to, "reply": reply }));
    let told = serde_json::json!({
        "name": config.name,
        "mappings": mappings.collect::<Vec<_>>(),
        "standby": standby.map(Standby::told),
        "verdict": verdict,
    });
    output(json, &told, &text)
}

/// The lab's verdict, or why there is none: a gateway runs without one, and tells that.
fn verdict_line(verdict: &fleet::Verdict) -> String {
    match verdict {
        fleet::Verdict::Judged(judged) => format!("  verdict of the lab: {}\n", judged.words),
        fleet::Verdict::Unreadable { error } => format!("  no verdict of the lab: {error}\n"),
    }
}
