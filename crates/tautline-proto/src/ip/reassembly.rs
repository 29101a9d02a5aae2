//! IP fragments of UDP datagrams put together (RFC 791), in memory taken once.
//!
//! In their order only: a fragment that is not the next one of its datagram drops the datagram, whether others were
//! lost or overtaken, or it comes twice, overlaps, contradicts the others or is too long. That is the answer to
//! teardrop, to overlaps that filters are deceived with, and to the ping of death. A peer holds at most half of the
//! collectors, so a flood of fragments that never make a datagram takes nothing from others.

use alloc::boxed::Box;
use alloc::vec;
use core::net::{Ipv4Addr, SocketAddrV4};
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
    /// How long a datagram may take from its first fragment to its last. Lower loses datagrams
    /// when the network delays; higher lets a lost fragment block a collector for longer.
    pub time_limit: Duration,
}

/// Facts about a fragment, whose bytes lie elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
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
    /// Not kept, and counted.
    Dropped,
}

/// Counters of a [`Reassembler`] since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams complete and handed out.
    pub completed: u64,
    /// Datagrams given up because fragments were missing when the time limit passed.
    pub expired: u64,
    /// Datagrams given up for newer ones: their peer had its share of the collectors, or all were taken.
    pub displaced: u64,
    /// Datagrams dropped because a fragment was not the next one, or because of their length.
    pub broken: u64,
    /// Fragments of no datagram under way: it was dropped, or its first one did not arrive.
    pub strays: u64,
}

/// Puts datagrams together. Each push looks at every collector; nothing is allocated after [`new`](Self::new).
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
/// let part = |field, length| Fragment { source: [10, 0, 0, 1].into(), identification: 5, field, length };
/// let first = [0, 7, 0, 9, 0, 21, 0, 0, b'h', b'e', b'l', b'l', b'o', b',', b' ', b' '];
/// let pushed = reassembler.push(Instant::ZERO, &part(0x2000, 16), |bytes| bytes.copy_from_slice(&first));
/// assert_eq!(pushed, Outcome::Incomplete);
/// // The second half lies at block 2.
/// let pushed = reassembler.push(Instant::ZERO, &part(2, 5), |bytes| bytes.copy_from_slice(b"world"));
/// let Outcome::Complete(datagram) = pushed else { panic!() };
/// assert_eq!(datagram.source, "10.0.0.1:7".parse().unwrap());
/// assert_eq!((datagram.destination_port, datagram.payload), (9, &b"hello,  world"[..]));
/// ```
#[derive(Debug)]
pub struct Reassembler {
    collectors: Box<[Collector]>,
    time_limit: Duration,
    /// The collector that was complete last.
    last: Option<usize>,
    counters: Counters,
}

impl Reassembler {
    /// Takes all memory: `datagram_bytes_max` bytes for each collector.
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
        let collectors = (0..config.collector_count).map(|_| Collector {
            is_under_way: false,
            key: (Ipv4Addr::UNSPECIFIED, 0),
            deadline: Instant::ZERO,
            latest: Instant::ZERO,
            arrived_bytes: 0,
            bytes: vec![0; packet_bytes_max].into_boxed_slice(),
        });
        Self {
            collectors: collectors.collect(),
            time_limit: config.time_limit,
            last: None,
            counters: Counters::default(),
        }
    }

    /// Counters so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Datagrams under way.
    #[must_use]
    pub fn under_way_count(&self) -> usize {
        self.held_by(|_| true)
    }

    /// The memory of the collectors, to be locked.
    pub fn memory(&self) -> impl Iterator<Item = &[u8]> {
        self.collectors.iter().map(|collector| &collector.bytes[..])
    }

    /// Takes one fragment that arrived at `now`: `read` is called at most once, and writes the fragment's bytes into
    /// their place. The time limit of a datagram runs from its first fragment.
    pub fn push(
        &mut self,
        now: Instant,
        fragment: &Fragment,
        read: impl FnOnce(&mut [u8]),
    ) -> Outcome<'_> {
        self.last = None;
        self.expire(now);
        let key = (fragment.source, fragment.identification);
        let offset = usize::from(fragment.field & FRAGMENT_OFFSET) * BLOCK_BYTES;
        let is_last = fragment.field & MORE_FRAGMENTS == 0;
        let mut all = self.collectors.iter();
        let known = all.position(|collector| collector.is_under_way && collector.key == key);
        let index = match known {
            Some(index) if offset > 0 => index,
            None if offset > 0 => {
                self.counters.strays += 1;
                return Outcome::Dropped;
            }
            known => {
                self.counters.broken += u64::from(known.is_some());
                let index = known.unwrap_or_else(|| self.room_for(key.0));
                self.collectors[index].begin(key, now + self.time_limit);
                index
            }
        };
        let collector = &mut self.collectors[index];
        let end = offset + fragment.length;
        let is_next = offset == collector.arrived_bytes
            && fragment.length > 0
            && end <= collector.bytes.len()
            && (is_last || end.is_multiple_of(BLOCK_BYTES));
        if is_next {
            read(&mut collector.bytes[offset..end]);
            collector.arrived_bytes = end;
            collector.latest = collector.latest.max(now);
            if !is_last {
                return Outcome::Incomplete;
            }
        }
        collector.is_under_way = false;
        if !is_next || !collector.has_right_length() {
            self.counters.broken += 1;
            return Outcome::Dropped;
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

    /// Gives up what has reached its time limit at `now`, as [`push`](Self::push) does itself.
    pub fn expire(&mut self, now: Instant) {
        for collector in &mut self.collectors {
            if collector.is_under_way && collector.deadline <= now {
                collector.is_under_way = false;
                self.counters.expired += 1;
            }
        }
    }

    /// A collector for a new datagram of this peer: a free one, else that of the datagram that began first, of the
    /// peer's own once it has half of all collectors.
    fn room_for(&mut self, peer: Ipv4Addr) -> usize {
        let share = (self.collectors.len() / 2).max(1);
        let is_full = self.held_by(|of| of == peer) >= share;
        let mut all = self.collectors.iter();
        if !is_full && let Some(free) = all.position(|collector| !collector.is_under_way) {
            return free;
        }
        self.counters.displaced += 1;
        let all = self.collectors.iter().enumerate();
        let candidates =
            all.filter(|(_, held)| held.is_under_way && (!is_full || held.key.0 == peer));
        let oldest = candidates.min_by_key(|(_, held)| held.deadline);
        oldest.map_or(0, |(index, _)| index)
    }

    /// Collectors under way with datagrams of these peers.
    fn held_by(&self, is_of: impl Fn(Ipv4Addr) -> bool) -> usize {
        let held = |collector: &&Collector| collector.is_under_way && is_of(collector.key.0);
        self.collectors.iter().filter(held).count()
    }
}

#[derive(Debug)]
struct Collector {
    is_under_way: bool,
    /// Peer and identification.
    key: (Ipv4Addr, u16),
    deadline: Instant,
    /// When the latest fragment arrived.
    latest: Instant,
    /// Bytes that have arrived.
    arrived_bytes: usize,
    /// The IP packet's payload.
    bytes: Box<[u8]>,
}

impl Collector {
    fn begin(&mut self, key: (Ipv4Addr, u16), deadline: Instant) {
        (self.is_under_way, self.key, self.deadline) = (true, key, deadline);
        (self.latest, self.arrived_bytes) = (Instant::ZERO, 0);
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
