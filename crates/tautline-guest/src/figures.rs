//! Figures of a guest that others may see.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// State of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum State {
    /// The virtual machine runs; the guest has not joined its window.
    Starting,
    /// The guest has joined its window.
    Running,
    /// It has given no sign of life for longer than it may.
    Silent,
    /// It has ended, and is to be started again.
    Restarting,
    /// It has ended.
    Ended,
}

impl State {
    /// The state in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Running => "running",
            State::Silent => "silent",
            State::Restarting => "restarting",
            State::Ended => "ended",
        }
    }
}

/// A guest at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GuestStatus {
    /// Name of the guest and of its node.
    pub name: String,
    /// Process that runs it.
    pub process: u32,
    /// File of its image.
    pub image: String,
    /// Its processor.
    pub architecture: String,
    /// Monitor of its virtual machine, with how it executes instructions.
    pub monitor: String,
    /// Bus or node file on which its ports are.
    pub network: String,
    /// The partition, if it runs in one.
    pub partition: Option<String>,
    /// The state.
    pub state: State,
    /// Time since this life began.
    pub age: Duration,
    /// Starts after the first.
    pub restarts: u32,
    /// End of the life before, in words.
    pub last_end: Option<String>,
    /// Time since the last sign of life; none before the first.
    pub silence: Option<Duration>,
    /// Doorbells that the guest has rung in this life, as Linux counts them.
    pub doorbells: u64,
    /// Settings that were asked for and could not be had.
    pub limits: Vec<String>,
    /// Its ports.
    pub ports: Vec<PortFigures>,
}

/// Messages of a port of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PortFigures {
    /// Its number.
    pub port: u16,
    /// Whether the guest has opened it.
    pub is_open: bool,
    /// Messages and values to the guest.
    pub to_guest: u64,
    /// Messages that the guest had no room for, or was not there for.
    pub to_guest_dropped: u64,
    /// Messages and values from the guest that went on.
    pub to_linux: u64,
    /// Messages from the guest for a peer that is not there, or that had no room.
    pub to_linux_dropped: u64,
    /// Messages from the guest that made no sense.
    pub malformed: u64,
    /// Messages from the guest that its settings do not allow.
    #[serde(default)]
    pub refused: u64,
}

/// Counters of a port, with one writer.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    pub(crate) is_open: AtomicU64,
    pub(crate) to_guest: AtomicU64,
    pub(crate) to_guest_dropped: AtomicU64,
    pub(crate) to_linux: AtomicU64,
    pub(crate) to_linux_dropped: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl PortCounters {
    pub(crate) fn figures(&self, port: u16) -> PortFigures {
        PortFigures {
            port,
            is_open: self.is_open.load(Relaxed) != 0,
            to_guest: self.to_guest.load(Relaxed),
            to_guest_dropped: self.to_guest_dropped.load(Relaxed),
            to_linux: self.to_linux.load(Relaxed),
            to_linux_dropped: self.to_linux_dropped.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }
}
