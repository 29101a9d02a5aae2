//! `taut completions SHELL`.

use clap::Args;
use clap_complete::Shell;

use crate::cli::{self, CommandError};

/// Arguments of `taut completions`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The shell.
    shell: Shell,
}

/// Writes the completions.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut cli::grammar(), "taut", &mut script);
    cli::print(&String::from_utf8_lossy(&script))
}
