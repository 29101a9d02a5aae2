//! A list of the open ports of a node, for its status, and to keep a number from being opened twice.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_shm::layout::{CLASS_COUNT, Control};
use tautline_state::fork::OwnerProcess;

use crate::latency::Latency;
use crate::status::ReadsTold;

/// Reads of a port from number `seen` on, and the number of the next. Has them measured and kept from now on.
pub(super) fn reads_since(latency: &Latency, seen: u64) -> ReadsTold {
    latency.keep_reads();
    latency.measure(true);
    let mut told = ReadsTold::default();
    if let Some(reads) = latency.reads() {
        told.next = reads.since(seen, |number, read| {
            told.reads.push((number, read.arrival_ns, read.read_ns));
        });
    }
    told
}

/// The open ports of one sort, by number.
#[derive(Debug)]
pub(crate) struct OpenList<N: Copy + PartialEq, P> {
    open: Arc<Mutex<Vec<Entry<N, P>>>>,
}

#[derive(Debug)]
struct Entry<N, P> {
    number: N,
    /// `None` while the port is being opened.
    port: Option<P>,
}

/// Keeps a number in its node's list; dropped before the port is open, gives it up again.
#[derive(Debug)]
pub(crate) struct Registration<N: Copy + PartialEq, P> {
    number: N,
    open: Arc<Mutex<Vec<Entry<N, P>>>>,
    process: OwnerProcess,
}

impl<N: Copy + PartialEq, P> Default for OpenList<N, P> {
    fn default() -> Self {
        Self {
            open: Arc::default(),
        }
    }
}

impl<N: Copy + PartialEq, P> OpenList<N, P> {
    /// Takes a number; `None` if it is taken.
    pub(crate) fn reserve(&self, number: N) -> Option<Registration<N, P>> {
        let mut open = lock(&self.open);
        if open.iter().any(|entry| entry.number == number) {
            return None;
        }
        open.push(Entry { number, port: None });
        Some(Registration {
            number,
            open: Arc::clone(&self.open),
            process: OwnerProcess::current(),
        })
    }

    /// A line for each port that is open.
    pub(super) fn describe<T>(&self, line: impl Fn(N, &P) -> T) -> Vec<T> {
        let open = lock(&self.open);
        open.iter()
            .filter_map(|entry| Some(line(entry.number, entry.port.as_ref()?)))
            .collect()
    }
}

impl<N: Copy + PartialEq, P> Registration<N, P> {
    /// The port is open: it shows in the list from now on.
    pub(super) fn fill(self, port: P) -> Self {
        let mut open = lock(&self.open);
        if let Some(entry) = open.iter_mut().find(|entry| entry.number == self.number) {
            entry.port = Some(port);
        }
        drop(open);
        self
    }
}

impl<N: Copy + PartialEq, P> Drop for Registration<N, P> {
    fn drop(&mut self) {
        // In a forked process a thread of the parent's may have held the lock.
        if self.process.is_current() {
            lock(&self.open).retain(|entry| entry.number != self.number);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The list stays whole at every step, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames that wait in a port's memory, per priority.
pub(super) fn queued(control: &Control) -> [u64; CLASS_COUNT] {
    std::array::from_fn(|class| {
        let head = control.class[class].head.load(Relaxed);
        head.saturating_sub(control.taken.taken[class].load(Relaxed))
    })
}

/// Frames that were dropped because their class was full, per priority.
pub(super) fn dropped_full(control: &Control) -> [u64; CLASS_COUNT] {
    std::array::from_fn(|class| control.class[class].dropped_full.load(Relaxed))
}
