//! A node as the owner of its ports.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::MacAddress;

use super::NodeInner;
use crate::address::Address;
use crate::error::PortError;
use crate::link::Link;
use crate::port::list::Ports;
use crate::port::owner::PortOwner;
use crate::port::udp_list::UdpPorts;
use crate::send_pool::SendPool;
use crate::sys::namespace;
use crate::table_state::LockedBy;

impl PortOwner for NodeInner {
    fn link(&self) -> &dyn Link {
        self.link.as_ref()
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn udp_ports(&self) -> &UdpPorts {
        &self.udp_ports
    }

    fn send_pool(&self) -> &Arc<SendPool> {
        &self.send_pool
    }

    fn check_namespace(&self) -> Result<(), PortError> {
        if self.namespace.is_some() && self.namespace != namespace::current() {
            return Err(PortError::OtherNamespace);
        }
        Ok(())
    }

    fn port_opened(&self, by: LockedBy) {
        self.neighbours().port_opened(by);
    }

    fn neighbour_named(&self, name: &str) -> Result<Neighbour, PortError> {
        self.find_named(name)
    }

    fn neighbour_of(&self, address: Address) -> Option<Neighbour> {
        self.find_by_address(address)
    }

    fn address_of(&self, peer: &str) -> Result<Ipv4Addr, PortError> {
        self.resolve_address(peer)
    }

    fn station_of(&self, ip: Ipv4Addr, ask_kernel: bool) -> Result<MacAddress, PortError> {
        self.resolve_station(ip, ask_kernel)
    }
}
