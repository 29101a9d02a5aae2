//! Messages where they lie, and messages that are filled in place.
//!
//! The library's lent messages borrow their port. Here the port goes with the message, out of its cell, and comes back
//! when the message is given back: by `release()`, by the end of a `with` block, or when nobody has it any more. No
//! view outlives that, because the memory counts its views (`buffer`).
#![allow(unsafe_code)] // A value that borrows what lies beside it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use tautline::send_pool::LentBuffer;
use tautline_state::fork::OwnerProcess;

use crate::buffer::{Extent, Memory, given_back};
use crate::cell::Cell;
use crate::errors::Raise;
use crate::port::Held;

/// Something that borrows a port, with the port.
pub(crate) struct WithPort<P, T> {
    /// Gone before the port is given back.
    borrower: Option<T>,
    /// From `Box::into_raw`; touched only through `borrower` while that is there.
    port: NonNull<P>,
    cell: Arc<Cell<P>>,
    process: OwnerProcess,
}

// SAFETY: the port may be used by any thread (`P: Send`), and the borrower is pointers into it, or into memory that it
// shares with the node, and is used by the one thread that has this value.
unsafe impl<P: Send, T> Send for WithPort<P, T> {}

impl<P, T> WithPort<P, T> {
    /// Takes the port out of its cell and has it lend; `None` if there was nothing to lend.
    ///
    /// # Safety
    /// A borrower borrows from the port that `lend` is given, or from nothing.
    pub(crate) unsafe fn new(
        py: Python<'_>,
        cell: &Arc<Cell<P>>,
        lend: impl FnOnce(&mut P) -> PyResult<Option<T>>,
    ) -> PyResult<Option<Self>> {
        let port = NonNull::from(Box::leak(cell.take(py)?));
        let mut with_port = Self {
            borrower: None,
            port,
            cell: Arc::clone(cell),
            process: OwnerProcess::current(),
        };
        // SAFETY: the port was taken out of its cell, so nobody else has it, and it stays where it is until this value
        // is dropped, which drops the borrower first.
        with_port.borrower = lend(unsafe { &mut *port.as_ptr() })?;
        Ok(with_port.borrower.is_some().then_some(with_port))
    }

    /// Facts about the borrower.
    pub(crate) fn look<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.borrower.as_mut().map(look)
    }

    /// Takes the borrower out, for its last call.
    fn finish<R>(mut self, work: impl FnOnce(T) -> R) -> Option<R> {
        self.borrower.take().map(work)
    }
}

impl<P, T> Drop for WithPort<P, T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // In the child of a fork nothing is touched: port and message are the parent's.
            std::mem::forget(self.borrower.take());
            return;
        }
        drop(self.borrower.take());
        // SAFETY: from `Box::leak` in `new`, made a box again once, here; what borrowed it is gone.
        self.cell
            .put_back(unsafe { Box::from_raw(self.port.as_ptr()) });
    }
}

/// Memory that is lent to Python, with the view that the program was given.
pub(crate) struct Lent {
    memory: Memory,
    view: Mutex<Option<Py<PyAny>>>,
    bytes: usize,
}

impl Lent {
    /// # Safety
    /// As [`Memory::new`].
    pub(crate) unsafe fn new(
        py: Python<'_>,
        extent: Extent,
        keeper: crate::buffer::Keeper,
    ) -> PyResult<Self> {
        let bytes = extent.bytes;
        Ok(Self {
            // SAFETY: the caller's promise.
            memory: unsafe { Memory::new(py, extent, keeper) }?,
            view: Mutex::new(None),
            bytes,
        })
    }

    /// The same view each time, so that giving back can release it.
    pub(crate) fn data(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if !self.memory.is_kept(py) {
            return Err(given_back(py));
        }
        let known = self.view().as_ref().map(|view| view.clone_ref(py));
        match known {
            Some(view) => Ok(view),
            None => {
                let view = self.memory.view(py)?.unbind();
                *self.view() = Some(view.clone_ref(py));
                Ok(view)
            }
        }
    }

    /// Ends the loan; its keeper, unless that was done before.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<Option<crate::buffer::Keeper>> {
        let view = self.view().take();
        if let Some(view) = view
            && let Err(error) = view.call_method0(py, "release")
        {
            // Something was made of the view itself, such as an array: the loan goes on.
            *self.view() = Some(view);
            return Err(error);
        }
        self.memory.end(py)
    }

    pub(crate) fn is_kept(&self, py: Python<'_>) -> bool {
        self.memory.is_kept(py)
    }

    fn view(&self) -> std::sync::MutexGuard<'_, Option<Py<PyAny>>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A loan without the borrow of its port.
///
/// # Safety
/// The port stays where it is, and is not used otherwise, while the loan lives.
pub(crate) unsafe fn detached_loan(
    loan: tautline::port::Loan<'_>,
) -> tautline::port::Loan<'static> {
    // SAFETY: the types differ in a lifetime alone; the caller's promise.
    unsafe { std::mem::transmute::<tautline::port::Loan<'_>, tautline::port::Loan<'static>>(loan) }
}

/// The last call of a loan. Nothing if its keeper is another one's.
type SendLoan = fn(Python<'_>, crate::buffer::Keeper) -> Option<PyResult<()>>;

/// A datagram that is filled in place: its buffer, which borrows nothing, and what it is sent with.
pub(crate) struct DatagramLoan {
    pub(crate) buffer: LentBuffer,
    pub(crate) cell: Arc<Cell<Held<tautline::UdpPort>>>,
    pub(crate) to: tautline::Destination,
    pub(crate) priority: tautline::Priority,
}

impl DatagramLoan {
    fn send(mut self, py: Python<'_>) -> PyResult<()> {
        let mut entered = self.cell.enter(py)?;
        let port = &mut entered.port().port;
        let sent = port.send_buffer(self.to, self.priority, &mut self.buffer);
        sent.map_err(|error| error.raise(py))
    }
}

/// The place of a message that is filled and sent without a copy: over a bus a slot that the receiver looks into,
/// elsewhere a buffer of the node's pool. `view` is a writable `memoryview`; at first it holds what an earlier message
/// has left. Without send() nothing is sent. A port of plain UDP can lend several places at a time.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "eye", "ip": "127.0.0.1"}])
/// >>> port, eye = node.queuing(3015), node.queuing(3016)
/// >>> with port.lend(port.destination("eye", 3016), 7) as loan:
/// ...     loan.view[:] = b"picture"
/// ...     loan.send()
/// >>> eye.receive().data
/// b'picture'
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Loan {
    lent: Lent,
    send: SendLoan,
}

impl Loan {
    /// A loan of a port.
    pub(crate) fn of<P: Send + 'static>(
        py: Python<'_>,
        mut loan: WithPort<P, tautline::port::Loan<'static>>,
    ) -> PyResult<Self> {
        let extent = |place: &mut tautline::port::Loan<'_>| Extent {
            start: place.as_mut_ptr(),
            bytes: place.len(),
            read_only: false,
        };
        let extent = loan.look(extent).ok_or_else(|| given_back(py))?;
        Ok(Self {
            // SAFETY: a loan's bytes are writable while it lives, and they are not in it, but in the port's memory or
            // the pool's.
            lent: unsafe { Lent::new(py, extent, Box::new(loan)) }?,
            send: |py, keeper| {
                let loan = keeper
                    .downcast::<WithPort<P, tautline::port::Loan<'static>>>()
                    .ok()?;
                let sent = loan.finish(tautline::port::Loan::send)?;
                Some(sent.map_err(|error| error.raise(py)))
            },
        })
    }

    /// A loan of a port of plain UDP.
    pub(crate) fn of_datagram(py: Python<'_>, mut loan: DatagramLoan) -> PyResult<Self> {
        let extent = Extent {
            start: loan.buffer.as_mut_ptr(),
            bytes: loan.buffer.len(),
            read_only: false,
        };
        Ok(Self {
            // SAFETY: the bytes are the pool's, and the buffer's alone while it lives, wherever it is moved.
            lent: unsafe { Lent::new(py, extent, Box::new(loan)) }?,
            send: |py, keeper| Some(keeper.downcast::<DatagramLoan>().ok()?.send(py)),
        })
    }
}

#[pymethods]
impl Loan {
    /// The place to fill: a writable `memoryview`. Raises ClosedError after send() or release().
    #[getter]
    fn view(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.lent.data(py)
    }

    /// Sends what has been filled in, and gives the port back. Raises BufferError while slices of the view, or arrays
    /// made of it, are in use, and SendError.
    fn send(&self, py: Python<'_>) -> PyResult<()> {
        let keeper = self.lent.end(py)?.ok_or_else(|| given_back(py))?;
        (self.send)(py, keeper).unwrap_or(Ok(()))
    }

    /// Gives the place back without sending.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.lent.end(py).map(drop)
    }

    fn __len__(&self) -> usize {
        self.lent.bytes
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.lent.is_kept(py) {
            "being filled"
        } else {
            "given back"
        };
        format!("<Loan of {} bytes, {state}>", self.lent.bytes)
    }
}
