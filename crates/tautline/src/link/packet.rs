//! The links of sockets. `packet`: AF_PACKET sockets both ways, past the protocol stack, without BPF maps: for
//! machines where the demux cannot be loaded, and for a second process on an interface whose demux
//! belongs to another. `udp`: ordinary UDP sockets. No privilege, any network that IP reaches, the kernel's latency.
//!
//! On `packet` the kernel's own filter picks the frames of one port for one socket, so each port still has a
//! queue of its own. A frame reaches Linux as well, which drops it for its EtherType. The UDP form
//! goes through an ordinary UDP socket on both links, because a packet socket would only watch it pass.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::{PortKey, PortNumber, WHOLE_BYTES_MAX_UDP};
use tautline_state::lock;

use super::frame::is_udp_form;
use super::plain_udp::bind;
use super::socket::{Counters, SocketForm, SocketParts, SocketPort, udp_socket};
use super::{
    Capabilities, Link, LinkKind, NodeCounters, PortHalf, PortRequest, RawFrames, Route, claim,
};
use crate::error::{OpenError, PortError};
use crate::sys::interface::Interface;
use crate::sys::packet;

/// The node's half.
#[derive(Debug)]
pub(crate) struct SocketLink {
    /// Of link `packet` alone.
    packets: Option<Packets>,
    ip: Option<Ipv4Addr>,
    counters: Arc<Counters>,
}

/// The interface, and the sockets that ports send through.
#[derive(Debug)]
struct Packets {
    interface: Interface,
    ethertype: u16,
    senders: Mutex<Senders>,
}

/// Sockets that the ports send through.
#[derive(Debug, Default)]
struct Senders {
    open: Vec<Weak<OwnedFd>>,
    /// Whether they send through the queueing discipline, for captures.
    are_shown: bool,
}

impl SocketLink {
    /// Link `udp`, whose ports are bound to `ip`.
    pub(crate) fn udp(ip: Ipv4Addr) -> Self {
        Self {
            packets: None,
            ip: Some(ip),
            counters: Arc::default(),
        }
    }

    /// Link `packet` on `interface`; with an `ip`, it also speaks the UDP form.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] without CAP_NET_RAW.
    pub(crate) fn packet(
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
        let packets = Packets {
            interface,
            ethertype,
            senders: Mutex::default(),
        };
        Ok(Self {
            packets: Some(packets),
            ip,
            counters: Arc::default(),
        })
    }
}

impl Packets {
    /// A socket for a port to send through.
    fn sender(&self) -> Result<Arc<OwnedFd>, PortError> {
        let refused = |source| PortError::refused("opening the port's packet sockets", source);
        let sender = Arc::new(packet::sender(self.interface.index).map_err(refused)?);
        let mut senders = lock(&self.senders);
        senders.open.retain(|sender| sender.strong_count() > 0);
        senders.open.push(Arc::downgrade(&sender));
        if senders.are_shown {
            packet::bypass_queueing(sender.as_fd(), false).map_err(refused)?;
        }
        drop(senders);
        Ok(sender)
    }

    /// Claims a key, and adds its packet sockets.
    fn add_to(&self, parts: &mut SocketParts, key: PortKey) -> Result<(), PortError> {
        let refused = |source| PortError::refused("opening the port's packet sockets", source);
        let (interface, ethertype) = (&self.interface, self.ethertype);
        parts.claim = claim(interface, ethertype, key)?;
        let (socket, form) = match key {
            PortKey::Message(port) => (
                packet::receiver(interface.index, ethertype, port.get()),
                SocketForm::Ethernet { ethertype },
            ),
            PortKey::Raw(ethertype) => (
                packet::raw_receiver(interface.index, ethertype.get()),
                SocketForm::Frames,
            ),
            PortKey::Udp(_) => return Ok(()),
        };
        parts.frames = Some((socket.map_err(refused)?, form));
        parts.sender = Some(self.sender()?);
        Ok(())
    }
}

impl Link for SocketLink {
    fn kind(&self) -> LinkKind {
        match self.packets {
            Some(_) => LinkKind::Packet,
            None => LinkKind::Udp,
        }
    }

    fn capabilities(&self) -> Capabilities {
        match self.packets {
            Some(_) => Capabilities::SOCKETS.with_address(self.ip),
            None => Capabilities {
                ethernet_form: false,
                whole_bytes_max: WHOLE_BYTES_MAX_UDP,
                raw_frames: RawFrames::None,
                ..Capabilities::SOCKETS
            },
        }
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortRequest { key, shape, .. } = request;
        let mut parts = SocketParts::default();
        if let Some(packets) = &self.packets {
            packets.add_to(&mut parts, key)?;
        }
        match (key, self.ip) {
            (PortKey::Message(port), Some(ip)) => {
                parts.datagrams = Some((udp_socket(ip, port)?, SocketForm::Udp { port }));
            }
            (PortKey::Udp(port), Some(ip)) => {
                let local = SocketAddrV4::new(ip, port.get());
                parts.datagrams = Some((bind(local, key)?, SocketForm::Datagrams { local }));
            }
            (PortKey::Udp(_), None) => {
                let link = self.kind().name();
                return Err(PortError::NoAddress { link });
            }
            (PortKey::Raw(_), _) if self.packets.is_none() => {
                return Err(request.not_offered(self.kind().name()));
            }
            _ => {}
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
        if let Some(packets) = &self.packets
            && !is_udp_form(neighbour)
        {
            return Ok(Route::ethernet(
                packets.interface.mac,
                neighbour,
                EthernetForm::of(packets.ethertype),
            ));
        }
        if self.ip.is_none() {
            return Err(PortError::NeighbourIncomplete {
                name: neighbour.name.clone(),
                lacks: "MAC address, and this node no IPv4 address,",
                link: "packet",
            });
        }
        Route::through_socket(self.kind(), neighbour, to)
    }

    fn show_frames(&self, is_wanted: bool) {
        let Some(packets) = &self.packets else { return };
        let mut senders = lock(&packets.senders);
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
