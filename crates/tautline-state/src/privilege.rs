//! Capabilities that a thread holds and gives up, and what forbids system calls in spite of them.

use std::{fs, io};

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Gives up, for the calling thread and for good, all of its capabilities but these.
///
/// # Errors
/// The kernel refuses it.
pub fn keep_capabilities(keep: CapabilitySet) -> io::Result<()> {
    // Without CAP_SETPCAP the bounding set stays, of which a process that executes nothing gets nothing.
    for one in CapabilitySet::all().difference(keep).iter() {
        let _stays = rustix::thread::remove_capability_from_bounding_set(one);
    }
    let _none = rustix::thread::clear_ambient_capability_set();
    let held = rustix::thread::capabilities(None)?;
    let left = CapabilitySets {
        effective: held.effective & keep,
        permitted: held.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, left)?)
}

/// Whether the calling thread holds, in the first user namespace, the capabilities for programs of bpf(2) on
/// interfaces.
#[must_use]
pub fn may_load_bpf() -> bool {
    let for_bpf = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let is_first = is_in_first_user_namespace().is_ok_and(|is_first| is_first);
    held.is_ok_and(|held| {
        let may_load = held.contains(for_bpf) || held.contains(CapabilitySet::SYS_ADMIN);
        is_first && may_load && held.contains(CapabilitySet::NET_ADMIN)
    })
}

/// Whether this process is in the first user namespace, in which every user has its own number.
pub(crate) fn is_in_first_user_namespace() -> io::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    Ok(map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Whether a filter judges the system calls of the calling thread (seccomp, proc_pid_status(5)).
#[must_use]
pub fn has_seccomp_filter() -> bool {
    fs::read_to_string("/proc/thread-self/status")
        .is_ok_and(|status| status.lines().any(|line| line == "Seccomp:\t2"))
}
