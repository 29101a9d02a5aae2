//! Status of nodes: its types, the thread that tells it, and the function that asks for it ([`nodes`]).

mod node;
mod port;
mod serve;

pub use node::{
    ClientPortStatus, ClientStatus, ControlStatus, NeighbourStatus, NeighbourTableStatus,
    NodeStatus, NotBetter, OpenReport, RuleStatus,
};
pub use port::{PeerCounters, PortStatus, ReassemblyStatus, UdpPortStatus};
pub(crate) use serve::StatusServer;
pub use serve::nodes;
