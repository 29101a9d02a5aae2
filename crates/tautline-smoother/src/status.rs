//! State of a running smoother, in a file of the runtime directory.

use serde::{Deserialize, Serialize};
use tautline_state::{Directory, StateError, own_network_namespace};

use crate::SmootherError;

/// Longest status. A node takes some hundred bytes.
const STATUS_BYTES_MAX: usize = 64 << 10;

/// End of the names of statuses: no journal's.
pub(crate) const STATUS_SUFFIX: &str = ".status";

/// Name of the status of an interface in the calling thread's network namespace.
pub(crate) fn status_name(interface: &str) -> String {
    format!("{}{STATUS_SUFFIX}", file_name(interface))
}

pub(crate) fn file_name(interface: &str) -> String {
    // 0 where the kernel does not tell (before Linux 5.14).
    let namespace = own_network_namespace().unwrap_or(0);
    format!("smoother-{namespace}-{interface}")
}

/// State of a smoother, written once a second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The interface.
    pub interface: String,
    /// Process that smooths it.
    pub process: u32,
    /// Seconds since it began.
    pub seconds: u64,
    /// CPU time since then, in microseconds.
    #[serde(default)]
    pub cpu_us: u64,
    /// Parts that could not be had.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Capacity of the port as configured, and as it is believed now, in bits a second.
    pub capacity_bps: u64,
    /// Capacity that is believed now.
    pub believed_bps: u64,
    /// Times that the belief was lowered because a queue stood.
    pub corrections: u64,
    /// Bits a second that arrive, of all kinds.
    pub arrived_bps: u64,
    /// Bits a second from nodes that are not listed.
    pub foreign_bps: u64,
    /// Real-time bits a second that this node sends.
    pub real_time_sent_bps: u64,
    /// Intervals that began more than one interval late.
    pub late_intervals: u64,
    /// Messages of nodes that are not listed, and others that could not be read.
    pub strange_messages: u64,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
}

/// State towards one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Whether its reports come.
    pub takes_part: bool,
    /// Rate granted to it.
    pub granted_bps: u64,
    /// Other traffic that arrives from it.
    pub other_bps: u64,
    /// Real-time traffic that it sends.
    pub real_time_bps: u64,
    /// Bytes that wait there, as it says.
    pub backlog_bytes: u32,
    /// Time of its last report in the queue of the switch, in microseconds.
    pub wait_us: u64,
    /// Reports of it that were refused.
    pub refused: u64,
    /// Rate to which our other traffic to it is held; none: it leaves at once.
    pub held_to_bps: Option<u64>,
    /// Bytes that wait here for it.
    pub own_backlog_bytes: u32,
    /// Frames for it that found no room.
    pub own_drops: u64,
    /// Grants of it that were refused.
    pub grants_refused: u64,
}

/// The file of a running smoother's status.
#[derive(Debug)]
pub(crate) struct StatusFile {
    directory: Directory,
    name: String,
}

impl StatusFile {
    /// Status file of an interface in the calling thread's network namespace; the caller holds its journal. Writes
    /// nothing yet, and removes what a killed writer left.
    pub(crate) fn new(directory: Directory, interface: &str) -> Result<Self, StateError> {
        let name = status_name(interface);
        directory.sweep(&name)?;
        Ok(Self { directory, name })
    }

    pub(crate) fn write(&self, status: &Status) -> Result<(), SmootherError> {
        let text = serde_json::to_vec(status).expect("numbers and names are JSON");
        Ok(self.directory.show(&self.name, &text, 0o644)?)
    }

    pub(crate) fn remove(&self) {
        let _ = self.directory.remove(&self.name); // none was written, or another process has ended this one
    }
}

/// Reads the status in a directory; `None` if there is none.
///
/// # Errors
/// The file cannot be read.
pub fn read_status(directory: &Directory, name: &str) -> Result<Option<Status>, StateError> {
    match directory.read(name, STATUS_BYTES_MAX) {
        Err(error) if error.is_absent() => Ok(None),
        text => Ok(serde_json::from_slice(&text?).ok()),
    }
}
