//! The core of a port over a bus: the port's calls as [`BusPort`] takes them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};

use super::core::{Core, QueueCore, ValueCore};
use super::lent::{LentMessage, Loan};
use super::owner::PortOwner;
use super::waiting::Bell;
use crate::address::{Address, Source};
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::vbus::{BusPort, FoundMessage};
use crate::message::{Destination, LentSample, Message, Outgoing, Sample};
use crate::statistics::Statistics;
use crate::sys::clock;

impl Bell for Box<BusPort> {
    fn now(&self) -> Instant {
        // The kernel's own: a deadline is not to come too early.
        clock::monotonic()
    }

    fn arm(&mut self) {
        self.bus_receiver.arm(false);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        self.bus_receiver.wait(timeout)
    }

    fn run_due_processing(&mut self) {
        // Nothing on a bus waits for the kernel.
    }
}

impl Core for Box<BusPort> {
    fn destination(
        &mut self,
        owner: &dyn PortOwner,
        statistics: &Arc<Statistics>,
        (name, to): (&str, PortNumber),
        deadline: Option<Instant>,
    ) -> Result<Destination, PortError> {
        let destination = match self.known(name, to) {
            Some(known) => known,
            None => {
                let _known = owner.neighbour_named(name)?;
                self.add(name, to, statistics)?
            }
        };
        self.wait_for_peer(destination, deadline)?;
        Ok(destination)
    }

    fn readers(&mut self) -> Option<Result<Destination, PortError>> {
        Some((**self).readers())
    }

    fn follow(&mut self, name: &str, port: PortNumber) -> Option<Result<(), PortError>> {
        Some((**self).follow(name, port))
    }

    fn overwritten(&self) -> u64 {
        self.bus_receiver.shared.overwritten.read()
    }

    fn reply(
        &mut self,
        _owner: &dyn PortOwner,
        statistics: &Arc<Statistics>,
        to: (Source, Option<Instant>),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        (**self).reply(statistics, to, priority, message)
    }

    #[inline(always)]
    fn send(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        (**self).send(statistics, to, priority, message)
    }

    fn send_batch(
        &mut self,
        statistics: &Statistics,
        batch: &[Outgoing<'_>],
    ) -> Result<usize, SendError> {
        (**self).send_batch(statistics, batch)
    }

    #[inline(always)]
    fn lend_place<'p>(
        &'p mut self,
        _owner: &dyn PortOwner,
        statistics: &'p Statistics,
        (to, priority): (Destination, Priority),
        length: usize,
    ) -> Result<Loan<'p>, SendError> {
        let refused = |_: &SendError| statistics.send_errors.add(1);
        let place = self.place(to).inspect_err(refused)?;
        // Asked for twice, since a borrow that is handed on may not be given up where there is none.
        if self.bus_sender(place).is_none() {
            let publisher = self.publisher(place).inspect_err(refused)?;
            return Loan::for_readers(publisher, statistics, priority, length);
        }
        let way = self.bus_sender(place).expect("it is there");
        Loan::on_bus(way, statistics, priority, length)
    }

    fn arm_descriptor(&mut self) {
        self.bus_receiver.arm(true);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bus_receiver.shared.descriptor())
    }
}

impl QueueCore for Box<BusPort> {
    type Located = FoundMessage;

    #[inline(always)]
    fn take_next(
        &mut self,
        statistics: &Statistics,
        notify: bool,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        let Some(found) = self.find(notify) else {
            return Ok(None);
        };
        count(self, statistics, &found);
        let FoundMessage { head, place } = found;
        let length = head.length as usize;
        let bytes = self.bus_receiver.bytes(place, length);
        bytes.copy_out(0, &mut buffer[..length]);
        let message = Message {
            length,
            priority: Priority::ALL[place.class],
            source: self.bus_receiver.sender(place),
            arrival: Instant::from_nanos(head.arrival_ns),
            sequence: head.sequence,
        };
        self.bus_receiver.release(place);
        Ok(Some(message))
    }

    #[inline(always)]
    fn lend_next(
        &mut self,
        statistics: &Statistics,
        notify: bool,
    ) -> Result<Option<LentMessage<'_>>, ReceiveError> {
        match self.find(notify) {
            Some(found) => {
                count(self, statistics, &found);
                Ok(Some(LentMessage::on_bus(self, found)))
            }
            None => Ok(None),
        }
    }

    #[inline]
    fn look(
        &mut self,
        statistics: &Statistics,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError> {
        self.take_next(statistics, false, buffer)
    }

    #[inline]
    fn seek(&mut self, _statistics: &Statistics) -> Result<Option<FoundMessage>, ReceiveError> {
        Ok(self.find(false))
    }

    #[inline]
    fn lend_found(
        &mut self,
        statistics: &Statistics,
        found: FoundMessage,
    ) -> Option<LentMessage<'_>> {
        count(self, statistics, &found);
        Some(LentMessage::on_bus(self, found))
    }
}

/// Counts a message that is handed out.
#[inline(always)]
fn count(port: &BusPort, statistics: &Statistics, found: &FoundMessage) {
    statistics.received.add(1, found.head.length as usize);
    if statistics.latency.is_measured() {
        port.measure(statistics, found.head.arrival_ns);
    }
}

impl ValueCore for Box<BusPort> {
    #[inline(always)]
    fn bring_in(&mut self, notify: bool) -> Result<(), ReceiveError> {
        self.refresh_values(notify);
        Ok(())
    }

    #[inline]
    fn finds_new(&mut self) -> Result<bool, ReceiveError> {
        Ok(self.bus_receiver.refresh_values())
    }

    fn refresh(&mut self) {
        self.bus_receiver.refresh_values();
    }

    fn fresh(&self) -> bool {
        self.bus_receiver.fresh()
    }

    fn place_count(&self) -> usize {
        self.bus_receiver.value_count()
    }

    fn arrival_of(&self, place: usize) -> Option<(u64, bool)> {
        self.bus_receiver.value(place)
    }

    #[inline(always)]
    fn newest(&mut self) -> Option<usize> {
        self.bus_receiver.newest()
    }

    fn place_of(&self, source: Source) -> Option<usize> {
        (0..self.place_count())
            .filter(|place| self.source_of(*place) == Some(source))
            .max_by_key(|place| self.bus_receiver.value(*place))
    }

    fn source_of(&self, place: usize) -> Option<Source> {
        self.bus_receiver.value(place)?;
        let (node, port) = self.bus_receiver.source(place)?;
        let address = Address::Bus(node);
        Some(Source { address, port })
    }

    #[inline(always)]
    fn take(
        &mut self,
        _statistics: &Statistics,
        place: usize,
        buffer: &mut [u8],
        period: Duration,
    ) -> Result<Option<Sample>, ReceiveError> {
        let now = self.now();
        let Some(handed) = self.bus_receiver.hand(place) else {
            return Ok(None);
        };
        let length = handed.head.length as usize;
        handed.bytes.copy_out(0, &mut buffer[..length]);
        let arrival = Instant::from_nanos(handed.head.arrival_ns);
        let age = now.saturating_duration_since(arrival);
        Ok(Some(Sample {
            length,
            priority: Priority::ALL[handed.head.class as usize],
            source: handed.from.source(),
            arrival,
            age,
            valid: age <= period,
            sequence: handed.head.sequence,
            overwritten: handed.overwritten,
            new: handed.new,
        }))
    }

    #[inline(always)]
    fn lend(
        &mut self,
        _statistics: &Statistics,
        place: usize,
        _bytes_max: usize,
    ) -> Result<Option<LentSample<'_>>, ReceiveError> {
        Ok(self.bus_receiver.hand(place).map(|handed| LentSample {
            bytes: handed.bytes,
            priority: Priority::ALL[handed.head.class as usize],
            source: handed.from.source(),
            arrival: Instant::from_nanos(handed.head.arrival_ns),
            sequence: handed.head.sequence,
            overwritten: handed.overwritten,
            new: handed.new,
        }))
    }
}
