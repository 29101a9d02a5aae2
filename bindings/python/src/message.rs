//! Messages, values, datagrams and frames that were received, and the two ends of each: source and destination.
//!
//! Each has one class, whether its bytes were copied or lie in the port's memory.

use std::net::SocketAddrV4;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::lent::Lent;
use crate::wait::seconds;

/// A destination of one port: where its messages go. Made by `destination()` of that port, and
/// refused by others.
///
/// >>> import tautline
/// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
/// >>> port = node.queuing(3001)
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
/// >>> port, arm = node.queuing(3003), node.queuing(3004)
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

/// Bytes of something that was received.
pub(crate) enum Body {
    /// Python's own.
    Copied(Py<PyBytes>),
    /// The port's, until they are given back.
    Lent(Lent),
}

impl Body {
    #[inline]
    pub(crate) fn copied(py: Python<'_>, bytes: &[u8]) -> Self {
        Self::Copied(PyBytes::new(py, bytes).unbind())
    }

    fn view(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Copied(bytes) => Ok(PyMemoryView::from(bytes.bind(py))?.into_any().unbind()),
            Self::Lent(lent) => lent.data(py),
        }
    }

    #[inline]
    fn data(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Copied(bytes) => Ok(bytes.clone_ref(py).into_any()),
            Self::Lent(lent) => lent.data(py)?.call_method0(py, "tobytes"),
        }
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Copied(_) => Ok(()),
            Self::Lent(lent) => lent.end(py).map(drop),
        }
    }

    fn is_released(&self, py: Python<'_>) -> bool {
        match self {
            Self::Copied(_) => false,
            Self::Lent(lent) => !lent.is_kept(py),
        }
    }
}

/// Makes a class of something that is received, with what all of them have.
macro_rules! received_class {
    ($(#[$attribute:meta])* $class:ident, $head:ty, { $($own:tt)* }) => {
        $(#[$attribute])*
        #[pyclass(module = "tautline", frozen)]
        pub(crate) struct $class {
            body: Body,
            head: $head,
        }

        impl $class {
            #[inline]
            pub(crate) fn new(body: Body, head: $head) -> Self {
                Self { body, head }
            }
        }

        #[pymethods]
        impl $class {
            /// The bytes, as `bytes`. Raises ClosedError after release().
            #[getter]
            fn data(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.body.data(py)
            }

            /// The bytes where they lie: a read-only `memoryview`. Raises ClosedError after release().
            #[getter]
            fn view(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.body.view(py)
            }

            /// Gives the port its memory back, if it was received with `in_place`. Raises BufferError while slices of
            /// the view, or arrays made of it, are in use.
            fn release(&self, py: Python<'_>) -> PyResult<()> {
                self.body.release(py)
            }

            /// Whether the memory was given back.
            #[getter]
            fn released(&self, py: Python<'_>) -> bool {
                self.body.is_released(py)
            }

            /// Priority, 0 to 7; 7 is the most urgent.
            #[getter]
            fn priority(&self) -> u8 {
                self.head.priority.get()
            }

            /// Arrival of the last frame, in seconds on `time.monotonic()`; on a bus, when it was sent.
            #[getter]
            fn arrival(&self) -> f64 {
                seconds(self.head.arrival)
            }

            fn __bytes__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.body.data(py)
            }

            fn __len__(&self) -> usize {
                self.head.length
            }

            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
                self.release(py)
            }

            $($own)*
        }
    };
}

received_class! {
    /// A message that a queuing port has received.
    ///
    /// `data` is its bytes, `view` a `memoryview` of them, `priority` 0 to 7 (7 most urgent), `source` its sender,
    /// `arrival` when its last frame came, in seconds on `time.monotonic()`, and `sequence` the number of its first
    /// frame.
    ///
    /// >>> import tautline, time
    /// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
    /// >>> port, arm = node.queuing(3005), node.queuing(3006)
    /// >>> port.send(port.destination("arm", 3006), b"up", priority=7)
    /// >>> message = arm.receive()
    /// >>> message.data, message.priority, len(message)
    /// (b'up', 7, 2)
    /// >>> 0 <= time.monotonic() - message.arrival < 1
    /// True
    ///
    /// Received with `in_place`, it stays where it lies: over a bus in its sender's memory, elsewhere in the port's.
    /// `view` then copies nothing. Until it is given back, its slot is taken and the port does nothing else
    /// (BusyError). A view that is left over is safe: `data` and `view` raise after release(), and release() raises
    /// BufferError while a slice or an array is in use.
    ///
    /// >>> port.send(port.destination("arm", 3006), b"picture")
    /// >>> with arm.receive(in_place=True) as message:
    /// ...     print(message.view[0], len(message))
    /// 112 7
    /// >>> message.view
    /// Traceback (most recent call last):
    ///   ...
    /// tautline.ClosedError: this message was given back: its memory is the port's again
    ///   what to do: use it before release() or the end of its `with` block, or keep a copy: bytes(message)
    Message, tautline::Message, {
        /// Sender of the message.
        #[getter]
        fn source(&self) -> Source {
            Source(self.head.source)
        }

        /// Number of the message's first frame, which its sender counts.
        #[getter]
        fn sequence(&self) -> u32 {
            self.head.sequence
        }

        fn __repr__(&self) -> String {
            let tautline::Message { length, priority, source, .. } = self.head;
            format!("<Message of {length} bytes, priority {priority}, from {source}>")
        }
    }
}

received_class! {
    /// A value that a sampling port has read.
    ///
    /// As a `Message`, and `age` is the seconds since its arrival, at the moment of the read; `valid` whether that is
    /// within the port's refresh period; `new` whether this read is the first to see it; `overwritten` the number of
    /// values that were replaced unseen before it.
    ///
    /// >>> import tautline
    /// >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "arm", "ip": "127.0.0.1"}])
    /// >>> port, arm = node.queuing(3007), node.sampling(3008)
    /// >>> port.send(port.destination("arm", 3008), b"42")
    /// >>> sample = arm.next()
    /// >>> sample.data, sample.valid, sample.new
    /// (b'42', True, True)
    /// >>> with arm.read(in_place=True) as sample:
    /// ...     print(bytes(sample.view), sample.new)
    /// b'42' False
    Sample, tautline::Sample, {
        /// Sender of the value.
        #[getter]
        fn source(&self) -> Source {
            Source(self.head.source)
        }

        /// Number of the value's frame, which its sender counts.
        #[getter]
        fn sequence(&self) -> u32 {
            self.head.sequence
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

        fn __repr__(&self) -> String {
            let tautline::Sample { length, source, age, valid, .. } = self.head;
            let valid = if valid { "valid" } else { "no longer valid" };
            format!("<Sample of {length} bytes from {source}, {age:?} old, {valid}>")
        }
    }
}

received_class! {
    /// A datagram that a port of plain UDP has received.
    ///
    /// As a `Message`, but `source` is the sender's address and UDP port as Python's sockets give them, `priority` its
    /// IP precedence, and `checksum` the state of its checksum: "valid", "absent" or "partial".
    ///
    /// >>> import socket, tautline
    /// >>> port = tautline.Node(link="udp", address="127.0.0.1").udp(15200)
    /// >>> peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    /// >>> _ = peer.sendto(b"position?", ("127.0.0.1", 15200))
    /// >>> datagram = port.receive()
    /// >>> datagram.data, datagram.source == ("127.0.0.1", peer.getsockname()[1])
    /// (b'position?', True)
    /// >>> port.reply(datagram.source, b"3 mm")
    /// >>> peer.recv(100)
    /// b'3 mm'
    /// >>> peer.close()
    Datagram, tautline::port::Datagram, {
        /// Sender: its IPv4 address and UDP port.
        #[getter]
        fn source(&self) -> (String, u16) {
            pair(self.head.source)
        }

        /// State of the checksum: "valid", "absent" or "partial".
        #[getter]
        fn checksum(&self) -> String {
            format!("{:?}", self.head.checksum).to_lowercase()
        }

        fn __repr__(&self) -> String {
            let tautline::port::Datagram { length, source, .. } = self.head;
            format!("<Datagram of {length} bytes from {source}>")
        }
    }
}

received_class! {
    /// An Ethernet frame that a raw port has received.
    ///
    /// `data` is its bytes, from the destination's address to the end of the payload, without a tag; `priority` that of
    /// the tag, 0 without one and on link packet; `arrival` when it came, in seconds on `time.monotonic()`.
    ///
    /// >>> port = tautline.Node(interface="eth0", link="xdp").raw(0x88cc)       # doctest: +SKIP
    /// >>> frame = port.receive()                                               # doctest: +SKIP
    /// >>> frame.data[:6].hex(":"), len(frame)                                  # doctest: +SKIP
    /// ('01:80:c2:00:00:0e', 214)
    Frame, tautline::port::ReceivedFrame, {
        fn __repr__(&self) -> String {
            let tautline::port::ReceivedFrame { length, priority, .. } = self.head;
            format!("<Frame of {length} bytes, priority {priority}>")
        }
    }
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
