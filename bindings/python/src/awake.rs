//! Waits and sleeps that end awake: on descriptors of the program's own, without a node.
#![allow(unsafe_code)] // A handler that runs in the child of a fork.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use tautline::now;
use tautline_awake::raw::open_descriptor;
use tautline_awake::sleep;

use crate::errors::{argument, exception};
use crate::wait::{STEP, end_of_wait};

/// Gives the places of CPUs back in each child of a fork, where their threads are not.
pub(crate) fn watch_forks() -> PyResult<()> {
    extern "C" fn in_child() {
        tautline_awake::cpu::reset_after_fork();
    }
    // SAFETY: the handler lives as long as the process, since modules of Python are never unloaded, and it does nothing
    // but atomic operations, which is allowed in the child of a fork.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error).into()),
    }
}

/// Waits for a descriptor that end awake: a loop that sleeps between two messages is there when its message comes. It
/// needs neither node nor privilege. `wait()` stands before the receiving call of a loop over any socket, pipe, timer
/// or epoll instance: the thread sleeps until shortly before the next message is due, which is learned from the
/// arrivals, and looks for it. At most a tenth of the time of a thread, and of a CPU, is spent looking. Nothing is read
/// from the descriptor.
///
/// One thread uses it at a time; a second one gets BusyError.
///
/// >>> import socket, tautline
/// >>> here, there = socket.socketpair()
/// >>> awake = tautline.Awake(here)
/// >>> sent = there.send(b"state")
/// >>> if awake.wait(timeout=1.0):
/// ...     print(here.recv(1500))
/// b'state'
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct Awake {
    awake: Mutex<tautline_awake::Awake<'static>>,
    /// Object that the descriptor belongs to. Held, so that it is not closed by the end of its last reference.
    _file: Py<PyAny>,
}

impl fmt::Debug for Awake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awake").finish_non_exhaustive()
    }
}

impl Awake {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut tautline_awake::Awake<'static>) -> PyResult<T>,
    ) -> PyResult<T> {
        match self.awake.try_lock() {
            Ok(mut awake) => work(&mut awake),
            Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread is in a call of this Awake";
                let remedy = "make one for each thread";
                Err(exception(py, "BusyError", message, remedy))
            }
        }
    }
}

#[pymethods]
impl Awake {
    /// `file` is a descriptor, or an object with fileno(), such as a socket.
    #[new]
    fn new(py: Python<'_>, file: Bound<'_, PyAny>) -> PyResult<Self> {
        let descriptor = match file.extract::<RawFd>() {
            Ok(descriptor) => descriptor,
            Err(_) => file.call_method0("fileno")?.extract::<RawFd>()?,
        };
        let opened = open_descriptor(descriptor).map_err(|_| {
            let message = format!("{descriptor} is not an open descriptor");
            argument(py, &message, "give a socket that is open")
        })?;
        Ok(Self {
            awake: Mutex::new(opened.into()),
            _file: file.unbind(),
        })
    }

    /// Waits until there is something to read, or an error: `timeout` seconds, for ever with None, not at all with 0.
    /// Returns whether there is; False when the time is over. Ctrl-C ends it.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = end_of_wait(py, timeout, None)?;
        self.with(py, |awake| {
            loop {
                let at = now();
                let step = deadline.saturating_duration_since(at).min(STEP);
                if py.detach(|| awake.wait(Some(step)))? {
                    return Ok(true);
                }
                if now() >= deadline {
                    return Ok(false);
                }
                py.check_signals()?;
            }
        })
    }

    /// To be called before a send to which the peer answers: so answers are expected by their delay, too.
    fn sent(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |awake| {
            awake.sent();
            Ok(())
        })
    }

    /// Rhythm of the sender, and how its messages were found, in words.
    #[getter]
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |awake| Ok(awake.to_string()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Awake {}>", self.report(py)?))
    }
}

/// Sleeps until a moment in seconds on `time.monotonic()`, and is awake then. Returns how late it was, in seconds.
///
/// >>> import time, tautline
/// >>> due = time.monotonic() + 0.001
/// >>> late = tautline.sleep_until(due)
/// >>> time.monotonic() >= due
/// True
#[pyfunction]
pub(crate) fn sleep_until(py: Python<'_>, moment: f64) -> PyResult<f64> {
    let end = end_of_wait(py, None, Some(moment))?;
    while end.saturating_duration_since(now()) > 2 * STEP {
        py.detach(|| std::thread::sleep(STEP));
        py.check_signals()?;
    }
    let late: Duration = py.detach(|| sleep::until(end));
    py.check_signals()?;
    Ok(late.as_secs_f64())
}
