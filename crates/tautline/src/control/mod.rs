//! Several processes on one interface: a control process owns the demux and hands what a port consists
//! of to clients, after looking at who asks.
//!
//! The control process is not in the data path. A client reads its ports' memory itself and sends
//! itself; when the control process dies, open ports go on working, and its successor finds them. A
//! client needs no privilege and makes no bpf() call; its death frees its ports.
//! [`Node::open`](crate::Node::open) goes through the control process of its interface where there is
//! one. `docs/control.md` has the whole protocol.

pub(crate) mod client;
pub(crate) mod entry;
pub mod policy;
mod server;
mod table;

mod message;

pub use client::{Found, look};
pub use server::Server;
pub use table::{SharedTable, TableContent};

/// The name that the control process of an interface listens on. In the abstract name space, which is
/// the network namespace's own, as interfaces are; it goes with the process. Anybody can take such a
/// name, so a client looks whose it is.
fn name(interface_index: u32) -> String {
    format!("tautline/control/{interface_index}")
}
