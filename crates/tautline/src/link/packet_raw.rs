//! A raw port through packet sockets: the kernel's latency, no priorities, because the kernel takes tags away before,
//! and other packet sockets see the frames too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::wire::raw::{EtherType, RAW_FRAME_BYTES_MAX, RawFrame};
use tautline_shm::region::Shape;

use super::raw::{RawPortLink, claim, count_unfit, deliver_raw};
use super::socket::{COLLECT_FRAMES_MAX, SOCKET_BUFFER_BYTES};
use super::{Inbox, sleep_on};
use crate::claim::Claim;
use crate::error::{PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::{Interface, InterfaceWatch};
use crate::sys::packet;
use crate::sys::socket::{self, Receiver, set_option};

/// The port's half.
pub(super) struct PacketRawPort {
    receiver: Receiver,
    sender: Arc<OwnedFd>,
    memory: Arc<MappedPort>,
    buffer: Box<[u8; RAW_FRAME_BYTES_MAX]>,
    _claim: Claim,
}

impl std::fmt::Debug for PacketRawPort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PacketRawPort")
            .finish_non_exhaustive()
    }
}

impl PacketRawPort {
    /// Opens the port's sockets; frames leave through `sender`.
    pub(super) fn open(
        interface: &Interface,
        ethertype: EtherType,
        shape: Shape,
        sender: Arc<OwnedFd>,
    ) -> Result<Self, PortError> {
        let claim = claim(interface, ethertype)?;
        let refused = |error| PortError::refused("opening the port's packet sockets", error);
        let socket = packet::raw_receiver(interface.index, ethertype.get()).map_err(refused)?;
        // Best effort: above net.core.rmem_max the kernel gives what it allows.
        let (level, bytes) = (libc::SOL_SOCKET, &SOCKET_BUFFER_BYTES);
        let _limited = set_option(socket.as_fd(), level, libc::SO_RCVBUF, bytes);
        let memory = MappedPort::private(shape, ethertype.get())
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        Ok(Self {
            receiver: Receiver::new(socket).map_err(refused)?,
            sender,
            memory: Arc::new(memory),
            buffer: Box::new([0; RAW_FRAME_BYTES_MAX]),
            _claim: claim,
        })
    }
}

impl Inbox for PacketRawPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        for _ in 0..COLLECT_FRAMES_MAX {
            let Some(received) = self.receiver.receive(&mut self.buffer[..])? else {
                break;
            };
            let Some(bytes) = self.buffer.get(..received.bytes) else {
                count_unfit(&self.memory);
                continue;
            };
            if let Some(frame) = RawFrame::parse(bytes) {
                deliver_raw(&self.memory, received.arrival, &frame);
            }
        }
        Ok(())
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        sleep_on(self.receiver.socket(), timeout, watch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.socket())
    }
}

impl RawPortLink for PacketRawPort {
    fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        Ok(socket::send(self.sender.as_fd(), frame)?)
    }
}
