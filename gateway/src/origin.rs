//! The origin of a value, as it travels beside the value (Zenoh's attachment).

use tautline::Priority;

/// Bytes of an attachment.
pub(crate) const BYTES: usize = 64;
/// First bytes of an attachment: its sort and version.
const MAGIC: [u8; 4] = *b"TLG1";

/// Origin of a published value or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Priority within the cell.
    pub(crate) priority: Priority,
    /// Time from the arrival at the gateway for which the value may be used; 0: for ever.
    pub(crate) validity_ms: u32,
    /// Number of the cell; all its gateways have the same.
    pub(crate) cell: u64,
    /// Number of the gateway's process.
    pub(crate) gateway: u64,
    /// Number of the takeover that made this gateway the active one of its cell.
    pub(crate) term: u32,
    /// Number of the message among those of this publication with this priority.
    pub(crate) sequence: u32,
    /// CLOCK_REALTIME of the gateway when the value arrived there. For people and logs.
    pub(crate) arrived_unix_ns: u64,
    /// CLOCK_MONOTONIC of the gateway when it published the value.
    pub(crate) published_ns: u64,
    /// Time between arrival and publication.
    pub(crate) held_ns: u64,
}

impl Origin {
    /// The attachment: little-endian, docs/reference/gateway.md has the table.
    pub(crate) fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.priority.get();
        bytes[8..12].copy_from_slice(&self.validity_ms.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.term.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cell.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.gateway.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.arrived_unix_ns.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.published_ns.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.held_ns.to_le_bytes());
        bytes
    }

    /// An attachment that another gateway wrote; `None` for any other bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        if bytes[..4] != MAGIC {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(Self {
            priority: Priority::new(bytes[4])?,
            validity_ms: word(8),
            term: word(12),
            cell: long(16),
            gateway: long(24),
            sequence: word(32),
            arrived_unix_ns: long(40),
            published_ns: long(48),
            held_ns: long(56),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin {
        priority: Priority::HIGHEST,
        validity_ms: 250,
        cell: 0x0102_0304_0506_0708,
        gateway: 9,
        term: 3,
        sequence: 77,
        arrived_unix_ns: 1_795_000_000_000_000_000,
        published_ns: 5_000,
        held_ns: 40,
    };

    #[test]
    fn an_attachment_is_these_bytes_and_comes_back() {
        let bytes = ORIGIN.bytes();
        assert_eq!(bytes[..17], *b"TLG1\x07\0\0\0\xfa\0\0\0\x03\0\0\0\x08");
        assert_eq!(bytes[32..40], [77, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Origin::parse(&bytes), Some(ORIGIN));
    }

    #[test]
    fn foreign_and_cut_off_attachments_are_refused() {
        let bytes = ORIGIN.bytes();
        for length in 0..BYTES {
            assert_eq!(Origin::parse(&bytes[..length]), None);
        }
        let mut other = bytes;
        other[4] = 8;
        assert_eq!(Origin::parse(&other), None);
        let mut other = bytes;
        other[0] = b'X';
        assert_eq!(Origin::parse(&other), None);
    }
}
