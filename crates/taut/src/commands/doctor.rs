//! `taut doctor`: see [`crate::doctor`].

use clap::Args;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;
use crate::doctor::Examination;
use crate::leftovers::{self, LeftoversError};

/// Arguments of `taut doctor`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Put back what killed processes of this user left: partitions, tuned interfaces, directories, network
    /// namespaces. Without it, nothing is changed.
    #[arg(long, conflicts_with = "json")]
    put_back: bool,
    #[command(flatten)]
    json: JsonArguments,
}

/// Examines the machine and prints what was found.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.put_back {
        return put_back();
    }
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

/// Exit status 1 if something is left all the same.
fn put_back() -> Result<(), CommandError> {
    let failed = |error: LeftoversError| {
        CommandError::failed(
            error.to_string(),
            "run it as the user of the killed process",
        )
    };
    let done = leftovers::put_back().map_err(failed)?;
    let mut text: String = done.iter().map(|line| format!("{line}\n")).collect();
    let left = leftovers::found().map_err(failed)?;
    text += &match left.as_slice() {
        [] if done.is_empty() => "nothing was left\n".to_owned(),
        [] => "nothing is left\n".to_owned(),
        left => left
            .iter()
            .map(|line| format!("still left: {line}\n"))
            .collect(),
    };
    cli::print(&text)?;
    match left.is_empty() {
        true => Ok(()),
        false => Err(CommandError::answer_is_no()),
    }
}
