//! Putting messages together again, in memory taken once.

use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

use crate::time::Instant;
use crate::wire::{
    FRAGMENT_BYTES, FRAGMENT_COUNT_MAX, Header, MESSAGE_BYTES_MAX, PortNumber, Priority,
};

/// Sender of a frame, as the caller tells its peers apart: a neighbour's number, an address as an integer.
///
/// The reassembler only compares it. Two peers with the same identifier would mix up their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

/// How large a [`Reassembler`] is and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReassemblerConfig {
    /// Messages that can be under way at once, at least 1. Lower loses messages when many peers
    /// send large ones at the same time; higher costs
    /// [`message_bytes_max`](Self::message_bytes_max) bytes each and makes every push look further.
    pub collector_count: usize,
    /// Largest message, in bytes; larger ones are dropped and counted. Lower saves memory.
    pub message_bytes_max: usize,
    /// How long a message may take from its first frame to its last. Lower loses messages when the
    /// network delays or reorders; higher lets a lost frame block a collector for longer.
    pub time_limit: Duration,
}

impl Default for ReassemblerConfig {
    /// 8 collectors of [`MESSAGE_BYTES_MAX`], 512 KiB together, and 50 ms: 64 KiB take 5.4 ms at 100 Mbit/s.
    fn default() -> Self {
        Self {
            collector_count: 8,
            message_bytes_max: MESSAGE_BYTES_MAX,
            time_limit: Duration::from_millis(50),
        }
    }
}

/// Result of pushing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Kept; more frames are needed.
    Incomplete,
    /// The message is complete. The bytes are the reassembler's, or the frame's own if it was
    /// whole; copy or use them before the next push.
    Complete(&'a [u8]),
    /// This part had arrived already, or the message was complete already.
    Duplicate,
    /// Not kept.
    Dropped(DropReason),
}

/// Why a frame was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Every collector holds a message under way.
    NoCollector,
    /// The source holds half of the collectors already.
    QuotaReached,
    /// The header contradicts itself, the payload, or the message's earlier frames.
    Inconsistent,
    /// The message is larger than the configured limit.
    TooLarge,
}

/// Counters of a [`Reassembler`] since it was made. They count messages, unless they say frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReassemblyCounters {
    /// Complete and handed out, whole ones included.
    pub completed: u64,
    /// Dropped because frames were missing when the time limit passed.
    pub expired: u64,
    /// Dropped by [`Reassembler::forget_flow`] or [`Reassembler::forget_priority`].
    pub forgotten: u64,
    /// Frames that had arrived already.
    pub duplicates: u64,
    /// Frames dropped because no collector was free.
    pub no_collector: u64,
    /// Frames dropped because their source had its share of the collectors.
    pub quota_reached: u64,
    /// Frames dropped because they contradict themselves or earlier ones.
    pub inconsistent: u64,
    /// Frames dropped because their message is too large.
    pub too_large: u64,
}

impl ReassemblyCounters {
    fn dropped(&mut self, reason: DropReason) -> Outcome<'static> {
        let counter = match reason {
            DropReason::NoCollector => &mut self.no_collector,
            DropReason::QuotaReached => &mut self.quota_reached,
            DropReason::Inconsistent => &mut self.inconsistent,
            DropReason::TooLarge => &mut self.too_large,
        };
        *counter += 1;
        Outcome::Dropped(reason)
    }
}

/// Puts the fragments of messages together, in any order, with duplicates and holes.
///
/// A frame that carries a whole message passes through without a collector. A completed message's collector keeps its
/// key until it is needed again or the time limit passes, so that late duplicates do not begin the message anew.
///
/// Each push looks at every collector once: bounded by [`collector_count`](ReassemblerConfig::collector_count). Nothing
/// is allocated after [`new`](Self::new).
#[derive(Debug)]
pub struct Reassembler {
    collectors: Box<[Collector]>,
    config: ReassemblerConfig,
    quota_per_source: usize,
    counters: ReassemblyCounters,
    /// The collector that was completed last.
    latest: usize,
}

impl Reassembler {
    /// Takes all memory: `collector_count * message_bytes_max` bytes and a little for each collector.
    ///
    /// # Panics
    ///
    /// If `collector_count` is 0, or `message_bytes_max` is 0 or above [`MESSAGE_BYTES_MAX`].
    pub fn new(config: ReassemblerConfig) -> Self {
        assert!(config.collector_count > 0, "no collectors");
        assert!(
            (1..=MESSAGE_BYTES_MAX).contains(&config.message_bytes_max),
            "collectors of {} bytes",
            config.message_bytes_max
        );
        let collectors = (0..config.collector_count).map(|_| Collector::new(&config));
        Self {
            collectors: collectors.collect(),
            config,
            quota_per_source: (config.collector_count / 2).max(1),
            counters: ReassemblyCounters::default(),
            latest: 0,
        }
    }

    /// Takes one frame, as [`Header::parse`] returned it, that arrived from `source` at `now`.
    ///
    /// The time limit of a message runs from its first frame. Messages past it are dropped here,
    /// when a collector is needed, and in [`expire`](Self::expire).
    pub fn push<'a>(
        &'a mut self,
        now: Instant,
        source: SourceId,
        header: &Header,
        payload: &'a [u8],
    ) -> Outcome<'a> {
        if payload.len() != usize::from(header.length) || header.check_fragment().is_err() {
            return self.counters.dropped(DropReason::Inconsistent);
        }
        if header.message_offset() + payload.len() > self.config.message_bytes_max
            || least_message_bytes(header) > self.config.message_bytes_max
        {
            return self.counters.dropped(DropReason::TooLarge);
        }
        if header.is_whole() {
            self.counters.completed += 1;
            return Outcome::Complete(payload);
        }
        let index = match self.collector_for(now, Key::new(source, header), header) {
            Ok(index) => index,
            Err(reason) => return self.counters.dropped(reason),
        };
        self.collect(index, now, header, payload)
    }

    /// Drops the messages whose time limit has passed at `now`, and returns how many.
    ///
    /// Not needed for correctness, only for the [`expired`](ReassemblyCounters::expired) counter to be timely.
    pub fn expire(&mut self, now: Instant) -> usize {
        let mut expired = 0;
        for collector in &mut self.collectors {
            if collector.deadline <= now {
                expired += usize::from(collector.state == State::Collecting);
                collector.release();
            }
        }
        self.counters.expired += expired as u64;
        expired
    }

    /// Drops everything that a flow has under way, and what is remembered of it.
    ///
    /// To be called when the flow has restarted, see [`Arrival::Restart`](crate::loss::Arrival::Restart), before the
    /// frame that says so is pushed: its sequence numbers begin anew, and a new message could otherwise be mixed with
    /// the remains of an old one of the same number. Other flows of the source are not touched.
    pub fn forget_flow(
        &mut self,
        source: SourceId,
        source_port: PortNumber,
        destination_port: PortNumber,
    ) {
        self.forget(|key| key.is_of_flow(source, source_port, destination_port));
    }

    /// Forgets a flow's messages of one priority. Messages of the new run may be under way at other priorities: a
    /// receiver that takes urgent ones first sees the restart at one priority after the other.
    pub fn forget_priority(
        &mut self,
        source: SourceId,
        source_port: PortNumber,
        destination_port: PortNumber,
        priority: Priority,
    ) {
        self.forget(|key| {
            key.is_of_flow(source, source_port, destination_port) && key.priority == priority
        });
    }

    fn forget(&mut self, is_forgotten: impl Fn(&Key) -> bool) {
        for collector in &mut self.collectors {
            if collector.state != State::Free && is_forgotten(&collector.key) {
                self.counters.forgotten += u64::from(collector.state == State::Collecting);
                collector.release();
            }
        }
    }

    /// Counters so far.
    pub const fn counters(&self) -> &ReassemblyCounters {
        &self.counters
    }

    /// The message that was completed last of those that came in several frames, as
    /// [`Outcome::Complete`] handed it out; `None` if its collector is in use again.
    pub fn latest(&self) -> Option<&[u8]> {
        let collector = &self.collectors[self.latest];
        (collector.state == State::Complete).then(|| &collector.bytes[..collector.message_bytes])
    }

    /// Messages under way.
    pub fn under_way_count(&self) -> usize {
        self.under_way().count()
    }

    /// Most messages that one source can have under way: half of the collectors, at least 1.
    pub const fn quota_per_source(&self) -> usize {
        self.quota_per_source
    }

    fn under_way(&self) -> impl Iterator<Item = &Collector> {
        self.collectors
            .iter()
            .filter(|collector| collector.state == State::Collecting)
    }

    /// The collector of this message, a fresh one if it is new.
    fn collector_for(
        &mut self,
        now: Instant,
        key: Key,
        header: &Header,
    ) -> Result<usize, DropReason> {
        let known = self.collectors.iter().position(|collector| {
            collector.state != State::Free && collector.key == key && now < collector.deadline
        });
        if let Some(index) = known {
            return Ok(index);
        }
        self.expire(now);
        let held = self
            .under_way()
            .filter(|other| other.key.source == key.source);
        if held.count() >= self.quota_per_source {
            return Err(DropReason::QuotaReached);
        }
        let index = self.vacant().ok_or(DropReason::NoCollector)?;
        self.collectors[index].begin(key, header.fragment_count, now + self.config.time_limit);
        Ok(index)
    }

    /// A collector that is free, otherwise the one whose message has been complete for longest.
    fn vacant(&self) -> Option<usize> {
        let candidates = self.collectors.iter().enumerate();
        candidates
            .filter(|(_, collector)| collector.state != State::Collecting)
            .min_by_key(|(_, collector)| (collector.state, collector.deadline))
            .map(|(index, _)| index)
    }

    fn collect(
        &mut self,
        index: usize,
        now: Instant,
        header: &Header,
        payload: &[u8],
    ) -> Outcome<'_> {
        let collector = &mut self.collectors[index];
        if collector.fragment_count != header.fragment_count {
            return self.counters.dropped(DropReason::Inconsistent);
        }
        let bit = 1 << header.fragment_index;
        // Of a complete message every bit is set.
        if collector.arrived & bit != 0 {
            self.counters.duplicates += 1;
            return Outcome::Duplicate;
        }
        let offset = header.message_offset();
        collector.bytes[offset..offset + payload.len()].copy_from_slice(payload);
        collector.arrived |= bit;
        if header.is_last() {
            collector.message_bytes = offset + payload.len();
        }
        if collector.arrived != all_arrived(header.fragment_count) {
            return Outcome::Incomplete;
        }
        collector.complete(now + self.config.time_limit);
        self.counters.completed += 1;
        self.latest = index;
        Outcome::Complete(&collector.bytes[..collector.message_bytes])
    }
}

/// Fewest bytes that the message of this frame can have, from the number of its fragments.
const fn least_message_bytes(header: &Header) -> usize {
    if header.fragment_count > 1 {
        (header.fragment_count as usize - 1) * FRAGMENT_BYTES + 1
    } else {
        0
    }
}

/// The bitmap of a complete message of `count` fragments.
const fn all_arrived(count: u8) -> u64 {
    u64::MAX >> (u64::BITS - count as u32)
}

const _: () = assert!(all_arrived(FRAGMENT_COUNT_MAX as u8) == (1 << FRAGMENT_COUNT_MAX) - 1);

/// Key that the frames of one message share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: SourceId,
    source_port: PortNumber,
    destination_port: PortNumber,
    priority: Priority,
    message_sequence: u32,
}

impl Key {
    fn is_of_flow(
        &self,
        source: SourceId,
        source_port: PortNumber,
        destination_port: PortNumber,
    ) -> bool {
        (self.source, self.source_port, self.destination_port)
            == (source, source_port, destination_port)
    }

    const NONE: Self = Self {
        source: SourceId(0),
        source_port: PortNumber::MIN,
        destination_port: PortNumber::MIN,
        priority: Priority::LOWEST,
        message_sequence: 0,
    };

    fn new(source: SourceId, header: &Header) -> Self {
        Self {
            source,
            source_port: header.source,
            destination_port: header.destination,
            priority: header.priority,
            message_sequence: header.message_sequence(),
        }
    }
}

/// In the order in which collectors are given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Free,
    /// Handed out; the key stays to recognise duplicates.
    Complete,
    Collecting,
}

#[derive(Debug)]
struct Collector {
    state: State,
    key: Key,
    /// When the message is given up, or forgotten if it is complete.
    deadline: Instant,
    fragment_count: u8,
    /// Bit i: fragment i is in `bytes`.
    arrived: u64,
    /// Known once the last fragment has arrived.
    message_bytes: usize,
    bytes: Box<[u8]>,
}

impl Collector {
    fn new(config: &ReassemblerConfig) -> Self {
        Self {
            state: State::Free,
            key: Key::NONE,
            deadline: Instant::FAR_FUTURE,
            fragment_count: 0,
            arrived: 0,
            message_bytes: 0,
            bytes: vec![0; config.message_bytes_max].into_boxed_slice(),
        }
    }

    fn begin(&mut self, key: Key, fragment_count: u8, deadline: Instant) {
        self.state = State::Collecting;
        self.key = key;
        self.deadline = deadline;
        self.fragment_count = fragment_count;
        self.arrived = 0;
        self.message_bytes = 0;
    }

    fn complete(&mut self, deadline: Instant) {
        self.state = State::Complete;
        self.deadline = deadline;
    }

    fn release(&mut self) {
        self.state = State::Free;
        self.deadline = Instant::FAR_FUTURE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const PEER: SourceId = SourceId(1);
    const OTHER: SourceId = SourceId(2);
    const LIMIT: Duration = Duration::from_millis(10);

    fn reassembler(collector_count: usize) -> Reassembler {
        Reassembler::new(ReassemblerConfig {
            collector_count,
            message_bytes_max: 8 * FRAGMENT_BYTES,
            time_limit: LIMIT,
        })
    }

    fn header(first_sequence: u32, index: u8, count: u8, length: u16) -> Header {
        Header {
            destination: PortNumber::MIN,
            source: PortNumber::MAX,
            priority: Priority::NORMAL,
            flags: 0,
            fragment_index: index,
            fragment_count: count,
            length,
            sequence: first_sequence.wrapping_add(index.into()),
            type_byte: 0,
        }
    }

    /// Pushes fragment `index` of a message of `count` full fragments, filled with `index`, at time zero.
    fn push(
        to: &mut Reassembler,
        source: SourceId,
        first: u32,
        index: u8,
        count: u8,
    ) -> Outcome<'_> {
        push_at(to, Instant::ZERO, source, first, index, count)
    }

    fn push_at(
        to: &mut Reassembler,
        now: Instant,
        source: SourceId,
        first: u32,
        index: u8,
        count: u8,
    ) -> Outcome<'_> {
        let header = header(first, index, count, FRAGMENT_BYTES as u16);
        let payload: &'static [u8; FRAGMENT_BYTES] = match index {
            0 => &[0; FRAGMENT_BYTES],
            1 => &[1; FRAGMENT_BYTES],
            _ => &[2; FRAGMENT_BYTES],
        };
        to.push(now, source, &header, payload)
    }

    #[test]
    fn every_order_of_three_completes_once() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut to = reassembler(2);
            let [first, second, last] = order;
            assert_eq!(push(&mut to, PEER, 5, first, 3), Outcome::Incomplete);
            assert_eq!(push(&mut to, PEER, 5, first, 3), Outcome::Duplicate);
            assert_eq!(push(&mut to, PEER, 5, second, 3), Outcome::Incomplete);
            let expected: Vec<u8> = (0..3).flat_map(|index| [index; FRAGMENT_BYTES]).collect();
            let outcome = push(&mut to, PEER, 5, last, 3);
            assert_eq!(outcome, Outcome::Complete(&expected), "{order:?}");
            for index in order {
                assert_eq!(push(&mut to, PEER, 5, index, 3), Outcome::Duplicate);
            }
            assert_eq!(to.counters().completed, 1);
            assert_eq!(to.counters().duplicates, 4);
            assert_eq!(to.under_way_count(), 0);
        }
    }

    #[test]
    fn a_short_last_fragment_ends_the_message() {
        let mut to = reassembler(2);
        let last = header(u32::MAX, 1, 2, 3);
        assert_eq!(
            to.push(Instant::ZERO, PEER, &last, b"end"),
            Outcome::Incomplete
        );
        match push(&mut to, PEER, u32::MAX, 0, 2) {
            Outcome::Complete(bytes) => {
                assert_eq!(bytes.len(), FRAGMENT_BYTES + 3);
                assert!(bytes.ends_with(b"\0end"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_whole_message_needs_no_collector() {
        let mut to = reassembler(1);
        assert_eq!(push(&mut to, OTHER, 0, 0, 2), Outcome::Incomplete);
        let whole = header(7, 0, 1, 2);
        for _ in 0..2 {
            assert_eq!(
                to.push(Instant::ZERO, PEER, &whole, b"ok"),
                Outcome::Complete(b"ok")
            );
        }
        let empty = header(8, 0, 1, 0);
        assert_eq!(
            to.push(Instant::ZERO, PEER, &empty, b""),
            Outcome::Complete(b"")
        );
    }

    #[test]
    fn flows_do_not_mix() {
        let mut to = reassembler(8);
        assert_eq!(push(&mut to, PEER, 0, 0, 2), Outcome::Incomplete);
        assert_eq!(push(&mut to, OTHER, 0, 1, 2), Outcome::Incomplete);
        assert_eq!(push(&mut to, PEER, 1, 1, 2), Outcome::Incomplete);
        for change in [
            |header: &mut Header| header.source = PortNumber::MIN,
            |header: &mut Header| header.destination = PortNumber::MAX,
            |header: &mut Header| header.priority = Priority::HIGHEST,
        ] {
            let mut other = header(0, 1, 2, 1);
            change(&mut other);
            let mut alone = Reassembler::new(ReassemblerConfig::default());
            push(&mut alone, PEER, 0, 0, 2);
            assert_eq!(
                alone.push(Instant::ZERO, PEER, &other, b"x"),
                Outcome::Incomplete
            );
        }
    }

    #[test]
    fn no_source_takes_more_than_half() {
        let mut to = reassembler(4);
        assert_eq!(to.quota_per_source(), 2);
        for first in [0, 10] {
            assert_eq!(push(&mut to, PEER, first, 0, 2), Outcome::Incomplete);
        }
        let refused = Outcome::Dropped(DropReason::QuotaReached);
        assert_eq!(push(&mut to, PEER, 20, 0, 2), refused);
        assert_eq!(push(&mut to, OTHER, 20, 0, 2), Outcome::Incomplete);
        // The message under way goes on, and its collector is free again afterwards.
        assert!(matches!(push(&mut to, PEER, 0, 1, 2), Outcome::Complete(_)));
        assert_eq!(push(&mut to, PEER, 20, 0, 2), Outcome::Incomplete);
        assert_eq!(to.counters().quota_reached, 1);
    }

    #[test]
    fn messages_under_way_are_never_thrown_out() {
        let mut to = reassembler(2);
        push(&mut to, PEER, 0, 0, 2);
        push(&mut to, OTHER, 0, 0, 2);
        let refused = Outcome::Dropped(DropReason::NoCollector);
        assert_eq!(push(&mut to, SourceId(3), 0, 0, 2), refused);
        assert!(matches!(push(&mut to, PEER, 0, 1, 2), Outcome::Complete(_)));
        assert!(matches!(
            push(&mut to, OTHER, 0, 1, 2),
            Outcome::Complete(_)
        ));
        assert_eq!(to.counters().no_collector, 1);
    }

    #[test]
    fn time_limit_frees_the_collector() {
        let mut to = reassembler(1);
        push(&mut to, PEER, 0, 0, 2);
        let limit = Instant::ZERO + LIMIT;
        assert_eq!(to.expire(Instant::from_nanos(limit.as_nanos() - 1)), 0);
        // The second half comes too late: it begins a message of its own.
        assert_eq!(push_at(&mut to, limit, PEER, 0, 1, 2), Outcome::Incomplete);
        assert_eq!(to.counters().expired, 1);
        assert_eq!(to.expire(limit + LIMIT), 1);
        assert_eq!(to.under_way_count(), 0);
        assert_eq!(to.counters().completed, 0);
    }

    #[test]
    fn completed_messages_are_forgotten_oldest_first() {
        let mut to = reassembler(2);
        for (first, now) in [(0, 0), (10, 1), (20, 2)] {
            let now = Instant::from_nanos(now);
            push_at(&mut to, now, PEER, first, 0, 2);
            let outcome = push_at(&mut to, now, PEER, first, 1, 2);
            assert!(matches!(outcome, Outcome::Complete(_)));
        }
        assert_eq!(push(&mut to, PEER, 10, 0, 2), Outcome::Duplicate);
        assert_eq!(push(&mut to, PEER, 20, 0, 2), Outcome::Duplicate);
        assert_eq!(push(&mut to, PEER, 0, 0, 2), Outcome::Incomplete);
    }

    #[test]
    fn a_restarted_flow_does_not_meet_its_past() {
        let mut to = reassembler(4);
        push(&mut to, PEER, 0, 0, 2);
        push(&mut to, OTHER, 0, 0, 2);
        to.forget_flow(PEER, PortNumber::MIN, PortNumber::MAX);
        assert_eq!(to.under_way_count(), 2, "the flow the other way round");
        to.forget_flow(PEER, PortNumber::MAX, PortNumber::MIN);
        assert_eq!(push(&mut to, PEER, 0, 1, 2), Outcome::Incomplete);
        assert!(matches!(
            push(&mut to, OTHER, 0, 1, 2),
            Outcome::Complete(_)
        ));
        assert_eq!(to.counters().forgotten, 1);
    }

    #[test]
    fn a_restart_at_one_priority_leaves_the_others() {
        let mut to = reassembler(4);
        push(&mut to, PEER, 0, 0, 2);
        let (source, destination) = (PortNumber::MAX, PortNumber::MIN);
        to.forget_priority(PEER, source, destination, Priority::HIGHEST);
        assert_eq!(to.under_way_count(), 1);
        to.forget_priority(PEER, source, destination, Priority::NORMAL);
        assert_eq!(to.under_way_count(), 0);
        assert_eq!(to.counters().forgotten, 1);
    }

    #[test]
    fn contradictions_are_dropped() {
        let refused = Outcome::Dropped(DropReason::Inconsistent);
        let mut to = reassembler(2);
        push(&mut to, PEER, 0, 0, 2);
        assert_eq!(push(&mut to, PEER, 0, 1, 3), refused, "another count");
        for wrong in [
            header(0, 2, 2, 1408),
            header(0, 0, 2, 7),
            header(0, 0, 0, 7),
        ] {
            let payload = [0; FRAGMENT_BYTES];
            let payload = &payload[..usize::from(wrong.length)];
            assert_eq!(to.push(Instant::ZERO, PEER, &wrong, payload), refused);
        }
        let short = header(0, 1, 2, 4);
        assert_eq!(to.push(Instant::ZERO, PEER, &short, b"abc"), refused);
        assert!(matches!(push(&mut to, PEER, 0, 1, 2), Outcome::Complete(_)));
        assert_eq!(to.counters().inconsistent, 5);
    }

    #[test]
    fn large_messages_are_refused_at_the_first_fragment() {
        let refused = Outcome::Dropped(DropReason::TooLarge);
        let mut to = Reassembler::new(ReassemblerConfig {
            message_bytes_max: FRAGMENT_BYTES + 10,
            ..ReassemblerConfig::default()
        });
        assert_eq!(push(&mut to, PEER, 0, 0, 3), refused);
        let last = header(0, 1, 2, 11);
        assert_eq!(to.push(Instant::ZERO, PEER, &last, &[0; 11]), refused);
        let whole = header(0, 0, 1, 1419);
        assert_eq!(to.push(Instant::ZERO, PEER, &whole, &[0; 1419]), refused);
        assert_eq!(to.counters().too_large, 3);
        assert_eq!(to.under_way_count(), 0);
    }
}
