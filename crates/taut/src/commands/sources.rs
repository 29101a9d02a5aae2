//! Sources of copies for `taut capture` and `taut record`: interfaces and buses.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tautline::vbus::{self, PortName};
use tautline::{EtherType, NodeConfig, PortKey};
use tautline_capture::frame::{self, Frame, PlainDatagram};
use tautline_capture::{
    Batch, BusTap, CaptureError, KnownNodes, NetworkTap, ReadTap, up_interfaces,
};
use tautline_proto::wire::ethernet::is_usable_ethertype;
use tautline_state::policy;
use tautline_testbed::interrupt;

use crate::cli::CommandError;

/// Longest pause between two looks at frames. Lower takes processor time from the watched programs; higher loses frames
/// when a flow of more than 256,000 frames a second begins, because the ring has room for 1,024.
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// Pause while many frames pass. Lower would look in vain; higher loses frames above two million a second.
const PAUSE_MIN: Duration = Duration::from_micros(500);
/// Frames of one look from which the next pause is short: an eighth of the ring.
const MANY: usize = 128;
/// Pause where a bus is watched, whose ports keep few messages.
const PAUSE_BUS: Duration = Duration::from_micros(200);

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

/// A source of copies.
pub struct Tap {
    /// Interface or bus.
    pub name: String,
    kind: Kind,
    /// Copies that were used.
    pub seen: u64,
}

enum Kind {
    Network(Box<NetworkTap>),
    Bus(BusTap),
    Reads(ReadTap),
}

impl Tap {
    fn network(interface: &OsStr, ethertype: u16) -> Result<Tap, CaptureError> {
        let tap = NetworkTap::open(interface, ethertype)?;
        Ok(Tap {
            name: tap.name().to_owned(),
            kind: Kind::Network(Box::new(tap)),
            seen: 0,
        })
    }

    fn bus(path: &Path, only: Option<PortName>) -> Tap {
        let path = path.to_string_lossy();
        Tap {
            name: format!("bus {path}"),
            kind: Kind::Bus(BusTap::open(&path, only)),
            seen: 0,
        }
    }

    fn reads(port: PortKey) -> io::Result<Tap> {
        Ok(Tap {
            name: format!("reads of {port}"),
            kind: Kind::Reads(ReadTap::open(port)?),
            seen: 0,
        })
    }

    /// As [`look`](Self::look) at the end: what has passed since the last look.
    pub fn look_last(&mut self, origin: u32, batch: &mut Batch) {
        match &mut self.kind {
            Kind::Reads(tap) => {
                let _not_asked = tap.look_last(origin, batch);
            }
            Kind::Network(tap) => {
                let _gone = tap.look(origin, batch);
            }
            Kind::Bus(tap) => tap.look_last(origin, batch),
        }
    }

    /// Copies what has passed since the last look, and says on standard error what cannot be seen.
    pub fn look(&mut self, origin: u32, batch: &mut Batch) -> Result<(), CaptureError> {
        let notes = match &mut self.kind {
            Kind::Network(tap) => {
                tap.look(origin, batch)?;
                tap.take_notes()
            }
            Kind::Bus(tap) => {
                tap.look(origin, batch);
                tap.take_notes()
            }
            Kind::Reads(tap) => {
                // Nodes that cannot be asked are told of at the start.
                let _not_asked = tap.look(origin, batch);
                Vec::new()
            }
        };
        for note in notes {
            say!("{note}");
        }
        Ok(())
    }

    /// Copies that were lost so far.
    pub fn lost(&mut self) -> u64 {
        match &mut self.kind {
            Kind::Network(tap) => tap.lost(),
            Kind::Bus(tap) => tap.lost(),
            Kind::Reads(tap) => tap.lost(),
        }
    }

    /// Whether it copies messages of a bus.
    pub fn is_bus(&self) -> bool {
        matches!(self.kind, Kind::Bus(_))
    }

    /// Whether it tells reads of applications.
    pub fn is_reads(&self) -> bool {
        matches!(self.kind, Kind::Reads(_))
    }
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

    /// Source of the reads of the port that is wanted.
    pub fn reads(&self) -> Result<Tap, CommandError> {
        let tap = match self.port {
            Some(WantedPort::Network(port)) => Tap::reads(port),
            Some(WantedPort::Bus(name)) => Tap::reads(name.port.into()),
            None => {
                return Err(CommandError::usage(
                    "reads are those of one port",
                    "name it with --port",
                ));
            }
        };
        tap.map_err(|error| {
            CommandError::failed(
                format!("the nodes cannot be asked for reads: {error}"),
                "see that /run/tautline belongs to root and your runtime directory to you",
            )
        })
    }

    /// Whether a copy is of the port that is wanted.
    pub fn wants(&self, tap: &Tap, bytes: &[u8]) -> bool {
        let Some(WantedPort::Network(key)) = self.port else {
            return true;
        };
        if tap.is_bus() || tap.is_reads() {
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

/// Time until the next look at these sources, after one that copied so much.
pub fn pause_after<'t>(taps: impl IntoIterator<Item = &'t Tap>, copied: usize) -> Duration {
    match taps.into_iter().any(Tap::is_bus) {
        true => PAUSE_BUS,
        false if copied >= MANY => PAUSE_MIN,
        false => PAUSE_MAX,
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

/// Lets this thread run where it preempts no thread by waking up. Without the right, it does.
pub fn stand_back() {
    let _ = policy::set_policy(0, libc::SCHED_BATCH, 0);
}

/// Names of the sources, for a sentence.
pub fn names(taps: &[Tap]) -> String {
    let names: Vec<&str> = taps.iter().map(|tap| tap.name.as_str()).collect();
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
