//! Everything of a machine that can be watched, at one moment. Nothing is changed by looking, except that the nodes
//! measure latencies for some seconds where that is asked for.

use std::io;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tautline::vbus::Bus;
use tautline_guest::GuestStatus;
use tautline_smoother::Status as SmootherStatus;
use tautline_state::find_runtime_directory;
use tautline_tasks::partition::ActivePartition;
use tautline_tasks::{Description, Interval, TaskView, TracedJob, View};

/// Parts of a machine at one moment.
#[derive(Debug)]
pub struct Look {
    /// When it was taken.
    pub at: Instant,
    /// The nodes, as `taut status` shows them.
    pub nodes: Vec<Node>,
    /// Runs of task sets.
    pub runs: Vec<Run>,
    /// The partitions of this user.
    pub partitions: Vec<ActivePartition>,
    /// The smoothers of this network namespace, and whether each lives.
    pub smoothers: Vec<(SmootherStatus, bool)>,
    /// The buses of this machine.
    pub buses: Vec<Bus>,
    /// The guests.
    pub guests: Vec<GuestStatus>,
    /// Those that gave no answer, or no sensible one.
    pub silent: Vec<String>,
}

/// A node and its own words.
#[derive(Debug)]
pub struct Node {
    /// All that the node says.
    pub said: Value,
    /// The part of it that lines are made of.
    pub status: NodeFigures,
}

/// The part of a node's status that lines are made of. A node says what it likes; what is missing counts as none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeFigures {
    pub(crate) process: u32,
    pub(crate) command: Option<String>,
    pub(crate) now_ns: u64,
    pub(crate) link: String,
    pub(crate) interface: Option<String>,
    pub(crate) mac: Option<String>,
    pub(crate) ip: Option<String>,
    pub(crate) bus: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) interface_up: Option<bool>,
    pub(crate) interface_now: Option<InterfaceNow>,
    pub(crate) counters: NodeCounters,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) ports: Vec<Port>,
    pub(crate) control: Option<Value>,
}

/// A node's interface, compared with what it was.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InterfaceNow {
    pub(crate) state: String,
    pub(crate) name: Option<String>,
    pub(crate) mac: Option<String>,
}

/// Frames that reached no port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeCounters {
    pub(crate) no_port: u64,
    pub(crate) socket_full: u64,
    pub(crate) joined_datagrams: u64,
    pub(crate) malformed: Value,
}

/// A neighbour's name and addresses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Neighbour {
    pub(crate) name: String,
    pub(crate) mac: Option<String>,
    pub(crate) ip: Option<String>,
}

/// A port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Port {
    pub(crate) key: String,
    pub(crate) name: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) send_errors: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) frames: u64,
    pub(crate) wakeups: u64,
    pub(crate) awake_ns: u64,
    pub(crate) age_ns: Option<u64>,
    pub(crate) valid: Option<bool>,
    pub(crate) oldest_wait_ns: Option<u64>,
    pub(crate) latency: Option<Latency>,
    pub(crate) queued: Vec<u64>,
    pub(crate) dropped_full: Vec<u64>,
    pub(crate) policed: u64,
    pub(crate) contended: u64,
    pub(crate) unfit: u64,
    pub(crate) sources_refused: u64,
    pub(crate) too_large: u64,
    pub(crate) other_size: u64,
    pub(crate) other_type: u64,
    pub(crate) bad_bundles: u64,
    pub(crate) bad_checksum: u64,
    pub(crate) expired: u64,
    pub(crate) incomplete_dropped: u64,
    pub(crate) void: u64,
    pub(crate) undelivered: u64,
    pub(crate) reassembly: Reassembly,
    pub(crate) peers: Vec<Peer>,
}

/// Datagrams that were not put together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reassembly {
    pub(crate) expired: u64,
    pub(crate) displaced: u64,
    pub(crate) broken: u64,
}

/// Latencies of a port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) max_ns: u64,
    pub(crate) sum_ns: u64,
    pub(crate) buckets: Vec<(u64, u64)>,
}

/// A peer's port that sends to a port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Peer {
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) received: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) restarts: u32,
}

/// A run of a task set.
#[derive(Debug)]
pub struct Run {
    pub(crate) about: Description,
    pub(crate) tasks: Vec<TaskView>,
    look: tautline_tasks::Look,
}

impl Run {
    /// Jobs of a task since an earlier look at the same run.
    pub(crate) fn since(&self, before: &Run, task: usize) -> Interval {
        self.look.since(&before.look, task)
    }

    /// The last jobs of a task, the oldest first.
    pub(crate) fn last_jobs(&self, task: usize, count: usize) -> Vec<TracedJob> {
        let (mut jobs, _) = self.look.trace(task, 0);
        jobs.drain(..jobs.len().saturating_sub(count));
        jobs
    }
}

/// Wishes of a watcher.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// Latencies are to be measured, at the price of a reading of the clock a message.
    pub latency: bool,
    /// Part of the machine that is looked at alone; `None`: everything.
    pub only: Option<Part>,
}

/// Part of a machine that can be looked at alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Real-time tasks and partitions.
    Tasks,
    /// Buses, and the nodes and ports on them.
    Buses,
    /// Guests.
    Guests,
}

impl Look {
    /// Looks at everything that this user may see, or at the part that is wanted.
    ///
    /// # Errors
    /// The directory of this user's nodes cannot be used.
    pub fn take(wishes: Wishes) -> io::Result<Self> {
        let wants = |part| wishes.only.is_none_or(|only| only == part);
        let (said, mut silent) = match (wants(Part::Buses), wishes.latency) {
            (false, _) => Default::default(),
            (true, true) => tautline::status::nodes_with_latency()?,
            (true, false) => tautline::status::nodes()?,
        };
        let at = Instant::now();
        let mut nodes = Vec::with_capacity(said.len());
        for said in said {
            match NodeFigures::deserialize(&said) {
                Ok(status) => nodes.push(Node { said, status }),
                Err(error) => silent.push(format!("process {}: {error}", said["process"])),
            }
        }
        if wishes.only == Some(Part::Buses) {
            nodes.retain(|node| node.status.bus.is_some());
        }
        let (guests, silent_guests) = match wants(Part::Guests) {
            true => tautline_guest::control::list(),
            false => Default::default(),
        };
        silent.extend(
            silent_guests
                .into_iter()
                .map(|name| format!("guest {name}")),
        );
        Ok(Self {
            at,
            nodes,
            runs: if_wanted(wants(Part::Tasks), runs),
            partitions: if_wanted(wants(Part::Tasks), || {
                tautline_tasks::partition::list().unwrap_or_default()
            }),
            smoothers: if_wanted(wishes.only.is_none(), smoothers),
            buses: if_wanted(wants(Part::Buses), || {
                tautline::vbus::buses(None).unwrap_or_default()
            }),
            guests,
            silent,
        })
    }

    /// Time since an earlier look.
    #[must_use]
    pub fn since(&self, before: &Look) -> Duration {
        self.at.saturating_duration_since(before.at)
    }
}

fn if_wanted<T>(is_wanted: bool, look: impl FnOnce() -> Vec<T>) -> Vec<T> {
    match is_wanted {
        true => look(),
        false => Vec::new(),
    }
}

fn runs() -> Vec<Run> {
    let run = |mut view: View| {
        let look = view.look().ok()?;
        Some(Run {
            about: view.description().clone(),
            tasks: look.tasks().collect(),
            look,
        })
    };
    tautline_tasks::runs().into_iter().filter_map(run).collect()
}

/// Root's smoothers; others have none.
fn smoothers() -> Vec<(SmootherStatus, bool)> {
    let directory = find_runtime_directory().ok().flatten();
    let found = directory.and_then(|directory| SmootherStatus::all(&directory).ok());
    found.unwrap_or_default()
}
