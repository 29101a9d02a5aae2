//! The `packet` link: AF_PACKET sockets both ways. Past the protocol stack, without BPF maps: for
//! machines where the demux cannot be loaded, and for a second process on an interface whose demux
//! belongs to another.
//!
//! The kernel's own filter picks the frames of one port for one socket, so each port still has a
//! queue of its own. A frame reaches Linux as well, which drops it for its EtherType. The UDP form
//! goes through an ordinary UDP socket, because a packet socket would only watch it pass.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::{PortKey, PortNumber};

use super::frame::is_udp_form;
use super::plain_udp::bind;
use super::socket::{Counters, SocketForm, SocketParts, SocketPort, udp_socket};
use super::{Capabilities, Link, LinkKind, NodeCounters, PortHalf, PortRequest, Route, claim};
use crate::error::{OpenError, PortError};
use crate::sys::interface::Interface;
use crate::sys::packet;

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
    /// Whether they send through the queueing discipline, for captures.
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

impl Link for PacketLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Packet
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::SOCKETS.with_address(self.ip)
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortRequest { key, shape, .. } = request;
        let refused = |source| PortError::refused("opening the port's packet sockets", source);
        let (interface, ethertype) = (&self.interface, self.ethertype);
        let mut parts = SocketParts {
            claim: claim(interface, ethertype, key)?,
            ..SocketParts::default()
        };
        match key {
            PortKey::Message(port) => {
                let socket = packet::receiver(interface.index, ethertype, port.get());
                let form = SocketForm::Ethernet { ethertype };
                parts.frames = Some((socket.map_err(refused)?, form));
                parts.sender = Some(self.sender()?);
                let socket = self.ip.map(|ip| udp_socket(ip, port)).transpose()?;
                parts.datagrams = socket.map(|socket| (socket, SocketForm::Udp { port }));
            }
            PortKey::Udp(port) => {
                let link = self.kind().name();
                let ip = self.ip.ok_or(PortError::NoAddress { link })?;
                let local = SocketAddrV4::new(ip, port.get());
                parts.datagrams = Some((bind(local, key)?, SocketForm::Datagrams { local }));
            }
            PortKey::Raw(ethertype) => {
                let socket = packet::raw_receiver(interface.index, ethertype.get());
                parts.frames = Some((socket.map_err(refused)?, SocketForm::Frames));
                parts.sender = Some(self.sender()?);
            }
        }
        let port = SocketPort::new(parts, (shape, key.number()), &self.counters)?;
        Ok(PortHalf::frames(port))
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
        Route::through_socket(LinkKind::Packet, neighbour, to)
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
