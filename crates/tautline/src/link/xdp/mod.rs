//! The `xdp` link: the BPF demux (`bpf/demux.bpf.c`) delivers into the port's own memory; frames
//! leave through a packet socket past the queueing discipline. Reading costs no system call.
//!
//! The demux is attached with a BPF link, which the kernel takes away with the process, however
//! that ends: nothing stays on the interface.

mod counters;
mod demux;
mod doorbell;
mod port;

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::{PortNumber, WHOLE_BYTES_MAX_ETHERNET, udp};
use tautline_shm::region::Shape;

use self::demux::Demux;
use self::port::XdpPort;
use super::frame::{ip_of, is_udp_form};
use super::{ArrivalClock, Capabilities, Link, LinkKind, NodeCounters, PortLink, Route, XdpMode};
use crate::claim::Claim;
use crate::error::{OpenError, PortError};
use crate::memory::MappedPort;
use crate::sys::interface::Interface;

/// Whoever can make ports that the demux delivers to.
pub(crate) trait DemuxOwner: Send + Sync + std::fmt::Debug {
    /// Makes a port and shows it to the demux.
    fn open_port(&self, port: PortNumber, shape: Shape) -> Result<PortParts, PortError>;

    /// Hides it from the demux again.
    fn close_port(&self, port: PortNumber);

    /// Frames that reached no port.
    fn counters(&self) -> NodeCounters;
}

/// What a port on this link consists of.
#[derive(Debug)]
pub(crate) struct PortParts {
    /// Its memory, which the demux writes.
    pub(crate) memory: Arc<MappedPort>,
    /// The ring buffer that wakes its reader.
    pub(crate) doorbell: OwnedFd,
    /// The packet socket that it sends through.
    pub(crate) sender: OwnedFd,
    /// Its number.
    pub(crate) claim: Claim,
}

/// The node's half.
#[derive(Debug)]
pub struct XdpLink {
    interface: Interface,
    ip: Option<Ipv4Addr>,
    ethertype: u16,
    mode: XdpMode,
    owner: Arc<dyn DemuxOwner>,
}

impl XdpLink {
    /// A link whose demux is this process's own: attaches it to `interface` in the given mode. With
    /// an `ip`, it also takes the UDP form.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`], [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(crate) fn new(
        name: &str,
        interface: Interface,
        ip: Option<Ipv4Addr>,
        ethertype: u16,
        mode: XdpMode,
    ) -> Result<Self, OpenError> {
        let demux = Demux::attach(name, interface.clone(), ip, ethertype, mode)?;
        Ok(Self {
            interface,
            ip,
            ethertype,
            mode,
            owner: Arc::new(demux),
        })
    }
}

impl Link for XdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Xdp
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            arrival_clock: ArrivalClock::Demux,
            xdp_mode: Some(self.mode),
            delivered_by_kernel: true,
            ethernet_form: true,
            udp_form: self.ip.is_some(),
            whole_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            receive_copies: 2,
            send_copies: 2,
            descriptor: true,
        }
    }

    fn open_port(&self, port: PortNumber, shape: Shape) -> Result<Box<dyn PortLink>, PortError> {
        let parts = self.owner.open_port(port, shape)?;
        let owner = Arc::clone(&self.owner);
        Ok(Box::new(XdpPort::new(port, parts, self.ip, owner)?))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Route, PortError> {
        if !is_udp_form(neighbour) {
            return Ok(Route::ethernet(
                self.interface.mac,
                neighbour,
                self.ethertype,
            ));
        }
        let lacks = |lacks| PortError::NeighbourIncomplete {
            name: neighbour.name.clone(),
            lacks,
            link: "xdp",
        };
        if neighbour.mac.is_unspecified() {
            return Err(lacks("MAC address (its own, or the router's)"));
        }
        let endpoints = udp::Endpoints {
            destination: neighbour.mac,
            source: self.interface.mac,
            destination_ip: ip_of(LinkKind::Xdp, neighbour)?,
            source_ip: self
                .ip
                .ok_or_else(|| lacks("use: this node has no IPv4 address,"))?,
        };
        Ok(Route::UdpRaw {
            template: udp::UdpTemplate::new(&endpoints, to, from),
        })
    }

    fn counters(&self) -> NodeCounters {
        self.owner.counters()
    }
}
