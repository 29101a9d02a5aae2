//! Views that are printed again and again until they are ended, and waits that a signal ends.

use std::io::{self, IsTerminal};
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tautline_state::interrupt;
use tautline_state::text::plain_lines;
use tautline_watch::Keyboard;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;
use crate::units;

/// How long a pause, or a wait for a message, lasts before the command looks whether it is to end.
pub const LOOK: Duration = Duration::from_millis(50);

/// Distance of looks at work that may be done soon. Lower: more wake-ups. Higher: a quick answer is shown late.
const QUICK_LOOK: Duration = Duration::from_millis(2);

/// How often a view is printed, and where. The same options for every such command.
#[derive(Debug, Args)]
pub struct LiveArguments {
    /// Time between two looks, which rates are taken over, such as 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::some_time)]
    interval: Duration,
    /// Print once, after one interval, and end; so it does without a terminal, unless --json is given.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    json: JsonArguments,
}

impl LiveArguments {
    /// Whether it is interactive: a terminal on both sides, and no other request.
    pub fn is_interactive(&self) -> bool {
        let has_terminal = io::stdin().is_terminal() && has_screen();
        has_terminal && !self.once && self.json.path().is_none()
    }

    /// Time between two looks.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether it is printed once: that was asked for, or no terminal shows it and no lines of JSON are wanted.
    fn is_once(&self) -> bool {
        self.once || (!io::stdout().is_terminal() && self.json.path().is_none())
    }

    /// Prints what `look` returns after each interval, as a line of JSON and as text, until a signal ends it; on a
    /// terminal also until q.
    pub fn run(
        &self,
        mut look: impl FnMut() -> Result<(Value, String), CommandError>,
    ) -> Result<(), CommandError> {
        let mut lines = self.json.lines()?;
        let is_once = self.is_once();
        let is_live = !lines.has_stdout() && !is_once && has_screen();
        let keyboard = match is_live {
            true => Keyboard::open().map_err(|error| no_keys(&error))?,
            false => None,
        };
        loop {
            if self.ends_before_look(keyboard.as_ref())? {
                return Ok(());
            }
            let (json, text) = look()?;
            lines.write(&json)?;
            if is_live {
                // Home, and clear what is below.
                cli::show(format!("\x1b[H\x1b[J{}", plain_lines(&text)).as_bytes())?;
            } else if !lines.has_stdout() {
                cli::show_text(&text)?;
            }
            if is_once {
                return Ok(());
            }
        }
    }

    /// Waits for the next look; whether the view ends before. To be ended is how it ends, unless it is printed once.
    fn ends_before_look(&self, keyboard: Option<&Keyboard>) -> Result<bool, CommandError> {
        if let Some(keyboard) = keyboard {
            let ends = keyboard.ends_within(self.interval);
            return ends.map_err(|error| no_keys(&error));
        }
        match pause(self.interval) {
            Some(signal) if self.is_once() => Err(CommandError::interrupted(signal)),
            ended => Ok(ended.is_some()),
        }
    }
}

fn no_keys(error: &io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot use the terminal's keyboard: {error}"),
        "take standard input from elsewhere (</dev/null), or print with --once",
    )
}

/// Whether standard output is a terminal that can be drawn on.
fn has_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Result of work that waits for others, unless a signal comes first. The work is then left to a thread that ends with
/// the process, so it must have nothing to put back.
pub fn unless_interrupted<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CommandError> {
    let work = thread::spawn(work);
    while !work.is_finished() {
        if let Some(signal) = pause(QUICK_LOOK) {
            return Err(CommandError::interrupted(signal));
        }
    }
    Ok(work.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Waits. The signal that ended the pause, if one did.
pub fn pause(length: Duration) -> Option<i32> {
    let end = Instant::now() + length;
    loop {
        if let Some(signal) = interrupt::interrupted() {
            return Some(signal);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::sleep(left.min(LOOK));
    }
}
