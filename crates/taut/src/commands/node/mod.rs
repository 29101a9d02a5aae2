//! `taut node`: a node that serves several processes, its neighbours, and how receive processing is scheduled.

mod run;
mod show;
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
    /// Show the neighbours that a control process has for all its clients.
    Show(show::Arguments),
    /// Show or change how receive processing on an interface is scheduled.
    Tune(tune::Arguments),
}

/// Runs the subcommand.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Tune(arguments) => tune::run(arguments),
    }
}
