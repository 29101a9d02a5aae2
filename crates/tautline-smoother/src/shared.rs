//! State that the two halves of a smoother share.
//!
//! The receiving half measures and grants, and must never be late: it makes no request that waits for a lock of the
//! kernel. The sending half changes classes and reads them, for which the kernel has one lock (rtnl) that anybody takes
//! who makes an interface, and some drivers keep for seconds. Neither waits for the other: what they share is read and
//! written whole, and nobody asks the kernel for anything while the lock of [`Shared::view`] is taken.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tautline_proto::smoother::NodeView;
use tautline_proto::time::Instant;

use crate::peers::Peers;
use crate::sys;

/// State of both halves.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) peers: Peers,
    /// Whether traffic to each node is to be held. The receiving half renews the leases.
    pub(crate) held: Vec<AtomicBool>,
    /// Speed of the link in bits a second; the highest number if it is not known.
    pub(crate) link_bps: AtomicU64,
    /// When the sending half last came round, in nanoseconds.
    sending_at_ns: AtomicU64,
    view: Mutex<View>,
    notes: Mutex<Vec<String>>,
    cpu_ns: [AtomicU64; 2],
}

/// The halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Receiving,
    Sending,
}

/// State of the receiving half, for the status.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) capacity_bps: u64,
    pub(crate) believed_bps: u64,
    pub(crate) corrections: u64,
    pub(crate) arrived_bps: u64,
    pub(crate) foreign_bps: u64,
    pub(crate) late_intervals: u64,
    pub(crate) strange_messages: u64,
    pub(crate) nodes: Vec<NodeView>,
}

impl Shared {
    pub(crate) fn new(peers: Peers) -> Self {
        let count = peers.len();
        Self {
            peers,
            held: (0..count).map(|_| AtomicBool::new(false)).collect(),
            link_bps: AtomicU64::new(u64::MAX),
            sending_at_ns: AtomicU64::new(0),
            view: Mutex::new(View {
                nodes: vec![NodeView::default(); count],
                ..View::default()
            }),
            notes: Mutex::default(),
            cpu_ns: [const { AtomicU64::new(0) }; 2],
        }
    }

    pub(crate) fn view(&self) -> View {
        self.view
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lets the receiving half write its state.
    pub(crate) fn write_view(&self, write: impl FnOnce(&mut View)) {
        write(&mut self.view.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes a part that could not be had.
    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// The sending half lives.
    pub(crate) fn sending_lives(&self, now: Instant) {
        self.sending_at_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Time since the sending half last came round.
    pub(crate) fn sending_silence(&self, now: Instant) -> Duration {
        let at = Instant::from_nanos(self.sending_at_ns.load(Ordering::Relaxed));
        now.saturating_duration_since(at)
    }

    /// Notes the CPU time of the calling thread as that of a half.
    pub(crate) fn write_cpu_time(&self, half: Half) {
        self.cpu_ns[half as usize].store(sys::thread_cpu_ns(), Ordering::Relaxed);
    }

    /// CPU time of both halves.
    pub(crate) fn cpu_time(&self) -> Duration {
        let nanos = self.cpu_ns.iter().map(|half| half.load(Ordering::Relaxed));
        Duration::from_nanos(nanos.sum())
    }
}
