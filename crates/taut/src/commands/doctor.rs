//! `taut doctor`: see [`crate::doctor`].

use clap::Args;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;
use crate::doctor::Examination;
use crate::leftovers;

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
    let json = || serde_json::to_value(&examination).expect("an examination is plain data");
    cli::all([
        match arguments.json.has_stdout() {
            true => Ok(()),
            false => cli::print_styled(&examination.text()),
        },
        arguments.json.print(json, String::new),
    ])?;
    if examination.is_usable() {
        Ok(())
    } else {
        Err(CommandError::answer_is_no())
    }
}

/// Exit status 1 if something is left all the same.
fn put_back() -> Result<(), CommandError> {
    let put_back = leftovers::put_back();
    let left = leftovers::found();
    let lines = |begin: &str, lines: &[String]| -> String {
        lines
            .iter()
            .map(|line| format!("{begin}{line}\n"))
            .collect()
    };
    let mut text = lines("", &put_back.done);
    text += &lines("not put back: ", &put_back.refused);
    text += &lines("still left: ", &left);
    let is_whole = put_back.refused.is_empty() && left.is_empty();
    text += match put_back.done.is_empty() {
        _ if !is_whole => "",
        true => "nothing was left\n",
        false => "nothing is left\n",
    };
    cli::print(&text)?;
    match is_whole {
        true => Ok(()),
        false => Err(CommandError::answer_is_no()),
    }
}
