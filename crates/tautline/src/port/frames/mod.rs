//! The core of a port whose frames come into the port's own memory.

mod outbox;
pub(super) mod queue;
pub(super) mod values;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::neighbour::{Form, Neighbour};
use tautline_proto::time::Instant;
use tautline_proto::wire::{MacAddress, PortNumber, Priority};

pub(super) use self::outbox::Outbox;
use super::authenticated::{Check, Sealing};
use super::core::Core;
use super::inbox::Inbox;
use super::lent::Loan;
use super::owner::PortOwner;
use super::waiting::Bell;
use crate::address::{Address, Source};
use crate::error::{MAC_UNKNOWN, PortError, ReceiveError, SendError};
use crate::link::{FramePort, Route};
use crate::message::{Destination, Outgoing};
use crate::statistics::Statistics;
use crate::sys::interface::InterfaceWatch;

/// Reason why a sender cannot be answered whose address no frame of the link can have.
const NOT_CARRIED: &str = "the link does not reach such an address";

/// A port's half of a link, the port's memory, the sending side, and the state of the receiving one.
#[derive(Debug)]
pub(super) struct Frames<R> {
    number: PortNumber,
    inbox: Inbox,
    outbox: Outbox,
    receiver: R,
}

impl<R> Frames<R> {
    pub(super) fn new(
        (number, type_byte): (PortNumber, u8),
        (port, protection): (FramePort, Option<(Sealing, Check)>),
        watch: Option<Arc<InterfaceWatch>>,
        receiver: R,
    ) -> Self {
        let (sealing, check) = protection.unzip();
        Self {
            number,
            inbox: Inbox::new(port, check, watch),
            outbox: Outbox::new(number, type_byte, sealing),
            receiver,
        }
    }

    pub(super) fn receiver(&mut self) -> &mut R {
        &mut self.receiver
    }

    /// The way to the sender of a message, in the form that it came in.
    fn route_to(&self, owner: &dyn PortOwner, sender: Source) -> Result<Route, SendError> {
        let no_way = |why| SendError::NoWay { why };
        let (mac, ip, form) = match sender.address {
            Address::Ethernet(mac) => (mac, None, Form::Ethernet),
            Address::Udp(address) if self.inbox.link.interface().is_some() => {
                let ip = *address.ip();
                let mac = owner.station_of_sender(ip);
                let mac = mac.ok_or(no_way(MAC_UNKNOWN))?;
                (mac, Some(ip), Form::Udp)
            }
            Address::Udp(address) => (MacAddress::UNSPECIFIED, Some(*address.ip()), Form::Udp),
            Address::Bus(_) => return Err(no_way(NOT_CARRIED)),
        };
        let peer = Neighbour {
            name: String::new(),
            mac,
            ip,
            form,
        };
        let route = owner.link().route(&peer, sender.port, self.number);
        let route = route.map_err(|_incomplete| no_way(NOT_CARRIED))?;
        Ok(route.marked(owner.marking()))
    }
}

impl<R> Bell for Frames<R> {
    fn now(&self) -> Instant {
        self.inbox.now()
    }

    fn arm(&mut self) {
        self.inbox.arm();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        self.inbox.wait(timeout)
    }

    fn check_interface(&self) -> Result<(), ReceiveError> {
        self.inbox.check_interface()
    }

    fn run_due_processing(&mut self) {
        self.inbox.run_due_processing();
    }
}

impl<R> Core for Frames<R> {
    fn destination(
        &mut self,
        owner: &dyn PortOwner,
        _statistics: &Arc<Statistics>,
        (name, to): (&str, PortNumber),
        _deadline: Option<Instant>,
    ) -> Result<Destination, PortError> {
        if let Some(known) = self.outbox.known(name, to) {
            return Ok(known);
        }
        let neighbour = owner.neighbour_named(name)?;
        let route = owner.link().route(&neighbour, to, self.number)?;
        let route = route.marked(owner.marking());
        let whole_bytes_max = self.outbox.whole_bytes_max(&route);
        let whole_bytes_max = whole_bytes_max.ok_or_else(|| PortError::NoKeys {
            name: Some(name.to_owned()),
        })?;
        self.outbox.add(name.to_owned(), to, route, whole_bytes_max)
    }

    fn reply(
        &mut self,
        owner: &dyn PortOwner,
        statistics: &Arc<Statistics>,
        (to, _deadline): (Source, Option<Instant>),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        if let Some(flow) = self.outbox.flow_back(to) {
            let link = self.inbox.link.as_mut();
            return self
                .outbox
                .send_on(link, statistics, flow, priority, message);
        }
        let route = self.route_to(owner, to);
        let link = self.inbox.link.as_mut();
        let sent =
            route.and_then(|route| self.outbox.reply(link, (to.port, route), priority, message));
        match sent {
            Ok(()) => statistics.sent.add(1, message.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        sent
    }

    #[inline]
    fn send(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let link = self.inbox.link.as_mut();
        self.outbox.send(link, statistics, to, priority, message)
    }

    fn send_batch(
        &mut self,
        statistics: &Statistics,
        batch: &[Outgoing<'_>],
    ) -> Result<usize, SendError> {
        self.outbox
            .send_batch(self.inbox.link.as_mut(), statistics, batch)
    }

    #[inline(always)]
    fn lend_place<'p>(
        &'p mut self,
        owner: &dyn PortOwner,
        statistics: &'p Statistics,
        (to, priority): (Destination, Priority),
        length: usize,
    ) -> Result<Loan<'p>, SendError> {
        let to = (self.outbox.flow_to(statistics, to)?, priority);
        let (outbox, link) = (&mut self.outbox, self.inbox.link.as_mut());
        Loan::of_pool((owner.send_pool(), length), outbox, link, statistics, to)
    }

    fn merge(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let link = self.inbox.link.as_mut();
        self.outbox.merge(link, statistics, to, priority, message)
    }

    fn flush(&mut self, statistics: &Statistics) -> Result<(), SendError> {
        self.outbox.flush(self.inbox.link.as_mut(), statistics)
    }

    fn arm_descriptor(&mut self) {
        self.inbox.link.arm();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inbox.link.descriptor()
    }
}
