//! Form of plain UDP: datagrams are put together from fragments, checked, counted, and copied or lent.

use std::net::SocketAddrV4;
use std::ops::Deref;

use tautline_proto::ip::DatagramHead;
use tautline_proto::ip::checksum::judge;
use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_proto::wire::udp::UdpChecksum;
use tautline_shm::layout::{RecordHead, SLOT_PAYLOAD_BYTES, source_form};
use tautline_shm::queue::Record;

use super::Datagram;
use super::routes::Routes;
use crate::address::{ipv4_of_word, source_form_of};
use crate::error::ReceiveError;
use crate::message::LentBytes;
use crate::port::assembly::Assembly;
use crate::port::inbox::{Decoder, Inbox, Location, Whole};
use crate::port::lent::LentPlace;
use crate::statistics::Statistics;

/// State of receiving datagrams, and the ways to those who send them.
#[derive(Debug)]
pub(super) struct Datagrams {
    /// Our address and UDP port.
    pub(super) local: SocketAddrV4,
    pub(super) bytes_max: usize,
    pub(super) routes: Routes,
    /// Datagrams in fragments.
    assembly: Assembly,
}

impl Datagrams {
    pub(super) fn new(local: SocketAddrV4, bytes_max: usize) -> Self {
        Self {
            local,
            bytes_max,
            routes: Routes::new(),
            assembly: Assembly::new(bytes_max),
        }
    }

    /// The datagram that a fragment completed; nothing if it is to be dropped, which is counted.
    fn assembled(
        &self,
        inbox: &Inbox,
        statistics: &Statistics,
        fragment: &DatagramHead,
    ) -> Option<Datagram> {
        let datagram = self.assembly.completed()?;
        if datagram.destination_port != self.local.port() {
            // Its first fragment came twice, for another port the other time.
            statistics.void.add(1);
            return None;
        }
        let checksum = match fragment.is_verified {
            true => UdpChecksum::Valid,
            false => {
                let (sum, source) = (datagram.checksum, datagram.source);
                self.accepted(inbox, statistics, (sum, source), datagram.payload)?
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

    /// State of the checksum; `None` if the datagram must be dropped for it.
    #[inline]
    fn accepted(
        &self,
        inbox: &Inbox,
        statistics: &Statistics,
        (checksum, source): (u16, SocketAddrV4),
        payload: &[u8],
    ) -> Option<UdpChecksum> {
        let counted = &statistics.datagrams;
        // Between the ends of a virtual link no network card can have been, which would finish the checksum.
        let is_virtual = || inbox.link.interface().is_some_and(|own| own.is_virtual);
        match judge(checksum, source, self.local, payload) {
            Some(UdpChecksum::Partial) if is_virtual() => {
                counted.partial_checksum.add(1);
                Some(UdpChecksum::Partial)
            }
            None | Some(UdpChecksum::Partial) => {
                counted.bad_checksum.add(1);
                None
            }
            other => other,
        }
    }
}

impl Decoder for Datagrams {
    type Item = Datagram;

    #[inline]
    fn length_and_arrival(item: &Datagram) -> (usize, Instant) {
        (item.length, item.arrival)
    }

    #[inline]
    fn take_whole(
        &mut self,
        inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
        buffer: &mut [u8],
    ) -> Whole<Datagram> {
        let head = record.slot.head();
        let Some(known) = known(&head).filter(|known| known.fragment == 0) else {
            return Whole::Other;
        };
        let room = buffer[..self.bytes_max].get_mut(..usize::from(known.length));
        let Some(bytes) = room else {
            return Whole::Other;
        };
        record.slot.read_payload(bytes);
        let sum = (known.checksum, ipv4_of_word(head.source));
        let checksum = match known.is_verified {
            true => Some(UdpChecksum::Valid),
            false => self.accepted(inbox, statistics, sum, bytes),
        };
        checksum.map_or(Whole::Dropped, |checksum| {
            Whole::Taken(datagram_of(&head, &known, checksum))
        })
    }

    #[inline]
    fn find_in(
        &mut self,
        inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
    ) -> Result<Option<(Datagram, Location)>, ReceiveError> {
        let head = record.slot.head();
        let Some(datagram) = known(&head) else {
            // A slot that the demux claimed and could not fill, or that another process scribbled on.
            statistics.void.add(1);
            return Ok(None);
        };
        if datagram.fragment != 0 {
            let part = (record.slot, &head);
            let complete = self.assembly.enter(statistics, part, &datagram);
            let assembled = complete.then(|| self.assembled(inbox, statistics, &datagram));
            return Ok(assembled
                .flatten()
                .map(|found| (found, Location::Collector)));
        }
        let length = usize::from(datagram.length);
        if length > self.bytes_max {
            statistics.too_large.add(1);
            return Ok(None);
        }
        let sum = (datagram.checksum, ipv4_of_word(head.source));
        let checksum = match datagram.is_verified {
            true => Some(UdpChecksum::Valid),
            false => LentBytes::of_slot(record.slot, 0, length)
                .slice()
                .and_then(|payload| self.accepted(inbox, statistics, sum, payload)),
        };
        Ok(checksum.map(|checksum| {
            let found = datagram_of(&head, &datagram, checksum);
            (found, Location::whole(record))
        }))
    }

    fn collected(&self) -> Option<&[u8]> {
        Some(self.assembly.completed()?.payload)
    }

    #[inline]
    fn end(&mut self, inbox: &Inbox, statistics: &Statistics) {
        self.assembly.expire(inbox.link.as_ref(), statistics);
    }
}

/// A datagram that was received: it derefs to its bytes, in the port's memory. Its place is given back when this value
/// is dropped; until then nothing is written there.
#[derive(Debug)]
pub struct LentDatagram<'p> {
    place: LentPlace<'p>,
    datagram: Datagram,
}

impl<'p> LentDatagram<'p> {
    pub(super) fn new((datagram, place): (Datagram, LentPlace<'p>)) -> Self {
        Self { place, datagram }
    }
}

impl LentDatagram<'_> {
    /// Its priority, source, arrival and checksum.
    #[inline]
    #[must_use]
    pub fn datagram(&self) -> Datagram {
        self.datagram
    }

    /// Its priority: the IP precedence that it came with.
    #[inline]
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.datagram.priority
    }

    /// Sender of the datagram. Port 0 wants no answer.
    #[inline]
    #[must_use]
    pub fn source(&self) -> SocketAddrV4 {
        self.datagram.source
    }

    /// When it arrived, or its last fragment, on the link's arrival clock.
    #[inline]
    #[must_use]
    pub fn arrival(&self) -> Instant {
        self.datagram.arrival
    }
}

impl Deref for LentDatagram<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.place.bytes().slice().unwrap_or_default()
    }
}

/// The head of a datagram or a fragment; nothing where a record holds neither.
#[inline]
fn known(head: &RecordHead) -> Option<DatagramHead> {
    DatagramHead::from_bytes(&head.header)
        .filter(|known| usize::from(known.length) <= SLOT_PAYLOAD_BYTES)
        .filter(|_| source_form_of(head.source) == source_form::DATAGRAM)
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
