//! A node in each of two hosts, on one cable, each with the other as its neighbour [`PEER`].

use tautline::link::XdpMode;
use tautline::{
    Form, LinkKind, MacAddress, Neighbour, Node, NodeConfig, OpenError, OpenReport, PortError,
    PortNumber,
};
use tautline_testbed::hosts::{Host, Hosts, HostsError};
use thiserror::Error;

/// Name of the other host in the neighbour table.
pub const PEER: &str = "peer";

/// Why the nodes or a port of theirs could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodesError {
    /// A host could not be entered.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A node could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl NodesError {
    /// Remedy for the user.
    pub fn remedy(&self) -> String {
        match self {
            NodesError::Hosts(error) => error.remedy(),
            NodesError::Open(error) => error.remedy().to_owned(),
            NodesError::Port(error) => error.remedy().to_owned(),
        }
    }
}

/// The nodes of both hosts. Their ports keep them open.
pub struct HostNodes {
    ends: [Node; 2],
}

impl HostNodes {
    /// Opens them on a cable. `mode` is that of link `xdp`; nothing takes the best that works.
    pub fn open(
        hosts: &Hosts,
        cable: usize,
        link: LinkKind,
        mode: Option<XdpMode>,
    ) -> Result<HostNodes, NodesError> {
        let open = |host: Host| -> Result<Node, NodesError> {
            let peer = hosts.end(host.peer(), cable);
            let neighbour = Neighbour {
                name: PEER.to_owned(),
                mac: MacAddress(peer.mac()),
                ip: Some(peer.address()),
                form: Form::Ethernet,
            };
            let mut config = NodeConfig::on(&hosts.end(host, cable).interface()).with_link(link);
            config.xdp_mode = mode;
            let config = config
                .with_neighbour(neighbour)
                .expect("an empty table has room");
            Ok(hosts.inside(host, || Node::open(config))??)
        };
        Ok(HostNodes {
            ends: [open(Host::A)?, open(Host::B)?],
        })
    }

    /// The link of the first node, and why not a better one.
    pub fn report(&self) -> &OpenReport {
        self.ends[0].report()
    }

    /// Carrier of the frames, in a line.
    pub fn describe(&self) -> String {
        self.report().to_string().replace('\n', ";")
    }

    /// Opens a port on one of the nodes.
    pub fn port<P: Send>(
        &self,
        hosts: &Hosts,
        host: Host,
        open: impl Fn(&Node) -> Result<P, PortError> + Sync,
    ) -> Result<P, NodesError> {
        let node = &self.ends[host as usize];
        Ok(hosts.inside(host, || open(node))??)
    }
}

/// A port number that is a constant of the program.
///
/// # Panics
/// If it is out of range.
pub fn port_number(number: u16) -> PortNumber {
    PortNumber::new(number).expect("the program's own port numbers are in range")
}
