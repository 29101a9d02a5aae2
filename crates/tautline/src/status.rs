//! Status of nodes: its types, the thread that tells it, and the function that asks for it ([`nodes`]).

mod interface;
mod node;
mod port;
mod serve;

use std::io;

use crate::kernel::programs_at_tc;
use crate::sys::interface as kernel;

pub use crate::types::TypeDifference;
pub(crate) use interface::gone;
pub use interface::{InterfaceState, InterfaceStatus};
pub use node::{
    ClientPortStatus, ClientStatus, ControlStatus, NeighbourStatus, NodeStatus, NotBetter,
    OpenReport, Origin, RuleStatus,
};
pub use port::{
    DatagramStatus, LatencyStatus, PeerCounters, PortStatus, ProtectionStatus, ReaderStatus,
    ReassemblyStatus, TypeStatus, ValueStatus, bucket_quantile, told_type,
};
pub(crate) use serve::{StatusServer, Told};
pub use serve::{nodes, nodes_with_latency, show_frames};

/// Numbers of the BPF programs that see what arrives on an interface of this network namespace: its XDP program, then
/// those at traffic control. Programs of others are among them.
///
/// # Errors
/// The kernel's; without CAP_NET_ADMIN and CAP_BPF it does not tell those at traffic control.
pub fn programs_on(interface: &str) -> io::Result<Vec<u32>> {
    let interface = kernel::query(interface)?;
    let xdp = kernel::xdp_program(interface.index)?;
    let at_tc = programs_at_tc(&interface.name)?.into_iter();
    Ok(xdp
        .into_iter()
        .chain(at_tc.map(|program| program.id()))
        .collect())
}
