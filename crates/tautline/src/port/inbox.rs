//! Receiving where frames come into the port's own memory, whatever the port's key: its half of a link, its memory, and
//! records taken out of that. A [`Decoder`] knows the form of the records, and is all in which keys differ here.

use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_shm::queue::{Consumer, Record};
use tautline_shm::region::PortMemory;

use super::authenticated::Check;
use super::lent::LentPlace;
use super::waiting::{Bell, check_interface};
use crate::error::ReceiveError;
use crate::link::{FramePort, PortLink};
use crate::memory::MappedPort;
use crate::statistics::Statistics;
use crate::sys::interface::InterfaceWatch;

/// A port's half of a link, and the port's memory.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) link: Box<dyn PortLink>,
    pub(super) memory: Arc<MappedPort>,
    /// Of a protected port: what happens to frames before they are in its memory.
    check: Option<Box<Check>>,
    watch: Option<Arc<InterfaceWatch>>,
}

impl Inbox {
    pub(super) fn new(
        port: FramePort,
        check: Option<Check>,
        watch: Option<Arc<InterfaceWatch>>,
    ) -> Self {
        let FramePort { link, memory } = port;
        let memory = match &check {
            Some(check) => Arc::clone(check.checked()),
            None => memory,
        };
        Self {
            link,
            memory,
            check: check.map(Box::new),
            watch,
        }
    }

    /// Brings what has arrived into the port's memory.
    #[inline]
    pub(super) fn collect(&mut self) -> Result<(), ReceiveError> {
        self.link.collect()?;
        if let Some(check) = &mut self.check {
            check.run();
        }
        Ok(())
    }
}

impl Bell for Inbox {
    fn now(&self) -> Instant {
        self.link.now()
    }

    fn arm(&mut self) {
        self.link.arm();
    }

    /// Returns at once if a check has left frames behind.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        if self.check.as_ref().is_some_and(|check| check.is_waiting()) {
            return Ok(());
        }
        self.link.wait(timeout, self.watch.as_deref())
    }

    fn check_interface(&self) -> Result<(), ReceiveError> {
        check_interface(self.watch.as_deref())
    }

    fn run_due_processing(&mut self) {
        self.link.run_due_processing();
    }
}

/// Form of the records of a port: messages, datagrams or raw frames.
pub(super) trait Decoder {
    /// Facts about what was received: its content lies elsewhere.
    type Item;

    /// Length and arrival of an item.
    fn length_and_arrival(item: &Self::Item) -> (usize, Instant);

    /// Copies a record that is whole and needs nothing of what parts and protection do, as most are.
    fn take_whole(
        &mut self,
        inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
        buffer: &mut [u8],
    ) -> Whole<Self::Item>;

    /// The next item of a record; `None` if the record is done with, as it is after an error.
    fn find_in(
        &mut self,
        inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
    ) -> Result<Option<(Self::Item, Location)>, ReceiveError>;

    /// Copies the content of an item that lies in a record, from `offset` on.
    #[inline]
    fn copy(record: &Record<'_>, offset: usize, bytes: &mut [u8]) {
        record.slot.read_payload_at(offset, bytes);
    }

    /// Content of the item that was put together last.
    fn collected(&self) -> Option<&[u8]> {
        None
    }

    /// No record is there.
    #[inline]
    fn end(&mut self, _inbox: &Inbox, _statistics: &Statistics) {}
}

/// Result of a look at a record for a whole item.
pub(super) enum Whole<I> {
    /// It has been copied.
    Taken(I),
    /// It was dropped, and counted.
    Dropped,
    /// Something else is there.
    Other,
}

/// Place of an item's content. It is the port's until the item is taken or lent.
#[derive(Clone, Copy)]
pub(super) enum Location {
    /// In the oldest slot of a class.
    Slot {
        class: usize,
        offset: usize,
        /// Whether the slot holds no more items.
        is_last: bool,
    },
    /// Where its parts were put together.
    Collector,
}

impl Location {
    /// All of a record.
    #[inline]
    pub(super) fn whole(record: &Record<'_>) -> Self {
        Self::Slot {
            class: record.class(),
            offset: 0,
            is_last: true,
        }
    }
}

/// An item that was found, and where it lies.
pub(super) struct Located<I> {
    pub(super) item: I,
    pub(super) at: Location,
}

/// Takes records out of a port's memory, the most urgent first.
#[derive(Debug)]
pub(super) struct Records<D> {
    pub(super) consumer: Consumer,
    pub(super) decoder: D,
}

impl<D: Decoder> Records<D> {
    pub(super) fn new(depth: u32, decoder: D) -> Self {
        Self {
            consumer: Consumer::new(depth as usize),
            decoder,
        }
    }

    /// Brings in what has arrived, and copies the most urgent item.
    #[inline]
    pub(super) fn look(
        &mut self,
        inbox: &mut Inbox,
        statistics: &Statistics,
        buffer: &mut [u8],
    ) -> Result<Option<D::Item>, ReceiveError> {
        inbox.collect()?;
        let inbox = &*inbox;
        let port = inbox.memory.port();
        let Some(record) = self.consumer.peek(port.slots) else {
            self.decoder.end(inbox, statistics);
            return Ok(None);
        };
        let item = match self.decoder.take_whole(inbox, statistics, &record, buffer) {
            Whole::Taken(item) => {
                self.consumer.release(port.control, record);
                Some(item)
            }
            other => {
                if let Whole::Dropped = other {
                    self.consumer.release(port.control, record);
                }
                let found = self.find(inbox, statistics)?;
                found.and_then(|found| self.take(inbox, found, buffer))
            }
        };
        if let Some(item) = &item {
            count::<D>(inbox, statistics, item);
        }
        Ok(item)
    }

    /// Brings in what has arrived, and finds the most urgent item.
    #[inline]
    pub(super) fn seek(
        &mut self,
        inbox: &mut Inbox,
        statistics: &Statistics,
    ) -> Result<Option<Located<D::Item>>, ReceiveError> {
        inbox.collect()?;
        self.find(inbox, statistics)
    }

    /// Looks at records until one is or completes an item, or is an error. Bounded by the slots of the port.
    #[inline]
    fn find(
        &mut self,
        inbox: &Inbox,
        statistics: &Statistics,
    ) -> Result<Option<Located<D::Item>>, ReceiveError> {
        let port = inbox.memory.port();
        for _ in 0..port.slots.len() {
            let Some(record) = self.consumer.peek(port.slots) else {
                self.decoder.end(inbox, statistics);
                return Ok(None);
            };
            let found = self.decoder.find_in(inbox, statistics, &record);
            if !matches!(found, Ok(Some((_, Location::Slot { .. })))) {
                self.consumer.release(port.control, record);
            }
            if let Some((item, at)) = found? {
                return Ok(Some(Located { item, at }));
            }
        }
        Ok(None)
    }

    /// Lends an item that was found.
    #[inline]
    pub(super) fn lend<'p>(
        &'p mut self,
        inbox: &'p Inbox,
        statistics: &Statistics,
        found: Located<D::Item>,
    ) -> Option<(D::Item, LentPlace<'p>)> {
        let Located { item, at } = found;
        count::<D>(inbox, statistics, &item);
        let place = match at {
            Location::Slot {
                class,
                offset,
                is_last,
            } => {
                let port = inbox.memory.port();
                let record = self.consumer.oldest(port.slots, class)?;
                let (length, _) = D::length_and_arrival(&item);
                let rest = (offset, is_last);
                LentPlace::in_slot(&mut self.consumer, port.control, record, rest, length)
            }
            Location::Collector => LentPlace::collected(self.decoder.collected()?),
        };
        Some((item, place))
    }

    /// Copies an item that was found into `buffer`, and gives its place back.
    #[inline]
    fn take(
        &mut self,
        inbox: &Inbox,
        found: Located<D::Item>,
        buffer: &mut [u8],
    ) -> Option<D::Item> {
        let Located { item, at } = found;
        let (length, _) = D::length_and_arrival(&item);
        let bytes = &mut buffer[..length];
        match at {
            Location::Slot {
                class,
                offset,
                is_last,
            } => {
                let port = inbox.memory.port();
                let record = self.consumer.oldest(port.slots, class)?;
                D::copy(&record, offset, bytes);
                if is_last {
                    self.consumer.release(port.control, record);
                }
            }
            Location::Collector => bytes.copy_from_slice(self.decoder.collected()?),
        }
        Some(item)
    }
}

/// Counts an item that is handed out.
#[inline]
fn count<D: Decoder>(inbox: &Inbox, statistics: &Statistics, item: &D::Item) {
    let (length, arrival) = D::length_and_arrival(item);
    statistics.received.add(1, length);
    if statistics.latency.is_measured() {
        statistics.latency.record(arrival, inbox.link.now());
    }
}
