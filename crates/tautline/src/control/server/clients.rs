//! Processes that are connected: bounded, each user by itself, so that nobody keeps others out.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tautline_state::foreign::ForeignSocket;

use crate::control::policy::{Asker, Policy};
use crate::sys::unix;

/// Connections at once of users who need an entry. Lower: a large machine's processes are refused. Higher: more
/// descriptors, one each.
const CLIENTS_MAX: usize = 1024;
/// Of those, connections that are kept for each entry's users, whoever else comes. Lower: an application of several
/// processes is refused where others fill the rest. Higher: with many entries less is left for who comes first. With
/// more entries than a sixteenth of all, each is kept its share.
const CLIENTS_OF_ENTRY_KEPT: usize = 16;
/// Connections of root and of the control process's own user, beside those. Lower: a machine with many programs of
/// root's refuses some. Higher: more descriptors are set aside.
const CLIENTS_OF_OWNER_MAX: usize = 256;
/// Descriptors that are set aside for everything but connections. Lower: a port cannot be made although a client may
/// have it. Higher: fewer clients where the limit of open files is low.
const DESCRIPTORS_RESERVED: usize = 192;

/// A process that has connected and was admitted.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: ForeignSocket,
    pub(super) pid: i32,
    pub(super) asker: Asker,
    /// Entry of the policy that it counts towards; `None` for one who needs none.
    entry: Option<usize>,
    /// Whether it has said what it needs.
    pub(super) greeted: bool,
    since: Instant,
    /// When its last turn was, counted in turns of all.
    last_turn: u64,
}

impl Client {
    pub(super) fn new(socket: ForeignSocket) -> io::Result<Self> {
        let peer = socket.peer()?;
        let mut groups = vec![peer.gid];
        groups.extend(unix::peer_groups(socket.as_fd())?);
        Ok(Self {
            socket,
            pid: peer.pid,
            asker: Asker {
                uid: peer.uid,
                groups,
            },
            entry: None,
            greeted: false,
            since: Instant::now(),
            last_turn: 0,
        })
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// All clients, by number.
#[derive(Debug)]
pub(super) struct Clients {
    next: u64,
    turns: u64,
    connected: BTreeMap<u64, Client>,
    /// Of users who need an entry; fewer than [`CLIENTS_MAX`] where the process may not have as many descriptors.
    others_max: usize,
    /// Kept for the users of each entry.
    kept: usize,
    entries: usize,
}

impl Clients {
    pub(super) fn new(first: u64, entries: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let left = limit.saturating_sub(DESCRIPTORS_RESERVED);
        let others_max = CLIENTS_MAX.min(left / 4 * 3);
        Self {
            next: first,
            turns: 0,
            connected: BTreeMap::new(),
            others_max,
            kept: CLIENTS_OF_ENTRY_KEPT.min(others_max / entries.max(1)),
            entries,
        }
    }

    /// Counts a client towards its entry if there is room for it. The error says which limit is reached, and how to
    /// raise it.
    pub(super) fn count_in(&self, client: &mut Client, policy: &Policy) -> Result<(), String> {
        let Some(quota) = policy.connections(&client.asker) else {
            let owners = self.count(|other| other.entry.is_none());
            return match owners < CLIENTS_OF_OWNER_MAX {
                true => Ok(()),
                false => Err(format!(
                    "root and its own user have {CLIENTS_OF_OWNER_MAX} connections, which is a fixed limit"
                )),
            };
        };
        let uid = client.asker.uid;
        if self.count(|other| other.asker.uid == uid) >= quota.max {
            return Err(format!(
                "{} has {} connections, as many as {quota} gives; raise its connections_max",
                policy.name(uid),
                quota.max
            ));
        }
        client.entry = Some(quota.entry);
        let of_entry = |entry| self.count(|other| other.entry == Some(entry));
        let others = self.count(|other| other.entry.is_some());
        let kept_for_others = (0..self.entries)
            .filter(|entry| *entry != quota.entry)
            .map(|entry| self.kept.saturating_sub(of_entry(entry)))
            .sum::<usize>();
        if of_entry(quota.entry) >= self.kept && others + kept_for_others >= self.others_max {
            return Err(format!(
                "other users have {others} of its {} connections, and {kept_for_others} are kept for other entries; \
                 lower a connections_max, or raise its limit of open files (LimitNOFILE=) if that is below {}",
                self.others_max,
                CLIENTS_MAX * 4 / 3 + DESCRIPTORS_RESERVED
            ));
        }
        Ok(())
    }

    fn count(&self, which: impl Fn(&Client) -> bool) -> usize {
        self.connected
            .values()
            .filter(|client| which(client))
            .count()
    }

    /// Of those who have something to say, one of each user: the one who has waited longest. So a user who asks without
    /// end takes one turn of each round, however many connections that are.
    pub(super) fn turn(&mut self, ready: &[u64]) -> Vec<u64> {
        let mut of_user: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for number in ready {
            let Some(client) = self.connected.get(number) else {
                continue;
            };
            let candidate = (client.last_turn, *number);
            let chosen = of_user.entry(client.asker.uid).or_insert(candidate);
            *chosen = candidate.min(*chosen);
        }
        self.turns += 1;
        let chosen: Vec<u64> = of_user.into_values().map(|(_, number)| number).collect();
        for number in &chosen {
            if let Some(client) = self.connected.get_mut(number) {
                client.last_turn = self.turns;
            }
        }
        chosen
    }

    /// A number that no client had before, so that an event that comes late finds nobody.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn insert(&mut self, number: u64, client: Client) {
        self.connected.insert(number, client);
    }

    pub(super) fn get(&self, number: u64) -> Option<&Client> {
        self.connected.get(&number)
    }

    pub(super) fn greet(&mut self, number: u64) {
        if let Some(client) = self.connected.get_mut(&number) {
            client.greeted = true;
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.connected.remove(&number);
    }

    /// Whether somebody has not yet said what it needs.
    pub(super) fn has_silent(&self) -> bool {
        self.connected.values().any(|client| !client.greeted)
    }

    /// Those who have been silent for too long. Who has said something that was not read yet is not silent.
    pub(super) fn silent_for(&self, limit: Duration) -> Vec<u64> {
        let silent = |client: &Client| {
            !client.greeted && client.since.elapsed() > limit && client.socket.is_silent()
        };
        self.connected
            .iter()
            .filter(|(_, client)| silent(client))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Clients that have said what they need.
    pub(super) fn greeted(&self) -> impl Iterator<Item = (u64, &Client)> {
        self.connected
            .iter()
            .filter(|(_, client)| client.greeted)
            .map(|(number, client)| (*number, client))
    }
}
