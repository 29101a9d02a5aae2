//! `taut top`: everything on this machine that can be watched, in the terminal.

use std::io;

use clap::Args;
use serde_json::json;
use tautline_watch::{Look, Wishes, rows, top};

use crate::cli::CommandError;
use crate::commands::live::LiveArguments;

/// Arguments of `taut top`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Have the ports measure latencies from arrival to read, for a reading of the clock a message.
    #[arg(long)]
    latency: bool,
    #[command(flatten)]
    live: LiveArguments,
}

/// Shows the live view; where there is no terminal, one picture of it.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let wishes = Wishes {
        latency: arguments.latency,
    };
    let live = arguments.live;
    if live.is_interactive() {
        return top::run(live.interval(), wishes).map_err(|error| failed(&error));
    }
    let mut before = Look::take(wishes).map_err(|error| failed(&error))?;
    live.once_if_piped().run(|| {
        let after = Look::take(wishes).map_err(|error| failed(&error))?;
        let rows = rows(&after, Some(&before), None);
        let text = top::text(&rows, &after.silent);
        let json = json!({ "rows": rows, "silent": after.silent });
        before = after;
        Ok((json, text))
    })
}

fn failed(error: &io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot look at the nodes or use the terminal: {error}"),
        "see that /run/tautline belongs to root and your runtime directory to you; `--once` needs no terminal",
    )
}
