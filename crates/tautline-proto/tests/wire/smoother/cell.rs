//! A cell on virtual time: senders of real-time and other traffic, one receiver behind a switch port.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline_proto::loss::LossTracker;
use tautline_proto::smoother::message::{Message, Report};
use tautline_proto::smoother::{
    FRAME_BYTES, NodeCounts, PortCounts, Receiver, ReceiverConfig, Release, Sender, SenderConfig,
    time_on_wire,
};
use tautline_proto::time::Instant;
use tautline_proto::wire::MacAddress;

use super::network::{Network, PortRate};

/// Bytes of a full frame in memory.
const FRAME: usize = 1514;
/// Bytes of a frame with a grant or report.
const CONTROL_FRAME: usize = 78;
/// Time from a sender to the switch, and from the receiver to a sender.
const PATH: Duration = Duration::from_micros(5);
/// Rate of a sender's own link when nothing holds its traffic.
const LINK_BPS: u64 = 1_000_000_000;
/// Frames of other traffic that wait at a sender before the application has to.
const BACKLOG_FRAMES_MAX: u64 = 1000;
/// Frames that an application has written when it pauses, and that its socket still sends: 64 KiB.
const WRITTEN_FRAMES: u64 = 44;
/// Time in which a shaper's timer and a sender's clock are late.
const TIMER_LATE_NS: u64 = 20_000;
/// Interval in which real-time frames leave early or late.
const RELEASE_JITTER_NS: u64 = 50_000;
/// Time by which some grants and reports are late, if they are.
const LATE_NS: u64 = 12_000_000;
/// Time before anything is counted.
const WARM: Duration = Duration::from_secs(2);

const REAL_TIME: u8 = 1;
const OTHER: u8 = 2;
const CONTROL: u8 = 3;

/// Rule by which other traffic is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Nothing,
    Grants,
}

/// Other traffic of a sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Load {
    /// Frames a second, at random times.
    Poisson(f64),
    /// Always as much as allowed.
    Greedy,
    /// As much as allowed, on and off for so many milliseconds on average.
    OnOff(f64),
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) rule: Rule,
    pub(crate) senders: usize,
    pub(crate) port: PortRate,
    /// Switches behind which the senders are, in turn, and the rate of each one's port towards the receiver's switch.
    pub(crate) uplinks: (usize, u64),
    /// Capacity that the receiver is told.
    pub(crate) told_bps: u64,
    pub(crate) real_time_period: Duration,
    pub(crate) load: Load,
    /// Time of quiet before other traffic begins.
    pub(crate) load_begins: Duration,
    pub(crate) measured: Duration,
    /// Share of grants and reports that are lost, and whether they overtake each other.
    pub(crate) control_loss_ppm: u32,
    pub(crate) control_late: bool,
    /// An attacker sends forged and old messages.
    pub(crate) interference: bool,
    /// The first sender claims a backlog and sends nothing.
    pub(crate) liar: bool,
    /// The first sender's control stops at this time; its shaper keeps the last rate.
    pub(crate) sender_stops: Option<Duration>,
    /// The receiver's control stops at this time.
    pub(crate) receiver_stops: Option<Duration>,
}

impl Setup {
    /// The paper's cell: three nodes, 4.85 Mbit/s real time and 30.32 Mbit/s other traffic each, 89.11 Mbit/s.
    pub(crate) fn paper(rule: Rule) -> Self {
        Self {
            seed: 1,
            rule,
            senders: 3,
            port: PortRate {
                rate_bps: 89_110_000,
                queue_frames: 64,
                priorities: false,
            },
            uplinks: (0, 0),
            told_bps: 89_110_000,
            real_time_period: Duration::from_micros(2500),
            load: Load::Poisson(2500.0),
            load_begins: Duration::ZERO,
            measured: Duration::from_secs(60),
            control_loss_ppm: 0,
            control_late: false,
            interference: false,
            liar: false,
            sender_stops: None,
            receiver_stops: None,
        }
    }
}

/// Results of the measured time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) real_time_sent: u64,
    pub(crate) real_time_lost: u64,
    pub(crate) late_300_us: u64,
    pub(crate) late_600_us: u64,
    pub(crate) wait_max: Duration,
    pub(crate) other_sent: u64,
    pub(crate) other_lost: u64,
    /// Other traffic that arrived, as a share of what real-time traffic and reports leave of the port.
    pub(crate) other_share: f64,
    pub(crate) jain: f64,
    pub(crate) refused: u64,
    pub(crate) corrections: u64,
    /// Intervals of the receiver.
    pub(crate) intervals: u64,
    pub(crate) other_by_node: Vec<u64>,
}

impl Outcome {
    pub(crate) fn loss(&self) -> f64 {
        self.real_time_lost as f64 / self.real_time_sent.max(1) as f64
    }

    pub(crate) fn late(&self, count: u64) -> f64 {
        count as f64 / self.real_time_sent.max(1) as f64
    }

    pub(crate) fn wait_frames(&self, rate_bps: u64) -> f64 {
        self.wait_max.as_secs_f64() / time_on_wire(FRAME_BYTES, rate_bps).as_secs_f64()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    RealTime(usize),
    Produce(usize),
    Switch(usize),
    /// The shaper of a sender may send; only the newest such timer counts.
    Shaper(usize, u64),
    Tick,
    /// Grants of a part of the interval.
    Slot(usize),
    /// A grant or report that is late.
    Late(usize),
    Interfere,
}

struct Node {
    place: usize,
    mac: MacAddress,
    real_time_next: u32,
    other_next: u32,
    /// Frames of other traffic that wait.
    backlog: u64,
    is_on: bool,
    control: Sender,
    release: Release,
    tokens: f64,
    tokens_at: Instant,
    shaper_turn: u64,
    other_bytes: u64,
    real_time_bytes: u64,
    sent_measured: [u64; 2],
    // Kept by the receiver.
    real_time_seen: LossTracker,
    other_seen: LossTracker,
    real_time_before: (u64, u64),
    other_before: (u64, u64),
    other_arrived_bytes: u64,
    reports_bytes: u64,
    reports_before: u64,
}

pub(crate) struct Cell {
    setup: Setup,
    random: Xoshiro256PlusPlus,
    network: Network,
    receiver_place: usize,
    stranger: usize,
    nodes: Vec<Node>,
    receiver: Receiver,
    port: PortCounts,
    timers: BinaryHeap<Reverse<(Instant, u64, Timer)>>,
    timer_number: u64,
    now: Instant,
    begin: Instant,
    is_measuring: bool,
    late: Vec<(usize, usize, [u8; CONTROL_FRAME])>,
    /// Messages of the first second, to be sent again.
    old: Vec<(usize, Message)>,
    outcome: Outcome,
}

const RECEIVER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 99]);

impl Cell {
    pub(crate) fn run(setup: Setup) -> Outcome {
        let mut cell = Self::new(setup);
        cell.begin_timers();
        let measured_from = cell.begin + WARM;
        cell.advance(measured_from);
        cell.begin_measuring();
        let end = measured_from + cell.setup.measured;
        cell.advance(end);
        cell.end_measuring()
    }

    fn new(setup: Setup) -> Self {
        let mut network = Network::new(PATH);
        let port = network.port(setup.port);
        let receiver_place = network.attach(Some(port), None);
        let stranger = network.attach(None, None);
        let begin = Instant::from_nanos(1_000_000_000);
        let (switches, rate_bps) = setup.uplinks;
        let uplink = PortRate {
            rate_bps,
            ..setup.port
        };
        let uplinks: Vec<usize> = (0..switches).map(|_| network.port(uplink)).collect();
        let nodes = (0..setup.senders).map(|index| {
            let uplink = uplinks.get(index % switches.max(1)).copied();
            Node::new(index, network.attach(None, uplink), begin)
        });
        let nodes = nodes.collect();
        let receiver = Receiver::new(ReceiverConfig {
            capacity_bps: setup.told_bps,
            node_count: setup.senders,
            epoch: 77,
        });
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(!setup.seed),
            setup,
            network,
            receiver_place,
            stranger,
            nodes,
            receiver,
            port: PortCounts::default(),
            timers: BinaryHeap::new(),
            timer_number: 0,
            now: begin,
            begin,
            is_measuring: false,
            late: Vec::new(),
            old: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn begin_timers(&mut self) {
        for index in 0..self.setup.senders {
            let period = self.setup.real_time_period.as_nanos() as u64;
            let phase = self.below(period);
            self.after(phase, Timer::RealTime(index));
            let phase = phase + self.setup.load_begins.as_nanos() as u64;
            match self.setup.load {
                _ if self.setup.liar && index == 0 => {}
                Load::Poisson(_) => self.after(phase, Timer::Produce(index)),
                Load::Greedy => {
                    self.nodes[index].is_on = true;
                    self.after(phase, Timer::Produce(index));
                }
                Load::OnOff(_) => self.after(phase, Timer::Switch(index)),
            }
        }
        if self.setup.rule == Rule::Grants {
            self.after(0, Timer::Tick);
        }
        if self.setup.interference {
            self.after(0, Timer::Interfere);
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit.max(1)
    }

    /// A time with an exponential distribution.
    fn exponential_ns(&mut self, mean_ns: f64) -> u64 {
        let uniform = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        (-mean_ns * (1.0 - uniform).ln()) as u64
    }

    fn after(&mut self, nanos: u64, timer: Timer) {
        self.timer_number += 1;
        let at = self.now + Duration::from_nanos(nanos);
        self.timers.push(Reverse((at, self.timer_number, timer)));
    }

    fn advance(&mut self, end: Instant) {
        loop {
            let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
            let frame = self.network.next_event();
            let next = [timer, frame].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = next;
            if frame == Some(next) {
                self.arrivals();
            } else if let Some(Reverse((_, _, timer))) = self.timers.pop() {
                self.fire(timer);
            }
        }
        self.now = end;
    }

    fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.begin)
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::RealTime(node) => self.send_real_time(node),
            Timer::Produce(node) => self.produce(node),
            Timer::Switch(node) => self.switch(node),
            Timer::Shaper(node, turn) if turn == self.nodes[node].shaper_turn => self.shape(node),
            Timer::Shaper(..) => {}
            Timer::Tick => self.tick(),
            Timer::Slot(slot) => self.send_grants(slot),
            Timer::Late(index) => {
                let (from, to, frame) = self.late[index];
                self.network.send(self.now, from, to, &frame);
            }
            Timer::Interfere => self.interfere(),
        }
    }

    fn send_real_time(&mut self, index: usize) {
        let number = self.nodes[index].real_time_next;
        self.nodes[index].real_time_next += 1;
        self.nodes[index].real_time_bytes += FRAME_BYTES;
        self.nodes[index].sent_measured[0] += u64::from(self.is_measuring);
        self.send(index, REAL_TIME, number);
        let period = self.setup.real_time_period.as_nanos() as u64;
        let late = self.below(2 * RELEASE_JITTER_NS);
        // Around the period, so that phases drift as those of clocks do.
        self.after(period + late - RELEASE_JITTER_NS, Timer::RealTime(index));
    }

    fn produce(&mut self, index: usize) {
        match self.setup.load {
            Load::Poisson(per_second) => {
                let node = &mut self.nodes[index];
                node.backlog = (node.backlog + 1).min(BACKLOG_FRAMES_MAX);
                let next = self.exponential_ns(1e9 / per_second);
                self.after(next, Timer::Produce(index));
            }
            _ if self.nodes[index].is_on => self.nodes[index].backlog = BACKLOG_FRAMES_MAX,
            _ => {}
        }
        self.shape(index);
    }

    fn switch(&mut self, index: usize) {
        let Load::OnOff(mean_ms) = self.setup.load else {
            return;
        };
        let node = &mut self.nodes[index];
        node.is_on = !node.is_on;
        if !node.is_on {
            node.backlog = node.backlog.min(WRITTEN_FRAMES);
        }
        let next = self.exponential_ns(mean_ms * 1e6);
        self.after(next, Timer::Switch(index));
        self.produce(index);
    }

    /// Sends a waiting frame of other traffic if the rule allows it, and says when to come again.
    fn shape(&mut self, index: usize) {
        self.nodes[index].shaper_turn += 1;
        let turn = self.nodes[index].shaper_turn;
        if self.nodes[index].backlog == 0 {
            return;
        }
        let (rate_bps, burst_bytes) = match (self.setup.rule, self.nodes[index].release) {
            (
                Rule::Grants,
                Release::AtMost {
                    rate_bps,
                    burst_bytes,
                },
            ) => (rate_bps, burst_bytes),
            _ => (LINK_BPS, FRAME_BYTES),
        };
        let node = &mut self.nodes[index];
        let elapsed = self.now.saturating_duration_since(node.tokens_at);
        let gained = elapsed.as_secs_f64() * rate_bps as f64 / 8.0;
        node.tokens = (node.tokens + gained).min(burst_bytes as f64);
        node.tokens_at = self.now;
        // As in Linux's HTB: a frame leaves while there are tokens, and what it takes beyond them is owed.
        if node.tokens >= 0.0 {
            node.tokens -= FRAME_BYTES as f64;
            self.send_other(index);
        }
        let missing = (-self.nodes[index].tokens).max(0.0);
        let wait_ns = (missing * 8e9 / rate_bps as f64) as u64;
        let late = match self.setup.rule {
            Rule::Nothing => 0,
            _ => self.below(TIMER_LATE_NS),
        };
        self.after(wait_ns + 1 + late, Timer::Shaper(index, turn));
    }

    fn send_other(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.backlog -= 1;
        if node.is_on && node.backlog < BACKLOG_FRAMES_MAX / 2 {
            node.backlog = BACKLOG_FRAMES_MAX;
        }
        let number = node.other_next;
        node.other_next += 1;
        node.other_bytes += FRAME_BYTES;
        node.sent_measured[1] += u64::from(self.is_measuring);
        self.send(index, OTHER, number);
    }

    fn send(&mut self, index: usize, kind: u8, number: u32) {
        let mut frame = [0; FRAME];
        frame[6..12].copy_from_slice(&self.nodes[index].mac.0);
        let ethertype = if kind == OTHER { 0x0800u16 } else { 0x88B5 };
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[14] = kind;
        frame[16..20].copy_from_slice(&number.to_be_bytes());
        frame[20..28].copy_from_slice(&self.now.as_nanos().to_be_bytes());
        let from = self.nodes[index].place;
        self.network
            .send(self.now, from, self.receiver_place, &frame);
    }

    fn send_control(&mut self, from: usize, to: usize, source: MacAddress, payload: &[u8]) {
        let lost_ppm = self.setup.control_loss_ppm;
        if self.below(1_000_000) < u64::from(lost_ppm) {
            return;
        }
        let mut frame = [0; CONTROL_FRAME];
        frame[6..12].copy_from_slice(&source.0);
        frame[12..15].copy_from_slice(&[0x88, 0xB5, CONTROL]);
        frame[30..30 + payload.len()].copy_from_slice(payload);
        // A late one is overtaken by the next two.
        if self.setup.control_late && self.below(4) == 0 {
            self.late.push((from, to, frame));
            return self.after(LATE_NS, Timer::Late(self.late.len() - 1));
        }
        self.network.send(self.now, from, to, &frame);
    }

    fn tick(&mut self) {
        let elapsed = self.elapsed();
        let mut interval_ns = self.receiver.interval().as_nanos() as u64;
        if self.setup.receiver_stops.is_none_or(|at| elapsed < at) {
            let counts: Vec<NodeCounts> = self.nodes.iter().map(Node::counts).collect();
            self.receiver.tick(self.now, &self.port, &counts);
            interval_ns = self.receiver.interval().as_nanos() as u64;
            self.outcome.intervals += u64::from(self.is_measuring);
            let slots = self.receiver.slot_count();
            for slot in 0..slots {
                let nanos = interval_ns * slot as u64 / slots as u64;
                self.after(nanos, Timer::Slot(slot));
            }
        }
        self.after(interval_ns, Timer::Tick);
        for index in 0..self.setup.senders {
            self.renew(index);
        }
    }

    fn send_grants(&mut self, slot: usize) {
        for index in self.receiver.nodes_of_slot(slot) {
            let grant = self.receiver.grant(self.now, index);
            if self.old.len() < 1000 {
                self.old.push((index, Message::Grant(grant)));
            }
            let to = self.nodes[index].place;
            self.send_control(self.receiver_place, to, RECEIVER_MAC, &grant.encode());
        }
    }

    /// Puts the rates of a sender in force.
    fn renew(&mut self, index: usize) {
        let stopped = index == 0
            && self
                .setup
                .sender_stops
                .is_some_and(|at| self.elapsed() >= at);
        if !stopped {
            let node = &mut self.nodes[index];
            let mut releases = [node.release];
            node.control.releases(self.now, 0, &mut releases);
            node.release = releases[0];
            self.shape(index);
        }
    }

    fn take_grant(&mut self, index: usize, message: &Message) {
        let stopped = index == 0
            && self
                .setup
                .sender_stops
                .is_some_and(|at| self.elapsed() >= at);
        let Message::Grant(grant) = message else {
            return;
        };
        if stopped
            || self.nodes[index]
                .control
                .take_grant(self.now, 0, grant)
                .is_err()
        {
            return;
        }
        self.renew(index);
        let held = Duration::from_nanos(self.below(TIMER_LATE_NS));
        let node = &self.nodes[index];
        let lies = self.setup.liar && index == 0;
        let report = Report {
            epoch: grant.epoch,
            number: grant.number,
            sender_epoch: 1,
            backlog_bytes: if lies {
                u32::MAX
            } else {
                (node.backlog * FRAME_BYTES) as u32
            },
            held,
            other_bytes: node.other_bytes,
            real_time_bytes: node.real_time_bytes,
        };
        if self.old.len() < 1000 {
            self.old.push((index, Message::Report(report)));
        }
        let (place, mac) = (node.place, node.mac);
        self.send_control(place, self.receiver_place, mac, &report.encode());
    }

    /// Sends forged messages under an unknown name, and old ones under the right name.
    fn interfere(&mut self) {
        self.after(1_000_000, Timer::Interfere);
        let index = self.below(self.setup.senders as u64) as usize;
        let forged = tautline_proto::smoother::message::Grant {
            burst_bytes: u16::MAX,
            epoch: 77,
            number: self.below(1 << 32) as u32,
            rate_bps: u64::MAX,
        };
        let (place, stranger) = (self.nodes[index].place, self.stranger);
        let unknown = MacAddress([2, 0, 0, 0, 9, 9]);
        self.send_control(stranger, place, unknown, &forged.encode());
        if !self.old.is_empty() && self.elapsed() > Duration::from_secs(2) {
            let pick = self.below(self.old.len() as u64) as usize;
            let (index, message) = self.old[pick];
            let Node { place, mac, .. } = self.nodes[index];
            match message {
                Message::Grant(grant) => {
                    self.send_control(stranger, place, RECEIVER_MAC, &grant.encode());
                }
                Message::Report(report) => {
                    self.send_control(stranger, self.receiver_place, mac, &report.encode());
                }
            }
        }
    }

    fn arrivals(&mut self) {
        while let Some((arrival, bytes)) = self.network.receive(self.receiver_place, self.now) {
            let (kind, length) = (bytes[14], bytes.len() as u64);
            let number = u32::from_be_bytes(bytes[16..20].try_into().unwrap());
            let sent = Instant::from_nanos(u64::from_be_bytes(bytes[20..28].try_into().unwrap()));
            let source = MacAddress(bytes[6..12].try_into().unwrap());
            let message = (kind == CONTROL).then(|| Message::parse(&bytes[30..]));
            self.port.all_bytes += length + 24;
            let Some(index) = self.nodes.iter().position(|node| node.mac == source) else {
                self.port.foreign_bytes += length + 24;
                continue;
            };
            match (kind, message) {
                (REAL_TIME, _) => {
                    self.nodes[index].real_time_seen.record(number);
                    self.count_wait(arrival.saturating_duration_since(sent));
                }
                (OTHER, _) => {
                    self.nodes[index].other_seen.record(number);
                    self.nodes[index].other_arrived_bytes += length + 24;
                }
                (_, Some(Ok(Message::Report(report)))) => {
                    self.nodes[index].reports_bytes += length + 24;
                    self.receiver.take_report(self.now, index, &report);
                }
                _ => {}
            }
        }
        for index in 0..self.setup.senders {
            let place = self.nodes[index].place;
            while let Some((_, bytes)) = self.network.receive(place, self.now) {
                let source = MacAddress(bytes[6..12].try_into().unwrap());
                let message = Message::parse(&bytes[30..]);
                if let (Ok(message), true) = (message, source == RECEIVER_MAC) {
                    self.take_grant(index, &message);
                }
            }
        }
    }

    fn count_wait(&mut self, way: Duration) {
        if !self.is_measuring {
            return;
        }
        let own = time_on_wire(FRAME_BYTES, self.setup.port.rate_bps) + PATH;
        let wait = way.saturating_sub(own);
        let outcome = &mut self.outcome;
        outcome.late_300_us += u64::from(wait > Duration::from_micros(300));
        outcome.late_600_us += u64::from(wait > Duration::from_micros(600));
        outcome.wait_max = outcome.wait_max.max(wait);
    }

    fn begin_measuring(&mut self) {
        self.is_measuring = true;
        for node in &mut self.nodes {
            node.real_time_before = (node.real_time_seen.received(), node.real_time_seen.lost());
            node.reports_before = node.reports_bytes;
            node.other_before = (node.other_seen.received(), node.other_seen.lost());
        }
    }

    fn end_measuring(mut self) -> Outcome {
        self.outcome.refused = (0..self.setup.senders)
            .map(|index| self.receiver.view(self.now, index).refused)
            .sum();
        self.outcome.corrections = self.receiver.capacity().corrections();
        let mut outcome = self.outcome;
        let seconds = self.setup.measured.as_secs_f64();
        let mut real_time_bps = 0.0;
        for node in &self.nodes {
            outcome.real_time_sent += node.sent_measured[0];
            outcome.other_sent += node.sent_measured[1];
            outcome.real_time_lost += node.real_time_seen.lost() - node.real_time_before.1;
            outcome.other_lost += node.other_seen.lost() - node.other_before.1;
            let received = node.real_time_seen.received() - node.real_time_before.0;
            let reports_bytes = node.reports_bytes - node.reports_before;
            let bytes = received * FRAME_BYTES + reports_bytes;
            real_time_bps += (bytes * 8) as f64 / seconds;
            let other = node.other_seen.received() - node.other_before.0;
            outcome.other_by_node.push(other * FRAME_BYTES);
        }
        let rates = outcome.other_by_node.iter().map(|bytes| *bytes as f64);
        let total: f64 = rates.clone().sum();
        let squares: f64 = rates.map(|rate| rate * rate).sum();
        outcome.jain = total * total / (squares * self.nodes.len() as f64);
        let left_bps = self.setup.port.rate_bps as f64 - real_time_bps;
        outcome.other_share = total * 8.0 / seconds / left_bps;
        outcome
    }
}

impl Node {
    fn new(index: usize, place: usize, now: Instant) -> Self {
        Self {
            place,
            mac: MacAddress([2, 0, 0, 0, 1, index as u8]),
            real_time_next: 0,
            other_next: 0,
            backlog: 0,
            is_on: false,
            control: Sender::new(SenderConfig {
                path_bps: LINK_BPS,
                receiver_count: 1,
            }),
            release: Release::Unshaped,
            tokens: 0.0,
            tokens_at: now,
            shaper_turn: 0,
            other_bytes: 0,
            real_time_bytes: 0,
            sent_measured: [0; 2],
            real_time_seen: LossTracker::new(),
            other_seen: LossTracker::new(),
            real_time_before: (0, 0),
            other_before: (0, 0),
            other_arrived_bytes: 0,
            reports_bytes: 0,
            reports_before: 0,
        }
    }

    fn counts(&self) -> NodeCounts {
        NodeCounts {
            other_bytes: self.other_arrived_bytes,
            real_time_bytes: self.real_time_seen.expected() * FRAME_BYTES + self.reports_bytes,
            lost_frames: self.real_time_seen.lost(),
        }
    }
}
