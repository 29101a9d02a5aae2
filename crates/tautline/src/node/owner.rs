//! A node as the owner of its ports.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::MacAddress;

use super::NodeInner;
use crate::error::PortError;
use crate::keys::{Keys, OwnStations};
use crate::link::frame::Marking;
use crate::link::{Link, frame};
use crate::port::list::Ports;
use crate::port::owner::PortOwner;
use crate::send_pool::SendPool;
use crate::sys::interface::{self, InterfaceWatch};
use crate::sys::namespace;

impl NodeInner {
    fn is_near(&self, ip: Ipv4Addr) -> bool {
        match (&self.interface, self.report.ip) {
            (Some(interface), Some(own)) => interface.is_near(ip, own),
            _ => true,
        }
    }

    /// Address of the interface's network that packets to `ip` go to: `ip` itself, or the gateway.
    fn next_hop(&self, ip: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.is_near(ip) {
            true => Some(ip),
            false => self.gateway,
        }
    }
}

impl PortOwner for NodeInner {
    fn link(&self) -> &dyn Link {
        self.link.as_ref()
    }

    fn marking(&self) -> Marking {
        self.marking
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn ethertype(&self) -> u16 {
        self.ethertype
    }

    fn send_pool(&self) -> &Arc<SendPool> {
        &self.send_pool
    }

    fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    fn own_stations(&self) -> OwnStations {
        OwnStations {
            mac: self.mac,
            ip: self.report.ip,
        }
    }

    fn check_caller(&self) -> Result<(), PortError> {
        self.process.check()?;
        if self.namespace.is_some() && self.namespace != namespace::current() {
            return Err(PortError::OtherNamespace);
        }
        Ok(())
    }

    fn watch(&self) -> Option<&Arc<InterfaceWatch>> {
        self.watch.as_ref()
    }

    fn port_opened(&self) {
        self.neighbours().lock();
    }

    fn neighbour_named(&self, name: &str) -> Result<Neighbour, PortError> {
        let find = || {
            let neighbours = self.neighbours();
            let table = neighbours.table();
            table.get(table.by_name(name)?).cloned()
        };
        let found = find().or_else(|| {
            self.refresh_neighbours();
            find()
        });
        found.ok_or_else(|| self.unknown(name))
    }

    fn address_of(&self, peer: &str) -> Result<Ipv4Addr, PortError> {
        match (self.neighbour_named(peer), peer.parse()) {
            (Ok(neighbour), _) => frame::ip_of(self.link.kind(), &neighbour),
            (Err(_), Ok(ip)) => Ok(ip),
            (Err(unknown), Err(_)) => Err(unknown),
        }
    }

    fn station_of(&self, ip: Ipv4Addr) -> Result<MacAddress, PortError> {
        let gateway = || self.mac_at(self.next_hop(ip)?);
        let found = self.mac_at(ip).or_else(gateway);
        found.ok_or_else(|| match (self.is_near(ip), self.neighbour_at(ip)) {
            (false, _) => PortError::NoRoute {
                address: ip,
                gateway: self.gateway,
            },
            (true, Some(neighbour)) => PortError::NeighbourIncomplete {
                name: neighbour.name,
                lacks: "MAC address",
                link: self.link.kind().name(),
            },
            (true, None) => self.unknown(&ip.to_string()),
        })
    }

    fn station_of_sender(&self, ip: Ipv4Addr) -> Option<MacAddress> {
        let beyond = || {
            let next = self.next_hop(ip)?;
            self.mac_at(next).or_else(|| interface::mac_of(next))
        };
        self.mac_at(ip).or_else(beyond)
    }
}
