//! Nodes and the ports of switches in front of them, on virtual time. Each port has a rate and a queue of so many
//! frames.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tautline_proto::smoother::{FRAME_BYTES, WIRE_OVERHEAD_BYTES, time_on_wire};
use tautline_proto::time::Instant;
use tautline_proto::wire::ETHERTYPE_DEFAULT;

/// Shortest frame on a wire, without the check sequence: shorter ones are padded.
const FRAME_BYTES_ON_WIRE_MIN: usize = 60;

/// Rate and queue of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortRate {
    pub(crate) rate_bps: u64,
    /// Frames that can wait, beside the one that is being sent. What comes then is dropped.
    pub(crate) queue_frames: usize,
    /// Whether frames of the default EtherType overtake the others, as in a switch that honours priorities. They then
    /// have a queue of their own, of the same length.
    pub(crate) priorities: bool,
}

#[derive(Clone, Copy)]
struct Port {
    rate: PortRate,
    /// When the last frame that was taken has left, for all frames and for urgent ones.
    free_at: Instant,
    urgent_free_at: Instant,
    /// Frames that were taken and have not left, others and urgent ones.
    held: [usize; 2],
}

impl Port {
    /// Time at which a frame that comes now has left, and its class; `None` if the queue is full.
    ///
    /// An urgent frame waits for the urgent frames before it and for the rest of one other frame. The others then leave
    /// later by as much as the urgent frame takes. Those among them whose departure is fixed already leave too early by
    /// that: the rate is kept on average, not in each frame.
    fn take(&mut self, now: Instant, frame: &[u8]) -> Option<(Instant, usize)> {
        let is_urgent = frame[12..14] == ETHERTYPE_DEFAULT.to_be_bytes();
        let class = usize::from(is_urgent && self.rate.priorities);
        if self.held[class] > self.rate.queue_frames {
            return None;
        }
        self.held[class] += 1;
        let wire_bytes = frame.len().max(FRAME_BYTES_ON_WIRE_MIN) as u64 + WIRE_OVERHEAD_BYTES;
        let takes = time_on_wire(wire_bytes, self.rate.rate_bps);
        let others = self.free_at.saturating_duration_since(now);
        self.free_at = self.free_at.max(now) + takes;
        if class == 0 {
            return Some((self.free_at, class));
        }
        let longest = time_on_wire(FRAME_BYTES, self.rate.rate_bps);
        self.urgent_free_at = self.urgent_free_at.max(now + others.min(longest)) + takes;
        Some((self.urgent_free_at, class))
    }
}

struct Node {
    /// The port in front of the node, and that of its switch towards the others, if there are such.
    port: Option<usize>,
    uplink: Option<usize>,
    queue: VecDeque<(Instant, Vec<u8>)>,
}

/// A frame on its way; first in the order of time, then of sending.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Instant,
    number: u64,
    to: usize,
    /// Port that it leaves now, and its class there.
    leaves: Option<(usize, usize)>,
    /// Ports that are still before it, the next one last.
    before: Vec<usize>,
    frame: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct Network {
    /// Time from a node to its switch.
    path: Duration,
    nodes: Vec<Node>,
    ports: Vec<Port>,
    events: BinaryHeap<Reverse<Event>>,
    number: u64,
}

impl Network {
    pub(crate) fn new(path: Duration) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }

    pub(crate) fn port(&mut self, rate: PortRate) -> usize {
        self.ports.push(Port {
            rate,
            free_at: Instant::ZERO,
            urgent_free_at: Instant::ZERO,
            held: [0; 2],
        });
        self.ports.len() - 1
    }

    /// Attaches a node behind a port; its own frames go through an uplink first.
    pub(crate) fn attach(&mut self, port: Option<usize>, uplink: Option<usize>) -> usize {
        self.nodes.push(Node {
            port,
            uplink,
            queue: VecDeque::new(),
        });
        self.nodes.len() - 1
    }

    pub(crate) fn send(&mut self, now: Instant, from: usize, to: usize, frame: &[u8]) {
        self.number += 1;
        let ports = [self.nodes[to].port, self.nodes[from].uplink];
        self.events.push(Reverse(Event {
            at: now + self.path,
            number: self.number,
            to,
            leaves: None,
            before: ports.into_iter().flatten().collect(),
            frame: frame.to_vec(),
        }));
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse(event)| event.at)
    }

    /// The next frame that has arrived at a node by `now`.
    pub(crate) fn receive(&mut self, node: usize, now: Instant) -> Option<(Instant, Vec<u8>)> {
        while self.next_event().is_some_and(|next| next <= now) {
            let Reverse(mut event) = self.events.pop()?;
            if let Some((port, class)) = event.leaves.take() {
                self.ports[port].held[class] -= 1;
            }
            let Some(port) = event.before.pop() else {
                let queue = &mut self.nodes[event.to].queue;
                queue.push_back((event.at, event.frame));
                continue;
            };
            if let Some((at, class)) = self.ports[port].take(event.at, &event.frame) {
                event.at = at;
                event.leaves = Some((port, class));
                self.events.push(Reverse(event));
            }
        }
        self.nodes[node].queue.pop_front()
    }
}
