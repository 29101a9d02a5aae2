//! The process to which a handle belongs.
//!
//! The child of a fork has a copy of each handle of its parent, with the same descriptors, mapped memory and counters,
//! and without the parent's threads. Two processes that use one handle harm each other: they use a nonce twice, and the
//! one that closes takes the other's port away. So a handle notes its process in an [`OwnerProcess`]. In another
//! process its calls are refused ([`OtherProcess`]), and dropping it frees only this process's copies.
//!
//! A check compares two numbers and makes no system call: a handler of pthread_atfork(3) clears the number of the
//! process in each child of fork(2). A child of a bare clone(2) runs no such handler, and is taken for its parent.
#![allow(unsafe_code)] // A handler that runs in the child of a fork.

use std::io;
use std::sync::Once;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Number of this process: 0 from the fork until the first handle is made. Relaxed: a number is handed on to other
/// threads with the handle that has it.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Last number that was given to this process, or to one that it was forked from. Relaxed: a child has a copy.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The process that made a handle, noted in it.
///
/// ```
/// use tautline_state::fork::OwnerProcess;
///
/// let owner = OwnerProcess::current();
/// owner.check()?;
/// # Ok::<(), tautline_state::fork::OtherProcess>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u32);

/// The handle was made by another process than the one that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was opened by another process; open it again after fork")]
pub struct OtherProcess;

impl OwnerProcess {
    /// The calling process.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        match NUMBER.load(Relaxed) {
            0 => Self::first(),
            found => Self(found),
        }
    }

    /// The calling process, which has made no handle since it was forked.
    #[cold]
    fn first() -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler stores to an atomic, which is allowed in the child of a fork. If this library is
            // unloaded, the C library forgets the handler. It fails without memory only.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        // Larger than the numbers of all processes of which this one has handles.
        let own = LAST.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        match NUMBER.compare_exchange(0, own, Relaxed, Relaxed) {
            Ok(_) => Self(own),
            // Another thread was first.
            Err(found) => Self(found),
        }
    }

    /// Whether it is the calling process. Wait-free: one load.
    #[inline(always)]
    #[must_use]
    pub fn is_current(self) -> bool {
        NUMBER.load(Relaxed) == self.0
    }

    /// An error if it is another process than the calling one.
    ///
    /// # Errors
    /// [`OtherProcess`].
    #[inline(always)]
    pub fn check(self) -> Result<(), OtherProcess> {
        if self.is_current() {
            return Ok(());
        }
        Err(OtherProcess)
    }
}

impl From<OtherProcess> for io::Error {
    fn from(error: OtherProcess) -> Self {
        Self::other(error)
    }
}

extern "C" fn in_child() {
    NUMBER.store(0, Relaxed);
}

#[cfg(test)]
pub(crate) mod testing {
    /// Whether `work` succeeds in a forked process.
    pub(crate) fn succeeds_in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child takes no lock but the allocator's, which is free in a child of fork, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            let has_failed = !work();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(has_failed.into()) };
        }
        let mut status = 0;
        // SAFETY: room for the status of a child of ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::testing::succeeds_in_child;
    use super::*;

    #[test]
    fn children_and_theirs_are_other_processes() {
        let own = OwnerProcess::current();
        assert_eq!(OwnerProcess::current(), own);
        let is_known = succeeds_in_child(|| {
            let is_other = own.check() == Err(OtherProcess);
            let child = OwnerProcess::current();
            let is_known_below = succeeds_in_child(|| {
                let are_others = !own.is_current() && !child.is_current();
                let grandchild = OwnerProcess::current();
                are_others && grandchild.is_current() && ![own, child].contains(&grandchild)
            });
            is_other && is_known_below && child.is_current() && !own.is_current()
        });
        assert!(is_known && own.is_current());
    }

    #[test]
    fn a_child_that_shares_the_memory_changes_nothing() {
        let own = OwnerProcess::current();
        // By posix_spawn(3), that is, vfork(2) and exec.
        let ended = std::process::Command::new("true").status().unwrap();
        assert!(ended.success() && own.is_current());
    }
}
