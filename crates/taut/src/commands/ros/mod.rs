//! `taut ros`: becomes the program `taut-ros`, which is built in a workspace of its own because DDS brings many crates.

mod arguments;

use std::ffi::OsString;
use std::path::PathBuf;

pub use arguments::Arguments;
use arguments::Command;

use crate::cli::CommandError;
use crate::commands::gateway;

/// The program of this command.
const PROGRAM: gateway::Program = gateway::Program {
    file: "taut-ros",
    target: "ros",
};

/// Becomes the program; returns only if that fails.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    PROGRAM.run(words(arguments.command))
}

/// The arguments, as `taut-ros` takes them.
fn words(command: Command) -> Vec<OsString> {
    let joined = |option: &str, file: PathBuf| {
        let mut word = OsString::from(option);
        word.push(file);
        word
    };
    let (word, config, json) = match command {
        Command::Run { config } => ("run", Some(config), None),
        Command::Check { config, json } => ("check", Some(config), json),
        Command::Status { json } => ("status", None, json),
    };
    let config = config.map(|file| joined("--config=", file));
    let json = json.map(|file| joined("--json=", file));
    let options = config.into_iter().chain(json);
    [word.into()].into_iter().chain(options).collect()
}
