//! `taut init`: writes the configuration of a node that works, and says what to type on the other host.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tautline::neighbours::{self, Form, NeighbourTable, NeighbourTableError};
use tautline::{MacAddress, Neighbour, NodeConfig};
use tautline_state::Existing;

use crate::cli::{self, CommandError};
use crate::commands::live::unless_interrupted;
use crate::commands::peer;

/// Example ports of the file, of both kinds. The other host's file has the same, so each can send to the other.
const STATE_PORT: u16 = 7;
const COMMAND_PORT: u16 = 8;

/// Time that a peer has to answer. Lower: a peer behind a sleeping bridge seems absent. Higher: a mistyped address is
/// noticed later.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Arguments of `taut init`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Interface of the node.
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Neighbour of the node, such as motor=10.0.0.2; may be given several times. The network is asked once for its
    /// MAC address, which can also be given in place of the IPv4 address.
    #[arg(long = "peer", value_name = "NAME=ADDRESS")]
    peers: Vec<Peer>,
    /// File to write, which must not exist; - is standard output.
    #[arg(long, value_name = "FILE", default_value = "node.toml")]
    file: PathBuf,
}

/// A peer by its name and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    name: String,
    address: PeerAddress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerAddress {
    Ip(Ipv4Addr),
    Mac(MacAddress),
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Peer, String> {
        let expected = || "expected NAME=ADDRESS, such as motor=10.0.0.2".to_owned();
        let (name, address) = text.split_once('=').ok_or_else(expected)?;
        let ip = address.parse().map(PeerAddress::Ip).ok();
        let mac = || address.parse().map(PeerAddress::Mac).ok();
        Ok(Peer {
            name: name.to_owned(),
            address: ip.or_else(mac).ok_or_else(expected)?,
        })
    }
}

/// Writes the file.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let Arguments {
        interface,
        peers,
        file,
    } = arguments;
    let (mac, ip) = tautline::node::interface_addresses(&interface).map_err(peer::open_error)?;
    let mut table = NeighbourTable::new();
    for peer in peers {
        let entry = neighbour(&peer, &interface)?;
        neighbours::enter(&mut table, entry).map_err(|error| {
            CommandError::usage(
                format!("--peer {}: {error}", peer.name.escape_debug()),
                "give each peer a name and an address of its own",
            )
        })?;
    }
    let text = configuration(&interface, mac, ip, &table);
    // For every name of an interface or a peer, the file is one that `taut` reads.
    text.parse::<NodeConfig>()
        .map_err(|error| peer::open_error(error.into()))?;
    let to_stdout = file == Path::new("-");
    if to_stdout {
        cli::print(&text)?;
    } else {
        write_new(&file, &text)?;
    }
    let next = next_steps(&file, &interface, mac, ip, &table);
    if to_stdout {
        say!("{}", next.trim_end());
        return Ok(());
    }
    cli::print(&format!("wrote {}\n{next}", file.display()))
}

fn neighbour(peer: &Peer, interface: &str) -> Result<Neighbour, CommandError> {
    let (mac, ip) = match peer.address {
        PeerAddress::Mac(mac) => (mac, None),
        PeerAddress::Ip(ip) => (mac_of(ip, interface)?, Some(ip)),
    };
    Ok(Neighbour {
        name: peer.name.clone(),
        mac,
        ip,
        form: Form::Ethernet,
    })
}

/// Asks the network, or the kernel where that takes a privilege that is not there.
fn mac_of(ip: Ipv4Addr, interface: &str) -> Result<MacAddress, CommandError> {
    let interface = interface.to_owned();
    let answer = unless_interrupted(move || {
        neighbours::solicit(&interface, ip, ANSWER_TIME).or_else(|error| match error {
            NeighbourTableError::NotPermitted => peer::learn_mac(ip).ok_or(error),
            error => Err(error),
        })
    })?;
    answer.map_err(|error| CommandError::failed(error.to_string(), error.remedy()))
}

/// Creates the file. Never one that is there, nor through another user's link.
fn write_new(file: &Path, text: &str) -> Result<(), CommandError> {
    let created = tautline_state::create(file, Existing::Kept).map_err(io::Error::from);
    created
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CommandError::failed(
                error.to_string(),
                "name another file with --file, or remove that one",
            ),
            _ => cli::not_made(file, &error),
        })
}

fn configuration(
    interface: &str,
    mac: MacAddress,
    ip: Option<Ipv4Addr>,
    table: &NeighbourTable,
) -> String {
    let own = ip.map_or_else(|| mac.to_string(), |ip| format!("{mac}, {ip}"));
    let mut text = format!(
        "# A node on `{interface}` ({own}). All keys: docs/reference/configuration.md.\n\
         # The best link that works is taken: as root, `xdp`.\n\
         interface = {}\n",
        quoted(interface)
    );
    if table.is_empty() {
        text += "\n# Peers are named here:\n# [[neighbour]]\n# name = \"motor\"\n# mac = \"02:00:00:00:00:02\"\n";
    }
    for (_, entry) in table.iter() {
        text += "\n# A peer, by the name that programs use.\n[[neighbour]]\n";
        let _ = writeln!(text, "name = {}", quoted(&entry.name));
        if let Some(ip) = entry.ip {
            let _ = writeln!(
                text,
                "# Answered for {ip} by ARP. After its network card was changed, write the new address here.\n\
                 mac = \"{}\"\nip = \"{ip}\"",
                entry.mac
            );
        } else {
            let _ = writeln!(text, "mac = \"{}\"", entry.mac);
        }
    }
    text + &format!(
        "\n# Keeps the last value only, with its age: for state that is published again and again.\n\
         [[port]]\nname = \"state\"\nnumber = {STATE_PORT}\nkind = \"sampling\"\n\
         # A value older than this is no longer valid.\nrefresh_period_us = 10000\n\
         \n# Keeps every message, the most urgent first: for commands.\n\
         [[port]]\nname = \"command\"\nnumber = {COMMAND_PORT}\nkind = \"queuing\"\n"
    )
}

/// A TOML string: JSON's escapes are among TOML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn next_steps(
    file: &Path,
    interface: &str,
    mac: MacAddress,
    ip: Option<Ipv4Addr>,
    table: &NeighbourTable,
) -> String {
    let own = ip.map_or_else(|| mac.to_string(), |ip| ip.to_string());
    let host = host_name();
    let file = if file == Path::new("-") {
        "node.toml".to_owned()
    } else {
        shell_words::quote(&file.to_string_lossy()).into_owned()
    };
    let Some((_, peer)) = table.iter().next() else {
        return format!(
            "next, name the peers in it, or write it anew:\n  taut init --interface {interface} --peer NAME=ADDRESS\n\
             and on each of them:\n  taut init --interface IF --peer {host}={own}\n"
        );
    };
    let name = shell_words::quote(&peer.name);
    format!(
        "next, on {} (IF is its interface on this network, see `ip -brief address`):\n  \
         taut init --interface IF --peer {host}={own}\n  \
         taut recv {COMMAND_PORT} --config node.toml\n\
         then here:\n  \
         echo hello | taut send {name} {COMMAND_PORT} --config {file}\n",
        peer.name.escape_debug(),
    )
}

/// Name of this host, as the other one may call it in its file.
fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
        .collect();
    if name.is_empty() {
        "peer".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_an_address_of_either_kind() {
        let peer: Peer = "motor=10.0.0.2".parse().unwrap();
        assert_eq!(peer.address, PeerAddress::Ip([10, 0, 0, 2].into()));
        let peer: Peer = "all=ff:ff:ff:ff:ff:ff".parse().unwrap();
        assert_eq!(peer.address, PeerAddress::Mac(MacAddress::BROADCAST));
        for wrong in ["motor", "motor=", "motor=10.0.0", "10.0.0.2=motor"] {
            let error = wrong.parse::<Peer>().unwrap_err();
            assert!(error.contains("NAME=ADDRESS"), "{wrong}: {error}");
        }
    }

    #[test]
    fn every_name_makes_a_file_that_can_be_read() {
        for name in [
            "motor",
            "a \"quoted\" one",
            "back\\slash",
            "mötor",
            "[[port]]",
        ] {
            let mut table = NeighbourTable::new();
            table
                .add(Neighbour {
                    name: name.to_owned(),
                    mac: MacAddress([2, 0, 0, 0, 0, 2]),
                    ip: Some([10, 0, 0, 2].into()),
                    form: Form::Ethernet,
                })
                .unwrap();
            let text = configuration("eth0", MacAddress([2, 0, 0, 0, 0, 1]), None, &table);
            let config: NodeConfig = text.parse().unwrap();
            let (_, entry) = config.neighbours.iter().next().unwrap();
            assert_eq!((entry.name.as_str(), entry.form), (name, Form::Ethernet));
            assert_eq!(config.ports.len(), 2);
        }
        let alone = configuration("eth0", MacAddress::BROADCAST, None, &NeighbourTable::new());
        assert!(alone.parse::<NodeConfig>().is_ok());
    }
}
