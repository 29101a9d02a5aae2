//! The queuing port.
#![allow(unsafe_code)] // Messages that are lent go with their port.

use pyo3::prelude::*;
use tautline::port::LentMessage as Lent;
use tautline::{Instant, Wait};

use crate::errors::Raise;
use crate::lent::{LentMessage, MessageHead, WithPort};
use crate::message::{Destination, Message};
use crate::port::{Held, Shell, kind, numbered_port_class, sends};
use crate::wait::{deadline, instant, look_or_deadline, wait};

/// A port that keeps every message and hands out the most urgent first: eight priorities, each of a fixed depth,
/// first in first out. A full one drops and counts, and takes no room from the others. Made by `Node.queuing_port()`.
///
/// One thread uses a port at a time; a second one gets BusyError. While a call waits, other threads of Python run, and
/// Ctrl-C ends it.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "motor", "ip": "127.0.0.1"}])
/// >>> with node.queuing_port(3021) as port, node.queuing_port(3022, depth=16) as motor:
/// ...     to_motor = port.destination("motor", 3022)
/// ...     port.send(to_motor, b"later", priority=1)
/// ...     port.send(to_motor, b"stop", priority=7)
/// ...     first, second = motor.receive(), motor.receive()
/// >>> first.data, second.data
/// (b'stop', b'later')
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct QueuingPort(pub(crate) Shell<tautline::QueuingPort>);

kind!(tautline::QueuingPort, |port: &tautline::QueuingPort| {
    Some(port.number().into())
});
sends!(tautline::QueuingPort, send);

impl QueuingPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::QueuingPort) -> Self {
        let (name, bytes_max) = (port.number().to_string(), port.message_bytes_max());
        Self(Shell::new(node, name, port, bytes_max))
    }

    fn receive_by(&self, py: Python<'_>, deadline: Instant) -> PyResult<Option<Message>> {
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let found = match deadline {
            // Arms the descriptor, too, if anybody has it.
            Instant::ZERO => {
                let found = held.port.receive_into(&mut held.buffer, Wait::Poll);
                found.map_err(|error| error.raise(py))?
            }
            _ => wait(py, held, deadline, |held, until| {
                held.port.receive_into(&mut held.buffer, Wait::Until(until))
            })?,
        };
        Ok(found.map(|head| Message::new(py, &held.buffer, head)))
    }

    fn lent_by(&self, py: Python<'_>, deadline: Instant) -> PyResult<Option<LentMessage>> {
        let receive = |held: &mut Held<tautline::QueuingPort>| {
            wait(py, held, deadline, |held, until| {
                let found = held.port.receive_in_place(Wait::Until(until))?;
                // SAFETY: the message goes into `WithPort`, which keeps the port in its place and from others.
                Ok(found.map(|found| unsafe { detached(found) }))
            })
        };
        // SAFETY: the message borrows from the port.
        let lent = unsafe { WithPort::new(py, &self.0.cell, receive) }?;
        let Some(mut lent) = lent else {
            return Ok(None);
        };
        let look = |message: &mut Lent<'static>| {
            let bytes = message.bytes();
            let head = MessageHead {
                priority: message.priority,
                source: message.source,
                arrival: message.arrival,
                sequence: message.sequence,
            };
            ((bytes.as_ptr(), bytes.len()), head)
        };
        let Some((extent, head)) = lent.look(look) else {
            return Ok(None);
        };
        // SAFETY: the bytes lie in the port's memory or its peer's, and stay there as long as the lent message.
        unsafe { LentMessage::new(py, extent, head, Box::new(lent)) }.map(Some)
    }
}

/// A lent message without the borrow of its port.
///
/// # Safety
/// The port stays where it is, and is not used otherwise, while the message lives.
unsafe fn detached(message: Lent<'_>) -> Lent<'static> {
    // SAFETY: the types differ in a lifetime alone; the caller's promise.
    unsafe { std::mem::transmute::<Lent<'_>, Lent<'static>>(message) }
}

numbered_port_class!(QueuingPort, tautline::QueuingPort, "QueuingPort", {
    /// Bytes of the largest message that the port can hold.
    #[getter]
    fn message_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.enter(py)?.port().port.message_bytes_max())
    }

    /// Sends a message: any object with contiguous bytes, such as `bytes` or a numpy array. One system call a frame;
    /// never waits. `priority` is 0 to 7, 7 most urgent. Raises SendError, and FullError if trying again may help.
    #[pyo3(signature = (to, message, priority=3))]
    fn send(
        &self,
        py: Python<'_>,
        to: &Destination,
        message: &Bound<'_, PyAny>,
        priority: u8,
    ) -> PyResult<()> {
        self.0.send(py, to, message, priority)
    }

    /// Merges small messages into one frame. The frame leaves when it is full, when a message to another destination or
    /// of another priority comes, or by flush(); there is no timer. Raises as send().
    #[pyo3(signature = (to, message, priority=3))]
    fn merge(
        &self,
        py: Python<'_>,
        to: &Destination,
        message: &Bound<'_, PyAny>,
        priority: u8,
    ) -> PyResult<()> {
        self.0
            .hand_over(py, to, message, priority, |held, to, priority, bytes| {
                held.port.merge(to, priority, bytes)
            })
    }

    /// Sends what is merged. Raises SendError; it then stays merged.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut entered = self.0.enter(py)?;
        entered.port().port.flush().map_err(|error| error.raise(py))
    }

    /// The most urgent message. Waits for one: `timeout` seconds, for ever with None, not at all with 0. Returns None
    /// when the time is over. Spins first, then sleeps. Raises ReceiveError.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Message>> {
        self.receive_by(py, look_or_deadline(py, timeout)?)
    }

    /// As receive(), until a moment in seconds on `time.monotonic()`.
    fn receive_until(&self, py: Python<'_>, deadline: f64) -> PyResult<Option<Message>> {
        self.receive_by(py, instant(py, deadline)?)
    }

    /// As receive(), but the message stays where it lies until it is given back.
    #[pyo3(signature = (timeout=None))]
    fn receive_lent(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<LentMessage>> {
        self.lent_by(py, deadline(py, timeout)?)
    }

    /// As receive(), for tasks of `asyncio`: the loop watches the descriptor meanwhile.
    #[pyo3(signature = (timeout=None))]
    fn receive_async<'py>(
        slf: &Bound<'py, Self>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let helper = slf.py().import("tautline._aio")?.getattr("receive")?;
        helper.call1((slf, timeout))
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::receive_async(slf, None)
    }
});
