//! Senders and addresses of messages.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::Serialize;
use tautline_proto::authentication::Station;
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::{MacAddress, PortNumber};
use tautline_shm::layout::{source_form, source_parts, source_word};
use tautline_shm::vbus::handshake::is_name;
use tautline_shm::vbus::layout::NAME_BYTES;

/// A node's address, as it stood on the wire. Anybody can write anything there: it tells where an
/// answer goes, it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// The message came in the Ethernet form.
    Ethernet(MacAddress),
    /// The message came in the UDP form.
    Udp(SocketAddrV4),
    /// The message came over a bus, from the node of this name.
    Bus(NodeName),
}

/// The name of a node on a bus: 1 to 31 letters, digits, `-`, `_` or `.` that do not begin with a dot.
///
/// ```
/// let name: tautline::NodeName = "motor-1".parse()?;
/// assert_eq!(name.as_str(), "motor-1");
/// assert!("motor/1".parse::<tautline::NodeName>().is_err());
/// # Ok::<(), tautline::address::BadNodeName>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeName([u8; NAME_BYTES]);

/// The text is not the name of a node.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a node's name: 1 to 31 letters, digits, `-`, `_` or `.`, no dot first")]
pub struct BadNodeName(String);

impl NodeName {
    /// The name that stands in these bytes, ended by zeros.
    pub(crate) fn from_bytes(bytes: [u8; NAME_BYTES]) -> Option<Self> {
        is_name(&bytes).then_some(Self(bytes))
    }

    pub(crate) fn bytes(self) -> [u8; NAME_BYTES] {
        self.0
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|byte| *byte == 0);
        // A name is of ASCII characters.
        str::from_utf8(&self.0[..length.unwrap_or(NAME_BYTES)]).unwrap_or_default()
    }
}

impl std::str::FromStr for NodeName {
    type Err = BadNodeName;

    fn from_str(text: &str) -> Result<Self, BadNodeName> {
        let mut bytes = [0; NAME_BYTES];
        bytes
            .get_mut(..text.len())
            .map(|start| start.copy_from_slice(text.as_bytes()))
            .and_then(|()| Self::from_bytes(bytes))
            .ok_or_else(|| BadNodeName(text.to_owned()))
    }
}

impl std::fmt::Display for NodeName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl std::fmt::Debug for NodeName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.as_str())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ethernet(mac) => mac.fmt(formatter),
            Self::Udp(address) => address.fmt(formatter),
            Self::Bus(node) => node.fmt(formatter),
        }
    }
}

/// The port of a node that a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The node.
    pub address: Address,
    /// Its port.
    pub port: PortNumber,
}

impl std::fmt::Display for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} port {}", self.address, self.port)
    }
}

/// Packs an IPv4 address and a UDP port, or what else stands in its place, into a source word.
pub(crate) fn ipv4_word(address: SocketAddrV4, form: u16) -> u64 {
    let [a, b, c, d] = address.ip().octets();
    let [high, low] = address.port().to_be_bytes();
    source_word([a, b, c, d, high, low], form)
}

/// The IPv4 address and UDP port in a source word of such a form.
pub(crate) fn ipv4_of_word(word: u64) -> SocketAddrV4 {
    let ([a, b, c, d, high, low], _) = source_parts(word);
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))
}

pub(crate) fn source_form_of(word: u64) -> u16 {
    source_parts(word).1
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Address {
    /// The address in a source word; `None` if the word is void.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let (bytes, form) = source_parts(word);
        match form {
            source_form::ETHERNET => Some(Self::Ethernet(MacAddress(bytes))),
            source_form::UDP => Some(Self::Udp(ipv4_of_word(word))),
            _ => None,
        }
    }

    /// The node as flows and keys know it; `None` on a bus.
    #[inline]
    pub(crate) fn station(self) -> Option<Station> {
        match self {
            Self::Ethernet(mac) => Some(Station::Ethernet(mac)),
            Self::Udp(address) => Some(Station::Udp(*address.ip())),
            Self::Bus(_) => None,
        }
    }

    /// The word that a demux writes for this address.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Ethernet(mac) => source_word(mac.0, source_form::ETHERNET),
            Self::Udp(address) => ipv4_word(address, source_form::UDP),
            // Frames do not come from a bus.
            Self::Bus(_) => source_word([0; 6], source_form::VOID),
        }
    }
}

/// A port on a bus: its node and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortName {
    /// The node.
    pub node: NodeName,
    /// The port.
    pub port: PortNumber,
}

impl std::fmt::Display for PortName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(&format!("{}.{}", self.node, self.port))
    }
}

impl std::str::FromStr for PortName {
    type Err = BadPortName;

    fn from_str(text: &str) -> Result<Self, BadPortName> {
        let parts = text.rsplit_once('.').and_then(|(node, port)| {
            let port = PortNumber::new(port.parse().ok()?)?;
            let node = node.parse().ok()?;
            Some(PortName { node, port })
        });
        parts.ok_or_else(|| BadPortName(text.to_owned()))
    }
}

impl Serialize for PortName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text does not name a port on a bus.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` does not name a port: a node's name, a dot, and a number from 1 to 4095, such as motor.7"
)]
pub struct BadPortName(String);

/// A neighbour that is reached by its IPv4 address, in the UDP form.
#[must_use]
pub fn neighbour(name: &str, ip: Ipv4Addr) -> Neighbour {
    Neighbour {
        name: name.to_owned(),
        mac: MacAddress::UNSPECIFIED,
        ip: Some(ip),
        form: Form::Udp,
    }
}

/// A neighbour on a bus, which is reached by the name of its node.
#[must_use]
pub fn bus_neighbour(node: NodeName) -> Neighbour {
    Neighbour {
        name: node.to_string(),
        mac: MacAddress::UNSPECIFIED,
        ip: None,
        form: Form::Bus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_word() {
        let ethernet = Address::Ethernet(MacAddress([2, 0, 0, 0, 0, 9]));
        let udp = Address::Udp("10.0.0.7:21570".parse().unwrap());
        for address in [ethernet, udp] {
            assert_eq!(Address::from_word(address.word()), Some(address));
        }
        assert_eq!(Address::from_word(0), None);
        let bus = Address::Bus("motor".parse().unwrap());
        assert_eq!(Address::from_word(bus.word()), None, "no frame's");
    }
}
