//! Plain UDP through an ordinary socket, on the links that have nothing better (`packet`, `udp`): the same
//! ports, with the kernel's latency.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::ip::{
    DATAGRAM_BYTES_MAX, DatagramHead, MORE_FRAGMENTS, UDP_HEADER_BYTES, priority_of_service,
    type_of_service,
};
use tautline_proto::wire::{MTU_BYTES, MacAddress, Priority};
use tautline_shm::layout::SLOT_PAYLOAD_BYTES;
use tautline_shm::region::{PortMemory, Shape};
use tautline_shm::{police, queue};

use super::plain_udp::{UdpPortLink, Undelivered, WholeDatagram, bind, deliver_datagram, push};
use super::socket::{COLLECT_FRAMES_MAX, SOCKET_BUFFER_BYTES};
use super::{Inbox, sleep_on};
use crate::error::{PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;
use crate::sys::socket::{self, Pieces, Received, Receiver, SEND_MANY_MAX, set_option};

/// The port's half.
pub(super) struct SocketUdpPort {
    local: SocketAddrV4,
    receiver: Receiver,
    memory: Arc<MappedPort>,
    buffer: Box<[u8; DATAGRAM_BYTES_MAX]>,
    /// Of the last datagram that was cut for the slots.
    identification: u16,
    /// Priority that the socket sends with at present.
    priority: Priority,
    /// The kernel has said that it holds news of what did not arrive.
    news: bool,
}

impl std::fmt::Debug for SocketUdpPort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SocketUdpPort")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl SocketUdpPort {
    pub(super) fn open(local: SocketAddrV4, shape: Shape) -> Result<Self, PortError> {
        let socket = bind(local)?;
        let refused = |error| PortError::refused("preparing the port's UDP socket", error);
        // Best effort: above net.core.rmem_max the kernel gives what it allows.
        let _limited = set_option(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            &SOCKET_BUFFER_BYTES,
        );
        for option in [libc::IP_RECVTOS, libc::IP_RECVERR] {
            set_option(socket.as_fd(), libc::IPPROTO_IP, option, &1i32).map_err(refused)?;
        }
        let memory = MappedPort::private(shape, local.port())
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        Ok(Self {
            local,
            receiver: Receiver::new(socket).map_err(refused)?,
            memory: Arc::new(memory),
            buffer: Box::new([0; DATAGRAM_BYTES_MAX]),
            identification: 0,
            priority: Priority::LOWEST,
            news: false,
        })
    }

    /// Puts the datagram into the port's memory as the demux would; the kernel has judged its checksum.
    fn deliver(&mut self, received: &Received) {
        let payload = &self.buffer[..received.bytes.min(DATAGRAM_BYTES_MAX)];
        let head = DatagramHead {
            destination_port: self.local.port(),
            length: payload.len() as u16,
            priority: priority_of_service(received.type_of_service),
            is_verified: true,
            has_out_of_order: false,
            checksum: 0,
            fragment: 0,
            identification: 0,
        };
        if payload.len() > SLOT_PAYLOAD_BYTES {
            self.deliver_in_parts(received, &head);
        } else {
            let (arrival, from) = (received.arrival, received.from);
            deliver_datagram(&self.memory, arrival, from, &head, payload);
        }
    }

    /// Cuts what the kernel has put together: a slot holds a frame's worth. All of it or nothing.
    fn deliver_in_parts(&mut self, received: &Received, whole: &DatagramHead) {
        let datagram_bytes = usize::from(whole.length);
        let packet_bytes = UDP_HEADER_BYTES + datagram_bytes;
        let port = self.memory.port();
        let class = whole.priority.index();
        if police::policed(port.control, received.arrival.as_nanos()) {
            return;
        }
        if queue::room(port.control, port.slots, class) < packet_bytes.div_ceil(SLOT_PAYLOAD_BYTES)
        {
            let dropped = &port.control.class[class].dropped_full;
            dropped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return;
        }
        self.identification = self.identification.wrapping_add(1);
        let from = SocketAddrV4::new(*received.from.ip(), 0);
        let mut first = [0; SLOT_PAYLOAD_BYTES];
        first[..2].copy_from_slice(&received.from.port().to_be_bytes());
        first[2..4].copy_from_slice(&self.local.port().to_be_bytes());
        first[4..6].copy_from_slice(&(packet_bytes as u16).to_be_bytes());
        first[UDP_HEADER_BYTES..]
            .copy_from_slice(&self.buffer[..SLOT_PAYLOAD_BYTES - UDP_HEADER_BYTES]);
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
                identification: self.identification,
                ..*whole
            };
            let payload = match offset {
                0 => &first[..],
                _ => &self.buffer[offset - UDP_HEADER_BYTES..end - UDP_HEADER_BYTES],
            };
            push(&self.memory, received.arrival, from, &head, payload);
        }
    }

    fn set_priority(&mut self, priority: Priority) -> Result<(), SendError> {
        if self.priority != priority {
            let service = libc::c_int::from(type_of_service(priority));
            let socket = self.receiver.socket();
            set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, &service)?;
            self.priority = priority;
        }
        Ok(())
    }
}

/// Whether the kernel reports with this error that an earlier datagram did not arrive.
fn is_news(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EMSGSIZE
                | libc::EACCES
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
        )
    )
}

impl Inbox for SocketUdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        for _ in 0..COLLECT_FRAMES_MAX {
            match self.receiver.receive(&mut self.buffer[..]) {
                Ok(None) => break,
                Ok(Some(received)) => self.deliver(&received),
                Err(error) if is_news(&error) => self.news = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        sleep_on(self.receiver.socket(), timeout, watch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.socket())
    }
}

impl UdpPortLink for SocketUdpPort {
    fn local(&self) -> SocketAddrV4 {
        self.local
    }

    fn needs_station(&self) -> bool {
        false
    }

    fn route(&self, to: SocketAddrV4, station: MacAddress) -> Route {
        Route::new(self.local, to, MacAddress::UNSPECIFIED, station, MTU_BYTES)
    }

    fn send(
        &mut self,
        route: &Route,
        priority: Priority,
        datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        self.set_priority(priority)?;
        let payload = datagram.payload();
        let socket = self.receiver.socket();
        // News of an earlier datagram takes the place of the call's own answer: once more, then.
        match socket::send_to(socket, payload, route.to()) {
            Err(error) if is_news(&error) => {
                self.news = true;
                Ok(socket::send_to(socket, payload, route.to())?)
            }
            result => Ok(result?),
        }
    }

    /// Takes the first ones of the same priority, which is the socket's.
    fn send_many(&mut self, datagrams: &[WholeDatagram<'_>]) -> Result<usize, SendError> {
        let Some(first) = datagrams.first() else {
            return Ok(0);
        };
        self.set_priority(first.priority)?;
        let same = datagrams.iter().take(SEND_MANY_MAX);
        let count = same
            .take_while(|datagram| datagram.priority == first.priority)
            .count();
        let pieces = std::array::from_fn::<_, SEND_MANY_MAX, _>(|index| {
            let datagram = datagrams.get(index).unwrap_or(first);
            Pieces {
                head: &[],
                rest: datagram.payload,
                to: Some(datagram.route.to()),
            }
        });
        let (socket, pieces) = (self.receiver.socket(), &pieces[..count]);
        let mut sent = socket::send_many(socket, pieces);
        // As in single sends, news takes the place of the answer; after the first datagram it only ends the call.
        if matches!(&sent, Err(error) if is_news(error)) {
            self.news = true;
            sent = socket::send_many(socket, pieces);
        }
        self.news |= matches!(sent, Ok(sent) if sent < count);
        Ok(sent?)
    }

    fn undelivered(&mut self) -> Option<Undelivered> {
        while self.news {
            match socket::receive_news(self.receiver.socket()) {
                Ok(Some(news)) if news.is_of_icmp => {
                    return Some(Undelivered {
                        destination: news.destination,
                        reason: news.reason,
                    });
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => self.news = false,
            }
        }
        None
    }
}
