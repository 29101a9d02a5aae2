//! A raw port on link `xdp`: the demux delivers the frames of its EtherType into its memory, and frames leave through
//! a packet socket.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::wire::raw::EtherType;
use tautline_shm::doorbell;
use tautline_shm::region::{PortMemory, Shape};

use crate::claim::Claim;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::Inbox;
use crate::link::bpf::doorbell::Doorbell;
use crate::link::bpf::sender::Sender;
use crate::link::bpf::{DemuxOwner, RawPortParts};
use crate::link::raw::RawPortLink;
use crate::memory::MappedPort;
use crate::sys::wait;

/// The port's half.
#[derive(Debug)]
pub(super) struct XdpRawPort {
    memory: Arc<MappedPort>,
    doorbell: Doorbell,
    sender: Sender,
    // Hidden from the demux before the EtherType is given up.
    _opened: Opened,
    _claim: Claim,
}

impl XdpRawPort {
    /// Has the demux's owner make the port.
    pub(super) fn open(
        ethertype: EtherType,
        shape: Shape,
        owner: &Arc<dyn DemuxOwner>,
    ) -> Result<Self, PortError> {
        let RawPortParts {
            memory,
            doorbell,
            sender,
            claim,
        } = owner.open_raw_port(ethertype, shape)?;
        // From here on a failure closes the port again.
        let opened = Opened {
            ethertype,
            owner: Arc::clone(owner),
        };
        let doorbell = Doorbell::new(doorbell)
            .map_err(|error| PortError::refused("mapping the port's doorbell", error))?;
        Ok(Self {
            memory,
            doorbell,
            sender,
            _opened: opened,
            _claim: claim,
        })
    }
}

/// Closes the port when dropped.
#[derive(Debug)]
struct Opened {
    ethertype: EtherType,
    owner: Arc<dyn DemuxOwner>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.owner.close_raw_port(self.ethertype);
    }
}

impl Inbox for XdpRawPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
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

    fn disarm(&mut self) {
        doorbell::disarm(self.memory.port().control);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        let waited = wait::readable(self.doorbell.as_fd(), timeout);
        doorbell::disarm(self.memory.port().control);
        Ok(waited?)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }
}

impl RawPortLink for XdpRawPort {
    #[inline]
    fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        Ok(self.sender.send(frame)?)
    }
}
