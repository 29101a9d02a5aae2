//! Closing of what strangers handed over. To close a descriptor can block for as long as whoever made it chose (a TCP
//! socket that lingers, a file of a FUSE server). So what came from another user is closed by a thread of that user's
//! own, which holds up nobody else. A connection needs such a thread only where none of the kernel's ways to close it
//! at once is there ([`ForeignSocket`]).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_state::foreign::ForeignSocket;
use tautline_state::policy::be_ordinary;

use super::place::own_user;

/// Threads that close for one user. Lower: one descriptor that blocks delays more of that user's own hang-ups.
/// Higher: a hostile user has more threads of this process blocked.
const THREADS_PER_USER_MAX: usize = 4;
/// Stack of such a thread: it makes system calls only. Lower than the C library's least is refused; higher is memory
/// that a process with locked memory pays for.
const STACK_BYTES: usize = 64 << 10;

/// Whether a user's descriptors are taken for harmless: this process's own user and root could stop it anyway.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == own_user()
}

/// Descriptors to be closed for one user.
#[derive(Debug, Default)]
struct Pending {
    threads: usize,
    waiting: Vec<OwnedFd>,
}

impl Pending {
    fn held(&self) -> usize {
        self.threads + self.waiting.len()
    }
}

/// Closes descriptors of other users where blocking harms nobody.
#[derive(Debug, Default)]
pub(super) struct Closer {
    users: Mutex<BTreeMap<u32, Pending>>,
}

impl Closer {
    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, Pending>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes descriptors that a user handed over.
    pub(super) fn close(self: &Arc<Self>, user: u32, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() || is_trusted(user) {
            return;
        }
        let mut users = self.users();
        let pending = users.entry(user).or_default();
        pending.waiting.extend(descriptors);
        self.start(user, pending);
    }

    /// Tries again where no thread could be had.
    pub(super) fn retry(self: &Arc<Self>) {
        for (user, pending) in self.users().iter_mut() {
            if pending.threads == 0 {
                self.start(*user, pending);
            }
        }
    }

    /// Descriptors of a user that are not closed yet.
    pub(super) fn held(&self, user: u32) -> usize {
        self.users().get(&user).map_or(0, Pending::held)
    }

    /// Of all users.
    pub(super) fn held_of_all(&self) -> usize {
        self.users().values().map(Pending::held).sum()
    }

    /// Whether anything waits for a thread.
    pub(super) fn is_waiting(&self) -> bool {
        self.users()
            .values()
            .any(|pending| pending.threads == 0 && !pending.waiting.is_empty())
    }

    fn start(self: &Arc<Self>, user: u32, pending: &mut Pending) {
        if pending.threads == THREADS_PER_USER_MAX {
            return;
        }
        let closer = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("taut-vbus-close".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || closer.run(user));
        // Without a thread they wait for the next attempt.
        pending.threads += usize::from(started.is_ok());
    }

    fn run(&self, user: u32) {
        // Also where the service thread is a real-time one: closing can take as much time as whoever handed over chose.
        be_ordinary();
        loop {
            let mut users = self.users();
            let Some(pending) = users.get_mut(&user) else {
                return;
            };
            // One by one, so that the user's other threads go on with the rest.
            let Some(descriptor) = pending.waiting.pop() else {
                pending.threads -= 1;
                if pending.threads == 0 {
                    users.remove(&user);
                }
                return;
            };
            drop(users);
            drop(descriptor);
        }
    }
}

/// A socket to a peer, with the peer's user. To close it does not block.
#[derive(Debug)]
pub(super) struct PeerSocket {
    /// Taken when it is dropped.
    socket: Option<ForeignSocket>,
    user: u32,
    closer: Arc<Closer>,
}

impl PeerSocket {
    /// The socket of a connection, whose peer the kernel names.
    pub(super) fn new(socket: ForeignSocket, closer: &Arc<Closer>) -> std::io::Result<Self> {
        let user = socket.peer()?.uid;
        Ok(Self {
            socket: Some(socket),
            user,
            closer: Arc::clone(closer),
        })
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Descriptors that came through this socket.
    pub(super) fn foreign(&self, descriptors: Vec<OwnedFd>) -> Foreign {
        Foreign {
            descriptors,
            user: self.user,
            closer: Arc::clone(&self.closer),
        }
    }
}

impl Deref for PeerSocket {
    type Target = ForeignSocket;

    fn deref(&self) -> &ForeignSocket {
        self.socket.as_ref().expect("there until dropped")
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        if is_trusted(self.user) {
            drop(socket.trust());
        } else if let Err(kept) = socket.close() {
            self.closer.close(self.user, vec![kept]);
        }
    }
}

/// Descriptors that a user handed over. Those that are not taken out are closed by the closer.
#[derive(Debug)]
pub(super) struct Foreign {
    descriptors: Vec<OwnedFd>,
    user: u32,
    closer: Arc<Closer>,
}

impl Foreign {
    /// The descriptors, to be looked at.
    pub(super) fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().map(AsFd::as_fd).collect()
    }

    /// Takes out descriptors that were found to be harmless.
    pub(super) fn take<const N: usize>(mut self) -> Option<[OwnedFd; N]> {
        if self.descriptors.len() != N {
            return None;
        }
        std::mem::take(&mut self.descriptors).try_into().ok()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.closer
            .close(self.user, std::mem::take(&mut self.descriptors));
    }
}
