//! The node of a port, as its ports see it.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::MacAddress;

use super::list::Ports;
use crate::error::PortError;
use crate::keys::{Keys, OwnStations};
use crate::link::Link;
use crate::link::frame::Marking;
use crate::send_pool::SendPool;
use crate::sys::interface::InterfaceWatch;

/// Owner of ports: their link, their list, and the table by which they resolve peers. Asked when a port or a
/// destination is opened, never on the way of a message.
pub(crate) trait PortOwner: Send + Sync + std::fmt::Debug {
    fn link(&self) -> &dyn Link;

    /// Places that carry the priority of frames, for switches.
    fn marking(&self) -> Marking;

    fn ports(&self) -> &Ports;

    fn ethertype(&self) -> u16;

    fn send_pool(&self) -> &Arc<SendPool>;

    fn keys(&self) -> &Arc<Keys>;

    fn own_stations(&self) -> OwnStations;

    /// Refuses a process that was forked from the node's, and a thread in another network namespace: sockets belong to
    /// the namespace of the thread that opens them.
    fn check_caller(&self) -> Result<(), PortError>;

    /// The interface, where what is received depends on it.
    fn watch(&self) -> Option<&Arc<InterfaceWatch>>;

    fn port_opened(&self);

    /// The neighbour of this name; also one that a new control process has.
    fn neighbour_named(&self, name: &str) -> Result<Neighbour, PortError>;

    /// The IPv4 address of a neighbour by its name, or the address that the text is.
    fn address_of(&self, peer: &str) -> Result<Ipv4Addr, PortError>;

    /// The MAC address that packets to an IPv4 address are sent to: the neighbour's own, or the gateway's.
    fn station_of(&self, ip: Ipv4Addr) -> Result<MacAddress, PortError>;

    /// MAC address for an answer to an IPv4 address. One that is not in the node's table is looked up in the kernel's.
    fn station_of_sender(&self, ip: Ipv4Addr) -> Option<MacAddress>;
}
