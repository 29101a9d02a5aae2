//! Permissions on a bus: names of nodes, ports to send to, and quotas.

use std::io;

use nix::unistd::{Group, User};
use tautline_proto::wire::PortNumber;

use super::closer::is_trusted;
use super::config::{BusConfig, BusRule};
use crate::address::NodeName;
use crate::sys::unix::FOREIGN_DESCRIPTORS_MAX;

/// Entries of a port that another user than the port's may hold, unless configured. Lower: a user with many senders is
/// refused. Higher: fewer are left for others.
pub(super) const USER_ENTRIES_MAX: usize = 24;
/// Entries of a port that all other users may hold together, so that the port's own user and root always find one.
/// Lower: fewer senders of other users; the port has 32 entries.
pub(super) const OTHERS_ENTRIES_MAX: usize = 28;
/// Handshakes of another user that may be under way. Lower: a user who starts many senders at once waits. Higher: who
/// connects and says nothing holds more.
const USER_PENDING_MAX: usize = 16;
/// Descriptors that a connection takes: its socket, a memory and an event.
const CONNECTION_DESCRIPTORS: usize = 3;

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

/// Connections of a user to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionCounts {
    /// All of this user, with what is being closed.
    pub(super) user: usize,
    /// Of these, handshakes under way.
    pub(super) user_pending: usize,
    /// Of all users but ours and root.
    pub(super) others: usize,
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

    /// Whether one more connection of another user fits: half of the descriptors that this process may have are for
    /// other users, and half of those for one. The rest is ours, whatever others do.
    pub(super) fn has_room(held: ConnectionCounts) -> bool {
        let others_max = others_descriptors_max() / CONNECTION_DESCRIPTORS;
        held.others < others_max
            && held.user < others_max.div_ceil(2)
            && held.user_pending < USER_PENDING_MAX
    }

    /// Whether a message of another user may be read, with which as many descriptors can come as the kernel lets into
    /// one: of those that are still to be closed, others have the same shares. Whoever has none may always say
    /// something.
    pub(super) fn may_hand_over(of_user: usize, of_all: usize) -> bool {
        let others_max = others_descriptors_max();
        let fits = |held: usize, most: usize| held == 0 || held + FOREIGN_DESCRIPTORS_MAX <= most;
        fits(of_user, others_max.div_ceil(2)) && fits(of_all, others_max)
    }
}

/// Descriptors that all other users may have in this process.
fn others_descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX) / 2
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
