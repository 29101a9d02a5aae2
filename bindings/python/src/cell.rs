//! The one who uses a port at a time: a thread during a call, or a message that is lent.
#![allow(unsafe_code)] // A value that is not always dropped.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;
use tautline_state::fork::OwnerProcess;

use crate::errors::exception;

/// Refuses a call in a process that was forked from the one that opened `what`.
pub(crate) fn check_process(py: Python<'_>, process: OwnerProcess, what: &str) -> PyResult<()> {
    if process.is_current() {
        return Ok(());
    }
    let message = format!("this {what} belongs to the process that opened it, not to its fork");
    let remedy = "open it after the fork, or start processes with the method \"spawn\"";
    Err(exception(py, "ClosedError", &message, remedy))
}

/// Something that is dropped by the process that made it, and left alone by forks of that: it is their parent's.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    owned: ManuallyDrop<T>,
    pub(crate) process: OwnerProcess,
}

impl<T> OfProcess<T> {
    /// This process's.
    pub(crate) fn new(owned: T) -> Self {
        Self {
            owned: ManuallyDrop::new(owned),
            process: OwnerProcess::current(),
        }
    }
}

impl<T> std::ops::Deref for OfProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.owned
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.owned) };
        }
    }
}

/// A port, or where it is.
#[derive(Debug)]
pub(crate) enum Place<P> {
    /// Here.
    Open(Box<P>),
    /// With a message that is lent, or a loan that is filled.
    Lent,
    /// Nowhere any more.
    Closed,
}

/// A port that one uses at a time.
#[derive(Debug)]
pub(crate) struct Cell<P>(OfProcess<Mutex<Place<P>>>);

impl<P> Cell<P> {
    pub(crate) fn new(port: P) -> Self {
        Self(OfProcess::new(Mutex::new(Place::Open(Box::new(port)))))
    }

    /// The port, for one call.
    #[inline]
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<InUse<'_, P>> {
        let place = self.lock(py)?;
        match *place {
            Place::Open(_) => Ok(InUse(place)),
            Place::Lent => Err(lent(py)),
            Place::Closed => Err(closed(py)),
        }
    }

    /// Takes the port away, for a message that is lent.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Box<P>> {
        let mut place = self.lock(py)?;
        match std::mem::replace(&mut *place, Place::Lent) {
            Place::Open(port) => Ok(port),
            Place::Lent => Err(lent(py)),
            Place::Closed => {
                *place = Place::Closed;
                Err(closed(py))
            }
        }
    }

    /// Takes the port back, and closes it if that was wanted meanwhile.
    pub(crate) fn put_back(&self, port: Box<P>) {
        if !self.0.process.is_current() {
            std::mem::forget(port);
            return;
        }
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *place {
            Place::Closed => {
                drop(place);
                drop(port);
            }
            _ => *place = Place::Open(port),
        }
    }

    /// Closes the port; if a message is lent, when that comes back.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()>
    where
        P: Send,
    {
        let port = match self.0.process.is_current() {
            true => std::mem::replace(&mut *self.lock(py)?, Place::Closed),
            false => Place::Closed,
        };
        py.detach(|| drop(port));
        Ok(())
    }

    pub(crate) fn is_open(&self) -> bool {
        let locked = match self.0.try_lock() {
            Ok(place) => !matches!(*place, Place::Closed),
            // Somebody uses it.
            Err(_) => true,
        };
        locked && self.0.process.is_current()
    }

    #[inline]
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Place<P>>> {
        check_process(py, self.0.process, "port")?;
        match self.0.try_lock() {
            Ok(place) => Ok(place),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(exception(
                py,
                "BusyError",
                "another thread is in a call of this port",
                "use a port in one thread at a time: open a second one for the other thread",
            )),
        }
    }
}

/// A port during a call.
pub(crate) struct InUse<'c, P>(MutexGuard<'c, Place<P>>);

impl<P> InUse<'_, P> {
    #[inline]
    pub(crate) fn port(&mut self) -> &mut P {
        match &mut *self.0 {
            Place::Open(port) => port,
            // `Cell::enter` has looked, under the same lock.
            Place::Lent | Place::Closed => unreachable!("the port is open"),
        }
    }
}

fn lent(py: Python<'_>) -> PyErr {
    let message = "a message of this port is lent";
    let remedy = "give it back first: leave its `with` block, or call its release()";
    exception(py, "BusyError", message, remedy)
}

fn closed(py: Python<'_>) -> PyErr {
    let remedy = "open it again, or close it later";
    exception(py, "ClosedError", "this port is closed", remedy)
}
