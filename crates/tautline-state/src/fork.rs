//! The process to which a handle belongs.
//!
//! The child of a fork has a copy of each handle of its parent, with the same descriptors, mapped memory and counters,
//! and without the parent's threads. Two processes that use one handle harm each other: they use a nonce twice, and the
//! one that closes takes the other's port away. So a handle notes its process in an [`OwnerProcess`]. In another
//! process its calls are refused ([`OtherProcess`]), and dropping it frees only this process's copies.
//!
//! A check compares two numbers and makes no system call. The number of this process lies in a page that the kernel
//! wipes in each child (MADV_WIPEONFORK, Linux 4.14). So children of a bare clone(2) and of `_Fork`, which run no
//! handler of `pthread_atfork`, are known too. Between vfork(2) and exec the child shares the page with its parent, and
//! nothing changes in either.
#![allow(unsafe_code)] // A page with its own advice to the kernel, and a handler that runs in the child of a fork.

use std::io;
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU32};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Number of this process where the kernel does not wipe pages: then a handler of `pthread_atfork` sets it to 0.
static UNWIPED: AtomicU32 = AtomicU32::new(0);
/// Place of this process's number, which is 0 from the fork until the first handle is made. Either [`UNWIPED`] or a
/// page that is never unmapped. Relaxed: it is set once, before the first [`OwnerProcess`], which is handed on to other
/// threads with the handle that has it.
static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNWIPED).cast_mut());
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
        match number().load(Relaxed) {
            0 => Self::first(),
            found => Self(found),
        }
    }

    /// The calling process, which has made no handle since it was forked.
    #[cold]
    fn first() -> Self {
        static PLACE: Once = Once::new();
        PLACE.call_once(|| match wiped_page() {
            Ok(page) => NUMBER.store(page, Relaxed),
            Err(_) => wipe_by_handler(),
        });
        // Larger than the numbers of all processes of which this one has handles.
        let own = LAST.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        match number().compare_exchange(0, own, Relaxed, Relaxed) {
            Ok(_) => Self(own),
            // Another thread was first.
            Err(found) => Self(found),
        }
    }

    /// Whether it is the calling process. Wait-free: two loads.
    #[inline(always)]
    #[must_use]
    pub fn is_current(self) -> bool {
        number().load(Relaxed) == self.0
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

#[inline(always)]
fn number() -> &'static AtomicU32 {
    // SAFETY: a static, or the beginning of a page that is never unmapped; zeroed or written as an atomic only.
    unsafe { &*NUMBER.load(Relaxed) }
}

/// A zeroed page that children of a fork find zeroed again.
fn wiped_page() -> io::Result<*mut AtomicU32> {
    let bytes = size_of::<AtomicU32>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing. The kernel rounds up to a page.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?;
    // SAFETY: the mapping just made.
    if let Err(refused) = unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) } {
        // SAFETY: as above; no reference points into it. It cannot fail for this range.
        let _unmapped = unsafe { munmap(page, bytes) };
        return Err(refused.into());
    }
    Ok(page.cast())
}

/// The next best, on a kernel without such pages: children of fork(2) are known, those of a bare clone(2) are not.
fn wipe_by_handler() {
    extern "C" fn in_child() {
        UNWIPED.store(0, Relaxed);
    }
    // SAFETY: the handler stores to an atomic, which is allowed in the child of a fork. If this library is unloaded,
    // the C library forgets the handler. It fails without memory only.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(test)]
pub(crate) mod testing {
    /// Whether `work` succeeds in a process that `make` makes: it answers as fork(2) does.
    pub(crate) fn succeeds_in(
        make: impl FnOnce() -> libc::pid_t,
        work: impl FnOnce() -> bool,
    ) -> bool {
        let pid = make();
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

    pub(crate) fn fork() -> libc::pid_t {
        // SAFETY: the child takes no lock but the allocator's, which is free in a child of fork, and ends.
        unsafe { libc::fork() }
    }

    /// A fork that no handler of `pthread_atfork` hears of.
    pub(crate) fn bare_clone() -> libc::pid_t {
        let flags = libc::SIGCHLD as libc::c_long;
        // SAFETY: without other flags and without a stack it is a fork; the child loads and stores atomics, makes
        // system calls, and ends.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        pid as libc::pid_t
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{bare_clone, fork, succeeds_in};
    use super::*;

    #[test]
    fn children_and_theirs_are_other_processes() {
        let own = OwnerProcess::current();
        assert_eq!(OwnerProcess::current(), own);
        for make in [fork, bare_clone] {
            let is_known = succeeds_in(make, || {
                let is_other = own.check() == Err(OtherProcess);
                let child = OwnerProcess::current();
                let is_known_below = succeeds_in(make, || {
                    let are_others = !own.is_current() && !child.is_current();
                    let grandchild = OwnerProcess::current();
                    are_others && grandchild.is_current() && ![own, child].contains(&grandchild)
                });
                is_other && is_known_below && child.is_current() && !own.is_current()
            });
            assert!(is_known && own.is_current());
        }
    }

    #[test]
    fn a_child_that_shares_the_memory_changes_nothing() {
        let own = OwnerProcess::current();
        // By posix_spawn(3), that is, vfork(2) and exec.
        let ended = std::process::Command::new("true").status().unwrap();
        assert!(ended.success() && own.is_current());
    }
}
