//! The newest value from one producer to one consumer, in four cells: H. R. Simpson's mechanism
//! ("Four-slot fully asynchronous communication mechanism", IEE Proceedings 137 E, 1990).
//!
//! There are two pairs of cells. The reader says which pair it reads; the writer takes the other
//! pair, and in it the cell that does not hold the pair's last value. So they never meet in a cell,
//! though every word has one writer: nobody exchanges, waits or tries again. A reader may stay in its
//! cell for as long as it likes.
//!
//! The writer's word, [`LatestLine`]: bit 0 is the pair of the newest value; bits 1 and 2 say which
//! cell of pair 0 and of pair 1 holds the pair's last value; the rest is the number of the newest
//! value, from 1.
//!
//! Progress: both sides are wait-free. A look that finds nothing new is one load and writes nothing.

use super::layout::{LatestLine, MessageHead, ReadingLine, Slot, Slots};
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::fence;

const NUMBER_SHIFT: u32 = 3;

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
        self.last(cells)
    }

    /// The cell that [`Writer::next`] gave last.
    #[inline]
    fn last<'m>(&self, cells: Slots<'m>) -> Slot<'m> {
        cell(cells, self.pair, 1 - last_of(self.word, self.pair))
    }

    /// Makes the cell that [`Writer::next`] gave last the newest value. Must be followed by a full
    /// barrier before the next [`Writer::next`]: [`crate::vbus::wait::Kicker::wanted`] is one.
    #[inline]
    pub fn publish(&mut self, latest: &LatestLine, cells: Slots<'_>, message: &MessageHead) {
        let slot = self.last(cells);
        let pair = self.pair;
        let number = (self.word >> NUMBER_SHIFT).wrapping_add(1);
        slot.describe(message);
        slot.head.turn.store(number as u32, Relaxed);
        let flipped = self.word ^ (2 << pair);
        self.word = number << NUMBER_SHIFT | flipped & 6 | u64::from(pair);
        // Release: partner is the Acquire in `Reader::read`.
        latest.latest.store(self.word, Release);
    }
}

/// The reader's place.
#[derive(Debug, Default)]
pub struct Reader {
    /// The writer's word when our cell held the newest value; 0 before the first.
    word: u64,
    pair: u32,
    index: u32,
    seen: u32,
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
        Self::default()
    }

    /// Whether there is a value that this reader has not seen. One load.
    #[inline]
    #[must_use]
    pub fn fresh(&self, latest: &LatestLine) -> bool {
        latest.latest.load(Relaxed) != self.word
    }

    /// The cell that the reader has, without a look for a newer one; `None` while there has never been a
    /// value.
    #[inline]
    #[must_use]
    pub fn held<'m>(&self, cells: Slots<'m>) -> Option<Slot<'m>> {
        (self.word != 0).then(|| cell(cells, self.pair, self.index))
    }

    /// The newest value; `None` while there has never been one.
    #[inline]
    pub fn read<'m>(
        &mut self,
        cells: Slots<'m>,
        latest: &LatestLine,
        own: &ReadingLine,
    ) -> Option<Value<'m>> {
        // Acquire: partner is the Release in `Writer::publish`.
        let word = latest.latest.load(Acquire);
        if word == self.word {
            if word == 0 {
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
            // Release: partner is the Acquire in `Writer::next`; our reads of the pair that we
            // leave are done.
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
