//! Puts one frame into a port, of whichever kind it is. This is what the BPF demux does in the
//! kernel (`bpf/demux.bpf.c`), for links whose frames reach the process instead; the two are kept
//! in step by a test that feeds both the same frames.

use crate::layout::{Control, KIND_QUEUING, PEER_COUNT, Peer, PeerTable, RecordHead, Slot};
use crate::sync::Ordering::Relaxed;
use crate::{queue, sample};
use tautline_proto::loss::LossTracker;

/// The memory of one port, wherever it lies.
#[derive(Clone, Copy)]
pub struct PortRef<'m> {
    /// Element 0.
    pub control: &'m Control,
    /// Element 1.
    pub peers: &'m PeerTable,
    /// All other elements.
    pub slots: &'m [Slot],
}

/// What the demux has read from the wire header already.
#[derive(Clone, Copy, Debug)]
pub struct Arriving {
    /// Priority, 0 to 7.
    pub class: usize,
    /// Whether the frame is a part of a larger message.
    pub fragment: bool,
    /// Sequence number of the frame.
    pub sequence: u32,
    /// Port of the sender.
    pub source_port: u16,
}

/// Delivers one frame. What cannot be delivered is counted in the port. Wait-free.
pub fn deliver(port: PortRef<'_>, arriving: Arriving, head: &RecordHead, payload: &[u8]) {
    let PortRef {
        control,
        peers,
        slots,
    } = port;
    // What is dropped here has been counted by the discipline that dropped it.
    if control.identity.kind.load(Relaxed) == KIND_QUEUING {
        let _counted = queue::push(control, slots, arriving.class, head, payload);
    } else if !arriving.fragment {
        let _counted = sample::write(control, slots, head, payload);
    } else {
        control.producer.unfit.fetch_add(1, Relaxed);
    }
    record_peer(
        control,
        peers,
        head.source,
        arriving.source_port,
        arriving.sequence,
    );
}

/// Frames that were for this port, delivered or dropped.
#[must_use]
pub fn frames(control: &Control) -> u64 {
    let of_class =
        |line: &crate::layout::ClassLine| line.head.load(Relaxed) + line.dropped_full.load(Relaxed);
    let queued: u64 = control.class.iter().map(of_class).sum();
    let sampled = control.sample_writer.written.load(Relaxed);
    let given_up = control.producer.contended.load(Relaxed) + control.producer.unfit.load(Relaxed);
    queued + sampled + given_up
}

/// First of the two entries where a peer's port is found: the upper bits of a multiplicative hash.
#[must_use]
pub fn peer_index(source: u64, port: u16) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    const SHIFT: u32 = u64::BITS - PEER_COUNT.trailing_zeros();
    ((source ^ (u64::from(port) << 48)).wrapping_mul(GOLDEN) >> SHIFT) as usize
}

fn record_peer(control: &Control, table: &PeerTable, source: u64, port: u16, sequence: u32) {
    let index = peer_index(source, port);
    let (first, second) = (&table.peer[index], &table.peer[index ^ 1]);
    let is = |peer: &Peer| {
        peer.source.load(Relaxed) == source && peer.port.load(Relaxed) == u32::from(port)
    };
    let free = |peer: &Peer| peer.source.load(Relaxed) == 0;
    let entry = if is(first) {
        first
    } else if is(second) {
        second
    } else {
        let entry = if !free(first) && free(second) {
            second
        } else {
            first
        };
        if !free(entry) {
            control.producer.peers_evicted.fetch_add(1, Relaxed);
        }
        entry.source.store(source, Relaxed);
        entry.port.store(u32::from(port), Relaxed);
        store_loss(entry, &LossTracker::new());
        entry
    };
    let mut tracker = load_loss(entry);
    tracker.record(sequence);
    store_loss(entry, &tracker);
}

/// What is known of the losses of one peer.
#[must_use]
pub fn load_loss(peer: &Peer) -> LossTracker {
    LossTracker {
        highest: peer.highest.load(Relaxed),
        span: peer.span.load(Relaxed),
        window: peer.window.load(Relaxed),
        expected: peer.expected.load(Relaxed),
        received: peer.received.load(Relaxed),
        duplicates: peer.duplicates.load(Relaxed),
        restarts: peer.restarts.load(Relaxed),
    }
}

fn store_loss(peer: &Peer, tracker: &LossTracker) {
    peer.highest.store(tracker.highest, Relaxed);
    peer.span.store(tracker.span, Relaxed);
    peer.window.store(tracker.window, Relaxed);
    peer.expected.store(tracker.expected, Relaxed);
    peer.received.store(tracker.received, Relaxed);
    peer.duplicates.store(tracker.duplicates, Relaxed);
    peer.restarts.store(tracker.restarts, Relaxed);
}
