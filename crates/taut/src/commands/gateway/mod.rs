//! `taut gateway`: becomes the program `taut-gateway`, which is built in a workspace of its own because Zenoh is large.

mod arguments;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

pub use arguments::Arguments;
use arguments::Command;

use crate::cli::CommandError;

/// File of the program.
const PROGRAM: &str = "taut-gateway";

/// Becomes the program; returns only if that fails.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let program = program().ok_or_else(missing)?;
    let failed = Process::new(&program).args(words(arguments.command)).exec();
    Err(CommandError::failed(
        format!("cannot run {}: {failed}", program.display()),
        "build it again with `make gateway`",
    ))
}

/// The arguments, as `taut-gateway` takes them.
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
    [word.into()]
        .into_iter()
        .chain(config)
        .chain(json)
        .collect()
}

/// The program beside this command, otherwise the first in PATH.
fn program() -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    let beside = own.parent().map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|directory| directory.join(PROGRAM))
        .find(|program| program.is_file())
}

fn missing() -> CommandError {
    CommandError::failed(
        format!("{PROGRAM} is neither beside this command nor in PATH"),
        "build it with `make gateway`, and put it beside `taut`",
    )
}
