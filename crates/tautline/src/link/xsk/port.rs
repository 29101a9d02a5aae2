//! A port of link `xsk`: its own memory, and how it looks for what has come.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::wire::Header;
use tautline_shm::doorbell;
use tautline_shm::region::{PortMemory, Shape};
use tautline_state::fork::OwnerProcess;

use super::rx_queue::{PortSlot, Shared};
use crate::claim::Claim;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::bpf::ShownPort;
use crate::link::frame::{HEAD_BYTES_MAX, OutFrame};
use crate::link::{Inbox, PortLink, Route, sleep_on};
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;
use crate::sys::{event, wait};

/// Parts of ports of both kinds: where their messages arrive, and how to wait for them.
#[derive(Debug)]
pub(super) struct PortReceiver {
    slot: Arc<PortSlot>,
    descriptor: OwnedFd,
    opened: Opened,
}

/// Closes the port when dropped; not in a forked process, whose parent has it open.
#[derive(Debug)]
struct Opened {
    open: ShownPort,
    shared: Arc<Shared>,
    process: OwnerProcess,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.process.is_current() {
            self.shared.close(self.open);
        }
    }
}

impl PortReceiver {
    /// Takes a port's memory, and has `open` show it to the receive queues.
    pub(super) fn take(
        shared: &Arc<Shared>,
        shape: Shape,
        number: u16,
        open: impl FnOnce(&Shared, &Arc<PortSlot>) -> Result<ShownPort, PortError>,
    ) -> Result<Self, PortError> {
        let refused = |error| PortError::refused("preparing the port", error);
        let slot = Arc::new(PortSlot {
            memory: Arc::new(MappedPort::private(shape, number).map_err(refused)?),
            bell: event::Event::new().map_err(refused)?,
        });
        let members = [shared.arrivals(), slot.bell.as_fd()];
        Ok(Self {
            descriptor: wait::either(&members).map_err(refused)?,
            opened: Opened {
                open: open(shared, &slot)?,
                shared: Arc::clone(shared),
                process: OwnerProcess::current(),
            },
            slot,
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.opened.shared
    }
}

impl Inbox for PortReceiver {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.slot.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        self.opened.shared.collect();
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
}

/// The port's half.
#[derive(Debug)]
pub(super) struct XskPort {
    // Closed before the number is given up.
    receiver: PortReceiver,
    /// The UDP port of the same number, so that nobody else has it.
    _reserved: Option<OwnedFd>,
    _claim: Claim,
}

impl XskPort {
    pub(super) fn new(receiver: PortReceiver, reserved: Option<OwnedFd>, claim: Claim) -> Self {
        Self {
            receiver,
            _reserved: reserved,
            _claim: claim,
        }
    }
}

impl Inbox for XskPort {
    fn memory(&self) -> &Arc<MappedPort> {
        self.receiver.memory()
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        self.receiver.collect()
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
        self.receiver.descriptor()
    }
}

impl PortLink for XskPort {
    fn send(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let frame = OutFrame {
            route,
            header: *header,
            payload,
        };
        self.send_many(&[frame]).map(drop)
    }

    /// All go into the transmit ring, and one call has the kernel send them.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let shared = self.receiver.shared();
        let queued = shared.send(|queue| {
            let mut queued = 0;
            for frame in frames {
                let mut head = [0; HEAD_BYTES_MAX];
                let bytes = frame.route.head(&frame.header, &mut head);
                let parts = [&head[..bytes], frame.payload];
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

    fn needs_station(&self) -> bool {
        true
    }
}
