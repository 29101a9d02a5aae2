//! Frames and messages of this machine, copied while they pass, as files. Observed processes do nothing for it.
//!
//! * [`Tap`] copies the frames of one interface (those that the demux takes before Linux sees them, those that are sent
//!   past the queueing discipline, and ours among those that Linux handles), or the messages of a bus ([`BusTap`]).
//! * All fill a [`Batch`], which puts them in the order of time.
//! * [`KnownNodes`] has the fields of messages and the names of senders and receivers, as far as nodes report them.
//! * [`pcapng`] writes them for Wireshark, [`recording`] the messages in them as MCAP.
//!
//! Messages are not taken from their receivers, and senders do not wait: what arrives faster than it is copied counts
//! as lost.

mod batch;
mod bus;
mod error;
pub mod frame;
pub mod message;
mod network;
mod nodes;
pub mod pcapng;
pub mod recording;
mod ring;
mod sent_frames;
pub mod sink;
mod sys;
mod tap;

pub use batch::{Batch, Item, Origin, Way};
pub use bus::{BusMessage, BusTap, bus_message};
pub use error::CaptureError;
pub use network::up_interfaces;
pub use nodes::{FlowFacts, FlowNames, KnownNodes};
pub use tap::{Tap, pause_after, stand_back};
/// EtherType of nodes whose configuration has no other.
pub use tautline_proto::wire::ETHERTYPE_DEFAULT;
