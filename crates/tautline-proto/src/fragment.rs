//! Messages larger than a frame: cutting them up, and putting them together again.
//!
//! The sender walks [`fragments`]. The receiver pushes every frame into a [`Reassembler`], which owns a fixed number of
//! collectors, each large enough for the largest message; nothing is allocated after [`Reassembler::new`].
//!
//! A sender of rubbish must not hurt others: a message that does not complete within its time
//! limit is dropped, no source may hold more than half of the collectors, and a message under way
//! is never thrown out to make room for a new one. All of it is counted in [`ReassemblyCounters`].
//!
//! ```
//! use core::time::Duration;
//! use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId, fragments};
//! use tautline_proto::time::Instant;
//! use tautline_proto::wire::{Header, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET};
//!
//! let message = [7u8; 3000];
//! let mut reassembler = Reassembler::new(ReassemblerConfig::default());
//! let mut completed = None;
//! for fragment in fragments(message.len(), WHOLE_BYTES_MAX_ETHERNET)?.rev() {
//!     let header = Header {
//!         destination: PortNumber::MIN,
//!         source: PortNumber::MAX,
//!         priority: Priority::NORMAL,
//!         flags: 0,
//!         fragment_index: fragment.index,
//!         fragment_count: fragment.count,
//!         length: fragment.length,
//!         sequence: 100 + u32::from(fragment.index),
//!         type_byte: 0,
//!     };
//!     let payload = &message[fragment.range()];
//!     let now = Instant::ZERO;
//!     if let Outcome::Complete(bytes) = reassembler.push(now, SourceId(1), &header, payload) {
//!         completed = Some(bytes.to_vec());
//!     }
//! }
//! assert_eq!(completed.as_deref(), Some(&message[..]));
//! # Ok::<(), tautline_proto::fragment::MessageTooLarge>(())
//! ```

mod plan;
mod reassembler;

pub use plan::{Fragment, MessageTooLarge, fragments};
pub use reassembler::{
    DropReason, Outcome, Reassembler, ReassemblerConfig, ReassemblyCounters, SourceId,
};
