//! Findings of the job that runs in a thread, written by its allocator and by handlers of signals.

use std::cell::Cell;

use super::LintKind;
use super::frames::Frames;

/// Kinds of findings.
pub(crate) const KINDS: usize = LintKind::ALL.len();

struct State {
    /// Allocations of the job that runs; `None` outside of a job that is watched.
    allocations: Cell<Option<u64>>,
    /// System calls without a bound.
    calls: Cell<u64>,
    /// First finding of each kind in all jobs of this thread, until it is handed over.
    first: [Cell<Option<Frames>>; KINDS],
    has_first: [Cell<bool>; KINDS],
}

thread_local! {
    // Nothing to drop, and no code to make it: a handler of signals may look at it.
    static STATE: State = const {
        State {
            allocations: Cell::new(None),
            calls: Cell::new(0),
            first: [const { Cell::new(None) }; KINDS],
            has_first: [const { Cell::new(false) }; KINDS],
        }
    };
}

/// Begins to count.
pub(super) fn begin() {
    STATE.with(|state| {
        state.calls.set(0);
        state.allocations.set(Some(0));
    });
}

/// Ends it: allocations and calls.
pub(super) fn end() -> (u64, u64) {
    STATE.with(|state| (state.allocations.take().unwrap_or(0), state.calls.take()))
}

/// Notes an allocation, if a job runs that is watched.
pub(super) fn allocated() {
    // A thread that ends has no such variable any more, and no job.
    let _ = STATE.try_with(|state| {
        let Some(count) = state.allocations.take() else {
            return;
        };
        // The backtrace is not the task's, whatever it takes.
        note_first(LintKind::Allocation, Frames::capture);
        state.allocations.set(Some(count + 1));
    });
}

/// Notes a system call without a bound.
#[cfg(target_arch = "x86_64")] // where calls are watched
pub(super) fn called() {
    STATE.with(|state| state.calls.set(state.calls.get() + 1));
}

/// Keeps the backtrace of the first finding of a kind.
pub(super) fn note_first(kind: LintKind, capture: impl FnOnce() -> Frames) {
    STATE.with(|state| {
        if !state.has_first[kind as usize].replace(true) {
            state.first[kind as usize].set(Some(capture()));
        }
    });
}

/// Whether there has been a finding of a kind.
pub(super) fn has_first(kind: LintKind) -> bool {
    STATE.with(|state| state.has_first[kind as usize].get())
}

/// Hands the backtrace over.
pub(super) fn take_first(kind: LintKind) -> Option<Frames> {
    STATE.with(|state| state.first[kind as usize].take())
}
