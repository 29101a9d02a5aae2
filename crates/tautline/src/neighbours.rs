//! The neighbours of a node: the entries of its configuration, and those that a program adds before its first port.
//!
//! The first port closes the table: a running application sends only to peers that were there before it began. Nothing
//! is ever taken out, because ports have resolved what is in it.

mod solicit;

use std::net::Ipv4Addr;

use tautline_proto::neighbour::{NEIGHBOUR_COUNT_MAX, Neighbour};
use tautline_proto::wire::MacAddress;

use crate::status::Origin;
use crate::sys::interface::Interface;

pub use solicit::solicit;

pub use crate::error::NeighbourTableError;
pub use tautline_proto::neighbour::{Form, NeighbourError, NeighbourTable};

/// The addresses that no neighbour can have because they are ours or everybody's here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    pub(crate) mac: Option<MacAddress>,
    pub(crate) ip: Option<Ipv4Addr>,
    broadcast: Option<Ipv4Addr>,
}

impl Own {
    pub(crate) fn of(interface: Option<&Interface>, ip: Option<Ipv4Addr>) -> Self {
        let broadcast = interface
            .zip(ip)
            .map(|(interface, ip)| interface.broadcast(ip))
            .filter(|broadcast| Some(*broadcast) != ip);
        Self {
            mac: interface.map(|interface| interface.mac),
            ip,
            broadcast,
        }
    }

    /// Whether a station can have the address.
    pub(crate) fn check_ip(&self, ip: Ipv4Addr) -> Result<(), NeighbourTableError> {
        let is_loopback = |ip: Ipv4Addr| ip.is_loopback();
        let refused = |what| refused(ip, what);
        if self.ip == Some(ip) {
            refused(OF_THIS_NODE)
        } else if ip.is_multicast() || ip.is_broadcast() || self.broadcast == Some(ip) {
            refused(OF_A_GROUP)
        } else if ip.octets()[0] == 0 || (ip.is_loopback() && !self.ip.is_some_and(is_loopback)) {
            refused("an address of any host itself")
        } else {
            Ok(())
        }
    }

    fn check(&self, neighbour: &Neighbour) -> Result<(), NeighbourTableError> {
        if neighbour.mac.is_group() {
            return refused(neighbour.mac, OF_A_GROUP);
        }
        if self.mac == Some(neighbour.mac) && !neighbour.mac.is_unspecified() {
            return refused(neighbour.mac, OF_THIS_NODE);
        }
        neighbour.ip.map_or(Ok(()), |ip| self.check_ip(ip))
    }
}

const OF_THIS_NODE: &str = "this node's own address";
const OF_A_GROUP: &str = "the address of a group";

fn refused(address: impl ToString, what: &'static str) -> Result<(), NeighbourTableError> {
    Err(NeighbourTableError::Address {
        address: address.to_string(),
        what,
    })
}

/// A table, where its entries come from, and whether a program may add more.
#[derive(Debug)]
pub(crate) struct Neighbours {
    table: NeighbourTable,
    origins: Vec<Origin>,
    own: Own,
    is_locked: bool,
}

impl Neighbours {
    pub(crate) fn new(configured: NeighbourTable, own: Own) -> Self {
        let mut origins = Vec::with_capacity(NEIGHBOUR_COUNT_MAX);
        origins.resize(configured.len(), Origin::Configured);
        Self {
            table: configured,
            origins,
            own,
            is_locked: false,
        }
    }

    pub(crate) fn table(&self) -> &NeighbourTable {
        &self.table
    }

    /// The entries in their order.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = (&Neighbour, Origin)> {
        let origins = self.origins.iter().copied();
        self.table.iter().map(|(_, entry)| entry).zip(origins)
    }

    /// Enters a neighbour for the program.
    pub(crate) fn add(&mut self, neighbour: Neighbour) -> Result<(), NeighbourTableError> {
        if self.is_locked {
            return Err(NeighbourTableError::Locked);
        }
        self.own.check(&neighbour)?;
        self.enter(neighbour, Origin::Added)
    }

    /// Enters a neighbour of the control process, whether a port is open or not.
    pub(crate) fn share(&mut self, neighbour: Neighbour) -> Result<(), NeighbourTableError> {
        self.enter(neighbour, Origin::Shared)
    }

    fn enter(&mut self, neighbour: Neighbour, origin: Origin) -> Result<(), NeighbourTableError> {
        enter(&mut self.table, neighbour)?;
        self.origins.push(origin);
        Ok(())
    }

    /// A port has been opened.
    pub(crate) fn lock(&mut self) {
        self.is_locked = true;
    }
}

/// Enters a neighbour into a table. An error says by name which other one is in the way.
///
/// # Errors
/// [`NeighbourTableError::Duplicate`] and [`NeighbourTableError::Entry`].
pub fn enter(table: &mut NeighbourTable, neighbour: Neighbour) -> Result<(), NeighbourTableError> {
    let name = neighbour.name.clone();
    let Err(why) = table.add(neighbour) else {
        return Ok(());
    };
    let (what, other) = match why {
        NeighbourError::DuplicateName(other) => ("name", other),
        NeighbourError::DuplicateMac(other) => ("MAC address", other),
        NeighbourError::DuplicateIp(other) => ("IPv4 address", other),
        why => return Err(NeighbourTableError::Entry { name, why }),
    };
    let other = table.get(other).map(|other| other.name.clone());
    Err(NeighbourTableError::Duplicate {
        name,
        what,
        other: other.unwrap_or_default(),
    })
}

/// The MAC address that the kernel has learnt for an IPv4 address, in the network namespace of the
/// calling thread. Nothing if it has not, or if the address is behind a router.
#[must_use]
pub fn learnt_mac(ip: std::net::Ipv4Addr) -> Option<MacAddress> {
    crate::sys::interface::mac_of(ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_proto::neighbour::Form;

    const OWN: Own = Own {
        mac: Some(MacAddress([2, 0, 0, 0, 0, 1])),
        ip: Some(Ipv4Addr::new(10, 0, 0, 1)),
        broadcast: Some(Ipv4Addr::new(10, 0, 0, 255)),
    };

    fn peer(last: u8) -> Neighbour {
        Neighbour {
            name: format!("peer{last}"),
            mac: MacAddress([2, 0, 0, 0, 0, last]),
            ip: Some(Ipv4Addr::new(10, 0, 0, last)),
            form: Form::Ethernet,
        }
    }

    fn added(neighbours: &mut Neighbours, neighbour: Neighbour) -> String {
        match neighbours.add(neighbour) {
            Ok(()) => "entered".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_no_single_neighbour_can_have_is_refused() {
        let mut table = Neighbours::new(NeighbourTable::new(), OWN);
        let with_ip = |ip: [u8; 4]| Neighbour {
            ip: Some(ip.into()),
            ..peer(9)
        };
        let with_mac = |mac| Neighbour {
            mac: MacAddress(mac),
            ip: None,
            ..peer(9)
        };
        for (entry, expected) in [
            (with_mac([1, 0, 0x5e, 0, 0, 1]), OF_A_GROUP),
            (with_mac([0xff; 6]), OF_A_GROUP),
            (with_ip([224, 0, 0, 1]), OF_A_GROUP),
            (with_ip([255; 4]), OF_A_GROUP),
            (with_ip([10, 0, 0, 255]), OF_A_GROUP),
            (with_ip([0; 4]), "any host itself"),
            (with_ip([0, 1, 2, 3]), "any host itself"),
            (with_ip([127, 0, 0, 1]), "any host itself"),
            (with_mac([2, 0, 0, 0, 0, 1]), OF_THIS_NODE),
            (with_ip([10, 0, 0, 1]), OF_THIS_NODE),
        ] {
            let refused = added(&mut table, entry);
            assert!(refused.contains(expected), "{refused}");
        }
        assert!(table.table().is_empty());
    }

    #[test]
    fn a_duplicate_names_the_other_and_a_full_table_says_so() {
        let mut table = Neighbours::new(NeighbourTable::new(), Own::default());
        assert_eq!(added(&mut table, peer(2)), "entered");
        assert_eq!(
            added(&mut table, peer(2)),
            "neighbour `peer2` has the same name as neighbour `peer2`"
        );
        let same_ip = Neighbour {
            ip: peer(2).ip,
            ..peer(3)
        };
        assert_eq!(
            added(&mut table, same_ip),
            "neighbour `peer3` has the same IPv4 address as neighbour `peer2`"
        );
        for number in 1..NEIGHBOUR_COUNT_MAX as u16 {
            let [high, low] = number.to_be_bytes();
            let entry = Neighbour {
                name: format!("another{number}"),
                mac: MacAddress([4, 0, 0, 0, high, low]),
                ip: None,
                form: Form::Ethernet,
            };
            assert_eq!(added(&mut table, entry), "entered");
        }
        let full = "neighbour `peer9`: the neighbour table is full at 256 entries";
        assert_eq!(added(&mut table, peer(9)), full);
    }
}
