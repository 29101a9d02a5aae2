//! Figures for the report of `taut exec`, which reads them when the program has ended, however it did: they lie in
//! memory that it shares with the program (`tautline_awake::board`).

use std::sync::OnceLock;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tautline_awake::board::{Board, Effect, Line, Process};
use tautline_awake::thread;

use crate::options;
use crate::table::Held;

static BOARD: OnceLock<Board> = OnceLock::new();

/// Entry of this process and 1, [`NONE`] before it has one.
static PROCESS: AtomicU16 = AtomicU16::new(NONE);

/// No entry yet. A process that waits for nothing has none: a shell script starts many.
pub(crate) const NONE: u16 = 0;
/// All entries are taken.
const REFUSED: u16 = u16::MAX;

/// Arrivals below which a descriptor has no entry.
const ARRIVALS_MIN: u64 = 8;

/// Opens the board that a process has open under a number, before the program's own start: no descriptor stays open.
pub(crate) fn start(process: u32, number: u32) {
    if let Ok(board) = Board::open(process, number) {
        BOARD.get_or_init(|| board);
    }
}

/// Whether there is a board.
#[inline]
pub(crate) fn is_wanted() -> bool {
    BOARD.get().is_some()
}

/// In a forked child: the entry is its parent's.
pub(crate) fn forget() {
    PROCESS.store(NONE, Relaxed);
}

/// A sleep ended so late.
pub(crate) fn slept(late: Duration) {
    if let Some((board, process)) = entered() {
        board.slept(process, late);
    }
}

/// Writes the figures of a flow that the caller holds. `entry`: that of its slot, kept by this function.
pub(crate) fn write(entry: &AtomicU16, fd: usize, held: &mut Held) {
    if !is_wanted() {
        return;
    }
    let figures = held.flow().figures();
    if figures.counts.awake + figures.counts.asleep < ARRIVALS_MIN {
        return;
    }
    let Some((board, process)) = entered() else {
        return;
    };
    if entry.load(Relaxed) == NONE {
        let begun = board.begin(process, fd);
        entry.store(begun.map_or(REFUSED, |Line(index)| index + 1), Relaxed);
    }
    match entry.load(Relaxed) {
        NONE | REFUSED => {}
        index => board.write(Line(index - 1), figures, held.slot().beside.told()),
    }
}

/// The entry of this process, brought up to date.
fn entered() -> Option<(Board, Process)> {
    let board = *BOARD.get()?;
    if PROCESS.load(Relaxed) == NONE {
        let entered = board.enter(std::process::id());
        let index = entered.map_or(REFUSED, |Process(index)| u16::from(index) + 1);
        // Another thread may have been faster: its entry then stays unused.
        let _first = PROCESS.compare_exchange(NONE, index, Relaxed, Relaxed);
    }
    let process = match PROCESS.load(Relaxed) {
        NONE | REFUSED => return None,
        index => Process(u8::try_from(index - 1).ok()?),
    };
    let effect = match (options::is_awake(), options::is_limited()) {
        (_, true) => Effect::Limited,
        (true, _) => Effect::Awake(thread::settings()),
        (false, _) => Effect::Watched,
    };
    board.update(process, effect);
    Some((board, process))
}
