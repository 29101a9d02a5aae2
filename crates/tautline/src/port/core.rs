//! The two cores of a port and their common contract. Frames come into the port's own memory ([`Frames`]); over a bus
//! messages lie in the memories of those who sent them ([`BusPort`]). This file has the only match between the two:
//! each function of a port is one call into a core, and is compiled for each core by itself.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};

use super::frames::Frames;
use super::lent::{LentMessage, Loan};
use super::opening::OpenedHalf;
use super::owner::PortOwner;
use super::waiting::Bell;
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::PortHalf;
use crate::link::vbus::BusPort;
use crate::message::{Destination, LentSample, Message, Outgoing, Sample};
use crate::statistics::Statistics;
use crate::sys::interface::InterfaceWatch;

/// A port's core. `R` is the state of a receiver of frames: of messages, or of values.
#[derive(Debug)]
pub(super) enum AnyCore<R> {
    /// Frames in the port's own memory.
    Frames(Frames<R>),
    /// Messages in the memories of others.
    Bus(Box<BusPort>),
}

impl<R> AnyCore<R> {
    /// Core over what a link has opened; `type_byte` is that of its messages, `receiver` makes the state of a receiver
    /// of frames.
    pub(super) fn new(
        (number, type_byte): (PortNumber, u8),
        (opened, protection): OpenedHalf,
        watch: Option<&Arc<InterfaceWatch>>,
        receiver: impl FnOnce() -> R,
    ) -> Self {
        match opened {
            PortHalf::Frames(port) => {
                let watch = watch.map(Arc::clone);
                let port = (port, protection);
                Self::Frames(Frames::new((number, type_byte), port, watch, receiver()))
            }
            PortHalf::Bus(port) => Self::Bus(port),
        }
    }
}

/// Evaluates an expression with the core of a port.
macro_rules! with_core {
    ($any:expr, $core:ident => $result:expr) => {
        match $any {
            $crate::port::core::AnyCore::Frames($core) => $result,
            $crate::port::core::AnyCore::Bus($core) => $result,
        }
    };
}
pub(super) use with_core;

/// Contract of a core, whatever the port receives: destinations, sending, and the descriptor.
pub(super) trait Core: Bell {
    /// Resolves a peer's port. On a bus, waits for it: until the deadline, or as the node is configured. An error if
    /// the port there declares another type.
    fn destination(
        &mut self,
        owner: &dyn PortOwner,
        statistics: &Arc<Statistics>,
        peer_port: (&str, PortNumber),
        deadline: Option<Instant>,
    ) -> Result<Destination, PortError>;

    /// Makes the way to all who read what the port publishes, where the link has one memory for them.
    fn readers(&mut self) -> Option<Result<Destination, PortError>> {
        None
    }

    /// Reads what another port publishes for many, where the link can.
    fn follow(&mut self, _name: &str, _port: PortNumber) -> Option<Result<(), PortError>> {
        None
    }

    /// Messages that those who publish for many have replaced before the port took them.
    fn overwritten(&self) -> u64 {
        0
    }

    /// Sends one message to the sender of another, in its form. It need not be a destination, and is not made one. On
    /// a bus, waits until the sender's port is connected: until the deadline, or for the first attempt.
    fn reply(
        &mut self,
        owner: &dyn PortOwner,
        statistics: &Arc<Statistics>,
        to: (Source, Option<Instant>),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError>;

    fn send(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError>;

    /// Sends messages in their order until one cannot be sent; how many were.
    fn send_batch(
        &mut self,
        statistics: &Statistics,
        batch: &[Outgoing<'_>],
    ) -> Result<usize, SendError>;

    fn lend_place<'p>(
        &'p mut self,
        owner: &dyn PortOwner,
        statistics: &'p Statistics,
        to: (Destination, Priority),
        length: usize,
    ) -> Result<Loan<'p>, SendError>;

    /// Merges a message into the next frame, where there are frames.
    fn merge(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.send(statistics, to, priority, message)
    }

    fn flush(&mut self, _statistics: &Statistics) -> Result<(), SendError> {
        Ok(())
    }

    /// Announces a wait on the descriptor.
    fn arm_descriptor(&mut self);

    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

pub(super) trait QueueCore: Core {
    /// A message that was found and has been neither taken nor lent.
    type Located;

    /// Takes the most urgent message; if there is none and `notify` is set, arms the descriptor and looks again.
    fn take_next(
        &mut self,
        statistics: &Statistics,
        notify: bool,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError>;

    /// Lends the most urgent message where it lies, like [`take_next`](Self::take_next).
    fn lend_next(
        &mut self,
        statistics: &Statistics,
        notify: bool,
    ) -> Result<Option<LentMessage<'_>>, ReceiveError>;

    fn look(
        &mut self,
        statistics: &Statistics,
        buffer: &mut [u8],
    ) -> Result<Option<Message>, ReceiveError>;

    /// Finds the most urgent message, if there is one.
    fn seek(&mut self, statistics: &Statistics) -> Result<Option<Self::Located>, ReceiveError>;

    fn lend_found(
        &mut self,
        statistics: &Statistics,
        found: Self::Located,
    ) -> Option<LentMessage<'_>>;
}

/// Contract of the core of a sampling port. Each source has a place.
pub(super) trait ValueCore: Core {
    /// Brings in what has arrived, and makes each source's newest value the reader's own; if there is no new one and
    /// `notify` is set, arms the descriptor and looks again.
    fn bring_in(&mut self, notify: bool) -> Result<(), ReceiveError>;

    /// Brings in what has arrived; whether there is a value that was not seen.
    fn finds_new(&mut self) -> Result<bool, ReceiveError>;

    /// Makes each source's newest value the reader's own.
    fn refresh(&mut self);

    /// Whether there is a value that was not seen.
    fn fresh(&self) -> bool;

    fn place_count(&self) -> usize;

    /// When the value in a place arrived, and whether it is unread.
    fn arrival_of(&self, place: usize) -> Option<(u64, bool)>;

    /// The place of the value that arrived last.
    fn newest(&mut self) -> Option<usize>;

    /// The place of the last value of a source, on a port that keeps one for each.
    fn place_of(&self, source: Source) -> Option<usize>;

    fn source_of(&self, place: usize) -> Option<Source>;

    /// Copies the value in a place; valid if it is not older than `period`.
    fn take(
        &mut self,
        statistics: &Statistics,
        place: usize,
        buffer: &mut [u8],
        period: Duration,
    ) -> Result<Option<Sample>, ReceiveError>;

    /// The value in a place where it lies, cut off at `bytes_max`.
    fn lend(
        &mut self,
        statistics: &Statistics,
        place: usize,
        bytes_max: usize,
    ) -> Result<Option<LentSample<'_>>, ReceiveError>;

    /// Arrival of the value in a place, if it has not been read.
    #[inline]
    fn unread_of(&self, place: usize) -> Option<u64> {
        let (arrival, unread) = self.arrival_of(place)?;
        unread.then_some(arrival)
    }

    /// Whether the value in a place has not been read.
    #[inline]
    fn is_unread(&self, place: usize) -> bool {
        self.unread_of(place).is_some()
    }

    /// Place of the value that has not been read and arrived first; on a port that keeps one for all, of the last.
    #[inline]
    fn first_unread(&mut self, is_single: bool) -> Option<usize> {
        if is_single {
            return self.newest().filter(|newest| self.is_unread(*newest));
        }
        let places = 0..self.place_count();
        let unread = places.filter_map(|place| Some((self.unread_of(place)?, place)));
        unread.min().map(|(_, place)| place)
    }
}
