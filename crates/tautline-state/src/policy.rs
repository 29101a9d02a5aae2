//! Scheduling policy of a thread, as text and in force. rustix and std have no call for it.
#![allow(unsafe_code)] // two system calls; each block names its preconditions

use std::io;

const POLICIES: [(&str, libc::c_int); 5] = [
    ("fifo", libc::SCHED_FIFO),
    ("rr", libc::SCHED_RR),
    ("other", libc::SCHED_OTHER),
    ("batch", libc::SCHED_BATCH),
    ("idle", libc::SCHED_IDLE),
];

/// Gives a thread a scheduling policy and priority; thread 0 is the calling one. The kernel's call and not the C
/// library's, which in musl always answers ENOSYS.
pub fn set_policy(thread: i32, policy: i32, priority: i32) -> io::Result<()> {
    // SAFETY: the kernel's struct sched_param is one int, which `priority` is and which outlives the call; the
    // kernel checks the thread's number.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const priority,
        )
    };
    check(returned).map(|_| ())
}

/// Makes the calling thread an ordinary one. A thread of ours has the policy of the program's thread that started it,
/// which may be a real-time one.
pub fn be_ordinary() {
    // A lower priority is always granted.
    let _set = set_policy(0, libc::SCHED_OTHER, 0);
}

/// `struct sched_attr` as of Linux 3.14 (uapi/linux/sched/types.h, SCHED_ATTR_SIZE_VER0).
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// SCHED_DEADLINE in uapi/linux/sched.h; not in every libc.
const SCHED_DEADLINE: u32 = 6;
/// Children of the thread have SCHED_OTHER. Without this the kernel lets it have none.
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// Gives a thread SCHED_DEADLINE, and what it starts SCHED_OTHER; thread 0 is the calling one. The kernel answers EPERM
/// to a thread that may not run on all CPUs of its scheduling domain, and EBUSY when the admission test fails.
pub fn set_deadline(
    thread: i32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: SCHED_DEADLINE,
        flags: SCHED_FLAG_RESET_ON_FORK,
        nice: 0,
        priority: 0,
        runtime_ns,
        deadline_ns,
        period_ns,
    };
    // SAFETY: `attributes` states its own size and outlives the call; the kernel checks the thread's number.
    let returned =
        unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) };
    check(returned).map(|_| ())
}

/// Scheduling policy and priority of a thread; thread 0 is the calling one.
pub fn policy_of(thread: i32) -> io::Result<(i32, i32)> {
    let mut priority: libc::c_int = 0;
    // SAFETY: no pointers are passed; the kernel checks the thread's number.
    let policy = check(unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) })?;
    // SAFETY: the kernel's struct sched_param is one int, which `priority` is and which outlives the call.
    check(unsafe { libc::syscall(libc::SYS_sched_getparam, thread, &raw mut priority) })?;
    Ok((policy, priority))
}

fn check(returned: libc::c_long) -> io::Result<libc::c_int> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned as libc::c_int)
    }
}

pub(crate) fn to_text(policy: i32, priority: i32) -> String {
    // The kernel may show that children do not inherit the policy.
    let policy = policy & !libc::SCHED_RESET_ON_FORK;
    let known = POLICIES.iter().find(|(_, number)| *number == policy);
    let name = known.map_or_else(
        || format!("policy {policy}"),
        |(name, _)| (*name).to_owned(),
    );
    if priority == 0 {
        name
    } else {
        format!("{name} {priority}")
    }
}

pub(crate) fn from_text(text: &str) -> io::Result<(i32, i32)> {
    let (name, priority) = text.split_once(' ').unwrap_or((text, "0"));
    let known = POLICIES.iter().find(|(known, _)| *known == name);
    match (known, priority.parse()) {
        (Some((_, policy)), Ok(priority)) => Ok((*policy, priority)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in ["fifo 10", "rr 1", "other", "batch", "idle"] {
            let (policy, priority) = from_text(text).unwrap();
            assert_eq!(to_text(policy, priority), text);
        }
        for text in ["", "fifo ten", "deadline", "fifo 1 2"] {
            assert!(from_text(text).is_err(), "{text}");
        }
    }
}
