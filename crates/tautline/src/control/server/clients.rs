//! Connected processes, of which there is a bounded number.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Resource, getrlimit};
use tautline_state::untrusted::UntrustedSocket;

use crate::control::policy::ClientUser;
use crate::sys::unix;

/// Connections at once. Lower: a large machine's processes are refused. Higher: more descriptors, one each.
const CLIENTS_MAX: usize = 1024;
/// Descriptors that are set aside for everything but connections. Lower: a port cannot be made although a client may
/// have it. Higher: fewer clients where the limit of open files is low.
const DESCRIPTORS_RESERVED: usize = 192;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: UntrustedSocket,
    pub(super) pid: i32,
    pub(super) user: ClientUser,
    pub(super) greeted: bool,
}

impl Client {
    pub(super) fn new(socket: UntrustedSocket) -> io::Result<Self> {
        let peer = socket.peer()?;
        let mut groups = vec![peer.gid];
        groups.extend(unix::peer_groups(socket.as_fd())?);
        Ok(Self {
            socket,
            pid: peer.pid,
            user: ClientUser {
                uid: peer.uid,
                groups,
            },
            greeted: false,
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
    pub(super) connected: BTreeMap<u64, Client>,
    /// [`CLIENTS_MAX`]; fewer where the process may not have as many descriptors.
    max: usize,
}

impl Clients {
    pub(super) fn new(first: u64) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        Self {
            next: first,
            connected: BTreeMap::new(),
            max: CLIENTS_MAX.min(limit.saturating_sub(DESCRIPTORS_RESERVED)),
        }
    }

    /// Checks that there is room for one more. The error says which limit is reached, and how to raise it.
    pub(super) fn check_room(&self) -> Result<(), String> {
        if self.connected.len() < self.max {
            return Ok(());
        }
        let (max, files) = (self.max, CLIENTS_MAX + DESCRIPTORS_RESERVED);
        Err(format!(
            "its {max} connections are in use; end some, or raise its limit of open files (LimitNOFILE=) if that is \
             below {files}"
        ))
    }

    /// A number that no client had before, so that an event that comes late finds no client.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn greeted(&self) -> impl Iterator<Item = (u64, &Client)> {
        self.connected
            .iter()
            .filter(|(_, client)| client.greeted)
            .map(|(number, client)| (*number, client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_names_its_limit_and_the_setting_that_raises_it() {
        let mut clients = Clients::new(1);
        assert_eq!(clients.check_room(), Ok(()));
        clients.max = 0;
        let why = clients.check_room().unwrap_err();
        assert!(why.contains("its 0 connections are in use"), "{why}");
        assert!(
            why.contains("LimitNOFILE=") && why.contains("1216"),
            "{why}"
        );
    }
}
