//! `taut doctor`: see [`crate::doctor`].

use clap::Args;

use crate::cli::CommandError;
use crate::commands::output::JsonArguments;
use crate::doctor::Examination;

/// Arguments of `taut doctor`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    json: JsonArguments,
}

/// Examines the machine and prints what was found.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let examination = Examination::of_this_machine();
    arguments.json.print(
        || serde_json::to_value(&examination).expect("an examination is plain data"),
        || examination.text(),
    )?;
    if examination.is_usable() {
        Ok(())
    } else {
        Err(CommandError::answer_is_no())
    }
}
