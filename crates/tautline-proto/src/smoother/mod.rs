//! The smoother: other traffic is held back where it leaves, so that real-time messages are neither lost nor late in
//! the queue of a switch.
//!
//! A switch port has a first-in-first-out queue. When several nodes send to one node at once, their other traffic fills
//! that queue, and real-time messages wait or die in it. Only the node behind the port sees everything that comes
//! through it. So the **receiver** decides: it knows the port's capacity, subtracts the real-time traffic that is sent
//! to it and the traffic of nodes that do not take part, and grants the rest to the senders, 200 times a second, or 50
//! times while there is nothing to hold. A **sender** holds its other traffic to what it was granted. Real-time
//! messages are never held.
//!
//! ```text
//! sender                                              receiver
//!   other traffic ─► held to the granted rate ──┐
//!   real time ──────────────────────────────────┴─► switch port ─► counts, per sender
//!        ▲                                                            │
//!        └──────────── grant: rate, number ◄── [`Receiver::tick`] ◄───┘
//!   report: number, backlog, bytes sent ───────► [`Receiver::take_report`]
//! ```
//!
//! * [`Receiver`] divides the port: max-min fairness over demand ([`share`]), raises only after the others' decreases
//!   are confirmed, rates dithered so that senders do not lock phases.
//! * [`capacity`] lowers a capacity that was believed too high, from the delay that echoes of grants show.
//! * [`Sender`] keeps the grants of several receivers, divides its own path among them, and lets go in stages when a
//!   receiver falls silent.
//! * [`message`] is the form of grants and reports on the wire.
//!
//! Rates are in bits a second on the wire: each frame counts with [`WIRE_OVERHEAD_BYTES`].
//!
//! Nothing here reads a clock or a socket, and nothing holds a frame: the Linux part does (crate `tautline`).

mod average;
pub mod capacity;
pub mod message;
mod receiver;
mod sender;
pub mod share;

use core::time::Duration;

pub use receiver::{NodeCounts, NodeView, PortCounts, Receiver, ReceiverConfig};
pub use sender::{GrantRefused, Release, Sender, SenderConfig};

/// Time between two grants.
///
/// Shorter costs more CPU and messages; longer leaves room unused for longer when a sender begins or stops.
pub const INTERVAL: Duration = Duration::from_millis(5);

/// Time between two grants after [`QUIET`] without other traffic.
///
/// Shorter wakes an idle node for nothing; longer, and traffic that begins is held to the least for as long.
pub const QUIET_INTERVAL: Duration = Duration::from_millis(20);

/// Time without other traffic after which grants are sent less often.
///
/// Shorter, and traffic that pauses begins slower each time; longer saves less.
pub const QUIET: Duration = Duration::from_secs(1);

/// Share of the port that is given out, real-time traffic included.
///
/// Lower wastes the rest. Higher leaves no room for the senders' timers to be late: the queue grows and never drains.
pub const EFFICIENCY_PPM: u64 = 980_000;

/// Time without a report, or without a grant, after which the other side counts as silent.
///
/// Shorter, and twenty lost messages in a row, or a stalled process, count as silence; longer, and a node that stopped
/// keeps its share for longer.
pub const SILENCE: Duration = Duration::from_millis(100);

/// Longest frame of an untagged network with its [`WIRE_OVERHEAD_BYTES`]: the unit of bursts and of waiting.
pub const FRAME_BYTES: u64 = 1514 + WIRE_OVERHEAD_BYTES;

/// Bytes that each frame takes on the wire beside those that a packet socket shows: preamble, check sequence, gap.
pub const WIRE_OVERHEAD_BYTES: u64 = 24;

/// Nodes that one receiver grants to, and receivers that one sender holds traffic for.
///
/// Fewer, and a full cell does not fit; with more, one-frame bursts alone could fill the queue of a small switch.
pub const NODES_MAX: usize = 64;

/// All of a million.
const WHOLE_PPM: u64 = 1_000_000;

/// `value` times `ppm` parts of a million, without overflow.
const fn parts(value: u64, ppm: u64) -> u64 {
    (value as u128 * ppm as u128 / WHOLE_PPM as u128) as u64
}

/// Time that `bytes` take at `rate_bps`; the longest duration that 64 bits of nanoseconds hold at rate 0.
#[must_use]
pub fn time_on_wire(bytes: u64, rate_bps: u64) -> Duration {
    let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
