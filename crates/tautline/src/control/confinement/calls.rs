//! System calls that a control process keeps, and the filter that refuses the others. On processors of 64 bits.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// System calls that a control process makes once it serves, by purpose. Others fail with `EPERM`.
const CALLS: &[(&str, &[libc::c_long])] = &[
    (
        "connections, requests and replies; netlink; the kernel sockets of UDP ports",
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
            libc::SYS_socketpair,
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

const FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_NETLINK];

pub(super) fn confine(restores_settings: bool) -> Result<String, seccompiler::Error> {
    let program = filter(restores_settings)?;
    seccompiler::apply_filter_all_threads(&program)?;
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
    }
}
