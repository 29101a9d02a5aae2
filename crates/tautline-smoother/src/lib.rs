//! The smoother on Linux: the algorithm of [`tautline_proto::smoother`] with sockets, clocks and queues.
//!
//! One process smooths one interface. It is a process of its own: not the control process, which confines itself and
//! must not be late for anybody's counters, and not a node, which needs no privilege to change queues.
//!
//! ```text
//! other traffic ─► clsact egress: filter `hold` ── lease lasts ──► tautq (ifb): HTB, a class for each ──┐
//!                        │ no lease, or not for a node                                                 │
//!                        └──────────────────────────────► the user's own queueing discipline ◄─────────┘
//! real time ─────────────────────────────────────────────────────────────────────────────────────► driver
//! ```
//!
//! * [`Smoother`] sets this up, runs it, and takes it away. [`Setup`] says for which interface and nodes.
//! * [`Status`] is what a running smoother tells about itself, in a file of the runtime directory.
//! * [`end`] ends the smoother of an interface, or removes what a killed one left.
//!
//! Everything that is changed is in a journal first (`tautline_state::journal`). The user's own queueing discipline is
//! not touched.

mod control;
mod counts;
mod error;
mod program;
mod queue;
mod smoother;
mod status;
mod sys;

pub use error::SmootherError;
pub use smoother::{Node, Setup, Smoother, end, holder};
pub use status::{NodeStatus, Status, read_status};
