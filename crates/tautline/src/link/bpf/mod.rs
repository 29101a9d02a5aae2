//! The kernel's side of links `xdp` and `xsk`: loading and attaching the programs, the maps that they share with this
//! process, and the parts of a port that the demux delivers to.
//!
//! The demux is attached with a BPF link, which the kernel takes away with the last process that has to
//! do with it, however those end: nothing stays on the interface.

pub(super) mod counters;
pub(crate) mod demux;
pub(super) mod doorbell;
pub(crate) mod look;
pub(super) mod map_indices;
mod program_users;
mod running;
pub(crate) mod sender;
pub(super) mod tap;
pub(crate) mod taps;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::PortKey;
use tautline_shm::region::Shape;
use tautline_state::fork::OwnerProcess;

use self::sender::Sender;
use super::NodeCounters;
use crate::claim::Claim;
use crate::error::{PortError, Priorities};
use crate::memory::MappedPort;

/// Maker of ports that the demux delivers to.
pub(crate) trait DemuxOwner: Send + Sync + std::fmt::Debug {
    /// Takes a key, makes a port and shows it to the demux.
    fn open_port(&self, key: PortKey, shape: Shape) -> Result<PortParts, PortError>;

    /// Hides a port from the demux again.
    fn close_port(&self, key: PortKey);

    /// As [`super::Link::shared_neighbours`].
    fn neighbours(&self) -> Option<Vec<Neighbour>> {
        None
    }

    /// Frames that reached no port.
    fn counters(&self) -> NodeCounters;
}

/// Closes a port when dropped; not in a forked process, whose parent has it open.
#[derive(Debug)]
pub(super) struct Opened<O: ?Sized> {
    key: PortKey,
    pub(super) owner: Arc<O>,
    close: fn(&O, PortKey),
    process: OwnerProcess,
}

impl<O: ?Sized> Opened<O> {
    pub(super) fn new(key: PortKey, owner: &Arc<O>, close: fn(&O, PortKey)) -> Self {
        Self {
            key,
            owner: Arc::clone(owner),
            close,
            process: OwnerProcess::current(),
        }
    }
}

impl<O: ?Sized> Drop for Opened<O> {
    fn drop(&mut self) {
        if self.process.is_current() {
            (self.close)(&self.owner, self.key);
        }
    }
}

/// Parts of a port that the demux delivers to.
#[derive(Debug)]
pub(crate) struct PortParts {
    /// Its memory, which the demux writes.
    pub(crate) memory: Arc<MappedPort>,
    /// The ring buffer that wakes its reader.
    pub(crate) doorbell: OwnedFd,
    /// Descriptor that it sends through.
    pub(crate) sender: Sender,
    /// Its key; `None` if a socket of this process has it.
    pub(crate) claim: Option<Claim>,
    /// Those that may be sent with.
    pub(crate) priorities: Priorities,
    /// Whether raw frames may carry any source address, and not the interface's alone.
    pub(crate) any_source_address: bool,
    /// The socket that has the UDP port, of plain UDP.
    pub(crate) reserved: Option<OwnedFd>,
}
