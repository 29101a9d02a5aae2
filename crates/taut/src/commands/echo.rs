//! `taut echo`: answers whoever asks, until it is told to end.

use std::time::Duration;

use clap::Args;
use tautline::PortNumber;
use tautline_lab::interrupt;

use crate::cli::{self, CommandError};
use crate::commands::peer::{self, ECHO_PORT, NodeArguments};

/// How long a wait for a message lasts before the command looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `taut echo`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    node: NodeArguments,
    /// Port to answer on.
    #[arg(long, value_name = "N", value_parser = peer::port_number, default_value_t = echo_port())]
    port: PortNumber,
    /// End after so many answers.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

fn echo_port() -> PortNumber {
    PortNumber::new(ECHO_PORT).expect("the constant is in range")
}

/// Sends every message back to where it came from, with its own priority.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let node = peer::open(arguments.node.node_config()?)?;
    let mut port = node
        .queuing_port(arguments.port, &peer::any_size())
        .map_err(peer::port_error)?;
    if let Err(error) = node.publish_status() {
        eprintln!("taut: `taut status` will not show this node: {error}");
    }
    cli::print(&format!(
        "{}\nanswering on port {}\n",
        node.report(),
        arguments.port
    ))?;
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
        let sent = port
            .reply_to(message.source)
            .map_err(|error| error.to_string())
            .and_then(|to| {
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
