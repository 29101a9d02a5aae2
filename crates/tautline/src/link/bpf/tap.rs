//! The ring of copies that `taut capture` reads (`bpf/tap.bpf.h`), as a sending process writes it: the demux does not
//! see frames that leave, and the kernel shows no process those that are sent past the queueing discipline.
//!
//! Without a capture, a send looks at one word. Its protocol is that of the demux: a writer takes a position, then
//! the slot, if no other writer is in it; a reader sees by the slot's turn whether it holds the frame of its position.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use tautline_shm::tap::{
    BUSY, FRAME_BYTES, HEAD_BYTES, HEAD_WORD as HEAD, LENGTH_WORD as LENGTH, RING_BYTES,
    TIME_WORD as TIME, TURN_WORD as TURN, UNTIL_WORD as UNTIL, WAY_SENT, slot_of,
};

use crate::sys::clock;
use crate::sys::memory::{Mapping, page_bytes};

/// The ring of one demux, or one program of link `xsk`.
#[derive(Debug)]
pub(crate) struct TapRing(Mapping);

impl TapRing {
    /// Maps the array `tap`.
    pub(in crate::link) fn map(array: BorrowedFd<'_>) -> io::Result<Self> {
        Mapping::shared(array, RING_BYTES.next_multiple_of(page_bytes()), 0).map(Self)
    }

    /// Copies a frame that was sent, in its parts, during a capture.
    #[inline]
    pub(in crate::link) fn sent(&self, parts: &[&[u8]]) {
        // Written by the reader. It says it again and again, so that nothing need be seen at once.
        if self.0.load(UNTIL, Relaxed) != 0 {
            self.copy(parts);
        }
    }

    #[cold]
    fn copy(&self, parts: &[&[u8]]) {
        let now = clock::monotonic().as_nanos();
        if now >= self.0.load(UNTIL, Relaxed) {
            // A reader that says so at this moment says it again a moment later.
            self.0.store(UNTIL, 0, Relaxed);
            return;
        }
        // Pairs with the reader's load of the head: positions before it have been taken.
        let position = self.0.add(HEAD, 1, AcqRel);
        let slot = slot_of(position);
        let word = |index: usize| slot / 8 + index;
        let turn = self.0.load(word(TURN), Acquire);
        // Another writer is in there, a whole round behind. The reader sees that this frame is missing. The exchange
        // pairs with that writer's release of the slot.
        if turn & BUSY != 0 || !self.0.exchange_if(word(TURN), turn, BUSY) {
            return;
        }
        // The frame's bytes may not become visible before `BUSY`, or a reader that finds the turn of the frame before
        // both times would take these bytes for that frame's. The exchange orders what comes before it, not the plain
        // writes after it; the fence does. Pairs with the reader's fence before its second look at the turn.
        fence(Release);
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut kept = 0;
        for part in parts {
            let part = &part[..part.len().min(FRAME_BYTES - kept)];
            self.0.copy_in(slot + HEAD_BYTES + kept, part);
            kept += part.len();
        }
        self.0.store(word(TIME), now, Relaxed);
        let [a, b, c, d] = (length as u32).to_ne_bytes();
        let ([e, f], [g, h]) = ((kept as u16).to_ne_bytes(), WAY_SENT.to_ne_bytes());
        self.0.store(
            word(LENGTH),
            u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            Relaxed,
        );
        // Pairs with the reader's load of the turn.
        self.0.store(word(TURN), position + 1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> TapRing {
        TapRing(Mapping::anonymous(RING_BYTES.next_multiple_of(page_bytes())).unwrap())
    }

    fn slot(ring: &TapRing, index: u64, word: usize) -> u64 {
        ring.0.load(slot_of(index) / 8 + word, Relaxed)
    }

    fn lengths(length: u64, kept: u64) -> u64 {
        length | (kept << 32) | (u64::from(WAY_SENT) << 48)
    }

    #[test]
    fn frames_are_copied_while_somebody_captures() {
        let ring = ring();
        ring.sent(&[b"nobody looks"]);
        assert_eq!(ring.0.load(HEAD, Relaxed), 0);

        ring.0.store(UNTIL, u64::MAX, Relaxed);
        ring.sent(&[b"head", b"rest!"]);
        ring.sent(&[&[7; 2 * FRAME_BYTES]]);
        assert_eq!(ring.0.load(HEAD, Relaxed), 2);
        assert_eq!((slot(&ring, 0, TURN), slot(&ring, 1, TURN)), (1, 2));
        assert_eq!(slot(&ring, 0, LENGTH), lengths(9, 9));
        assert_eq!(slot(&ring, 0, 3).to_ne_bytes(), *b"headrest");
        let long = FRAME_BYTES as u64;
        assert_eq!(slot(&ring, 1, LENGTH), lengths(2 * long, long));

        // The reader has died.
        ring.0.store(UNTIL, 1, Relaxed);
        ring.sent(&[b"late"]);
        assert_eq!(
            (ring.0.load(UNTIL, Relaxed), ring.0.load(HEAD, Relaxed)),
            (0, 2)
        );
    }

    #[test]
    fn a_slot_that_somebody_writes_is_left_alone() {
        let ring = ring();
        ring.0.store(UNTIL, u64::MAX, Relaxed);
        ring.0.store(slot_of(0) / 8 + TURN, BUSY, Relaxed);
        ring.sent(&[b"one"]);
        ring.sent(&[b"two"]);
        assert_eq!((slot(&ring, 0, TURN), slot(&ring, 1, TURN)), (BUSY, 2));
    }
}
