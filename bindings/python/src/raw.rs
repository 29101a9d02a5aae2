//! The raw port.

use pyo3::prelude::*;
use tautline::port::RAW_FRAME_BYTES_MAX;
use tautline::{Instant, Wait};

use crate::buffer::Bytes;
use crate::errors::Raise;
use crate::message::Frame;
use crate::port::{Shell, base_port_class, kind};
use crate::wait::{instant, look_or_deadline, wait};

/// A port for whole Ethernet frames of one EtherType: EtherCAT, LLDP, or a protocol of your own. On links xdp and xsk
/// the frames bypass the kernel's protocol stack; on packet they come through a packet socket; other links have none.
/// Frames are kept as in a queuing port; the priority is that of their tag. Made by `Node.raw_port()`.
///
/// One thread uses a port at a time; a second one gets BusyError.
///
/// >>> node = tautline.Node(interface="eth0", link="xdp")                     # doctest: +SKIP
/// >>> with node.raw_port(0x88b4) as port:                                    # doctest: +SKIP
/// ...     port.send(bytes.fromhex("ffffffffffff 020000000001 88b4") + b"?")
/// ...     print(port.receive(timeout=1.0).data[14:])
/// b'!'
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct RawPort(pub(crate) Shell<tautline::RawPort>);

kind!(tautline::RawPort, |port: &tautline::RawPort| {
    Some(port.ethertype().into())
});

impl RawPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::RawPort) -> Self {
        let name = port.ethertype().to_string();
        Self(Shell::new(node, name, port, RAW_FRAME_BYTES_MAX))
    }

    fn receive_by(&self, py: Python<'_>, deadline: Instant) -> PyResult<Option<Frame>> {
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
        Ok(found.map(|head| Frame::new(py, &held.buffer, head)))
    }
}

base_port_class!(RawPort, "RawPort", {
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

    /// The most urgent frame. Waits for one: `timeout` seconds, for ever with None, not at all with 0. Returns None
    /// when the time is over. Spins first, then sleeps. Raises ReceiveError.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        self.receive_by(py, look_or_deadline(py, timeout)?)
    }

    /// As receive(), until a moment in seconds on `time.monotonic()`.
    fn receive_until(&self, py: Python<'_>, deadline: f64) -> PyResult<Option<Frame>> {
        self.receive_by(py, instant(py, deadline)?)
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
