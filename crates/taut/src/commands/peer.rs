//! Common parts of `ping`, `echo`, `send` and `recv`: the node to open, the port, and the peer.

use std::fmt;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tautline::address::BadNodeName;
use tautline::config::{BusConfig, PortConfig, PortOptions};
use tautline::neighbours::Form;
use tautline::port::QueuingOptions;
use tautline::types::PortTypes;
use tautline::{
    LinkKind, MacAddress, Neighbour, Node, NodeConfig, NodeName, OpenError, PortError, PortNumber,
    Priority, Protection, QueuingPort, ReceiveError, SendError, bus_neighbour,
};
use tautline_proto::wire::{MESSAGE_BYTES_MAX, PORT_MAX};

use crate::cli::CommandError;

/// The port on which `taut echo` answers, unless told otherwise: the last that there is, where no
/// application's own numbering is in the way.
pub const ECHO_PORT: u16 = PORT_MAX;

/// Messages of any size fit: a class must hold the largest one's 47 fragments.
const DEPTH: u32 = 64;

/// The node that a command opens.
#[derive(Clone, Debug, Args)]
pub struct NodeArguments {
    /// Interface of the node.
    #[arg(long, value_name = "IF", conflicts_with = "config")]
    interface: Option<String>,
    /// Configuration file of the node (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Link to use: xdp, xsk, packet or udp [default: the best that works; xsk only if named].
    #[arg(long, value_name = "LINK", value_parser = link)]
    link: Option<LinkKind>,
    /// Bus of the node, in place of an interface; the peer is a node on it.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = bus_name,
        conflicts_with_all = ["interface", "config", "link", "address"]
    )]
    bus: Option<String>,
    /// This node's own IPv4 address [default: the interface's first]. With --link udp it is enough.
    #[arg(long, value_name = "IPV4")]
    address: Option<Ipv4Addr>,
}

/// Reads the name or path of a bus.
fn bus_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('.') {
        true => Err("expected a name or a path, neither empty nor with a dot first".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn link(name: &str) -> Result<LinkKind, String> {
    [
        LinkKind::Xdp,
        LinkKind::Xsk,
        LinkKind::Packet,
        LinkKind::Udp,
    ]
    .into_iter()
    .find(|link| link.name() == name)
    .ok_or_else(|| "expected xdp, xsk, packet or udp".to_owned())
}

/// Reads a port number.
pub fn port_number(text: &str) -> Result<PortNumber, String> {
    text.parse()
        .ok()
        .and_then(PortNumber::new)
        .ok_or_else(|| format!("expected a port number from 1 to {PORT_MAX}"))
}

/// A port as a command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortArgument {
    /// By its number.
    Number(PortNumber),
    /// By the name that it has in the configuration file.
    Name(String),
}

impl fmt::Display for PortArgument {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortArgument::Number(number) => number.fmt(out),
            PortArgument::Name(name) => out.write_str(name),
        }
    }
}

/// Reads a port's number or name. Digits are always a number, whatever names the file has.
pub fn port(text: &str) -> Result<PortArgument, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.bytes().all(|one| one.is_ascii_digit()) {
        return port_number(text).map(PortArgument::Number);
    }
    Ok(PortArgument::Name(text.to_owned()))
}

/// The port of `taut echo`, unless told otherwise.
pub fn echo_port() -> PortArgument {
    let number = PortNumber::new(ECHO_PORT);
    PortArgument::Number(number.expect("the constant is in range"))
}

/// Reads a priority.
pub fn priority(text: &str) -> Result<Priority, String> {
    text.parse()
        .ok()
        .and_then(Priority::new)
        .ok_or_else(|| "expected a priority from 0 to 7, 7 being the most urgent".to_owned())
}

impl NodeArguments {
    /// The configuration that the arguments describe.
    pub fn node_config(&self) -> Result<NodeConfig, CommandError> {
        if let Some(bus) = &self.bus {
            return Ok(NodeConfig::vbus(BusConfig::new(bus, own_name())));
        }
        let mut config = match (&self.config, &self.interface, self.address) {
            (Some(file), _, _) => NodeConfig::from_file(file)
                .map_err(|error| CommandError::usage(error.to_string(), error.remedy()))?,
            (None, Some(interface), _) => NodeConfig::on(interface),
            (None, None, Some(address)) => NodeConfig::udp(address),
            (None, None, None) => {
                return Err(CommandError::usage(
                    "no node is described",
                    "name an interface with --interface, a file with --config, a bus with --bus, or an own address with --address",
                ));
            }
        };
        config.link = self.link.or(config.link);
        config.address = self.address.or(config.address);
        Ok(config)
    }

    /// Number of a port, for whose name the configuration file is looked into.
    pub fn port_number(&self, port: &PortArgument) -> Result<PortNumber, CommandError> {
        let name = match port {
            PortArgument::Number(number) => return Ok(*number),
            PortArgument::Name(name) => name,
        };
        if self.config.is_none() {
            return Err(CommandError::usage(
                format!(
                    "`{name}` is not a port number, and no configuration file is given that has ports with names"
                ),
                format!("name the file with --config, or give the number, 1 to {PORT_MAX}"),
            ));
        }
        let ports = self.node_config()?.ports;
        let numbered = ports
            .iter()
            .filter_map(|port| Some((&port.name, port.message_number()?)));
        if let Some((_, number)) = numbered.clone().find(|(known, _)| *known == name) {
            return Ok(number);
        }
        let known: Vec<String> = numbered
            .map(|(name, number)| format!("`{name}` ({number})"))
            .collect();
        Err(CommandError::usage(
            format!("the configuration has no port `{name}`"),
            match known.is_empty() {
                true => "give one a name there: [[port]]".to_owned(),
                false => format!("it has {}", known.join(", ")),
            },
        ))
    }

    /// Opens the node, for one that talks to `peer`, and gives the name that the peer's neighbour entry has.
    /// An address that no entry has gets one. A name may also be one that the control process of the node
    /// was given.
    pub fn open_with_peer(&self, peer: &str) -> Result<(Node, String), CommandError> {
        let mut config = self.node_config()?;
        let known = config.neighbours.iter().find(|(_, entry)| {
            entry.name == peer
                || entry.mac.to_string() == peer.to_lowercase()
                || entry.ip.is_some_and(|ip| ip.to_string() == peer)
        });
        if let Some((_, entry)) = known {
            let name = entry.name.clone();
            return Ok((open(config)?, name));
        }
        if config.bus.is_some() {
            let name = peer.parse().map_err(|error: BadNodeName| {
                CommandError::usage(error.to_string(), "name a node of the bus: taut bus show")
            })?;
            let config = config.with_neighbour(bus_neighbour(name));
            let config = config.map_err(|error| {
                CommandError::usage(format!("`{peer}`: {error}"), "name another peer")
            })?;
            return Ok((open(config)?, peer.to_owned()));
        }
        if let Some(entry) = entry_of_address(peer, &config) {
            check_interface(&entry, &config)?;
            config.neighbours.add(entry).map_err(|error| {
                CommandError::usage(
                    format!("`{peer}` cannot be a neighbour: {error}"),
                    "name another peer",
                )
            })?;
        }
        let node = open(config)?;
        let table = node.neighbours();
        if table.by_name(peer).is_some() {
            return Ok((node, peer.to_owned()));
        }
        let unknown = PortError::PeerUnknown {
            name: peer.to_owned(),
            known: table.iter().map(|(_, entry)| entry.name.clone()).collect(),
        };
        Err(CommandError::usage(unknown.to_string(), unknown.remedy()))
    }
}

/// Name of this user's commands on a bus: they may share it, and no other user can take it.
fn own_name() -> NodeName {
    let name = format!("taut-{}", rustix::process::geteuid());
    name.parse().expect("a number is part of names")
}

/// An entry for a peer that is named by its address.
fn entry_of_address(peer: &str, config: &NodeConfig) -> Option<Neighbour> {
    if let Ok(mac) = peer.parse::<MacAddress>() {
        return Some(Neighbour {
            name: peer.to_owned(),
            mac,
            ip: None,
            form: Form::Ethernet,
        });
    }
    let ip = peer.parse::<Ipv4Addr>().ok()?;
    Some(Neighbour {
        mac: mac_of(ip, config).unwrap_or(MacAddress::UNSPECIFIED),
        ..tautline::neighbour(peer, ip)
    })
}

/// A MAC address that could not be learnt because the node's own interface takes no frames.
fn check_interface(entry: &Neighbour, config: &NodeConfig) -> Result<(), CommandError> {
    let Some(interface) = config
        .interface
        .as_deref()
        .filter(|_| entry.mac.is_unspecified())
    else {
        return Ok(());
    };
    let (fault, remedy) = match tautline::node::interface_fault(interface) {
        Ok(Some(SendError::InterfaceDown)) => (
            "is down",
            format!("bring it up: ip link set dev {interface} up"),
        ),
        Ok(Some(error)) => ("has no carrier", error.remedy().to_owned()),
        // The opening of the node reports everything else.
        _ => return Ok(()),
    };
    let asked = &entry.name;
    Err(CommandError::failed(
        format!("interface `{interface}` {fault}: {asked} cannot be asked for its MAC address"),
        remedy,
    ))
}

/// How long the kernel may take to learn a MAC address.
const RESOLUTION: Duration = Duration::from_secs(1);
/// UDP's discard service (RFC 863).
const DISCARD_PORT: u16 = 9;

/// The MAC address that belongs to an IPv4 address, so that it need not be typed. Nothing where the link needs none.
fn mac_of(ip: Ipv4Addr, config: &NodeConfig) -> Option<MacAddress> {
    if config.interface.is_none() || config.link == Some(LinkKind::Udp) {
        return None;
    }
    learn_mac(ip)
}

/// The MAC address that belongs to an IPv4 address, from the kernel's table, which an empty datagram makes it fill.
/// Needs no privilege.
pub fn learn_mac(ip: Ipv4Addr) -> Option<MacAddress> {
    if let Some(known) = tautline::neighbours::learnt_mac(ip) {
        return Some(known);
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.send_to(&[], (ip, DISCARD_PORT)).ok()?;
    let start = Instant::now();
    while start.elapsed() < RESOLUTION {
        if let Some(found) = tautline::neighbours::learnt_mac(ip) {
            return Some(found);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Opens a node.
pub fn open(config: NodeConfig) -> Result<Node, CommandError> {
    Node::open(config).map_err(open_error)
}

/// A node that a command cannot open.
pub fn open_error(error: OpenError) -> CommandError {
    let usage = matches!(
        error,
        OpenError::Config(_)
            | OpenError::ConfigUnreadable { .. }
            | OpenError::NotShared { .. }
            | OpenError::NoSuchInterface { .. }
            | OpenError::InterfaceMissing { .. }
            | OpenError::NoAddress { .. }
            | OpenError::NoNetwork
            | OpenError::RuleUnknown { .. }
    );
    let build = if usage {
        CommandError::usage
    } else {
        CommandError::failed
    };
    build(error.to_string(), error.remedy().to_owned())
}

/// A port that a command cannot open, or a destination that it cannot resolve.
pub fn port_error(error: PortError) -> CommandError {
    if let PortError::NeighbourIncomplete { name, lacks, .. } = &error
        && lacks.starts_with("MAC address")
        && name.parse::<Ipv4Addr>().is_ok()
    {
        return CommandError::failed(
            format!("no answer from {name}: its MAC address could not be learnt"),
            "check that the host is up and on this network, and that the address is not this node's own",
        );
    }
    CommandError::failed(error.to_string(), error.remedy())
}

/// A message that was not sent.
pub fn send_error(error: SendError) -> CommandError {
    let remedy = match error {
        SendError::PriorityNotAllowed { .. } => "send with one that is allowed: --priority P",
        _ => error.remedy(),
    };
    CommandError::failed(error.to_string(), remedy)
}

/// A receive that the kernel refused.
pub fn receive_error(error: ReceiveError) -> CommandError {
    CommandError::failed(error.to_string(), error.remedy())
}

/// Options of a port for messages of every size.
pub fn any_size() -> QueuingOptions {
    QueuingOptions {
        depth: DEPTH,
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..QueuingOptions::default()
    }
}

/// Reads a protection.
pub fn protection(text: &str) -> Result<Protection, String> {
    let known = || Protection::ALL.map(Protection::name).join(" or ");
    Protection::named(text).ok_or_else(|| format!("expected {}", known()))
}

/// Protection that the configuration gives to the port of this number.
pub fn port_protection(config: &NodeConfig, number: PortNumber) -> Option<Protection> {
    match &port_of(config, number)?.kind {
        PortOptions::Queuing(options) => options.protection,
        PortOptions::Sampling(options) => options.protection,
    }
}

/// Whether the configuration makes the port of this number a sampling port.
pub fn is_sampling(config: &NodeConfig, number: PortNumber) -> bool {
    port_of(config, number).is_some_and(|port| matches!(port.kind, PortOptions::Sampling(_)))
}

/// Types that the configuration gives to the port of this number.
pub fn port_types(config: &NodeConfig, number: PortNumber) -> PortTypes {
    let port = port_of(config, number);
    port.map(|port| port.types.clone()).unwrap_or_default()
}

/// The port of this number in a configuration.
fn port_of(config: &NodeConfig, number: PortNumber) -> Option<&PortConfig> {
    config.ports.iter().find(|port| port.key == number.into())
}

/// Opens a queuing port of a command that only asks: any number that is free of the 64 below
/// [`ECHO_PORT`]. The first that is tried goes with the process: a peer tells messages by port and
/// number, and would take the first message of one command for the last one's, come twice.
/// A control process may not give those to this user: then `own` is needed.
pub fn open_any(node: &Node, own: Option<PortNumber>) -> Result<QueuingPort, CommandError> {
    open_declared(node, own, &PortTypes::default(), None)
}

/// The same with declared types and a protection.
pub fn open_declared(
    node: &Node,
    own: Option<PortNumber>,
    types: &PortTypes,
    protection: Option<Protection>,
) -> Result<QueuingPort, CommandError> {
    /// Commands that can ask at once. More would not break anything.
    const ATTEMPTS: u16 = 64;
    let options = QueuingOptions {
        protection,
        ..any_size()
    };
    if let Some(own) = own {
        let port = node
            .queuing(own)
            .options(&options)
            .types(types.clone())
            .open();
        return port.map_err(port_error);
    }
    let mut refused = None;
    let first = (std::process::id() % u32::from(ATTEMPTS)) as u16;
    for attempt in 0..ATTEMPTS {
        let number = ECHO_PORT - 1 - (first + attempt) % ATTEMPTS;
        let number = PortNumber::new(number).expect("the numbers below the highest are in range");
        match node
            .queuing(number)
            .options(&options)
            .types(types.clone())
            .open()
        {
            Err(error @ PortError::Taken { .. }) => refused = Some(error),
            Err(error @ PortError::NotAllowed { .. }) => {
                let remedy = "send from a port that is allowed: --from N";
                return Err(CommandError::failed(error.to_string(), remedy));
            }
            result => return result.map_err(port_error),
        }
    }
    Err(port_error(refused.expect("there was an attempt")))
}
