//! Waits and sleeps that end awake: on descriptors of the program's own, without a node.
#![allow(unsafe_code)] // Exported functions that take pointers.

use std::ffi::{c_char, c_int};

use ::tautline_awake::raw::open_descriptor;
use ::tautline_awake::{Awake, sleep};
use tautline::{Instant, now};

use crate::border::{Fault, coded};
use crate::code::Code;
use crate::handle::Table;
use crate::pointer::{self, Out, put_text};
use crate::types::tautline_awake;

static TABLE: Table<Box<Awake<'static>>> = Table::new();

/// Learns from now on when a descriptor has something to read.
///
/// # Safety
/// `awake` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_awake_open(
    descriptor: c_int,
    awake: *mut tautline_awake,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("awake", awake) }?;
        let opened = open_descriptor(descriptor).map_err(|_| {
            let text = format!("{descriptor} is not an open descriptor");
            Fault::new(Code::BadArgument, text).with_errno(libc::EBADF)
        })?;
        let id = TABLE.insert(Box::new(Awake::from(opened)))?;
        out.put(tautline_awake { id });
        Ok(0)
    })
}

/// Notes that the program sends something to which the peer answers.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_awake_sent(awake: tautline_awake) -> c_int {
    coded(|| {
        TABLE.enter(awake.id)?.sent();
        Ok(0)
    })
}

/// Waits until the descriptor has something to read or an error, or until a deadline.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_awake_wait(awake: tautline_awake, deadline_ns: u64) -> c_int {
    coded(|| {
        let mut entered = TABLE.enter(awake.id)?;
        let timeout = match deadline_ns {
            u64::MAX => None,
            deadline_ns => Some(Instant::from_nanos(deadline_ns).saturating_duration_since(now())),
        };
        let found = entered.wait(timeout);
        let found = found.map_err(|error| Fault::kernel("waiting for the descriptor", &error))?;
        Ok(found.into())
    })
}

/// Rhythm of the sender and how its messages were found, as text.
///
/// # Safety
/// `text` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_awake_report(
    awake: tautline_awake,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { pointer::buffer("text", text.cast(), bytes) }?;
        let report = TABLE.enter(awake.id)?.to_string();
        Ok(put_text(report.as_bytes(), buffer) as c_int)
    })
}

/// Forgets the rhythm. The descriptor stays open.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_awake_close(awake: tautline_awake) -> c_int {
    coded(|| {
        TABLE.remove(awake.id)?;
        Ok(0)
    })
}

/// Sleeps until a moment and is awake then; writes how late it was.
///
/// # Safety
/// `late_ns` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_sleep_until(moment_ns: u64, late_ns: *mut u64) -> c_int {
    coded(|| {
        let late = sleep::until(Instant::from_nanos(moment_ns));
        if !late_ns.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Out::new("late_ns", late_ns) }?.put(late.as_nanos() as u64);
        }
        Ok(0)
    })
}
