//! `taut lab`: can this machine, with this kernel, hold your deadline, and how sure are we?

mod kernels;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tautline_lab::kernels::guest;
use tautline_lab::load;

pub use kernels::KernelsArgs;

/// Arguments of `taut lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Compare kernels in virtual machines on virtual time: the same result twice, on any host
    Kernels(KernelsArgs),
    /// One part of a load, in a process of its own. Started by the lab itself.
    #[command(hide = true)]
    Worker {
        /// Part, directory, CPUs, size
        arguments: Vec<String>,
    },
}

/// Why a lab command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The kernel laboratory.
    #[error(transparent)]
    Kernels(#[from] tautline_lab::kernels::KernelsError),
    /// A result file.
    #[error(transparent)]
    ResultFile(#[from] tautline_lab::result::ResultFileError),
    /// An argument that is wrong.
    #[error("{0}")]
    Usage(String),
    /// The system.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// Does the work of a guest's first process and never returns, if this process is one. To be called first of all: the
/// kernel puts words of its own command line before a program's arguments, so these cannot be relied on.
pub fn run_if_guest() {
    if guest::is_guest() {
        let worker_command = ["/init", "lab", "worker"].map(PathBuf::from);
        if let Err(error) = guest::run_as_first_process(&worker_command) {
            eprintln!("taut lab guest: {error}");
        }
    }
}

/// Runs a lab command. The exit status is part of its answer: 0 good, 3 a deadline or a comparison not held, 4 no
/// verdict.
pub fn run(arguments: LabArgs) -> Result<ExitCode, LabError> {
    match arguments.command {
        LabCommand::Kernels(arguments) => kernels::run(&arguments),
        LabCommand::Worker { arguments } => {
            load::run_worker(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The directory for packages, kernels and results: `$XDG_CACHE_HOME/tautline/lab`, or below the home directory.
fn cache_directory() -> PathBuf {
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("tautline/lab")
}
