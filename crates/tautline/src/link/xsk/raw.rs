//! A raw port on link `xsk`: whichever port looks brings its frames, and frames leave through an AF_XDP socket.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::port::PortReceiver;
use crate::claim::Claim;
use crate::error::{ReceiveError, SendError};
use crate::link::Inbox;
use crate::link::raw::RawPortLink;
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;

/// The port's half.
#[derive(Debug)]
pub(super) struct XskRawPort {
    // Closed before the EtherType is given up.
    receiver: PortReceiver,
    _claim: Claim,
}

impl XskRawPort {
    pub(super) fn new(receiver: PortReceiver, claim: Claim) -> Self {
        Self {
            receiver,
            _claim: claim,
        }
    }
}

impl Inbox for XskRawPort {
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

impl RawPortLink for XskRawPort {
    fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        let shared = self.receiver.shared();
        let sent = shared.send(|queue| {
            queue.queue([frame, &[]])?;
            shared.tap().sent(&[frame]);
            Ok(1)
        });
        Ok(sent.map(drop)?)
    }
}
