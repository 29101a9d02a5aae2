//! Whether the program's signal handlers let an interrupted receive go on (SA_RESTART). `ppoll` never goes on by
//! itself, and does not say which handler ran. So receives wait here only where all handlers agree.
#![allow(unsafe_code)] // Reads signal actions.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use tautline_awake::exec::FAULTS;

/// Behaviour of an interrupted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// Goes on: all handlers have SA_RESTART, or there is none.
    GoesOn,
    /// Fails with EINTR: none of them has it.
    Fails,
    /// Depends on the signal.
    Depends,
}

/// The answer, coded; 0 until it is known, and after each change.
static KNOWN: AtomicU32 = AtomicU32::new(0);

/// A handler may have changed.
pub(crate) fn changed() {
    KNOWN.store(0, Relaxed);
}

pub(crate) fn interrupted() -> Interrupted {
    match KNOWN.load(Relaxed) {
        0 => {
            let answer = ask();
            KNOWN.store(answer as u32 + 1, Relaxed);
            answer
        }
        1 => Interrupted::GoesOn,
        2 => Interrupted::Fails,
        _ => Interrupted::Depends,
    }
}

#[cold]
fn ask() -> Interrupted {
    let (mut restarting, mut failing) = (false, false);
    // Two below SIGRTMIN are the C library's own; it hides them.
    for signal in (1..32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        // SAFETY: all bytes zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the action.
        let result = unsafe { crate::next::sigaction(signal, std::ptr::null(), &raw mut action) };
        let has_handler =
            action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        // Crash reporters handle faults.
        if result == 0 && has_handler && !FAULTS.contains(&signal) {
            match action.sa_flags & libc::SA_RESTART {
                0 => failing = true,
                _ => restarting = true,
            }
        }
    }
    match (restarting, failing) {
        (_, false) => Interrupted::GoesOn,
        (false, true) => Interrupted::Fails,
        (true, true) => Interrupted::Depends,
    }
}
