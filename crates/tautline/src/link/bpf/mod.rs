//! The kernel's side of links `xdp` and `xsk`: loading and attaching the programs, the maps that they share with this
//! process, and the parts of a port that the demux delivers to.
//!
//! The demux is attached with a BPF link, which the kernel takes away with the last process that has to
//! do with it, however those end: nothing stays on the interface.

pub(super) mod counters;
pub(crate) mod demux;
pub(super) mod doorbell;
mod holders;
pub(super) mod out_of_order;
pub(super) mod raw_table;
mod running;
pub(crate) mod sender;
pub(super) mod tap;
pub(crate) mod taps;
pub(super) mod udp_table;
mod verifier;

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::PortNumber;
use tautline_proto::wire::raw::EtherType;
use tautline_shm::region::Shape;
use tautline_state::fork::OwnerProcess;

use self::out_of_order::OutOfOrderFragments;
use self::sender::Sender;
use super::NodeCounters;
use crate::claim::Claim;
use crate::error::{PortError, Priorities};
use crate::memory::MappedPort;

/// Maker of ports that the demux delivers to.
pub(crate) trait DemuxOwner: Send + Sync + std::fmt::Debug {
    /// Makes a port and shows it to the demux.
    fn open_port(&self, port: PortNumber, shape: Shape) -> Result<PortParts, PortError>;

    /// Hides it from the demux again.
    fn close_port(&self, port: PortNumber);

    /// Takes a UDP port, or the socket that has it already, makes a port of plain UDP and shows it to the demux.
    fn open_udp_port(
        &self,
        local: SocketAddrV4,
        shape: Shape,
        beside: Option<OwnedFd>,
    ) -> Result<UdpPortParts, PortError>;

    /// Hides it from the demux again.
    fn close_udp_port(&self, port: u16);

    /// Takes an EtherType, makes a raw port and shows it to the demux.
    fn open_raw_port(&self, ethertype: EtherType, shape: Shape) -> Result<RawPortParts, PortError>;

    /// Hides it from the demux again.
    fn close_raw_port(&self, ethertype: EtherType);

    /// As [`super::Link::shared_neighbours`].
    fn neighbours(&self) -> Option<Vec<Neighbour>> {
        None
    }

    /// Frames that reached no port.
    fn counters(&self) -> NodeCounters;
}

/// A port that was shown to a program, which must be closed again.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShownPort {
    Port(PortNumber),
    Udp(u16),
    Raw(EtherType),
}

/// Closes a port when dropped; not in a forked process, whose parent has it open.
#[derive(Debug)]
pub(super) struct Opened {
    port: ShownPort,
    demux: Arc<dyn DemuxOwner>,
    process: OwnerProcess,
}

impl Opened {
    pub(super) fn new(port: ShownPort, demux: &Arc<dyn DemuxOwner>) -> Self {
        Self {
            port,
            demux: Arc::clone(demux),
            process: OwnerProcess::current(),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        match self.port {
            ShownPort::Port(port) => self.demux.close_port(port),
            ShownPort::Udp(port) => self.demux.close_udp_port(port),
            ShownPort::Raw(ethertype) => self.demux.close_raw_port(ethertype),
        }
    }
}

/// Parts of a port of plain UDP on this link.
#[derive(Debug)]
pub(crate) struct UdpPortParts {
    /// Its memory, which the demux writes.
    pub(crate) memory: Arc<MappedPort>,
    /// The ring buffer that wakes its reader.
    pub(crate) doorbell: OwnedFd,
    /// Descriptor that it sends through.
    pub(crate) sender: Sender,
    /// Fragments that came before the first of their datagram, for all ports. A client of a control process has none:
    /// others' are among them.
    pub(crate) out_of_order: Option<Arc<OutOfOrderFragments>>,
    /// Those that may be sent with.
    pub(crate) priorities: Priorities,
    /// The socket that has the UDP port.
    pub(crate) reserved: OwnedFd,
    /// By which a control process's successor knows who has the port.
    pub(crate) claim: Option<Claim>,
}

/// Parts of a raw port on this link.
#[derive(Debug)]
pub(crate) struct RawPortParts {
    /// Its memory, which the demux writes.
    pub(crate) memory: Arc<MappedPort>,
    /// The ring buffer that wakes its reader.
    pub(crate) doorbell: OwnedFd,
    /// Descriptor that it sends through.
    pub(crate) sender: Sender,
    /// Its EtherType.
    pub(crate) claim: Claim,
    /// Those that may be sent with.
    pub(crate) priorities: Priorities,
    /// Whether frames may carry any source address, and not the interface's alone.
    pub(crate) any_source_address: bool,
}

/// Parts of a port on this link.
#[derive(Debug)]
pub(crate) struct PortParts {
    /// Its memory, which the demux writes.
    pub(crate) memory: Arc<MappedPort>,
    /// The ring buffer that wakes its reader.
    pub(crate) doorbell: OwnedFd,
    /// Descriptor that it sends through.
    pub(crate) sender: Sender,
    /// Its number.
    pub(crate) claim: Claim,
    /// Those that may be sent with.
    pub(crate) priorities: Priorities,
}
