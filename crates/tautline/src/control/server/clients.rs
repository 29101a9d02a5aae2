//! Who is connected: bounded, so that nobody can keep others out.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::control::policy::Asker;
use crate::sys::unix;

/// Connections at once. Lower: a large machine's processes are refused. Higher: more descriptors, one
/// each.
const CLIENTS_MAX: usize = 512;
/// Connections of one user other than root. Lower: as above. Higher: fewer users fill the table.
const CLIENTS_OF_USER_MAX: usize = 128;

/// A process that has connected.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) pid: i32,
    pub(super) asker: Asker,
    /// Whether it has said what it needs.
    pub(super) greeted: bool,
    since: Instant,
}

impl Client {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let peer = unix::peer(socket.as_fd())?;
        let mut groups = vec![peer.gid];
        groups.extend(unix::peer_groups(socket.as_fd())?);
        Ok(Self {
            socket,
            pid: peer.pid,
            asker: Asker {
                uid: peer.uid,
                groups,
            },
            greeted: false,
            since: Instant::now(),
        })
    }
}

/// All of them, by number.
#[derive(Debug)]
pub(super) struct Clients {
    next: u64,
    connected: BTreeMap<u64, Client>,
}

impl Clients {
    pub(super) fn new(first: u64) -> Self {
        Self {
            next: first,
            connected: BTreeMap::new(),
        }
    }

    /// Whether one more can be had; the error says why not.
    pub(super) fn room_for(&self, client: &Client) -> Result<(), String> {
        if self.connected.len() >= CLIENTS_MAX {
            return Err(format!("it has {CLIENTS_MAX} clients already"));
        }
        let uid = client.asker.uid;
        let of_user = self
            .connected
            .values()
            .filter(|other| other.asker.uid == uid);
        if uid != 0 && of_user.count() >= CLIENTS_OF_USER_MAX {
            let name = client.asker.name();
            return Err(format!("{name} has {CLIENTS_OF_USER_MAX} clients already"));
        }
        Ok(())
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

    /// Those who have been silent for too long.
    pub(super) fn silent_for(&self, limit: Duration) -> Vec<u64> {
        let silent = |client: &Client| !client.greeted && client.since.elapsed() > limit;
        self.connected
            .iter()
            .filter(|(_, client)| silent(client))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Who has said what it needs.
    pub(super) fn greeted(&self) -> impl Iterator<Item = (u64, &Client)> {
        self.connected
            .iter()
            .filter(|(_, client)| client.greeted)
            .map(|(number, client)| (*number, client))
    }
}
