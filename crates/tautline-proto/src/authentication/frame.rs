//! The form of an authenticated frame, and the sender's side.
//!
//! The payload is the message, as it is or encrypted, and a [`Trailer`]. The tag covers the header, the trailer before
//! the tag, the addresses of both nodes, and the message.

use alloc::boxed::Box;

use super::key::{KeyRing, RunKey};
use crate::wire::{FLAG_AUTHENTICATED, HEADER_BYTES, Header, MacAddress, WHOLE_BYTES_MAX_ETHERNET};

pub use crate::wire::TRAILER_BYTES;

/// Bytes of the tag, at the end of the trailer.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of the trailer before the tag.
const TRAILER_HEAD_BYTES: usize = TRAILER_BYTES - TAG_BYTES;
/// Bytes of a station: its form and its address.
const STATION_BYTES: usize = 7;
/// Bytes that the tag covers before the message: header, trailer without the tag, source, destination address.
const COVERED_BYTES: usize = HEADER_BYTES + TRAILER_HEAD_BYTES + STATION_BYTES + 6;
/// Bit of the trailer's first byte: the message is encrypted.
const ENCRYPTED: u8 = 0x01;

/// How a port protects what it sends. A receiver takes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// Every host on the network can read the message; none can change it.
    Authenticated,
    /// Other hosts cannot read it either.
    Encrypted,
}

impl Protection {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Authenticated, Self::Encrypted];

    /// Name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Encrypted => "encrypted",
        }
    }

    /// The protection of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Address of a node in the form of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Station {
    /// Of the Ethernet form.
    Ethernet(MacAddress),
    /// Of the UDP form.
    Udp(core::net::Ipv4Addr),
}

impl Station {
    /// The form, 1 Ethernet or 2 UDP, and six bytes: a MAC address, or an IPv4 address and zeros.
    pub(super) fn bytes(self) -> [u8; STATION_BYTES] {
        let mut bytes = [0; STATION_BYTES];
        match self {
            Self::Ethernet(mac) => {
                bytes[0] = 1;
                bytes[1..].copy_from_slice(&mac.0);
            }
            Self::Udp(ip) => {
                bytes[0] = 2;
                bytes[1..5].copy_from_slice(&ip.octets());
            }
        }
        bytes
    }
}

/// Both ends of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// The sending node.
    pub source: Station,
    /// The receiving node.
    pub destination: Station,
}

/// The last bytes of an authenticated payload.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 1 | bit 0: the message is encrypted; the others sent as 0 |
/// | 1 | 1 | reserved, sent as 0 |
/// | 2 | 2 | epoch of the key |
/// | 4 | 8 | number of the sender's run |
/// | 12 | 8 | time, in nanoseconds since 1970; each frame of a run has a later one |
/// | 20 | 16 | tag |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Whether the message is encrypted.
    pub is_encrypted: bool,
    /// Epoch of the key.
    pub epoch: u16,
    /// Number of the sender's run.
    pub run: u64,
    /// Time of the frame, in nanoseconds since 1970, by the sender's clock.
    pub time_ns: u64,
    /// The tag.
    pub tag: [u8; TAG_BYTES],
}

impl Trailer {
    /// Splits a payload into message and trailer; `None` if it is too short. The tag is not checked.
    pub fn split(payload: &[u8]) -> Option<(&[u8], Self)> {
        let (message, bytes) = payload.split_last_chunk::<TRAILER_BYTES>()?;
        let (head, tag) = bytes.split_last_chunk::<TAG_BYTES>()?;
        let (before, time) = head.split_last_chunk::<8>()?;
        let (before, run) = before.split_last_chunk::<8>()?;
        let (flags, epoch) = before.split_last_chunk::<2>()?;
        let trailer = Self {
            is_encrypted: flags[0] & ENCRYPTED != 0,
            epoch: u16::from_be_bytes(*epoch),
            run: u64::from_be_bytes(*run),
            time_ns: u64::from_be_bytes(*time),
            tag: *tag,
        };
        Some((message, trailer))
    }

    fn head(&self) -> [u8; TRAILER_HEAD_BYTES] {
        let mut head = [0; TRAILER_HEAD_BYTES];
        head[0] = if self.is_encrypted { ENCRYPTED } else { 0 };
        head[2..4].copy_from_slice(&self.epoch.to_be_bytes());
        head[4..12].copy_from_slice(&self.run.to_be_bytes());
        head[12..20].copy_from_slice(&self.time_ns.to_be_bytes());
        head
    }
}

/// Header and message of an authenticated frame as if it had not been protected, and its trailer. Nothing is checked:
/// for observers without the keys. `None` if it is too short for a trailer. The message is as it
/// travels; see [`Trailer::is_encrypted`].
pub fn unchecked<'p>(header: &Header, payload: &'p [u8]) -> Option<(Header, &'p [u8], Trailer)> {
    let (message, trailer) = Trailer::split(payload)?;
    Some((plain(header, message), message, trailer))
}

/// Header of the same frame without protection.
fn plain(header: &Header, message: &[u8]) -> Header {
    Header {
        flags: header.flags & !FLAG_AUTHENTICATED,
        length: message.len() as u16,
        ..*header
    }
}

/// Space in which a frame is sealed or opened: what the tag covers, and the payload behind it.
#[derive(Debug)]
pub struct Space(Box<[u8; COVERED_BYTES + WHOLE_BYTES_MAX_ETHERNET]>);

impl Default for Space {
    fn default() -> Self {
        Self::new()
    }
}

impl Space {
    /// Takes the memory.
    pub fn new() -> Self {
        Self(Box::new([0; COVERED_BYTES + WHOLE_BYTES_MAX_ETHERNET]))
    }

    /// Writes what the tag covers. `false` if the message is longer than a frame.
    fn fill(&mut self, way: Way, header: &Header, trailer: &Trailer, message: &[u8]) -> bool {
        if message.len() + TRAILER_BYTES > WHOLE_BYTES_MAX_ETHERNET {
            return false;
        }
        let mut ours = [0; HEADER_BYTES];
        header.emit(&mut ours);
        let destination = way.destination.bytes();
        let parts: [&[u8]; 5] = [
            &ours,
            &trailer.head(),
            &way.source.bytes(),
            &destination[1..],
            message,
        ];
        let mut used = 0;
        for part in parts {
            self.0[used..used + part.len()].copy_from_slice(part);
            used += part.len();
        }
        true
    }

    /// The covered bytes apart from an encrypted message, and that message; of one that is not encrypted, all is
    /// covered and nothing is left.
    fn parts(&mut self, is_encrypted: bool, message_bytes: usize) -> (&mut [u8], &mut [u8]) {
        let whole = &mut self.0[..COVERED_BYTES + message_bytes];
        let at = if is_encrypted {
            COVERED_BYTES
        } else {
            whole.len()
        };
        whole.split_at_mut(at)
    }

    fn message(&self, message_bytes: usize) -> &[u8] {
        &self.0[COVERED_BYTES..COVERED_BYTES + message_bytes]
    }
}

/// Keys to one receiver, and the one that is in use.
#[derive(Debug)]
pub struct SendKey {
    ring: KeyRing,
    current: Option<RunKey>,
}

impl SendKey {
    /// A sender's side of a ring.
    pub const fn new(ring: KeyRing) -> Self {
        Self {
            ring,
            current: None,
        }
    }
}

const RUN_RANDOM_BITS: u32 = 24;
/// Bits above them, which count the runs of one opening of a port.
const RUN_COUNT_BITS: u32 = 8;
/// Most runs of one opening. Receivers hear a sender whose clock is set back more often when its clock has caught up.
const RUNS_MAX: u64 = 1 << RUN_COUNT_BITS;

/// Number of the first run of a port that is opened. Receivers take a larger number for a newer run, so `order` must be
/// larger than that of each opening before. The lowest bits are `random`, so that no number comes twice where an order
/// does: on a machine that was set up anew, or whose files are those of yesterday.
pub const fn first_run(order: u32, random: u64) -> u64 {
    ((order as u64) << (RUN_COUNT_BITS + RUN_RANDOM_BITS)) | (random % (1 << RUN_RANDOM_BITS))
}

/// Number of the run after `run` in the same opening of a port; `None` after the 256th.
pub const fn next_run(run: u64, random: u64) -> Option<u64> {
    let next = (run >> RUN_RANDOM_BITS) + 1;
    if next.is_multiple_of(RUNS_MAX) {
        return None;
    }
    Some((next << RUN_RANDOM_BITS) | (random % (1 << RUN_RANDOM_BITS)))
}

/// The sending side of one port: its run, and the time of its last frame.
///
/// **No nonce is used twice.** The key of a frame is derived from the secret and the [number of the run](first_run),
/// which is a new one each time that the port is opened; within a run each frame has a later time than the one before,
/// whatever the clock does. After the clock was set back by more than receivers tolerate, the caller begins another run
/// ([`is_ahead`](Self::is_ahead)).
#[derive(Debug)]
pub struct Sender {
    run: u64,
    last_ns: u64,
    protection: Protection,
}

impl Sender {
    /// A sender. `run` is larger than the number of each run before it of this port: [`first_run`].
    pub const fn new(run: u64, protection: Protection) -> Self {
        Self {
            run,
            last_ns: 0,
            protection,
        }
    }

    /// Whether the time of the last frame is later than `now_ns` by more than `tolerance_ns`, because the clock was set
    /// back. The next times of this run are later still, and receivers whose clocks are right would refuse them as
    /// untimely until this clock has caught up. [`begin_run`](Self::begin_run) ends that.
    #[inline]
    pub const fn is_ahead(&self, now_ns: u64, tolerance_ns: u64) -> bool {
        self.last_ns.saturating_sub(now_ns) > tolerance_ns
    }

    /// Number of the run under way.
    pub const fn run(&self) -> u64 {
        self.run
    }

    /// Begins another run, whose times begin anew. `run` is larger than all before: [`next_run`].
    pub const fn begin_run(&mut self, run: u64) {
        self.run = run;
        self.last_ns = 0;
    }

    /// Seals one frame: its header, and its payload in `space`. `now_ns` is the time since 1970, `header` that of
    /// the frame without protection. `None` if the message is too long for a frame.
    #[inline]
    pub fn seal<'s>(
        &mut self,
        now_ns: u64,
        keys: &mut SendKey,
        way: Way,
        header: Header,
        message: &[u8],
        space: &'s mut Space,
    ) -> Option<(Header, &'s [u8])> {
        let key = keys.ring.in_use(now_ns)?;
        let is_current = |current: &RunKey| {
            (current.epoch, current.run) == (key.epoch, self.run)
                && (current.sender, current.port) == (way.source, header.source)
        };
        if !keys.current.as_ref().is_some_and(is_current) {
            keys.current = Some(key.derive(self.run, way.source, header.source));
        }
        let run_key = keys.current.as_ref()?;
        self.last_ns = now_ns.max(self.last_ns.saturating_add(1));
        let trailer = Trailer {
            is_encrypted: self.protection == Protection::Encrypted,
            epoch: run_key.epoch,
            run: self.run,
            time_ns: self.last_ns,
            tag: [0; TAG_BYTES],
        };
        let bytes = message.len() + TRAILER_BYTES;
        let header = Header {
            flags: header.flags | FLAG_AUTHENTICATED,
            length: u16::try_from(bytes).ok()?,
            ..header
        };
        if !space.fill(way, &header, &trailer, message) {
            return None;
        }
        let (covered, hidden) = space.parts(trailer.is_encrypted, message.len());
        let tag = run_key.seal(trailer.time_ns, covered, hidden)?;
        let payload = &mut space.0[COVERED_BYTES..COVERED_BYTES + bytes];
        let behind = &mut payload[message.len()..];
        behind[..TRAILER_HEAD_BYTES].copy_from_slice(&trailer.head());
        behind[TRAILER_HEAD_BYTES..].copy_from_slice(&tag);
        Some((header, payload))
    }
}

/// Checks one frame with a key; header and message of what was sealed, or `None` if the tag is wrong.
#[inline]
pub(super) fn open_with<'s>(
    run_key: &RunKey,
    way: Way,
    header: &Header,
    (message, trailer): (&[u8], &Trailer),
    space: &'s mut Space,
) -> Option<(Header, &'s [u8])> {
    if !space.fill(way, header, trailer, message) {
        return None;
    }
    let (covered, hidden) = space.parts(trailer.is_encrypted, message.len());
    if !run_key.open(trailer.time_ns, covered, hidden, &trailer.tag) {
        return None;
    }
    Some((plain(header, message), space.message(message.len())))
}
