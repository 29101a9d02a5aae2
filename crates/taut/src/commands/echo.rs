//! `taut echo`: answers messages, or datagrams of plain UDP, until it is told to end.

use std::time::Duration;

use clap::Args;
use tautline::port::QueuingOptions;
use tautline::{Instant, Node, PortError, PortNumber, QueuingPort, ReceiveError, UdpPort, Wait};
use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_state::interrupt;

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
    /// Answer datagrams of plain UDP on this UDP port, from any program, in place of messages.
    #[arg(long, value_name = "PORT", conflicts_with = "port", value_parser = clap::value_parser!(u16).range(1..))]
    udp: Option<u16>,
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

/// The port that answers.
enum EchoPort {
    Messages(QueuingPort),
    Datagrams(UdpPort),
}

impl EchoPort {
    fn open(node: &Node, number: PortNumber, udp: Option<u16>) -> Result<EchoPort, PortError> {
        let options = peer::any_size();
        match udp {
            Some(udp) => {
                let options = QueuingOptions {
                    message_bytes_max: DATAGRAM_BYTES_MAX,
                    ..options
                };
                let port = node.udp(udp).options(&options).open();
                port.map(EchoPort::Datagrams)
            }
            None => {
                let port = node.queuing(number).options(&options).open();
                port.map(EchoPort::Messages)
            }
        }
    }

    fn name(&self) -> String {
        match self {
            EchoPort::Messages(port) => format!("port {}", port.number()),
            EchoPort::Datagrams(port) => format!("UDP port {}", port.number()),
        }
    }

    fn buffer(&self) -> Vec<u8> {
        vec![
            0;
            match self {
                EchoPort::Messages(port) => port.message_bytes_max(),
                EchoPort::Datagrams(port) => port.message_bytes_max(),
            }
        ]
    }

    /// Sends the next message back to its source, with its own priority. Nothing if none comes until the deadline;
    /// why there was no answer, if there was none.
    fn answer(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<Result<(), String>>, ReceiveError> {
        let wait = Wait::Until(deadline);
        let (source, sent) = match self {
            EchoPort::Messages(port) => {
                let Some(message) = port.receive_into(buffer, wait)? else {
                    return Ok(None);
                };
                let bytes = &buffer[..message.length];
                let sent = port.reply(message.source, message.priority, bytes);
                (message.source.to_string(), sent)
            }
            EchoPort::Datagrams(port) => {
                let Some(datagram) = port.receive_into(buffer, wait)? else {
                    return Ok(None);
                };
                let bytes = &buffer[..datagram.length];
                let sent = port.reply(datagram.source, datagram.priority, bytes);
                (datagram.source.to_string(), sent)
            }
        };
        Ok(Some(
            sent.map_err(|why| format!("no answer to {source}: {why}")),
        ))
    }
}

/// Sends every message back to where it came from, with its own priority.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let number = arguments.node.port_number(&arguments.port)?;
    let node = peer::open(arguments.node.node_config()?)?;
    let port = EchoPort::open(&node, number, arguments.udp);
    let mut port = port.map_err(peer::port_error)?;
    cli::print(&format!(
        "{}\nanswering on {}\n",
        node.report(),
        port.name()
    ))?;
    let mut buffer = port.buffer();
    let (mut answers, mut unanswered) = (0u64, 0u64);
    let mut told = Told::default();
    while arguments.count.is_none_or(|count| answers < count) {
        // Being told to end is how this command ends.
        if interrupt::interrupted().is_some() {
            break;
        }
        let deadline = tautline::now() + LOOK;
        let answered = port.answer(deadline, &mut buffer);
        match answered.map_err(peer::receive_error)? {
            Some(Ok(())) => answers += 1,
            // A stranger must not be able to end the command: what cannot be answered is told, no more.
            Some(Err(line)) => {
                unanswered += 1;
                if let Some(line) = told.line(tautline::now(), &line) {
                    say!("taut: {line}");
                }
            }
            None => {}
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
