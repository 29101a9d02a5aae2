//! Periodic loops of a thread, of their own or locked to the values of a peer.
#![allow(unsafe_code)] // A cycle leaves the interpreter in its own thread.

use std::fmt;
use std::time::Duration;

use pyo3::prelude::*;
use tautline::cycle::CycleOptions;
use tautline::now;

use crate::errors::argument;
use crate::wait::{STEP, duration, end_of_wait, seconds};

/// One period of a `Cycle`: `number` from 1, `due` when it began and `deadline` when the next one does, in seconds on
/// `time.monotonic()`, `late` the seconds until the thread ran, `skipped` the periods that were skipped before.
///
/// >>> import tautline
/// >>> tick = tautline.Cycle(0.001).wait()
/// >>> tick.due < tick.deadline
/// True
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Tick(tautline::cycle::Tick);

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[pymethods]
impl Tick {
    /// Number of the period, from 1; skipped ones have numbers too.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    /// When the period began, in seconds on `time.monotonic()`.
    #[getter]
    fn due(&self) -> f64 {
        seconds(self.0.due)
    }

    /// Time from then until the thread ran, in seconds.
    #[getter]
    fn late(&self) -> f64 {
        self.0.late.as_secs_f64()
    }

    /// When the next period begins, in seconds on `time.monotonic()`.
    #[getter]
    fn deadline(&self) -> f64 {
        seconds(self.0.deadline)
    }

    /// Periods that were skipped immediately before this one.
    #[getter]
    fn skipped(&self) -> u64 {
        self.0.skipped
    }

    fn __repr__(&self) -> String {
        format!("<Tick {}>", self.0.number)
    }
}

/// A periodic loop in the thread that makes it: `wait()` sleeps until the next period begins, and is awake then. A late
/// wake-up does not move later periods; periods that have passed are skipped and counted.
///
/// `period` is in seconds. `fifo_priority` (1 to 99) asks for SCHED_FIFO, `cpu` for one CPU, `lock_memory` for memory
/// that is never paged out; what is refused is named in `report`. With `phase` the loop is locked to the values of a
/// peer: each period begins `phase` seconds after the arrival of its value, although the clocks of both hosts drift.
/// `arrived()` tells it of each value; `values_per_cycle` of them come in a period.
///
/// >>> import tautline
/// >>> cycle = tautline.Cycle(0.001)
/// >>> for _ in range(3):
/// ...     tick = cycle.wait()
/// >>> tick.number >= 3
/// True
#[pyclass(module = "tautline", unsendable, weakref)]
pub(crate) struct Cycle(tautline::Cycle);

impl fmt::Debug for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cycle").finish_non_exhaustive()
    }
}

/// A cycle that its own thread uses while others have the interpreter.
struct SameThread<'c>(&'c mut tautline::Cycle);

// SAFETY: `detach` calls its closure in the calling thread, which `unsendable` has found to be the cycle's own.
unsafe impl Send for SameThread<'_> {}

impl SameThread<'_> {
    fn wait(self) -> tautline::cycle::Tick {
        self.0.wait()
    }
}

#[pymethods]
impl Cycle {
    #[new]
    #[pyo3(signature = (period, *, fifo_priority=None, cpu=None, lock_memory=false, phase=None, values_per_cycle=1))]
    fn new(
        py: Python<'_>,
        period: f64,
        fifo_priority: Option<u8>,
        cpu: Option<usize>,
        lock_memory: bool,
        phase: Option<f64>,
        values_per_cycle: u32,
    ) -> PyResult<Self> {
        let mut options = CycleOptions::new(duration(py, "a period", Some(period))?);
        (options.fifo_priority, options.cpu) = (fifo_priority, cpu);
        options.lock_memory = lock_memory;
        if phase.is_some() {
            let phase: Duration = duration(py, "a phase", phase)?;
            options = options
                .locked_to_values(phase)
                .with_values_per_cycle(values_per_cycle);
        }
        let started = tautline::Cycle::start(&options);
        let started = started.map_err(|error| argument(py, &error.to_string(), error.remedy()))?;
        Ok(Self(started))
    }

    /// Sleeps until the next period begins, and returns it. Ctrl-C ends it.
    fn wait(&mut self, py: Python<'_>) -> PyResult<Tick> {
        while self.0.next_due().saturating_duration_since(now()) > 2 * STEP {
            py.detach(|| std::thread::sleep(STEP));
            py.check_signals()?;
        }
        let cycle = SameThread(&mut self.0);
        let tick = py.detach(|| cycle.wait());
        py.check_signals()?;
        Ok(Tick(tick))
    }

    /// Tells a locked cycle when a value arrived: the `arrival` of what a port returned, never the time of the read.
    fn arrived(&mut self, py: Python<'_>, moment: f64) -> PyResult<()> {
        self.0.arrived(end_of_wait(py, None, Some(moment))?);
        Ok(())
    }

    /// Settings, counters, times, and the state of a lock, in words.
    #[getter]
    fn report(&self) -> String {
        format!("{}\n{}", self.0.report(), self.0.statistics())
    }

    fn __repr__(&self) -> String {
        format!("<Cycle: {}>", self.0.report())
    }
}
