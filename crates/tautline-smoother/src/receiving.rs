//! The receiving half: measures what arrives, and grants what others may send.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tautline_proto::smoother::message::Message;
use tautline_proto::smoother::{
    INTERVAL, NodeCounts, PortCounts, QUIET_INTERVAL, Receiver, ReceiverConfig, SILENCE,
};
use tautline_proto::time::Instant;

use crate::SmootherError;
use crate::interface_counts::InterfaceCounts;
use crate::program::{Leases, Programs};
use crate::shared::{Part, Shared};
use crate::sys::{self, ControlSocket};

/// Time for which traffic is held without a renewal. Shorter, and a process that the machine stops for a moment lets
/// everything go at once; longer, and a dead process holds traffic for as long.
const LEASE: Duration = Duration::from_millis(400);

/// Time between two renewals, and between two looks at slow numbers.
const RENEWAL: Duration = Duration::from_millis(100);

/// Longest time for which the sending half may wait for the kernel before nothing is held any more. With [`LEASE`] less
/// than a second. Shorter, and a user that creates interfaces opens all gates for a moment.
const SENDING_SILENCE_MAX: Duration = Duration::from_millis(500);

/// Time between two grants to a node that does not take part: it may begin to. Shorter asks more nodes that never will;
/// longer, and a node with late reports gets no grant, and holds less.
const PROBE: Duration = SILENCE.checked_div(2).expect("two is not zero");

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Receiving {
    shared: Arc<Shared>,
    socket: ControlSocket,
    programs: Arc<Programs>,
    leases: Leases,
    counts: InterfaceCounts,
    receiver: Receiver,
    configured_bps: u64,
    /// When each node was last sent a grant.
    granted: Vec<Instant>,
    renewed: Instant,
    late_intervals: u64,
    strange_messages: u64,
}

impl Receiving {
    pub(crate) fn new(
        shared: Arc<Shared>,
        socket: ControlSocket,
        (programs, leases): (Arc<Programs>, Leases),
        counts: InterfaceCounts,
        config: ReceiverConfig,
    ) -> Self {
        Self {
            shared,
            socket,
            programs,
            leases,
            counts,
            receiver: Receiver::new(config),
            configured_bps: config.capacity_bps,
            granted: vec![Instant::ZERO; config.node_count],
            renewed: Instant::ZERO,
            late_intervals: 0,
            strange_messages: 0,
        }
    }

    /// Measures and grants until `stops` says so.
    ///
    /// Reports wake no thread: the kernel notes when they come, and they are read before the next grants.
    pub(crate) fn run(&mut self, stops: impl Fn() -> bool) -> Result<(), SmootherError> {
        let slots = self.receiver.slot_count();
        let mut slot = 0;
        let mut due = sys::now();
        while !stops() {
            sys::sleep_until(due);
            let now = sys::now();
            if now.saturating_duration_since(due) > INTERVAL {
                self.late_intervals += 1;
                due = now;
            }
            self.take_reports()?;
            if slot == 0 {
                self.tick(now)?;
            }
            if self.receiver.interval() == QUIET_INTERVAL {
                // Nothing stands in the queue of the switch, so the reports may come at once.
                (slot..slots).for_each(|slot| self.send_grants(slot));
                slot = 0;
                due = due + QUIET_INTERVAL;
            } else {
                self.send_grants(slot);
                slot = (slot + 1) % slots;
                due = due + INTERVAL / slots as u32;
            }
        }
        self.shared.write_cpu_time(Part::Receiving);
        Ok(())
    }

    fn take_reports(&mut self) -> Result<(), SmootherError> {
        let receiver = &mut self.receiver;
        let take = |node, arrival, message| {
            if let Message::Report(report) = message {
                receiver.take_report(arrival, node, &report);
            }
        };
        self.strange_messages += self.shared.peers.receive(&self.socket, take)?;
        Ok(())
    }

    fn send_grants(&mut self, slot: usize) {
        let now = sys::now();
        for node in self.receiver.nodes_of_slot(slot) {
            let age = now.saturating_duration_since(self.granted[node]);
            if self.receiver.view(now, node).takes_part || age >= PROBE {
                self.granted[node] = now;
                let grant = self.receiver.grant(sys::now(), node);
                self.shared.peers.send_grant(&self.socket, node, &grant);
            }
        }
    }

    fn tick(&mut self, now: Instant) -> Result<(), SmootherError> {
        let other = self.programs.counts();
        let interface = self.counts.read().map_err(SmootherError::counts)?;
        let port = PortCounts {
            all_bytes: interface.received,
            foreign_bytes: other.received_from_others(),
        };
        let counts: Vec<NodeCounts> = (0..self.shared.peers.len())
            .map(|node| NodeCounts {
                other_bytes: other.received(node),
                real_time_bytes: self.receiver.reported_real_time_bytes(node),
                lost_frames: 0,
            })
            .collect();
        self.receiver.tick(now, &port, &counts);
        if now.saturating_duration_since(self.renewed) >= RENEWAL {
            self.renewed = now;
            self.renew_leases(now)?;
            // The port of the switch has the speed of the link.
            let link_bps = self.shared.link_bps.load(Ordering::Relaxed);
            self.receiver
                .set_capacity(self.configured_bps.min(link_bps));
            self.write_view(now);
        }
        Ok(())
    }

    fn renew_leases(&mut self, now: Instant) -> Result<(), SmootherError> {
        let is_stuck = self.shared.sending_silence(now) > SENDING_SILENCE_MAX;
        for (node, held) in self.shared.held.iter().enumerate() {
            let until = match held.load(Ordering::Relaxed) {
                true if is_stuck => continue,
                true => (now + LEASE).as_nanos(),
                false => 0,
            };
            self.leases.set(node, until)?;
        }
        Ok(())
    }

    fn write_view(&self, now: Instant) {
        let capacity = self.receiver.capacity();
        self.shared.write_view(|view| {
            view.capacity_bps = capacity.configured_bps();
            view.believed_bps = capacity.bps();
            view.corrections = capacity.corrections();
            view.arrived_bps = self.receiver.arrived_bps();
            view.foreign_bps = self.receiver.foreign_bps();
            view.late_intervals = self.late_intervals;
            view.strange_messages = self.strange_messages;
            for (node, view) in view.nodes.iter_mut().enumerate() {
                *view = self.receiver.view(now, node);
            }
        });
        self.shared.write_cpu_time(Part::Receiving);
    }

    /// Ends all leases.
    pub(crate) fn let_go(&mut self) {
        for node in 0..self.shared.peers.len() {
            let _no_longer = self.leases.set(node, 0);
        }
    }
}
