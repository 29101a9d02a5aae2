//! `taut echo`: answers whoever asks, until it is told to end.

use std::time::Duration;

use clap::Args;
use tautline::{Node, PortError, PortNumber, QueuingPort};
use tautline_testbed::interrupt;

use crate::cli::{self, CommandError};
use crate::commands::peer::{self, NodeArguments, PortArgument};
use crate::units;

/// How long a wait for a message lasts before the command looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

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

fn open(node: &Node, number: PortNumber) -> Result<QueuingPort, CommandError> {
    node.queuing_port(number, &peer::any_size())
        .map_err(peer::port_error)
}

/// Sends every message back to where it came from, with its own priority.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let number = arguments.node.port_number(&arguments.port)?;
    let node = peer::open(arguments.node.node_config()?)?;
    let mut port = open(&node, number)?;
    cli::print(&format!("{}\nanswering on port {number}\n", node.report()))?;
    let mut buffer = vec![0; port.message_bytes_max()];
    let mut answers = 0u64;
    while arguments.count.is_none_or(|count| answers < count) {
        // Being told to end is how this command ends.
        if interrupt::interrupted().is_some() {
            break;
        }
        let deadline = tautline::now() + LOOK;
        let message = port
            .receive_until(deadline, &mut buffer)
            .map_err(peer::receive_error)?;
        let Some(message) = message else { continue };
        // A stranger must not be able to end the command: what cannot be answered is told, no more.
        let to = match port.reply_to(message.source) {
            Err(PortError::TooManyDestinations) => {
                // It has answered as many peers as a port can: a fresh one forgets them.
                drop(port);
                port = open(&node, number)?;
                port.reply_to(message.source)
            }
            to => to,
        };
        let sent = to.map_err(|error| error.to_string()).and_then(|to| {
            port.send(to, message.priority, &buffer[..message.length])
                .map_err(|error| error.to_string())
        });
        match sent {
            Ok(()) => answers += 1,
            Err(why) => eprintln!("taut: no answer to {}: {why}", message.source),
        }
    }
    cli::print(&format!("{answers} answers\n"))
}
