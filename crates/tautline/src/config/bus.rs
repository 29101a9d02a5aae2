//! The bus of a configuration: its keys, and the `[[bus_allow]]` entries.

use std::time::Duration;

use serde::Deserialize;
use tautline_proto::wire::PORT_MAX;
use toml::{Spanned, Value};

use super::allow::numbers;
use super::{Wrong, parse};
use crate::link::vbus::config::{BusConfig, BusRule};

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
        for (entry, reason) in [
            ("user = \"robot\"\nnodes = [\".motor\"]", "a node's name"),
            ("user = \"robot\"\nports = [0]", "port number"),
            ("nodes = [\"motor\"]", "user"),
        ] {
            let error = read(entry).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
        }
    }
}
