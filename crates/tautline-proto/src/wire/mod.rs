//! Frame formats: the 16-byte header, and the two forms that carry it.
//!
//! [`Header`] is the same in both forms. [`ethernet`] carries it straight in an Ethernet frame,
//! [`udp`] in an IPv4/UDP datagram. The written specification, with byte tables and test vectors,
//! is `docs/reference/wire.md`.
//!
//! Every function here takes bytes that anybody may have sent. None of them panics, none reads past
//! the slice that it was given, and every way for a frame to be wrong has exactly one answer:
//! a [`ParseError`], which is `Copy` and doubles as a counter index, or [`Rejected::NotOurs`] for
//! traffic that belongs to the rest of the system. Nothing here allocates.
//!
//! This module does not reassemble messages (see [`fragment`](crate::fragment)) and does not know
//! nodes (see [`neighbour`](crate::neighbour)).

pub mod bundle;
mod error;
pub mod ethernet;
mod header;
mod key;
pub mod raw;
mod types;
pub mod udp;

pub use error::{ParseError, Rejected};
pub use header::Header;
pub use key::PortKey;
pub use types::{MacAddress, PortNumber, Priority, ValueError};

/// Bytes in the Tautline header.
///
/// Fixed by the format. A multiple of 8, so that behind a 14-byte Ethernet header and the usual
/// 2-byte shift the payload stays aligned; a larger header would cost small messages more.
pub const HEADER_BYTES: usize = 16;

/// The version of the format that this crate speaks, and the only one that it accepts.
///
/// Raised when a receiver of the old version would misread a frame; a flag bit is enough otherwise.
pub const VERSION: u8 = 1;

/// EtherType of the Ethernet form unless configured: IEEE 802 local experimental EtherType 1.
///
/// Lower than 0x0600 it would be read as a length (IEEE 802.3, clause 3.2.6); another value might
/// belong to another protocol.
pub const ETHERTYPE_DEFAULT: u16 = 0x88B5;

/// Highest port number; port 0 is reserved and invalid.
///
/// Lower would make a node with many signals run out of ports. Higher would make the demux's port
/// table larger than it need be, and [`UDP_PORT_BASE`]` + PORT_MAX` reach Linux's ephemeral ports
/// (32768 and up), where kernel sockets live.
pub const PORT_MAX: u16 = 4095;

/// Number of priorities, 0 to 7, 7 most urgent; the same numbers as the 802.1Q PCP.
///
/// Lower would not cover the PCP; higher could not be carried by it.
pub const PRIORITY_COUNT: usize = 8;

/// Payload bytes in each fragment of a message but the last.
///
/// 22 cache lines of 64 bytes, so a fragment is copied into place in whole lines, and its place is
/// `index * FRAGMENT_BYTES` whichever form carried it. The next multiple, 1472, would not fit the
/// UDP form at an MTU of 1500; 1408 also leaves room for a tunnel under it, such as PPPoE (8 bytes)
/// or GRE (24). Lower means more frames per message and, below 1395, more than
/// [`FRAGMENT_COUNT_MAX`] of them.
pub const FRAGMENT_BYTES: usize = 1408;

/// Most fragments in one message.
///
/// Lower could not carry [`MESSAGE_BYTES_MAX`]; higher than 64 would outgrow the one machine word
/// in which the reassembler marks what has arrived.
pub const FRAGMENT_COUNT_MAX: usize = 47;

/// Most bytes in one message.
///
/// Lower would break programs that exchange what a UDP datagram carries (65,507 bytes); higher
/// makes every fragment collector larger and the loss of one frame costlier.
pub const MESSAGE_BYTES_MAX: usize = 65_536;

/// Ethernet payload bytes (the MTU) for which the two limits below are made.
///
/// Lower would waste part of every standard frame; higher frames are lost on networks without jumbo
/// frames.
pub const MTU_BYTES: usize = 1500;

/// Longest message that the Ethernet form carries in one frame: MTU 1500 less the header. A
/// receiver takes no longer one in a single frame of either form.
///
/// Lower fragments needlessly; higher makes frames that a standard network drops, and receivers
/// keep larger slots for all.
pub const WHOLE_BYTES_MAX_ETHERNET: usize = 1484;

/// Longest message that the UDP form carries in one frame: MTU 1500 less IPv4, UDP and our header.
///
/// Lower fragments needlessly; higher makes IP fragments, which the demux does not take.
pub const WHOLE_BYTES_MAX_UDP: usize = 1456;

/// UDP port of the UDP form is this plus the port number.
///
/// Lower runs into registered services and, below 1024, privileged ports; higher than
/// 32768 - 4096 the range reaches Linux's ephemeral ports. 21569 is 0x5441, "TA".
pub const UDP_PORT_BASE: u16 = 21_569;

/// Flag bits that a receiver must understand: a frame with an unknown one set is dropped and
/// counted.
pub const FLAGS_CRITICAL: u8 = 0x0F;

/// Flag bits that a receiver may ignore.
pub const FLAGS_ADVISORY: u8 = 0xF0;

/// Critical flag: the payload is a [`bundle`] of messages. A receiver that does not know it would hand
/// on the lengths as content, hence critical.
pub const FLAG_BUNDLE: u8 = 0x01;

/// Critical flag: the payload ends with a trailer that proves its sender, see
/// [`authentication`](crate::authentication). A receiver that does not know it would hand on the trailer as content,
/// or an encrypted message, hence critical.
pub const FLAG_AUTHENTICATED: u8 = 0x02;

/// Bytes of that trailer. They count in the header's length, and come on top of a fragment's own bytes.
///
/// Lower would cut the tag, the time or the random number of the sender's run, on which the protection rests; higher
/// makes every protected frame longer, and above 48 a fragment would not fit the UDP form.
pub const TRAILER_BYTES: usize = 36;

/// Critical flags that this version defines.
pub const FLAGS_KNOWN: u8 = FLAG_BUNDLE | FLAG_AUTHENTICATED;

const _: () = {
    assert!(WHOLE_BYTES_MAX_ETHERNET == MTU_BYTES - HEADER_BYTES);
    assert!(WHOLE_BYTES_MAX_UDP == MTU_BYTES - 20 - 8 - HEADER_BYTES);
    assert!(FRAGMENT_BYTES <= WHOLE_BYTES_MAX_UDP);
    assert!(FRAGMENT_BYTES.is_multiple_of(64));
    assert!(FRAGMENT_COUNT_MAX == MESSAGE_BYTES_MAX.div_ceil(FRAGMENT_BYTES));
    assert!(FRAGMENT_COUNT_MAX <= u64::BITS as usize);
    assert!(UDP_PORT_BASE + PORT_MAX < 32_768);
    assert!(FLAGS_KNOWN & !FLAGS_CRITICAL == 0);
    assert!(FRAGMENT_BYTES + TRAILER_BYTES <= WHOLE_BYTES_MAX_UDP);
    assert!(FLAGS_CRITICAL ^ FLAGS_ADVISORY == 0xFF);
};

/// Reads a big-endian `u16` at `offset`, `None` past the end.
pub(crate) fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*field))
}

/// Reads a MAC address at `offset`, `None` past the end.
fn read_mac(bytes: &[u8], offset: usize) -> Option<MacAddress> {
    let field = bytes.get(offset..)?.first_chunk::<6>()?;
    Some(MacAddress(*field))
}
