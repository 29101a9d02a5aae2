//! IP fragments in a port of plain UDP put together: from the slots where the demux has left them into fixed
//! collectors, one copy, in the receiving thread.

use std::time::Duration;

use tautline_proto::ip::DatagramHead;
use tautline_proto::ip::reassembly::{self, Config, Fragment, Outcome, Reassembler};
use tautline_proto::time::Instant;
use tautline_shm::layout::{RecordHead, Slot};

use crate::address::ipv4_of_word;
use crate::link::PortLink;
use crate::statistics::Statistics;
use crate::sys::memory::lock_slice;

/// Datagrams in fragments that a port can have under way at once, half of them of one peer. Lower: peers that
/// send long ones at the same time lose some, and a flood in eight names loses all. Higher: 64 KiB each, of a port
/// for the longest datagrams.
const COLLECTORS: usize = 8;
/// How long a datagram may take from the arrival of one of its fragments to that of its last, `TL_FRAGMENT_NS` of
/// `bpf/tautline.h`. At 1 Mbit/s 64 KiB take this long. Lower: slow networks lose them. Higher: an
/// identification that is used again, after 65,536 datagrams, meets fragments of the old one.
pub(super) const REASSEMBLY_LIMIT: Duration = Duration::from_millis(500);

/// A port's collectors.
#[derive(Debug)]
pub(super) struct Assembly {
    reassembler: Reassembler,
    /// Whether anything is under way: without, a look costs one load.
    waiting: bool,
}

impl Assembly {
    /// Takes all memory, for datagrams of up to so many bytes.
    pub(super) fn new(datagram_bytes_max: usize) -> Self {
        let reassembler = Reassembler::new(Config {
            collector_count: COLLECTORS,
            datagram_bytes_max,
            time_limit: REASSEMBLY_LIMIT,
        });
        for memory in reassembler.memory() {
            // Best effort, as for all memory of a port; the node's report says if it is not allowed.
            let _pageable = lock_slice(memory);
        }
        Self {
            reassembler,
            waiting: false,
        }
    }

    /// Takes the fragment in a slot, which is free afterwards. Returns whether it completed a datagram.
    pub(super) fn enter(
        &mut self,
        statistics: &Statistics,
        (slot, head): (&Slot, &RecordHead),
        fragment: &DatagramHead,
    ) -> bool {
        let fragment = Fragment {
            source: *ipv4_of_word(head.source).ip(),
            identification: fragment.identification,
            field: fragment.fragment,
            length: fragment.length.into(),
        };
        let arrival = Instant::from_nanos(head.arrival_ns);
        let pushed = self
            .reassembler
            .push(arrival, &fragment, |bytes| slot.read_payload(bytes));
        let is_complete = matches!(pushed, Outcome::Complete(_));
        self.count(statistics);
        is_complete
    }

    /// The datagram that was completed last, until the next fragment.
    pub(super) fn completed(&self) -> Option<reassembly::Datagram<'_>> {
        self.reassembler.completed()
    }

    /// Gives up what has waited for too long, now that nothing more has come.
    pub(super) fn expire(&mut self, link: &dyn PortLink, statistics: &Statistics) {
        if self.waiting {
            self.reassembler.expire(link.now());
            self.count(statistics);
        }
    }

    fn count(&mut self, statistics: &Statistics) {
        self.waiting = self.reassembler.under_way_count() > 0;
        let counted = &statistics.datagrams.reassembly;
        counted.copy(self.reassembler.counters());
    }
}
