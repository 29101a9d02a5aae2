//! State that the two halves of a smoother share with each other and with its threads without a priority.
//!
//! The receiving half measures and grants, and must never be late: it makes no request that waits for a lock of the
//! kernel. The sending half changes classes and reads them, for which the kernel has one lock (rtnl) that creating an
//! interface takes, and some drivers keep for seconds. Neither waits for the other: what they share is read and
//! written whole, and neither makes a request to the kernel while the lock of [`Shared::view`] is taken. A third thread
//! writes the status, for which a file system may make it wait for a disk. A fourth one asks for the speed of the link,
//! for which it may wait for the kernel's lock. These two have no priority.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tautline_proto::smoother::NodeView;
use tautline_proto::time::Instant;
use tautline_state::lock;

use crate::peers::Peers;
use crate::status::Status;
use crate::sys;

/// Time between two statuses.
pub(crate) const STATUS: Duration = Duration::from_secs(1);

/// State of all threads.
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
    /// The newest status, until it is written.
    told: Mutex<Option<Status>>,
    cpu_ns: [AtomicU64; 4],
}

/// The threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Receiving,
    Sending,
    Status,
    Speed,
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
            told: Mutex::default(),
            cpu_ns: [const { AtomicU64::new(0) }; 4],
        }
    }

    pub(crate) fn view(&self) -> View {
        lock(&self.view).clone()
    }

    /// Lets the receiving half write its state.
    pub(crate) fn write_view(&self, write: impl FnOnce(&mut View)) {
        write(&mut lock(&self.view));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }

    /// Notes a part that could not be had.
    pub(crate) fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Tells a status to the thread that writes it. While that one takes the last, nothing: the next comes in a second,
    /// and a thread with a priority must not wait for one without.
    pub(crate) fn tell(&self, status: Status) {
        if let Ok(mut told) = self.told.try_lock() {
            *told = Some(status);
        }
    }

    /// The newest status that was told, once.
    pub(crate) fn told(&self) -> Option<Status> {
        lock(&self.told).take()
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

    /// Notes the CPU time of the calling thread.
    pub(crate) fn write_cpu_time(&self, part: Part) {
        self.cpu_ns[part as usize].store(sys::thread_cpu_ns(), Ordering::Relaxed);
    }

    /// CPU time of all threads.
    pub(crate) fn cpu_time(&self) -> Duration {
        let nanos = self.cpu_ns.iter().map(|part| part.load(Ordering::Relaxed));
        Duration::from_nanos(nanos.sum())
    }
}
