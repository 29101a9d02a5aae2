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
    let valued = |option: &str, value: String| joined(option, PathBuf::from(value));
    let file = |option: &str, file: Option<PathBuf>| file.map(|file| joined(option, file));
    let mut words: Vec<OsString> = Vec::new();
    match command {
        Command::Run { config } => {
            words.extend(["run".into(), joined("--config=", config)]);
        }
        Command::Check { config, json } => {
            words.extend(["check".into(), joined("--config=", config)]);
            words.extend(file("--json=", json));
        }
        Command::Status { json } => {
            words.push("status".into());
            words.extend(file("--json=", json));
        }
        Command::Fleet {
            config,
            zenoh,
            prefix,
            once,
            interval_ms,
        } => {
            words.push("fleet".into());
            words.extend(file("--config=", config));
            words.extend(file("--zenoh=", zenoh));
            words.extend(prefix.map(|prefix| valued("--prefix=", prefix)));
            words.extend(once.then(|| "--once".into()));
            words.push(valued("--interval-ms=", interval_ms.to_string()));
        }
        Command::Record {
            file: to,
            keys,
            config,
            zenoh,
            count,
            seconds,
        } => {
            words.push("record".into());
            words.extend(keys.into_iter().map(|key| valued("--key=", key)));
            words.extend(file("--config=", config));
            words.extend(file("--zenoh=", zenoh));
            words.extend(count.map(|count| valued("--count=", count.to_string())));
            words.extend(seconds.map(|seconds| valued("--seconds=", seconds.to_string())));
            words.extend(["--".into(), to.into_os_string()]);
        }
    }
    words
}

/// The program beside this command, otherwise the first in PATH.
pub(super) fn program() -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    let beside = own.parent().map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|directory| directory.join(PROGRAM))
        .find(|program| program.is_file())
}

pub(super) fn missing() -> CommandError {
    CommandError::failed(
        format!("{PROGRAM} is neither beside this command nor in PATH"),
        "build it with `make gateway`, and put it beside `taut`",
    )
}
