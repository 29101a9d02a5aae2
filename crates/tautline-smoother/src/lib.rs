//! The smoother on Linux: the algorithm of [`tautline_proto::smoother`] with sockets, clocks and queues.
//!
//! One process smooths one interface. It is a process of its own: not the control process, which confines itself and
//! must not be late for anybody's counters, and not a node, which needs no privilege to change queues.
//!
//! ```text
//! other traffic ─► root of the interface, an HTB: filter `sort` ── lease lasts ──► a class for each receiver ─► driver
//!                                                      │ no lease, or not for a node                        ▲
//!                                                      └───────────────────────────────────────────────────┤
//! real time ───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Inside, `receiving` measures and grants and never waits for a lock of the kernel; `sending` holds and reports, and
//! may have to wait where a class is changed. Each has a thread and a socket.
//!
//! * [`Smoother`] sets this up, runs it, and takes it away. [`Setup`] says for which interface and nodes.
//! * [`Status`] is what a running smoother tells about itself, in a file of the runtime directory.
//! * [`end`] ends the smoother of an interface, or removes what a killed one left.
//!
//! Everything that is changed is in a journal first (`tautline_state::journal`).

mod control;
mod counts;
mod error;
mod interface_counts;
mod peers;
mod program;
mod queue;
mod receiving;
mod sending;
mod setting_up;
mod shared;
mod smoother;
mod status;
mod sys;

pub use error::SmootherError;
pub use smoother::{Node, Setup, Smoother, end, holder, left};
pub use status::{NodeStatus, Status, read_status};
