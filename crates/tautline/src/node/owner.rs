//! A node as the owner of its ports.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::wire::MacAddress;

use super::NodeInner;
use crate::address::Address;
use crate::error::PortError;
use crate::keys::{Keys, OwnStations};
use crate::link::frame::Marking;
use crate::link::{Link, frame};
use crate::port::list::Ports;
use crate::port::owner::PortOwner;
use crate::port::raw_list::RawPorts;
use crate::port::udp_list::UdpPorts;
use crate::send_pool::SendPool;
use crate::sys::interface::{self, InterfaceWatch};
use crate::sys::namespace;
use crate::table_state::LockedBy;

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

    fn udp_ports(&self) -> &UdpPorts {
        &self.udp_ports
    }

    fn raw_ports(&self) -> &RawPorts {
        &self.raw_ports
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

    fn port_opened(&self, by: LockedBy) {
        self.neighbours().port_opened(by);
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

    fn neighbour_of(&self, address: Address) -> Option<Neighbour> {
        let neighbours = self.neighbours();
        let table = neighbours.table();
        let index = match address {
            Address::Ethernet(mac) => table.source_of_frame(mac, None),
            Address::Udp(address) => table.by_ip(*address.ip()),
            Address::Bus(node) => table.by_name(node.as_str()),
        }?;
        let neighbour = table.get(index)?.clone();
        // The answer takes the form that the question had.
        let form = match address {
            Address::Ethernet(_) => Form::Ethernet,
            Address::Udp(_) => Form::Udp,
            Address::Bus(_) => Form::Bus,
        };
        Some(Neighbour { form, ..neighbour })
    }

    fn address_of(&self, peer: &str) -> Result<Ipv4Addr, PortError> {
        match (self.neighbour_named(peer), peer.parse()) {
            (Ok(neighbour), _) => frame::ip_of(self.link.kind(), &neighbour),
            (Err(_), Ok(ip)) => Ok(ip),
            (Err(unknown), Err(_)) => Err(unknown),
        }
    }

    fn station_of(&self, ip: Ipv4Addr, ask_kernel: bool) -> Result<MacAddress, PortError> {
        let neighbour = self.neighbour_at(ip);
        let of_neighbour =
            |neighbour: &Neighbour| (!neighbour.mac.is_unspecified()).then_some(neighbour.mac);
        let of_kernel = |ip: Ipv4Addr| ask_kernel.then(|| interface::mac_of(ip)).flatten();
        let is_near = match (&self.interface, self.report.ip) {
            (Some(interface), Some(own)) => interface.is_near(ip, own),
            _ => true,
        };
        if let Some(mac) = neighbour.as_ref().and_then(of_neighbour) {
            return Ok(mac);
        }
        if !is_near {
            let gateway = self.gateway.and_then(|gateway| {
                let neighbour = self.neighbour_at(gateway);
                let mac = neighbour.as_ref().and_then(of_neighbour);
                mac.or_else(|| of_kernel(gateway))
            });
            return gateway.ok_or(PortError::NoRoute {
                address: ip,
                gateway: self.gateway,
            });
        }
        of_kernel(ip).ok_or_else(|| match neighbour {
            Some(neighbour) => PortError::NeighbourIncomplete {
                name: neighbour.name,
                lacks: "MAC address",
                link: self.link.kind().name(),
            },
            None => self.unknown(&ip.to_string()),
        })
    }
}
