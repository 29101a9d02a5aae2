//! Which user or group may open which ports, to send with which priorities, and how much memory their
//! ports may take: the `[[allow]]` entries of a configuration.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use nix::unistd::{Group, Uid, User};
use tautline_proto::wire::PortKey;

pub use crate::config::{MEMORY_BYTES_DEFAULT, PORTS_DEFAULT, Rule, Who};
use crate::error::OpenError;

/// The user of a client, or of who would be one.
#[derive(Clone, Debug)]
pub(super) struct ClientUser {
    pub(super) uid: u32,
    /// The primary one first.
    pub(super) groups: Vec<u32>,
}

/// Ports of the key's kind that a rule gives, with their kind in words.
fn given(key: PortKey, rule: &Rule) -> (&'static str, &[RangeInclusive<u16>]) {
    match key {
        PortKey::Message(_) => ("ports", &rule.ports),
        PortKey::Udp(_) => ("UDP ports", &rule.udp_ports),
        PortKey::Raw(_) => ("EtherTypes", &rule.ethertypes),
    }
}

/// Ranges as they are configured.
pub(super) fn written(
    ranges: &[RangeInclusive<u16>],
    number: impl Fn(&u16) -> String + Copy,
) -> String {
    let range = |range: &RangeInclusive<u16>| match range.start() == range.end() {
        true => number(range.start()),
        false => format!("{}-{}", number(range.start()), number(range.end())),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

pub(super) fn hexadecimal(number: &u16) -> String {
    format!("{number:#06x}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The entry; `None` for the control process's own user and for root, who need none.
    pub(super) rule: Option<usize>,
    /// A bit for each priority.
    pub(super) priorities: u8,
    pub(super) any_source_address: bool,
}

#[derive(Debug)]
pub(super) struct Policy {
    rules: Vec<(Rule, Identity)>,
    own_uid: u32,
    /// Names of users, looked up at the start: looking one up later can wait for a directory service, as often as a
    /// stranger wants.
    names: BTreeMap<u32, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    User(u32),
    Group(u32),
}

/// Share of an entry that a user has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) ports: usize,
    pub(super) bytes: u64,
}

/// Shares that are taken, by entry and user.
pub(super) type Taken = BTreeMap<(usize, u32), Share>;

impl Policy {
    pub(super) fn new(rules: &[Rule]) -> Result<Self, OpenError> {
        let identified = rules.iter().enumerate().map(|(index, rule)| {
            let identity = identify(&rule.who).ok_or_else(|| OpenError::RuleUnknown {
                rule: index + 1,
                who: rule.who.to_string(),
            })?;
            Ok((rule.clone(), identity))
        });
        let rules = identified.collect::<Result<Vec<_>, OpenError>>()?;
        let own_uid = Uid::effective().as_raw();
        let users = rules.iter().filter_map(|(_, identity)| match identity {
            Identity::User(uid) => Some(*uid),
            Identity::Group(_) => None,
        });
        let named = users.chain([0, own_uid]).filter_map(|uid| {
            let user = User::from_uid(Uid::from_raw(uid)).ok()??;
            Some((uid, user.name))
        });
        Ok(Self {
            names: named.collect(),
            rules,
            own_uid,
        })
    }

    /// The user as messages name them.
    pub(super) fn name(&self, uid: u32) -> String {
        match self.names.get(&uid) {
            Some(name) => format!("user {name} ({uid})"),
            None => format!("user {uid}"),
        }
    }

    /// Root could take the interface itself, and so could the user that the control process runs as.
    pub(super) fn needs_no_rule(&self, user: &ClientUser) -> bool {
        user.uid == 0 || user.uid == self.own_uid
    }

    fn rules_of<'s>(&'s self, user: &'s ClientUser) -> impl Iterator<Item = (usize, &'s Rule)> {
        let applies = |identity: Identity| match identity {
            Identity::User(uid) => uid == user.uid,
            Identity::Group(gid) => user.groups.contains(&gid),
        };
        let rules = self.rules.iter().enumerate();
        rules.filter_map(move |(index, (rule, identity))| {
            applies(*identity).then_some((index, rule))
        })
    }

    /// Whether the user may open anything. The error says why not.
    pub(super) fn admit(&self, user: &ClientUser) -> Result<(), String> {
        if self.needs_no_rule(user) || self.rules_of(user).next().is_some() {
            return Ok(());
        }
        Err(format!(
            "no [[allow]] entry is for {} or a group of theirs",
            self.name(user.uid)
        ))
    }

    /// Permissions of the user for this port. The error says which entry does not give it, and why.
    pub(super) fn grant(
        &self,
        user: &ClientUser,
        key: PortKey,
        bytes: u64,
        taken: &Taken,
    ) -> Result<Grant, String> {
        if self.needs_no_rule(user) {
            return Ok(Grant {
                rule: None,
                priorities: u8::MAX,
                any_source_address: true,
            });
        }
        self.admit(user)?;
        let mut refused = Vec::new();
        for (index, rule) in self.rules_of(user) {
            let entry = format!("[[allow]] entry {} ({})", index + 1, rule.who);
            let used = taken.get(&(index, user.uid)).copied().unwrap_or_default();
            let (kind, ports) = given(key, rule);
            if ports.is_empty() {
                refused.push(format!("{entry} gives no {kind}"));
            } else if !contains(ports, key.number()) {
                let ports = match key {
                    PortKey::Message(_) | PortKey::Udp(_) => written(ports, u16::to_string),
                    PortKey::Raw(_) => written(ports, hexadecimal),
                };
                refused.push(format!("{entry} gives {kind} {ports}"));
            } else if used.ports >= rule.ports_max {
                refused.push(format!(
                    "{entry} gives {} ports at a time, which are open; raise its ports_max",
                    rule.ports_max
                ));
            } else if used.bytes.saturating_add(bytes) > rule.memory_bytes_max {
                refused.push(format!(
                    "{entry} gives {} bytes of memory, of which {} are taken; the port needs {bytes}; \
                     raise its memory_bytes_max",
                    rule.memory_bytes_max, used.bytes
                ));
            } else {
                return Ok(Grant {
                    rule: Some(index),
                    priorities: priority_bits(&rule.priorities),
                    any_source_address: rule.any_source_address,
                });
            }
        }
        Err(format!("{}: {}", self.name(user.uid), refused.join("; ")))
    }

    /// The entries with the names that they apply to.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }
}

fn identify(who: &Who) -> Option<Identity> {
    match who {
        Who::User(name) => name.parse().ok().map(Identity::User).or_else(|| {
            let user = User::from_name(name).ok()??;
            Some(Identity::User(user.uid.as_raw()))
        }),
        Who::Group(name) => name.parse().ok().map(Identity::Group).or_else(|| {
            let group = Group::from_name(name).ok()??;
            Some(Identity::Group(group.gid.as_raw()))
        }),
    }
}

fn contains(ranges: &[RangeInclusive<u16>], number: u16) -> bool {
    ranges.iter().any(|range| range.contains(&number))
}

fn priority_bits(ranges: &[RangeInclusive<u16>]) -> u8 {
    (0..8)
        .filter(|priority| contains(ranges, *priority))
        .fold(0, |bits, priority| bits | 1 << priority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_proto::wire::PortNumber;

    /// A user without a name on any machine.
    const USER: u32 = 987_654;

    fn user(uid: u32, groups: &[u32]) -> ClientUser {
        ClientUser {
            uid,
            groups: groups.to_vec(),
        }
    }

    fn rule(who: Who, ports: RangeInclusive<u16>, memory_bytes_max: u64) -> Rule {
        Rule {
            who,
            ports: vec![ports],
            udp_ports: vec![5_000..=5_009],
            ethertypes: vec![0x88A4..=0x88A4, 0x9000..=0x9007],
            any_source_address: false,
            priorities: vec![0..=3, 7..=7],
            memory_bytes_max,
            ports_max: 2,
        }
    }

    fn policy() -> Policy {
        Policy::new(&[
            rule(Who::User(USER.to_string()), 10..=19, 1_000),
            rule(Who::Group("987655".to_owned()), 20..=20, 500),
        ])
        .unwrap()
    }

    fn port(number: u16) -> PortKey {
        PortKey::Message(PortNumber::new(number).unwrap())
    }

    #[test]
    fn a_user_gets_what_an_entry_gives() {
        let (policy, none) = (policy(), Taken::new());
        let grant = policy.grant(&user(USER, &[]), port(10), 1_000, &none);
        let expected = Grant {
            rule: Some(0),
            priorities: 0b1000_1111,
            any_source_address: false,
        };
        assert_eq!(grant, Ok(expected));
        let grant = policy.grant(&user(USER, &[7, 987_655]), port(20), 500, &none);
        assert_eq!(grant.unwrap().rule, Some(1));
    }

    #[test]
    fn what_is_refused_names_entry_and_user() {
        let (policy, none) = (policy(), Taken::new());
        let refused = |user: &ClientUser, number, bytes, taken: &Taken| {
            policy.grant(user, port(number), bytes, taken).unwrap_err()
        };
        assert_eq!(
            refused(&user(USER, &[]), 20, 1, &none),
            "user 987654: [[allow]] entry 1 (user 987654) gives ports 10-19"
        );
        assert_eq!(
            refused(&user(USER, &[]), 10, 600, &taken(1, 500)),
            "user 987654: [[allow]] entry 1 (user 987654) gives 1000 bytes of memory, of which 500 are taken; \
             the port needs 600; raise its memory_bytes_max"
        );
        assert_eq!(
            refused(&user(USER, &[]), 10, 1, &taken(2, 500)),
            "user 987654: [[allow]] entry 1 (user 987654) gives 2 ports at a time, which are open; \
             raise its ports_max"
        );
        assert_eq!(
            refused(&user(USER + 5, &[1]), 10, 600, &none),
            "no [[allow]] entry is for user 987659 or a group of theirs"
        );
        assert!(policy.admit(&user(USER + 5, &[987_655])).is_ok());
    }

    fn taken(ports: usize, bytes: u64) -> Taken {
        Taken::from([((0, USER), Share { ports, bytes })])
    }

    #[test]
    fn root_needs_no_entry_and_a_name_that_nobody_has_is_an_error() {
        let grant = policy().grant(&user(0, &[]), port(4_000), u64::MAX, &Taken::new());
        assert_eq!(grant.unwrap().rule, None);
        let unknown = Policy::new(&[rule(Who::User("taut-nobody-at-all".to_owned()), 1..=1, 1)]);
        let error = unknown.unwrap_err().to_string();
        assert_eq!(
            error,
            "[[allow]] entry 1 is for user taut-nobody-at-all, who does not exist here"
        );
    }
}
