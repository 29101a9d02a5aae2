//! Who sent a message.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::Serialize;
use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::{MacAddress, PortNumber};
use tautline_shm::layout::{source_form, source_parts, source_word};

/// A node's address, as it stood on the wire. Anybody can write anything there: it tells where an
/// answer goes, it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// The message came in the Ethernet form.
    Ethernet(MacAddress),
    /// The message came in the UDP form.
    Udp(SocketAddrV4),
}

impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ethernet(mac) => mac.fmt(formatter),
            Self::Udp(address) => address.fmt(formatter),
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
            source_form::UDP => {
                let [a, b, c, d, high, low] = bytes;
                Some(Self::Udp(SocketAddrV4::new(
                    Ipv4Addr::new(a, b, c, d),
                    u16::from_be_bytes([high, low]),
                )))
            }
            _ => None,
        }
    }

    /// An entry by which an answer can be sent here, named as the address reads.
    pub(crate) fn neighbour(self) -> Neighbour {
        match self {
            Self::Ethernet(mac) => Neighbour {
                name: self.to_string(),
                mac,
                ip: None,
                form: Form::Ethernet,
            },
            Self::Udp(address) => crate::neighbour(&self.to_string(), *address.ip()),
        }
    }

    /// The word that a demux writes for this address.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Ethernet(mac) => source_word(mac.0, source_form::ETHERNET),
            Self::Udp(address) => {
                let [a, b, c, d] = address.ip().octets();
                let [high, low] = address.port().to_be_bytes();
                source_word([a, b, c, d, high, low], source_form::UDP)
            }
        }
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
    }
}
