//! `taut node show`: the neighbours that a control process has for all its clients.

use clap::Args;
use serde_json::{Value, json};
use tautline::control::{self, SharedNeighbours};
use tautline::neighbours::NeighbourTableError;
use tautline::{MacAddress, Neighbour};

use crate::cli::CommandError;
use crate::commands::output::JsonArguments;
use tautline_report::table;
use tautline_state::interface;

/// Arguments of `taut node show`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Interface whose control process it is [default: the only one that there is].
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    #[command(flatten)]
    json: JsonArguments,
}

fn error(error: NeighbourTableError) -> CommandError {
    let build = match error {
        NeighbourTableError::NoSuchInterface { .. } => CommandError::usage,
        _ => CommandError::failed,
    };
    build(error.to_string(), error.remedy().to_owned())
}

impl Arguments {
    /// The interface that is named, or the only one with a control process.
    fn interface(&self) -> Result<String, CommandError> {
        if let Some(name) = &self.interface {
            return Ok(name.clone());
        }
        let names = interface::names().map_err(|error| {
            CommandError::failed(
                format!("cannot list the interfaces: {error}"),
                "name one with --interface",
            )
        })?;
        let mut served: Vec<String> = names
            .into_iter()
            .filter(|name| control::look(name).is_some())
            .collect();
        match (served.pop(), served.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => Err(CommandError::usage(
                "no interface has a control process here",
                "start one (taut node run); without one, the file of a node has its neighbours",
            )),
            (Some(last), false) => Err(CommandError::usage(
                format!(
                    "several interfaces have a control process: {}, {last}",
                    served.join(", ")
                ),
                "name one with --interface",
            )),
        }
    }

    /// The neighbours of its control process.
    fn shared(&self) -> Result<(String, SharedNeighbours), CommandError> {
        let interface = self.interface()?;
        match control::shared_neighbours(&interface).map_err(error)? {
            Some(shared) => Ok((interface, shared)),
            None => Err(CommandError::failed(
                format!("`{interface}` has no control process"),
                "start one (taut node run); without one, the file of a node has its neighbours",
            )),
        }
    }
}

fn known(mac: MacAddress) -> Option<String> {
    (!mac.is_unspecified()).then(|| mac.to_string())
}

/// Prints the [[neighbour]] entries of the control process's file.
pub(super) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let (interface, shared) = arguments.shared()?;
    let json = || {
        let entry = |entry: &Neighbour| {
            json!({
                "name": entry.name,
                "mac": known(entry.mac),
                "ip": entry.ip,
                "form": entry.form.to_string(),
            })
        };
        let entries: Vec<Value> = shared.entries.iter().map(entry).collect();
        json!({
            "interface": interface,
            "control_process": shared.pid,
            "neighbours": entries,
        })
    };
    let header = ["neighbour", "mac", "ip", "form"];
    let rows = shared.entries.iter().map(|entry| {
        let dash = || "–".to_owned();
        vec![
            entry.name.clone(),
            known(entry.mac).unwrap_or_else(dash),
            entry.ip.map_or_else(dash, |ip| ip.to_string()),
            entry.form.to_string(),
        ]
    });
    let mut text = format!("control process {} of {interface}\n", shared.pid);
    text += &match shared.entries.is_empty() {
        true => "  no neighbours\n".to_owned(),
        false => table::figures(&header, rows),
    };
    arguments.json.print(json, || text)
}
