//! `taut echo`: answers each message, until it is told to end.

use std::time::Duration;

use clap::Args;
use tautline::{Instant, Wait};
use tautline_testbed::interrupt;

use crate::cli::{self, CommandError};
use crate::commands::peer::{self, NodeArguments, PortArgument};
use crate::units;

/// How long a wait for a message lasts before the command looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Time between two lines about messages that were not answered. Lower: a sender of such messages fills the journal.
/// Higher: a mistake in the configuration is noticed later.
const LINE_PAUSE: Duration = Duration::from_secs(1);

/// Arguments of `taut echo`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    node: NodeArguments,
    /// Port to answer on: its number, or its name in the configuration file.
    #[arg(long, value_name = "PORT", value_parser = peer::port, default_value_t = peer::echo_port())]
    port: PortArgument,
    /// End after this many answers.
    #[arg(long, value_name = "N", value_parser = units::count)]
    count: Option<u64>,
}

/// Lines of which few are written.
#[derive(Default)]
struct Told {
    last: Option<Instant>,
    left_out: u64,
}

impl Told {
    /// The line, with the number of those that were left out before it, if it is time for one.
    fn line(&mut self, now: Instant, line: &str) -> Option<String> {
        let is_early = |last| now.saturating_duration_since(last) < LINE_PAUSE;
        if self.last.is_some_and(is_early) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(match std::mem::take(&mut self.left_out) {
            0 => line.to_owned(),
            count => format!("{line} ({count} such lines left out)"),
        })
    }
}

/// Sends every message back to where it came from, with its own priority.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let number = arguments.node.port_number(&arguments.port)?;
    let node = peer::open(arguments.node.node_config()?)?;
    let port = node.queuing(number).options(&peer::any_size()).open();
    let mut port = port.map_err(peer::port_error)?;
    cli::print(&format!("{}\nanswering on port {number}\n", node.report()))?;
    let mut buffer = vec![0; port.message_bytes_max()];
    let (mut answers, mut unanswered) = (0u64, 0u64);
    let mut told = Told::default();
    while arguments.count.is_none_or(|count| answers < count) {
        // Being told to end is how this command ends.
        if interrupt::interrupted().is_some() {
            break;
        }
        let deadline = tautline::now() + LOOK;
        let message = port
            .receive_into(&mut buffer, Wait::Until(deadline))
            .map_err(peer::receive_error)?;
        let Some(message) = message else { continue };
        // A stranger must not be able to end the command: what cannot be answered is told, no more.
        match port.reply(message.source, message.priority, &buffer[..message.length]) {
            Ok(()) => answers += 1,
            Err(why) => {
                unanswered += 1;
                let line = format!("no answer to {}: {why}", message.source);
                if let Some(line) = told.line(tautline::now(), &line) {
                    say!("taut: {line}");
                }
            }
        }
    }
    let others = match unanswered {
        0 => String::new(),
        count => format!(", {count} not answered"),
    };
    cli::print(&format!("{answers} answers{others}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_one_a_second_is_written() {
        let mut told = Told::default();
        let begin = tautline::now();
        let lines: Vec<String> = (0..2_001)
            .filter_map(|ms| told.line(begin + Duration::from_millis(ms), "no"))
            .collect();
        let left_out = "no (999 such lines left out)";
        assert_eq!(lines, ["no", left_out, left_out]);
    }
}
