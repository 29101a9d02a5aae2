//! Tells when a sender began to count anew, in the order in which a queuing port hands its frames out. The peer table
//! in the port's memory knows that too, but is ahead: the demux has seen frames that the application has not taken yet.

use std::time::Duration;

use tautline_proto::loss::{Arrival, LossTracker};
use tautline_proto::time::Instant;
use tautline_proto::wire::Header;

/// Flows, one for each sender's port and priority, that are followed at once. Lower: with more
/// senders a restart goes unseen, and a message of the new run whose number equals one of the old
/// run's within the reassembly limit is taken for its copy. Higher: each frame looks further.
const FLOWS: usize = 16;

/// Sign that a sender began to count anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// The first one: whatever has been kept of it, of all priorities, is of an earlier run.
    OfSender,
    /// A restart that was seen at another priority before: of the others, messages of the new run may be kept.
    OfPriority,
}

/// The flows followed. Sequence numbers of one priority come in the order of arrival; those of
/// different ones do not, hence one tracker each.
#[derive(Debug)]
pub(crate) struct Restarts {
    /// How long after its arrival a frame may be kept.
    kept_for: Duration,
    flows: [Option<Flow>; FLOWS],
    /// The entry to be given away next.
    oldest: usize,
}

#[derive(Debug)]
struct Flow {
    source: u64,
    port: u16,
    priority: u8,
    tracker: LossTracker,
    /// Arrival of the frame of another priority that showed a restart, which this one has not shown yet.
    seen_elsewhere: Option<Instant>,
}

impl Restarts {
    /// Of a port that keeps parts of a message for so long.
    pub(crate) fn new(kept_for: Duration) -> Self {
        Self {
            kept_for,
            flows: [const { None }; FLOWS],
            oldest: 0,
        }
    }

    /// Takes the next frame of the port; whether it is the first of a new run.
    pub(crate) fn notice(
        &mut self,
        source: u64,
        header: &Header,
        arrival: Instant,
    ) -> Option<Restart> {
        let (port, priority) = (header.source.get(), header.priority.get());
        let known = self
            .flows
            .iter_mut()
            .flatten()
            .find(|flow| (flow.source, flow.port, flow.priority) == (source, port, priority));
        if let Some(flow) = known {
            if flow.tracker.record(header.sequence) != Arrival::Restart {
                return None;
            }
            let seen = flow.seen_elsewhere.take();
            // One that was seen longer ago has left nothing: this is another one. Frames of different priorities are
            // not handed out in the order of their arrival.
            let is_same = |seen: Instant| {
                let apart = arrival.saturating_duration_since(seen);
                apart.max(seen.saturating_duration_since(arrival)) < self.kept_for
            };
            if seen.is_some_and(is_same) {
                return Some(Restart::OfPriority);
            }
            for other in self.flows.iter_mut().flatten() {
                if (other.source, other.port) == (source, port) && other.priority != priority {
                    other.seen_elsewhere = Some(arrival);
                }
            }
            return Some(Restart::OfSender);
        }
        let mut tracker = LossTracker::new();
        tracker.record(header.sequence);
        self.flows[self.oldest] = Some(Flow {
            source,
            port,
            priority,
            tracker,
            seen_elsewhere: None,
        });
        self.oldest = (self.oldest + 1) % FLOWS;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_proto::wire::{PortNumber, Priority};

    const KEPT_FOR: Duration = Duration::from_millis(50);

    fn notice(
        restarts: &mut Restarts,
        source: u64,
        sequence: u32,
        priority: u8,
        arrival_ms: u64,
    ) -> Option<Restart> {
        let priority = Priority::new(priority).unwrap();
        let header = Header::whole(PortNumber::MIN, PortNumber::MAX, priority, 0, sequence);
        let arrival = Instant::from_nanos(arrival_ms * 1_000_000);
        restarts.notice(source, &header, arrival)
    }

    #[test]
    fn each_priority_is_followed_by_itself() {
        let mut restarts = Restarts::new(KEPT_FOR);
        // The urgent ones are handed out first, whatever their numbers.
        for (sequence, priority) in [(90, 7), (91, 7), (0, 3), (1, 3), (95, 7)] {
            assert_eq!(notice(&mut restarts, 1, sequence, priority, 0), None);
        }
        let restart = notice(&mut restarts, 1, 0, 3, 0);
        assert_eq!(restart, Some(Restart::OfSender));
        assert_eq!(notice(&mut restarts, 2, 0, 3, 0), None);
    }

    #[test]
    fn one_restart_that_shows_at_two_priorities_is_one() {
        let mut restarts = Restarts::new(KEPT_FOR);
        for (sequence, priority) in [(2000, 7), (2001, 3)] {
            assert_eq!(notice(&mut restarts, 1, sequence, priority, 0), None);
        }
        // The more urgent one is handed out first, though it came later.
        let first = notice(&mut restarts, 1, 0, 7, 102);
        assert_eq!(first, Some(Restart::OfSender));
        let second = notice(&mut restarts, 1, 0, 3, 101);
        assert_eq!(second, Some(Restart::OfPriority));
        // The next restart, and one whose first sign is long past.
        for arrival_ms in [103, 1000] {
            let again = notice(&mut restarts, 1, 0, 3, arrival_ms);
            assert_eq!(again, Some(Restart::OfSender));
        }
        let late = notice(&mut restarts, 1, 0, 7, 1050);
        assert_eq!(late, Some(Restart::OfSender));
    }

    #[test]
    fn more_senders_than_entries_are_no_restarts() {
        let mut restarts = Restarts::new(KEPT_FOR);
        for round in 0..3 {
            for source in 0..2 * FLOWS as u64 {
                assert_eq!(notice(&mut restarts, source, round, 0, 0), None);
            }
        }
    }
}
