//! Scheduling of the calling thread.

use std::io;
use std::num::NonZeroU64;

use rustix::thread::CpuSet;
use tautline_state::policy::{policy_of, set_policy};

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
        let (policy, priority) = policy_of(0)?;
        Ok(Self { policy, priority })
    }

    /// Gives the calling thread this policy.
    pub(crate) fn apply(self) -> io::Result<()> {
        set_policy(0, self.policy, self.priority)
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
