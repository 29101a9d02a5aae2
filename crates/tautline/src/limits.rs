//! Limits and defaults of ports and of questions to the network. Those of the wire format are in `tautline-proto`,
//! those of a port's memory in `tautline-shm`.

use std::time::Duration;

/// Slots in each of the eight classes of a queuing port, unless configured. 64 full frames at 1 Gbit/s are 0.8 ms of
/// line rate: what a reader may sleep through. Eight classes of 64 slots take 768 KiB.
pub const DEPTH_DEFAULT: u32 = 64;
/// Most slots in a class. Higher: one port may pin more than 48 MiB.
pub const DEPTH_MAX: u32 = 4096;
/// Most sources that a sampling port keeps a value of. Lower: a fleet needs several ports. Higher: the
/// words about them no longer fit the port's control element (`docs/reference/memory.md`).
pub const SOURCES_MAX: usize = tautline_shm::layout::PEER_COUNT;
/// Bytes of the largest value of a sampling port, unless configured: a full frame, as every link carries.
pub const VALUE_BYTES_DEFAULT: usize = tautline_proto::wire::WHOLE_BYTES_MAX_ETHERNET;
/// Destinations of one port. Lower: a publisher cannot reach a fleet. Higher: memory of every port
/// grows (80 bytes each).
pub const DESTINATIONS_MAX: usize = 64;
/// Sequences from which the answers of a port take their numbers, if their receiver is not one of its destinations. The
/// receiver's address and port select one. Lower: two receivers share one more often, and each counts the other's
/// answers as lost. Higher: memory of every port grows (4 bytes each).
pub(crate) const REPLY_SEQUENCES: usize = 256;
/// Frames of a batch that are handed to the link at once, and leave with one system call where it can do that.
/// Lower: more system calls. Higher: more stack, about 64 bytes each in the port and 200 in the link.
pub const BATCH_FRAMES: usize = 32;
/// Longest time for which a wait spins before it sleeps, unless configured. Lower: who waits for the answer of a peer
/// that had to be woken goes to sleep just before it comes; waking a processor takes 5 to 100 µs. Higher: a receiver of
/// several thousand messages a second uses a whole processor.
pub const SPIN_ADAPTIVE_MAX: Duration = Duration::from_micros(200);
/// Longest time that an answer is waited for. Lower: a network with sleeping bridges seems empty. Higher:
/// a typing mistake waits for longer than anybody would.
pub(crate) const SOLICIT_TIME_MAX: Duration = Duration::from_secs(10);
