//! What both kinds of port have: a number, a link, destinations, and how to wait.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::police;
use tautline_shm::region::{PortMemory, Shape};

use super::outbox::Outbox;
use super::waiting::{Waiter, wait_for};
use super::{Destination, Outgoing};
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::{ArrivalClock, Inbox, PortLink};
use crate::node::NodeInner;
use crate::policing::Policing;
use crate::statistics::{Registration, Statistics};

/// What both kinds of port have: a number, a link, destinations.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) number: PortNumber,
    pub(super) link: Box<dyn PortLink>,
    outbox: Outbox,
    pub(super) statistics: Arc<Statistics>,
    spin: Duration,
    /// Whether a receive that finds nothing arms the descriptor.
    pub(super) notify: bool,
    _registration: Registration,
    // Last: the demux must outlive the port's place in it.
    node: Arc<NodeInner>,
}

impl Endpoint {
    pub(super) fn open(
        node: &Arc<NodeInner>,
        number: PortNumber,
        name: Option<&str>,
        shape: Shape,
        spin: Duration,
        policing: Option<Policing>,
    ) -> Result<Self, PortError> {
        let bucket = policing.map(|policing| policing.bucket()).transpose()?;
        node.check_namespace()?;
        let reservation = node.ports.reserve(number)?;
        let link = node.link.open_port(number, shape)?;
        police::set(link.memory().port().control, bucket);
        let spin = match node.link.capabilities().arrival_clock {
            // Spinning does not move virtual time.
            ArrivalClock::Virtual => Duration::ZERO,
            _ => spin,
        };
        let statistics = Arc::new(Statistics::default());
        let registration = reservation.fill(name, link.memory(), &statistics);
        Ok(Self {
            number,
            link,
            outbox: Outbox::new(number),
            statistics,
            spin,
            notify: false,
            _registration: registration,
            node: Arc::clone(node),
        })
    }

    pub(super) fn destination(
        &mut self,
        name: &str,
        to: PortNumber,
    ) -> Result<Destination, PortError> {
        if let Some(known) = self.outbox.known(name, to) {
            return Ok(known);
        }
        let neighbours = &self.node.neighbours;
        let neighbour = neighbours
            .by_name(name)
            .and_then(|index| neighbours.get(index))
            .ok_or_else(|| PortError::PeerUnknown {
                name: name.to_owned(),
                known: neighbours
                    .iter()
                    .map(|(_, peer)| peer.name.clone())
                    .collect(),
            })?;
        let route = self.node.link.route(neighbour, to, self.number)?;
        self.outbox.add(name.to_owned(), to, route)
    }

    pub(super) fn reply_to(&mut self, source: Source) -> Result<Destination, PortError> {
        let name = source.address.to_string();
        if let Some(known) = self.outbox.known(&name, source.port) {
            return Ok(known);
        }
        let neighbour = self
            .node
            .neighbour_of(source.address)
            .or_else(|| self.link.neighbour_of(source))
            .ok_or_else(|| PortError::PeerUnknown {
                name: name.clone(),
                known: Vec::new(),
            })?;
        let route = self.node.link.route(&neighbour, source.port, self.number)?;
        self.outbox.add(name, source.port, route)
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let link = self.link.as_mut();
        self.outbox
            .send(link, &self.statistics, to, priority, message)
    }

    pub(super) fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        let link = self.link.as_mut();
        self.outbox.send_batch(link, &self.statistics, batch)
    }

    pub(super) fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let link = self.link.as_mut();
        self.outbox
            .merge(link, &self.statistics, to, priority, message)
    }

    pub(super) fn flush(&mut self) -> Result<(), SendError> {
        self.outbox.flush(self.link.as_mut(), &self.statistics)
    }

    /// From the first call on, a look that finds nothing arms the descriptor. Later calls must not:
    /// arming forgets rings that came before it.
    pub(super) fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.notify {
            self.notify = true;
            self.link.arm();
        }
        self.link.descriptor()
    }

    /// See [`wait_for`].
    pub(super) fn wait_for<T>(
        &mut self,
        deadline: Instant,
        look: impl FnMut(&mut Self) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        wait_for(self, deadline, look)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // What was merged goes out if it can; who wants to know flushes first.
        let _unsent = self.flush();
    }
}

impl Waiter for Endpoint {
    fn inbox(&mut self) -> &mut dyn Inbox {
        self.link.as_mut()
    }

    fn spin(&self) -> Duration {
        self.spin
    }
}

/// Whether `buffer` can hold any message of the port.
#[inline]
pub(super) fn check_buffer(buffer: &[u8], needed: usize) -> Result<(), ReceiveError> {
    if buffer.len() < needed {
        return Err(ReceiveError::BufferTooSmall {
            given: buffer.len(),
            needed,
        });
    }
    Ok(())
}
