//! Common parts of ports whose frames have no header of ours, for plain UDP and for raw frames: opening, waiting, and
//! the descriptor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tautline_proto::wire::PortKey;
use tautline_shm::region::Shape;

use super::QueuingOptions;
use super::inbox::{Decoder, Inbox, Records};
use super::lent::LentPlace;
use super::opening::{Opening, PortHandle};
use super::owner::PortOwner;
use super::waiting::{Bell, Wait, wait_for};
use crate::error::{PortError, ReceiveError};
use crate::statistics::Statistics;
use crate::types::PortTypes;

/// A port's receiving side. `D` is the form of its frames.
#[derive(Debug)]
pub(super) struct Receiver<D> {
    pub(super) inbox: Inbox,
    pub(super) records: Records<D>,
    // Last: it holds the node.
    pub(super) handle: PortHandle,
}

impl<D: Decoder> Receiver<D> {
    pub(super) fn open(
        node: &Arc<dyn PortOwner>,
        (key, name): (PortKey, Option<&str>),
        options: &QueuingOptions,
        decoder: impl FnOnce() -> Result<D, PortError>,
    ) -> Result<Self, PortError> {
        options.check_on(key, None)?;
        let depth = options.depth;
        let opening = Opening {
            key,
            name,
            shape: Shape::Queuing { depth },
            bytes_max: options.message_bytes_max,
            refresh_period: None,
            spin: options.spin,
            policing: options.policing,
            protection: None,
            types: &PortTypes::default(),
        };
        let ((half, _unprotected), handle) = opening.open(node)?;
        Ok(Self {
            inbox: Inbox::new(half.into_frames(), None, node.watch().map(Arc::clone)),
            records: Records::new(depth, decoder()?),
            handle,
        })
    }

    /// Copies the most urgent item into `buffer`.
    #[inline]
    pub(super) fn receive_into(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<D::Item>, ReceiveError> {
        self.find(wait, |records, inbox, statistics| {
            records.look(inbox, statistics, buffer)
        })
    }

    /// Lends the most urgent item.
    #[inline]
    pub(super) fn lend(
        &mut self,
        wait: Wait,
    ) -> Result<Option<(D::Item, LentPlace<'_>)>, ReceiveError> {
        let found = self.find(wait, Records::seek)?;
        let statistics = &self.handle.statistics;
        Ok(found.and_then(|found| self.records.lend(&self.inbox, statistics, found)))
    }

    /// Repeats a look until it finds something or the wait has ended.
    #[inline(always)]
    fn find<T>(
        &mut self,
        wait: Wait,
        mut look: impl FnMut(
            &mut Records<D>,
            &mut Inbox,
            &Statistics,
        ) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        let Self {
            inbox,
            records,
            handle,
        } = self;
        handle.process.check()?;
        let statistics = &*handle.statistics;
        if let Some(deadline) = wait.deadline() {
            return wait_for(inbox, &mut handle.spinner, deadline, |inbox| {
                look(records, inbox, statistics)
            });
        }
        let found = look(records, inbox, statistics)?;
        if found.is_some() || !handle.notify {
            return Ok(found);
        }
        inbox.arm();
        look(records, inbox, statistics)
    }

    pub(super) fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        if self.handle.begins_to_notify()? {
            self.inbox.arm();
        }
        self.inbox.link.descriptor()
    }
}
