//! A raw port on link `xdp`: the demux delivers the frames of its EtherType into its memory, and frames leave through
//! a packet socket, or through a tap in a client of a control process.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::wire::raw::EtherType;
use tautline_shm::region::Shape;

use super::receiver::Receiver;
use crate::claim::Claim;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::Inbox;
use crate::link::bpf::sender::Sender;
use crate::link::bpf::{DemuxOwner, Opened, RawPortParts, ShownPort};
use crate::link::raw::{RawPermit, RawPortLink};
use crate::memory::MappedPort;
use crate::sys::interface::{Interface, InterfaceWatch};

/// The port's half.
#[derive(Debug)]
pub(super) struct XdpRawPort {
    receiver: Receiver,
    sender: Sender,
    permit: RawPermit,
    // Hidden from the demux before the EtherType is given up.
    _opened: Opened,
    _claim: Claim,
}

impl XdpRawPort {
    /// Has the demux's owner make the port.
    pub(super) fn open(
        ethertype: EtherType,
        interface: &Interface,
        shape: Shape,
        owner: &Arc<dyn DemuxOwner>,
    ) -> Result<Self, PortError> {
        let RawPortParts {
            memory,
            doorbell,
            sender,
            claim,
            priorities,
            any_source_address,
        } = owner.open_raw_port(ethertype, shape)?;
        // From here on a failure closes the port again.
        let opened = Opened::new(ShownPort::Raw(ethertype), owner);
        Ok(Self {
            receiver: Receiver::new(memory, doorbell)?,
            sender,
            permit: RawPermit {
                priorities,
                source: (!any_source_address).then_some(interface.mac),
            },
            _opened: opened,
            _claim: claim,
        })
    }
}

impl Inbox for XdpRawPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.receiver.memory
    }

    /// Nothing to do: the demux has delivered already.
    #[inline]
    fn collect(&mut self) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn arm(&mut self) {
        self.receiver.arm();
    }

    fn disarm(&mut self) {
        self.receiver.disarm();
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
}

impl RawPortLink for XdpRawPort {
    fn permit(&self) -> &RawPermit {
        &self.permit
    }

    #[inline]
    fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        Ok(self.sender.send(frame)?)
    }
}
