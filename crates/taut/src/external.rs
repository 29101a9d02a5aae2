//! Commands that are programs of their own, as git and cargo have them: `taut` becomes the program that lies beside it
//! or in PATH. Their grammars are theirs alone; here is one line about each.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Args, Subcommand};

use crate::cli::CommandError;

/// Benchmarks, the lab, the papers' figures, the demonstration.
const LAB: Program = Program {
    file: "taut-lab",
    remedy: "install the package taut-lab; or `make build` in the sources, and put it next to `taut`",
};
/// Flights.
const FLIGHT: Program = Program {
    file: "taut-flight",
    remedy: "`make flight` in the sources builds it; put it next to `taut`",
};
/// Ports on Zenoh.
pub const GATEWAY: Program = Program {
    file: "taut-gateway",
    remedy: "install the package taut-gateway; or `make gateway` in the sources, and put it next to `taut`",
};
/// Topics of ROS 2.
const ROS: Program = Program {
    file: "taut-ros",
    remedy: "`make ros` in the sources builds it; put it next to `taut`",
};
/// The command itself, for the programs beside it.
pub const TAUT: Program = Program {
    file: "taut",
    remedy: "install the package taut; or `make build` in the sources, and put it next to this program",
};

/// Commands that another program has. `display_name` is that of the manual page.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a control loop between two hosts beside a TCP stream, and compare it with kernel UDP and TCP.
    #[command(display_name = "taut-lab-demo")]
    Demo(Words),
    /// Run benchmarks between two hosts that the command makes itself.
    #[command(display_name = "taut-lab-bench")]
    Bench(Words),
    /// Measure whether this machine, with this kernel, holds a deadline; compare kernels.
    #[command(display_name = "taut-lab-lab")]
    Lab(Words),
    /// Repeat figures of the papers: raw data, plots, and the paper's result beside the result here.
    #[command(display_name = "taut-lab-experiment")]
    Experiment(Words),
    /// Publish ports on Zenoh, and deliver to ports what comes from there.
    Gateway(Words),
    /// Show ports as topics of ROS 2, and deliver topics to ports.
    Ros(Words),
    /// Fly a quadcopter beside loads and faults, in several ways, and compare them.
    Flight(Words),
}

/// Arguments for the program, which are not looked at here.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Words {
    /// Arguments of the program; --help lists them.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    words: Vec<OsString>,
}

/// A program beside this one.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    file: &'static str,
    remedy: &'static str,
}

/// Becomes the program; returns only if that fails.
///
/// # Errors
/// There is no such program, or it cannot be run.
pub fn run(command: Command) -> Result<(), CommandError> {
    let (program, word, words) = match command {
        Command::Demo(words) => (LAB, Some("demo"), words),
        Command::Bench(words) => (LAB, Some("bench"), words),
        Command::Lab(words) => (LAB, Some("lab"), words),
        Command::Experiment(words) => (LAB, Some("experiment"), words),
        Command::Gateway(words) => (GATEWAY, None, words),
        Command::Ros(words) => (ROS, None, words),
        Command::Flight(words) => (FLIGHT, None, words),
    };
    let file = program.find()?;
    let failed = Process::new(&file).args(word).args(words.words).exec();
    Err(CommandError::failed(
        format!("cannot run {}: {failed}", file.display()),
        program.remedy,
    ))
}

/// Whether the manual page of a command is another program's: that of `taut lab` is of `taut-lab`.
pub(crate) fn is_page_elsewhere(command: &clap::Command) -> bool {
    let below_taut = command.get_bin_name() == Some(&format!("taut {}", command.get_name()));
    below_taut && is_external(command.get_name())
}

/// Whether a name is that of a command of another program.
pub fn is_external(name: &str) -> bool {
    Command::has_subcommand(name)
}

impl Program {
    /// The program beside this one, otherwise the first in PATH.
    ///
    /// # Errors
    /// There is no such program, or others can write it; the error says what to do.
    pub fn find(self) -> Result<PathBuf, CommandError> {
        let own = env::current_exe().ok();
        let beside = own.and_then(|own| own.parent().map(Path::to_owned));
        let path = env::var_os("PATH").unwrap_or_default();
        let found = beside
            .into_iter()
            .chain(env::split_paths(&path))
            .map(|directory| directory.join(self.file))
            .find(|program| program.is_file())
            .ok_or_else(|| {
                CommandError::failed(
                    format!("{} is neither next to this command nor in PATH", self.file),
                    self.remedy,
                )
            })?;
        crate::cli::trusted_code(&found)
    }
}
