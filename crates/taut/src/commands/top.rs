//! `taut top`: everything on this machine that can be watched, in the terminal; or the cells of a fleet.

use std::io;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use tautline_watch::{Look, Part, Wishes, rows, top};

use crate::cli::CommandError;
use crate::commands::fleet::{FleetArguments, Rates};
use crate::commands::live::LiveArguments;

/// Arguments of `taut top`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Show these things only [default: everything].
    #[arg(long, conflicts_with = "fleet")]
    kind: Option<Kind>,
    /// Have the ports measure latencies from arrival to read, for a reading of the clock a message.
    #[arg(long)]
    latency: bool,
    #[command(flatten)]
    live: LiveArguments,
    #[command(flatten)]
    fleet: FleetArguments,
}

/// Things that are shown alone.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Real-time tasks, and the partitions that they run in.
    Task,
    /// Buses, their nodes and ports.
    Bus,
    /// Guests.
    Guest,
}

impl From<Kind> for Part {
    fn from(kind: Kind) -> Part {
        match kind {
            Kind::Task => Part::Tasks,
            Kind::Bus => Part::Buses,
            Kind::Guest => Part::Guests,
        }
    }
}

/// Shows the live view; where there is no terminal, one picture of it.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let wishes = Wishes {
        latency: arguments.latency,
        only: arguments.kind.map(Part::from),
    };
    let live = arguments.live;
    if arguments.fleet.is_wanted() {
        return show_fleet(&arguments.fleet, live);
    }
    if live.is_interactive() {
        return top::run(live.interval(), wishes).map_err(|error| failed(&error));
    }
    let mut before = Look::take(wishes).map_err(|error| failed(&error))?;
    live.run(|| {
        let after = Look::take(wishes).map_err(|error| failed(&error))?;
        let rows = rows(&after, Some(&before), None);
        let text = top::text(&rows, &after.silent);
        let json = json!({ "rows": rows, "silent": after.silent });
        before = after;
        Ok((json, text))
    })
}

/// Time beyond the interval that a picture of a fleet may take.
const FLEET_PATIENCE: Duration = Duration::from_secs(20);

/// Shows the cells of a fleet again and again.
fn show_fleet(fleet: &FleetArguments, live: LiveArguments) -> Result<(), CommandError> {
    let mut program = fleet.follow(live.interval())?;
    let mut rates = Rates::default();
    let patience = live.interval() + FLEET_PATIENCE;
    live.run(|| {
        let picture = program.next(patience)?;
        rates.take(&picture, Instant::now());
        Ok((json!(picture), picture.table(Some(&rates))))
    })
}

fn failed(error: &io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot look at the nodes or use the terminal: {error}"),
        "see that /run/tautline belongs to root and your runtime directory to you; `--once` needs no terminal",
    )
}
