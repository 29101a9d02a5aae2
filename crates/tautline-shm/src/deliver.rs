//! Puts one frame into a port, of whichever kind it is. This is what the BPF demux does in the
//! kernel (`bpf/demux.bpf.c`), for links whose frames reach the process instead; the two are kept
//! in step by a test that feeds both the same frames.

use crate::layout::{CELL_COUNT, Control, KIND_QUEUING, Peer, RecordHead, Slot};
use crate::sync::Ordering::Relaxed;
use crate::{peer, police, queue, sample};

/// The memory of one port, wherever it lies.
#[derive(Clone, Copy)]
pub struct PortRef<'m> {
    /// Element 0.
    pub control: &'m Control,
    /// Elements 1 and 2.
    pub peers: &'m [Peer],
    /// All other elements.
    pub slots: &'m [Slot],
}

/// Fields that the demux has read from the wire header already.
#[derive(Clone, Copy, Debug)]
pub struct Arriving {
    /// Priority, 0 to 7.
    pub class: usize,
    /// Whether the frame is one message: neither a part of a larger one nor a bundle of several. A
    /// sampling port takes nothing else.
    pub single: bool,
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
    // First of all, so that a frame too many touches nothing else.
    if police::policed(control, head.arrival_ns) {
        return;
    }
    // As many as there are cells for, whatever the word says.
    let sources = control.identity.sources.load(Relaxed) as usize;
    let sources = sources.min(slots.len() / CELL_COUNT);
    let own_cells = if sources > 1 {
        let place = peer::source(control, head.source, arriving.source_port, sources);
        if place.is_none() {
            return;
        }
        place
    } else {
        None
    };
    // The discipline that drops a message counts it.
    if control.identity.kind.load(Relaxed) == KIND_QUEUING {
        let _counted = queue::push(control, slots, arriving.class, head, payload);
    } else if arriving.single {
        let cells = own_cells.unwrap_or(0);
        let _counted = sample::write(control, &peers[cells], slots, cells, head, payload);
    } else {
        control.producer.unfit.fetch_add(1, Relaxed);
    }
    let place = own_cells
        .unwrap_or_else(|| peer::tracked(control, peers, head.source, arriving.source_port));
    peer::record(&peers[place], arriving.sequence);
}

/// Frames that were for this port, delivered or dropped.
#[must_use]
pub fn frames(port: PortRef<'_>) -> u64 {
    let PortRef { control, peers, .. } = port;
    let of_class =
        |line: &crate::layout::ClassLine| line.head.load(Relaxed) + line.dropped_full.load(Relaxed);
    let queued: u64 = control.class.iter().map(of_class).sum();
    let sampled: u64 = peers.iter().map(|peer| peer.written.load(Relaxed)).sum();
    let producer = &control.producer;
    let given_up = [
        &producer.contended,
        &producer.unfit,
        &producer.sources_refused,
        &control.police.policed,
    ];
    let given_up: u64 = given_up.iter().map(|counter| counter.load(Relaxed)).sum();
    queued + sampled + given_up
}
