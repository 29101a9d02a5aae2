//! Status of nodes: its types, the thread that tells it, and the function that asks for it ([`nodes`]).

mod node;
mod port;
mod reads;
mod serve;

pub use node::{
    ClientPortStatus, ClientStatus, ControlStatus, NeighbourStatus, NeighbourTableStatus,
    NodeStatus, NotBetter, OpenReport, RuleStatus,
};
pub use port::{
    DeclarationsStatus, LatencyStatus, PeerCounters, PortStatus, ProtectionStatus, RawPortStatus,
    ReaderStatus, ReassemblyStatus, TypeDifferenceStatus, TypeStatus, UdpPortStatus, ValueStatus,
    bucket_quantile, told_type,
};
pub use reads::{PortReads, ReadWatch};
pub(crate) use reads::{ReadPort, ReadsTold};
pub(crate) use serve::{StatusServer, Told};
pub use serve::{nodes, nodes_with_latency, show_frames};
