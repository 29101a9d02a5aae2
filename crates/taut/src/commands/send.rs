//! `taut send`: one message, or one raw frame, from a script.

use std::io::Read;
use std::sync::Arc;

use clap::Args;
use tautline::types::{Declaration, PortTypes};
use tautline::{EtherType, PortNumber, Priority, Protection};
use tautline_proto::wire::MESSAGE_BYTES_MAX;

use crate::cli::CommandError;
use crate::commands::live::unless_interrupted;
use crate::commands::peer::{self, NodeArguments, PortArgument};
use crate::commands::raw;

/// Arguments of `taut send`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Neighbour of the configuration file or of the control process, MAC address or IPv4 address.
    peer: String,
    /// Port of the peer: its number, or the name that this number has in the configuration file.
    #[arg(value_parser = peer::port, required_unless_present = "raw", conflicts_with = "raw")]
    port: Option<PortArgument>,
    /// The message; - is a message of one dash [default: all of standard input].
    message: Option<String>,
    /// Send an empty message if standard input is empty. It is refused otherwise: most often a command has failed.
    #[arg(long, conflicts_with_all = ["message", "type_name", "hex"])]
    allow_empty: bool,
    /// Send an Ethernet frame of this EtherType, such as 0x88b4, from the node's own address, in place of a message.
    #[arg(
        long,
        value_name = "ETHERTYPE",
        value_parser = raw::ethertype,
        conflicts_with_all = ["type_name", "from", "protection"]
    )]
    raw: Option<EtherType>,
    /// Payload of the frame in hexadecimal, such as 02:07:04 [default: all of standard input, as it is].
    #[arg(long, value_name = "HEX", requires = "raw", conflicts_with = "port", value_parser = raw::payload)]
    hex: Option<Payload>,
    /// Type of the message, a [[type]] of the configuration file; fields that are not given are 0.
    #[arg(
        long = "type",
        value_name = "NAME",
        requires = "config",
        conflicts_with = "message"
    )]
    type_name: Option<String>,
    /// Value of a field, with commas between the numbers of an array; may be given several times.
    #[arg(
        long,
        value_name = "NAME=VALUE",
        requires = "type_name",
        conflicts_with = "message",
        value_parser = field,
        allow_hyphen_values = true
    )]
    field: Vec<(String, String)>,
    /// Priority, 7 being the most urgent [default: 3; of a frame, none, which is a frame without a tag].
    #[arg(long, value_name = "P", value_parser = peer::priority)]
    priority: Option<Priority>,
    /// Own port to send from [default: a free one of the 64 below 4095].
    #[arg(long, value_name = "PORT", value_parser = peer::port)]
    from: Option<PortArgument>,
    /// Protect the message: authenticated or encrypted, with the key_file of the neighbour, or none [default: as the
    /// configuration says for the own port, or for one with the peer's number].
    #[arg(long, value_name = "KIND", requires = "config", value_parser = wanted_protection)]
    protection: Option<Wanted>,
    #[command(flatten)]
    node: NodeArguments,
}

/// Sends the message. Nothing tells whether it arrived: that is the nature of datagrams.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match (arguments.raw, &arguments.port) {
        (Some(ethertype), _) => send_frame(arguments, ethertype),
        (None, Some(port)) => {
            let number = |port: &PortArgument| arguments.node.port_number(port);
            let from = arguments.from.as_ref().map(number).transpose()?;
            send_message(&arguments, number(port)?, from)
        }
        (None, None) => unreachable!("clap requires one of them"),
    }
}

/// Payload of a frame. A type of its own, because clap takes a `Vec` for an option that is given several times.
type Payload = Vec<u8>;

fn send_frame(arguments: Arguments, ethertype: EtherType) -> Result<(), CommandError> {
    let input = || standard_input(arguments.allow_empty);
    let payload = arguments.hex.map_or_else(input, Ok)?;
    let (node, peer) = (&arguments.node, &arguments.peer);
    raw::send(node, peer, ethertype, arguments.priority, &payload)
}

fn send_message(
    arguments: &Arguments,
    to_port: PortNumber,
    from: Option<PortNumber>,
) -> Result<(), CommandError> {
    let (message, declared) = match (&arguments.message, &arguments.type_name) {
        (Some(text), _) => (text.clone().into_bytes(), None),
        (None, Some(name)) => typed(arguments, name)?,
        (None, None) => (standard_input(arguments.allow_empty)?, None),
    };
    let (node, name) = arguments.node.open_with_peer(&arguments.peer)?;
    let types = PortTypes {
        sends: declared,
        ..PortTypes::default()
    };
    let protection = match arguments.protection {
        Some(Wanted(protection)) => protection,
        None => configured_protection(arguments, &name, to_port, from)?,
    };
    let mut port = peer::open_declared(&node, from, &types, protection)?;
    let to = port.destination(&name, to_port).map_err(peer::port_error)?;
    let priority = arguments.priority.unwrap_or(Priority::NORMAL);
    port.send(to, priority, &message).map_err(peer::send_error)
}

/// Protection that was asked for, which may be none. A type of its own, because clap takes an `Option` for an option
/// that need not be given.
#[derive(Clone, Copy, Debug)]
struct Wanted(Option<Protection>);

fn wanted_protection(text: &str) -> Result<Wanted, String> {
    match text {
        "none" => Ok(Wanted(None)),
        _ => peer::protection(text).map(|protection| Wanted(Some(protection))),
    }
}

/// Protection that the configuration says. With a neighbour that has keys nothing is sent openly unless that was asked
/// for.
fn configured_protection(
    arguments: &Arguments,
    neighbour: &str,
    to: PortNumber,
    from: Option<PortNumber>,
) -> Result<Option<Protection>, CommandError> {
    let config = arguments.node.node_config()?;
    if let Some(from) = from {
        return Ok(peer::port_protection(&config, from));
    }
    let protection = peer::port_protection(&config, to);
    let has_keys = config.keys.iter().any(|keys| keys.neighbour == neighbour);
    if protection.is_none() && has_keys {
        return Err(CommandError::usage(
            format!(
                "`{neighbour}` has keys, and the configuration does not say whether its port {to} is protected"
            ),
            "say how to send: --protection encrypted, authenticated or none",
        ));
    }
    Ok(protection)
}

/// Reads a field and its value.
fn field(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (name, value) = parts.ok_or("expected NAME=VALUE, such as torque=0.5,1,1.5")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

/// The message of this type with the fields that were given.
fn typed(arguments: &Arguments, name: &str) -> Result<Typed, CommandError> {
    let config = arguments.node.node_config()?;
    let found = config.types.iter().find(|one| one.name() == name);
    let declared = found.ok_or_else(|| {
        let known: Vec<&str> = config.types.iter().map(|one| one.name()).collect();
        CommandError::usage(
            format!("the configuration has no type `{name}`"),
            match known.is_empty() {
                true => "declare it there: [[type]]".to_owned(),
                false => format!("it has {}", known.join(", ")),
            },
        )
    })?;
    for (index, (field, _)) in arguments.field.iter().enumerate() {
        if arguments.field[..index]
            .iter()
            .any(|(other, _)| other == field)
        {
            return Err(CommandError::usage(
                format!("the field `{field}` is given twice"),
                "give each field once",
            ));
        }
    }
    let fields = arguments.field.iter();
    let message = declared
        .message(fields.map(|(name, value)| (name.as_str(), value.as_str())))
        .map_err(|error| {
            CommandError::usage(error.to_string(), format!("the type is {declared}"))
        })?;
    Ok((message, Some(Arc::clone(declared))))
}

/// A message and its type.
type Typed = (Vec<u8>, Option<Arc<Declaration>>);

/// All of it, but no more than shows that it is too much.
fn standard_input(may_be_empty: bool) -> Result<Vec<u8>, CommandError> {
    let read = unless_interrupted(|| {
        let mut message = Vec::new();
        let input = std::io::stdin().lock();
        let read = input
            .take(MESSAGE_BYTES_MAX as u64 + 1)
            .read_to_end(&mut message);
        read.map(|_| message)
    })?;
    let message = read.map_err(|error| {
        CommandError::failed(
            format!("cannot read standard input: {error}"),
            "give the message as an argument, or check where the input comes from",
        )
    })?;
    if message.is_empty() && !may_be_empty {
        return Err(CommandError::usage(
            "standard input is empty, and nothing was sent",
            "check the command that should write it, or give --allow-empty",
        ));
    }
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(CommandError::failed(
            format!(
                "standard input is longer than a message, of {MESSAGE_BYTES_MAX} bytes at most"
            ),
            "send it in parts",
        ));
    }
    Ok(message)
}
