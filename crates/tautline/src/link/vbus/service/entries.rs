//! Entries of the service thread and their registrations with its epoll: one piece, so that no descriptor is heard of
//! whose entry is gone, however long it takes to close it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;

use super::super::entry::Entry;
use crate::sys::wait;

/// Events taken at once. Lower: more system calls while many peers come. Higher: no difference, the rest stays.
const EVENTS_MAX: usize = 64;
/// Tokens below are for descriptors that are not entries'.
const FIRST: u64 = 2;

pub(super) struct Entries {
    epoll: OwnedFd,
    /// Each is registered.
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

impl Entries {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            entries: BTreeMap::new(),
            next: FIRST,
        })
    }

    /// Also tells of a descriptor that stays for as long as the thread does, by a token below those of entries.
    pub(super) fn watch(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        debug_assert!(token < FIRST);
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    /// Waits until descriptors have something to say; their tokens.
    pub(super) fn wait(&self, timeout: Option<Duration>, tokens: &mut Vec<u64>) {
        tokens.clear();
        if let Ok(told) = wait::tokens(
            self.epoll.as_fd(),
            &mut wait::places::<EVENTS_MAX>(),
            timeout,
        ) {
            tokens.extend(told);
        }
    }

    /// Adds an entry. Gives it back where the kernel has no memory for its registration.
    pub(super) fn add(&mut self, entry: Entry) -> Result<(), Entry> {
        let token = self.next;
        self.next += 1;
        self.put(token, entry)
    }

    /// The same under a token that was taken out.
    pub(super) fn put(&mut self, token: u64, entry: Entry) -> Result<(), Entry> {
        if self.register(token, &entry).is_err() {
            return Err(entry);
        }
        self.entries.insert(token, entry);
        Ok(())
    }

    /// Takes an entry out, of which nothing more is told then.
    pub(super) fn take(&mut self, token: u64) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        let _known = epoll::delete(&self.epoll, entry.socket());
        Some(entry)
    }

    pub(super) fn take_all(&mut self, is_meant: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let meant = self.entries.iter().filter(|(_, entry)| is_meant(entry));
        let meant: Vec<u64> = meant.map(|(token, _)| *token).collect();
        meant
            .into_iter()
            .filter_map(|token| self.take(token))
            .collect()
    }

    pub(super) fn get(&self, token: u64) -> Option<&Entry> {
        self.entries.get(&token)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    fn register(&self, token: u64, entry: &Entry) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, entry.socket(), data, epoll::EventFlags::IN)
    }
}
