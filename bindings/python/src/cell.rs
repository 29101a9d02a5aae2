//! The one who uses a port at a time: a thread during a call, or a message that is lent.
#![allow(unsafe_code)] // A handler that runs in the child of a fork.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

use crate::errors::exception;

/// Number of forks that lead to this process, since the module was loaded.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts forks from now on.
pub(crate) fn watch_forks() -> PyResult<()> {
    extern "C" fn forked() {
        // Partner: the loads in `Origin`. The child has one thread, this one.
        FORKS.fetch_add(1, Relaxed);
        tautline_awake::cpu::reset_after_fork();
    }
    // SAFETY: the handler lives as long as the process, since modules of Python are never unloaded, and it does nothing
    // but atomic operations, which is allowed in the child of a fork.
    match unsafe { libc::pthread_atfork(None, None, Some(forked)) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error).into()),
    }
}

/// The process that opened something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(FORKS.load(Relaxed))
    }

    /// Whether it is this process, and not one that this one was forked from.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }

    pub(crate) fn check(self, py: Python<'_>, what: &str) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        let message = format!("this {what} belongs to the process that opened it, not to its fork");
        let remedy = "open it after the fork, or start processes with the method \"spawn\"";
        Err(exception(py, "ClosedError", &message, remedy))
    }
}

/// Something that is dropped by the process that made it, and left alone by forks of that: it is their parent's.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    owned: ManuallyDrop<T>,
    pub(crate) origin: Origin,
}

impl<T> OfProcess<T> {
    /// This process's.
    pub(crate) fn new(owned: T) -> Self {
        Self {
            owned: ManuallyDrop::new(owned),
            origin: Origin::here(),
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
        if self.origin.is_here() {
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
        if !self.0.origin.is_here() {
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
        let port = match self.0.origin.is_here() {
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
        locked && self.0.origin.is_here()
    }

    #[inline]
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Place<P>>> {
        self.0.origin.check(py, "port")?;
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
