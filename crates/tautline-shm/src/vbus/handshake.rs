//! The messages by which a producer and a consumer find each other's memory. Bytes only:
//! the link carries them, and the descriptors that go with some.

use super::layout::NAME_BYTES;

/// Marks a message of this kind: "TLH1".
pub const MAGIC: u32 = 0x544c_4831;
/// Version of the messages, and of what they promise.
pub const VERSION: u16 = 1;
/// Bytes of each message.
pub const MESSAGE_BYTES: usize = 72;
/// `index` of the view of a consumer's own memory.
pub const INDEX_CONSUMER: u32 = super::layout::PRODUCERS_MAX as u32;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Step {
    /// A producer wants to send to the port.
    Connect = 1,
    /// The consumer hands over its memory and an event descriptor, with epoch and entry.
    Offer = 2,
    /// The producer hands over its memory, made for that epoch.
    Here = 3,
    /// The consumer has mapped it.
    Accepted = 4,
    /// One of the two will not; see [`Refusal`].
    Refused = 5,
    /// A watcher wants to see the port.
    Observe = 6,
    /// The consumer hands over one memory to look at.
    View = 7,
    /// There are no more.
    End = 8,
    /// A consumer wants to read what the port publishes for all. The port answers as a producer that has connected.
    Follow = 9,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The port has as many producers as it can have.
    Full = 1,
    /// The peer speaks another version.
    Version = 2,
    /// The memory is not as it must be.
    Memory = 3,
    /// The message is for another port, or out of turn.
    NotHere = 4,
    /// The name belongs to another user.
    Denied = 5,
    /// The other side declares another type of messages. The declaration of this side follows the message.
    OtherType = 6,
    /// The reader's port is of another kind, or takes smaller messages than the port publishes: their largest is
    /// `memory_bytes` of the message, and `index` the kind's number.
    OtherShape = 7,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Type of the message.
    pub step: Step,
    /// The connection's epoch. Of [`Step::Connect`]: hash of the declared type of messages, or 0.
    pub epoch: u64,
    /// The connection's entry in the consumer's memory.
    pub index: u32,
    /// A [`Refusal`]'s number.
    pub reason: u32,
    /// The sender's port.
    pub port: u16,
    /// The receiver's port.
    pub peer_port: u16,
    /// The sender's process.
    pub process: u32,
    /// Bytes of the memory that is handed over.
    pub memory_bytes: u64,
    /// The sender's node.
    pub node: [u8; NAME_BYTES],
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// Of another version, whose messages this one cannot read.
    OtherVersion,
    /// Not a message of V-Bus, or one with a length, a step or a name that no message has.
    Malformed,
}

impl Message {
    /// A message with its step and sender only.
    #[must_use]
    pub fn new(step: Step, node: [u8; NAME_BYTES], port: u16, process: u32) -> Self {
        Self {
            step,
            epoch: 0,
            index: 0,
            reason: 0,
            port,
            peer_port: 0,
            process,
            memory_bytes: 0,
            node,
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(self.step as u16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.index.to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.reason.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.port.to_ne_bytes());
        bytes[26..28].copy_from_slice(&self.peer_port.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.process.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.memory_bytes.to_ne_bytes());
        bytes[40..].copy_from_slice(&self.node);
        bytes
    }

    /// Reads a message and the declaration that follows it, if it is a refusal for the type. Any bytes may come.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn with_declaration(bytes: &[u8]) -> Result<(Self, &[u8]), HandshakeError> {
        let (message, text) = bytes.split_at(bytes.len().min(MESSAGE_BYTES));
        let message = Self::from_bytes(message)?;
        let may_follow =
            message.step == Step::Refused && message.reason == Refusal::OtherType as u32;
        match text.is_empty() || may_follow {
            true => Ok((message, text)),
            false => Err(HandshakeError::Malformed),
        }
    }

    /// Reads a message; any bytes may come.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let bytes: &[u8; MESSAGE_BYTES] =
            bytes.try_into().map_err(|_| HandshakeError::Malformed)?;
        if u32::from_ne_bytes(part(bytes, 0)) != MAGIC {
            return Err(HandshakeError::Malformed);
        }
        if u16::from_ne_bytes(part(bytes, 4)) != VERSION {
            return Err(HandshakeError::OtherVersion);
        }
        let node = part(bytes, 40);
        let step = step(u16::from_ne_bytes(part(bytes, 6))).filter(|_| is_name(&node));
        Ok(Self {
            step: step.ok_or(HandshakeError::Malformed)?,
            epoch: u64::from_ne_bytes(part(bytes, 8)),
            index: u32::from_ne_bytes(part(bytes, 16)),
            reason: u32::from_ne_bytes(part(bytes, 20)),
            port: u16::from_ne_bytes(part(bytes, 24)),
            peer_port: u16::from_ne_bytes(part(bytes, 26)),
            process: u32::from_ne_bytes(part(bytes, 28)),
            memory_bytes: u64::from_ne_bytes(part(bytes, 32)),
            node,
        })
    }
}

fn part<const N: usize>(bytes: &[u8; MESSAGE_BYTES], at: usize) -> [u8; N] {
    core::array::from_fn(|index| bytes[at + index])
}

fn step(number: u16) -> Option<Step> {
    Some(match number {
        1 => Step::Connect,
        2 => Step::Offer,
        3 => Step::Here,
        4 => Step::Accepted,
        5 => Step::Refused,
        6 => Step::Observe,
        7 => Step::View,
        8 => Step::End,
        9 => Step::Follow,
        _ => return None,
    })
}

/// Whether these bytes are a node's name: 1 to 31 letters, digits, `-`, `_` or `.` that do not begin
/// with a dot, and zeros after them. So it can be part of a file's name.
#[must_use]
pub fn is_name(bytes: &[u8; NAME_BYTES]) -> bool {
    let length = bytes.iter().position(|byte| *byte == 0);
    let Some(length @ 1..) = length else {
        return false;
    };
    let (name, rest) = bytes.split_at(length);
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    name[0] != b'.' && name.iter().all(allowed) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn name(text: &str) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let message = Message {
            epoch: 0x0102,
            index: 3,
            peer_port: 12,
            memory_bytes: 4096,
            ..Message::new(Step::Offer, name("motor"), 11, 77)
        };
        let bytes = message.to_bytes();
        if cfg!(target_endian = "little") {
            let expected = [
                b'1', b'H', b'L', b'T', 1, 0, 2, 0, // magic, version, step
                2, 1, 0, 0, 0, 0, 0, 0, // epoch
                3, 0, 0, 0, 0, 0, 0, 0, // index, reason
                11, 0, 12, 0, 77, 0, 0, 0, // port, peer_port, process
                0, 16, 0, 0, 0, 0, 0, 0, // memory_bytes
                b'm', b'o', b't', b'o', b'r', 0, // node
            ];
            assert_eq!(bytes[..46], expected);
        }
        assert_eq!(Message::from_bytes(&bytes), Ok(message));
    }

    #[test]
    fn what_is_not_a_message_is_refused() {
        let malformed = HandshakeError::Malformed;
        let good = Message::new(Step::Connect, name("a"), 1, 2).to_bytes();
        assert_eq!(Message::from_bytes(&good[..71]), Err(malformed));
        assert_eq!(Message::with_declaration(&good[..71]), Err(malformed));
        for (place, value, expected) in [
            (0, 0, malformed), // magic
            (4, 2, HandshakeError::OtherVersion),
            (6, 10, malformed), // step
            (40, 0, malformed), // node
            (40, b'/', malformed),
            (40, b'.', malformed),
            (42, b'x', malformed),
            (71, 1, malformed),
        ] {
            let mut bytes = good;
            bytes[place] = value;
            assert_eq!(Message::from_bytes(&bytes), Err(expected), "{place}");
        }
        assert!(is_name(&name("robot-1_arm.left")));
        assert!(!is_name(&[b'a'; NAME_BYTES]), "nothing ends it");
    }

    #[test]
    fn a_declaration_follows_a_refusal_for_the_type_alone() {
        let with_text = |message: Message| {
            let bytes = [&message.to_bytes()[..], b"T { a: u8 }"].concat();
            Message::with_declaration(&bytes).map(|(message, text)| (message, text.to_vec()))
        };
        let refused = |reason| Message {
            reason,
            ..Message::new(Step::Refused, name("a"), 1, 2)
        };
        let told = (refused(6), b"T { a: u8 }".to_vec());
        assert_eq!(with_text(told.0), Ok(told));
        for other in [refused(5), Message::new(Step::Here, name("a"), 1, 2)] {
            assert_eq!(with_text(other), Err(HandshakeError::Malformed));
            let alone = other.to_bytes();
            assert_eq!(Message::with_declaration(&alone), Ok((other, &[][..])));
        }
    }
}
