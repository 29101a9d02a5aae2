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
use crate::link::vbus::{
    BusPort, Flow, FoundMessage, PRODUCERS_MAX, Publisher, READERS, Subscription, node_named,
};
use crate::message::{Destination, LentSample, Message, Outgoing, Sample, bytes_of};
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
        let deadline = deadline.or_else(|| self.configured_deadline());
        self.flows[destination.index()].bus_sender.wait(deadline)?;
        Ok(destination)
    }

    fn readers(&mut self) -> Option<Result<Destination, PortError>> {
        if self.publisher.is_none() {
            let refused = |error| PortError::refused("taking the memory for its readers", error);
            match self.bus_receiver.shared.publish() {
                Ok(shared) => self.publisher = Some(Publisher::new(Arc::clone(shared))),
                Err(error) => return Some(Err(refused(error))),
            }
        }
        Some(Ok(self.identity.destination(READERS)))
    }

    fn follow(&mut self, name: &str, port: PortNumber) -> Option<Result<(), PortError>> {
        Some(follow(self, name, port))
    }

    fn overwritten(&self) -> u64 {
        self.bus_receiver.shared.overwritten.read()
    }

    fn reply(
        &mut self,
        _owner: &dyn PortOwner,
        statistics: &Arc<Statistics>,
        (to, deadline): (Source, Option<Instant>),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let Address::Bus(node) = to.address else {
            statistics.send_errors.add(1);
            return Err(SendError::NoWay {
                why: "it is not on the bus",
            });
        };
        let (flow, is_new) = match self.known(node.as_str(), to.port) {
            Some(known) => (&mut self.flows[known.index()], false),
            None => self.way_back((node, to.port), statistics),
        };
        if is_new && deadline.is_none() {
            // The send says the same.
            let _absent = flow.bus_sender.wait(None);
        }
        let mut result = flow.send(priority, message);
        if result == Err(SendError::PeerGone)
            && deadline.is_some()
            && flow.bus_sender.wait(deadline).is_ok()
        {
            flow.numbering.give_back();
            result = flow.send(priority, message);
        }
        match result {
            Ok(()) => statistics.sent.add(1, message.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }

    #[inline(always)]
    fn send(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let result = match self.place(to) {
            Ok(place) => match self.flows.get_mut(place) {
                Some(flow) => flow.send(priority, message),
                None => self.send_to_readers(place, priority, message),
            },
            Err(other) => Err(other),
        };
        match result {
            Ok(()) => statistics.sent.add(1, message.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }

    fn send_batch(
        &mut self,
        statistics: &Statistics,
        batch: &[Outgoing<'_>],
    ) -> Result<usize, SendError> {
        let mut sent = 0;
        for run in batch.chunk_by(|one, next| (one.to, one.priority) == (next.to, next.priority)) {
            let mut messages = run.iter().map(|outgoing| outgoing.message);
            let priority = run[0].priority;
            let place = self.place(run[0].to);
            let (count, result) = match place.map(|place| (place, self.flows.get_mut(place))) {
                Ok((_, Some(flow))) => {
                    flow.bus_sender
                        .send_batch(priority, &mut flow.numbering, messages)
                }
                Ok((place, None)) => {
                    let mut result = Ok(());
                    let stopped = messages.position(|message| {
                        result = self.send_to_readers(place, priority, message);
                        result.is_err()
                    });
                    (stopped.unwrap_or(run.len()), result)
                }
                Err(other) => (0, Err(other)),
            };
            sent += count;
            statistics.sent.add(count, bytes_of(&run[..count]));
            match result {
                Ok(()) => {}
                Err(error) if sent == 0 => {
                    statistics.send_errors.add(1);
                    return Err(error);
                }
                Err(_) => break,
            }
        }
        Ok(sent)
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
        if place >= self.flows.len() {
            let publisher = self.publisher(place).inspect_err(refused)?;
            return Loan::for_readers(publisher, statistics, priority, length);
        }
        let Flow {
            bus_sender,
            numbering,
        } = &mut self.flows[place];
        Loan::on_bus((bus_sender, numbering), statistics, priority, length)
    }

    fn arm_descriptor(&mut self) {
        self.bus_receiver.arm(true);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bus_receiver.shared.descriptor())
    }
}

/// Reads from now on what another port publishes for many; waits for it as for a destination.
fn follow(bus: &mut BusPort, name: &str, port: PortNumber) -> Result<(), PortError> {
    let node = node_named(name)?;
    let is_meant =
        |following: &&Arc<Subscription>| (following.node, following.port) == (node, port);
    let following = match bus.followed.iter().find(is_meant) {
        Some(known) => Arc::clone(known),
        None if bus.followed.len() == PRODUCERS_MAX => {
            return Err(PortError::TooManyDestinations);
        }
        None => {
            let shared = &bus.bus_receiver.shared;
            let begun = Subscription::begin(&bus.service.handle, shared, node, port);
            bus.followed.push(Arc::clone(&begun));
            begun
        }
    };
    let deadline = bus.configured_deadline();
    following.attempt.wait((node, port), deadline)
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
