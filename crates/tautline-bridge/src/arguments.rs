//! Arguments that the subcommands of all programs have.

use std::path::PathBuf;

use clap::Args;

/// The file of a program.
#[derive(Debug, Args)]
pub struct ConfigFile {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Place of the JSON that [`output`](crate::program::output) writes.
#[derive(Debug, Args)]
pub struct JsonFile {
    /// Write JSON to standard output in place of the table; with =FILE, into a file beside it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}
