//! The port's half of link `xdp`: reads the memory that the demux writes, and sends through a packet
//! socket or a tap. Works alike in the process that owns the demux and in one that was handed its parts.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, PortNumber, Priority};

use super::receiver::Receiver;
use crate::claim::Claim;
use crate::error::{PortError, Priorities, ReceiveError, SendError};
use crate::link::bpf::sender::Sender;
use crate::link::bpf::{DemuxOwner, Opened, PortParts, ShownPort};
use crate::link::frame::FrameBuffer;
use crate::link::socket::udp_socket;
use crate::link::{Inbox, OutFrame, PlacedPayload, PortLink, Route};
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;
use crate::sys::socket;

/// The port's half.
#[derive(Debug)]
pub(super) struct XdpPort {
    receiver: Receiver,
    sender: Sender,
    frame: FrameBuffer,
    /// The UDP port of the same number, so that nobody else has it. Nothing is delivered there.
    reserved: Option<OwnedFd>,
    /// Those that may be sent with.
    priorities: Priorities,
    // Closed before the number is given up.
    _opened: Opened,
    _claim: Claim,
}

impl XdpPort {
    /// Makes a port of what the demux's owner gave. With an `ip`, the UDP port of the same number is
    /// taken too.
    pub(super) fn new(
        port: PortNumber,
        parts: PortParts,
        ip: Option<Ipv4Addr>,
        owner: &Arc<dyn DemuxOwner>,
    ) -> Result<Self, PortError> {
        // From here on a failure closes the port again.
        let PortParts {
            memory,
            doorbell,
            sender,
            claim,
            priorities,
        } = parts;
        let opened = Opened::new(ShownPort::Port(port), owner);
        // The demux takes the datagrams before this socket sees them; it keeps the UDP port from
        // being given to another process, and shows in `ss` whose it is.
        let reserved = ip.map(|ip| udp_socket(ip, port)).transpose()?;
        Ok(Self {
            receiver: Receiver::new(memory, doorbell)?,
            sender,
            frame: FrameBuffer::new(),
            reserved,
            priorities,
            _opened: opened,
            _claim: claim,
        })
    }
}

impl Inbox for XdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.receiver.memory
    }

    #[inline]
    fn now(&self) -> Instant {
        self.receiver.now()
    }

    /// Nothing to do: the demux has delivered already.
    #[inline]
    fn collect(&mut self) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn arm(&mut self) {
        self.receiver.arm();
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        self.receiver.wait(timeout, watch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.descriptor())
    }

    /// A look at the reserved UDP socket: leaving its lock runs what is due. Without an address there is
    /// no such socket, and the processing waits as it would without this.
    fn run_due_processing(&mut self) {
        if let Some(socket) = &self.reserved {
            socket::look(socket.as_fd());
        }
    }
}

impl PortLink for XdpPort {
    #[inline]
    fn send(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.check_priority(header.priority)?;
        let bytes = self.frame.build(route, header, payload);
        Ok(self.sender.send(bytes)?)
    }

    #[inline]
    fn send_placed(
        &mut self,
        route: &mut Route,
        header: &Header,
        mut payload: PlacedPayload<'_>,
    ) -> Result<(), SendError> {
        self.check_priority(header.priority)?;
        let bytes = payload.frame(route, header);
        Ok(self.sender.send(bytes)?)
    }

    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let mut checked = frames.iter().map(|frame| frame.header.priority);
        let refused = checked.position(|priority| self.check_priority(priority).is_err());
        match refused {
            Some(0) => self.check_priority(frames[0].header.priority).map(|()| 0),
            Some(allowed) => self.sender.send_frames(&frames[..allowed]),
            None => self.sender.send_frames(frames),
        }
    }

    #[inline]
    fn check_priority(&self, priority: Priority) -> Result<(), SendError> {
        self.priorities.check(priority)
    }

    fn needs_station(&self) -> bool {
        true
    }
}
