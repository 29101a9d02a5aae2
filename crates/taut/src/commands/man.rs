//! `taut man DIRECTORY`.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::cli::{self, CommandError};

/// Arguments of `taut man`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory of the pages, which is made if it is missing.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes a page for each command: `taut.1`, `taut-node.1`, `taut-node-run.1` and so on.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let directory = &arguments.directory;
    let what =
        |error: std::io::Error| format!("cannot write pages to {}: {error}", directory.display());
    let remedy = "name a directory that this user may write to";
    fs::create_dir_all(directory).map_err(|error| CommandError::usage(what(error), remedy))?;
    clap_mangen::generate_to(cli::grammar(), directory)
        .map_err(|error| CommandError::failed(what(error), remedy))
}
