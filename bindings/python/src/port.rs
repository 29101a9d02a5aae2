//! Common parts of the four kinds of port.
#![allow(unsafe_code)] // Messages that are lent go with their port.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyList;
use tautline::port::{AdaptiveSpin, Outgoing};
use tautline::{Instant, PortError, Priority, ReceiveError, SendError, Spin, Wait, now};

use crate::buffer::{Bytes, Extent};
use crate::cell::{Cell, InUse};
use crate::errors::{Raise, argument, exception};
use crate::lent::{Lent, WithPort};
use crate::message::{Body, Destination, Source, serial};
use crate::wait::{Spins, deadline, wait};

/// Longest message that is sent without leaving the interpreter to others: one frame, one system call. Longer: other
/// threads of Python wait for as many system calls. Shorter: the two switches cost more than the send.
pub(crate) const ATTACHED_BYTES_MAX: usize = 1_500;

/// A port of the library with room for what it receives.
#[derive(Debug)]
pub(crate) struct Held<P> {
    pub(crate) port: P,
    pub(crate) buffer: Box<[u8]>,
    adaptive: AdaptiveSpin,
    /// Of a sampling port, else zero.
    refresh_period: Duration,
    /// Closed with the port, not with the object of Python that has been it.
    node: tautline::Node,
}

impl<P: Kind> Spins for Held<P> {
    fn spin(&self) -> Spin {
        self.port.spin()
    }

    fn set_spin(&mut self, spin: Spin) {
        self.port.set_spin(spin);
    }

    fn adaptive(&mut self) -> &mut AdaptiveSpin {
        &mut self.adaptive
    }
}

/// Calls that all kinds of port have.
pub(crate) trait Kind: Send {
    fn spin(&self) -> Spin;
    fn set_spin(&mut self, spin: Spin);
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>>;
    /// The port's part of its node's status.
    fn status(&mut self, node: &tautline::Node) -> serde_json::Value;
}

/// Calls of ports that send to destinations.
pub(crate) trait Sends: Kind {
    fn send(
        &mut self,
        to: tautline::Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError>;
    fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError>;
}

/// Parts of receiving in which the kinds differ; [`Shell::receive`] and [`Shell::receive_in_place`] are for all.
pub(crate) trait Receives: Kind + Sized + 'static {
    /// Facts about what was received.
    type Head: Send;
    /// Its class in Python.
    type Class;
    /// The message where it lies, as the library lends it. It borrows the port.
    type Borrowed: Send + 'static;

    /// Takes the next one into a buffer.
    fn take(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Option<Self::Head>, ReceiveError>;

    /// Takes the next one without waiting, and arms the descriptor, if anybody has it.
    fn poll(&mut self, buffer: &mut [u8]) -> Result<Option<Self::Head>, ReceiveError> {
        self.take(buffer, Wait::Poll)
    }

    /// Takes the next one where it lies; of a sampling port, the last one.
    ///
    /// # Safety
    /// The port stays where it is, and is not used otherwise, while the result lives.
    unsafe fn borrow(&mut self, wait: Wait) -> Result<Option<Self::Borrowed>, ReceiveError>;

    /// Where the bytes begin, and facts about them. The sender of a value is late after `refresh_period`.
    fn facts(found: &mut Self::Borrowed, refresh_period: Duration) -> (*const u8, Self::Head);

    /// Number of bytes.
    fn length(head: &Self::Head) -> usize;

    /// An object of the class.
    fn show(body: Body, head: Self::Head) -> Self::Class;
}

/// Implements the calls that the library's ports have under the same names.
macro_rules! kind {
    ($port:ty, $key:expr) => {
        impl crate::port::Kind for $port {
            fn spin(&self) -> tautline::Spin {
                <$port>::spin(self)
            }

            fn set_spin(&mut self, spin: tautline::Spin) {
                <$port>::set_spin(self, spin);
            }

            fn descriptor(&mut self) -> Option<std::os::fd::BorrowedFd<'_>> {
                <$port>::descriptor(self)
            }

            fn status(&mut self, node: &tautline::Node) -> serde_json::Value {
                let ports = node.status().ports;
                let key: Option<tautline::PortKey> = $key(self);
                let own = ports.iter().find(|port| Some(port.key) == key);
                serde_json::to_value(own).unwrap_or_default()
            }
        }
    };
}
pub(crate) use kind;

/// The same of ports that send to destinations.
macro_rules! sends {
    ($port:ty, $send:ident) => {
        impl crate::port::Sends for $port {
            #[inline]
            fn send(
                &mut self,
                to: tautline::Destination,
                priority: tautline::Priority,
                message: &[u8],
            ) -> Result<(), tautline::SendError> {
                <$port>::$send(self, to, priority, message)
            }

            fn send_batch(
                &mut self,
                batch: &[tautline::port::Outgoing<'_>],
            ) -> Result<usize, tautline::SendError> {
                <$port>::send_batch(self, batch)
            }
        }
    };
}
pub(crate) use sends;

/// A port as Python's classes hold it.
pub(crate) struct Shell<P> {
    pub(crate) cell: Arc<Cell<Held<P>>>,
    /// Number that no other port of this process has.
    id: u64,
    /// The port's name for people.
    pub(crate) name: String,
}

impl<P: Kind + 'static> Shell<P> {
    pub(crate) fn new(node: &tautline::Node, name: String, port: P, bytes_max: usize) -> Self {
        let held = Held {
            port,
            buffer: vec![0; bytes_max].into(),
            adaptive: AdaptiveSpin::default(),
            refresh_period: Duration::ZERO,
            node: node.clone(),
        };
        Self {
            cell: Arc::new(Cell::new(held)),
            id: serial(),
            name,
        }
    }

    /// A value of the port is valid for so long.
    pub(crate) fn with_refresh_period(self, py: Python<'_>, period: Duration) -> PyResult<Self> {
        self.enter(py)?.port().refresh_period = period;
        Ok(self)
    }

    #[inline]
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<InUse<'_, Held<P>>> {
        self.cell.enter(py)
    }

    /// A descriptor for select and its like.
    pub(crate) fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let mut entered = self.enter(py)?;
        let descriptor = entered.port().port.descriptor();
        descriptor.map(|fd| fd.as_raw_fd()).ok_or_else(|| {
            let remedy = "use link xdp, xsk, packet, udp or vbus";
            exception(
                py,
                "PortError",
                "the link has no descriptor to wait on",
                remedy,
            )
        })
    }

    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A task that waits would hang: the event loop forgets a descriptor that is closed.
        if self.cell.is_open() {
            py.import("tautline._aio")?
                .call_method1("check_unwatched", (self.id,))?;
        }
        self.cell.close(py)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut entered = self.enter(py)?;
        let Held { port, node, .. } = entered.port();
        let status = py.detach(|| port.status(node));
        python_value(py, &status)
    }

    pub(crate) fn repr(&self, class: &str) -> String {
        let state = if self.cell.is_open() { "" } else { ", closed" };
        format!("<{class} {}{state}>", self.name)
    }

    /// Frames and losses of each sender.
    pub(crate) fn losses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let status = self.status(py)?.into_bound(py);
        let class = py.import("tautline._types")?.getattr("PeerCounters")?;
        let counters = PyList::empty(py);
        for peer in status.get_item("peers")?.try_iter()? {
            let keywords = peer?.cast_into::<pyo3::types::PyDict>()?;
            counters.append(class.call((), Some(&keywords))?)?;
        }
        Ok(counters)
    }
}

impl<P: Receives> Shell<P> {
    /// Receives the next one, until a moment; [`Instant::ZERO`] polls.
    pub(crate) fn receive(&self, py: Python<'_>, until: Instant) -> PyResult<Option<P::Class>> {
        let mut entered = self.enter(py)?;
        let held = entered.port();
        let found = match until {
            Instant::ZERO => {
                let found = held.port.poll(&mut held.buffer);
                found.map_err(|error| error.raise(py))?
            }
            _ => wait(py, held, until, |held, until| {
                held.port.take(&mut held.buffer, Wait::Until(until))
            })?,
        };
        Ok(found.map(|head| {
            let body = Body::copied(py, &held.buffer[..P::length(&head)]);
            P::show(body, head)
        }))
    }

    /// Receives the next one, which stays where it lies until it is given back.
    pub(crate) fn receive_in_place(
        &self,
        py: Python<'_>,
        until: Instant,
    ) -> PyResult<Option<P::Class>> {
        let mut refresh_period = Duration::ZERO;
        let receive = |held: &mut Held<P>| {
            refresh_period = held.refresh_period;
            wait(py, held, until, |held, until| {
                // SAFETY: the result goes into `WithPort`, which keeps the port in its place and from others.
                unsafe { held.port.borrow(Wait::Until(until)) }
            })
        };
        // SAFETY: the result borrows from the port.
        let found = unsafe { WithPort::new(py, &self.cell, receive) }?;
        let Some(mut found) = found else {
            return Ok(None);
        };
        let Some((start, head)) = found.look(|found| P::facts(found, refresh_period)) else {
            return Ok(None);
        };
        let extent = Extent {
            start: start.cast_mut(),
            bytes: P::length(&head),
            read_only: true,
        };
        // SAFETY: the bytes lie in the port's memory or its peer's, and stay there as long as `found`.
        let lent = unsafe { Lent::new(py, extent, Box::new(found)) }?;
        Ok(Some(P::show(Body::Lent(lent), head)))
    }
}

impl<P: Sends + 'static> Shell<P> {
    #[inline]
    pub(crate) fn send(
        &self,
        py: Python<'_>,
        to: &Destination,
        message: &Bound<'_, PyAny>,
        priority: u8,
    ) -> PyResult<()> {
        self.hand_over(py, to, message, priority, |held, to, priority, bytes| {
            held.port.send(to, priority, bytes)
        })
    }

    /// Gives a message to the port, to be sent or merged.
    #[inline]
    pub(crate) fn hand_over(
        &self,
        py: Python<'_>,
        to: &Destination,
        message: &Bound<'_, PyAny>,
        priority: u8,
        send: impl FnOnce(&mut Held<P>, tautline::Destination, Priority, &[u8]) -> Result<(), SendError>
        + Send,
    ) -> PyResult<()> {
        let to = to.to;
        self.pass(
            py,
            message,
            priority,
            ATTACHED_BYTES_MAX,
            |held, priority, bytes| send(held, to, priority, bytes),
        )
    }

    /// Passes a message to the port, with the interpreter free if the message is longer than `attached_bytes_max`.
    #[inline]
    pub(crate) fn pass(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        priority: u8,
        attached_bytes_max: usize,
        send: impl FnOnce(&mut Held<P>, Priority, &[u8]) -> Result<(), SendError> + Send,
    ) -> PyResult<()> {
        let priority = self::priority(py, priority)?;
        let message = Bytes::of(message)?;
        let bytes: &[u8] = &message;
        let mut entered = self.enter(py)?;
        let held = entered.port();
        let sent = match bytes.len() <= attached_bytes_max {
            true => send(held, priority, bytes),
            false => py.detach(|| send(held, priority, bytes)),
        };
        sent.map_err(|error| error.raise(py))
    }

    pub(crate) fn send_batch(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<usize> {
        let items = batch.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let parts = items
            .iter()
            .map(|item| item.extract::<(PyRef<'_, Destination>, Bound<'_, PyAny>, u8)>());
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let bytes = parts.iter().map(|(_, message, _)| Bytes::of(message));
        let bytes = bytes.collect::<PyResult<Vec<_>>>()?;
        let outgoing = parts
            .iter()
            .zip(&bytes)
            .map(|((to, _, priority), message)| {
                Ok(Outgoing {
                    to: to.to,
                    priority: self::priority(py, *priority)?,
                    message,
                })
            });
        let outgoing = outgoing.collect::<PyResult<Vec<_>>>()?;
        let mut entered = self.enter(py)?;
        let held = entered.port();
        let sent = py.detach(|| held.port.send_batch(&outgoing));
        sent.map_err(|error| error.raise(py))
    }

    /// Resolves a destination with the interpreter free; tries again until the time is over, where that helps.
    pub(crate) fn resolve(
        &self,
        py: Python<'_>,
        name: String,
        timeout: Option<f64>,
        resolve: impl Fn(&mut P, Option<Instant>) -> Result<tautline::Destination, PortError> + Sync,
    ) -> PyResult<Destination> {
        let mut entered = self.enter(py)?;
        let port = &mut entered.port().port;
        let until = timeout.map(|_| deadline(py, timeout)).transpose()?;
        loop {
            let step = until.map(|until| until.min(now() + crate::wait::STEP));
            match py.detach(|| resolve(port, step)) {
                Ok(to) => return Ok(Destination { to, name }),
                Err(PortError::PeerAbsent { .. }) if until.is_some_and(|until| now() < until) => {
                    py.check_signals()?;
                }
                Err(error) => return Err(error.raise(py)),
            }
        }
    }
}

/// Bytes of the longest answer that is sent with the interpreter held. On a bus an answer may wait.
pub(crate) fn attached_bytes_max(source: &Source) -> usize {
    match source.0.address {
        tautline::address::Address::Bus(_) => 0,
        _ => ATTACHED_BYTES_MAX,
    }
}

/// A JSON value as Python's objects.
pub(crate) fn python_value(py: Python<'_>, value: &serde_json::Value) -> PyResult<Py<PyAny>> {
    let loads = py.import("json")?.getattr("loads")?;
    Ok(loads.call1((value.to_string(),))?.unbind())
}

/// A priority from its number.
#[inline]
pub(crate) fn priority(py: Python<'_>, number: u8) -> PyResult<Priority> {
    Priority::new(number).ok_or_else(|| {
        let message = format!("{number} is no priority");
        argument(py, &message, "use 0 to 7; 7 is the most urgent")
    })
}

/// A port number.
pub(crate) fn port_number(py: Python<'_>, number: u16) -> PyResult<tautline::PortNumber> {
    tautline::PortNumber::try_from(number).map_err(|error| PortError::from(error).raise(py))
}

/// Makes the methods of a class of ports: its own, and those that all have.
macro_rules! base_port_class {
    ($class:ident, $name:literal, { $($own:tt)* }) => {
        #[pymethods]
        impl $class {
            $($own)*

            /// A descriptor for `select`, `poll`, `selectors` and `asyncio`. It becomes readable when a message comes
            /// after a look that found nothing; so: look with timeout 0 until there is nothing, then wait.
            fn fileno(&self, py: Python<'_>) -> PyResult<std::os::fd::RawFd> {
                self.0.fileno(py)
            }

            /// State of the port as `taut status --json` shows it: counters, losses, what waits.
            fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.0.status(py)
            }

            /// Closes the port. A message that is lent stays valid, and the port closes when it comes back. Raises
            /// BusyError while another thread or task waits.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                self.0.close(py)
            }

            /// Whether the port is closed.
            #[getter]
            fn closed(&self) -> bool {
                !self.0.cell.is_open()
            }

            /// Number that no other port of this process has.
            #[getter]
            fn _id(&self) -> u64 {
                self.0.id()
            }

            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
                self.close(py)
            }

            fn __repr__(&self) -> String {
                self.0.repr($name)
            }
        }
    };
}
pub(crate) use base_port_class;

/// The same of ports that send to destinations.
macro_rules! port_class {
    ($class:ident, $name:literal, { $($own:tt)* }) => {
        crate::port::base_port_class!($class, $name, {
            $($own)*

            /// Sends a message, a value or a datagram: any object with contiguous bytes, such as `bytes` or a numpy
            /// array. One system call a frame; never waits. `priority` is 0 to 7, 7 most urgent. A peer's sampling port
            /// takes values of one frame only; a datagram has up to 65,507 bytes. Raises SendError, and FullError if
            /// trying again may help.
            #[pyo3(signature = (to, message, priority=3))]
            fn send(
                &self,
                py: Python<'_>,
                to: &crate::message::Destination,
                message: &Bound<'_, PyAny>,
                priority: u8,
            ) -> PyResult<()> {
                self.0.send(py, to, message, priority)
            }

            /// Sends messages in their order, with few system calls: `batch` is a sequence of (destination, message,
            /// priority). Returns how many were taken: all, unless the driver's transmit queue is full. Raises
            /// SendError if none was taken.
            fn send_batch(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<usize> {
                self.0.send_batch(py, batch)
            }
        });
    };
}
pub(crate) use port_class;

/// Makes the methods of a class of ports that keep everything: those of `$make`, and the calls that receive.
macro_rules! receiving {
    ($class:ty, $make:ident, ($($arguments:tt)*), { $($own:tt)* }) => {
        crate::port::$make!($($arguments)*, {
            /// The most urgent message, datagram or frame. Waits for one: `timeout` seconds, for ever with None, not at
            /// all with 0; or `until` a moment in seconds on `time.monotonic()`. Returns None when the time is over.
            /// Spins first, then sleeps. With `in_place` it stays where it lies until it is given back. Raises
            /// ReceiveError.
            #[pyo3(signature = (timeout=None, *, until=None, in_place=false))]
            fn receive(
                &self,
                py: Python<'_>,
                timeout: Option<f64>,
                until: Option<f64>,
                in_place: bool,
            ) -> PyResult<Option<$class>> {
                let end = crate::wait::end_of_wait(py, timeout, until)?;
                match in_place {
                    true => self.0.receive_in_place(py, end),
                    false => self.0.receive(py, end),
                }
            }

            /// The same as receive(), for tasks of `asyncio`: the loop watches the descriptor meanwhile.
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

            $($own)*
        });
    };
}
pub(crate) use receiving;

/// Makes the methods of a class of ports that have numbers: as `port_class`, and destinations by port number.
macro_rules! numbered_port_class {
    ($class:ident, $port:ty, $name:literal, { $($own:tt)* }) => {
        crate::port::port_class!($class, $name, {
            /// Number of the port.
            #[getter]
            fn number(&self, py: Python<'_>) -> PyResult<u16> {
                Ok(self.0.enter(py)?.port().port.number().get())
            }

            /// The destination of messages to a neighbour's port. On a bus it waits for the peer's port: `timeout`
            /// seconds, or as the configuration says. Not for the hot path. Raises PortError, and PeerAbsentError
            /// when the time is over.
            #[pyo3(signature = (neighbour, port, timeout=None))]
            fn destination(
                &self,
                py: Python<'_>,
                neighbour: &str,
                port: u16,
                timeout: Option<f64>,
            ) -> PyResult<crate::message::Destination> {
                let to = crate::port::port_number(py, port)?;
                let name = format!("{neighbour} port {port}");
                self.0
                    .resolve(py, name, timeout, |port, until| match until {
                        Some(until) => port.destination_until(neighbour, to, until),
                        None => port.destination(neighbour, to),
                    })
            }

            /// Sends an answer to the sender of a message: any object with contiguous bytes. The sender does not become
            /// a destination, so a port can answer any number of senders. Never waits, but on a bus up to a second for
            /// the first answer to a port. Raises SendError, and FullError if trying again may help.
            #[pyo3(signature = (source, message, priority=3))]
            fn reply(
                &self,
                py: Python<'_>,
                source: &crate::message::Source,
                message: &Bound<'_, PyAny>,
                priority: u8,
            ) -> PyResult<()> {
                let (to, attached) = (source.0, crate::port::attached_bytes_max(source));
                self.0
                    .pass(py, message, priority, attached, |held, priority, bytes| {
                        held.port.reply(to, priority, bytes)
                    })
            }

            /// On a bus, the destination of all who follow this port: what is sent there is written once, for up to 64
            /// readers. A send never waits for them; a reader that falls behind misses what it did not take in time,
            /// and counts it (`status()["overwritten"]`). Not for the hot path. Raises PortError.
            ///
            /// >>> import tempfile, tautline
            /// >>> bus = tempfile.mkdtemp() + "/bus"
            /// >>> camera = tautline.Node(link="vbus", bus=bus, node="camera")
            /// >>> viewer = tautline.Node(link="vbus", bus=bus, node="viewer", neighbour=[{"name": "camera"}])
            /// >>> with camera.sampling(5) as lens, viewer.sampling(6) as screen:
            /// ...     readers = lens.readers()
            /// ...     screen.follow("camera", 5)
            /// ...     lens.send(readers, b"picture")
            /// ...     screen.next().data
            /// b'picture'
            fn readers(&self, py: Python<'_>) -> PyResult<crate::message::Destination> {
                let name = "readers".to_owned();
                self.0.resolve(py, name, None, |port, _| port.readers())
            }

            /// Reads from now on what a neighbour's port of the same kind sends to its readers, beside what is sent to
            /// this port. A sampling port gets the last value first; the bus looks for the publisher again when it has
            /// gone. Raises PortError.
            fn follow(&self, py: Python<'_>, neighbour: &str, port: u16) -> PyResult<()> {
                let publisher = crate::port::port_number(py, port)?;
                let mut entered = self.0.enter(py)?;
                let own = &mut entered.port().port;
                let followed = py.detach(|| own.follow(neighbour, publisher));
                followed.map_err(|error| crate::errors::Raise::raise(error, py))
            }

            /// Lends the place of the next message, or value, of `length` bytes, to be filled and sent without a
            /// copy. Raises FullError if all places are lent, and SendError.
            #[pyo3(signature = (to, length, priority=3))]
            fn lend(
                &self,
                py: Python<'_>,
                to: &crate::message::Destination,
                length: usize,
                priority: u8,
            ) -> PyResult<crate::lent::Loan> {
                let (to, priority) = (to.to, crate::port::priority(py, priority)?);
                let lend = |held: &mut crate::port::Held<$port>| {
                    let loan = held.port.lend(to, priority, length);
                    let loan = loan.map_err(|error| crate::errors::Raise::raise(error, py))?;
                    // SAFETY: the loan goes into `WithPort`, which keeps the port in its place and from
                    // others.
                    Ok(Some(unsafe { crate::lent::detached_loan(loan) }))
                };
                // SAFETY: the loan borrows from the port.
                let loan = unsafe { crate::lent::WithPort::new(py, &self.0.cell, lend) }?;
                loan.map_or_else(
                    || Err(crate::buffer::given_back(py)),
                    |loan| crate::lent::Loan::of(py, loan),
                )
            }

            /// Counters of each sender: frames received, lost, received twice, and how often it began anew.
            fn losses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyList>> {
                self.0.losses(py)
            }

            $($own)*
        });
    };
}
pub(crate) use numbered_port_class;
