//! What both kinds of port have: a number, a link, destinations, and how to wait.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::fragment::fragments;
use tautline_proto::time::Instant;
use tautline_proto::wire::{Header, PortNumber, Priority};
use tautline_shm::police;
use tautline_shm::region::{PortMemory, Shape};

use super::waiting::{Waiter, wait_for};
use super::{DESTINATIONS_MAX, Destination};
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::{ArrivalClock, Inbox, PortLink, Route};
use crate::node::NodeInner;
use crate::policing::Policing;
use crate::statistics::{Registration, Statistics};

/// The way to one port of one peer, and the numbering of what went there.
#[derive(Debug)]
struct Flow {
    name: String,
    to: PortNumber,
    route: Route,
    sequence: u32,
}

impl Flow {
    /// Sends one frame under the flow's next number. A frame that was not sent has used its number
    /// too: the peer counts it as lost, which it is. A number used twice would pass for a duplicate.
    #[inline]
    pub(super) fn send(
        &mut self,
        link: &mut dyn PortLink,
        header: Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let header = Header {
            sequence: self.sequence,
            ..header
        };
        self.sequence = self.sequence.wrapping_add(1);
        link.send(&mut self.route, &header, payload)
    }
}

/// What both kinds of port have: a number, a link, destinations.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) number: PortNumber,
    pub(super) link: Box<dyn PortLink>,
    flows: Vec<Flow>,
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
            flows: Vec::with_capacity(DESTINATIONS_MAX),
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
        if let Some(known) = self.known(name, to) {
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
        self.add(name.to_owned(), to, route)
    }

    pub(super) fn reply_to(&mut self, source: Source) -> Result<Destination, PortError> {
        let name = source.address.to_string();
        if let Some(known) = self.known(&name, source.port) {
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
        self.add(name, source.port, route)
    }

    fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        let position = self
            .flows
            .iter()
            .position(|flow| flow.to == to && flow.name == name);
        position.map(Destination)
    }

    fn add(
        &mut self,
        name: String,
        to: PortNumber,
        route: Route,
    ) -> Result<Destination, PortError> {
        if self.flows.len() == DESTINATIONS_MAX {
            return Err(PortError::TooManyDestinations);
        }
        self.flows.push(Flow {
            name,
            to,
            route,
            sequence: 0,
        });
        Ok(Destination(self.flows.len() - 1))
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let result = self.send_frames(to, priority, message);
        match result {
            Ok(()) => self.statistics.sent.add(1),
            Err(_) => self.statistics.send_errors.add(1),
        }
        result
    }

    #[inline]
    fn send_frames(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let flow = &mut self.flows[to.0];
        let whole_bytes_max = flow.route.whole_bytes_max();
        if message.len() <= whole_bytes_max {
            let header = Header::whole(flow.to, self.number, priority, message.len() as u16, 0);
            return flow.send(self.link.as_mut(), header, message);
        }
        let parts = fragments(message.len(), whole_bytes_max).map_err(|too_large| {
            SendError::MessageTooLarge {
                bytes: too_large.message_bytes,
            }
        })?;
        for part in parts {
            let header = Header {
                fragment_index: part.index,
                fragment_count: part.count,
                ..Header::whole(flow.to, self.number, priority, part.length, 0)
            };
            flow.send(self.link.as_mut(), header, &message[part.range()])?;
        }
        Ok(())
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
