//! `taut bus`: looks at the buses of this machine without taking part.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tautline::vbus::{self, Bus, Observer, PortFigures, PortName};

use crate::cli::CommandError;
use crate::commands::output::JsonArguments;
use tautline_report::table;

/// Arguments of `taut bus`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the buses: permissions, nodes, open ports, senders, readers.
    Show(ShowArguments),
}

/// Arguments of `taut bus show`.
#[derive(Debug, Args)]
struct ShowArguments {
    /// This bus only: its name, or the path of its directory [default: all of the system and of this user].
    bus: Option<String>,
    #[command(flatten)]
    json: JsonArguments,
}

impl ShowArguments {
    /// The buses that are meant; one that is named must be there.
    fn buses(&self) -> Result<Vec<Bus>, CommandError> {
        let named: Option<PathBuf> = self.bus.as_deref().map(vbus::path);
        let mut buses = vbus::buses(named.as_deref()).map_err(|error| {
            CommandError::failed(
                format!("cannot list the buses: {error}"),
                "look at the directories under /run/tautline/vbus and $XDG_RUNTIME_DIR/tautline/vbus",
            )
        })?;
        if let Some(path) = &named {
            buses.retain(|bus| bus.path == *path);
            if buses.is_empty() {
                return Err(CommandError::failed(
                    format!("there is no bus {}, or not for this user", path.display()),
                    "`taut bus show` lists those that there are; a node makes its bus when it opens",
                ));
            }
        }
        Ok(buses)
    }
}

/// Prints each bus with its ports. A port that does not show itself is named on standard error.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let Action::Show(arguments) = arguments.action;
    let buses = arguments.buses()?;
    let json = || {
        let buses: Vec<Value> = buses.iter().map(bus_json).collect();
        json!({ "buses": buses })
    };
    arguments.json.print(json, || {
        if buses.is_empty() {
            return "there is no bus, or none for this user\n".to_owned();
        }
        let texts: Vec<String> = buses.iter().map(bus_text).collect();
        texts.join("\n")
    })
}

/// Figures of each port, or the reason why it shows none.
fn ports(bus: &Bus) -> Vec<(PortName, Result<PortFigures, String>)> {
    let path = bus.path.to_string_lossy();
    let look = |port: &PortName| {
        let figures = Observer::open(&path, *port).map(|observer| observer.figures());
        (*port, figures.map_err(|error| error.to_string()))
    };
    bus.ports.iter().map(look).collect()
}

fn bus_json(bus: &Bus) -> Value {
    let mut json = serde_json::to_value(bus).expect("a bus is plain data");
    json["mode"] = format!("{:o}", bus.mode).into();
    let port = |(name, figures): (PortName, Result<PortFigures, String>)| match figures {
        Ok(figures) => serde_json::to_value(figures).expect("figures are plain data"),
        Err(error) => json!({ "port": name.to_string(), "error": error }),
    };
    json["ports"] = ports(bus).into_iter().map(port).collect();
    json
}

fn bus_text(bus: &Bus) -> String {
    let members: Vec<String> = bus
        .members
        .iter()
        .map(|member| format!("{} (process {})", member.node, member.process))
        .collect();
    let members = if members.is_empty() {
        "none".to_owned()
    } else {
        members.join(", ")
    };
    let mut text = format!(
        "bus {} in {}, mode {:o}, user {}, group {}\n  members: {members}\n",
        bus.name,
        bus.path.display(),
        bus.mode,
        bus.user,
        bus.group,
    );
    let rows: Vec<Vec<String>> = ports(bus)
        .into_iter()
        .filter_map(|(name, figures)| match figures {
            Ok(figures) => Some(row(&figures)),
            Err(error) => {
                say!("taut: {name}: {error}");
                None
            }
        })
        .collect();
    text += &if rows.is_empty() {
        "  no open ports\n".to_owned()
    } else {
        table::figures(&["port", "kind", "depth", "bytes", "process", "from"], rows)
    };
    text
}

fn row(figures: &PortFigures) -> Vec<String> {
    let from: Vec<String> = figures
        .producers
        .iter()
        .map(|producer| format!("{} ({})", producer.from, producer.process))
        .collect();
    vec![
        figures.port.to_string(),
        figures.kind.name().to_owned(),
        figures.depth.to_string(),
        figures.message_bytes_max.to_string(),
        figures.process.to_string(),
        match from.is_empty() {
            true => "–".to_owned(),
            false => from.join(", "),
        },
    ]
}
