//! Receiving on a port of plain UDP: the most urgent datagram is found, put together from fragments, checked, counted,
//! and copied or lent.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::DatagramHead;
use tautline_proto::ip::checksum::judge;
use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_proto::wire::udp::UdpChecksum;
use tautline_shm::layout::{RecordHead, SLOT_PAYLOAD_BYTES, source_form};
use tautline_shm::queue::{Consumer, Record};
use tautline_shm::region::PortMemory;

use super::Datagram;
use super::routes::Routes;
use crate::address::{ipv4_of_word, source_form_of};
use crate::error::{ReceiveError, SendError};
use crate::link::plain_udp::UdpPortLink;
use crate::message::LentBytes;
use crate::port::QueuingOptions;
use crate::port::assembly::Assembly;
use crate::port::lent::LentSlot;
use crate::port::open_list::Registration;
use crate::port::udp_list::{OpenUdpPort, UdpStatistics};
use crate::port::waiting::{Bell, check_interface};
use crate::sys::interface::InterfaceWatch;

/// The link's half, and what is received with.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) link: Box<dyn UdpPortLink>,
    consumer: Consumer,
    /// Datagrams in fragments.
    assembly: Assembly,
    pub(super) message_bytes_max: usize,
    pub(super) statistics: Arc<UdpStatistics>,
    pub(super) notify: bool,
    watch: Option<Arc<InterfaceWatch>>,
    _registration: Registration<u16, OpenUdpPort>,
}

impl Bell for Receiver {
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

impl Receiver {
    pub(super) fn new(
        link: Box<dyn UdpPortLink>,
        options: &QueuingOptions,
        statistics: Arc<UdpStatistics>,
        watch: Option<Arc<InterfaceWatch>>,
        registration: Registration<u16, OpenUdpPort>,
    ) -> Receiver {
        Receiver {
            link,
            consumer: Consumer::new(options.depth as usize),
            assembly: Assembly::new(options.message_bytes_max),
            message_bytes_max: options.message_bytes_max,
            statistics,
            notify: false,
            watch,
            _registration: registration,
        }
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        route: &Route,
        priority: Priority,
        datagram: Result<OutDatagram<'_>, SendError>,
    ) -> Result<(), SendError> {
        let bytes = datagram
            .as_ref()
            .map_or(0, |datagram| datagram.payload().len());
        let result = datagram.and_then(|datagram| self.link.send(route, priority, datagram));
        match result {
            Ok(()) => self.statistics.sent.add(1, bytes),
            Err(_) => self.statistics.send_errors.add(1),
        }
        result
    }

    /// Takes the most urgent datagram.
    #[inline]
    pub(super) fn look(
        &mut self,
        routes: &Routes,
        buffer: &mut [u8],
    ) -> Result<Option<Datagram>, ReceiveError> {
        self.bring_in(routes)?;
        if let Some(datagram) = self.take_whole(buffer) {
            return Ok(Some(datagram));
        }
        let found = self.find();
        Ok(found.and_then(|found| self.take(found, buffer)))
    }

    /// Brings in what has arrived, and looks for the most urgent datagram.
    #[inline]
    pub(super) fn seek(&mut self, routes: &Routes) -> Result<Option<Located>, ReceiveError> {
        self.bring_in(routes)?;
        Ok(self.find())
    }

    #[inline]
    fn bring_in(&mut self, routes: &Routes) -> Result<(), ReceiveError> {
        self.link.collect()?;
        // Anybody can write that something did not arrive; only what went there counts.
        while let Some(news) = self.link.undelivered() {
            if routes.leads_to(news.destination) {
                self.statistics.undelivered.add(1);
                return Err(ReceiveError::Undelivered(news));
            }
        }
        Ok(())
    }

    /// Takes the most urgent datagram if it is in one frame: most are, and need nothing of what fragments do. Nothing
    /// also for one that had to be dropped, which has been counted.
    #[inline]
    fn take_whole(&mut self, buffer: &mut [u8]) -> Option<Datagram> {
        let port = self.link.memory().port();
        let record = self.consumer.peek(port.slots)?;
        let head = record.slot.head();
        let known = known(&head).filter(|known| known.fragment == 0)?;
        let bytes = buffer[..self.message_bytes_max].get_mut(..usize::from(known.length))?;
        record.slot.read_payload(bytes);
        let source = ipv4_of_word(head.source);
        let (link, statistics) = (self.link.as_ref(), &*self.statistics);
        let checksum = match known.is_verified {
            true => Some(UdpChecksum::Valid),
            false => accepted(link, statistics, known.checksum, source, bytes),
        };
        self.consumer.release(port.control, record);
        let datagram = datagram_of(&head, &known, checksum?);
        self.count(&datagram);
        Some(datagram)
    }

    /// Looks at records until one is a datagram. Bounded by the slots of the port.
    #[inline]
    fn find(&mut self) -> Option<Located> {
        let port = self.link.memory().port();
        for _ in 0..port.slots.len() {
            let Some(record) = self.consumer.peek(port.slots) else {
                self.assembly.expire(self.link.as_ref(), &self.statistics);
                return None;
            };
            let bytes_max = self.message_bytes_max;
            match read(self.link.as_ref(), &self.statistics, &record, bytes_max) {
                Content::Datagram(datagram) => {
                    let place = Location::Slot {
                        class: record.class(),
                    };
                    return Some(Located { datagram, place });
                }
                Content::Fragment(head, fragment) => {
                    let part = (record.slot, &head);
                    let (link, statistics) = (self.link.as_ref(), &*self.statistics);
                    let complete = self.assembly.enter(link, statistics, part, &fragment);
                    self.consumer.release(port.control, record);
                    let datagram = complete.then(|| self.assembled(&fragment)).flatten();
                    if let Some(datagram) = datagram {
                        let place = Location::Collector;
                        return Some(Located { datagram, place });
                    }
                }
                Content::Nothing => self.consumer.release(port.control, record),
            }
        }
        None
    }

    /// The datagram that a fragment completed; nothing if it is to be dropped, which is counted.
    fn assembled(&self, fragment: &DatagramHead) -> Option<Datagram> {
        let datagram = self.assembly.completed()?;
        let (link, statistics) = (self.link.as_ref(), &*self.statistics);
        if datagram.destination_port != link.local().port() {
            // Its first fragment came twice, for another port the other time.
            statistics.void.add(1);
            return None;
        }
        let checksum = match fragment.is_verified {
            true => UdpChecksum::Valid,
            false => {
                let (sum, source) = (datagram.checksum, datagram.source);
                accepted(link, statistics, sum, source, datagram.payload)?
            }
        };
        Some(Datagram {
            length: datagram.payload.len(),
            priority: fragment.priority,
            source: datagram.source,
            arrival: datagram.arrival,
            checksum,
        })
    }

    /// Copies a datagram that was found into `buffer`, and gives its place back.
    #[inline]
    fn take(&mut self, found: Located, buffer: &mut [u8]) -> Option<Datagram> {
        let Located { datagram, place } = found;
        let bytes = &mut buffer[..datagram.length];
        match place {
            Location::Slot { class } => {
                let port = self.link.memory().port();
                let record = self.consumer.oldest(port.slots, class)?;
                record.slot.read_payload(bytes);
                self.consumer.release(port.control, record);
            }
            Location::Collector => bytes.copy_from_slice(self.assembly.completed()?.payload),
        }
        self.count(&datagram);
        Some(datagram)
    }

    /// Counts a datagram that is handed out.
    #[inline]
    fn count(&self, datagram: &Datagram) {
        self.statistics.received.add(1, datagram.length);
        if self.statistics.latency.is_measured() {
            let latency = &self.statistics.latency;
            latency.record(datagram.arrival, self.link.now());
        }
    }

    /// Lends a datagram that was found.
    #[inline]
    pub(super) fn lend(&mut self, found: Located) -> Option<LentDatagram<'_>> {
        let Located { datagram, place } = found;
        self.count(&datagram);
        let lent = match place {
            Location::Slot { class } => {
                let port = self.link.memory().port();
                let record = self.consumer.oldest(port.slots, class)?;
                let slot = LentSlot::new(&mut self.consumer, port.control, record, (0, true));
                Lent::Slot(slot)
            }
            Location::Collector => Lent::Collector(self.assembly.completed()?.payload),
        };
        Some(LentDatagram { lent, datagram })
    }
}

/// A datagram, and where it lies: the port's until it is taken or lent.
pub(super) struct Located {
    datagram: Datagram,
    place: Location,
}

/// Where a datagram lies that was found.
enum Location {
    /// In the oldest slot of a class.
    Slot { class: usize },
    /// Where its fragments were put together.
    Collector,
}

/// A datagram where it lies, in the port's memory. It is given back when this value is dropped; until then
/// nothing is written there.
#[derive(Debug)]
pub struct LentDatagram<'p> {
    lent: Lent<'p>,
    datagram: Datagram,
}

/// The memory of a datagram.
#[derive(Debug)]
enum Lent<'p> {
    Slot(LentSlot<'p>),
    Collector(&'p [u8]),
}

impl LentDatagram<'_> {
    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.lent {
            Lent::Slot(slot) => slot.bytes(self.datagram.length).slice().unwrap_or_default(),
            Lent::Collector(bytes) => bytes,
        }
    }

    /// Other facts about the datagram.
    #[inline]
    #[must_use]
    pub fn datagram(&self) -> Datagram {
        self.datagram
    }
}

/// Contents of a record.
enum Content {
    Datagram(Datagram),
    /// A part of one, to be put together.
    Fragment(RecordHead, DatagramHead),
    /// Something that was dropped, and counted.
    Nothing,
}

/// The head of a datagram or a fragment; nothing where a record holds neither.
#[inline]
fn known(head: &RecordHead) -> Option<DatagramHead> {
    DatagramHead::from_bytes(&head.header)
        .filter(|known| usize::from(known.length) <= SLOT_PAYLOAD_BYTES)
        .filter(|_| source_form_of(head.source) == source_form::DATAGRAM)
}

/// Looks at a record.
#[inline]
fn read(
    link: &dyn UdpPortLink,
    statistics: &UdpStatistics,
    record: &Record<'_>,
    bytes_max: usize,
) -> Content {
    let head = record.slot.head();
    let Some(datagram) = known(&head) else {
        // A slot that the demux claimed and could not fill, or that somebody scribbled on.
        statistics.void.add(1);
        return Content::Nothing;
    };
    if datagram.fragment != 0 {
        return Content::Fragment(head, datagram);
    }
    let length = usize::from(datagram.length);
    if length > bytes_max {
        statistics.too_large.add(1);
        return Content::Nothing;
    }
    let source = ipv4_of_word(head.source);
    let checksum = match datagram.is_verified {
        true => Some(UdpChecksum::Valid),
        false => LentBytes::of_slot(record.slot, 0, length)
            .slice()
            .and_then(|payload| accepted(link, statistics, datagram.checksum, source, payload)),
    };
    checksum.map_or(Content::Nothing, |checksum| {
        Content::Datagram(datagram_of(&head, &datagram, checksum))
    })
}

/// A datagram in one frame, as its record tells it.
#[inline]
fn datagram_of(head: &RecordHead, known: &DatagramHead, checksum: UdpChecksum) -> Datagram {
    Datagram {
        length: usize::from(known.length),
        priority: known.priority,
        source: ipv4_of_word(head.source),
        arrival: Instant::from_nanos(head.arrival_ns),
        checksum,
    }
}

/// State of the checksum; `None` if the datagram must be dropped for it.
#[inline]
fn accepted(
    link: &dyn UdpPortLink,
    statistics: &UdpStatistics,
    checksum: u16,
    source: SocketAddrV4,
    payload: &[u8],
) -> Option<UdpChecksum> {
    match judge(checksum, source, link.local(), payload) {
        Some(UdpChecksum::Partial) if link.accepts_partial_checksums() => {
            statistics.partial_checksum.add(1);
            Some(UdpChecksum::Partial)
        }
        None | Some(UdpChecksum::Partial) => {
            statistics.bad_checksum.add(1);
            None
        }
        other => other,
    }
}
