//! Real-time datagrams on stock Linux: nodes, ports and links.
//!
//! A [`Node`] is one participant on a network. It has numbered ports: a [`QueuingPort`] keeps every message and hands
//! out the most urgent first, a [`SamplingPort`] keeps the last value, with its age. What carries the frames is a
//! [link]: the best that works here is taken, and [`Node::report`] says which.
//!
//! ```
//! use tautline::{Node, NodeConfig, Priority, Wait, neighbour};
//!
//! // Two nodes of one process on the link that needs no privilege.
//! let here = [127, 0, 0, 1].into();
//! let there = neighbour("there", here);
//! let node = Node::open(NodeConfig::udp(here).with_neighbour(there)?)?;
//! let mut sender = node.queuing(2001).open()?;
//! let mut receiver = node.queuing(2002).open()?;
//!
//! let to = sender.destination("there", receiver.number())?;
//! sender.send(to, Priority::HIGHEST, b"hold altitude")?;
//!
//! let message = receiver.receive(Wait::Forever)?.expect("no deadline");
//! assert_eq!(&*message, b"hold altitude");
//! assert_eq!(message.priority(), Priority::HIGHEST);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! After a port is open, sending and receiving allocate nothing and log nothing. Errors on that path
//! are small, `Copy`, and counted; `taut status` shows the counters.
//!
//! # Tour
//! From the top; a layer uses those below it and none above.
//!
//! | layer | what is in it |
//! |---|---|
//! | [`control`] | [`Server`](control::Server): one process owns an interface's demux and hands ports to its clients |
//! | [`config`] | configuration files: [`NodeConfig`] for a node, [`ServiceConfig`] for a control process |
//! | [`Node`] | an interface, an address, neighbours ([`neighbours`]) and a list of ports; chooses the link |
//! | [`port`] | [`QueuingPort`], [`SamplingPort`], [`UdpPort`], and how each waits; typed ports over the first two |
//! | [`status`] | the state of nodes ([`NodeStatus`]) and the function that asks for it |
//! | [`send_pool`] | buffers that datagrams are sent from without a copy |
//! | [`link`] | frames and messages on their way: `xdp`, `xsk`, `packet`, `udp`, [`vbus`], [`sim`](link::sim) |
//! | ground | messages and addresses, [`error`]s, limits, counters, [`types`] of messages; [`cycle`] for control loops, [`kernel`] for what this kernel can do |
//!
//! [`ServiceConfig`]: config::ServiceConfig
//! [`NodeStatus`]: status::NodeStatus

pub mod address;
mod claim;
mod client;
pub mod config;
pub mod control;
pub mod cycle;
pub mod error;
mod hidden_tags;
pub mod kernel;
pub mod keys;
mod kind;
mod latency;
mod limits;
pub mod link;
mod memory;
mod message;
pub mod neighbours;
pub mod node;
mod policing;
pub mod port;
mod restarts;
mod runtime;
pub mod send_pool;
mod statistics;
pub mod status;
mod sys;
pub mod types;

pub use address::{NodeName, Source, bus_neighbour, neighbour};
pub use cycle::Cycle;
pub use error::{Error, OpenError, PortError, ReceiveError, SendError};
pub use kind::LinkKind;
pub use link::vbus::observe as vbus;
pub use node::{Node, NodeConfig, now};
pub use port::{
    Destination, Message, QueuingPort, RawPort, Sample, SamplingPort, Spin, TypedQueuingPort,
    TypedSamplingPort, UdpPort, Wait,
};
/// Implements [`trait@Typed`]: messages that are values of a struct. All of it is checked when it is compiled:
///
/// ```compile_fail,E0080
/// #[derive(Clone, Copy, tautline::Typed)]
/// #[repr(C)]
/// struct Padded { mode: u8, torque: f32 }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, tautline::Typed)]
/// #[repr(C)]
/// struct NotPlain { is_valid: bool }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, tautline::Typed)]
/// struct AsTheCompilerLikes { mode: u8 }
/// ```
pub use tautline_derive::Typed;
pub use tautline_proto::authentication::Protection;
pub use tautline_proto::neighbour::Neighbour;
pub use tautline_proto::time::Instant;
pub use tautline_proto::wire::raw::EtherType;
pub use tautline_proto::wire::{MacAddress, PortKey, PortNumber, Priority};
pub use tautline_types::Typed;
