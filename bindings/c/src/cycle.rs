//! Periodic loops: the cycle of the calling thread.
#![allow(unsafe_code)] // Exported functions that take pointers.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::time::Duration;

use tautline::cycle::CycleOptions;
use tautline::{Cycle, Instant};

use crate::border::{Fault, coded};
use crate::code::Code;
use crate::pointer::{self, Out, put_text};
use crate::types::{tautline_cycle_options, tautline_tick};

thread_local! {
    /// A cycle changes the settings of its thread, so it is the thread's own, and goes with it.
    static CYCLE: RefCell<Option<Cycle>> = const { RefCell::new(None) };
}

fn with_cycle<T>(work: impl FnOnce(&mut Cycle) -> Result<T, Fault>) -> Result<T, Fault> {
    CYCLE.with_borrow_mut(|cycle| match cycle {
        Some(cycle) => work(cycle),
        None => Err(Fault::new(
            Code::WrongOrder,
            "this thread has no cycle; call tautline_cycle_start first",
        )),
    })
}

/// Starts the calling thread's cycle.
///
/// # Safety
/// `options` is null or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_cycle_start(options: *const tautline_cycle_options) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let asked = unsafe { pointer::value("options", options) }?;
        let mut options = CycleOptions::new(Duration::from_nanos(asked.period_ns));
        if asked.fifo_priority > 0 {
            options = options.with_fifo_priority(asked.fifo_priority);
        }
        if asked.lock_memory > 0 {
            options = options.with_locked_memory();
        }
        if let Some(cpu) = pointer::cpu(asked.cpu)? {
            options = options.with_cpu(cpu);
        }
        if asked.values_per_cycle > 0 {
            options = options
                .locked_to_values(Duration::from_nanos(asked.phase_ns))
                .with_values_per_cycle(asked.values_per_cycle);
        }
        CYCLE.with_borrow_mut(|cycle| {
            if cycle.is_some() {
                return Err(Fault::new(
                    Code::WrongOrder,
                    "this thread has a cycle already; call tautline_cycle_stop first",
                ));
            }
            let started = Cycle::start(&options);
            let wrong = |error: tautline::cycle::CycleError| {
                Fault::new(Code::BadArgument, format!("{error}; {}", error.remedy()))
            };
            *cycle = Some(started.map_err(wrong)?);
            Ok(0)
        })
    })
}

/// Sleeps until the next period begins.
///
/// # Safety
/// `tick` is null or a tick can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_cycle_wait(tick: *mut tautline_tick) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("tick", tick) }?;
        with_cycle(|cycle| {
            let tick = cycle.wait();
            out.put(tautline_tick {
                number: tick.number,
                due_ns: tick.due.as_nanos(),
                late_ns: tick.late.as_nanos() as u64,
                deadline_ns: tick.deadline.as_nanos(),
                skipped: tick.skipped,
            });
            Ok(0)
        })
    })
}

/// Tells the cycle when a value of its peer arrived.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_cycle_arrived(arrival_ns: u64) -> c_int {
    coded(|| {
        with_cycle(|cycle| {
            cycle.arrived(Instant::from_nanos(arrival_ns));
            Ok(0)
        })
    })
}

/// Settings that took effect, those that could not be had, counters and times, as text.
///
/// # Safety
/// `text` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_cycle_report(text: *mut c_char, bytes: usize) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { pointer::buffer("text", text.cast(), bytes) }?;
        with_cycle(|cycle| {
            let report = format!("{}\n{}", cycle.report(), cycle.statistics());
            Ok(put_text(report.as_bytes(), buffer) as c_int)
        })
    })
}

/// Ends the calling thread's cycle and puts the thread's settings back.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_cycle_stop() -> c_int {
    coded(|| {
        with_cycle(|_| Ok(()))?;
        CYCLE.with_borrow_mut(|cycle| *cycle = None);
        Ok(0)
    })
}
