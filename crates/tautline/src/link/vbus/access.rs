//! Permissions on a bus: names of nodes, ports to send to, and quotas.

use std::io;

use nix::unistd::{Group, User};
use tautline_proto::wire::PortNumber;

use super::config::{BusConfig, BusRule};
use super::peer::is_trusted;
use crate::address::NodeName;

/// Entries of a port that another user than the port's may hold, unless configured. Lower: a user with many senders is
/// refused. Higher: fewer are left for others.
pub(super) const USER_ENTRIES_MAX: usize = 24;
/// Entries of a port that all other users may hold together, so that the port's own user and root always find one.
/// Lower: fewer senders of other users; the port has 32 entries.
pub(super) const OTHERS_ENTRIES_MAX: usize = 28;
/// One user's share of a port's entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) user: u32,
    /// `None` for the port's own user and root.
    pub(super) entries_max: Option<usize>,
}

impl Share {
    /// Of somebody whom the port has asked itself.
    pub(super) fn asked_for(user: u32) -> Self {
        Self {
            user,
            entries_max: None,
        }
    }
}

/// The `[[bus_allow]]` entries, with users by number, and the quotas.
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

    /// Whether a user may have this name: everybody, unless the configuration gives it to somebody.
    pub(super) fn may_be(&self, user: u32, node: NodeName) -> bool {
        let mut named = self
            .rules
            .iter()
            .filter(|(_, rule)| rule.nodes.contains(&node))
            .peekable();
        named.peek().is_none() || named.any(|(owner, _)| *owner == user)
    }

    /// A user's share of a port; `None` if the port is not for this user.
    pub(super) fn share(&self, user: u32, port: PortNumber) -> Option<Share> {
        if is_trusted(user) {
            return Some(Share {
                user,
                entries_max: None,
            });
        }
        if self.rules.is_empty() {
            return Some(Share {
                user,
                entries_max: Some(USER_ENTRIES_MAX),
            });
        }
        let given = self.rules.iter().filter(|(owner, rule)| {
            let ports = &rule.ports;
            *owner == user && ports.iter().any(|range| range.contains(&port.get()))
        });
        let most = given.map(|(_, rule)| rule.connections_max).max()?;
        Some(Share {
            user,
            entries_max: Some(most),
        })
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
