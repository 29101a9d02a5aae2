//! `taut man DIRECTORY`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::cli::CommandError;
use crate::external;

/// Arguments of `taut man`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory of the pages, which is made if it is missing.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes a page for each command: `taut.1`, `taut-node.1`, `taut-node-run.1` and so on. Commands of other programs
/// have pages of those.
pub fn run(arguments: &Arguments, mut grammar: Command) -> Result<(), CommandError> {
    let directory = &arguments.directory;
    let what =
        |error: std::io::Error| format!("cannot write pages to {}: {error}", directory.display());
    let remedy = "name a directory that this user may write to";
    fs::create_dir_all(directory).map_err(|error| CommandError::usage(what(error), remedy))?;
    grammar.build();
    let mut left: Vec<&Command> = vec![&grammar];
    while let Some(command) = left.pop() {
        let page = Man::new(command.clone());
        let mut text = Vec::new();
        let written = page.render(&mut text).and_then(|()| {
            // The generator has no better name for what follows the options.
            let text = String::from_utf8_lossy(&text).replace(".SH EXTRA", ".SH EXAMPLES");
            fs::write(directory.join(page.get_filename()), text)
        });
        written.map_err(|error| CommandError::failed(what(error), remedy))?;
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        left.extend(shown.filter(|one| !external::is_page_elsewhere(one)));
    }
    Ok(())
}
