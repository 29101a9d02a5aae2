//! The sampling discipline: the last value only, in three cells.
//!
//! One cell is the reader's, one the writer's, one lies between them. The writer fills its own cell and exchanges it
//! for the middle one; the reader, when the middle one is fresh, exchanges its own for it. Each exchange is one atomic
//! instruction, so a cell always has exactly one owner: a value is never torn, however often and however fast it is
//! replaced, and the reader may look at it for as long as it likes.
//!
//! A port may keep such a triple of cells for each of several sources: different sources never
//! disturb each other. Which source has which is [`crate::peer`]'s business.
//!
//! Progress: the reader is wait-free (one load, at most one exchange, for each source). A writer is wait-free too:
//! where two CPUs deliver to the same cells at the same moment, the second gives way and is counted. That is the order
//! "second, then first", so the port still holds a value that was the last.

use crate::layout::{CELL_COUNT, Control, Peer, RecordHead, Slot};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::fence;

/// Set in a middle word by the writer, cleared by the reader: there is a value not seen yet.
pub const FRESH: u32 = 0x80;
/// The index in a middle word. Cells are three, so 3 is never valid; it is brought into range before use.
pub const INDEX: u32 = 0x03;
/// Which cell is whose in the beginning: writer 0, middle 1, reader 2.
const FIRST_MIDDLE: u32 = 1;
const FIRST_READER: u32 = 2;

/// The value was given up: another writer was at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterBusy;

/// Prepares the control element of a sampling port. Before any producer sees it.
pub fn initialise(control: &Control) {
    for middle in &control.sample.middle {
        middle.store(FIRST_MIDDLE, Relaxed);
    }
}

/// Writer: makes this the value of the source of this number, whose `peer` it is.
///
/// # Errors
/// [`WriterBusy`], already counted in `control`.
pub fn write(
    control: &Control,
    peer: &Peer,
    cells: &[Slot],
    source: usize,
    head: &RecordHead,
    payload: &[u8],
) -> Result<(), WriterBusy> {
    // Acquire: partner is the Release that ends the previous writer's turn.
    if peer.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        control.producer.contended.fetch_add(1, Relaxed);
        return Err(WriterBusy);
    }
    // Partner is the fence of `observe`: a reader that sees a byte of this value sees the number of the value before.
    fence(Release);
    let back = peer.back.load(Relaxed);
    let number = peer.written.load(Relaxed) + 1;
    let cell = &cells[cell_index(source, back)];
    cell.write_head(head);
    cell.write_payload(payload);
    cell.turn.store(number, Relaxed);
    // Release: a reader that sees the number in `observe` sees that this writer is at work, until it is done.
    peer.written.store(number, Release);
    // Release: the reader's exchange sees the cell filled. Acquire: its reads of the cell that comes back are done.
    let middle = control.sample.middle[source].swap(back | FRESH, AcqRel);
    peer.back.store(middle & INDEX, Relaxed);
    peer.lock.store(0, Release);
    Ok(())
}

/// When the newest value arrived, read or not, CLOCK_MONOTONIC nanoseconds. For observers: what is read may be of a
/// moment later, or of a value that is being written.
#[must_use]
pub fn newest_arrival_ns(cells: &[Slot]) -> Option<u64> {
    let written = cells.iter().filter(|cell| cell.turn.load(Relaxed) != 0);
    written.map(|cell| cell.head().arrival_ns).max()
}

/// Attempts to copy a value that is being replaced. Lower: a busy port shows nothing. Higher: an observer works longer
/// where values come faster than they can be copied.
#[cfg(not(loom))]
const OBSERVE_ATTEMPTS: usize = 8;
/// In a loom model, which tries every order anyway.
#[cfg(loom)]
const OBSERVE_ATTEMPTS: usize = 1;

/// Copies the newest value of a source, read or not, as far as `out` reaches. For observers: nothing is taken from the
/// reader, and neither side waits. `None` if there has never been a value, or if it was replaced during each attempt.
///
/// A cell whose value is the newest is not written before the next but one value: that goes to the cell that the
/// exchange of the next one gives back. So the copy is whole if the newest value is still the same afterwards.
#[must_use]
pub fn observe(peer: &Peer, cells: &[Slot], source: usize, out: &mut [u8]) -> Option<RecordHead> {
    let own = cells.get(source * CELL_COUNT..)?.get(..CELL_COUNT)?;
    for _ in 0..OBSERVE_ATTEMPTS {
        // Acquire: partner is the writer's store, after which its lock is seen as taken, or as given back.
        let number = peer.written.load(Acquire);
        if number == 0 {
            return None;
        }
        // Acquire: partner is the Release that ends the writer's turn, so that its cell is seen filled.
        if peer.lock.load(Acquire) != 0 {
            core::hint::spin_loop();
            continue;
        }
        let Some(cell) = own.iter().find(|cell| cell.turn.load(Relaxed) == number) else {
            continue;
        };
        let head = cell.head();
        cell.read_payload_unowned(out);
        // Partner is the fence at the beginning of a write.
        fence(Acquire);
        if peer.written.load(Relaxed) == number {
            return Some(head);
        }
    }
    None
}

/// The reader's place at one source: the cell that it owns, and the number of the last value that it handed on.
#[derive(Debug)]
pub struct Reader {
    source: usize,
    front: u32,
    number: u64,
    handed: u64,
}

/// A value, in the cell that belongs to the reader until its next look.
#[derive(Clone, Copy)]
pub struct Sample<'m> {
    /// The cell.
    pub cell: &'m Slot,
    /// Number of this value among all that were written, from 1.
    pub number: u64,
    /// Values that were written and replaced since the one handed on before.
    pub overwritten: u64,
    /// Whether the value is handed on for the first time.
    pub new: bool,
}

impl Reader {
    /// A reader of the source of this number, from which nothing has been read.
    #[must_use]
    pub fn new(source: usize) -> Self {
        Self {
            source,
            front: FIRST_READER,
            number: 0,
            handed: 0,
        }
    }

    /// Whether there is a value that has not been handed on. One load.
    #[inline]
    #[must_use]
    pub fn fresh(&self, control: &Control) -> bool {
        self.look(control) & FRESH != 0 || self.holds_new()
    }

    /// Takes the newest value as the reader's own; whether there is one that has not been handed on. Wait-free.
    #[inline]
    pub fn refresh(&mut self, control: &Control, cells: &[Slot]) -> bool {
        let middle = &control.sample.middle[self.source];
        let was = self.look(control);
        if was & FRESH != 0 {
            // The exchange and the value's first line come from the writer's cache: side by side,
            // not one after the other.
            prefetch(&cells[cell_index(self.source, was)]);
            // Acquire: partner is the writer's exchange. Release: our reads of the cell that we give back are done.
            self.front = middle.swap(self.front, AcqRel) & INDEX;
            self.number = self.cell(cells).turn.load(Relaxed);
        }
        self.holds_new()
    }

    /// Whether the reader's own value has not been handed on.
    #[inline]
    #[must_use]
    pub fn holds_new(&self) -> bool {
        self.number != self.handed
    }

    /// The reader's own value, if there has ever been one.
    #[inline]
    #[must_use]
    pub fn current<'m>(&self, cells: &'m [Slot]) -> Option<&'m Slot> {
        (self.number != 0).then(|| self.cell(cells))
    }

    /// Hands on the reader's own value; `None` while there has never been one.
    #[inline]
    pub fn hand<'m>(&mut self, cells: &'m [Slot]) -> Option<Sample<'m>> {
        let cell = self.current(cells)?;
        let new = self.holds_new();
        let since = self.number.wrapping_sub(self.handed);
        self.handed = self.number;
        Some(Sample {
            cell,
            number: self.number,
            overwritten: since.saturating_sub(1),
            new,
        })
    }

    /// The newest value; `None` while there has never been one. Wait-free.
    #[inline]
    pub fn read<'m>(&mut self, control: &Control, cells: &'m [Slot]) -> Option<Sample<'m>> {
        self.refresh(control, cells);
        self.hand(cells)
    }

    /// The middle word. Its line is requested for writing: a reader that finds a fresh value exchanges the word next,
    /// and the line would travel between the CPUs once more for that.
    #[inline]
    fn look(&self, control: &Control) -> u32 {
        let middle = &control.sample.middle[self.source];
        prefetch_to_write(middle);
        middle.load(Relaxed)
    }

    #[inline]
    fn cell<'m>(&self, cells: &'m [Slot]) -> &'m Slot {
        &cells[cell_index(self.source, self.front)]
    }
}

/// Asks for the start of a cell; changes nothing.
#[inline]
fn prefetch(cell: &Slot) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[allow(unsafe_code)]
    // SAFETY: a prefetch of any address is without effect on memory; SSE is part of x86-64.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(cell).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = cell;
}

/// Asks for the line of a word, to write it; changes nothing.
#[inline]
fn prefetch_to_write<T>(word: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[allow(unsafe_code)]
    // SAFETY: a prefetch of any address is without effect on memory. Processors without this instruction execute it as
    // one that does nothing.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) core::ptr::from_ref(word),
            options(readonly, nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = word;
}

/// Where a source's cell lies; the index came from memory and is made safe to use.
#[inline]
fn cell_index(source: usize, index: u32) -> usize {
    source * CELL_COUNT + (index & INDEX) as usize % CELL_COUNT
}
