//! The sampling port.
#![allow(unsafe_code)] // Values that are lent go with their port.

use pyo3::prelude::*;
use pyo3::types::PyList;
use tautline::port::LentSample as Lent;
use tautline::{Instant, Wait};

use crate::errors::Raise;
use crate::lent::{LentSample, MessageHead, SampleHead, WithPort};
use crate::message::{Destination, Sample, Source};
use crate::port::{Held, Shell, kind, numbered_port_class, sends};
use crate::wait::{instant, look_or_deadline, wait};

/// A port that keeps the last value only, of all senders or, with `sources`, of each, with its arrival, age and
/// validity. A read never waits and never returns half a value. Made by `Node.sampling_port()`.
///
/// One thread uses a port at a time; a second one gets BusyError.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "hub", "ip": "127.0.0.1"}])
/// >>> with node.queuing_port(3031) as port, node.sampling_port(3032, refresh_period=0.01) as hub:
/// ...     to_hub = port.destination("hub", 3032)
/// ...     port.send(to_hub, b"1")
/// ...     port.send(to_hub, b"2")
/// ...     sample = hub.read_new()
/// ...     while sample.data != b"2":
/// ...         sample = hub.read_new()
/// ...     print(hub.read().data, hub.fresh)
/// b'2' False
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct SamplingPort(pub(crate) Shell<tautline::SamplingPort>);

kind!(tautline::SamplingPort, |port: &tautline::SamplingPort| {
    Some(port.number().into())
});
sends!(tautline::SamplingPort, send);

impl SamplingPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::SamplingPort) -> Self {
        let (name, bytes_max) = (port.number().to_string(), port.value_bytes_max());
        Self(Shell::new(node, name, port, bytes_max))
    }

    fn read_by(&self, py: Python<'_>, deadline: Instant) -> PyResult<Option<Sample>> {
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let mut found = wait(py, held, deadline, |held, until| {
            held.port.next_into(&mut held.buffer, Wait::Until(until))
        })?;
        if found.is_none() && deadline == Instant::ZERO {
            // Arms the descriptor, if anybody has it, and looks once more.
            let last = held.port.read_into(&mut held.buffer);
            let last = last.map_err(|error| error.raise(py))?;
            found = last.filter(|sample| sample.new);
        }
        Ok(found.map(|head| Sample::new(py, &held.buffer, head)))
    }
}

numbered_port_class!(SamplingPort, tautline::SamplingPort, "SamplingPort", {
    /// Bytes of the largest value that the port takes.
    #[getter]
    fn value_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.enter(py)?.port().port.value_bytes_max())
    }

    /// As QueuingPort.send(). A peer's sampling port takes values of one frame only.
    #[pyo3(signature = (to, value, priority=3))]
    fn send(
        &self,
        py: Python<'_>,
        to: &Destination,
        value: &Bound<'_, PyAny>,
        priority: u8,
    ) -> PyResult<()> {
        self.0.send(py, to, value, priority)
    }

    /// The last value, seen before or not; None while there has never been one. Never waits. Raises ReceiveError.
    fn read(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let found = held.port.read_into(&mut held.buffer);
        let found = found.map_err(|error| error.raise(py))?;
        Ok(found.map(|head| Sample::new(py, &held.buffer, head)))
    }

    /// The last value of one source, as read().
    fn read_from(&self, py: Python<'_>, source: &Source) -> PyResult<Option<Sample>> {
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let found = held.port.read_from(source.0);
        let found = found.map_err(|error| error.raise(py))?;
        Ok(found.map(|value| Sample::new(py, &value, *value.sample())))
    }

    /// All values that have not been read, in the order of their arrival: at most one of each source. Never waits.
    fn read_newer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let mut samples = Vec::new();
        // At most one of each source, so that it ends whatever comes meanwhile.
        for _ in 0..tautline::port::SOURCES_MAX {
            let found = held.port.next(Wait::Poll);
            let Some(value) = found.map_err(|error| error.raise(py))? else {
                break;
            };
            samples.push(Sample::new(py, &value, *value.sample()));
        }
        PyList::new(py, samples)
    }

    /// The next value that this port has not seen; of several sources' values, the one that came first. Waits for one:
    /// `timeout` seconds, for ever with None, not at all with 0. Returns None when the time is over.
    #[pyo3(signature = (timeout=None))]
    fn read_new(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Sample>> {
        self.read_by(py, look_or_deadline(py, timeout)?)
    }

    /// As read_new(), until a moment in seconds on `time.monotonic()`.
    fn read_new_until(&self, py: Python<'_>, deadline: f64) -> PyResult<Option<Sample>> {
        self.read_by(py, instant(py, deadline)?)
    }

    /// The last value where it lies, until it is given back; None while there has never been one. Never waits.
    fn read_lent(&self, py: Python<'_>) -> PyResult<Option<LentSample>> {
        let read = |held: &mut Held<tautline::SamplingPort>| {
            let found = held.port.read_in_place().map_err(|error| error.raise(py))?;
            // SAFETY: the types differ in a lifetime alone, and the value goes into `WithPort`, which keeps the port in
            // its place and from others.
            Ok(found.map(|found| unsafe { std::mem::transmute::<Lent<'_>, Lent<'static>>(found) }))
        };
        // SAFETY: the value borrows from the port.
        let lent = unsafe { WithPort::new(py, &self.0.cell, read) }?;
        let Some(mut lent) = lent else {
            return Ok(None);
        };
        let look = |sample: &mut Lent<'static>| {
            let message = MessageHead {
                priority: sample.priority,
                source: sample.source,
                arrival: sample.arrival,
                sequence: sample.sequence,
            };
            let Lent {
                overwritten, new, ..
            } = *sample;
            let extent = (sample.bytes.as_ptr(), sample.bytes.len());
            (
                extent,
                SampleHead {
                    message,
                    overwritten,
                    new,
                },
            )
        };
        let Some((extent, head)) = lent.look(look) else {
            return Ok(None);
        };
        // SAFETY: the bytes lie in the port's memory or its peer's, and stay there until the port is used again.
        unsafe { LentSample::new(py, extent, head, Box::new(lent)) }.map(Some)
    }

    /// Whether there is a value that this port has not seen.
    #[getter]
    fn fresh(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.enter(py)?.port().port.fresh())
    }

    /// The sources whose values the port keeps, in no order.
    #[getter]
    fn sources(&self, py: Python<'_>) -> PyResult<Vec<Source>> {
        let mut entered = self.0.enter(py)?;
        Ok(entered.port().port.sources().map(Source).collect())
    }

    /// As read_new(), for tasks of `asyncio`: the loop watches the descriptor meanwhile.
    #[pyo3(signature = (timeout=None))]
    fn read_new_async<'py>(
        slf: &Bound<'py, Self>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let helper = slf.py().import("tautline._aio")?.getattr("read_new")?;
        helper.call1((slf, timeout))
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::read_new_async(slf, None)
    }
});
