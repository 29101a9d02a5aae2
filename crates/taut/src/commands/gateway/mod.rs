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

/// The program of this command.
pub(super) const PROGRAM: Program = Program {
    file: "taut-gateway",
    target: "gateway",
};

/// A program of another workspace, which a command becomes.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its file.
    pub file: &'static str,
    /// Target of the makefile that builds it.
    pub target: &'static str,
}

/// Becomes the program; returns only if that fails.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    PROGRAM.run(words(arguments.command))
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
            interval,
        } => {
            words.push("fleet".into());
            words.extend(file("--config=", config));
            words.extend(file("--zenoh=", zenoh));
            words.extend(prefix.map(|prefix| valued("--prefix=", prefix)));
            words.extend(once.then(|| "--once".into()));
            words.push(valued("--interval=", interval.as_secs_f64().to_string()));
        }
        Command::Record {
            file: to,
            overwrite,
            keys,
            config,
            zenoh,
            count,
            timeout,
        } => {
            words.push("record".into());
            words.extend(overwrite.then(|| "--overwrite".into()));
            words.extend(keys.into_iter().map(|key| valued("--key=", key)));
            words.extend(file("--config=", config));
            words.extend(file("--zenoh=", zenoh));
            words.extend(count.map(|count| valued("--count=", count.to_string())));
            let timeout = timeout.map(|timeout| timeout.as_secs_f64().to_string());
            words.extend(timeout.map(|timeout| valued("--timeout=", timeout)));
            words.extend(["--".into(), to.into_os_string()]);
        }
    }
    words
}

impl Program {
    /// Becomes the program; returns only if that fails.
    ///
    /// # Errors
    /// There is no such program, or it cannot be run.
    pub fn run(self, words: Vec<OsString>) -> Result<(), CommandError> {
        let program = self.find()?;
        let failed = Process::new(&program).args(words).exec();
        Err(CommandError::failed(
            format!("cannot run {}: {failed}", program.display()),
            format!("build it again with `make {}`", self.target),
        ))
    }

    /// The program beside this command, otherwise the first in PATH.
    ///
    /// # Errors
    /// There is no such program; the error says how to build it.
    pub fn find(self) -> Result<PathBuf, CommandError> {
        let Self { file, target } = self;
        let own = env::current_exe().ok();
        let beside = own.and_then(|own| own.parent().map(Path::to_owned));
        let path = env::var_os("PATH").unwrap_or_default();
        let found = beside
            .into_iter()
            .chain(env::split_paths(&path))
            .map(|directory| directory.join(file))
            .find(|program| program.is_file())
            .ok_or_else(|| {
                CommandError::failed(
                    format!("{file} is neither beside this command nor in PATH"),
                    format!("build it with `make {target}`, and put it beside `taut`"),
                )
            })?;
        crate::cli::trusted_code(&found)
    }
}
