//! The core of a port whose frames come into the port's own memory.

mod outbox;
pub(super) mod queue;
pub(super) mod values;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::police::{self, Bucket};
use tautline_shm::region::PortMemory;

pub(super) use self::outbox::Outbox;
use super::half::Core;
use super::lent::Loan;
use super::list::OpenMemory;
use super::waiting::{Bell, check_interface};
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::frame::Marking;
use crate::link::{FramePort, Link, PortLink};
use crate::memory::MappedPort;
use crate::message::{Destination, Outgoing};
use crate::send_pool::SendPool;
use crate::statistics::Statistics;
use crate::sys::interface::InterfaceWatch;

/// A port's half of a link, the port's memory, the sending side, and the state of the receiving one.
#[derive(Debug)]
pub(super) struct Frames<R> {
    number: PortNumber,
    link: Box<dyn PortLink>,
    memory: Arc<MappedPort>,
    outbox: Outbox,
    receiver: R,
    watch: Option<Arc<InterfaceWatch>>,
}

impl<R> Frames<R> {
    pub(super) fn new(
        (number, type_byte): (PortNumber, u8),
        port: FramePort,
        watch: Option<Arc<InterfaceWatch>>,
        receiver: R,
    ) -> Self {
        Self {
            number,
            link: port.link,
            memory: port.memory,
            outbox: Outbox::new(number, type_byte),
            receiver,
            watch,
        }
    }

    pub(super) fn receiver(&mut self) -> &mut R {
        &mut self.receiver
    }
}

impl<R> Bell for Frames<R> {
    fn now(&self) -> Instant {
        self.link.now()
    }

    fn arm(&mut self) {
        self.link.arm();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        self.link.wait(timeout, self.watch.as_deref())
    }

    fn check_interface(&self) -> Result<(), ReceiveError> {
        check_interface(self.watch.as_deref())
    }

    fn run_due_processing(&mut self) {
        self.link.run_due_processing();
    }
}

impl<R> Core for Frames<R> {
    fn open_memory(&self) -> OpenMemory {
        OpenMemory::Frames(Arc::clone(&self.memory))
    }

    fn police(&self, bucket: Option<Bucket>) {
        police::set(self.memory.port().control, bucket);
    }

    fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        self.outbox.known(name, to)
    }

    fn add(
        &mut self,
        (link, marking): (&dyn Link, Marking),
        neighbour: &Neighbour,
        (name, to): (&str, PortNumber),
        _statistics: &Arc<Statistics>,
    ) -> Result<Destination, PortError> {
        let route = link.route(neighbour, to, self.number)?.marked(marking);
        let whole_bytes_max = self.link.whole_bytes_max(name, &route)?;
        self.outbox.add(name.to_owned(), to, route, whole_bytes_max)
    }

    fn neighbour_of(&self, source: Source) -> Option<Neighbour> {
        self.link.neighbour_of(source)
    }

    #[inline]
    fn send(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let link = self.link.as_mut();
        self.outbox.send(link, statistics, to, priority, message)
    }

    fn send_batch(
        &mut self,
        statistics: &Statistics,
        batch: &[Outgoing<'_>],
    ) -> Result<usize, SendError> {
        self.outbox
            .send_batch(self.link.as_mut(), statistics, batch)
    }

    #[inline(always)]
    fn lend_place<'p>(
        &'p mut self,
        pool: &Arc<SendPool>,
        statistics: &'p Statistics,
        to: (Destination, Priority),
        length: usize,
    ) -> Result<Loan<'p>, SendError> {
        let (outbox, link) = (&mut self.outbox, self.link.as_mut());
        Loan::of_pool((pool, length), outbox, link, statistics, to)
    }

    fn merge(
        &mut self,
        statistics: &Statistics,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let link = self.link.as_mut();
        self.outbox.merge(link, statistics, to, priority, message)
    }

    fn flush(&mut self, statistics: &Statistics) -> Result<(), SendError> {
        self.outbox.flush(self.link.as_mut(), statistics)
    }

    fn arm_descriptor(&mut self) {
        self.link.arm();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }
}
