//! `taut doctor`: see [`crate::doctor`].

use clap::Args;

use crate::cli::{self, CommandError};
use crate::doctor::Examination;

/// Arguments of `taut doctor`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Write JSON to standard output in place of the lines.
    #[arg(long)]
    json: bool,
}

/// Examines the machine and prints what was found.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let examination = Examination::of_this_machine();
    if arguments.json {
        let json = serde_json::to_value(&examination).expect("an examination is plain data");
        cli::print(&format!("{json:#}\n"))?;
    } else {
        cli::print(&examination.text())?;
    }
    if examination.is_usable() {
        Ok(())
    } else {
        Err(CommandError::answer_is_no())
    }
}
