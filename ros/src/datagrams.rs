//! Datagrams that `rustdds` is not to see: those that claim more than they bring, for which it would take memory before
//! the rest has come (rustdds 0.15.1). All other datagrams, malformed ones too, are left to it.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::cdr::PAYLOAD_BYTES_MAX;

/// Bytes of the largest message that is assembled of fragments, with its encapsulation.
const SAMPLE_BYTES_MAX: u32 = PAYLOAD_BYTES_MAX as u32 + 4;
/// Time for which `rustdds` may keep a message that stays incomplete: 10 s after its last fragment, and up to 2 s until
/// it looks. Lower: it has more of them than are counted here. Higher: fewer messages of several fragments pass.
const KEPT: Duration = Duration::from_secs(12);
/// Bytes of messages that may begin within [`KEPT`]. Lower: less than 5 MB of fragmented messages a second pass.
/// Higher: a hostile participant takes more memory.
const ASSEMBLED_BYTES_MAX: usize = 64 << 20;
/// Bytes that a message counts at least. Lower: more entries of this table. Higher: fewer small messages pass.
const CHARGE_BYTES_MIN: usize = 4 << 10;
/// Sequence numbers of one range, which `rustdds` may note one by one. Lower: a writer with more unacknowledged
/// messages is not heard. Higher: a hostile participant takes more memory and time.
const RANGE_MAX: i64 = 1 << 16;

/// Bytes of a datagram before its submessages, and of a submessage before its content (RTPS 2.5, 9.4.4 and 9.4.5.1).
const HEADER: usize = 20;
const SUBMESSAGE_HEADER: usize = 4;
/// Number of a participant in the header of a datagram.
const PARTICIPANT: std::ops::Range<usize> = 8..20;

/// Kinds of submessages (RTPS 2.5, 9.4.5.1.1).
mod kind {
    pub(super) const PAD: u8 = 0x01;
    pub(super) const HEARTBEAT: u8 = 0x07;
    pub(super) const GAP: u8 = 0x08;
    pub(super) const INFO_TS: u8 = 0x09;
    pub(super) const DATA_FRAG: u8 = 0x16;
}

/// One message of a writer: participant, writer, sequence number.
type Sample = ([u8; 12], [u8; 4], i64);

/// Checks the datagrams of one thread.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// Messages of several fragments that have begun lately, in their order.
    begun: VecDeque<(Instant, Sample, usize)>,
    known: HashSet<Sample>,
    /// Sum of their bytes.
    charged: usize,
}

impl Datagrams {
    /// Whether a datagram that has come at `now` may be passed on.
    pub(crate) fn admits(&mut self, datagram: &[u8], now: Instant) -> bool {
        if !datagram.starts_with(b"RTPS") {
            return true;
        }
        let Some((header, mut rest)) = datagram.split_at_checked(HEADER) else {
            return true;
        };
        let mut participant = [0; 12];
        participant.copy_from_slice(&header[PARTICIPANT]);
        while let Some(submessage) = Submessage::first(rest) {
            if !self.fits(&submessage, participant, now) {
                return false;
            }
            rest = &rest[SUBMESSAGE_HEADER + submessage.content.len()..];
        }
        true
    }

    fn fits(&mut self, submessage: &Submessage<'_>, participant: [u8; 12], now: Instant) -> bool {
        let fits = match submessage.kind {
            kind::DATA_FRAG => submessage.fragment().map(|(writer, number, bytes)| {
                bytes <= SAMPLE_BYTES_MAX
                    && self.has_room((participant, writer, number), bytes as usize, now)
            }),
            kind::HEARTBEAT => {
                let range = submessage.range();
                range.map(|(first, last)| last.saturating_sub(first.max(1)) < RANGE_MAX)
            }
            // From the first message on, a range is noted as its end.
            kind::GAP => submessage
                .range()
                .map(|(start, end)| start <= 1 || end.saturating_sub(start) <= RANGE_MAX),
            _ => Some(true),
        };
        // One that is too short for its kind is malformed, and `rustdds` refuses it.
        fits.unwrap_or(true)
    }

    /// Whether there is room for a message of several fragments, or it has begun before.
    fn has_room(&mut self, sample: Sample, bytes: usize, now: Instant) -> bool {
        while let Some((begun, old, charge)) = self.begun.front().copied()
            && now.duration_since(begun) >= KEPT
        {
            self.begun.pop_front();
            self.known.remove(&old);
            self.charged -= charge;
        }
        if self.known.contains(&sample) {
            return true;
        }
        let charge = bytes.max(CHARGE_BYTES_MIN);
        if self.charged + charge > ASSEMBLED_BYTES_MAX {
            return false;
        }
        self.begun.push_back((now, sample, charge));
        self.known.insert(sample);
        self.charged += charge;
        true
    }
}

/// A submessage, as far as its header says.
struct Submessage<'s> {
    kind: u8,
    is_little: bool,
    content: &'s [u8],
}

impl<'s> Submessage<'s> {
    /// The first submessage of some bytes, if it is whole.
    fn first(bytes: &'s [u8]) -> Option<Self> {
        let ([kind, flags, length @ ..], rest) = bytes.split_first_chunk::<SUBMESSAGE_HEADER>()?;
        let is_little = flags & 1 != 0;
        let length = match is_little {
            true => u16::from_le_bytes(*length),
            false => u16::from_be_bytes(*length),
        };
        // Without a length, it reaches to the end of the datagram (9.4.5.1.3).
        let length = match (length, *kind) {
            (0, kind::PAD | kind::INFO_TS) => 0,
            (0, _) => rest.len(),
            (length, _) => length.into(),
        };
        Some(Self {
            kind: *kind,
            is_little,
            content: rest.get(..length)?,
        })
    }

    fn word(&self, offset: usize) -> Option<u32> {
        let bytes = *self.content.get(offset..)?.first_chunk()?;
        Some(match self.is_little {
            true => u32::from_le_bytes(bytes),
            false => u32::from_be_bytes(bytes),
        })
    }

    fn sequence_number(&self, offset: usize) -> Option<i64> {
        let (high, low) = (self.word(offset)?, self.word(offset + 4)?);
        Some(i64::from(high.cast_signed()) << 32 | i64::from(low))
    }

    /// Writer, sequence number and size of the message that a fragment is of (9.4.5.5).
    fn fragment(&self) -> Option<([u8; 4], i64, u32)> {
        let writer = *self.content.get(8..)?.first_chunk()?;
        Some((writer, self.sequence_number(12)?, self.word(28)?))
    }

    /// Both ends of the range of sequence numbers of a heartbeat or of a gap (9.4.5.7 and 9.4.5.6).
    fn range(&self) -> Option<(i64, i64)> {
        Some((self.sequence_number(8)?, self.sequence_number(16)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(participant: u8, submessages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"RTPS\x02\x03\x01\x12".to_vec();
        bytes.extend([participant; 12]);
        bytes.extend(submessages.iter().flatten());
        bytes
    }

    fn submessage(kind: u8, is_little: bool, words: &[u32]) -> Vec<u8> {
        let content: Vec<u8> = words
            .iter()
            .flat_map(|word| match is_little {
                true => word.to_le_bytes(),
                false => word.to_be_bytes(),
            })
            .collect();
        let length = u16::try_from(content.len()).unwrap();
        let length = match is_little {
            true => length.to_le_bytes(),
            false => length.to_be_bytes(),
        };
        [&[kind, u8::from(is_little)], &length[..], &content].concat()
    }

    /// A fragment of 64 bytes of message `number`, which has `bytes`.
    fn fragment(is_little: bool, number: u32, bytes: u32) -> Vec<u8> {
        let fragments = match is_little {
            true => 64 << 16 | 1,
            false => 1 << 16 | 64,
        };
        let mut words = vec![0, 1, 2, 0, number, 1, fragments, bytes];
        words.extend([0; 16]);
        submessage(kind::DATA_FRAG, is_little, &words)
    }

    fn range(kind: u8, first: i64, last: i64) -> Vec<u8> {
        let halves = |number: i64| [(number >> 32) as u32, number as u32];
        let words = [[1, 2], halves(first), halves(last), [1, 0]].concat();
        submessage(kind, true, &words)
    }

    fn admits(submessages: &[Vec<u8>]) -> bool {
        Datagrams::default().admits(&datagram(1, submessages), Instant::now())
    }

    #[test]
    fn a_fragment_of_a_message_that_nobody_takes_is_refused() {
        for is_little in [true, false] {
            assert!(admits(&[fragment(is_little, 1, SAMPLE_BYTES_MAX)]));
            for bytes in [SAMPLE_BYTES_MAX + 1, 1_000_000_000, u32::MAX] {
                let large = fragment(is_little, 1, bytes);
                assert!(!admits(&[large.clone()]), "{bytes}");
                // Behind others, of which some have no content and one has no length.
                let before = [
                    submessage(kind::INFO_TS, true, &[]),
                    submessage(kind::PAD, false, &[]),
                    range(kind::HEARTBEAT, 1, 2),
                    fragment(!is_little, 1, 128),
                ];
                assert!(!admits(&[&before[..], &[large.clone()]].concat()));
                let mut last = large;
                last[2..4].fill(0);
                assert!(!admits(&[last]));
            }
        }
    }

    #[test]
    fn incomplete_messages_have_a_share_of_memory_and_give_it_back() {
        let mut datagrams = Datagrams::default();
        let (start, bytes) = (Instant::now(), SAMPLE_BYTES_MAX as usize);
        let room = ASSEMBLED_BYTES_MAX / bytes;
        let mut admits = |participant: u8, number: usize, after: Duration| {
            let fragment = fragment(true, u32::try_from(number).unwrap(), SAMPLE_BYTES_MAX);
            datagrams.admits(&datagram(participant, &[fragment]), start + after)
        };
        let first = (0..room).all(|number| admits(1, number, Duration::ZERO));
        assert!(first && !admits(1, room, Duration::ZERO));
        assert!(!admits(2, 1, KEPT / 2), "of whichever participant");
        assert!(admits(1, 0, KEPT / 2), "a further fragment");
        assert!(admits(2, 1, KEPT), "the first ones are gone");
    }

    #[test]
    fn many_small_messages_take_few_entries() {
        let mut datagrams = Datagrams::default();
        let now = Instant::now();
        for number in 0..100_000 {
            datagrams.admits(&datagram(1, &[fragment(true, number, 64)]), now);
        }
        assert_eq!(
            datagrams.begun.len(),
            ASSEMBLED_BYTES_MAX / CHARGE_BYTES_MIN
        );
    }

    #[test]
    fn ranges_that_would_be_noted_one_by_one_are_refused() {
        let (heartbeat, gap) = (kind::HEARTBEAT, kind::GAP);
        assert!(admits(&[range(heartbeat, 1, 0)]));
        assert!(admits(&[range(heartbeat, 5_000_000, 5_000_010)]));
        assert!(admits(&[range(heartbeat, -5, 10)]));
        assert!(!admits(&[range(heartbeat, 1, RANGE_MAX + 1)]));
        assert!(!admits(&[range(heartbeat, i64::MIN, i64::MAX)]));
        assert!(admits(&[range(gap, 1, i64::MAX)]));
        assert!(admits(&[range(gap, 9, 8)]));
        assert!(!admits(&[range(gap, 2, i64::MAX)]));
    }

    #[test]
    fn all_else_is_left_to_the_library_whatever_it_is() {
        let mut datagrams = Datagrams::default();
        let whole = datagram(1, &[fragment(true, 1, 128), range(kind::GAP, 1, 2)]);
        for length in 0..=whole.len() {
            assert!(datagrams.admits(&whole[..length], Instant::now()));
        }
        let mut other = datagram(1, &[fragment(true, 1, u32::MAX)]);
        other[..4].copy_from_slice(b"RTPX");
        assert!(datagrams.admits(&other, Instant::now()));
    }
}
