//! Plain UDP on a link: datagrams without our header, for peers that are not ours.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tautline_proto::ip::{DatagramHead, MORE_FRAGMENTS, UDP_HEADER_BYTES, priority_of_service};
use tautline_proto::time::Instant;
use tautline_proto::wire::PortKey;
use tautline_shm::layout::{RecordHead, SLOT_PAYLOAD_BYTES, source_form};
use tautline_shm::region::PortMemory;
use tautline_shm::{police, queue};

use super::socket::{BindError, bound_at_once, bound_socket};
use crate::address::ipv4_word;
use crate::error::PortError;
use crate::memory::MappedPort;
use crate::sys::socket::Received;

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

/// Puts a datagram from a socket into its port's memory, as the demux would; the kernel has judged its checksum. A
/// datagram that is longer than a slot is cut, and gets `identification`.
pub(super) fn deliver_received(
    memory: &MappedPort,
    port: u16,
    received: &Received,
    identification: u16,
    payload: &[u8],
) {
    let head = DatagramHead {
        destination_port: port,
        length: payload.len() as u16,
        priority: priority_of_service(received.type_of_service),
        is_verified: true,
        checksum: 0,
        fragment: 0,
        identification: 0,
    };
    if payload.len() > SLOT_PAYLOAD_BYTES {
        let whole = DatagramHead {
            identification,
            ..head
        };
        return deliver_in_parts(memory, received, &whole, payload);
    }
    deliver_datagram(memory, received.arrival, received.from, &head, payload);
}

/// Cuts what the kernel has put together: a slot holds a frame's worth. All of it or nothing.
fn deliver_in_parts(
    memory: &MappedPort,
    received: &Received,
    whole: &DatagramHead,
    datagram: &[u8],
) {
    let packet_bytes = UDP_HEADER_BYTES + datagram.len();
    let port = memory.port();
    let class = whole.priority.index();
    if police::policed(port.control, received.arrival.as_nanos()) {
        return;
    }
    if queue::room(port.control, port.slots, class) < packet_bytes.div_ceil(SLOT_PAYLOAD_BYTES) {
        let dropped = &port.control.class[class].dropped_full;
        dropped.fetch_add(1, Relaxed);
        return;
    }
    let from = SocketAddrV4::new(*received.from.ip(), 0);
    let mut first = [0; SLOT_PAYLOAD_BYTES];
    first[..2].copy_from_slice(&received.from.port().to_be_bytes());
    first[2..4].copy_from_slice(&whole.destination_port.to_be_bytes());
    first[4..6].copy_from_slice(&(packet_bytes as u16).to_be_bytes());
    first[UDP_HEADER_BYTES..].copy_from_slice(&datagram[..SLOT_PAYLOAD_BYTES - UDP_HEADER_BYTES]);
    for offset in (0..packet_bytes).step_by(SLOT_PAYLOAD_BYTES) {
        let end = packet_bytes.min(offset + SLOT_PAYLOAD_BYTES);
        let more = if end < packet_bytes {
            MORE_FRAGMENTS
        } else {
            0
        };
        let head = DatagramHead {
            length: (end - offset) as u16,
            fragment: (offset / 8) as u16 | more,
            ..*whole
        };
        let payload = match offset {
            0 => &first[..],
            _ => &datagram[offset - UDP_HEADER_BYTES..end - UDP_HEADER_BYTES],
        };
        push(memory, received.arrival, from, &head, payload);
    }
}

/// Puts what fits a slot into a port's memory, whatever the port's policing says.
fn push(
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

/// Takes a UDP port at a kernel socket, so that no other process gets it and `ss` shows its owner. Datagrams that still
/// reach the socket, from this very host for example, are dropped.
pub(super) fn reserve(local: SocketAddrV4, key: PortKey) -> Result<OwnedFd, PortError> {
    let socket = bind(local, key)?;
    receive_nothing(&socket)
        .map_err(|error| PortError::refused("closing the socket that reserves the port", error))?;
    Ok(socket)
}

/// Takes a UDP port for another process, without waiting. Nor can that process make it receive.
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

/// An ordinary UDP socket on this address, for a port with this key.
pub(super) fn bind(local: SocketAddrV4, key: PortKey) -> Result<OwnedFd, PortError> {
    bound_socket(local).map_err(|error| match error {
        BindError::Taken(holder) => PortError::Taken { key, holder },
        BindError::Io(error) => PortError::refused("binding the port's UDP socket", error),
    })
}
