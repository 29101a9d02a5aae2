//! The newest value from one producer to one consumer, in four cells: H. R. Simpson's mechanism
//! ("Four-slot fully asynchronous communication mechanism", IEE Proceedings 137 E, 1990).
//!
//! There are two pairs of cells. The reader says which pair it reads; the writer takes the other pair, and in it the
//! cell that does not hold the pair's last value. So they never meet in a cell, though every word has one writer:
//! neither exchanges, waits or tries again. A reader may stay in its cell for as long as it likes.
//!
//! The writer's word, [`LatestLine`]: bit 0 is the pair of the newest value; bits 1 and 2 say which
//! cell of pair 0 and of pair 1 holds the pair's last value; the rest is the number of the newest
//! value, from 1. A writer without accesses of 64 bits (`bindings/c/tautline_vbus.h`) has the lower half of the word
//! alone, with 29 bits of a number whose 32 lower bits are the turn of the cell. It leaves out the numbers whose 29
//! bits are 0. So numbers of the word are compared modulo 2^29.
//!
//! A reader that copies needs no cell of its own, and mostly gets by with one line of the writer's
//! ([`Reader::copy_next`]): while it stays in its pair, the writer fills the two cells of the other pair in turn, so
//! it is known where the next value will be, and the cell's turn tells that it is there. The copy is whole if the
//! value after it has not been published by then, because the writer comes round to this cell only after that.
//!
//! Where many read, none of them has a cell: the writer fills the four in turn ([`Writer::next_for_all`]). A reader
//! copies the newest value and then looks how far the writer has come ([`Reader::follow`]). The copy is whole if fewer
//! than three values have followed, since the writer comes round to the cell only after that. It tries again with the
//! newest value otherwise, a few times. So a reader slower than that harms itself alone.
//!
//! Progress: both sides are wait-free. A look that finds nothing new is one load and writes nothing.

use super::layout::{CELL_COUNT, LatestLine, MessageHead, ReadingLine, Slot, Slots};
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::fence;

const NUMBER_SHIFT: u32 = 3;
/// Bits of a number that every writer's word has.
const NUMBER_MASK: u32 = u32::MAX >> NUMBER_SHIFT;
/// Attempts of one look to copy a value that many read. Each that fails means that three newer values have come since
/// it began. Lower: a reader about as fast as the writer sees fewer values. Higher: a look takes longer.
const FOLLOW_ATTEMPTS: u32 = 4;

/// The writer's word once the next value is in the other cell of `pair`.
#[inline]
fn following(word: u64, pair: u32) -> u64 {
    let number = (word >> NUMBER_SHIFT).wrapping_add(1);
    let flipped = word ^ (2 << pair);
    number << NUMBER_SHIFT | flipped & 6 | u64::from(pair)
}

/// The lower half of the number in the writer's word.
#[inline]
fn number_in(word: u64) -> u32 {
    (word >> NUMBER_SHIFT) as u32
}

/// Values from the one of this number up to the newest of the writer's word.
#[inline]
fn ahead_of(number: u32, word: u64) -> u32 {
    number_in(word).wrapping_sub(number) & NUMBER_MASK
}

/// The cell of a pair that holds the pair's last value.
#[inline]
fn last_of(word: u64, pair: u32) -> u32 {
    (word >> (1 + pair)) as u32 & 1
}

#[inline]
fn cell<'m>(cells: Slots<'m>, pair: u32, index: u32) -> Slot<'m> {
    cells.slot(0, pair * 2 + index)
}

/// The writer's place.
#[derive(Debug, Default)]
pub struct Writer {
    word: u64,
    pair: u32,
    /// The cell that [`Writer::next`] gave last, among the four.
    index: u32,
}

impl Writer {
    /// The writer of cells that nothing has been written to.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The cell for the next value. It is the writer's until published.
    #[inline]
    pub fn next<'m>(&mut self, cells: Slots<'m>, consumer: &ReadingLine) -> Slot<'m> {
        // Acquire: partner is the Release in `Reader::read`; its reads of the pair that it has left
        // are done. Whatever stands there, the lowest bit is a pair.
        self.pair = !consumer.reading.load(Acquire) & 1;
        self.index = self.pair * 2 + (1 - last_of(self.word, self.pair));
        cells.slot(0, self.index)
    }

    /// Next cell where many read: the four cells in turn.
    #[inline]
    pub fn next_for_all<'m>(&mut self, cells: Slots<'m>) -> Slot<'m> {
        self.pair = !(self.word as u32) & 1;
        self.index = self.pair * 2 + (1 - last_of(self.word, self.pair));
        cells.slot(0, self.index)
    }

    /// Makes the cell that [`Writer::next`] gave last the newest value. Must be followed by a full
    /// barrier before the next [`Writer::next`]: [`crate::vbus::wait::Kicker::wanted`] is one.
    #[inline]
    pub fn publish(&mut self, latest: &LatestLine, cells: Slots<'_>, message: &MessageHead) {
        let slot = cells.slot(0, self.index);
        slot.describe(message);
        self.word = following(self.word, self.pair);
        // Release: partner is the Acquire in `copy_whole`.
        slot.head.turn.store(number_in(self.word), Release);
        // Release: partner is the Acquire in `Reader::read`.
        latest.latest.store(self.word, Release);
    }
}

/// The reader's place.
#[derive(Debug)]
pub struct Reader {
    /// The writer's word when the value that was read last was the newest; 0 before the first.
    word: u64,
    /// The word before that, which the writer may not have replaced yet when a value has been copied.
    before: u64,
    pair: u32,
    index: u32,
    /// The number of the value that was read last.
    seen: u32,
    /// The writer is known to have seen which pair is ours: its next value goes to the cell of the other pair that
    /// does not hold that pair's last value.
    settled: bool,
    /// If settled: that cell, among the four.
    next: u32,
    /// If settled: the turn of that cell.
    stale: u32,
}

/// Result of [`Reader::copy_next`] or [`Reader::copy_latest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Head of the value, whose length is not above the limit that was given.
    pub message: MessageHead,
    /// Values that were written and replaced since the reader's last look.
    pub overwritten: u32,
}

/// A value, in the cell that belongs to the reader until its next read.
#[derive(Clone, Copy)]
pub struct Value<'m> {
    /// The cell.
    pub cell: Slot<'m>,
    /// Low half of the value's number.
    pub number: u32,
    /// Values that were written and replaced since the reader's last look.
    pub overwritten: u32,
    /// Whether the reader sees this value for the first time.
    pub new: bool,
}

impl Reader {
    /// The reader of cells from which nothing has been read.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: 0,
            before: 0,
            pair: 0,
            index: 0,
            seen: 0,
            // The entry says pair 0 before the writer knows it.
            settled: true,
            next: 3,
            stale: 0,
        }
    }

    /// One of many readers of cells whose writer's word is `word`: the newest value is there for it, and those before
    /// are not its own. It has [`Reader::follow`] and [`Reader::fresh`] alone.
    #[must_use]
    pub fn of_many(word: u64) -> Self {
        Self {
            seen: number_in(word).saturating_sub(1),
            settled: false,
            ..Self::new()
        }
    }

    /// One of many readers: copies the newest value out unless it has been copied, as [`Reader::copy_next`] does.
    /// `None` if there is no other, or if it was replaced during each of a few attempts; `out` is spoilt then.
    pub fn follow(
        &mut self,
        cells: Slots<'_>,
        latest: &LatestLine,
        limit: u32,
        out: &mut [u64],
    ) -> Option<Copied> {
        for _ in 0..FOLLOW_ATTEMPTS {
            // Acquire: partner is the Release in `Writer::publish`.
            let word = latest.latest.load(Acquire);
            if word == self.word {
                return None;
            }
            let pair = (word & 1) as u32;
            let cell = cell(cells, pair, last_of(word, pair));
            let message = cell.message();
            cell.copy_racing(message.length.min(limit) as usize, out);
            // Partner: the barrier between two values of the writer. If anything of what was read belonged to a later
            // value in this cell, the load below sees that the one before that has been published.
            fence(Acquire);
            let after = latest.latest.load(Relaxed);
            if ahead_of(number_in(word), after) < CELL_COUNT as u32 - 1 {
                self.word = word;
                let ahead = ahead_of(self.seen, word);
                self.seen = number_in(word);
                return Some(Copied {
                    message,
                    overwritten: ahead.saturating_sub(1),
                });
            }
        }
        None
    }

    /// Whether there may be a value that this reader has not seen. One load. That one is there and not found by the
    /// next look happens only while the writer is publishing it, or to a writer that breaks the rules.
    #[inline]
    #[must_use]
    pub fn fresh(&self, cells: Slots<'_>, latest: &LatestLine) -> bool {
        if self.settled {
            cells.slot(0, self.next).head.turn.load(Relaxed) != self.stale
        } else {
            latest.latest.load(Relaxed) != self.word
        }
    }

    /// The cell that [`Reader::read`] gave last. It is the reader's until the next.
    #[inline]
    #[must_use]
    pub fn held<'m>(&self, cells: Slots<'m>) -> Slot<'m> {
        cell(cells, self.pair, self.index)
    }

    /// Copies the value out that comes after the last one copied, if it is there, at most `limit` bytes long, and not
    /// replaced meanwhile; whole words, so `out` must hold `limit` rounded up to 8 (what it does not hold is left out).
    /// `None` says nothing: [`Reader::copy_latest`], and then [`Reader::read`] tell whether there is one. No cell is
    /// taken, so that the writer finds the reader's line as it was, and what [`Reader::read`] gave before stays.
    #[inline(always)]
    pub fn copy_next(&mut self, cells: Slots<'_>, limit: u32, out: &mut [u64]) -> Option<Copied> {
        if !self.settled {
            return None;
        }
        let number = self.seen.wrapping_add(1);
        let (message, after) = copy_whole(cells, self.next, number, limit, out)?;
        let word = following(self.word, 1 - self.pair);
        (self.before, self.word) = (self.word, word);
        self.seen = number;
        self.next ^= 1;
        self.stale = after;
        Some(Copied {
            message,
            overwritten: 0,
        })
    }

    /// Like [`Reader::copy_next`], for the newest value if it is in the other pair, even if values before it were
    /// replaced.
    pub fn copy_latest(
        &mut self,
        cells: Slots<'_>,
        latest: &LatestLine,
        limit: u32,
        out: &mut [u64],
    ) -> Option<Copied> {
        // Acquire: partner is the Release in `Writer::publish`.
        let word = latest.latest.load(Acquire);
        let pair = 1 - self.pair;
        if word & 1 != u64::from(pair) || word == 0 || word == self.word || word == self.before {
            return None;
        }
        let ahead = ahead_of(self.seen, word);
        let number = self.seen.wrapping_add(ahead);
        let here = pair * 2 + last_of(word, pair);
        let (message, after) = copy_whole(cells, here, number, limit, out)?;
        (self.before, self.word) = (self.word, word);
        self.seen = number;
        self.settled = true;
        self.next = here ^ 1;
        self.stale = after;
        Some(Copied {
            message,
            overwritten: ahead.saturating_sub(1),
        })
    }

    /// The newest value; `None` while there has never been one. If it is not new, it is the cell that
    /// this gave last, which holds an older value if newer ones have been copied since.
    #[inline]
    pub fn read<'m>(
        &mut self,
        cells: Slots<'m>,
        latest: &LatestLine,
        own: &ReadingLine,
    ) -> Option<Value<'m>> {
        // Acquire: partner is the Release in `Writer::publish`.
        let word = latest.latest.load(Acquire);
        if word == self.word || word == self.before {
            if self.word == 0 {
                return None;
            }
            return Some(Value {
                cell: cell(cells, self.pair, self.index),
                number: self.seen,
                overwritten: 0,
                new: false,
            });
        }
        Some(self.move_to(word, cells, latest, own))
    }

    fn move_to<'m>(
        &mut self,
        mut word: u64,
        cells: Slots<'m>,
        latest: &LatestLine,
        own: &ReadingLine,
    ) -> Value<'m> {
        let pair = (word & 1) as u32;
        let first = word;
        // The cell that will most likely be read: its lines come while the barrier waits for ours.
        cell(cells, pair, last_of(word, pair)).prefetch();
        if pair != self.pair {
            // Release: partner is the Acquire in `Writer::next`; our reads of the pair that we leave are done.
            own.reading.store(pair, Release);
            // Partner: the barrier between two values of the writer. Either the writer's next look
            // sees the pair, or the load below sees what it wrote last into this pair.
            fence(SeqCst);
            // Acquire: as above.
            word = latest.latest.load(Acquire);
        }
        self.pair = pair;
        self.index = last_of(word, pair);
        let cell = cell(cells, self.pair, self.index);
        let number = cell.head.turn.load(Relaxed);
        // A newer value may have gone to the other pair meanwhile: then ours is not the newest, and
        // the next look must find that.
        self.word = if word & 1 == u64::from(pair) {
            word
        } else {
            first
        };
        self.before = self.word;
        // A value that the writer had begun may still come to this pair.
        self.settled = false;
        let ahead = number.wrapping_sub(self.seen);
        self.seen = number;
        Value {
            cell,
            number,
            overwritten: ahead.saturating_sub(1),
            new: ahead != 0,
        }
    }
}

/// Copies value `number` out of the cell `here`, if it is there and stays whole; also the turn that the pair's other
/// cell has.
#[inline(always)]
fn copy_whole(
    cells: Slots<'_>,
    here: u32,
    number: u32,
    limit: u32,
    out: &mut [u64],
) -> Option<(MessageHead, u32)> {
    let (here, next) = (cells.slot(0, here), cells.slot(0, here ^ 1));
    // Acquire: partner is the Release in `Writer::publish`.
    if here.head.turn.load(Acquire) != number {
        return None;
    }
    let message = here.message();
    if message.length > limit {
        return None;
    }
    here.copy_racing(message.length as usize, out);
    // Partner: the barrier between two values of the writer. If anything of what was read belonged to a later value
    // in this cell, the value before that one is seen to have been published: it is the next of ours, or a later one,
    // and then the turn here is another.
    fence(Acquire);
    // Acquire: partner is the Release in `Writer::publish`.
    let after = next.head.turn.load(Acquire);
    if after == number.wrapping_add(1) || here.head.turn.load(Relaxed) != number {
        return None;
    }
    Some((message, after))
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}
