//! Scheduling of the calling thread, and memory of the process that is never paged out.

use std::io;
use std::num::NonZeroU64;

use rustix::mm::{MapFlags, MlockAllFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CpuSet};

use super::memory::page_bytes;

/// Scheduling policy and priority of a thread, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    policy: libc::c_int,
    priority: libc::c_int,
}

impl Policy {
    /// SCHED_FIFO at a priority from 1 to 99.
    pub(crate) fn fifo(priority: u8) -> Self {
        Self {
            policy: libc::SCHED_FIFO,
            priority: priority.into(),
        }
    }

    /// Policy of the calling thread.
    pub(crate) fn current() -> io::Result<Self> {
        let mut priority: libc::c_int = 0;
        // SAFETY: the kernel's struct sched_param is one int, which `priority` is and which outlives the calls;
        // thread 0 is the calling one.
        let (policy, returned) = unsafe {
            (
                libc::syscall(libc::SYS_sched_getscheduler, 0),
                libc::syscall(libc::SYS_sched_getparam, 0, &raw mut priority),
            )
        };
        super::check(returned as libc::c_int)?;
        Ok(Self {
            policy: super::check(policy as libc::c_int)?,
            priority,
        })
    }

    /// Gives the calling thread this policy. The kernel's call and not the C library's, which in musl always
    /// answers ENOSYS.
    pub(crate) fn apply(self) -> io::Result<()> {
        // SAFETY: the kernel's struct sched_param is one int, which `priority` is and which outlives the call;
        // thread 0 is the calling one.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_sched_setscheduler,
                0,
                self.policy,
                &raw const self.priority,
            )
        };
        super::check(returned as libc::c_int).map(drop)
    }
}

/// CPUs that the calling thread may run on.
pub(crate) fn allowed_cpus() -> io::Result<CpuSet> {
    Ok(rustix::thread::sched_getaffinity(None)?)
}

/// Restricts the calling thread to these CPUs.
pub(crate) fn set_allowed_cpus(cpus: &CpuSet) -> io::Result<()> {
    Ok(rustix::thread::sched_setaffinity(None, cpus)?)
}

/// Timer slack of the calling thread in nanoseconds: how late the kernel may wake it to save wake-ups.
pub(crate) fn timer_slack_ns() -> io::Result<u64> {
    Ok(rustix::thread::current_timer_slack()?)
}

/// Sets the timer slack of the calling thread. 0 sets the default of the thread.
pub(crate) fn set_timer_slack_ns(ns: u64) -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(
        ns,
    ))?)
}

/// Locks all memory of the process, and all that it maps later. Fails where a limit binds: an
/// allocation beyond the limit would fail later, and a Rust process aborts then.
pub(crate) fn lock_all_memory() -> io::Result<()> {
    let limit = getrlimit(Resource::Memlock).current;
    if let Some(bytes) = limit
        && !may_exceed_memory_lock_limit()
    {
        return Err(limit_binds(bytes));
    }
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    match limit {
        // In a user namespace the capability is held and the limit binds nevertheless.
        Some(bytes) if !may_map(bytes) => {
            // Without FUTURE, the call ends the locking of future memory.
            rustix::mm::mlockall(MlockAllFlags::CURRENT)?;
            Err(limit_binds(bytes))
        }
        _ => Ok(()),
    }
}

fn limit_binds(bytes: u64) -> io::Error {
    io::Error::other(format!("RLIMIT_MEMLOCK is {bytes} bytes"))
}

fn may_exceed_memory_lock_limit() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK))
}

/// Whether more memory than this can be mapped while future memory is locked.
fn may_map(bytes: u64) -> bool {
    let Ok(bytes) = usize::try_from(bytes) else {
        return true;
    };
    let Some(length) = bytes.checked_add(page_bytes()) else {
        return true;
    };
    // Not accessible, so nothing is filled; it counts against the limit all the same.
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            length,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    // SAFETY: the mapping that was just made and that nobody else knows.
    mapped.is_ok_and(|base| unsafe { rustix::mm::munmap(base, length) }.is_ok())
}
