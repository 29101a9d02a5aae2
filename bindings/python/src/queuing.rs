//! The queuing port.
#![allow(unsafe_code)] // Messages that are lent go with their port.

use std::time::Duration;

use pyo3::prelude::*;
use tautline::port::LentMessage;
use tautline::{ReceiveError, Wait};

use crate::errors::Raise;
use crate::message::{Body, Destination, Message};
use crate::port::{Receives, Shell, kind, receiving, sends};

/// A port that keeps every message and hands out the most urgent first: eight priorities, each of a fixed depth,
/// first in first out. A full one drops and counts, and takes no room from the others. Made by `Node.queuing()`.
///
/// One thread uses a port at a time; a second one gets BusyError. While a call waits, other threads of Python run, and
/// Ctrl-C ends it.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "motor", "ip": "127.0.0.1"}])
/// >>> with node.queuing(3021) as port, node.queuing(3022, depth=16) as motor:
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

impl Receives for tautline::QueuingPort {
    type Head = tautline::Message;
    type Class = Message;
    type Borrowed = LentMessage<'static>;

    fn take(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Option<Self::Head>, ReceiveError> {
        self.receive_into(buffer, wait)
    }

    unsafe fn borrow(&mut self, wait: Wait) -> Result<Option<Self::Borrowed>, ReceiveError> {
        let found = self.receive_in_place(wait)?;
        // SAFETY: the types differ in a lifetime alone; the caller keeps the port in its place and from others.
        Ok(found
            .map(|found| unsafe { std::mem::transmute::<LentMessage<'_>, Self::Borrowed>(found) }))
    }

    fn facts(found: &mut Self::Borrowed, _: Duration) -> (*const u8, Self::Head) {
        let bytes = found.bytes();
        let head = tautline::Message {
            length: bytes.len(),
            priority: found.priority,
            source: found.source,
            arrival: found.arrival,
            sequence: found.sequence,
        };
        (bytes.as_ptr(), head)
    }

    fn length(head: &Self::Head) -> usize {
        head.length
    }

    fn show(body: Body, head: Self::Head) -> Message {
        Message::new(body, head)
    }
}

impl QueuingPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::QueuingPort) -> Self {
        let (name, bytes_max) = (port.number().to_string(), port.message_bytes_max());
        Self(Shell::new(node, name, port, bytes_max))
    }
}

receiving!(
    Message,
    numbered_port_class,
    (QueuingPort, tautline::QueuingPort, "QueuingPort"),
    {
        /// Bytes of the largest message that the port can hold.
        #[getter]
        fn message_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
            Ok(self.0.enter(py)?.port().port.message_bytes_max())
        }

        /// Merges small messages into one frame. The frame leaves when it is full, when a message to another
        /// destination or of another priority comes, or by flush(); there is no timer. Raises as send().
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
    }
);
