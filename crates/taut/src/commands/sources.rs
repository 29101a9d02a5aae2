//! Sources of copies for `taut capture` and `taut record`: interfaces and buses.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use tautline::vbus::{self, PortName};
use tautline::{EtherType, NodeConfig, PortKey};
use tautline_capture::frame::{self, Frame, PlainDatagram};
use tautline_capture::{Batch, CaptureError, KnownNodes, Tap, up_interfaces};
use tautline_proto::wire::ethernet::is_usable_ethertype;
use tautline_state::interrupt;

use crate::cli::CommandError;

/// Interfaces, buses and ports that are watched. The same options for every such command.
#[derive(Debug, Args)]
pub struct SourceArguments {
    /// Interface whose frames are copied; may be given several times [default: all that are up, and all buses].
    #[arg(long, short, value_name = "IF")]
    interface: Vec<OsString>,
    /// Bus whose messages are copied, its name or the path of its directory; may be given several times.
    #[arg(long, value_name = "BUS")]
    bus: Vec<String>,
    /// Only what goes to or comes from this port: a number or udp:PORT on a network, NODE.NUMBER for the port that
    /// receives on a bus. Plain UDP is copied where link xdp or xsk carries it.
    #[arg(long, value_name = "PORT", value_parser = wanted_port)]
    port: Option<WantedPort>,
    /// EtherType of the nodes, if the configuration has another one.
    #[arg(long, value_name = "NUMBER", value_parser = ethertype, default_value = "0x88b5")]
    pub ethertype: u16,
    /// Names, and types of messages.
    #[command(flatten)]
    pub known: KnownArguments,
}

/// Names and types of messages beyond those that nodes tell.
#[derive(Debug, Args)]
pub struct KnownArguments {
    /// Configuration file that says names of ports and neighbours and types of messages, where nodes tell none; may be
    /// given several times.
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
}

impl KnownArguments {
    /// Asks the nodes of this machine, and reads the files.
    pub fn ask(&self) -> Result<KnownNodes, CommandError> {
        let read = |file: &PathBuf| {
            NodeConfig::from_file(file)
                .map_err(|error| CommandError::usage(error.to_string(), error.remedy()))
        };
        let files = self
            .config
            .iter()
            .map(read)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(KnownNodes::ask().with_configurations(&files))
    }
}

/// Port that is wanted alone.
#[derive(Clone, Copy, Debug)]
enum WantedPort {
    Network(PortKey),
    Bus(PortName),
}

fn wanted_port(text: &str) -> Result<WantedPort, String> {
    if let Ok(name) = text.parse() {
        return Ok(WantedPort::Bus(name));
    }
    match text.parse() {
        Ok(key @ (PortKey::Message(_) | PortKey::Udp(_))) => Ok(WantedPort::Network(key)),
        _ => Err(
            "expected a port number from 1 to 4095, udp:PORT, or NODE.NUMBER on a bus".to_owned(),
        ),
    }
}

fn ethertype(text: &str) -> Result<u16, String> {
    // Written in hexadecimal in the option's help.
    const { assert!(tautline_proto::wire::ETHERTYPE_DEFAULT == 0x88b5) };
    EtherType::number_of(text)
        .filter(|number| is_usable_ethertype(*number))
        .ok_or_else(|| "expected an EtherType such as 0x88b5".to_owned())
}

impl SourceArguments {
    /// Opens the sources that were named; without a name, all that this user may watch.
    pub fn open(&self) -> Result<Vec<Tap>, CommandError> {
        open(self)
    }

    /// Whether datagrams of plain UDP are wanted.
    pub fn wants_datagrams(&self) -> bool {
        matches!(self.port, Some(WantedPort::Network(PortKey::Udp(_))))
    }

    /// Whether a copy is of the port that is wanted.
    pub fn wants(&self, tap: &Tap, bytes: &[u8]) -> bool {
        let Some(WantedPort::Network(key)) = self.port else {
            return true;
        };
        if tap.is_bus() {
            return true;
        }
        match key {
            PortKey::Message(port) => {
                let frame = frame::frame(bytes, self.ethertype);
                matches!(frame, Ok(Some(Frame { header, .. }))
                    if header.destination == port || header.source == port)
            }
            PortKey::Udp(port) => {
                let of_port = |datagram: PlainDatagram<'_>| {
                    [datagram.from.port(), datagram.to.port()].contains(&port.get())
                };
                frame::plain_datagram(bytes).is_some_and(of_port)
            }
            // Not taken as a port: see `wanted_port`.
            PortKey::Raw(_) => false,
        }
    }
}

/// Remedy where too few messages came over the network.
pub const BUSY_REMEDY: &str = "wait longer with --for; `taut status` shows which ports are busy";

/// The end of a command that was to see so many messages: a signal or the end of its time came first. Without such a
/// number, either is how it ends.
pub fn all_came(seen: u64, wanted: Option<u64>, remedy: &str) -> Result<(), CommandError> {
    let Some(wanted) = wanted.filter(|wanted| seen < *wanted) else {
        return Ok(());
    };
    Err(match interrupt::interrupted() {
        Some(signal) => CommandError::interrupted(signal),
        None => CommandError::failed(format!("only {seen} of {wanted} came in time"), remedy),
    })
}

/// Copies what has passed since the last look, and says on standard error what cannot be seen.
pub fn look(tap: &mut Tap, origin: u32, batch: &mut Batch) -> Result<(), CaptureError> {
    for note in tap.look(origin, batch)? {
        say!("{note}");
    }
    Ok(())
}

/// Names of the sources, for a sentence.
pub fn names(taps: &[Tap]) -> String {
    let names: Vec<&str> = taps.iter().map(Tap::name).collect();
    names.join(", ")
}

fn open(arguments: &SourceArguments) -> Result<Vec<Tap>, CommandError> {
    let only = match arguments.port {
        Some(WantedPort::Bus(name)) => Some(name),
        _ => None,
    };
    if only.is_some() && !arguments.interface.is_empty() {
        return Err(CommandError::usage(
            "NODE.NUMBER is a port of a bus, and --interface names a network",
            "give --port a number, or name a bus with --bus",
        ));
    }
    if matches!(arguments.port, Some(WantedPort::Network(_))) && !arguments.bus.is_empty() {
        return Err(CommandError::usage(
            "on a bus, a port has the name of its node too",
            "give --port NODE.NUMBER; `taut bus show` lists the ports that there are",
        ));
    }
    let mut taps = Vec::new();
    for name in &arguments.interface {
        taps.push(Tap::network(name, arguments.ethertype).map_err(|error| failed(&error))?);
    }
    for bus in &arguments.bus {
        taps.push(Tap::bus(&named_bus(bus)?, only));
    }
    if taps.is_empty() {
        taps = open_all(arguments, only)?;
    }
    Ok(taps)
}

fn open_all(arguments: &SourceArguments, only: Option<PortName>) -> Result<Vec<Tap>, CommandError> {
    let buses = vbus::buses(None).unwrap_or_default();
    let is_of_network = matches!(arguments.port, Some(WantedPort::Network(_)));
    let mut taps: Vec<Tap> = buses
        .iter()
        .filter(|_| !is_of_network)
        .map(|bus| Tap::bus(&bus.path, only))
        .collect();
    let mut refused = None;
    if only.is_none() {
        for name in up_interfaces().unwrap_or_default() {
            match Tap::network(&name, arguments.ethertype) {
                Ok(tap) => taps.push(tap),
                Err(error) => {
                    say!("{} is not captured: {error}", name.display());
                    refused = Some(error);
                }
            }
        }
    }
    match refused {
        Some(error) if taps.is_empty() => Err(failed(&error)),
        _ if taps.is_empty() => Err(CommandError::failed(
            "there is no interface that is up, and no bus",
            "name one with --interface or --bus; `taut status` shows the open nodes",
        )),
        _ => Ok(taps),
    }
}

/// The path of a bus that there is.
fn named_bus(name: &str) -> Result<PathBuf, CommandError> {
    let path = vbus::path(name);
    if vbus::bus(&path).is_ok() {
        return Ok(path);
    }
    Err(CommandError::failed(
        format!("there is no bus {}, or not for this user", path.display()),
        "`taut bus show` lists those that there are; a node makes its bus when it opens",
    ))
}

/// A source that cannot be watched.
pub fn failed(error: &CaptureError) -> CommandError {
    match error {
        CaptureError::NoInterface(_) => CommandError::usage(error.to_string(), error.remedy()),
        _ => CommandError::failed(error.to_string(), error.remedy()),
    }
}
