//! Configuration of a node and of the ports that it opens by name.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::neighbour::{Neighbour, NeighbourError, NeighbourTable};
use tautline_proto::wire::ethernet::{EthernetForm, Vlan};
use tautline_proto::wire::{ETHERTYPE_DEFAULT, PortKey, PortNumber};

use crate::address::PortName;
use crate::keys::{CLOCK_TOLERANCE_DEFAULT, KeySource, NeighbourKeys};
use crate::kind::{LinkKind, XdpMode};
use crate::link::vbus::config::BusConfig;
use crate::port::{QueuingOptions, SamplingOptions};
use crate::send_pool::SendPoolConfig;
use crate::types::{Declaration, PortTypes};

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The interface; may be left out with link `udp` and an address.
    pub interface: Option<String>,
    /// The link; `None` takes the best that works.
    pub link: Option<LinkKind>,
    /// Mode of link `xdp`; `None` takes the best that works on the interface.
    pub xdp_mode: Option<XdpMode>,
    /// EtherType of the Ethernet form.
    pub ethertype: u16,
    /// VLAN of the Ethernet form, on links `xdp` and `xsk`: its frames are sent with this 802.1Q tag, which carries
    /// their priority too, and no others are taken. The UDP form stays outside it.
    pub vlan: Vlan,
    /// Whether frames of the Ethernet form carry their priority in an 802.1Q tag with VLAN identifier 0, for switches
    /// that honour it.
    pub pcp: bool,
    /// Whether the UDP form on a raw link carries it in its type of service (a class selector of RFC 2474).
    pub dscp: bool,
    /// This node's IPv4 address; `None` takes the interface's first.
    pub address: Option<Ipv4Addr>,
    /// The bus, for link `vbus`.
    pub bus: Option<BusConfig>,
    /// The peers that ports of this node can send to.
    pub neighbours: NeighbourTable,
    /// Keys that are shared with neighbours, for protected ports.
    pub keys: Vec<NeighbourKeys>,
    /// Time by which frames of protected ports may differ from this node's clock: between the clocks, and on the way.
    pub clock_tolerance: Duration,
    /// The router's address on this network, a neighbour: the way of plain UDP to other networks.
    pub gateway: Option<Ipv4Addr>,
    /// Types that are declared.
    pub types: Vec<Arc<Declaration>>,
    /// Ports that can be opened by name.
    pub ports: Vec<PortConfig>,
    /// Send buffers that the node lends.
    pub send_pool: SendPoolConfig,
    /// Whether `taut status` lists the node; true unless configured. It takes a thread, which sleeps.
    pub publish_status: bool,
}

/// A port that can be opened by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its name, unique in the node.
    pub name: String,
    /// Its key, unique in the node.
    pub key: PortKey,
    /// Discipline and options of the port; UDP and raw ports are queuing.
    pub kind: PortOptions,
    /// Keys of the options that the entry sets: a program cannot set another value.
    pub given: Vec<&'static str>,
    /// Types of its messages.
    pub types: PortTypes,
    /// Whether it publishes for [readers](crate::QueuingPort::readers) from its opening on (link `vbus`).
    pub readers: bool,
    /// Ports that it [follows](crate::QueuingPort::follow) from its opening on (link `vbus`). One that is not there is
    /// looked for while the port is open.
    pub follow: Vec<PortName>,
}

impl PortConfig {
    /// The `kind` of its entry.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match (self.key, &self.kind) {
            (PortKey::Udp(_), _) => "udp",
            (PortKey::Raw(_), _) => "raw",
            (PortKey::Message(_), PortOptions::Queuing(_)) => "queuing",
            (PortKey::Message(_), PortOptions::Sampling(_)) => "sampling",
        }
    }

    /// The number of a port of messages.
    #[must_use]
    pub fn message_number(&self) -> Option<PortNumber> {
        match self.key {
            PortKey::Message(number) => Some(number),
            PortKey::Udp(_) | PortKey::Raw(_) => None,
        }
    }
}

/// Discipline and options of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortOptions {
    /// A queuing port.
    Queuing(QueuingOptions),
    /// A sampling port.
    Sampling(SamplingOptions),
}

impl NodeConfig {
    /// A node on an interface, on the best link that works, without neighbours and named ports.
    #[must_use]
    pub fn on(interface: &str) -> Self {
        Self {
            interface: Some(interface.to_owned()),
            link: None,
            xdp_mode: None,
            ethertype: ETHERTYPE_DEFAULT,
            vlan: Vlan::NONE,
            pcp: false,
            dscp: false,
            address: None,
            bus: None,
            neighbours: NeighbourTable::new(),
            keys: Vec::new(),
            clock_tolerance: CLOCK_TOLERANCE_DEFAULT,
            gateway: None,
            types: Vec::new(),
            ports: Vec::new(),
            send_pool: SendPoolConfig::default(),
            publish_status: true,
        }
    }

    /// A node on the `udp` link, bound to an address of this host.
    #[must_use]
    pub fn udp(address: Ipv4Addr) -> Self {
        Self {
            interface: None,
            link: Some(LinkKind::Udp),
            address: Some(address),
            ..Self::on("")
        }
    }

    /// A node on the `vbus` link.
    #[must_use]
    pub fn vbus(bus: BusConfig) -> Self {
        Self {
            interface: None,
            link: Some(LinkKind::Vbus),
            bus: Some(bus),
            ..Self::on("")
        }
    }

    /// EtherType and VLAN of the node in the Ethernet form.
    pub(crate) fn ethernet_form(&self) -> EthernetForm {
        EthernetForm {
            ethertype: self.ethertype,
            vlan: self.vlan,
        }
    }

    /// Asks for a link.
    #[must_use]
    pub fn with_link(mut self, link: LinkKind) -> Self {
        self.link = Some(link);
        self
    }

    /// Adds keys that are shared with a neighbour.
    #[must_use]
    pub fn with_keys(mut self, neighbour: &str, source: KeySource) -> Self {
        self.keys.push(NeighbourKeys {
            neighbour: neighbour.to_owned(),
            source,
        });
        self
    }

    /// Adds a neighbour.
    ///
    /// # Errors
    /// [`NeighbourError`].
    pub fn with_neighbour(mut self, neighbour: Neighbour) -> Result<Self, NeighbourError> {
        self.neighbours.add(neighbour)?;
        Ok(self)
    }
}
