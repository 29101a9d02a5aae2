//! A list of the open ports of a node, for its status, and to keep a key from being opened twice.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use tautline_proto::wire::PortKey;
use tautline_shm::layout::{CLASS_COUNT, Control};
use tautline_state::fork::OwnerProcess;
use tautline_state::lock;

use super::list::OpenPort;

/// The open ports of a node, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    open: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    key: PortKey,
    /// `None` while the port is being opened.
    port: Option<OpenPort>,
}

/// Keeps a key in its node's list; dropped before the port is open, gives it up again.
#[derive(Debug)]
pub(crate) struct Registration {
    key: PortKey,
    open: Arc<Mutex<Vec<Entry>>>,
    process: OwnerProcess,
}

impl Ports {
    /// Takes a key; `None` if it is taken.
    pub(crate) fn reserve(&self, key: PortKey) -> Option<Registration> {
        let mut open = lock(&self.open);
        if open.iter().any(|entry| entry.key == key) {
            return None;
        }
        open.push(Entry { key, port: None });
        Some(Registration {
            key,
            open: Arc::clone(&self.open),
            process: OwnerProcess::current(),
        })
    }

    /// A line for each open port that has one.
    pub(super) fn describe<T>(&self, line: impl Fn(PortKey, &OpenPort) -> Option<T>) -> Vec<T> {
        let open = lock(&self.open);
        open.iter()
            .filter_map(|entry| line(entry.key, entry.port.as_ref()?))
            .collect()
    }

    /// Switches the measurement of latencies, for all ports that are open.
    pub(crate) fn measure_latency(&self, is_wanted: bool) {
        self.describe(|_, port| {
            port.statistics.latency.measure(is_wanted);
            None::<()>
        });
    }
}

impl Registration {
    /// The port is open: it shows in the list from now on.
    pub(super) fn fill(self, port: OpenPort) -> Self {
        let mut open = lock(&self.open);
        if let Some(entry) = open.iter_mut().find(|entry| entry.key == self.key) {
            entry.port = Some(port);
        }
        drop(open);
        self
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a forked process a thread of the parent's may have held the lock.
        if self.process.is_current() {
            lock(&self.open).retain(|entry| entry.key != self.key);
        }
    }
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
