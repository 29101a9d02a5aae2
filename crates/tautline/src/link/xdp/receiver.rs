//! Receiving side of a port of link `xdp`: the memory that the demux writes, and the doorbell that it rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_shm::doorbell;
use tautline_shm::region::PortMemory;

use crate::error::{PortError, ReceiveError};
use crate::link::bpf::doorbell::Doorbell;
use crate::link::sleep_on;
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;
use crate::sys::ticks::Ticks;

/// Memory and doorbell of a port.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) memory: Arc<MappedPort>,
    doorbell: Doorbell,
    clock: Ticks,
}

impl Receiver {
    /// Maps the doorbell.
    pub(super) fn new(memory: Arc<MappedPort>, doorbell: OwnedFd) -> Result<Self, PortError> {
        let doorbell = Doorbell::new(doorbell)
            .map_err(|error| PortError::refused("mapping the port's doorbell", error))?;
        Ok(Self {
            memory,
            doorbell,
            clock: Ticks::new(),
        })
    }

    /// CLOCK_MONOTONIC, which the demux stamps arrivals with.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn arm(&self) {
        self.doorbell.quiet();
        doorbell::arm(self.memory.port().control);
    }

    pub(super) fn disarm(&self) {
        doorbell::disarm(self.memory.port().control);
    }

    pub(super) fn wait(
        &self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        let waited = sleep_on(self.doorbell.as_fd(), timeout, watch);
        self.disarm();
        waited
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
