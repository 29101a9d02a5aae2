//! Messages that are filled in place, and looked at where they lie. Over a bus that is the sender's
//! memory, on both sides; on the other links a message is filled in a buffer of the node's pool, and looked
//! at in the receiving port's own memory.
#![allow(unsafe_code)] // Views of memory that has one owner at a time.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tautline_proto::ip::send::Route as UdpRoute;
use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_shm::layout::Control;
use tautline_shm::queue::{Consumer, Record};
use tautline_state::fork::OwnerProcess;

use super::frames::Outbox;
use super::udp::send_loan;
use crate::address::Source;
use crate::error::SendError;
use crate::link::PortLink;
use crate::link::vbus::{BusPort, BusSender, FoundMessage, Publisher, SlotRef};
use crate::message::{DetachedBytes, LentBytes, Message, Numbering};
use crate::send_pool::{LentBuffer, SendPool};
use crate::statistics::Statistics;

/// The place of a message that has not been sent: fill it, and [`send`](Loan::send) it. Dropped without that, it is as
/// if it had never been asked for. What stands there at first is what an earlier message has left.
pub struct Loan<'p> {
    /// The place: `length` bytes that only we can write, in memory that `way` holds.
    start: *mut u8,
    length: usize,
    way: LoanWay<'p>,
    statistics: &'p Statistics,
    priority: Priority,
    process: OwnerProcess,
}

/// How a loan is sent, and who holds its memory. Nothing here is dropped but by [`Loan`]'s own few instructions: with
/// more, the compiler keeps every loan in memory, and copying it from there costs more than all the rest of a send
/// over a bus.
enum LoanWay<'p> {
    /// A slot that the receiver will look into.
    Bus {
        bus_sender: &'p mut BusSender,
        numbering: &'p mut Numbering,
    },
    /// The place of the next message for all readers.
    Readers(&'p mut Publisher),
    /// A buffer that frames leave from; it is in the outbox.
    Pool {
        outbox: &'p mut Outbox,
        link: &'p mut dyn PortLink,
        flow: usize,
    },
    /// A buffer that a datagram leaves from; it is in the port of plain UDP.
    Datagram {
        buffer: &'p mut Option<LentBuffer>,
        link: &'p mut dyn PortLink,
        route: &'p UdpRoute,
    },
}

impl<'p> Loan<'p> {
    #[inline(always)]
    fn new(
        (start, length): (*mut u8, usize),
        way: LoanWay<'p>,
        statistics: &'p Statistics,
        priority: Priority,
    ) -> Self {
        Self {
            start,
            length,
            way,
            statistics,
            priority,
            process: OwnerProcess::current(),
        }
    }

    #[inline(always)]
    pub(super) fn on_bus(
        (bus_sender, numbering): (&'p mut BusSender, &'p mut Numbering),
        statistics: &'p Statistics,
        priority: Priority,
        length: usize,
    ) -> Result<Self, SendError> {
        let start = match bus_sender.lend(priority, length) {
            Ok(start) => start,
            Err(error) => {
                statistics.send_errors.add(1);
                return Err(error);
            }
        };
        let way = LoanWay::Bus {
            bus_sender,
            numbering,
        };
        Ok(Self::new((start, length), way, statistics, priority))
    }

    /// The place of the next message for all readers of the port.
    #[inline(never)]
    pub(super) fn for_readers(
        publisher: &'p mut Publisher,
        statistics: &'p Statistics,
        priority: Priority,
        length: usize,
    ) -> Result<Self, SendError> {
        let start = publisher
            .lend(priority, length)
            .inspect_err(|_| statistics.send_errors.add(1))?;
        let way = LoanWay::Readers(publisher);
        Ok(Self::new((start, length), way, statistics, priority))
    }

    #[inline(never)]
    pub(super) fn of_pool(
        (pool, length): (&Arc<SendPool>, usize),
        outbox: &'p mut Outbox,
        link: &'p mut dyn PortLink,
        statistics: &'p Statistics,
        (flow, priority): (usize, Priority),
    ) -> Result<Self, SendError> {
        let buffer = pool
            .lend(length)
            .inspect_err(|_| statistics.send_errors.add(1))?;
        let start = outbox.keep_lent(buffer).as_mut_ptr();
        let way = LoanWay::Pool { outbox, link, flow };
        Ok(Self::new((start, length), way, statistics, priority))
    }

    /// A buffer of the node's pool, which the port of plain UDP keeps in `place`.
    pub(super) fn of_datagram(
        (place, buffer): (&'p mut Option<LentBuffer>, LentBuffer),
        link: &'p mut dyn PortLink,
        route: &'p UdpRoute,
        statistics: &'p Statistics,
        priority: Priority,
    ) -> Self {
        let kept = place.insert(buffer);
        let memory = (kept.as_mut_ptr(), kept.len());
        let way = LoanWay::Datagram {
            buffer: place,
            link,
            route,
        };
        Self::new(memory, way, statistics, priority)
    }

    /// Sends what has been filled in.
    ///
    /// # Errors
    /// Those of [`QueuingPort::send`](crate::QueuingPort::send).
    #[inline(always)]
    pub fn send(mut self) -> Result<(), SendError> {
        self.process.check()?;
        let (statistics, priority) = (self.statistics, self.priority);
        let result = match &mut self.way {
            LoanWay::Bus {
                bus_sender,
                numbering,
            } => bus_sender.publish_lent(priority, self.length, numbering.take()),
            LoanWay::Readers(publisher) => {
                publisher.publish(priority, self.length);
                Ok(())
            }
            LoanWay::Pool { outbox, link, flow } => {
                return outbox.send_kept(*link, statistics, (*flow, priority));
            }
            LoanWay::Datagram {
                buffer,
                link,
                route,
            } => return send_loan(*link, statistics, route, priority, buffer),
        };
        match result {
            Ok(()) => statistics.sent.add(1, self.length),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }
}

impl Drop for Loan<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match &mut self.way {
            LoanWay::Pool { outbox, .. } => outbox.forget_lent(),
            LoanWay::Datagram { buffer, .. } => forget(buffer),
            LoanWay::Bus { .. } | LoanWay::Readers(_) => {}
        }
    }
}

/// Gives the buffer of a loan back, if it has not been sent.
#[inline(never)]
fn forget(buffer: &mut Option<LentBuffer>) {
    *buffer = None;
}

impl Deref for Loan<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` begins `length` initialised bytes that stay while the loan does: of a slot of our own
        // memory (`BusSender::lend`, `Publisher::lend`), mapped while the sender is borrowed, which only we can
        // write, since it is sealed (the peer does not read it before it is published, and its reads could not harm
        // us); or of the buffer that the outbox (`Outbox::keep_lent`) or the UDP port keeps for this loan, and that is
        // not touched otherwise while `way` borrows it.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl DerefMut for Loan<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the loan is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl std::fmt::Debug for Loan<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Loan")
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}

/// Bytes that a port lends where they lie, and the place that they take. Dropping this gives the place back.
pub(super) struct LentPlace<'p> {
    /// In memory that `owner` holds, or that stays until the port is used again.
    bytes: DetachedBytes,
    owner: SlotOwner<'p>,
    process: OwnerProcess,
}

/// Ring that gets a message back. Like [`LoanWay`], without anything to drop.
enum SlotOwner<'p> {
    Bus {
        bus: &'p mut BusPort,
        place: SlotRef,
    },
    /// The port's producers: no more messages are in the slot.
    Slot {
        consumer: &'p mut Consumer,
        control: &'p Control,
        record: Record<'p>,
    },
    /// None yet. It stays until the port is used again.
    Nobody,
}

// SAFETY: `bytes` is read only; what is there belongs to the message, whichever thread has it; and the
// owner may change threads itself.
unsafe impl Send for LentPlace<'_> {}
// SAFETY: as above; with a shared reference the bytes can only be read.
unsafe impl Sync for LentPlace<'_> {}

impl<'p> LentPlace<'p> {
    #[inline(always)]
    fn new(bytes: LentBytes<'p>, owner: SlotOwner<'p>) -> Self {
        Self {
            bytes: bytes.detach(),
            owner,
            process: OwnerProcess::current(),
        }
    }

    /// In a slot of the port, from `offset` on. It is given back if `is_last`.
    #[inline]
    pub(super) fn in_slot(
        consumer: &'p mut Consumer,
        control: &'p Control,
        record: Record<'p>,
        (offset, is_last): (usize, bool),
        length: usize,
    ) -> Self {
        let bytes = LentBytes::of_slot(record.slot, offset, length);
        let owner = if is_last {
            SlotOwner::Slot {
                consumer,
                control,
                record,
            }
        } else {
            SlotOwner::Nobody
        };
        Self::new(bytes, owner)
    }

    /// Where fragments were put together.
    pub(super) fn collected(bytes: &'p [u8]) -> Self {
        Self::new(LentBytes::of_slice(bytes), SlotOwner::Nobody)
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> LentBytes<'_> {
        // SAFETY: `owner` borrows for `'p`, which outlives `self`, the port that the slot belongs to and gives it back
        // only when it is dropped; without a owner, the constructors' `'p` is the borrow of the bytes themselves.
        unsafe { self.bytes.attach() }
    }
}

impl Drop for LentPlace<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The parent's to give back.
            return;
        }
        match &mut self.owner {
            SlotOwner::Bus { bus, place } => bus.give_back(*place),
            SlotOwner::Slot {
                consumer,
                control,
                record,
            } => give_back(consumer, control, *record),
            SlotOwner::Nobody => {}
        }
    }
}

/// Out of line, so that dropping a message is a few instructions. See [`LoanWay`].
#[inline(never)]
fn give_back(consumer: &mut Consumer, control: &Control, record: Record<'_>) {
    consumer.release(control, record);
}

impl std::fmt::Debug for LentPlace<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().fmt(formatter)
    }
}

/// A message where it lies: where its sender has put it on a bus, unless that publishes for many; in the port's own
/// memory otherwise. It is given back when this value is dropped; until then its place is taken, and nothing is
/// written there.
#[derive(Debug)]
pub struct LentMessage<'p> {
    place: LentPlace<'p>,
    /// Its priority.
    pub priority: Priority,
    /// Sender of the message.
    pub source: Source,
    /// When it was published on a bus; elsewhere when its last frame arrived.
    pub arrival: Instant,
    /// Its sequence number; of a message in frames, that of the first.
    pub sequence: u32,
}

impl<'p> LentMessage<'p> {
    /// In the memory of its sender on a bus.
    #[inline(always)]
    pub(crate) fn on_bus(bus: &'p mut BusPort, FoundMessage { head, place }: FoundMessage) -> Self {
        let bytes = bus.bus_receiver.bytes(place, head.length as usize).detach();
        Self {
            priority: Priority::ALL[place.class],
            source: bus.bus_receiver.sender(place),
            arrival: Instant::from_nanos(head.arrival_ns),
            sequence: head.sequence,
            place: LentPlace {
                bytes,
                owner: SlotOwner::Bus { bus, place },
                process: OwnerProcess::current(),
            },
        }
    }

    #[inline]
    pub(super) fn of(place: LentPlace<'p>, message: &Message) -> Self {
        Self {
            place,
            priority: message.priority,
            source: message.source,
            arrival: message.arrival,
            sequence: message.sequence,
        }
    }

    /// The message's bytes.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> LentBytes<'_> {
        self.place.bytes()
    }
}

/// A message that was received: it derefs to its bytes, in the port's own memory. Dropping it gives its place back;
/// until then its place is taken, and nothing is written there.
#[derive(Debug)]
pub struct Received<'p>(LentMessage<'p>);

impl<'p> Received<'p> {
    /// A message in a slot of the port, or where its fragments were put together.
    #[inline(always)]
    pub(super) fn own(message: LentMessage<'p>) -> Self {
        debug_assert!(message.bytes().slice().is_some());
        Self(message)
    }

    /// Its priority.
    #[inline]
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.0.priority
    }

    /// Sender of the message.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Source {
        self.0.source
    }

    /// When it was published on a bus; elsewhere when its last frame arrived, on the link's arrival clock.
    #[inline]
    #[must_use]
    pub fn arrival(&self) -> Instant {
        self.0.arrival
    }

    /// Its sequence number; of a message in frames, that of the first.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.0.sequence
    }
}

impl Deref for Received<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.0.bytes().slice().unwrap_or_default()
    }
}
