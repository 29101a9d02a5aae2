//! Receiving side of a sampling port whose frames come into the port's own memory: one reader for each source.

use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::Header;
use tautline_shm::peer;
use tautline_shm::region::PortMemory;
use tautline_shm::sample::Reader;

use super::Frames;
use crate::address::{Address, Source};
use crate::error::ReceiveError;
use crate::limits::VALUE_BYTES_DEFAULT;
use crate::memory::MappedPort;
use crate::message::{LentBytes, LentSample, Sample};
use crate::port::core::ValueCore;
use crate::statistics::Statistics;
use crate::types::TakenType;

/// Readers of a port's sources.
#[derive(Debug)]
pub(in crate::port) struct Readers {
    of_sources: Box<[Reader]>,
    takes: TakenType,
}

impl Readers {
    pub(in crate::port) fn new(sources: usize, takes: TakenType) -> Self {
        Self {
            of_sources: (0..sources).map(Reader::new).collect(),
            takes,
        }
    }

    pub(in crate::port) fn make_other_types_errors(&mut self) {
        self.takes.make_error();
    }
}

impl ValueCore for Frames<Readers> {
    #[inline]
    fn bring_in(&mut self, notify: bool) -> Result<(), ReceiveError> {
        self.inbox.collect()?;
        if notify && !self.fresh() {
            self.inbox.link.arm();
            self.inbox.collect()?;
        }
        self.refresh();
        Ok(())
    }

    #[inline]
    fn finds_new(&mut self) -> Result<bool, ReceiveError> {
        self.inbox.collect()?;
        Ok(self.fresh())
    }

    #[inline]
    fn refresh(&mut self) {
        let port = self.inbox.memory.port();
        for reader in &mut self.receiver.of_sources {
            reader.refresh(port.control, port.slots);
        }
    }

    #[inline]
    fn fresh(&self) -> bool {
        let control = self.inbox.memory.port().control;
        let readers = &self.receiver.of_sources;
        readers.iter().any(|reader| reader.fresh(control))
    }

    fn place_count(&self) -> usize {
        self.receiver.of_sources.len()
    }

    fn arrival_of(&self, place: usize) -> Option<(u64, bool)> {
        let reader = &self.receiver.of_sources[place];
        let cell = reader.current(self.inbox.memory.port().slots)?;
        Some((cell.head().arrival_ns, reader.holds_new()))
    }

    /// Without a look at the value, whose lines may still be on their way from another CPU.
    #[inline]
    fn is_unread(&self, place: usize) -> bool {
        self.receiver.of_sources[place].holds_new()
    }

    #[inline]
    fn newest(&mut self) -> Option<usize> {
        if let [_] = *self.receiver.of_sources {
            return Some(0);
        }
        let arrivals =
            (0..self.place_count()).filter_map(|place| Some((self.arrival_of(place)?.0, place)));
        arrivals.max().map(|(_, place)| place)
    }

    fn place_of(&self, source: Source) -> Option<usize> {
        peer::source_known(
            self.inbox.memory.port().control,
            source.address.word(),
            source.port.get(),
            self.place_count(),
        )
    }

    fn source_of(&self, place: usize) -> Option<Source> {
        let slots = self.inbox.memory.port().slots;
        let head = self.receiver.of_sources[place].current(slots)?.head();
        Some(Source {
            address: Address::from_word(head.source)?,
            port: Header::from_bytes(&head.header).ok()?.source,
        })
    }

    #[inline]
    fn take(
        &mut self,
        statistics: &Statistics,
        place: usize,
        buffer: &mut [u8],
        period: Duration,
    ) -> Result<Option<Sample>, ReceiveError> {
        let now = self.inbox.link.now();
        let Some(lent) = self.lend(statistics, place, buffer.len())? else {
            return Ok(None);
        };
        let age = now.saturating_duration_since(lent.arrival);
        // In the port's own memory always.
        let bytes = lent.bytes.slice().unwrap_or_default();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(Some(Sample {
            length: bytes.len(),
            priority: lent.priority,
            source: lent.source,
            arrival: lent.arrival,
            age,
            valid: age <= period,
            sequence: lent.sequence,
            overwritten: lent.overwritten,
            new: lent.new,
        }))
    }

    #[inline]
    fn lend(
        &mut self,
        statistics: &Statistics,
        place: usize,
        bytes_max: usize,
    ) -> Result<Option<LentSample<'_>>, ReceiveError> {
        let Readers { of_sources, takes } = &mut self.receiver;
        let reader = &mut of_sources[place];
        lend_cell(&self.inbox.memory, reader, *takes, statistics, bytes_max)
    }
}

/// The value of one source in its cell, cut off at `bytes_max`.
#[inline]
fn lend_cell<'p>(
    memory: &'p MappedPort,
    reader: &mut Reader,
    takes: TakenType,
    statistics: &Statistics,
    bytes_max: usize,
) -> Result<Option<LentSample<'p>>, ReceiveError> {
    let port = memory.port();
    let Some(sample) = reader.hand(port.slots) else {
        return Ok(None);
    };
    let head = sample.cell.head();
    let header = Header::plain(&head.header).or_else(|| Header::from_bytes(&head.header).ok());
    let (Some(address), Some(header)) = (Address::from_word(head.source), header) else {
        statistics.void.add(1);
        return Ok(None);
    };
    let source = Source {
        address,
        port: header.source,
    };
    if takes.is_other(header.type_byte) {
        if sample.new {
            statistics.count_other_type(source, header.type_byte);
        }
        return takes.refuse(source, header.type_byte);
    }
    let length = usize::from(header.length).min(VALUE_BYTES_DEFAULT);
    Ok(Some(LentSample {
        bytes: LentBytes::of_slot(sample.cell, 0, length.min(bytes_max)),
        priority: header.priority,
        source,
        arrival: Instant::from_nanos(head.arrival_ns),
        sequence: header.sequence,
        overwritten: sample.overwritten,
        new: sample.new,
    }))
}
