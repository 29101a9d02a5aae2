//! `taut node`: a node that serves several processes, and how receive processing is scheduled.

mod run;
mod tune;

use clap::{Args, Subcommand};

use crate::cli::CommandError;

/// Arguments of `taut node`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Own an interface's demux and give ports to other processes, which then need no privilege.
    Run(run::Arguments),
    /// Show or change how receive processing on an interface is scheduled.
    Tune(tune::TuneArguments),
    /// Restore the settings that `tune`, or a `run` that was killed, has changed.
    Untune(tune::UntuneArguments),
}

/// Runs the subcommand.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Tune(arguments) => tune::tune(arguments),
        Command::Untune(arguments) => tune::untune(arguments),
    }
}
