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
use crate::port::half::ValueCore;
use crate::statistics::Statistics;

/// Readers of a port's sources.
#[derive(Debug)]
pub(in crate::port) struct Readers(Box<[Reader]>);

impl Readers {
    pub(in crate::port) fn new(sources: usize) -> Self {
        Self((0..sources).map(Reader::new).collect())
    }
}

impl ValueCore for Frames<Readers> {
    #[inline]
    fn bring_in(&mut self, notify: bool) -> Result<(), ReceiveError> {
        self.link.collect()?;
        if notify && !self.fresh() {
            self.link.arm();
            self.link.collect()?;
        }
        self.refresh();
        Ok(())
    }

    #[inline]
    fn finds_new(&mut self) -> Result<bool, ReceiveError> {
        self.link.collect()?;
        Ok(self.fresh())
    }

    #[inline]
    fn refresh(&mut self) {
        let port = self.memory.port();
        for reader in &mut self.receiver.0 {
            reader.refresh(port.control, port.slots);
        }
    }

    #[inline]
    fn fresh(&self) -> bool {
        let control = self.memory.port().control;
        let readers = &self.receiver.0;
        readers.iter().any(|reader| reader.fresh(control))
    }

    fn place_count(&self) -> usize {
        self.receiver.0.len()
    }

    fn arrival_of(&self, place: usize) -> Option<(u64, bool)> {
        let reader = &self.receiver.0[place];
        let cell = reader.current(self.memory.port().slots)?;
        Some((cell.head().arrival_ns, reader.holds_new()))
    }

    /// Without a look at the value, whose lines may still be on their way from another CPU.
    #[inline]
    fn is_unread(&self, place: usize) -> bool {
        self.receiver.0[place].holds_new()
    }

    #[inline]
    fn newest(&mut self) -> Option<usize> {
        if let [_] = *self.receiver.0 {
            return Some(0);
        }
        let arrivals =
            (0..self.place_count()).filter_map(|place| Some((self.arrival_of(place)?.0, place)));
        arrivals.max().map(|(_, place)| place)
    }

    fn place_of(&self, source: Source) -> Option<usize> {
        peer::source_known(
            self.memory.port().control,
            source.address.word(),
            source.port.get(),
            self.place_count(),
        )
    }

    fn source_of(&self, place: usize) -> Option<Source> {
        let slots = self.memory.port().slots;
        let head = self.receiver.0[place].current(slots)?.head();
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
    ) -> Option<Sample> {
        let now = self.link.now();
        let lent = self.lend(statistics, place, buffer.len())?;
        let age = now.saturating_duration_since(lent.arrival);
        // In the port's own memory always.
        let bytes = lent.bytes.slice().unwrap_or_default();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Some(Sample {
            length: bytes.len(),
            priority: lent.priority,
            source: lent.source,
            arrival: lent.arrival,
            age,
            valid: age <= period,
            sequence: lent.sequence,
            overwritten: lent.overwritten,
            new: lent.new,
        })
    }

    #[inline]
    fn lend(
        &mut self,
        statistics: &Statistics,
        place: usize,
        bytes_max: usize,
    ) -> Option<LentSample<'_>> {
        let reader = &mut self.receiver.0[place];
        lend_cell(&self.memory, reader, statistics, bytes_max)
    }
}

/// The value of one source in its cell, cut off at `bytes_max`.
#[inline]
fn lend_cell<'p>(
    memory: &'p MappedPort,
    reader: &mut Reader,
    statistics: &Statistics,
    bytes_max: usize,
) -> Option<LentSample<'p>> {
    let port = memory.port();
    let sample = reader.hand(port.slots)?;
    let head = sample.cell.head();
    let header = Header::plain(&head.header).or_else(|| Header::from_bytes(&head.header).ok());
    let (Some(address), Some(header)) = (Address::from_word(head.source), header) else {
        statistics.void.add(1);
        return None;
    };
    let length = usize::from(header.length).min(VALUE_BYTES_DEFAULT);
    Some(LentSample {
        bytes: LentBytes::of_slot(sample.cell, 0, length.min(bytes_max)),
        priority: header.priority,
        source: Source {
            address,
            port: header.source,
        },
        arrival: Instant::from_nanos(head.arrival_ns),
        sequence: header.sequence,
        overwritten: sample.overwritten,
        new: sample.new,
    })
}
