//! The command `taut`.
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
enum Cli {
    Lab(taut::lab::LabArgs),
}

fn main() -> ExitCode {
    taut::lab::run_if_guest();
    let Cli::Lab(arguments) = Cli::parse();
    taut::lab::run(arguments).unwrap_or_else(|error| {
        eprintln!("taut: {error}");
        ExitCode::FAILURE
    })
}
