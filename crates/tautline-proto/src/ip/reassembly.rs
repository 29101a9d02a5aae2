//! IP fragments of UDP datagrams put together (RFC 791, RFC 815), in memory taken once.
//!
//! In any order, with duplicates and holes. What is not a datagram cut in pieces is not guessed at: of a
//! datagram whose fragments overlap (other than by the same bytes once more), contradict each other about
//! where it ends, or reach beyond what a datagram can be, everything is dropped, also what comes later
//! within the time limit. That is the answer to teardrop, to overlaps that filters are deceived with,
//! and to the ping of death. A peer holds at most half of the collectors, so a flood of fragments that
//! never make a datagram takes nothing from others.

use alloc::boxed::Box;
use alloc::vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::ops::Range;
use core::time::Duration;

use super::{DATAGRAM_BYTES_MAX, FRAGMENT_OFFSET, MORE_FRAGMENTS, UDP_HEADER_BYTES};
use crate::time::Instant;

/// Bytes of a block: offsets are multiples of it.
const BLOCK_BYTES: usize = 8;

/// How large a [`Reassembler`] is and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Datagrams that can be under way at once, at least 1. Lower loses datagrams when many peers send
    /// long ones at the same time; higher costs [`datagram_bytes_max`](Self::datagram_bytes_max)
    /// bytes each and makes every push look further.
    pub collector_count: usize,
    /// Longest datagram, in bytes, up to [`DATAGRAM_BYTES_MAX`].
    pub datagram_bytes_max: usize,
    /// How long a datagram may take from its first fragment to arrive to its last. Lower loses datagrams
    /// when the network delays; higher lets a lost fragment block a collector for longer.
    pub time_limit: Duration,
}

/// A fragment, as it lay in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Sender of the fragment.
    pub source: Ipv4Addr,
    /// The datagram that it is of.
    pub identification: u16,
    /// Flags and offset, as in the IPv4 header.
    pub field: u16,
    /// The bytes after the IPv4 header.
    pub payload: &'a [u8],
}

/// A fragment whose bytes lie where only a copy can fetch them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Sender of the fragment.
    pub source: Ipv4Addr,
    /// The datagram that it is of.
    pub identification: u16,
    /// Flags and offset, as in the IPv4 header.
    pub field: u16,
    /// Bytes after the IPv4 header.
    pub length: usize,
}

/// A datagram put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Sender of the datagram.
    pub source: SocketAddrV4,
    /// The port that it is for.
    pub destination_port: u16,
    /// Its UDP checksum, to be judged; 0 for none.
    pub checksum: u16,
    /// When the latest of its fragments arrived.
    pub arrival: Instant,
    /// Its bytes, the reassembler's: copy or use them before the next push.
    pub payload: &'a [u8],
}

/// Result of pushing a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Kept; more are needed.
    Incomplete,
    /// The datagram is complete.
    Complete(Datagram<'a>),
    /// These bytes had arrived already, or the datagram was complete already.
    Duplicate,
    /// Not kept.
    Dropped(DropReason),
}

/// Why a fragment was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// It has no bytes, is not the last and ends within a block, or contradicts earlier ones about where
    /// the datagram ends. With its datagram.
    Inconsistent,
    /// It lies over bytes that came before and were others. With its datagram.
    Overlap,
    /// It reaches beyond the longest datagram. With its datagram.
    TooLong,
    /// Its datagram has been dropped before.
    Condemned,
    /// The datagram is complete, and its UDP header claims another length than it has.
    BadLength,
}

/// Counters of a [`Reassembler`] since it was made. They count fragments, unless they say datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams complete and handed out.
    pub completed: u64,
    /// Datagrams given up because fragments were missing when the time limit passed.
    pub expired: u64,
    /// Bytes seen before.
    pub duplicates: u64,
    /// Datagrams given up because their peer had its share of the collectors and sent another one.
    pub quota_reached: u64,
    /// Datagrams given up because all collectors were taken, by a peer that held most.
    pub crowded_out: u64,
    /// Datagrams dropped because their fragments contradicted themselves or each other.
    pub inconsistent: u64,
    /// Datagrams dropped because fragments overlapped.
    pub overlaps: u64,
    /// Datagrams dropped because they are too long.
    pub too_long: u64,
    /// Dropped because their datagram had been.
    pub condemned: u64,
}

/// Puts datagrams together. Each push looks at every collector once; nothing is allocated after
/// [`new`](Self::new).
///
/// ```
/// use core::time::Duration;
/// use tautline_proto::ip::reassembly::{Config, Fragment, Outcome, Reassembler};
/// use tautline_proto::time::Instant;
///
/// let mut reassembler = Reassembler::new(Config {
///     collector_count: 2,
///     datagram_bytes_max: 100,
///     time_limit: Duration::from_millis(50),
/// });
/// let part = |field, payload| Fragment {
///     source: [10, 0, 0, 1].into(),
///     identification: 5,
///     field,
///     payload,
/// };
/// // The second half first; it lies at block 2.
/// let late = reassembler.push(Instant::ZERO, &part(2, b"world"));
/// assert_eq!(late, Outcome::Incomplete);
/// let first = part(0x2000, &[0, 7, 0, 9, 0, 21, 0, 0, b'h', b'e', b'l', b'l', b'o', b',', b' ', b' ']);
/// let Outcome::Complete(datagram) = reassembler.push(Instant::ZERO, &first) else { panic!() };
/// assert_eq!(datagram.source, "10.0.0.1:7".parse().unwrap());
/// assert_eq!((datagram.destination_port, datagram.payload), (9, &b"hello,  world"[..]));
/// ```
#[derive(Debug)]
pub struct Reassembler {
    collectors: Box<[Collector]>,
    time_limit: Duration,
    quota_per_source: usize,
    /// Bytes that had arrived already, to be compared.
    again: Box<[u8]>,
    /// The collector that was complete last.
    last: Option<usize>,
    counters: Counters,
}

impl Reassembler {
    /// Takes all memory: `datagram_bytes_max` bytes and one bit for each eight of them, for each
    /// collector, and as many bytes once more.
    ///
    /// # Panics
    /// If `collector_count` is 0, or `datagram_bytes_max` is 0 or above [`DATAGRAM_BYTES_MAX`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.collector_count > 0, "no collectors");
        assert!(
            (1..=DATAGRAM_BYTES_MAX).contains(&config.datagram_bytes_max),
            "collectors of {} bytes",
            config.datagram_bytes_max
        );
        let packet_bytes_max = UDP_HEADER_BYTES + config.datagram_bytes_max;
        let collectors = (0..config.collector_count).map(|_| Collector::new(packet_bytes_max));
        Self {
            collectors: collectors.collect(),
            time_limit: config.time_limit,
            quota_per_source: (config.collector_count / 2).max(1),
            again: vec![0; packet_bytes_max].into_boxed_slice(),
            last: None,
            counters: Counters::default(),
        }
    }

    /// Counters so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Datagrams that one peer can have under way: half of the collectors, at least 1.
    #[must_use]
    pub const fn quota_per_source(&self) -> usize {
        self.quota_per_source
    }

    /// Datagrams under way, those that are only remembered for being dropped among them.
    #[must_use]
    pub fn under_way_count(&self) -> usize {
        let busy = self.collectors.iter().filter(|other| other.is_under_way());
        busy.count()
    }

    /// Whether fragments of this datagram have arrived and others are missing.
    #[must_use]
    pub fn is_waiting_for(&self, source: Ipv4Addr, identification: u16) -> bool {
        let key = (source, identification);
        self.collectors
            .iter()
            .any(|collector| collector.state == State::Collecting && collector.key == key)
    }

    /// The memory of the collectors, to be locked.
    pub fn memory(&self) -> impl Iterator<Item = &[u8]> {
        self.collectors.iter().map(|collector| &collector.bytes[..])
    }

    /// Takes one fragment that arrived at `now`.
    ///
    /// The time limit of a datagram runs from the first fragment to arrive.
    pub fn push(&mut self, now: Instant, fragment: &Fragment<'_>) -> Outcome<'_> {
        let part = Part {
            source: fragment.source,
            identification: fragment.identification,
            field: fragment.field,
            length: fragment.payload.len(),
        };
        self.push_with(now, &part, |bytes| bytes.copy_from_slice(fragment.payload))
    }

    /// Adds a fragment without an earlier copy: `read` is called at most once, and writes the fragment's bytes into
    /// their place.
    pub fn push_with(
        &mut self,
        now: Instant,
        part: &Part,
        read: impl FnOnce(&mut [u8]),
    ) -> Outcome<'_> {
        self.last = None;
        let index = self.collector_for(now, (part.source, part.identification));
        let collector = &mut self.collectors[index];
        match collector.state {
            State::Complete => {
                self.counters.duplicates += 1;
                return Outcome::Duplicate;
            }
            State::Condemned => return self.dropped(DropReason::Condemned),
            State::Free | State::Collecting => {}
        }
        match collector.enter(part, &mut self.again, read) {
            Ok(true) => collector.latest = collector.latest.max(now),
            Ok(false) => {
                self.counters.duplicates += 1;
                return Outcome::Duplicate;
            }
            Err(reason) => {
                collector.state = State::Condemned;
                return self.dropped(reason);
            }
        }
        if !collector.is_complete() {
            return Outcome::Incomplete;
        }
        collector.state = State::Complete;
        collector.deadline = now + self.time_limit;
        if !self.collectors[index].has_right_length() {
            return self.dropped(DropReason::BadLength);
        }
        self.counters.completed += 1;
        self.last = Some(index);
        Outcome::Complete(self.collectors[index].datagram())
    }

    /// The datagram that the push before completed, once more.
    #[must_use]
    pub fn completed(&self) -> Option<Datagram<'_>> {
        self.last.map(|index| self.collectors[index].datagram())
    }

    /// Gives up what has reached its time limit at `now`, and returns how many datagrams that were.
    /// [`push`](Self::push) does so itself when it needs a collector.
    pub fn expire(&mut self, now: Instant) -> usize {
        let mut expired = 0;
        for collector in &mut self.collectors {
            if collector.deadline <= now {
                expired += usize::from(collector.state == State::Collecting);
                collector.state = State::Free;
                collector.deadline = Instant::FAR_FUTURE;
            }
        }
        self.counters.expired += expired as u64;
        expired
    }

    /// The collector of this datagram, a fresh one if it is new.
    fn collector_for(&mut self, now: Instant, key: (Ipv4Addr, u16)) -> usize {
        let known = self.collectors.iter().position(|collector| {
            collector.state != State::Free && collector.key == key && now < collector.deadline
        });
        known.unwrap_or_else(|| {
            self.expire(now);
            let index = self.room_for(key.0);
            self.collectors[index].begin(key, now + self.time_limit);
            index
        })
    }

    /// A collector for a new datagram of this peer: one that is free, otherwise the one that has been
    /// complete for longest, otherwise one of a datagram that is given up.
    fn room_for(&mut self, peer: Ipv4Addr) -> usize {
        let held = self.held_by(peer);
        if held >= self.quota_per_source {
            self.counters.quota_reached += 1;
            return self.oldest_under_way(|of| of == peer);
        }
        let vacant = self.collectors.iter().enumerate();
        let vacant = vacant
            .filter(|(_, collector)| !collector.is_under_way())
            .min_by_key(|(_, collector)| (collector.state != State::Free, collector.deadline));
        if let Some((index, _)) = vacant {
            return index;
        }
        self.counters.crowded_out += 1;
        let most = self
            .collectors
            .iter()
            .map(|other| self.held_by(other.key.0));
        let most = most.max().unwrap_or(0);
        self.oldest_under_way(|of| self.held_by(of) == most)
    }

    /// The datagram under way that began first, of the peers that `chosen` takes.
    fn oldest_under_way(&self, chosen: impl Fn(Ipv4Addr) -> bool) -> usize {
        let under_way = self.collectors.iter().enumerate();
        let candidates =
            under_way.filter(|(_, collector)| collector.is_under_way() && chosen(collector.key.0));
        let oldest = candidates.min_by_key(|(_, collector)| collector.deadline);
        oldest.map_or(0, |(index, _)| index)
    }

    /// Collectors under way that hold a peer's datagrams.
    fn held_by(&self, peer: Ipv4Addr) -> usize {
        let of_peer = |collector: &&Collector| collector.is_under_way() && collector.key.0 == peer;
        self.collectors.iter().filter(of_peer).count()
    }

    fn dropped(&mut self, reason: DropReason) -> Outcome<'static> {
        let counter = match reason {
            DropReason::Inconsistent | DropReason::BadLength => &mut self.counters.inconsistent,
            DropReason::Overlap => &mut self.counters.overlaps,
            DropReason::TooLong => &mut self.counters.too_long,
            DropReason::Condemned => &mut self.counters.condemned,
        };
        *counter += 1;
        Outcome::Dropped(reason)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Collecting,
    /// Handed out; the key stays to recognise duplicates, until the collector is needed.
    Complete,
    /// Dropped; the key stays so that what comes later is not taken for a new datagram.
    Condemned,
}

#[derive(Debug)]
struct Collector {
    state: State,
    /// Peer and identification.
    key: (Ipv4Addr, u16),
    deadline: Instant,
    /// When the latest fragment arrived.
    latest: Instant,
    /// Bytes that have arrived.
    arrived_bytes: usize,
    /// Where the datagram ends, known once its last fragment has arrived.
    packet_bytes: Option<usize>,
    /// Where the bytes that have arrived end.
    reach: usize,
    /// Bit by bit, the blocks that have arrived.
    blocks: Box<[u64]>,
    /// The IP packet's payload.
    bytes: Box<[u8]>,
}

impl Collector {
    fn new(packet_bytes_max: usize) -> Self {
        let words = packet_bytes_max.div_ceil(BLOCK_BYTES * 64);
        Self {
            state: State::Free,
            key: (Ipv4Addr::UNSPECIFIED, 0),
            deadline: Instant::FAR_FUTURE,
            latest: Instant::ZERO,
            arrived_bytes: 0,
            packet_bytes: None,
            reach: 0,
            blocks: vec![0; words].into_boxed_slice(),
            bytes: vec![0; packet_bytes_max].into_boxed_slice(),
        }
    }

    fn begin(&mut self, key: (Ipv4Addr, u16), deadline: Instant) {
        self.state = State::Collecting;
        self.key = key;
        self.deadline = deadline;
        self.latest = Instant::ZERO;
        self.arrived_bytes = 0;
        self.packet_bytes = None;
        self.reach = 0;
        self.blocks.fill(0);
    }

    fn is_under_way(&self) -> bool {
        matches!(self.state, State::Collecting | State::Condemned)
    }

    /// Whether it brought something new. `again` is as long as the datagram can be.
    fn enter(
        &mut self,
        part: &Part,
        again: &mut [u8],
        read: impl FnOnce(&mut [u8]),
    ) -> Result<bool, DropReason> {
        let offset = usize::from(part.field & FRAGMENT_OFFSET) * BLOCK_BYTES;
        let end = offset + part.length;
        let is_last = part.field & MORE_FRAGMENTS == 0;
        if part.length == 0 || (!is_last && !end.is_multiple_of(BLOCK_BYTES)) {
            return Err(DropReason::Inconsistent);
        }
        if end > self.bytes.len() {
            return Err(DropReason::TooLong);
        }
        let beyond_the_end = match (self.packet_bytes, is_last) {
            (Some(known), true) => known != end,
            (Some(known), false) => end >= known,
            (None, true) => self.reach > end,
            (None, false) => false,
        };
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let seen = self.seen(blocks.clone());
        if seen == blocks.len() && !beyond_the_end {
            let again = &mut again[..part.length];
            read(again);
            return match self.bytes[offset..end] == *again {
                true => Ok(false),
                false => Err(DropReason::Overlap),
            };
        }
        if seen > 0 {
            return Err(DropReason::Overlap);
        }
        if beyond_the_end {
            return Err(DropReason::Inconsistent);
        }
        for (word, mask) in words_of(blocks) {
            self.blocks[word] |= mask;
        }
        read(&mut self.bytes[offset..end]);
        self.arrived_bytes += part.length;
        self.reach = self.reach.max(end);
        if is_last {
            self.packet_bytes = Some(end);
        }
        Ok(true)
    }

    /// How many of these blocks have arrived.
    fn seen(&self, blocks: Range<usize>) -> usize {
        let seen = words_of(blocks).map(|(word, mask)| (self.blocks[word] & mask).count_ones());
        seen.sum::<u32>() as usize
    }

    fn is_complete(&self) -> bool {
        // No byte is counted twice, and none lies beyond the end.
        self.packet_bytes == Some(self.arrived_bytes)
    }

    fn field(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Whether the UDP header's length is the datagram's. Bytes after it, which Linux would cut off, are
    /// nothing that a sender cuts into fragments.
    fn has_right_length(&self) -> bool {
        self.arrived_bytes >= UDP_HEADER_BYTES && usize::from(self.field(4)) == self.arrived_bytes
    }

    fn datagram(&self) -> Datagram<'_> {
        Datagram {
            source: SocketAddrV4::new(self.key.0, self.field(0)),
            destination_port: self.field(2),
            checksum: self.field(6),
            arrival: self.latest,
            payload: &self.bytes[UDP_HEADER_BYTES..self.arrived_bytes],
        }
    }
}

/// The words that these blocks' bits are in, and which bits of each.
fn words_of(blocks: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = blocks.start / 64..blocks.end.div_ceil(64);
    words.map(move |word| {
        let from = blocks.start.saturating_sub(64 * word);
        let to = (blocks.end - 64 * word).min(64);
        (word, u64::MAX << from & u64::MAX >> (64 - to))
    })
}
