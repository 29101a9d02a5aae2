//! The origin of a value, as it travels beside the value (Zenoh's attachment), and what a receiver makes of it: the
//! value's age, without a comparison of clocks. Never reads a clock.
//!
//! Clocks of two sites may differ by hours, so times of one are never compared with times of the other. A receiver
//! compares differences: a message that takes longer than the quickest of its source has waited for that long on the
//! way. The quickest is that of the last [`BASELINE_WINDOW_NS`] to twice that, so a clock that drifts is followed.

use tautline::Priority;

/// Bytes of an attachment.
pub(crate) const BYTES: usize = 64;
/// First bytes of an attachment: its sort and version.
const MAGIC: [u8; 4] = *b"TLG1";
/// Time for which the quickest message stays the reference at least. Lower: a queue that stands for as long is taken
/// for the way's own time. Higher: clocks that drift by 100 millionths are a millisecond apart after ten seconds, and
/// old by as much are values taken for that are not.
const BASELINE_WINDOW_NS: u64 = 10_000_000_000;

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
    /// The attachment: little-endian, docs/gateway.md has the table.
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

/// The quickest way of a source's messages, of late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    window_began_ns: u64,
    quickest_ns: i64,
    quickest_before_ns: i64,
}

impl Baseline {
    /// Begins with the first message of a source.
    pub(crate) fn new(published_ns: u64, now_ns: u64) -> Self {
        let way_ns = way(published_ns, now_ns);
        Self {
            window_began_ns: now_ns,
            quickest_ns: way_ns,
            quickest_before_ns: way_ns,
        }
    }

    /// Time that a message has waited on its way, beyond the quickest.
    pub(crate) fn delay_ns(&mut self, published_ns: u64, now_ns: u64) -> u64 {
        let way_ns = way(published_ns, now_ns);
        if now_ns.wrapping_sub(self.window_began_ns) > BASELINE_WINDOW_NS {
            self.window_began_ns = now_ns;
            self.quickest_before_ns = self.quickest_ns;
            self.quickest_ns = way_ns;
        }
        self.quickest_ns = self.quickest_ns.min(way_ns);
        let quickest_ns = self.quickest_ns.min(self.quickest_before_ns);
        way_ns.wrapping_sub(quickest_ns).max(0).unsigned_abs()
    }
}

/// Difference of two clocks that have nothing to do with each other: only differences of it mean something.
fn way(published_ns: u64, now_ns: u64) -> i64 {
    now_ns.wrapping_sub(published_ns).cast_signed()
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

    #[test]
    fn a_message_that_waited_is_told_whatever_the_clocks_say() {
        // The sender's clock is three hours ahead, or behind.
        for offset_ns in [
            10_800_000_000_000_u64,
            10_800_000_000_000_u64.wrapping_neg(),
        ] {
            let sent = |at_ns: u64| at_ns.wrapping_add(offset_ns);
            let mut baseline = Baseline::new(sent(1_000), 1_500);
            assert_eq!(baseline.delay_ns(sent(2_000), 2_400), 0);
            assert_eq!(baseline.delay_ns(sent(3_000), 900_003_400), 900_000_000);
            assert_eq!(baseline.delay_ns(sent(900_004_000), 900_004_401), 1);
        }
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let mut baseline = Baseline::new(0, 0);
        let mut now_ns = 0;
        let mut largest_ns = 0;
        for step in 1..600_u64 {
            now_ns = step * 100_000_000;
            // 100 millionths slower.
            let sent_ns = now_ns - now_ns / 10_000;
            largest_ns = largest_ns.max(baseline.delay_ns(sent_ns, now_ns));
        }
        assert!(now_ns > 59_000_000_000);
        // Two windows of it.
        assert!(largest_ns < 2_200_000, "{largest_ns}");
    }
}
