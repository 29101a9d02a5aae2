//! Several processes on one interface: a control process owns the demux and hands what a port consists
//! of to clients, after looking at who asks.
//!
//! The control process is not in the data path. A client reads its ports' memory itself and sends itself; when the
//! control process dies, open ports go on working, and its successor finds them. A client needs no privilege and makes
//! no bpf() call; its death frees its ports. [`Node::open`](crate::Node::open) goes through the control process of its
//! interface where there is one. `docs/reference/control.md` has the whole protocol.

mod confinement;
pub mod policy;
mod server;

pub use confinement::Confinement;
pub use server::Server;

pub use crate::client::{ControlProcess, SharedNeighbours, look, shared_neighbours};

/// Bytes that a client's port takes beside its memory, of the kernel's: its doorbell, the tap that it sends through,
/// and the frames that may be on their way there. They count towards `memory_bytes_max`.
pub const PORT_KERNEL_BYTES: u64 = crate::sys::tap::BYTES;

/// Name of the socket on which the control process tells its status, beside that for its clients.
fn status_name(interface_index: u32) -> String {
    format!("status-{interface_index}")
}
