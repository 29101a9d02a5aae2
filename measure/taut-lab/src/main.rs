//! The command `taut-lab`: measures machines, kernels and links, repeats the papers' figures, and shows what Tautline
//! does on two hosts of its own making. `taut-lab lab`, `taut-lab bench`, `taut-lab experiment` and `taut-lab demo`
//! become it.

// Both panic when their reader has gone: `cli::print`, `cli::show` and `say!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod demo;
mod experiment;
mod help;
mod lab;
mod task;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use taut::cli::{self, CommandError};
use taut::commands::{completions, man, partition};

/// Measure machines, kernels and links, and show what real time on stock Linux is.
#[derive(Debug, Parser)]
#[command(
    name = "taut-lab",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    /// Command to run.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a control loop between two hosts beside a TCP stream, and compare it with kernel UDP and TCP.
    Demo(demo::Arguments),
    /// Run benchmarks between two hosts that the command makes itself.
    Bench(bench::Arguments),
    /// Measure whether this machine, with this kernel, holds a deadline; compare kernels.
    Lab(lab::LabArgs),
    /// Repeat figures of the papers: raw data, plots, and the paper's result beside the result here.
    Experiment(experiment::Arguments),
    /// Compare task sets under different conditions.
    Task(task::Arguments),
    /// Write the completions of a shell to standard output.
    #[command(hide = true)]
    Completions(completions::Arguments),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Man(man::Arguments),
    /// Wait for the end of a process, and put back the partition that it leaves.
    #[command(hide = true)]
    Guard(partition::GuardArguments),
}

fn main() -> ExitCode {
    lab::run_if_guest();
    cli::main_of(
        grammar(),
        |cli: &Cli| matches!(cli.command, Command::Guard(_)),
        |cli| run(cli.command),
    )
}

/// The whole grammar, also for completions and manual pages.
fn grammar() -> clap::Command {
    help::HELP.add_to(cli::grammar_of::<Cli>())
}

fn run(command: Command) -> Result<(), CommandError> {
    match command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Experiment(arguments) => experiment::run(arguments),
        Command::Task(arguments) => task::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments, grammar()),
        Command::Man(arguments) => man::run(&arguments, grammar()),
        Command::Guard(arguments) => partition::guard(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_keeps_the_rules() {
        assert!(cli::assert_by_the_rules(&grammar()) > 10);
    }
}
