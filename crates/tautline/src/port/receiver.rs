//! Common parts of ports whose frames have no header of ours, for plain UDP and for raw frames: opening, waiting, and
//! the descriptor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tautline_proto::wire::PortKey;
use tautline_shm::police;
use tautline_shm::region::{PortMemory, Shape};
use tautline_state::fork::OwnerProcess;

use super::inbox::{Decoder, Inbox, Located, Records};
use super::list::OpenPort;
use super::open_list::Registration;
use super::owner::PortOwner;
use super::spin::{Spin, Spinner};
use super::waiting::{Bell, Wait, wait_for};
use crate::error::{PortError, ReceiveError};
use crate::link::{FramePort, PortRequest};
use crate::policing::Policing;
use crate::statistics::Statistics;
use crate::types::PortTypes;

/// A port's receiving side. `D` is the form of its frames.
#[derive(Debug)]
pub(super) struct Receiver<D> {
    pub(super) inbox: Inbox,
    pub(super) records: Records<D>,
    pub(super) statistics: Arc<Statistics>,
    spinner: Spinner,
    /// Whether a receive that finds nothing arms the descriptor.
    notify: bool,
    _registration: Registration,
    pub(super) process: OwnerProcess,
    // Last: the demux must outlive the port's place in it.
    pub(super) node: Arc<dyn PortOwner>,
}

/// Properties of a port that is opened.
pub(super) struct Opening<'a> {
    pub(super) key: PortKey,
    pub(super) name: Option<&'a str>,
    pub(super) depth: u32,
    pub(super) bytes_max: usize,
    pub(super) spin: Spin,
    pub(super) policing: Option<Policing>,
}

impl<D: Decoder> Receiver<D> {
    pub(super) fn open(
        node: &Arc<dyn PortOwner>,
        opening: Opening<'_>,
        decoder: impl FnOnce() -> Result<D, PortError>,
    ) -> Result<Self, PortError> {
        let Opening { key, depth, .. } = opening;
        let bucket = opening.policing.map(|policing| policing.bucket());
        let bucket = bucket.transpose()?;
        node.check_caller()?;
        let reservation = node
            .ports()
            .reserve(key)
            .ok_or(PortError::OpenHere { key })?;
        let opened = node.link().open_port(PortRequest {
            key,
            shape: Shape::Queuing { depth },
            message_bytes_max: opening.bytes_max,
            types: PortTypes::default(),
        })?;
        let port: FramePort = opened.into_frames();
        police::set(port.memory.port().control, bucket);
        let decoder = decoder()?;
        let statistics = Arc::new(Statistics::default());
        node.port_opened();
        let shown = OpenPort::of_others(opening.name, &port.memory, &statistics);
        Ok(Self {
            inbox: Inbox::new(port, None, node.watch().map(Arc::clone)),
            records: Records::new(depth, decoder),
            spinner: Spinner::new(node.as_ref(), opening.spin, &statistics),
            statistics,
            notify: false,
            _registration: reservation.fill(shown),
            process: OwnerProcess::current(),
            node: Arc::clone(node),
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

    /// Finds the most urgent item.
    #[inline]
    pub(super) fn seek(&mut self, wait: Wait) -> Result<Option<Located<D::Item>>, ReceiveError> {
        self.find(wait, Records::seek)
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
        self.process.check()?;
        let (inbox, records) = (&mut self.inbox, &mut self.records);
        let statistics = &*self.statistics;
        if let Some(deadline) = wait.deadline() {
            return wait_for(inbox, &mut self.spinner, deadline, |inbox| {
                look(records, inbox, statistics)
            });
        }
        let found = look(records, inbox, statistics)?;
        if found.is_some() || !self.notify {
            return Ok(found);
        }
        inbox.arm();
        look(records, inbox, statistics)
    }

    pub(super) fn spin(&self) -> Spin {
        self.spinner.setting()
    }

    pub(super) fn set_spin(&mut self, spin: Spin) {
        self.spinner = Spinner::new(self.node.as_ref(), spin, &self.statistics);
    }

    /// From the first call on, a look that finds nothing arms the descriptor.
    pub(super) fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.process.check().ok()?;
        if !self.notify {
            self.notify = true;
            self.inbox.arm();
        }
        self.inbox.link.descriptor()
    }
}
