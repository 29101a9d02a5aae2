//! Plain UDP through an ordinary socket, on the links that have nothing better (`packet`, `udp`): the same
//! ports, with the kernel's latency.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::ip::{DATAGRAM_BYTES_MAX, DatagramHead, priority_of_service, type_of_service};
use tautline_proto::wire::{MTU_BYTES, MacAddress, Priority};
use tautline_shm::region::Shape;

use super::Inbox;
use super::plain_udp::{UdpPortLink, Undelivered, bind, deliver_datagram};
use super::socket::{COLLECT_FRAMES_MAX, SOCKET_BUFFER_BYTES};
use crate::error::{PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::socket::{self, Received, Receiver, set_option};
use crate::sys::wait;

/// The port's half.
pub(super) struct SocketUdpPort {
    local: SocketAddrV4,
    receiver: Receiver,
    memory: Arc<MappedPort>,
    buffer: Box<[u8; DATAGRAM_BYTES_MAX]>,
    /// What the socket sends with at the moment.
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
            priority: Priority::LOWEST,
            news: false,
        })
    }

    /// Puts the datagram into the port's memory as the demux would; the kernel has judged its checksum.
    fn deliver(&self, received: &Received) {
        let payload = &self.buffer[..received.bytes.min(DATAGRAM_BYTES_MAX)];
        let head = DatagramHead {
            destination_port: self.local.port(),
            length: payload.len() as u16,
            priority: priority_of_service(received.type_of_service),
            is_verified: true,
            checksum: 0,
            fragment: 0,
            identification: 0,
        };
        deliver_datagram(
            &self.memory,
            received.arrival,
            received.from,
            &head,
            payload,
        );
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

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        Ok(wait::readable(self.receiver.socket(), timeout)?)
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
