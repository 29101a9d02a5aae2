//! Messages, values, datagrams and frames that were received, and the two ends of each: source and destination.

use std::net::SocketAddrV4;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::wait::seconds;

/// A destination of one port: where its messages go. Made by `destination()` of that port, and
/// refused by others.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
/// >>> port = node.queuing_port(3001)
/// >>> port.destination("arm", 3002)
/// <Destination arm port 3002>
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Destination {
    pub(crate) to: tautline::Destination,
    pub(crate) name: String,
}

#[pymethods]
impl Destination {
    fn __repr__(&self) -> String {
        format!("<Destination {}>", self.name)
    }
}

/// The port of a node that a message came from: `address` is a MAC address, an IPv4 address with its UDP port, or the
/// name of a node on a bus; `port` the number of its port. Anybody can write anything there on a network: it tells
/// where an answer goes, and proves nothing.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
/// >>> port, arm = node.queuing_port(3003), node.queuing_port(3004)
/// >>> port.send(port.destination("arm", 3004), b"ready?")
/// >>> question = arm.receive()
/// >>> question.source.port
/// 3003
/// >>> arm.reply(question.source, b"ready")
/// >>> port.receive().data
/// b'ready'
#[pyclass(module = "tautline", frozen, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Source(pub(crate) tautline::Source);

#[pymethods]
impl Source {
    /// Address of the sender's node, as text.
    #[getter]
    fn address(&self) -> String {
        self.0.address.to_string()
    }

    /// Number of the sender's port.
    #[getter]
    fn port(&self) -> u16 {
        self.0.port.get()
    }

    fn __repr__(&self) -> String {
        format!("<Source {}>", self.0)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// A message that a queuing port has received.
///
/// `data` is its bytes, `priority` 0 to 7 (7 most urgent), `source` its sender, `arrival` when its last frame came, in
/// seconds on `time.monotonic()`, and `sequence` the number of its first frame.
///
/// >>> import tautline, time
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
/// >>> port, arm = node.queuing_port(3005), node.queuing_port(3006)
/// >>> port.send(port.destination("arm", 3006), b"up", priority=7)
/// >>> message = arm.receive()
/// >>> message.data, message.priority, len(message)
/// (b'up', 7, 2)
/// >>> 0 <= time.monotonic() - message.arrival < 1
/// True
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Message {
    #[pyo3(get)]
    data: Py<PyBytes>,
    head: tautline::Message,
}

impl Message {
    #[inline]
    pub(crate) fn new(py: Python<'_>, buffer: &[u8], head: tautline::Message) -> Self {
        let data = PyBytes::new(py, &buffer[..head.length]).unbind();
        Self { data, head }
    }
}

#[pymethods]
impl Message {
    /// Priority, 0 to 7; 7 is the most urgent.
    #[getter]
    fn priority(&self) -> u8 {
        self.head.priority.get()
    }

    /// Sender of the message.
    #[getter]
    fn source(&self) -> Source {
        Source(self.head.source)
    }

    /// Arrival of the last frame, in seconds on `time.monotonic()`; on a bus, when it was sent.
    #[getter]
    fn arrival(&self) -> f64 {
        seconds(self.head.arrival)
    }

    /// Number of the message's first frame, which its sender counts.
    #[getter]
    fn sequence(&self) -> u32 {
        self.head.sequence
    }

    fn __len__(&self) -> usize {
        self.head.length
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        let tautline::Message {
            length,
            priority,
            source,
            ..
        } = self.head;
        format!("<Message of {length} bytes, priority {priority}, from {source}>")
    }
}

/// A value that a sampling port has read.
///
/// `data` is its bytes, `priority` 0 to 7, `source` its sender, `arrival` when it came, in seconds on
/// `time.monotonic()`; `age` the seconds since then, at the moment of the read; `valid` whether that is within the
/// port's refresh period; `new` whether this read is the first to see it; `overwritten` the number of values that were
/// replaced unseen before it.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
/// >>> port, arm = node.queuing_port(3007), node.sampling_port(3008)
/// >>> port.send(port.destination("arm", 3008), b"42")
/// >>> sample = arm.read_new()
/// >>> sample.data, sample.valid, sample.new
/// (b'42', True, True)
/// >>> arm.read().new
/// False
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Sample {
    #[pyo3(get)]
    data: Py<PyBytes>,
    head: tautline::Sample,
}

impl Sample {
    #[inline]
    pub(crate) fn new(py: Python<'_>, bytes: &[u8], head: tautline::Sample) -> Self {
        let data = PyBytes::new(py, &bytes[..head.length]).unbind();
        Self { data, head }
    }
}

#[pymethods]
impl Sample {
    /// Priority, 0 to 7.
    #[getter]
    fn priority(&self) -> u8 {
        self.head.priority.get()
    }

    /// Sender of the value.
    #[getter]
    fn source(&self) -> Source {
        Source(self.head.source)
    }

    /// Arrival, in seconds on `time.monotonic()`; on a bus, when it was sent.
    #[getter]
    fn arrival(&self) -> f64 {
        seconds(self.head.arrival)
    }

    /// Time from arrival to this read, in seconds.
    #[getter]
    fn age(&self) -> f64 {
        self.head.age.as_secs_f64()
    }

    /// Whether the age was within the port's refresh period.
    #[getter]
    fn valid(&self) -> bool {
        self.head.valid
    }

    /// Whether this read was the first to see the value.
    #[getter(new)]
    fn is_new(&self) -> bool {
        self.head.new
    }

    /// Values of this source that were replaced unseen since the last that was read.
    #[getter]
    fn overwritten(&self) -> u64 {
        self.head.overwritten
    }

    /// Number of the value's frame, which its sender counts.
    #[getter]
    fn sequence(&self) -> u32 {
        self.head.sequence
    }

    fn __len__(&self) -> usize {
        self.head.length
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        let tautline::Sample {
            length,
            source,
            age,
            valid,
            ..
        } = self.head;
        let valid = if valid { "valid" } else { "no longer valid" };
        format!("<Sample of {length} bytes from {source}, {age:?} old, {valid}>")
    }
}

/// A datagram that a port of plain UDP has received.
///
/// `data` is its bytes, `source` the sender's address and UDP port as Python's sockets give them, `priority` its IP
/// precedence, `arrival` when it came, in seconds on `time.monotonic()`, `checksum` the state of its checksum:
/// "valid", "absent" or "partial".
///
/// >>> import socket, tautline
/// >>> port = tautline.Node(link="udp", address="127.0.0.1").udp_port(15200)
/// >>> peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
/// >>> _ = peer.sendto(b"position?", ("127.0.0.1", 15200))
/// >>> datagram = port.receive()
/// >>> datagram.data, datagram.source == ("127.0.0.1", peer.getsockname()[1])
/// (b'position?', True)
/// >>> port.reply(datagram.source, b"3 mm")
/// >>> peer.recv(100)
/// b'3 mm'
/// >>> peer.close()
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Datagram {
    #[pyo3(get)]
    data: Py<PyBytes>,
    head: tautline::port::Datagram,
}

impl Datagram {
    #[inline]
    pub(crate) fn new(py: Python<'_>, buffer: &[u8], head: tautline::port::Datagram) -> Self {
        let data = PyBytes::new(py, &buffer[..head.length]).unbind();
        Self { data, head }
    }
}

#[pymethods]
impl Datagram {
    /// Priority, 0 to 7: the IP precedence that it came with.
    #[getter]
    fn priority(&self) -> u8 {
        self.head.priority.get()
    }

    /// Sender: its IPv4 address and UDP port.
    #[getter]
    fn source(&self) -> (String, u16) {
        pair(self.head.source)
    }

    /// Arrival of the datagram, or of its last fragment, in seconds on `time.monotonic()`.
    #[getter]
    fn arrival(&self) -> f64 {
        seconds(self.head.arrival)
    }

    /// State of the checksum: "valid", "absent" or "partial".
    #[getter]
    fn checksum(&self) -> String {
        checksum(&self.head)
    }

    fn __len__(&self) -> usize {
        self.head.length
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        let tautline::port::Datagram { length, source, .. } = self.head;
        format!("<Datagram of {length} bytes from {source}>")
    }
}

/// An Ethernet frame that a raw port has received.
///
/// `data` is its bytes, from the destination's address to the end of the payload, without a tag; `priority` that of the
/// tag, 0 without one and on link packet; `arrival` when it came, in seconds on `time.monotonic()`.
///
/// >>> port = tautline.Node(interface="eth0", link="xdp").raw_port(0x88cc)  # doctest: +SKIP
/// >>> frame = port.receive()                                               # doctest: +SKIP
/// >>> frame.data[:6].hex(":"), len(frame)                                  # doctest: +SKIP
/// ('01:80:c2:00:00:0e', 214)
#[pyclass(module = "tautline", frozen)]
pub(crate) struct Frame {
    #[pyo3(get)]
    data: Py<PyBytes>,
    head: tautline::port::ReceivedFrame,
}

impl Frame {
    #[inline]
    pub(crate) fn new(py: Python<'_>, buffer: &[u8], head: tautline::port::ReceivedFrame) -> Self {
        let data = PyBytes::new(py, &buffer[..head.length]).unbind();
        Self { data, head }
    }
}

#[pymethods]
impl Frame {
    /// Priority of the frame's tag, 0 to 7; 0 without a tag, and on link packet.
    #[getter]
    fn priority(&self) -> u8 {
        self.head.priority.get()
    }

    /// Arrival, in seconds on `time.monotonic()`.
    #[getter]
    fn arrival(&self) -> f64 {
        seconds(self.head.arrival)
    }

    fn __len__(&self) -> usize {
        self.head.length
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        let tautline::port::ReceivedFrame {
            length, priority, ..
        } = self.head;
        format!("<Frame of {length} bytes, priority {priority}>")
    }
}

pub(crate) fn checksum(head: &tautline::port::Datagram) -> String {
    format!("{:?}", head.checksum).to_lowercase()
}

/// An address as Python's sockets have it.
pub(crate) fn pair(address: SocketAddrV4) -> (String, u16) {
    (address.ip().to_string(), address.port())
}

/// A number that tells an object from all others that its kind has had.
pub(crate) fn serial() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    // Partner: itself, in other threads. Numbers differ, and nothing more is needed.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}
