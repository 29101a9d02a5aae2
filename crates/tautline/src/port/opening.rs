//! Opening of a port, whatever its key: the node's list, the link's half, protection, policing.

use std::sync::Arc;
use std::time::Duration;

use tautline_proto::authentication::Protection;
use tautline_proto::wire::PortKey;
use tautline_shm::police;
use tautline_shm::region::{PortMemory, Shape};
use tautline_state::fork::OwnerProcess;

use super::authenticated::{self, Check, Protecting, Sealing};
use super::list::{OpenMemory, OpenPort, ProtectedPort, Registration};
use super::owner::PortOwner;
use super::spin::{Spin, Spinner};
use crate::error::PortError;
use crate::kind::LinkKind;
use crate::limits::VALUE_BYTES_DEFAULT;
use crate::link::{ArrivalClock, Capabilities, PortHalf, PortRequest};
use crate::policing::Policing;
use crate::statistics::Statistics;
use crate::types::PortTypes;

/// State of an open port that does not depend on its key.
#[derive(Debug)]
pub(super) struct PortHandle {
    pub(super) statistics: Arc<Statistics>,
    pub(super) spinner: Spinner,
    /// Whether a receive that finds nothing arms the descriptor.
    pub(super) notify: bool,
    _registration: Registration,
    pub(super) process: OwnerProcess,
    // Last: the demux must outlive the port's place in it.
    pub(super) node: Arc<dyn PortOwner>,
}

impl PortHandle {
    pub(super) fn set_spin(&mut self, spin: Spin) {
        self.spinner = Spinner::new(self.node.as_ref(), spin, &self.statistics);
    }

    /// From the first call on, a look that finds nothing arms the descriptor. Returns whether this is the first: later
    /// ones must not arm it, which forgets rings that came before. `None` in a child of fork.
    pub(super) fn begins_to_notify(&mut self) -> Option<bool> {
        self.process.check().ok()?;
        Some(!std::mem::replace(&mut self.notify, true))
    }
}

/// Half of a link, with the protection of a port that has one.
pub(super) type OpenedHalf = (PortHalf, Option<(Sealing, Check)>);

pub(super) struct Opening<'a> {
    pub(super) key: PortKey,
    pub(super) name: Option<&'a str>,
    pub(super) shape: Shape,
    pub(super) bytes_max: usize,
    /// Age up to which a value is valid (sampling).
    pub(super) refresh_period: Option<Duration>,
    pub(super) spin: Spin,
    pub(super) policing: Option<Policing>,
    pub(super) protection: Option<Protection>,
    pub(super) types: &'a PortTypes,
}

impl Opening<'_> {
    /// Has the link open its half, and enters the port into the node's list.
    pub(super) fn open(
        &self,
        node: &Arc<dyn PortOwner>,
    ) -> Result<(OpenedHalf, PortHandle), PortError> {
        let &Self { key, shape, .. } = self;
        let bucket = self
            .policing
            .map(|policing| policing.bucket())
            .transpose()?;
        node.check_caller()?;
        let reservation = node.ports().reserve(key);
        let reservation = reservation.ok_or(PortError::OpenHere { key })?;
        let capabilities = node.link().capabilities();
        self.check_capabilities(node.link().kind(), &capabilities)?;
        let has_real_time = capabilities.arrival_clock != ArrivalClock::Virtual;
        let protecting = self.protection.map(|protection| Protecting {
            protection,
            keys: node.keys(),
            own: node.own_stations(),
            shape,
            has_real_time,
        });
        if protecting.as_ref().is_some_and(|with| with.keys.is_empty()) {
            return Err(PortError::NoKeys { name: None });
        }
        let opened = node.link().open_port(PortRequest {
            key,
            shape: match &protecting {
                None => shape,
                Some(_) => authenticated::waiting_shape(shape),
            },
            message_bytes_max: self.bytes_max,
            types: self.types.clone(),
        })?;
        let (memory, protection) = match &opened {
            PortHalf::Frames(port) => {
                let waiting = &port.memory;
                let protect =
                    |with| authenticated::protect(Arc::clone(waiting), key.number(), with);
                let protection = protecting.as_ref().map(protect).transpose()?;
                let memory = protection.as_ref().map(|(_, check)| check.checked());
                let memory = memory.unwrap_or(waiting);
                police::set(memory.port().control, bucket);
                (OpenMemory::Frames(Arc::clone(memory)), protection)
            }
            PortHalf::Bus(port) => {
                let memory = OpenMemory::Bus(Arc::clone(&port.bus_receiver.shared));
                (memory, None)
            }
        };
        let protected = self.protection.zip(protection.as_ref());
        let protected = protected.map(|(protection, (_, check))| ProtectedPort {
            protection,
            waiting: Arc::clone(check.waiting()),
            checked: Arc::clone(check.counters()),
        });
        let statistics = Arc::new(Statistics::default());
        node.port_opened();
        let registration = reservation.fill(OpenPort {
            name: self.name.map(str::to_owned),
            types: self.types.clone(),
            refresh_period: self.refresh_period,
            has_real_time,
            memory,
            protected,
            statistics: Arc::clone(&statistics),
        });
        let handle = PortHandle {
            spinner: Spinner::new(node.as_ref(), self.spin, &statistics),
            statistics,
            notify: false,
            _registration: registration,
            process: OwnerProcess::current(),
            node: Arc::clone(node),
        };
        Ok(((opened, protection), handle))
    }

    /// Refuses properties that the link does not have.
    fn check_capabilities(
        &self,
        link: LinkKind,
        capabilities: &Capabilities,
    ) -> Result<(), PortError> {
        let value_bytes_max = capabilities.whole_bytes_max.max(VALUE_BYTES_DEFAULT);
        let is_value = matches!(self.shape, Shape::Sampling { .. });
        let what = if self.policing.is_some() && !capabilities.polices {
            "policing: each sender has a ring of its own"
        } else if is_value && self.bytes_max > value_bytes_max {
            "values of more than one frame"
        } else if self.protection.is_some() && link == LinkKind::Vbus {
            "protection: its messages do not leave the machine"
        } else {
            return Ok(());
        };
        let link = link.name();
        Err(PortError::NotOnLink { link, what })
    }
}
