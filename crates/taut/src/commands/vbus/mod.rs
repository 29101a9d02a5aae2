//! `taut vbus`: looks at the buses of this machine without taking part.

mod list;
mod tap;
mod top;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tautline::vbus::{self, Bus, ObserveError};

use crate::cli::CommandError;

/// Arguments of `taut vbus`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// View to show.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the buses: permissions, nodes, open ports.
    List(list::Arguments),
    /// Show the load of the ports: rates, waiting messages and their age, drops.
    Top(top::Arguments),
    /// Watch the messages of a port, without taking any from its receiver.
    Tap(tap::Arguments),
}

/// Runs a subcommand.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.command {
        Command::List(arguments) => list::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Tap(arguments) => tap::run(&arguments),
    }
}

/// Which buses are meant.
#[derive(Debug, Args)]
struct BusArguments {
    /// This bus only: its name, or the path of its directory [default: all of the system and of this user].
    #[arg(long, value_name = "BUS")]
    bus: Option<String>,
}

impl BusArguments {
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
                    "`taut vbus list` shows those that there are; a node makes its bus when it opens",
                ));
            }
        }
        Ok(buses)
    }
}

/// Remedy when a port cannot be watched.
fn explain(error: &ObserveError) -> CommandError {
    let what = error.to_string();
    CommandError::failed(what, error.remedy())
}
