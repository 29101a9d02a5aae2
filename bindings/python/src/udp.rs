//! The port of plain UDP.
#![allow(unsafe_code)] // Datagrams that are lent go with their port.

use std::net::{Ipv4Addr, SocketAddrV4};

use pyo3::prelude::*;
use tautline::port::LentDatagram as Lent;
use tautline::{Instant, Wait};

use crate::errors::{Raise, argument};
use crate::lent::{LentDatagram, SendBuffer, WithPort};
use crate::message::{Datagram, Destination, pair};
use crate::port::{ATTACHED_BYTES_MAX, Held, Shell, kind, port_class, priority, sends};
use crate::wait::{deadline, instant, look_or_deadline, wait};

/// A port of plain UDP, for peers that do not run Tautline. On links `xdp` and `xsk` it bypasses the kernel's protocol
/// stack; elsewhere it is an ordinary socket. Datagrams are kept as in a queuing port; the priority is the IP
/// precedence. Made by `Node.udp_port()`.
///
/// One thread uses a port at a time; a second one gets BusyError.
///
/// >>> import socket, tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1")
/// >>> sensor = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
/// >>> with node.udp_port(15203) as port:
/// ...     _ = sensor.sendto(b"21.5", port.local)
/// ...     print(port.receive(timeout=1.0).data)
/// b'21.5'
/// >>> sensor.close()
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct UdpPort(pub(crate) Shell<tautline::UdpPort>);

kind!(tautline::UdpPort, |port: &tautline::UdpPort| {
    tautline::PortKey::udp(port.number()).ok()
});
sends!(tautline::UdpPort, send_to);

impl UdpPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::UdpPort) -> Self {
        let (name, bytes_max) = (port.local().to_string(), port.message_bytes_max());
        Self(Shell::new(node, name, port, bytes_max))
    }

    fn receive_by(&self, py: Python<'_>, deadline: Instant) -> PyResult<Option<Datagram>> {
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
        Ok(found.map(|head| Datagram::new(py, &held.buffer, head)))
    }
}

/// An address and a UDP port as Python's sockets have them.
fn peer_address(py: Python<'_>, (address, port): &(String, u16)) -> PyResult<SocketAddrV4> {
    let ip: Ipv4Addr = address.parse().map_err(|_| {
        let message = format!("`{address}` is no IPv4 address");
        argument(
            py,
            &message,
            "give the `source` of a datagram, such as (\"10.0.0.2\", 5000)",
        )
    })?;
    Ok(SocketAddrV4::new(ip, *port))
}

port_class!(UdpPort, "UdpPort", {
    /// The UDP port's number.
    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.0.enter(py)?.port().port.number())
    }

    /// The node's address, and the port's number.
    #[getter]
    fn local(&self, py: Python<'_>) -> PyResult<(String, u16)> {
        Ok(pair(self.0.enter(py)?.port().port.local()))
    }

    /// Bytes of the longest datagram that the port receives. It sends up to 65,507.
    #[getter]
    fn message_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.enter(py)?.port().port.message_bytes_max())
    }

    /// The destination of datagrams to a UDP port of a peer: a neighbour's name or an IPv4 address. Not for the hot
    /// path. Raises PortError.
    fn destination(&self, py: Python<'_>, peer: &str, port: u16) -> PyResult<Destination> {
        let name = format!("{peer}:{port}");
        self.0
            .resolve(py, name, None, |udp, _| udp.destination(peer, port))
    }

    /// Sends an answer of up to 65,507 bytes to the source of a datagram: its address and UDP port. The source does not
    /// become a destination, so a port can answer any number of peers. Never waits. Raises SendError, and FullError if
    /// trying again may help.
    #[pyo3(signature = (source, datagram, priority=3))]
    fn reply(
        &self,
        py: Python<'_>,
        source: (String, u16),
        datagram: &Bound<'_, PyAny>,
        priority: u8,
    ) -> PyResult<()> {
        let to = peer_address(py, &source)?;
        self.0.pass(
            py,
            datagram,
            priority,
            ATTACHED_BYTES_MAX,
            |held, priority, bytes| held.port.reply(to, priority, bytes),
        )
    }

    /// Sends a datagram of up to 65,507 bytes: any object with contiguous bytes. Never waits. `priority` is 0 to 7, 7
    /// most urgent. Raises SendError, and FullError if trying again may help.
    #[pyo3(signature = (to, datagram, priority=3))]
    fn send(
        &self,
        py: Python<'_>,
        to: &Destination,
        datagram: &Bound<'_, PyAny>,
        priority: u8,
    ) -> PyResult<()> {
        self.0.send(py, to, datagram, priority)
    }

    /// Lends a buffer of the node's pool for a datagram of `length` bytes, to be filled in place and sent with
    /// send_lent(). Raises FullError if all of that size are lent.
    fn lend_buffer(&self, py: Python<'_>, length: usize) -> PyResult<SendBuffer> {
        let mut entered = self.0.enter(py)?;
        let buffer = entered.port().port.lend_buffer(length);
        SendBuffer::of(py, buffer.map_err(|error| error.raise(py))?)
    }

    /// Sends the content of a lent buffer from where it lies. Raises as send().
    #[pyo3(signature = (to, buffer, priority=3))]
    fn send_lent(
        &self,
        py: Python<'_>,
        to: &Destination,
        buffer: &SendBuffer,
        priority: u8,
    ) -> PyResult<()> {
        let (to, priority) = (to.to, self::priority(py, priority)?);
        let mut entered = self.0.enter(py)?;
        let held = entered.port();
        let sent = buffer.with(py, |buffer| held.port.send_lent(to, priority, buffer))?;
        sent.map_err(|error| error.raise(py))
    }

    /// Sends shorter packets from now on to an address and UDP port, such as an UndeliveredError's `destination`: 68 to
    /// 1,500 bytes each, for a path that takes no longer ones.
    fn limit_packets(&self, py: Python<'_>, to: (String, u16), mtu_bytes: usize) -> PyResult<()> {
        let to = peer_address(py, &to)?;
        self.0.enter(py)?.port().port.limit_packets(to, mtu_bytes);
        Ok(())
    }

    /// The most urgent datagram. Waits for one: `timeout` seconds, for ever with None, not at all with 0. Returns None
    /// when the time is over. Raises UndeliveredError once for each datagram that did not arrive, and ReceiveError.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Datagram>> {
        self.receive_by(py, look_or_deadline(py, timeout)?)
    }

    /// As receive(), until a moment in seconds on `time.monotonic()`.
    fn receive_until(&self, py: Python<'_>, deadline: f64) -> PyResult<Option<Datagram>> {
        self.receive_by(py, instant(py, deadline)?)
    }

    /// As receive(), but the datagram stays where it lies until it is given back.
    #[pyo3(signature = (timeout=None))]
    fn receive_lent(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<LentDatagram>> {
        let deadline = deadline(py, timeout)?;
        let receive = |held: &mut Held<tautline::UdpPort>| {
            wait(py, held, deadline, |held, until| {
                let found = held.port.receive(Wait::Until(until))?;
                // SAFETY: the types differ in a lifetime alone, and the datagram goes into `WithPort`, which keeps the
                // port in its place and from others.
                Ok(found
                    .map(|found| unsafe { std::mem::transmute::<Lent<'_>, Lent<'static>>(found) }))
            })
        };
        // SAFETY: the datagram borrows from the port.
        let lent = unsafe { WithPort::new(py, &self.0.cell, receive) }?;
        let Some(mut lent) = lent else {
            return Ok(None);
        };
        let look = |lent: &mut Lent<'static>| ((lent.as_ptr(), lent.len()), lent.datagram());
        let Some((extent, head)) = lent.look(look) else {
            return Ok(None);
        };
        // SAFETY: the bytes lie in the port's memory, and stay there as long as the lent datagram.
        unsafe { LentDatagram::new(py, extent, head, Box::new(lent)) }.map(Some)
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
