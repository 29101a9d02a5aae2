//! Permissions on a bus: names of nodes, and ports to send to.

use std::io;

use nix::unistd::{Group, User};
use tautline_proto::wire::PortNumber;

use super::config::{BusConfig, BusRule};
use super::peer::is_trusted;
use crate::address::NodeName;

/// The `[[bus_allow]]` entries, with users by number.
#[derive(Debug)]
pub(super) struct Access {
    rules: Vec<(u32, BusRule)>,
}

impl Access {
    pub(super) fn of(config: &BusConfig) -> io::Result<Self> {
        let rules = config.allow.iter();
        let rules = rules.map(|rule| Ok((user_id(&rule.user)?, rule.clone())));
        Ok(Self {
            rules: rules.collect::<io::Result<_>>()?,
        })
    }

    /// Whether a user may have this name: everybody, unless the configuration gives it to another.
    pub(super) fn may_be(&self, user: u32, node: NodeName) -> bool {
        let mut named = self
            .rules
            .iter()
            .filter(|(_, rule)| rule.nodes.contains(&node))
            .peekable();
        named.peek().is_none() || named.any(|(owner, _)| *owner == user)
    }

    /// Whether a port is for this user.
    pub(super) fn may_reach(&self, user: u32, port: PortNumber) -> bool {
        let gives = |(owner, rule): &(u32, BusRule)| {
            let ports = &rule.ports;
            *owner == user && ports.iter().any(|range| range.contains(&port.get()))
        };
        is_trusted(user) || self.rules.is_empty() || self.rules.iter().any(gives)
    }
}

/// A user's number, from the name or the number in digits.
pub(super) fn user_id(user: &str) -> io::Result<u32> {
    if let Ok(number) = user.parse() {
        return Ok(number);
    }
    let found = User::from_name(user)?.map(|user| user.uid.as_raw());
    found.ok_or_else(|| absent("user", user))
}

/// A group's number, from its name or number.
pub(super) fn group_id(group: &str) -> io::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let found = Group::from_name(group)?.map(|group| group.gid.as_raw());
    found.ok_or_else(|| absent("group", group))
}

fn absent(kind: &str, name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("there is no {kind} `{name}`"),
    )
}
