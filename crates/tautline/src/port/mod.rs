//! Ports: what an application holds. [`QueuingPort`] keeps every message and hands out the most
//! urgent first; [`SamplingPort`] keeps the last value only. Both send.
//!
//! A port belongs to one thread at a time (`&mut self`); it can be moved to another. Nothing here
//! allocates, locks or logs after the port is open.

mod assembly;
mod authenticated;
mod bus;
mod core;
mod endpoint;
mod frames;
mod inbox;
mod lent;
pub(crate) mod list;
mod opening;
pub(crate) mod owner;
mod queuing;
mod raw;
mod receiver;
mod sampling;
mod spin;
mod typed;
mod udp;
mod waiting;

pub use lent::{LentMessage, Loan, Received};
pub use queuing::{QueuingOptions, QueuingPort};
pub use raw::{Frame, RawPort, ReceivedFrame};
pub use sampling::{SamplingOptions, SamplingPort, Value};
pub use spin::{AdaptiveSpin, Spin};
pub use typed::{TypedQueuingPort, TypedSamplingPort};
pub use udp::{Datagram, LentDatagram, UdpPort};
pub use waiting::Wait;

pub use crate::kind::PortKind;
pub use crate::limits::{
    BATCH_FRAMES, DEPTH_DEFAULT, DEPTH_MAX, DESTINATIONS_MAX, SOURCES_MAX, SPIN_ADAPTIVE_MAX,
    VALUE_BYTES_DEFAULT,
};
pub use crate::message::{
    Destination, LentBytes, LentSample, Message, MessagePort, Outgoing, Sample,
};
pub use crate::policing::Policing;
pub use tautline_proto::wire::raw::{EtherTypeError, RAW_FRAME_BYTES_MAX};
