//! The sampling port.
#![allow(unsafe_code)] // Values that are lent go with their port.

use std::time::Duration;

use pyo3::prelude::*;
use tautline::port::LentSample;
use tautline::{ReceiveError, Wait, now};

use crate::errors::Raise;
use crate::message::{Body, Sample, Source};
use crate::port::{Receives, Shell, kind, numbered_port_class, sends};
use crate::wait::end_of_wait;

/// A port that keeps the last value only, of all senders or, with `sources`, of each, with its arrival, age and
/// validity. A read never waits and never returns half a value. Made by `Node.sampling()`.
///
/// One thread uses a port at a time; a second one gets BusyError.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "hub", "ip": "127.0.0.1"}])
/// >>> with node.queuing(3031) as port, node.sampling(3032, refresh_period=0.01) as hub:
/// ...     to_hub = port.destination("hub", 3032)
/// ...     port.send(to_hub, b"1")
/// ...     port.send(to_hub, b"2")
/// ...     sample = hub.next()
/// ...     while sample.data != b"2":
/// ...         sample = hub.next()
/// ...     print(hub.read().data, hub.fresh)
/// b'2' False
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct SamplingPort(pub(crate) Shell<tautline::SamplingPort>);

kind!(tautline::SamplingPort, |port: &tautline::SamplingPort| {
    Some(port.number().into())
});
sends!(tautline::SamplingPort, send);

/// A value where it lies.
pub(crate) struct Borrowed(LentSample<'static>);

// SAFETY: it is pointers into memory that the port keeps, and the one thread that has it only reads there.
unsafe impl Send for Borrowed {}

impl Receives for tautline::SamplingPort {
    type Head = tautline::Sample;
    type Class = Sample;
    type Borrowed = Borrowed;

    fn take(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Option<Self::Head>, ReceiveError> {
        self.next_into(buffer, wait)
    }

    fn poll(&mut self, buffer: &mut [u8]) -> Result<Option<Self::Head>, ReceiveError> {
        let found = self.next_into(buffer, Wait::Poll)?;
        if found.is_some() {
            return Ok(found);
        }
        // Arms the descriptor, if anybody has it, and looks once more.
        Ok(self.read_into(buffer)?.filter(|sample| sample.new))
    }

    unsafe fn borrow(&mut self, _: Wait) -> Result<Option<Self::Borrowed>, ReceiveError> {
        let found = self.read_in_place()?;
        let detach = |found| {
            // SAFETY: the types differ in a lifetime alone; the caller keeps the port in its place and from others.
            unsafe { std::mem::transmute::<LentSample<'_>, LentSample<'static>>(found) }
        };
        Ok(found.map(detach).map(Borrowed))
    }

    fn facts(Borrowed(found): &mut Borrowed, refresh_period: Duration) -> (*const u8, Self::Head) {
        let age = now().saturating_duration_since(found.arrival);
        let head = tautline::Sample {
            length: found.bytes.len(),
            priority: found.priority,
            source: found.source,
            arrival: found.arrival,
            age,
            valid: age <= refresh_period,
            sequence: found.sequence,
            overwritten: found.overwritten,
            new: found.new,
        };
        (found.bytes.as_ptr(), head)
    }

    fn length(head: &Self::Head) -> usize {
        head.length
    }

    fn show(body: Body, head: Self::Head) -> Sample {
        Sample::new(body, head)
    }
}

impl SamplingPort {
    pub(crate) fn of(
        py: Python<'_>,
        node: &tautline::Node,
        port: tautline::SamplingPort,
    ) -> PyResult<Self> {
        let key = port.number().into();
        let (name, bytes_max) = (port.number().to_string(), port.value_bytes_max());
        let ports = node.status().ports;
        let own = ports.iter().find(|one| one.key == key);
        let period_ns = own.and_then(|own| own.refresh_period_ns);
        let shell = Shell::new(node, name, port, bytes_max);
        let period = Duration::from_nanos(period_ns.unwrap_or_default());
        Ok(Self(shell.with_refresh_period(py, period)?))
    }
}

numbered_port_class!(SamplingPort, tautline::SamplingPort, "SamplingPort", {
    /// Bytes of the largest value that the port takes.
    #[getter]
    fn value_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.enter(py)?.port().port.value_bytes_max())
    }

    /// The last value, seen before or not; None while there has never been one. Never waits. With `in_place` it stays
    /// where it lies until it is given back. Raises ReceiveError.
    #[pyo3(signature = (*, in_place=false))]
    fn read(&self, py: Python<'_>, in_place: bool) -> PyResult<Option<Sample>> {
        if in_place {
            return self.0.receive_in_place(py, tautline::Instant::ZERO);
        }
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let found = held.port.read_into(&mut held.buffer);
        let found = found.map_err(|error| error.raise(py))?;
        Ok(found.map(|head| {
            let body = Body::copied(py, &held.buffer[..head.length]);
            Sample::new(body, head)
        }))
    }

    /// The last value of one source, as read().
    fn read_from(&self, py: Python<'_>, source: &Source) -> PyResult<Option<Sample>> {
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let found = held.port.read_from(source.0);
        let found = found.map_err(|error| error.raise(py))?;
        Ok(found.map(|value| Sample::new(Body::copied(py, &value), *value.sample())))
    }

    /// The next value that this port has not seen; of several sources' values, the one that came first. Waits for one:
    /// `timeout` seconds, for ever with None, not at all with 0; or `until` a moment on `time.monotonic()`. Returns
    /// None when the time is over.
    #[pyo3(signature = (timeout=None, *, until=None))]
    fn next(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        until: Option<f64>,
    ) -> PyResult<Option<Sample>> {
        self.0.receive(py, end_of_wait(py, timeout, until)?)
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

    /// The same as next(), for tasks of `asyncio`: the loop watches the descriptor meanwhile.
    #[pyo3(signature = (timeout=None))]
    fn next_async<'py>(
        slf: &Bound<'py, Self>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let helper = slf.py().import("tautline._aio")?.getattr("next_value")?;
        helper.call1((slf, timeout))
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::next_async(slf, None)
    }
});
