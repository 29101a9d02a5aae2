//! The port of plain UDP.
#![allow(unsafe_code)] // Datagrams that are lent go with their port.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tautline::port::LentDatagram;
use tautline::{ReceiveError, Wait};

use crate::errors::{Raise, argument};
use crate::lent::{DatagramLoan, Loan};
use crate::message::{Body, Datagram, Destination, pair};
use crate::port::{ATTACHED_BYTES_MAX, Receives, Shell, kind, priority, receiving, sends};

/// A port of plain UDP, for peers that do not run Tautline. On links `xdp` and `xsk` it bypasses the kernel's protocol
/// stack; elsewhere it is an ordinary socket. Datagrams are kept as in a queuing port; the priority is the IP
/// precedence. Made by `Node.udp()`.
///
/// One thread uses a port at a time; a second one gets BusyError.
///
/// >>> import socket, tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1")
/// >>> sensor = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
/// >>> with node.udp(15203) as port:
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

impl Receives for tautline::UdpPort {
    type Head = tautline::port::Datagram;
    type Class = Datagram;
    type Borrowed = LentDatagram<'static>;

    fn take(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Option<Self::Head>, ReceiveError> {
        self.receive_into(buffer, wait)
    }

    unsafe fn borrow(&mut self, wait: Wait) -> Result<Option<Self::Borrowed>, ReceiveError> {
        let found = self.receive(wait)?;
        // SAFETY: the types differ in a lifetime alone; the caller keeps the port in its place and from others.
        Ok(found
            .map(|found| unsafe { std::mem::transmute::<LentDatagram<'_>, Self::Borrowed>(found) }))
    }

    fn facts(found: &mut Self::Borrowed, _: Duration) -> (*const u8, Self::Head) {
        (found.as_ptr(), found.datagram())
    }

    fn length(head: &Self::Head) -> usize {
        head.length
    }

    fn show(body: Body, head: Self::Head) -> Datagram {
        Datagram::new(body, head)
    }
}

impl UdpPort {
    pub(crate) fn of(node: &tautline::Node, port: tautline::UdpPort) -> Self {
        let (name, bytes_max) = (port.local().to_string(), port.message_bytes_max());
        Self(Shell::new(node, name, port, bytes_max))
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

receiving!(Datagram, port_class, (UdpPort, "UdpPort"), {
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

    /// Lends the place of the next datagram, of `length` bytes, up to 65,507, to be filled and sent without a copy.
    /// Raises FullError if all places of that size are lent.
    #[pyo3(signature = (to, length, priority=3))]
    fn lend(
        &self,
        py: Python<'_>,
        to: &Destination,
        length: usize,
        priority: u8,
    ) -> PyResult<Loan> {
        let priority = self::priority(py, priority)?;
        let mut entered = self.0.enter(py)?;
        let buffer = entered.port().port.lend_buffer(length);
        let loan = DatagramLoan {
            buffer: buffer.map_err(|error| error.raise(py))?,
            cell: Arc::clone(&self.0.cell),
            to: to.to,
            priority,
        };
        Loan::of_datagram(py, loan)
    }
});
