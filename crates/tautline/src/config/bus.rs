//! The bus of a configuration: its keys, and the `[[bus_allow]]` entries.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use tautline_proto::wire::PORT_MAX;
use tautline_shm::vbus::layout::PRODUCERS_MAX;
use toml::{Spanned, Value};

use super::allow::numbers;
use super::{Wrong, parse};
use crate::address::NodeName;

/// Connections of a user to a port that an entry gives unless it says how many.
const CONNECTIONS_DEFAULT: usize = 24;

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
        }
    }
}

/// One `[[bus_allow]]` entry. Several may name the same user; the user has what any of them gives. This process's own
/// user and root need no entry for ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusRule {
    /// The user, by name or number.
    pub user: String,
    /// Names of nodes that belong to the users whose entries list them, and to nobody else.
    pub nodes: Vec<NodeName>,
    /// Ports of this node that the user may send to and watch.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Connections of the user to each of them.
    pub connections_max: usize,
}

impl BusRule {
    /// An entry that gives a user all ports, and no name alone.
    #[must_use]
    pub fn of(user: &str) -> Self {
        Self {
            user: user.to_owned(),
            nodes: Vec::new(),
            ports: vec![1..=PORT_MAX],
            connections_max: CONNECTIONS_DEFAULT,
        }
    }
}

/// Keys of a configuration that are about its bus.
pub(super) struct BusSection {
    pub(super) name: Option<Spanned<String>>,
    pub(super) node: Option<Spanned<String>>,
    pub(super) mode: Option<Spanned<u32>>,
    pub(super) group: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) wait_ms: Option<u64>,
    pub(super) allow: Vec<Spanned<BusAllowEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BusAllowEntry {
    user: String,
    #[serde(default)]
    nodes: Vec<Spanned<String>>,
    ports: Option<Vec<Spanned<Value>>>,
    connections_max: Option<Spanned<usize>>,
}

const NODE_NAME: &str = "a node's name: 1 to 31 letters, digits, `-`, `_` or `.`, no dot first";

impl BusSection {
    pub(super) fn check(self) -> Result<Option<BusConfig>, Wrong> {
        let rules = self.allow.into_iter().map(rule);
        let rules = rules.collect::<Result<_, _>>()?;
        let (name, node) = match (self.name, self.node) {
            (None, None) => return Ok(None),
            (Some(name), Some(node)) => (name, node),
            (Some(name), None) => {
                let message = "a bus needs the `node` that this is on it";
                return Err((name.span(), message.to_owned()));
            }
            (None, Some(node)) => {
                return Err((
                    node.span(),
                    "a `node` needs the `bus` that it is on".to_owned(),
                ));
            }
        };
        let is_name = !name.get_ref().is_empty() && !name.get_ref().starts_with('.');
        if !is_name {
            let message = "the name or the path of a bus is neither empty nor begins with a dot";
            return Err((name.span(), message.to_owned()));
        }
        let mut config = BusConfig::new(name.get_ref(), parse(node, NODE_NAME)?);
        if let Some(mode) = self.mode {
            if *mode.get_ref() > 0o777 || mode.get_ref() & 0o700 != 0o700 {
                let message = "bus_mode is 0o700 to 0o777: who makes a bus must be able to use it";
                return Err((mode.span(), message.to_owned()));
            }
            config.mode = mode.into_inner();
        }
        config.group = self.group;
        config.owner = self.owner;
        config.wait = Duration::from_millis(self.wait_ms.unwrap_or(0));
        config.allow = rules;
        Ok(Some(config))
    }
}

fn rule(entry: Spanned<BusAllowEntry>) -> Result<BusRule, Wrong> {
    let entry = entry.into_inner();
    let mut rule = BusRule::of(&entry.user);
    let nodes = entry.nodes.into_iter().map(|name| parse(name, NODE_NAME));
    rule.nodes = nodes.collect::<Result<_, _>>()?;
    if let Some(ports) = entry.ports {
        rule.ports = numbers(ports, 1..=PORT_MAX, "port number")?;
    }
    if let Some(most) = entry.connections_max {
        if !(1..=PRODUCERS_MAX).contains(most.get_ref()) {
            let message = format!("connections_max is 1 to {PRODUCERS_MAX}");
            return Err((most.span(), message));
        }
        rule.connections_max = most.into_inner();
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use crate::config::NodeConfig;

    #[test]
    fn entries_for_other_users_are_read_and_checked() {
        let head = "link = \"vbus\"\nbus = \"cell\"\nnode = \"arm\"\nbus_owner = \"root\"\nbus_wait_ms = 250\n";
        let read = |entry: &str| format!("{head}[[bus_allow]]\n{entry}").parse::<NodeConfig>();
        let config = read("user = \"robot\"\nnodes = [\"motor\"]\nports = [7, \"10-19\"]").unwrap();
        let bus = config.bus.unwrap();
        assert_eq!(
            (bus.owner.as_deref(), bus.wait.as_millis()),
            (Some("root"), 250)
        );
        let rule = &bus.allow[0];
        assert_eq!(rule.nodes, ["motor".parse().unwrap()]);
        assert_eq!(rule.ports, [7..=7, 10..=19]);
        assert_eq!(rule.connections_max, 24);
        for (entry, reason) in [
            ("user = \"robot\"\nnodes = [\".motor\"]", "a node's name"),
            ("user = \"robot\"\nports = [0]", "port number"),
            ("user = \"robot\"\nconnections_max = 33", "1 to 32"),
            ("nodes = [\"motor\"]", "user"),
        ] {
            let error = read(entry).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
        }
    }
}
