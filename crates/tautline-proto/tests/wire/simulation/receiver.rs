//! A node that receives, and the oracle that judges it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use tautline_proto::fragment::{Outcome, Reassembler, ReassemblerConfig, SourceId};
use tautline_proto::loss::{Arrival, LossTracker};
use tautline_proto::sim::Delivery;
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, Header, MESSAGE_BYTES_MAX, PortNumber, Rejected, ethernet, udp,
};

use super::sender::{FLOW_COUNT_MAX, MessageKey, Sender};
use super::{SENDER_COUNT, Tally, below};

/// Enough for every frame that can be on the way to belong to another message, from one source.
const COLLECTORS_FOR_EVERYTHING: usize = 128;
/// Just enough for each flow of each sender to have one message under way.
const COLLECTORS_FEW: usize = SENDER_COUNT * FLOW_COUNT_MAX as usize;

pub(crate) struct Receiver {
    config: ReassemblerConfig,
    reassembler: Reassembler,
    flows: HashMap<FlowKey, FlowState>,
    epoch: u32,
    /// How often each frame of each message arrived undamaged.
    deliveries: HashMap<(MessageKey, u8), u64>,
    /// How often each message was completed undamaged.
    completions: HashMap<MessageKey, u64>,
    /// Messages that a damaged frame claimed to belong to.
    tainted: HashSet<MessageKey>,
    damaged_any: bool,
    rejected: u64,
    pushed: u64,
    incomplete: u64,
    completed: u64,
    completed_of_fragments: u64,
    exact_flows: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    sender: usize,
    source_port: PortNumber,
    destination_port: PortNumber,
}

#[derive(Default)]
struct FlowState {
    tracker: LossTracker,
    /// Numbers that arrived, unwrapped relative to the first, so that they can be ordered.
    arrived: BTreeSet<i64>,
    first: Option<u32>,
    damaged: bool,
    /// A second frame 0 cannot be told from a restart; see the documentation of `loss`.
    zero_twice: bool,
    /// Restarts that the oracle knows of, and the tracker's count before.
    restarts_before: Option<u32>,
}

impl Receiver {
    pub(crate) fn new(random: &mut Xoshiro256PlusPlus) -> Self {
        let config = ReassemblerConfig {
            collector_count: [COLLECTORS_FEW, COLLECTORS_FOR_EVERYTHING][below(random, 2) as usize],
            message_bytes_max: MESSAGE_BYTES_MAX,
            time_limit: Duration::from_millis(20),
        };
        Self {
            config,
            reassembler: Reassembler::new(config),
            flows: HashMap::new(),
            epoch: 0,
            deliveries: HashMap::new(),
            completions: HashMap::new(),
            tainted: HashSet::new(),
            damaged_any: false,
            rejected: 0,
            pushed: 0,
            incomplete: 0,
            completed: 0,
            completed_of_fragments: 0,
            exact_flows: 0,
        }
    }

    pub(crate) fn has_room_for_everything(&self) -> bool {
        self.config.collector_count == COLLECTORS_FOR_EVERYTHING
    }

    pub(crate) fn time_limit(&self) -> Duration {
        self.config.time_limit
    }

    pub(crate) fn under_way_count(&self) -> usize {
        self.reassembler.under_way_count()
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.reassembler.expire(now);
        assert_eq!(self.reassembler.under_way_count(), 0);
    }

    /// Whether a message was completed, or need not have been: a damaged frame may have spoilt it,
    /// and a flow of which a second frame 0 arrived was taken to have restarted.
    pub(crate) fn has_completed(&self, key: &MessageKey) -> bool {
        let flow = FlowKey {
            sender: key.sender,
            source_port: key.source_port,
            destination_port: key.destination_port,
        };
        self.completions.contains_key(key)
            || self.tainted.contains(key)
            || key.epoch == 0 && self.flows.get(&flow).is_some_and(|flow| flow.zero_twice)
    }

    pub(crate) fn begin_after_restart(&mut self) {
        self.epoch += 1;
        for flow in self.flows.values_mut() {
            flow.restarts_before = Some(flow.tracker.restarts());
        }
    }

    /// Takes a frame as a node would, and compares with what was sent.
    pub(crate) fn take(&mut self, delivery: &Delivery<'_>, senders: &[Sender]) {
        let parsed = parse(delivery.bytes, senders);
        self.damaged_any |= delivery.corrupted;
        let (sender, header, payload) = match parsed {
            Ok(parsed) => parsed,
            Err(rejected) => {
                assert!(delivery.corrupted, "good frame refused: {rejected}");
                self.rejected += 1;
                return;
            }
        };
        let key = self.message_key(sender, &header);
        let restarted = self.record(sender, &header, delivery.corrupted);
        let source = SourceId(sender as u64);
        if restarted {
            self.reassembler
                .forget_flow(source, header.source, header.destination);
        }
        if delivery.corrupted {
            self.tainted.insert(key);
        } else {
            *self
                .deliveries
                .entry((key, header.fragment_index))
                .or_default() += 1;
        }
        self.pushed += 1;
        let outcome = self
            .reassembler
            .push(delivery.arrival, source, &header, payload);
        match outcome {
            Outcome::Complete(bytes) => {
                self.completed += 1;
                if !self.tainted.contains(&key) {
                    let message = &senders[sender].sent[&key];
                    assert!(message.bytes == bytes, "{key:?} is not what was sent");
                    assert_eq!(message.priority, header.priority);
                    self.check_completion(key, &header);
                }
            }
            Outcome::Incomplete => self.incomplete += 1,
            Outcome::Duplicate | Outcome::Dropped(_) => {}
        }
        assert!(self.under_way_count() <= self.config.collector_count);
    }

    /// Loss of each flow against the set of numbers that arrived. Before the senders restart.
    pub(crate) fn check_loss(&mut self) {
        if self.damaged_any {
            return;
        }
        for (key, flow) in &self.flows {
            let (Some(first), Some(last)) = (flow.arrived.first(), flow.arrived.last()) else {
                continue;
            };
            if flow.zero_twice {
                continue;
            }
            let arrived = flow.arrived.len() as u64;
            let expected = (last - first + 1) as u64;
            let tracker = &flow.tracker;
            assert_eq!(tracker.expected(), expected, "{key:?}");
            assert_eq!(tracker.received(), arrived, "{key:?}");
            assert_eq!(tracker.lost(), expected - arrived, "{key:?}");
            assert_eq!(tracker.restarts(), 0, "{key:?}");
            self.exact_flows += 1;
        }
    }

    /// Each flow has been seen to restart once. After `begin_after_restart` and more messages.
    pub(crate) fn check_restarts(&self) {
        for (key, flow) in &self.flows {
            let before = flow.restarts_before.unwrap_or(0);
            // A restart within 64 frames of the first frame seen, with frame 0 not among them, is
            // taken for frames that come late.
            let far = flow.arrived.len() > 64;
            if far && !flow.damaged {
                assert_eq!(flow.tracker.restarts(), before + 1, "{key:?}");
            }
        }
    }

    pub(crate) fn check_counters(&self, delivered: u64) {
        assert_eq!(self.pushed + self.rejected, delivered);
        let counters = self.reassembler.counters();
        assert_eq!(counters.completed, self.completed);
        assert_eq!(
            self.pushed,
            self.completed + self.incomplete + counters.duplicates + refused(&self.reassembler)
        );
    }

    pub(crate) fn tally(&self) -> Tally {
        let trackers = || self.flows.values().map(|flow| &flow.tracker);
        let restarts = trackers().map(|tracker| u64::from(tracker.restarts()));
        Tally::from([
            ("completed", self.completed),
            ("completed of fragments", self.completed_of_fragments),
            ("lost", trackers().map(LossTracker::lost).sum()),
            ("flows with exact loss", self.exact_flows),
            ("duplicates", self.reassembler.counters().duplicates),
            ("restarts", restarts.sum()),
            ("expired", self.reassembler.counters().expired),
            ("refused", refused(&self.reassembler)),
        ])
    }

    fn message_key(&self, sender: usize, header: &Header) -> MessageKey {
        MessageKey {
            sender,
            source_port: header.source,
            destination_port: header.destination,
            message_sequence: header.message_sequence(),
            epoch: self.epoch,
        }
    }

    /// Keeps tracker and oracle; says whether the tracker saw a restart.
    fn record(&mut self, sender: usize, header: &Header, damaged: bool) -> bool {
        let key = FlowKey {
            sender,
            source_port: header.source,
            destination_port: header.destination,
        };
        let flow = self.flows.entry(key).or_default();
        flow.damaged |= damaged;
        let first = *flow.first.get_or_insert(header.sequence);
        let place = i64::from(header.sequence.wrapping_sub(first) as i32);
        if flow.restarts_before.is_none() {
            let new = flow.arrived.insert(place);
            flow.zero_twice |= header.sequence == 0 && !new;
        }
        flow.tracker.record(header.sequence) == Arrival::Restart
    }

    /// A message completes at most as often as each of its frames arrived.
    fn check_completion(&mut self, key: MessageKey, header: &Header) {
        let completions = self.completions.entry(key).or_default();
        *completions += 1;
        self.completed_of_fragments += u64::from(!header.is_whole());
        for index in 0..header.fragment_count {
            let delivered = self.deliveries.get(&(key, index)).copied().unwrap_or(0);
            assert!(
                *completions <= delivered,
                "{key:?} completed {completions} times, fragment {index} came {delivered} times"
            );
        }
    }
}

fn refused(reassembler: &Reassembler) -> u64 {
    let counters = reassembler.counters();
    counters.no_collector + counters.quota_reached + counters.inconsistent + counters.too_large
}

/// Whichever form it is; the sender by its address.
fn parse<'a>(frame: &'a [u8], senders: &[Sender]) -> Result<(usize, Header, &'a [u8]), Rejected> {
    match ethernet::parse(frame, ETHERTYPE_DEFAULT) {
        Ok(parsed) => {
            let sender = senders.iter().find(|sender| sender.mac == parsed.source);
            let sender = sender.ok_or(Rejected::NotOurs)?;
            Ok((sender.number, parsed.header, parsed.payload))
        }
        Err(Rejected::NotOurs) => {
            let parsed = udp::parse(frame)?;
            let sender = senders.iter().find(|sender| sender.ip == parsed.source_ip);
            let sender = sender.ok_or(Rejected::NotOurs)?;
            Ok((sender.number, parsed.header, parsed.payload))
        }
        Err(rejected) => Err(rejected),
    }
}
