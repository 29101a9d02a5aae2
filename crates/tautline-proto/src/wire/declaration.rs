//! Declarations: frames by which two ports tell each other the types of their messages. Not messages: they have an
//! EtherType and UDP ports of their own, so no receiver of messages sees them.
//!
//! The layout and the answers are those of `docs/wire.md`, "Declarations". A declaration's text may take several
//! frames, each of which carries one [`Part`]. This module does not read the text: `tautline-types` does.

use core::fmt;
use core::ops::Range;

use super::{
    ETHERTYPE_DEFAULT, FLAG_AUTHENTICATED, HEADER_BYTES, Header, PORT_MAX, PortNumber, Priority,
    TRAILER_BYTES, UDP_PORT_BASE,
};

/// Bytes of a part before its text.
pub const PART_HEAD_BYTES: usize = 24;
/// Bytes of text in each part but the last. Higher: with a trailer the UDP form does not fit an MTU of 1500, or of a
/// tunnel. Lower: more frames for the longest text.
pub const PART_BYTES: usize = 1344;
/// Most parts. Lower: the longest declaration, 4,995 bytes, does not fit. Higher: more memory for each peer.
pub const PART_COUNT_MAX: usize = 4;
/// Bytes of the longest text.
pub const TEXT_BYTES_MAX: usize = PART_COUNT_MAX * PART_BYTES;
/// Bytes of the longest payload, with a trailer.
pub const PAYLOAD_BYTES_MAX: usize = PART_HEAD_BYTES + PART_BYTES + TRAILER_BYTES;

/// Declarations for port `n` go to UDP port `UDP_DECLARATION_BASE + n`: the range behind that of messages.
pub const UDP_DECLARATION_BASE: u16 = UDP_PORT_BASE + PORT_MAX + 1;

/// EtherType of declarations on a network whose messages have `messages`: IEEE 802 local experimental EtherType 2, or 1
/// if the messages have that.
#[must_use]
pub const fn ethertype(messages: u16) -> u16 {
    match messages {
        0x88B6 => ETHERTYPE_DEFAULT,
        _ => 0x88B6,
    }
}

/// Purpose of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The type that the sender's port sends to the receiver's.
    Announcement = 1,
    /// The type that the sender's port receives, in reply to an announcement.
    Reply = 2,
}

/// A frame that is no declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeclarationError {
    /// Fewer bytes than header, part and text claim.
    Truncated,
    /// The version is not 1.
    UnknownVersion,
    /// A critical flag other than that of authenticated frames is set.
    UnknownFlags,
    /// A port number is 0 or above the highest.
    InvalidPort,
    /// The header's fragment count is not 0: this is a message.
    NotDeclaration,
    /// Neither an announcement nor a reply.
    UnknownKind,
    /// The text is too long, or its part does not begin where one can.
    InvalidPart,
}

impl DeclarationError {
    /// Name in the test vectors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownFlags => "unknown_flags",
            Self::InvalidPort => "invalid_port",
            Self::NotDeclaration => "not_declaration",
            Self::UnknownKind => "unknown_kind",
            Self::InvalidPart => "invalid_part",
        }
    }
}

impl fmt::Display for DeclarationError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl core::error::Error for DeclarationError {}

/// One part of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'b> {
    /// Its purpose.
    pub kind: Kind,
    /// EtherType of the network's messages; 0 in the UDP form.
    pub ethertype: u16,
    /// Number of the declared type; 0: the port declares none.
    pub hash: u64,
    /// In a reply, the number that was announced.
    pub about: u64,
    /// Bytes of the whole text; 0: the number says enough.
    pub text_bytes: usize,
    /// Where this part begins in the text.
    pub offset: usize,
    /// The part.
    pub text: &'b [u8],
}

/// Header of a declaration whose payload has `length` bytes. The fragment count of 0, which no message has, keeps an
/// authenticated declaration from being taken for a message.
#[must_use]
pub const fn header(destination: PortNumber, source: PortNumber, length: u16) -> Header {
    Header {
        fragment_count: 0,
        ..Header::whole(destination, source, Priority::LOWEST, length, 0)
    }
}

/// Header and payload of a declaration, from the bytes behind the Ethernet or UDP header. The payload of an
/// authenticated one is still sealed.
///
/// # Errors
/// [`DeclarationError`].
pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), DeclarationError> {
    const COUNT_AT: usize = 10;
    let (head, rest) = bytes
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(DeclarationError::Truncated)?;
    if head[6] != super::VERSION {
        return Err(DeclarationError::UnknownVersion);
    }
    if head[5] & super::FLAGS_CRITICAL & !FLAG_AUTHENTICATED != 0 {
        return Err(DeclarationError::UnknownFlags);
    }
    if head[COUNT_AT] != 0 {
        return Err(DeclarationError::NotDeclaration);
    }
    let port = |at: usize| {
        let number = u16::from_be_bytes([head[at], head[at + 1]]);
        PortNumber::new(number).ok_or(DeclarationError::InvalidPort)
    };
    let (destination, source) = (port(0)?, port(8)?);
    let length = u16::from_be_bytes([head[2], head[3]]);
    let payload = rest
        .get(..usize::from(length))
        .ok_or(DeclarationError::Truncated)?;
    let header = Header {
        flags: head[5] & FLAG_AUTHENTICATED,
        ..self::header(destination, source, length)
    };
    Ok((header, payload))
}

/// Ranges of a text of `bytes` bytes that go into one frame each; one, empty, if there is no text.
pub fn parts(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let count = bytes.div_ceil(PART_BYTES).max(1);
    (0..count).map(move |index| index * PART_BYTES..bytes.min((index + 1) * PART_BYTES))
}

impl<'b> Part<'b> {
    /// Reads a part, from the payload of a declaration.
    ///
    /// # Errors
    /// [`DeclarationError`].
    pub fn parse(payload: &'b [u8]) -> Result<Self, DeclarationError> {
        let (head, rest) = payload
            .split_first_chunk::<PART_HEAD_BYTES>()
            .ok_or(DeclarationError::Truncated)?;
        let kind = match head[0] {
            1 => Kind::Announcement,
            2 => Kind::Reply,
            _ => return Err(DeclarationError::UnknownKind),
        };
        let short = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let long = |at: usize| {
            head[at..at + 8]
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (text_bytes, offset) = (usize::from(short(20)), usize::from(short(22)));
        let is_start = offset.is_multiple_of(PART_BYTES) && (offset < text_bytes || offset == 0);
        if text_bytes > TEXT_BYTES_MAX || !is_start {
            return Err(DeclarationError::InvalidPart);
        }
        let length = PART_BYTES.min(text_bytes - offset);
        Ok(Self {
            kind,
            ethertype: short(2),
            hash: long(4),
            about: long(12),
            text_bytes,
            offset,
            text: rest.get(..length).ok_or(DeclarationError::Truncated)?,
        })
    }

    /// Writes the part into `payload`; how many bytes that is.
    ///
    /// # Panics
    /// If the text is longer than a part.
    pub fn emit(&self, payload: &mut [u8; PART_HEAD_BYTES + PART_BYTES]) -> usize {
        payload[0] = self.kind as u8;
        payload[1] = 0;
        payload[2..4].copy_from_slice(&self.ethertype.to_be_bytes());
        payload[4..12].copy_from_slice(&self.hash.to_be_bytes());
        payload[12..20].copy_from_slice(&self.about.to_be_bytes());
        payload[20..22].copy_from_slice(&(self.text_bytes as u16).to_be_bytes());
        payload[22..24].copy_from_slice(&(self.offset as u16).to_be_bytes());
        let end = PART_HEAD_BYTES + self.text.len();
        payload[PART_HEAD_BYTES..end].copy_from_slice(self.text);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text_bytes: usize, offset: usize, text: &[u8]) -> Part<'_> {
        Part {
            kind: Kind::Reply,
            ethertype: 0x88B5,
            hash: 0x0102_0304_0506_0708,
            about: 9,
            text_bytes,
            offset,
            text,
        }
    }

    #[test]
    fn parts_survive_the_way() {
        let text = [b'x'; TEXT_BYTES_MAX];
        for bytes in [0, 1, PART_BYTES, PART_BYTES + 1, TEXT_BYTES_MAX] {
            let mut next = 0;
            for range in parts(bytes) {
                assert_eq!(range.start, next);
                next = range.end;
                let sent = part(bytes, range.start, &text[range]);
                let mut payload = [0; PART_HEAD_BYTES + PART_BYTES];
                let used = sent.emit(&mut payload);
                assert_eq!(Part::parse(&payload[..used]), Ok(sent));
                // Padding is nobody's.
                assert_eq!(Part::parse(&payload), Ok(sent));
                assert_eq!(
                    Part::parse(&payload[..used - 1]),
                    Err(DeclarationError::Truncated)
                );
            }
            assert_eq!(next, bytes);
        }
    }

    #[test]
    fn a_message_is_no_declaration_nor_the_other_way_round() {
        let port = PortNumber::MIN;
        let mut bytes = [0; HEADER_BYTES];
        Header::whole(port, port, Priority::LOWEST, 0, 0).emit(&mut bytes);
        assert_eq!(parse(&bytes), Err(DeclarationError::NotDeclaration));
        header(port, port, 0).emit(&mut bytes);
        assert_eq!(parse(&bytes), Ok((header(port, port, 0), &[][..])));
        assert_eq!(
            Header::parse(&bytes),
            Err(super::super::ParseError::InvalidFragment)
        );
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        let mut word = 0x9E37_79B9_7F4A_7C15_u64;
        let mut bytes = [0u8; 96];
        for _ in 0..100_000 {
            for byte in &mut bytes {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Mostly small, so that some pass the first checks.
                *byte = if word >> 62 == 0 {
                    (word >> 40) as u8
                } else {
                    (word >> 61) as u8
                };
            }
            let length = (word >> 33) as usize % bytes.len();
            if let Ok((_, payload)) = parse(&bytes[..length]) {
                let _part = Part::parse(payload);
            }
            let _part = Part::parse(&bytes[..length]);
        }
    }
}
