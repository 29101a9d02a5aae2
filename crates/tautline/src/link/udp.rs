//! The `udp` link: ordinary UDP sockets. No privilege, any network that IP reaches, the kernel's
//! latency. It speaks the UDP form of the wire format.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::{Header, PortNumber, WHOLE_BYTES_MAX_UDP};
use tautline_shm::region::Shape;

use super::datagram::SocketUdpPort;
use super::frame::{FrameBuffer, send_frames};
use super::socket::{Counters, ReceiveSocket, SocketForm, udp_socket};
use super::{
    ArrivalClock, Capabilities, Copies, Inbox, Link, LinkKind, NodeCounters, OutFrame,
    PlacedPayload, PlainUdp, PortHalf, PortLink, PortRequest, RawFrames, Route, UdpPortLink,
    sleep_on,
};
use crate::error::{PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;
use crate::sys::socket;

/// The node's half.
#[derive(Debug)]
pub(crate) struct UdpLink {
    ip: Ipv4Addr,
    counters: Arc<Counters>,
}

impl UdpLink {
    /// A link whose ports are bound to `ip`.
    pub(crate) fn new(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            counters: Arc::default(),
        }
    }
}

impl Link for UdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            arrival_clock: ArrivalClock::SocketTimestamp,
            xdp_mode: None,
            delivered_by_kernel: false,
            ethernet_form: false,
            udp_form: true,
            whole_bytes_max: WHOLE_BYTES_MAX_UDP,
            copies: Copies::SOCKET,
            udp_copies: Some(Copies::SOCKET),
            zero_copy: None,
            plain_udp: PlainUdp::KernelSocket,
            raw_frames: RawFrames::None,
            descriptor: true,
            lends: true,
            answers_sender: false,
            polices: true,
            merges: true,
            batches: true,
        }
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortRequest {
            number: port,
            shape,
            ..
        } = request;
        let socket = ReceiveSocket::new(udp_socket(self.ip, port)?, SocketForm::Udp { port })
            .map_err(|error| PortError::refused("preparing the port's UDP socket", error))?;
        let memory = MappedPort::private(shape, port.get())
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        Ok(PortHalf::frames(UdpPort {
            socket,
            memory: Arc::new(memory),
            frame: FrameBuffer::new(),
            counters: Arc::clone(&self.counters),
        }))
    }

    fn open_udp_port(&self, port: u16, shape: Shape) -> Result<Box<dyn UdpPortLink>, PortError> {
        let local = SocketAddrV4::new(self.ip, port);
        Ok(Box::new(SocketUdpPort::open(local, shape)?))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        _from: PortNumber,
    ) -> Result<Route, PortError> {
        Route::udp(LinkKind::Udp, neighbour, to)
    }

    fn counters(&self) -> NodeCounters {
        self.counters.read()
    }
}

/// The port's half.
#[derive(Debug)]
struct UdpPort {
    socket: ReceiveSocket,
    memory: Arc<MappedPort>,
    frame: FrameBuffer,
    counters: Arc<Counters>,
}

impl Inbox for UdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        self.socket.collect(&self.memory, &self.counters)
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        sleep_on(self.socket.socket(), timeout, watch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.socket())
    }
}

impl PortLink for UdpPort {
    fn send(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        send_datagram(
            self.socket.socket(),
            &mut self.frame,
            route,
            header,
            payload,
        )
    }

    fn send_placed(
        &mut self,
        route: &mut Route,
        header: &Header,
        mut payload: PlacedPayload<'_>,
    ) -> Result<(), SendError> {
        let to = datagrams_to(route)?;
        send_built(self.socket.socket(), to, payload.frame(route, header))
    }

    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        send_datagrams(self.socket.socket(), frames)
    }
}

/// Sends the UDP form through a socket.
pub(crate) fn send_datagram(
    socket: BorrowedFd<'_>,
    frame: &mut FrameBuffer,
    route: &mut Route,
    header: &Header,
    payload: &[u8],
) -> Result<(), SendError> {
    let to = datagrams_to(route)?;
    send_built(socket, to, frame.build(route, header, payload))
}

/// Where a way of the UDP form leads. Routes are made by the link that sends on them, so it is of that form.
fn datagrams_to(route: &Route) -> Result<SocketAddrV4, SendError> {
    route.datagrams_to().ok_or(SendError::Refused {
        errno: libc::EAFNOSUPPORT,
    })
}

/// Sends a datagram that has been put together.
pub(crate) fn send_built(
    socket: BorrowedFd<'_>,
    to: SocketAddrV4,
    bytes: &[u8],
) -> Result<(), SendError> {
    // An ICMP error that came back for an earlier datagram is reported by the next call on the
    // socket; the datagram at hand has not been sent then, so once more.
    match socket::send_to(socket, bytes, to) {
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {
            Ok(socket::send_to(socket, bytes, to)?)
        }
        result => Ok(result?),
    }
}

/// Sends several of the UDP form through a socket; as [`send_datagram`].
pub(crate) fn send_datagrams(
    socket: BorrowedFd<'_>,
    frames: &[OutFrame<'_>],
) -> Result<usize, SendError> {
    match send_frames(socket, frames) {
        Err(SendError::Refused {
            errno: libc::ECONNREFUSED,
        }) => send_frames(socket, frames),
        result => result,
    }
}
