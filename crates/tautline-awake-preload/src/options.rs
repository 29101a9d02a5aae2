//! Options of `taut exec`, and whether the library does anything at all.
#![allow(unsafe_code)] // Runs at the start of the program.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};

use tautline_awake::cpu;

use crate::{look, next, report, table};

/// Variable of the environment: words separated by commas (`watch`, `board=PROCESS/DESCRIPTOR`).
const VARIABLE: &str = "TAUTLINE_AWAKE";

const AWAKE: u8 = 0;
const WATCHING: u8 = 1;
const OFF: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(OFF);
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// Whether waits may end awake now.
#[inline]
pub(crate) fn is_awake() -> bool {
    MODE.load(Relaxed) == AWAKE
}

/// Whether nothing is to be learned or reported any more.
#[inline]
pub(crate) fn is_off() -> bool {
    MODE.load(Relaxed) == OFF
}

/// Whether nothing is changed, and all is measured.
pub(crate) fn is_watching() -> bool {
    MODE.load(Relaxed) == WATCHING
}

/// Whether a cgroup limits the CPU time, so that no thread looks.
pub(crate) fn is_limited() -> bool {
    IS_LIMITED.load(Relaxed)
}

/// The program has a seccomp filter of its own now.
pub(crate) fn turn_off() {
    MODE.store(OFF, Relaxed);
}

extern "C" fn start() {
    next::find_all();
    let words = std::env::var(VARIABLE).unwrap_or_default();
    let has = |wanted: &str| words.split(',').any(|word| word == wanted);
    let is_limited = cpu::is_limited();
    IS_LIMITED.store(is_limited, Relaxed);
    let board = words.split(',').find_map(|word| {
        let (process, number) = word.strip_prefix("board=")?.split_once('/')?;
        Some((process.parse().ok()?, number.parse().ok()?))
    });
    if let Some((process, number)) = board {
        report::start(process, number);
    }
    MODE.store(
        if has("watch") || is_limited {
            WATCHING
        } else {
            AWAKE
        },
        Relaxed,
    );
    // SAFETY: a number of the process's own.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // The descriptors that it would map are named by a user who has fewer rights than this program.
    if MODE.load(Relaxed) == AWAKE && !is_secure {
        look::start();
    }
    // SAFETY: a function that may be called in a child.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    report::forget();
    cpu::reset_after_fork();
    table::reset_after_fork();
    look::forget();
}

/// Called by the loader before the program's own start.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
