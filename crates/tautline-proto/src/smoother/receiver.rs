//! The receiving side: measures its port, and divides it among the senders.

use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

use super::average::{Average, RATE_BPS_MAX};
use super::capacity::{Capacity, QueueSigns, Waits};
use super::message::{Grant, Report};
use super::share::max_min;
use super::{
    EFFICIENCY_PPM, FRAME_BYTES, INTERVAL, NODES_MAX, QUIET, QUIET_INTERVAL, SILENCE, parts,
};
use crate::time::Instant;

/// Time over which real-time traffic, and that of nodes that do not take part, is averaged. Shorter, and a burst of
/// messages takes a share from the others for which it has no use a moment later; longer, and a real-time flow that
/// begins finds no room for as long.
const REAL_TIME_AVERAGE: Duration = Duration::from_millis(20);

/// Time over which other traffic is averaged. Shorter, and a pause between two segments of TCP looks like the end.
const OTHER_AVERAGE: Duration = INTERVAL;

/// Share of the port that is granted to all nodes together, though they ask for nothing, so that they can begin.
/// Lower, and TCP that was idle begins slower; higher, and so much is unused while one node sends alone.
const FLOOR_PPM: u64 = 25_000;

/// Share of the port that stays for other traffic however much real-time traffic is reported. At 0 a node that reports
/// nonsense could stop everybody else.
const OTHER_PPM_MIN: u64 = 10_000;

/// Waiting frames above which a node wants more than it has. Lower, and the frame that a shaper holds between two of
/// its turns looks like a demand; higher, and TCP does not show one, which lets no more than two frames wait.
const BACKLOG_FRAMES: u64 = 1;

/// Use of a grant that shows the same.
const USED_PPM: u64 = 900_000;

/// Use of a grant below which a backlog is not believed, and intervals in a row after which that is so. A node that
/// claims a backlog and sends nothing must not keep its share from others. Fewer intervals, and TCP that pauses for
/// a round trip loses its share.
const IDLE_PPM: u64 = 500_000;
const IDLE_INTERVALS: u32 = 20;

/// Other traffic of a node, as a share of the port, up to which it counts as none. Lower, and names and addresses that
/// are asked for now and then keep everybody awake; higher, and a slow flow is held to old shares for longer.
const NOTHING_PPM: u64 = 1_000;

/// Time for which a real-time rate is believed of which nothing new is known, because reports do not come. Shorter,
/// and what a node sends in real time is granted to others while its reports are late; longer, and so much stays
/// unused when it is gone.
const REAL_TIME_BELIEF: Duration = Duration::from_secs(1);

/// Growth over its measured rate that is granted to a node that asks for no more. Lower, and a growing flow is held
/// back; higher, and more of the port stays unused.
const GROWTH_PPM: u64 = 1_250_000;

/// Rates of equal nodes differ by up to this, each node's in turn higher and lower. Without it, nodes of one rate keep
/// the phase in which their frames meet in the switch. Higher makes shares uneven over short times.
const DITHER_PPM: u64 = 50_000;

/// Intervals between two turns of these rates. Shorter, and phases do not move far; longer, and shares are uneven for
/// longer.
const DITHER_INTERVALS: u32 = 50;

/// Grants whose numbers and times are remembered for each node. Fewer than fit into [`SILENCE`] would make a node
/// silent that is only slow.
const HISTORY: usize = 32;

/// Intervals at the beginning, for a node or for the receiver, in which only the least is granted: the queue drains,
/// and the first echoes show the path without a queue. Shorter, and a full queue could be taken for the path.
const QUIET_INTERVALS: u32 = 10;

/// Most parts of an interval. Fewer, and more reports come at once; more cost more wake-ups.
const SLOTS_MAX: usize = 5;

/// Most nodes that are sent a grant in one interval. Fewer makes the others' grants older; more, and grants and reports
/// take a noticeable part of a port of 100 Mbit/s.
const NODES_PER_INTERVAL: usize = 16;

/// Configuration of a [`Receiver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Capacity of the port towards this node, in bits a second on the wire.
    pub capacity_bps: u64,
    /// Nodes that may take part, at most [`NODES_MAX`].
    pub node_count: usize,
    /// Number of this run, different from that of the last.
    pub epoch: u32,
}

/// Counts of the port since some beginning, in bytes on the wire. Only their growth matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Everything received.
    pub all_bytes: u64,
    /// Traffic of any kind received from nodes that are not among those that may take part.
    pub foreign_bytes: u64,
}

/// Counts of one node that may take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Bytes of its other traffic received, on the wire.
    pub other_bytes: u64,
    /// Bytes that it has **sent** in real time, on the wire, whether they arrived or not: from its sequence numbers,
    /// or from its reports; and the reports themselves. With what arrived, a loss would look like less real-time
    /// traffic, more would be granted, and more would be lost.
    pub real_time_bytes: u64,
    /// Frames known to be lost on the way from it.
    pub lost_frames: u64,
}

/// State of a node as its receiver sees it, for status and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Whether its reports come.
    pub takes_part: bool,
    /// Rate of the last grant.
    pub granted_bps: u64,
    /// Other traffic that arrives from it.
    pub other_bps: u64,
    /// Real-time traffic that it sends.
    pub real_time_bps: u64,
    /// Bytes that wait there, as it says.
    pub backlog_bytes: u32,
    /// Time of its last report in the queue of the switch.
    pub wait: Duration,
    /// Reports that were refused: of another run, too old, or of no grant.
    pub refused: u64,
}

/// A node that receives, and decides how much others may send to it.
///
/// Call [`take_report`](Self::take_report) whenever a report comes and [`tick`](Self::tick) every
/// [`interval`](Self::interval). Then send each node its [`grant`](Self::grant), those of [each
/// part](Self::nodes_of_slot) of the interval at its time.
#[derive(Debug)]
pub struct Receiver {
    epoch: u32,
    number: u32,
    ticks: u32,
    last_tick: Option<Instant>,
    /// Time at which a node last sent other traffic, wanted to, or began to take part.
    active_at: Option<Instant>,
    capacity: Capacity,
    late_reports: u32,
    all: Average,
    foreign: Average,
    nodes: Box<[Node]>,
    demands: Box<[u64]>,
    targets: Box<[u64]>,
}

#[derive(Clone, Debug)]
struct Node {
    /// Numbers and times of the last grants, by number.
    sent_at: [Instant; HISTORY],
    rates: [u64; HISTORY],
    granted_bps: u64,
    /// Number of the last grant that a report confirmed, and when that report came.
    confirmed: Option<u32>,
    last_report: Option<Instant>,
    /// Intervals since it began to take part.
    part_intervals: u32,
    sender_epoch: u32,
    backlog_bytes: u32,
    reported_real_time_bytes: u64,
    /// Intervals in a row in which it claimed a backlog and did not use its grant.
    idle_intervals: u32,
    other: Average,
    real_time: Average,
    /// The count of its real-time traffic that was taken last, and when.
    real_time_bytes: u64,
    real_time_at: Option<Instant>,
    lost_frames: u64,
    waits: Waits,
    wait: Duration,
    refused: u64,
}

impl Node {
    const NEW: Self = Self {
        sent_at: [Instant::ZERO; HISTORY],
        rates: [0; HISTORY],
        granted_bps: 0,
        confirmed: None,
        last_report: None,
        part_intervals: 0,
        sender_epoch: 0,
        backlog_bytes: 0,
        reported_real_time_bytes: 0,
        idle_intervals: 0,
        other: Average::over(OTHER_AVERAGE),
        real_time: Average::over(REAL_TIME_AVERAGE),
        real_time_bytes: 0,
        real_time_at: None,
        lost_frames: 0,
        waits: Waits::NONE,
        wait: Duration::ZERO,
        refused: 0,
    };

    fn takes_part(&self, now: Instant) -> bool {
        self.last_report
            .is_some_and(|last| now.saturating_duration_since(last) <= SILENCE)
    }

    /// Rate with which it may be sending: the highest that was granted since the last confirmed grant, that one
    /// included.
    fn committed_bps(&self, number: u32) -> u64 {
        let Some(confirmed) = self.confirmed else {
            return self.granted_bps;
        };
        let open = number.wrapping_sub(confirmed).min(HISTORY as u32 - 1);
        let rates = (0..=open).map(|back| self.rates[place(number.wrapping_sub(back))]);
        rates.max().unwrap_or(self.granted_bps)
    }

    /// Takes the count of its real-time traffic. One that stands still while no report came says nothing: the reports
    /// may be late.
    fn measure_real_time(&mut self, now: Instant, bytes: u64) {
        let Some(last) = self.real_time_at else {
            self.real_time_at = Some(now);
            self.real_time_bytes = bytes;
            self.real_time.update(bytes, Duration::ZERO);
            return;
        };
        let elapsed = now.saturating_duration_since(last);
        let is_known = bytes != self.real_time_bytes
            || self.last_report.is_some_and(|report| report > last)
            || elapsed >= REAL_TIME_BELIEF;
        if is_known {
            self.real_time_at = Some(now);
            self.real_time_bytes = bytes;
            self.real_time.update(bytes, elapsed);
        }
    }

    /// Whether it sends other traffic, wants to, or has just begun to take part.
    fn is_active(&self, now: Instant, nothing_bps: u64) -> bool {
        self.other.bps() > nothing_bps
            || self.takes_part(now)
                && (self.backlog_bytes > 0 || self.part_intervals < QUIET_INTERVALS)
    }

    /// Rate that it could use, `u64::MAX` if it wants all it can get.
    fn demand(&mut self, floor_bps: u64) -> u64 {
        let arrived_bps = self.other.bps();
        let claims = u64::from(self.backlog_bytes) > BACKLOG_FRAMES * FRAME_BYTES;
        let is_idle = arrived_bps < parts(self.granted_bps, IDLE_PPM);
        self.idle_intervals = if claims && is_idle {
            self.idle_intervals.saturating_add(1)
        } else {
            0
        };
        let is_believed = claims && self.idle_intervals <= IDLE_INTERVALS;
        if is_believed || arrived_bps > parts(self.granted_bps, USED_PPM) {
            return u64::MAX;
        }
        parts(arrived_bps, GROWTH_PPM) + floor_bps
    }
}

/// Place of a grant in the history.
const fn place(number: u32) -> usize {
    number as usize % HISTORY
}

impl Receiver {
    /// A receiver that has granted nothing yet. Takes all memory that it will use.
    ///
    /// # Panics
    ///
    /// If there are more than [`NODES_MAX`] nodes.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        let count = config.node_count;
        assert!(count <= NODES_MAX, "{count} nodes");
        Self {
            epoch: config.epoch,
            number: 0,
            ticks: 0,
            last_tick: None,
            active_at: None,
            capacity: Capacity::new(config.capacity_bps.min(RATE_BPS_MAX), count),
            late_reports: 0,
            all: Average::over(REAL_TIME_AVERAGE),
            foreign: Average::over(REAL_TIME_AVERAGE),
            nodes: vec![Node::NEW; count].into_boxed_slice(),
            demands: vec![0; count].into_boxed_slice(),
            targets: vec![0; count].into_boxed_slice(),
        }
    }

    /// Takes the report of a node. A report of another run, of a grant that is no longer remembered, or older than one
    /// that came before, is refused, and `false` is returned.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn take_report(&mut self, now: Instant, node: usize, report: &Report) -> bool {
        let (epoch, number) = (self.epoch, self.number);
        let node = &mut self.nodes[node];
        let age = number.wrapping_sub(report.number);
        let is_ours = report.epoch == epoch && age < (HISTORY as u32).min(number);
        let is_newer = node.confirmed.is_none_or(|confirmed| {
            report.number.wrapping_sub(confirmed) < HISTORY as u32 || !node.takes_part(now)
        });
        if !is_ours || !is_newer {
            node.refused += 1;
            return false;
        }
        if !node.takes_part(now) || node.sender_epoch != report.sender_epoch {
            node.part_intervals = 0;
        }
        // The same report again says nothing about the queue.
        if node.confirmed != Some(report.number) {
            let echo = now.saturating_duration_since(node.sent_at[place(report.number)]);
            node.wait = node.waits.record(now, echo.saturating_sub(report.held));
            // All reports come through one queue, so one that was not late shows that the queue does not stand.
            let is_late = node.wait > self.capacity.standing_wait();
            self.late_reports = if is_late {
                self.late_reports.saturating_add(1)
            } else {
                0
            };
        }
        node.confirmed = Some(report.number);
        node.last_report = Some(now);
        node.sender_epoch = report.sender_epoch;
        node.backlog_bytes = report.backlog_bytes;
        node.reported_real_time_bytes = report.real_time_bytes;
        true
    }

    /// Bytes that a node says it has sent in real time, for callers that see no sequence numbers.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn reported_real_time_bytes(&self, node: usize) -> u64 {
        self.nodes[node].reported_real_time_bytes
    }

    /// Ends an interval: looks at the counts, and decides on new grants. `counts` has an entry for each node.
    ///
    /// # Panics
    ///
    /// If `counts` has another number of entries than there are nodes.
    pub fn tick(&mut self, now: Instant, port: &PortCounts, counts: &[NodeCounts]) {
        assert_eq!(counts.len(), self.nodes.len());
        let elapsed = self
            .last_tick
            .replace(now)
            .map_or(INTERVAL, |last| now.saturating_duration_since(last));
        let lost = self.measure(now, port, counts, elapsed);
        self.capacity.correct(QueueSigns {
            late_reports: self.late_reports,
            lost,
            arrived_bps: self.all.bps(),
        });
        let nothing_bps = parts(self.capacity.bps(), NOTHING_PPM);
        if self.active_at.is_none()
            || (self.nodes.iter()).any(|node| node.is_active(now, nothing_bps))
        {
            self.active_at = Some(now);
        }
        self.decide(now);
        self.raise_after_decreases(now);
        self.number = self.number.wrapping_add(1);
        self.ticks = self.ticks.wrapping_add(1);
        for (node, target) in self.nodes.iter_mut().zip(&self.targets) {
            node.granted_bps = *target;
            node.rates[place(self.number)] = *target;
            node.part_intervals = node.part_intervals.saturating_add(1);
        }
    }

    /// The grant of the last tick for a node, to be sent now, once.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn grant(&mut self, now: Instant, node: usize) -> Grant {
        self.nodes[node].sent_at[place(self.number)] = now;
        Grant {
            burst_bytes: FRAME_BYTES as u16,
            epoch: self.epoch,
            number: self.number,
            rate_bps: self.nodes[node].granted_bps,
        }
    }

    /// Time from the last tick to the next: [`INTERVAL`], or [`QUIET_INTERVAL`] if no node has sent other traffic for
    /// [`QUIET`].
    #[must_use]
    pub fn interval(&self) -> Duration {
        let quiet = match (self.last_tick, self.active_at) {
            (Some(last), Some(active)) => last.saturating_duration_since(active),
            _ => Duration::ZERO,
        };
        if quiet < QUIET {
            INTERVAL
        } else {
            QUIET_INTERVAL
        }
    }

    /// Parts into which an interval is divided. The grants of a tick are sent in all of them in turn: the replies of
    /// many nodes at once would fill the queue of a small switch, and would all see the queue at the same moment.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.nodes.len().clamp(1, SLOTS_MAX)
    }

    /// Nodes whose grants are sent in a part of the interval: with many nodes, not all of them in each.
    pub fn nodes_of_slot(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slot_count();
        let rounds = self.nodes.len().div_ceil(NODES_PER_INTERVAL).max(1);
        let round = self.ticks as usize % rounds;
        (slot + slots * round..self.nodes.len()).step_by(slots * rounds)
    }

    /// Takes another capacity of the port, because the link has another speed now. The correction from delay does not
    /// find that out: a port that carries a tenth of what is granted looks idle.
    pub fn set_capacity(&mut self, capacity_bps: u64) {
        self.capacity.configure(capacity_bps.min(RATE_BPS_MAX));
    }

    /// The believed capacity of the port.
    #[must_use]
    pub const fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Bits a second that arrive, of all kinds.
    #[must_use]
    pub const fn arrived_bps(&self) -> u64 {
        self.all.bps()
    }

    /// Bits a second of nodes that are not among those that may take part.
    #[must_use]
    pub const fn foreign_bps(&self) -> u64 {
        self.foreign.bps()
    }

    /// State of a node.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn view(&self, now: Instant, node: usize) -> NodeView {
        let node = &self.nodes[node];
        NodeView {
            takes_part: node.takes_part(now),
            granted_bps: node.granted_bps,
            other_bps: node.other.bps(),
            real_time_bps: node.real_time.bps(),
            backlog_bytes: node.backlog_bytes,
            wait: node.wait,
            refused: node.refused,
        }
    }

    /// Updates the rates; whether frames were lost since the last time.
    fn measure(
        &mut self,
        now: Instant,
        port: &PortCounts,
        counts: &[NodeCounts],
        elapsed: Duration,
    ) -> bool {
        self.all.update(port.all_bytes, elapsed);
        self.foreign.update(port.foreign_bytes, elapsed);
        let mut lost = false;
        for (node, counts) in self.nodes.iter_mut().zip(counts) {
            node.other.update(counts.other_bytes, elapsed);
            node.measure_real_time(now, counts.real_time_bytes);
            lost |= counts.lost_frames > node.lost_frames;
            node.lost_frames = counts.lost_frames;
        }
        lost
    }

    /// Writes the rate that each node should have into `targets`.
    fn decide(&mut self, now: Instant) {
        let capacity_bps = self.capacity.bps();
        let part_count = self
            .nodes
            .iter()
            .filter(|node| node.takes_part(now))
            .count();
        let floor_bps = parts(capacity_bps, FLOOR_PPM) / part_count.max(1) as u64;
        let mut taken_bps = self.foreign.bps();
        for (node, demand) in self.nodes.iter_mut().zip(&mut self.demands) {
            taken_bps += node.real_time.bps();
            if !node.takes_part(now) {
                taken_bps += node.other.bps();
                *demand = 0;
            } else if node.part_intervals < QUIET_INTERVALS || self.ticks < QUIET_INTERVALS {
                *demand = floor_bps;
            } else {
                *demand = node.demand(floor_bps);
            }
        }
        let given_out_bps = parts(capacity_bps, EFFICIENCY_PPM);
        let least_bps = parts(capacity_bps, OTHER_PPM_MIN);
        let room_bps = given_out_bps.saturating_sub(taken_bps).max(least_bps);
        let level = max_min(room_bps, &self.demands, &mut self.targets);
        self.dither(level);
        for (node, target) in self.nodes.iter().zip(&mut self.targets) {
            // A silent node is granted the least, so that it can come back.
            if !node.takes_part(now) {
                *target = floor_bps.min(least_bps);
            }
        }
    }

    /// Moves the rates of the nodes at the common level apart, in a way that keeps their sum.
    fn dither(&mut self, level: u64) {
        let at_level = |target: &u64| *target == level;
        let count = self
            .targets
            .iter()
            .filter(|target| at_level(target))
            .count() as u64;
        if count < 2 {
            return;
        }
        let turn = u64::from(self.ticks / DITHER_INTERVALS);
        let span = 2 * parts(level, DITHER_PPM);
        let targets = self.targets.iter_mut().filter(|target| at_level(target));
        for (index, target) in targets.enumerate() {
            let step = (index as u64 + turn) % count;
            *target = level - span / 2 + span * step / (count - 1);
        }
    }

    /// Lowers `targets` of nodes that are to send more, as long as others that are to send less have not confirmed it.
    fn raise_after_decreases(&mut self, now: Instant) {
        let mut room: u64 = self.targets.iter().sum();
        let mut raises = 0u64;
        let number = self.number;
        let committed = |node: &Node| match node.takes_part(now) {
            true => node.committed_bps(number),
            // Its traffic is measured, and was subtracted.
            false => 0,
        };
        for (node, target) in self.nodes.iter().zip(&self.targets) {
            let least = committed(node).max((*target).min(node.granted_bps));
            room = room.saturating_sub(least);
            raises += target.saturating_sub(least);
        }
        if raises <= room {
            return;
        }
        for (node, target) in self.nodes.iter().zip(&mut self.targets) {
            let least = committed(node).max((*target).min(node.granted_bps));
            if *target > least {
                let raise = u128::from(*target - least) * u128::from(room) / u128::from(raises);
                *target = least + raise as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    /// A receiver with reports of perfect senders that use what they are granted, or nothing.
    struct Cell {
        receiver: Receiver,
        now: Instant,
        port: PortCounts,
        counts: [NodeCounts; 3],
        backlog_bytes: [u32; 3],
        uses: [bool; 3],
        reports: [bool; 3],
    }

    impl Cell {
        fn new() -> Self {
            Self {
                receiver: Receiver::new(ReceiverConfig {
                    capacity_bps: 100 * MEGABIT,
                    node_count: 3,
                    epoch: 5,
                }),
                now: Instant::from_nanos(1_000_000_000),
                port: PortCounts::default(),
                counts: [NodeCounts::default(); 3],
                backlog_bytes: [1_000_000; 3],
                uses: [true; 3],
                reports: [true; 3],
            }
        }

        fn run(&mut self, intervals: u32) {
            for _ in 0..intervals {
                self.now = self.now + INTERVAL;
                self.receiver.tick(self.now, &self.port, &self.counts);
                for node in 0..3 {
                    let grant = self.receiver.grant(self.now, node);
                    let bytes = grant.rate_bps / 8 / 200;
                    if self.uses[node] {
                        self.counts[node].other_bytes += bytes;
                        self.port.all_bytes += bytes;
                    }
                    if self.reports[node] {
                        let arrival = self.now + Duration::from_micros(100);
                        let report = self.report_on(node, &grant);
                        assert!(self.receiver.take_report(arrival, node, &report));
                    }
                }
            }
        }

        fn report(&mut self, node: usize) -> Report {
            let grant = self.receiver.grant(self.now, node);
            self.report_on(node, &grant)
        }

        fn report_on(&self, node: usize, grant: &Grant) -> Report {
            Report {
                epoch: grant.epoch,
                number: grant.number,
                sender_epoch: 1,
                backlog_bytes: self.backlog_bytes[node],
                held: Duration::ZERO,
                other_bytes: 0,
                real_time_bytes: 0,
            }
        }

        fn rates(&self) -> [u64; 3] {
            core::array::from_fn(|node| self.receiver.view(self.now, node).granted_bps)
        }
    }

    #[test]
    fn equal_demands_share_the_port_equally() {
        let mut cell = Cell::new();
        cell.run(100);
        let total: u64 = cell.rates().iter().sum();
        assert!((97_900_000..=98_000_000).contains(&total), "{total}");
        let mut sums = [0; 3];
        for _ in 0..3 * DITHER_INTERVALS {
            cell.run(1);
            for (sum, rate) in sums.iter_mut().zip(cell.rates()) {
                *sum += rate;
            }
            assert!(cell.rates().iter().sum::<u64>() <= 98 * MEGABIT);
        }
        let spread = sums.iter().max().unwrap() - sums.iter().min().unwrap();
        assert!(spread * 200 < sums[0], "{sums:?}");
    }

    #[test]
    fn a_node_that_lies_about_its_backlog_does_not_keep_its_share() {
        let mut cell = Cell::new();
        cell.uses[1] = false;
        cell.run(200);
        let rates = cell.rates();
        assert!(rates[1] < 2 * MEGABIT, "{rates:?}");
        assert!(rates[0] > 45 * MEGABIT && rates[2] > 45 * MEGABIT);
    }

    #[test]
    fn a_raise_waits_until_the_decrease_is_confirmed() {
        let mut cell = Cell::new();
        cell.uses = [true, true, false];
        cell.backlog_bytes[2] = 0;
        cell.run(100);
        assert!(cell.rates()[2] < 3 * MEGABIT);
        // The third node begins, and the first does not confirm its smaller grants.
        cell.uses[2] = true;
        cell.backlog_bytes[2] = u32::MAX;
        cell.reports[0] = false;
        let before = cell.rates()[0];
        for _ in 0..15 {
            cell.run(1);
            let rates = cell.rates();
            let could_be = before + rates[1] + rates[2];
            assert!(could_be <= 98 * MEGABIT, "{before} {rates:?}");
        }
        cell.reports[0] = true;
        cell.run(10);
        assert!(cell.rates()[2] > 30 * MEGABIT, "{:?}", cell.rates());
    }

    #[test]
    fn what_is_sent_in_real_time_and_by_others_is_subtracted() {
        let mut cell = Cell::new();
        for _ in 0..200 {
            cell.counts[0].real_time_bytes += 20 * MEGABIT / 8 / 200;
            cell.port.foreign_bytes += 30 * MEGABIT / 8 / 200;
            cell.run(1);
        }
        let total: u64 = cell.rates().iter().sum();
        assert!((47_900_000..=48_100_000).contains(&total), "{total}");
        // More than there is: the least stays.
        for _ in 0..100 {
            cell.counts[0].real_time_bytes += 1 << 50;
            cell.run(1);
        }
        let total: u64 = cell.rates().iter().sum();
        assert!((900_000..=1_000_000).contains(&total), "{total}");
    }

    #[test]
    fn real_time_is_believed_while_its_reports_are_late() {
        let mut cell = Cell::new();
        let run = |cell: &mut Cell, intervals: u32, grows: bool, reports: bool| {
            cell.reports = [reports, true, true];
            for _ in 0..intervals {
                cell.counts[0].real_time_bytes += u64::from(grows) * 20 * MEGABIT / 8 / 200;
                cell.run(1);
            }
            cell.receiver.view(cell.now, 0).real_time_bps / MEGABIT
        };
        assert_eq!(run(&mut cell, 100, true, true), 19);
        // The last report is taken with the next tick.
        assert_eq!(run(&mut cell, 1, true, false), 19);
        assert_eq!(run(&mut cell, 189, false, false), 19);
        // The next report tells of all that was sent meanwhile.
        cell.counts[0].real_time_bytes += 189 * 20 * MEGABIT / 8 / 200;
        assert!((19..=20).contains(&run(&mut cell, 1, true, true)));
        assert_eq!(run(&mut cell, 30, false, true), 0, "reports tell of none");
        assert_eq!(run(&mut cell, 100, true, true), 19);
        assert_eq!(run(&mut cell, 201, false, false), 0, "it is gone");
    }

    #[test]
    fn a_quiet_cell_is_granted_less_often() {
        let mut cell = Cell::new();
        cell.run(300);
        assert_eq!(cell.receiver.interval(), INTERVAL);
        cell.uses = [false; 3];
        cell.backlog_bytes = [0; 3];
        cell.run(190);
        assert_eq!(cell.receiver.interval(), INTERVAL, "not for a second yet");
        cell.run(20);
        assert_eq!(cell.receiver.interval(), QUIET_INTERVAL);
        cell.backlog_bytes[1] = 3000;
        cell.run(2);
        assert_eq!(cell.receiver.interval(), INTERVAL);
    }

    #[test]
    fn a_link_of_another_speed_is_divided_as_it_is_now() {
        let mut cell = Cell::new();
        for (megabits, least) in [(100, 97), (10, 9), (100, 97)] {
            cell.receiver.set_capacity(megabits * MEGABIT);
            cell.run(200);
            let total: u64 = cell.rates().iter().sum();
            assert!(
                total <= megabits * MEGABIT && total > least * MEGABIT,
                "{total}"
            );
        }
    }

    #[test]
    fn a_silent_node_counts_as_not_taking_part() {
        let mut cell = Cell::new();
        cell.run(100);
        cell.reports[2] = false;
        cell.uses[2] = false;
        // It goes on with the rate that it last had.
        for _ in 0..100 {
            cell.counts[2].other_bytes += 30 * MEGABIT / 8 / 200;
            cell.port.all_bytes += 30 * MEGABIT / 8 / 200;
            cell.run(1);
        }
        assert!(!cell.receiver.view(cell.now, 2).takes_part);
        let rates = cell.rates();
        assert!((67_000_000..=68_100_000).contains(&(rates[0] + rates[1])));
        assert!(rates[2] <= MEGABIT);
    }

    #[test]
    fn reports_of_another_run_and_old_ones_are_refused() {
        let mut cell = Cell::new();
        let early = cell.report(0);
        assert!(
            !cell.receiver.take_report(cell.now, 0, &early),
            "no grant yet"
        );
        cell.run(1);
        let first = cell.report(0);
        cell.run(2);
        assert!(
            !cell.receiver.take_report(cell.now, 0, &first),
            "older than the last"
        );
        let good = cell.report(0);
        for wrong in [
            Report { epoch: 4, ..good },
            Report {
                number: good.number + 1,
                ..good
            },
            Report {
                number: good.number.wrapping_sub(HISTORY as u32),
                ..good
            },
        ] {
            assert!(!cell.receiver.take_report(cell.now, 0, &wrong), "{wrong:?}");
        }
        assert!(cell.receiver.take_report(cell.now, 0, &good));
        assert_eq!(cell.receiver.view(cell.now, 0).refused, 5);
    }
}
