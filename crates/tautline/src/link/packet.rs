//! The `packet` link: AF_PACKET sockets both ways. Past the protocol stack, without BPF maps: for
//! machines where the demux cannot be loaded, and for a second process on an interface whose demux
//! belongs to another.
//!
//! The kernel's own filter picks the frames of one port for one socket, so each port still has a
//! queue of its own. A frame reaches Linux as well, which drops it for its EtherType. The UDP form
//! goes through an ordinary UDP socket, because a packet socket would only watch it pass.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{Header, PortNumber, WHOLE_BYTES_MAX_ETHERNET};
use tautline_shm::region::Shape;

use super::datagram::SocketUdpPort;
use super::frame::{FrameBuffer, is_udp_form, send_frames};
use super::packet_raw::PacketRawPort;
use super::socket::{Counters, ReceiveSocket, SocketForm, udp_socket};
use super::udp::{send_built, send_datagram, send_datagrams};
use super::{
    ArrivalClock, Capabilities, Copies, Inbox, Link, LinkKind, NodeCounters, OutFrame,
    PlacedPayload, PlainUdp, PortHalf, PortLink, PortRequest, RawFrames, RawPortLink, Route,
    UdpPortLink, sleep_on,
};
use crate::claim::{Claim, ClaimError, Number};
use crate::error::{OpenError, PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::{Interface, InterfaceWatch};
use crate::sys::{packet, socket, wait};

/// The node's half.
#[derive(Debug)]
pub(crate) struct PacketLink {
    interface: Interface,
    ip: Option<Ipv4Addr>,
    ethertype: u16,
    counters: Arc<Counters>,
    senders: Mutex<Senders>,
}

/// Sockets that the ports send through.
#[derive(Debug, Default)]
struct Senders {
    open: Vec<Weak<OwnedFd>>,
    /// Whether they send through the queueing discipline, for whoever captures.
    are_shown: bool,
}

impl PacketLink {
    /// A link on `interface`; with an `ip`, it also speaks the UDP form.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] without CAP_NET_RAW.
    pub(crate) fn new(
        interface: Interface,
        ip: Option<Ipv4Addr>,
        ethertype: u16,
    ) -> Result<Self, OpenError> {
        packet::sender(interface.index).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted {
                link: "packet",
                needs: "CAP_NET_RAW",
            },
            _ => OpenError::Refused {
                doing: "opening a packet socket".to_owned(),
                source: source.into(),
            },
        })?;
        Ok(Self {
            interface,
            ip,
            ethertype,
            counters: Arc::default(),
            senders: Mutex::default(),
        })
    }

    /// A socket for a port to send through.
    fn sender(&self) -> Result<Arc<OwnedFd>, PortError> {
        let refused = |source| PortError::refused("opening the port's packet sockets", source);
        let sender = Arc::new(packet::sender(self.interface.index).map_err(refused)?);
        let mut senders = self.senders();
        senders.open.retain(|sender| sender.strong_count() > 0);
        senders.open.push(Arc::downgrade(&sender));
        if senders.are_shown {
            packet::bypass_queueing(sender.as_fd(), false).map_err(refused)?;
        }
        drop(senders);
        Ok(sender)
    }

    fn senders(&self) -> MutexGuard<'_, Senders> {
        // The list stays whole at every step, so a panic elsewhere does not spoil it.
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims the port's number on the interface.
pub(crate) fn claim(
    interface: &Interface,
    ethertype: u16,
    port: PortNumber,
) -> Result<Claim, PortError> {
    let number = Number {
        interface_index: interface.index,
        ethertype,
        port: port.get(),
    };
    Claim::new(number).map_err(|error| match error {
        ClaimError::Taken(holder) => PortError::Taken {
            key: port.into(),
            holder,
        },
        ClaimError::Io(error) => PortError::refused("claiming the port", error),
    })
}

impl Link for PacketLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Packet
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            arrival_clock: ArrivalClock::SocketTimestamp,
            xdp_mode: None,
            delivered_by_kernel: false,
            ethernet_form: true,
            udp_form: self.ip.is_some(),
            whole_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            copies: Copies::SOCKET,
            udp_copies: self.ip.map(|_| Copies::SOCKET),
            zero_copy: None,
            plain_udp: match self.ip {
                Some(_) => PlainUdp::KernelSocket,
                None => PlainUdp::None,
            },
            raw_frames: RawFrames::PacketSocket,
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
        let claim = claim(&self.interface, self.ethertype, port)?;
        let refused = |source| PortError::refused("opening the port's packet sockets", source);
        let form = SocketForm::Ethernet {
            ethertype: self.ethertype,
        };
        let receiver = packet::receiver(self.interface.index, self.ethertype, port.get());
        let mut sockets =
            vec![ReceiveSocket::new(receiver.map_err(refused)?, form).map_err(refused)?];
        if let Some(ip) = self.ip {
            let socket = udp_socket(ip, port)?;
            sockets.push(ReceiveSocket::new(socket, SocketForm::Udp { port }).map_err(refused)?);
        }
        let members: Vec<_> = sockets.iter().map(ReceiveSocket::socket).collect();
        let descriptor = wait::either(&members).map_err(refused)?;
        let sender = self.sender()?;
        let memory = MappedPort::private(shape, port.get())
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        Ok(PortHalf::frames(PacketPort {
            sockets,
            descriptor,
            sender,
            memory: Arc::new(memory),
            frame: FrameBuffer::new(),
            counters: Arc::clone(&self.counters),
            _claim: claim,
        }))
    }

    fn open_udp_port(&self, port: u16, shape: Shape) -> Result<Box<dyn UdpPortLink>, PortError> {
        let ip = self.ip.ok_or(PortError::NoAddress {
            link: self.kind().name(),
        })?;
        let local = SocketAddrV4::new(ip, port);
        Ok(Box::new(SocketUdpPort::open(local, shape)?))
    }

    fn open_raw_port(
        &self,
        ethertype: EtherType,
        shape: Shape,
    ) -> Result<Box<dyn RawPortLink>, PortError> {
        let port = PacketRawPort::open(&self.interface, ethertype, shape, self.sender()?)?;
        Ok(Box::new(port))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        _from: PortNumber,
    ) -> Result<Route, PortError> {
        if !is_udp_form(neighbour) {
            return Ok(Route::ethernet(
                self.interface.mac,
                neighbour,
                EthernetForm::of(self.ethertype),
            ));
        }
        if self.ip.is_none() {
            return Err(PortError::NeighbourIncomplete {
                name: neighbour.name.clone(),
                lacks: "MAC address, and this node no IPv4 address,",
                link: "packet",
            });
        }
        Route::udp(LinkKind::Packet, neighbour, to)
    }

    fn show_frames(&self, is_wanted: bool) {
        let mut senders = self.senders();
        if senders.are_shown != is_wanted {
            senders.are_shown = is_wanted;
            for sender in senders.open.iter().filter_map(Weak::upgrade) {
                // The kernel takes it, or frames are not seen.
                let _unseen = packet::bypass_queueing(sender.as_fd(), !is_wanted);
            }
        }
    }

    fn counters(&self) -> NodeCounters {
        self.counters.read()
    }
}

/// The port's half.
#[derive(Debug)]
struct PacketPort {
    /// The packet socket, and the UDP socket if the node has an address.
    sockets: Vec<ReceiveSocket>,
    descriptor: OwnedFd,
    sender: Arc<OwnedFd>,
    memory: Arc<MappedPort>,
    frame: FrameBuffer,
    counters: Arc<Counters>,
    _claim: Claim,
}

impl Inbox for PacketPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        for socket in &mut self.sockets {
            socket.collect(&self.memory, &self.counters)?;
        }
        Ok(())
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        sleep_on(self.descriptor.as_fd(), timeout, watch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

impl PortLink for PacketPort {
    fn send(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        match (&route, self.sockets.get(1)) {
            (Route::Udp { .. }, Some(udp)) => {
                send_datagram(udp.socket(), &mut self.frame, route, header, payload)
            }
            _ => {
                let bytes = self.frame.build(route, header, payload);
                Ok(socket::send(self.sender.as_fd(), bytes)?)
            }
        }
    }

    fn send_placed(
        &mut self,
        route: &mut Route,
        header: &Header,
        mut payload: PlacedPayload<'_>,
    ) -> Result<(), SendError> {
        let bytes = payload.frame(route, header);
        match (route.datagrams_to(), self.sockets.get(1)) {
            (Some(to), Some(udp)) => send_built(udp.socket(), to, bytes),
            _ => Ok(socket::send(self.sender.as_fd(), bytes)?),
        }
    }

    /// Takes the first frames that go through the same socket.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let as_datagram = |frame: &OutFrame<'_>| frame.route.datagrams_to().is_some();
        let Some(first) = frames.first() else {
            return Ok(0);
        };
        let kind = as_datagram(first);
        let run = frames
            .iter()
            .take_while(|frame| as_datagram(frame) == kind)
            .count();
        match self.sockets.get(1) {
            Some(udp) if kind => send_datagrams(udp.socket(), &frames[..run]),
            _ => send_frames(self.sender.as_fd(), &frames[..run]),
        }
    }
}
