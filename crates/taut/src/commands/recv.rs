//! `taut recv`: messages or values of a port, or raw frames, for scripts.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tautline::config::PortOptions;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::types::PortTypes;
use tautline::{
    EtherType, Instant, Message, NodeConfig, PortNumber, Protection, QueuingPort, Sample,
    SamplingPort, Wait,
};
use tautline_state::interrupt;

use crate::cli::CommandError;
use crate::commands::output::{self, OutputArguments};
use crate::commands::peer::{self, NodeArguments, PortArgument};
use crate::commands::raw::{self, Frames};
use crate::units;

/// How long a wait lasts before the command looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `taut recv`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Port to open: its number, or its name in the configuration file.
    #[arg(value_parser = peer::port, required_unless_present = "raw", conflicts_with = "raw")]
    port: Option<PortArgument>,
    /// Receive whole Ethernet frames of this EtherType, such as 0x88cc, in place of messages.
    #[arg(
        long,
        value_name = "ETHERTYPE",
        value_parser = raw::ethertype,
        conflicts_with_all = ["sampling", "protection"]
    )]
    raw: Option<EtherType>,
    /// Protect the port: authenticated or encrypted, with the key_file of the neighbour [default: as the configuration
    /// says for the port].
    #[arg(long, value_name = "KIND", requires = "config", value_parser = peer::protection)]
    protection: Option<Protection>,
    #[command(flatten)]
    node: NodeArguments,
    /// End after this many messages.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = units::count)]
    count: u64,
    /// Time to wait for all of them, such as 500ms [default: no limit].
    #[arg(long, value_name = "TIME", value_parser = units::time, allow_negative_numbers = true)]
    timeout: Option<Duration>,
    /// Open a sampling port, and print each new last value [default: as the configuration says for the port].
    #[arg(long)]
    sampling: bool,
    #[command(flatten)]
    output: OutputArguments,
}

/// Writes each message in a line of its own. Not all came in time: exit status 1.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let deadline = deadline(arguments.timeout);
    let config = arguments.node.node_config()?;
    let (mut source, types) = match (arguments.raw, &arguments.port) {
        (Some(ethertype), _) => (frames(config, ethertype)?, PortTypes::default()),
        (None, Some(port)) => {
            let number = arguments.node.port_number(port)?;
            messages(&arguments, config, number)?
        }
        (None, None) => unreachable!("clap requires one of them"),
    };
    let mut output = arguments.output.open()?;
    let mut received = 0;
    while received < arguments.count {
        if let Some(signal) = interrupt::interrupted() {
            return Err(CommandError::interrupted(signal));
        }
        let now = tautline::now();
        if now >= deadline {
            return Err(CommandError::failed(
                format!("{received} of {} messages came in time", arguments.count),
                "wait longer with --timeout, and check that the sender uses this address, port and type",
            ));
        }
        if let Some(found) = source.next(deadline.min(now + LOOK))? {
            match found.line {
                Some(line) => output.write_line(found.bytes, found.json, &line)?,
                None => output.write(found.bytes, found.json, types.receives.as_deref())?,
            }
            received += 1;
        }
    }
    Ok(())
}

/// Opens the raw port, and says so: standard output is for what is received.
fn frames(config: NodeConfig, ethertype: EtherType) -> Result<ReceivingPort, CommandError> {
    let mut configured = config.ports.iter();
    let configured = configured.find(|port| port.key == ethertype.into());
    let name = configured.map(|port| port.name.clone());
    let node = peer::open(config)?;
    let port = raw::open(&node, ethertype, name.as_deref())?;
    say!("{}\nlistening for frames of {ethertype}", node.report());
    Ok(ReceivingPort::Raw(Frames::of(port)))
}

/// The same with a port for messages, and its types.
fn messages(
    arguments: &Arguments,
    mut config: NodeConfig,
    number: PortNumber,
) -> Result<(ReceivingPort, PortTypes), CommandError> {
    let types = peer::port_types(&config, number);
    let protection = arguments.protection;
    let protection = protection.or_else(|| peer::port_protection(&config, number));
    let is_sampling = arguments.sampling || peer::is_sampling(&config, number);
    let kind = kind(is_sampling, protection);
    // A port of the file keeps its name and its types there, and is what this command wants otherwise.
    let mut configured = config.ports.iter_mut();
    let configured = configured.find(|port| port.key == number.into());
    let name = configured.map(|port| {
        port.kind = kind.clone();
        port.name.clone()
    });
    let node = peer::open(config)?;
    let source = ReceivingPort::open(&node, number, name.as_deref(), &kind)?;
    say!("{}\nlistening on port {number}", node.report());
    Ok((source, types))
}

/// Kind and options of the port: for messages of any size.
fn kind(is_sampling: bool, protection: Option<Protection>) -> PortOptions {
    match is_sampling {
        true => PortOptions::Sampling(SamplingOptions {
            protection,
            ..SamplingOptions::default()
        }),
        false => PortOptions::Queuing(QueuingOptions {
            protection,
            ..peer::any_size()
        }),
    }
}

fn deadline(timeout: Option<Duration>) -> Instant {
    timeout
        .and_then(|timeout| tautline::now().checked_add(timeout))
        .unwrap_or(Instant::FAR_FUTURE)
}

/// A port of any kind with its buffer.
enum ReceivingPort {
    Raw(Frames),
    Queuing(Box<QueuingPort>, Vec<u8>),
    Sampling(Box<SamplingPort>, Vec<u8>),
}

/// A message or frame: its bytes, its sender, and all that is known of it; of a frame, the same in a line.
struct Incoming<'a> {
    bytes: &'a [u8],
    json: Value,
    line: Option<String>,
}

impl ReceivingPort {
    fn open(
        node: &tautline::Node,
        number: PortNumber,
        name: Option<&str>,
        kind: &PortOptions,
    ) -> Result<ReceivingPort, CommandError> {
        match kind {
            PortOptions::Sampling(options) => {
                let port = match name {
                    Some(name) => node.sampling(name).open(),
                    None => node.sampling(number).options(options).open(),
                };
                let port = port.map_err(peer::port_error)?;
                let buffer = vec![0; SamplingPort::VALUE_BYTES_MAX];
                Ok(ReceivingPort::Sampling(Box::new(port), buffer))
            }
            PortOptions::Queuing(options) => {
                let port = match name {
                    Some(name) => node.queuing(name).open(),
                    None => node.queuing(number).options(options).open(),
                };
                let port = port.map_err(peer::port_error)?;
                let buffer = vec![0; port.message_bytes_max()];
                Ok(ReceivingPort::Queuing(Box::new(port), buffer))
            }
        }
    }

    fn next(&mut self, deadline: Instant) -> Result<Option<Incoming<'_>>, CommandError> {
        match self {
            ReceivingPort::Raw(frames) => Ok(frames.next(deadline)?.map(|frame| Incoming {
                bytes: frame.bytes,
                json: frame.json,
                line: Some(frame.line),
            })),
            ReceivingPort::Queuing(port, buffer) => {
                let message = port
                    .receive_into(buffer, Wait::Until(deadline))
                    .map_err(peer::receive_error)?;
                Ok(message.map(|message| Incoming {
                    json: message_json(&message),
                    line: None,
                    bytes: &buffer[..message.length],
                }))
            }
            ReceivingPort::Sampling(port, buffer) => {
                let sample = port
                    .next_into(buffer, Wait::Until(deadline))
                    .map_err(peer::receive_error)?;
                Ok(sample.map(|sample| Incoming {
                    json: sample_json(&sample),
                    line: None,
                    bytes: &buffer[..sample.length],
                }))
            }
        }
    }
}

fn message_json(message: &Message) -> Value {
    json!({
        "source": output::source_json(message.source),
        "priority": message.priority.get(),
        "sequence": message.sequence,
        "arrival_ns": message.arrival.as_nanos(),
        "bytes": message.length,
    })
}

fn sample_json(sample: &Sample) -> Value {
    json!({
        "source": output::source_json(sample.source),
        "priority": sample.priority.get(),
        "sequence": sample.sequence,
        "arrival_ns": sample.arrival.as_nanos(),
        "bytes": sample.length,
        "age_ns": sample.age.as_nanos() as u64,
        "overwritten": sample.overwritten,
    })
}
