//! Configuration of a bus.

use std::time::Duration;

use crate::address::NodeName;

/// A bus, and a node's place on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusConfig {
    /// The bus: a name, which is looked for under `/run/tautline/vbus` and then among the user's own, or the
    /// path of a directory.
    pub name: String,
    /// This node's name on it. Several processes of one user may share one, as they share a host's address;
    /// each port belongs to one of them.
    pub node: NodeName,
    /// Permissions of the bus, as the mode of its directory, if this node makes it, and of this node's ports.
    pub mode: u32,
    /// The group of the bus, by name or number, if this node makes it, and of this node's ports.
    pub group: Option<String>,
    /// Time that a port waits for the port of a peer that is not there, when it resolves it.
    pub wait: Duration,
    /// Priority from 1 to 99 under SCHED_FIFO of the thread that makes connections, if this process may give it.
    /// `None`: it is an ordinary thread, whatever the one is that opens the node. Members of the bus can keep that
    /// thread busy; a real-time one then keeps everything waiting that is less urgent on its CPU.
    pub service_priority: Option<u8>,
}

impl BusConfig {
    /// A bus for processes of this user.
    #[must_use]
    pub fn new(name: &str, node: NodeName) -> Self {
        Self {
            name: name.to_owned(),
            node,
            mode: 0o700,
            group: None,
            wait: Duration::ZERO,
            service_priority: None,
        }
    }
}
