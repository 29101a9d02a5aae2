//! Common parts of both kinds of port: a number, a link, destinations, and how to wait.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::police;
use tautline_shm::region::{PortMemory, Shape};

use super::lent::{LentMessage, Loan};
use super::list::{OpenMemory, Registration};
use super::outbox::Outbox;
use super::owner::PortOwner;
use super::waiting::{Bell, Waiter, wait_for};
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::limits::VALUE_BYTES_DEFAULT;
use crate::link::vbus::Found;
use crate::link::{ArrivalClock, PortHalf, PortRequest};
use crate::message::{Destination, Message, Outgoing};
use crate::policing::Policing;
use crate::send_pool::SendPool;
use crate::statistics::Statistics;
use crate::sys::clock;
use crate::table_state::LockedBy;

/// Common parts of both kinds of port: a number, a link, destinations.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) number: PortNumber,
    pub(super) link: PortHalf,
    outbox: Outbox,
    pub(super) statistics: Arc<Statistics>,
    spin: Duration,
    /// Whether a receive that finds nothing arms the descriptor.
    pub(super) notify: bool,
    _registration: Registration,
    send_pool: Arc<SendPool>,
    // Last: the demux must outlive the port's place in it.
    node: Arc<dyn PortOwner>,
}

impl Endpoint {
    pub(super) fn open(
        node: &Arc<dyn PortOwner>,
        number: PortNumber,
        name: Option<&str>,
        (shape, message_bytes_max): (Shape, usize),
        spin: Duration,
        policing: Option<Policing>,
    ) -> Result<Self, PortError> {
        let bucket = policing.map(|policing| policing.bucket()).transpose()?;
        node.check_namespace()?;
        let reservation = node.ports().reserve(number)?;
        let capabilities = node.link().capabilities();
        let lacking = |what| PortError::NotOnLink {
            link: node.link().kind().name(),
            what,
        };
        if bucket.is_some() && !capabilities.polices {
            return Err(lacking("policing: each sender has a ring of its own"));
        }
        let value_bytes_max = capabilities.whole_bytes_max.max(VALUE_BYTES_DEFAULT);
        if matches!(shape, Shape::Sampling { .. }) && message_bytes_max > value_bytes_max {
            return Err(lacking("values of more than one frame"));
        }
        let link = node.link().open_port(PortRequest {
            number,
            shape,
            message_bytes_max,
        })?;
        if let PortHalf::Frames(frames) = &link {
            police::set(frames.memory.port().control, bucket);
        }
        let spin = match capabilities.arrival_clock {
            // Spinning does not move virtual time.
            ArrivalClock::Virtual => Duration::ZERO,
            _ => spin,
        };
        let statistics = Arc::new(Statistics::default());
        node.port_opened(LockedBy::Port(number.get()));
        let registration = reservation.fill(name, OpenMemory::of(&link), &statistics);
        Ok(Self {
            number,
            link,
            outbox: Outbox::new(number),
            statistics,
            spin,
            notify: false,
            _registration: registration,
            send_pool: Arc::clone(node.send_pool()),
            node: Arc::clone(node),
        })
    }

    pub(super) fn destination(
        &mut self,
        name: &str,
        to: PortNumber,
    ) -> Result<Destination, PortError> {
        match &self.link {
            PortHalf::Bus(bus) if !bus.peer_wait().is_zero() => {
                let deadline = clock::monotonic() + bus.peer_wait();
                self.destination_until(name, to, deadline)
            }
            _ => self.resolve(name, to),
        }
    }

    pub(super) fn destination_until(
        &mut self,
        name: &str,
        to: PortNumber,
        deadline: Instant,
    ) -> Result<Destination, PortError> {
        let destination = self.resolve(name, to)?;
        if let PortHalf::Bus(bus) = &self.link {
            bus.wait_for_peer(destination.0, deadline)?;
        }
        Ok(destination)
    }

    fn resolve(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        if let Some(known) = self.known(name, to) {
            return Ok(known);
        }
        let neighbour = self.node.neighbour_named(name)?;
        if let PortHalf::Bus(bus) = &mut self.link {
            let place = bus.add(name, to, &self.statistics)?;
            return Ok(Destination(place));
        }
        let route = self.node.link().route(&neighbour, to, self.number)?;
        self.outbox.add(name.to_owned(), to, route)
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
        if let PortHalf::Bus(bus) = &mut self.link {
            let place = bus.add(&name, source.port, &self.statistics)?;
            return Ok(Destination(place));
        }
        let route = self
            .node
            .link()
            .route(&neighbour, source.port, self.number)?;
        self.outbox.add(name, source.port, route)
    }

    fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        match &self.link {
            PortHalf::Frames(_) => self.outbox.known(name, to),
            PortHalf::Bus(bus) => bus.known(name, to).map(Destination),
        }
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        match &mut self.link {
            PortHalf::Frames(frames) => {
                let link = frames.link.as_mut();
                self.outbox
                    .send(link, &self.statistics, to, priority, message)
            }
            PortHalf::Bus(bus) => bus.send(&self.statistics, to.0, priority, message),
        }
    }

    pub(super) fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        match &mut self.link {
            PortHalf::Frames(frames) => {
                let link = frames.link.as_mut();
                self.outbox.send_batch(link, &self.statistics, batch)
            }
            PortHalf::Bus(bus) => bus.send_batch(&self.statistics, batch),
        }
    }

    /// Lends the place of the next message.
    #[inline(always)]
    pub(super) fn lend(
        &mut self,
        to: Destination,
        priority: Priority,
        length: usize,
    ) -> Result<Loan<'_>, SendError> {
        let statistics = &self.statistics;
        match &mut self.link {
            PortHalf::Bus(bus) => Loan::on_bus(bus.outlet(to.0), statistics, priority, length),
            PortHalf::Frames(frames) => {
                let (outbox, link) = (&mut self.outbox, frames.link.as_mut());
                let pool = (&self.send_pool, length);
                Loan::of_pool(pool, outbox, link, statistics, (to, priority))
            }
        }
    }

    pub(super) fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        match &mut self.link {
            PortHalf::Frames(frames) => {
                let link = frames.link.as_mut();
                self.outbox
                    .merge(link, &self.statistics, to, priority, message)
            }
            PortHalf::Bus(bus) => bus.send(&self.statistics, to.0, priority, message),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), SendError> {
        match &mut self.link {
            PortHalf::Frames(frames) => self.outbox.flush(frames.link.as_mut(), &self.statistics),
            PortHalf::Bus(_) => Ok(()),
        }
    }

    /// Over a bus: the most urgent message, for [`Endpoint::wait_for`].
    #[inline]
    pub(super) fn find_on_bus(&mut self) -> Result<Option<Found>, ReceiveError> {
        match &mut self.link {
            PortHalf::Bus(bus) => Ok(bus.inlet.find()),
            PortHalf::Frames(_) => Ok(None),
        }
    }

    /// Over a bus: a message that was found, copied.
    pub(super) fn take_on_bus(&mut self, found: Found, buffer: &mut [u8]) -> Option<Message> {
        let PortHalf::Bus(bus) = &mut self.link else {
            return None;
        };
        self.statistics.received.add(1);
        Some(bus.take(found, buffer))
    }

    /// Over a bus: a message that was found, where it lies.
    pub(super) fn lend_on_bus(&mut self, found: Found) -> Option<LentMessage<'_>> {
        let PortHalf::Bus(bus) = &mut self.link else {
            return None;
        };
        self.statistics.received.add(1);
        Some(LentMessage::on_bus(bus, found))
    }

    /// From the first call on, a look that finds nothing arms the descriptor. Later calls must not:
    /// arming forgets rings that came before it.
    pub(super) fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.notify {
            self.notify = true;
            self.link.arm_descriptor();
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
        // A merged frame goes out if it can; an application that must know flushes first.
        let _unsent = self.flush();
    }
}

impl Waiter for Endpoint {
    fn inbox(&mut self) -> Bell<'_> {
        (&mut self.link).into()
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
