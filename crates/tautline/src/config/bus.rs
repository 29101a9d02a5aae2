//! The bus of a configuration.

use std::time::Duration;

use toml::Spanned;

use super::{Wrong, parse};
use crate::link::vbus::config::BusConfig;

/// Keys of a configuration that are about its bus.
pub(super) struct BusSection {
    pub(super) name: Option<Spanned<String>>,
    pub(super) node: Option<Spanned<String>>,
    pub(super) mode: Option<Spanned<u32>>,
    pub(super) group: Option<String>,
    pub(super) wait_ms: Option<u64>,
}

const NODE_NAME: &str = "a node's name: 1 to 31 letters, digits, `-`, `_` or `.`, no dot first";

impl BusSection {
    pub(super) fn check(self) -> Result<Option<BusConfig>, Wrong> {
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
        config.wait = Duration::from_millis(self.wait_ms.unwrap_or(0));
        Ok(Some(config))
    }
}
