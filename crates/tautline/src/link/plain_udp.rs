//! Plain UDP on a link: datagrams without our header, for peers that are not ours.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tautline_proto::ip::DatagramHead;
use tautline_proto::ip::send::{HEADERS_BYTES, OutDatagram, Route};
use tautline_proto::time::Instant;
use tautline_proto::wire::{MacAddress, PortKey, Priority};
use tautline_shm::layout::{RecordHead, SLOT_PAYLOAD_BYTES, source_form};
use tautline_shm::region::PortMemory;
use tautline_shm::{police, queue};

use super::Inbox;
use super::socket::{BindError, bound_at_once, bound_socket};
use crate::address::ipv4_word;
use crate::error::{PortError, SendError};
use crate::memory::MappedPort;

pub use crate::error::Undelivered;

/// How a link carries plain UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlainUdp {
    /// Past the kernel's protocol stack, both ways.
    PastTheStack,
    /// Through an ordinary UDP socket.
    KernelSocket,
    /// Not at all.
    None,
}

/// A datagram that travels in one frame, to be sent with others from where its bytes lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeDatagram<'a> {
    /// The way.
    pub route: &'a Route,
    /// How urgent.
    pub priority: Priority,
    /// Its bytes, no more than [`Route::whole_bytes_max`].
    pub payload: &'a [u8],
}

impl WholeDatagram<'_> {
    /// Headers of the datagram.
    #[inline]
    pub(super) fn headers(&self) -> Result<[u8; HEADERS_BYTES], SendError> {
        let too_large = SendError::MessageTooLarge {
            bytes: self.payload.len(),
        };
        let headers = self.route.whole_headers(self.priority, self.payload);
        headers.ok_or(too_large)
    }
}

/// The half of a link that belongs to one port of plain UDP.
pub(crate) trait UdpPortLink: Inbox {
    /// Our address and UDP port.
    fn local(&self) -> SocketAddrV4;

    /// Whether a route needs the MAC address of the peer or the router.
    fn needs_station(&self) -> bool;

    /// Whether a checksum of which the sender's kernel has made only the pseudo-header's part may be
    /// taken for right: no network card can have been between the sender and this interface.
    fn accepts_partial_checksums(&self) -> bool {
        false
    }

    /// The way to a peer's port. `station` is ignored where none is needed.
    fn route(&self, to: SocketAddrV4, station: MacAddress) -> Route;

    /// Sends a datagram, whose content may be spoilt by that. Never waits.
    ///
    /// # Errors
    /// [`SendError`]. Of a datagram in fragments, some may have been sent; the peer drops them.
    fn send(
        &mut self,
        route: &Route,
        priority: Priority,
        datagram: OutDatagram<'_>,
    ) -> Result<(), SendError>;

    /// Sends datagrams of a frame each in their order, with fewer system calls than one for each. How many, from
    /// the first on, it took: at least one, perhaps not all. Never waits.
    ///
    /// # Errors
    /// [`SendError`]; none was sent.
    fn send_many(&mut self, datagrams: &[WholeDatagram<'_>]) -> Result<usize, SendError>;

    /// Fragments of a datagram that came before its first one, which `head` is of: each with its head and its
    /// bytes. For a head that says that there may be some.
    fn out_of_order_fragments(
        &self,
        _head: &RecordHead,
        _each: &mut dyn FnMut(&RecordHead, &DatagramHead, &[u8]),
    ) {
    }

    /// The next news that something did not arrive.
    fn undelivered(&mut self) -> Option<Undelivered>;
}

/// Puts a datagram that reached the process into its port's memory, as the demux would.
pub(super) fn deliver_datagram(
    memory: &MappedPort,
    arrival: Instant,
    source: SocketAddrV4,
    head: &DatagramHead,
    payload: &[u8],
) {
    let port = memory.port();
    if police::policed(port.control, arrival.as_nanos()) {
        return;
    }
    if payload.len() > SLOT_PAYLOAD_BYTES {
        port.control.producer.unfit.fetch_add(1, Relaxed);
        return;
    }
    push(memory, arrival, source, head, payload);
}

/// The same for what fits a slot, whatever the port's policing says.
pub(super) fn push(
    memory: &MappedPort,
    arrival: Instant,
    source: SocketAddrV4,
    head: &DatagramHead,
    payload: &[u8],
) {
    let port = memory.port();
    let record = RecordHead {
        arrival_ns: arrival.as_nanos(),
        source: ipv4_word(source, source_form::DATAGRAM),
        header: head.to_bytes(),
    };
    let class = head.priority.index();
    // The queue has counted a record that it dropped.
    let _counted = queue::push(port.control, port.slots, class, &record, payload);
}

/// A number for a datagram in fragments: no two of this process to one peer at a time, and those of other
/// processes begin elsewhere.
pub(super) fn next_identification() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if NEXT.load(Relaxed) == 0 {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.subsec_nanos());
        let begin = nanos ^ std::process::id() << 7 | 1;
        let _another_began = NEXT.compare_exchange(0, begin, Relaxed, Relaxed);
    }
    NEXT.fetch_add(1, Relaxed) as u16
}

/// Takes the port at a kernel socket, so that nobody else gets it and `ss` shows its owner. Datagrams that still
/// reach the socket, from this very host for example, are dropped.
pub(super) fn reserve(local: SocketAddrV4) -> Result<OwnedFd, PortError> {
    let socket = bind(local)?;
    receive_nothing(&socket)
        .map_err(|error| PortError::refused("closing the socket that reserves the port", error))?;
    Ok(socket)
}

/// The same for another process, without waiting. Nor can that process make it receive.
///
/// # Errors
/// `ErrorKind::AddrInUse`, and the kernel's others.
pub(crate) fn reserve_for_another(local: SocketAddrV4) -> io::Result<OwnedFd> {
    let socket = bound_at_once(local)?;
    receive_nothing(&socket)?;
    crate::sys::socket::lock_filter(socket.as_fd())?;
    Ok(socket)
}

fn receive_nothing(socket: &OwnedFd) -> io::Result<()> {
    let nothing = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    crate::sys::socket::set_filter(socket.as_fd(), &nothing)
}

/// An ordinary UDP socket on this address.
pub(super) fn bind(local: SocketAddrV4) -> Result<OwnedFd, PortError> {
    let key = PortKey::udp(local.port())?;
    bound_socket(local).map_err(|error| match error {
        BindError::Taken(holder) => PortError::Taken { key, holder },
        BindError::Io(error) => PortError::refused("binding the port's UDP socket", error),
    })
}
