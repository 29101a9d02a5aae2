//! Configuration of a bus, and the rules for its users.

use std::ops::RangeInclusive;
use std::time::Duration;

use tautline_proto::wire::PORT_MAX;

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
    /// User to whom the bus must belong, by name or number, unless it belongs to root. `None`: this process's user, or
    /// anybody with whom `mode` and `group` share the bus.
    pub owner: Option<String>,
    /// Time that a port waits for the port of a peer that is not there, when it resolves it.
    pub wait: Duration,
    /// Other users on the bus; empty: all whom the bus lets in.
    pub allow: Vec<BusRule>,
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
            owner: None,
            wait: Duration::ZERO,
            allow: Vec::new(),
            service_priority: None,
        }
    }
}

/// One `[[bus_allow]]` entry. Several may name the same user; the user has what any of them gives. This process's own
/// user and root need no entry for ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusRule {
    /// The user, by name or number.
    pub user: String,
    /// Names of nodes that belong to the users whose entries list them, and to no others.
    pub nodes: Vec<NodeName>,
    /// Ports of this node that the user may send to and watch.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl BusRule {
    /// An entry that gives a user all ports, and no name alone.
    #[must_use]
    pub fn of(user: &str) -> Self {
        Self {
            user: user.to_owned(),
            nodes: Vec::new(),
            ports: vec![1..=PORT_MAX],
        }
    }
}
