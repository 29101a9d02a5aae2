//! The raw port.
#![allow(unsafe_code)] // Frames that are lent go with their port.

use std::time::Duration;

use pyo3::prelude::*;
use tautline::port::{RAW_FRAME_BYTES_MAX, ReceivedFrame};
use tautline::{ReceiveError, Wait};

use crate::buffer::Bytes;
use crate::errors::Raise;
use crate::message::{Body, Frame};
use crate::port::{Receives, Shell, kind, receiving};

/// A port for whole Ethernet frames of one EtherType: EtherCAT, LLDP, or a protocol of your own. On links xdp and xsk
/// the frames bypass the kernel's protocol stack; on packet they come through a packet socket; other links have none.
/// Frames are kept as in a queuing port; the priority is that of their tag. Made by `Node.raw()`.
///
/// One thread uses a port at a time; a second one gets BusyError.
///
/// >>> node = tautline.Node(interface="eth0", link="xdp")                     # doctest: +SKIP
/// >>> with node.raw(0x88b4) as port:                                         # doctest: +SKIP
/// ...     port.send(bytes.fromhex("ffffffffffff 020000000001 88b4") + b"?")
/// ...     print(port.receive(timeout=1.0).data[14:])
/// b'!'
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct RawPort(pub(crate) Shell<tautline::RawPort>);

kind!(tautline::RawPort, |port: &tautline::RawPort| {
    Some(port.ethertype().into())
});

impl Receives for tautline::RawPort {
    type Head = ReceivedFrame;
    type Class = Frame;
    type Borrowed = tautline::port::Frame<'static>;

    fn take(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Option<Self::Head>, ReceiveError> {
        self.receive_into(buffer, wait)
    }

    unsafe fn borrow(&mut self, wait: Wait) -> Result<Option<Self::Borrowed>, ReceiveError> {
        let found = self.receive(wait)?;
        let detach = |found| {
            // SAFETY: the types differ in a lifetime alone; the caller keeps the port in its place and from others.
            unsafe { std::mem::transmute::<tautline::port::Frame<'_>, Self::Borrowed>(found) }
        };
        Ok(found.map(detach))
    }

    fn facts(found: &mut Self::Borrowed, _: Duration) -> (*const u8, Self::Head) {
        let head = ReceivedFrame {
            length: found.len(),
            priority: found.priority(),
            arrival: found.arrival(),
        };
        (found.as_ptr(), head)
    }

    fn length(head: &Self::Head) -> usize {
        head.length
    }

    fn show(body: Body, head: Self::Head) -> Frame {
        Frame::new(body, head)
    }
}

impl RawPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::RawPort) -> Self {
        let name = port.ethertype().to_string();
        Self(Shell::new(node, name, port, RAW_FRAME_BYTES_MAX))
    }
}

receiving!(Frame, base_port_class, (RawPort, "RawPort"), {
    /// EtherType of its frames.
    #[getter]
    fn ethertype(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.0.enter(py)?.port().port.ethertype().get())
    }

    /// Sends a frame as it is: any object with contiguous bytes, from the destination's address to the end of the
    /// payload, of the port's EtherType, directly or behind a tag of no VLAN. One system call; never waits. Raises
    /// SendError, and FullError if trying again may help.
    fn send(&self, py: Python<'_>, frame: &Bound<'_, PyAny>) -> PyResult<()> {
        let frame = Bytes::of(frame)?;
        let mut entered = self.0.enter(py)?;
        let sent = entered.port().port.send(&frame);
        sent.map_err(|error| error.raise(py))
    }
});
