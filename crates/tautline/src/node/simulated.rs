//! Nodes on a simulated network.

use tautline_proto::sim::SimError;
use tautline_proto::wire::MacAddress;

use super::{Node, NodeConfig};
use crate::link::sim::Network;

impl Network {
    /// Opens a node on this network. Of the configuration, EtherType, VLAN, neighbours and ports count.
    ///
    /// # Errors
    /// [`SimError`] if the address is taken or the network is full.
    pub fn open(&self, mac: MacAddress, config: NodeConfig) -> Result<Node, SimError> {
        let link = self.attach(mac, config.ethernet_form())?;
        Ok(Node::on_link(link, mac, config))
    }
}
