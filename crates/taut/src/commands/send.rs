//! `taut send`: one message from a script.

use std::io::Read;

use clap::Args;
use tautline::{PortNumber, Priority};
use tautline_proto::wire::MESSAGE_BYTES_MAX;

use crate::cli::CommandError;
use crate::commands::peer::{self, NodeArguments};

/// Arguments of `taut send`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Neighbour of the configuration file or of the control process, MAC address or IPv4 address.
    peer: String,
    /// Port of the peer.
    #[arg(value_parser = peer::port_number)]
    port: PortNumber,
    /// The message [default: all of standard input].
    message: Option<String>,
    /// Priority of the message, 7 being the most urgent.
    #[arg(long, value_name = "P", value_parser = peer::priority, default_value_t = Priority::NORMAL)]
    priority: Priority,
    /// Own port to send from [default: a free one of the 64 below 4095].
    #[arg(long, value_name = "N", value_parser = peer::port_number)]
    from: Option<PortNumber>,
    #[command(flatten)]
    node: NodeArguments,
}

/// Sends the message. Nothing tells whether it arrived: that is the nature of datagrams.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let message = match &arguments.message {
        Some(text) => text.clone().into_bytes(),
        None => standard_input()?,
    };
    let (node, name) = arguments.node.open_with_peer(&arguments.peer)?;
    let mut port = peer::open_any(&node, arguments.from)?;
    let to = port
        .destination(&name, arguments.port)
        .map_err(peer::port_error)?;
    port.send(to, arguments.priority, &message)
        .map_err(peer::send_error)
}

/// All of it, but no more than shows that it is too much.
fn standard_input() -> Result<Vec<u8>, CommandError> {
    let mut message = Vec::new();
    std::io::stdin()
        .lock()
        .take(MESSAGE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut message)
        .map_err(|error| {
            CommandError::failed(
                format!("cannot read standard input: {error}"),
                "give the message as an argument, or check where the input comes from",
            )
        })?;
    Ok(message)
}
