//! Confinement of a control process: it opens with much privilege and then gives up what serving clients does not need.
//! A request that finds a hole in it meets a process that loads no program, enters no namespace, starts no command, and
//! reaches no files but its own.
//!
//! [`CALLS`], [`BPF_COMMANDS`], [`FAMILIES`], [`CAPABILITIES`] and [`files`] are all that it keeps. The tests of
//! control processes run under it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus,
};
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use tautline_state::privilege::keep_capabilities;

use super::server::Server;

/// System calls that a control process makes once it serves, by purpose. Others fail with `EPERM`.
const CALLS: &[(&str, &[libc::c_long])] = &[
    (
        "connections, requests and replies; netlink; ARP; the kernel sockets of UDP ports",
        &[
            libc::SYS_accept4,
            libc::SYS_bind,
            libc::SYS_connect,
            libc::SYS_getpeername,
            libc::SYS_getsockname,
            libc::SYS_getsockopt,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_sendmsg,
            libc::SYS_sendto,
            libc::SYS_setsockopt,
            libc::SYS_shutdown,
        ],
    ),
    (
        "waiting, and time",
        &[
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_futex,
            libc::SYS_nanosleep,
            libc::SYS_ppoll,
            libc::SYS_restart_syscall,
            libc::SYS_sched_yield,
        ],
    ),
    (
        "taps, interfaces, descriptors",
        &[
            libc::SYS_close,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_fcntl,
            libc::SYS_ioctl,
        ],
    ),
    (
        "claims, names of processes, settings that are put back",
        &[
            libc::SYS_faccessat,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            libc::SYS_flock,
            libc::SYS_fstat,
            libc::SYS_fstatfs,
            libc::SYS_fsync,
            libc::SYS_ftruncate,
            libc::SYS_getdents64,
            libc::SYS_lseek,
            libc::SYS_mkdirat,
            libc::SYS_newfstatat,
            libc::SYS_openat,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_read,
            libc::SYS_readlinkat,
            libc::SYS_readv,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_statx,
            libc::SYS_unlinkat,
            libc::SYS_write,
            libc::SYS_writev,
        ],
    ),
    (
        "memory, and threads that close what blocks",
        &[
            libc::SYS_brk,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_exit,
            libc::SYS_getpid,
            libc::SYS_getrandom,
            libc::SYS_gettid,
            libc::SYS_madvise,
            libc::SYS_membarrier,
            libc::SYS_mmap,
            libc::SYS_mprotect,
            libc::SYS_mremap,
            libc::SYS_munmap,
            libc::SYS_prctl,
            libc::SYS_rseq,
            libc::SYS_sched_getaffinity,
            libc::SYS_set_robust_list,
            libc::SYS_sigaltstack,
        ],
    ),
    (
        "who this is, signals, the end",
        &[
            libc::SYS_exit_group,
            libc::SYS_getegid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getuid,
            libc::SYS_prlimit64,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_tgkill,
            libc::SYS_uname,
        ],
    ),
];
/// Calls that younger architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[libc::c_long] = &[];

/// Calls by which settings are put back.
const CALLS_WITH_SETTINGS: &[libc::c_long] = &[
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

/// Commands of `bpf`: maps are made, read and written. `BPF_MAP_CREATE` to `BPF_MAP_GET_NEXT_KEY`, and
/// `BPF_OBJ_GET_INFO_BY_FD`. No program is loaded, attached or found by its number.
const BPF_COMMANDS: &[u64] = &[0, 1, 2, 3, 4, 15];

/// Families of sockets.
const FAMILIES: &[i32] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_NETLINK,
    libc::AF_PACKET,
];

/// Maps; taps and their programs; questions to the network; UDP ports below 1024. Not CAP_SYS_ADMIN, CAP_PERFMON.
const CAPABILITIES: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Names of what may be kept, for people to read.
const NAMES: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
];

/// Access to files that Landlock may know; kernels take the part that they know.
const LANDLOCK: ABI = ABI::V5;

/// Result of confining a control process, part by part.
#[derive(Debug)]
pub struct Confinement {
    parts: Vec<(&'static str, Result<String, String>)>,
}

impl Confinement {
    /// Parts that this kernel lacks or refuses, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = self.parts.iter();
        parts.filter_map(|(part, result)| Some((*part, result.as_ref().err()?.as_str())))
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self
            .parts
            .iter()
            .filter_map(|(_, result)| result.as_ref().ok());
        let held: Vec<&str> = held.map(String::as_str).collect();
        match held.is_empty() {
            true => write!(formatter, "not confined")?,
            false => write!(formatter, "confined: {}", held.join("; "))?,
        }
        for (part, why) in self.missing() {
            write!(formatter, "\nnot confined: {part}: {why}")?;
        }
        Ok(())
    }
}

impl Server {
    /// Gives up what serving clients does not need, for the whole process and for good: capabilities, access to files,
    /// system calls. `restores_settings` keeps what it takes to put settings of the machine back that this process has
    /// changed; those of the interface must lie in the calling thread's network namespace.
    ///
    /// Threads that the program has started keep their capabilities and their access to files, but not their system
    /// calls. What the kernel lacks is left out, and the result says so.
    pub fn confine(&mut self, restores_settings: bool) -> Confinement {
        let names = kept_names(restores_settings);
        let mut parts = Vec::new();
        // The last step takes away the calls of the others.
        parts.push(("files", self.confine_files(restores_settings)));
        let keep = kept(restores_settings);
        let here = keep_capabilities(keep);
        let there = self.taps_thread(move || keep_capabilities(keep));
        let result = here.and(there).map_err(|error| error.to_string());
        parts.push(("capabilities", result.map(|()| names)));
        parts.push(("system calls", confine_calls(restores_settings)));
        Confinement { parts }
    }

    fn confine_files(&self, restores_settings: bool) -> Result<String, String> {
        let rules = files(restores_settings).map_err(|error| error.to_string())?;
        let for_taps = rules.try_clone().map_err(|error| error.to_string())?;
        let restrict = |rules: RulesetCreated| match rules.restrict_self() {
            Ok(status) => match status.ruleset {
                RulesetStatus::NotEnforced => Err(io::Error::other(
                    "this kernel has no Landlock, or it is off (Linux 5.13, lsm=landlock)",
                )),
                RulesetStatus::PartiallyEnforced => Ok("some access to files"),
                RulesetStatus::FullyEnforced => Ok("access to files"),
            },
            Err(error) => Err(io::Error::other(error)),
        };
        let here = restrict(rules).map_err(|error| error.to_string())?;
        let there = self.taps_thread(move || restrict(for_taps).map(drop));
        there.map_err(|error| error.to_string())?;
        Ok(format!("{here} by Landlock"))
    }
}

fn kept(restores_settings: bool) -> CapabilitySet {
    match restores_settings {
        true => CAPABILITIES | CapabilitySet::SYS_NICE,
        false => CAPABILITIES,
    }
}

fn kept_names(restores_settings: bool) -> String {
    let kept = kept(restores_settings);
    let names = NAMES.iter().filter(|(one, _)| kept.contains(*one));
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    format!("capabilities {}", names.join(", "))
}

/// Files and directories that stay within reach: claims and sockets, names of processes, taps.
fn files(restores_settings: bool) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
    let all = AccessFs::from_all(LANDLOCK);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let read_and_write = read | AccessFs::WriteFile | AccessFs::Truncate;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        // No connection of TCP, in either direction.
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?;
    let own = tautline_state::runtime_directory()?;
    let own_access = read_and_write
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveDir
        | AccessFs::RemoveFile;
    rules = rules.add_rule(PathBeneath::new(&own, own_access))?;
    let tap = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let of_settings = if restores_settings {
        read_and_write
    } else {
        read
    };
    for (path, access) in [
        ("/proc", of_settings),
        ("/sys", of_settings),
        ("/dev/net/tun", tap),
    ] {
        // Without taps no port opens, and the refusal says so.
        if let Some(place) = place(path) {
            rules = rules.add_rule(PathBeneath::new(place, access))?;
        }
    }
    if restores_settings && let Some(system) = tautline_state::setting::keep_sysfs()? {
        rules = rules.add_rule(PathBeneath::new(system, of_settings))?;
    }
    Ok(rules)
}

fn place(path: &str) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Of all threads of the process.
fn confine_calls(restores_settings: bool) -> Result<String, String> {
    let program = filter(restores_settings).map_err(|error| error.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())?;
    Ok(format!("{} system calls", calls(restores_settings).count()))
}

/// Calls that are let through, whatever their arguments or some of them.
fn calls(restores_settings: bool) -> impl Iterator<Item = libc::c_long> {
    let always = CALLS.iter().flat_map(|(_, calls)| *calls);
    let with_settings = CALLS_WITH_SETTINGS
        .iter()
        .filter(move |_| restores_settings);
    let looked_at = [libc::SYS_bpf, libc::SYS_socket, libc::SYS_unshare];
    let whatever = always.chain(OLD_CALLS).chain(with_settings);
    whatever.copied().chain(looked_at)
}

fn filter(restores_settings: bool) -> Result<BpfProgram, seccompiler::BackendError> {
    let first_is = |value: u64| {
        let (length, equal) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
        SeccompRule::new(vec![SeccompCondition::new(0, length, equal, value)?])
    };
    let any_of = |values: &mut dyn Iterator<Item = u64>| values.map(first_is).collect();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls(restores_settings)
        .map(|call| (call, Vec::new()))
        .collect();
    let families: Result<Vec<_>, _> = any_of(&mut FAMILIES.iter().map(|family| *family as u64));
    let commands: Result<Vec<_>, _> = any_of(&mut BPF_COMMANDS.iter().copied());
    rules.insert(libc::SYS_socket, families?);
    rules.insert(libc::SYS_bpf, commands?);
    // A thread that closes for a stranger has a table of descriptors of its own; no namespace.
    rules.insert(libc::SYS_unshare, vec![first_is(libc::CLONE_FILES as u64)?]);
    let (refuse, allow) = (
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
    );
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refuse, allow, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_can_be_made_with_and_without_settings() {
        for restores_settings in [false, true] {
            let program = filter(restores_settings).unwrap();
            // The kernel takes 4,096 instructions.
            assert!(program.len() < 1_000, "{}", program.len());
        }
    }

    #[test]
    fn nothing_is_kept_that_would_undo_it() {
        let calls: Vec<_> = calls(true).collect();
        for call in [
            libc::SYS_capset,
            libc::SYS_chroot,
            libc::SYS_execve,
            libc::SYS_finit_module,
            libc::SYS_fsmount,
            libc::SYS_kexec_load,
            libc::SYS_mount,
            libc::SYS_perf_event_open,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_setns,
            libc::SYS_setuid,
        ] {
            assert!(!calls.contains(&call), "{call}");
        }
        // BPF_PROG_LOAD, BPF_OBJ_PIN, BPF_PROG_ATTACH, the look by number, BPF_LINK_CREATE, BPF_LINK_DETACH.
        for command in [5, 6, 8, 11, 12, 13, 14, 28, 34] {
            assert!(!BPF_COMMANDS.contains(&command), "{command}");
        }
        assert!(!kept(true).contains(CapabilitySet::SYS_ADMIN));
    }
}
