//! The 16-byte header that both forms carry.

use super::{
    FLAG_AUTHENTICATED, FLAG_BUNDLE, FLAGS_CRITICAL, FLAGS_KNOWN, FRAGMENT_BYTES,
    FRAGMENT_COUNT_MAX, HEADER_BYTES, MESSAGE_BYTES_MAX, ParseError, PortNumber, Priority,
    TRAILER_BYTES, VERSION, WHOLE_BYTES_MAX_ETHERNET,
};

/// The Tautline header, the first bytes after the Ethernet or the UDP header.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 2 | destination port |
/// | 2 | 2 | length: payload bytes in this frame |
/// | 4 | 1 | priority |
/// | 5 | 1 | flags |
/// | 6 | 1 | version |
/// | 7 | 1 | fragment index |
/// | 8 | 2 | source port |
/// | 10 | 1 | fragment count |
/// | 11 | 1 | type byte; 0: untyped |
/// | 12 | 4 | sequence |
///
/// All integers are big-endian. The first six bytes are the header of the Real-Time Direct
/// Protocol.
///
/// ```
/// use tautline_proto::wire::{HEADER_BYTES, Header, PortNumber, Priority};
///
/// let header = Header::whole(
///     PortNumber::try_from(7)?,
///     PortNumber::try_from(1)?,
///     Priority::HIGHEST,
///     2,
///     0,
/// );
/// let mut frame = [0; HEADER_BYTES + 2];
/// header.emit(frame.first_chunk_mut().unwrap());
/// frame[HEADER_BYTES..].copy_from_slice(b"ok");
/// assert_eq!(Header::parse(&frame), Ok((header, &b"ok"[..])));
/// # Ok::<(), tautline_proto::wire::ValueError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The port that the message is for.
    pub destination: PortNumber,
    /// The port that sent it, where an answer goes.
    pub source: PortNumber,
    /// How urgent it is.
    pub priority: Priority,
    /// Bits 0 to 3 critical, bits 4 to 7 advisory; see [`FLAGS_CRITICAL`].
    pub flags: u8,
    /// This frame's place in its message, from 0.
    pub fragment_index: u8,
    /// Frames in the message, 1 to [`FRAGMENT_COUNT_MAX`].
    pub fragment_count: u8,
    /// Payload bytes in this frame.
    pub length: u16,
    /// Number of this frame in its flow (source node and port to destination node and port); starts
    /// at 0, wraps.
    pub sequence: u32,
    /// Eight bits of the fingerprint of the message's type; 0: untyped. Any value is good.
    pub type_byte: u8,
}

impl Header {
    /// The header of an untyped message that travels in one frame, without flags.
    pub const fn whole(
        destination: PortNumber,
        source: PortNumber,
        priority: Priority,
        length: u16,
        sequence: u32,
    ) -> Self {
        Self {
            destination,
            source,
            priority,
            flags: 0,
            fragment_index: 0,
            fragment_count: 1,
            length,
            sequence,
            type_byte: 0,
        }
    }

    /// Splits `bytes` into header and payload. The payload has exactly `length` bytes; what follows
    /// it is padding and ignored, as is the advisory flags' meaning.
    ///
    /// # Errors
    ///
    /// In this order: [`Truncated`](ParseError::Truncated),
    /// [`UnknownVersion`](ParseError::UnknownVersion), [`UnknownFlags`](ParseError::UnknownFlags),
    /// [`InvalidPort`](ParseError::InvalidPort), [`InvalidPriority`](ParseError::InvalidPriority),
    /// [`LengthBeyondFrame`](ParseError::LengthBeyondFrame),
    /// [`InvalidFragment`](ParseError::InvalidFragment).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(ParseError::Truncated);
        };
        let header = Self::decode(head)?;
        let Some(payload) = rest.get(..header.length as usize) else {
            return Err(ParseError::LengthBeyondFrame);
        };
        header.check_fragment()?;
        Ok((header, payload))
    }

    /// Reads a header whose payload is kept elsewhere, as in a port's memory. The caller answers for
    /// the agreement of [`length`](Self::length) with what is there.
    ///
    /// # Errors
    ///
    /// Those of [`parse`](Self::parse), but for [`Truncated`](ParseError::Truncated) and
    /// [`LengthBeyondFrame`](ParseError::LengthBeyondFrame).
    #[inline]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ParseError> {
        let header = Self::decode(bytes)?;
        header.check_fragment()?;
        Ok(header)
    }

    /// The header of a whole message without any flag, which most messages have; `None` for every other one, good or
    /// bad. Reads what [`from_bytes`](Self::from_bytes) reads, in a third of its steps.
    #[inline]
    #[must_use]
    pub fn plain(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        // Flags, version and fragment index are the last three bytes of the first half.
        const PLAIN: u64 = (VERSION as u64) << 8;
        let (first, second) = bytes.split_at(HEADER_BYTES / 2);
        let word = |half: &[u8]| half.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (first, second) = (word(first)?, word(second)?);
        let big_endian = |word: u64, at: u32| ((word >> at) as u16).swap_bytes();
        let length = big_endian(first, 16);
        let is_plain = first >> 40 == PLAIN
            && (second >> 16) as u8 == 1
            && usize::from(length) <= WHOLE_BYTES_MAX_ETHERNET;
        if !is_plain {
            return None;
        }
        Some(Self {
            destination: PortNumber::new(big_endian(first, 0))?,
            source: PortNumber::new(big_endian(second, 0))?,
            priority: Priority::new((first >> 32) as u8)?,
            flags: 0,
            fragment_index: 0,
            fragment_count: 1,
            length,
            sequence: ((second >> 32) as u32).swap_bytes(),
            type_byte: (second >> 24) as u8,
        })
    }

    /// Writes the header. The version is filled in; the caller answers for the agreement of length and fragment fields,
    /// see [`check_fragment`](Self::check_fragment).
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; HEADER_BYTES]) {
        debug_assert!(self.check_fragment().is_ok(), "{self:?}");
        let destination = self.destination.get().to_be_bytes();
        let length = self.length.to_be_bytes();
        let source = self.source.get().to_be_bytes();
        let sequence = self.sequence.to_be_bytes();
        *bytes = [
            destination[0],
            destination[1],
            length[0],
            length[1],
            self.priority.get(),
            self.flags,
            VERSION,
            self.fragment_index,
            source[0],
            source[1],
            self.fragment_count,
            self.type_byte,
            sequence[0],
            sequence[1],
            sequence[2],
            sequence[3],
        ];
    }

    /// Sequence number of the message's first frame, the same in all its fragments: with the flow
    /// it identifies the message.
    #[inline]
    pub const fn message_sequence(&self) -> u32 {
        self.sequence.wrapping_sub(self.fragment_index as u32)
    }

    /// Where this frame's payload begins in its message, in bytes.
    #[inline]
    pub const fn message_offset(&self) -> usize {
        self.fragment_index as usize * FRAGMENT_BYTES
    }

    /// Whether the frame carries the whole message.
    #[inline]
    pub const fn is_whole(&self) -> bool {
        self.fragment_count == 1
    }

    /// Whether the frame carries the end of its message.
    #[inline]
    pub const fn is_last(&self) -> bool {
        self.fragment_index as usize + 1 == self.fragment_count as usize
    }

    /// Whether the payload is a [`bundle`](super::bundle) of messages.
    #[inline]
    pub const fn is_bundle(&self) -> bool {
        self.flags & FLAG_BUNDLE != 0
    }

    /// Whether the payload ends with a trailer that proves its sender. Says nothing on whether it is right.
    #[inline]
    pub const fn is_authenticated(&self) -> bool {
        self.flags & FLAG_AUTHENTICATED != 0
    }

    /// Whether the payload is one message and nothing else.
    #[inline]
    pub const fn is_plain_message(&self) -> bool {
        self.is_whole() && self.flags & FLAGS_KNOWN == 0
    }

    /// Checks fragment index, fragment count and length against each other and the limits.
    ///
    /// A whole message has 0 to [`WHOLE_BYTES_MAX_ETHERNET`] bytes, in either form. Of a fragmented
    /// one every frame but the last carries exactly [`FRAGMENT_BYTES`], the last 1 to
    /// [`FRAGMENT_BYTES`], all together at most [`MESSAGE_BYTES_MAX`]. The trailer of an authenticated fragment does
    /// not count in that. A bundle is never fragmented.
    ///
    /// # Errors
    ///
    /// [`ParseError::InvalidFragment`].
    #[inline]
    pub const fn check_fragment(&self) -> Result<(), ParseError> {
        let length = self.length as usize;
        let valid = if self.fragment_count == 1 {
            self.fragment_index == 0 && length <= WHOLE_BYTES_MAX_ETHERNET
        } else if self.is_bundle()
            || self.fragment_count as usize > FRAGMENT_COUNT_MAX
            || self.fragment_index >= self.fragment_count
        {
            false
        } else {
            let bytes = length.wrapping_sub(self.trailer_bytes());
            if self.is_last() {
                bytes >= 1
                    && bytes <= FRAGMENT_BYTES
                    && self.message_offset() + bytes <= MESSAGE_BYTES_MAX
            } else {
                bytes == FRAGMENT_BYTES
            }
        };
        if valid {
            Ok(())
        } else {
            Err(ParseError::InvalidFragment)
        }
    }

    /// Bytes of the payload behind the message.
    #[inline]
    const fn trailer_bytes(&self) -> usize {
        match self.is_authenticated() {
            true => TRAILER_BYTES,
            false => 0,
        }
    }

    /// Reads the fields that can be judged one by one.
    #[inline]
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ParseError> {
        if bytes[6] != VERSION {
            return Err(ParseError::UnknownVersion);
        }
        let flags = bytes[5];
        if flags & FLAGS_CRITICAL & !FLAGS_KNOWN != 0 {
            return Err(ParseError::UnknownFlags);
        }
        let destination = PortNumber::new(u16::from_be_bytes([bytes[0], bytes[1]]));
        let source = PortNumber::new(u16::from_be_bytes([bytes[8], bytes[9]]));
        let (Some(destination), Some(source)) = (destination, source) else {
            return Err(ParseError::InvalidPort);
        };
        Ok(Self {
            destination,
            source,
            priority: Priority::new(bytes[4]).ok_or(ParseError::InvalidPriority)?,
            flags,
            fragment_index: bytes[7],
            fragment_count: bytes[10],
            length: u16::from_be_bytes([bytes[2], bytes[3]]),
            sequence: u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            type_byte: bytes[11],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            destination: PortNumber::new(0x102).unwrap(),
            source: PortNumber::new(0x304).unwrap(),
            priority: Priority::new(5).unwrap(),
            flags: 0x80,
            fragment_index: 1,
            fragment_count: 2,
            length: 3,
            sequence: 0x0A0B_0C0D,
            type_byte: 0x7C,
        }
    }

    /// With each byte of a plain header, and of one of the longest whole message, changed to each value.
    #[test]
    fn a_plain_header_is_read_as_by_the_whole_parser() {
        let mut plain_ones = 0;
        for length in [16, WHOLE_BYTES_MAX_ETHERNET as u16] {
            let header = Header {
                length,
                flags: 0,
                fragment_index: 0,
                fragment_count: 1,
                ..header()
            };
            let mut good = [0; HEADER_BYTES];
            header.emit(&mut good);
            assert_eq!(Header::plain(&good), Some(header));
            for (place, value) in
                (0..HEADER_BYTES).flat_map(|place| (0..=255).map(move |value| (place, value)))
            {
                let mut bytes = good;
                bytes[place] = value;
                let parsed = Header::from_bytes(&bytes).ok();
                let expected = parsed.filter(|header| header.is_whole() && header.flags == 0);
                assert_eq!(Header::plain(&bytes), expected, "{value} at {place}");
                plain_ones += u32::from(expected.is_some());
            }
        }
        assert!((2_000..6_000).contains(&plain_ones), "{plain_ones}");
    }

    #[test]
    fn fragment_fields_must_agree() {
        let check = |index, count, length| {
            Header {
                fragment_index: index,
                fragment_count: count,
                length,
                ..header()
            }
            .check_fragment()
            .is_ok()
        };
        assert!(check(0, 1, 0), "an empty message");
        assert!(
            check(0, 1, 1484) && !check(0, 1, 1485),
            "larger ones are cut"
        );
        assert!(!check(1, 1, 1), "index past count");
        assert!(!check(0, 0, 1), "no fragments at all");
        assert!(check(0, 2, 1408));
        assert!(!check(0, 2, 1407), "only the last may be short");
        assert!(!check(0, 2, 1409));
        assert!(check(1, 2, 1) && check(1, 2, 1408));
        assert!(!check(1, 2, 0) && !check(1, 2, 1409));
        assert!(!check(2, 2, 1));
        assert!(check(46, 47, 768), "65,536 bytes");
        assert!(!check(46, 47, 769), "65,537 bytes");
        assert!(!check(0, 48, 1408) && !check(255, 255, 1408));
    }

    #[test]
    fn a_trailer_comes_on_top_of_a_fragment() {
        let check = |index, length| {
            Header {
                fragment_index: index,
                fragment_count: 47,
                length,
                flags: FLAG_AUTHENTICATED,
                ..header()
            }
            .check_fragment()
            .is_ok()
        };
        assert!(check(0, 1444) && !check(0, 1408) && !check(0, 1443) && !check(0, 1445));
        assert!(check(46, 37) && check(46, 768 + 36));
        assert!(!check(46, 36) && !check(46, 35) && !check(46, 0) && !check(46, 769 + 36));
    }

    #[test]
    fn message_identity_wraps() {
        let header = Header {
            fragment_index: 3,
            fragment_count: 5,
            length: 1408,
            sequence: 1,
            ..header()
        };
        assert_eq!(header.message_sequence(), u32::MAX - 1);
        assert_eq!(header.message_offset(), 3 * 1408);
        assert!(!header.is_last() && !header.is_whole());
    }
}
