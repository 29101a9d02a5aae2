//! A port of link `xsk`, whatever its key: its own memory, how it looks for what has come, and sending through the
//! node's AF_XDP socket.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::wire::{PortKey, Priority};
use tautline_shm::doorbell;
use tautline_shm::region::PortMemory;
use tautline_state::Event;

use super::XskLink;
use super::rx_queue::{PortSlot, Shared};
use crate::claim::Claim;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::bpf::Opened;
use crate::link::plain_udp::{next_identification, reserve};
use crate::link::{OutFrame, PortLink, PortRequest, claim, sleep_on};
use crate::memory::MappedPort;
use crate::sys::interface::{Interface, InterfaceWatch};
use crate::sys::wait;

/// The port's half.
#[derive(Debug)]
pub(super) struct XskPort {
    slot: Arc<PortSlot>,
    descriptor: OwnedFd,
    interface: Interface,
    // Closed before the key is given up.
    opened: Opened<Shared>,
    /// Socket that has the UDP port of the same number, so that no other process gets it.
    _reserved: Option<OwnedFd>,
    _claim: Option<Claim>,
}

impl XskPort {
    /// Takes the key and the port's memory, and shows that to the receive queues.
    pub(super) fn open(link: &XskLink, request: &PortRequest) -> Result<Self, PortError> {
        let (key, setup) = (request.key, &link.setup);
        let claim = claim(&setup.interface, setup.ethernet.ethertype, key)?;
        let udp_port = match key {
            PortKey::Message(port) => Some(port.udp_port()),
            PortKey::Udp(port) => Some(port.get()),
            PortKey::Raw(_) => None,
        };
        let local = setup.ip.zip(udp_port);
        let local = local.map(|(ip, port)| SocketAddrV4::new(ip, port));
        let reserved = local.map(|local| reserve(local, key)).transpose()?;
        let refused = |error| PortError::refused("preparing the port", error);
        let memory = MappedPort::private(request.shape, key.number()).map_err(refused)?;
        let slot = Arc::new(PortSlot {
            memory: Arc::new(memory),
            bell: Event::new().map_err(refused)?,
        });
        let members = [link.shared.arrivals(), slot.bell.as_fd()];
        let descriptor = wait::either(&members).map_err(refused)?;
        link.shared.open(key, &slot)?;
        Ok(Self {
            descriptor,
            interface: setup.interface.clone(),
            opened: Opened::new(key, &link.shared, Shared::close),
            slot,
            _reserved: reserved,
            _claim: claim,
        })
    }
}

impl PortLink for XskPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.slot.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        self.opened.owner.collect();
        Ok(())
    }

    fn arm(&mut self) {
        self.slot.bell.quiet();
        doorbell::arm(self.slot.memory.port().control);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        let waited = sleep_on(self.descriptor.as_fd(), timeout, watch);
        doorbell::disarm(self.slot.memory.port().control);
        waited
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn send(&mut self, frame: &OutFrame<'_>) -> Result<(), SendError> {
        self.send_many(std::slice::from_ref(frame)).map(drop)
    }

    /// All go into the transmit ring, and one call has the kernel send them.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let shared = &self.opened.owner;
        let queued = shared.send(|queue| {
            let mut queued = 0;
            for frame in frames {
                let parts = [frame.head, frame.payload];
                match queue.queue(parts) {
                    Ok(()) => {
                        queued += 1;
                        shared.tap().sent(&parts);
                    }
                    Err(error) if queued == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            Ok(queued)
        });
        Ok(queued?)
    }

    /// Either all fragments go into the transmit ring, and one call has the kernel send them, or none.
    fn send_cut(
        &mut self,
        route: &Route,
        priority: Priority,
        mut datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        let mut frames = datagram.frames(route, priority, next_identification());
        let shared = &self.opened.owner;
        let sent = shared.send(|queue| {
            let count = frames.left();
            queue.reserve(count)?;
            while let Some(frame) = frames.next_frame() {
                queue.queue([frame, &[]])?;
                shared.tap().sent(&[frame]);
            }
            Ok(count)
        });
        // Of an interface that went down in between, the rest is lost as in a card's own queue.
        Ok(sent.map(drop)?)
    }

    fn interface(&self) -> Option<&Interface> {
        Some(&self.interface)
    }
}
