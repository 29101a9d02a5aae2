//! Peers of a port: the places that senders have in its memory. A place holds what is known of the peer's losses, and
//! in a sampling port that keeps a value for each source it is also the number of its cells.
//!
//! A search begins at a place that the peer's key says and goes on from there. A free place is taken
//! by compare-and-swap, so several CPUs may search and take at once.
//!
//! A peer that comes when all places are taken: where a place holds losses only, the newcomer takes the first
//! place that it may have, and the peer that had it is forgotten, which is counted. A source of a sampling port
//! keeps its place until the port closes, because its value would vanish from under the reader; the newcomer is
//! refused, which is counted.
//!
//! Progress: bounded by the number of places.

use tautline_proto::loss::LossTracker;

use crate::layout::{Control, PEER_COUNT, Peer, peer_key};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};

/// Places that are looked at for a peer whose losses are counted, and nothing else. Lower: peers
/// push each other out while there is room. Higher: a frame from one peer too many costs more.
pub const SEARCH_MAX: usize = 8;

/// The place where the search for a key begins, of `places`: the upper bits of a multiplicative hash.
#[must_use]
pub const fn first_place(key: u64, places: usize) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (((key.wrapping_mul(GOLDEN) >> 32) * places as u64) >> 32) as usize
}

/// The place of a peer, found or taken, among the first `places`, of which at most `search_max` are looked at.
fn find(control: &Control, key: u64, places: usize, search_max: usize) -> Option<usize> {
    let mut place = first_place(key, places);
    for _ in 0..search_max.min(places) {
        let word = &control.keys.key[place];
        let mut found = word.load(Relaxed);
        if found == 0 {
            // AcqRel: nothing is handed over with a place, all its words were zero or are guarded
            // by themselves; the swap only decides between two writers that take it at once.
            found = match word.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => key,
                Err(other) => other,
            };
        }
        if found == key {
            return Some(place);
        }
        place = if place + 1 == places { 0 } else { place + 1 };
    }
    None
}

/// The number of a source of a sampling port that keeps `sources` of them; `None` if it is one too
/// many, which has been counted.
pub fn source(control: &Control, source: u64, port: u16, sources: usize) -> Option<usize> {
    let places = sources.min(PEER_COUNT);
    let found = find(control, peer_key(source, port), places, places);
    if found.is_none() {
        control.producer.sources_refused.fetch_add(1, Relaxed);
    }
    found
}

/// The number of a source that has one. For readers.
#[must_use]
pub fn source_known(control: &Control, source: u64, port: u16, sources: usize) -> Option<usize> {
    let key = peer_key(source, port);
    let keys = control.keys.key.iter().take(sources);
    keys.into_iter().position(|word| word.load(Relaxed) == key)
}

/// The place of a peer whose losses are counted.
pub fn tracked(control: &Control, peers: &[Peer], source: u64, port: u16) -> usize {
    let key = peer_key(source, port);
    find(control, key, PEER_COUNT, SEARCH_MAX).unwrap_or_else(|| {
        let place = first_place(key, PEER_COUNT);
        control.producer.peers_evicted.fetch_add(1, Relaxed);
        control.keys.key[place].store(key, Relaxed);
        store_loss(&peers[place], &LossTracker::new());
        place
    })
}

/// Counts a frame of the peer at this place.
pub fn record(peer: &Peer, sequence: u32) {
    let mut tracker = load_loss(peer);
    tracker.record(sequence);
    store_loss(peer, &tracker);
}

/// Losses of one peer, as far as known.
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
