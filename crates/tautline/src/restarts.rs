//! Tells when a sender began to count anew, in the order in which a queuing port hands its frames
//! out. The peer table in the port's memory knows that too, but is ahead: the demux has seen frames
//! that the application has not taken yet.

use tautline_proto::loss::{Arrival, LossTracker};
use tautline_proto::wire::Header;

/// Flows, one for each sender's port and priority, that are followed at once. Lower: with more
/// senders a restart goes unseen, and a message of the new run whose number equals one of the old
/// run's within the reassembly limit is taken for its copy. Higher: each frame looks further.
const FLOWS: usize = 16;

/// The flows followed. Sequence numbers of one priority come in the order of arrival; those of
/// different ones do not, hence one tracker each.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
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
}

impl Restarts {
    /// Takes the next frame of the port; whether it is the first of a new run.
    pub(crate) fn begins_anew(&mut self, source: u64, header: &Header) -> bool {
        let (port, priority) = (header.source.get(), header.priority.get());
        let known = self
            .flows
            .iter_mut()
            .flatten()
            .find(|flow| (flow.source, flow.port, flow.priority) == (source, port, priority));
        if let Some(flow) = known {
            return flow.tracker.record(header.sequence) == Arrival::Restart;
        }
        let mut tracker = LossTracker::new();
        tracker.record(header.sequence);
        self.flows[self.oldest] = Some(Flow {
            source,
            port,
            priority,
            tracker,
        });
        self.oldest = (self.oldest + 1) % FLOWS;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_proto::wire::{PortNumber, Priority};

    fn frame(sequence: u32, priority: Priority) -> Header {
        Header::whole(PortNumber::MIN, PortNumber::MAX, priority, 0, sequence)
    }

    #[test]
    fn each_priority_is_followed_by_itself() {
        let mut restarts = Restarts::default();
        // The urgent ones are handed out first, whatever their numbers.
        for (sequence, priority) in [(90, 7), (91, 7), (0, 3), (1, 3), (95, 7)] {
            let priority = Priority::new(priority).unwrap();
            assert!(!restarts.begins_anew(1, &frame(sequence, priority)));
        }
        assert!(restarts.begins_anew(1, &frame(0, Priority::NORMAL)));
        assert!(!restarts.begins_anew(2, &frame(0, Priority::NORMAL)));
    }

    #[test]
    fn more_senders_than_entries_are_no_restarts() {
        let mut restarts = Restarts::default();
        for round in 0..3 {
            for source in 0..2 * FLOWS as u64 {
                assert!(!restarts.begins_anew(source, &frame(round, Priority::LOWEST)));
            }
        }
    }
}
