//! The port's half of link `xdp`, whatever its key: reads the memory that the demux writes, and sends through a packet
//! socket or a tap. Works alike in the process that owns the demux and in one that was handed its parts.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::time::Instant;
use tautline_proto::wire::{PortKey, Priority};
use tautline_shm::doorbell;
use tautline_shm::region::PortMemory;

use super::XdpLink;
use crate::claim::Claim;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::bpf::doorbell::Doorbell;
use crate::link::bpf::sender::Sender;
use crate::link::bpf::{DemuxOwner, Opened, PortParts};
use crate::link::frame::FrameBuffer;
use crate::link::plain_udp::{next_identification, reserve};
use crate::link::{OutFrame, Permit, PortLink, PortRequest, send_fragments, sleep_on};
use crate::memory::MappedPort;
use crate::sys::interface::{self, Interface, InterfaceWatch};
use crate::sys::ticks::Ticks;
use crate::sys::{packet, socket};

/// The port's half.
#[derive(Debug)]
pub(super) struct XdpPort {
    memory: Arc<MappedPort>,
    doorbell: Doorbell,
    clock: Ticks,
    sender: Sender,
    frame: FrameBuffer,
    permit: Permit,
    interface: Interface,
    /// For datagrams longer than a frame, where the kernel cuts them.
    cutter: Option<OwnedFd>,
    // Hidden from the demux before the key is given up.
    _opened: Opened<dyn DemuxOwner>,
    _claim: Option<Claim>,
    /// Socket that has the UDP port of the same number, so that no other process gets it. Nothing is delivered there,
    /// unless it is the program's own.
    reserved: Option<OwnedFd>,
}

impl XdpPort {
    /// Has the demux's owner make the port.
    pub(super) fn open(link: &XdpLink, request: PortRequest) -> Result<Self, PortError> {
        let PortRequest { key, shape, .. } = request;
        let PortParts {
            memory,
            doorbell,
            sender,
            claim,
            priorities,
            any_source_address,
            reserved,
        } = link.owner.open_port(key, shape)?;
        // From here on a failure closes the port again.
        let opened = Opened::new(key, &link.owner, |owner, key| owner.close_port(key));
        let reserved = match (key, link.ip) {
            // The demux takes the datagrams of the UDP form before a socket sees them.
            (PortKey::Message(port), Some(ip)) => {
                Some(reserve(SocketAddrV4::new(ip, port.udp_port()), key)?)
            }
            _ => reserved,
        };
        let doorbell = Doorbell::new(doorbell)
            .map_err(|error| PortError::refused("mapping the port's doorbell", error))?;
        let interface = link.interface.clone();
        Ok(Self {
            memory,
            doorbell,
            clock: Ticks::new(),
            cutter: match key {
                PortKey::Udp(_) => cutter(&interface, &sender),
                _ => None,
            },
            sender,
            frame: FrameBuffer::new(),
            permit: Permit {
                priorities,
                source: (!any_source_address).then_some(interface.mac),
            },
            interface,
            _opened: opened,
            _claim: claim,
            reserved,
        })
    }
}

/// Fragments of a datagram that the kernel may cut: they reach the driver all at once. Lower: the longest datagrams
/// at the usual MTU, of 45 fragments, go one by one. Higher: some do not fit the ring of a virtual cable, which holds
/// 256 frames of all senders.
const CUT_FRAGMENTS_MAX: usize = 64;

/// The kernel cuts a datagram in half the time that a call for each fragment takes, but not past the queueing
/// discipline. So only where there is none, and no backlog to wait behind: on a virtual interface. A client of a
/// control process is not handed such a socket.
fn cutter(interface: &Interface, sender: &Sender) -> Option<OwnedFd> {
    if let Sender::Tap(..) = sender {
        return None;
    }
    match interface::has_queueing_discipline(interface.index) {
        Ok(false) => packet::cutting_sender(interface.index).ok(),
        _ => None,
    }
}

impl PortLink for XdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    /// CLOCK_MONOTONIC, which the demux stamps arrivals with.
    #[inline]
    fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Nothing to do: the demux has delivered already.
    #[inline]
    fn collect(&mut self) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn arm(&mut self) {
        self.doorbell.quiet();
        doorbell::arm(self.memory.port().control);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        let waited = sleep_on(self.doorbell.as_fd(), timeout, watch);
        doorbell::disarm(self.memory.port().control);
        waited
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }

    /// A look at the reserved UDP socket: leaving its lock runs what is due. A port without such a socket has it wait
    /// as it would without this.
    fn run_due_processing(&mut self) {
        if let Some(socket) = &self.reserved {
            socket::peek(socket.as_fd());
        }
    }

    #[inline]
    fn send(&mut self, frame: &OutFrame<'_>) -> Result<(), SendError> {
        self.permit.priorities.check(frame.priority)?;
        Ok(self.sender.send(self.frame.whole(frame))?)
    }

    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let check = |frame: &OutFrame<'_>| self.permit.priorities.check(frame.priority);
        let allowed = frames
            .iter()
            .take_while(|frame| check(frame).is_ok())
            .count();
        match frames.first() {
            Some(first) if allowed == 0 => check(first).map(|()| 0),
            _ => Ok(self.sender.send_many(&frames[..allowed])?),
        }
    }

    fn send_cut(
        &mut self,
        route: &Route,
        priority: Priority,
        datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        let bytes = route.fragment_bytes();
        let fragments = datagram.payload().len().div_ceil(bytes);
        match &self.cutter {
            Some(cutter) if fragments <= CUT_FRAGMENTS_MAX => {
                self.permit.priorities.check(priority)?;
                let headers = datagram.uncut_headers(route, priority, next_identification());
                let (cutter, payload) = (cutter.as_fd(), datagram.payload());
                Ok(packet::send_uncut(cutter, &headers, payload, bytes)?)
            }
            _ => send_fragments(self, route, priority, datagram),
        }
    }

    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn interface(&self) -> Option<&Interface> {
        Some(&self.interface)
    }
}
